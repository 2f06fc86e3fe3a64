package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// timeout is a request's own, or the configured one when it names none.
func (b *broker) timeout(ctx context.Context, millis int32) (context.Context, context.CancelFunc) {
	d := b.cfg.QueryTimeout
	if millis > 0 {
		d = time.Duration(millis) * time.Millisecond
	}
	return context.WithTimeout(ctx, d)
}

// plannedTopic is the table of a topic that may be created.
func (b *broker) plannedTopic(name string, partitions int32, configs map[string]string) (*schema.Descriptor, *topicError) {
	if err := b.checkNewTopic(b.backend.View(), name); err != nil {
		return nil, err
	}
	if partitions < 1 || partitions > schema.MaxBuckets {
		return nil, topicErrorf(codeInvalidPartitions, "%d partitions: 1 to %d are possible", partitions, schema.MaxBuckets)
	}
	d, err := schema.KafkaTopic(b.cfg.Database, name, partitions, configs)
	if err != nil {
		return nil, topicErrorf(codeInvalidConfig, "%v", err)
	}
	return d, nil
}

// createTopic creates the table, and the database of topics when it is the
// first, and waits until the topic can be used.
func (b *broker) createTopic(ctx context.Context, d *schema.Descriptor) (*cluster.Table, *topicError) {
	if _, ok := b.backend.View().Database(d.Database); !ok {
		if err := b.backend.CreateDatabase(ctx, d.Database); err != nil && !errors.Is(err, mink.ErrExists) {
			return nil, topicErrorf(catalogCode(err), "create database %s for topics: %v", d.Database, err)
		}
	}
	t, err := b.backend.CreateTable(ctx, d, false)
	if err != nil {
		return nil, topicErrorf(catalogCode(err), "create topic %s: %v", d.Table, err)
	}
	b.waitReady(ctx, d.Table)
	return t, nil
}

// createdConfigs is what DescribeConfigs answers for the topic, in the form of
// CreateTopics.
func createdConfigs(d *schema.Descriptor) ([]kmsg.CreateTopicsResponseTopicConfig, error) {
	list, err := topicConfigs(d)
	if err != nil {
		return nil, err
	}
	out := make([]kmsg.CreateTopicsResponseTopicConfig, len(list))
	for i := range list {
		out[i] = kmsg.NewCreateTopicsResponseTopicConfig()
		out[i].Name, out[i].Value, out[i].Source, out[i].ReadOnly = list[i].name, &list[i].value, int8(list[i].source), list[i].fixed
	}
	return out, nil
}

func (b *broker) createTopics(ctx context.Context, r *kmsg.CreateTopicsRequest) (*kmsg.CreateTopicsResponse, error) {
	tctx, cancel := b.timeout(ctx, r.TimeoutMillis)
	defer cancel()
	resp := kmsg.NewPtrCreateTopicsResponse()
	times := make(map[string]int, len(r.Topics))
	for i := range r.Topics {
		times[r.Topics[i].Topic]++
	}
	for i := range r.Topics {
		want := &r.Topics[i]
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic = want.Topic
		if err := b.createOne(tctx, r, want, times[want.Topic], &out); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			why := err.why
			out.ErrorCode, out.ErrorMessage = b.fail("CreateTopics", err.code), &why
			out.NumPartitions, out.ReplicationFactor, out.Configs = -1, -1, nil
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}

func (b *broker) createOne(ctx context.Context, r *kmsg.CreateTopicsRequest, want *kmsg.CreateTopicsRequestTopic, times int, out *kmsg.CreateTopicsResponseTopic) *topicError {
	if times > 1 {
		return topicErrorf(codeInvalidRequest, "topic %q is in the request %d times", want.Topic, times)
	}
	partitions, terr := b.partitionCount(want)
	if terr != nil {
		return terr
	}
	configs := make(map[string]string, len(want.Configs))
	for _, c := range want.Configs {
		if _, ok := configs[c.Name]; ok {
			return topicErrorf(codeInvalidRequest, "config %q is given twice", c.Name)
		}
		if c.Value == nil {
			return topicErrorf(codeInvalidConfig, "config %q has no value", c.Name)
		}
		configs[c.Name] = *c.Value
	}
	d, terr := b.plannedTopic(want.Topic, partitions, configs)
	if terr != nil {
		return terr
	}
	var err error
	if out.Configs, err = createdConfigs(d); err != nil {
		return topicErrorf(codeInvalidConfig, "%v", err)
	}
	out.NumPartitions, out.ReplicationFactor = partitions, 1
	if r.ValidateOnly {
		return nil
	}
	t, terr := b.createTopic(ctx, d)
	if terr != nil {
		return terr
	}
	out.TopicID = t.UUID
	return nil
}

// partitionCount reads the count or the assignment, which only counts: nodes
// are chosen here. Any replication factor is accepted.
func (b *broker) partitionCount(want *kmsg.CreateTopicsRequestTopic) (int32, *topicError) {
	if n := len(want.ReplicaAssignment); n > 0 {
		if want.NumPartitions != -1 || want.ReplicationFactor != -1 {
			return 0, topicErrorf(codeInvalidRequest, "partitions and replication factor must be -1 beside an assignment")
		}
		seen := make(map[int32]bool, n)
		for _, a := range want.ReplicaAssignment {
			if a.Partition < 0 || int(a.Partition) >= n || seen[a.Partition] || len(a.Replicas) == 0 {
				return 0, topicErrorf(codeInvalidAssignment, "an assignment names each of partitions 0 to %d once, with replicas", n-1)
			}
			seen[a.Partition] = true
		}
		return int32(n), nil
	}
	if want.ReplicationFactor == 0 || want.ReplicationFactor < -1 {
		return 0, topicErrorf(codeInvalidReplication, "replication factor %d: use -1 or 1 and more", want.ReplicationFactor)
	}
	if want.NumPartitions == -1 {
		return b.cfg.DefaultPartitions, nil
	}
	return want.NumPartitions, nil
}

func (b *broker) deleteTopics(ctx context.Context, r *kmsg.DeleteTopicsRequest) (*kmsg.DeleteTopicsResponse, error) {
	tctx, cancel := b.timeout(ctx, r.TimeoutMillis)
	defer cancel()
	resp := kmsg.NewPtrDeleteTopicsResponse()
	topics := r.Topics
	for i := range r.TopicNames {
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = &r.TopicNames[i]
		topics = append(topics, t)
	}
	for i := range topics {
		out := kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.TopicID = topics[i].Topic, topics[i].TopicID
		if err := b.deleteOne(tctx, &topics[i], &out); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			out.ErrorCode, out.ErrorMessage = b.fail("DeleteTopics", err.code), &err.why
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}

func (b *broker) deleteOne(ctx context.Context, want *kmsg.DeleteTopicsRequestTopic, out *kmsg.DeleteTopicsResponseTopic) *topicError {
	topics := b.lookup(ctx)
	var t *topic
	switch {
	case want.Topic != nil && want.TopicID != [16]byte{}:
		return topicErrorf(codeInvalidRequest, "a topic is named by its name or its id, not both")
	case want.Topic != nil:
		if t = topics.byName(*want.Topic, 0); t == nil {
			return topicErrorf(codeUnknownTopicOrPartition, "topic %q does not exist", *want.Topic)
		}
	default:
		if t = topics.byID(want.TopicID, 0); t == nil {
			return topicErrorf(codeUnknownTopicID, "no topic has this id")
		}
	}
	out.Topic, out.TopicID = &t.name, t.table.UUID
	if err := b.backend.DropTable(ctx, t.table.ID); err != nil {
		return topicErrorf(catalogCode(err), "delete topic %s: %v", t.name, err)
	}
	return nil
}
