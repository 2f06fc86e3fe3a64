package node_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// A released bucket that its own node leads again, under the next leader epoch,
// and one that another node takes over.
func TestReleasedBucketsAreOpenedByTheirNextLeader(t *testing.T) {
	sim.InBubble(t, still(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		one := w.StartReady(1)
		_, refs := one.Topic("t", 1, nil)
		two := w.StartReady(2)
		id, _ := one.Node().View().StreamOf(refs[0])
		_, epoch := one.Node().Self()
		l, _ := one.Node().View().WAL(epoch)
		for i, to := range []mink.NodeID{1, 1, 2} {
			one.Append(refs[0], "a")
			if err := one.Node().Engine().UploadNow(ctx); err != nil {
				t.Fatal(err)
			}
			old, err := one.Node().Log(refs[0])
			if err != nil {
				t.Fatal(err)
			}
			results, err := one.Node().Propose(ctx, cluster.ReleaseCommand(plan.Release{
				WAL: l.ID, Stream: id, LeaderEpoch: mink.LeaderEpoch(i + 1), End: mink.Offset(i + 1), To: to,
			}))
			if err != nil || cluster.ResultError(results[0]) != nil {
				t.Fatal(err, results)
			}
			next := one
			if to == 2 {
				next = two
			}
			w.Eventually(2*time.Second, "the next leader opens it", func() bool {
				log, err := next.Node().Log(refs[0])
				return err == nil && log.LeaderEpoch() == mink.LeaderEpoch(i+2)
			})
			w.Eventually(time.Second, "the old tablet is closed", func() bool {
				_, _, err := sim.Values(ctx, old)
				return err != nil
			})
		}
		two.Append(refs[0], "b")
		if _, values := two.Read(refs[0]); !slices.Equal(values, []string{"a", "a", "a", "b"}) {
			t.Errorf("the log holds %v", values)
		}
		if _, err := one.Node().Log(refs[0]); !isNotLeader(err, 2, "node-2:8815") {
			t.Errorf("the old leader says %v", err)
		}
	})
}

// An alter reaches open tablets; a table that is created again under the name of
// a dropped one is another table.
func TestTablesChangeUnderOpenBuckets(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		table, refs := p.Topic("t", 1, nil)
		p.Append(refs[0], "a", "b")
		time.Sleep(10 * time.Second)
		_, err := p.Node().AlterTable(ctx, table.ID, []schema.Change{{Op: schema.SetOptions, Options: map[string]string{"log_ttl": "5s"}}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		w.Eventually(5*time.Second, "the open tablet trims by its new ttl", func() bool {
			log, err := p.Node().Log(refs[0])
			return err == nil && log.LogStart() == 2
		})
		old, err := p.Node().Log(refs[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Node().DropTable(ctx, table.ID, false); err != nil {
			t.Fatal(err)
		}
		w.Eventually(time.Second, "the dropped bucket is closed", func() bool {
			_, _, err := sim.Values(ctx, old)
			return err != nil || old.HighWatermark() == old.LogStart()
		})
		_, again := p.Topic("t", 1, nil)
		if p.Append(again[0], "c").First != 0 {
			t.Error("the new table does not begin at 0")
		}
		if got, err := p.Node().Log(refs[0]); err == nil {
			t.Errorf("the dropped bucket is still served: %s", got.Bucket())
		}
	})
}
