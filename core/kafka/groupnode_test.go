package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/kafka/group"
)

// runGroups runs a broker's groups until the function that it answers is called.
func runGroups(b *broker) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); b.groups.run(ctx) }()
	return func() { cancel(); <-done }
}

// A group over a real node, in virtual time: what was committed survives a crash,
// the members do not, and the metadata knows.
func TestGroupOnANode(t *testing.T) {
	inNode(t, func(t *testing.T, b *broker, restart func() *broker) {
		createTopic(t, b, "t", 3)
		stop := runGroups(b)
		call := func(r kmsg.Request) kmsg.Response { return ask(t, b, r) }
		join := joinRequest(3, "g", "")
		join.SessionTimeoutMillis = 1_000_000
		first := call(join).(*kmsg.JoinGroupResponse)
		member := first.MemberID
		if first.ErrorCode != 0 || first.Generation != 1 {
			t.Fatalf("join: %+v", first)
		}
		if got := call(syncRequest(3, "g", member, 1, map[string]string{member: "all"})).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 {
			t.Fatalf("sync: error %d", got.ErrorCode)
		}
		if got := groupError(call(commitRequest(8, "g", member, 1, "t", 5, 6))); got != 0 {
			t.Fatalf("commit: error %d", got)
		}
		if info, ok := b.backend.View().Group("g"); !ok || !info.Occupied || info.ProtocolType != "consumer" {
			t.Errorf("with a member: %+v", info)
		}
		stop()

		b = restart()
		stop = runGroups(b)
		defer func() { stop() }()
		if info, ok := b.backend.View().Group("g"); !ok || info.Occupied {
			t.Errorf("after a crash: %+v", info)
		}
		// Its members are asked to join again, as in any rebalance, not told that they are
		// none: clients would give up what they hold and tell their applications.
		for _, r := range []kmsg.Request{
			heartbeatRequest(3, "g", member, 1), commitRequest(8, "g", member, 1, "t", 9, 9), syncRequest(3, "g", member, 1, nil),
		} {
			if got := groupError(call(r)); got != int16(group.RebalanceInProgress) {
				t.Errorf("%s of a member of before: error %d", kmsg.NameForKey(r.Key()), got)
			}
		}
		got := offsetsIn(t, call(offsetsRequest(8, "g", "t", 0, 1, 2)).(*kmsg.OffsetFetchResponse))
		if got[0].Offset != 5 || got[1].Offset != 6 || got[2].Offset != -1 {
			t.Errorf("offsets after a crash: %+v", got)
		}
		// It joins under its id, in a generation above all of before; its session ends
		// without heartbeats, and the metadata hears of it.
		join = joinRequest(3, "g", member)
		again := call(join).(*kmsg.JoinGroupResponse)
		if again.ErrorCode != 0 || again.MemberID != member || again.Generation <= first.Generation {
			t.Errorf("a member of before joins: %+v", again)
		}
		call(syncRequest(3, "g", again.MemberID, again.Generation, nil))
		if got := groupError(call(commitRequest(8, "g", member, first.Generation, "t", 9, 9))); got != int16(group.IllegalGeneration) {
			t.Errorf("commit of the generation of before: error %d", got)
		}
		if got := groupError(call(heartbeatRequest(3, "g", "another of before", 1))); got != int16(group.RebalanceInProgress) {
			t.Errorf("another member of before: error %d", got)
		}
		time.Sleep(time.Second)
		if info, _ := b.backend.View().Group("g"); !info.Occupied {
			t.Errorf("with a member again: %+v", info)
		}
		time.Sleep(15 * time.Second)
		time.Sleep(groupAdopts)
		createTopic(t, b, "entry", 1) // the metadata's clock goes by its newest entry
		for _, r := range []kmsg.Request{heartbeatRequest(3, "g", "late", 1), commitRequest(8, "g", "late", 1, "t", 9, 9)} {
			if got := groupError(call(r)); got != int16(group.UnknownMember) {
				t.Errorf("%s of a member that comes too late: error %d", kmsg.NameForKey(r.Key()), got)
			}
		}
		if info, _ := b.backend.View().Group("g"); info.Occupied {
			t.Errorf("after the session: %+v", info)
		}
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Groups = []string{"g", "nope"}
		if d := call(r).(*kmsg.DeleteGroupsResponse).Groups; d[0].ErrorCode != 0 || d[1].ErrorCode != 69 {
			t.Errorf("deleted: %+v", d)
		}
		if got := offsetsIn(t, call(offsetsRequest(8, "g", "t", 0)).(*kmsg.OffsetFetchResponse)); got[0].Offset != -1 {
			t.Errorf("offsets of a deleted group: %+v", got)
		}
	})
}
