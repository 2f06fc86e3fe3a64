package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/e2e/faultpoint"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// clusterRounds is how many rounds of TestLakeChaos a cluster lives: nothing puts the many
// small files of a lake table together, and the checks read all of them.
const clusterRounds = 25

// TestLakeChaos does random things to a cluster of three under load whose tables are tiered
// every second, each when everything is tiered again after the one before. In turns one
// process is killed at a point of a round of tiering, and something else happens to
// tiering. Every fault comes once before any comes again. MINK_TEST_CHAOS_ROUNDS and
// MINK_TEST_CHAOS_SEED choose the run, MINK_TEST_CHAOS_FAULT a fault by a part of its name.
func TestLakeChaos(t *testing.T) {
	lakePython(t)
	rounds := number(t, "MINK_TEST_CHAOS_ROUNDS", 10)
	seed := uint64(number(t, "MINK_TEST_CHAOS_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("%d rounds, MINK_TEST_CHAOS_SEED=%d", rounds, seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	only := func(list []fault) []fault {
		part := os.Getenv("MINK_TEST_CHAOS_FAULT")
		return slices.DeleteFunc(list, func(f fault) bool { return !strings.Contains(f.name, part) })
	}
	kills, others := only(tieringKills()), only(lakeFaults)
	if len(kills)+len(others) == 0 {
		t.Fatal("MINK_TEST_CHAOS_FAULT is in the name of no fault")
	}
	decks := [2][]fault{}
	draw := func(round int) fault {
		i := round % 2
		if all := [2][]fault{kills, others}; len(decks[i]) == 0 {
			if len(all[i]) == 0 {
				i = 1 - i
			}
			decks[i] = slices.Clone(all[i])
			rng.Shuffle(len(decks[i]), func(a, b int) { decks[i][a], decks[i][b] = decks[i][b], decks[i][a] })
		}
		f := decks[i][0]
		decks[i] = decks[i][1:]
		return f
	}
	times, rows := map[string]int{}, 0
	for first := 0; first < rounds && !t.Failed(); first += clusterRounds {
		t.Run(fmt.Sprintf("from round %d", first), func(t *testing.T) {
			l := startLakeChaos(t)
			for round := first; round < min(first+clusterRounds, rounds); round++ {
				f := draw(round)
				what := fmt.Sprintf("round %d of seed %d, %s", round, seed, f.name)
				began := time.Now()
				l.during(what, func() { f.run(l, rng) })
				l.tieredAgain(what)
				times[f.name]++
				t.Logf("%s: tiered again %.1f s after it began", what, time.Since(began).Seconds())
				if round%verifyEvery == verifyEvery-1 {
					l.rest(func() { l.verifyLake(what); l.fsck(what) })
				}
			}
			rows += l.settle()
		})
	}
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(times)) {
		fmt.Fprintf(&table, "| %s | %d |\n", name, times[name])
	}
	t.Logf("seed %d, %d rounds: %d rows, each once in the log, the lake and union reads\n| fault | rounds |\n| --- | --- |\n%s", seed, rounds, rows, table.String())
}

// startLakeChaos starts a cluster of nodes with fault points, and the load.
func startLakeChaos(t *testing.T) *load {
	t.Helper()
	program := os.Getenv("MINK_TEST_FAULT_BINARY")
	if program == "" {
		t.Skip("MINK_TEST_FAULT_BINARY is not set: run make chaos-lake")
	}
	c := newCluster(t, 3, "--read-grace", "10s")
	c.freshness, c.faults = time.Second, filepath.Join(t.TempDir(), "fault")
	for _, m := range c.nodes {
		m.program = program
		m.env = append(m.env, "MINK_TEST_FAULT="+c.faults)
	}
	c.start()
	l := startLoad(c)
	l.goesOn("before")
	l.tieredAgain("before")
	return l
}

// tieringKills kill the tiering node at every point of a round.
func tieringKills() (out []fault) {
	for _, point := range faultpoint.Points() {
		out = append(out, fault{"SIGKILL " + point, func(l *load, rng *rand.Rand) { l.killAt(point, rng) }})
	}
	return out
}

// lakeFaults are the others. Those with many variants come several times.
var lakeFaults = []fault{
	{"a worker stands still, its successor commits", (*load).stopWorker},
	{"a worker stands still before its commit, its successor commits", (*load).stopCommit},
	{"a commit whose answer is lost", (*load).loseCommit},
	{"a catalog that loses answers", (*load).catalogLoses},
	{"a catalog that is down", (*load).catalogDown},
	{"another engine commits", (*load).outsideCommits},
	{"another engine expires snapshots", (*load).outsideExpires},
	{"a table is dropped and made again in mid-round", (*load).dropInRound},
}

// order is a fault at a point, of whichever table of the load comes there, or of one.
func (l *load) order(point string, action faultpoint.Action, rng *rand.Rand) faultpoint.Order {
	o := faultpoint.Order{ID: fmt.Sprint(rng.Uint64()), Point: point, Pass: 1 + rng.IntN(3), Action: action}
	if tables := l.lakeTables(); rng.IntN(2) == 0 {
		o.Table = tables[rng.IntN(min(len(tables), 4))] // not againTable, of which no round may come
	}
	return o
}

// carryOut arms a fault and waits until it was carried out.
func (l *load) carryOut(o faultpoint.Order) *member {
	l.t.Helper()
	if err := faultpoint.Arm(l.c.faults, o); err != nil {
		l.t.Fatal(err)
	}
	return l.carriedOut(o)
}

// carriedOut waits until a node carried out what is armed, and answers which.
func (l *load) carriedOut(o faultpoint.Order) *member {
	l.t.Helper()
	for deadline := time.Now().Add(soon); ; pause(l.t.Context(), 20*time.Millisecond) {
		if done, ok := faultpoint.Carried(l.c.faults); ok {
			if done.ID != o.ID {
				l.t.Fatalf("%+v was armed, %+v was carried out", o, done)
			}
			place, ok := l.c.processes()[done.PID]
			if !ok {
				l.t.Fatalf("%+v was carried out by process %d, which is no node", o, done.PID)
			}
			return l.c.nodes[place]
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("no worker came to %+v within %s\n%s", o, soon, l.tieringStates())
		}
	}
}

// killAt kills the node that tiers at a point, and one time of three its successor at
// another.
func (l *load) killAt(point string, rng *rand.Rand) {
	l.t.Helper()
	killed := []*member{l.carryOut(l.order(point, faultpoint.Kill, rng))}
	killed[0].kill() // it is dead: the harness hears of it
	if rng.IntN(3) == 0 {
		points := faultpoint.Points()
		o := l.order(points[rng.IntN(len(points))], faultpoint.Kill, rng)
		l.t.Logf("and its successor: %s", o.Point)
		killed = append(killed, l.carryOut(o))
		killed[1].kill()
	}
	if rng.IntN(2) == 0 {
		l.tieredAgain("while the node that tiered is away")
	}
	for _, m := range killed {
		m.restart()
	}
}

// stopAt lets the node that tiers stand still at a point until others have tiered
// everything, and wakes it.
func (l *load) stopAt(point string, rng *rand.Rand) {
	l.t.Helper()
	l.t.Logf("it stands still %s", point)
	m := l.carryOut(l.order(point, faultpoint.Stop, rng))
	m.paused = true
	defer m.resume()
	l.tieredAgain("while the worker stands still")
}

func (l *load) stopWorker(rng *rand.Rand) {
	points := faultpoint.Points()
	l.stopAt(points[rng.IntN(len(points))], rng)
}

// stopCommit is stopWorker where it is about to move the table's pointer.
func (l *load) stopCommit(rng *rand.Rand) {
	l.stopAt([]string{"before commit", "before put decision", "after put decision", "before put metadata", "before swap"}[rng.IntN(5)], rng)
}

// loseCommit: the commit was made, and the worker hears of an error that says nothing.
func (l *load) loseCommit(rng *rand.Rand) {
	l.t.Helper()
	l.carryOut(l.order([]string{"after swap", "after swap", "after commit", "after put decision"}[rng.IntN(4)], faultpoint.Lose, rng))
}

// catalogLoses loses answers of the catalog's database, of some calls or of all.
func (l *load) catalogLoses(rng *rand.Rand) {
	what := []trouble{loses, mutes}[rng.IntN(2)]
	for _, m := range l.c.nodes {
		m.toCatalog.set(-1, what)
	}
	l.wait(between(rng, 2*time.Second, 12*time.Second))
	for _, m := range l.c.nodes {
		if what == mutes && rng.IntN(2) == 0 {
			m.toCatalog.set(-1, cuts) // what was not answered never is
		}
		m.toCatalog.set(-1, passes)
	}
}

// catalogDown takes the catalog away, one time of four for a minute. Everything but tiering
// goes on.
func (l *load) catalogDown(rng *rand.Rand) {
	l.t.Helper()
	what := []trouble{cuts, holds}[rng.IntN(2)]
	for _, m := range l.c.nodes {
		m.toCatalog.set(-1, what)
	}
	if rng.IntN(4) == 0 {
		l.wait(time.Minute)
	} else {
		l.wait(between(rng, leaseTTL, 15*time.Second))
	}
	l.goesOn("while the catalog is down")
	for _, m := range l.c.nodes {
		m.toCatalog.set(-1, passes)
	}
}

// outsideCommits: another engine appends, sets properties, makes snapshots of no rows, in
// the middle of rounds.
func (l *load) outsideCommits(rng *rand.Rand) {
	l.t.Helper()
	tables := l.lakeTables()[:4]
	var commands [][]string
	for range 1 + rng.IntN(4) {
		value := fmt.Sprintf("outside/%d", len(l.lake.outside))
		l.lake.outside = append(l.lake.outside, value)
		commands = append(commands, []string{"append", "kafka." + busyTopic, value},
			[]string{"property", tables[rng.IntN(len(tables))], value}, []string{"nothing", []string{busyStock, busyRows}[rng.IntN(2)]})
	}
	l.iceberg(commands...)
}

// outsideExpires: another engine expires what readers do not need any more.
func (l *load) outsideExpires(*rand.Rand) {
	l.t.Helper()
	var commands [][]string
	for _, table := range l.lakeTables()[:4] {
		commands = append(commands, []string{"expire", table})
	}
	l.t.Logf("snapshots that were expired: %v", l.iceberg(commands...))
}

// dropInRound drops a table while a round of it is held at a point, or its node is killed or
// stands still there, and makes another one of its name. Nothing of the old one shows up.
func (l *load) dropInRound(rng *rand.Rand) {
	l.t.Helper()
	if l.lake.again == 0 {
		l.makeAgain()
	}
	points := faultpoint.Points()
	o := l.order(points[rng.IntN(len(points))], []faultpoint.Action{faultpoint.Hold, faultpoint.Hold, faultpoint.Kill, faultpoint.Stop}[rng.IntN(4)], rng)
	o.Table, o.Pass = againTable, 1
	l.t.Logf("%s %s", o.Action, o.Point)
	if err := faultpoint.Arm(l.c.faults, o); err != nil {
		l.t.Fatal(err)
	}
	l.writeAgain(30) // a round becomes due
	m := l.carriedOut(o)
	if o.Action == faultpoint.Kill {
		m.kill()
	}
	m.paused = o.Action == faultpoint.Stop
	l.c.mink("table", "drop", againTable)
	l.makeAgain()
	l.wait(between(rng, 0, 2*time.Second))
	switch o.Action {
	case faultpoint.Kill:
		m.restart()
	case faultpoint.Stop:
		l.wait(2 * leaseTTL) // others believe that they tier
		m.resume()
	case faultpoint.Hold, faultpoint.Lose:
		if err := faultpoint.Release(l.c.faults); err != nil {
			l.t.Fatal(err)
		}
	}
	l.writeAgain(20)
}

// makeAgain makes againTable and writes to it.
func (l *load) makeAgain() {
	l.t.Helper()
	l.lake.again++
	l.lake.rows = nil
	l.c.mink(append([]string{"table", "create", againTable, "--bucket-count", "2", "-C", "generation INT NOT NULL", "-C", "number INT NOT NULL"}, l.c.lakeOptions("--option", "")...)...)
	l.writeAgain(30)
}

// writeAgain writes n rows to againTable. A node may not have heard of it yet, or take it for
// the one of before: nothing was written then.
func (l *load) writeAgain(n int) {
	l.t.Helper()
	for deadline := time.Now().Add(soon); ; pause(l.t.Context(), 50*time.Millisecond) {
		err := l.tryWriteAgain(n)
		if err == nil {
			break
		}
		if !errors.Is(err, mink.ErrNotExist) || time.Now().After(deadline) {
			l.t.Fatal(err)
		}
	}
	for range n {
		l.lake.rows = append(l.lake.rows, fmt.Sprintf("%d/%d", l.lake.again, len(l.lake.rows)))
	}
}

func (l *load) tryWriteAgain(n int) error {
	ctx := l.t.Context()
	w, err := l.cl.NewWriter(ctx, againTable, client.DefaultWriter())
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, w.Schema())
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.Int32Builder).Append(int32(l.lake.again))
		b.Field(1).(*array.Int32Builder).Append(int32(len(l.lake.rows) + i))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	a, err := w.Append(ctx, rec)
	if err == nil {
		err = a.Wait(ctx)
	}
	return errors.Join(err, w.Close(ctx))
}
