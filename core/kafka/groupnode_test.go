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
		if got := groupError(call(heartbeatRequest(3, "g", member, 1))); got != int16(group.UnknownMember) {
			t.Errorf("heartbeat after a crash: error %d", got)
		}
		if got := groupError(call(commitRequest(8, "g", member, 1, "t", 9, 9))); got != int16(group.UnknownMember) {
			t.Errorf("commit of a member of before: error %d", got)
		}
		got := offsetsIn(t, call(offsetsRequest(8, "g", "t", 0, 1, 2)).(*kmsg.OffsetFetchResponse))
		if got[0].Offset != 5 || got[1].Offset != 6 || got[2].Offset != -1 {
			t.Errorf("offsets after a crash: %+v", got)
		}
		// It joins anew; its session ends without heartbeats, and the metadata hears of it.
		join = joinRequest(3, "g", "")
		again := call(join).(*kmsg.JoinGroupResponse)
		call(syncRequest(3, "g", again.MemberID, again.Generation, nil))
		time.Sleep(time.Second)
		if info, _ := b.backend.View().Group("g"); !info.Occupied {
			t.Errorf("with a member again: %+v", info)
		}
		time.Sleep(15 * time.Second)
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
