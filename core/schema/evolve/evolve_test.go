package evolve

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve/evolvetest"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// The model: a value is nil, a Go scalar, []any (ARRAY), [][2]any (MAP) or
// map[FieldID]any (ROW). project says what remapping means for one value;
// read and put move values out of and into Arrow.

func project(v any, from, to schema.Type) any {
	if v == nil {
		return nil
	}
	switch to.Kind {
	case schema.Array:
		out := []any{}
		for _, e := range v.([]any) {
			out = append(out, project(e, from.Fields[0].Type, to.Fields[0].Type))
		}
		return out
	case schema.Map:
		out := [][2]any{}
		for _, e := range v.([][2]any) {
			out = append(out, [2]any{e[0], project(e[1], from.Fields[1].Type, to.Fields[1].Type)})
		}
		return out
	case schema.Row:
		out := map[mink.FieldID]any{}
		for _, f := range to.Fields {
			out[f.ID] = nil
			for _, g := range from.Fields {
				if g.ID == f.ID {
					out[f.ID] = project(v.(map[mink.FieldID]any)[f.ID], g.Type, f.Type)
				}
			}
		}
		return out
	}
	return promoteScalar(v, from, to)
}

func promoteScalar(v any, from, to schema.Type) any {
	switch v := v.(type) {
	case int64: // every integer and time
		for u := from.Unit(); u < to.Unit() && (from.Kind == schema.Time || from.Kind == schema.Timestamp || from.Kind == schema.TimestampLTZ); u++ {
			v *= 1000
		}
		return v
	case string:
		if to.Kind == schema.Binary {
			return v + strings.Repeat("\x00", to.Length-len(v))
		}
	}
	return v
}

func read(arr arrow.Array, t schema.Type, i int) any {
	if arr.IsNull(i) {
		return nil
	}
	switch a := arr.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.Int8:
		return int64(a.Value(i))
	case *array.Int16:
		return int64(a.Value(i))
	case *array.Int32:
		return int64(a.Value(i))
	case *array.Int64:
		return a.Value(i)
	case *array.Float32:
		return float64(a.Value(i))
	case *array.Float64:
		return a.Value(i)
	case *array.Decimal128:
		return a.Value(i).BigInt().String()
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return string(a.Value(i))
	case *array.FixedSizeBinary:
		return string(a.Value(i))
	case *array.Date32:
		return int64(a.Value(i))
	case *array.Time32:
		return int64(a.Value(i))
	case *array.Time64:
		return int64(a.Value(i))
	case *array.Timestamp:
		return int64(a.Value(i))
	case *array.Map:
		out := [][2]any{}
		start, end := a.ValueOffsets(i)
		for j := int(start); j < int(end); j++ {
			out = append(out, [2]any{read(a.Keys(), t.Fields[0].Type, j), read(a.Items(), t.Fields[1].Type, j)})
		}
		return out
	case *array.List:
		out := []any{}
		start, end := a.ValueOffsets(i)
		for j := int(start); j < int(end); j++ {
			out = append(out, read(a.ListValues(), t.Fields[0].Type, j))
		}
		return out
	case *array.Struct:
		out := map[mink.FieldID]any{}
		for j, f := range t.Fields {
			out[f.ID] = read(a.Field(j), f.Type, i)
		}
		return out
	}
	panic(fmt.Sprintf("%T", arr))
}

func TestRemapAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
		defer mem.AssertSize(t, 0)
		from, to := evolvetest.Schemas(rt)
		b := array.NewRecordBuilder(mem, from.Arrow())
		defer b.Release()
		rows := rapid.IntRange(0, 7).Draw(rt, "rows")
		for range rows {
			for i, c := range from.Columns {
				evolvetest.Put(rt, b.Field(i), c.Type)
			}
		}
		var whole arrow.RecordBatch
		if len(from.Columns) == 0 {
			whole = array.NewRecordBatch(from.Arrow(), nil, int64(rows))
		} else {
			whole = b.NewRecordBatch()
		}
		defer whole.Release()
		start := rapid.IntRange(0, rows).Draw(rt, "start")
		end := rapid.IntRange(start, rows).Draw(rt, "end")
		rec := whole
		if len(from.Columns) > 0 { // arrow-go cannot slice a batch without columns
			rec = whole.NewSlice(int64(start), int64(end))
		} else {
			rec.Retain()
		}
		defer rec.Release()

		got, err := Remap(mem, rec, from, to)
		if err != nil {
			rt.Fatalf("%s to %s: %v", from.Encode(), to.Encode(), err)
		}
		defer got.Release()
		if got.NumRows() != rec.NumRows() || !got.Schema().Equal(to.Arrow()) {
			rt.Fatalf("%d rows of %s, want %d of %s", got.NumRows(), got.Schema(), rec.NumRows(), to.Arrow())
		}
		for i, c := range to.Columns {
			if !arrow.TypeEqual(got.Column(i).DataType(), c.Type.Arrow()) {
				rt.Fatalf("column %s is %s, want %s", c.Name, got.Column(i).DataType(), c.Type.Arrow())
			}
			at := from.IndexByID(c.ID)
			for r := range int(got.NumRows()) {
				var want any
				if at >= 0 {
					want = project(read(rec.Column(at), from.Columns[at].Type, r), from.Columns[at].Type, c.Type)
				}
				if diff := cmp.Diff(want, read(got.Column(i), c.Type, r)); diff != "" {
					rt.Fatalf("row %d, column %s (%s): %s", r, c.Name, c.Type, diff)
				}
			}
		}
	})
}

func one(text string) *schema.Schema {
	return &schema.Schema{ID: 1, Columns: []schema.Column{{ID: 1, Name: "c", Type: schema.MustParseType(text)}}}
}

func batch(t testing.TB, mem memory.Allocator, s *schema.Schema, json string) arrow.RecordBatch {
	t.Helper()
	rec, _, err := array.RecordFromJSON(mem, s.Arrow(), strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestRemapSharesWhatIsUnchanged(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer mem.AssertSize(t, 0)
	from := one("ARRAY<INT>")
	rec := batch(t, mem, from, `[{"c":[1,2]},{"c":null}]`)
	before := mem.CurrentAlloc()
	p, err := NewPlan(from, from)
	if err != nil || !p.Same() {
		t.Fatal(err)
	}
	same, err := p.Remap(mem, rec)
	if err != nil || same != rec {
		t.Fatal(err)
	}
	renamed := from.Clone()
	renamed.Columns[0].Name = "d"
	got, err := Remap(mem, rec, from, &renamed)
	if err != nil || got.ColumnName(0) != "d" {
		t.Fatal(err)
	}
	if mem.CurrentAlloc() != before {
		t.Errorf("a rename allocated %d bytes", mem.CurrentAlloc()-before)
	}
	rec.Release()
	same.Release()
	if got.Column(0).(*array.List).ListValues().(*array.Int32).Value(1) != 2 { // case 9: lives on after its source
		t.Error("the value is gone")
	}
	got.Release()
}

func TestDroppedNameComesBackEmpty(t *testing.T) {
	d := &schema.Descriptor{Database: "db", Table: "t", Schema: schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}, {Name: "b", Type: schema.MustParseType("INT")}}}}
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	n, err := d.Apply([]schema.Change{{Op: schema.DropColumn, Name: "a"}, {Op: schema.AddColumn, Column: &schema.Column{Name: "a", Type: schema.MustParseType("INT")}}})
	if err != nil {
		t.Fatal(err)
	}
	rec := batch(t, memory.DefaultAllocator, &d.Schema, `[{"a":1,"b":2}]`)
	got, err := Remap(memory.DefaultAllocator, rec, &d.Schema, &n.Schema)
	if err != nil || got.ColumnName(1) != "a" || !got.Column(1).IsNull(0) || got.Column(0).(*array.Int32).Value(0) != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestRemapRefuses(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer mem.AssertSize(t, 0)
	for _, c := range []struct{ from, to, want string }{
		{"BIGINT", "INT", "BIGINT cannot become INT"},
		{"INT", "INT NOT NULL", "cannot become NOT NULL"},
		{"ARRAY<INT>", "ARRAY<STRING>", "INT cannot become STRING"},
		{"ROW<a INT>", "ARRAY<INT>", "cannot become"},
	} {
		if _, err := NewPlan(one(c.from), one(c.to)); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
	added := one("INT")
	added.Columns = append(added.Columns, schema.Column{ID: 2, Name: "d", Type: schema.MustParseType("INT NOT NULL")})
	if _, err := NewPlan(one("INT"), added); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
	rec := batch(t, mem, one("INT"), `[{"c":1}]`)
	defer rec.Release()
	for _, from := range []string{"SMALLINT", "STRING"} { // the batch is not what "from" says
		if _, err := Remap(mem, rec, one(from), one(map[string]string{"SMALLINT": "INT", "STRING": "STRING NOT NULL"}[from])); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", from, err)
		}
	}
	if _, err := Remap(mem, rec, added, one("INT")); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("columns: %v", err)
	}
}

func TestTimestampOverflow(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer mem.AssertSize(t, 0)
	from, to := one("TIMESTAMP(0)"), one("TIMESTAMP(9)")
	build := func(valid ...bool) arrow.RecordBatch {
		b := array.NewRecordBuilder(mem, from.Arrow())
		defer b.Release()
		b.Field(0).(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{1, math.MaxInt64 / 1000}, valid)
		return b.NewRecordBatch()
	}
	bad := build(true, true)
	defer bad.Release()
	if _, err := Remap(mem, bad, from, to); !errors.Is(err, mink.ErrOutOfRange) || !strings.Contains(err.Error(), `column "c": row 1`) {
		t.Errorf("%v", err)
	}
	null := build(true, false) // garbage under a null is nobody's value
	defer null.Release()
	got, err := Remap(mem, null, from, to)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if v := got.Column(0).(*array.Timestamp).Value(0); v != 1e9 || !got.Column(0).IsNull(1) {
		t.Errorf("%v", got)
	}
}

func TestNullsAreBounded(t *testing.T) {
	from, to := one("INT"), one("INT")
	to.Columns = append(to.Columns, schema.Column{ID: 2, Name: "big", Type: schema.MustParseType("ROW<a BINARY(65535), b BINARY(65535)>")})
	b := array.NewRecordBuilder(memory.DefaultAllocator, from.Arrow())
	b.Field(0).(*array.Int32Builder).AppendValues(make([]int32, 10000), nil)
	if _, err := Remap(memory.DefaultAllocator, b.NewRecordBatch(), from, to); !errors.Is(err, mink.ErrTooLarge) || !strings.Contains(err.Error(), `column "big"`) {
		t.Errorf("%v", err)
	}
}

func BenchmarkRemap(b *testing.B) {
	from, to := one("INT"), one("BIGINT")
	rb := array.NewRecordBuilder(memory.DefaultAllocator, from.Arrow())
	rb.Field(0).(*array.Int32Builder).AppendValues(make([]int32, 8192), nil)
	rec := rb.NewRecordBatch()
	p, err := NewPlan(from, to)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		out, err := p.Remap(memory.DefaultAllocator, rec)
		if err != nil {
			b.Fatal(err)
		}
		out.Release()
	}
}
