package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// target is what one DoPut stream of a bucket takes: which columns, as what.
type target struct {
	arrow    *arrow.Schema
	command  func(mink.BucketRef, api.Writer) api.Command // the stream's descriptor
	metadata func(*sequenced) any                         // a batch's app_metadata
}

// sender is what writers share: it splits rows by partition and bucket, bounds
// what is on its way, and keeps one appender for each bucket.
//
//	Writer, UpsertWriter -> sender.send -> router -> appender, one per bucket -> DoPut
type sender struct {
	verb   string // begins errors: "append to"
	table  *tableView
	cfg    WriterConfig
	writer api.Writer // of buckets that did not fail yet
	budget *semaphore.Weighted
	ctx    context.Context // of the background sends; ends with close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		turn      uint32
		appenders map[mink.BucketRef]*appender
		pending   map[*Append]struct{}
		failed    error // first since flush was last asked
		closed    bool
	}
}

// newSender makes a sender with a fresh writer id.
func (c *Client) newSender(ctx context.Context, verb string, t *tableView, cfg WriterConfig) (*sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	id, err := c.InitWriter(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a writer on %s: %w", t.name, err)
	}
	return senderOf(ctx, verb, t, cfg, id), nil
}

func senderOf(ctx context.Context, verb string, t *tableView, cfg WriterConfig, id api.Writer) *sender {
	w := &sender{verb: verb, table: t, cfg: cfg, writer: id, budget: semaphore.NewWeighted(cfg.PendingBytesMax)}
	w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	w.mu.appenders = map[mink.BucketRef]*appender{}
	w.mu.pending = map[*Append]struct{}{}
	return w
}

// send hands rows in the target's columns over; it retains them. It waits only
// for room.
func (w *sender) send(ctx context.Context, rec arrow.RecordBatch, to *target, deletes bool) (*Append, error) {
	for i, f := range to.arrow.Fields() { // a node refuses the whole batch, with what others wrote
		if n := rec.Column(i).NullN(); n > 0 && !f.Nullable {
			return nil, fmt.Errorf("%s %s: %w batch: column %q is NOT NULL and has %d nulls", w.verb, w.table.name, mink.ErrInvalid, f.Name, n)
		}
	}
	a := &Append{done: make(chan struct{}), rows: rec.NumRows(), bytes: recordBytes(rec)}
	if a.rows == 0 {
		close(a.done)
		return a, nil
	}
	hold := min(a.bytes, w.cfg.PendingBytesMax)
	a.bytes = hold
	if err := w.budget.Acquire(ctx, hold); err != nil {
		return nil, err
	}
	if err := w.enqueue(ctx, rec, to, deletes, a); err != nil {
		w.budget.Release(hold)
		return nil, err
	}
	return a, nil
}

func (w *sender) enqueue(ctx context.Context, rec arrow.RecordBatch, to *target, deletes bool, a *Append) error {
	w.mu.Lock()
	turn := w.mu.turn
	w.mu.turn++
	w.mu.Unlock()
	parts, err := w.table.router.Split(w.cfg.Allocator, rec, turn)
	if err != nil {
		return err
	}
	if parts, err = cutParts(parts, w.table.limit); err != nil {
		return err
	}
	release := func() {
		for _, p := range parts {
			p.Rows.Release()
		}
	}
	refs := make([]mink.BucketRef, len(parts))
	for i, p := range parts {
		partition, err := w.table.partition(ctx, p.Values)
		if err != nil {
			release()
			return err
		}
		refs[i] = mink.BucketRef{Table: w.table.id, Partition: partition.ID, Index: p.Bucket}
	}
	a.parts = len(parts)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		release()
		return fmt.Errorf("writer of %s: %w", w.table.name, mink.ErrClosed)
	}
	w.mu.pending[a] = struct{}{}
	for i, p := range parts {
		w.appenderLocked(refs[i]).push(waiting{rows: p.Rows, bytes: recordBytes(p.Rows), to: to, deletes: deletes, of: a, since: time.Now()})
	}
	return nil
}

func (w *sender) appenderLocked(ref mink.BucketRef) *appender {
	if p, ok := w.mu.appenders[ref]; ok {
		return p
	}
	p := newAppender(w, ref)
	w.mu.appenders[ref] = p
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		p.run(w.ctx)
	}()
	return p
}

// finish records the outcome of one part of an append.
func (w *sender) finish(a *Append, err error) {
	a.mu.Lock()
	if err != nil {
		a.errs = append(a.errs, err)
	}
	a.parts--
	last := a.parts == 0
	a.mu.Unlock()
	if !last {
		return
	}
	w.budget.Release(a.bytes)
	w.mu.Lock()
	delete(w.mu.pending, a)
	if w.mu.failed == nil && len(a.errs) > 0 {
		w.mu.failed = a.errs[0]
	}
	w.mu.Unlock()
	close(a.done)
}

// flush waits until everything handed over so far has an outcome, and answers the
// first error since it was last asked.
func (w *sender) flush(ctx context.Context) error {
	w.mu.Lock()
	waits := make([]*Append, 0, len(w.mu.pending))
	for a := range w.mu.pending {
		waits = append(waits, a)
	}
	w.mu.Unlock()
	for _, a := range waits {
		select {
		case <-a.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.mu.failed
	w.mu.failed = nil
	return err
}

func (w *sender) close(ctx context.Context) error {
	err := w.flush(ctx)
	w.mu.Lock()
	w.mu.closed = true
	w.mu.Unlock()
	w.cancel(fmt.Errorf("writer of %s: %w", w.table.name, mink.ErrClosed))
	w.wg.Wait()
	return err
}
