// Command segmentio is segmentio's kafka-go in the interop matrix.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/e2e/interop/go/records"
	"github.com/segmentio/kafka-go"
)

const name = "kafka-go"

func main() { records.Client{Name: name, Produce: produce, Consume: consume}.Main() }

func produce(ctx context.Context, broker, topic string, from, n int, codec string) error {
	w := &kafka.Writer{
		Addr: kafka.TCP(broker), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchSize: 500, BatchTimeout: 20 * time.Millisecond, AllowAutoTopicCreation: true,
	}
	switch codec {
	case "default":
	case "snappy":
		w.Compression = kafka.Snappy
	default:
		return fmt.Errorf("codec %s is not in the matrix", codec)
	}
	batch := make([]kafka.Message, 0, n)
	for i := from; i < from+n; i++ {
		r := records.At(name, i)
		m := kafka.Message{Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		batch = append(batch, m)
	}
	return errors.Join(w.WriteMessages(ctx, batch...), w.Close())
}

func consume(ctx context.Context, broker, topic, group string, n int, p *records.Printer) error {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{broker}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond,
	})
	last := map[int]kafka.Message{}
	for p.Count < n {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return errors.Join(err, r.Close())
		}
		out := records.Record{Key: m.Key, Value: m.Value}
		for _, h := range m.Headers {
			out.Headers = append(out.Headers, records.Header{Key: h.Key, Value: h.Value})
		}
		if err := p.Print(int32(m.Partition), m.Offset, out); err != nil {
			return err
		}
		last[m.Partition] = m
	}
	commit := make([]kafka.Message, 0, len(last))
	for _, m := range last {
		commit = append(commit, m)
	}
	return errors.Join(r.CommitMessages(ctx, commit...), r.Close())
}
