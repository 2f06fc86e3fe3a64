package kafka

import (
	"bytes"
	"context"
	"net"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka/group"
)

// The versions that change what a member is told.
const (
	joinRebalanceTimeout int16 = 1
	joinRequiresID       int16 = 4
	joinCanSkip          int16 = 9
	leaveBatches         int16 = 3
)

// clientHost is a key of the context that a request is answered with: where its
// client is, as Kafka's tools print it.
type clientHost struct{}

func withClientHost(ctx context.Context, addr net.Addr) context.Context {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		host = addr.String()
	}
	return context.WithValue(ctx, clientHost{}, "/"+host)
}

func clientHostOf(ctx context.Context) string {
	host, _ := ctx.Value(clientHost{}).(string)
	return host
}

func millis(ms int32) time.Duration { return time.Duration(ms) * time.Millisecond }

// text is "" for null: an instance id is never empty.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// orNull is null for "".
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// joinGroup waits until the group's next generation is known.
func (b *broker) joinGroup(ctx context.Context, clientID string, r *kmsg.JoinGroupRequest) (*kmsg.JoinGroupResponse, error) {
	join := &group.JoinRequest{
		MemberID: r.MemberID, InstanceID: text(r.InstanceID), ClientID: clientID, ClientHost: clientHostOf(ctx),
		ProtocolType: r.ProtocolType, Protocols: make([]group.Protocol, len(r.Protocols)),
		Session: millis(r.SessionTimeoutMillis), Rebalance: millis(r.RebalanceTimeoutMillis),
		RequireID: r.Version >= joinRequiresID, CanSkip: r.Version >= joinCanSkip,
	}
	if r.Version < joinRebalanceTimeout {
		join.Rebalance = join.Session
	}
	for i, p := range r.Protocols {
		// A copy: the group would keep the whole request for a few bytes of it.
		join.Protocols[i] = group.Protocol{Name: p.Name, Metadata: bytes.Clone(p.Metadata)}
	}
	res := group.JoinResult{Generation: -1, MemberID: r.MemberID}
	var c code
	if len(r.ProtocolType) > cluster.MaxProtocolType || !utf8.ValidString(r.ProtocolType) {
		c = codeInconsistentProtocol
	} else {
		// A member that names its id was here before, or at the coordinator before this
		// one: without either it is unknown.
		mayOpen := r.MemberID == "" || b.groups.stranger(r.Group, r.MemberID) == codeRebalanceInProgress
		reply, ac, err := b.groups.ask(ctx, r.Group, r.MemberID, mayOpen, join.Bytes(), func(now time.Time, g *openGroup, t group.Token) []group.Reply {
			return g.Join(now, t, join)
		})
		if err != nil {
			return nil, err
		}
		if c = ac; reply.Join != nil {
			res, c = *reply.Join, code(reply.Join.Err)
		}
	}
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.ErrorCode = b.fail("JoinGroup", c)
	resp.Generation, resp.MemberID, resp.LeaderID, resp.SkipAssignment = res.Generation, res.MemberID, res.Leader, res.SkipAssignment
	if c == codeNone {
		resp.ProtocolType, resp.Protocol = &res.ProtocolType, &res.Protocol
	}
	for _, m := range res.Members {
		jm := kmsg.NewJoinGroupResponseMember()
		jm.MemberID, jm.InstanceID, jm.ProtocolMetadata = m.MemberID, orNull(m.InstanceID), m.Metadata
		resp.Members = append(resp.Members, jm)
	}
	return resp, nil
}

// syncGroup waits for the leader's assignments.
func (b *broker) syncGroup(ctx context.Context, r *kmsg.SyncGroupRequest) (*kmsg.SyncGroupResponse, error) {
	sync := &group.SyncRequest{
		MemberID: r.MemberID, InstanceID: text(r.InstanceID), Generation: r.Generation,
		ProtocolType: text(r.ProtocolType), Protocol: text(r.Protocol), Assignments: make(map[string][]byte, len(r.GroupAssignment)),
	}
	size := 0
	for _, a := range r.GroupAssignment {
		sync.Assignments[a.MemberID] = bytes.Clone(a.MemberAssignment) // as in joinGroup
		size += len(a.MemberAssignment)
	}
	reply, c, err := b.groups.ask(ctx, r.Group, r.MemberID, false, size, func(now time.Time, g *openGroup, t group.Token) []group.Reply {
		return g.Sync(now, t, sync)
	})
	if err != nil {
		return nil, err
	}
	if c == codeCoordinatorLoading { // which consumers take for a bug here; they join again
		c = codeRebalanceInProgress
	}
	resp := kmsg.NewPtrSyncGroupResponse()
	if s := reply.Sync; s != nil {
		if c = code(s.Err); c == codeNone {
			resp.ProtocolType, resp.Protocol, resp.MemberAssignment = &s.ProtocolType, &s.Protocol, s.Assignment
		}
	}
	resp.ErrorCode = b.fail("SyncGroup", c)
	return resp, nil
}

func (b *broker) heartbeat(_ context.Context, r *kmsg.HeartbeatRequest) (*kmsg.HeartbeatResponse, error) {
	result, open := group.None, false
	c := b.groups.event(r.Group, false, 0, func(now time.Time, g *openGroup) []group.Reply {
		if g != nil {
			result, open = g.Heartbeat(now, r.MemberID, text(r.InstanceID), r.Generation), true
		}
		return nil
	})
	if c == codeNone && !open {
		c = b.groups.stranger(r.Group, r.MemberID)
	} else if c == codeNone {
		c = code(result)
	}
	resp := kmsg.NewPtrHeartbeatResponse()
	resp.ErrorCode = b.fail("Heartbeat", c)
	return resp, nil
}

func (b *broker) leaveGroup(_ context.Context, r *kmsg.LeaveGroupRequest) (*kmsg.LeaveGroupResponse, error) {
	var leaving []group.Leaving
	if r.Version < leaveBatches {
		leaving = []group.Leaving{{MemberID: r.MemberID}}
	}
	for _, m := range r.Members {
		leaving = append(leaving, group.Leaving{MemberID: m.MemberID, InstanceID: text(m.InstanceID)})
	}
	results := make([]group.Error, len(leaving))
	for i := range results {
		results[i] = group.UnknownMember
	}
	c := b.groups.event(r.Group, false, 0, func(now time.Time, g *openGroup) (replies []group.Reply) {
		if g != nil {
			results, replies = g.Leave(now, leaving)
		}
		return replies
	})
	resp := kmsg.NewPtrLeaveGroupResponse()
	if r.Version < leaveBatches && c == codeNone {
		c = code(results[0])
	}
	resp.ErrorCode = b.fail("LeaveGroup", c)
	if c != codeNone {
		return resp, nil
	}
	for i, m := range r.Members {
		lm := kmsg.NewLeaveGroupResponseMember()
		lm.MemberID, lm.InstanceID, lm.ErrorCode = m.MemberID, m.InstanceID, b.fail("LeaveGroup", code(results[i]))
		resp.Members = append(resp.Members, lm)
	}
	return resp, nil
}
