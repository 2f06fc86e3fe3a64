package kafka

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicPartitionsMax bounds the partitions of one answer to DescribeTopicPartitions,
// whatever the client asks for.
const topicPartitionsMax = 2000

// describeTopicPartitions is Metadata in pages (KIP-966): topics by name, from the
// cursor on, until the limit of partitions is reached; then the answer says where the
// next page begins. Of a topic that is gone the cursor's partition means nothing.
func (b *broker) describeTopicPartitions(ctx context.Context, r *kmsg.DescribeTopicPartitionsRequest) (*kmsg.DescribeTopicPartitionsResponse, error) {
	resp := kmsg.NewPtrDescribeTopicPartitionsResponse()
	resp.Topics = []kmsg.DescribeTopicPartitionsResponseTopic{}
	from, skip := "", int32(0)
	if r.Cursor != nil {
		from, skip = r.Cursor.Topic, r.Cursor.Partition
	}
	if skip < 0 { // the answer has a place for an error in its topics only
		for _, t := range r.Topics {
			bad := kmsg.NewDescribeTopicPartitionsResponseTopic()
			bad.Topic, bad.ErrorCode = &t.Topic, b.fail("DescribeTopicPartitions", codeInvalidRequest)
			bad.Partitions = []kmsg.DescribeTopicPartitionsResponseTopicPartition{}
			resp.Topics = append(resp.Topics, bad)
		}
		return resp, nil
	}
	topics := b.lookup(ctx)
	v := topics.view
	live := endpoints(v)
	all := len(r.Topics) == 0
	var names []string
	if all {
		for t := range b.allTopics(v) {
			names = append(names, t.name)
		}
	}
	for _, t := range r.Topics {
		names = append(names, t.Topic)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n < from })
	slices.Sort(names)
	names = slices.Compact(names)
	room := int(min(max(r.ResponsePartitionLimit, 1), topicPartitionsMax))
	for _, name := range names {
		if room == 0 {
			resp.NextCursor = nextPage(name, 0)
			break
		}
		known := describedAs(b.describeNamed(&topics, &kmsg.MetadataRequestTopic{Topic: &name}, live))
		if all && known.ErrorCode != 0 { // dropped meanwhile
			continue
		}
		first := 0
		if name == from {
			first = min(int(skip), len(known.Partitions))
		}
		known.Partitions = known.Partitions[first:]
		if rest := len(known.Partitions); rest > room {
			known.Partitions = known.Partitions[:room]
			resp.NextCursor = nextPage(name, first+room)
		}
		room -= len(known.Partitions)
		resp.Topics = append(resp.Topics, known)
		if resp.NextCursor != nil {
			break
		}
	}
	return resp, nil
}

func nextPage(topic string, partition int) *kmsg.DescribeTopicPartitionsResponseNextCursor {
	c := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	c.Topic, c.Partition = topic, int32(partition)
	return &c
}

// describedAs is a topic of Metadata as DescribeTopicPartitions says it. There are no
// replicas beside the leader, so that none of them is eligible to lead.
func describedAs(t kmsg.MetadataResponseTopic) kmsg.DescribeTopicPartitionsResponseTopic {
	out := kmsg.NewDescribeTopicPartitionsResponseTopic()
	out.ErrorCode, out.Topic, out.TopicID = t.ErrorCode, t.Topic, t.TopicID
	out.Partitions = make([]kmsg.DescribeTopicPartitionsResponseTopicPartition, len(t.Partitions))
	if t.ErrorCode == 0 {
		out.AuthorizedOperations = topicOperations
	}
	for i, in := range t.Partitions {
		p := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
		p.ErrorCode, p.Partition, p.LeaderID, p.LeaderEpoch = in.ErrorCode, in.Partition, in.Leader, in.LeaderEpoch
		p.Replicas, p.ISR = in.Replicas, in.ISR
		p.EligibleLeaderReplicas, p.LastKnownELR = []int32{}, []int32{}
		out.Partitions[i] = p
	}
	return out
}
