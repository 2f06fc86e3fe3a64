package flight

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// reader turns one bucket's log into FlightData. Its schema is the table's as of
// its opening. Not for concurrent use.
type reader struct {
	service *service
	bucket  mink.BucketRef
	log     Log
	send    func(*flight.FlightData) error

	opened   *schema.Schema // version at the opening, all columns
	target   *schema.Schema // the columns asked for
	arrow    *arrow.Schema  // of target, and of meta
	raw      bool
	meta     bool
	versions map[mink.SchemaID]*version
	none     *flight.FlightData // header and body of zero rows; nil: not made yet

	next  mink.Offset // first offset that was not sent
	until mink.Offset // exclusive
	left  int64       // rows that may still be sent
}

// version is how batches of one schema version become the reader's.
type version struct {
	columns []int // places of the batch's columns that are read; nil: all
	plan    *evolve.Plan
	same    bool // they are sent as they are stored
}

const (
	noEnd   = mink.Offset(1<<63 - 1)
	noLimit = int64(1<<63 - 1)
)

// openReader checks a scan and finds its bucket.
func (s *service) openReader(scan *api.Scan, send func(*flight.FlightData) error) (*reader, error) {
	switch {
	case scan.From < 0:
		return nil, fmt.Errorf("%w: scan: from is %d, offsets start at 0", mink.ErrInvalid, scan.From)
	case scan.Until != nil && *scan.Until < 0:
		return nil, fmt.Errorf("%w: scan: until is %d, offsets start at 0", mink.ErrInvalid, *scan.Until)
	case scan.Limit < 0 || scan.MinBytes < 0 || scan.MaxWaitMs < 0:
		return nil, fmt.Errorf("%w: scan: limit, min_bytes and max_wait_ms are not negative", mink.ErrInvalid)
	}
	log, err := s.backend.Log(scan.Bucket)
	if err != nil {
		return nil, err
	}
	hw := log.HighWatermark()
	if scan.From > hw {
		return nil, fmt.Errorf("scan bucket %s: %w", scan.Bucket, &mink.OutOfRangeError{Asked: scan.From, Start: log.LogStart(), End: hw})
	}
	t, ok := s.backend.View().Table(scan.Bucket.Table) // not older than what hw covers
	if !ok {
		return nil, fmt.Errorf("table %d %w", scan.Bucket.Table, mink.ErrNotExist)
	}
	target, as, err := logSchema(t, scan.Columns, scan.Meta)
	if err != nil {
		return nil, fmt.Errorf("scan: %w", err)
	}
	r := &reader{
		service: s, bucket: scan.Bucket, log: log, send: send, opened: current(t), target: target, arrow: as, raw: scan.Raw, meta: scan.Meta,
		versions: map[mink.SchemaID]*version{}, next: scan.From, until: noEnd, left: noLimit,
	}
	if scan.Until != nil {
		r.until = *scan.Until
	}
	if scan.Limit > 0 {
		r.left = scan.Limit
	}
	return r, nil
}

// logSchema is what rows of a log have: the columns asked for, and with meta three
// more. In a changelog of image wal a deleted row has its key only: there the other
// columns may be null, NOT NULL or not.
func logSchema(t *cluster.Table, columns []string, meta bool) (*schema.Schema, *arrow.Schema, error) {
	target, err := projection(current(t), columns)
	if err != nil {
		return nil, nil, err
	}
	o, err := t.Descriptor.ParsedOptions()
	if err != nil {
		return nil, nil, err
	}
	if hasKey(t) {
		target = tablet.ChangelogSchema(t.Descriptor, target, o.WALImage)
	}
	as := target.Arrow()
	if meta {
		as = arrow.NewSchema(append(as.Fields(), metaFields...), nil)
	}
	return target, as, nil
}

// metaFields are the columns that a scan adds with meta.
var metaFields = []arrow.Field{
	{Name: api.ColumnChange, Type: arrow.BinaryTypes.String},
	{Name: api.ColumnOffset, Type: arrow.PrimitiveTypes.Int64},
	{Name: api.ColumnTimestamp, Type: &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}},
}

// begin sends the schema.
func (r *reader) begin() error {
	return r.send(&flight.FlightData{DataHeader: wire.SchemaMessage(r.arrow)})
}

func (r *reader) done() bool { return r.next >= r.until || r.left <= 0 }

// result sends a run of batches.
func (r *reader) result(ctx context.Context, res *tablet.ReadResult) error {
	for _, b := range res.Batches {
		if r.done() {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.batch(b, res.HighWatermark); err != nil {
			return err
		}
	}
	if end := min(res.Next, r.until); end > r.next && !r.done() { // offsets that nothing is at
		return r.empty(api.BatchMetadata{Base: r.next, Last: end - 1, Next: end, SchemaID: r.opened.ID, HighWatermark: res.HighWatermark})
	}
	return nil
}

func (r *reader) batch(b record.Batch, hw mink.Offset) error {
	first, end := max(b.BaseOffset(), r.next), min(b.NextOffset(), r.until)
	if first >= end {
		return nil
	}
	meta := api.BatchMetadata{
		Base: first, Last: end - 1, Next: end, CommitTimestamp: b.CommitTimestamp(), SchemaID: b.SchemaID(), HighWatermark: hw,
	}
	if b.Count() == 0 {
		return r.empty(meta)
	}
	v, err := r.version(b.SchemaID())
	if err != nil {
		return fmt.Errorf("scan bucket %s at offset %d: %w", r.bucket, first, err)
	}
	whole := first == b.BaseOffset() && end == b.NextOffset() && int64(b.Count()) <= r.left
	if whole && v.same && !r.meta && b.Encoding() == record.EncodingArrow {
		meta.Changes = b.Changes()
		cut, err := r.log.Message(b, v.columns)
		if err != nil {
			meta.Changes = nil
			return r.skip(meta, err)
		}
		return r.emit(meta, cut.Metadata, joinBody(cut), int64(b.Count()))
	}
	rows, gaps, err := r.rows(b, v)
	if err != nil {
		return r.skip(meta, err)
	}
	defer rows.Release()
	if len(gaps) > 0 && gaps[0].Why != "" {
		r.service.log.Warn("scan skips records that are no rows", "bucket", r.bucket.String(), "ranges", len(gaps), "first_offset", gaps[0].First, "why", gaps[0].Why)
	}
	for _, q := range gaps {
		if err := r.gap(b, meta, rows, q); err != nil || r.done() {
			return err
		}
	}
	return r.part(b, meta, rows, end)
}

// gap sends the rows before a range of offsets that have none, and reports it, unless a
// cleaning took the records and others of the batch follow: their message says enough.
func (r *reader) gap(b record.Batch, meta api.BatchMetadata, rows arrow.RecordBatch, q tablet.Quarantined) error {
	first, last := max(q.First, r.next), min(q.Last, meta.Next-1)
	if first > last {
		return nil
	}
	if err := r.part(b, meta, rows, first); err != nil || r.left <= 0 {
		return err
	}
	if q.Why == "" && last+1 < meta.Next {
		r.next = last + 1
		return nil
	}
	meta.Base, meta.Last, meta.Next, meta.Quarantined = first, last, last+1, q.Why
	return r.empty(meta)
}

// part sends the rows of b from where the reader is to end.
func (r *reader) part(b record.Batch, meta api.BatchMetadata, rows arrow.RecordBatch, end mink.Offset) error {
	first := max(b.BaseOffset(), r.next)
	if first >= end {
		return nil
	}
	meta.Base, meta.Last, meta.Next = first, end-1, end
	// One row per offset, from the batch's base.
	from := min(int64(first-b.BaseOffset()), rows.NumRows())
	to := min(int64(end-b.BaseOffset()), rows.NumRows())
	if to-from > r.left { // the limit cuts here
		to = from + r.left
		meta.Next = b.BaseOffset() + mink.Offset(to)
		meta.Last = meta.Next - 1
	}
	if c := b.Changes(); c != nil { // as many as there are rows
		meta.Changes = c[from:to]
	}
	part := rows.NewSlice(from, to)
	defer part.Release()
	if r.meta {
		with := r.withMeta(meta, part)
		defer with.Release()
		return r.encode(meta, with)
	}
	return r.encode(meta, part)
}

// withMeta adds the columns of meta to rows.
func (r *reader) withMeta(meta api.BatchMetadata, rows arrow.RecordBatch) arrow.RecordBatch {
	b := array.NewRecordBuilder(allocator, arrow.NewSchema(metaFields, nil))
	defer b.Release()
	change := mink.ChangeAppend
	for i := range int(rows.NumRows()) {
		if meta.Changes != nil {
			change = mink.Change(meta.Changes[i])
		}
		b.Field(0).(*array.StringBuilder).Append(change.String())
		b.Field(1).(*array.Int64Builder).Append(int64(meta.Base) + int64(i))
		b.Field(2).(*array.TimestampBuilder).Append(arrow.Timestamp(meta.CommitTimestamp))
	}
	added := b.NewRecordBatch()
	defer added.Release()
	return array.NewRecordBatch(r.arrow, slices.Concat(rows.Columns(), added.Columns()), rows.NumRows())
}

// rows decodes a batch to the reader's schema, with places for gaps.
func (r *reader) rows(b record.Batch, v *version) (rows arrow.RecordBatch, gaps []tablet.Quarantined, err error) {
	stored, gaps, err := r.log.Rows(b, v.columns)
	if err != nil {
		return nil, nil, err
	}
	defer stored.Release()
	rows, err = v.plan.Remap(allocator, stored)
	if err != nil { // the same for every reader: skipped as a batch that cannot be decoded is
		return nil, nil, &tablet.QuarantineError{Bucket: r.bucket, First: b.BaseOffset(), Last: b.LastOffset(), Why: err.Error()}
	}
	return rows, gaps, nil
}

// skip reports a batch that cannot be decoded and goes on after it.
func (r *reader) skip(meta api.BatchMetadata, err error) error {
	var bad *tablet.QuarantineError
	if !errors.As(err, &bad) {
		return err
	}
	r.service.log.Warn("scan skips a batch", "bucket", r.bucket.String(), "first_offset", bad.First, "last_offset", bad.Last, "why", bad.Why)
	meta.Quarantined = bad.Why
	return r.empty(meta)
}

// version compiles what to do with batches of one schema version.
func (r *reader) version(id mink.SchemaID) (*version, error) {
	if v, ok := r.versions[id]; ok {
		return v, nil
	}
	if r.raw && id != r.opened.ID {
		return nil, fmt.Errorf("%w: raw: the batch was written under schema %d, the current one is %d", mink.ErrInvalid, id, r.opened.ID)
	}
	t, ok := r.service.backend.View().Table(r.bucket.Table)
	if !ok || id < 1 || int(id) > len(t.Schemas) {
		return nil, fmt.Errorf("schema %d is not known here yet: %w", id, mink.ErrUnavailable)
	}
	stored := t.Schemas[id-1]
	v := &version{}
	read := &schema.Schema{ID: stored.ID}
	for _, c := range r.target.Columns {
		if i := stored.IndexByID(c.ID); i >= 0 {
			v.columns = append(v.columns, i)
			read.Columns = append(read.Columns, stored.Columns[i])
		}
	}
	var err error
	if v.plan, err = evolve.NewPlan(read, r.target); err != nil {
		if id > r.opened.ID {
			return nil, fmt.Errorf("the table was altered to schema %d, which this reader's schema %d does not fit; open it anew: %w", id, r.opened.ID, mink.ErrUnavailable)
		}
		return nil, err
	}
	v.same = v.plan.Same()
	if v.columns == nil {
		v.columns = []int{} // only added columns: the row count remains
	}
	if inOrder(v.columns) && len(v.columns) == len(stored.Columns) {
		v.columns = nil
	}
	r.versions[id] = v
	return v, nil
}

func inOrder(columns []int) bool {
	for i, c := range columns {
		if c != i {
			return false
		}
	}
	return true
}

// encode sends rows, in halves when they do not fit into one message.
func (r *reader) encode(meta api.BatchMetadata, rows arrow.RecordBatch) error {
	header, body, err := arrowipc.Encode(rows)
	if err != nil {
		return fmt.Errorf("scan bucket %s at offset %d: %w", r.bucket, meta.Base, err)
	}
	n := rows.NumRows()
	if len(header)+len(body) <= r.service.cfg.batchBytesMax() || n < 2 {
		return r.emit(meta, header, body, n)
	}
	head, tail := meta, meta
	head.Next = meta.Base + mink.Offset(n/2)
	head.Last, tail.Base = head.Next-1, head.Next
	if meta.Changes != nil {
		head.Changes, tail.Changes = meta.Changes[:n/2], meta.Changes[n/2:]
	}
	for _, half := range []struct {
		meta     api.BatchMetadata
		from, to int64
	}{{head, 0, n / 2}, {tail, n / 2, n}} {
		part := rows.NewSlice(half.from, half.to)
		err := r.encode(half.meta, part)
		part.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// empty sends no rows: only the metadata counts.
func (r *reader) empty(meta api.BatchMetadata) error {
	if r.none == nil {
		rows := noRows(r.arrow)
		defer rows.Release()
		header, body, err := arrowipc.Encode(rows)
		if err != nil {
			return err
		}
		r.none = &flight.FlightData{DataHeader: header, DataBody: body}
	}
	return r.emit(meta, r.none.DataHeader, r.none.DataBody, 0)
}

func (r *reader) emit(meta api.BatchMetadata, header, body []byte, rows int64) error {
	if err := r.send(&flight.FlightData{DataHeader: header, DataBody: body, AppMetadata: api.JSON(meta)}); err != nil {
		return err
	}
	r.service.metrics.RecordBytes(0, len(header)+len(body))
	r.next = meta.Next
	r.left -= rows
	return nil
}
