package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	runsFlag  = flag.Int("sim.runs", 0, "simulate so many clusters, with fresh seeds")
	hoursFlag = flag.Float64("sim.hours", 0, "simulate clusters with fresh seeds until so many node-hours have passed")
	firstFlag = flag.Uint64("sim.first", 0, "the first of the fresh seeds; 0: random")
)

// shape is one size of simulation.
type shape struct {
	name  string
	nodes int
	pace  int
	d     time.Duration // of the chaos
}

// shapes take turns. Half are busy: a step every 2.5 s, a lease of 3 s. The others have the
// shipped lease and intervals, a step every 25 s, and ten times the time.
var shapes = []shape{
	{"busy", 3, 1, time.Minute},
	{"ordinary", 3, 10, 30 * time.Minute},
	{"ordinary", 5, 10, 30 * time.Minute},
	{"busy", 1, 1, time.Minute},
	{"ordinary", 3, 10, 30 * time.Minute},
	{"ordinary", 2, 10, 30 * time.Minute},
}

func (s shape) config(seed uint64) Config {
	c := Default(seed)
	c.Pace, c.LeaseTTL = s.pace, time.Duration(s.pace)*c.LeaseTTL
	return c
}

// TestManyClusters simulates clusters with fresh seeds and says for how many node-hours; each
// kind of fault must have happened in each piece. With -sim.seed it repeats one of them.
func TestManyClusters(t *testing.T) {
	if *seedFlag != 0 {
		s := shapes[*seedFlag%uint64(len(shapes))]
		t.Logf("%s, %d nodes", s.name, s.nodes)
		simulate(t, s.config(*seedFlag), s.nodes, s.d)
		return
	}
	if *runsFlag == 0 && *hoursFlag == 0 {
		t.Skip("needs -sim.hours or -sim.runs: make sim")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // many small heaps
	seed := *firstFlag
	if seed == 0 {
		seed = 1 + rand.Uint64N(1<<40)
	}
	start, first := time.Now(), seed
	var all tally
	sums := map[string]*result{}
	var lived time.Duration
	for n := 0; (*runsFlag == 0 || n < *runsFlag) && (*hoursFlag == 0 || lived.Hours() < *hoursFlag); n++ {
		s := shapes[seed%uint64(len(shapes))]
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := simulate(t, s.config(seed), s.nodes, s.d)
			all.add(r.faults)
			lived += r.lived
			if sums[s.name] == nil {
				sums[s.name] = &result{}
			}
			sums[s.name].add(r)
			if t.Failed() { // its log comes in the end
				fmt.Printf("seed %d of %s failed, after %.0f node-hours\n", seed, s.name, lived.Hours())
			}
		})
		seed++
		if n%100 == 99 {
			fmt.Printf("%d clusters, seeds %d to %d, %.0f node-hours, %s\n", n+1, first, seed-1, lived.Hours(), time.Since(start).Round(time.Second))
		}
	}
	took := time.Since(start)
	fmt.Printf("seeds %d to %d: %.1f node-hours in %s, %.0f an hour of this machine\n", first, seed-1, lived.Hours(), took.Round(time.Second), lived.Hours()/took.Hours())
	for _, name := range []string{"busy", "ordinary"} {
		if r := sums[name]; r != nil {
			h := r.lived.Hours()
			fmt.Printf("%s: %.1f node-hours, each with %.0f records and rows acknowledged, %.0f metadata entries, %.1f moves\n", name, h, float64(r.acks)/h, float64(r.entries)/h, float64(r.moves)/h)
		}
	}
	var lines []string
	for _, kind := range kinds() {
		if all.counts[kind] <= 0 {
			t.Errorf("never happened: %s", kind)
		}
	}
	for kind, n := range all.counts {
		lines = append(lines, fmt.Sprintf("%9d  %s", n, kind))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[11:], b[11:]) })
	fmt.Println(strings.Join(lines, "\n"))
}
