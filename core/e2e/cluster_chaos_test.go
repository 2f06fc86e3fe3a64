package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// verifyEvery is how many rounds of TestClusterChaos pass between two checks of all
// that was written so far.
const verifyEvery = 5

// TestClusterChaos does random things to a cluster of three under load, one after the
// other, each when all clients go on after the one before. MINK_TEST_CHAOS_ROUNDS and
// MINK_TEST_CHAOS_SEED choose the run. Every fault comes once before any comes again.
func TestClusterChaos(t *testing.T) {
	rounds := number(t, "MINK_TEST_CHAOS_ROUNDS", 3)
	seed := uint64(number(t, "MINK_TEST_CHAOS_SEED", int(time.Now().UnixNano()%1_000_000)))
	t.Logf("%d rounds, MINK_TEST_CHAOS_SEED=%d", rounds, seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	c := newCluster(t, 3)
	c.start()
	l := startLoad(c)
	l.goesOn("before")
	var first census
	l.rest(func() { first = l.noLeaks("before", census{}) })
	worst, times := map[string]time.Duration{}, map[string]int{}
	var deck []fault
	for round := range rounds {
		if len(deck) == 0 {
			deck = slices.Clone(l.possible())
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f := deck[0]
		deck = deck[1:]
		what := fmt.Sprintf("round %d of seed %d, %s", round, seed, f.name)
		took := l.during(what, func() { f.run(l, rng) })
		worst[f.name] = max(worst[f.name], took)
		times[f.name]++
		l.rest(func() {
			l.noLeaks(what, first.limit())
			if round%verifyEvery == verifyEvery-1 {
				l.verify(what)
			}
		})
		if t.Failed() {
			return
		}
	}
	rows := l.settle()
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(times)) {
		fmt.Fprintf(&table, "| %s | %d | %.1f s |\n", name, times[name], worst[name].Seconds())
	}
	t.Logf("seed %d, %d rounds: %d rows, each once and in order\n| fault | rounds | worst unavailability |\n| --- | --- | --- |\n%s", seed, rounds, rows, table.String())
}
