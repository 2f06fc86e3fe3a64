package kafka

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// checkOffsets asks with every version, named and all.
func checkOffsets(t *testing.T, c *rawClient, name string, want map[int32]int64, epochs bool) {
	t.Helper()
	for v := int16(1); v <= 9; v++ {
		for _, named := range []bool{true, false} {
			r := offsetsRequest(v, name, "t", 0, 1, 2)
			if !named {
				r = offsetsRequest(v, name, "t")
			}
			got := map[int32]int64{}
			for p, o := range offsetsIn(t, c.call(r).(*kmsg.OffsetFetchResponse)) {
				got[p] = o.Offset
				if o.Offset >= 0 && (*o.Metadata != "meta" || v >= 5 && epochs && o.LeaderEpoch != 7) || o.Offset < 0 && v >= 5 && o.LeaderEpoch != -1 {
					t.Errorf("v%d: partition %d: %+v", v, p, o)
				}
			}
			for p, o := range want {
				found, ok := got[p]
				if named && found != o || !named && ok != (o >= 0 && v >= fetchAllTopics) {
					t.Errorf("v%d, named %v: partition %d has %v, want %d", v, named, p, found, o)
				}
			}
		}
	}
}

// offsetsIn flattens topic "t"; every error must be none.
func offsetsIn(t testing.TB, r *kmsg.OffsetFetchResponse) map[int32]kmsg.OffsetFetchResponseTopicPartition {
	t.Helper()
	out := map[int32]kmsg.OffsetFetchResponseTopicPartition{}
	put := func(topic string, p kmsg.OffsetFetchResponseTopicPartition) {
		if topic != "t" || p.ErrorCode != 0 {
			t.Errorf("topic %s, partition %d: error %d", topic, p.Partition, p.ErrorCode)
		}
		out[p.Partition] = p
	}
	for _, topic := range r.Topics {
		for _, p := range topic.Partitions {
			put(topic.Topic, p)
		}
	}
	for _, g := range r.Groups {
		if g.ErrorCode != 0 {
			t.Errorf("group %s: error %d", g.Group, g.ErrorCode)
		}
		for _, topic := range g.Topics {
			for _, p := range topic.Partitions {
				put(topic.Topic, kmsg.OffsetFetchResponseTopicPartition{Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode})
			}
		}
	}
	if r.ErrorCode != 0 {
		t.Errorf("error %d", r.ErrorCode)
	}
	return out
}

// Case offsetfetch_unknown_group.
func TestOffsetFetchUnknownGroup(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	for v := int16(1); v <= 9; v++ {
		r := offsetsRequest(v, "nope", "t", 0)
		r.RequireStable = true
		o := offsetsIn(t, c.call(r).(*kmsg.OffsetFetchResponse))[0]
		if o.Offset != -1 || v >= 5 && o.LeaderEpoch != -1 {
			t.Errorf("v%d: %+v", v, o)
		}
		if got := offsetsIn(t, c.call(offsetsRequest(v, "nope", "t")).(*kmsg.OffsetFetchResponse)); len(got) != 0 {
			t.Errorf("v%d: all: %+v", v, got)
		}
	}
}

func TestOffsetCommitErrors(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	commit := func(r *kmsg.OffsetCommitRequest) int16 { return groupError(c.call(r)) }
	check := func(what string, got, want int16) {
		t.Helper()
		if got != want {
			t.Errorf("%s: error %d, want %d", what, got, want)
		}
	}
	check("a generation of an unknown group", commit(commitRequest(8, "new", "m", 3, "t", 1)), 22)
	check("the same, newer", commit(commitRequest(9, "new", "m", 3, "t", 1)), 69)
	check("no topic", commit(commitRequest(9, "new", "", -1, "missing", 1)), 3)
	check("negative", commit(commitRequest(9, "new", "", -1, "t", -1)), 42)
	many := commitRequest(9, "new", "", -1, "t", 1)
	many.Topics[0].Partitions[0].Metadata = kmsg.StringPtr(strings.Repeat("m", 4097))
	check("much metadata", commit(many), 12)
	many.Topics[0].Partitions[0].Metadata = kmsg.StringPtr(strings.Repeat("m", 4096))
	check("as much as may be", commit(many), 0)
	many.Topics[0].Partitions[0].Metadata = nil
	many.Topics[0].Partitions[0].Partition = 3
	check("no partition", commit(many), 3)
	check("a member of a group that was forgotten", commit(commitRequest(9, "new", "m", 3, "t", 1)), 25)
	for err, want := range map[error]int16{
		cluster.ErrNotCoordinator: 16, mink.ErrFenced: 16, mink.ErrThrottled: 14, mink.ErrUnavailable: 15, mink.ErrUnknownOutcome: 15,
		context.DeadlineExceeded: 15, mink.ErrTooLarge: 28, mink.ErrInvalid: 42, mink.ErrCorrupt: -1,
	} {
		s.node.failGroups(fmt.Errorf("wrapped: %w", err))
		check(err.Error(), commit(commitRequest(9, "new", "", -1, "t", 1)), want)
	}
	s.node.failGroups(nil)
	m := alone(t, c, 4, "g")
	check("an outsider", commit(commitRequest(9, "g", "", -1, "t", 1)), 25)
	check("an old generation", commit(commitRequest(9, "g", m.MemberID, 0, "t", 1)), 22)
	check("a member", commit(commitRequest(9, "g", m.MemberID, 1, "t", 1)), 0)
}

// Offsets of a topic that was dropped and made again are not its own.
func TestOffsetsOfARecreatedTopic(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	c.call(commitRequest(7, "g", "", -1, "t", 800))
	table, _ := s.node.View().TableByName("kafka", "t")
	if err := s.node.DropTable(t.Context(), table.ID); err != nil {
		t.Fatal(err)
	}
	s.node.topic("t", 3)
	if o := offsetsIn(t, c.call(offsetsRequest(7, "g", "t", 0)).(*kmsg.OffsetFetchResponse))[0]; o.Offset != -1 {
		t.Errorf("offset %d", o.Offset)
	}
}

// A client that commits every record without waiting: its commits do not wait for
// one another, here behind a join that waits.
func TestCommitsOfAPipelineAreHandedInTogether(t *testing.T) {
	s := startGroups(t, nil)
	a, b := dial(t, s.addr), dial(t, s.addr)
	first := alone(t, a, 4, "g")
	join := joinRequest(3, "g", "") // waits for the first member to come again
	waiting := b.send(join)
	const n = 20
	commit := func(i int64) *kmsg.OffsetCommitRequest { return commitRequest(7, "g", first.MemberID, 1, "t", i) }
	var sent []int32
	for i := range int64(n) {
		sent = append(sent, b.send(commit(i)))
	}
	until(t, "all commits to be handed in", func() bool { return s.node.startedCommits() == n })
	joined(t, a, joinRequest(4, "g", first.MemberID))
	b.receive(join, waiting)
	for i, id := range sent {
		resp := b.receive(commit(int64(i)), id).(*kmsg.OffsetCommitResponse)
		if c := resp.Topics[0].Partitions[0].ErrorCode; c != 0 {
			t.Errorf("commit %d: error %d", i, c)
		}
	}
	checkOffsets(t, a, "g", map[int32]int64{0: n - 1, 1: -1, 2: -1}, true)
}
