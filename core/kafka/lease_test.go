package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/sdk/mink"
)

var errDoubt = fmt.Errorf("nobody heard of this node for a lease: %w", mink.ErrUnavailable)

// A node that others may have replaced answers for no group, whatever its view
// says, names itself as nobody's coordinator, and goes on with what it knows when
// its lease lives again.
func TestGroupsNeedALiveLease(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	first := alone(t, c, 3, "g")
	s.node.doubtLease(errDoubt)
	allRefused(t, c, "g")
	for v := int16(0); v <= 6; v++ {
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.Version, r.CoordinatorKey, r.CoordinatorKeys = v, "g", []string{"g"}
		resp := c.call(r).(*kmsg.FindCoordinatorResponse)
		if v >= findBatches {
			resp.ErrorCode, resp.NodeID = resp.Coordinators[0].ErrorCode, resp.Coordinators[0].NodeID
		}
		if resp.ErrorCode != int16(codeCoordinatorNotAvailable) || resp.NodeID != -1 {
			t.Errorf("FindCoordinator v%d: error %d, node %d", v, resp.ErrorCode, resp.NodeID)
		}
	}
	list := kmsg.NewPtrListGroupsRequest()
	list.Version = 4
	if got := c.call(list).(*kmsg.ListGroupsResponse); got.ErrorCode != int16(codeCoordinatorNotAvailable) || len(got.Groups) != 0 {
		t.Errorf("ListGroups: %+v", got)
	}
	s.node.doubtLease(nil)
	if got := groupError(c.call(heartbeatRequest(3, "g", first.MemberID, first.Generation))); got != 0 {
		t.Errorf("heartbeat when the lease lives again: error %d", got)
	}
	if got := groupError(c.call(commitRequest(7, "g", first.MemberID, first.Generation, "t", 5))); got != 0 {
		t.Errorf("commit when the lease lives again: error %d", got)
	}
	if got := c.call(list).(*kmsg.ListGroupsResponse); got.ErrorCode != 0 || len(got.Groups) != 1 {
		t.Errorf("ListGroups: %+v", got)
	}
}

// Who waits in a join or a sync hears that the lease has ended, not that the node
// still waits for others: these may have joined elsewhere.
func TestWaitingMembersHearOfALostLease(t *testing.T) {
	s := startGroups(t, func(c *Config) { c.GroupInitialDelay = 100 * time.Millisecond })
	a, b, d := dial(t, s.addr), dial(t, s.addr), dial(t, s.addr)
	patient := func(group, member string) *kmsg.JoinGroupRequest { // nothing else ends its wait in the test's time
		r := joinRequest(3, group, member)
		r.SessionTimeoutMillis, r.RebalanceTimeoutMillis = 1_000_000, 1_000_000
		return r
	}
	joined(t, a, patient("g", ""))
	join := patient("g", "")
	joining := b.send(join) // waits for the first member, which does not come
	first := joined(t, d, patient("h", ""))
	second := patient("h", "")
	e := dial(t, s.addr)
	seconds := e.send(second)
	until(t, "both joins to wait", func() bool { return waitingIn(s) == 2 })
	again := patient("h", first.MemberID)
	rejoined := d.call(again).(*kmsg.JoinGroupResponse)
	got := e.receive(second, seconds).(*kmsg.JoinGroupResponse)
	follower, conn := got.MemberID, e
	if got.LeaderID == got.MemberID {
		follower, conn = rejoined.MemberID, d
	}
	sync := syncRequest(3, "h", follower, got.Generation, nil)
	syncing := conn.send(sync) // waits for the leader, which does not come
	until(t, "both to wait", func() bool { return waitingIn(s) == 2 })
	s.node.doubtLease(errDoubt)
	if got := groupError(b.receive(join, joining)); got != int16(codeNotCoordinator) {
		t.Errorf("the waiting join: error %d", got)
	}
	if got := groupError(conn.receive(sync, syncing)); got != int16(codeNotCoordinator) {
		t.Errorf("the waiting sync: error %d", got)
	}
}

// An answer that becomes ready after the lease has ended is not given: the rebalance
// of a process that stood still ends when it goes on.
func TestALateGenerationIsNotAnnounced(t *testing.T) {
	s := startGroups(t, func(c *Config) { c.GroupInitialDelay = 500 * time.Millisecond })
	c := dial(t, s.addr)
	join := joinRequest(3, "g", "")
	waiting := c.send(join)
	until(t, "the join to wait", func() bool { return waitingIn(s) == 1 })
	s.node.doubtLease(errDoubt)
	if got := c.receive(join, waiting).(*kmsg.JoinGroupResponse); got.ErrorCode != int16(codeNotCoordinator) || got.Generation != -1 {
		t.Errorf("%+v", got)
	}
}

// Another process took this one's id. The view names the node as before: the group
// is that process's all the same.
func TestGroupsOfAProcessWithTheSameID(t *testing.T) {
	s := startGroups(t, nil)
	c := dial(t, s.addr)
	alone(t, c, 3, "g")
	mine := s.node.nodeEpoch()
	s.node.register(1, "elsewhere.example:9092")
	s.node.mu.Lock()
	s.node.mu.epoch = mine
	s.node.mu.Unlock()
	allRefused(t, c, "g")
	list := kmsg.NewPtrListGroupsRequest()
	if got := c.call(list).(*kmsg.ListGroupsResponse); got.ErrorCode != 0 || len(got.Groups) != 0 {
		t.Errorf("ListGroups: %+v", got)
	}
}

// Where a log ends is for its leader to say, and only while its lease lives: a
// shorter end makes a consumer read again or skip. What lies below is true for ever.
func TestEndsOfLogsNeedALiveLease(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 1)[0]
	for i := range 10 {
		mustProduce(t, b, "t", 0, batchOf{values: []string{fmt.Sprint(i)}, pid: -1, epoch: -1, sequence: -1, ts: 1000 + int64(i)}.bytes())
	}
	log.trim(2)
	epoch := int32(log.LeaderEpoch())
	check := func(when string, refused bool) {
		t.Helper()
		want := func(what string, c int16, always bool, offset, wantOffset int64) {
			t.Helper()
			if refused && !always {
				if c != int16(codeNotLeader) || offset != -1 {
					t.Errorf("%s: %s: error %d, offset %d", when, what, c, offset)
				}
			} else if c != 0 || offset != wantOffset {
				t.Errorf("%s: %s: error %d, offset %d, want %d", when, what, c, offset, wantOffset)
			}
		}
		o := listOffset(t, b, "t", 0, askLatest)
		want("latest", o.ErrorCode, false, o.Offset, 10)
		o = listOffset(t, b, "t", 0, 9999)
		want("a timestamp that nothing has", o.ErrorCode, false, o.Offset, -1)
		o = listOffset(t, b, "t", 0, askMaxTimestamp)
		want("the largest timestamp", o.ErrorCode, false, o.Offset, 9)
		o = listOffset(t, b, "t", 0, askEarliest)
		want("earliest", o.ErrorCode, true, o.Offset, 2)
		o = listOffset(t, b, "t", 0, 1003)
		want("a timestamp", o.ErrorCode, true, o.Offset, 3)
		c, _, end := epochEnd(t, b, "t", -1, epoch)
		want("the current epoch's end", c, false, end, 10)
		c, _, end = epochEnd(t, b, "t", -1, epoch+1)
		want("a later epoch's end", c, false, end, -1)

		fetch := func(at int64) int16 {
			r := fetchFrom(12, "t", [16]byte{}, at)
			r.MaxWaitMillis = 0
			return fetched(t, ask(t, b, r), 0).ErrorCode
		}
		for at, c := range map[int64]int16{5: 0, 10: 0, 1: int16(codeOffsetOutOfRange), 11: int16(codeOffsetOutOfRange)} {
			if refused && at == 11 {
				c = int16(codeNotLeader)
			}
			if got := fetch(at); got != c {
				t.Errorf("%s: fetch at %d: error %d, want %d", when, at, got, c)
			}
		}
		if got := ask(t, b, deleteRecords(2, "t", 99)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0].ErrorCode; got != int16(codeOffsetOutOfRange) && !refused || refused && got != int16(codeNotLeader) {
			t.Errorf("%s: delete beyond the end: error %d", when, got)
		}
	}
	check("with a lease", false)
	node.doubtLease(errDoubt)
	check("without", true)
	node.doubtLease(nil)
	check("with a lease again", false)
}

// A request at a node that does not lead: it is told who does, unless its client
// knows of a newer leadership than the node, which then has nothing true to say.
func TestLeaderEpochsAtAnotherNode(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.register(2, "two.example:9192")
	far := ""
	for i := 0; far == ""; i++ {
		name := fmt.Sprint("far", i)
		createTopic(t, b, name, 1)
		table, _ := node.View().TableByName("kafka", name)
		for p := range node.View().Partitions(table.ID) {
			if st, _ := node.View().Stream(p.Streams[0]); st.Owner.Node == 2 {
				far = name
			}
		}
	}
	for known, want := range map[int32]code{-1: codeNotLeader, 0: codeNotLeader, 1: codeNotLeader, 2: codeUnknownLeaderEpoch} {
		r := fetchFrom(17, far, node.topicID(far), 0)
		r.Topics[0].Partitions[0].CurrentLeaderEpoch = known
		resp := ask(t, b, r).(*kmsg.FetchResponse)
		p := resp.Topics[0].Partitions[0]
		named := p.CurrentLeader.LeaderID == 2 && p.CurrentLeader.LeaderEpoch == 1 && len(resp.Brokers) == 1 && resp.Brokers[0].Host == "two.example"
		if p.ErrorCode != int16(want) || named != (want == codeNotLeader) {
			t.Errorf("Fetch, epoch %d: error %d, want %d; leader %+v at %+v", known, p.ErrorCode, want, p.CurrentLeader, resp.Brokers)
		}
		if c, _, _ := epochEnd(t, b, far, known, 1); c != int16(want) {
			t.Errorf("OffsetForLeaderEpoch, epoch %d: error %d, want %d", known, c, want)
		}
		l := kmsg.NewPtrListOffsetsRequest()
		l.Version = 10
		lt := kmsg.NewListOffsetsRequestTopic()
		lp := kmsg.NewListOffsetsRequestTopicPartition()
		lt.Topic, lp.Timestamp, lp.CurrentLeaderEpoch = far, askLatest, known
		lt.Partitions = append(lt.Partitions, lp)
		l.Topics = append(l.Topics, lt)
		if got := ask(t, b, l).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].ErrorCode; got != int16(want) {
			t.Errorf("ListOffsets, epoch %d: error %d, want %d", known, got, want)
		}
	}
	if got := ask(t, b, deleteRecords(2, far, 0)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0].ErrorCode; got != int16(codeNotLeader) {
		t.Errorf("DeleteRecords: error %d", got)
	}
}
