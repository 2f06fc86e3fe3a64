package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

func produced(t testing.TB, r kmsg.Response) *kmsg.ProduceResponseTopicPartition {
	t.Helper()
	return &r.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// Case idem_pipeline5_dup: five batches in one TCP write; the reader appends all
// of them before any is durable; answers come in order; a resend of the third is
// a success with its first offset, and nothing is appended.
func TestIdempotentPipelineAndDuplicate(t *testing.T) {
	s := startServer(t, nil)
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.hold = true })
	c := dial(t, s.addr)
	var wire []byte
	reqs := make([]*kmsg.ProduceRequest, 5)
	for i := range reqs {
		b := batchOf{values: []string{fmt.Sprint("v", i)}, pid: 7, epoch: 0, sequence: int32(i)}.bytes()
		reqs[i] = produceTo(9, "t", map[int32][]byte{0: b})
		wire = append(wire, frameOf(reqs[i], int32(i))...)
	}
	c.write(wire)
	until(t, "all five appended though none is durable", func() bool { return log.held() == 5 })
	log.release(nil)
	for i, r := range reqs {
		p := produced(t, c.receive(r, int32(i)))
		if p.ErrorCode != 0 || p.BaseOffset != int64(i) || p.LogAppendTime != -1 || p.LogStartOffset != 0 {
			t.Fatalf("batch %d: %+v", i, p)
		}
	}
	if p := produced(t, c.call(reqs[2])); p.ErrorCode != 0 || p.BaseOffset != 2 {
		t.Fatalf("resend of batch 2: %+v", p)
	}
	if got := log.HighWatermark(); got != 5 {
		t.Fatalf("high watermark %d after the resend, want 5", got)
	}
	// Case idem_failover_reorder, the wire's part: ahead of the window is 45.
	ahead := produceTo(9, "t", map[int32][]byte{0: batchOf{values: []string{"x"}, pid: 7, sequence: 9}.bytes()})
	if p := produced(t, c.call(ahead)); p.ErrorCode != 45 || p.BaseOffset != -1 {
		t.Fatalf("ahead of the window: %+v", p)
	}
}

// A later request's durability does not overtake an earlier one's answer.
func TestAnswersKeepRequestOrder(t *testing.T) {
	s := startServer(t, nil)
	logs := s.node.topic("t", 2)
	logs[0].set(func(l *fakeLog) { l.mu.hold = true })
	c := dial(t, s.addr)
	slow, fast := produceTo(9, "t", map[int32][]byte{0: batch("slow")}), produceTo(9, "t", map[int32][]byte{1: batch("fast")})
	api := kmsg.NewPtrApiVersionsRequest()
	n1, n2, n3 := c.send(slow), c.send(fast), c.send(api)
	until(t, "both appended", func() bool { return logs[0].held() == 1 && logs[1].HighWatermark() == 1 })
	logs[0].release(nil)
	produced(t, c.receive(slow, n1))
	produced(t, c.receive(fast, n2))
	c.receive(api, n3)
}

func TestProduceRefusals(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 1)[0]
	one := func(version int16, records []byte, change func(*kmsg.ProduceRequest)) *kmsg.ProduceResponseTopicPartition {
		r := produceTo(version, "t", map[int32][]byte{0: records})
		if change != nil {
			change(r)
		}
		return produced(t, ask(t, b, r))
	}
	damaged := batch("abc")
	damaged[len(damaged)-1] ^= 1
	old := batch("abc")
	old[16] = 1
	zstd := batch("abc")
	zstd[22] = 4
	fixCRC(zstd)
	for name, c := range map[string]struct {
		got  *kmsg.ProduceResponseTopicPartition
		want code
	}{
		"v2 is not served":      {one(2, batch("a"), nil), codeUnsupportedVersion},
		"acks 2":                {one(9, batch("a"), func(r *kmsg.ProduceRequest) { r.Acks = 2 }), codeInvalidRequiredAcks},
		"acks -2":               {one(9, batch("a"), func(r *kmsg.ProduceRequest) { r.Acks = -2 }), codeInvalidRequiredAcks},
		"transaction":           {one(9, batch("a"), func(r *kmsg.ProduceRequest) { r.TransactionID = kmsg.StringPtr("x") }), codeTransactionalID},
		"missing topic":         {one(9, batch("a"), func(r *kmsg.ProduceRequest) { r.Topics[0].Topic = "nope" }), codeUnknownTopicOrPartition},
		"missing partition":     {one(9, batch("a"), func(r *kmsg.ProduceRequest) { r.Topics[0].Partitions[0].Partition = 1 }), codeUnknownTopicOrPartition},
		"negative partition":    {one(9, batch("a"), func(r *kmsg.ProduceRequest) { r.Topics[0].Partitions[0].Partition = -1 }), codeUnknownTopicOrPartition},
		"no batch":              {one(9, nil, nil), codeInvalidRecord},
		"two batches":           {one(9, append(batch("a"), batch("b")...), nil), codeInvalidRecord},
		"damaged":               {one(9, damaged, nil), codeCorruptMessage},
		"old format":            {one(9, old, nil), codeUnsupportedFormat},
		"zstd before v7":        {one(6, zstd, nil), codeUnsupportedCompression},
		"message.max.bytes + 1": {one(9, batch(string(make([]byte, 1048588))), nil), codeMessageTooLarge},
	} {
		if c.got.ErrorCode != int16(c.want) || c.got.BaseOffset != -1 {
			t.Errorf("%s: error %d at %d, want %d", name, c.got.ErrorCode, c.got.BaseOffset, c.want)
		}
	}
	if log.HighWatermark() != 0 {
		t.Errorf("something was appended")
	}
}

// Case produce_record_errors: exactly the bad records are named, and nothing is
// appended. A topic that needs keys gets a batch of 100 with 10 null keys.
func TestProduceRecordErrors(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 1)[0]
	log.opts.RequireKeys = true
	rb := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: 99, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 100,
	}
	var bad []int32
	for i := range int32(100) {
		rec := kmsg.Record{OffsetDelta: i, Key: []byte("k"), Value: []byte("v")}
		if i%11 == 7 || i == 0 {
			rec.Key, bad = nil, append(bad, i)
		}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1)
		rb.Records = rec.AppendTo(rb.Records)
	}
	raw := rb.Records
	for codec := range int16(5) {
		rb.Attributes, rb.Records = codec, compressed(t, kafkabatch.Codec(codec), raw)
		wire := rb.AppendTo(nil)
		binary.BigEndian.PutUint32(wire[8:], uint32(len(wire)-12))
		fixCRC(wire)
		for v := int16(7); v <= 11; v++ {
			p := produced(t, ask(t, b, produceTo(v, "t", map[int32][]byte{0: append([]byte(nil), wire...)})))
			if p.ErrorCode != 87 || p.BaseOffset != -1 {
				t.Fatalf("codec %d v%d: %+v", codec, v, p)
			}
			if v < 8 {
				continue
			}
			var named []int32
			for _, e := range p.ErrorRecords {
				if named = append(named, e.RelativeOffset); e.ErrorMessage == nil || *e.ErrorMessage == "" {
					t.Errorf("codec %d v%d: record %d has no message", codec, v, e.RelativeOffset)
				}
			}
			if !slices.Equal(named, bad) || len(bad) != 10 || p.ErrorMessage == nil {
				t.Errorf("codec %d v%d: records %v are named, want %v", codec, v, named, bad)
			}
		}
	}
	if log.HighWatermark() != 0 {
		t.Errorf("something was appended")
	}
}

func TestErrorsOfLogs(t *testing.T) {
	for _, c := range []struct {
		err  error
		want code
	}{
		{mink.ErrThrottled, codeNotEnoughReplicas},
		{mink.ErrOutOfOrder, codeOutOfOrderSequence},
		{&tablet.WriterFencedError{}, codeInvalidProducerEpoch},
		{mink.ErrFenced, codeNotLeader},
		{mink.ErrClosed, codeNotLeader},
		{mink.ErrUnavailable, codeNotLeader},
		{mink.ErrUnknownOutcome, codeRequestTimedOut},
		{&mink.NotLeaderError{Leader: 2}, codeNotLeader},
		{&mink.OutOfRangeError{}, codeOffsetOutOfRange},
		{mink.ErrCorrupt, codeStorageError},
		{mink.ErrNotExist, codeUnknownTopicOrPartition},
		{errors.New("surprise"), codeUnknownServerError},
	} {
		if got := bucketCode(fmt.Errorf("append: %w", c.err)); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// An append that is refused for load is answered retriable with a throttle time,
// and the connection is muted for it.
func TestThrottle(t *testing.T) {
	s := startServer(t, func(c *Config) { c.ThrottleTime, c.HoldTime = 150*time.Millisecond, 10*time.Millisecond })
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.refuse = mink.ErrThrottled })
	c := dial(t, s.addr)
	r := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	resp := c.call(r).(*kmsg.ProduceResponse)
	if got := produced(t, resp).ErrorCode; got != 19 || resp.ThrottleMillis != 150 {
		t.Fatalf("error %d, throttle %d ms", got, resp.ThrottleMillis)
	}
	log.set(func(l *fakeLog) { l.mu.refuse = nil })
	if p := produced(t, c.call(r)); p.ErrorCode != 0 {
		t.Fatalf("%+v", p)
	}
}

// An answer with a throttle keeps the connection from being read for that long,
// once; a listener that stops does not wait for it.
func TestThrottleMutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conn{srv: &Server{metrics: noMetrics{}, stopping: make(chan struct{}), unanswered: newUnanswered(1, 1, 1)}}
		mute := func() {
			cl := &call{answer: func(context.Context) (reply, error) {
				return reply{silent: true, throttle: 150 * time.Millisecond}, nil
			}}
			if err := c.answer(t.Context(), cl); err != nil {
				t.Fatal(err)
			}
		}
		waited := func() time.Duration {
			start := time.Now()
			if err := c.waitMuted(t.Context()); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		mute()
		if first, second := waited(), waited(); first != 150*time.Millisecond || second != 0 {
			t.Errorf("muted for %v, then %v", first, second)
		}
		mute()
		close(c.srv.stopping)
		if d := waited(); d != 0 {
			t.Errorf("muted for %v while the listener stops", d)
		}
	})
}

// A short overload, or a bucket that opens, is waited out in order: nothing is
// refused, and the second batch does not overtake the first.
func TestHold(t *testing.T) {
	for name, refuse := range map[string]error{"overload": mink.ErrThrottled, "opening": mink.ErrUnavailable} {
		s := startServer(t, func(c *Config) { c.HoldTime = 10 * time.Second })
		log := s.node.topic("t", 1)[0]
		log.set(func(l *fakeLog) { l.mu.refuse = refuse })
		c := dial(t, s.addr)
		first, second := produceTo(9, "t", map[int32][]byte{0: batch("a")}), produceTo(9, "t", map[int32][]byte{0: batch("b")})
		n, m := c.send(first), c.send(second)
		until(t, "the first is refused and tried again", func() bool { return log.refusals() > 1 })
		log.set(func(l *fakeLog) { l.mu.refuse = nil })
		if p := produced(t, c.receive(first, n)); p.ErrorCode != 0 || p.BaseOffset != 0 {
			t.Errorf("%s: %+v", name, p)
		}
		if p := produced(t, c.receive(second, m)); p.ErrorCode != 0 || p.BaseOffset != 1 {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestAcksZero(t *testing.T) {
	s := startServer(t, nil)
	log := s.node.topic("t", 1)[0]
	c := dial(t, s.addr)
	r := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	r.Acks = 0
	for range 3 {
		c.send(r)
	}
	api := kmsg.NewPtrApiVersionsRequest()
	c.receive(api, c.send(api)) // the first bytes that come are not about Produce
	if got := log.HighWatermark(); got != 3 {
		t.Fatalf("high watermark %d, want 3", got)
	}
	// An overload is waited out, not answered and not dropped.
	log.set(func(l *fakeLog) { l.mu.refuse = mink.ErrThrottled })
	c.send(r)
	until(t, "it is refused and tried again", func() bool { return log.refusals() > 1 })
	log.set(func(l *fakeLog) { l.mu.refuse = nil })
	c.call(api)
	if got := log.HighWatermark(); got != 4 {
		t.Fatalf("high watermark %d after an overload, want 4", got)
	}
	// An error cannot be said: the connection closes.
	r.Topics[0].Topic = "missing"
	c.send(r)
	c.closed()
}

func TestProduceTimeout(t *testing.T) {
	s := startServer(t, nil)
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.hold = true })
	c := dial(t, s.addr)
	r := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	r.TimeoutMillis = 30
	if p := produced(t, c.call(r)); p.ErrorCode != 7 {
		t.Fatalf("%+v", p)
	}
	log.release(nil)
	if log.HighWatermark() != 1 {
		t.Fatal("the append was lost")
	}
}

// Case dual_writer_unique_offsets, the wire's part: the wrong node says who leads.
func TestNotLeaderNamesTheLeader(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	node.register(2, "other.example:9192")
	node.failLogs(&mink.NotLeaderError{Leader: 2, Epoch: 8})
	for v := int16(3); v <= 11; v++ {
		resp := ask(t, b, produceTo(v, "t", map[int32][]byte{0: batch("a")})).(*kmsg.ProduceResponse)
		p := produced(t, resp)
		if p.ErrorCode != 6 {
			t.Fatalf("v%d: %+v", v, p)
		}
		named := p.CurrentLeader.LeaderID == 2 && p.CurrentLeader.LeaderEpoch == 8 &&
			len(resp.Brokers) == 1 && resp.Brokers[0].Host == "other.example" && resp.Brokers[0].Port == 9192 && *resp.Brokers[0].Rack == "r1"
		if named != (v >= 10) {
			t.Errorf("produce v%d: leader %+v at %+v", v, p.CurrentLeader, resp.Brokers)
		}
	}
	for v := int16(4); v <= 17; v++ {
		resp := ask(t, b, fetchFrom(v, "t", node.topicID("t"), 0)).(*kmsg.FetchResponse)
		p := resp.Topics[0].Partitions[0]
		if p.ErrorCode != 6 || p.HighWatermark != -1 || p.LogStartOffset != -1 {
			t.Fatalf("v%d: %+v", v, p)
		}
		if named := p.CurrentLeader.LeaderID == 2 && p.CurrentLeader.LeaderEpoch == 8; named != (v >= 12) {
			t.Errorf("fetch v%d: leader %+v", v, p.CurrentLeader)
		}
		if named := len(resp.Brokers) == 1 && resp.Brokers[0].Port == 9192; named != (v >= 16) {
			t.Errorf("fetch v%d: nodes %+v", v, resp.Brokers)
		}
	}
}

// A pipelined Produce sees the topic that the request before it creates.
func TestProduceWaitsForTopicChanges(t *testing.T) {
	s := startServer(t, nil)
	c := dial(t, s.addr)
	ct := kmsg.NewPtrCreateTopicsRequest()
	ct.Version = 7
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "new", 1, 3
	ct.Topics = append(ct.Topics, topic)
	p := produceTo(9, "new", map[int32][]byte{0: batch("a")})
	c.write(append(frameOf(ct, 1), frameOf(p, 2)...))
	if got := c.receive(ct, 1).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode; got != 0 {
		t.Fatalf("create: %d", got)
	}
	if got := produced(t, c.receive(p, 2)); got.ErrorCode != 0 {
		t.Fatalf("produce: %+v", got)
	}
}

func TestIdleConnectionsAndLimits(t *testing.T) {
	s := startServer(t, func(c *Config) { c.IdleTimeout, c.ConnectionsMax = 50*time.Millisecond, 2 })
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.hold = true })
	busy := dial(t, s.addr)
	r := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	n := busy.send(r)
	until(t, "appended", func() bool { return log.held() == 1 })
	idle := dial(t, s.addr)
	third := dial(t, s.addr)
	third.closed()
	idle.closed()
	log.release(nil) // later than the idle timeout: a busy connection is not idle
	if p := produced(t, busy.receive(r, n)); p.ErrorCode != 0 {
		t.Fatalf("%+v", p)
	}
}

// inFlightIn counts the requests that were read and not answered.
func inFlightIn(s *testServer) (n int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.openConns() {
		n += c.inFlight.Load()
	}
	return n
}

// A stopping listener answers what it has read: appends that become durable,
// and fetches that wait.
func TestStopAnswersWhatWasRead(t *testing.T) {
	s := startServer(t, nil)
	logs := s.node.topic("t", 2)
	logs[0].set(func(l *fakeLog) { l.mu.hold = true })
	producer, consumer := dial(t, s.addr), dial(t, s.addr)
	p := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	n := producer.send(p)
	f := fetchFrom(12, "t", [16]byte{}, 0, 0)
	f.MaxWaitMillis = 3_600_000
	m := consumer.send(f)
	until(t, "both to be read", func() bool { return logs[0].held() == 1 && inFlightIn(s) == 2 })
	done := make(chan error, 1)
	go func() { done <- s.stop() }()
	consumer.receive(f, m)
	consumer.closed()
	logs[0].release(nil)
	if got := produced(t, producer.receive(p, n)); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	producer.closed()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(producer.nc); err != nil {
		t.Fatal(err)
	}
}

// A drain that takes too long is cut off.
func TestStopGivesUp(t *testing.T) {
	s := startServer(t, func(c *Config) { c.DrainTimeout = 20 * time.Millisecond })
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.hold = true })
	c := dial(t, s.addr)
	c.send(produceTo(9, "t", map[int32][]byte{0: batch("a")}))
	until(t, "appended", func() bool { return log.held() == 1 })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	c.closed()
}

// Bounds: a client that sends without reading is not read for ever.
func TestInFlightIsBounded(t *testing.T) {
	s := startServer(t, func(c *Config) { c.InFlightMax = 4 })
	log := s.node.topic("t", 1)[0]
	log.set(func(l *fakeLog) { l.mu.hold = true })
	c := dial(t, s.addr)
	r := produceTo(9, "t", map[int32][]byte{0: batch("a")})
	for i := range int32(40) {
		c.write(frameOf(r, i))
	}
	// The writer holds one, the queue four, the reader one.
	for i := range int32(40) { // one by one: a reader without a bound runs ahead meanwhile
		until(t, "the bound is reached", func() bool { return log.held() >= min(6, 40-int(i)) })
		if got := log.held(); got > 6 {
			t.Fatalf("%d appends with room for 6", got)
		}
		log.releaseOne()
		if p := produced(t, c.receive(r, i)); p.ErrorCode != 0 || p.BaseOffset != int64(i) {
			t.Fatalf("answer %d: %+v", i, p)
		}
	}
}

// Allocations of a produce request do not depend on its records.
func BenchmarkProduceRequest(b *testing.B) {
	for _, records := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(records), func(b *testing.B) { benchmarkProduce(b, records) })
	}
}

func benchmarkProduce(b *testing.B, records int) {
	br, frame := produceBench(b, records)
	scratch := new(kmsg.ProduceRequest)
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		runProduce(b, br, frame, scratch)
	}
}

func produceBench(t testing.TB, records int) (*broker, []byte) {
	br, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	br.backend = &stubBackend{fakeNode: node}
	values := make([]string, records)
	for i := range values {
		values[i] = "0123456789"
	}
	return br, frameOf(produceTo(9, "t", map[int32][]byte{0: batch(values...)}), 1)[4:]
}

func runProduce(t testing.TB, br *broker, frame []byte, scratch *kmsg.ProduceRequest) {
	cl, err := br.accept(context.Background(), frame, scratch)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := cl.answer(context.Background())
	if err != nil || rep.body == nil {
		t.Fatal(err)
	}
}

// stubBackend answers appends at once, without allocating.
type stubBackend struct {
	*fakeNode
	log stubLog
}

func (s *stubBackend) Log(mink.BucketRef) (Log, error) { return &s.log, nil }

type stubLog struct{ *fakeLog }

func (*stubLog) AppendKafka([]byte, tablet.KafkaAppend) (Pending, error) { return donePending{}, nil }

type donePending struct{}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (donePending) Done() <-chan struct{}                { return closedChan }
func (donePending) Result() (tablet.AppendResult, error) { return tablet.AppendResult{}, nil }

func TestProduceAllocations(t *testing.T) {
	count := func(records int) float64 {
		br, frame := produceBench(t, records)
		scratch := new(kmsg.ProduceRequest)
		return testing.AllocsPerRun(200, func() { runProduce(t, br, frame, scratch) })
	}
	one, many := count(1), count(20_000)
	t.Logf("allocations per produce request: %v", one)
	if many != one || one > 20 {
		t.Errorf("%v allocations for one record, %v for 20,000", one, many)
	}
}
