package node_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
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

// ClosePartition reaches open tablets: their leader refuses appends, whatever the
// node saw that took the rows from a client. So does a new leader.
func TestLeadersOfAClosedPartitionRefuseAppends(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		table := byDay(t, p)
		// Nobody writes the lake here: the closed partition stays.
		if _, err := p.Node().AlterTable(ctx, table.ID, []schema.Change{{Op: schema.SetOptions, Options: map[string]string{"lake": "true"}}}, 0); err != nil {
			t.Fatal(err)
		}
		part, err := p.Node().EnsurePartition(ctx, table.ID, []string{"a"})
		if err != nil {
			t.Fatal(err)
		}
		ref := mink.BucketRef{Table: table.ID, Partition: part.ID}
		advance := func(sequence int32) error { // the smallest append
			log, err := p.Node().Log(ref)
			if err != nil {
				return err
			}
			pending, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 1, WriterID: 1, Sequence: sequence})
			if err != nil {
				return err
			}
			<-pending.Done()
			_, err = pending.Result()
			return err
		}
		if err := advance(0); err != nil {
			t.Fatal(err)
		}
		_, err = p.Node().Propose(ctx, &clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{
			ClosePartition: &clusterpb.ClosePartition{Table: int64(table.ID), Partition: int64(part.ID)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		if err := advance(1); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "closed") {
			t.Errorf("append to a closed partition: %v", err)
		}
		p.Crash()
		p = w.StartReady(1)
		if err := advance(1); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("append to a closed partition after a restart: %v", err)
		}
	})
}

func byDay(t *testing.T, p *sim.Process) *cluster.Table {
	t.Helper()
	ctx := context.Background()
	if err := p.Node().CreateDatabase(ctx, "db", true); err != nil {
		t.Fatal(err)
	}
	table, err := p.Node().CreateTable(ctx, &schema.Descriptor{
		Database: "db", Table: "by_day", PartitionKeys: []string{"day"}, BucketCount: 1,
		Schema: schema.Schema{Columns: []schema.Column{
			{Name: "day", Type: schema.MustParseType("STRING NOT NULL")}, {Name: "n", Type: schema.MustParseType("INT")}}},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// A partition whose bucket does not open does not hold up the making of others
// of its table: a first write makes its partition.
func TestCreatingAPartitionWaitsForItsOwnBucketsOnly(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.Stream.WALUploadInterval, c.Stream.CompactInterval = time.Hour, time.Hour }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		table := byDay(t, p)
		part, err := p.Node().EnsurePartition(ctx, table.ID, []string{"broken"})
		if err != nil {
			t.Fatal(err)
		}
		log, err := p.Node().Log(mink.BucketRef{Table: table.ID, Partition: part.ID})
		if err != nil {
			t.Fatal(err)
		}
		pending, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 1, WriterID: 1})
		if err != nil {
			t.Fatal(err)
		}
		<-pending.Done()
		_, epoch := p.Node().Self()
		l, _ := p.Node().View().WAL(epoch)
		p.Crash()
		p = w.Start(1)
		p.Faults.Inject(fault.Rule{Ops: fault.Get, Prefix: plan.Key(l.ID, plan.KindWAL, 0), Skip: 1, Do: fault.FailBefore(objstore.ErrUnavailable)})
		w.Eventually(20*time.Second, "the bucket fails to open", func() bool {
			for _, b := range nodeBuckets(p) {
				if b.Error != "" {
					return true
				}
			}
			return false
		})
		began := time.Now()
		if _, err := p.Node().EnsurePartition(ctx, table.ID, []string{"new"}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= node.Default().ReadyTimeout {
			t.Errorf("making a partition took %v, as long as it waits for a broken one", took)
		}
	})
}

func nodeBuckets(p *sim.Process) []node.BucketStats {
	if p.Node() == nil {
		return nil
	}
	return p.Node().Stats().Buckets
}
