package kafka

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/sdk/mink"
)

// FuzzAccept feeds frames to parser and handlers: no panic, and every request
// that is not refused gets an answer that the codec reads back.
func FuzzAccept(f *testing.F) {
	node := newFakeNode(f)
	node.register(1, "127.0.0.1:9092")
	for _, l := range node.topic("t", 3) {
		appendTo(f, l, batch("a", "b"))
	}
	for _, a := range APIs() {
		for v := a.Min; v <= a.Max; v++ {
			for _, r := range requestsFor(a.Key, v, node) {
				r.SetVersion(v)
				f.Add(frameOf(r, 1)[4:])
			}
		}
	}
	f.Add([]byte{0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	cfg := testConfig()
	cfg.QueryTimeout, cfg.ReadyWait, cfg.ProduceTimeout = 10*time.Millisecond, time.Millisecond, time.Millisecond
	stopping := make(chan struct{})
	close(stopping) // fetches answer at once
	b := newBroker(cfg, readOnly{node}, noMetrics{}, testLogger(f), stopping)
	f.Cleanup(b.wait)
	f.Fuzz(func(t *testing.T, frame []byte) {
		scratch := new(kmsg.ProduceRequest)
		cl, err := b.accept(context.Background(), append([]byte(nil), frame...), scratch)
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
	})
}

// readOnly keeps a fuzzed catalog from growing without end.
type readOnly struct{ *fakeNode }

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
