package partition

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	for _, c := range []struct {
		typ  string
		v    any
		text string
	}{
		{"BOOLEAN", true, "true"}, {"BOOLEAN", false, "false"},
		{"TINYINT", int8(-128), "-128"}, {"SMALLINT", int16(7), "7"}, {"INT", int32(0), "0"}, {"BIGINT", int64(math.MinInt64), "-9223372036854775808"},
		{"FLOAT", float32(0.1), "0.1"}, {"DOUBLE", 0.1, "0.1"}, {"DOUBLE", 1e21, "1e+21"}, {"DOUBLE", math.Inf(-1), "-Infinity"}, {"FLOAT", float32(math.Inf(1)), "Infinity"}, {"DOUBLE", math.NaN(), "NaN"},
		{"STRING", "", ""}, {"STRING", "a/b é", "a/b é"}, {"CHAR(2)", "éé", "éé"},
		{"BINARY(2)", []byte{0, 0xab}, "00ab"}, {"BYTES", []byte{}, ""},
		{"DATE", arrow.Date32(0), "1970-01-01"}, {"DATE", arrow.Date32(19782), "2024-02-29"}, {"DATE", arrow.Date32(-719528), "0000-01-01"}, {"DATE", arrow.Date32(-719529), "-0001-12-31"},
		{"DATE", arrow.Date32(2932897), "+10000-01-01"}, {"DATE", arrow.Date32(math.MaxInt32), "+5881580-07-11"}, {"DATE", arrow.Date32(math.MinInt32), "-5877641-06-23"},
		{"TIME(0)", arrow.Time32(0), "00:00:00"}, {"TIME(3)", arrow.Time32(86399999), "23:59:59.999"}, {"TIME(6)", arrow.Time64(250000), "00:00:00.25"}, {"TIME(9)", arrow.Time64(1), "00:00:00.000000001"},
		{"TIMESTAMP(0)", arrow.Timestamp(-1), "1969-12-31T23:59:59"}, {"TIMESTAMP(3)", arrow.Timestamp(-1), "1969-12-31T23:59:59.999"}, {"TIMESTAMP(6)", arrow.Timestamp(1510871468000001), "2017-11-16T22:31:08.000001"},
		{"TIMESTAMP_LTZ(3)", arrow.Timestamp(0), "1970-01-01T00:00:00Z"}, {"TIMESTAMP(9)", arrow.Timestamp(math.MinInt64), "1677-09-21T00:12:43.145224192"},
		{"TIMESTAMP(0)", arrow.Timestamp(math.MaxInt64), "+292277026596-12-04T15:30:07"}, {"TIMESTAMP(0)", arrow.Timestamp(math.MinInt64), "-292277022657-01-27T08:29:52"},
	} {
		typ := schema.MustParseType(c.typ)
		text, err := Format(typ, c.v)
		if err != nil || text != c.text {
			t.Errorf("%s %v: %q, %v, want %q", c.typ, c.v, text, err, c.text)
			continue
		}
		v, err := Parse(typ, text)
		if err != nil || fmt.Sprint(v) != fmt.Sprint(c.v) {
			t.Errorf("%s %q: %v, %v, want %v", c.typ, text, v, err, c.v)
		}
	}
	if text, err := Format(schema.MustParseType("DOUBLE"), math.Copysign(0, -1)); text != "0" {
		t.Errorf("-0.0: %q, %v", text, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for typ, texts := range map[string][]string{
		"BOOLEAN": {"", "TRUE", "1"}, "TINYINT": {"128", "+1", "01", "-0", " 1", "1.0", ""}, "BIGINT": {"9223372036854775808", "1e3"},
		"FLOAT": {"1e39", "0.10", "nan", "Inf", "+1", "-0", "0x1p3", "1_0"}, "DOUBLE": {"1.", "", "-NaN"},
		"CHAR(2)": {"abc"}, "STRING": {"\xff", strings.Repeat("x", 201)}, "BINARY(2)": {"00", "00AB", "zz", "000"}, "BYTES": {"0", "0A"},
		"DATE":    {"", "2024-02-30", "2023-02-29", "2024-2-1", "24-01-01", "02024-01-01", "+2024-01-01", "-0000-01-01", "2024-01-01T00:00:00", "+5881580-07-12", "999999999999999-01-01", "2024/01/01"},
		"TIME(0)": {"24:00:00", "7:05:00", "07:05", "07:05:00.1", "07:05:60"}, "TIME(3)": {"07:05:00.", "07:05:00.10", "07:05:00.1234", "07:05:00.0", "07:05:00,5"},
		"TIMESTAMP(3)":     {"2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "2024-01-01", "T", "2024-01-01T00:00:00.000", "+292278994-08-17T07:12:55.808"},
		"TIMESTAMP_LTZ(3)": {"2024-01-01T00:00:00", "2024-01-01T00:00:00+00:00", "Z"}, "DECIMAL(3,1)": {"1.0"}, "ARRAY<INT>": {"1"},
	} {
		for _, text := range texts {
			if v, err := Parse(schema.MustParseType(typ), text); !errors.Is(err, mink.ErrInvalid) {
				t.Errorf("%s %q: %v, %v", typ, text, v, err)
			}
		}
	}
	if _, err := Parse(schema.MustParseType("INT"), "007"); err == nil || !strings.Contains(err.Error(), `write it "7"`) {
		t.Errorf("hint: %v", err)
	}
	for typ, v := range map[string]any{"TIME(3)": arrow.Time32(-1), "TIME(0)": arrow.Time32(86400), "DECIMAL(5,2)": decimal128.FromI64(1), "INT": nil, "STRING": strings.Repeat("x", 201)} {
		if text, err := Format(schema.MustParseType(typ), v); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s %v: %q, %v", typ, v, text, err)
		}
	}
}

var partitionTypes = []string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR(9)", "STRING", "BINARY(3)", "BYTES",
	"DATE", "TIME(0)", "TIME(3)", "TIME(6)", "TIME(9)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(6)"}

func genValue(t *rapid.T, typ schema.Type) any {
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
		return rapid.Float32().Draw(t, "v")
	case schema.Double:
		return rapid.Float64().Draw(t, "v")
	case schema.Char:
		return rapid.StringN(0, typ.Length, -1).Draw(t, "v")
	case schema.String:
		return rapid.StringN(0, 50, MaxValueBytes).Draw(t, "v")
	case schema.Binary:
		return rapid.SliceOfN(rapid.Byte(), typ.Length, typ.Length).Draw(t, "v")
	case schema.Bytes:
		return rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "v")
	case schema.Date:
		return arrow.Date32(rapid.Int32().Draw(t, "v"))
	case schema.Time:
		v := rapid.Int64Range(0, secondsPerDay*perSecond(typ.Unit())-1).Draw(t, "v")
		if typ.Precision <= 3 {
			return arrow.Time32(v)
		}
		return arrow.Time64(v)
	}
	return arrow.Timestamp(rapid.Int64().Draw(t, "v"))
}

// Text is one-to-one with keys: equal texts, equal keys, and each reads back.
func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		typ := schema.MustParseType(rapid.SampledFrom(partitionTypes).Draw(t, "type"))
		v := genValue(t, typ)
		text, err := Format(typ, v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(typ, text)
		if err != nil {
			t.Fatalf("%v prints as %q: %v", v, text, err)
		}
		a, errA := keyenc.AppendValue(nil, typ, v)
		b, errB := keyenc.AppendValue(nil, typ, got)
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Fatalf("%v prints as %q, reads as %v", v, text, got)
		}
	})
}

// The calendar agrees with package time where that works.
func TestDatesAgreeWithTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Int64Range(-62167219200, 253402300799).Draw(t, "s") // years 0 to 9999
		want := time.Unix(seconds, 0).UTC().Format("2006-01-02T15:04:05")
		got, err := Format(schema.MustParseType("TIMESTAMP(0)"), arrow.Timestamp(seconds))
		if err != nil || got != want {
			t.Fatalf("%d: %q, %v, want %q", seconds, got, err, want)
		}
		year, month, day := civil(floorDiv(seconds, secondsPerDay))
		if daysOf(year, month, day) != floorDiv(seconds, secondsPerDay) {
			t.Fatalf("%d-%d-%d", year, month, day)
		}
	})
}

func FuzzParse(f *testing.F) {
	for i, text := range []string{"true", "-1", "NaN", "2024-02-29", "+10000-01-01", "23:59:59.999", "1969-12-31T23:59:59.5Z", "00ff"} {
		f.Add(uint8(i*3), text)
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		typ := schema.MustParseType(partitionTypes[int(which)%len(partitionTypes)])
		v, err := Parse(typ, text)
		if err != nil {
			if !errors.Is(err, mink.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if again, err := Format(typ, v); err != nil || again != text {
			t.Fatalf("%q reads as %v, which prints as %q, %v", text, v, again, err)
		}
	})
}

func descriptor(t testing.TB, keys []string, options map[string]string, columns ...string) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "db", Table: "t", PartitionKeys: keys, Options: options}
	for _, c := range columns {
		name, text, _ := strings.Cut(c, " ")
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: name, Type: schema.MustParseType(text)})
	}
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReader(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer mem.AssertSize(t, 0)
	d := descriptor(t, []string{"day", "region"}, nil, "region STRING", "n INT", "day DATE")
	b := array.NewRecordBuilder(mem, d.Schema.Arrow())
	defer b.Release()
	b.Field(0).(*array.StringBuilder).AppendValues([]string{"eu", "eu", "us", "eu", "us"}, nil)
	b.Field(1).(*array.Int32Builder).AppendValues([]int32{0, 1, 2, 3, 4}, nil)
	b.Field(2).(*array.Date32Builder).AppendValues([]arrow.Date32{0, 0, 0, 1, 0}, nil)
	rec := b.NewRecordBatch()
	defer rec.Release()
	r, err := NewReader(d)
	if err != nil {
		t.Fatal(err)
	}
	values, err := r.Values(rec, 3)
	if err != nil || cmp.Diff(values, []string{"1970-01-02", "eu"}) != "" {
		t.Errorf("%v, %v", values, err)
	}
	if err := CheckValues(d, values); err != nil {
		t.Error(err)
	}
	if _, err := r.Values(rec, 5); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("row out of range: %v", err)
	}
	groups, err := r.Split(rec, 3)
	want := []Group{{[]string{"1970-01-01", "eu"}, []int32{0, 1}}, {[]string{"1970-01-01", "us"}, []int32{2, 4}}, {[]string{"1970-01-02", "eu"}, []int32{3}}}
	if diff := cmp.Diff(want, groups); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := r.Split(rec, 2); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "more than 2 partitions") {
		t.Errorf("too many: %v", err)
	}
	part := rec.NewSlice(2, 4)
	defer part.Release()
	groups, err = r.Split(part, 9)
	want = []Group{{[]string{"1970-01-01", "us"}, []int32{0}}, {[]string{"1970-01-02", "eu"}, []int32{1}}}
	if diff := cmp.Diff(want, groups); err != nil || diff != "" {
		t.Errorf("slice: %v %s", err, diff)
	}
	for _, values := range [][]string{nil, {"1970-01-01"}, {"1970-1-1", "eu"}, {"1970-01-01", "eu", "x"}, {"1970-01-01", strings.Repeat("x", 300)}} {
		if err := CheckValues(d, values); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%v: %v", values, err)
		}
	}
	b.Field(0).AppendNull()
	b.Field(1).AppendNull()
	b.Field(2).(*array.Date32Builder).Append(0)
	null := b.NewRecordBatch()
	defer null.Release()
	if _, err := r.Split(null, 9); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), `null in key column "region"`) {
		t.Errorf("null: %v", err)
	}

	flat := descriptor(t, nil, nil, "n INT")
	r, err = NewReader(flat)
	if err != nil {
		t.Fatal(err)
	}
	groups, err = r.Split(rec, 1)
	if err != nil || len(groups) != 1 || len(groups[0].Rows) != 5 || len(groups[0].Values) != 0 {
		t.Errorf("no keys: %v, %v", groups, err)
	}
	if err := CheckValues(flat, nil); err != nil {
		t.Error(err)
	}
}
