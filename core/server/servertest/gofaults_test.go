package servertest_test

import (
	"testing"
	"time"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/mink"
)

// paused holds a node still until others have its place.
func paused(t *testing.T, c *servertest.Cluster, id int) {
	t.Helper()
	n, ok := c.View().Node(c.Node(id).ID)
	if !ok {
		t.Fatalf("node %d is not registered", id)
	}
	c.Pause(id)
	if !servertest.Wait(t.Context(), func() bool {
		w, ok := c.View().WAL(n.Epoch)
		return ok && w.Sealed
	}) {
		t.Fatalf("node %d stands still and is not replaced", id)
	}
}

// buckets are those of both tables of a load.
func (l *goLoad) buckets() []mink.BucketRef {
	out := l.log
	parts, err := l.cl.ListPartitions(l.ctx, "db.k")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, b := range parts[0].Buckets {
		out = append(out, b.Bucket)
	}
	return out
}

// Whatever becomes of the leaders, the Go client's users see no failure: each
// acknowledged row is there once and in order, lookups see what was acknowledged, scans
// have all of it, tails and Bootstraps miss nothing and repeat nothing.
func TestTheGoClientThroughFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("whole nodes under faults")
	}
	for _, f := range []struct {
		name      string
		hit, heal func(t *testing.T, c *servertest.Cluster, id int)
	}{
		{
			"kill",
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Kill(id) },
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Restart(id) },
		},
		{
			"stop",
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Stop(id) },
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Restart(id) },
		},
		{
			"restart at once",
			func(t *testing.T, c *servertest.Cluster, id int) { c.Restart(id); c.WaitServing(t) },
			func(*testing.T, *servertest.Cluster, int) {},
		},
		{
			"pause",
			paused,
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Resume(id) },
		},
		{
			"disconnect",
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Disconnect(id) },
			func(_ *testing.T, c *servertest.Cluster, id int) { c.Disconnect(id) },
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			c := servertest.Start(t, 3)
			l := startGoLoad(t, c)
			l.goesOn("at first")
			for _, victim := range []struct {
				what string
				id   func() int
			}{
				{"a leader that does not coordinate", func() int { return c.LeaseHolder()%3 + 1 }},
				{"the coordinator", c.LeaseHolder},
			} {
				id := victim.id()
				f.hit(t, c, id)
				l.goesOn("without " + victim.what)
				f.heal(t, c, id)
				c.WaitServing(t)
				l.goesOn("with " + victim.what + " again")
			}
			l.finish()
		})
	}
}

// The same while every bucket is moved from leader to leader, and while a rebalance
// gives a node that came back its share.
func TestTheGoClientThroughMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("whole nodes under load")
	}
	c := servertest.Start(t, 3, servertest.LeaseTTL(20*time.Second))
	l := startGoLoad(t, c)
	l.goesOn("at first")
	for range 3 {
		for _, b := range l.buckets() {
			to := c.Leader(b)%3 + 1
			release(t, c, b, to)
			if n := c.Leader(b); n != to {
				t.Errorf("bucket %s was moved to node %d and is led by node %d", b, to, n)
			}
		}
		l.goesOn("after every bucket was moved")
	}
	c.Stop(2)
	l.goesOn("without node 2")
	c.Restart(2)
	c.WaitServing(t)
	r, err := l.cl.Rebalance(l.ctx, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, m := range r.Moves {
		if m.Outcome == "moved" && m.To == 2 {
			got++
		}
	}
	if got == 0 {
		t.Errorf("node 2 was given nothing: %+v", r)
	}
	l.goesOn("after the rebalance")
	l.finish()
}
