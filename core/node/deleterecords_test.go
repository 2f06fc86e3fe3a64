package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Deleted records stay deleted, whether they were uploaded or not, over a crash;
// offsets and what writers know go on.
func TestDeleteRecords(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, refs := p.Topic("t", 2, nil)
		for i := range 10 {
			p.Append(refs[0], fmt.Sprint(i))
		}
		log, err := p.Node().Log(refs[0])
		if err != nil {
			t.Fatal(err)
		}
		pending, err := log.AppendKafka(sim.KafkaBatch(77, 0, "idempotent"), tablet.KafkaAppend{})
		if err != nil {
			t.Fatal(err)
		}
		<-pending.Done()
		if start, err := p.Node().DeleteRecords(ctx, refs[0], 4); err != nil || start != 4 {
			t.Fatalf("delete up to 4: start %d, %v", start, err)
		}
		if start, err := p.Node().DeleteRecords(ctx, refs[0], 2); err != nil || start != 4 {
			t.Fatalf("delete what is deleted: start %d, %v", start, err)
		}
		for _, to := range []mink.Offset{-1, 12} {
			var out *mink.OutOfRangeError
			if _, err := p.Node().DeleteRecords(ctx, refs[0], to); !errors.As(err, &out) || out.End != 11 {
				t.Errorf("delete up to %d of 11: %v", to, err)
			}
		}
		p.Crash()
		p = w.StartReady(1)
		if first, values := p.Read(refs[0]); first != 4 || !slices.Equal(values, []string{"4", "5", "6", "7", "8", "9", "idempotent"}) {
			t.Fatalf("after a crash the log holds %v from %d", values, first)
		}
		// All of it, with a tail that is in no object yet.
		p.Append(refs[0], "tail")
		if start, err := p.Node().DeleteRecords(ctx, refs[0], 12); err != nil || start != 12 {
			t.Fatalf("delete all: start %d, %v", start, err)
		}
		if start, err := p.Node().DeleteRecords(ctx, refs[1], 0); err != nil || start != 0 {
			t.Errorf("an empty bucket: start %d, %v", start, err)
		}
		p.Crash()
		p = w.StartReady(1)
		if log, err = p.Node().Log(refs[0]); err != nil {
			t.Fatal(err)
		}
		if log.LogStart() != 12 || log.HighWatermark() != 12 {
			t.Fatalf("after a crash the log is [%d, %d), want [12, 12)", log.LogStart(), log.HighWatermark())
		}
		if _, err := log.Read(ctx, tablet.ReadRequest{From: 11, MaxBytes: 1}); !errors.Is(err, mink.ErrOutOfRange) {
			t.Errorf("a deleted record: %v", err)
		}
		dup, err := log.AppendKafka(sim.KafkaBatch(77, 0, "idempotent"), tablet.KafkaAppend{})
		if err != nil {
			t.Fatal(err)
		}
		<-dup.Done()
		if r, err := dup.Result(); err != nil || !r.Duplicate || r.First != 10 {
			t.Errorf("a repeated batch whose first copy was deleted: %+v, %v", r, err)
		}
		if r := p.Append(refs[0], "next"); r.First != 12 {
			t.Errorf("the next record is at %d, want 12", r.First)
		}
	})
}

// A store that takes no objects holds the deletion up, with an error; it happens
// once the store works.
func TestDeleteRecordsNeedsTheStore(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		p.Append(refs[0], "a")
		dead := p.Faults.Inject(fault.Rule{Prefix: "data/", Ops: fault.Put, Do: fault.FailBefore(objstore.ErrUnavailable)})
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if _, err := p.Node().DeleteRecords(ctx, refs[0], 1); err == nil {
			t.Fatal("records were deleted though their checkpoint cannot be written")
		}
		if first, values := p.Read(refs[0]); first != 0 || len(values) != 1 {
			t.Fatalf("the log holds %v from %d", values, first)
		}
		dead.Remove()
		w.Eventually(time.Minute, "the held deletion", func() bool {
			log, err := p.Node().Log(refs[0])
			return err == nil && log.LogStart() == 1
		})
	})
}

// Added buckets open, take records and survive; the others keep theirs.
func TestAddedBuckets(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		table, refs := p.Topic("t", 2, nil)
		p.Append(refs[0], "old")
		grow := func(n int32) error {
			_, err := p.Node().AlterTable(ctx, table.ID, []schema.Change{{Op: schema.SetBucketCount, BucketCount: n}}, 0)
			return err
		}
		if err := grow(4); err != nil {
			t.Fatal(err)
		}
		for i := int32(2); i < 4; i++ {
			ref := refs[0]
			ref.Index = i
			if r := p.Append(ref, fmt.Sprint("new ", i)); r.First != 0 { // open at once: AlterTable waited
				t.Errorf("bucket %d begins at %d", i, r.First)
			}
			refs = append(refs, ref)
		}
		if err := grow(4); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("the same count again: %v", err)
		}
		p.Crash()
		p = w.StartReady(1)
		for i, want := range []string{"old", "", "new 2", "new 3"} {
			if _, values := p.Read(refs[i]); want != "" && !slices.Equal(values, []string{want}) || want == "" && len(values) > 0 {
				t.Errorf("bucket %d holds %v, want %q", i, values, want)
			}
		}
	})
}
