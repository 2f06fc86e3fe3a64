package stream

import (
	"context"
	"runtime"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
)

// stuck is a write-ahead log whose PUTs hang: it keeps what they would send.
type stuck struct {
	discard
	chunks [][][]byte
	done   []func(uint64, error)
}

func (s *stuck) Submit(_ context.Context, chunks [][]byte, _ uint32, done func(uint64, error)) (uint64, error) {
	s.chunks, s.done = append(s.chunks, chunks), append(s.done, done)
	s.next++
	return s.next - 1, nil
}

// Failure 14, under pressure: records of 50 bytes pour in while no PUT comes
// back. All memory together, what the PUTs hold included, is near what is
// accounted, which is what appends are refused by.
func TestTinyRecordsInFlight(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	cfg := Default(nowhere{}.Capabilities(), 256<<20)
	meta := &captureMeta{}
	meta.wal.Node, meta.wal.Epoch, meta.wal.Nonce = 1, 1, 7
	log := &stuck{}
	e := newEngine(cfg, Deps{Objects: nowhere{}, WALStore: nowhere{}, WAL: meta.wal, Meta: meta}, discardLogger, log)
	var streams []*Stream
	for id := mink.StreamID(1); id <= 100; id++ {
		s, err := e.Open(context.Background(), id, 1)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	req := AppendRequest{Span: 1, Count: 1, Parts: [][]byte{make([]byte, 50)}}
	n := 0
	for refused := 0; refused < 2; n++ {
		s := streams[n%len(streams)]
		req.Start = s.LogEnd()
		if _, err := s.Append(req); err != nil {
			refused++
			e.sealNow(t)
		} else if e.app.open.payload >= cfg.WALBatchBytes {
			e.sealNow(t)
			refused = 0
		}
	}
	used, accounted := heap()-before, e.Stats().LogCacheBytes
	t.Logf("%d records in %d bulks: %d MiB of heap, %d MiB accounted, cache %d MiB", n, len(log.chunks), used>>20, accounted>>20, cfg.LogCacheBytes>>20)
	if used > accounted*13/10 {
		t.Errorf("%.2f x what is accounted", float64(used)/float64(accounted))
	}
	runtime.KeepAlive(streams)
	runtime.KeepAlive(log)
}
