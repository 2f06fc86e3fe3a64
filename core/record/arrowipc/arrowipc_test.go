package arrowipc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

func field(name string, t arrow.DataType) arrow.Field {
	return arrow.Field{Name: name, Type: t, Nullable: true}
}

// every has a column of each type that Mink stores.
var every = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	field("b", arrow.FixedWidthTypes.Boolean),
	field("i8", arrow.PrimitiveTypes.Int8),
	field("i16", arrow.PrimitiveTypes.Int16),
	field("i32", arrow.PrimitiveTypes.Int32),
	field("f32", arrow.PrimitiveTypes.Float32),
	field("f64", arrow.PrimitiveTypes.Float64),
	field("dec", &arrow.Decimal128Type{Precision: 20, Scale: 2}),
	field("text", arrow.BinaryTypes.String),
	field("fsb", &arrow.FixedSizeBinaryType{ByteWidth: 3}),
	field("bytes", arrow.BinaryTypes.Binary),
	field("date", arrow.FixedWidthTypes.Date32),
	field("time", arrow.FixedWidthTypes.Time32ms),
	field("time64", arrow.FixedWidthTypes.Time64us),
	field("ts", &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}),
	field("list", arrow.ListOf(arrow.BinaryTypes.String)),
	field("map", arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32)),
	field("row", arrow.StructOf(field("x", arrow.PrimitiveTypes.Int32), arrow.Field{Name: "y", Type: arrow.BinaryTypes.String},
		field("z", arrow.ListOf(arrow.StructOf(field("q", arrow.BinaryTypes.Binary)))))),
}, nil)

const tsColumn = 14

func draw[T any](rt *rapid.T, g *rapid.Generator[T]) T { return g.Draw(rt, "v") }

// fill appends one drawn value.
func fill(rt *rapid.T, b array.Builder, nullable bool) {
	if nullable && draw(rt, rapid.IntRange(0, 4)) == 0 {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(draw(rt, rapid.Bool()))
	case *array.Int8Builder:
		b.Append(draw(rt, rapid.Int8()))
	case *array.Int16Builder:
		b.Append(draw(rt, rapid.Int16()))
	case *array.Int32Builder:
		b.Append(draw(rt, rapid.Int32()))
	case *array.Int64Builder:
		b.Append(draw(rt, rapid.Int64()))
	case *array.Float32Builder:
		b.Append(draw(rt, rapid.Float32Range(-1e9, 1e9)))
	case *array.Float64Builder:
		b.Append(draw(rt, rapid.Float64Range(-1e9, 1e9)))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(draw(rt, rapid.Int64())))
	case *array.StringBuilder:
		b.Append(draw(rt, rapid.StringN(0, 10, -1)))
	case *array.FixedSizeBinaryBuilder:
		b.Append(draw(rt, rapid.SliceOfN(rapid.Byte(), 3, 3)))
	case *array.BinaryBuilder:
		b.Append(draw(rt, rapid.SliceOfN(rapid.Byte(), 0, 20)))
	case *array.Date32Builder:
		b.Append(arrow.Date32(draw(rt, rapid.Int32Range(0, 20000))))
	case *array.Time32Builder:
		b.Append(arrow.Time32(draw(rt, rapid.Int32Range(0, 86399999))))
	case *array.Time64Builder:
		b.Append(arrow.Time64(draw(rt, rapid.Int64Range(0, 86399999999))))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(draw(rt, rapid.Int64Range(0, 1<<41))))
	case *array.MapBuilder:
		b.Append(true)
		for range draw(rt, rapid.IntRange(0, 3)) {
			fill(rt, b.KeyBuilder(), false)
			fill(rt, b.ItemBuilder(), true)
		}
	case *array.ListBuilder:
		b.Append(true)
		for range draw(rt, rapid.IntRange(0, 3)) {
			fill(rt, b.ValueBuilder(), true)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			fill(rt, b.FieldBuilder(i), b.Type().(*arrow.StructType).Field(i).Nullable)
		}
	default:
		rt.Fatalf("no value for %T", b)
	}
}

func drawRows(rt *rapid.T, s *arrow.Schema, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), s)
	defer b.Release()
	for range n {
		for i := range b.Fields() {
			fill(rt, b.Field(i), s.Field(i).Nullable)
		}
	}
	return b.NewRecordBatch()
}

func layoutOf(t testing.TB, s *arrow.Schema) *Layout {
	t.Helper()
	l, err := NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// oracle reads a message with arrow-go's own stream reader.
func oracle(s *arrow.Schema, metadata, body []byte) (arrow.RecordBatch, error) {
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	if err := w.Close(); err != nil {
		return nil, err
	}
	head := buf.Bytes()[:buf.Len()-8] // without the end of stream
	out := slices.Clone(head)
	out = binary.LittleEndian.AppendUint32(out, 0xFFFFFFFF)
	pad := record.Padding(len(metadata))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(metadata)+len(pad)))
	out = append(append(append(out, metadata...), pad...), body...)
	r, err := ipc.NewReader(bytes.NewReader(out))
	if err != nil {
		return nil, err
	}
	defer r.Release()
	if !r.Next() {
		return nil, fmt.Errorf("no batch: %w", r.Err())
	}
	rec := r.RecordBatch()
	rec.Retain()
	return rec, nil
}

var compressions = map[string][]ipc.Option{"plain": nil, "lz4": {ipc.WithLZ4()}, "zstd": {ipc.WithZstd()}}

// What is encoded is accepted, decodes to the same rows here and in arrow-go,
// and so does every projection.
func TestRoundTrip(t *testing.T) {
	l := layoutOf(t, every).WithTimestamp(tsColumn)
	c, d := NewChecker(DefaultMaxBytes), NewDecoder(DefaultMaxBytes)
	rapid.Check(t, func(rt *rapid.T) {
		rows := drawRows(rt, every, draw(rt, rapid.SampledFrom([]int{0, 1, 7, 8, 9, 70})))
		defer rows.Release()
		lo := draw(rt, rapid.IntRange(0, int(rows.NumRows())))
		rows = rows.NewSlice(int64(lo), rows.NumRows())
		defer rows.Release()
		name := draw(rt, rapid.SampledFrom([]string{"plain", "lz4", "zstd"}))
		meta, body, err := Encode(rows, compressions[name]...)
		if err != nil {
			rt.Fatal(err)
		}
		info, err := c.Check(l, meta, body)
		if err != nil || info.Rows != rows.NumRows() {
			rt.Fatalf("%s: check: %v", name, err)
		}
		wantTS, any := int64(0), false
		for i, ts := 0, rows.Column(tsColumn).(*array.Timestamp); i < ts.Len(); i++ {
			if ts.IsValid(i) {
				wantTS, any = max(wantTS, int64(ts.Value(i))), true
			}
		}
		if info.HasTimestamp != any || info.MaxTimestamp != wantTS {
			rt.Fatalf("max timestamp %d %v, want %d %v", info.MaxTimestamp, info.HasTimestamp, wantTS, any)
		}
		got, err := d.Decode(l, meta, body, nil)
		if err != nil || !array.RecordEqual(got, rows) {
			rt.Fatalf("%s: decode: %v\n%v\n%v", name, err, got, rows)
		}
		columns := draw(rt, rapid.SliceOfNDistinct(rapid.IntRange(0, every.NumFields()-1), 0, 5, rapid.ID[int]))
		want, err := d.Decode(l, meta, body, columns)
		if err != nil {
			rt.Fatal(err)
		}
		cut, err := Project(l, meta, body, columns)
		if err != nil {
			rt.Fatal(err)
		}
		flat := bytes.Join(cut.Body, nil)
		if int64(len(flat)) != cut.BodyLen || want.NumRows() != rows.NumRows() {
			rt.Fatalf("cut body %d, says %d", len(flat), cut.BodyLen)
		}
		pl := layoutOf(t, want.Schema())
		if _, err := c.Check(pl, cut.Metadata, flat); err != nil {
			rt.Fatalf("projected message refused: %v", err)
		}
		theirs, err := oracle(want.Schema(), cut.Metadata, flat)
		if err != nil || theirs.NumRows() != rows.NumRows() || !array.RecordEqual(theirs, want) {
			rt.Fatalf("projection %v in arrow-go: %v", columns, err)
		}
		for k, col := range columns {
			if !array.Equal(theirs.Column(k), rows.Column(col)) {
				rt.Fatalf("column %d differs", col)
			}
		}
	})
}

// What a message says that it expands to is what its checker and its decoder take: with
// a byte less they refuse it.
func TestPlainSize(t *testing.T) {
	l := layoutOf(t, every)
	rapid.Check(t, func(rt *rapid.T) {
		rows := drawRows(rt, every, draw(rt, rapid.SampledFrom([]int{0, 1, 70})))
		defer rows.Release()
		name := draw(rt, rapid.SampledFrom([]string{"plain", "lz4", "zstd"}))
		meta, body, err := Encode(rows, compressions[name]...)
		if err != nil {
			rt.Fatal(err)
		}
		n, err := PlainSize(meta, body)
		if err != nil || name == "plain" && n != 0 || name != "plain" && n == 0 && rows.NumRows() > 0 {
			rt.Fatal(name, n, err)
		}
		if _, err := NewChecker(int(n)).Check(l, meta, body); err != nil {
			rt.Fatal(name, err)
		}
		got, err := NewDecoder(int(n)).Decode(l, meta, body, nil)
		if err != nil {
			rt.Fatal(name, err)
		}
		got.Release()
		if n == 0 || rows.NumRows() == 0 {
			return
		}
		var bad *record.BatchError
		if _, err := NewChecker(int(n)-1).Check(l, meta, body); !errors.As(err, &bad) || bad.Kind != record.KindTooLarge {
			rt.Fatal(name, err)
		}
	})
}

// Lengths that make no sense are the checker's to refuse, and add nothing to the size.
func TestPlainSizeOfForged(t *testing.T) {
	f := newForge(t, ipc.WithZstd())
	whole, err := PlainSize(f.bytes())
	if err != nil {
		t.Fatal(err)
	}
	said := int64(binary.LittleEndian.Uint64(f.data(1)))
	for _, length := range []int64{-1, -2, math.MinInt64} {
		binary.LittleEndian.PutUint64(f.data(1), uint64(length))
		if n, err := PlainSize(f.bytes()); n != whole-said || err != nil {
			t.Fatal(length, n, err)
		}
	}
	for _, k := range []int{1, 3} {
		binary.LittleEndian.PutUint64(f.data(k), math.MaxInt64)
	}
	if n, err := PlainSize(f.bytes()); n != math.MaxInt64 || err != nil {
		t.Fatal(n, err)
	}
	f.setBuffer(1, 8, 1<<62)
	f.setBuffer(3, 0, 4)
	if n, err := PlainSize(f.bytes()); n < 0 || n >= whole || err != nil {
		t.Fatal(n, err)
	}
}

func TestUnsupportedTypes(t *testing.T) {
	for _, typ := range []arrow.DataType{
		&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String},
		arrow.BinaryTypes.LargeString, arrow.BinaryTypes.StringView, arrow.Null, arrow.ListOf(arrow.PrimitiveTypes.Uint8),
	} {
		if _, err := NewLayout(arrow.NewSchema([]arrow.Field{field("a", typ)}, nil)); !errors.Is(err, mink.ErrUnsupported) {
			t.Errorf("%s: %v", typ, err)
		}
	}
}

// small: id int64 NOT NULL, text, row<x int32 NOT NULL>, list<int32>. Buffers:
// 0,1 id; 2,3,4 text; 5 row; 6,7 x; 8,9 list; 10,11 its items. Nodes: id, text,
// row, x, list, item.
var small = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	field("text", arrow.BinaryTypes.String),
	field("row", arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32})),
	field("list", arrow.ListOf(arrow.PrimitiveTypes.Int32)),
}, nil)

func smallRows() arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), small)
	for i := range 10 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		st := b.Field(2).(*array.StructBuilder)
		li := b.Field(3).(*array.ListBuilder)
		if i == 3 {
			b.Field(1).AppendNull()
			st.AppendNull()
			li.AppendNull()
			continue
		}
		b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("tëxt %d", i))
		st.Append(true)
		st.FieldBuilder(0).(*array.Int32Builder).Append(int32(i))
		li.Append(true)
		li.ValueBuilder().(*array.Int32Builder).Append(int32(i))
	}
	return b.NewRecordBatch()
}

// forge is a message taken apart, to be put together wrong.
type forge struct {
	m    message
	meta []byte
	body []byte
}

func newForge(t testing.TB, opts ...ipc.Option) *forge {
	t.Helper()
	meta, body, err := Encode(smallRows(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	m, bad := parseMessage(meta)
	if bad != nil {
		t.Fatal(bad)
	}
	m.nodes, m.buffers = slices.Clone(m.nodes), slices.Clone(m.buffers)
	return &forge{m: m, body: body}
}

func (f *forge) setNode(i int, length, nulls int64) {
	binary.LittleEndian.PutUint64(f.m.nodes[i*16:], uint64(length))
	binary.LittleEndian.PutUint64(f.m.nodes[i*16+8:], uint64(nulls))
}

func (f *forge) setBuffer(i int, off, length int64) {
	binary.LittleEndian.PutUint64(f.m.buffers[i*16:], uint64(off))
	binary.LittleEndian.PutUint64(f.m.buffers[i*16+8:], uint64(length))
}

func (f *forge) data(i int) []byte {
	off, length := f.m.buffer(i)
	return f.body[off : off+length]
}

func (f *forge) bytes() ([]byte, []byte) {
	if f.meta != nil {
		return f.meta, f.body
	}
	return appendMessage(nil, f.m.rows, f.m.bodyLen, f.m.codec, f.m.nodes, f.m.buffers), f.body
}

func TestCheckRefuses(t *testing.T) {
	put32 := func(b []byte, i int, v uint32) { binary.LittleEndian.PutUint32(b[4*i:], v) }
	for _, c := range []struct {
		name string
		kind record.Kind
		do   func(*forge)
	}{
		{"no flatbuffer", record.KindCorrupt, func(f *forge) { f.meta = []byte{} }},
		{"garbage", record.KindCorrupt, func(f *forge) { f.meta = bytes.Repeat([]byte{0xff}, 200) }},
		{"cut flatbuffer", record.KindCorrupt, func(f *forge) { m, _ := f.bytes(); f.meta = m[:len(m)-8] }},
		{"dictionary batch", record.KindUnsupported, func(f *forge) { f.meta, _ = f.bytes(); f.meta[34] = headerDictionary }},
		{"schema message", record.KindInvalidRecord, func(f *forge) { f.meta, _ = f.bytes(); f.meta[34] = headerSchema }},
		{"metadata V4", record.KindUnsupported, func(f *forge) { f.meta, _ = f.bytes(); f.meta[32] = 3 }},
		{"unknown codec", record.KindUnsupported, func(f *forge) { f.m.codec = 7 }},
		{"body shorter", record.KindCorrupt, func(f *forge) { f.body = f.body[:len(f.body)-8] }},
		{"negative rows", record.KindInvalidRecord, func(f *forge) { f.m.rows = -1 }},
		{"a node less", record.KindSchema, func(f *forge) { f.m.nodes = f.m.nodes[16:] }},
		{"a buffer more", record.KindSchema, func(f *forge) { f.m.buffers = append(f.m.buffers, make([]byte, 16)...) }},
		{"buffer past the body", record.KindCorrupt, func(f *forge) { f.setBuffer(1, 8, int64(len(f.body))) }},
		{"buffer overflow", record.KindCorrupt, func(f *forge) { f.setBuffer(1, 8, 1<<63-8) }},
		{"buffer offset negative", record.KindCorrupt, func(f *forge) { f.setBuffer(1, -8, 80) }},
		{"buffer not aligned", record.KindInvalidRecord, func(f *forge) { f.setBuffer(1, 4, 80) }},
		{"values too short", record.KindInvalidRecord, func(f *forge) { f.setBuffer(1, 0, 72) }},
		{"column shorter than rows", record.KindInvalidRecord, func(f *forge) { f.setNode(0, 9, 0) }},
		{"column longer than rows", record.KindInvalidRecord, func(f *forge) { f.setNode(1, 11, 1) }},
		{"null count negative", record.KindInvalidRecord, func(f *forge) { f.setNode(1, 10, -1) }},
		{"null count above", record.KindInvalidRecord, func(f *forge) { f.setNode(1, 10, 11) }},
		{"null count untrue", record.KindInvalidRecord, func(f *forge) { f.setNode(1, 10, 2) }},
		{"nulls without bitmap", record.KindInvalidRecord, func(f *forge) { f.setBuffer(2, 0, 0) }},
		{"bitmap too short", record.KindInvalidRecord, func(f *forge) { off, _ := f.m.buffer(2); f.setBuffer(2, off, 1) }},
		{"null in NOT NULL", record.KindSchema, func(f *forge) { off, n := f.m.buffer(2); f.setBuffer(0, off, n); f.setNode(0, 10, 1) }},
		{"null in a NOT NULL field of a present row", record.KindSchema, func(f *forge) {
			f.setBuffer(5, 0, 0)
			f.setNode(2, 10, 0)
		}},
		{"offsets fall", record.KindInvalidRecord, func(f *forge) { put32(f.data(3), 2, 0); put32(f.data(3), 1, 3) }},
		{"offset negative", record.KindInvalidRecord, func(f *forge) { put32(f.data(3), 0, 1<<31) }},
		{"last offset past the text", record.KindInvalidRecord, func(f *forge) { put32(f.data(3), 10, 1<<20) }},
		{"offsets too short", record.KindInvalidRecord, func(f *forge) { off, _ := f.m.buffer(3); f.setBuffer(3, off, 40) }},
		{"list past its items", record.KindInvalidRecord, func(f *forge) { put32(f.data(9), 10, 1000) }},
		{"list items too few", record.KindInvalidRecord, func(f *forge) { f.setNode(5, 8, 0) }},
		{"not UTF-8", record.KindInvalidRecord, func(f *forge) { f.data(4)[0] = 0xff }},
		{"cut inside a character", record.KindInvalidRecord, func(f *forge) { put32(f.data(3), 1, 2) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newForge(t)
			c.do(f)
			meta, body := f.bytes()
			_, err := NewChecker(DefaultMaxBytes).Check(layoutOf(t, small), meta, body)
			var be *record.BatchError
			if !errors.As(err, &be) || be.Kind != c.kind {
				t.Fatalf("got %v, want %s", err, c.kind)
			}
		})
	}
}

// A time is within its day and a decimal within its digits, unless the row is null.
func TestCheckRefusesOutOfDomain(t *testing.T) {
	const day = 24 * 60 * 60
	dec := &arrow.Decimal128Type{Precision: 3, Scale: 1}
	for _, c := range []struct {
		typ arrow.DataType
		set func(array.Builder)
		ok  bool
	}{
		{arrow.FixedWidthTypes.Time32s, func(b array.Builder) { b.(*array.Time32Builder).Append(day - 1) }, true},
		{arrow.FixedWidthTypes.Time32s, func(b array.Builder) { b.(*array.Time32Builder).Append(day) }, false},
		{arrow.FixedWidthTypes.Time32ms, func(b array.Builder) { b.(*array.Time32Builder).Append(day*1000 - 1) }, true},
		{arrow.FixedWidthTypes.Time32ms, func(b array.Builder) { b.(*array.Time32Builder).Append(-1) }, false},
		{arrow.FixedWidthTypes.Time64us, func(b array.Builder) { b.(*array.Time64Builder).Append(day*1e6 - 1) }, true},
		{arrow.FixedWidthTypes.Time64us, func(b array.Builder) { b.(*array.Time64Builder).Append(day * 1e6) }, false},
		{arrow.FixedWidthTypes.Time64ns, func(b array.Builder) { b.(*array.Time64Builder).Append(day*1e9 - 1) }, true},
		{arrow.FixedWidthTypes.Time64ns, func(b array.Builder) { b.(*array.Time64Builder).Append(-1) }, false},
		{dec, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(-999)) }, true},
		{dec, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(1000)) }, false},
		{dec, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(-1000)) }, false},
		{dec, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.New(-1<<63, 0)) }, false},
		{dec, func(b array.Builder) { b.AppendNull() }, true},
	} {
		s := arrow.NewSchema([]arrow.Field{field("a", c.typ)}, nil)
		b := array.NewRecordBuilder(memory.NewGoAllocator(), s)
		c.set(b.Field(0))
		meta, body, err := Encode(b.NewRecordBatch())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewChecker(DefaultMaxBytes).Check(layoutOf(t, s), meta, body); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.typ, err)
		}
	}
}

func TestCheckRefusesInsideCompression(t *testing.T) {
	l := layoutOf(t, small)
	for name, opts := range compressions {
		if opts == nil {
			continue
		}
		// Break the plain rows, then compress: arrow-go does not look.
		rows := smallRows()
		text := rows.Column(1).Data()
		binary.LittleEndian.PutUint32(text.Buffers()[1].Bytes()[4*5:], 1)
		meta, body, err := Encode(rows, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewChecker(DefaultMaxBytes).Check(l, meta, body); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: falling offsets: %v", name, err)
		}
		f := newForge(t, opts...)
		meta, body = f.bytes()
		if _, err := NewChecker(100).Check(l, meta, body); !errors.Is(err, mink.ErrTooLarge) {
			t.Errorf("%s: 100 bytes: %v", name, err)
		}
		binary.LittleEndian.PutUint64(f.data(1), 81) // one more than it expands to
		if _, err := NewChecker(DefaultMaxBytes).Check(l, meta, body); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: wrong length: %v", name, err)
		}
		binary.LittleEndian.PutUint64(f.data(1), 1<<40)
		if _, err := NewChecker(DefaultMaxBytes).Check(l, meta, body); !errors.Is(err, mink.ErrTooLarge) {
			t.Errorf("%s: 1 TiB: %v", name, err)
		}
	}
}

func TestCheckAllocations(t *testing.T) {
	l := layoutOf(t, small)
	c := NewChecker(DefaultMaxBytes)
	for name, opts := range compressions {
		if name == "lz4" {
			continue // the lz4 reader allocates per frame, from pools
		}
		f := newForge(t, opts...)
		meta, body := f.bytes()
		// The least of some measurements: a collection empties the pools, while an
		// allocation of our own would be in each of them.
		n := math.Inf(1)
		for range 5 {
			n = min(n, testing.AllocsPerRun(20, func() {
				if _, err := c.Check(l, meta, body); err != nil {
					t.Fatal(err)
				}
			}))
		}
		if n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
