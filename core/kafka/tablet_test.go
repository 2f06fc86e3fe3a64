package kafka

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// memStream is a stream in memory below a real log tablet. Appends are durable
// at once unless held.
type memStream struct {
	mu       sync.Mutex
	frames   []stream.Frame
	start    mink.Offset
	end      mink.Offset
	hwm      mink.Offset
	held     []memTicket
	hold     bool
	throttle bool
	refused  int // appends, by throttle
	changed  chan struct{}
}

type memTicket chan struct{}

func (t memTicket) Done() <-chan struct{} { return t }
func (memTicket) Err() error              { return nil }

func (s *memStream) Append(r stream.AppendRequest) (tablet.Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.throttle {
		s.refused++
		return nil, mink.ErrThrottled
	}
	s.frames = append(s.frames, stream.Frame{Start: r.Start, Span: r.Span, Count: r.Count, LeaderEpoch: 1,
		MaxTimestamp: r.MaxTimestamp, CommitTimestamp: r.CommitTimestamp, Bytes: bytes.Join(r.Parts, nil)})
	s.end = r.Start + mink.Offset(r.Span)
	t := make(memTicket)
	s.held = append(s.held, t)
	if !s.hold {
		s.landLocked()
	}
	return t, nil
}

func (s *memStream) land() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.landLocked()
}

func (s *memStream) landLocked() {
	s.hwm = s.end
	for _, t := range s.held {
		close(t)
	}
	s.held = nil
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *memStream) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *memStream) Read(_ context.Context, r stream.ReadRequest) (stream.ReadResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := stream.ReadResult{Next: r.From, Start: s.start, HighWatermark: s.hwm}
	if r.From < s.start || r.From > s.hwm {
		return res, &mink.OutOfRangeError{Asked: r.From, Start: s.start, End: s.hwm}
	}
	for _, f := range s.frames {
		if f.End() <= r.From || f.Start >= s.hwm {
			continue
		}
		if r.MaxBytes -= len(f.Bytes); r.MaxBytes < 0 && len(res.Frames) > 0 {
			break
		}
		res.Frames, res.Next = append(res.Frames, f), f.End()
	}
	return res, nil
}

func (s *memStream) get(p *mink.Offset) mink.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *p
}

func (s *memStream) Start() mink.Offset         { return s.get(&s.start) }
func (s *memStream) HighWatermark() mink.Offset { return s.get(&s.hwm) }
func (s *memStream) LogEnd() mink.Offset        { return s.get(&s.end) }

func (s *memStream) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *memStream) Checkpoint(context.Context) ([]byte, mink.Offset, error) { return nil, 0, nil }
func (s *memStream) SeedCheckpoint([]byte, mink.Offset)                      {}

func (s *memStream) OffsetForTimestamp(context.Context, int64, bool) (stream.Frame, bool, error) {
	return stream.Frame{}, false, nil
}

func (s *memStream) Discard(ctx context.Context, to mink.Offset, _ int64) error {
	return s.Trim(ctx, to)
}

func (s *memStream) Trim(_ context.Context, to mink.Offset) error {
	s.set(func() { s.start = to })
	return nil
}

// tabletNode serves every bucket from one real log tablet.
type tabletNode struct {
	*fakeNode
	log *tablet.Log
}

func (n *tabletNode) Log(mink.BucketRef) (Log, error) { return FromTablet(n.log), nil }

// startTablet is a listener over topic "t" with one partition.
func startTablet(t testing.TB, options map[string]string) (*testServer, *memStream, *tablet.Log) {
	t.Helper()
	s := startServer(t, func(c *Config) { c.HoldTime = 10 * time.Second })
	d, err := schema.KafkaTopic("kafka", "t", 1, options)
	if err != nil {
		t.Fatal(err)
	}
	s.node.topic("t", 1)
	o, err := d.ParsedOptions()
	if err != nil {
		t.Fatal(err)
	}
	mem := &memStream{changed: make(chan struct{})}
	cfg := tablet.Default()
	cfg.Schemas, cfg.Options, cfg.LeaderEpoch = []*schema.Schema{&d.Schema}, o, 1
	log, err := tablet.OpenLog(t.Context(), mem, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.broker.backend = &tabletNode{s.node, log}
	return s, mem, log
}

func idempotent(sequence int32, values ...string) *kmsg.ProduceRequest {
	return produceTo(9, "t", map[int32][]byte{0: batchOf{values: values, pid: 7, sequence: sequence}.bytes()})
}

// Cases idem_pipeline5_dup, idem_failover_reorder, idem_unknown_pid_any_seq over
// a real tablet.
func TestIdempotenceOverTablet(t *testing.T) {
	s, mem, log := startTablet(t, nil)
	c := dial(t, s.addr)
	// A new owner sees the second of two pipelined requests first.
	if p := produced(t, c.call(idempotent(5, "five"))); p.ErrorCode != 45 {
		t.Fatalf("sequence 5 first: %+v", p)
	}
	mem.set(func() { mem.hold = true })
	var wire []byte
	for i := range int32(5) {
		wire = append(wire, frameOf(idempotent(i, fmt.Sprint(i)), i)...)
	}
	wire = append(wire, frameOf(idempotent(2, "2"), 5)...) // a duplicate of what is not durable yet
	c.write(wire)
	until(t, "appended", func() bool { return mem.LogEnd() == 5 })
	mem.set(func() { mem.hold = false })
	mem.land()
	for i, want := range []int64{0, 1, 2, 3, 4, 2} {
		if p := produced(t, c.receive(idempotent(0), int32(i))); p.ErrorCode != 0 || p.BaseOffset != want {
			t.Fatalf("answer %d: %+v", i, p)
		}
	}
	if err := log.Trim(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if p := produced(t, c.call(idempotent(5, "after trim"))); p.ErrorCode != 0 || p.BaseOffset != 5 || p.LogStartOffset != 5 {
		t.Fatalf("after a trim: %+v", p)
	}
	older := idempotent(6, "x")
	b := batchOf{values: []string{"x"}, pid: 7, epoch: 3, sequence: 0}.bytes()
	if p := produced(t, c.call(produceTo(9, "t", map[int32][]byte{0: b}))); p.ErrorCode != 0 {
		t.Fatalf("a new epoch: %+v", p)
	}
	if p := produced(t, c.call(older)); p.ErrorCode != 47 {
		t.Fatalf("the epoch before: %+v", p)
	}
}

// An append that is refused for load is tried again unchanged, also where the
// topic's timestamps rewrite the batch.
func TestHoldOverTablet(t *testing.T) {
	s, mem, _ := startTablet(t, map[string]string{"message.timestamp.type": "LogAppendTime"})
	mem.set(func() { mem.throttle = true })
	c := dial(t, s.addr)
	r := produceTo(9, "t", map[int32][]byte{0: batch("a", "b")})
	n := c.send(r)
	until(t, "it is refused and tried again", func() (again bool) {
		mem.set(func() { again = mem.refused > 1 })
		return again
	})
	mem.set(func() { mem.throttle = false })
	p := produced(t, c.receive(r, n))
	if p.ErrorCode != 0 || p.LogAppendTime < 1_700_000_000_000 {
		t.Fatalf("%+v", p)
	}
	var rb kmsg.RecordBatch
	got := fetched(t, c.call(fetchFrom(12, "t", [16]byte{}, 0)), 0)
	if err := rb.ReadFrom(got.RecordBatches); err != nil {
		t.Fatal(err)
	}
	if rb.MaxTimestamp != p.LogAppendTime || rb.Attributes&8 == 0 || rb.NumRecords != 2 {
		t.Fatalf("%+v", rb)
	}
}

// franz-go, idempotent, with overload on the way: dense offsets, each record once.
func TestFranzGoOverTablet(t *testing.T) {
	s, mem, _ := startTablet(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for on := true; ; on = !on {
			mem.set(func() { mem.throttle = on })
			select {
			case <-stop:
				mem.set(func() { mem.throttle = false })
				return
			case <-time.After(3 * time.Millisecond):
			}
		}
	})
	producer := kgoClient(t, s.addr, kgo.DefaultProduceTopic("t"), kgo.ProducerBatchMaxBytes(2000))
	const records = 3000
	for i := range records {
		producer.Produce(ctx, kgo.StringRecord(fmt.Sprint(i, strings.Repeat(".", 50))), func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("record %d: %v", i, err)
			}
		})
	}
	if err := producer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	consumer := kgoClient(t, s.addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart()}}))
	for next := 0; next < records; {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != int64(next) || string(r.Value) != fmt.Sprint(next, strings.Repeat(".", 50)) {
				t.Fatalf("record %d: offset %d, %q", next, r.Offset, r.Value)
			}
			next++
		})
	}
}

// The rest of tablet.Stream: nothing here is cleaned.

func (s *memStream) CleanLimit() (mink.Offset, plan.Cleaned, error) { return 0, plan.Cleaned{}, nil }

func (s *memStream) AskCheckpoint() {}

func (s *memStream) Scan(context.Context, mink.Offset, mink.Offset) iter.Seq2[stream.Frame, error] {
	return func(func(stream.Frame, error) bool) {}
}

func (s *memStream) Rewrite(context.Context, stream.Rewrite) (plan.Cleaned, error) {
	return plan.Cleaned{}, mink.ErrUnsupported
}

func (s *memStream) Bytes(context.Context, mink.Offset, mink.Offset) (int64, error) { return 0, nil }

func (s *memStream) OffsetForBytes(context.Context, int64) (mink.Offset, bool, error) {
	return 0, false, nil
}
