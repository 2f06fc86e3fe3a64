package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// client is a Go client of the node; it outlives kills of the node.
func (n *node) client() *client.Client {
	n.t.Helper()
	cfg := client.Default()
	cfg.Bootstrap = []string{"grpc://" + n.flight}
	cfg.RetryWait, cfg.RetryWaitMax = 20*time.Millisecond, 200*time.Millisecond
	c, err := client.New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// franz is a franz-go client that comes back soon after a kill.
func (n *node) franz(opts ...kgo.Opt) *kgo.Client {
	n.t.Helper()
	base := []kgo.Opt{
		kgo.SeedBrokers(n.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.DialTimeout(2 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}
	k, err := kgo.NewClient(append(base, opts...)...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(k.Close)
	return k
}

// ends are the high watermarks of a table's buckets, in bucket order.
func ends(ctx context.Context, t *testing.T, c *client.Client, table string) []mink.Offset {
	t.Helper()
	list, err := c.ListOffsets(ctx, table, nil, "latest")
	if err != nil {
		t.Fatalf("latest offsets of %s: %v", table, err)
	}
	out := make([]mink.Offset, len(list))
	for _, o := range list {
		if o.Error != "" {
			t.Fatalf("latest offset of %s, bucket %d: %s", table, o.Bucket.Index, o.Error)
		}
		out[o.Bucket.Index] = o.Offset
	}
	return out
}

// consume reads one partition from an offset up to another, exclusively.
func (n *node) consume(topic string, partition int32, from, until int64, opts ...kgo.Opt) []*kgo.Record {
	n.t.Helper()
	if from >= until {
		return nil
	}
	k := n.franz(append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}}))...)
	defer k.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for next := from; next < until; {
		fetches := k.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			n.t.Fatalf("consume %s/%d at offset %d of %d: %v", topic, partition, next, until, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < until {
				out = append(out, r)
			}
			next = r.Offset + 1
		})
	}
	return out
}

// check runs the deep consistency check.
func check(ctx context.Context, t *testing.T, c *client.Client) api.CheckReport {
	t.Helper()
	r, err := c.Check(ctx, true)
	if err != nil {
		t.Fatalf("fsck: %v", err)
	}
	return r
}
