package flight

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/union"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// selection is the columns and the filter of a read.
type selection struct {
	target *schema.Schema // the table's newest version
	out    *schema.Schema // the columns asked for
	ids    []mink.FieldID
	filter *predicate.Expr // nil: all rows
}

func newSelection(t *cluster.Table, columns []string, filter string) (*selection, error) {
	sel := &selection{target: current(t)}
	var err error
	if sel.out, err = projection(sel.target, columns); err != nil {
		return nil, err
	}
	for _, c := range sel.out.Columns {
		sel.ids = append(sel.ids, c.ID)
	}
	if filter == "" {
		return sel, nil
	}
	if sel.filter, err = predicate.Parse(filter); err == nil {
		_, err = sel.filter.Bind(sel.target)
	}
	return sel, err
}

// readLake sends the rows of a Lake: here, whoever leads the bucket.
func (s *service) readLake(ctx context.Context, read *api.Lake, send func(*flight.FlightData) error) error {
	view := s.backend.View()
	t, ok := view.Table(read.Table)
	if !ok {
		return fmt.Errorf("lake: table %d %w", read.Table, mink.ErrNotExist)
	}
	if read.Limit < 0 || read.Bucket != nil && (read.Bucket.Table != read.Table || len(read.WithoutPartitions) > 0) {
		return fmt.Errorf("%w: lake: limit is not negative, and bucket is one of the table's and stands without without_partitions", mink.ErrInvalid)
	}
	sel, err := newSelection(t, read.Columns, read.Filter)
	if err != nil {
		return fmt.Errorf("lake: %w", err)
	}
	snapshot, err := s.openLake(ctx, view, t, read.Snapshot)
	if err != nil {
		return err
	}
	wanted := func(b mink.BucketRef) bool { return !slices.Contains(read.WithoutPartitions, b.Partition) }
	if read.Bucket != nil {
		wanted = func(b mink.BucketRef) bool { return b == *read.Bucket }
	}
	rows := snapshot.Read(ctx, scan.Read{Target: sel.target, Columns: sel.ids, Filter: sel.filter, Buckets: wanted, BatchRows: viewRowsMax, DeleteBytes: deleteShare * s.cfg.UnionKeyBytes})
	return s.sendRows(rows, sel.out, -1, read.Limit, send)
}

// deleteShare is how many times Config.UnionKeyBytes the lake's equality deletes may take.
const deleteShare = 4

func (s *service) openLake(ctx context.Context, view *cluster.State, t *cluster.Table, snapshot string) (*scan.Snapshot, error) {
	opener, err := s.lakeOpener()
	if err != nil {
		return nil, err
	}
	return opener.Open(ctx, layoutOf(view, t), snapshot)
}

// readUnion sends the rows of a Union, at the bucket's leader.
func (s *service) readUnion(ctx context.Context, read *api.Union, send func(*flight.FlightData) error) error {
	if read.Limit < 0 || read.LakeEnd < 0 || read.Until < read.LakeEnd {
		return fmt.Errorf("%w: union: limit and lake_end are not negative, until is not below lake_end", mink.ErrInvalid)
	}
	log, err := s.backend.Log(read.Bucket)
	if err != nil {
		return err
	}
	if hw := log.HighWatermark(); read.Until > hw {
		return fmt.Errorf("union of bucket %s: %w", read.Bucket, &mink.OutOfRangeError{Asked: read.Until, Start: log.LogStart(), End: hw})
	}
	view := s.backend.View()
	t, ok := view.Table(read.Bucket.Table) // not older than what the log has
	if !ok {
		return fmt.Errorf("table %d %w", read.Bucket.Table, mink.ErrNotExist)
	}
	if read.LakeSnapshot == "" && hasKey(t) {
		return s.readRows(ctx, &api.Ticket{Snapshot: &api.Snapshot{Bucket: read.Bucket, Columns: read.Columns, Filter: read.Filter, Limit: read.Limit}}, send)
	}
	sel, err := newSelection(t, read.Columns, read.Filter)
	if err != nil {
		return fmt.Errorf("union: %w", err)
	}
	u := union.Read{
		Descriptor: t.Descriptor, Target: sel.target, Bucket: read.Bucket, Columns: sel.ids, Filter: sel.filter,
		Until: read.Until, KeyBytes: s.cfg.UnionKeyBytes, Tail: s.tailOf(t, read.Bucket, log),
	}
	if u.From, err = union.CheckTail(view, read.Bucket, read.LakeSnapshot, read.LakeEnd, log.LogStart()); err != nil {
		return err
	}
	if read.LakeSnapshot != "" {
		snapshot, err := s.openLake(ctx, view, t, read.LakeSnapshot)
		if err != nil {
			return err
		}
		u.Lake = func(ctx context.Context, target *schema.Schema, columns []mink.FieldID, filter *predicate.Expr) iter.Seq2[arrow.RecordBatch, error] {
			return snapshot.Read(ctx, scan.Read{
				Target: target, Columns: columns, Filter: filter, BatchRows: viewRowsMax, DeleteBytes: deleteShare * s.cfg.UnionKeyBytes,
				Buckets: func(b mink.BucketRef) bool { return b == read.Bucket },
			})
		}
	}
	if hasKey(t) { // it holds keys in memory
		select {
		case s.unions <- struct{}{}:
			defer func() { <-s.unions }()
		case <-s.stopping:
			return errStopping
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.leaderError(read.Bucket, s.sendRows(u.Rows(ctx), sel.out, read.Until, read.Limit, send))
}

// sendRows sends rows that have no offsets.
func (s *service) sendRows(rows iter.Seq2[arrow.RecordBatch, error], as *schema.Schema, logOffset mink.Offset, limit int64, send func(*flight.FlightData) error) error {
	out := &rowSender{service: s, arrow: as.Arrow(), send: send}
	metadata := api.JSON(api.SnapshotMetadata{LogOffset: logOffset, SchemaID: as.ID})
	out.metadata = func(bool) []byte { return metadata }
	if err := out.begin(); err != nil {
		return err
	}
	left := noLimit
	if limit > 0 {
		left = limit
	}
	for batch, err := range rows {
		if err != nil {
			return err
		}
		part := batch.NewSlice(0, min(left, batch.NumRows()))
		left -= part.NumRows()
		err = out.rows(part)
		part.Release()
		if err != nil {
			return err
		}
		if left <= 0 {
			break
		}
	}
	if out.sent == 0 {
		none := noRows(out.arrow)
		defer none.Release()
		return out.rows(none)
	}
	return nil
}

// tailOf reads a bucket's log as rows of any version of its table. What cannot be read as
// rows is passed over and logged, as a scan does.
func (s *service) tailOf(t *cluster.Table, bucket mink.BucketRef, log Log) union.Tail {
	return func(ctx context.Context, from, until mink.Offset, target *schema.Schema) iter.Seq2[union.Rows, error] {
		return func(yield func(union.Rows, error) bool) {
			r := &reader{service: s, bucket: bucket, log: log, opened: current(t), target: target, arrow: target.Arrow(), versions: map[mink.SchemaID]*version{}, next: from, until: until, left: noLimit}
			for !r.done() {
				at := r.next
				res, err := log.Read(ctx, tablet.ReadRequest{From: at, MaxBytes: s.cfg.ReadBytes})
				more := true
				if err == nil {
					more, err = r.runs(ctx, &res, yield)
				}
				if err == nil && more && r.next == at {
					err = fmt.Errorf("the log of bucket %s stands at offset %d of %d: %w", bucket, at, until, mink.ErrUnavailable)
				}
				if err != nil {
					yield(union.Rows{}, err)
				}
				if err != nil || !more {
					return
				}
			}
		}
	}
}

// runs yields the rows of batches; false: the reader has enough.
func (r *reader) runs(ctx context.Context, res *tablet.ReadResult, yield func(union.Rows, error) bool) (more bool, err error) {
	for _, b := range res.Batches {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if r.done() {
			return true, nil
		}
		if b.BaseOffset() > r.next && !r.run(nil, nil, min(b.BaseOffset(), r.until), yield) {
			return false, nil
		}
		if more, err := r.runsOf(b, yield); err != nil || !more {
			return more, err
		}
	}
	if end := min(res.Next, r.until); end > r.next { // offsets that nothing is at
		return r.run(nil, nil, end, yield), nil
	}
	return true, nil
}

func (r *reader) runsOf(b record.Batch, yield func(union.Rows, error) bool) (more bool, err error) {
	end := min(b.NextOffset(), r.until)
	if r.next >= end {
		return true, nil
	}
	if b.Count() == 0 {
		return r.run(nil, nil, end, yield), nil
	}
	v, err := r.version(b.SchemaID())
	if err != nil {
		return false, fmt.Errorf("log of bucket %s at offset %d: %w", r.bucket, b.BaseOffset(), err)
	}
	rows, gaps, err := r.rows(b, v)
	var bad *tablet.QuarantineError
	if errors.As(err, &bad) {
		r.service.log.Warn("union read skips a batch", "bucket", r.bucket.String(), "first_offset", bad.First, "last_offset", bad.Last, "why", bad.Why)
		return r.run(nil, nil, end, yield), nil
	}
	if err != nil {
		return false, err
	}
	defer rows.Release()
	// part yields the rows up to an offset, and takes the offsets up to another.
	part := func(to, end mink.Offset) bool {
		first, last := min(int64(r.next-b.BaseOffset()), rows.NumRows()), min(int64(to-b.BaseOffset()), rows.NumRows())
		some := rows.NewSlice(first, max(first, last))
		defer some.Release()
		var changes []byte
		if c := b.Changes(); c != nil {
			changes = c[first:max(first, last)]
		}
		return r.run(some, changes, end, yield)
	}
	for _, g := range gaps {
		if g.Last < r.next || g.First >= end {
			continue
		}
		if g.Why != "" {
			r.service.log.Warn("union read skips records that are no rows", "bucket", r.bucket.String(), "first_offset", g.First, "last_offset", g.Last, "why", g.Why)
		}
		if !part(max(g.First, r.next), min(g.Last+1, end)) {
			return false, nil
		}
	}
	return r.next >= end || part(end, end), nil
}

// run yields one run that ends at end; nil: it has no rows.
func (r *reader) run(rows arrow.RecordBatch, changes []byte, end mink.Offset, yield func(union.Rows, error) bool) bool {
	if rows == nil {
		rows = noRows(r.arrow)
		defer rows.Release()
	}
	run := union.Rows{Batch: rows, Changes: changes, Start: r.next, End: end}
	r.next = end
	return yield(run, nil)
}

// cut is the first columns of rows, which it releases.
func cut(rows arrow.RecordBatch, as *arrow.Schema) arrow.RecordBatch {
	defer rows.Release()
	return array.NewRecordBatch(as, rows.Columns()[:len(as.Fields())], rows.NumRows())
}
