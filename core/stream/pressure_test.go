package stream

import (
	"context"
	"runtime"
	"testing"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
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

// watching is a store that looks at the engine while an object is on its way.
type watching struct {
	nowhere
	put func(objstore.PutRequest)
}

func (w watching) Put(_ context.Context, r objstore.PutRequest) (objstore.PutResponse, error) {
	w.put(r)
	return objstore.PutResponse{}, nil
}

// An upload copies small frames: of tiny records as much again as they are. That
// counts while the object is on its way, and no longer.
func TestUploadsCopyOfTinyRecordsCounts(t *testing.T) {
	e, streams, _ := alone(t, 10, 1<<30)
	const each = 5000
	for i := range 10 * each {
		streams[i%10].appendBytes(t, 50)
	}
	e.sealNow(t)
	before := e.Stats()
	puts := 0
	e.deps.Objects = watching{put: func(r objstore.PutRequest) {
		puts++
		if got, want := e.Stats().LogCacheBytes-before.LogCacheBytes, objstore.SizeOf(r.Chunks); got < want*9/10 || got > want {
			t.Errorf("%d bytes more are accounted while %d are copied", got, want)
		}
	}}
	if err := e.UploadNow(context.Background()); err != nil {
		t.Fatal(err)
	}
	if after := e.Stats(); puts != 1 || after.LogCacheBytes != before.LogCacheBytes || after.PinnedBytes >= before.PinnedBytes {
		t.Errorf("%d puts; before %+v, after %+v", puts, before, after)
	}
}

// limited is a store that says of itself what a test wants.
type limited struct {
	objstore.Store
	objstore.Multiparter
	caps objstore.Capabilities
}

func (l limited) Capabilities() objstore.Capabilities { return l.caps }

// Only outputs that are sent in parts may be larger than what is built in memory.
func TestOutputsFitTheStore(t *testing.T) {
	cfg := Default(nowhere{}.Capabilities(), 1<<30)
	s3 := objstore.Capabilities{PutSizeMax: 5 << 30, PartSizeMin: 5 << 20, PartSizeMax: 5 << 30}
	with := func(change func(*objstore.Capabilities)) objstore.Capabilities {
		c := s3
		change(&c)
		return c
	}
	for _, tc := range []struct {
		name         string
		caps         objstore.Capabilities
		parts        bool
		part, object int64
	}{
		{"S3", s3, true, 32 << 20, 1 << 30},
		{"large parts only", with(func(c *objstore.Capabilities) { c.PartSizeMin = 100 << 20 }), true, 100 << 20, 1 << 30},
		{"small parts only", with(func(c *objstore.Capabilities) { c.PartSizeMax = 256 << 20 }), false, 32 << 20, 128 << 20},
		{"no parts", with(func(c *objstore.Capabilities) { c.PartSizeMin = 0 }), false, 32 << 20, 128 << 20},
		{"no parts, small puts", with(func(c *objstore.Capabilities) { c.PartSizeMin, c.PutSizeMax = 0, 64<<20 }), false, 32 << 20, 64 << 20},
	} {
		parts, part, object := partsOf(limited{caps: tc.caps}, cfg)
		if (parts != nil) != tc.parts || part != tc.part || object != tc.object {
			t.Errorf("%s: parts %v, %d bytes each, objects of %d bytes", tc.name, parts != nil, part, object)
		}
	}
}

// Many tiny streams cut an output before their index gets large, large
// checkpoints before they fill the memory.
func TestOutputsAreCutByWhatStaysInMemory(t *testing.T) {
	e, _, _ := alone(t, 1, 1<<30)
	many := e.newOutput(e.header(plan.KindStreamSet, 1))
	for id := mink.StreamID(1); !many.full(0); id++ {
		if err := many.b.AddFrame(id, &Frame{Span: 1, Count: 1, Bytes: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if got := many.b.Blocks(); got != outputBlocksMax || many.b.Len() > e.cfg.Compaction.ObjectBytes/4 {
		t.Errorf("cut after %d blocks, %d bytes", got, many.b.Len())
	}
	large := e.newOutput(e.header(plan.KindStreamSet, 2))
	state := make([]byte, 1<<20)
	for id := mink.StreamID(1); !large.full(0); id++ {
		if err := large.b.AddCheckpoint(id, 1, state); err != nil {
			t.Fatal(err)
		}
	}
	if got := large.b.CheckpointLen(); got < outputCheckpointsMax || got > outputCheckpointsMax+2<<20 {
		t.Errorf("cut after %d bytes of checkpoints", got)
	}
}
