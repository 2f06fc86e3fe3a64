package kafka

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/kafka/group"
)

const (
	findBatches      int16 = 4
	describeNotFound int16 = 6 // before, an unknown group is a dead one
	groupStateDead         = "Dead"
	groupStateEmpty        = "Empty"
	groupTypeClassic       = "classic"
)

// The kinds of FindCoordinator.
const (
	coordinatorGroup       int8 = 0
	coordinatorTransaction int8 = 1
)

// findCoordinator names the node of each group. A transactional id gets the one
// code that every client takes for final.
func (b *broker) findCoordinator(_ context.Context, r *kmsg.FindCoordinatorRequest) (*kmsg.FindCoordinatorResponse, error) {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	if r.Version < findBatches {
		c := b.coordinatorOf(r.CoordinatorType, r.CoordinatorKey)
		resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Host, resp.Port = c.ErrorCode, c.ErrorMessage, c.NodeID, c.Host, c.Port
		return resp, nil
	}
	for _, k := range r.CoordinatorKeys {
		resp.Coordinators = append(resp.Coordinators, b.coordinatorOf(r.CoordinatorType, k))
	}
	return resp, nil
}

func (b *broker) coordinatorOf(kind int8, key string) kmsg.FindCoordinatorResponseCoordinator {
	out := kmsg.NewFindCoordinatorResponseCoordinator()
	out.Key, out.NodeID, out.Port = key, -1, -1
	fail := func(c code, why string) kmsg.FindCoordinatorResponseCoordinator {
		out.ErrorCode, out.ErrorMessage = b.fail("FindCoordinator", c), &why
		return out
	}
	switch kind {
	case coordinatorGroup:
	case coordinatorTransaction:
		return fail(codeTransactionalID, "transactions are not supported")
	default:
		return fail(codeInvalidRequest, "only consumer groups have coordinators")
	}
	v := b.backend.View()
	id, epoch, ok := v.GroupCoordinator(key)
	if ok && id == b.backend.Self() && !b.groups.holds(epoch) {
		// It would refuse every call about the group, and its view may be old.
		return fail(codeCoordinatorNotAvailable, fmt.Sprintf("node %d coordinates the group, as far as it knows, and its lease is over: ask another node, or this one again", id))
	}
	if ok {
		n, _ := v.Node(id)
		if e, reachable := endpointOf(n); reachable {
			out.NodeID, out.Host, out.Port = int32(e.id), e.host, e.port
			return out
		}
	}
	return fail(codeCoordinatorNotAvailable, "no node of the cluster has a Kafka address at the moment, retry")
}

func (b *broker) describeGroups(_ context.Context, r *kmsg.DescribeGroupsRequest) (*kmsg.DescribeGroupsResponse, error) {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	seen := make(map[string]struct{}, len(r.Groups))
	for _, name := range r.Groups {
		if !firstTime(seen, name) {
			continue
		}
		rg := kmsg.NewDescribeGroupsResponseGroup()
		rg.Group = name
		s, c := b.groups.seatOf(name)
		if c != codeNone {
			rg.ErrorCode = b.fail("DescribeGroups", c)
			resp.Groups = append(resp.Groups, rg)
			continue
		}
		stored, known := s.view.Group(name)
		info, open := b.groups.describe(name)
		c = b.groups.still(s, c)
		switch {
		case c != codeNone:
			rg.ErrorCode = b.fail("DescribeGroups", c)
		case open:
			describeMembers(&rg, &info)
		case known:
			rg.State, rg.ProtocolType = groupStateEmpty, stored.ProtocolType
		default:
			rg.State = groupStateDead
			if r.Version >= describeNotFound {
				why := "group " + name + " does not exist"
				rg.ErrorCode, rg.ErrorMessage = b.fail("DescribeGroups", codeGroupIDNotFound), &why
			}
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return resp, nil
}

func describeMembers(rg *kmsg.DescribeGroupsResponseGroup, info *group.Info) {
	rg.State, rg.ProtocolType, rg.Protocol = info.State.String(), info.ProtocolType, info.Protocol
	for _, m := range info.Members {
		rm := kmsg.NewDescribeGroupsResponseGroupMember()
		rm.MemberID, rm.InstanceID, rm.ClientID, rm.ClientHost = m.MemberID, orNull(m.InstanceID), m.ClientID, m.ClientHost
		rm.ProtocolMetadata, rm.MemberAssignment = m.Metadata, m.Assignment
		rg.Members = append(rg.Members, rm)
	}
}

// listed is one group of ListGroups.
type listed struct{ name, protocolType, state string }

// all are the groups that this node coordinates, with members or with offsets;
// mink.ErrUnavailable without a lease.
func (gs *groups) all() ([]listed, error) {
	v := gs.backend.View()
	mine, err := gs.backend.Lease()
	if err != nil {
		return nil, err
	}
	found := map[string]listed{}
	for info := range v.Groups() {
		if _, epoch, ok := v.GroupCoordinator(info.Name); ok && epoch == mine {
			found[info.Name] = listed{info.Name, info.ProtocolType, groupStateEmpty}
		}
	}
	gs.mu.Lock()
	for name, g := range gs.mu.open {
		// One that moved away is closed by the next look around, not by this one.
		if _, epoch, ok := v.GroupCoordinator(name); ok && epoch == mine {
			found[name] = listed{name, g.ProtocolType(), g.State().String()}
		}
	}
	gs.mu.Unlock()
	return slices.SortedFunc(maps.Values(found), func(a, b listed) int { return cmp.Compare(a.name, b.name) }), nil
}

// filter admits its words in any case; an empty one everything.
type filter map[string]struct{}

func filterOf(words []string) filter {
	f := make(filter, len(words))
	for _, w := range words {
		f[strings.ToLower(w)] = struct{}{}
	}
	return f
}

func (f filter) admits(value string) bool {
	_, named := f[strings.ToLower(value)]
	return named || len(f) == 0
}

func (b *broker) listGroups(_ context.Context, r *kmsg.ListGroupsRequest) (*kmsg.ListGroupsResponse, error) {
	resp := kmsg.NewPtrListGroupsResponse()
	if !filterOf(r.TypesFilter).admits(groupTypeClassic) {
		return resp, nil
	}
	states := filterOf(r.StatesFilter)
	all, err := b.groups.all()
	if err != nil {
		resp.ErrorCode = b.fail("ListGroups", codeCoordinatorNotAvailable)
		return resp, nil //nolint:nilerr // the answer says it
	}
	for _, g := range all {
		if !states.admits(g.state) {
			continue
		}
		rg := kmsg.NewListGroupsResponseGroup()
		rg.Group, rg.ProtocolType, rg.GroupState, rg.GroupType = g.name, g.protocolType, g.state, groupTypeClassic
		resp.Groups = append(resp.Groups, rg)
	}
	return resp, nil
}

// deleteGroups deletes groups without members, each or not.
func (b *broker) deleteGroups(ctx context.Context, r *kmsg.DeleteGroupsRequest) (*kmsg.DeleteGroupsResponse, error) {
	resp := kmsg.NewPtrDeleteGroupsResponse()
	resp.Groups = make([]kmsg.DeleteGroupsResponseGroup, len(r.Groups))
	var names []string
	var of []int
	for i, name := range r.Groups {
		resp.Groups[i] = kmsg.NewDeleteGroupsResponseGroup()
		resp.Groups[i].Group = name
		stored, c := b.beginDelete(name)
		if c == codeNone {
			defer b.groups.endDelete(name)
		}
		if stored {
			names, of = append(names, name), append(of, i)
		}
		resp.Groups[i].ErrorCode = b.fail("DeleteGroups", c)
	}
	if len(names) == 0 {
		return resp, nil
	}
	tctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	errs, err := b.backend.DeleteGroups(tctx, names)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		b.log.Warn("consumer groups were not deleted", "groups", len(names), "error", err)
	}
	for k, i := range of {
		c := groupCode(err)
		if err == nil {
			c = groupCode(errs[k])
		}
		resp.Groups[i].ErrorCode = b.fail("DeleteGroups", c)
	}
	return resp, nil
}

// beginDelete decides what can be decided here; stored: the metadata knows the
// group. With codeNone, endDelete must follow.
func (b *broker) beginDelete(name string) (stored bool, c code) {
	s, c := b.groups.seatOf(name)
	if c != codeNone {
		return false, c
	}
	open, c := b.groups.beginDelete(name)
	if c != codeNone {
		return false, c
	}
	if _, stored = s.view.Group(name); !stored && !open {
		b.groups.endDelete(name)
		return false, codeGroupIDNotFound
	}
	return stored, codeNone
}

// beginDelete keeps members out of a group until endDelete, if it has none. It
// reports whether ids were given out for it.
func (gs *groups) beginDelete(name string) (open bool, c code) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.mu.open[name]
	if g != nil && g.Occupied() {
		return true, codeNonEmptyGroup
	}
	if g != nil {
		gs.forgetLocked(g) // nobody waits: it has no members
	}
	gs.mu.deleting[name]++
	return g != nil, codeNone
}

func (gs *groups) endDelete(name string) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.mu.deleting[name]--; gs.mu.deleting[name] == 0 {
		delete(gs.mu.deleting, name)
	}
}
