package kafka

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/schema"
)

// named are requests that name partition 1 of topic t, and the error that the answer has
// for it.
func named(id [16]byte) map[string]func(t *testing.T, b *broker) int16 {
	return map[string]func(t *testing.T, b *broker) int16{
		"Metadata": func(t *testing.T, b *broker) int16 {
			r := kmsg.NewPtrMetadataRequest()
			r.Version = 12
			topic := kmsg.NewMetadataRequestTopic()
			topic.Topic = kmsg.StringPtr("t")
			r.Topics = append(r.Topics, topic)
			return ask(t, b, r).(*kmsg.MetadataResponse).Topics[0].ErrorCode
		},
		"Produce": func(t *testing.T, b *broker) int16 {
			r := kmsg.NewPtrProduceRequest()
			r.Version, r.Acks, r.TimeoutMillis = 9, -1, 1000
			topic, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
			topic.Topic, p.Partition, p.Records = "t", 1, batch("x")
			topic.Partitions = append(topic.Partitions, p)
			r.Topics = append(r.Topics, topic)
			return ask(t, b, r).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode
		},
		"Fetch": func(t *testing.T, b *broker) int16 {
			r := fetchFrom(12, "t", id, 0)
			r.Topics[0].Partitions[0].Partition = 1
			return ask(t, b, r).(*kmsg.FetchResponse).Topics[0].Partitions[0].ErrorCode
		},
		"Fetch by id": func(t *testing.T, b *broker) int16 {
			r := fetchFrom(13, "t", id, 0)
			r.Topics[0].Partitions[0].Partition = 1
			return ask(t, b, r).(*kmsg.FetchResponse).Topics[0].Partitions[0].ErrorCode
		},
		"ListOffsets": func(t *testing.T, b *broker) int16 {
			r := kmsg.NewPtrListOffsetsRequest()
			r.Version, r.ReplicaID = 7, -1
			topic, p := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
			topic.Topic, p.Partition, p.Timestamp = "t", 1, askLatest
			topic.Partitions = append(topic.Partitions, p)
			r.Topics = append(r.Topics, topic)
			return ask(t, b, r).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].ErrorCode
		},
		"OffsetForLeaderEpoch": func(t *testing.T, b *broker) int16 {
			r := kmsg.NewPtrOffsetForLeaderEpochRequest()
			r.Version, r.ReplicaID = 4, -1
			topic, p := kmsg.NewOffsetForLeaderEpochRequestTopic(), kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			topic.Topic, p.Partition, p.LeaderEpoch = "t", 1, 1
			topic.Partitions = append(topic.Partitions, p)
			r.Topics = append(r.Topics, topic)
			return ask(t, b, r).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0].ErrorCode
		},
		"OffsetCommit": func(t *testing.T, b *broker) int16 {
			r := commitRequest(7, "g", "", -1, "t", 3)
			r.Topics[0].Partitions[0].Partition = 1
			return ask(t, b, r).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
		},
	}
}

// A client that heard of a topic, or of a partition, from another node asks this one,
// which has not heard of it: it looks into the metadata log before it says that there is none.
func TestWhatAnotherNodeKnowsIsLookedUp(t *testing.T) {
	for name := range named([16]byte{}) {
		for _, grown := range []bool{false, true} {
			b, node, _ := newTestBroker(t, nil)
			var id [16]byte
			if grown {
				node.topic("t", 1)
				id = node.topicID("t")
			} else if name == "Fetch by id" {
				continue // nobody knows it before
			}
			node.onSync = func() {
				node.onSync = nil
				if !grown {
					node.topic("t", 2)
					return
				}
				table, _ := node.View().TableByName("kafka", "t")
				if _, err := node.AlterTable(t.Context(), table.ID, []schema.Change{{Op: schema.SetBucketCount, BucketCount: 2}}); err != nil {
					t.Error(err)
				}
			}
			ahead := !grown || name != "Metadata" // which names no partition
			if got := named(id)[name](t, b); got != 0 || ahead != (node.onSync == nil) {
				t.Errorf("%s, grown: %t: error %d, asked: %t", name, grown, got, node.onSync == nil)
			}
			before := node.syncs.Load()
			if got := named(id)[name](t, b); got != 0 || node.syncs.Load() != before {
				t.Errorf("%s, grown: %t, known: error %d, asked %d times more", name, grown, got, node.syncs.Load()-before)
			}
		}
	}
}

// What nobody knows is asked for once in a while, however many clients name it, and each is
// answered by a question that began after it came.
func TestQuestionsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowSync{fakeNode: newFakeNode(t), took: 20 * time.Millisecond}
		n := newNewest(node, time.Second)
		defer n.close()
		const clients, rounds = 50, 20
		began := time.Now()
		done := make(chan struct{})
		for range clients {
			go func() {
				for range rounds {
					at := time.Now()
					n.wait(t.Context())
					if node.began().Before(at) {
						t.Error("answered by a question of before")
					}
				}
				done <- struct{}{}
			}()
		}
		for range clients {
			<-done
		}
		if most := int32(time.Since(began)/syncGap) + 2; node.syncs.Load() > most {
			t.Errorf("%d questions in %v", node.syncs.Load(), time.Since(began))
		}
		node.took = time.Hour
		at := time.Now()
		n.wait(t.Context())
		if waited := time.Since(at); waited > time.Second {
			t.Errorf("waited %v for a database that does not answer", waited)
		}
	})
}

// slowSync takes its time to say how far the metadata log is.
type slowSync struct {
	*fakeNode
	took time.Duration
	last time.Time
}

func (n *slowSync) began() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

func (n *slowSync) Sync(ctx context.Context) error {
	n.mu.Lock()
	n.last = time.Now()
	n.mu.Unlock()
	select {
	case <-time.After(n.took):
		return n.fakeNode.Sync(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}
