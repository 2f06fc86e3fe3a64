package node

import (
	"context"
	"errors"
	"maps"
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
		Open: func(ctx context.Context, bucket mink.BucketRef) error {
			_, err := n.KV(ctx, bucket)
			return err
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

// restoredKV is the snapshot that a bucket's store was made of, and those whose stores
// ended with damage, by their heads.
type restoredKV struct {
	from     kvplan.Snapshot // without files: of none
	suspects map[kvplan.File]error
}

// suspect notes that the store was damaged: by the disk here, or the snapshot has it.
func (r *restoredKV) suspect(retained []kvplan.Snapshot, why error) {
	if len(r.from.Files) == 0 {
		return
	}
	kept := map[kvplan.File]error{r.from.Head(): why}
	for _, s := range retained {
		if err := r.suspects[s.Head()]; err != nil {
			kept[s.Head()] = err
		}
	}
	r.suspects, r.from = kept, kvplan.Snapshot{}
}

// restorer is kv.Config.Restore of one opening. It makes the directory of the newest
// snapshot that can be restored. What turned out damaged is passed over, and the changelog
// makes up for all of them for as long as it is whole; else those are tried again whose
// stores opened and were damaged later: their damage may have been of the disk here.
func (b *buckets) restorer(e *bucket) func(context.Context, string, error) (mink.Offset, bool, error) {
	n := b.inc.node
	b.mu.Lock()
	suspects := maps.Clone(e.kv.restored.suspects)
	b.mu.Unlock()
	refused := map[kvplan.File]error{} // in this opening
	var last kvplan.Snapshot
	retained := func() []kvplan.Snapshot { return n.View().KVSnapshots(e.id) }
	return func(ctx context.Context, dir string, why error) (mink.Offset, bool, error) {
		began := time.Now()
		if why != nil {
			refused[last.Head()] = why
		}
		b.mu.Lock()
		e.kv.restored.from = kvplan.Snapshot{}
		b.mu.Unlock()
		newest := func() (kvsnap.Origin, bool, error) {
			but := maps.Clone(refused)
			maps.Copy(but, suspects)
			return kvsnap.RestoreNewest(ctx, n.cfg.KVSnapshots.Transfer, n.deps.Objects, e.ref, retained, but, dir, n.logger)
		}
		o, ok, err := newest()
		if errors.Is(err, mink.ErrCorrupt) && e.log.LogStart() == 0 {
			n.logger.Error("no KV snapshot can be restored; the whole changelog is read", "bucket", e.ref.String(), "error", err)
			b.inc.snapshots.Restored(e.id, e.epoch, o)
			return 0, false, nil
		}
		if errors.Is(err, mink.ErrCorrupt) && len(suspects) > 0 {
			suspects = nil
			o, ok, err = newest()
		}
		if err != nil || !ok {
			return 0, false, err
		}
		last = o.Snapshot
		b.mu.Lock()
		e.kv.restored.from = last
		b.mu.Unlock()
		b.inc.snapshots.Restored(e.id, e.epoch, o)
		n.logger.Info("KV snapshot restored", "bucket", e.ref.String(), "snapshot", last.ID, "offset", last.Offset,
			"bytes", last.Bytes(), "took", time.Since(began).Round(time.Millisecond).String())
		return last.Offset, true, nil
	}
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
