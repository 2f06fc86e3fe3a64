package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/fault/memnet"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// kafkaConn is a Kafka client's connection; start is for one goroutine.
type kafkaConn struct {
	address string
	nc      net.Conn
	next    int32
	read    chan struct{} // closed when its reader has ended

	mu struct {
		sync.Mutex
		waiting []*kafkaCall // oldest first: answers come in order
		err     error        // how it broke
	}
}

// kafkaCall is a request on its way; resp and err are there once done is closed.
type kafkaCall struct {
	done        chan struct{}
	correlation int32
	req         kmsg.Request
	resp        kmsg.Response
	err         error
}

func dialKafka(ctx context.Context, from *memnet.Host, address string) (*kafkaConn, error) {
	nc, err := from.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &kafkaConn{address: address, nc: nc, read: make(chan struct{})}
	go c.run()
	return c, nil
}

func (c *kafkaConn) start(req kmsg.Request) *kafkaCall {
	c.next++
	call := &kafkaCall{done: make(chan struct{}), correlation: c.next, req: req}
	c.mu.Lock()
	broken := c.mu.err
	if broken == nil {
		c.mu.waiting = append(c.mu.waiting, call)
	}
	c.mu.Unlock()
	if broken != nil {
		call.err = broken
		close(call.done)
		return call
	}
	if _, err := c.nc.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("sim")).AppendRequest(nil, req, call.correlation)); err != nil {
		_ = c.nc.Close() // the reader ends every call
	}
	return call
}

// ask waits for the answer for as long as ctx lets it.
func (c *kafkaConn) ask(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	call := c.start(req)
	select {
	case <-call.done:
		return call.resp, call.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run reads answers until the connection ends.
func (c *kafkaConn) run() {
	defer close(c.read)
	var err error
	for err == nil {
		err = c.answer()
	}
	_ = c.nc.Close()
	c.mu.Lock()
	c.mu.err = err
	left := c.mu.waiting
	c.mu.waiting = nil
	c.mu.Unlock()
	for _, call := range left {
		call.err = err
		close(call.done)
	}
}

func (c *kafkaConn) answer() error {
	var size [4]byte
	if _, err := io.ReadFull(c.nc, size[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.nc, body); err != nil {
		return err
	}
	c.mu.Lock()
	if len(c.mu.waiting) == 0 {
		c.mu.Unlock()
		return errors.New("an answer that nobody asked for")
	}
	call := c.mu.waiting[0]
	c.mu.waiting = c.mu.waiting[1:]
	c.mu.Unlock()
	defer close(call.done)
	if len(body) < 4 || int32(binary.BigEndian.Uint32(body)) != call.correlation {
		call.err = fmt.Errorf("the answer to request %d is for another one", call.correlation)
		return call.err
	}
	body = body[4:]
	if call.req.IsFlexible() {
		body = body[1:] // no tags
	}
	call.resp = call.req.ResponseKind()
	call.resp.SetVersion(call.req.GetVersion())
	call.err = call.resp.ReadFrom(body)
	return call.err
}

func (c *kafkaConn) close() {
	_ = c.nc.Close()
	<-c.read
}

// WireProducer is a Kafka producer as Producer is one, over the network: it asks some
// process who leads, sends there with several requests in flight, and after a broken
// connection, no answer or an error sends all that was not acknowledged again, in order.
type WireProducer struct {
	Name       string
	Topic      string // in the listeners' database
	Bucket     mink.BucketRef
	Idempotent bool
	Depth      int           // requests in flight, 1..5
	Pause      time.Duration // mean between batches
	Patience   time.Duration // how long it waits for an answer

	model *Model
	world *World
	host  *memnet.Host
	rng   *rand.Rand
	id    mink.WriterID
	count int
	seq   int32
	conn  *kafkaConn // to the leader; nil: unknown
	queue []*wired
}

type wired struct {
	ids   []string
	seq   int32
	first time.Time  // when it was sent for the first time
	call  *kafkaCall // nil: not in flight
}

// ProduceWire runs the producer until ctx ends or its bucket is gone.
func (m *Model) ProduceWire(ctx context.Context, p *WireProducer, seed uint64) {
	p.model, p.world, p.rng, p.id = m, m.world, rand.New(rand.NewPCG(seed, 4)), mink.NoWriter
	p.host = p.world.net.Host("client-" + p.Name)
	defer p.host.End()
	defer p.drop()
	for ctx.Err() == nil {
		if p.conn == nil && !p.connect(ctx) {
			if p.dropped() {
				return
			}
			p.sleep(ctx)
			continue
		}
		if len(p.queue) < p.Depth {
			p.make()
		}
		p.send()
		for len(p.queue) >= p.Depth && p.settle() {
		}
		p.sleep(ctx)
	}
	for len(p.queue) > 0 && p.conn != nil && p.settle() {
	}
}

func (p *WireProducer) dropped() bool {
	p.model.mu.Lock()
	defer p.model.mu.Unlock()
	return p.model.log(p.Bucket).dropped
}

func (p *WireProducer) sleep(ctx context.Context) {
	t := time.NewTimer(time.Duration(p.rng.ExpFloat64() * float64(p.Pause)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (p *WireProducer) drop() {
	if p.conn != nil {
		p.conn.close()
		p.conn = nil
	}
}

// connect finds the leader, and an id for an idempotent writer.
func (p *WireProducer) connect(ctx context.Context) bool {
	procs := p.world.Processes()
	if len(procs) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	some, err := dialKafka(ctx, p.host, procs[p.rng.IntN(len(procs))].KafkaAddress())
	if err != nil {
		return false
	}
	defer some.close()
	if p.Idempotent && p.id == mink.NoWriter {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.SetVersion(4)
		resp, err := some.ask(ctx, req)
		if err != nil || resp.(*kmsg.InitProducerIDResponse).ErrorCode != 0 {
			return false
		}
		p.id = mink.WriterID(resp.(*kmsg.InitProducerIDResponse).ProducerID)
	}
	address := p.leader(ctx, some)
	if address == "" {
		return false
	}
	p.conn, err = dialKafka(ctx, p.host, address)
	return err == nil
}

// leader is the address of the bucket's leader as a process knows it; "" when it does not.
func (p *WireProducer) leader(ctx context.Context, some *kafkaConn) string {
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(9)
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(p.Topic)
	req.Topics = append(req.Topics, t)
	got, err := some.ask(ctx, req)
	if err != nil {
		return ""
	}
	resp := got.(*kmsg.MetadataResponse)
	for _, t := range resp.Topics {
		for _, part := range t.Partitions {
			if part.Partition != p.Bucket.Index {
				continue
			}
			for _, b := range resp.Brokers {
				if b.NodeID == part.Leader {
					return fmt.Sprintf("%s:%d", b.Host, b.Port)
				}
			}
		}
	}
	return ""
}

func (p *WireProducer) make() {
	b := &wired{seq: p.seq}
	for range 1 + p.rng.IntN(4) {
		b.ids = append(b.ids, fmt.Sprintf("%s:%d", p.Name, p.count))
		p.count++
	}
	p.seq += int32(len(b.ids))
	p.queue = append(p.queue, b)
}

// send sends what is not in flight, in order.
func (p *WireProducer) send() {
	for _, b := range p.queue {
		if b.call != nil {
			continue
		}
		if b.first.IsZero() {
			b.first = time.Now()
		}
		p.model.Sent(p.Bucket, b.ids, p.Idempotent)
		req := kmsg.NewPtrProduceRequest()
		req.SetVersion(9)
		req.Acks, req.TimeoutMillis = -1, int32(p.Patience.Milliseconds())
		t := kmsg.NewProduceRequestTopic()
		t.Topic = p.Topic
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition = p.Bucket.Index
		if part.Records = KafkaBatch(mink.NoWriter, -1, b.ids...); p.Idempotent {
			part.Records = KafkaBatch(p.id, b.seq, b.ids...)
		}
		t.Partitions = append(t.Partitions, part)
		req.Topics = append(req.Topics, t)
		b.call = p.conn.start(req)
	}
}

// settle waits for the oldest batch; false when all must be sent again.
func (p *WireProducer) settle() bool {
	b := p.queue[0]
	patience := time.NewTimer(p.Patience)
	defer patience.Stop()
	err := context.DeadlineExceeded
	base := int64(-1)
	select {
	case <-b.call.done:
		base, err = outcome(b.call)
	case <-patience.C:
	}
	if err == nil {
		r := tablet.AppendResult{First: mink.Offset(base), Last: mink.Offset(base) + mink.Offset(len(b.ids)-1), CommitTimestamp: b.first.UnixMilli()}
		p.model.Acknowledged(p.Bucket, b.ids, r)
		p.queue = p.queue[1:]
		return true
	}
	if refused := errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.CorruptMessage) || errors.Is(err, kerr.OutOfOrderSequenceNumber) && p.leads(); refused {
		p.model.broken(p.Bucket, "writer %d's next batch is refused: %v", p.id, err)
	}
	p.drop()
	for _, b := range p.queue {
		b.call = nil
	}
	if !p.Idempotent && p.rng.IntN(2) == 0 {
		p.queue = nil // a client that does not retry
	}
	return false
}

// leads: who answered is the leader.
func (p *WireProducer) leads() bool {
	for _, proc := range p.world.Processes() {
		if proc.KafkaAddress() == p.conn.address {
			return p.model.truth.Leads(proc, p.Bucket)
		}
	}
	return false
}

// outcome of a Produce request of one batch.
func outcome(call *kafkaCall) (base int64, err error) {
	if call.err != nil {
		return 0, call.err
	}
	topics := call.resp.(*kmsg.ProduceResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return 0, errors.New("an answer that is not of the partition")
	}
	p := topics[0].Partitions[0]
	if err = kerr.ErrorForCode(p.ErrorCode); errors.Is(err, kerr.DuplicateSequenceNumber) {
		return -1, nil
	}
	return p.BaseOffset, err
}
