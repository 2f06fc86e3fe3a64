package stream_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/streamtest"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one cluster: a metadata log, a store, nodes that come and go, and a
// model of what was acknowledged.
type world struct {
	t    testing.TB
	meta *streamtest.Meta
	mem  *memstore.Store
	cfg  stream.Config

	latency fault.Latency // of the nodes that start from here on

	mu    sync.Mutex
	acked map[mink.StreamID]map[mink.Offset]mink.Offset // start of each acknowledged frame: its end
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, meta: streamtest.NewMeta(), acked: map[mink.StreamID]map[mink.Offset]mink.Offset{}}
	w.mem = memstore.New(memstore.Config{PageMax: 2})
	w.cfg = stream.Default(w.mem.Capabilities(), 1<<30)
	w.cfg.WALIdleWait, w.cfg.WALBatchInterval = 5*time.Millisecond, 200*time.Millisecond
	w.cfg.CompactPartBytes, w.cfg.Compaction.ObjectBytes = 1<<10, 5<<20 // so that merges write parts
	return w
}

// node is one incarnation.
type node struct {
	*stream.Engine
	w      *world
	id     plan.WALID
	store  *fault.Store
	meta   *nodeMeta
	cancel context.CancelFunc
	done   chan error
}

// nodeMeta is a node's own way to the metadata log, which a crash cuts.
type nodeMeta struct {
	*streamtest.Meta
	mu    sync.Mutex
	fault streamtest.Fault
	old   stream.View // what the node goes on seeing; nil: the newest
}

// freeze keeps the node's view as it is, as if no news came through; a second
// call lets it catch up.
func (m *nodeMeta) freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.old == nil {
		m.old = m.Meta.View()
	} else {
		m.old = nil
	}
}

func (m *nodeMeta) View() stream.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.old != nil {
		return m.old
	}
	return m.Meta.View()
}

func (m *nodeMeta) inject(f streamtest.Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

func (m *nodeMeta) around(op string, call func() error) error {
	m.mu.Lock()
	f := m.fault
	m.mu.Unlock()
	if f == nil {
		return call()
	}
	before, after := f(op)
	if before != nil {
		return before
	}
	if err := call(); err != nil {
		return err
	}
	return after
}

func (m *nodeMeta) CommitObjects(ctx context.Context, c plan.CommitObjects) error {
	return m.around("commit", func() error { return m.Meta.CommitObjects(ctx, c) })
}

func (m *nodeMeta) ReplaceObjects(ctx context.Context, c plan.ReplaceObjects) error {
	return m.around("replace", func() error { return m.Meta.ReplaceObjects(ctx, c) })
}

func (m *nodeMeta) RewriteStream(ctx context.Context, c plan.RewriteStream) error {
	return m.around("rewrite", func() error { return m.Meta.RewriteStream(ctx, c) })
}

func (m *nodeMeta) TrimStreams(ctx context.Context, c []plan.Trim) error {
	return m.around("trim", func() error { return m.Meta.TrimStreams(ctx, c) })
}

func (m *nodeMeta) ForgetObjects(ctx context.Context, c []plan.ObjectID) error {
	return m.around("forget", func() error { return m.Meta.ForgetObjects(ctx, c) })
}

// start registers node and runs an engine for it.
func (w *world) start(nodeID mink.NodeID) *node {
	w.t.Helper()
	n := &node{w: w, id: w.meta.Register(nodeID), store: fault.New(w.mem, fault.Config{Latency: w.latency}), meta: &nodeMeta{Meta: w.meta}, done: make(chan error, 1)}
	e, err := stream.New(w.cfg, stream.Deps{
		Objects: n.store, WALStore: n.store, WAL: n.id, Meta: n.meta, Folder: chain{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	n.Engine = e
	w.meta.Follow(n.id.Epoch, e.ReadHorizon)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	gone := make(chan struct{})
	go func() { defer close(gone); n.done <- e.Run(ctx) }()
	go func() { // heartbeats
		for beat := time.NewTicker(15 * time.Second); ; {
			select {
			case <-beat.C:
				e.ReadHorizon()
			case <-gone:
				beat.Stop()
				return
			}
		}
	}()
	w.t.Cleanup(func() { // whatever the test came to, nothing is left in its bubble
		n.store.ClearRules()
		n.store.LandAll()
		cancel()
		<-gone
	})
	return n
}

// stop drains.
func (n *node) stop() error {
	n.cancel()
	return <-n.done
}

var errCrash = errors.New("the node is gone")

// crash cuts the node off from store and metadata, at once, and waits for it to
// notice. What it had in flight may have landed or not.
func (n *node) crash() {
	n.meta.inject(func(string) (error, error) { return errCrash, nil })
	n.store.Inject(fault.Rule{Do: fault.FailBefore(objstore.ErrUnavailable)})
	n.store.DropAll()
	n.cancel()
	<-n.done
}

// recover seals and recovers a dead epoch as the cluster does.
func (w *world) recover(id plan.WALID) plan.RecoverWAL {
	w.t.Helper()
	w.meta.Seal(id.Epoch)
	state, _ := w.meta.View().WAL(id.Epoch)
	res, err := wal.Recover(context.Background(), wal.RecoverConfig{
		Store: w.mem, WAL: id, From: state.Trim, Window: w.cfg.WALWindow, Nonce: rand.Uint64(),
		StillNeeded: func() bool { v, _ := w.meta.View().WAL(id.Epoch); return !v.Recovered },
	})
	if err != nil {
		w.t.Fatalf("recover wal %s: %v", id, err)
	}
	c := plan.RecoverWAL{WAL: id, End: res.End, Objects: res.Objects, Items: res.Items}
	if err := w.meta.Recover(c); err != nil {
		w.t.Fatalf("recover wal %s: %v", id, err)
	}
	w.valid()
	return c
}

// valid checks the state.
func (w *world) valid() {
	w.t.Helper()
	if err := w.meta.State().Validate(); err != nil {
		w.t.Fatal(err)
	}
}

// open leads a stream by the node.
func (n *node) open(id mink.StreamID) *stream.Stream {
	n.w.t.Helper()
	s, err := n.Open(context.Background(), id, n.w.meta.Lead(id, n.id))
	if err != nil {
		n.w.t.Fatal(err)
	}
	return s
}

// payload is a function of where it goes, so that any misplaced byte shows.
func payload(id mink.StreamID, at mink.Offset, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(id), uint64(at)))
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b[:n]
}

func request(id mink.StreamID, at mink.Offset, span uint64, n int) stream.AppendRequest {
	p := payload(id, at, n)
	return stream.AppendRequest{
		Start: at, Span: span, Count: uint32(min(span, 1000)), MaxTimestamp: int64(at) * 10, CommitTimestamp: int64(at)*10 + 5,
		Parts: [][]byte{p[:n/3], p[n/3:]},
	}
}

// append admits one frame of n bytes and spans offsets.
func (w *world) append(s *stream.Stream, span uint64, n int) *stream.Ticket {
	w.t.Helper()
	t, err := s.Append(request(s.ID(), s.LogEnd(), span, n))
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// put appends and waits for the acknowledgement.
func (w *world) put(s *stream.Stream, span uint64, n int) {
	w.t.Helper()
	at := s.LogEnd()
	t := w.append(s, span, n)
	<-t.Done()
	if t.Err() != nil {
		w.t.Fatal(t.Err())
	}
	w.note(s.ID(), at, at+mink.Offset(span))
}

func (w *world) note(id mink.StreamID, start, end mink.Offset) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.acked[id] == nil {
		w.acked[id] = map[mink.Offset]mink.Offset{}
	}
	w.acked[id][start] = end
}

// check reads a stream from its start and compares every byte with the model.
func (w *world) check(s *stream.Stream) {
	w.t.Helper()
	if err := w.compare(s, 1<<20); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) compare(s *stream.Stream, maxBytes int) error {
	seen := map[mink.Offset]mink.Offset{}
	start := s.Start()
	for at := start; at < s.HighWatermark(); {
		res, err := s.Read(context.Background(), stream.ReadRequest{From: at, MaxBytes: maxBytes})
		if err != nil {
			return err
		}
		if res.Next <= at {
			return fmt.Errorf("stream %d: a read at %d goes on at %d", s.ID(), at, res.Next)
		}
		for _, f := range unjoin(s.ID(), res.Frames) {
			if at = f.Start; string(f.Bytes) != string(payload(s.ID(), at, len(f.Bytes))) {
				return fmt.Errorf("stream %d: wrong bytes at %d", s.ID(), at)
			}
			if _, twice := seen[at]; twice {
				return fmt.Errorf("stream %d: offset %d twice", s.ID(), at)
			}
			seen[at] = f.End()
		}
		at = res.Next
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, end := range w.acked[s.ID()] {
		if end <= start {
			continue
		}
		if got, ok := seen[at]; !ok || got != end {
			return fmt.Errorf("stream %d: acknowledged frame [%d, %d) is gone (found end %d)", s.ID(), at, end, got)
		}
	}
	return nil
}

// joinMark begins a frame that a test's rewrite made of several: their start, span and
// size follow.
const joinMark = "joined\x00\x00"

// join makes one frame of at most joinMax frames that follow one another.
func join(id mink.StreamID, old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
	return func(yield func(stream.Frame, error) bool) {
		var held []stream.Frame
		flush := func() bool {
			if len(held) == 0 {
				return true
			}
			out := held[0]
			out.Bytes = []byte(joinMark)
			for _, f := range held {
				out.Bytes = binary.LittleEndian.AppendUint64(out.Bytes, uint64(f.Start))
				out.Bytes = binary.LittleEndian.AppendUint64(out.Bytes, f.Span)
				out.Bytes = binary.LittleEndian.AppendUint64(out.Bytes, uint64(len(f.Bytes)))
			}
			last := held[len(held)-1]
			out.Span = uint64(last.End() - out.Start)
			out.CommitTimestamp, out.MaxTimestamp = last.CommitTimestamp, last.MaxTimestamp
			held = held[:0]
			return yield(out, nil)
		}
		for f, err := range old {
			if err != nil {
				yield(f, err)
				return
			}
			parts := unjoin(id, []stream.Frame{f})
			if string(parts[0].Bytes) != string(payload(id, parts[0].Start, len(parts[0].Bytes))) {
				yield(f, fmt.Errorf("stream %d: wrong bytes at %d to rewrite", id, f.Start))
				return
			}
			if n := len(held); n > 0 && (held[n-1].End() != f.Start || held[n-1].LeaderEpoch != f.LeaderEpoch || n+len(parts) > joinMax) && !flush() {
				return
			}
			held = append(held, parts...)
		}
		flush()
	}
}

const joinMax = 7

// unjoin gives joined frames back as they were.
func unjoin(id mink.StreamID, frames []stream.Frame) (out []stream.Frame) {
	for _, f := range frames {
		if !strings.HasPrefix(string(f.Bytes), joinMark) {
			out = append(out, f)
			continue
		}
		for b := f.Bytes[len(joinMark):]; len(b) > 0; b = b[24:] {
			part := f
			part.Start, part.Span = mink.Offset(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:])
			part.Bytes = payload(id, part.Start, int(binary.LittleEndian.Uint64(b[16:])))
			out = append(out, part)
		}
	}
	return out
}

func joining(id mink.StreamID, upper mink.Offset) stream.Rewrite {
	return stream.Rewrite{
		Upper: upper, DueMs: func() int64 { return 7 },
		Frames: func(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] { return join(id, old) },
	}
}

// rewrite joins what may be rewritten of a stream.
func rewrite(s *stream.Stream) error {
	upper, _, err := s.CleanLimit()
	if err != nil || upper <= s.Start() {
		return err
	}
	_, err = s.Rewrite(context.Background(), joining(s.ID(), upper))
	return err
}

// chain is a Folder whose checkpoint is the next offset and a checksum chained
// over all frames: any frame that is missed, repeated or reordered shows.
type chain struct{}

func (chain) Fold(prev []byte, frames iter.Seq2[stream.Frame, error]) ([]byte, error) {
	var next uint64
	var sum uint32
	if prev != nil {
		next, sum = binary.LittleEndian.Uint64(prev), binary.LittleEndian.Uint32(prev[8:])
	}
	for f, err := range frames {
		if err != nil {
			return nil, err
		}
		if uint64(f.Start) != next {
			return nil, fmt.Errorf("fold: frame at %d where %d was expected", f.Start, next)
		}
		next = uint64(f.End())
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), f.Bytes)
	}
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, next), sum), nil
}

// checkCheckpoint compares the committed checkpoint with one folded from the
// model.
func (w *world) checkCheckpoint(s *stream.Stream) {
	w.t.Helper()
	data, at, err := s.Checkpoint(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if data == nil {
		return
	}
	var sum uint32
	next := mink.Offset(0)
	for next < at {
		end, ok := w.acked[s.ID()][next]
		if !ok {
			w.t.Fatalf("stream %d: checkpoint at %d, no acknowledged frame at %d", s.ID(), at, next)
		}
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), payload(s.ID(), next, w.size(s.ID(), next)))
		next = end
	}
	if got := binary.LittleEndian.Uint32(data[8:]); got != sum || binary.LittleEndian.Uint64(data) != uint64(at) {
		w.t.Fatalf("stream %d: checkpoint at %d says next %d, sum %08x; the log's is %08x", s.ID(), at, binary.LittleEndian.Uint64(data), got, sum)
	}
}

// size is the bytes of frames that tests with checkpoints append.
func (w *world) size(mink.StreamID, mink.Offset) int { return ckptFrame }

const ckptFrame = 300

func (w *world) keys(prefix string) []string {
	w.t.Helper()
	var out []string
	after := ""
	for {
		resp, err := w.mem.List(context.Background(), objstore.ListRequest{Prefix: prefix, StartAfter: after})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, o := range resp.Objects {
			out, after = append(out, o.Key), o.Key
		}
		if !resp.More {
			return out
		}
	}
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
