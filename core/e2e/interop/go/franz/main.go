// Command franz is franz-go in the interop matrix.
package main

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/core/e2e/interop/go/records"
	"github.com/twmb/franz-go/pkg/kgo"
)

const name = "franz-go"

func main() { records.Client{Name: name, Produce: produce, Consume: consume}.Main() }

func produce(ctx context.Context, broker, topic string, from, n int, codec string) error {
	options := []kgo.Opt{kgo.SeedBrokers(broker), kgo.AllowAutoTopicCreation(), kgo.DefaultProduceTopic(topic)}
	switch codec {
	case "default":
	case "zstd":
		options = append(options, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	default:
		return fmt.Errorf("codec %s is not in the matrix", codec)
	}
	c, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer c.Close()
	results := make(chan error, n)
	for i := from; i < from+n; i++ {
		r := records.At(name, i)
		out := &kgo.Record{Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		c.Produce(ctx, out, func(_ *kgo.Record, err error) { results <- err })
	}
	for range n {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}

func consume(ctx context.Context, broker, topic, group string, n int, p *records.Printer) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer c.Close()
	for p.Count < n {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			out := records.Record{Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				out.Headers = append(out.Headers, records.Header{Key: h.Key, Value: h.Value})
			}
			if err := p.Print(r.Partition, r.Offset, out); err != nil {
				return err
			}
		}
	}
	return c.CommitUncommittedOffsets(ctx)
}
