package scan

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/sdk/mink"
)

// DefaultBatchRows is how many rows a batch has at most when Read does not say.
const DefaultBatchRows = 8192

// Read says which rows of a snapshot are wanted.
type Read struct {
	// Target is the version of the table's schema that the rows are given in.
	Target *schema.Schema
	// Columns of the rows, by id and in this order; nil: all of Target.
	Columns []mink.FieldID
	// Filter on columns of Target; nil: all rows.
	Filter *predicate.Expr
	// Buckets chooses the buckets whose rows are read; nil: all rows. Rows of partitions
	// that the layout does not have are those of partition 0, unless their file says.
	Buckets   func(mink.BucketRef) bool
	BatchRows int
	// Files that are read side by side; 0: 1. Each may hold a file's rows in memory.
	Files int
	// DeleteBytes bounds what equality deletes take in memory, about; 0: nothing does.
	DeleteBytes int64
	// NoPushdown evaluates the filter on all rows.
	NoPushdown bool
}

// Read yields the rows that are left of the snapshot, in no particular order. The batches
// are released after the step; retain them to keep them. An error is the last thing
// yielded. Data that the table's types cannot have, and deletes that contradict each
// other, wrap mink.ErrCorrupt; equality deletes beyond Read.DeleteBytes mink.ErrTooLarge.
func (s *Snapshot) Read(ctx context.Context, r Read) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		if err := s.read(ctx, r, yield); err != nil {
			yield(nil, fmt.Errorf("read lake snapshot %d of %v: %w", s.id, s.table.Identifier(), gone(err)))
		}
	}
}

func (s *Snapshot) read(ctx context.Context, r Read, yield func(arrow.RecordBatch, error) bool) error {
	p, err := s.prepare(r)
	if err != nil {
		return err
	}
	tasks, err := s.plan(ctx, p.planning)
	if err != nil {
		return err
	}
	scan := s.scan(p.reading...)
	own, foreign, err := p.assign(tasks)
	if err != nil {
		return err
	}
	together, err := groups(own, r.DeleteBytes)
	if err != nil {
		return err
	}
	if _, err := groups(foreign, r.DeleteBytes); err != nil {
		return err
	}
	for _, group := range together {
		if more, err := p.run(ctx, scan, group, nil, yield); err != nil || !more {
			return err
		}
	}
	// One file at a time, so that rows are known by their file where buckets take turns.
	for _, t := range foreign {
		if more, err := p.run(ctx, scan, []table.FileScanTask{t}, p.assigner(t.File.FilePath()), yield); err != nil || !more {
			return err
		}
	}
	return nil
}

// prepared is a Read with all that does not depend on files.
type prepared struct {
	Read
	snapshot *Snapshot
	out      *schema.Schema // what is yielded
	read     *schema.Schema // what is read: and what the filter and the buckets need
	filter   *predicate.Predicate
	router   *router
	planning table.ScanOption
	reading  []table.ScanOption
}

func (s *Snapshot) prepare(r Read) (*prepared, error) {
	p := &prepared{Read: r, snapshot: s, out: r.Target, planning: table.WithRowFilter(nil)}
	if r.Columns != nil {
		p.out = &schema.Schema{ID: r.Target.ID}
		for _, id := range r.Columns {
			i := r.Target.IndexByID(id)
			if i < 0 {
				return nil, fmt.Errorf("%w: schema %d has no field %d", mink.ErrInvalid, r.Target.ID, id)
			}
			p.out.Columns = append(p.out.Columns, r.Target.Columns[i])
		}
	}
	p.read = &schema.Schema{ID: r.Target.ID, Columns: slices.Clone(p.out.Columns)}
	var needed []string
	if r.Filter != nil {
		needed = r.Filter.Columns()
	}
	if r.Buckets != nil {
		var err error
		if p.router, err = newRouter(s.layout); err != nil {
			return nil, err
		}
		needed = append(needed, p.router.columns...)
	}
	for _, name := range needed {
		if i := r.Target.Index(name); i >= 0 && p.read.IndexByID(r.Target.Columns[i].ID) < 0 {
			p.read.Columns = append(p.read.Columns, r.Target.Columns[i])
		}
	}
	var names []string
	for _, c := range p.read.Columns {
		if f, ok := s.schema.FindFieldByID(int(c.ID)); ok {
			names = append(names, f.Name)
		}
	}
	if len(names) == 0 { // rows are counted by some column
		names = append(names, s.countColumn())
	}
	rows := r.BatchRows
	if rows <= 0 {
		rows = DefaultBatchRows
	}
	p.reading = append(p.reading, table.WithArrowBatchSize(rows), table.WithMaxConcurrency(max(r.Files, 1)), table.WithSelectedFields(names...))
	if r.Filter == nil {
		return p, nil
	}
	// The whole schema's columns say which names there are.
	all, err := r.Filter.Bind(r.Target)
	if err != nil {
		return nil, err
	}
	if p.filter, err = r.Filter.Bind(p.read); err != nil {
		return nil, err
	}
	if !r.NoPushdown {
		p.planning = table.WithRowFilter(pusher{s, r.Target, false}.push(all.Root(), false))
		p.reading = append(p.reading, table.WithRowFilter(pusher{s, r.Target, true}.push(all.Root(), false)))
	}
	return p, nil
}

// countColumn is the column that is cheapest to read.
func (s *Snapshot) countColumn() string {
	fields := s.schema.Fields()
	best := fields[0]
	for _, f := range fields {
		if _, nested := f.Type.(iceberg.NestedType); nested {
			continue
		}
		switch f.Type.(type) {
		case iceberg.BooleanType, iceberg.Int32Type, iceberg.DateType, iceberg.Int64Type:
			return f.Name
		}
		best = f
	}
	return best.Name
}

// run reads files that are alike; false: the reader has enough.
func (p *prepared) run(ctx context.Context, scan *table.Scan, tasks []table.FileScanTask, keep func(arrow.RecordBatch) ([]int32, error), yield func(arrow.RecordBatch, error) bool) (more bool, err error) {
	if len(tasks) == 0 {
		return true, ctx.Err()
	}
	projection, err := scan.Projection()
	if err != nil {
		return false, err
	}
	mem := memory.DefaultAllocator
	conv, err := newConverter(ctx, mem, projection.Fields(), p.read)
	if err != nil {
		return false, err
	}
	_, batches, err := scan.ReadTasks(ctx, tasks)
	if err != nil {
		return false, err
	}
	for rec, err := range batches {
		if err != nil {
			return false, err
		}
		out, err := p.step(mem, conv, rec, keep)
		if err != nil {
			return false, err
		}
		more := out.NumRows() == 0 || yield(out, nil)
		out.Release()
		if !more {
			return false, nil
		}
	}
	return true, ctx.Err()
}

// step makes of a batch of the lake, which it releases, one that is yielded.
func (p *prepared) step(mem memory.Allocator, conv *converter, rec arrow.RecordBatch, keep func(arrow.RecordBatch) ([]int32, error)) (arrow.RecordBatch, error) {
	rows, err := conv.convert(mem, rec)
	if err != nil {
		return nil, err
	}
	for _, choose := range []func(arrow.RecordBatch) ([]int32, error){keep, p.matching()} {
		if choose == nil {
			continue
		}
		places, err := choose(rows)
		if err == nil {
			var kept arrow.RecordBatch
			kept, err = predicate.Keep(mem, rows, places)
			rows.Release()
			rows = kept
		} else {
			rows.Release()
		}
		if err != nil {
			return nil, err
		}
	}
	if len(p.out.Columns) == len(p.read.Columns) {
		return rows, nil
	}
	defer rows.Release()
	n := len(p.out.Columns)
	return array.NewRecordBatch(arrow.NewSchema(rows.Schema().Fields()[:n], nil), rows.Columns()[:n], rows.NumRows()), nil
}

func (p *prepared) matching() func(arrow.RecordBatch) ([]int32, error) {
	if p.filter == nil {
		return nil
	}
	return p.filter.Rows
}
