package node

import (
	"context"
	"errors"
	"time"

	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
)

// kvSource is an open store as kvsnap.Scheduler sees it.
type kvSource struct {
	tablet *kv.Tablet
	stream *stream.Stream
}

func (s kvSource) Checkpoint(ctx context.Context, dir string) (mink.Offset, int64, error) {
	cp, err := s.tablet.Checkpoint(ctx, dir)
	return cp.Offset, cp.Rows, err
}

func (s kvSource) Flushed() mink.Offset { return s.tablet.VisibleHighWatermark() }
func (s kvSource) Appended() int64      { return s.tablet.Stats().ChangelogBytes }
func (s kvSource) LogBytes(ctx context.Context, from, to mink.Offset) (int64, error) {
	return s.stream.Bytes(ctx, from, to)
}

// newSnapshots makes the scheduler of the incarnation's KV snapshots.
func (inc *incarnation) newSnapshots() *kvsnap.Scheduler[kvSource] {
	n := inc.node
	return kvsnap.NewScheduler(n.cfg.KVSnapshots, kvsnap.SchedulerDeps[kvSource]{
		Meta: n.deps.Meta, Objects: n.deps.Objects, Nonce: inc.nonce, Sources: inc.buckets.kvSources, Logger: inc.node.logger,
		Dir: func() (string, error) {
			_, dir, err := n.home()
			return dir, err
		},
	})
}

// snapshotLook is how often buckets are looked at: often enough for the interval, and for
// bytes that come fast.
func snapshotLook(interval time.Duration) time.Duration {
	return min(max(interval/20, 100*time.Millisecond), 10*time.Second)
}

// kvSources are the primary-key buckets led here.
func (b *buckets) kvSources() []kvsnap.Source[kvSource] {
	var out []kvsnap.Source[kvSource]
	for _, e := range b.snapshot() {
		if len(e.table.Descriptor.PrimaryKey) > 0 {
			out = append(out, e.source())
		}
	}
	return out
}

// source is the bucket for the scheduler. Under buckets.mu, or of a copy.
func (e *bucket) source() kvsnap.Source[kvSource] {
	return kvsnap.Source[kvSource]{Bucket: e.ref, Stream: e.id, Epoch: e.epoch, Open: e.kv.tablet != nil, Store: kvSource{e.kv.tablet, e.stream}}
}

// restoreKV makes dir of the newest snapshot that can be restored; false: of none, and
// the changelog from its start is all that there is. Of damaged snapshots the changelog
// makes up for as long as it is whole.
func (b *buckets) restoreKV(ctx context.Context, e *bucket, dir string) (mink.Offset, bool, error) {
	n := b.inc.node
	began := time.Now()
	retained := func() []kvplan.Snapshot { return n.View().KVSnapshots(e.id) }
	o, ok, err := kvsnap.RestoreNewest(ctx, n.cfg.KVSnapshots.Transfer, n.deps.Objects, e.ref, retained, dir, n.logger)
	if errors.Is(err, mink.ErrCorrupt) && e.log.LogStart() == 0 {
		n.logger.Error("no KV snapshot can be restored; the whole changelog is read", "bucket", e.ref.String(), "error", err)
		b.inc.snapshots.Restored(e.id, e.epoch, o)
		return 0, false, nil
	}
	if err != nil || !ok {
		return 0, false, err
	}
	b.inc.snapshots.Restored(e.id, e.epoch, o)
	n.logger.Info("KV snapshot restored", "bucket", e.ref.String(), "snapshot", o.Snapshot.ID, "offset", o.Snapshot.Offset,
		"bytes", o.Snapshot.Bytes(), "took", time.Since(began).Round(time.Millisecond).String())
	return o.Snapshot.Offset, true, nil
}

// KVSnapshotStats is what is known of a bucket's KV snapshots.
type KVSnapshotStats struct {
	kvsnap.BucketStats
	Retained int
	Newest   kvplan.Snapshot // when Retained > 0
}

func (b *buckets) snapshotStats(e *bucket) *KVSnapshotStats {
	if len(e.table.Descriptor.PrimaryKey) == 0 {
		return nil
	}
	list := b.inc.node.View().KVSnapshots(e.id)
	s := &KVSnapshotStats{BucketStats: b.inc.snapshots.Stats(e.id), Retained: len(list)}
	if len(list) > 0 {
		s.Newest = list[len(list)-1]
	}
	return s
}
