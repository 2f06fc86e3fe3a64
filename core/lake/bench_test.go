//go:build unix

package lake

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// sinkhole keeps no data files: a benchmark's memory is the sink's.
type sinkhole struct {
	objstore.Store
	bytes int64
}

func (s *sinkhole) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if strings.HasSuffix(req.Key, dataSuffix) {
		for _, c := range req.Chunks {
			s.bytes += int64(len(c))
		}
		return objstore.PutResponse{}, nil
	}
	return s.Store.Put(ctx, req)
}

func (s *sinkhole) StartUpload(context.Context, string) (objstore.UploadID, error) { return "u", nil }

func (s *sinkhole) PutPart(_ context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	p := objstore.Part{Number: req.Number}
	for _, c := range req.Chunks {
		p.Size += int64(len(c))
	}
	s.bytes += p.Size
	return p, nil
}

func (s *sinkhole) CompleteUpload(context.Context, objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	return objstore.PutResponse{}, nil
}

func (s *sinkhole) AbortUpload(context.Context, string, objstore.UploadID) error { return nil }

// benchRows has an int64, an int32 and 64 bytes of text that compresses about as
// log lines do. id gives the int64 of row i; nil: a random one.
func benchRows(b testing.TB, as *arrow.Schema, batches, rows int, id func(i int) int64) (out []arrow.RecordBatch, bytes int64) {
	rng := rand.New(rand.NewPCG(1, 2))
	if id == nil {
		id = func(int) int64 { return rng.Int64N(1 << 40) }
	}
	words := strings.Fields("GET POST /index /cart /api/v1/orders 200 404 500 user session token latency ms error retry timeout ok")
	for batch := range batches {
		rb := array.NewRecordBuilder(memory.DefaultAllocator, as)
		for i := range rows {
			rb.Field(0).(*array.Int64Builder).Append(id(batch*rows + i))
			rb.Field(1).(*array.Int32Builder).Append(int32(rng.IntN(1000)))
			var text strings.Builder
			for text.Len() < 56 {
				text.WriteString(words[rng.IntN(len(words))])
				text.WriteByte(' ')
			}
			fmt.Fprintf(&text, "%08x", rng.Uint32())
			rb.Field(2).(*array.StringBuilder).Append(text.String())
		}
		rec := rb.NewRecordBatch()
		out, bytes = append(out, rec), bytes+bytesOf(rec)
	}
	return out, bytes
}

// BenchmarkTiering compares rounds with plain zstd Parquet writes of the same rows,
// by turns and in CPU time, so that a noisy machine is as unfair to one as to the
// other.
func BenchmarkTiering(b *testing.B) {
	for _, c := range []struct {
		name string
		spec sink.TableSpec
		kind mink.Change
		n    int // batches of 16 Ki rows; more than about 35 of changes are spilled
	}{
		{"log", sink.TableSpec{}, 0, 60},
		{"primaryKeyInserts", sink.TableSpec{PrimaryKey: []string{"id"}}, mink.ChangeInsert, 25},
		{"primaryKeyUpdates", sink.TableSpec{PrimaryKey: []string{"id"}}, mink.ChangeUpdateAfter, 25},
		{"primaryKeyUpdatesSpilled", sink.TableSpec{PrimaryKey: []string{"id"}}, mink.ChangeUpdateAfter, 60},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.spec.Options = map[string]string{optionDeletes: deletesEquality} // positions are found in files, which a hole does not keep
			o := newOne(b, c.spec, SinkConfig{ScratchDir: b.TempDir()}, "id", "BIGINT", "n", "INT", "text", "STRING")
			hole := &sinkhole{Store: memstore.New(memstore.Default())}
			o.w.store = hole
			o.s = newSink(o.w, o.s.cfg)
			o.open()
			batches, bytes := benchRows(b, o.spec.Schema.Arrow, c.n, 1<<14, nil)
			defer func() {
				for _, r := range batches {
					r.Release()
				}
			}()
			runtime.GC()
			var before, now runtime.MemStats
			runtime.ReadMemStats(&before)
			var plain, round time.Duration // of the process, all threads
			peak := uint64(0)
			for b.Loop() {
				began := cpuTime(b)
				plainParquet(b, o.spec.Schema.Arrow, batches)
				plain += cpuTime(b) - began
				began = cpuTime(b)
				o.benchRound(batches, c.kind, func() {
					runtime.ReadMemStats(&now)
					peak = max(peak, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
				})
				round += cpuTime(b) - began
			}
			mib := float64(bytes) * float64(b.N) / (1 << 20)
			b.ReportMetric(mib/plain.Seconds(), "plain-MiB/cpu-s")
			b.ReportMetric(mib/round.Seconds(), "round-MiB/cpu-s")
			b.ReportMetric(100*plain.Seconds()/round.Seconds(), "%-of-plain")
			b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		})
	}
}

func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (o *one) benchRound(batches []arrow.RecordBatch, kind mink.Change, sample func()) {
	o.rounds++
	req := sink.CommitRequest{Round: sink.RoundID(fmt.Sprintf("r-%d", o.rounds)), Base: o.last.Round, Fence: 1}
	ctx := context.Background()
	_, err := o.table.BeginRound(ctx, sink.BeginRoundRequest{Round: req.Round, Base: req.Base, Fence: 1})
	o.must(err)
	at := o.last.Ends[bucket0]
	req.Ranges = []sink.Range{{Bucket: bucket0, Start: at}}
	for i, batch := range batches {
		w := sink.WriteRequest{Bucket: bucket0, Start: at, End: at + mink.Offset(batch.NumRows()), Batch: batch}
		if kind != 0 {
			w.Changes = make([]mink.Change, batch.NumRows())
			for i := range w.Changes {
				w.Changes[i] = kind
			}
		}
		_, err := o.table.Write(ctx, w)
		o.must(err)
		if at = w.End; i%16 == 0 {
			sample()
		}
	}
	resp, err := o.table.Prepare(ctx, sink.PrepareRequest{})
	o.must(err)
	sample()
	req.Staged, req.Ranges[0].End = resp.Staged, at
	o.commit(req)
}

// plainParquet is the least that a writer of these rows does.
func plainParquet(t testing.TB, as *arrow.Schema, batches []arrow.RecordBatch) {
	props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd))
	w, err := pqarrow.NewFileWriter(as, io.Discard, props, pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		if err := w.WriteBuffered(b); err != nil {
			t.Fatal(err)
		}
		if w.RowGroupTotalBytesWritten() >= rowGroupBytes {
			w.NewBufferedRowGroup()
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// readStore counts GETs, and with slow gives them the latency of S3.
type readStore struct {
	objstore.Store
	s3   objstore.Store // the same objects
	slow atomic.Bool
	gets atomic.Int64
}

func (s *readStore) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	s.gets.Add(1)
	if s.slow.Load() {
		return s.s3.GetRange(ctx, req)
	}
	return s.Store.GetRange(ctx, req)
}

// BenchmarkReadsAfterCompaction reads a table's snapshots of before and after a compaction, by
// turns, with nothing in memory: processor time from memory, and the time that it takes on a
// store with the latency of S3 (GETs: median 15 ms, p99 45 ms).
func BenchmarkReadsAfterCompaction(b *testing.B) {
	const rounds, most, few = 48, 1 << 15, 1 << 9 // rows of the first round, and of each later one
	for _, c := range []struct {
		name    string
		keyed   bool
		deletes string
	}{{"log", false, ""}, {"positionDeletes", true, deletesPosition}, {"equalityDeletes", true, deletesEquality}} {
		b.Run(c.name, func(b *testing.B) {
			spec := sink.TableSpec{}
			kind := mink.Change(0)
			if c.keyed {
				spec.PrimaryKey, spec.Options, kind = []string{"id"}, map[string]string{optionDeletes: c.deletes}, mink.ChangeInsert
			}
			o := newOne(b, spec, SinkConfig{}, "id", "BIGINT", "n", "INT", "text", "STRING")
			objects := memstore.New(memstore.Default())
			store := &readStore{Store: objects, s3: fault.New(objects, fault.Config{Seed: 1, Latency: fault.S3Like()})}
			cat, err := sqlcatalog.Open(b.Context(), "sqlite:"+filepath.Join(b.TempDir(), "catalog.db"), sqlcatalog.Default())
			o.must(err)
			defer func() { o.must(cat.Close()) }()
			warehouse := func() *Warehouse { // with empty caches
				w, err := NewWarehouse(WarehouseConfig{Store: store, Root: "s3://bench", Catalog: cat})
				o.must(err)
				return w
			}
			o.s = newSink(warehouse(), SinkConfig{ScratchDir: b.TempDir()})
			o.open()
			write := func(rows int, kind mink.Change, id func(int) int64) {
				batches, _ := benchRows(b, o.spec.Schema.Arrow, 1, rows, id)
				o.benchRound(batches, kind, func() {})
				batches[0].Release()
			}
			write(most, kind, func(i int) int64 { return int64(i) })
			for round := range rounds - 1 {
				if c.keyed { // rows all over the table
					write(few, mink.ChangeUpdateAfter, func(i int) int64 { return int64(i*most/few + round) })
				} else {
					write(few, 0, func(i int) int64 { return int64(most + round*few + i) })
				}
			}
			want := int64(most)
			if !c.keyed {
				want += (rounds - 1) * few
			}
			worn := o.last.Snapshot
			for more := true; more; {
				more = o.compact(sink.CompactRequest{All: true}).More
			}
			var figures [2]struct{ cpu, s3, gets float64 }
			for b.Loop() {
				for i, snapshot := range []string{worn, o.last.Snapshot} {
					f := &figures[i]
					store.gets.Store(0)
					began := cpuTime(b)
					o.benchRead(warehouse(), snapshot, want)
					f.cpu += float64((cpuTime(b) - began).Microseconds()) / 1e3
					f.gets += float64(store.gets.Load())
					store.slow.Store(true)
					start := time.Now()
					o.benchRead(warehouse(), snapshot, want)
					f.s3 += float64(time.Since(start).Microseconds()) / 1e3
					store.slow.Store(false)
				}
			}
			n := float64(b.N)
			before, after := figures[0], figures[1]
			b.ReportMetric(before.cpu/n, "before-cpu-ms")
			b.ReportMetric(after.cpu/n, "after-cpu-ms")
			b.ReportMetric(before.cpu/after.cpu, "cpu-ratio")
			b.ReportMetric(before.s3/n, "before-s3-ms")
			b.ReportMetric(after.s3/n, "after-s3-ms")
			b.ReportMetric(before.s3/after.s3, "s3-ratio")
			b.ReportMetric(before.gets/n, "before-GETs")
			b.ReportMetric(after.gets/n, "after-GETs")
		})
	}
}

func (o *one) benchRead(w *Warehouse, snapshot string, want int64) {
	id, err := strconv.ParseInt(snapshot, 10, 64)
	o.must(err)
	tbl, err := w.Load(context.Background(), identifier(o.spec))
	o.must(err)
	_, batches, err := tbl.Scan(table.WithSnapshotID(id)).ToArrowRecords(context.Background())
	o.must(err)
	var rows int64
	for batch, err := range batches {
		o.must(err)
		rows += batch.NumRows()
		batch.Release()
	}
	if rows != want {
		o.t.Fatalf("snapshot %s has %d rows, want %d", snapshot, rows, want)
	}
}
