package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/mink"
)

// kafkaCluster is a cluster as franz-go sees it.
type kafkaCluster struct {
	*servertest.Cluster
	t   *testing.T
	ctx context.Context
}

func startKafka(t *testing.T, nodes int, opts ...servertest.Option) *kafkaCluster {
	t.Helper()
	c := servertest.Start(t, nodes, opts...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return &kafkaCluster{c, t, ctx}
}

// kgo makes a client that asks like one with defaults, only sooner.
func (c *kafkaCluster) kgo(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	var seeds []string
	for id := 1; id <= c.Nodes(); id++ {
		seeds = append(seeds, c.Node(id).Kafka)
	}
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(100 * time.Millisecond), kgo.RequestTimeoutOverhead(3 * time.Second), kgo.ProduceRequestTimeout(3 * time.Second),
	}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

// topic makes a topic and answers its buckets.
func (c *kafkaCluster) topic(name string, partitions int32) []mink.BucketRef {
	c.t.Helper()
	cl := c.kgo()
	defer cl.Close()
	r, err := kadm.NewClient(cl).CreateTopic(c.ctx, partitions, 1, nil, name)
	if err != nil || r.Err != nil {
		c.t.Fatal(err, r.Err)
	}
	var refs []mink.BucketRef
	c.eventually("the topic is known", func() bool {
		table, ok := c.View().TableByName("kafka", name)
		if !ok {
			return false
		}
		for p := range c.View().Partitions(table.ID) {
			for i := range p.Streams {
				refs = append(refs, mink.BucketRef{Table: table.ID, Partition: p.ID, Index: int32(i)})
			}
		}
		return true
	})
	return refs
}

func (c *kafkaCluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	if !servertest.Wait(c.ctx, ok) {
		c.t.Fatalf("never: %s", what)
	}
}

// coordinator is the node that coordinates a group, by the metadata.
func (c *kafkaCluster) coordinator(group string) int {
	id, _, _ := c.View().GroupCoordinator(group)
	return int(id)
}

// load is a producer and a group of consumers of one topic, with what was
// acknowledged to each.
type load struct {
	c          *kafkaCluster
	topic      string
	group      string
	partitions int32
	stop       chan struct{}
	wg         sync.WaitGroup
	acked      atomic.Int64
	commits    atomic.Int64
	consumed   atomic.Int64

	mu        sync.Mutex
	sent      []int64          // of each partition: values 0 .. sent-1
	last      []int64          // of each partition: the offset of the newest acknowledged record
	committed []int64          // of each partition: the largest offset whose commit was acknowledged
	seen      []map[int64]bool // of each partition: values that the group has read
	failures  []string
}

func (l *load) failed(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) < 10 {
		l.failures = append(l.failures, fmt.Sprintf(format, args...))
	}
}

// startLoad begins to write to a new topic, and to read it as a group.
func (c *kafkaCluster) startLoad(topic, group string, partitions int32, consumers int) *load {
	c.t.Helper()
	c.topic(topic, partitions)
	l := &load{c: c, topic: topic, group: group, partitions: partitions, stop: make(chan struct{}), sent: make([]int64, partitions), last: make([]int64, partitions), committed: make([]int64, partitions)}
	for i := range partitions {
		l.last[i] = -1
		l.seen = append(l.seen, map[int64]bool{})
	}
	l.wg.Go(l.produce)
	for range consumers {
		l.wg.Go(l.consume)
	}
	return l
}

// produce writes the numbers 0, 1, ... to each partition, a few at a time, in one
// idempotent session. Offsets must follow the order of the numbers.
func (l *load) produce() {
	cl := l.c.kgo(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(l.topic), kgo.ProducerLinger(0),
		kgo.StopProducerOnDataLossDetected(), kgo.ProducerOnDataLossDetected(func(_ string, p int32) { l.failed("the client believes that partition %d lost data", p) }))
	defer cl.Close()
	for l.running() {
		for p := range l.partitions {
			l.mu.Lock()
			n := l.sent[p]
			l.sent[p]++
			l.mu.Unlock()
			cl.Produce(l.c.ctx, &kgo.Record{Partition: p, Value: []byte(strconv.FormatInt(n, 10))}, func(r *kgo.Record, err error) {
				if err != nil {
					l.failed("record %d of partition %d was not acknowledged: %v", n, p, err)
					return
				}
				l.mu.Lock()
				ordered := r.Offset > l.last[p]
				l.last[p] = r.Offset
				l.mu.Unlock()
				if !ordered {
					l.failed("record %d of partition %d was acknowledged at offset %d, which is not above the one before", n, p, r.Offset)
				}
				l.acked.Add(1)
			})
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err := cl.Flush(l.c.ctx); err != nil {
		l.failed("flush: %v", err)
	}
}

// unreachable errors are not the cluster's: the client says that a node is gone or
// does not answer, and goes on.
func unreachable(err error) bool {
	var network *net.OpError
	return errors.As(err, &network)
}

// refusals of a commit that tell a member that it is none any more: it joins again.
var rejoin = []error{kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress}

// consume is one member of the group: it reads, and commits what it has read.
func (l *load) consume() {
	var mu sync.Mutex
	floor := map[int32]int64{} // of each partition got: what was committed then
	cl := l.c.kgo(kgo.ConsumerGroup(l.group), kgo.ConsumeTopics(l.topic), kgo.DisableAutoCommit(), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(300*time.Millisecond), kgo.SessionTimeout(30*time.Second),
		kgo.Balancers(kgo.RangeBalancer()), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
			mu.Lock()
			defer mu.Unlock()
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, p := range got[l.topic] {
				floor[p] = l.committed[p]
			}
		}))
	defer cl.CloseAllowingRebalance()
	for !l.drained() && l.c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.c.ctx, 500*time.Millisecond)
		fetches := cl.PollFetches(ctx)
		cancel()
		fetches.EachError(func(topic string, p int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) && !unreachable(err) {
				l.failed("fetch of partition %d: %v", p, err)
			}
		})
		var records []*kgo.Record
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, r)
			mu.Lock()
			least := floor[r.Partition]
			delete(floor, r.Partition)
			mu.Unlock()
			if r.Offset < least {
				l.failed("partition %d goes on at offset %d, below %d, whose commit was acknowledged", r.Partition, r.Offset, least)
			}
			n, err := strconv.ParseInt(string(r.Value), 10, 64)
			if err != nil {
				l.failed("a foreign record: %q", r.Value)
			}
			l.mu.Lock()
			l.seen[r.Partition][n] = true
			l.mu.Unlock()
			l.consumed.Add(1)
		})
		if len(records) > 0 {
			l.commit(cl, records)
		}
		cl.AllowRebalance()
	}
}

func (l *load) commit(cl *kgo.Client, records []*kgo.Record) {
	offsets := map[int32]kgo.EpochOffset{}
	for _, r := range records {
		offsets[r.Partition] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
	}
	done := make(chan struct{})
	cl.CommitOffsets(l.c.ctx, map[string]map[int32]kgo.EpochOffset{l.topic: offsets}, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		defer close(done)
		if err != nil {
			if !unreachable(err) {
				l.failed("commit: %v", err)
			}
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				err := kerr.ErrorForCode(p.ErrorCode)
				switch {
				case err == nil:
					l.mu.Lock()
					back := offsets[p.Partition].Offset < l.committed[p.Partition]
					l.committed[p.Partition] = max(l.committed[p.Partition], offsets[p.Partition].Offset)
					l.mu.Unlock()
					if back {
						l.failed("partition %d: a commit of %d was accepted after a larger one", p.Partition, offsets[p.Partition].Offset)
					}
					l.commits.Add(1)
				case slices.Contains(rejoin, err):
				default:
					l.failed("commit of partition %d: %v", p.Partition, err)
				}
			}
		}
	})
	<-done
}

func (l *load) running() bool {
	select {
	case <-l.stop:
		return false
	default:
		return l.c.ctx.Err() == nil
	}
}

// drained reports that nothing more is sent and the group has read all of it.
func (l *load) drained() bool {
	if l.running() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, n := range l.sent {
		if int64(len(l.seen[p])) < n {
			return len(l.failures) > 0
		}
	}
	return true
}

// goesOn waits until records are acknowledged to every partition, and with readers
// read and committed too, that were sent after the call.
func (l *load) goesOn(what string, readers bool) {
	l.c.t.Helper()
	l.mu.Lock()
	from := slices.Clone(l.last)
	l.mu.Unlock()
	commits, consumed := l.commits.Load(), l.consumed.Load()
	if servertest.Wait(l.c.ctx, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for p := range from {
			if l.last[p] <= from[p]+10 {
				return len(l.failures) > 0
			}
		}
		return !readers || l.commits.Load() > commits+10 && l.consumed.Load() > consumed+10 || len(l.failures) > 0
	}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c.t.Fatalf("the load does not go on %s: acknowledged offsets %d, now %d; %d records read, now %d; %d commits, now %d",
		what, from, l.last, consumed, l.consumed.Load(), commits, l.commits.Load())
}

// finish ends the load and checks the logs: every number of every partition exactly
// once, in order.
func (l *load) finish() {
	t := l.c.t
	t.Helper()
	close(l.stop)
	l.wg.Wait()
	for _, f := range l.failures {
		t.Error(f)
	}
	cl := l.c.kgo()
	defer cl.Close()
	adm := kadm.NewClient(cl)
	ends, err := adm.ListEndOffsets(l.c.ctx, l.topic)
	if err != nil || ends.Error() != nil {
		t.Fatal(err, ends.Error())
	}
	starts := map[int32]kgo.Offset{}
	var end []int64
	for p := range l.partitions {
		o, _ := ends.Lookup(l.topic, p)
		end = append(end, o.Offset)
		starts[p] = kgo.NewOffset().AtStart()
	}
	reader := l.c.kgo(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.topic: starts}))
	defer reader.Close()
	logs := make([][]string, l.partitions)
	missing := func() bool {
		for p := range logs {
			if int64(len(logs[p])) < end[p] {
				return true
			}
		}
		return false
	}
	for missing() {
		fetches := reader.PollFetches(l.c.ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { logs[r.Partition] = append(logs[r.Partition], string(r.Value)) })
	}
	for p, values := range logs {
		if int64(len(values)) != l.sent[p] {
			t.Errorf("partition %d has %d records, %d were sent and acknowledged", p, len(values), l.sent[p])
		}
		for i, v := range values {
			if v != strconv.Itoa(i) {
				t.Errorf("partition %d, offset %d: %s; around: %s", p, i, v, strings.Join(values[max(0, i-3):min(len(values), i+4)], " "))
				break
			}
		}
	}
	offsets, err := adm.FetchOffsets(l.c.ctx, l.group)
	if err != nil {
		t.Fatal(err)
	}
	for p := range l.partitions {
		if o, ok := offsets.Lookup(l.topic, p); !ok || o.At < l.committed[p] {
			t.Errorf("partition %d: the group's offset is %d (%v), a commit of %d was acknowledged", p, o.At, ok, l.committed[p])
		}
	}
	t.Logf("%d records acknowledged, %d read by the group, %d commits", l.acked.Load(), l.consumed.Load(), l.commits.Load())
}
