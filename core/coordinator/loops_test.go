package coordinator_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/sim"
)

// ofHolder are the jobs that one node does for all; everyWhere those that each does
// for itself or for the buckets that it leads.
var (
	ofHolder   = []string{"silent nodes", "coordinator tick", "wal recovery", "metadata snapshot", "metadata head", "KV file deletion", "KV orphan sweep"}
	everyWhere = []string{"lease", "heartbeat", "log retention", "topic cleaning", "KV snapshots", "idle stores", "wal upload", "closed partitions", "compaction", "object deletion", "orphan sweep"}
)

func loopsOf(p *sim.Process) map[string]loop.Status {
	out := map[string]loop.Status{}
	st := p.Node().Stats()
	for _, l := range slices.Concat(st.Loops, p.Coordinator().Loops(), st.Engine.Loops) {
		out[l.Name] = l
	}
	return out
}

// Every job runs again, where it belongs, after the lease holder is lost: those of the
// holder on the new one alone, the others on each node that is left; and once more when the
// lease is handed over in order.
func TestEveryLoopOutlivesTheLeaseHolder(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		first := w.StartReady(1)
		_, refs := first.Topic("t", 6, map[string]string{"log_ttl": "10s"})
		w.StartReady(2)
		w.StartReady(3)
		for i, ref := range refs {
			w.MustLead(ref).Append(ref, fmt.Sprint(i))
		}
		holder := func() (h *sim.Process) {
			w.Eventually(time.Minute, "one node coordinates", func() bool {
				h = nil
				n := 0
				for _, p := range w.Processes() {
					if p.Coordinator().Leading() {
						h = p
						n++
					}
				}
				return n == 1
			})
			return h
		}
		longest := func(status map[string]loop.Status) (d time.Duration) {
			for _, name := range slices.Concat(ofHolder, everyWhere) {
				l, ok := status[name]
				if !ok || l.Interval <= 0 {
					t.Fatalf("there is no loop %q with an interval", name)
				}
				d = max(d, l.Interval)
			}
			if len(status) != len(ofHolder)+len(everyWhere) {
				t.Errorf("loops %v: not all of them are looked at", status)
			}
			return d
		}
		look := func(when string) {
			h := holder()
			before := map[*sim.Process]map[string]loop.Status{}
			for _, p := range w.Processes() {
				before[p] = loopsOf(p)
			}
			time.Sleep(2*longest(before[h]) + time.Second)
			if now := holder(); now != h {
				t.Fatalf("%s: the lease went from node %d to node %d by itself", when, h.ID, now.ID)
			}
			for p, was := range before {
				now := loopsOf(p)
				for name, l := range now {
					worked := l.Worked - was[name].Worked
					should := p == h || slices.Contains(everyWhere, name)
					switch {
					case should && (worked == 0 || l.Idle):
						t.Errorf("%s: %s did not run on node %d, where it belongs: %+v", when, name, p.ID, l)
					case !should && (worked > 0 || !l.Idle):
						t.Errorf("%s: %s ran on node %d, and node %d holds the lease: %+v", when, name, p.ID, h.ID, l)
					case l.LastError != "" || l.Next.Before(time.Now()) && !l.LastStart.After(l.LastEnd) || l.LastEnd.IsZero() || l.Next.After(time.Now().Add(l.Interval)):
						t.Errorf("%s: %s on node %d: %+v at %v", when, name, p.ID, l, time.Now())
					}
				}
			}
		}
		look("at first")
		lost := holder()
		lost.Crash()
		w.Eventually(time.Minute, "another node coordinates", func() bool { return holder() != lost })
		look("after a crash")
		if err := holder().Stop(); err != nil {
			t.Fatal(err)
		}
		look("after an orderly stop")
	})
}
