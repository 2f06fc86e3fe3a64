package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Producer is one client that appends to one bucket, as a Kafka client does: it
// finds the leader, keeps some batches in flight, and sends those that were not
// acknowledged again, in order. An idempotent one sends the same sequences again;
// another one sends them as new records would be, or forgets them.
type Producer struct {
	Name       string
	Bucket     mink.BucketRef
	Idempotent bool
	Depth      int           // batches in flight, 1..5
	Pause      time.Duration // mean between batches
	Patience   time.Duration // how long it waits for an answer

	world *World
	model *Model
	rng   *rand.Rand
	id    mink.WriterID
	count int   // records made
	seq   int32 // next sequence
	queue []*sent
}

// sent is one batch that is not acknowledged.
type sent struct {
	ids     []string
	seq     int32
	pending *tablet.Pending
	from    *Process
}

// Produce runs the producer until ctx ends or its bucket is gone; then it waits
// for what is in flight, briefly.
func (m *Model) Produce(ctx context.Context, p *Producer, seed uint64) {
	p.world, p.model, p.rng = m.world, m, rand.New(rand.NewPCG(seed, 2))
	p.id = mink.NoWriter
	for p.Idempotent && p.id == mink.NoWriter {
		if ctx.Err() != nil {
			return
		}
		p.allocate(ctx)
	}
	for ctx.Err() == nil {
		if len(p.queue) < p.Depth {
			p.make()
		}
		if !p.send() {
			return
		}
		if len(p.queue) >= p.Depth {
			p.settle()
		}
		p.sleep(ctx)
	}
	p.Depth = 1
	p.settle()
}

func (p *Producer) sleep(ctx context.Context) {
	t := time.NewTimer(time.Duration(p.rng.ExpFloat64() * float64(p.Pause)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (p *Producer) allocate(ctx context.Context) {
	for _, proc := range p.world.Processes() {
		n := proc.Node()
		if n == nil || proc.Paused() {
			continue
		}
		tctx, cancel := context.WithTimeout(ctx, p.Patience)
		id, err := n.AllocateWriter(tctx)
		cancel()
		if err == nil && proc.Running() {
			p.id = id
			return
		}
	}
	p.sleep(ctx)
}

func (p *Producer) make() {
	b := &sent{seq: p.seq}
	for range 1 + p.rng.IntN(4) {
		b.ids = append(b.ids, fmt.Sprintf("%s:%d", p.Name, p.count))
		p.count++
	}
	p.seq += int32(len(b.ids))
	p.queue = append(p.queue, b)
}

// leader finds who leads the bucket; gone: the table is dropped.
func (p *Producer) leader() (proc *Process, log *tablet.Log, gone bool) {
	procs := p.world.Processes()
	p.rng.Shuffle(len(procs), func(i, j int) { procs[i], procs[j] = procs[j], procs[i] })
	for _, proc := range procs {
		n := proc.Node()
		if n == nil {
			continue
		}
		log, err := n.Log(p.Bucket)
		if err == nil {
			return proc, log, false
		}
		gone = gone || errors.Is(err, mink.ErrNotExist) && !proc.Paused()
	}
	return nil, nil, gone
}

// send sends what is not in flight, in order; false when the bucket is gone.
func (p *Producer) send() bool {
	var proc *Process
	var log *tablet.Log
	for i, b := range p.queue {
		if b.pending != nil {
			proc = b.from
			continue
		}
		if log == nil {
			leader, l, gone := p.leader()
			if gone {
				p.model.mu.Lock()
				dropped := p.model.log(p.Bucket).dropped
				p.model.mu.Unlock()
				if dropped {
					return false
				}
			}
			if l == nil || proc != nil && proc != leader {
				return true // what is in flight elsewhere comes first
			}
			proc, log = leader, l
		}
		p.model.Sent(p.Bucket, b.ids, p.Idempotent)
		pending, err := log.AppendKafka(p.encode(b), tablet.KafkaAppend{AllowZstd: true})
		if err != nil {
			if errors.Is(err, mink.ErrOutOfOrder) && i == 0 && p.model.truth.Leads(proc, p.Bucket) || errors.Is(err, mink.ErrInvalid) {
				p.model.broken(p.Bucket, "writer %d's next batch is refused: %v", p.id, err)
				return false
			}
			return true
		}
		b.pending, b.from = pending, proc
	}
	return true
}

// settle waits for the oldest batch in flight.
func (p *Producer) settle() {
	for len(p.queue) > 0 {
		b := p.queue[0]
		if b.pending == nil {
			return
		}
		patience := time.NewTimer(p.Patience)
		select {
		case <-b.pending.Done():
		case <-b.from.Dead():
		case <-patience.C:
		}
		patience.Stop()
		ok := false
		var res tablet.AppendResult
		select {
		case <-b.pending.Done():
			var err error
			res, err = b.pending.Result()
			ok = err == nil
		default:
		}
		if !ok {
			p.again()
			return
		}
		p.model.Acknowledged(p.Bucket, b.ids, res)
		p.queue = p.queue[1:]
		if len(p.queue) < p.Depth {
			return
		}
	}
}

// again makes everything in flight be sent anew.
func (p *Producer) again() {
	for _, b := range p.queue {
		b.pending = nil
	}
	if !p.Idempotent && p.rng.IntN(2) == 0 {
		p.queue = nil // a client that does not retry
	}
}

// encode makes new bytes: a tablet patches those that it is given.
func (p *Producer) encode(s *sent) []byte {
	if p.Idempotent {
		return KafkaBatch(p.id, s.seq, s.ids...)
	}
	return KafkaBatch(mink.NoWriter, -1, s.ids...)
}

// KafkaBatch is what a Kafka client sends: one record per value, made now. writer
// is mink.NoWriter and seq -1 without idempotence.
func KafkaBatch(writer mink.WriterID, seq int32, values ...string) []byte {
	records := make([]kmsg.Record, len(values))
	for i, v := range values {
		records[i].Value = []byte(v)
	}
	return kafkaBatch(writer, seq, records)
}

// KeyedBatch is KafkaBatch for records with keys; a nil value is a tombstone.
func KeyedBatch(writer mink.WriterID, seq int32, pairs ...Pair) []byte {
	records := make([]kmsg.Record, len(pairs))
	for i, p := range pairs {
		records[i].Key, records[i].Value = []byte(p.Key), p.Value
	}
	return kafkaBatch(writer, seq, records)
}

// Pair is a record of a topic with keys.
type Pair struct {
	Key   string
	Value []byte
}

func kafkaBatch(writer mink.WriterID, seq int32, records []kmsg.Record) []byte {
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(records) - 1), FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(records)),
	}
	if writer != mink.NoWriter {
		b.ProducerID, b.ProducerEpoch, b.FirstSequence = int64(writer), 0, seq
	}
	for i, r := range records {
		r.OffsetDelta = int32(i)
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		b.Records = r.AppendTo(b.Records)
	}
	out := b.AppendTo(nil)
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

// Values reads a log from its start to its high watermark.
func Values(ctx context.Context, log *tablet.Log) (first mink.Offset, values []string, err error) {
	first = log.LogStart()
	for at := first; at < log.HighWatermark(); {
		r, err := log.Read(ctx, tablet.ReadRequest{From: at, MaxBytes: 1 << 20})
		if err != nil {
			return first, values, err
		}
		for _, b := range r.Batches {
			v, err := kafkabatch.Parse(b.Kafka())
			if err != nil {
				return first, values, err
			}
			reader := kafkabatch.NewReader(v, b.Kafka()[kafkabatch.HeaderSize:])
			for rec := (kafkabatch.Record{}); reader.Next(&rec); {
				values = append(values, string(rec.Value))
			}
			if reader.Err() != nil {
				return first, values, reader.Err()
			}
		}
		at = r.Next
	}
	return first, values, nil
}
