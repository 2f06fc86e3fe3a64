package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func topicPartitions(limit int32, cursor string, partition int32, topics ...string) *kmsg.DescribeTopicPartitionsRequest {
	r := kmsg.NewPtrDescribeTopicPartitionsRequest()
	r.ResponsePartitionLimit = limit
	for _, name := range topics {
		t := kmsg.NewDescribeTopicPartitionsRequestTopic()
		t.Topic = name
		r.Topics = append(r.Topics, t)
	}
	if cursor != "" {
		c := kmsg.NewDescribeTopicPartitionsRequestCursor()
		c.Topic, c.Partition = cursor, partition
		r.Cursor = &c
	}
	return r
}

// paged shows an answer: "a:0-1 b:0 missing!3 next b/1".
func paged(t *testing.T, got *kmsg.DescribeTopicPartitionsResponse) string {
	t.Helper()
	var out []string
	for _, topic := range got.Topics {
		switch n := len(topic.Partitions); {
		case topic.ErrorCode != 0:
			out = append(out, fmt.Sprintf("%s!%d", *topic.Topic, topic.ErrorCode))
		case n == 0:
			out = append(out, *topic.Topic+":")
		default:
			out = append(out, fmt.Sprintf("%s:%d-%d", *topic.Topic, topic.Partitions[0].Partition, topic.Partitions[n-1].Partition))
		}
		for i, p := range topic.Partitions {
			if p.Partition != topic.Partitions[0].Partition+int32(i) || p.LeaderID != 1 || len(p.Replicas) != 1 || len(p.ISR) != 1 || p.ErrorCode != 0 {
				t.Errorf("topic %s: %+v", *topic.Topic, p)
			}
			if p.EligibleLeaderReplicas == nil || p.LastKnownELR == nil || len(p.OfflineReplicas) != 0 {
				t.Errorf("topic %s: replicas that could lead: %+v; want none, and not null", *topic.Topic, p)
			}
		}
	}
	if c := got.NextCursor; c != nil {
		out = append(out, fmt.Sprintf("next %s/%d", c.Topic, c.Partition))
	}
	return strings.Join(out, " ")
}

// Topics come by name, a page at a time, each partition on one page; what the cursor
// names may be gone.
func TestDescribeTopicPartitions(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("b", 3)
	node.topic("a", 2)
	node.topic("c", 1)
	for _, c := range []struct {
		ask  *kmsg.DescribeTopicPartitionsRequest
		want string
	}{
		{topicPartitions(2000, "", 0), "a:0-1 b:0-2 c:0-0"},
		{topicPartitions(2000, "", 0, "c", "a", "c"), "a:0-1 c:0-0"},
		{topicPartitions(6, "", 0), "a:0-1 b:0-2 c:0-0"}, // exactly: there is no next page
		{topicPartitions(5, "", 0), "a:0-1 b:0-2 next c/0"},
		{topicPartitions(4, "", 0), "a:0-1 b:0-1 next b/2"},
		{topicPartitions(2, "", 0), "a:0-1 next b/0"},
		{topicPartitions(1, "b", 1), "b:1-1 next b/2"},
		{topicPartitions(2, "b", 2), "b:2-2 c:0-0"},
		{topicPartitions(2, "b", 2, "a", "b"), "b:2-2"},
		{topicPartitions(2, "aa", 2), "b:0-1 next b/2"}, // it was dropped: the next begins at 0
		{topicPartitions(2, "b", 9), "b: c:0-0"},        // it has fewer partitions than it had
		{topicPartitions(2, "d", 0), ""},
		{topicPartitions(0, "", 0), "a:0-0 next a/1"},
		{topicPartitions(-7, "", 0, "b"), "b:0-0 next b/1"},
		{topicPartitions(2000, "", 0, "missing", "b"), fmt.Sprintf("b:0-2 missing!%d", codeUnknownTopicOrPartition)},
		{topicPartitions(2000, "", 0, "b/ad"), fmt.Sprintf("b/ad!%d", codeInvalidTopic)},
		{topicPartitions(2000, "a", -1, "a"), fmt.Sprintf("a!%d", codeInvalidRequest)},
	} {
		got := ask(t, b, c.ask).(*kmsg.DescribeTopicPartitionsResponse)
		if text := paged(t, got); text != c.want {
			t.Errorf("limit %d, cursor %+v, topics %+v: %s, want %s", c.ask.ResponsePartitionLimit, c.ask.Cursor, c.ask.Topics, text, c.want)
		}
	}
	if got := ask(t, b, topicPartitions(9, "", 0, "a")).(*kmsg.DescribeTopicPartitionsResponse).Topics[0]; got.TopicID != node.topicID("a") || got.AuthorizedOperations != topicOperations {
		t.Errorf("topic a: id %x, operations %d", got.TopicID, got.AuthorizedOperations)
	}
	node.topic("many", topicPartitionsMax+1)
	got := ask(t, b, topicPartitions(1<<30, "many", 0)).(*kmsg.DescribeTopicPartitionsResponse)
	if text := paged(t, got); text != fmt.Sprintf("many:0-%d next many/%d", topicPartitionsMax-1, topicPartitionsMax) {
		t.Errorf("more partitions than one answer has: %s", text)
	}
}
