package row

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/schema/evolve/evolvetest"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// table makes a schema of "name TYPE" columns with ids 1, 2, ...; nested fields
// come after.
func table(t testing.TB, id mink.SchemaID, columns ...string) *schema.Schema {
	t.Helper()
	d := &schema.Descriptor{Database: "d", Table: "t", Schema: schema.Schema{ID: id}}
	for _, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: name, Type: schema.MustParseType(typ)})
	}
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return &n.Schema
}

func codec(t testing.TB, s *schema.Schema) *Codec {
	t.Helper()
	c, err := NewCodec(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func batch(t testing.TB, s *schema.Schema, json string) arrow.RecordBatch {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s.Arrow(), strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func encodeAll(t interface {
	Helper()
	Fatal(...any)
}, c *Codec, rec arrow.RecordBatch) [][]byte {
	t.Helper()
	e := c.Encoder()
	if err := e.Bind(rec.Columns()); err != nil {
		t.Fatal(err)
	}
	rows := make([][]byte, rec.NumRows())
	for i := range rows {
		rows[i] = e.Append(nil, i)
	}
	return rows
}

func build(t interface {
	Helper()
	Fatal(...any)
}, c *Codec, columns []int, rows ...[]byte) arrow.RecordBatch {
	t.Helper()
	b, err := c.Builder(columns)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if b.Len() != len(rows) {
		t.Fatal(b.Len())
	}
	return b.NewBatch()
}

// randomBatch draws rows of a schema, as a slice of a longer batch.
func randomBatch(t *rapid.T, s *schema.Schema) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	n := rapid.IntRange(1, 7).Draw(t, "rows")
	for range n {
		for i, c := range s.Columns {
			evolvetest.Put(t, b.Field(i), c.Type)
		}
	}
	whole := b.NewRecordBatch()
	from := rapid.IntRange(0, n-1).Draw(t, "from")
	return whole.NewSlice(int64(from), int64(n))
}

// What is encoded comes back, in whole and by any choice of columns, every row
// passes Check, and composing a row of its fields gives the same bytes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, _ := evolvetest.Schemas(t)
		if len(s.Columns) == 0 {
			t.Skip()
		}
		rec := randomBatch(t, s)
		c, err := NewCodec(s)
		if err != nil {
			t.Fatal(err)
		}
		rows := encodeAll(t, c, rec)
		for i, value := range rows {
			if err := c.Check(value); err != nil {
				t.Fatalf("row %d, %x: %v", i, value, err)
			}
			if id, err := SchemaID(value); id != 1 || err != nil {
				t.Fatal(id, err)
			}
			r, err := c.Row(value)
			if err != nil {
				t.Fatal(err)
			}
			w := c.Compose([]byte("x"))
			for col := range s.Columns {
				if r.IsNull(col) != rec.Column(col).IsNull(i) {
					t.Fatalf("row %d, column %d: null %v", i, col, r.IsNull(col))
				}
				w.Set(col, r.Field(col))
			}
			if got := w.Done(); !bytes.Equal(got[1:], value) {
				t.Fatalf("composed %x, want %x", got[1:], value)
			}
		}
		if got := build(t, c, nil, rows...); !array.RecordEqual(got, rec) || !got.Schema().Equal(s.Arrow()) {
			t.Fatalf("%v, want %v", got, rec)
		}
		columns := rapid.SliceOf(rapid.IntRange(0, len(s.Columns)-1)).Draw(t, "columns")
		got := build(t, c, columns, rows...)
		if got.NumRows() != rec.NumRows() || int(got.NumCols()) != len(columns) {
			t.Fatal(got)
		}
		for i, col := range columns {
			if !array.Equal(got.Column(i), rec.Column(col)) {
				t.Fatalf("column %d: %v, want %v", col, got.Column(i), rec.Column(col))
			}
		}
	})
}

// A row that is upgraded is the row of the batch that evolve makes.
func TestUpgradeAgreesWithEvolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := evolvetest.Schemas(t)
		if len(from.Columns) == 0 || len(to.Columns) == 0 {
			t.Skip()
		}
		rec := randomBatch(t, from)
		want, err := evolve.Remap(memory.DefaultAllocator, rec, from, to)
		if err != nil {
			t.Fatal(err)
		}
		u, err := NewUpgrader(from, to)
		if err != nil {
			t.Fatal(err)
		}
		older, newer := u.from, u.to
		wantRows := encodeAll(t, newer, want)
		for i, value := range encodeAll(t, older, rec) {
			got, err := u.Append([]byte("x"), value)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got[1:], wantRows[i]) {
				t.Fatalf("row %d:\n%x, want\n%x", i, got[1:], wantRows[i])
			}
		}
	})
}

func TestUpgradeOutOfRange(t *testing.T) {
	for _, c := range []struct{ from, to, value, want string }{
		{"TIMESTAMP(0)", "TIMESTAMP(9)", `"9999-12-31 00:00:00"`, `column "a": 253402214400 s is beyond the range of TIMESTAMP(9)`},
		{"ARRAY<TIMESTAMP(0)>", "ARRAY<TIMESTAMP(9)>", `["9999-12-31 00:00:00"]`, `column "a.element": 253402214400 s`},
	} {
		from, to := table(t, 1, "a "+c.from), table(t, 2, "a "+c.to)
		rec := batch(t, from, `[{"a": `+c.value+`}]`)
		u, err := NewUpgrader(from, to)
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.Append(nil, encodeAll(t, u.from, rec)[0])
		if !errors.Is(err, mink.ErrOutOfRange) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.from, err)
		}
		if _, err := evolve.Remap(memory.DefaultAllocator, rec, from, to); !errors.Is(err, mink.ErrOutOfRange) {
			t.Errorf("evolve: %v", err)
		}
	}
	if _, err := NewUpgrader(table(t, 1, "a INT"), table(t, 2, "a STRING")); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}

// The bytes are stored: they may not change.
func TestGolden(t *testing.T) {
	golden, err := os.ReadFile("testdata/rows.golden")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Builder{}
	for i, c := range goldenRows {
		s := table(t, c.id, c.columns...)
		rec := batch(t, s, "["+c.json+"]")
		value := encodeAll(t, codec(t, s), rec)[0]
		fmt.Fprintf(&got, "%s | %s\n  %s\n", strings.Join(c.columns, ", "), c.json, hex.EncodeToString(value))
		if back := build(t, codec(t, s), nil, value); !array.RecordEqual(back, rec) {
			t.Errorf("%d: %v", i, back)
		}
	}
	if got.String() != string(golden) {
		t.Errorf("testdata/rows.golden differs; got\n%s", got.String())
	}
}

var goldenRows = []struct {
	id      mink.SchemaID
	columns []string
	json    string
}{
	{3, []string{"a INT", "b STRING", "c BOOLEAN"}, `{"a": 7, "b": "hi", "c": null}`},
	{1, []string{"a TINYINT"}, `{"a": -1}`},
	{300, []string{"a TINYINT", "b SMALLINT", "c BIGINT"}, `{"a": null, "b": -2, "c": 258}`},
	{1, []string{"a FLOAT", "b DOUBLE", "c DECIMAL(10,2)"}, `{"a": 1.5, "b": -0.25, "c": "-12.34"}`},
	{1, []string{"a DATE", "b TIME(3)", "c TIME(9)", "d TIMESTAMP(6)", "e TIMESTAMP_LTZ(0)"}, `{"a": "1970-01-02", "b": "00:00:01", "c": "00:00:00.000000002", "d": "1970-01-01 00:00:00.000003", "e": "1970-01-01 00:00:04Z"}`},
	{1, []string{"a BINARY(2)", "b BINARY(17)", "c BYTES", "d CHAR(3)"}, `{"a": "AQI=", "b": "AQIDBAUGBwgJCgsMDQ4PEBE=", "c": "/w==", "d": ""}`},
	{1, []string{"a BINARY(2)", "b BINARY(17)", "c BYTES", "d CHAR(3)"}, `{"a": null, "b": null, "c": null, "d": null}`},
	{1, []string{"a ARRAY<INT>", "b ARRAY<STRING>", "c ARRAY<INT>"}, `{"a": [1, null], "b": ["x", null, "yz"], "c": []}`},
	{1, []string{"a MAP<STRING, BOOLEAN>"}, `{"a": [{"key": "k", "value": true}, {"key": "", "value": null}]}`},
	{1, []string{"a ROW<x INT, y ROW<z STRING>>", "b ARRAY<ROW<v BIGINT>>"}, `{"a": {"x": null, "y": {"z": "q"}}, "b": [{"v": 1}, null]}`},
}

// Ends of 2 bytes become 4 when the values need it, in rows and in lists.
func TestWide(t *testing.T) {
	s := table(t, 1, "a STRING", "b STRING", "c ARRAY<STRING>", "d STRING")
	c := codec(t, s)
	long := strings.Repeat("l", 40_000)
	for _, b := range []string{long, long + long, long[:65535-40000-1], long[:65535-40000]} {
		rec := batch(t, s, fmt.Sprintf(`[{"a": %q, "b": %q, "c": ["x", null, %q, "y"], "d": "end"}]`, long, b, b))
		value := encodeAll(t, c, rec)[0]
		if err := c.Check(value); err != nil {
			t.Fatal(err)
		}
		if got := build(t, c, nil, value); !array.RecordEqual(got, rec) {
			t.Fatalf("%d bytes come back otherwise", len(b))
		}
	}
}

// NaN, -0.0 and what else the bits of a float say are kept.
func TestFloatBits(t *testing.T) {
	s := table(t, 1, "a FLOAT", "b DOUBLE")
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	singles := []uint32{0x7fc00001, 0xffc00000, 0x80000000, 0x7f800000, 1}
	doubles := []uint64{0x7ff8000000000123, 0xfff8000000000000, 1 << 63, 0xfff0000000000000, 1}
	for i := range singles {
		b.Field(0).(*array.Float32Builder).Append(math.Float32frombits(singles[i]))
		b.Field(1).(*array.Float64Builder).Append(math.Float64frombits(doubles[i]))
	}
	c := codec(t, s)
	got := build(t, c, nil, encodeAll(t, c, b.NewRecordBatch())...)
	for i := range singles {
		if v := math.Float32bits(got.Column(0).(*array.Float32).Value(i)); v != singles[i] {
			t.Errorf("%x, want %x", v, singles[i])
		}
		if v := math.Float64bits(got.Column(1).(*array.Float64).Value(i)); v != doubles[i] {
			t.Errorf("%x, want %x", v, doubles[i])
		}
	}
}

// A column without an array is null, NOT NULL or not.
func TestAbsentColumns(t *testing.T) {
	s := table(t, 1, "a INT NOT NULL", "b STRING NOT NULL", "c ARRAY<INT>")
	c := codec(t, s)
	e := c.Encoder()
	rec := batch(t, s, `[{"a": 1, "b": "x", "c": [1]}]`)
	if err := e.Bind([]arrow.Array{nil, rec.Column(1), nil}); err != nil {
		t.Fatal(err)
	}
	got := build(t, c, nil, e.Append(nil, 0))
	if got.Column(0).IsValid(0) || got.Column(2).IsValid(0) || got.Column(1).ValueStr(0) != "x" {
		t.Error(got)
	}
	for _, bad := range [][]arrow.Array{nil, {rec.Column(1), nil, nil}, {rec.Column(0), rec.Column(1), batch(t, s, `[]`).Column(2)}} {
		if err := e.Bind(bad); !errors.Is(err, mink.ErrInvalid) {
			t.Error(err)
		}
	}
}

func TestBuilderStartsAnew(t *testing.T) {
	s := table(t, 1, "a INT", "b ARRAY<STRING>", "c BOOLEAN", "d ROW<e STRING>")
	c := codec(t, s)
	b, err := c.Builder(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, json := range []string{`{"a": 1, "b": ["x"], "c": true, "d": {"e": "f"}}`, `{"a": null, "b": null, "c": null, "d": null}`, `{"a": 2, "b": [], "c": false, "d": {"e": null}}`} {
		rec := batch(t, s, "["+json+","+json+"]")
		for _, v := range encodeAll(t, c, rec) {
			if err := b.Append(v); err != nil {
				t.Fatal(err)
			}
		}
		if b.Bytes() == 0 || b.Len() != 2 {
			t.Errorf("%d rows of %d bytes", b.Len(), b.Bytes())
		}
		if got := b.NewBatch(); !array.RecordEqual(got, rec) {
			t.Errorf("%v, want %v", got, rec)
		}
	}
	if got := b.NewBatch(); got.NumRows() != 0 {
		t.Error(got)
	}
	if _, err := c.Builder([]int{4}); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}

func TestSetFixed(t *testing.T) {
	s := table(t, 1, "a STRING", "b INT", "c BIGINT")
	c := codec(t, s)
	value := encodeAll(t, c, batch(t, s, `[{"a": "x", "b": null, "c": 5}]`))[0]
	if !PutInt(c.SetFixed(value, 1), -9) || PutInt(c.SetFixed(value, 1), 1<<31) {
		t.Error("an INT holds what it should not, or not what it should")
	}
	PutInt(c.SetFixed(value, 1), -9)
	want := encodeAll(t, c, batch(t, s, `[{"a": "x", "b": -9, "c": 5}]`))[0]
	if !bytes.Equal(value, want) {
		t.Errorf("%x, want %x", value, want)
	}
}

func TestNoAllocations(t *testing.T) {
	s := table(t, 1, "a INT", "b STRING", "c DECIMAL(20,2)", "d BOOLEAN", "e BIGINT")
	c := codec(t, s)
	rec := batch(t, s, `[{"a": 1, "b": "some text", "c": "1.25", "d": true, "e": null}]`)
	e := c.Encoder()
	if err := e.Bind(rec.Columns()); err != nil {
		t.Fatal(err)
	}
	value := e.Append(nil, 0)
	dst := make([]byte, 0, 1024)
	all, allUp, everything := fixture(t)
	nested := all.Encoder()
	if err := nested.Bind(build(t, all, nil, everything).Columns()); err != nil {
		t.Fatal(err)
	}
	u, err := NewUpgrader(s, table(t, 2, "a BIGINT", "b STRING", "c DECIMAL(22,2)", "d BOOLEAN", "e BIGINT"))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"read a column": func() {
			r, err := c.Row(value)
			if err != nil || Int(r.Field(0)) != 1 || string(r.Field(1)) != "some text" || !r.IsNull(4) {
				t.Fatal(err)
			}
		},
		"encode":        func() { e.Append(dst, 0) },
		"encode nested": func() { nested.Append(dst[:0], 0) },
		"check nested": func() {
			if all.Check(everything) != nil {
				t.Fatal("check")
			}
		},
		"upgrade nested": func() {
			if _, err := allUp.Append(dst[:0], everything); err != nil {
				t.Fatal(err)
			}
		},
		"check": func() {
			if c.Check(value) != nil {
				t.Fatal("check")
			}
		},
		"upgrade": func() {
			if _, err := u.Append(dst, value); err != nil {
				t.Fatal(err)
			}
		},
		"compose": func() {
			r, _ := c.Row(value)
			w := c.Compose(dst)
			for i := range 5 {
				w.Set(i, r.Field(i))
			}
			w.Done()
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A map whose entries are a slice of longer ones, as no decoder makes them, but Arrow
// allows.
func TestSlicedEntries(t *testing.T) {
	s := table(t, 1, "a MAP<STRING, INT>")
	m := batch(t, s, `[{"a": [{"key": "x", "value": 1}, {"key": "y", "value": 2}]}]`).Column(0).(*array.Map)
	entries := array.NewSlice(m.ListValues(), 1, 2)
	offsets := memory.NewBufferBytes(arrow.Int32Traits.CastToBytes([]int32{0, 1}))
	data := array.NewData(m.DataType(), 1, []*memory.Buffer{nil, offsets}, []arrow.ArrayData{entries.Data()}, 0, 0)
	sliced := array.MakeFromData(data)
	e := codec(t, s).Encoder()
	if err := e.Bind([]arrow.Array{sliced}); err != nil {
		t.Fatal(err)
	}
	want := batch(t, s, `[{"a": [{"key": "y", "value": 2}]}]`)
	if got := build(t, codec(t, s), nil, e.Append(nil, 0)); !array.RecordEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
