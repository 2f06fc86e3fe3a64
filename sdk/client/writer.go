package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// WriterConfig tunes a writer.
type WriterConfig struct {
	// PendingBytesMax bounds the rows that were handed over and are not durable;
	// Append waits when it is reached. Default 64 MiB.
	PendingBytesMax int64
	// BatchBytes is how far rows that wait for one bucket are put together into
	// one batch while earlier batches are on their way. Default 1 MiB.
	BatchBytes int64
	// InFlightMax is how many batches of one bucket are on their way; the server
	// remembers five. 1 .. 5, default 5.
	InFlightMax int
	// Allocator for split and joined batches. Default the Go heap.
	Allocator memory.Allocator
}

// DefaultWriter is a writer for throughput and latency both: a lone batch is
// sent at once, batches fill under load.
func DefaultWriter() WriterConfig {
	return WriterConfig{PendingBytesMax: 64 << 20, BatchBytes: 1 << 20, InFlightMax: 5, Allocator: memory.DefaultAllocator}
}

// Validate names the first field that makes no sense.
func (c WriterConfig) Validate() error {
	if c.PendingBytesMax < 1 || c.BatchBytes < 1 || c.InFlightMax < 1 || c.InFlightMax > 5 || c.Allocator == nil {
		return fmt.Errorf("client: PendingBytesMax and BatchBytes must be positive, InFlightMax within 1..5, Allocator set: %w", mink.ErrInvalid)
	}
	return nil
}

// Writer appends to a log table, idempotently: each batch is written once and
// in order per bucket, whatever has to be sent again. Safe for concurrent use.
type Writer struct {
	table  *tableView
	cfg    WriterConfig
	writer api.Writer // of buckets that did not fail yet
	budget *semaphore.Weighted
	ctx    context.Context // of the background sends; ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		turn      uint32
		appenders map[mink.BucketRef]*appender
		pending   map[*Append]struct{}
		failed    error // first since Flush was last asked
		closed    bool
	}
}

// NewWriter opens a writer on "database.table" with a fresh writer id. ctx
// bounds the opening only. Close it.
func (c *Client) NewWriter(ctx context.Context, table string, cfg WriterConfig) (*Writer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t, err := c.openTable(ctx, table)
	if err != nil {
		return nil, err
	}
	if len(t.desc.PrimaryKey) > 0 {
		return nil, fmt.Errorf("table %s has a primary key; upserts are not supported yet: %w", table, mink.ErrUnsupported)
	}
	id, err := c.InitWriter(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a writer on %s: %w", table, err)
	}
	return newWriter(ctx, t, cfg, id), nil
}

func newWriter(ctx context.Context, t *tableView, cfg WriterConfig, id api.Writer) *Writer {
	w := &Writer{table: t, cfg: cfg, writer: id, budget: semaphore.NewWeighted(cfg.PendingBytesMax)}
	w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	w.mu.appenders = map[mink.BucketRef]*appender{}
	w.mu.pending = map[*Append]struct{}{}
	return w
}

// Schema is the table's Arrow schema that this writer writes.
func (w *Writer) Schema() *arrow.Schema { return w.table.arrow }

// Append is rows on their way.
type Append struct {
	done  chan struct{}
	parts int
	rows  int64
	bytes int64

	mu   sync.Mutex
	errs []error
}

// Done is closed once the outcome is known.
func (a *Append) Done() <-chan struct{} { return a.done }

// Wait answers nil when every row is durable. After an error rows of other
// buckets may have been written all the same.
func (a *Append) Wait(ctx context.Context) error {
	select {
	case <-a.done:
		a.mu.Lock()
		defer a.mu.Unlock()
		return errors.Join(a.errs...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Append hands rows over; their schema must be the table's by column names and
// types. It waits only for room (PendingBytesMax). The record is retained until
// its rows are durable; the caller may release its own reference at once.
func (w *Writer) Append(ctx context.Context, rec arrow.RecordBatch) (*Append, error) {
	rec, err := w.align(rec)
	if err != nil {
		return nil, err
	}
	defer rec.Release()
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
	if err := w.enqueue(ctx, rec, a); err != nil {
		w.budget.Release(hold)
		return nil, err
	}
	return a, nil
}

func (w *Writer) enqueue(ctx context.Context, rec arrow.RecordBatch, a *Append) error {
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
		w.appenderLocked(refs[i]).push(p, a)
	}
	return nil
}

func (w *Writer) appenderLocked(ref mink.BucketRef) *appender {
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
func (w *Writer) finish(a *Append, err error) {
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

// Flush waits until everything handed over so far is durable, and answers the
// first error of what was handed over since the last Flush: also of an append
// that has failed before, or whose Wait has told.
func (w *Writer) Flush(ctx context.Context) error {
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

// Close flushes for as long as ctx lets it, then ends the writer; what is not
// durable by then fails with mink.ErrUnknownOutcome.
func (w *Writer) Close(ctx context.Context) error {
	err := w.Flush(ctx)
	w.mu.Lock()
	w.mu.closed = true
	w.mu.Unlock()
	w.cancel(fmt.Errorf("writer of %s: %w", w.table.name, mink.ErrClosed))
	w.wg.Wait()
	return err
}

// align answers rec with the table's columns in the table's order, retained.
func (w *Writer) align(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	if rec.Schema().Equal(w.table.arrow) {
		rec.Retain()
		return rec, nil
	}
	m, err := w.table.desc.Schema.MatchArrow(rec.Schema())
	if err != nil {
		return nil, fmt.Errorf("append to %s: %w", w.table.name, err)
	}
	return project(w.cfg.Allocator, rec, w.table.arrow, m.Columns)
}
