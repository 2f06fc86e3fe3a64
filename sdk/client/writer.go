package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

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
	s  *sender
	to *target
}

// NewWriter opens a writer on "database.table", a log table, with a fresh writer
// id. ctx bounds the opening only. Close it.
func (c *Client) NewWriter(ctx context.Context, table string, cfg WriterConfig) (*Writer, error) {
	t, err := c.openTable(ctx, table)
	if err != nil {
		return nil, err
	}
	if len(t.desc.PrimaryKey) > 0 {
		return nil, fmt.Errorf("%w writer: table %s has a primary key: rows are upserted and deleted; use NewUpsertWriter", mink.ErrInvalid, table)
	}
	s, err := c.newSender(ctx, "append to", t, cfg)
	if err != nil {
		return nil, err
	}
	return &Writer{s: s, to: appends(t)}, nil
}

// appends is the target of a log table's rows.
func appends(t *tableView) *target {
	return &target{
		arrow: t.arrow,
		command: func(ref mink.BucketRef, w api.Writer) api.Command {
			return api.Command{Append: &api.Append{Bucket: ref, SchemaID: t.desc.Schema.ID, WriterID: w.WriterID, WriterEpoch: w.Epoch}}
		},
		metadata: func(s *sequenced) any { return api.AppendMetadata{Sequence: s.sequence} },
	}
}

// Schema is the table's Arrow schema that this writer writes.
func (w *Writer) Schema() *arrow.Schema { return w.to.arrow }

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
	return w.s.send(ctx, rec, w.to, false)
}

// Flush waits until everything handed over so far is durable, and answers the
// first error of what was handed over since the last Flush: also of an append
// that has failed before, or whose Wait has told.
func (w *Writer) Flush(ctx context.Context) error { return w.s.flush(ctx) }

// Close flushes for as long as ctx lets it, then ends the writer; what is not
// durable by then fails with mink.ErrUnknownOutcome.
func (w *Writer) Close(ctx context.Context) error { return w.s.close(ctx) }

// align answers rec with the table's columns in the table's order, retained.
func (w *Writer) align(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	if rec.Schema().Equal(w.to.arrow) {
		rec.Retain()
		return rec, nil
	}
	m, err := w.s.table.desc.Schema.MatchArrow(rec.Schema())
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", w.s.verb, w.s.table.name, err)
	}
	return project(w.s.cfg.Allocator, rec, w.to.arrow, m.Columns)
}
