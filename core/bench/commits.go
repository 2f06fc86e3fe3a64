package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What the committing clients do together: commitRate commits a second, each
// group commitEvery, waiting for its answer.
const (
	commitRate        = 2000
	commitEvery       = 200 * time.Millisecond
	commitGroups      = int(commitRate * commitEvery / time.Second)
	commitConnections = 8
)

// commits measures a node whose consumer groups commit 2,000 offsets a second and
// do nothing else: the processor's part, and how long a commit takes. Commits are
// gathered into some ten commands a second, whatever their number.
func (s *suite) commits(ctx context.Context) error {
	fmt.Printf("## %d commits a second by %d consumer groups\n\n", commitRate, commitGroups)
	header("broker", "commits/s", "p50 ms", "p99 ms", "CPU of one core", "metadata entries/s")
	for _, b := range s.brokers {
		if !b.own() {
			continue
		}
		err := s.with(ctx, b, func(p *process) error {
			if err := createTopic(ctx, p.kafka, "bench", 16); err != nil {
				return err
			}
			c, err := newCommitters(p.kafka)
			if err != nil {
				return err
			}
			defer c.close()
			if err := c.run(ctx, s.load.warmup); err != nil { // the groups come into being
				return err
			}
			w, err := openWindow(ctx, p)
			if err != nil {
				return err
			}
			c.took = c.took[:0]
			if err := c.run(ctx, max(10*time.Second, s.load.duration)); err != nil {
				return err
			}
			r, err := w.close(ctx, int64(len(c.took)), 0)
			if err != nil {
				return err
			}
			entries := "-"
			if n := r.Figures["mink_metadata_applied_index"]; n > 0 {
				entries = fmt.Sprintf("%.1f", n/r.Seconds)
			}
			row(b.name, fmt.Sprintf("%.0f", r.recordsPerS()), ms(c.took, 0.5), ms(c.took, 0.99), fmt.Sprintf("%.1f %%", 100*r.CPU/r.Seconds), entries)
			return nil
		})
		if err != nil {
			return fmt.Errorf("commits, %s: %w", b.name, err)
		}
	}
	fmt.Println()
	return nil
}

// committers are consumer groups without members.
type committers struct {
	clients []*kgo.Client
	next    int64 // offset

	mu   sync.Mutex
	took []time.Duration
}

func newCommitters(addr string) (*committers, error) {
	c := &committers{}
	for range commitConnections {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
		if err != nil {
			c.close()
			return nil, err
		}
		c.clients = append(c.clients, cl)
	}
	return c, nil
}

func (c *committers) close() {
	for _, cl := range c.clients {
		cl.Close()
	}
}

// run has every group commit for d, and begins them spread over an interval.
func (c *committers) run(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(d)
	var groups sync.WaitGroup
	for i := range commitGroups {
		groups.Go(func() {
			next := time.Now().Add(commitEvery * time.Duration(i) / time.Duration(commitGroups))
			for offset := c.next; next.Before(end); offset++ {
				if !pause(ctx, time.Until(next)) {
					return
				}
				began := time.Now()
				if err := commit(ctx, c.clients[i%len(c.clients)], fmt.Sprint("group-", i), int32(i%16), offset); err != nil {
					cancel(err)
					return
				}
				c.mu.Lock()
				c.took = append(c.took, time.Since(began))
				c.mu.Unlock()
				next = next.Add(commitEvery)
			}
		})
	}
	groups.Wait()
	c.next += int64(d / commitEvery)
	return context.Cause(ctx)
}

func commit(ctx context.Context, cl *kgo.Client, group string, partition int32, offset int64) error {
	r := kmsg.NewPtrOffsetCommitRequest()
	r.Group = group
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = "bench"
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset = partition, offset
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	resp, err := r.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}
