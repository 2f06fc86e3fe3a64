package kafka

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/kafka/group"
)

// Case coordinator_in_metadata, for every version.
func TestCoordinatorIsInMetadata(t *testing.T) {
	s := startGroups(t, nil)
	s.node.register(2, "127.0.0.1:1")
	c := dial(t, s.addr)
	meta := c.call(kmsg.NewPtrMetadataRequest()).(*kmsg.MetadataResponse)
	seen := map[int32]bool{}
	for v := int16(0); v <= 6; v++ {
		for i := range 20 {
			r := kmsg.NewPtrFindCoordinatorRequest()
			name := fmt.Sprint("group ", i)
			r.Version, r.CoordinatorKey, r.CoordinatorKeys = v, name, []string{name}
			resp := c.call(r).(*kmsg.FindCoordinatorResponse)
			if v >= findBatches {
				f := resp.Coordinators[0]
				resp.ErrorCode, resp.NodeID, resp.Host, resp.Port = f.ErrorCode, f.NodeID, f.Host, f.Port
			}
			found := false
			for _, b := range meta.Brokers {
				found = found || b.NodeID == resp.NodeID && b.Host == resp.Host && b.Port == resp.Port
			}
			if resp.ErrorCode != 0 || !found {
				t.Errorf("v%d: coordinator %d at %s:%d, error %d; brokers %+v", v, resp.NodeID, resp.Host, resp.Port, resp.ErrorCode, meta.Brokers)
			}
			seen[resp.NodeID] = true
		}
	}
	if len(seen) != 2 {
		t.Errorf("only %v coordinate", seen)
	}
}

func TestFindCoordinatorOfOthers(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	for kind, want := range map[int8]int16{1: 53, 2: 42, 9: 42} {
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.Version, r.CoordinatorType, r.CoordinatorKeys = 6, kind, []string{"x"}
		if got := ask(t, b, r).(*kmsg.FindCoordinatorResponse).Coordinators[0]; got.ErrorCode != want || got.NodeID != -1 || got.ErrorMessage == nil {
			t.Errorf("kind %d: %+v", kind, got)
		}
	}
}

// elsewhere registers node 2 and answers a group that it coordinates.
func elsewhere(t testing.TB, n *fakeNode) string {
	t.Helper()
	n.register(2, "127.0.0.1:1")
	for i := range 100 {
		name := fmt.Sprint("far ", i)
		if node, _, _ := n.View().GroupCoordinator(name); node == 2 {
			return name
		}
	}
	t.Fatal("node 2 coordinates nothing")
	return ""
}

// Another node's groups are refused, by every request, in every version.
func TestNotCoordinator(t *testing.T) {
	s := startGroups(t, nil)
	far := elsewhere(t, s.node)
	allRefused(t, dial(t, s.addr), far)
}

// allRefused checks that every request about a group is NOT_COORDINATOR.
func allRefused(t *testing.T, c *rawClient, group string) {
	t.Helper()
	asked := 0
	for _, a := range APIs() {
		for v := a.Min; v <= a.Max; v++ {
			r := groupRequest(a.Key, v, group)
			if r == nil {
				continue
			}
			asked++
			if got := groupError(c.call(r)); got != int16(codeNotCoordinator) {
				t.Errorf("%s v%d: error %d", a.Name, v, got)
			}
		}
	}
	if asked < 40 {
		t.Errorf("only %d requests were tried", asked)
	}
}

// groupRequest is about one group; nil for other keys.
func groupRequest(key, v int16, name string) kmsg.Request {
	switch key {
	case keyJoinGroup:
		return joinRequest(v, name, "")
	case keySyncGroup:
		return syncRequest(v, name, "m", 1, nil)
	case keyHeartbeat:
		return heartbeatRequest(v, name, "m", 1)
	case keyLeaveGroup:
		return leaveRequest(v, name, "m")
	case keyOffsetCommit:
		return commitRequest(v, name, "", -1, "t", 1)
	case keyOffsetFetch:
		return offsetsRequest(v, name, "t", 0)
	case keyDescribeGroups:
		d := kmsg.NewPtrDescribeGroupsRequest()
		d.Version, d.Groups = v, []string{name}
		return d
	case keyDeleteGroups:
		d := kmsg.NewPtrDeleteGroupsRequest()
		d.Version, d.Groups = v, []string{name}
		return d
	case keyOffsetDelete:
		d := kmsg.NewPtrOffsetDeleteRequest()
		d.Group = name
		return d
	}
	return nil
}

// groupError is the one error of a response.
func groupError(r kmsg.Response) int16 {
	switch r := r.(type) {
	case *kmsg.JoinGroupResponse:
		return r.ErrorCode
	case *kmsg.SyncGroupResponse:
		return r.ErrorCode
	case *kmsg.HeartbeatResponse:
		return r.ErrorCode
	case *kmsg.LeaveGroupResponse:
		return r.ErrorCode
	case *kmsg.OffsetCommitResponse:
		return r.Topics[0].Partitions[0].ErrorCode
	case *kmsg.OffsetFetchResponse:
		if len(r.Groups) > 0 {
			return r.Groups[0].ErrorCode
		}
		if len(r.Topics) > 0 {
			return r.Topics[0].Partitions[0].ErrorCode
		}
		return r.ErrorCode
	case *kmsg.DescribeGroupsResponse:
		return r.Groups[0].ErrorCode
	case *kmsg.DeleteGroupsResponse:
		return r.Groups[0].ErrorCode
	case *kmsg.OffsetDeleteResponse:
		return r.ErrorCode
	}
	return -99
}

// A group that moves away answers who waits there, and starts anew when it comes
// back.
func TestGroupMovesAway(t *testing.T) {
	s := startGroups(t, nil)
	probe := newFakeNode(t)
	probe.register(1, "127.0.0.1:9")
	name := elsewhere(t, probe) // the weights do not depend on the rest
	a, b := dial(t, s.addr), dial(t, s.addr)
	first := alone(t, a, 3, name)
	join := joinRequest(3, name, "")
	waiting := b.send(join)
	until(t, "the join to wait", func() bool { return waitingIn(s) == 1 })
	s.node.register(2, "127.0.0.1:1")
	if got := b.receive(join, waiting).(*kmsg.JoinGroupResponse); got.ErrorCode != int16(codeNotCoordinator) {
		t.Errorf("the waiting join: error %d", got.ErrorCode)
	}
	if openIn(s) != 0 {
		t.Errorf("%d groups are open", openIn(s))
	}
	n2, _ := s.node.View().Node(2)
	s.node.seal(n2.Epoch)
	// Nothing is kept of its members, who are asked to join again: it had committed nothing
	// that the metadata could know of them.
	if got := groupError(a.call(heartbeatRequest(3, name, first.MemberID, 1))); got != int16(group.RebalanceInProgress) {
		t.Errorf("heartbeat after the group came back: error %d", got)
	}
	if again := joined(t, a, joinRequest(3, name, first.MemberID)); again.MemberID != first.MemberID || again.Generation <= first.Generation {
		t.Errorf("a member of before joins: %+v", again)
	}
}

// Without a change of the nodes an unknown member is just that.
func TestUnknownMemberOfOneNode(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	if got := groupError(c.call(heartbeatRequest(3, "g", "ghost", 1))); got != int16(group.UnknownMember) {
		t.Errorf("heartbeat: error %d", got)
	}
	if got := c.call(joinRequest(3, "g", "ghost")).(*kmsg.JoinGroupResponse).ErrorCode; got != int16(group.UnknownMember) {
		t.Errorf("join: error %d", got)
	}
	if got := groupError(c.call(commitRequest(9, "g", "ghost", 1, "t", 5))); got != int16(codeGroupIDNotFound) {
		t.Errorf("commit: error %d", got)
	}
}

// A member's memory does not outlive the node's epoch, even when nobody looked in
// between.
func TestGroupOfAnEarlierEpoch(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	first := alone(t, c, 3, "g")
	s.node.register(1, s.addr)
	if got := groupError(c.call(commitRequest(7, "g", first.MemberID, 1, "t", 5))); got != int16(group.RebalanceInProgress) {
		t.Errorf("commit: error %d", got)
	}
}
