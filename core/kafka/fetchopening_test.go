package kafka

import (
	"fmt"
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/sdk/mink"
)

// A fetch of a bucket that is opening waits for it as for records, and brings them; at
// the end of its time it is "not leader", so that the client looks where the bucket is.
func TestFetchWaitsForABucketThatOpens(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	if got := ask(t, b, produceTo(7, "t", map[int32][]byte{0: batch("a", "b")})); got.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatal("produce")
	}
	opening := fmt.Errorf("the bucket opens: %w", mink.ErrUnavailable)
	id := node.topicID("t")
	fetch := func(ms int32) kmsg.FetchResponseTopicPartition {
		r := fetchFrom(12, "t", id, 0)
		r.MaxWaitMillis = ms
		return ask(t, b, r).(*kmsg.FetchResponse).Topics[0].Partitions[0]
	}
	node.failLogs(opening)
	for _, ms := range []int32{0, 20} {
		if got := fetch(ms); got.ErrorCode != int16(codeNotLeader) {
			t.Errorf("after %d ms: error %d, want %d", ms, got.ErrorCode, codeNotLeader)
		}
	}
	before := node.logsRefused()
	answered := make(chan kmsg.FetchResponseTopicPartition, 1)
	go func() { answered <- fetch(math.MaxInt32) }()
	until(t, "the fetch to look again", func() bool { return node.logsRefused() >= before+3 })
	node.failLogs(nil)
	if got := <-answered; got.ErrorCode != 0 || got.HighWatermark != 2 || len(got.RecordBatches) == 0 {
		t.Errorf("error %d, high watermark %d, %d bytes", got.ErrorCode, got.HighWatermark, len(got.RecordBatches))
	}
	// Meanwhile it may have moved after all.
	node.failLogs(opening)
	before = node.logsRefused()
	go func() { answered <- fetch(math.MaxInt32) }()
	until(t, "the fetch to look again", func() bool { return node.logsRefused() >= before+3 })
	node.failLogs(&mink.NotLeaderError{Leader: 2, Epoch: 8})
	if got := <-answered; got.ErrorCode != int16(codeNotLeader) {
		t.Errorf("error %d, want %d", got.ErrorCode, codeNotLeader)
	}
}
