package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// FuzzAccept feeds frames to parser and handlers: no panic, and every request
// that is not refused gets an answer that the codec reads back.
func FuzzAccept(f *testing.F) {
	b, frames := hostileBroker(f)
	// The oldest and the newest version of each: a short run is over before it has
	// gone through all.
	for _, frame := range frames {
		h, err := parseFixed(frame)
		if err != nil {
			f.Fatal(err)
		}
		if a, _ := findAPI(h.key); h.version == a.Min || h.version == a.Max {
			f.Add(frame)
		}
	}
	f.Add([]byte{0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, frame []byte) { feed(t, b, frame) })
}

// feed gives one frame to parser and handler; what is answered must be readable.
func feed(t testing.TB, b *broker, frame []byte) {
	cl, err := b.accept(context.Background(), append([]byte(nil), frame...), new(kmsg.ProduceRequest))
	if err != nil {
		return
	}
	rep, err := cl.answer(context.Background())
	if err != nil || rep.silent {
		return
	}
	out := encodeReply(cl, &rep)[4:]
	resp := kmsg.ResponseForKey(cl.header.key)
	version := cl.header.version
	if rep.body != nil {
		version = rep.body.GetVersion()
	}
	resp.SetVersion(version)
	if resp.IsFlexible() && cl.header.key != keyAPIVersions {
		out = out[1:]
	}
	if err := resp.ReadFrom(out); err != nil {
		t.Fatalf("key %d v%d: %v\n%x", cl.header.key, version, err, out)
	}
}

// hostileBroker answers at once and keeps its catalog; frames are sound requests
// of every served API and version.
func hostileBroker(t testing.TB) (*broker, [][]byte) {
	node := newFakeNode(t)
	node.register(1, "127.0.0.1:9092")
	for _, l := range node.topic("t", 3) {
		appendTo(t, l, batch("a", "b"))
	}
	var frames [][]byte
	for _, a := range APIs() {
		for v := a.Min; v <= a.Max; v++ {
			for _, r := range requestsFor(a.Key, v, node) {
				r.SetVersion(v)
				frames = append(frames, frameOf(r, 1)[4:])
			}
		}
	}
	cfg := testConfig()
	cfg.QueryTimeout, cfg.ReadyWait, cfg.ProduceTimeout, cfg.HoldTime, cfg.LookupWait = 10*time.Millisecond, time.Millisecond, time.Millisecond, 0, 0
	stopping := make(chan struct{})
	close(stopping) // fetches answer at once
	b := newBroker(cfg, readOnly{node}, noMetrics{}, testLogger(t), stopping)
	t.Cleanup(b.wait)
	return b, frames
}

// readOnly keeps the catalog and the logs of a fuzzed node from growing without
// end.
type readOnly struct{ *fakeNode }

// checkedLog checks what is appended and forgets it.
type checkedLog struct{ *fakeLog }

func (n readOnly) Log(ref mink.BucketRef) (Log, error) {
	l, err := n.fakeNode.Log(ref)
	if err != nil {
		return nil, err
	}
	return checkedLog{l.(*fakeLog)}, nil
}

func (l checkedLog) AppendKafka(batch []byte, a tablet.KafkaAppend) (Pending, error) {
	o := l.opts
	o.AllowZstd = a.AllowZstd
	if _, err := kafkabatch.Header(batch, &o, nil); err != nil {
		return nil, err
	}
	return donePending{}, nil
}

func (readOnly) CreateTable(context.Context, *schema.Descriptor, bool) (*cluster.Table, error) {
	return nil, mink.ErrUnsupported
}

func (readOnly) DropTable(context.Context, mink.TableID) error { return mink.ErrUnsupported }

// A small frame that claims a great many things must not make the decoder
// allocate them.
func TestHostileCountsAllocateLittle(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	// One topic with 30 million partitions of 6 bytes each, if there were so many.
	wide := frameOf(produceTo(3, "t", map[int32][]byte{0: make([]byte, 8<<20)}), 1)[4:]
	at := len(wide) - (8<<20 + 4) - 4 - 4
	copy(wide[at:], []byte{0, 0x15, 0, 0}) // 1,376,256 partitions
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := b.accept(t.Context(), wide, new(kmsg.ProduceRequest)); err == nil {
		t.Error("accepted")
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes allocated", grown)
	}
}

// A length alone allocates nothing of that size.
func TestDeclaredLengthAllocatesLittle(t *testing.T) {
	s := startServer(t, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var clients []*rawClient
	for range 20 {
		c := dial(t, s.addr)
		c.write([]byte{6, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1}) // 96 MiB of Produce, says it
		clients = append(clients, c)
	}
	until(t, "all connected", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.mu.conns) == len(clients)
	})
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("%d MiB allocated for 20 lengths", grown>>20)
	}
}

// A large frame arrives whole, through the pool and beyond it.
func TestLargeFrames(t *testing.T) {
	s := startServer(t, nil)
	log := s.node.topic("t", 1)[0]
	log.opts.MaxBytes = 64 << 20
	c := dial(t, s.addr)
	for i, size := range []int{900 << 10, firstRead - 200, 3 << 20, 20 << 20} {
		b := batch(string(make([]byte, size)))
		if p := produced(t, c.call(produceTo(9, "t", map[int32][]byte{0: b}))); p.ErrorCode != 0 || p.BaseOffset != int64(i) {
			t.Fatalf("%d bytes: %+v", size, p)
		}
		f := fetchFrom(12, "t", [16]byte{}, int64(i))
		got := fetched(t, c.call(f), 0).RecordBatches
		if len(got) != len(b) || string(got[16:]) != string(b[16:]) {
			t.Fatalf("%d bytes: %d came back", len(b), len(got))
		}
	}
}

// FuzzStream feeds a connection whatever bytes: it ends when the client leaves,
// and what it answered are whole frames.
func FuzzStream(f *testing.F) {
	api := kmsg.NewPtrApiVersionsRequest()
	meta := metadataFor(9, false, "t")
	produce := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	var pipelined []byte
	for i, r := range []kmsg.Request{api, meta, produce, fetchFrom(12, "t", [16]byte{}, 0), api} {
		f.Add(frameOf(r, int32(i)))
		pipelined = append(pipelined, frameOf(r, int32(i))...)
	}
	f.Add(pipelined)
	f.Add(pipelined[:len(pipelined)-3])
	// Every served API in its newest version, and all of them pipelined.
	node := newFakeNode(f)
	node.register(1, "127.0.0.1:9092")
	node.topic("t", 3)
	pipelined = nil
	for i, a := range APIs() {
		for _, r := range requestsFor(a.Key, a.Max, node) {
			r.SetVersion(a.Max)
			f.Add(frameOf(r, int32(i)))
			pipelined = append(pipelined, frameOf(r, int32(i))...)
		}
	}
	f.Add(pipelined)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3})
	f.Fuzz(func(t *testing.T, input []byte) {
		node := newFakeNode(t)
		node.register(1, "127.0.0.1:9092")
		node.topic("t", 1)
		cfg := testConfig()
		cfg.QueryTimeout, cfg.ReadyWait, cfg.ProduceTimeout, cfg.HoldTime, cfg.LookupWait = time.Second, time.Millisecond, time.Second, 0, 0
		s, err := New(cfg, node, nil, slog.New(failOnError{slog.DiscardHandler, t}))
		if err != nil {
			t.Fatal(err)
		}
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			newConn(s, server).serve(context.Background())
		}()
		answers := make(chan error, 1)
		go func() { answers <- readFrames(client) }()
		_, _ = client.Write(input) // fails when the server closes first
		_ = client.Close()
		<-done
		if err := <-answers; err != nil {
			t.Error(err)
		}
		s.broker.wait()
	})
}

// failOnError makes an error in the log, such as a caught panic, the test's.
type failOnError struct {
	slog.Handler
	t testing.TB
}

func (failOnError) Enabled(context.Context, slog.Level) bool { return true }

func (h failOnError) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h failOnError) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		r.Attrs(func(a slog.Attr) bool { h.t.Errorf("%s: %v", r.Message, a); return true })
	}
	return nil
}

// readFrames reads whole frames until the connection ends; a frame that our own
// closing cut is fine.
func readFrames(c net.Conn) error {
	for {
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return nil
		}
		n := binary.BigEndian.Uint32(size[:])
		if n < 4 || n > 64<<20 {
			return fmt.Errorf("a response of %d bytes", n)
		}
		if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
			return nil
		}
	}
}
