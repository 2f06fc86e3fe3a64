package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Tablet is the open store of a primary-key bucket, and the way to write it. Safe
// for concurrent use.
//
// Lock order: turn, then mu; the gate, the numbers and the log's locks are leaves.
type Tablet struct {
	log      *tablet.Log
	cfg      Config
	bucket   mink.BucketRef
	store    *store
	changes  *tablet.Changelog
	settings atomic.Pointer[settings]
	ids      numbers
	gate     gate
	used     atomic.Int64 // ns, the last call
	meta     atomic.Pointer[meta]
	pending  atomic.Int64 // bytes of flights
	counts   counters

	// turn is held by whoever merges and appends: one put at a time, so that the order
	// of merges is the log's. Under it the store is read, nothing else is waited for.
	turn   chan struct{}
	before prewrite // the turn's
	work   turnWork // the turn's

	mu struct {
		sync.Mutex
		queue   []*flight   // appended and not flushed, in the log's order
		landed  []*flight   // flushed, still in before; in the log's order
		reads   []*incoming // puts that have read the store and not merged, by their marks
		failed  error       // why the tablet has ended by itself
		closing bool
		stopped bool // the flusher has ended
	}
	wake        chan struct{} // the queue was empty and is not
	stop        chan struct{} // closed when failed or closing are set
	flusher     chan struct{} // closed when it has ended
	checkpoints chan checkpointCall
}

type counters struct {
	puts, rows, changes, changelogBytes, duplicates, kept, refused, lookups, found atomic.Int64
}

// Stats is what a tablet tells of itself. Counts are since it opened.
type Stats struct {
	Flushed        mink.Offset // first offset whose change is not in the store
	Rows           int64       // -1: not counted
	Pending        int64       // bytes of puts that wait for the log
	Puts           int64       // taken, duplicates aside
	PutRows        int64
	Changes        int64 // rows of the changelog
	ChangelogBytes int64 // appended
	Duplicates     int64
	KeptBytes      int64 // of ChangelogBytes: sent bytes that were stored as they were
	Lookups, Found int64 // keys
	DiskBytes      int64 // of the store
}

// Stats answers a snapshot.
func (t *Tablet) Stats() Stats {
	m := t.meta.Load()
	s := Stats{
		Flushed: m.flushed, Rows: m.rows, Pending: t.pending.Load(), Puts: t.counts.puts.Load(), PutRows: t.counts.rows.Load(),
		Changes: t.counts.changes.Load(), ChangelogBytes: t.counts.changelogBytes.Load(), Duplicates: t.counts.duplicates.Load(),
		KeptBytes: t.counts.kept.Load(), Lookups: t.counts.lookups.Load(), Found: t.counts.found.Load(),
	}
	if t.gate.enter() == nil {
		defer t.gate.leave()
		s.DiskBytes = int64(t.store.db.Metrics().DiskSpaceUsage())
	}
	return s
}

// Bucket names the bucket.
func (t *Tablet) Bucket() mink.BucketRef { return t.bucket }

// Log is the bucket's log.
func (t *Tablet) Log() *tablet.Log { return t.log }

// VisibleHighWatermark is the first offset whose change cannot be looked up yet:
// where readers of the changelog end.
func (t *Tablet) VisibleHighWatermark() mink.Offset { return t.meta.Load().flushed }

// Changed is closed at the next advance of VisibleHighWatermark. Take it before
// looking at what it guards.
func (t *Tablet) Changed() <-chan struct{} { return t.log.Changed() }

// Reconfigure takes over the table after it was altered. Puts under a schema version
// that is not here yet answer mink.ErrUnavailable. It does not wait.
func (t *Tablet) Reconfigure(table Table) error {
	s, err := compile(table)
	if err != nil {
		return fmt.Errorf("bucket %s: %w", t.bucket, err)
	}
	t.settings.Store(s)
	return nil
}

// Idle is for how many nanoseconds nothing was asked of the tablet; 0 while something
// is under way.
func (t *Tablet) Idle() int64 {
	t.mu.Lock()
	waits := len(t.mu.queue) > 0
	t.mu.Unlock()
	if waits || t.gate.busy() || len(t.turn) > 0 {
		return 0
	}
	return max(t.cfg.Now().UnixNano()-t.used.Load(), 0)
}

// Touch makes the tablet as little idle as a call does.
func (t *Tablet) Touch() { t.used.Store(t.cfg.Now().UnixNano()) }

// Err is why the tablet has ended by itself, nil while it has not: mink.ErrCorrupt
// (its directory is not to be used again), mink.ErrFenced, ...
func (t *Tablet) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.failed
}

// usable says why a call is refused.
func (t *Tablet) usable() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.mu.failed != nil:
		return fmt.Errorf("bucket %s: its store has closed: %w", t.bucket, t.mu.failed)
	case t.mu.closing:
		return fmt.Errorf("bucket %s: its store: %w", t.bucket, mink.ErrClosed)
	}
	return nil
}

// enter begins a read.
func (t *Tablet) enter() error {
	if err := t.usable(); err != nil {
		return err
	}
	t.Touch()
	if err := t.gate.enter(); err != nil {
		return fmt.Errorf("bucket %s: its store: %w", t.bucket, err)
	}
	return nil
}

// fail ends the tablet: nothing is flushed any more. It may be called from anywhere,
// and does not wait.
func (t *Tablet) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.failed != nil {
		return
	}
	t.mu.failed = err
	if !t.mu.closing {
		close(t.stop)
	}
}

// broken ends the tablet when err says that stored bytes are damaged.
func (t *Tablet) broken(err error) error {
	if errors.Is(err, mink.ErrCorrupt) {
		t.fail(err)
	}
	return err
}

// Close ends the tablet and waits for it: puts whose changes are durable are
// answered, the others learn that their outcome is not known. Views end. The
// directory stays, for the next tablet of this leadership. It does not close the log,
// which is the caller's and is closed afterwards.
func (t *Tablet) Close() error {
	t.mu.Lock()
	if t.mu.closing {
		t.mu.Unlock()
		<-t.flusher
		return nil
	}
	t.mu.closing = true
	if t.mu.failed == nil {
		close(t.stop)
	}
	t.mu.Unlock()
	t.turn <- struct{}{} // the put that is under way has its place; never given back
	<-t.flusher
	t.gate.close()
	t.changes.Close()
	if err := t.store.close(); err != nil {
		return fmt.Errorf("close store of bucket %s: %w", t.bucket, err)
	}
	return nil
}

// gate counts the calls that use the store.
type gate struct {
	mu     sync.Mutex
	n      int
	closed bool
	empty  chan struct{}
	views  map[*View]struct{}
}

func (g *gate) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return mink.ErrClosed
	}
	g.n++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.closed {
		close(g.empty)
	}
}

func (g *gate) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n > 0 || len(g.views) > 0
}

// close refuses further calls, waits for those under way and ends the views.
func (g *gate) close() {
	g.mu.Lock()
	g.closed, g.empty = true, make(chan struct{})
	if g.n == 0 {
		close(g.empty)
	}
	g.mu.Unlock()
	<-g.empty
	g.mu.Lock()
	views := g.views
	g.views = nil
	g.mu.Unlock()
	for v := range views {
		v.end()
	}
}

// checkpointCall asks the flusher for a checkpoint.
type checkpointCall struct {
	dir    string
	answer chan checkpointAnswer
}

type checkpointAnswer struct {
	cp  Checkpoint
	err error
}

// Checkpoint makes a copy of the store in dir, which must not exist, as of an offset
// between two flushes; its table files are hard links. Puts are not answered
// meanwhile. ctx bounds the wait for its turn.
func (t *Tablet) Checkpoint(ctx context.Context, dir string) (Checkpoint, error) {
	if err := t.usable(); err != nil {
		return Checkpoint{}, err
	}
	call := checkpointCall{dir, make(chan checkpointAnswer, 1)}
	select {
	case t.checkpoints <- call:
	case <-ctx.Done():
		return Checkpoint{}, fmt.Errorf("checkpoint of bucket %s: %w", t.bucket, context.Cause(ctx))
	case <-t.flusher:
		if err := t.usable(); err != nil {
			return Checkpoint{}, err
		}
		return Checkpoint{}, fmt.Errorf("checkpoint of bucket %s: %w", t.bucket, mink.ErrClosed)
	}
	a := <-call.answer
	if a.err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint of bucket %s: %w", t.bucket, t.broken(a.err))
	}
	return a.cp, nil
}

// Schema is the current version of the table's columns, as the tablet knows it.
func (t *Tablet) Schema() *schema.Schema { return t.settings.Load().current }
