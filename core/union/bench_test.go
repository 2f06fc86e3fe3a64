package union_test

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/core/schema/routing"
	"github.com/mink-project/mink/core/union"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

const (
	benchRows    = 1_000_000
	benchTail    = 10_000 // keys that changed since, in all buckets
	benchBuckets = 4
)

var benchID = catalog.Identifier{Namespace: []string{"db"}, Name: "t"}

func benchTable(b *testing.B) *schema.Descriptor {
	d := &schema.Descriptor{Database: "db", Table: "t", PrimaryKey: []string{"k"}, BucketCount: benchBuckets}
	d.Schema.ID = 1
	for i, c := range []string{"k BIGINT NOT NULL", "n INT", "s STRING"} {
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{ID: mink.FieldID(i + 1), Name: c[:1], Type: schema.MustParseType(c[2:])})
	}
	d, err := d.Normalize()
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// benchBatches are rows of each bucket with the keys [from, to).
func benchBatches(b *testing.B, d *schema.Descriptor, from, to int) [benchBuckets][]arrow.RecordBatch {
	router, err := routing.New(d)
	if err != nil {
		b.Fatal(err)
	}
	var out [benchBuckets][]arrow.RecordBatch
	r := array.NewRecordBuilder(memory.DefaultAllocator, d.Schema.Arrow())
	defer r.Release()
	for at := from; at < to; at += 8192 {
		for k := at; k < min(at+8192, to); k++ {
			r.Field(0).(*array.Int64Builder).Append(int64(k))
			r.Field(1).(*array.Int32Builder).Append(int32(k % 1000))
			r.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("%064d", k*2654435761%1000000007))
		}
		rec := r.NewRecordBatch()
		parts, err := router.Split(memory.DefaultAllocator, rec, 0)
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range parts {
			out[p.Bucket] = append(out[p.Bucket], p.Rows)
		}
	}
	return out
}

// BenchmarkPrimaryKey reads a million rows of 76 bytes in 4 buckets, of which 10,000 are
// newer in the log, two buckets at a time, and by turns with the same files read by the
// Iceberg library alone. Figures: rows/s of each, and their ratio (wanted: 0.7).
func BenchmarkPrimaryKey(b *testing.B) {
	ctx := context.Background()
	c, err := sqlcatalog.Open(ctx, "sqlite:"+filepath.Join(b.TempDir(), "catalog.db"), sqlcatalog.Default())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: memstore.New(memstore.Config{}), Root: "file:///lake", Catalog: c})
	if err != nil {
		b.Fatal(err)
	}
	d := benchTable(b)
	snapshot := benchLake(b, w, d)
	tails := benchBatches(b, d, benchRows-benchTail, benchRows)
	open := scan.NewOpener(w.Load)
	layout := scan.Layout{Table: 7, Descriptor: d, Partitions: func(yield func(mink.PartitionID, []string) bool) { yield(1, nil) }}
	var plain, both []time.Duration
	for b.Loop() {
		begin := time.Now()
		if n := benchPlain(b, w); n != benchRows {
			b.Fatalf("the library read %d rows", n)
		}
		plain = append(plain, time.Since(begin))
		begin = time.Now()
		var n [benchBuckets]int64
		var group sync.WaitGroup
		slots := make(chan struct{}, 2)
		for i := range n {
			group.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				n[i] = benchUnion(b, open, layout, snapshot, d, int32(i), tails[i])
			})
		}
		group.Wait()
		both = append(both, time.Since(begin))
		if sum := n[0] + n[1] + n[2] + n[3]; sum != benchRows {
			b.Fatalf("the union read gave %d rows", sum)
		}
	}
	slices.Sort(plain)
	slices.Sort(both)
	p, u := plain[len(plain)/2].Seconds(), both[len(both)/2].Seconds()
	b.ReportMetric(benchRows/p, "plain_rows/s")
	b.ReportMetric(benchRows/u, "union_rows/s")
	b.ReportMetric(p/u, "ratio")
}

// benchLake brings the rows to the lake in one round.
func benchLake(b *testing.B, w *lake.Warehouse, d *schema.Descriptor) string {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	h, err := lake.NewSink(w, lake.SinkConfig{ScratchDir: b.TempDir()}).Open(ctx, sink.OpenRequest{Table: sink.TableSpec{
		ID: 7, Database: "db", Name: "t", Schema: sink.Schema{ID: 1, Arrow: d.Schema.Arrow()}, PrimaryKey: d.PrimaryKey, BucketKeys: d.BucketKeys, BucketCount: benchBuckets,
	}})
	check(err)
	defer h.Close()
	_, err = h.BeginRound(ctx, sink.BeginRoundRequest{Round: "r1", Fence: 1})
	check(err)
	commit := sink.CommitRequest{Round: "r1", Fence: 1}
	for i, batches := range benchBatches(b, d, 0, benchRows) {
		ref := mink.BucketRef{Table: 7, Partition: 1, Index: int32(i)}
		end := mink.Offset(0)
		for _, rec := range batches {
			next := end + mink.Offset(rec.NumRows())
			kinds := slices.Repeat([]mink.Change{mink.ChangeInsert}, int(rec.NumRows()))
			_, err = h.Write(ctx, sink.WriteRequest{Bucket: ref, Batch: rec, Changes: kinds, Start: end, End: next})
			check(err)
			rec.Release()
			end = next
		}
		commit.Ranges = append(commit.Ranges, sink.Range{Bucket: ref, End: end})
	}
	p, err := h.Prepare(ctx, sink.PrepareRequest{})
	check(err)
	commit.Staged = p.Staged
	done, err := h.Commit(ctx, commit)
	check(err)
	return done.Snapshot
}

func benchPlain(b *testing.B, w *lake.Warehouse) (n int64) {
	t, err := w.Load(context.Background(), benchID)
	if err != nil {
		b.Fatal(err)
	}
	_, batches, err := t.Scan().ToArrowRecords(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	for rec, err := range batches {
		if err != nil {
			b.Fatal(err)
		}
		n += rec.NumRows()
		rec.Release()
	}
	return n
}

func benchUnion(b *testing.B, open *scan.Opener, layout scan.Layout, snapshot string, d *schema.Descriptor, index int32, tail []arrow.RecordBatch) (n int64) {
	ref := mink.BucketRef{Table: 7, Partition: 1, Index: index}
	s, err := open.Open(context.Background(), layout, snapshot)
	if err != nil {
		b.Error(err)
		return 0
	}
	end := mink.Offset(0)
	for _, rec := range tail {
		end += mink.Offset(rec.NumRows())
	}
	r := union.Read{
		Descriptor: d, Target: &d.Schema, Bucket: ref, Until: end,
		Lake: func(ctx context.Context, target *schema.Schema, columns []mink.FieldID, filter *predicate.Expr) iter.Seq2[arrow.RecordBatch, error] {
			return s.Read(ctx, scan.Read{Target: target, Columns: columns, Filter: filter, Buckets: func(b mink.BucketRef) bool { return b == ref }})
		},
		Tail: func(_ context.Context, _, _ mink.Offset, target *schema.Schema) iter.Seq2[union.Rows, error] {
			return func(yield func(union.Rows, error) bool) {
				at := mink.Offset(0)
				for _, rec := range tail {
					next := at + mink.Offset(rec.NumRows())
					if !yield(union.Rows{Batch: rec, Changes: slices.Repeat([]byte{byte(mink.ChangeUpdateAfter)}, int(rec.NumRows())), Start: at, End: next}, nil) {
						return
					}
					at = next
				}
			}
		},
	}
	for rec, err := range r.Rows(context.Background()) {
		if err != nil {
			b.Error(err)
			return n
		}
		n += rec.NumRows()
	}
	return n
}
