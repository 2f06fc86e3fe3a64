package servertest_test

import (
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// logOf is a ticket for a whole log.
func logOf(b mink.BucketRef) *flight.Ticket {
	return &flight.Ticket{Ticket: api.JSON(api.Ticket{Scan: &api.Scan{Bucket: b}})}
}

// taken waits until a bucket's leader has given out offsets up to end, durable or not.
func taken(t *testing.T, leader *generic, b mink.BucketRef, end mink.Offset) {
	t.Helper()
	if !servertest.Wait(t.Context(), func() bool {
		var s api.Stats
		if leader.action(t.Context(), api.ActionNodeStats, struct{}{}, &s) != nil {
			return false
		}
		i := slices.IndexFunc(s.Buckets, func(s api.BucketStats) bool { return s.Bucket == b })
		return i >= 0 && s.Buckets[i].LogEnd >= end
	}) {
		t.Fatalf("bucket %s does not reach offset %d", b, end)
	}
}

// Nothing leaves a node that stands still, also not what its goroutines still have in
// hand for other nodes; what a killed one has in hand never arrives.
func TestAPausedNodeSendsNothing(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "paused", true: "killed"}[killed], func(t *testing.T) {
			c := servertest.Start(t, 2, steady())
			b := table(t, c.Client(t), "t", 1)[0]
			to := c.Leader(b)
			from := to%2 + 1
			leader, g := at(t, c, to), at(t, c, from)
			w, err := c.Client(t, to).NewWriter(t.Context(), "db.t", client.DefaultWriter())
			if err != nil {
				t.Fatal(err)
			}
			rows(t, w, 0, 1) // the bucket is open: opening it needs the store
			p := g.put(api.Command{Table: "db.t"}, idSchema)
			c.PauseStore(to)
			for id := int64(1); id <= 5; id++ { // as many as may be on their way
				p.write(idRows(id, 1))
				taken(t, leader, b, mink.Offset(id+1))
			}
			for id := int64(6); id < 40; id++ {
				p.write(idRows(id, 1))
			}
			var h api.Health // a round, so that they have come to the node
			if err := g.action(t.Context(), api.ActionHealth, struct{}{}, &h); err != nil {
				t.Fatal(err)
			}
			if killed {
				c.Kill(from)
			} else {
				c.Pause(from)
			}
			c.ResumeStore(to)
			rows(t, w, 40, 1) // a round through the leader's store
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := leader.get(t.Context(), logOf(b)); err != nil || !slices.Equal(got, append(upTo(6), 40)) {
				t.Errorf("rows %v, %v: want those that were sent before the node stood still", got, err)
			}
			if killed {
				return
			}
			c.Resume(from)
			if n := p.close(); n != 39 {
				t.Errorf("%d of 39 rows are acknowledged", n)
			}
			got, err := leader.get(t.Context(), logOf(b))
			if slices.Sort(got); err != nil || !slices.Equal(got, upTo(41)) {
				t.Errorf("rows %v, %v", got, err)
			}
		})
	}
}
