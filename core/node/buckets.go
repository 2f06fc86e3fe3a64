package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// reopenAfter is how long a bucket that failed to open waits for its next try.
const reopenAfter = time.Second

// bucket is one bucket led by the incarnation.
type bucket struct {
	ref    mink.BucketRef
	epoch  mink.LeaderEpoch
	table  *cluster.Table // as of its opening or last reconfiguration
	stream *stream.Stream // nil unless open
	log    *tablet.Log    // nil unless open
	err    error          // why it is not open
	retry  time.Time
}

// buckets opens and closes tablets so that they match the view.
type buckets struct {
	inc    *incarnation
	codecs tablet.Codecs

	mu struct {
		sync.Mutex
		open   map[mink.StreamID]*bucket
		closed bool
	}
}

func newBuckets(inc *incarnation) *buckets {
	b := &buckets{inc: inc}
	b.mu.open = map[mink.StreamID]*bucket{}
	return b
}

// tablet answers an open tablet of exactly that leader epoch.
func (b *buckets) tablet(id mink.StreamID, epoch mink.LeaderEpoch) (*tablet.Log, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.mu.open[id]
	switch {
	case b.mu.closed || e == nil || e.epoch != epoch:
		return nil, fmt.Errorf("opening: %w", mink.ErrUnavailable)
	case errors.Is(e.err, mink.ErrCorrupt):
		return nil, e.err
	case e.log == nil && e.err != nil:
		return nil, fmt.Errorf("opening failed and is tried again: %w: %w", mink.ErrUnavailable, e.err)
	case e.log == nil:
		return nil, fmt.Errorf("opening: %w", mink.ErrUnavailable)
	}
	return e.log, nil
}

// reconcile follows the view until ctx is done.
func (b *buckets) reconcile(ctx context.Context) error {
	n := b.inc.node
	for {
		view := n.View()
		pending := b.step(ctx, view)
		var retry <-chan time.Time
		if pending {
			t := time.NewTimer(reopenAfter)
			defer t.Stop()
			retry = t.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.deps.Meta.Changed(view.Index()):
		case <-retry:
		}
	}
}

// step opens what the view gives this epoch and closes what it does not.
// It answers whether a bucket waits for another try.
func (b *buckets) step(ctx context.Context, view *cluster.State) (pending bool) {
	wanted := map[mink.StreamID]bool{}
	var toOpen []plan.Stream
	var tables []*cluster.Table
	for s := range view.StreamsLedBy(b.inc.epoch) {
		t, ok := view.Table(s.Bucket.Table)
		if !ok {
			continue
		}
		wanted[s.ID] = true
		if b.needsOpen(s, t) {
			toOpen = append(toOpen, s)
			tables = append(tables, t)
		}
	}
	b.closeUnwanted(wanted)
	var g errgroup.Group
	g.SetLimit(b.inc.node.cfg.OpensMax)
	for i, s := range toOpen {
		g.Go(func() error {
			b.openOne(ctx, s, tables[i])
			return nil
		})
	}
	_ = g.Wait()
	if len(toOpen) > 0 {
		b.inc.node.wake()
	}
	return b.anyFailed()
}

// needsOpen reports whether the bucket must be opened now; an open one is told
// when its table has changed.
func (b *buckets) needsOpen(s plan.Stream, t *cluster.Table) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.mu.open[s.ID]
	switch {
	case e == nil || e.epoch != s.Owner.LeaderEpoch:
		return true
	case e.log == nil:
		return !errors.Is(e.err, mink.ErrCorrupt) && !time.Now().Before(e.retry)
	case e.table != t:
		e.table = t
		b.update(e)
	}
	return false
}

// update tells an open tablet of its table's new schemas and options.
func (b *buckets) update(e *bucket) {
	cfg, err := b.tabletConfig(e.ref, e.epoch, e.table)
	if err == nil {
		err = e.log.Reconfigure(cfg)
	}
	if err != nil {
		b.inc.node.logger.Error("a table's change does not reach its bucket", "bucket", e.ref.String(), "error", err)
	}
}

func (b *buckets) openOne(ctx context.Context, s plan.Stream, t *cluster.Table) {
	e := &bucket{ref: s.Bucket, epoch: s.Owner.LeaderEpoch, table: t}
	e.stream, e.log, e.err = b.openTablet(ctx, s, t)
	if e.err != nil {
		e.retry = time.Now().Add(reopenAfter)
		if ctx.Err() == nil {
			b.inc.node.logger.Error("bucket does not open", "bucket", s.Bucket.String(), "stream", s.ID, "leader_epoch", s.Owner.LeaderEpoch, "error", e.err)
		}
	}
	b.mu.Lock()
	old := b.mu.open[s.ID]
	closed := b.mu.closed
	if !closed {
		b.mu.open[s.ID] = e
	}
	b.mu.Unlock()
	old.close()
	if closed {
		e.close()
	}
}

func (b *buckets) openTablet(ctx context.Context, s plan.Stream, t *cluster.Table) (*stream.Stream, *tablet.Log, error) {
	cfg, err := b.tabletConfig(s.Bucket, s.Owner.LeaderEpoch, t)
	if err != nil {
		return nil, nil, err
	}
	st, err := b.inc.engine.Open(ctx, s.ID, s.Owner.LeaderEpoch)
	if err != nil {
		return nil, nil, err
	}
	log, err := tablet.OpenLog(ctx, tablet.OnStream(st), cfg)
	if err != nil {
		st.Close()
		return nil, nil, err
	}
	return st, log, nil
}

func (b *buckets) tabletConfig(ref mink.BucketRef, epoch mink.LeaderEpoch, t *cluster.Table) (tablet.Config, error) {
	o, err := t.Descriptor.ParsedOptions()
	if err != nil {
		return tablet.Config{}, fmt.Errorf("options of table %s.%s: %w", t.Descriptor.Database, t.Descriptor.Table, err)
	}
	cfg := tablet.Default()
	cfg.Bucket, cfg.LeaderEpoch, cfg.Schemas, cfg.Options = ref, epoch, t.Schemas, o
	cfg.Codecs = &b.codecs
	return cfg, nil
}

// close is safe on a nil or unopened bucket.
func (e *bucket) close() {
	if e == nil || e.log == nil {
		return
	}
	e.log.Close()
	e.stream.Close()
}

func (b *buckets) closeUnwanted(wanted map[mink.StreamID]bool) {
	var gone []*bucket
	b.mu.Lock()
	for id, e := range b.mu.open {
		if !wanted[id] {
			gone = append(gone, e)
			delete(b.mu.open, id)
		}
	}
	b.mu.Unlock()
	for _, e := range gone {
		e.close()
	}
}

func (b *buckets) closeAll() {
	b.mu.Lock()
	all := b.mu.open
	b.mu.open = map[mink.StreamID]*bucket{}
	b.mu.closed = true
	b.mu.Unlock()
	for _, e := range all {
		e.close()
	}
}

func (b *buckets) anyFailed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.mu.open {
		if e.err != nil && !errors.Is(e.err, mink.ErrCorrupt) {
			return true
		}
	}
	return false
}

// snapshot lists the open buckets in the order of their refs.
func (b *buckets) snapshot() []*bucket {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*bucket, 0, len(b.mu.open))
	for _, e := range b.mu.open {
		c := *e
		out = append(out, &c)
	}
	slices.SortFunc(out, func(x, y *bucket) int {
		return cmp.Or(cmp.Compare(x.ref.Table, y.ref.Table), cmp.Compare(x.ref.Partition, y.ref.Partition), cmp.Compare(x.ref.Index, y.ref.Index))
	})
	return out
}

// retain trims every open bucket by its table's options. One failing bucket
// does not stop the others.
func (b *buckets) retain(ctx context.Context) error {
	var errs []error
	var trims []plan.Trim
	view := b.inc.node.View()
	for _, e := range b.snapshot() {
		if e.log == nil {
			continue
		}
		to, err := e.log.RetentionPoint(ctx, time.Now().UnixMilli())
		if err != nil {
			errs = append(errs, fmt.Errorf("bucket %s: %w", e.ref, err))
			continue
		}
		if id, ok := view.StreamOf(e.ref); ok && to > e.log.LogStart() {
			trims = append(trims, plan.Trim{Stream: id, Start: to})
		}
	}
	if len(trims) > 0 {
		if err := (meta{replica: b.inc.node.deps.Meta, log: b.inc.node.deps.Log}).TrimStreams(ctx, trims); err != nil {
			errs = append(errs, fmt.Errorf("trim %d buckets: %w", len(trims), err))
		}
	}
	return errors.Join(errs...)
}

func (b *buckets) stats() []BucketStats {
	view := b.inc.node.View()
	var out []BucketStats
	for _, e := range b.snapshot() {
		s := BucketStats{Bucket: e.ref, LeaderEpoch: e.epoch}
		s.Stream, _ = view.StreamOf(e.ref)
		if e.err != nil {
			s.Error = e.err.Error()
		}
		if e.log != nil {
			s.LogStart, s.HighWatermark, s.LogEnd = e.log.LogStart(), e.log.HighWatermark(), e.log.LogEnd()
		}
		out = append(out, s)
	}
	return out
}
