package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// tierWorld has a read grace of ten seconds.
func tierWorld() sim.Config {
	cfg := snapshotWorld()
	snapshots := cfg.Node
	cfg.Node = func(c *node.Config) {
		snapshots(c)
		c.ReadGrace, c.FinishInterval = 10*time.Second, time.Second
	}
	return cfg
}

// round records that the lake has buckets up to offsets, as the lease holder does.
func round(t *testing.T, p *sim.Process, id string, ends ...cluster.BucketOffset) {
	t.Helper()
	if err := tryRound(p, id, ends...); err != nil {
		t.Fatal(err)
	}
}

func tryRound(p *sim.Process, id string, ends ...cluster.BucketOffset) error {
	view := p.Node().View()
	r := cluster.TieredRound{Table: ends[0].Bucket.Table, Sink: cluster.LakeSink, Lease: view.Lease().Epoch, Round: id, Snapshot: "snapshot-of-" + id, Ends: ends}
	if now, ok := view.Tiering(r.Table, r.Sink); ok {
		r.BaseRound = now.Round
	}
	return p.Node().CommitTieredRound(context.Background(), r)
}

func heldTrim(p *sim.Process, ref mink.BucketRef) *node.HeldTrim {
	for _, b := range p.Node().Stats().Buckets {
		if b.Bucket == ref {
			return b.HeldTrim
		}
	}
	return nil
}

func logStart(t *testing.T, p *sim.Process, ref mink.BucketRef) mink.Offset {
	t.Helper()
	log, err := p.Node().Log(ref)
	if err != nil {
		t.Fatal(err)
	}
	return log.LogStart()
}

// Retention lets go of nothing that the lake lacks, however long the lake takes and
// whatever dies meanwhile; then of what readers of its older snapshots need only after
// their grace. A log that expires faster than the lake is made does not lose a row.
func TestRetentionWaitsForTiering(t *testing.T) {
	sim.InBubble(t, tierWorld(), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, map[string]string{"log_ttl": "1s", "lake": "true", "lake_freshness": "1h"})
		for i := range 10 {
			p.Append(refs[0], fmt.Sprint(i))
		}
		waits := func(by string, at mink.Offset) {
			t.Helper()
			w.Eventually(2*time.Minute, fmt.Sprintf("a trim held by %s at %d", by, at), func() bool {
				h := heldTrim(p, refs[0])
				return h != nil && h.By == by && h.At == at && logStart(t, p, refs[0]) == at
			})
		}
		waits(node.HeldByTiering, 0)
		time.Sleep(10 * time.Minute)
		p.Crash()
		p = w.StartReady(1)
		waits(node.HeldByTiering, 0)
		if h := heldTrim(p, refs[0]); !strings.Contains(h.Why, "no round yet") {
			t.Errorf("held because %s", h.Why)
		}
		round(t, p, "r1", cluster.BucketOffset{Bucket: refs[0], Offset: 4})
		waits(node.HeldByTiering, 4)
		round(t, p, "r2", cluster.BucketOffset{Bucket: refs[0], Offset: 10})
		waits(node.HeldByReadGrace, 4)
		if h := heldTrim(p, refs[0]); !strings.Contains(h.Why, "snapshot-of-r1") {
			t.Errorf("held because %s", h.Why)
		}
		if first, values := p.Read(refs[0]); first != 4 || len(values) != 6 {
			t.Fatalf("the log has %v from %d", values, first)
		}
		w.Eventually(2*time.Minute, "the end of the read grace", func() bool {
			p.Append(refs[0], "the metadata clock goes with commits")
			return logStart(t, p, refs[0]) == 10
		})
	})
}

// A trim by hand lets go of what the lake lacks, and notes it; not of a primary-key
// table's, whose deletes would be missing.
func TestDeleteRecordsOfTieredTables(t *testing.T) {
	sim.InBubble(t, tierWorld(), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, map[string]string{"lake": "true"})
		for i := range 10 {
			p.Append(refs[0], fmt.Sprint(i))
		}
		w.Eventually(time.Minute, "an upload", func() bool {
			return tryRound(p, "r1", cluster.BucketOffset{Bucket: refs[0], Offset: 3}) == nil
		})
		if start, err := p.Node().DeleteRecords(ctx, refs[0], 7); err != nil || start != 7 {
			t.Fatalf("deleted up to %d: %v", start, err)
		}
		gaps := p.Node().View().AllowedGaps(cluster.LakeSink, refs[0])
		if len(gaps) != 1 || gaps[0] != (plan.Gap{Start: 3, End: 7}) {
			t.Fatalf("allowed gaps %v", gaps)
		}
		round(t, p, "r2", cluster.BucketOffset{Bucket: refs[0], Offset: 10})

		keyed, ref := pkTable(t, p)
		if _, err := p.Node().AlterTable(ctx, keyed, []schema.Change{{Op: schema.SetOptions, Options: map[string]string{"lake": "true"}}}, 0); err != nil {
			t.Fatal(err)
		}
		s := mustKV(t, p, ref)
		putRow(t, s, 1, "row")
		snapshotted(t, w, p, ref)
		start, err := p.Node().DeleteRecords(ctx, ref, 1)
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "sink lake") {
			t.Fatalf("a primary-key table was trimmed to %d past its lake: %v", start, err)
		}
	})
}

// A lake that takes nothing for longer than the limit loses what retention lets go of,
// and only what is that old; without a limit nothing.
func TestStallLimit(t *testing.T) {
	sim.InBubble(t, tierWorld(), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, patient := p.Topic("patient", 1, map[string]string{"log_ttl": "1s", "lake": "true"})
		_, refs := p.Topic("limited", 1, map[string]string{"log_ttl": "1s", "lake": "true", "lake_stall_limit": "1h"})
		for _, ref := range []mink.BucketRef{patient[0], refs[0]} {
			p.Append(ref, "a", "b")
		}
		time.Sleep(50 * time.Minute)
		p.Append(refs[0], "younger")
		time.Sleep(5 * time.Minute)
		if start := logStart(t, p, refs[0]); start != 0 {
			t.Fatalf("trimmed to %d before the limit", start)
		}
		w.Eventually(20*time.Minute, "the limit", func() bool {
			p.Append(patient[0], "x")
			return logStart(t, p, refs[0]) == 2
		})
		if gaps := p.Node().View().AllowedGaps(cluster.LakeSink, refs[0]); len(gaps) != 1 || gaps[0] != (plan.Gap{Start: 0, End: 2}) {
			t.Errorf("allowed gaps %v", gaps)
		}
		if start := logStart(t, p, patient[0]); start != 0 {
			t.Errorf("a table without a limit was trimmed to %d", start)
		}
		round(t, p, "r1", cluster.BucketOffset{Bucket: refs[0], Offset: 3})
	})
}

// Of several sinks that have stalled, a row is given up at the longest of their limits; a sink
// without a limit, or one that takes rounds, is waited for.
func TestStallLimitOfSeveralSinks(t *testing.T) {
	sim.InBubble(t, tierWorld(), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		topic := func(name string, options map[string]string) mink.BucketRef {
			options["log_ttl"] = "1s"
			_, refs := p.Topic(name, 1, options)
			p.Append(refs[0], "a", "b")
			return refs[0]
		}
		both := topic("both", map[string]string{"sink.a": "true", "sink.a.stall_limit": "1h", "sink.b": "true", "sink.b.stall_limit": "2h"})
		patient := topic("patient", map[string]string{"sink.a": "true", "sink.a.stall_limit": "1h", "sink.b": "true"})
		lives := topic("lives", map[string]string{"lake": "true", "sink.a": "true", "sink.a.stall_limit": "1h"})
		time.Sleep(50 * time.Minute)
		p.Append(both, "younger")
		time.Sleep(25 * time.Minute)
		round(t, p, "r1", cluster.BucketOffset{Bucket: lives, Offset: 1})
		starts := func() [3]mink.Offset {
			p.Append(patient, "x") // trims are looked at when something is written
			p.Append(lives, "x")
			return [3]mink.Offset{logStart(t, p, both), logStart(t, p, patient), logStart(t, p, lives)}
		}
		time.Sleep(30 * time.Minute)
		if got := starts(); got != [3]mink.Offset{0, 0, 1} {
			t.Fatalf("trimmed to %v after 1 h 45 min", got)
		}
		time.Sleep(40 * time.Minute) // the younger row is 1 h 35 min old: beyond the limit of a alone
		if got := starts(); got != [3]mink.Offset{2, 0, 1} {
			t.Fatalf("trimmed to %v after 2 h 25 min", got)
		}
		time.Sleep(45 * time.Minute)
		if got := starts(); got != [3]mink.Offset{3, 0, 1} {
			t.Fatalf("trimmed to %v after 3 h 10 min", got)
		}
		for _, sink := range []string{"a", "b"} {
			if gaps := p.Node().View().AllowedGaps(sink, both); len(gaps) != 1 || gaps[0] != (plan.Gap{Start: 0, End: 3}) {
				t.Errorf("sink %s: allowed gaps %v", sink, gaps)
			}
		}
		if held := heldTrim(p, patient); held == nil || !strings.Contains(held.Why, "sink.a.stall_limit") {
			t.Errorf("held trim %+v", held)
		}
	})
}

// A partition of a tiered table is dropped when its last row is in the lake: closed at
// once, also by a person, and dropped by itself then.
func TestDroppedPartitionIsTieredFirst(t *testing.T) {
	sim.InBubble(t, tierWorld(), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		if err := p.Node().CreateDatabase(ctx, "db", true); err != nil {
			t.Fatal(err)
		}
		d, err := (&schema.Descriptor{
			Database: "db", Table: "t", PartitionKeys: []string{"key"}, BucketCount: 1, Options: map[string]string{"lake": "true"},
			Schema: schema.Schema{Columns: []schema.Column{{Name: "key", Type: schema.MustParseType("STRING NOT NULL")}}},
		}).Normalize()
		if err != nil {
			t.Fatal(err)
		}
		table, err := p.Node().CreateTable(ctx, d, false)
		if err != nil {
			t.Fatal(err)
		}
		part, err := p.Node().CreatePartition(ctx, table.ID, []string{"x"}, false)
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
		if err := p.Node().DropPartition(ctx, table.ID, part.ID, false); err != nil {
			t.Fatal(err)
		}
		if err := advance(1); !errors.Is(err, mink.ErrInvalid) {
			t.Fatalf("a closed partition took a row: %v", err)
		}
		w.Eventually(time.Minute, "the leader's word that nothing follows", func() bool {
			return p.Node().View().Finished(cluster.LakeSink, ref)
		})
		time.Sleep(5 * time.Minute)
		if _, there := p.Node().View().Partition(part.ID); !there {
			t.Fatal("the partition was dropped before the lake had it")
		}
		round(t, p, "r1", cluster.BucketOffset{Bucket: ref, Offset: 1})
		w.Eventually(2*time.Minute, "the drop", func() bool {
			_, there := p.Node().View().Partition(part.ID)
			return !there
		})
	})
}

// A change of columns that Iceberg cannot follow is refused as long as the lake has files
// of the table: afterwards no round could be made.
func TestALakeTableIsAlteredAsTheLakeCan(t *testing.T) {
	sim.InBubble(t, tierWorld(), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		n := w.StartReady(1).Node()
		d := &schema.Descriptor{
			Database: "d", Table: "t", Options: map[string]string{"lake": "true"},
			Schema: schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}, {Name: "b", Type: schema.MustParseType("BINARY(8)")}}},
		}
		if err := n.CreateDatabase(ctx, "d", true); err != nil {
			t.Fatal(err)
		}
		table, err := n.CreateTable(ctx, d, false)
		if err != nil {
			t.Fatal(err)
		}
		modify := func(name, typ string) error {
			to := schema.MustParseType(typ)
			_, err := n.AlterTable(ctx, table.ID, []schema.Change{{Op: schema.ModifyColumn, Name: name, Type: &to}}, 0)
			return err
		}
		if err := modify("b", "BINARY(16)"); !errors.Is(err, mink.ErrUnsupported) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("BINARY(8) to BINARY(16): %v", err)
		}
		if _, err := n.AlterTable(ctx, table.ID, []schema.Change{{Op: schema.SetOptions, Options: map[string]string{"lake": "false"}}}, 0); err != nil {
			t.Fatal(err)
		}
		if err := modify("b", "BYTES"); !errors.Is(err, mink.ErrUnsupported) {
			t.Errorf("BINARY(8) to BYTES while tiering is off: %v", err)
		}
		if err := modify("a", "BIGINT"); err != nil {
			t.Error(err)
		}
	})
}
