package stream

import (
	"context"
	"runtime"
	"testing"
)

// The figures that are sizes, not times, as benchmarks so that `make bench`
// prints them beside the others. TestCommitSize and TestTinyRecordsAreAccounted
// hold their bounds.

// Aim: a commit for 10k streams is < 120 KB.
func BenchmarkFigureCommitBytes(b *testing.B) {
	e, streams, meta := alone(b, 10_000, 1<<40)
	req := AppendRequest{Span: 1, Count: 1, Parts: [][]byte{make([]byte, 100)}}
	for b.Loop() {
		for _, s := range streams {
			req.Start = s.LogEnd()
			if _, err := s.Append(req); err != nil {
				b.Fatal(err)
			}
		}
		e.sealNow(b)
		if err := e.UploadNow(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(commitSize(meta.last)), "commit-bytes")
}

// Aim: the heap that 50-byte records take is <= 1.3 x what is accounted.
func BenchmarkFigureTinyRecords(b *testing.B) {
	var used, accounted int64
	for b.Loop() {
		before := heapInUse()
		e, streams := fill(b, 500_000, 50)
		used, accounted = heapInUse()-before, e.Stats().LogCacheBytes
		runtime.KeepAlive(streams)
	}
	b.ReportMetric(float64(used)/float64(accounted), "heap/accounted")
	b.ReportMetric(float64(accounted)/500_000, "accounted-B/record")
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
