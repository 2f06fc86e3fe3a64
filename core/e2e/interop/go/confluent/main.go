// Command confluent is confluent-kafka-go, librdkafka 2.11.1, in the interop matrix.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/mink-project/mink/core/e2e/interop/go/records"
)

const name = "confluent-kafka-go"

func main() { records.Client{Name: name, Produce: produce, Consume: consume}.Main() }

func produce(ctx context.Context, broker, topic string, from, n int, codec string) error {
	cfg := kafka.ConfigMap{"bootstrap.servers": broker, "enable.idempotence": true}
	if codec != "default" {
		cfg["compression.codec"] = codec
	}
	p, err := kafka.NewProducer(&cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	reports := make(chan kafka.Event, n)
	for i := from; i < from+n; i++ {
		r := records.At(name, i)
		m := &kafka.Message{TopicPartition: kafka.TopicPartition{Topic: &topic, Partition: kafka.PartitionAny}, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: h.Value})
		}
		if err := p.Produce(m, reports); err != nil {
			return err
		}
	}
	for range n {
		select {
		case e := <-reports:
			if m, ok := e.(*kafka.Message); ok && m.TopicPartition.Error != nil {
				return m.TopicPartition.Error
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func consume(ctx context.Context, broker, topic, group string, n int, p *records.Printer) error {
	c, err := kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": broker, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": false,
		"check.crcs": true,
	})
	if err != nil {
		return err
	}
	if err := c.Subscribe(topic, nil); err != nil {
		return errors.Join(err, c.Close())
	}
	for p.Count < n && ctx.Err() == nil {
		m, err := c.ReadMessage(time.Second)
		var k kafka.Error
		if errors.As(err, &k) && k.IsTimeout() {
			continue
		} else if err != nil {
			return errors.Join(err, c.Close())
		}
		r := records.Record{Key: m.Key, Value: m.Value}
		for _, h := range m.Headers {
			r.Headers = append(r.Headers, records.Header{Key: h.Key, Value: h.Value})
		}
		if err := p.Print(m.TopicPartition.Partition, int64(m.TopicPartition.Offset), r); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w (%w)", err, c.Close())
	}
	_, err = c.Commit()
	return errors.Join(err, c.Close())
}
