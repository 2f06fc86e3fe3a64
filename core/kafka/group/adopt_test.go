package group

import (
	"testing"
	"time"
)

// A group whose coordinator was lost: members of before come with their ids, until
// the time is up; generations go on above theirs.
func TestMembersOfAnEarlierCoordinator(t *testing.T) {
	d := newDriver()
	d.g = NewAfter(&d.cfg, 41, dawn.Add(time.Minute))
	join := func(id, instance string) Token {
		d.last++
		r := &JoinRequest{MemberID: id, InstanceID: instance, ProtocolType: "consumer", Protocols: []Protocol{{Name: "range"}}, Session: time.Minute, Rebalance: time.Minute}
		for _, reply := range d.g.Join(d.now, d.last, r) {
			if reply.Token == d.last && reply.Join.Err != None {
				t.Errorf("join of %s: %v", id, reply.Join.Err)
			}
		}
		if err := check(d.g); err != nil {
			t.Fatal(err)
		}
		return d.last
	}
	want := func(what string, got, want Error) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	want("heartbeat of a member of before", d.g.Heartbeat(d.now, "a", "", 7), RebalanceInProgress)
	want("heartbeat of a static one", d.g.Heartbeat(d.now, "b", "instance", 7), RebalanceInProgress)
	want("commit", d.g.CheckCommit(d.now, 7, "a", ""), RebalanceInProgress)
	want("commit without an id", d.g.CheckCommit(d.now, 7, "", ""), UnknownMember)
	want("an id that nobody gave out", d.g.Heartbeat(d.now, string(make([]byte, MaxAdoptedID+1)), "", 7), UnknownMember)
	if r := d.g.Sync(d.now, 99, &SyncRequest{MemberID: "a", Generation: 7}); len(r) != 1 || r[0].Sync.Err != RebalanceInProgress {
		t.Errorf("sync: %+v", r)
	}
	join("a", "")
	join("b", "instance")
	var replies []Reply
	for range 3 { // the wait is extended once for the second one
		d.now = d.now.Add(simDelay)
		replies = append(replies, d.g.Tick(d.now)...)
	}
	if len(replies) != 2 || replies[0].Join.Generation != 42 || replies[0].Join.MemberID != "a" || len(replies[0].Join.Members) != 2 {
		t.Fatalf("the first generation here: %+v", replies)
	}
	want("heartbeat in the generation of before", d.g.Heartbeat(d.now, "a", "", 7), IllegalGeneration)
	want("a static member's other self", d.g.Heartbeat(d.now, "x", "instance", 42), FencedInstance)
	want("one more of before", d.g.Heartbeat(d.now, "c", "", 7), RebalanceInProgress)
	d.now = dawn.Add(time.Minute)
	want("one that comes too late", d.g.Heartbeat(d.now, "c", "", 7), UnknownMember)
	want("its commit", d.g.CheckCommit(d.now, 7, "c", ""), UnknownMember)
	r := d.g.Join(d.now, 100, &JoinRequest{MemberID: "c", ProtocolType: "consumer", Protocols: []Protocol{{Name: "range"}}, Session: time.Minute})
	if len(r) != 1 || r[0].Join.Err != UnknownMember {
		t.Errorf("its join: %+v", r)
	}
}
