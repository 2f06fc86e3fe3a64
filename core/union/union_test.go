package union_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/core/union"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// batch is a part of a log.
type batch struct {
	schema     *schema.Schema
	rows       []mergetest.Row
	changes    []byte
	start, end mink.Offset
}

// bucket is a bucket of a table that moves: its log, and the lake's snapshots.
type bucket struct {
	log   []batch
	start mink.Offset // trimmed below
	end   mink.Offset
	reads int // of the log
}

func (b *bucket) append(s *schema.Schema, rows []mergetest.Row, changes []byte, empty int) {
	n := batch{schema: s, rows: rows, changes: changes, start: b.end, end: b.end + mink.Offset(len(rows)+empty)}
	if n.end > n.start {
		b.log, b.end = append(b.log, n), n.end
	}
}

func (b *bucket) tail(_ context.Context, from, until mink.Offset, target *schema.Schema) iter.Seq2[union.Rows, error] {
	b.reads++
	return func(yield func(union.Rows, error) bool) {
		if from < b.start {
			yield(union.Rows{}, &mink.OutOfRangeError{Asked: from, Start: b.start, End: b.end})
			return
		}
		for _, n := range b.log {
			lo, hi := max(n.start, from), min(n.end, until)
			if lo >= hi {
				continue
			}
			first, last := min(int(lo-n.start), len(n.rows)), min(int(hi-n.start), len(n.rows))
			var rows []mergetest.Row
			for _, r := range n.rows[first:last] {
				rows = append(rows, mergetest.Follow(r, n.schema, target))
			}
			out := union.Rows{Batch: mergetest.Batch(target, rows), Start: lo, End: hi}
			if n.changes != nil {
				out.Changes = n.changes[first:last]
			}
			more := yield(out, nil)
			out.Batch.Release()
			if !more {
				return
			}
		}
	}
}

// state is what a bucket held at an offset; one of them may be in the lake.
type state struct {
	at     mink.Offset
	schema *schema.Schema
	rows   []mergetest.Row
}

func (st *state) lake(_ context.Context, target *schema.Schema, columns []mink.FieldID, filter *predicate.Expr) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		// Two at a time, so that batches end anywhere.
		for part := range slices.Chunk(st.rows, 2) {
			var rows []mergetest.Row
			for _, r := range part {
				rows = append(rows, mergetest.Follow(r, st.schema, target))
			}
			all := mergetest.Batch(target, rows)
			out, err := project(all, target, columns, filter)
			all.Release()
			if err != nil {
				yield(nil, err)
				return
			}
			more := yield(out, nil)
			out.Release()
			if !more {
				return
			}
		}
	}
}

func project(rec arrow.RecordBatch, s *schema.Schema, columns []mink.FieldID, filter *predicate.Expr) (arrow.RecordBatch, error) {
	rec.Retain()
	if filter != nil {
		p, err := filter.Bind(s)
		if err != nil {
			return nil, err
		}
		kept, err := p.Filter(memory.DefaultAllocator, rec)
		rec.Release()
		if err != nil {
			return nil, err
		}
		rec = kept
	}
	defer rec.Release()
	if columns == nil {
		rec.Retain()
		return rec, nil
	}
	var arrays []arrow.Array
	var fields []arrow.Field
	for _, id := range columns {
		i := s.IndexByID(id)
		arrays, fields = append(arrays, rec.Column(i)), append(fields, rec.Schema().Field(i))
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, rec.NumRows()), nil
}

func collect(rows iter.Seq2[arrow.RecordBatch, error]) (out []mergetest.Row, err error) {
	for rec, err := range rows {
		if err != nil {
			return out, err
		}
		out = append(out, mergetest.Rows(rec)...)
	}
	return out, nil
}

func sorted(rows []mergetest.Row) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = fmt.Sprintf("%v", []any(r))
	}
	slices.Sort(out)
	return out
}

// plan is what a read was fixed to; it is read later, after other things happened.
type plan struct {
	lake  *state // nil: nothing in the lake
	from  mink.Offset
	until *state
}

// check reads a plan with columns, a filter and a memory limit at random.
func (p plan) check(t *rapid.T, b *bucket, d *schema.Descriptor) {
	s := &d.Schema
	var columns []mink.FieldID
	at := rapid.SliceOfNDistinct(rapid.IntRange(0, len(s.Columns)-1), 0, -1, func(i int) int { return i }).Draw(t, "columns")
	for _, i := range at {
		columns = append(columns, s.Columns[i].ID)
	}
	if len(at) == 0 {
		for i := range s.Columns {
			at = append(at, i)
		}
	}
	var filter *predicate.Expr
	if rapid.Bool().Draw(t, "filter") {
		c := s.Columns[rapid.IntRange(0, len(s.Columns)-1).Draw(t, "filtered")]
		text := fmt.Sprintf("%q IS NOT NULL", c.Name)
		if c.Type.Kind == schema.TinyInt || c.Type.Kind == schema.Int || c.Type.Kind == schema.BigInt {
			text = fmt.Sprintf("%q > 0", c.Name)
		}
		var err error
		if filter, err = predicate.Parse(text); err != nil {
			t.Fatal(err)
		}
	}
	r := union.Read{
		Descriptor: d, Target: s, Columns: columns, Filter: filter, Tail: b.tail, From: p.from, Until: p.until.at,
		KeyBytes: int64(rapid.SampledFrom([]int{0, 200, 500}).Draw(t, "key bytes")),
	}
	if p.lake != nil {
		r.Lake = p.lake.lake
	}
	got, err := collect(r.Rows(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	var rows []mergetest.Row
	for _, row := range p.until.rows {
		rows = append(rows, mergetest.Follow(row, p.until.schema, s))
	}
	all := mergetest.Batch(s, rows)
	defer all.Release()
	var ids []mink.FieldID
	for _, i := range at {
		ids = append(ids, s.Columns[i].ID)
	}
	want, err := project(all, s, ids, filter)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Release()
	if !slices.Equal(sorted(got), sorted(mergetest.Rows(want))) {
		t.Fatalf("lake %v, log [%d, %d), columns %v, filter %v, memory %d:\ngot  %v\nwant %v", p.lake, p.from, p.until.at, columns, filter, r.KeyBytes, sorted(got), sorted(mergetest.Rows(want)))
	}
}

// A primary-key bucket that is written to, tiered, trimmed and altered: every plan that
// was ever made gives the rows of its own moment.
func TestPrimaryKeyMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := mergetest.Table(t)
		if rapid.Bool().Draw(t, "partitioned") {
			d = mergetest.Partition(t, d)
			if rapid.Bool().Draw(t, "partition first") {
				n := len(d.PrimaryKey) - 1
				d.PrimaryKey = append([]string{d.PrimaryKey[n]}, d.PrimaryKey[:n]...)
			}
		}
		h := mergetest.NewHistory[int](d)
		b := &bucket{}
		var lake *state
		var plans []plan
		now := func() *state {
			return &state{at: b.end, schema: &h.Descriptor().Schema, rows: h.Rows()}
		}
		actions := map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				e, err := h.Put(mergetest.Writes(t, h.Descriptor(), mergetest.Columns(t, h.Descriptor())), rapid.Bool().Draw(t, "writer"), 0)
				if err != nil {
					return
				}
				var rows []mergetest.Row
				var kinds []byte
				for _, c := range e.Changes {
					rows, kinds = append(rows, c.Row), append(kinds, byte(c.Kind))
				}
				b.append(e.Schema, rows, kinds, int(e.Offsets)-len(rows))
			},
			"alter": func(t *rapid.T) {
				if n, err := h.Descriptor().Apply(mergetest.Alterations(t, h.Descriptor())); err == nil {
					h.Alter(n)
				}
			},
			"tier": func(*rapid.T) { lake = now() },
			"plan": func(t *rapid.T) {
				p := plan{lake: lake, until: now()}
				if lake != nil {
					p.from = lake.at
				}
				plans = append(plans, p)
				p.check(t, b, h.Descriptor())
			},
			"read an old plan": func(t *rapid.T) {
				if len(plans) > 0 {
					plans[rapid.IntRange(0, len(plans)-1).Draw(t, "plan")].check(t, b, h.Descriptor())
				}
			},
			"": func(*rapid.T) {},
		}
		actions["put again"], actions["more"] = actions["put"], actions["put"]
		t.Repeat(actions)
	})
}

// A log table: every row once, in the order of the log behind the lake's.
func TestLogTableMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &schema.Descriptor{Database: "db", Table: "t", BucketCount: 1}
		d.Schema.Columns = []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}, {Name: "b", Type: schema.MustParseType("STRING")}}
		d, err := d.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		b := &bucket{}
		var lake *state
		var all []mergetest.Row
		var plans []plan
		now := func() *state { return &state{at: b.end, schema: &d.Schema, rows: slices.Clone(all)} }
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				var rows []mergetest.Row
				for range rapid.IntRange(0, 4).Draw(t, "rows") {
					row := mergetest.Row{}
					for _, c := range d.Schema.Columns {
						row = append(row, mergetest.Value(t, c.Type))
					}
					rows = append(rows, row)
				}
				b.append(&d.Schema, rows, nil, rapid.IntRange(0, 2).Draw(t, "offsets without rows"))
				all = append(all, rows...)
			},
			"alter": func(t *rapid.T) {
				n, err := d.Apply(mergetest.Alterations(t, d))
				if err != nil || len(n.Schema.Columns) == 0 {
					return
				}
				for i, r := range all {
					all[i] = mergetest.Follow(r, &d.Schema, &n.Schema)
				}
				d = n
			},
			"tier": func(*rapid.T) { lake = now() },
			"plan": func(t *rapid.T) {
				p := plan{lake: lake, until: now()}
				if lake != nil {
					p.from = lake.at
				}
				plans = append(plans, p)
				p.check(t, b, d)
			},
			"read an old plan": func(t *rapid.T) {
				if len(plans) > 0 {
					plans[rapid.IntRange(0, len(plans)-1).Draw(t, "plan")].check(t, b, d)
				}
			},
		})
	})
}

func keyedTable(t *testing.T) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "db", Table: "t", PrimaryKey: []string{"k"}, BucketCount: 1}
	d.Schema.Columns = []schema.Column{{Name: "k", Type: schema.MustParseType("INT")}, {Name: "v", Type: schema.MustParseType("STRING")}}
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// changesOf appends upserts of keys [from, to), or deletes.
func changesOf(b *bucket, d *schema.Descriptor, from, to int, kind mink.Change, v any) {
	var rows []mergetest.Row
	var kinds []byte
	for k := from; k < to; k++ {
		rows, kinds = append(rows, mergetest.Row{int32(k), v}), append(kinds, byte(kind))
	}
	b.append(&d.Schema, rows, kinds, 0)
}

// A tail with more keys than fit is read in passes; one that never fits is refused by
// name, before the lake is read.
func TestMemoryBound(t *testing.T) {
	d := keyedTable(t)
	b, st := &bucket{}, &state{schema: &d.Schema}
	for k := range 2000 {
		st.rows = append(st.rows, mergetest.Row{int32(k), "lake"})
	}
	changesOf(b, d, 1000, 3000, mink.ChangeUpdateAfter, "log")
	changesOf(b, d, 2500, 2600, mink.ChangeDelete, nil)
	passes := 0
	r := union.Read{Descriptor: d, Target: &d.Schema, Lake: st.lake, Tail: b.tail, Until: b.end, KeyBytes: 20_000, Passes: func() { passes++ }}
	rows, err := collect(r.Rows(t.Context()))
	if err != nil || len(rows) != 2900 || len(slices.Compact(sorted(rows))) != 2900 {
		t.Errorf("%d rows, %v, want 2900", len(rows), err)
	}
	if passes < 9 || passes > 40 { // 2000 keys of 84 bytes
		t.Errorf("%d passes", passes)
	}
	passes = 0
	r.KeyBytes = 10
	if _, err := collect(r.Rows(t.Context())); !errors.Is(err, mink.ErrTooLarge) || !strings.Contains(err.Error(), "union_key_memory") {
		t.Errorf("a limit below one key: %v", err)
	}
}

// Batches of deletes alone, in the tail and of all there is.
func TestDeletesOnly(t *testing.T) {
	d := keyedTable(t)
	b, st := &bucket{}, &state{schema: &d.Schema}
	for k := range 10 {
		st.rows = append(st.rows, mergetest.Row{int32(k), "lake"})
	}
	changesOf(b, d, 0, 10, mink.ChangeDelete, nil)
	changesOf(b, d, 20, 30, mink.ChangeDelete, nil)
	r := union.Read{Descriptor: d, Target: &d.Schema, Columns: []mink.FieldID{2}, Lake: st.lake, Tail: b.tail, Until: b.end}
	if rows, err := collect(r.Rows(t.Context())); err != nil || len(rows) != 0 {
		t.Errorf("%v, %v", rows, err)
	}
	r.Lake = nil
	if rows, err := collect(r.Rows(t.Context())); err != nil || len(rows) != 0 {
		t.Errorf("without a lake: %v, %v", rows, err)
	}
}

// What goes wrong beneath is said, with the rows before it, and nothing is passed over.
func TestFailures(t *testing.T) {
	d := keyedTable(t)
	b, st := &bucket{}, &state{schema: &d.Schema, rows: []mergetest.Row{{int32(1), "lake"}}}
	changesOf(b, d, 1, 4, mink.ChangeInsert, "log")
	base := union.Read{Descriptor: d, Target: &d.Schema, Lake: st.lake, Tail: b.tail, Until: b.end}
	cut := func(n int, end mink.Offset) union.Tail {
		calls := 0
		return func(ctx context.Context, from, until mink.Offset, target *schema.Schema) iter.Seq2[union.Rows, error] {
			if calls++; calls != n {
				return b.tail(ctx, from, until, target)
			}
			return b.tail(ctx, from, end, target)
		}
	}
	for name, tc := range map[string]struct {
		change func(*union.Read)
		want   error
	}{
		"the log ends early":             {func(r *union.Read) { r.Tail = cut(1, 2) }, mink.ErrUnavailable},
		"the log ends early when reread": {func(r *union.Read) { r.Tail = cut(2, 2) }, mink.ErrUnavailable},
		"the log was trimmed":            {func(r *union.Read) { b.start = 1 }, mink.ErrOutOfRange},
		"a column that is not there":     {func(r *union.Read) { r.Columns = []mink.FieldID{99} }, mink.ErrInvalid},
		"a row went between the readings": {func(r *union.Read) {
			calls := 0
			r.Tail = func(ctx context.Context, from, until mink.Offset, target *schema.Schema) iter.Seq2[union.Rows, error] {
				if calls++; calls == 1 {
					return b.tail(ctx, from, until, target)
				}
				return func(yield func(union.Rows, error) bool) {
					none := mergetest.Batch(target, nil)
					defer none.Release()
					if !yield(union.Rows{Batch: none, Start: 0, End: 1}, nil) {
						return
					}
					for rows, err := range b.tail(ctx, 1, until, target) {
						if !yield(rows, err) {
							return
						}
					}
				}
			}
		}, mink.ErrUnavailable},
		"the lake fails": {func(r *union.Read) {
			r.Lake = func(context.Context, *schema.Schema, []mink.FieldID, *predicate.Expr) iter.Seq2[arrow.RecordBatch, error] {
				return func(yield func(arrow.RecordBatch, error) bool) { yield(nil, mink.ErrCorrupt) }
			}
		}, mink.ErrCorrupt},
		"a log with a hole": {func(r *union.Read) {
			r.Tail = func(ctx context.Context, _, until mink.Offset, target *schema.Schema) iter.Seq2[union.Rows, error] {
				return b.tail(ctx, 1, until, target)
			}
		}, mink.ErrCorrupt},
	} {
		b.start = 0
		r := base
		tc.change(&r)
		if _, err := collect(r.Rows(t.Context())); !errors.Is(err, tc.want) || !strings.HasPrefix(err.Error(), "union read of bucket 0/0/0: ") {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
