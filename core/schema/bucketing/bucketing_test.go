package bucketing

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

const vectorsFile = "../testdata/bucket_vectors.json"

func mustHex(text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return b
}

// Days and micros of 2017-11-16 and 2017-11-16T22:31:08.
const (
	specDate   = 17486
	specMicros = 1510871468000000
	specTime   = (22*3600 + 31*60 + 8) * 1000000
)

// The values of the Iceberg spec, appendix B.
func TestIcebergSpec(t *testing.T) {
	for _, c := range []struct {
		typ  string
		v    any
		want int32
	}{
		{"INT", int32(34), 2017239379},
		{"BIGINT", int64(34), 2017239379},
		{"TINYINT", int8(34), 2017239379},
		{"SMALLINT", int16(34), 2017239379},
		{"DECIMAL(9,2)", decimal128.FromI64(1420), -500754589},
		{"DATE", arrow.Date32(specDate), -653330422},
		{"TIME(6)", arrow.Time64(specTime), -662762989},
		{"TIME(0)", arrow.Time32(specTime / 1000000), -662762989},
		{"TIME(3)", arrow.Time32(specTime / 1000), -662762989},
		{"TIME(9)", arrow.Time64(specTime*1000 + 999), -662762989},
		{"TIMESTAMP(6)", arrow.Timestamp(specMicros), -2047944441},
		{"TIMESTAMP(6)", arrow.Timestamp(specMicros + 1), -1207196810},
		{"TIMESTAMP(0)", arrow.Timestamp(specMicros / 1000000), -2047944441},
		{"TIMESTAMP(3)", arrow.Timestamp(specMicros / 1000), -2047944441},
		{"TIMESTAMP(9)", arrow.Timestamp(specMicros * 1000), -2047944441},
		{"TIMESTAMP(9)", arrow.Timestamp(specMicros*1000 + 1001), -1207196810},
		{"TIMESTAMP_LTZ(6)", arrow.Timestamp(specMicros), -2047944441},
		{"STRING", "iceberg", 1210000089},
		{"CHAR(7)", "iceberg", 1210000089},
		{"BINARY(16)", mustHex("f79c3e09677c4bbda4793f349cb785e7"), 1488055340}, // the spec's uuid
		{"BINARY(4)", []byte{0, 1, 2, 3}, -188683207},
		{"BYTES", []byte{0, 1, 2, 3}, -188683207},
		{"BOOLEAN", true, 1392991556},
		{"FLOAT", float32(1), -142385009},
		{"FLOAT", float32(math.Copysign(0, -1)), 1669671676},
		{"DOUBLE", 1.0, -142385009},
		{"DOUBLE", math.Copysign(0, -1), 1669671676},
		{"DOUBLE", 0.0, 1669671676},
	} {
		got, err := HashValue(schema.MustParseType(c.typ), c.v)
		if err != nil || int32(got) != c.want {
			t.Errorf("%s %v: %d, %v, want %d", c.typ, c.v, int32(got), err, c.want)
		}
	}
}

func TestNanosecondsRoundTowardsThePast(t *testing.T) {
	for ns, us := range map[int64]int64{-1: -1, -999: -1, -1000: -1, -1001: -2, 999: 0, 0: 0, 1000: 1} {
		if got := micros(ns, arrow.Nanosecond); got != us {
			t.Errorf("%d ns: %d us, want %d", ns, got, us)
		}
	}
}

// Bytes of a decimal: the shortest two's complement, as java.math.BigInteger.
func TestDecimalBytes(t *testing.T) {
	for _, v := range []int64{0, 1, -1, 127, 128, -128, -129, 255, 256, -256, 32767, 32768, -32768, -32769, math.MaxInt64, math.MinInt64} {
		n := decimal128.FromI64(v)
		want := minimalBytes(v)
		got, err := HashValue(schema.MustParseType("DECIMAL(38,0)"), n)
		byBytes, err2 := HashValue(schema.MustParseType("BYTES"), want)
		if err != nil || err2 != nil || got != byBytes {
			t.Errorf("%d: %d, want the hash of %x: %d", v, got, want, byBytes)
		}
	}
}

// minimalBytes is written the other way round than the code under test: it adds
// bytes until the value fits.
func minimalBytes(v int64) []byte {
	for n := 1; ; n++ {
		shift := uint(64 - 8*n)
		if v<<shift>>shift == v {
			out := make([]byte, n)
			for i := range out {
				out[n-1-i] = byte(v >> (8 * i))
			}
			return out
		}
	}
}

func descriptor(t testing.TB, buckets int32, types ...string) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "db", Table: "t", BucketCount: buckets}
	for i, text := range types {
		name := fmt.Sprint("k", i)
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: name, Type: schema.MustParseType(text)})
		d.BucketKeys = append(d.BucketKeys, name)
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

// rows makes a batch from JSON-like text rows through Arrow's own parser, which
// shares no code with the bucketer.
func batch(t testing.TB, mem memory.Allocator, d *schema.Descriptor, values [][]string) arrow.RecordBatch {
	t.Helper()
	b := array.NewRecordBuilder(mem, d.Schema.Arrow())
	defer b.Release()
	for _, row := range values {
		for i, text := range row {
			var err error
			switch f := b.Field(i).(type) {
			case *array.BinaryBuilder:
				f.Append(mustHex(text))
			case *array.FixedSizeBinaryBuilder:
				f.Append(mustHex(text))
			default:
				err = f.AppendValueFromString(text)
			}
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
	}
	return b.NewRecordBatch()
}

type vector struct {
	Types   []string `json:"types"`
	Values  []string `json:"values"`
	Key     string   `json:"key,omitempty"` // hex of the encoded key, several columns only
	Hash    int32    `json:"hash"`
	Buckets []int32  `json:"buckets"` // for bucket counts 1, 3, 16, 4096
}

var vectorCounts = []int32{1, 3, 16, 4096}

type vectors struct {
	About   string   `json:"about"`
	Counts  []int32  `json:"bucket_counts"`
	Vectors []vector `json:"vectors"`
}

func vectorInputs() (list []vector) {
	single := func(typ string, values ...string) {
		for _, v := range values {
			list = append(list, vector{Types: []string{typ}, Values: []string{v}})
		}
	}
	single("BOOLEAN", "false", "true")
	single("TINYINT", "0", "34", "-1", "127", "-128")
	single("SMALLINT", "0", "34", "-1", "32767", "-32768")
	single("INT", "0", "34", "-1", "2147483647", "-2147483648")
	single("BIGINT", "0", "34", "-1", "9223372036854775807", "-9223372036854775808")
	single("FLOAT", "0", "-0", "1", "-1.5", "NaN", "3.4028235e+38")
	single("DOUBLE", "0", "-0", "1", "-1.5", "NaN", "1.7976931348623157e+308")
	single("DECIMAL(9,2)", "14.20", "0.00", "-0.01", "1.27", "1.28", "-1.28", "-1.29")
	single("DECIMAL(38,0)", "99999999999999999999999999999999999999", "-99999999999999999999999999999999999999")
	single("CHAR(10)", "", "iceberg")
	single("STRING", "", "iceberg", "a", "ab", "abc", "abcd", "漢字", "\U0001f43e mink", "a\x00b", strings.Repeat("long ", 40))
	single("BINARY(4)", "00010203", "ffffffff")
	single("BYTES", "", "00", "00010203", "ff00ff")
	single("DATE", "2017-11-16", "1970-01-01", "1969-12-31")
	single("TIME(0)", "22:31:08")
	single("TIME(3)", "22:31:08.001")
	single("TIME(6)", "22:31:08.000001")
	single("TIME(9)", "22:31:08.000001999")
	for _, zoned := range []string{"TIMESTAMP", "TIMESTAMP_LTZ Z"} {
		typ, zone, _ := strings.Cut(zoned, " ")
		single(typ+"(0)", "2017-11-16T22:31:08"+zone, "1969-12-31T23:59:59"+zone)
		single(typ+"(3)", "2017-11-16T22:31:08.001"+zone)
		single(typ+"(6)", "2017-11-16T22:31:08.000001"+zone)
		single(typ+"(9)", "2017-11-16T22:31:08.000001999"+zone, "1969-12-31T23:59:59.999999999"+zone)
	}
	list = append(list,
		vector{Types: []string{"INT", "STRING"}, Values: []string{"34", "iceberg"}},
		vector{Types: []string{"STRING", "INT"}, Values: []string{"iceberg", "34"}},
		vector{Types: []string{"STRING", "STRING"}, Values: []string{"a", "bc"}},
		vector{Types: []string{"STRING", "STRING"}, Values: []string{"ab", "c"}},
		vector{Types: []string{"STRING", "BYTES"}, Values: []string{"a\x00", "00ff"}},
		vector{Types: []string{"BOOLEAN", "TINYINT", "SMALLINT", "BIGINT"}, Values: []string{"true", "-1", "-1", "-1"}},
		vector{Types: []string{"FLOAT", "DOUBLE", "DECIMAL(9,2)"}, Values: []string{"-0", "-1.5", "14.20"}},
		vector{Types: []string{"DATE", "TIME(3)", "TIME(9)", "TIMESTAMP(3)", "TIMESTAMP_LTZ(9)"}, Values: []string{"2017-11-16", "22:31:08.001", "22:31:08.000001999", "2017-11-16T22:31:08.001", "2017-11-16T22:31:08.000001999Z"}},
		vector{Types: []string{"BINARY(4)", "CHAR(10)"}, Values: []string{"00010203", ""}},
	)
	return list
}

const aboutVectors = "Bucket of a key: (hash & 0x7fffffff) mod bucket_counts[i] = buckets[i]. hash is a signed 32-bit murmur3_32 (x86, seed 0): for one column of Iceberg's bytes " +
	"(core/schema/bucketing), for several of the encoded key in hex (core/schema/keyenc). BYTES and BINARY values are in hex, times are UTC, the others as text. " +
	"Written by `go test ./core/schema/bucketing -rewrite`, checked by the same test without -rewrite."

// Case 13: clients in other languages check themselves against this file.
func TestVectors(t *testing.T) {
	got := vectors{About: aboutVectors, Counts: vectorCounts, Vectors: vectorInputs()}
	for i := range got.Vectors {
		v := &got.Vectors[i]
		for _, count := range vectorCounts {
			d := descriptor(t, count, v.Types...)
			rec := batch(t, memory.DefaultAllocator, d, [][]string{v.Values})
			b, err := New(d)
			if err != nil {
				t.Fatal(err)
			}
			out := make([]int32, 1)
			if err := b.Buckets(rec, out); err != nil {
				t.Fatal(err)
			}
			v.Buckets = append(v.Buckets, out[0])
			if len(v.Types) == 1 {
				hashColumn(rec.Column(0), func(_ int, h uint32) { v.Hash = int32(h) })
				continue
			}
			enc, err := keyenc.New(&d.Schema, d.BucketKeys)
			if err != nil {
				t.Fatal(err)
			}
			if err := enc.Bind(rec); err != nil {
				t.Fatal(err)
			}
			key := enc.Append(nil, 0)
			v.Key = hex.EncodeToString(key)
			hash, err := HashValue(schema.MustParseType("BYTES"), key)
			if err != nil {
				t.Fatal(err)
			}
			v.Hash = int32(hash)
		}
	}
	var text bytes.Buffer
	text.WriteString("{\"about\": " + jsonText(t, got.About) + ",\n \"bucket_counts\": " + jsonText(t, got.Counts) + ",\n \"vectors\": [\n")
	for i, v := range got.Vectors {
		text.WriteString("  " + jsonText(t, v))
		if i < len(got.Vectors)-1 {
			text.WriteString(",")
		}
		text.WriteString("\n")
	}
	text.WriteString(" ]}\n")
	if *rewrite {
		if err := os.WriteFile(vectorsFile, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, text.Bytes()) {
		t.Errorf("%s differs; buckets of stored rows must never change", vectorsFile)
	}
	var again vectors
	if err := json.Unmarshal(want, &again); err != nil {
		t.Error(err)
	}
}

func jsonText(t *testing.T, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A batch, a slice of it, and the values one by one agree.
func TestBatchSliceAndValueAgree(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer mem.AssertSize(t, 0)
	d := descriptor(t, 7, "BIGINT", "STRING")
	for _, keys := range [][]string{{"k0"}, {"k1"}, {"k0", "k1"}, {"k1", "k0"}} {
		k := d.Clone()
		k.BucketKeys, k.BucketFunction = keys, ""
		k, err := k.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(k)
		if err != nil {
			t.Fatal(err)
		}
		var rows [][]string
		for i := range 50 {
			rows = append(rows, []string{fmt.Sprint(i * i), fmt.Sprint("key-", i)})
		}
		rec := batch(t, mem, k, rows)
		out := make([]int32, 50)
		if err := b.Buckets(rec, out); err != nil {
			t.Fatal(err)
		}
		part := rec.NewSlice(13, 29)
		partOut := make([]int32, 16)
		if err := b.Buckets(part, partOut); err != nil {
			t.Fatal(err)
		}
		seen := map[int32]bool{}
		for i := range 50 {
			var values []any
			for _, name := range keys {
				values = append(values, map[string]any{"k0": int64(i * i), "k1": fmt.Sprint("key-", i)}[name])
			}
			one, err := b.Bucket(values...)
			if err != nil || one != out[i] || i >= 13 && i < 29 && partOut[i-13] != one {
				t.Errorf("%v row %d: value %d, batch %d, %v", keys, i, one, out[i], err)
			}
			seen[one] = true
		}
		if len(seen) != 7 {
			t.Errorf("%v: 50 keys reach %d of 7 buckets", keys, len(seen))
		}
		part.Release()
		rec.Release()
	}
}

func TestRefuses(t *testing.T) {
	noKeys := descriptor(t, 3, "INT")
	noKeys.BucketKeys, noKeys.BucketFunction = nil, schema.BucketRoundRobin
	wrongFunction := descriptor(t, 3, "INT")
	wrongFunction.BucketFunction = schema.BucketMurmur3
	gone := descriptor(t, 3, "INT")
	gone.BucketKeys = []string{"x"}
	zero := descriptor(t, 3, "INT")
	zero.BucketCount = 0
	for _, d := range []*schema.Descriptor{noKeys, wrongFunction, gone, zero} {
		if _, err := New(d); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", d.Encode(), err)
		}
	}
	for _, types := range [][]string{{"INT"}, {"INT", "STRING"}} {
		b, err := New(descriptor(t, 3, types...))
		if err != nil {
			t.Fatal(err)
		}
		nullable := []arrow.Field{{Name: "k0", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "k1", Type: arrow.BinaryTypes.String, Nullable: true}}
		rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(nullable, nil))
		rb.Field(0).AppendNull()
		rb.Field(1).AppendNull()
		rec := rb.NewRecordBatch()
		if err := b.Buckets(rec, make([]int32, 1)); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), `row 0 has null in key column "k0"`) {
			t.Errorf("null: %v", err)
		}
		if err := b.Buckets(rec, nil); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("room: %v", err)
		}
		for _, values := range [][]any{nil, {nil}, {nil, nil}, {int64(1)}, {1, 2, 3}} {
			if n, err := b.Bucket(values...); !errors.Is(err, mink.ErrInvalid) {
				t.Errorf("%v: %d, %v", values, n, err)
			}
		}
	}
}

// Allocations belong to a batch, not to its rows.
func TestNoAllocationPerRow(t *testing.T) {
	for _, types := range [][]string{{"BIGINT"}, {"STRING"}, {"DECIMAL(9,2)"}, {"TIMESTAMP(3)"}, {"DOUBLE"}, {"BIGINT", "STRING"}} {
		d := descriptor(t, 16, types...)
		b, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		allocs := func(rows int) float64 {
			var values [][]string
			for range rows {
				row := map[string]string{"TIMESTAMP(3)": "2017-11-16T22:31:08"}
				var r []string
				for _, typ := range types {
					if text, ok := row[typ]; ok {
						r = append(r, text)
					} else {
						r = append(r, "14")
					}
				}
				values = append(values, r)
			}
			rec := batch(t, memory.DefaultAllocator, d, values)
			out := make([]int32, rows)
			return testing.AllocsPerRun(20, func() {
				if err := b.Buckets(rec, out); err != nil {
					t.Fatal(err)
				}
			})
		}
		if few, many := allocs(1), allocs(1000); many > few {
			t.Errorf("%v: %v allocations for 1 row, %v for 1000", types, few, many)
		}
	}
}

func BenchmarkBuckets(b *testing.B) {
	for _, types := range [][]string{{"BIGINT"}, {"STRING"}, {"BIGINT", "STRING"}} {
		b.Run(strings.Join(types, "+"), func(b *testing.B) {
			d := descriptor(b, 16, types...)
			var rows [][]string
			for i := range 4096 {
				rows = append(rows, []string{fmt.Sprint(i), fmt.Sprint("12345", i)}[:len(types)])
			}
			rec := batch(b, memory.DefaultAllocator, d, rows)
			bk, err := New(d)
			if err != nil {
				b.Fatal(err)
			}
			out := make([]int32, len(rows))
			for b.Loop() {
				if err := bk.Buckets(rec, out); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(rows))*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
