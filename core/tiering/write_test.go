package tiering

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// writes is a handle that keeps what it is written.
type writes struct {
	sink.Table
	t    *testing.T
	spec sink.TableSpec
	got  []sink.WriteRequest
	rows int64
}

func (w *writes) Write(_ context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if err := req.Validate(w.spec); err != nil {
		w.t.Error(err)
	}
	for i := range int(req.Batch.NumRows()) {
		if v := req.Batch.Column(0).(*array.Int64).Value(i); v != w.rows+int64(i) {
			w.t.Fatalf("row %d is %d", w.rows+int64(i), v)
		}
	}
	w.rows += req.Batch.NumRows()
	w.got = append(w.got, req)
	return sink.WriteResponse{}, nil
}

// TestBatchesAreCutToTheContract: rows and bytes of one Write are bounded, whatever the log answers at once.
func TestBatchesAreCutToTheContract(t *testing.T) {
	const n = 2*sink.BatchRowsMax + 77
	b := array.NewInt64Builder(memory.DefaultAllocator)
	for i := range n {
		b.Append(int64(i))
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	batch := array.NewRecordBatch(schema, []arrow.Array{b.NewArray()}, n)
	for _, snapshot := range []bool{false, true} {
		spec := sink.TableSpec{ID: 7, Database: "db", Name: "t", Schema: sink.Schema{ID: 1, Arrow: schema}, BucketCount: 1}
		job := Job{Keyed: snapshot}
		if snapshot {
			spec.PrimaryKey = []string{"id"}
		}
		w := &writes{t: t, spec: spec}
		a := &attempt{t: &Tiering{cfg: Default()}, table: w, schema: spec.Schema, job: job}
		const start, end = 100, 100 + n + 5
		s := split{bucket: Bucket{Ref: mink.BucketRef{Table: 7, Partition: 1}}}
		if err := a.writeRows(t.Context(), s, Rows{Batch: batch, Start: start, End: end}, snapshot); err != nil {
			t.Fatal(err)
		}
		if w.rows != n || len(w.got) < 3 {
			t.Errorf("%d rows of %d in %d writes", w.rows, n, len(w.got))
		}
		at, row := mink.Offset(start), mink.Offset(0)
		for i, req := range w.got {
			if req.Start != at || !snapshot && req.Start != start+row || req.Snapshot != snapshot {
				t.Errorf("write %d is [%d, %d) after %d, row %d", i, req.Start, req.End, at, row)
			}
			at, row = req.End, row+mink.Offset(req.Batch.NumRows())
			if bytes := bytesOf(req.Batch); bytes > sink.BatchBytesMax {
				t.Errorf("write %d of %d bytes", i, bytes)
			}
		}
		if at != end {
			t.Errorf("written to %d of %d", at, end)
		}
	}
}

// TestLargeAndClosedBucketsDoNotWait: alone, and the others keep their time.
func TestLargeAndClosedBucketsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("events", "lake", false, true, 3, time.Hour)
		add := func(b *wBucket, n int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for k := range n {
				b.append(tab, wRecord{key: int64(k)})
			}
			w.changed()
		}
		for _, b := range tab.buckets {
			add(b, 1)
		}
		p := startProc(t, w, testConfig(), faults{}, always)
		p.takeLease()
		if err := waitTiered(w, time.Minute, p); err != nil { // never tiered: at once
			t.Fatal(err)
		}
		add(tab.buckets[0], 30)
		add(tab.buckets[1], 1)
		add(tab.buckets[2], 1)
		time.Sleep(20 * time.Minute)
		expect := func(when string, tiered ...bool) {
			t.Helper()
			w.mu.Lock()
			defer w.mu.Unlock()
			for i, want := range tiered {
				if b := tab.buckets[i]; (b.tiered == b.end) != want {
					t.Errorf("%s bucket %d is tiered to %d of %d", when, i, b.tiered, b.end)
				}
			}
		}
		expect("after a burst", true, false, false)
		w.mu.Lock()
		tab.buckets[1].closed = true
		w.changed()
		w.mu.Unlock()
		time.Sleep(20 * time.Minute)
		expect("after a close", true, true, false)
		time.Sleep(time.Hour)
		expect("after the freshness", true, true, true)
		p.stop()
	})
}
