package group

import (
	"bytes"
	"time"
)

// Join answers at once or makes t wait for the rebalance.
func (g *Group) Join(now time.Time, t Token, r *JoinRequest) []Reply {
	_, pending := g.pending[r.MemberID]
	switch err := g.admit(now, r); {
	case err == MaxSizeReached:
		g.refuseJoin(t, "", err)
	case err != None:
		g.refuseJoin(t, r.MemberID, err)
	case r.MemberID == "" && r.InstanceID != "":
		g.joinStatic(now, t, r)
	case r.MemberID == "" && r.RequireID:
		g.giveID(now, t, r)
	case r.MemberID == "":
		g.add(now, t, g.newID(r), r)
	case pending && r.InstanceID == "":
		g.add(now, t, r.MemberID, r)
	default:
		g.rejoin(now, t, r)
	}
	return g.take()
}

func (g *Group) admit(now time.Time, r *JoinRequest) Error {
	if r.Session < g.cfg.SessionMin || r.Session > g.cfg.SessionMax {
		return InvalidSessionTimeout
	}
	if !g.hasRoom(r.MemberID) {
		if m := g.byID[r.MemberID]; m != nil {
			g.remove(m, MaxSizeReached)
			g.membersLeft(now)
		}
		g.dropPending(r.MemberID)
		g.pendingLeft(now)
		return MaxSizeReached
	}
	if !g.supports(r) {
		return InconsistentProtocol
	}
	return None
}

// hasRoom counts, during the join phase, the members that came again: those that
// come last are turned away.
func (g *Group) hasRoom(id string) bool {
	m := g.byID[id]
	switch g.state {
	case Empty:
		return id != "" || len(g.pending) < g.cfg.MembersMax
	case Preparing:
		waiting := 0
		for _, m := range g.members {
			if m.join != 0 {
				waiting++
			}
		}
		return m != nil && m.join != 0 || waiting < g.cfg.MembersMax && (id != "" || len(g.pending) < g.cfg.MembersMax)
	default:
		return m != nil || len(g.members) < g.cfg.MembersMax && (id != "" || len(g.pending) < g.cfg.MembersMax)
	}
}

// supports reports a protocol in common with every member, and well-formed ones.
func (g *Group) supports(r *JoinRequest) bool {
	if r.ProtocolType == "" || g.state != Empty && r.ProtocolType != g.protocolType {
		return false
	}
	names := make(map[string]bool, len(r.Protocols))
	common := false
	for _, p := range r.Protocols {
		if names[p.Name] {
			return false
		}
		names[p.Name] = true
		common = common || g.speak[p.Name] == len(g.members)
	}
	return common
}

func (g *Group) newID(r *JoinRequest) string {
	if r.InstanceID != "" {
		return g.cfg.NewMemberID(r.InstanceID)
	}
	return g.cfg.NewMemberID(r.ClientID)
}

// giveID makes the client come again: the id is held for it, so that a client
// that gave up waiting does not leave a member behind.
func (g *Group) giveID(now time.Time, t Token, r *JoinRequest) {
	id := g.newID(r)
	end := now.Add(r.Session)
	g.pending[id] = end
	g.bytes += pendingSize(id)
	g.arm(end)
	g.refuseJoin(t, id, MemberIDRequired)
}

func (g *Group) add(now time.Time, t Token, id string, r *JoinRequest) {
	m := &member{id: id, instance: r.InstanceID, fresh: true, anonymous: r.MemberID == "" && r.InstanceID == ""}
	m.take(r)
	m.join = t
	if g.state == Preparing && g.first {
		g.newcomers = true
	}
	g.dropPending(id)
	g.insert(m, r.ProtocolType)
	g.expireAt(m, now.Add(g.cfg.NewMemberTimeout))
	g.rebalance(now)
}

// take copies what a join says about its member.
func (m *member) take(r *JoinRequest) {
	m.clientID, m.host, m.protocols = r.ClientID, r.ClientHost, r.Protocols
	m.session, m.rebalance = r.Session, max(r.Rebalance, 0)
}

// update makes a known member wait with what it says now. A request of it that
// waited already lost its client.
func (g *Group) update(now time.Time, m *member, t Token, r *JoinRequest) {
	if m.join != 0 {
		g.refuseJoin(m.join, m.id, RebalanceInProgress)
	}
	if m.fresh {
		g.expireAt(m, now.Add(g.cfg.NewMemberTimeout))
	}
	g.count(m, -1)
	m.take(r)
	g.count(m, 1)
	m.join = t
}

// rejoin is the join of a member that knows its id.
func (g *Group) rejoin(now time.Time, t Token, r *JoinRequest) {
	m, err := g.find(r.MemberID, r.InstanceID)
	if err == UnknownMember && g.adoptable(now, r.MemberID) {
		g.add(now, t, r.MemberID, r)
		return
	}
	if err != None {
		g.refuseJoin(t, r.MemberID, err)
		return
	}
	unchanged := m.matches(r.Protocols)
	switch {
	case g.state == Completing && unchanged:
		// It may have missed the answer.
		g.answerCurrent(now, t, m)
	case g.state == Stable && unchanged && m.id != g.leader:
		g.answerCurrent(now, t, m)
	default:
		// A leader that joins again may know of something that its metadata does not
		// show, such as new partitions.
		g.update(now, m, t, r)
		g.rebalance(now)
	}
}

// answerCurrent puts a member back into the generation that it is in.
func (g *Group) answerCurrent(now time.Time, t Token, m *member) {
	g.touch(m, now)
	g.answerJoin(t, g.joined(m))
}

// joined is a member's place in the current generation.
func (g *Group) joined(m *member) JoinResult {
	r := JoinResult{Generation: g.generation, ProtocolType: g.protocolType, Protocol: g.protocol, Leader: g.leader, MemberID: m.id}
	if m.id == g.leader {
		r.Members = g.roster()
	}
	return r
}

func (g *Group) roster() []JoinMember {
	all := make([]JoinMember, len(g.members))
	for i, m := range g.members {
		all[i] = JoinMember{MemberID: m.id, InstanceID: m.instance, Metadata: m.metadata(g.protocol)}
	}
	return all
}

// joinStatic is a static member's first join, or its first after a restart: then
// it takes the place of its earlier self, which is fenced.
func (g *Group) joinStatic(now time.Time, t Token, r *JoinRequest) {
	m := g.statics[r.InstanceID]
	if m == nil {
		g.add(now, t, g.newID(r), r)
		return
	}
	g.answerBoth(m, FencedInstance)
	same := g.sameInterest(m, r)
	before, led := m.id, m.id == g.leader
	g.count(m, -1)
	delete(g.byID, before)
	m.id = g.newID(r)
	g.byID[m.id] = m
	m.take(r)
	m.fresh = false
	g.count(m, 1)
	if led {
		g.leader = m.id
	}
	g.touch(m, now)
	if g.state != Stable || !same || g.vote() != g.protocol {
		// In Completing the leader may know the old id only.
		m.join = t
		g.rebalance(now)
		return
	}
	res := g.joined(m)
	if led && r.CanSkip {
		res.SkipAssignment = true
	} else if led {
		// It must not assign: the others would not hear of it. So it is told that
		// its earlier self leads.
		res.Leader, res.Members = before, nil
	}
	g.answerJoin(t, res)
}

func (g *Group) sameInterest(m *member, r *JoinRequest) bool {
	before := m.metadata(g.protocol)
	for _, p := range r.Protocols {
		if p.Name != g.protocol {
			continue
		}
		return bytes.Equal(before, p.Metadata) ||
			g.cfg.SameInterest != nil && g.cfg.SameInterest(g.protocolType, before, p.Metadata)
	}
	return false
}
