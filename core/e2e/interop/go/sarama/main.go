// Command sarama is IBM's sarama in the interop matrix.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"github.com/mink-project/mink/core/e2e/interop/go/records"
)

const name = "sarama"

func main() { records.Client{Name: name, Produce: produce, Consume: consume}.Main() }

func produce(_ context.Context, broker, topic string, from, n int, codec string) error {
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Idempotent = true // with one request in flight: order survives a retry
	cfg.Net.MaxOpenRequests = 1
	switch codec {
	case "default":
	case "lz4":
		cfg.Producer.Compression = sarama.CompressionLZ4
	default:
		return fmt.Errorf("codec %s is not in the matrix", codec)
	}
	producer, err := sarama.NewSyncProducer([]string{broker}, cfg)
	if err != nil {
		return err
	}
	batch := make([]*sarama.ProducerMessage, 0, n)
	for i := from; i < from+n; i++ {
		r := records.At(name, i)
		m := &sarama.ProducerMessage{Topic: topic}
		if r.Key != nil {
			m.Key = sarama.ByteEncoder(r.Key)
		}
		if r.Value != nil {
			m.Value = sarama.ByteEncoder(r.Value)
		}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		batch = append(batch, m)
	}
	return errors.Join(producer.SendMessages(batch), producer.Close())
}

func consume(ctx context.Context, broker, topic, group string, n int, p *records.Printer) error {
	cfg := sarama.NewConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Offsets.AutoCommit.Enable = false
	c, err := sarama.NewConsumerGroup([]string{broker}, group, cfg)
	if err != nil {
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	h := &handler{n: n, p: p, done: done}
	for h.err == nil && p.Count < n && ctx.Err() == nil {
		if err := c.Consume(ctx, []string{topic}, h); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	if p.Count < n && h.err == nil {
		h.err = ctx.Err()
	}
	return errors.Join(h.err, c.Close())
}

type handler struct {
	mu   sync.Mutex
	n    int
	p    *records.Printer
	done context.CancelFunc
	err  error
}

func (h *handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			h.take(session, m)
		case <-session.Context().Done():
			return nil
		}
	}
}

func (h *handler) take(session sarama.ConsumerGroupSession, m *sarama.ConsumerMessage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := records.Record{Key: m.Key, Value: m.Value}
	for _, header := range m.Headers {
		r.Headers = append(r.Headers, records.Header{Key: string(header.Key), Value: header.Value})
	}
	h.err = errors.Join(h.err, h.p.Print(m.Partition, m.Offset, r))
	session.MarkMessage(m, "")
	if h.p.Count == h.n {
		session.Commit()
		h.done()
	}
}
