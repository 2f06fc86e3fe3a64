package keyenc

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// keyTypes is every type that a key can have, with each width of TIME.
var keyTypes = []string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(38,4)", "CHAR(20)", "STRING", "BINARY(3)", "BYTES",
	"DATE", "TIME(0)", "TIME(3)", "TIME(6)", "TIME(9)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(3)"}

// genValue draws a value, edges often.
func genValue(typ schema.Type) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		nasty := rapid.SampledFrom([]byte{0, 0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 0xff, 'a'})
		switch typ.Kind {
		case schema.Boolean:
			return rapid.Bool().Draw(t, "v")
		case schema.TinyInt:
			return rapid.Int8().Draw(t, "v")
		case schema.SmallInt:
			return rapid.Int16().Draw(t, "v")
		case schema.Int:
			return rapid.Int32().Draw(t, "v")
		case schema.BigInt:
			return rapid.Int64().Draw(t, "v")
		case schema.Float:
			return rapid.OneOf(rapid.Float32(), rapid.SampledFrom([]float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.SmallestNonzeroFloat32, -math.MaxFloat32})).Draw(t, "v")
		case schema.Double:
			return rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, -math.MaxFloat64})).Draw(t, "v")
		case schema.Decimal:
			high := rapid.OneOf(rapid.SampledFrom([]int64{0, -1}), rapid.Int64()).Draw(t, "high")
			return decimal128.New(high, rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, math.MaxUint64})).Draw(t, "low"))
		case schema.Char, schema.String:
			return rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune{0, 1, 'a', 0xff, 0x10ffff}), 0, 6, -1)).Draw(t, "v")
		case schema.Binary:
			return rapid.SliceOfN(nasty, typ.Length, typ.Length).Draw(t, "v")
		case schema.Bytes:
			return rapid.SliceOfN(nasty, 0, 6).Draw(t, "v")
		case schema.Date:
			return arrow.Date32(rapid.Int32().Draw(t, "v"))
		case schema.Time:
			if typ.Precision <= 3 {
				return arrow.Time32(rapid.Int32().Draw(t, "v"))
			}
			return arrow.Time64(rapid.Int64().Draw(t, "v"))
		}
		return arrow.Timestamp(rapid.Int64().Draw(t, "v"))
	})
}

// compare is the order of values that the bytes must have.
func compare(a, b any) int {
	switch a := a.(type) {
	case bool:
		return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) // "false" < "true"
	case int8:
		return cmp.Compare(a, b.(int8))
	case int16:
		return cmp.Compare(a, b.(int16))
	case int32:
		return cmp.Compare(a, b.(int32))
	case int64:
		return cmp.Compare(a, b.(int64))
	case float32:
		return compareFloat(float64(a), float64(b.(float32)))
	case float64:
		return compareFloat(a, b.(float64))
	case decimal128.Num:
		return a.BigInt().Cmp(b.(decimal128.Num).BigInt())
	case string:
		return strings.Compare(a, b.(string))
	case []byte:
		return bytes.Compare(a, b.([]byte))
	case arrow.Date32:
		return cmp.Compare(a, b.(arrow.Date32))
	case arrow.Time32:
		return cmp.Compare(a, b.(arrow.Time32))
	case arrow.Time64:
		return cmp.Compare(a, b.(arrow.Time64))
	case arrow.Timestamp:
		return cmp.Compare(a, b.(arrow.Timestamp))
	}
	panic(fmt.Sprintf("%T", a))
}

func compareFloat(a, b float64) int { // NaN above all, unlike cmp.Compare
	switch {
	case math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a):
		return 1
	case math.IsNaN(b):
		return -1
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func encode(t interface{ Fatal(...any) }, types []schema.Type, values []any) []byte {
	key, err := Encode(types, values)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func genTypes(max int) *rapid.Generator[[]schema.Type] {
	one := rapid.Map(rapid.SampledFrom(keyTypes), schema.MustParseType)
	return rapid.SliceOfN(one, 1, max)
}

func draw(t *rapid.T, types []schema.Type) []any {
	values := make([]any, len(types))
	for i, typ := range types {
		values[i] = genValue(typ).Draw(t, typ.String())
	}
	return values
}

func TestOrderRoundTripAndPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		types := genTypes(3).Draw(t, "types")
		a, b := draw(t, types), draw(t, types)
		same := rapid.IntRange(0, len(types)).Draw(t, "same") // share a prefix, so that later columns decide
		copy(b, a[:same])
		ka, kb := encode(t, types, a), encode(t, types, b)
		want := 0
		for i := range types {
			if want = compare(a[i], b[i]); want != 0 {
				break
			}
		}
		if got := bytes.Compare(ka, kb); got != want {
			t.Fatalf("%v: %v against %v: bytes say %d, values %d\n%x\n%x", types, a, b, got, want, ka, kb)
		}
		decoded, err := Decode(types, ka)
		if err != nil {
			t.Fatal(err)
		}
		for i := range types {
			if compare(decoded[i], a[i]) != 0 || fmt.Sprintf("%T", decoded[i]) != fmt.Sprintf("%T", a[i]) {
				t.Fatalf("%v: %v decodes as %v", types, a, decoded)
			}
		}
		if again := encode(t, types, decoded); !bytes.Equal(again, ka) {
			t.Fatalf("%x encodes again as %x", ka, again)
		}
		// The key of leading columns is a prefix, and a range holds exactly its keys.
		n := rapid.IntRange(0, len(types)).Draw(t, "prefix")
		prefix := encode(t, types, a[:n])
		if !bytes.HasPrefix(ka, prefix) {
			t.Fatalf("%x is no prefix of %x", prefix, ka)
		}
		leading := true
		for i := range n {
			leading = leading && compare(a[i], b[i]) == 0
		}
		end := PrefixEnd(prefix)
		inRange := bytes.Compare(kb, prefix) >= 0 && (end == nil || bytes.Compare(kb, end) < 0)
		if inRange != leading || bytes.HasPrefix(kb, prefix) != leading {
			t.Fatalf("%v: prefix %v, key %v: in range %v, want %v", types, a[:n], b, inRange, leading)
		}
	})
}

// The bytes are stored and hashed for ever: they may not change.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		typ  string
		v    any
		want string
	}{
		{"BOOLEAN", true, "01"}, {"BOOLEAN", false, "00"},
		{"TINYINT", int8(-1), "7f"}, {"SMALLINT", int16(1), "8001"}, {"INT", int32(-2), "7ffffffe"}, {"BIGINT", int64(34), "8000000000000022"},
		{"FLOAT", float32(1), "bf800000"}, {"FLOAT", float32(-1), "407fffff"}, {"FLOAT", float32(math.NaN()), "ffc00000"}, {"FLOAT", float32(math.Copysign(0, -1)), "80000000"},
		{"DOUBLE", 1.0, "bff0000000000000"}, {"DOUBLE", math.Inf(-1), "000fffffffffffff"}, {"DOUBLE", math.NaN(), "fff8000000000000"},
		{"DECIMAL(9,2)", decimal128.FromI64(1420), "8000000000000000000000000000058c"}, {"DECIMAL(9,2)", decimal128.FromI64(-1), "7fffffffffffffffffffffffffffffff"},
		{"STRING", "a\x00b", "6100ff620001"}, {"CHAR(3)", "", "0001"}, {"BYTES", []byte{0xff}, "ff0001"}, {"BINARY(2)", []byte{0, 1}, "0001"},
		{"DATE", arrow.Date32(0), "80000000"}, {"TIME(0)", arrow.Time32(1), "80000001"}, {"TIME(9)", arrow.Time64(1), "8000000000000001"},
		{"TIMESTAMP(3)", arrow.Timestamp(-1), "7fffffffffffffff"}, {"TIMESTAMP_LTZ(6)", arrow.Timestamp(1), "8000000000000001"},
	} {
		got, err := AppendValue(nil, schema.MustParseType(c.typ), c.v)
		if err != nil || hex.EncodeToString(got) != c.want {
			t.Errorf("%s %v: %x, %v, want %s", c.typ, c.v, got, err, c.want)
		}
	}
}

func TestAppendValueRefuses(t *testing.T) {
	for _, text := range append(keyTypes, "ARRAY<INT>") {
		typ := schema.MustParseType(text)
		for _, v := range []any{nil, 7, uint8(1), struct{}{}} {
			if _, err := AppendValue(nil, typ, v); !errors.Is(err, mink.ErrInvalid) {
				t.Errorf("%s %T: %v", text, v, err)
			}
		}
		for _, other := range keyTypes {
			o := schema.MustParseType(other)
			v := genValue(o).Example(1)
			_, err := AppendValue(nil, typ, v)
			want, wantErr := AppendValue(nil, o, v)
			if wantErr != nil {
				t.Fatal(wantErr)
			}
			fits := typ.Arrow().ID() == o.Arrow().ID() && (typ.Kind != schema.Binary || len(v.([]byte)) == typ.Length)
			if typ.Kind == schema.Binary && o.Kind == schema.Bytes || typ.Kind == schema.Bytes && o.Kind == schema.Binary {
				continue // both []byte
			}
			if (err == nil) != fits {
				t.Errorf("value of %s as %s: %v (%x)", other, text, err, want)
			}
		}
	}
	if _, err := AppendValue(nil, schema.MustParseType("BINARY(2)"), []byte{1}); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
	if _, err := Encode(nil, []any{1}); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ typ, key string }{
		{"BOOLEAN", "02"}, {"BOOLEAN", ""}, {"INT", "800000"}, {"INT", "8000000000"}, {"STRING", "61"}, {"STRING", "6100"}, {"STRING", "610002"}, {"STRING", "610003"},
		{"STRING", "ff0001"}, {"BYTES", "00ff"}, {"FLOAT", "7fffffff"}, {"FLOAT", "ffc00001"}, {"FLOAT", "00000000"}, {"DOUBLE", "7fffffffffffffff"}, {"BINARY(3)", "0001"},
	} {
		key, err := hex.DecodeString(c.key)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := Decode([]schema.Type{schema.MustParseType(c.typ)}, key); !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("%s %s: %v, %v", c.typ, c.key, v, err)
		}
	}
	if _, err := Decode([]schema.Type{schema.MustParseType("ARRAY<INT>")}, []byte{1}); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(uint8(0), []byte{1})
	f.Add(uint8(8), []byte("a\x00\xffb\x00\x01"))
	f.Add(uint8(5), []byte{0xff, 0xc0, 0, 0})
	f.Fuzz(func(t *testing.T, which uint8, key []byte) {
		types := []schema.Type{schema.MustParseType(keyTypes[int(which)%len(keyTypes)])}
		values, err := Decode(types, key)
		if err != nil {
			if !errors.Is(err, mink.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if again := encode(t, types, values); !bytes.Equal(again, key) {
			t.Fatalf("%x decodes to %v, which encodes as %x", key, values, again)
		}
	})
}

// batch makes a record batch with one column per type and row.
func batch(t testing.TB, mem memory.Allocator, s *schema.Schema, rows [][]any) arrow.RecordBatch {
	t.Helper()
	b := array.NewRecordBuilder(mem, s.Arrow())
	defer b.Release()
	for _, row := range rows {
		for i, v := range row {
			appendTo(b.Field(i), v)
		}
	}
	return b.NewRecordBatch()
}

func appendTo(b array.Builder, v any) {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(v.(bool))
	case *array.Int8Builder:
		b.Append(v.(int8))
	case *array.Int16Builder:
		b.Append(v.(int16))
	case *array.Int32Builder:
		b.Append(v.(int32))
	case *array.Int64Builder:
		b.Append(v.(int64))
	case *array.Float32Builder:
		b.Append(v.(float32))
	case *array.Float64Builder:
		b.Append(v.(float64))
	case *array.Decimal128Builder:
		b.Append(v.(decimal128.Num))
	case *array.StringBuilder:
		b.Append(v.(string))
	case *array.BinaryBuilder:
		b.Append(v.([]byte))
	case *array.FixedSizeBinaryBuilder:
		b.Append(v.([]byte))
	case *array.Date32Builder:
		b.Append(v.(arrow.Date32))
	case *array.Time32Builder:
		b.Append(v.(arrow.Time32))
	case *array.Time64Builder:
		b.Append(v.(arrow.Time64))
	case *array.TimestampBuilder:
		b.Append(v.(arrow.Timestamp))
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

// Rows of Arrow batches, sliced or not, encode as their values do.
func TestEncoderAgreesWithValues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		types := genTypes(4).Draw(rt, "types")
		s := &schema.Schema{}
		var names []string
		for i, typ := range types {
			names = append(names, fmt.Sprint("c", i))
			s.Columns = append(s.Columns, schema.Column{Name: names[i], Type: typ})
		}
		rows := make([][]any, rapid.IntRange(1, 9).Draw(rt, "rows"))
		for i := range rows {
			rows[i] = draw(rt, types)
		}
		mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
		defer mem.AssertSize(t, 0)
		whole := batch(t, mem, s, rows)
		defer whole.Release()
		from := rapid.IntRange(0, len(rows)-1).Draw(rt, "from")
		rec := whole.NewSlice(int64(from), int64(len(rows)))
		defer rec.Release()
		e, err := New(s, names)
		if err != nil {
			rt.Fatal(err)
		}
		if err := e.Bind(rec); err != nil {
			rt.Fatal(err)
		}
		for i, row := range rows[from:] {
			if got, want := e.Append(nil, i), encode(rt, e.Types(), row); !bytes.Equal(got, want) {
				rt.Fatalf("%v: %x, want %x", row, got, want)
			}
		}
	})
}

func TestBindRefuses(t *testing.T) {
	s := &schema.Schema{Columns: []schema.Column{{Name: "k", Type: schema.MustParseType("INT")}, {Name: "a", Type: schema.MustParseType("ARRAY<INT>")}}}
	for _, names := range [][]string{{"x"}, {"a"}} {
		if _, err := New(s, names); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%v: %v", names, err)
		}
	}
	e, err := New(s, []string{"k"})
	if err != nil {
		t.Fatal(err)
	}
	for want, build := range map[string]func() arrow.RecordBatch{
		`row 1 has null in key column "k"`: func() arrow.RecordBatch {
			b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "k", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}, nil))
			b.Field(0).(*array.Int32Builder).AppendValues([]int32{1, 2}, []bool{true, false})
			return b.NewRecordBatch()
		},
		`key column "k" is INT, which needs the Arrow type int32; got int64`: func() arrow.RecordBatch {
			return array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "k", Type: arrow.PrimitiveTypes.Int64}}, nil)).NewRecordBatch()
		},
		`key column "k" occurs 0 times`: func() arrow.RecordBatch {
			return array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(nil, nil)).NewRecordBatch()
		},
	} {
		if err := e.Bind(build()); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	s := &schema.Schema{}
	var names []string
	var row []any
	for i, text := range keyTypes {
		typ := schema.MustParseType(text)
		names = append(names, fmt.Sprint("c", i))
		s.Columns = append(s.Columns, schema.Column{Name: names[i], Type: typ})
		row = append(row, genValue(typ).Example(7))
	}
	rec := batch(t, memory.DefaultAllocator, s, [][]any{row})
	e, err := New(s, names)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Bind(rec); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = e.Append(buf[:0], 0) }); n != 0 {
		t.Errorf("%v allocations per row", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	s := &schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("BIGINT")}, {Name: "b", Type: schema.MustParseType("STRING")}}}
	rec := batch(b, memory.DefaultAllocator, s, [][]any{{int64(7), "customer-000042"}})
	e, err := New(s, []string{"a", "b"})
	if err != nil {
		b.Fatal(err)
	}
	if err := e.Bind(rec); err != nil {
		b.Fatal(err)
	}
	var buf []byte
	for b.Loop() {
		buf = e.Append(buf[:0], 0)
	}
}
