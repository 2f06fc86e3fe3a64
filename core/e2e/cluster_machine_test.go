package e2e

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// What is wrong with a node's machine: its clock, its disk.

// wallClock is the clock of a node that scripts/skewed-clock.sh built: off by what a file
// says that the process maps.
type wallClock struct{ file string }

// offTheClock gives a node a clock of its own when there is such a build.
func (m *member) offTheClock() {
	m.t.Helper()
	m.program = os.Getenv("MINK_TEST_CLOCK_BINARY")
	if m.program == "" {
		return
	}
	m.env = append(m.env, "MINK_PLUGIN_DIR="+os.Getenv("MINK_TEST_CLOCK_PLUGINS"))
	m.clock = &wallClock{filepath.Join(m.dir, "clock")}
	m.clock.set(m, 0)
	m.env = append(m.env, "AWS_MINK_TEST_CLOCK="+m.clock.file)
}

// set makes the clock jump.
func (w *wallClock) set(m *member, off time.Duration) {
	m.t.Helper()
	f, err := os.OpenFile(w.file, os.O_CREATE|os.O_WRONLY, 0o600) // in place: it is mapped
	if err == nil {
		_, err = f.Write(binary.LittleEndian.AppendUint64(nil, uint64(int64(off/time.Second))))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// clockOff lets a node's clock jump by an hour while it runs, and back. (A store that
// looks at the time of signatures refuses a process that starts with such a clock.)
func (l *load) clockOff(rng *rand.Rand) {
	l.t.Helper()
	m := l.any(rng)
	off := []time.Duration{time.Hour, -time.Hour}[rng.IntN(2)]
	m.clock.set(m, off)
	l.wait(between(rng, 0, 3*leaseTTL)) // deletions and sweeps of some rounds
	l.goesOn("with a clock that is " + off.String() + " off")
	m.clock.set(m, 0)
}

// onASmallDisk gives a node a file system of its own where this user may mount one.
func (m *member) onASmallDisk() {
	m.t.Helper()
	if os.Getuid() == 0 {
		m.mountData("size=64m")
		m.smallDisk = true
	}
}

// fullDisk fills a node's disk for up to some leases.
func (l *load) fullDisk(rng *rand.Rand) {
	l.t.Helper()
	m := l.any(rng)
	filler := filepath.Join(m.dir, "data", "filler")
	f, err := os.Create(filler)
	if err != nil {
		l.t.Fatal(err)
	}
	for size := 1 << 20; size > 0; size >>= 1 { // to the last byte
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	_ = f.Close()
	l.wait(between(rng, leaseTTL/2, 3*leaseTTL))
	if err := os.Remove(filler); err != nil {
		l.t.Fatal(err)
	}
	if m.ended() {
		l.t.Errorf("node %d ended on a full disk:\n%s", m.id, m.stderr)
	}
}
