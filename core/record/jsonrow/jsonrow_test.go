package jsonrow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

func named(name, mink string, t arrow.DataType, nullable bool) arrow.Field {
	f := arrow.Field{Name: name, Type: t, Nullable: nullable}
	if mink != "" {
		f.Metadata = arrow.NewMetadata([]string{metaType}, []string{mink})
	}
	return f
}

func col(name string, t arrow.DataType) arrow.Field { return named(name, "", t, true) }

// every has each type of a table, as schema.Schema.Arrow writes it.
var every = arrow.NewSchema([]arrow.Field{
	named("id", "BIGINT NOT NULL", arrow.PrimitiveTypes.Int64, false),
	col("b", arrow.FixedWidthTypes.Boolean),
	col("i8", arrow.PrimitiveTypes.Int8), col("i16", arrow.PrimitiveTypes.Int16), col("i32", arrow.PrimitiveTypes.Int32),
	col("f", arrow.PrimitiveTypes.Float32), col("d", arrow.PrimitiveTypes.Float64),
	col("dec", &arrow.Decimal128Type{Precision: 10, Scale: 2}), col("big", &arrow.Decimal128Type{Precision: 38, Scale: 0}),
	named("ch", "CHAR(3)", arrow.BinaryTypes.String, true), col("s", arrow.BinaryTypes.String),
	col("bin", &arrow.FixedSizeBinaryType{ByteWidth: 3}), col("by", arrow.BinaryTypes.Binary),
	col("day", arrow.FixedWidthTypes.Date32),
	col("t0", &arrow.Time32Type{Unit: arrow.Second}), col("t3", &arrow.Time32Type{Unit: arrow.Millisecond}),
	col("t6", &arrow.Time64Type{Unit: arrow.Microsecond}), col("t9", &arrow.Time64Type{Unit: arrow.Nanosecond}),
	col("ts0", &arrow.TimestampType{Unit: arrow.Second}), col("ts3", &arrow.TimestampType{Unit: arrow.Millisecond}),
	col("ts6", &arrow.TimestampType{Unit: arrow.Microsecond}), col("ts9", &arrow.TimestampType{Unit: arrow.Nanosecond}),
	col("tz", &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}),
	col("l", arrow.ListOf(arrow.PrimitiveTypes.Int64)),
	col("m", arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32)),
	col("mi", arrow.MapOf(arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String)),
	col("r", arrow.StructOf(named("x", "INT NOT NULL", arrow.PrimitiveTypes.Int32, false),
		col("l", arrow.ListOf(arrow.StructOf(col("k", arrow.BinaryTypes.String), col("v", arrow.PrimitiveTypes.Float64)))))),
}, nil)

// rowsOf reads objects; nil and the error of the first bad one.
func rowsOf(s *arrow.Schema, objects ...string) (arrow.RecordBatch, error) {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	r := New(s).NewReader()
	for _, o := range objects {
		check := r.Check([]byte(o))
		if r.Fits([]byte(o)) != (check == nil) {
			return nil, fmt.Errorf("check says %w, fits does not", check)
		}
		if err := r.Append(b, []byte(o)); err != nil || check != nil {
			if fmt.Sprint(check) != fmt.Sprint(err) {
				return nil, fmt.Errorf("check says %w, append says %w", check, err)
			}
			return nil, err
		}
	}
	return b.NewRecordBatch(), nil
}

func textOf(rows arrow.RecordBatch) []string {
	var out []string
	for i := range int(rows.NumRows()) {
		out = append(out, string(AppendObject(nil, rows.Schema().Fields(), rows.Columns(), i)))
	}
	return out
}

const (
	full = `{"id":-9223372036854775808,"b":true,"i8":-128,"i16":32767,"i32":-2147483648,"f":0.1,"d":1e+300,` +
		`"dec":"-12345678.90","big":"99999999999999999999999999999999999999","ch":"äöü","s":"a\"\\\n\u0001é😀","bin":"AAEC","by":"/w==",` +
		`"day":"1969-12-31","t0":"23:59:59","t3":"00:00:00.001","t6":"12:34:56.789012","t9":"00:00:00.000000001",` +
		`"ts0":"0000-01-01T00:00:00","ts3":"9999-12-31T23:59:59.999","ts6":"1969-12-31T23:59:59.999999","ts9":"1677-09-21T00:12:43.145224192","tz":"2024-02-29T12:00:00.5Z",` +
		`"l":[1,null,-9007199254740993],"m":[{"key":"k","value":1},{"key":"l","value":null}],"mi":[{"key":7,"value":"x"}],` +
		`"r":{"x":1,"l":[{"k":null,"v":"NaN"},null,{"k":"","v":-0}]}}`
	nulls = `{"id":9223372036854775807,"b":null,"i8":null,"i16":null,"i32":null,"f":null,"d":null,"dec":null,"big":null,"ch":null,"s":null,"bin":null,"by":null,` +
		`"day":null,"t0":null,"t3":null,"t6":null,"t9":null,"ts0":null,"ts3":null,"ts6":null,"ts9":null,"tz":null,"l":null,"m":null,"mi":null,"r":null}`
)

// What is written is what was read: every type, its extremes, and null.
func TestEveryTypeRoundTrips(t *testing.T) {
	for range 2 {
		rows, err := rowsOf(every, full, nulls)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Release()
		if got := textOf(rows); got[0] != full || got[1] != nulls {
			t.Fatalf("got\n%s\n%s\nwant\n%s\n%s", got[0], got[1], full, nulls)
		}
	}
	absent, err := rowsOf(every, `{"id":9223372036854775807}`)
	if err != nil || textOf(absent)[0] != nulls {
		t.Fatalf("absent columns are not null: %v", err)
	}
}

// Arrow's own reader, where it is exact, reads the same values.
func TestSameAsArrow(t *testing.T) {
	rows, err := rowsOf(every, full, nulls)
	if err != nil {
		t.Fatal(err)
	}
	theirs, _, err := array.RecordFromJSON(memory.DefaultAllocator, every, strings.NewReader("["+full+","+nulls+"]"))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range every.Fields() {
		if f.Name == "r" { // it holds NaN
			continue
		}
		if !array.Equal(rows.Column(i), theirs.Column(i)) {
			t.Errorf("column %s: %s, Arrow reads %s", f.Name, rows.Column(i), theirs.Column(i))
		}
	}
}

// Other spellings of the same values.
func TestSpellings(t *testing.T) {
	for _, c := range []struct{ column, in, want string }{
		{"id", ` 1e3 `, "1000"}, {"id", `"7"`, "7"}, {"id", "2.0", "2"}, {"id", "9223372036854775807", "9223372036854775807"},
		{"dec", "1.5", `"1.50"`}, {"dec", "-0.01", `"-0.01"`}, {"dec", "12E-1", `"1.20"`}, {"dec", "1.2300", `"1.23"`}, {"dec", "0", `"0.00"`},
		{"dec", "99999999.99", `"99999999.99"`}, {"dec", "000.5", "!"}, {"dec", `"000.5"`, `"0.50"`}, {"dec", `".5"`, `"0.50"`}, {"dec", `"5."`, `"5.00"`},
		{"s", `"\u00e9\ud83d\ude00\/"`, `"é😀/"`}, {"s", `""`, `""`}, {"s", `"\u2028"`, `"\u2028"`}, {"s", `"(null)"`, `"(null)"`},
		{"t0", `"07:05"`, `"07:05:00"`}, {"t3", `"07:05:00.120000000"`, `"07:05:00.12"`},
		{"ts3", `"2026-01-31"`, `"2026-01-31T00:00:00"`}, {"ts3", `"2026-01-31 07"`, `"2026-01-31T07:00:00"`}, {"ts0", `"2026-01-31T07:05:09.000"`, `"2026-01-31T07:05:09"`},
		{"tz", `"2026-01-31T00:30:00+01:00"`, `"2026-01-30T23:30:00Z"`}, {"tz", `"2026-01-31T00:30:00.000001-0530"`, `"2026-01-31T06:00:00.000001Z"`},
		{"tz", `"2026-01-31T00+00"`, `"2026-01-31T00:00:00Z"`}, {"tz", `"2026-01-31T00:00:00+00:00:01"`, `"2026-01-30T23:59:59Z"`},
		{"m", `{"a":1,"b":null,"a":2}`, `[{"key":"a","value":1},{"key":"b","value":null},{"key":"a","value":2}]`}, {"m", `{}`, `[]`},
		{"m", `[{"value":1,"key":"a"}]`, `[{"key":"a","value":1}]`},
		{"d", `"-Inf"`, `"-Inf"`}, {"d", "1e-9", "1e-9"}, {"f", "16777217", "16777216"}, {"b", `"false"`, "false"},
		{"r", `{"l":[ ],"x":1}`, `{"x":1,"l":[]}`},
	} {
		object := `{"id":1,"` + c.column + `":` + c.in + `}`
		if c.column == "id" {
			object = `{"id":` + c.in + `}`
		}
		rows, err := rowsOf(every, object)
		if c.want == "!" {
			if err == nil {
				t.Errorf("%s of %s was taken", c.column, c.in)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %s: %v", c.column, c.in, err)
			continue
		}
		i := every.FieldIndices(c.column)[0]
		if got := string(AppendValue(nil, rows.Column(i), 0)); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.column, c.in, got, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	deep := strings.Repeat("[", 100_000)
	for _, c := range []struct{ in, want string }{
		{``, "there is nothing"}, {`  `, "there is nothing"}, {`null`, "want a JSON object, it begins with"}, {`[1]`, "want a JSON object"}, {`"{}"`, "want a JSON object"},
		{`{}`, `column "id" is NOT NULL and has no value`}, {`{"id":null}`, `column "id" is NOT NULL and has no value`},
		{`{"id":1}x`, "the end must be"}, {`{"id":1} {}`, "the end must be"}, {`{"id":1,}`, "a name in quotes"}, {`{"id":1`, "it ends where a comma"},
		{`{"id" 1}`, "a colon"}, {`{id:1}`, "a name in quotes"}, {"{\"id\":1}\x00", "the end must be"}, {"\ufeff{\"id\":1}", "want a JSON object"},
		{`{"id":1,"id":1}`, `"id" occurs twice`}, {`{"id":1,"\u0069d":1}`, `"id" occurs twice`}, {`{"id":1,"r":{"x":1,"x":2}}`, `"x" occurs twice`},
		{`{"id":1,"ID":1}`, `the table has no column "ID"; it has id, b, i8`}, {`{"id":1,"r":{"x":1,"y":1}}`, `there is no field "y"; it has x, l`},
		{`{"id":01}`, "no JSON"}, {`{"id":+1}`, "no JSON"}, {`{"id":1.}`, "a digit"}, {`{"id":.5}`, "no JSON"}, {`{"id":1e}`, "a digit"}, {`{"id":-}`, "no JSON"},
		{`{"id":NaN}`, "no JSON"}, {`{"id":nul}`, "no JSON"}, {`{"id":true}`, "want a whole number"}, {`{"id":1,"b":tru}`, "no JSON"}, {`{"id":1,"b":1}`, "want true or false"},
		{`{"id":9223372036854775808}`, "column \"id\" is BIGINT NOT NULL: cannot read 9223372036854775808: want a whole number from -9223372036854775808"},
		{`{"id":1.5}`, "want a whole number"}, {`{"id":1e400}`, "want a whole number"}, {`{"id":1,"i8":128}`, "from -128 to 127"}, {`{"id":1,"i8":-129.0}`, "from -128 to 127"},
		{`{"id":1,"i16":1e5}`, "want a whole number"}, {`{"id":1,"d":1e999}`, "want a number"}, {`{"id":1,"f":1e39}`, "want a number"},
		{`{"id":1,"dec":0.001}`, "more than 2 digits after the point"}, {`{"id":1,"dec":100000000}`, "more than 8 digits before"}, {`{"id":1,"dec":1e99999}`, "exponent"},
		{`{"id":1,"big":1e38}`, "digits before"}, {`{"id":1,"dec":"1_0"}`, "want a number"}, {`{"id":1,"dec":""}`, "want a number"}, {`{"id":1,"dec":"-"}`, "want a number"},
		{`{"id":1,"ch":"abcd"}`, "it has 4 characters, CHAR(3) takes 3"}, {`{"id":1,"s":1}`, "want text in quotes"}, {`{"id":1,"s":"` + "\xff" + `"}`, "not UTF-8"},
		{`{"id":1,"s":"\n` + "\xff" + `"}`, "not UTF-8"}, {`{"id":1,"s":"\ud800"}`, "stands for no character"}, {`{"id":1,"s":"\ud800\u0041"}`, "stands for no character"},
		{`{"id":1,"s":"\udc00"}`, "stands for no character"}, {`{"id":1,"s":"\u12g4"}`, "stands for no character"}, {`{"id":1,"s":"\u12`, "stands for no character"},
		{`{"id":1,"s":"\x"}`, "an escape"}, {"{\"id\":1,\"s\":\"a\tb\"}", "control characters"}, {"{\"id\":1,\"s\":\"\\n\t\"}", "control characters"}, {`{"id":1,"s":"abc`, "closing quote"},
		{`{"id":1,"bin":"AAE="}`, "base64 of exactly 3"}, {`{"id":1,"by":"*"}`, "want base64"}, {`{"id":1,"by":"AA"}`, "want base64"},
		{`{"id":1,"day":20260131}`, "want a date"}, {`{"id":1,"day":"2026-02-29"}`, "want a date"}, {`{"id":1,"day":"2026-1-31"}`, "want a date"}, {`{"id":1,"day":"2026-01-31T00"}`, "want a date"},
		{`{"id":1,"t0":"24:00:00"}`, "want a time"}, {`{"id":1,"t0":"7:05:00"}`, "want a time"}, {`{"id":1,"t0":"07:05:00.1"}`, "want a time"}, {`{"id":1,"t3":"07:05:00.1234"}`, "want a time"},
		{`{"id":1,"t9":"07:05:00.0000000000"}`, "want a time"}, {`{"id":1,"t3":"07:05:60"}`, "want a time"}, {`{"id":1,"t3":"07"}`, "want a time"}, {`{"id":1,"t3":"07:05:00."}`, "want a time"},
		{`{"id":1,"ts3":1700000000000}`, "want a time"}, {`{"id":1,"ts3":"1700000000000"}`, "want a time"}, {`{"id":1,"ts3":"2026-01-31T07:05:00Z"}`, "want a time"},
		{`{"id":1,"tz":"2026-01-31T07:05:00"}`, "want a time such as 2026-01-31T07:05:00Z"}, {`{"id":1,"tz":"2026-01-31"}`, "want a time"}, {`{"id":1,"tz":"2026-01-31T07:05:00+1"}`, "want a time"},
		{`{"id":1,"tz":"2026-01-31T07:05:00+24"}`, "want a time"}, {`{"id":1,"ts9":"2262-04-11T23:47:16.854775808"}`, "want a time"}, {`{"id":1,"ts9":"1677-09-21T00:12:43.145224191"}`, "want a time"},
		{`{"id":1,"ts9":"3000-01-01"}`, "want a time"}, {`{"id":1,"ts3":"2026-01-31x07"}`, "want a time"},
		{`{"id":1,"l":{}}`, "want a JSON list"}, {`{"id":1,"l":[1,"x"]}`, `column "l" is list<item: int64, nullable>: cannot read [1,"x"]: element 2: want a whole number`}, {`{"id":1,"l":[1 2]}`, "a comma or"},
		{`{"id":1,"l":` + deep, "element 1: want a whole number"}, {`{"id":` + deep, "want a whole number"}, {`{"id":1,"r":` + strings.Repeat(`{"x":`, 100_000), `field "x": want a whole`},
		{`{"id":1,"mi":{"1":"x"}}`, "want a list such as"}, {`{"id":1,"m":[{"value":1}]}`, "entry 1: field \"key\": it is NOT NULL"}, {`{"id":1,"m":[{"key":null,"value":1}]}`, "it is NOT NULL"},
		{`{"id":1,"m":{"a":"b"}}`, "entry 1: want a whole number"}, {`{"id":1,"m":[1]}`, "want a JSON object"}, {`{"id":1,"r":{}}`, `field "x": it is NOT NULL`}, {`{"id":1,"r":{"x":null}}`, `field "x": it is NOT NULL`},
	} {
		_, err := rowsOf(every, c.in)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100s: %v, want %s", c.in, err, c.want)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%.100s: an error of %d bytes", c.in, len(err.Error()))
		}
	}
}

// A bad row leaves nothing behind that the next one meets.
func TestReaderGoesOnAfterErrors(t *testing.T) {
	r := New(every).NewReader()
	for range 3 {
		if err := r.Check([]byte(`{"id":1,"r":{"x":1,"l":[{"k":"a\u0041","v":x`)); !errors.Is(err, errSyntax) {
			t.Fatal(err)
		}
		if err := r.Check([]byte(full)); err != nil {
			t.Fatal(err)
		}
	}
}

// Strings are quoted as encoding/json quotes them.
func TestQuoting(t *testing.T) {
	var all strings.Builder
	for r := range rune(0x3000) {
		all.WriteRune(r)
	}
	for _, s := range []string{"", "plain", all.String(), "a\xffb\xc3", "\xed\xa0\x80", "😀\U0010ffff"} {
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
		if got := AppendQuoted(nil, s); string(got)+"\n" != want.String() {
			t.Errorf("%.50q: %.100s, want %.100s", s, got, want.String())
		}
	}
}

func TestDecimals(t *testing.T) {
	typ := &arrow.Decimal128Type{Precision: 38, Scale: 2}
	for in, want := range map[string]string{
		"0": "0.00", "-0.05": "-0.05", "12.3": "12.30", "1e3": "1000.00", "0.29": "0.29", "1.230": "1.23",
		"999999999999999999999999999999999999.99":  "999999999999999999999999999999999999.99",
		"-123456789012345678901234567890123456.78": "-123456789012345678901234567890123456.78",
	} {
		n, err := parseDecimal([]byte(in), typ)
		if got := string(appendDecimal(nil, n, typ.Scale)); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"1.239": "more than 2 digits after", "1e40": "more than 36 digits before", "1e99999": "exponent", "": "want a number",
		"1/3": "want a number", "x": "want a number", "0x10": "want a number", "NaN": "want a number",
	} {
		if _, err := parseDecimal([]byte(in), typ); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", in, err, want)
		}
	}
}

// A bound is kept, whatever a list expands to.
func TestWritingIsBounded(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{col("l", arrow.ListOf(arrow.ListOf(arrow.StructOf(col(strings.Repeat("n", 200), arrow.FixedWidthTypes.Boolean)))))}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	outer := b.Field(0).(*array.ListBuilder)
	inner := outer.ValueBuilder().(*array.ListBuilder)
	outer.Append(true)
	for range 10 {
		inner.Append(true)
		for range 10_000 {
			inner.ValueBuilder().(*array.StructBuilder).Append(true)
			inner.ValueBuilder().(*array.StructBuilder).FieldBuilder(0).AppendNull()
		}
	}
	rows := b.NewRecordBatch()
	defer rows.Release()
	full := AppendObject(nil, s.Fields(), rows.Columns(), 0)
	for most, fits := range map[int]bool{1000: false, len(full) - 1: false, len(full): true} {
		out, ok := AppendObjectUpTo(nil, most, s.Fields(), rows.Columns(), 0)
		if ok != fits || len(out) > most+1000 {
			t.Errorf("%d bytes, %v for a bound of %d", len(out), ok, most)
		}
	}
}

// Reading costs no memory per row but what the columns need.
func TestAllocations(t *testing.T) {
	r := New(every).NewReader()
	row := []byte(strings.ReplaceAll(full, `"99999999999999999999999999999999999999"`, "1"))
	if err := r.Check(row); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = r.Check(row) }); n > 0 {
		t.Errorf("%v allocations a row", n)
	}
	for _, bad := range []string{`[]`, `{"id":1,"no":1}`, `{"id":1,"s":"\ud800"}`, `{"id":1,"l":[1,true]}`, `{"id":1,"r":{"x":1,"x":1}}`} {
		if n := testing.AllocsPerRun(100, func() { _ = r.Fits([]byte(bad)) }); n > 3 { // the arguments of errors, at most
			t.Errorf("%v allocations for %s", n, bad)
		}
	}
	rows, err := rowsOf(every, string(row))
	if err != nil {
		t.Fatal(err)
	}
	out, fields := make([]byte, 0, 4096), every.Fields()
	if n := testing.AllocsPerRun(100, func() { out = AppendObject(out[:0], fields, rows.Columns(), 0) }); n > 0 {
		t.Errorf("%v allocations to write a row", n)
	}
}

func FuzzRow(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(nulls))
	f.Add([]byte(`{"id":1,"m":{"a":1,"b":null},"s":"\ud83d\ude00\u0000","tz":"2026-01-31 00:30:00-01:30","dec":1.5e2}`))
	f.Add([]byte(`{"id":"1","r":{"l":[{"v":1e-9}],"x":2.0},"l":[[]],"ts9":"1677-09-21T00:12:43.145224192"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		rows, err := rowsOf(every, string(in))
		if err != nil {
			if strings.HasPrefix(err.Error(), "check says") {
				t.Fatal(err)
			}
			return
		}
		defer rows.Release()
		if !json.Valid(in) {
			t.Fatalf("taken, but it is no JSON: %q", in)
		}
		text := textOf(rows)
		if !json.Valid([]byte(text[0])) {
			t.Fatalf("written, but it is no JSON: %q", text[0])
		}
		again, err := rowsOf(every, text[0])
		if err != nil {
			t.Fatalf("%q was written as %q, which is refused: %v", in, text[0], err)
		}
		defer again.Release()
		if got := textOf(again); got[0] != text[0] {
			t.Fatalf("%q was written as %q, and that as %q", in, text[0], got[0])
		}
	})
}

func BenchmarkRead(b *testing.B) {
	s := arrow.NewSchema([]arrow.Field{
		col("user", arrow.PrimitiveTypes.Int64), col("url", arrow.BinaryTypes.String), col("price", &arrow.Decimal128Type{Precision: 10, Scale: 2}),
		col("at", &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}),
	}, nil)
	row := []byte(`{"user":123456789,"url":"https://example.org/some/page?x=1","price":"12.30","at":"2026-01-31T07:05:00.123Z"}`)
	r := New(s).NewReader()
	b.Run("check", func(b *testing.B) {
		b.SetBytes(int64(len(row)))
		b.ReportAllocs()
		for b.Loop() {
			if err := r.Check(row); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("append", func(b *testing.B) {
		b.SetBytes(int64(len(row)))
		b.ReportAllocs()
		to := array.NewRecordBuilder(memory.DefaultAllocator, s)
		defer to.Release()
		n := 0
		for b.Loop() {
			if err := r.Append(to, row); err != nil {
				b.Fatal(err)
			}
			if n++; n%1000 == 0 {
				to.NewRecordBatch().Release()
			}
		}
	})
	b.Run("write", func(b *testing.B) {
		to := array.NewRecordBuilder(memory.DefaultAllocator, s)
		defer to.Release()
		if err := r.Append(to, row); err != nil {
			b.Fatal(err)
		}
		rows := to.NewRecordBatch()
		defer rows.Release()
		var out []byte
		b.SetBytes(int64(len(row)))
		b.ReportAllocs()
		for b.Loop() {
			out = AppendObject(out[:0], s.Fields(), rows.Columns(), 0)
		}
	})
}
