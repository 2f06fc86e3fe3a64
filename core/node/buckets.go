package node

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
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
	ref         mink.BucketRef
	id          mink.StreamID
	epoch       mink.LeaderEpoch
	tabletTable // what the metadata says at index asOf; an open log is configured so
	asOf        uint64
	stream      *stream.Stream // nil unless open
	log         *tablet.Log    // nil unless open
	opening     bool           // queued or in a worker's hands
	err         error          // of the last try to open it
	behind      error          // why tabletTable does not reach log; nil: it does
	failures    int            // in a row
	retry       time.Time      // of the next one
	walk        uint64         // the last one that met it
	kv          kvSlot
	moving      *move // nil: it stays
}

// buckets opens and closes tablets so that they match the view. Opening reads
// from the store, which may take long: workers do it, at most OpensMax at a time,
// and the view is followed meanwhile. A view is walked once, whatever becomes of
// the openings: to open n buckets takes O(n) steps, and failed ones wait in a heap.
type buckets struct {
	inc    *incarnation
	codecs tablet.Codecs
	tries  chan struct{} // a worker has ended a try, or the queue has grown
	open   func(context.Context, *bucket, tabletTable) (*stream.Stream, *tablet.Log, error)
	set    func(*tablet.Log, tablet.Config) error // (*tablet.Log).Reconfigure
	jobs   struct {                               // opening and closing of stores, moves: what outlives the request that began it
		ctx    context.Context // until closeAll
		cancel context.CancelFunc
		work   sync.WaitGroup // under mu, while not closed
	}

	mu struct {
		sync.Mutex
		led     map[mink.StreamID]*bucket
		queue   []*bucket // to be opened
		failed  retries   // to be queued again
		waiting int       // of led: neither open nor corrupt
		workers int
		closed  bool
		walk    uint64 // how many views were walked
		steps   int    // buckets looked at, ever: for tests
	}
}

// tabletTable is what a tablet is configured by.
type tabletTable struct {
	table  *cluster.Table
	closed bool // the partition takes no more rows
}

func newBuckets(inc *incarnation) *buckets {
	b := &buckets{inc: inc, tries: make(chan struct{}, 1)}
	b.jobs.ctx, b.jobs.cancel = context.WithCancel(context.Background())
	b.open, b.set = b.openTablet, (*tablet.Log).Reconfigure
	b.mu.led = map[mink.StreamID]*bucket{}
	return b
}

// tablet answers the open tablet of exactly that leadership, which is view's. It
// is configured by that view or a later one, also when run has not come to it:
// who was told of a change, by its command's answer or by a look at the
// metadata, may rely on it in the next request.
func (b *buckets) tablet(view *cluster.State, id mink.StreamID, epoch mink.LeaderEpoch) (*tablet.Log, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.mu.led[id]
	if b.mu.closed || e == nil || e.epoch != epoch {
		return nil, fmt.Errorf("opening: %w", mink.ErrUnavailable)
	}
	b.catchUp(e, view)
	switch {
	case e.behind != nil:
		return nil, fmt.Errorf("a change of its table does not reach it, which is tried again: %w: %w", mink.ErrUnavailable, e.behind)
	case e.leaves():
		return nil, e.moving.unavailable()
	case e.log != nil:
		return e.log, nil
	case errors.Is(e.err, mink.ErrCorrupt):
		return nil, e.err
	case e.err != nil:
		// Not its class: what opening met with (an offset that is gone, a full store) is
		// no answer to who asks for the log.
		return nil, fmt.Errorf("opening failed and is tried again: %w: %s", mink.ErrUnavailable, e.err.Error())
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
	var walked *cluster.State
	for {
		view := n.View()
		if view != walked {
			b.follow(view)
			walked = view
		}
		next := b.requeue(time.Now())
		b.hire(ctx, &workers)
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.deps.Meta.Changed(view.Index()):
		case <-b.tries:
		case <-timer.C:
		}
	}
}

// follow walks a view once: it closes what the view does not give this epoch, or
// gives it under another leader epoch, queues what is new, and tells open tablets
// of their table's changes.
func (b *buckets) follow(view *cluster.State) {
	gone, fresh, changed := b.compare(view)
	for _, e := range gone { // before their successors open: the engine has one leadership of a stream at a time
		b.end(e)
	}
	if len(gone) > 0 {
		b.inc.node.wake() // readiness may have waited for one of them
	}
	b.mu.Lock()
	for _, e := range fresh {
		e.opening = true
		b.mu.queue = append(b.mu.queue, e)
	}
	b.mu.Unlock()
	for _, e := range changed { // one at a time: appends wait for the lock
		b.mu.Lock()
		b.catchUp(e, view)
		b.mu.Unlock()
	}
}

func (b *buckets) compare(view *cluster.State) (gone, fresh, changed []*bucket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.walk++
	seen := 0
	for s := range view.StreamsLedBy(b.inc.epoch) {
		b.mu.steps++
		t, ok := view.Table(s.Bucket.Table)
		p, ok2 := view.Partition(s.Bucket.Partition)
		if !ok || !ok2 {
			continue
		}
		seen++
		e := b.mu.led[s.ID]
		if e != nil && e.epoch != s.Owner.LeaderEpoch {
			gone = append(gone, b.drop(e))
			e = nil
		}
		now := tabletTable{t, p.Closed}
		if e == nil {
			e = &bucket{ref: s.Bucket, id: s.ID, epoch: s.Owner.LeaderEpoch, tabletTable: now, asOf: view.Index()}
			b.mu.led[s.ID] = e
			b.mu.waiting++
			fresh = append(fresh, e)
		}
		e.walk = b.mu.walk
		if e.tabletTable != now {
			changed = append(changed, e)
		}
	}
	if len(b.mu.led) > seen {
		for _, e := range b.mu.led {
			b.mu.steps++
			if e.walk != b.mu.walk {
				gone = append(gone, b.drop(e))
			}
		}
	}
	return gone, fresh, changed
}

// drop forgets a bucket, for the caller to close. Under mu.
func (b *buckets) drop(e *bucket) *bucket {
	delete(b.mu.led, e.id)
	if e.waits() {
		b.mu.waiting--
	}
	return e
}

// waits reports that the bucket opens by itself, sooner or later.
func (e *bucket) waits() bool { return e.log == nil && !errors.Is(e.err, mink.ErrCorrupt) }

// retries are failed buckets, the one that is due first on top (container/heap).
type retries []*bucket

func (r retries) Len() int           { return len(r) }
func (r retries) Less(i, j int) bool { return r[i].retry.Before(r[j].retry) }
func (r retries) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *retries) Push(x any)        { *r = append(*r, x.(*bucket)) }
func (r *retries) Pop() any {
	old := *r
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return e
}

// requeue queues the failed buckets that are due, and answers when the next one
// is.
func (b *buckets) requeue(now time.Time) (next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.mu.failed) > 0 {
		b.mu.steps++
		e := b.mu.failed[0]
		wanted := b.mu.led[e.id] == e
		if wanted && e.retry.After(now) {
			return e.retry
		}
		heap.Pop(&b.mu.failed)
		if wanted {
			e.opening = true
			b.mu.queue = append(b.mu.queue, e)
		}
	}
	return time.Time{}
}

// catchUp brings a bucket to what view says of its table, unless it is further.
// Under mu, so that no older view comes after a newer one.
func (b *buckets) catchUp(e *bucket, view *cluster.State) {
	if view.Index() <= e.asOf {
		if e.behind != nil {
			b.configure(e, e.log)
		}
		return
	}
	t, ok := view.Table(e.ref.Table)
	p, ok2 := view.Partition(e.ref.Partition)
	if !ok || !ok2 {
		return // dropped: run closes it
	}
	e.asOf = view.Index()
	now := tabletTable{t, p.Closed}
	changed := e.tabletTable != now
	if e.tabletTable = now; e.log != nil && (changed || e.behind != nil) {
		b.configure(e, e.log)
	}
}

// configure tells a tablet of its table's new schemas and options. One that they do not
// reach is not handed out: who asks for it next is who tries again. Under mu.
func (b *buckets) configure(e *bucket, log *tablet.Log) {
	cfg, err := b.tabletConfig(e.ref, e.epoch, e.tabletTable)
	if err == nil {
		err = b.set(log, cfg)
	}
	if t := e.kv.tablet; err == nil && t != nil {
		err = t.Reconfigure(kvTable(e.table))
	}
	known := e.behind != nil
	if e.behind = err; err != nil && !known {
		b.inc.node.logger.Error("a table's change does not reach its bucket", "bucket", e.ref.String(), "error", err)
	}
}

// hire starts a worker for every queued bucket, as far as OpensMax allows: those
// at work may be at it for long. Who finds the queue empty ends.
func (b *buckets) hire(ctx context.Context, workers *sync.WaitGroup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range min(b.inc.node.cfg.OpensMax-b.mu.workers, len(b.mu.queue)) {
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
		table := e.tabletTable
		wanted := b.mu.led[e.id] == e
		b.mu.Unlock()
		if wanted {
			b.try(ctx, e, table)
		}
	}
}

func (b *buckets) try(ctx context.Context, e *bucket, table tabletTable) {
	st, log, err := b.open(ctx, e, table)
	if err != nil && ctx.Err() == nil {
		b.inc.node.logger.Error("bucket does not open", "bucket", e.ref.String(), "stream", e.id, "leader_epoch", e.epoch, "error", err)
	}
	if !b.tried(e, table, st, log, err) {
		(&bucket{stream: st, log: log}).close()
	}
	b.tell()
}

// tell makes run look, and WaitReady.
func (b *buckets) tell() {
	select {
	case b.tries <- struct{}{}:
	default:
	}
	b.inc.node.wake()
}

// tried records the outcome of a try; false when the bucket is not wanted any
// more.
func (b *buckets) tried(e *bucket, table tabletTable, st *stream.Stream, log *tablet.Log, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.opening = false
	if b.mu.closed || b.mu.led[e.id] != e {
		return false
	}
	waited := e.waits()
	e.stream, e.log, e.err = st, log, err
	switch {
	case err == nil:
		e.failures = 0
		if table != e.tabletTable { // it changed meanwhile
			b.configure(e, log)
		}
	case errors.Is(err, mink.ErrCorrupt):
		e.retry = time.Now().Add(reopenCorrupt)
	default:
		e.retry = time.Now().Add(min(reopenMin<<min(e.failures, 10), reopenMax))
		e.failures++
	}
	if err != nil {
		heap.Push(&b.mu.failed, e)
	}
	switch waits := e.waits(); {
	case waited && !waits:
		b.mu.waiting--
	case waits && !waited:
		b.mu.waiting++
	}
	return true
}

func (b *buckets) openTablet(ctx context.Context, e *bucket, t tabletTable) (*stream.Stream, *tablet.Log, error) {
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

func (b *buckets) tabletConfig(ref mink.BucketRef, epoch mink.LeaderEpoch, of tabletTable) (tablet.Config, error) {
	t := of.table
	o, err := t.Descriptor.ParsedOptions()
	if err != nil {
		return tablet.Config{}, fmt.Errorf("options of table %s.%s: %w", t.Descriptor.Database, t.Descriptor.Table, err)
	}
	cfg := tablet.Default()
	cfg.Bucket, cfg.LeaderEpoch, cfg.Schemas, cfg.Options = ref, epoch, t.Schemas, o
	cfg.Closed, cfg.Codecs = of.closed, &b.codecs
	if cfg.PrimaryKey = len(t.Descriptor.PrimaryKey) > 0; cfg.PrimaryKey && o.WALImage {
		cfg.Schemas = make([]*schema.Schema, len(t.Schemas))
		for i, s := range t.Schemas {
			cfg.Schemas[i] = tablet.ChangelogSchema(t.Descriptor, s, true)
		}
	}
	return cfg, nil
}

// close is safe on a bucket that is not open.
func (e *bucket) close() {
	if e.log != nil {
		e.log.Close()
	}
	if e.stream != nil {
		e.stream.Close()
	}
}

// missing says which led bucket is not open yet and will be, "" when none.
func (b *buckets) missing() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.waiting == 0 {
		return ""
	}
	if len(b.mu.failed) > 0 {
		if e := b.mu.failed[0]; b.mu.led[e.id] == e && e.waits() {
			return fmt.Sprintf("bucket %s: opening failed and is tried again: %v", e.ref, e.err)
		}
	}
	return fmt.Sprintf("%d of %d buckets are opening", b.mu.waiting, len(b.mu.led))
}

func (b *buckets) closeAll() {
	b.mu.Lock()
	all := b.mu.led
	b.mu.led = map[mink.StreamID]*bucket{}
	b.mu.closed = true
	b.mu.Unlock()
	b.jobs.cancel()
	for _, e := range all {
		b.end(e)
	}
	b.jobs.work.Wait()
}

// snapshot copies the buckets in the order of their refs.
func (b *buckets) snapshot() []*bucket {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*bucket, 0, len(b.mu.led))
	for _, e := range b.mu.led {
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
			if err := b.retainOne(ctx, e); err != nil && !errors.Is(err, mink.ErrClosed) { // closed: led elsewhere, or dropped
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

func (b *buckets) retainOne(ctx context.Context, e *bucket) error {
	ctx, cancel := context.WithTimeout(ctx, retainTimeout)
	defer cancel()
	now := time.Now().UnixMilli()
	to, err := e.log.RetentionPoint(ctx, now)
	if err != nil || to <= e.log.LogStart() {
		return err
	}
	if err := e.log.Trim(ctx, to); err != nil || e.log.LogStart() >= to {
		return err
	}
	return b.inc.node.giveUp(ctx, e, to, now)
}

func (b *buckets) stats() []BucketStats {
	var out []BucketStats
	for _, e := range b.snapshot() {
		s := BucketStats{Bucket: e.ref, Stream: e.id, LeaderEpoch: e.epoch}
		if err := cmp.Or(e.err, e.behind); err != nil {
			s.Error = err.Error()
		}
		if e.log != nil {
			s.LogStart, s.HighWatermark, s.LogEnd = e.log.LogStart(), e.log.HighWatermark(), e.log.LogEnd()
			s.Clean = e.log.CleanStats()
		}
		if e.kv.tablet != nil {
			kvs := e.kv.tablet.Stats()
			s.KV = &kvs
		} else if e.kv.err != nil {
			s.Error = e.kv.err.Error()
		}
		s.KVSnapshot = b.snapshotStats(e)
		s.HeldTrim = b.heldTrim(e)
		out = append(out, s)
	}
	return out
}
