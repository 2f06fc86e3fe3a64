package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka/group"
	"github.com/mink-project/mink/sdk/mink"
)

// crowdedNode has no room for the first commit until it is told so.
type crowdedNode struct {
	*fakeNode
	room chan struct{}

	mu    sync.Mutex
	calls int
	order []mink.Offset // of the commits that have their place
}

func (n *crowdedNode) StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (func(context.Context) error, error) {
	n.mu.Lock()
	n.calls++
	first := n.calls == 1
	n.mu.Unlock()
	if first {
		<-n.room
	}
	n.mu.Lock()
	n.order = append(n.order, c.Offsets[0].Offset)
	n.mu.Unlock()
	return n.fakeNode.StartGroupCommit(ctx, c)
}

// A member is thrown out while its commit, which was checked, waits for room: the
// commit of its successor comes after it.
func TestCommitsKeepTheOrderOfTheirChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &crowdedNode{fakeNode: newFakeNode(t), room: make(chan struct{})}
		node.register(1, "127.0.0.1:9092")
		node.topic("t", 1)
		b := newBroker(testConfig(), node, noMetrics{}, testLogger(t), make(chan struct{}))
		defer b.wait()
		defer runGroups(b)()
		member := func() *kmsg.JoinGroupResponse {
			m := ask(t, b, joinRequest(3, "g", "")).(*kmsg.JoinGroupResponse)
			if got := groupError(ask(t, b, syncRequest(3, "g", m.MemberID, m.Generation, nil))); m.ErrorCode != 0 || got != 0 {
				t.Fatalf("join: error %d, sync: error %d", m.ErrorCode, got)
			}
			return m
		}
		var commits sync.WaitGroup
		commit := func(m *kmsg.JoinGroupResponse, offset int64) {
			commits.Go(func() {
				if got := groupError(ask(t, b, commitRequest(7, "g", m.MemberID, m.Generation, "t", offset))); got != 0 {
					t.Errorf("commit of %d: error %d", offset, got)
				}
			})
			synctest.Wait()
		}
		old := member()
		commit(old, 5)
		ask(t, b, leaveRequest(3, "g", old.MemberID))
		commit(member(), 50)
		close(node.room)
		commits.Wait()
		if want := []mink.Offset{5, 50}; !slices.Equal(node.order, want) {
			t.Errorf("the order %v, want %v", node.order, want)
		}
	})
}

// slowNode has verdicts on commits only once it is told so.
type slowNode struct {
	*fakeNode
	verdicts chan struct{} // closed: they are there
	commits  sync.WaitGroup
}

func (n *slowNode) StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (func(context.Context) error, error) {
	store, err := n.fakeNode.StartGroupCommit(ctx, c)
	if err != nil {
		return nil, err
	}
	stored := make(chan error, 1)
	n.commits.Go(func() { // whoever waits for it
		<-n.verdicts
		stored <- store(context.Background())
	})
	return func(ctx context.Context) error {
		select {
		case err := <-stored:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func (n *slowNode) SettleGroup(ctx context.Context, _ string) error {
	settled := make(chan struct{})
	go func() { n.commits.Wait(); close(settled) }()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, ctx.Err())
	}
}

// A member commits and leaves; the metadata take their time. Who has its partitions next
// does not begin before what it committed, or its own first commit would take back
// one that is acknowledged.
func TestANewGenerationReadsWhatTheOneBeforeCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowNode{fakeNode: newFakeNode(t), verdicts: make(chan struct{})}
		node.register(1, "127.0.0.1:9092")
		node.topic("t", 1)
		b := newBroker(testConfig(), node, noMetrics{}, testLogger(t), make(chan struct{}))
		defer b.wait()
		defer runGroups(b)()
		member := func() *kmsg.JoinGroupResponse {
			m := ask(t, b, joinRequest(3, "g", "")).(*kmsg.JoinGroupResponse)
			if got := groupError(ask(t, b, syncRequest(3, "g", m.MemberID, m.Generation, nil))); m.ErrorCode != 0 || got != 0 {
				t.Fatalf("join: error %d, sync: error %d", m.ErrorCode, got)
			}
			return m
		}
		old := member()
		var requests sync.WaitGroup
		requests.Go(func() {
			if got := groupError(ask(t, b, commitRequest(7, "g", old.MemberID, old.Generation, "t", 50))); got != 0 {
				t.Errorf("commit: error %d", got)
			}
		})
		synctest.Wait()
		ask(t, b, leaveRequest(3, "g", old.MemberID))
		member()
		// For a while it is told to come again, not what will be wrong in a moment.
		if got := groupError(ask(t, b, offsetsRequest(8, "g", "t", 0))); got != int16(codeCoordinatorLoading) {
			t.Errorf("offsets without a verdict on the commit before: error %d", got)
		}
		requests.Go(func() {
			got := offsetsIn(t, ask(t, b, offsetsRequest(8, "g", "t", 0)).(*kmsg.OffsetFetchResponse))
			if got[0].Offset != 50 {
				t.Errorf("the new member begins at %d, 50 was committed", got[0].Offset)
			}
		})
		synctest.Wait()
		close(node.verdicts)
		requests.Wait()
	})
}

// Offsets are given to a member only once the metadata know that the group has
// members: else they may expire under it.
func TestOffsetsAreReadUnderAMark(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	ask(t, b, commitRequest(7, "g", "", -1, "t", 7))
	node.failGroups(mink.ErrUnavailable)
	ask(t, b, joinRequest(3, "g", ""))
	for _, v := range []int16{1, 5, 8} {
		if got := groupError(ask(t, b, offsetsRequest(v, "g", "t", 0))); got != int16(codeCoordinatorLoading) {
			t.Errorf("v%d: error %d", v, got)
		}
	}
	node.failGroups(nil)
	got := offsetsIn(t, ask(t, b, offsetsRequest(8, "g", "t", 0)).(*kmsg.OffsetFetchResponse))
	if info, _ := node.View().Group("g"); got[0].Offset != 7 || !info.Occupied {
		t.Errorf("read %+v of %+v", got[0], info)
	}
}

// Java's consumers try a fetch of offsets again after 14 and 16 alone, a heartbeat
// and a sync not after 14.
func TestCodesThatEndNoConsumer(t *testing.T) {
	b, node, _ := newTestBroker(t, func(c *Config) { c.GroupBytesMax = 2000 })
	node.topic("t", 1)
	m := ask(t, b, joinRequest(3, "g", "")).(*kmsg.JoinGroupResponse)
	much := syncRequest(3, "g", m.MemberID, m.Generation, map[string]string{m.MemberID: string(make([]byte, 2000))})
	if got := groupError(ask(t, b, much)); got != int16(group.RebalanceInProgress) {
		t.Errorf("a sync without room: error %d", got)
	}
	if _, c := b.groups.beginDelete("gone"); c != codeNone {
		t.Fatal(c)
	}
	for _, r := range []kmsg.Request{heartbeatRequest(3, "gone", "m", 1), syncRequest(3, "gone", "m", 1, nil)} {
		if got := groupError(ask(t, b, r)); got != int16(group.UnknownMember) {
			t.Errorf("%T of a group that is being deleted: error %d", r, got)
		}
	}
	for _, r := range []kmsg.Request{joinRequest(3, "gone", ""), commitRequest(7, "gone", "", -1, "t", 1)} {
		if got := groupError(ask(t, b, r)); got != int16(codeCoordinatorLoading) {
			t.Errorf("%T of a group that is being deleted: error %d", r, got)
		}
	}
	b.groups.endDelete("gone")
	node.seal(node.nodeEpoch()) // registers anew in a moment
	for _, v := range []int16{1, 5, 8} {
		if got := groupError(ask(t, b, offsetsRequest(v, "g", "t", 0))); got != int16(codeNotCoordinator) {
			t.Errorf("offsets v%d without a live node: error %d", v, got)
		}
	}
}

// A group keeps copies of a few bytes, not the requests that they came in.
func TestGroupsKeepCopies(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	join := joinRequest(3, "g", "")
	want := string(join.Protocols[0].Metadata)
	m, err := b.joinGroup(t.Context(), "client", join)
	if err != nil || m.ErrorCode != 0 {
		t.Fatalf("join: %+v, %v", m, err)
	}
	sync := syncRequest(3, "g", m.MemberID, m.Generation, map[string]string{m.MemberID: "all"})
	if _, err := b.syncGroup(t.Context(), sync); err != nil {
		t.Fatal(err)
	}
	clear(join.Protocols[0].Metadata)
	clear(sync.GroupAssignment[0].MemberAssignment)
	info, _ := b.groups.describe("g")
	if got := info.Members[0]; string(got.Metadata) != want || string(got.Assignment) != "all" {
		t.Errorf("%q and %q share the requests' memory", got.Metadata, got.Assignment)
	}
}

// nameless are protocols of hardly any bytes.
func nameless(n int) []kmsg.JoinGroupRequestProtocol {
	all := make([]kmsg.JoinGroupRequestProtocol, n)
	for i := range all {
		all[i] = kmsg.NewJoinGroupRequestProtocol()
		all[i].Name = fmt.Sprint(i)
	}
	return all
}

// What a request names a thousand times is answered once: the answer to a small
// request is no larger than what there is.
func TestNamedAgainIsNotAnsweredAgain(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 3)
	ask(t, b, commitRequest(7, "g", "", -1, "t", 7))
	const n = 1000
	metadata := metadataFor(9, false, slices.Repeat([]string{"t", "missing"}, n)...)
	if got := len(ask(t, b, metadata).(*kmsg.MetadataResponse).Topics); got != 2 {
		t.Errorf("metadata of %d topics", got)
	}
	groups := kmsg.NewPtrDescribeGroupsRequest()
	groups.Groups = slices.Repeat([]string{"g"}, n)
	if got := len(ask(t, b, groups).(*kmsg.DescribeGroupsResponse).Groups); got != 1 {
		t.Errorf("%d groups described", got)
	}
	configs := describeConfigs(4, ofTopic, "t")
	configs.Resources = slices.Repeat(configs.Resources, n)
	if got := len(ask(t, b, configs).(*kmsg.DescribeConfigsResponse).Resources); got != 1 {
		t.Errorf("configs of %d resources", got)
	}
	for _, v := range []int16{5, 8} {
		r := offsetsRequest(v, "g", "t", slices.Repeat([]int32{0, 1}, n)...)
		r.Groups = slices.Repeat(r.Groups, n/100)
		r.Topics = slices.Repeat(r.Topics, n/100)
		total := 0
		resp := ask(t, b, r).(*kmsg.OffsetFetchResponse)
		for _, topic := range resp.Topics {
			total += len(topic.Partitions)
		}
		for _, g := range resp.Groups {
			for _, topic := range g.Topics {
				total += len(topic.Partitions)
			}
		}
		if total != 2 {
			t.Errorf("offsets v%d: %d partitions", v, total)
		}
	}
	all := offsetsRequest(8, "g", "t")
	all.Groups[0].Topics = nil
	all.Groups = slices.Repeat(all.Groups, n)
	if got := len(ask(t, b, all).(*kmsg.OffsetFetchResponse).Groups); got != 1 {
		t.Errorf("all offsets of %d groups", got)
	}
}
