package routing

import (
	"slices"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/bucketing"
)

func table(t testing.TB, partitionKeys, bucketKeys []string, buckets int32) *schema.Descriptor {
	t.Helper()
	d, err := (&schema.Descriptor{
		Database: "db", Table: "t", PartitionKeys: partitionKeys, BucketKeys: bucketKeys, BucketCount: buckets,
		Schema: schema.Schema{Columns: []schema.Column{
			{Name: "day", Type: schema.MustParseType("STRING NOT NULL")},
			{Name: "id", Type: schema.MustParseType("BIGINT NOT NULL")},
			{Name: "tags", Type: schema.MustParseType("ARRAY<STRING>")},
		}},
	}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	return d
}

func batch(mem memory.Allocator, d *schema.Descriptor, days []string, ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(mem, d.Schema.Arrow())
	defer b.Release()
	for i := range ids {
		b.Field(0).(*array.StringBuilder).Append(days[i])
		b.Field(1).(*array.Int64Builder).Append(ids[i])
		l := b.Field(2).(*array.ListBuilder)
		l.Append(true)
		for range ids[i] % 3 {
			l.ValueBuilder().(*array.StringBuilder).Append(strconv.FormatInt(ids[i], 10))
		}
	}
	return b.NewRecordBatch()
}

// TestEveryRowArrivesOnceInItsPart checks against the row-wise definition: the
// parts hold every row once, in order, where the hash and the values say.
func TestEveryRowArrivesOnceInItsPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
		var partitionKeys, bucketKeys []string
		if rapid.Bool().Draw(t, "partitioned") {
			partitionKeys = []string{"day"}
		}
		if rapid.Bool().Draw(t, "bucketed") {
			bucketKeys = []string{"id"}
		}
		d := table(&testing.T{}, partitionKeys, bucketKeys, rapid.Int32Range(1, 5).Draw(t, "buckets"))
		n := rapid.IntRange(0, 40).Draw(t, "rows")
		days := rapid.SliceOfN(rapid.SampledFrom([]string{"mon", "tue", "wed"}), n, n).Draw(t, "days")
		ids := rapid.SliceOfN(rapid.Int64Range(0, 99), n, n).Draw(t, "ids")
		turn := rapid.Uint32().Draw(t, "turn")
		rec := batch(mem, d, days, ids)
		r, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := r.Split(mem, rec, turn)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		type where struct {
			day    string
			bucket int32
		}
		got := map[where][]int64{}
		for _, p := range parts {
			w := where{bucket: p.Bucket}
			if len(p.Values) > 0 {
				w.day = p.Values[0]
			}
			if got[w] != nil {
				t.Fatalf("two parts for %v", w)
			}
			for row := range int(p.Rows.NumRows()) {
				id := p.Rows.Column(1).(*array.Int64).Value(row)
				got[w] = append(got[w], id)
				tags := p.Rows.Column(2).(*array.List)
				if from, to := tags.ValueOffsets(row); to-from != id%3 {
					t.Fatalf("row %d of %v has %d tags, want %d", row, w, to-from, id%3)
				}
				seen++
			}
			p.Rows.Release()
		}
		want := map[where][]int64{}
		b := bucketerOf(t, d)
		for i, id := range ids {
			w := where{bucket: int32(turn % uint32(d.BucketCount))}
			if partitionKeys != nil {
				w.day = days[i]
			}
			if b != nil {
				if w.bucket, err = b.Bucket(id); err != nil {
					t.Fatal(err)
				}
			}
			want[w] = append(want[w], id)
		}
		if seen != n || len(got) != len(want) {
			t.Fatalf("%d rows in %d parts, want %d in %d", seen, len(got), n, len(want))
		}
		for w, ids := range want {
			if !slices.Equal(got[w], ids) {
				t.Fatalf("part %v holds %v, want %v", w, got[w], ids)
			}
		}
		rec.Release()
		if mem.CurrentAlloc() != 0 {
			t.Fatalf("%d bytes are not released", mem.CurrentAlloc())
		}
	})
}

func bucketerOf(t *rapid.T, d *schema.Descriptor) *bucketing.Bucketer {
	if len(d.BucketKeys) == 0 {
		return nil
	}
	b, err := bucketing.New(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Values that differ only in where one ends are different partitions, whatever
// characters they hold.
func TestPartitionsAreToldApart(t *testing.T) {
	d, err := (&schema.Descriptor{
		Database: "db", Table: "t", PartitionKeys: []string{"a", "b"},
		Schema: schema.Schema{Columns: []schema.Column{
			{Name: "a", Type: schema.MustParseType("STRING NOT NULL")}, {Name: "b", Type: schema.MustParseType("STRING NOT NULL")},
		}},
	}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	want := [][]string{{"x\x00", "y"}, {"x", "\x00y"}, {"x\x00\x00y", ""}, {"", "x\x00\x00y"}}
	b := array.NewRecordBuilder(mem, d.Schema.Arrow())
	defer b.Release()
	for _, v := range want {
		b.Field(0).(*array.StringBuilder).Append(v[0])
		b.Field(1).(*array.StringBuilder).Append(v[1])
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	r, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := r.Split(mem, rec, 0)
	if err != nil || len(parts) != len(want) {
		t.Fatalf("%d parts, want %d: %v", len(parts), len(want), err)
	}
	for i, p := range parts {
		if !slices.Equal(p.Values, want[i]) || p.Rows.NumRows() != 1 {
			t.Errorf("part %d: %q with %d rows, want %q", i, p.Values, p.Rows.NumRows(), want[i])
		}
		p.Rows.Release()
	}
}
