package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// The first versions of Produce that can say or do something.
const (
	produceServed       = 3  // older ones carry old message formats
	produceAllowsZstd   = 7  // KIP-110
	produceErrorRecords = 8  // KIP-467
	produceNodes        = 10 // KIP-951: the new leader, in the answer
)

// produceCall is a Produce request whose batches were appended.
type produceCall struct {
	broker   *broker
	client   string // its id, as far as a log line has room
	resp     *kmsg.ProduceResponse
	acks     int16
	waits    []produceWait
	until    time.Time // answer by then
	hold     time.Time // refuse an overloaded append only after
	throttle bool
	failed   error // acks=0: the first failure closes the connection
}

type produceWait struct {
	topic, part int
	bucket      mink.BucketRef
	pending     Pending
}

// clientIDLogged bounds the bytes of a client's id in a log line.
const clientIDLogged = 64

// kafkaHeaderBytes is the size of a v2 batch's header.
const kafkaHeaderBytes = 61

// perPartition is about what an unanswered partition holds in memory.
const perPartition = 256

// acceptProduce appends every batch of the request, in order, and leaves the
// waiting to the answer. r is scratch.
func (b *broker) acceptProduce(ctx context.Context, cl *call, body []byte, r *kmsg.ProduceRequest) error {
	partitions, err := countProduce(body, cl.header.flexible, cl.header.version, b.cfg.ProducePartitionsMax)
	if err != nil {
		return closef(slog.LevelWarn, "%v: %v", cl, err)
	}
	if err := decode(cl, r, body); err != nil {
		return err
	}
	defer clear(r.Topics) // let go of the frame and the strings
	cl.held = int64(partitions+1) * perPartition
	p := &produceCall{broker: b, client: string(cl.header.clientID[:min(len(cl.header.clientID), clientIDLogged)]), acks: r.Acks, waits: make([]produceWait, 0, partitions)}
	p.until = cl.read.Add(b.cfg.ProduceTimeout)
	if r.TimeoutMillis > 0 {
		p.until = cl.read.Add(time.Duration(r.TimeoutMillis) * time.Millisecond)
	}
	p.hold = cl.read.Add(b.cfg.HoldTime)
	if p.acks == 0 {
		p.hold = p.until
	}
	p.resp = kmsg.NewPtrProduceResponse()
	p.resp.Version = cl.header.version
	p.resp.Topics = make([]kmsg.ProduceResponseTopic, len(r.Topics))
	topics := b.lookup(ctx)
	taken := 0
	for i := range r.Topics {
		in, out := &r.Topics[i], &p.resp.Topics[i]
		*out = kmsg.NewProduceResponseTopic()
		out.Topic, out.TopicID = in.Topic, in.TopicID
		out.Partitions = make([]kmsg.ProduceResponseTopicPartition, len(in.Partitions))
		t := topics.byName(in.Topic, partitionsNamed(in.Partitions, func(p *kmsg.ProduceRequestTopicPartition) int32 { return p.Partition }))
		for j := range in.Partitions {
			out.Partitions[j] = kmsg.NewProduceResponseTopicPartition()
			out.Partitions[j].Partition = in.Partitions[j].Partition
			out.Partitions[j].BaseOffset = -1
			out.Partitions[j].LogStartOffset = -1
			if err := p.append(ctx, r, t, i, j); err != nil {
				return err
			}
			taken += len(in.Partitions[j].Records)
		}
	}
	b.metrics.RecordBytes(taken, 0)
	cl.answer = p.answer
	return nil
}

// append appends one partition's batch. Its error closes the connection.
func (p *produceCall) append(ctx context.Context, r *kmsg.ProduceRequest, t *topic, i, j int) error {
	in := &r.Topics[i].Partitions[j]
	if c, why := p.refuse(r, t, in); c != codeNone {
		p.failWith(i, j, c, why)
		return nil
	}
	bucket, _ := t.bucket(in.Partition)
	pending, err := p.admit(ctx, bucket, in.Records, tablet.KafkaAppend{AllowZstd: r.Version >= produceAllowsZstd})
	switch {
	case err == nil:
		p.waits = append(p.waits, produceWait{i, j, bucket, pending})
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		p.fail(i, j, bucket, err)
	}
	return nil
}

// admit appends. A bucket that is overloaded or still opening is waited for a
// little, with the connection read no further: some clients stall for seconds
// after any retriable error, and a pipelined batch that is taken after a refused
// one is out of order. Without acknowledgements nobody would hear of a refusal
// at all: there it is waited out.
func (p *produceCall) admit(ctx context.Context, bucket mink.BucketRef, batch []byte, a tablet.KafkaAppend) (Pending, error) {
	var header [kafkaHeaderBytes]byte // an append patches it, also when it is refused
	n := copy(header[:], batch)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		log, err := p.broker.backend.Log(bucket)
		var pending Pending
		if err == nil {
			pending, err = log.AppendKafka(batch, a)
		}
		if !errors.Is(err, mink.ErrThrottled) && !errors.Is(err, mink.ErrUnavailable) {
			return pending, err
		}
		if time.Now().After(p.hold) || !wait(ctx, pause) {
			return nil, err
		}
		copy(batch, header[:n])
	}
}

// refuse finds what is wrong before a log is asked.
func (p *produceCall) refuse(r *kmsg.ProduceRequest, t *topic, in *kmsg.ProduceRequestTopicPartition) (code, string) {
	switch {
	case r.Version < produceServed:
		return codeUnsupportedVersion, ""
	case r.Acks < -1 || r.Acks > 1:
		return codeInvalidRequiredAcks, fmt.Sprintf("acks %d: use -1, 0 or 1", r.Acks)
	case r.TransactionID != nil:
		return codeTransactionalID, "transactions are not supported"
	case t == nil:
		return codeUnknownTopicOrPartition, "the topic does not exist"
	}
	if _, ok := t.bucket(in.Partition); !ok {
		return codeUnknownTopicOrPartition, fmt.Sprintf("topic %s has partitions 0 to %d", t.name, len(t.streams)-1)
	}
	if len(in.Records) == 0 {
		return codeInvalidRecord, "there is no record batch"
	}
	return codeNone, ""
}

// answer waits for the appends in order. A batch that is not durable in time is
// answered REQUEST_TIMED_OUT; it may still land, which idempotent clients notice.
func (p *produceCall) answer(ctx context.Context) (reply, error) {
	timer := time.NewTimer(time.Until(p.until))
	defer timer.Stop()
	late := false
	for i := range p.waits {
		w := &p.waits[i]
		select {
		case <-w.pending.Done():
			p.settle(w)
			continue
		default:
		}
		if !late {
			select {
			case <-w.pending.Done():
				p.settle(w)
				continue
			case <-timer.C:
				late = true
			case <-ctx.Done():
				return reply{}, ctx.Err()
			}
		}
		p.failWith(w.topic, w.part, codeRequestTimedOut, "the append is not durable yet; it may still succeed")
	}
	if p.acks == 0 {
		if p.failed != nil {
			return reply{}, closef(slog.LevelWarn, "a Produce without acknowledgement failed: %v", p.failed)
		}
		return reply{silent: true}, nil
	}
	rep := reply{body: p.resp}
	if p.throttle {
		rep.throttle = p.broker.cfg.ThrottleTime
		p.resp.ThrottleMillis = int32(rep.throttle.Milliseconds())
	}
	return rep, nil
}

func (p *produceCall) settle(w *produceWait) {
	res, err := w.pending.Result()
	if err != nil {
		p.fail(w.topic, w.part, w.bucket, err)
		return
	}
	out := &p.resp.Topics[w.topic].Partitions[w.part]
	out.LogStartOffset = int64(res.LogStart)
	if res.Duplicate && res.First < 0 {
		// Appended before, so long ago that its offset is forgotten. Clients take
		// this code for success without an offset.
		out.ErrorCode = p.broker.fail("Produce", codeDuplicateSequence)
		return
	}
	out.BaseOffset = int64(res.First)
	if res.LogAppendTime {
		out.LogAppendTime = res.CommitTimestamp
	}
}

func (p *produceCall) failWith(i, j int, c code, why string) {
	out := &p.resp.Topics[i].Partitions[j]
	out.ErrorCode = p.broker.fail("Produce", c)
	if why != "" && p.resp.Version >= produceErrorRecords {
		out.ErrorMessage = &why
	}
	if p.failed == nil {
		p.failed = fmt.Errorf("topic %s partition %d: error %d: %s", p.resp.Topics[i].Topic, out.Partition, c, why)
	}
}

func (p *produceCall) fail(i, j int, bucket mink.BucketRef, err error) {
	c := bucketCode(err)
	p.failWith(i, j, c, err.Error())
	out := &p.resp.Topics[i].Partitions[j]
	switch c {
	case codeUnknownServerError, codeStorageError:
		p.broker.report("append of a Kafka batch failed", "topic", p.resp.Topics[i].Topic, "bucket", bucket, "error", err)
	case codeNotEnoughReplicas:
		p.throttle = true
	case codeNotLeader:
		if p.resp.Version >= produceNodes {
			p.redirect(out, bucket, err)
		}
	}
	var bad *record.BatchError
	if !errors.As(err, &bad) {
		return
	}
	p.broker.reportRefused("topic", p.resp.Topics[i].Topic, "partition", out.Partition, "client", p.client, "error", err)
	if p.resp.Version >= produceErrorRecords {
		out.ErrorRecords = errorRecords(bad)
	}
}

// errorRecords lists the records at fault; KIP-467.
func errorRecords(bad *record.BatchError) []kmsg.ProduceResponseTopicPartitionErrorRecord {
	list := bad.Records
	if list == nil && bad.Record >= 0 {
		list = []int32{int32(bad.Record)}
	}
	var out []kmsg.ProduceResponseTopicPartitionErrorRecord
	for i, n := range list {
		e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		e.RelativeOffset = n
		switch {
		case i < len(bad.Whys):
			e.ErrorMessage = &bad.Whys[i]
		case bad.Whys == nil:
			e.ErrorMessage = &bad.Why
		}
		out = append(out, e)
	}
	return out
}

// redirect names the leader in the answer, so that the client need not ask.
func (p *produceCall) redirect(out *kmsg.ProduceResponseTopicPartition, bucket mink.BucketRef, err error) {
	v := p.broker.backend.View()
	leader, epoch, ok := p.broker.newLeader(v, bucket, err)
	if !ok {
		return
	}
	out.CurrentLeader.LeaderID, out.CurrentLeader.LeaderEpoch = int32(leader.id), int32(epoch)
	for i := range p.resp.Brokers {
		if p.resp.Brokers[i].NodeID == int32(leader.id) {
			return
		}
	}
	n := kmsg.NewProduceResponseBroker()
	n.NodeID, n.Host, n.Port, n.Rack = int32(leader.id), leader.host, leader.port, leader.rack
	p.resp.Brokers = append(p.resp.Brokers, n)
}

// newLeader is the bucket's leader by the error, else by the view; false when it
// is unknown or this node, which has just said that it is not.
func (b *broker) newLeader(v *cluster.State, bucket mink.BucketRef, err error) (endpoint, mink.LeaderEpoch, bool) {
	var moved *mink.NotLeaderError
	var id mink.NodeID
	var epoch mink.LeaderEpoch
	if errors.As(err, &moved) && moved.Leader != 0 {
		id, epoch = moved.Leader, moved.Epoch
	} else if sid, ok := v.StreamOf(bucket); ok {
		st, _ := v.Stream(sid)
		id, epoch = st.Owner.Node, st.Owner.LeaderEpoch
	}
	if id == 0 || id == b.backend.Self() {
		return endpoint{}, 0, false
	}
	n, ok := v.Node(id)
	if !ok {
		return endpoint{}, 0, false
	}
	e, ok := endpointOf(n)
	return e, epoch, ok
}

var errTooManyPartitions = errors.New("the request has too many partitions")

// countProduce walks a Produce body and counts its partitions, so that decoding
// allocates in proportion to limits of ours. What it does not like, the decoder
// does not like either.
//
//	transactional id (v3+) | acks i16 | timeout i32 | topics: name, partitions: (i32, bytes, tags), tags
func countProduce(b []byte, flexible bool, version int16, limit int) (int, error) {
	w := wire{b: b, flexible: flexible}
	if version >= 3 {
		w.skip(w.length(2))
	}
	w.skip(2 + 4)
	topics := w.length(4)
	partitions := 0
	for ; topics > 0 && !w.short; topics-- {
		w.skip(w.length(2))
		n := w.length(4)
		partitions += max(n, 0) + 1 // an empty topic costs memory too
		if partitions > limit {
			return 0, errTooManyPartitions
		}
		for ; n > 0 && !w.short; n-- {
			w.skip(4)
			w.skip(w.length(4))
			w.tags()
		}
		w.tags()
	}
	if w.short {
		return 0, errShort
	}
	return partitions, nil
}

// wire walks Kafka's primitives.
type wire struct {
	b        []byte
	flexible bool
	short    bool
}

// length reads a length: a uvarint plus one, or size bytes; -1 is null.
func (w *wire) length(size int) int {
	if w.flexible {
		n, used := binary.Uvarint(w.b)
		if used <= 0 || n > 1<<31 {
			w.short = true
			return 0
		}
		w.b = w.b[used:]
		return int(n) - 1
	}
	if len(w.b) < size {
		w.short = true
		return 0
	}
	n := 0
	if size == 2 {
		n = int(int16(binary.BigEndian.Uint16(w.b)))
	} else {
		n = int(int32(binary.BigEndian.Uint32(w.b)))
	}
	w.b = w.b[size:]
	return n
}

func (w *wire) skip(n int) {
	if n <= 0 {
		return
	}
	if n > len(w.b) {
		w.short = true
		w.b = nil
		return
	}
	w.b = w.b[n:]
}

func (w *wire) tags() {
	if !w.flexible || w.short {
		return
	}
	rest, err := skipTags(w.b)
	if err != nil {
		w.short = true
		return
	}
	w.b = rest
}
