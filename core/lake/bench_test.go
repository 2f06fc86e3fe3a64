//go:build unix

package lake

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/mink-project/mink/core/builtin/memstore"
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
// log lines do.
func benchRows(b testing.TB, as *arrow.Schema, batches, rows int) (out []arrow.RecordBatch, bytes int64) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("GET POST /index /cart /api/v1/orders 200 404 500 user session token latency ms error retry timeout ok")
	for range batches {
		rb := array.NewRecordBuilder(memory.DefaultAllocator, as)
		for range rows {
			rb.Field(0).(*array.Int64Builder).Append(rng.Int64N(1 << 40))
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
			batches, bytes := benchRows(b, o.spec.Schema.Arrow, c.n, 1<<14)
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
