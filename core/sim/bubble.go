package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// InBubble runs f with a world of its own in virtual time; that nothing is left
// afterwards is part of the test.
func InBubble(t *testing.T, cfg Config, f func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := NewWorld(t, cfg)
		defer func() {
			w.Close()
			for _, b := range w.Violations() {
				t.Error(b)
			}
		}()
		f(t, w)
	})
}

// StartReady starts a process and waits until it serves and the others know it; those
// that hear nothing of it within a second (they stand still, or are cut off) are left.
func (w *World) StartReady(id mink.NodeID) *Process {
	w.tb.Helper()
	p := w.Start(id)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.WaitReady(ctx); err != nil {
		w.tb.Fatalf("node %d: %v", id, err)
	}
	_, epoch := p.Node().Self()
	for _, other := range w.Processes() {
		for end := time.Now().Add(time.Second); other.Node() != nil && !other.Paused() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if n, ok := other.Node().View().Node(id); ok && n.Epoch >= epoch {
				break
			}
		}
	}
	return p
}

// Topic creates a four-column table in database "sim" and answers its buckets.
func (p *Process) Topic(name string, buckets int32, options map[string]string) (*cluster.Table, []mink.BucketRef) {
	tb := p.world.tb
	tb.Helper()
	ctx := context.Background()
	d, err := schema.KafkaTopic("sim", name, buckets, nil)
	if err != nil {
		tb.Fatal(err)
	}
	d = d.Clone()
	if d.Options == nil {
		d.Options = map[string]string{}
	}
	for k, v := range options {
		d.Options[k] = v
	}
	if err := p.Node().CreateDatabase(ctx, "sim", true); err != nil {
		tb.Fatal(err)
	}
	t, err := p.Node().CreateTable(ctx, d, false)
	if err != nil {
		tb.Fatal(err)
	}
	var refs []mink.BucketRef
	for part := range p.Node().View().Partitions(t.ID) {
		for i := range part.Streams {
			refs = append(refs, mink.BucketRef{Table: t.ID, Partition: part.ID, Index: int32(i)})
		}
	}
	return t, refs
}

// Append appends values as one batch and waits until they are durable.
func (p *Process) Append(ref mink.BucketRef, values ...string) tablet.AppendResult {
	p.world.tb.Helper()
	r, err := p.TryAppend(ref, values...)
	if err != nil {
		p.world.tb.Fatalf("append to %s: %v", ref, err)
	}
	return r
}

// TryAppend is Append for what may fail.
func (p *Process) TryAppend(ref mink.BucketRef, values ...string) (tablet.AppendResult, error) {
	log, err := p.Node().Log(ref)
	if err != nil {
		return tablet.AppendResult{}, err
	}
	pending, err := log.AppendKafka(KafkaBatch(mink.NoWriter, -1, values...), tablet.KafkaAppend{})
	if err != nil {
		return tablet.AppendResult{}, err
	}
	<-pending.Done()
	return pending.Result()
}

// Read answers all values of a bucket, and the offset of the first.
func (p *Process) Read(ref mink.BucketRef) (mink.Offset, []string) {
	p.world.tb.Helper()
	log, err := p.Node().Log(ref)
	if err != nil {
		p.world.tb.Fatalf("read %s: %v", ref, err)
	}
	first, values, err := Values(context.Background(), log)
	if err != nil {
		p.world.tb.Fatalf("read %s: %v", ref, err)
	}
	return first, values
}

// Eventually waits up to d of virtual time for a condition.
func (w *World) Eventually(d time.Duration, what string, ok func() bool) {
	w.tb.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.tb.Fatalf("not within %s: %s", d, what)
		}
	}
}
