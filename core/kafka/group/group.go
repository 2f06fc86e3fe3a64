package group

import (
	"bytes"
	"iter"
	"slices"
	"time"
)

// Group is one group. Not safe for concurrent use.
type Group struct {
	cfg *Config

	state        State
	generation   int32
	protocolType string
	protocol     string
	leader       string // a member's id; "" without members

	members []*member            // in the order they came
	byID    map[string]*member   // of members
	statics map[string]*member   // by instance id
	speak   map[string]int       // members per protocol name
	pending map[string]time.Time // ids given out and not used yet, with their end
	bytes   int

	// timer ends the phase: the join phase of Preparing; in Completing and Stable
	// the time for every member to sync. Zero: not running.
	timer time.Time
	// first: this is the first rebalance after Empty, which waits its time out.
	// newcomers came during the current delay; left is what it may yet be extended.
	first, newcomers bool
	left             time.Duration

	// adopts: until then members of an earlier coordinator may come with their ids.
	adopts time.Time

	deadline time.Time // no timer ends before; zero: none runs
	out      []Reply
}

type member struct {
	id, instance       string
	clientID, host     string
	protocols          []Protocol
	session, rebalance time.Duration
	assignment         []byte

	join, sync Token // the requests of it that wait
	// fresh: no join of it was answered yet, so it cannot heartbeat. anonymous:
	// its client was never told the id and has no other name.
	fresh, anonymous bool
	synced           bool      // in this generation
	expires          time.Time // while no request waits, or while fresh
}

// New is an empty group. cfg is shared and not changed.
func New(cfg *Config) *Group {
	return &Group{
		cfg: cfg, byID: map[string]*member{}, statics: map[string]*member{},
		speak: map[string]int{}, pending: map[string]time.Time{},
	}
}

// NewAfter is an empty group that another coordinator had before, whose memory of
// its members is gone. Until the given time, whoever comes with an id that is not
// known here is taken for one of them and asked to join again under it, as in any
// rebalance: a client that hears "unknown member" gives up what it holds, and tells
// its application so. Generations go on above the given one, which none of before
// may exceed.
func NewAfter(cfg *Config, generation int32, until time.Time) *Group {
	g := New(cfg)
	g.generation, g.adopts = generation, until
	return g
}

// State is the group's.
func (g *Group) State() State { return g.state }

// Generation is the last completed one; 0 before the first.
func (g *Group) Generation() int32 { return g.generation }

// ProtocolType is the members', or that of the last ones.
func (g *Group) ProtocolType() string { return g.protocolType }

// Occupied reports members: offsets of such a group do not expire.
func (g *Group) Occupied() bool { return g.state != Empty }

// Idle reports that nothing would be lost by forgetting the group: neither
// members nor pending ids.
func (g *Group) Idle() bool { return g.state == Empty && len(g.pending) == 0 }

// Bytes is about what the group takes for its members and pending ids.
func (g *Group) Bytes() int { return g.bytes }

// Deadline is when Tick must be called at the latest; false: not before another
// event.
func (g *Group) Deadline() (time.Time, bool) { return g.deadline, !g.deadline.IsZero() }

// Describe copies what there is to know; byte slices are shared and not to be
// changed.
func (g *Group) Describe() Info {
	i := Info{State: g.state, Generation: g.generation, ProtocolType: g.protocolType, Leader: g.leader}
	if g.state == Stable {
		i.Protocol = g.protocol
	}
	for _, m := range g.members {
		mi := MemberInfo{MemberID: m.id, InstanceID: m.instance, ClientID: m.clientID, ClientHost: m.host}
		if g.state == Stable {
			mi.Metadata, mi.Assignment = m.metadata(g.protocol), m.assignment
		}
		i.Members = append(i.Members, mi)
	}
	return i
}

// AllMetadata is what the members said about every protocol they speak.
func (g *Group) AllMetadata() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, m := range g.members {
			for _, p := range m.protocols {
				if !yield(p.Metadata) {
					return
				}
			}
		}
	}
}

// Close answers everything that waits with err and forgets every member. The
// group is empty and may be dropped.
func (g *Group) Close(err Error) []Reply {
	for _, m := range g.members {
		g.answerBoth(m, err)
	}
	*g = Group{cfg: g.cfg, out: g.out, generation: g.generation, protocolType: g.protocolType,
		byID: map[string]*member{}, statics: map[string]*member{}, speak: map[string]int{}, pending: map[string]time.Time{}}
	return g.take()
}

func (g *Group) take() []Reply {
	out := g.out
	g.out = nil
	return out
}

// findAt is find for a member that may have been one of an earlier coordinator.
func (g *Group) findAt(now time.Time, id, instance string) (*member, Error) {
	m, err := g.find(id, instance)
	if err == UnknownMember && g.adoptable(now, id) {
		err = RebalanceInProgress
	}
	return m, err
}

// adoptable reports that an unknown id may be that of a member of before.
func (g *Group) adoptable(now time.Time, id string) bool {
	return now.Before(g.adopts) && id != "" && len(id) <= MaxAdoptedID
}

// find is the member with the id, unless another one has its instance id.
func (g *Group) find(id, instance string) (*member, Error) {
	if instance != "" {
		switch m := g.statics[instance]; {
		case m == nil:
			return nil, UnknownMember
		case m.id != id:
			return nil, FencedInstance
		}
	}
	if m := g.byID[id]; m != nil {
		return m, None
	}
	return nil, UnknownMember
}

// insert adds a member; the first one leads and brings the protocol type.
func (g *Group) insert(m *member, protocolType string) {
	if len(g.members) == 0 {
		g.protocolType, g.leader = protocolType, m.id
	}
	g.members = append(g.members, m)
	g.byID[m.id] = m
	if m.instance != "" {
		g.statics[m.instance] = m
	}
	g.count(m, 1)
}

// count adds a member to the group's sums, or takes it out.
func (g *Group) count(m *member, n int) {
	for _, p := range m.protocols {
		if g.speak[p.Name] += n; g.speak[p.Name] == 0 {
			delete(g.speak, p.Name)
		}
	}
	g.bytes += n * m.size()
}

// What each of them takes beside the bytes that its client sent: a name may be
// empty, and a million of them are not.
const (
	memberBytes   = 512
	protocolBytes = 128
	pendingBytes  = 128
)

func (m *member) size() int {
	return memberBytes + len(m.id) + len(m.instance) + len(m.clientID) + len(m.host) + len(m.assignment) + protocolsSize(m.protocols)
}

func protocolsSize(ps []Protocol) int {
	n := protocolBytes * len(ps)
	for _, p := range ps {
		n += len(p.Name) + len(p.Metadata)
	}
	return n
}

func pendingSize(id string) int { return pendingBytes + len(id) }

// remove takes a member out, whatever waits of it is answered. The caller goes on
// with membersLeft.
func (g *Group) remove(m *member, err Error) {
	g.answerBoth(m, err)
	g.count(m, -1)
	delete(g.byID, m.id)
	if g.statics[m.instance] == m {
		delete(g.statics, m.instance)
	}
	i := slices.Index(g.members, m)
	g.members = slices.Delete(g.members, i, i+1)
	if g.leader == m.id {
		g.leader = ""
		if len(g.members) > 0 {
			g.leader = g.members[0].id
		}
	}
}

// removeIf removes members in one pass and reports whether there were any.
func (g *Group) removeIf(gone func(*member) bool) bool {
	kept := g.members[:0:0]
	var lost []*member
	for _, m := range g.members {
		if gone(m) {
			lost = append(lost, m)
		} else {
			kept = append(kept, m)
		}
	}
	if len(lost) == 0 {
		return false
	}
	for _, m := range lost {
		g.answerBoth(m, UnknownMember)
		g.count(m, -1)
		delete(g.byID, m.id)
		if g.statics[m.instance] == m {
			delete(g.statics, m.instance)
		}
	}
	g.members = kept
	if g.byID[g.leader] == nil {
		g.leader = ""
		if len(kept) > 0 {
			g.leader = kept[0].id
		}
	}
	return true
}

func (g *Group) dropPending(id string) {
	if _, ok := g.pending[id]; ok {
		delete(g.pending, id)
		g.bytes -= pendingSize(id)
	}
}

// touch starts a member's session anew.
func (g *Group) touch(m *member, now time.Time) { g.expireAt(m, now.Add(m.session)) }

func (g *Group) expireAt(m *member, t time.Time) {
	m.expires = t
	g.arm(t)
}

func (g *Group) setTimer(t time.Time) {
	g.timer = t
	g.arm(t)
}

func (g *Group) arm(t time.Time) {
	if g.deadline.IsZero() || t.Before(g.deadline) {
		g.deadline = t
	}
}

// mayExpire: members that wait for the group need not heartbeat, except fresh
// ones, which nothing else would end.
func (m *member) mayExpire() bool { return m.fresh || m.join == 0 && m.sync == 0 }

func (m *member) metadata(protocol string) []byte {
	for _, p := range m.protocols {
		if p.Name == protocol {
			return p.Metadata
		}
	}
	return nil
}

// matches reports the same protocols, in the same order, with the same bytes.
func (m *member) matches(ps []Protocol) bool {
	return slices.EqualFunc(m.protocols, ps, func(a, b Protocol) bool {
		return a.Name == b.Name && bytes.Equal(a.Metadata, b.Metadata)
	})
}

func (g *Group) rebalanceTimeout() time.Duration {
	var longest time.Duration
	for _, m := range g.members {
		longest = max(longest, m.rebalance)
	}
	return longest
}

func (g *Group) allJoined() bool {
	return len(g.pending) == 0 && !slices.ContainsFunc(g.members, func(m *member) bool { return m.join == 0 })
}

func (g *Group) answerJoin(t Token, r JoinResult) {
	g.out = append(g.out, Reply{Token: t, Join: &r})
}

func (g *Group) refuseJoin(t Token, memberID string, err Error) {
	g.answerJoin(t, JoinResult{Err: err, Generation: -1, MemberID: memberID})
}

func (g *Group) answerSync(t Token, err Error, m *member) {
	r := &SyncResult{Err: err}
	if err == None {
		r.ProtocolType, r.Protocol, r.Assignment = g.protocolType, g.protocol, m.assignment
	}
	g.out = append(g.out, Reply{Token: t, Sync: r})
}

// answerBoth ends whatever waits of a member.
func (g *Group) answerBoth(m *member, err Error) {
	if m.join != 0 {
		g.refuseJoin(m.join, m.id, err)
		m.join = 0
	}
	if m.sync != 0 {
		g.answerSync(m.sync, err, m)
		m.sync = 0
	}
}
