package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Source reads what is committed of any bucket from the object store, on any node: no
// leader is asked. Safe for concurrent use.
type Source struct {
	node        *Node
	codecs      tablet.Codecs
	quarantined atomic.Int64
}

// Source is the node's; there is one.
func (n *Node) Source() *Source { return &n.source }

// Rows are rows of a bucket that follow one another.
//
//	offset   Start ... Start+NumRows   ...   End
//	         row 0 ... the last row    none
type Rows struct {
	// Batch has the columns of the target schema. Row i has the offset Start + i. In rows
	// that are deleted, columns outside the primary key may be null whatever the schema
	// says: the changelog of changelog_image = wal has nothing but the key of them.
	Batch arrow.RecordBatch
	// Changes has the kind of each row; nil: all were appended.
	Changes []mink.Change
	// Offsets in [Start+NumRows, End) have no row: they are quarantined, were cleaned or
	// never had one. The next Rows start at End.
	Start, End mink.Offset
	// Quarantined is how many of those are quarantined.
	Quarantined int64
}

// SourceStats are figures of a Source since the process began.
type SourceStats struct {
	Quarantined int64 // offsets that were skipped, each time they were read
}

// Stats answers a snapshot.
func (s *Source) Stats() SourceStats {
	return SourceStats{Quarantined: s.quarantined.Load()}
}

// CommittedEnd is the range of a bucket that ReadCommitted can read as of a view:
// [start, end) is in objects that the metadata name. mink.ErrNotExist.
func (s *Source) CommittedEnd(view *cluster.State, bucket mink.BucketRef) (start, end mink.Offset, err error) {
	id, ok := view.StreamOf(bucket)
	if ok {
		if v, ok := view.Stream(id); ok {
			return v.Start, v.End, nil
		}
	}
	return 0, 0, fmt.Errorf("bucket %s: %w", bucket, mink.ErrNotExist)
}

// ReadCommitted yields the rows of [from, to) in offset order, brought to the target
// schema by field id: added columns are null, dropped ones gone, widened ones cast. The
// Rows cover the range without holes: the first Start is from, the last End is to. What
// is quarantined is skipped and counted. A batch is released after yield returns: retain
// it to keep it; it may share memory with some megabytes of its neighbours.
//
// view says which stream the bucket is; where its objects are is looked up anew all the
// time, so that the reading may take as long as it does. Errors, the last pair:
// *mink.OutOfRangeError (mink.ErrOutOfRange) below the log's start, also when it has
// risen meanwhile, or past the committed end; mink.ErrNotExist, mink.ErrCorrupt;
// mink.ErrInvalid for a row that the target cannot hold (a time that a finer unit does
// not reach), behind all rows before it;
// mink.ErrUnavailable, also when the target does not fit rows of a newer schema version:
// take a newer view and target.
func (s *Source) ReadCommitted(ctx context.Context, view *cluster.State, bucket mink.BucketRef, from, to mink.Offset, target *schema.Schema) iter.Seq2[Rows, error] {
	return func(yield func(Rows, error) bool) {
		id, ok := view.StreamOf(bucket)
		if !ok {
			yield(Rows{}, fmt.Errorf("read bucket %s: %w", bucket, mink.ErrNotExist))
			return
		}
		r := sourceReader{source: s, bucket: bucket, target: target, next: from, to: to, versions: map[mink.SchemaID]*sourceVersion{}}
		r.yield = func(rows Rows) bool { return yield(rows, nil) }
		defer r.drop()
		err := r.run(ctx, id)
		if errors.Is(err, errSourceEnded) || errors.Is(r.flush(), errSourceEnded) { // what came before an error is good
			return
		}
		if err != nil {
			yield(Rows{}, fmt.Errorf("read bucket %s at %d: %w", bucket, r.next, err))
		}
	}
}

// errSourceEnded: the consumer wants no more.
var errSourceEnded = errors.New("the consumer has enough")

// sourceReader is one ReadCommitted. It holds back one Rows, whose End grows with what
// follows and has no rows.
type sourceReader struct {
	source   *Source
	bucket   mink.BucketRef
	target   *schema.Schema
	next, to mink.Offset
	versions map[mink.SchemaID]*sourceVersion
	held     *Rows
	warned   bool // of what is quarantined
	yield    func(Rows) bool
}

// sourceVersion is how batches of one schema version become rows of the target.
type sourceVersion struct {
	decoder *tablet.Decoder
	columns []int // of the version; nil: all
	plan    *evolve.Plan
}

// run reads to the end. An object that is missing though the view names it may be one
// that a newer view does not: that of this node may be behind.
func (r *sourceReader) run(ctx context.Context, id mink.StreamID) error {
	n := r.source.node
	for tried := mink.Offset(-1); ; {
		engine := n.Engine()
		if engine == nil {
			return fmt.Errorf("this node is not registered at the moment: %w", mink.ErrUnavailable)
		}
		err := r.read(engine.ReadCommitted(ctx, id, r.next, r.to))
		if !errors.Is(err, objstore.ErrNotExist) || tried == r.next {
			return err
		}
		tried = r.next
		if e := n.Sync(ctx); e != nil {
			return fmt.Errorf("%w: an object is missing, and the metadata cannot be asked whether it was replaced: %w: %s", mink.ErrUnavailable, e, err.Error())
		}
	}
}

func (r *sourceReader) read(runs iter.Seq2[stream.Run, error]) error {
	for run, err := range runs {
		if err != nil {
			return err
		}
		for i := range run.Frames {
			b, err := tablet.Batch(&run.Frames[i])
			if err != nil {
				return err
			}
			if err := r.batch(b); err != nil {
				return err
			}
		}
		if r.next < run.End {
			if err := r.gap(run.End, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// batch adds what the range has of a batch.
func (r *sourceReader) batch(b record.Batch) error {
	end := min(b.NextOffset(), r.to)
	if end <= r.next {
		return nil
	}
	if b.Count() == 0 {
		return r.gap(end, 0)
	}
	v, err := r.version(b.SchemaID())
	if err != nil {
		return err
	}
	rows, skip, err := v.decoder.Rows(r.bucket, b, v.columns)
	var bad *tablet.QuarantineError
	if errors.As(err, &bad) {
		return r.quarantine(end, bad.Why)
	}
	if err != nil {
		return err
	}
	defer rows.Release()
	for _, q := range skip {
		first, last := max(q.First, r.next), min(q.Last, end-1)
		if first > last {
			continue
		}
		if err := r.part(v, b, rows, first); err != nil {
			return err
		}
		if q.Why == "" {
			err = r.gap(last+1, 0)
		} else {
			err = r.quarantine(last+1, q.Why)
		}
		if err != nil {
			return err
		}
	}
	return r.part(v, b, rows, end)
}

// remapRows is how many rows are brought to the target at a time: what was null may take
// as much memory as values.
const remapRows = 16 << 10

// part adds the rows of b up to an offset; behind the last one there are none.
func (r *sourceReader) part(v *sourceVersion, b record.Batch, rows arrow.RecordBatch, end mink.Offset) error {
	from := min(int64(r.next-b.BaseOffset()), rows.NumRows())
	to := min(int64(end-b.BaseOffset()), rows.NumRows())
	for ; from < to; from = int64(r.next - b.BaseOffset()) {
		if err := r.slice(v, b, rows, from, min(from+remapRows, to)); err != nil {
			return err
		}
	}
	if r.next < end {
		return r.gap(end, 0)
	}
	return nil
}

// slice adds rows [from, to) of b, in halves when they do not become rows of the target
// together. A row that does not alone ends the reading: it is a good row, to be skipped
// by nobody.
func (r *sourceReader) slice(v *sourceVersion, b record.Batch, rows arrow.RecordBatch, from, to int64) error {
	stored := rows.NewSlice(from, to)
	defer stored.Release()
	rec, err := v.plan.Remap(memory.DefaultAllocator, stored)
	switch {
	case err != nil && to-from > 1:
		middle := from + (to-from)/2
		if err := r.slice(v, b, rows, from, middle); err != nil {
			return err
		}
		return r.slice(v, b, rows, middle, to)
	case err != nil: // not its class, which may be that of an offset
		return fmt.Errorf("%w: the row at offset %d, of schema %d, does not fit the table's schema %d: %s", mink.ErrInvalid, r.next, b.SchemaID(), r.target.ID, err.Error())
	}
	if err := r.flush(); err != nil {
		rec.Release()
		return err
	}
	r.held = &Rows{Batch: rec, Start: r.next, End: r.next + mink.Offset(to-from)}
	if c := b.Changes(); c != nil { // as many as there are rows
		r.held.Changes = make([]mink.Change, to-from)
		for i, kind := range c[from:to] {
			r.held.Changes[i] = mink.Change(kind)
		}
	}
	r.next = r.held.End
	return nil
}

// quarantine passes offsets up to end whose rows nobody can decode.
func (r *sourceReader) quarantine(end mink.Offset, why string) error {
	if !r.warned {
		r.warned = true
		r.source.node.logger.Warn("reading skips what cannot be decoded, here and perhaps further on", "bucket", r.bucket.String(), "first_offset", r.next, "last_offset", end-1, "why", why)
	}
	return r.gap(end, end-r.next)
}

// gap passes offsets without rows.
func (r *sourceReader) gap(end, quarantined mink.Offset) error {
	if r.held == nil {
		none := array.NewRecordBuilder(memory.DefaultAllocator, r.target.Arrow())
		defer none.Release()
		r.held = &Rows{Batch: none.NewRecordBatch(), Start: r.next}
	}
	r.held.End, r.next = end, end
	r.held.Quarantined += int64(quarantined)
	r.source.quarantined.Add(int64(quarantined))
	return nil
}

// flush yields what is held back.
func (r *sourceReader) flush() error {
	rows := r.held
	if rows == nil {
		return nil
	}
	r.held = nil
	defer rows.Batch.Release()
	if !r.yield(*rows) {
		return errSourceEnded
	}
	return nil
}

func (r *sourceReader) drop() {
	if r.held != nil {
		r.held.Batch.Release()
		r.held = nil
	}
}

// version compiles a schema version, of the newest view: rows may be newer than the one
// that the reading began with.
func (r *sourceReader) version(id mink.SchemaID) (*sourceVersion, error) {
	if v, ok := r.versions[id]; ok {
		return v, nil
	}
	t, ok := r.source.node.View().Table(r.bucket.Table)
	if !ok {
		return nil, fmt.Errorf("table %d: %w", r.bucket.Table, mink.ErrNotExist)
	}
	if id < 1 || int(id) > len(t.Schemas) {
		return nil, fmt.Errorf("schema %d of table %s is not known here yet: %w", id, t.Descriptor.Name(), mink.ErrUnavailable)
	}
	stored := t.Schemas[id-1]
	v := &sourceVersion{columns: []int{}}
	of := &schema.Schema{ID: stored.ID}
	for i, c := range stored.Columns { // in their order: as many as can be are taken as they are
		if c.ID != 0 && r.target.IndexByID(c.ID) >= 0 {
			v.columns, of.Columns = append(v.columns, i), append(of.Columns, c)
		}
	}
	if len(v.columns) == len(stored.Columns) {
		v.columns = nil
	}
	var err error
	if v.plan, err = evolve.NewPlan(of, r.target); err != nil {
		if id > r.target.ID {
			return nil, fmt.Errorf("rows were written under schema %d, which those of schema %d cannot hold: read them as a newer one: %w: %w", id, r.target.ID, mink.ErrUnavailable, err)
		}
		return nil, err
	}
	if v.decoder, err = tablet.NewDecoder(stored, &r.source.codecs); err != nil {
		return nil, err
	}
	r.versions[id] = v
	return v, nil
}
