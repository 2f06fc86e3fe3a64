package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testLogger(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

func testConfig() Config {
	c := Default()
	c.Listen = "127.0.0.1:0"
	c.ReadyWait = time.Second
	c.GroupInitialDelay = 10 * time.Millisecond
	return c
}

// testServer is a running listener over a fake node.
type testServer struct {
	*Server
	node *fakeNode
	addr string
	stop func() error // cancels Run and answers its error; once
}

func startServer(t testing.TB, change func(*Config)) *testServer {
	t.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	return startNode(t, cfg, newFakeNode(t))
}

// startNode is a listener over a node that may have been there before.
func startNode(t testing.TB, cfg Config, node *fakeNode) *testServer {
	t.Helper()
	s, err := New(cfg, node, nil, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := s.Open(ctx); err != nil {
		t.Fatal(err)
	}
	node.register(1, s.Addr().String())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	ts := &testServer{Server: s, node: node, addr: s.Addr().String()}
	ts.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := ts.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return ts
}

// newTestBroker is the broker alone, for tests that need no sockets.
func newTestBroker(t testing.TB, change func(*Config)) (*broker, *fakeNode, chan struct{}) {
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	node := newFakeNode(t)
	node.register(1, "127.0.0.1:9092")
	stopping := make(chan struct{})
	b := newBroker(cfg, node, noMetrics{}, testLogger(t), stopping)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); b.groups.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; b.wait() })
	return b, node, stopping
}

// rawClient speaks frames.
type rawClient struct {
	t    testing.TB
	nc   net.Conn
	next int32
}

func dial(t testing.TB, addr string) *rawClient {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &rawClient{t: t, nc: nc}
}

func frameOf(r kmsg.Request, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, r, correlation)
}

func (c *rawClient) write(b []byte) {
	c.t.Helper()
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) send(r kmsg.Request) int32 {
	c.t.Helper()
	c.next++
	c.write(frameOf(r, c.next))
	return c.next
}

func (c *rawClient) readFrame() []byte {
	c.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(c.nc, size[:]); err != nil {
		c.t.Fatalf("read a response: %v", err)
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.nc, b); err != nil {
		c.t.Fatalf("read a response of %d bytes: %v", len(b), err)
	}
	return b
}

// receive reads the response to r and decodes it to the last byte.
func (c *rawClient) receive(r kmsg.Request, correlation int32) kmsg.Response {
	c.t.Helper()
	return decodeStrict(c.t, r, correlation, c.readFrame())
}

func (c *rawClient) call(r kmsg.Request) kmsg.Response {
	c.t.Helper()
	return c.receive(r, c.send(r))
}

// closed waits for the server to close the connection.
func (c *rawClient) closed() {
	c.t.Helper()
	var b [1]byte
	n, err := c.nc.Read(b[:])
	if n != 0 || err == nil {
		c.t.Fatalf("read %d bytes, want a closed connection", n)
	}
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		c.t.Fatal("the connection is still open")
	}
}

// decodeStrict checks correlation and header, decodes the body, and encodes it
// again: equal bytes mean that nothing was left over or misread.
func decodeStrict(t testing.TB, r kmsg.Request, correlation int32, b []byte) kmsg.Response {
	t.Helper()
	if got := int32(binary.BigEndian.Uint32(b)); got != correlation {
		t.Fatalf("correlation %d, want %d", got, correlation)
	}
	b = b[4:]
	if r.IsFlexible() && r.Key() != keyAPIVersions {
		if b[0] != 0 {
			t.Fatalf("response header tags: %d", b[0])
		}
		b = b[1:]
	}
	resp := r.ResponseKind()
	resp.SetVersion(r.GetVersion())
	if err := resp.ReadFrom(b); err != nil {
		t.Fatalf("decode %s v%d: %v\n%x", kmsg.NameForKey(r.Key()), r.GetVersion(), err, b)
	}
	if again := resp.AppendTo(nil); !bytes.Equal(again, b) {
		t.Fatalf("%s v%d: re-encoded\n%x, sent\n%x", kmsg.NameForKey(r.Key()), r.GetVersion(), again, b)
	}
	return resp
}

// ask runs one request through the broker without sockets.
func ask(t testing.TB, b *broker, r kmsg.Request) kmsg.Response {
	t.Helper()
	return decodeStrict(t, r, 77, askRaw(t, b, r))
}

func askRaw(t testing.TB, b *broker, r kmsg.Request) []byte {
	t.Helper()
	cl, err := b.accept(t.Context(), frameOf(r, 77)[4:], new(kmsg.ProduceRequest))
	if err != nil {
		t.Fatalf("%s v%d: %v", kmsg.NameForKey(r.Key()), r.GetVersion(), err)
	}
	rep, err := cl.answer(t.Context())
	if err != nil {
		t.Fatalf("%s v%d: %v", kmsg.NameForKey(r.Key()), r.GetVersion(), err)
	}
	return encodeReply(cl, &rep)
}

// encodeReply is the response without its length.
func encodeReply(cl *call, rep *reply) []byte {
	out := appendResponseHeader(nil, &cl.header)
	if rep.fetch == nil {
		return rep.body.AppendTo(out)[4:]
	}
	out, parts := rep.fetch.encode(out, len(out))
	if parts == nil {
		return out[4:]
	}
	var flat []byte
	for _, p := range parts {
		flat = append(flat, p...)
	}
	return flat[4:]
}

// batchOf builds an uncompressed v2 batch as a producer sends it.
type batchOf struct {
	values   []string
	ts       int64
	pid      int64
	epoch    int16
	sequence int32
}

func batch(values ...string) []byte {
	return batchOf{values: values, pid: -1, epoch: -1, sequence: -1}.bytes()
}

func (o batchOf) bytes() []byte {
	if o.ts == 0 {
		o.ts = 1_700_000_000_000
	}
	rb := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(o.values) - 1),
		FirstTimestamp: o.ts, MaxTimestamp: o.ts + int64(len(o.values)-1),
		ProducerID: o.pid, ProducerEpoch: o.epoch, FirstSequence: o.sequence, NumRecords: int32(len(o.values)),
	}
	for i, v := range o.values {
		rec := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: int64(i), Value: []byte(v)}
		body := rec.AppendTo(nil)
		rec.Length = int32(len(body) - 1) // the zero length took one byte
		rb.Records = rec.AppendTo(rb.Records)
	}
	b := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func produceTo(version int16, topic string, parts map[int32][]byte) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Version, r.Acks, r.TimeoutMillis = version, -1, 10_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	for i := int32(0); len(t.Partitions) < len(parts); i++ {
		if b, ok := parts[i]; ok {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition, p.Records = i, b
			t.Partitions = append(t.Partitions, p)
		}
	}
	r.Topics = append(r.Topics, t)
	return r
}

// fetchFrom asks for partitions 0.. of a topic from the given offsets.
func fetchFrom(version int16, topic string, id [16]byte, offsets ...int64) *kmsg.FetchRequest {
	r := kmsg.NewPtrFetchRequest()
	r.Version, r.MaxWaitMillis, r.MinBytes, r.MaxBytes = version, 500, 1, 50<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic, id
	for i, o := range offsets {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = int32(i), o, 1<<20, -1
		t.Partitions = append(t.Partitions, p)
	}
	r.Topics = append(r.Topics, t)
	return r
}

func (n *fakeNode) topicID(name string) [16]byte {
	t, ok := n.View().TableByName("kafka", name)
	if !ok {
		n.t.Fatalf("no topic %s", name)
	}
	return t.UUID
}

func fixCRC(b []byte) {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
}
