package tiering

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

var (
	simSeed = flag.Uint64("tiering-seed", 0, "run the simulation of this seed alone; 0: several")
	simRuns = flag.Int("tiering-runs", 0, "how many seeds the simulation runs; 0: as many as fit in a few seconds")
)

// sim is a cluster of three processes of which one holds the lease, under every fault at once, in bubble time.
type sim struct {
	t      *testing.T
	w      *world
	faults faults

	mu struct {
		sync.Mutex
		rng    *rand.Rand
		quiet  bool
		moods  map[string]mood // of tables at their sink
		holder *proc
		calls  int
	}
	ruler sync.Mutex // of what follows
	procs []*proc
	ended []*proc
}

// mood is how a table's place at the sink is for a while.
type mood int

const (
	well mood = iota
	down
	hanging
	slow
)

func (s *sim) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.rng.IntN(n)
}

// fate takes the call's time, and chooses. Nothing happens to a process between its look at the
// lease and an open: a place that a dropped table made again would stay (DESIGN.md).
func (s *sim) fate(p *proc, point string) fate {
	verb, table, _ := strings.Cut(point, " ")
	s.mu.Lock()
	s.mu.calls++
	quiet, m := s.mu.quiet, s.mu.moods[table]
	wait := time.Duration(s.mu.rng.IntN(40)) * time.Millisecond
	draw, pause := s.mu.rng.IntN(1000), s.mu.rng.IntN(400)
	how, long := s.mu.rng.IntN(4), time.Duration(s.mu.rng.IntN(90))*time.Second
	s.mu.Unlock()
	if verb != "open" {
		time.Sleep(wait)
	}
	if quiet {
		return succeeds
	}
	switch {
	case m == down:
		return refused
	case m == hanging:
		return hangs
	case m == slow && verb != "open":
		time.Sleep(long / 4)
	case pause == 0 && verb != "open":
		time.Sleep(long)
	}
	switch {
	case draw < 4:
		return killedBefore
	case draw < 8:
		return killedAfter
	case draw < 14:
		return refused
	case verb == "commit" && draw < 250:
		return []fate{lost, late, never, unspecified}[how]
	}
	return succeeds
}

func (s *sim) start() {
	cfg := testConfig()
	p := startProc(s.t, s.w, cfg, s.faults, s.fate)
	p.setLag(func() int { return s.roll(3) })
	p.short = func() bool {
		n := s.roll(100)
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.mu.quiet && n == 0
	}
	s.procs = append(s.procs, p)
}

func (s *sim) anyProc() *proc {
	s.ruler.Lock()
	defer s.ruler.Unlock()
	return s.procs[s.roll(len(s.procs))]
}

// replaceDead starts a process in the place of one that was killed.
func (s *sim) replaceDead() {
	s.ruler.Lock()
	defer s.ruler.Unlock()
	for i, p := range s.procs {
		if p.isDead() {
			s.ended = append(s.ended, p)
			s.procs = append(s.procs[:i:i], s.procs[i+1:]...)
			s.start()
			return
		}
	}
}

// rule starts processes that were killed again, and moves the lease: at random, or when the
// holder is dead. A former holder learns it late.
func (s *sim) rule(ctx context.Context, wg *sync.WaitGroup) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(1+s.roll(8)) * time.Second)
		s.replaceDead()
		s.mu.Lock()
		old := s.mu.holder
		s.mu.Unlock()
		if old != nil && !old.isDead() && s.roll(12) > 0 {
			continue
		}
		next := s.anyProc()
		if next == old || next.isDead() {
			continue
		}
		s.mu.Lock()
		s.mu.holder = next
		s.mu.Unlock()
		next.takeLease()
		if old != nil {
			wg.Go(func() {
				time.Sleep(time.Duration(s.roll(20000)) * time.Millisecond)
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.mu.holder != old {
					old.believe(0)
				}
			})
		}
	}
}

// act changes the world at random.
func (s *sim) act(wg *sync.WaitGroup, ctx context.Context) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	tables := sortedTables(s.w)
	var alive []*wTable
	for _, t := range tables {
		if !t.dropped {
			alive = append(alive, t)
		}
	}
	t := alive[s.roll(len(alive))]
	b := t.buckets[s.roll(len(t.buckets))]
	switch d := s.roll(100); {
	case d < 60:
		if b.gone || b.closed {
			return
		}
		for range 1 + s.roll(12) {
			b.append(t, s.record(t, b)...)
		}
	case d < 68: // a trim by age
		if to := t.trimLimit(b); to > b.start && !b.gone {
			b.start += mink.Offset(1 + s.roll(int(to-b.start)))
		}
	case d < 72:
		if !t.keyed && b.end > b.start && !b.gone {
			b.trimByHand(b.start + mink.Offset(1+s.roll(int(b.end-b.start))))
		}
	case d < 77:
		if t.keyed && b.end > 0 && !b.gone {
			if b.snapshots = append(b.snapshots, b.end); len(b.snapshots) > 2 {
				b.snapshots = b.snapshots[1:]
			}
		}
	case d < 82:
		s.w.evolve(t)
	case d < 86:
		value := fmt.Sprintf("p%d", s.roll(3))
		lives := slices.ContainsFunc(t.buckets, func(b *wBucket) bool { return b.value == value && !b.gone })
		if t.parted && len(t.buckets) < 12 && !lives {
			s.w.partition(t, value, 1+s.roll(2))
		}
	case d < 89: // a partition is closed, and dropped once it is tiered
		if !t.parted || len(t.buckets) < 3 {
			return
		}
		for _, x := range t.buckets {
			if x.ref.Partition == b.ref.Partition {
				if x.closed && x.tiered == x.end {
					x.gone = true
				}
				x.closed = true
			}
		}
	case d < 91:
		t.dropped = true
		s.table(t.name)
	case d < 92:
		if len(alive) < 6 {
			s.table(fmt.Sprintf("t%d", s.w.next))
		}
	case d < 97:
		s.mu.Lock()
		s.mu.moods[t.name] = mood(s.mu.rng.IntN(4))
		if s.mu.rng.IntN(2) == 0 {
			s.mu.moods[t.name] = well
		}
		s.mu.Unlock()
	default:
		p := s.anyProc()
		wg.Go(func() { _ = p.tiering.Request(ctx, t.target()) })
	}
	s.w.changed()
}

func (s *sim) table(name string) {
	s.w.table(name, []string{"lake", "other"}[s.roll(2)], s.roll(2) == 0, s.roll(2) == 0, 1+s.roll(3), time.Duration(1+s.roll(40))*time.Second)
}

// record is what the next write of a bucket appends.
func (s *sim) record(t *wTable, b *wBucket) []wRecord {
	key := int64(s.roll(6))
	if s.roll(6) == 0 {
		return []wRecord{{skip: true}}
	}
	if !t.keyed {
		return []wRecord{{key: key}}
	}
	_, there := b.state(mink.Offset(len(b.records)))[key]
	switch {
	case !there:
		return []wRecord{{change: mink.ChangeInsert, key: key}}
	case s.roll(3) == 0:
		return []wRecord{{change: mink.ChangeDelete, key: key}}
	}
	return []wRecord{{change: mink.ChangeUpdateBefore, key: key}, {change: mink.ChangeUpdateAfter, key: key}}
}

// simulate runs one seed; calls is how many calls processes made.
func simulate(t *testing.T, seed uint64, f faults, breaks placeFaults) (calls int, err error) {
	synctest.Test(t, func(t *testing.T) {
		s := &sim{t: t, w: newWorld(), faults: f}
		s.w.upkeep = seed%3 > 0
		s.mu.rng, s.mu.moods = rand.New(rand.NewPCG(seed, 1)), map[string]mood{}
		s.w.place.breaks = breaks
		for i := range 3 {
			s.table(fmt.Sprintf("t%d", i))
		}
		for range 3 {
			s.start()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ruler, others sync.WaitGroup
		ruler.Go(func() { s.rule(ctx, &others) })
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
			time.Sleep(time.Duration(20+s.roll(1500)) * time.Millisecond)
			s.act(&others, ctx)
		}
		s.mu.Lock()
		s.mu.quiet = true
		s.mu.Unlock()
		cancel()
		ruler.Wait()
		others.Wait()
		time.Sleep(2 * time.Minute) // whoever is paused wakes
		if s.mu.holder == nil || s.mu.holder.isDead() {
			s.start()
			s.mu.holder = s.procs[len(s.procs)-1]
			s.mu.holder.takeLease()
		}
		err = waitTiered(s.w, 30*time.Minute, s.mu.holder)
		time.Sleep(2 * lateAfter)
		for _, p := range append(s.procs, s.ended...) {
			p.stop()
		}
		if e := s.w.check(); e != nil {
			err = errors.Join(err, e)
		}
		calls = s.mu.calls
		if err != nil && f == (faults{}) && breaks == (placeFaults{}) {
			t.Log(strings.Join(s.w.place.log, "\n"))
		}
	})
	return calls, err
}

// TestSimulation: random tables under every fault at once. At the end every row is at its
// sink once, and nothing is left to do.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		if _, err := simulate(t, *simSeed, faults{}, placeFaults{}); err != nil {
			t.Fatalf("seed %d: %v", *simSeed, err)
		}
		return
	}
	runs, first := 25, uint64(time.Now().UnixNano())
	if *simRuns > 0 {
		runs = *simRuns
	}
	if testing.Short() {
		runs = 5
	}
	total := 0
	for i := range runs {
		calls, err := simulate(t, first+uint64(i), faults{}, placeFaults{})
		if err != nil {
			t.Fatalf("-tiering-seed=%d: %v", first+uint64(i), err)
		}
		total += calls
	}
	t.Logf("%d seeds from %d, %d calls", runs, first, total)
}
