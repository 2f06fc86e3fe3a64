package kafka

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka/group"
	"github.com/mink-project/mink/sdk/mink"
)

// startGroups is a listener with topic "t" of three partitions.
func startGroups(t testing.TB, change func(*Config)) *testServer {
	s := startServer(t, change)
	s.node.topic("t", 3)
	return s
}

// joined sends a join that must succeed, after the id that it needs.
func joined(t testing.TB, c *rawClient, r *kmsg.JoinGroupRequest) *kmsg.JoinGroupResponse {
	t.Helper()
	resp := c.call(r).(*kmsg.JoinGroupResponse)
	if resp.ErrorCode == int16(group.MemberIDRequired) && r.MemberID == "" {
		r.MemberID = resp.MemberID
		resp = c.call(r).(*kmsg.JoinGroupResponse)
	}
	if resp.ErrorCode != 0 {
		t.Fatalf("join v%d: error %d", r.Version, resp.ErrorCode)
	}
	return resp
}

// alone makes a group of one, stable.
func alone(t testing.TB, c *rawClient, v int16, name string) *kmsg.JoinGroupResponse {
	t.Helper()
	resp := joined(t, c, joinRequest(v, name, ""))
	if got := c.call(syncRequest(3, name, resp.MemberID, resp.Generation, map[string]string{resp.MemberID: "all"})).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 {
		t.Fatalf("sync: error %d", got.ErrorCode)
	}
	return resp
}

func clamp(v, low, high int16) int16 { return min(max(v, low), high) }

// A whole life of a group of two, with every version of every request.
func TestGroupLife(t *testing.T) {
	for v := int16(0); v <= 9; v++ {
		t.Run(fmt.Sprint("v", v), func(t *testing.T) { groupLife(t, v) })
	}
}

func groupLife(t *testing.T, v int16) {
	s := startGroups(t, nil)
	const name = "life"
	a, b := dial(t, s.addr), dial(t, s.addr)
	first := alone(t, a, v, name)
	if first.LeaderID != first.MemberID || first.Generation != 1 || len(first.Members) != 1 || *first.Protocol != "range" {
		t.Fatalf("the first member: %+v", first)
	}
	// The second one waits for the first to come again.
	join := joinRequest(v, name, "")
	if v >= joinRequiresID {
		join.MemberID = b.call(join).(*kmsg.JoinGroupResponse).MemberID
	}
	waiting := b.send(join)
	until(t, "a rebalance", func() bool {
		return a.call(heartbeatRequest(clamp(v, 0, 4), name, first.MemberID, 1)).(*kmsg.HeartbeatResponse).ErrorCode == int16(group.RebalanceInProgress)
	})
	again := joined(t, a, joinRequest(v, name, first.MemberID))
	second := b.receive(join, waiting).(*kmsg.JoinGroupResponse)
	if again.Generation != 2 || second.Generation != 2 || second.LeaderID != first.MemberID || len(again.Members) != 2 || len(second.Members) != 0 {
		t.Fatalf("generation 2: %+v and %+v", again, second)
	}
	for _, m := range again.Members {
		if !bytes.Equal(m.ProtocolMetadata, consumes("t")) {
			t.Errorf("metadata %x of %s", m.ProtocolMetadata, m.MemberID)
		}
	}
	sync := syncRequest(clamp(v, 0, 5), name, second.MemberID, 2, nil)
	waiting = b.send(sync)
	until(t, "the sync to wait", func() bool { return waitingIn(s) == 1 })
	lead := syncRequest(clamp(v, 0, 5), name, first.MemberID, 2, map[string]string{first.MemberID: "one", second.MemberID: "two"})
	if got := a.call(lead).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 || string(got.MemberAssignment) != "one" {
		t.Fatalf("the leader's sync: %+v", got)
	}
	if got := b.receive(sync, waiting).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 || string(got.MemberAssignment) != "two" {
		t.Fatalf("the follower's sync: %+v", got)
	}
	checkDescribed(t, a, clamp(v, 0, 6), name, second.MemberID)
	cv := clamp(v, 2, 9)
	for _, p := range a.call(commitRequest(cv, name, first.MemberID, 2, "t", 10, 20)).(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
		if p.ErrorCode != 0 {
			t.Errorf("commit: error %d", p.ErrorCode)
		}
	}
	checkOffsets(t, a, name, map[int32]int64{0: 10, 1: 20, 2: -1}, cv >= 6)
	if got := leaveCode(b.call(leaveRequest(clamp(v, 0, 5), name, second.MemberID))); got != 0 {
		t.Errorf("leave: error %d", got)
	}
	if got := leaveCode(b.call(leaveRequest(clamp(v, 0, 5), name, second.MemberID))); got != int16(group.UnknownMember) {
		t.Errorf("leave twice: error %d", got)
	}
	if got := leaveCode(a.call(leaveRequest(clamp(v, 0, 5), name, first.MemberID))); got != 0 {
		t.Errorf("leave: error %d", got)
	}
	until(t, "the metadata to know", func() bool { info, ok := s.node.View().Group(name); return ok && !info.Occupied })
	if info, _ := s.node.View().Group(name); info.ProtocolType != "consumer" {
		t.Errorf("protocol type %q", info.ProtocolType)
	}
	checkOffsets(t, a, name, map[int32]int64{0: 10, 1: 20, 2: -1}, cv >= 6)
}

func leaveCode(r kmsg.Response) int16 {
	l := r.(*kmsg.LeaveGroupResponse)
	if len(l.Members) > 0 {
		return l.Members[0].ErrorCode
	}
	return l.ErrorCode
}

// waitingIn counts the requests that wait in groups.
func waitingIn(s *testServer) int {
	gs := s.broker.groups
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return len(gs.mu.waiting)
}

func openIn(s *testServer) int {
	gs := s.broker.groups
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return len(gs.mu.open)
}

func checkDescribed(t *testing.T, c *rawClient, v int16, name, member string) {
	t.Helper()
	r := kmsg.NewPtrDescribeGroupsRequest()
	r.Version, r.Groups = v, []string{name}
	g := c.call(r).(*kmsg.DescribeGroupsResponse).Groups[0]
	if g.ErrorCode != 0 || g.State != "Stable" || g.ProtocolType != "consumer" || g.Protocol != "range" || len(g.Members) != 2 || g.AuthorizedOperations != -2147483648 {
		t.Fatalf("described: %+v", g)
	}
	for _, m := range g.Members {
		if m.MemberID == member && (string(m.MemberAssignment) != "two" || m.ClientID != "test" || m.ClientHost != "/127.0.0.1" || !bytes.Equal(m.ProtocolMetadata, consumes("t"))) {
			t.Errorf("described: %+v", m)
		}
	}
	list := kmsg.NewPtrListGroupsRequest()
	list.Version, list.StatesFilter, list.TypesFilter = clamp(v, 0, 5), []string{"STABLE"}, []string{"classic"}
	if got := c.call(list).(*kmsg.ListGroupsResponse).Groups; len(got) != 1 || got[0].Group != name || got[0].ProtocolType != "consumer" {
		t.Errorf("listed: %+v", got)
	}
}

// A join that waits holds up its own connection only; requests behind it are
// answered after it, in order.
func TestJoinWaitsAlone(t *testing.T) {
	s := startGroups(t, nil)
	a, b := dial(t, s.addr), dial(t, s.addr)
	first := alone(t, a, 3, "g")
	join := joinRequest(3, "g", "")
	id := b.send(join)
	behind := b.send(kmsg.NewPtrApiVersionsRequest())
	until(t, "the join to wait", func() bool { return waitingIn(s) == 1 })
	for range 3 {
		if got := a.call(kmsg.NewPtrApiVersionsRequest()).(*kmsg.ApiVersionsResponse); got.ErrorCode != 0 {
			t.Fatal(got.ErrorCode)
		}
	}
	joined(t, a, joinRequest(3, "g", first.MemberID))
	if got := b.receive(join, id).(*kmsg.JoinGroupResponse); got.ErrorCode != 0 || got.Generation != 2 {
		t.Errorf("joined: %+v", got)
	}
	b.receive(kmsg.NewPtrApiVersionsRequest(), behind)
}

// A client that goes while its join waits leaves nothing behind.
func TestJoinOfAClientThatGoes(t *testing.T) {
	s := startGroups(t, func(c *Config) { c.GroupInitialDelay = time.Minute })
	a, b := dial(t, s.addr), dial(t, s.addr)
	a.send(joinRequest(3, "g", ""))
	until(t, "the join to wait", func() bool { return waitingIn(s) == 1 })
	_ = a.nc.Close()
	until(t, "the join to be forgotten", func() bool { return waitingIn(s) == 0 })
	r := kmsg.NewPtrDescribeGroupsRequest()
	r.Groups = []string{"g"}
	if got := b.call(r).(*kmsg.DescribeGroupsResponse).Groups[0]; len(got.Members) != 0 {
		t.Errorf("left behind: %+v", got)
	}
}

// A listener that stops answers the joins and syncs that wait.
func TestStopAnswersWaitingMembers(t *testing.T) {
	s := startGroups(t, func(c *Config) { c.GroupInitialDelay = time.Minute })
	var clients []*rawClient
	for range 5 {
		c := dial(t, s.addr)
		c.send(joinRequest(2, "g", ""))
		clients = append(clients, c)
	}
	until(t, "the joins to wait", func() bool { return waitingIn(s) == 5 })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		if got := c.receive(joinRequest(2, "g", ""), 1).(*kmsg.JoinGroupResponse); got.ErrorCode != int16(codeNotCoordinator) {
			t.Errorf("error %d", got.ErrorCode)
		}
	}
	if waitingIn(s) != 0 {
		t.Errorf("%d requests still wait", waitingIn(s))
	}
}

func TestJoinRefusals(t *testing.T) {
	b, _, _ := newTestBroker(t, func(c *Config) { c.GroupMembersMax, c.GroupsMax, c.GroupBytesMax = 1, 2, 2000 })
	join := func(name string, change func(*kmsg.JoinGroupRequest)) int16 {
		r := joinRequest(4, name, "")
		change(r)
		resp := ask(t, b, r).(*kmsg.JoinGroupResponse)
		if resp.ErrorCode != 0 && resp.Generation != -1 {
			t.Errorf("%s: generation %d with error %d", name, resp.Generation, resp.ErrorCode)
		}
		return resp.ErrorCode
	}
	for what, c := range map[string]struct {
		name   string
		change func(*kmsg.JoinGroupRequest)
		want   int16
	}{
		"no name":          {"", func(*kmsg.JoinGroupRequest) {}, 24},
		"long name":        {strings.Repeat("n", 2000), func(*kmsg.JoinGroupRequest) {}, 24},
		"bad name":         {"\xff", func(*kmsg.JoinGroupRequest) {}, 24},
		"short session":    {"a", func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 5999 }, 26},
		"long session":     {"a", func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 1_800_001 }, 26},
		"no protocol":      {"a", func(r *kmsg.JoinGroupRequest) { r.Protocols = nil }, 23},
		"no type":          {"a", func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "" }, 23},
		"long type":        {"a", func(r *kmsg.JoinGroupRequest) { r.ProtocolType = strings.Repeat("t", 300) }, 23},
		"unknown id":       {"a", func(r *kmsg.JoinGroupRequest) { r.MemberID = "ghost" }, 25},
		"much metadata":    {"a", func(r *kmsg.JoinGroupRequest) { r.Protocols[0].Metadata = make([]byte, 2000) }, 14},
		"many protocols":   {"a", func(r *kmsg.JoinGroupRequest) { r.Protocols = nameless(20) }, 14},
		"negative waits":   {"b", func(r *kmsg.JoinGroupRequest) { r.RebalanceTimeoutMillis = -1 }, 79},
		"negative session": {"a", func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = -1 }, 26},
	} {
		if got := join(c.name, c.change); got != c.want {
			t.Errorf("%s: error %d, want %d", what, got, c.want)
		}
	}
	if got := join("b", func(*kmsg.JoinGroupRequest) {}); got != int16(group.MaxSizeReached) {
		t.Errorf("a second id: error %d", got)
	}
	join("c", func(*kmsg.JoinGroupRequest) {})
	if got := join("d", func(*kmsg.JoinGroupRequest) {}); got != int16(codeCoordinatorLoading) {
		t.Errorf("a third group: error %d", got)
	}
}

// A client id may be long, and no text at all.
func TestMemberIDOfALongClientID(t *testing.T) {
	for _, prefix := range []string{strings.Repeat("ü", 1000), strings.Repeat("\x80", 1000), "", "short"} {
		id := newMemberID(prefix)
		if len(id) > 240 || !strings.HasPrefix(id, prefix[:min(len(prefix), 4)]) && prefix[:min(len(prefix), 1)] != "\x80" {
			t.Errorf("%.20q: %q", prefix, id)
		}
	}
	if one := newMemberID("a"); one == newMemberID("a") {
		t.Error("the same id twice")
	}
}

func TestSameTopics(t *testing.T) {
	owns := kmsg.NewConsumerMemberMetadata()
	owns.Version, owns.Topics, owns.UserData = 3, []string{"b", "a"}, []byte("u")
	owns.OwnedPartitions = append(owns.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: "a", Partitions: []int32{1}})
	for _, c := range []struct {
		kind        string
		before, now []byte
		want        bool
	}{
		{"consumer", owns.AppendTo(nil), consumes("a", "b"), true},
		{"consumer", owns.AppendTo(nil), consumes("a"), false},
		{"consumer", consumes("a", "b"), consumes("a", "c"), false},
		{"consumer", []byte("junk"), consumes("a"), false},
		{"connect", consumes("a"), consumes("a"), false},
	} {
		if got := sameTopics(c.kind, c.before, c.now); got != c.want {
			t.Errorf("%s %x %x: %v", c.kind, c.before, c.now, got)
		}
	}
}

// The metadata learns of members, also when it was told wrong: a commit that was
// under way says what was true when it began.
func TestGroupMarks(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	occupied := func(want bool) func() bool {
		return func() bool { info, ok := s.node.View().Group("g"); return ok && info.Occupied == want }
	}
	// Offsets first, by an outsider: a simple group.
	c.call(commitRequest(7, "g", "", -1, "t", 1))
	if info, ok := s.node.View().Group("g"); !ok || info.Occupied || info.ProtocolType != "" {
		t.Fatalf("a simple group: %+v", info)
	}
	m := alone(t, c, 3, "g")
	until(t, "members", occupied(true))
	c.call(commitRequest(7, "g", m.MemberID, 1, "t", 2))
	c.call(leaveRequest(3, "g", m.MemberID))
	until(t, "no members", occupied(false))
	// As if a commit came late.
	if err := s.node.CommitGroupOffsets(t.Context(), cluster.GroupCommit{Group: "g", Occupied: true}); err != nil {
		t.Fatal(err)
	}
	s.broker.groups.mark("g")
	until(t, "no members again", occupied(false))
	// Failing to tell is not the end of it.
	s.node.failGroups(mink.ErrUnavailable)
	before := s.node.markCount()
	alone(t, c, 3, "g")
	until(t, "the mark to fail", func() bool { return s.node.markCount() > before })
	s.node.failGroups(nil)
	s.broker.groups.mark("g")
	until(t, "members at last", occupied(true))
}

func TestDeleteGroupsAndOffsets(t *testing.T) {
	s := startGroups(t, nil)
	s.node.topic("other", 1)
	c := dial(t, s.addr)
	m := alone(t, c, 4, "busy")
	c.call(commitRequest(7, "busy", m.MemberID, 1, "t", 1))
	c.call(commitRequest(7, "busy", m.MemberID, 1, "other", 1))
	c.call(commitRequest(7, "idle", "", -1, "t", 1, 2))
	offsetDelete := func(name, topic string, partition int32) *kmsg.OffsetDeleteResponse {
		r := kmsg.NewPtrOffsetDeleteRequest()
		r.Group = name
		rt := kmsg.NewOffsetDeleteRequestTopic()
		rt.Topic = topic
		p := kmsg.NewOffsetDeleteRequestTopicPartition()
		p.Partition = partition
		rt.Partitions = append(rt.Partitions, p)
		r.Topics = append(r.Topics, rt)
		return c.call(r).(*kmsg.OffsetDeleteResponse)
	}
	for _, d := range []struct {
		name, topic string
		partition   int32
		top, want   int16
	}{
		{"nope", "t", 0, 69, 0}, {"busy", "t", 0, 0, 86}, {"busy", "other", 0, 0, 0}, {"busy", "missing", 0, 0, 3}, {"idle", "t", 0, 0, 0}, {"idle", "t", 9, 0, 3},
	} {
		got := offsetDelete(d.name, d.topic, d.partition)
		if got.ErrorCode != d.top || d.top == 0 && got.Topics[0].Partitions[0].ErrorCode != d.want {
			t.Errorf("%+v: %+v", d, got)
		}
	}
	got := offsetsIn(t, c.call(offsetsRequest(7, "idle", "t", 0, 1)).(*kmsg.OffsetFetchResponse))
	if got[0].Offset != -1 || got[1].Offset != 2 {
		t.Errorf("after the delete: %+v", got)
	}
	connect := joinRequest(3, "worker", "")
	connect.ProtocolType = "connect"
	joined(t, c, connect)
	if got := offsetDelete("worker", "t", 0); got.ErrorCode != 68 {
		t.Errorf("a connect group: error %d", got.ErrorCode)
	}
	for v := int16(0); v <= 2; v++ {
		c.call(commitRequest(7, "idle", "", -1, "t", 1))
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Version, r.Groups = v, []string{"idle", "busy", "nope", ""}
		for i, want := range []int16{0, 68, 69, 24} {
			if got := c.call(r).(*kmsg.DeleteGroupsResponse).Groups[i].ErrorCode; got != want && (i != 0 || got != 69) {
				t.Errorf("v%d: %s: error %d, want %d", v, r.Groups[i], got, want)
			}
		}
		if _, ok := s.node.View().Group("idle"); ok {
			t.Error("the group is still there")
		}
	}
}

// An unknown group is a dead one, and an error from version 6.
func TestDescribeUnknownGroup(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	for v := int16(0); v <= 6; v++ {
		r := kmsg.NewPtrDescribeGroupsRequest()
		r.Version, r.Groups = v, []string{"nope"}
		want := int16(0)
		if v >= 6 {
			want = 69
		}
		if g := ask(t, b, r).(*kmsg.DescribeGroupsResponse).Groups[0]; g.ErrorCode != want || g.State != "Dead" || (g.ErrorMessage != nil) != (v >= 6) {
			t.Errorf("v%d: %+v", v, g)
		}
	}
}
