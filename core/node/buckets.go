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
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// A bucket that failed to open waits for its next try: from reopenMin, doubling
// to reopenMax. A corrupt one may be mended by a person.
const (
	reopenMin     = 100 * time.Millisecond
	reopenMax     = 10 * time.Second
	reopenCorrupt = time.Minute
)

// bucket is one bucket led by the incarnation. Its fields are guarded by
// buckets.mu; log and stream never change once set.
type bucket struct {
	ref      mink.BucketRef
	id       mink.StreamID
	epoch    mink.LeaderEpoch
	table    *cluster.Table // as of its opening or last reconfiguration
	stream   *stream.Stream // nil unless open
	log      *tablet.Log    // nil unless open
	opening  bool           // queued or in a worker's hands
	err      error          // of the last try to open it
	failures int            // in a row
	retry    time.Time      // of the next one
}

// buckets opens and closes tablets so that they match the view. Opening reads
// from the store, which may take long: workers do it, at most OpensMax at a time,
// and the view is followed meanwhile.
type buckets struct {
	inc    *incarnation
	codecs tablet.Codecs
	opened chan struct{} // a worker has ended a try

	mu struct {
		sync.Mutex
		open    map[mink.StreamID]*bucket
		queue   []*bucket // to be opened
		workers int
		closed  bool
	}
}

func newBuckets(inc *incarnation) *buckets {
	b := &buckets{inc: inc, opened: make(chan struct{}, 1)}
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
	case e.log != nil:
		return e.log, nil
	case errors.Is(e.err, mink.ErrCorrupt):
		return nil, e.err
	case e.err != nil:
		return nil, fmt.Errorf("opening failed and is tried again: %w: %w", mink.ErrUnavailable, e.err)
	default:
		return nil, fmt.Errorf("opening: %w", mink.ErrUnavailable)
	}
}

// run follows the view until ctx is done and its workers have ended.
func (b *buckets) run(ctx context.Context) error {
	n := b.inc.node
	var workers sync.WaitGroup
	defer workers.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		view := n.View()
		b.closeOthers(view)
		next := b.enqueue(view)
		b.hire(ctx, &workers)
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.deps.Meta.Changed(view.Index()):
		case <-b.opened:
		case <-timer.C:
		}
	}
}

// closeOthers closes what the view does not give this epoch, or gives it under
// another leader epoch: the engine has one leadership of a stream at a time.
func (b *buckets) closeOthers(view *cluster.State) {
	wanted := map[mink.StreamID]mink.LeaderEpoch{}
	for s := range view.StreamsLedBy(b.inc.epoch) {
		wanted[s.ID] = s.Owner.LeaderEpoch
	}
	var gone []*bucket
	b.mu.Lock()
	for id, e := range b.mu.open {
		if epoch, ok := wanted[id]; !ok || epoch != e.epoch {
			gone = append(gone, e)
			delete(b.mu.open, id)
		}
	}
	b.mu.Unlock()
	for _, e := range gone {
		e.close()
	}
}

// enqueue puts what is to be opened now into the queue, tells open tablets of
// their table's changes, and answers when the next failed bucket is due.
func (b *buckets) enqueue(view *cluster.State) (next time.Time) {
	now := time.Now()
	var changed []*bucket
	b.mu.Lock()
	for s := range view.StreamsLedBy(b.inc.epoch) {
		t, ok := view.Table(s.Bucket.Table)
		if !ok {
			continue
		}
		e := b.mu.open[s.ID]
		if e == nil {
			e = &bucket{ref: s.Bucket, id: s.ID, epoch: s.Owner.LeaderEpoch}
			b.mu.open[s.ID] = e
		}
		switch {
		case e.opening:
		case e.log != nil:
			if e.table != t {
				e.table = t
				changed = append(changed, e)
			}
		case e.retry.After(now):
			if next.IsZero() || e.retry.Before(next) {
				next = e.retry
			}
		default:
			e.opening, e.table = true, t
			b.mu.queue = append(b.mu.queue, e)
		}
	}
	b.mu.Unlock()
	for _, e := range changed {
		b.update(e)
	}
	return next
}

// update tells an open tablet of its table's new schemas and options. Only run's
// goroutine changes e.table of an open one.
func (b *buckets) update(e *bucket) {
	cfg, err := b.tabletConfig(e.ref, e.epoch, e.table)
	if err == nil {
		err = e.log.Reconfigure(cfg)
	}
	if err != nil {
		b.inc.node.logger.Error("a table's change does not reach its bucket", "bucket", e.ref.String(), "error", err)
	}
}

// hire starts workers while there is work for them.
func (b *buckets) hire(ctx context.Context, workers *sync.WaitGroup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.mu.workers < min(b.inc.node.cfg.OpensMax, len(b.mu.queue)) {
		b.mu.workers++
		workers.Go(func() { b.work(ctx) })
	}
}

// work opens buckets until the queue is empty.
func (b *buckets) work(ctx context.Context) {
	for {
		b.mu.Lock()
		if len(b.mu.queue) == 0 || ctx.Err() != nil {
			b.mu.workers--
			b.mu.Unlock()
			return
		}
		e := b.mu.queue[0]
		b.mu.queue[0] = nil
		b.mu.queue = b.mu.queue[1:]
		table := e.table
		b.mu.Unlock()

		st, log, err := b.openTablet(ctx, e, table)
		if !b.tried(e, st, log, err) {
			(&bucket{stream: st, log: log}).close()
		}
		if err != nil && ctx.Err() == nil {
			b.inc.node.logger.Error("bucket does not open", "bucket", e.ref.String(), "stream", e.id, "leader_epoch", e.epoch, "error", err)
		}
		select {
		case b.opened <- struct{}{}:
		default:
		}
		b.inc.node.wake()
	}
}

// tried records the outcome of a try; false when the bucket is not wanted any
// more.
func (b *buckets) tried(e *bucket, st *stream.Stream, log *tablet.Log, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.opening = false
	if b.mu.closed || b.mu.open[e.id] != e {
		return false
	}
	e.stream, e.log, e.err = st, log, err
	switch {
	case err == nil:
		e.failures = 0
	case errors.Is(err, mink.ErrCorrupt):
		e.retry = time.Now().Add(reopenCorrupt)
	default:
		e.retry = time.Now().Add(min(reopenMin<<min(e.failures, 10), reopenMax))
		e.failures++
	}
	return true
}

func (b *buckets) openTablet(ctx context.Context, e *bucket, t *cluster.Table) (*stream.Stream, *tablet.Log, error) {
	cfg, err := b.tabletConfig(e.ref, e.epoch, t)
	if err != nil {
		return nil, nil, err
	}
	st, err := b.inc.engine.Open(ctx, e.id, e.epoch)
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

// snapshot copies the buckets in the order of their refs.
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

// retain trims every open bucket by its table's options. A bucket whose store is
// slow or broken neither stops nor holds up the others. The trims meet in the
// metadata log's proposer, which makes one batch of what waits.
func (b *buckets) retain(ctx context.Context) error {
	var failed struct {
		sync.Mutex
		errs []error
	}
	var g errgroup.Group
	g.SetLimit(retainWidth)
	for _, e := range b.snapshot() {
		if e.log == nil {
			continue
		}
		g.Go(func() error {
			if err := retainOne(ctx, e.log); err != nil {
				failed.Lock()
				defer failed.Unlock()
				failed.errs = append(failed.errs, fmt.Errorf("bucket %s: %w", e.ref, err))
			}
			return nil
		})
	}
	_ = g.Wait() // no member answers an error
	return errors.Join(failed.errs...)
}

const (
	retainWidth   = 64
	retainTimeout = time.Minute // of one bucket
)

func retainOne(ctx context.Context, log *tablet.Log) error {
	ctx, cancel := context.WithTimeout(ctx, retainTimeout)
	defer cancel()
	to, err := log.RetentionPoint(ctx, time.Now().UnixMilli())
	if err != nil || to <= log.LogStart() {
		return err
	}
	return log.Trim(ctx, to)
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
