package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// acceptAdmin is acceptOther for the requests of admin tools. Those that change
// what a Produce behind them meets are barriers.
func (b *broker) acceptAdmin(cl *call, body []byte) error {
	switch cl.header.key {
	case keyCreatePartitions, keyAlterConfigs, keyIncrementalAlterConfigs, keyDeleteRecords:
		cl.done = make(chan struct{})
	}
	switch cl.header.key {
	case keyDeleteRecords:
		return accept(cl, kmsg.NewPtrDeleteRecordsRequest(), body, b.deleteRecords)
	case keyDescribeConfigs:
		return accept(cl, kmsg.NewPtrDescribeConfigsRequest(), body, b.describeConfigs)
	case keyAlterConfigs:
		return accept(cl, kmsg.NewPtrAlterConfigsRequest(), body, b.alterConfigs)
	case keyDescribeLogDirs:
		return accept(cl, kmsg.NewPtrDescribeLogDirsRequest(), body, b.describeLogDirs)
	case keyCreatePartitions:
		return accept(cl, kmsg.NewPtrCreatePartitionsRequest(), body, b.createPartitions)
	case keyIncrementalAlterConfigs:
		return accept(cl, kmsg.NewPtrIncrementalAlterConfigsRequest(), body, b.incrementalAlterConfigs)
	case keyDescribeCluster:
		return accept(cl, kmsg.NewPtrDescribeClusterRequest(), body, b.describeCluster)
	case keyTopicPartitions:
		return accept(cl, kmsg.NewPtrDescribeTopicPartitionsRequest(), body, b.describeTopicPartitions)
	default:
		return closef(slog.LevelError, "api key %d is in the version table but nothing serves it", cl.header.key)
	}
}

// What a client may do, as KIP-430 counts it: a bit per operation. There are no
// ACLs: everything that exists.
const (
	clusterOperations int32 = 1<<5 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12
	topicOperations   int32 = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11
)

// The endpoint types of DescribeCluster.
const (
	endpointBrokers     int8 = 1
	endpointControllers int8 = 2
)

func (b *broker) describeCluster(_ context.Context, r *kmsg.DescribeClusterRequest) (*kmsg.DescribeClusterResponse, error) {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.ControllerID = -1
	fail := func(c code, why string) (*kmsg.DescribeClusterResponse, error) {
		resp.ErrorCode, resp.ErrorMessage = b.fail("DescribeCluster", c), &why
		return resp, nil
	}
	switch {
	case r.Version < 1 || r.EndpointType == endpointBrokers:
	case r.EndpointType == endpointControllers:
		return fail(codeMismatchedEndpoint, "this is a broker's address; there are no controllers of their own")
	default:
		return fail(codeUnsupportedEndpoint, fmt.Sprintf("endpoint type %d: use %d, brokers", r.EndpointType, endpointBrokers))
	}
	v := b.backend.View()
	live := endpoints(v)
	resp.ClusterID, resp.ControllerID = b.cfg.ClusterID, int32(b.controller(v, live))
	add := func(e endpoint, fenced bool) {
		n := kmsg.NewDescribeClusterResponseBroker()
		n.NodeID, n.Host, n.Port, n.Rack, n.IsFenced = int32(e.id), e.host, e.port, e.rack, fenced
		resp.Brokers = append(resp.Brokers, n)
	}
	for _, e := range live {
		add(e, false)
	}
	if r.IncludeFencedBrokers {
		for n := range v.Nodes() {
			if !n.Sealed {
				continue
			}
			n.Sealed = false // its address is still what it registered
			if e, ok := endpointOf(n); ok {
				add(e, true)
			}
		}
	}
	if r.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = clusterOperations
	}
	return resp, nil
}

// describeLogDirs answers one "directory", the object store, with the partitions
// that this node leads. The store's size is unknown (-1), as KIP-827 spells it.
func (b *broker) describeLogDirs(ctx context.Context, r *kmsg.DescribeLogDirsRequest) (*kmsg.DescribeLogDirsResponse, error) {
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	dir := kmsg.NewDescribeLogDirsResponseDir()
	dir.Dir, dir.TotalBytes, dir.UsableBytes = b.cfg.LogDir, -1, -1
	v := b.backend.View()
	add := func(t *topic, partitions []int32) {
		out := kmsg.NewDescribeLogDirsResponseDirTopic()
		out.Topic = t.name
		for _, i := range partitions {
			ref, ok := t.bucket(i)
			if !ok {
				continue
			}
			log, err := b.backend.Log(ref)
			if err != nil {
				continue // another node's, or not open: not in this directory
			}
			p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
			p.Partition, p.Size = i, log.KeptBytes()
			out.Partitions = append(out.Partitions, p)
		}
		if len(out.Partitions) > 0 {
			dir.Topics = append(dir.Topics, out)
		}
	}
	if r.Topics == nil {
		for t := range b.allTopics(v) {
			all := make([]int32, len(t.streams))
			for i := range all {
				all[i] = int32(i)
			}
			add(t, all)
		}
	}
	for i := range r.Topics {
		if t := b.topicByName(v, r.Topics[i].Topic); t != nil {
			add(t, r.Topics[i].Partitions)
		}
	}
	resp.Dirs = append(resp.Dirs, dir)
	return resp, ctx.Err()
}

// deletesAtOnce is how many partitions of one DeleteRecords are trimmed side by
// side: they share the upload that some of them need.
const deletesAtOnce = 256

// deleteToEnd is the offset that stands for the high watermark.
const deleteToEnd int64 = -1

func (b *broker) deleteRecords(ctx context.Context, r *kmsg.DeleteRecordsRequest) (*kmsg.DeleteRecordsResponse, error) {
	tctx, cancel := b.timeout(ctx, r.TimeoutMillis)
	defer cancel()
	resp := kmsg.NewPtrDeleteRecordsResponse()
	resp.Topics = make([]kmsg.DeleteRecordsResponseTopic, len(r.Topics))
	topics := b.lookup(ctx)
	var group errgroup.Group
	group.SetLimit(deletesAtOnce)
	for i := range r.Topics {
		in, out := &r.Topics[i], &resp.Topics[i]
		*out = kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = in.Topic
		out.Partitions = make([]kmsg.DeleteRecordsResponseTopicPartition, len(in.Partitions))
		t := topics.byName(in.Topic, partitionsNamed(in.Partitions, func(p *kmsg.DeleteRecordsRequestTopicPartition) int32 { return p.Partition }))
		for j := range in.Partitions {
			ask, p := &in.Partitions[j], &out.Partitions[j]
			*p = kmsg.NewDeleteRecordsResponseTopicPartition()
			p.Partition, p.LowWatermark = ask.Partition, -1
			group.Go(func() error {
				start, c := b.deleteUpTo(tctx, t, ask)
				if p.ErrorCode = b.fail("DeleteRecords", c); c == codeNone {
					p.LowWatermark = int64(start)
				}
				return nil
			})
		}
	}
	_ = group.Wait() // no member fails
	return resp, ctx.Err()
}

func (b *broker) deleteUpTo(ctx context.Context, t *topic, ask *kmsg.DeleteRecordsRequestTopicPartition) (mink.Offset, code) {
	log, c := b.openFor(t, ask.Partition, -1)
	if c != codeNone {
		return 0, c
	}
	to := mink.Offset(ask.Offset)
	if ask.Offset == deleteToEnd {
		to = log.HighWatermark()
	}
	bucket, _ := t.bucket(ask.Partition)
	start, err := b.backend.DeleteRecords(ctx, bucket, to)
	if err != nil {
		c = lookupCode(err)
		if c == codeOffsetOutOfRange {
			if v := b.vouch(bucket, log); v != codeNone {
				c = v
			}
		}
		if c != codeOffsetOutOfRange {
			b.report("delete records", "topic", t.name, "partition", ask.Partition, "offset", to, "error", err)
		}
		return 0, c
	}
	return start, codeNone
}

func (b *broker) createPartitions(ctx context.Context, r *kmsg.CreatePartitionsRequest) (*kmsg.CreatePartitionsResponse, error) {
	tctx, cancel := b.timeout(ctx, r.TimeoutMillis)
	defer cancel()
	resp := kmsg.NewPtrCreatePartitionsResponse()
	times := make(map[string]int, len(r.Topics))
	for i := range r.Topics {
		times[r.Topics[i].Topic]++
	}
	for i := range r.Topics {
		want := &r.Topics[i]
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = want.Topic
		err := b.growTopic(tctx, want, times[want.Topic], r.ValidateOnly)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.ErrorCode, out.ErrorMessage = b.fail("CreatePartitions", err.code), &err.why
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}

func (b *broker) growTopic(ctx context.Context, want *kmsg.CreatePartitionsRequestTopic, times int, validateOnly bool) *topicError {
	if times > 1 {
		return topicErrorf(codeInvalidRequest, "topic %q is in the request %d times", want.Topic, times)
	}
	topics := b.lookup(ctx)
	t := topics.byName(want.Topic, 0)
	if t == nil {
		return topicErrorf(codeUnknownTopicOrPartition, "topic %q does not exist", want.Topic)
	}
	now := int32(len(t.streams))
	switch {
	case want.Count <= now:
		return topicErrorf(codeInvalidPartitions, "topic %s has %d partitions, and can only get more: %d were asked for", t.name, now, want.Count)
	case want.Count > schema.MaxBuckets:
		return topicErrorf(codeInvalidPartitions, "%d partitions: %d are possible", want.Count, schema.MaxBuckets)
	case len(want.Assignment) > 0 && len(want.Assignment) != int(want.Count-now):
		return topicErrorf(codeInvalidAssignment, "an assignment for %d partitions, %d are new", len(want.Assignment), want.Count-now)
	}
	for _, a := range want.Assignment { // it only counts: leaders are chosen here
		if len(a.Replicas) == 0 {
			return topicErrorf(codeInvalidAssignment, "a new partition has no replica in the assignment")
		}
	}
	if validateOnly {
		return nil
	}
	_, err := b.backend.AlterTable(ctx, t.table.ID, []schema.Change{{Op: schema.SetBucketCount, BucketCount: want.Count}})
	switch {
	case err == nil:
		b.waitReady(ctx, t.name)
		return nil
	case errors.Is(err, mink.ErrInvalid): // somebody else was faster
		return topicErrorf(codeInvalidPartitions, "%v", err)
	default:
		return topicErrorf(catalogCode(err), "add partitions to topic %s: %v", t.name, err)
	}
}

// nodeNamed reads the name of a broker resource; false for none that is known.
func nodeNamed(v *cluster.State, name string) (mink.NodeID, bool) {
	var id mink.NodeID
	if n, err := fmt.Sscanf(name, "%d", &id); n != 1 || err != nil || fmt.Sprint(id) != name {
		return 0, false
	}
	_, ok := v.Node(id)
	return id, ok
}
