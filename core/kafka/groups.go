package kafka

import (
	"container/heap"
	"context"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/time/rate"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka/group"
	"github.com/mink-project/mink/sdk/mink"
)

// groups coordinates the consumer groups that the metadata gives to this node.
// Members live in memory only: whoever coordinates a group next starts with none,
// and they join again. Every event of every group happens under one lock; what
// it answers is sent after. Joins and syncs wait without the lock.
//
// run owns the timers and tells the metadata which groups have members.
type groups struct {
	cfg      Config
	backend  Backend
	log      *slog.Logger
	stopping <-chan struct{}
	machine  group.Config

	reports rate.Sometimes // bounds the log lines about refused members

	timers chan struct{} // the earliest deadline may be nearer
	marks  chan struct{} // marked is not empty
	turns  [commitStripes]chan struct{}
	seed   maphash.Seed // of turns

	nodes struct {
		sync.Mutex
		epochs  []mink.NodeEpoch // that may coordinate, by node
		asOf    uint64           // index
		changed time.Time
	}

	mu struct {
		sync.Mutex
		open     map[string]*openGroup
		deadline deadlines
		bytes    int
		last     group.Token
		waiting  map[group.Token]chan group.Reply
		marked   map[string]struct{} // the metadata may be wrong about their members
		deleting map[string]int      // by how many requests
	}
}

// openGroup is a group with members, or with ids that were given out.
type openGroup struct {
	*group.Group
	name string
	// epoch coordinates it, since the view of index loaded at the latest.
	epoch  mink.NodeEpoch
	loaded uint64

	bytes int       // counted in groups.mu.bytes
	due   time.Time // its place in groups.mu.deadline
	at    int       // -1: has none
}

// commitStripes is how many commits may be between their check and their place in
// the order. They wait there only while the node has no room for commits.
const commitStripes = 64

// groupAdopts is how long after another coordinator was lost its members may come
// with their ids: they notice by their next heartbeat, and have to find this node.
const groupAdopts = time.Minute

// groupSettleWait bounds how long a fetch of offsets waits for commits that were checked
// before it; what the member sends on the same connection waits behind.
const groupSettleWait = 5 * time.Second

// groupNewMemberTimeout is Kafka's, fixed there too.
const groupNewMemberTimeout = 5 * time.Minute

func newGroups(cfg Config, backend Backend, log *slog.Logger, stopping <-chan struct{}) *groups {
	gs := &groups{
		cfg: cfg, backend: backend, log: log, stopping: stopping,
		machine: group.Config{
			InitialDelay: cfg.GroupInitialDelay, SessionMin: cfg.GroupSessionMin, SessionMax: cfg.GroupSessionMax,
			NewMemberTimeout: groupNewMemberTimeout, MembersMax: cfg.GroupMembersMax,
			NewMemberID: newMemberID, SameInterest: sameTopics,
		},
		timers: make(chan struct{}, 1), marks: make(chan struct{}, 1), reports: rate.Sometimes{First: 10, Interval: time.Second},
	}
	gs.seed = maphash.MakeSeed()
	for i := range gs.turns {
		gs.turns[i] = make(chan struct{}, 1)
	}
	gs.mu.open = map[string]*openGroup{}
	gs.mu.waiting = map[group.Token]chan group.Reply{}
	gs.mu.marked = map[string]struct{}{}
	gs.mu.deleting = map[string]int{}
	return gs
}

// newMemberID begins with what a person knows the client by, cut to a sane length.
func newMemberID(prefix string) string {
	const most = 200
	if len(prefix) > most {
		n := most
		for n > 0 && !utf8.RuneStart(prefix[n]) {
			n--
		}
		prefix = prefix[:n]
	}
	return prefix + "-" + uuid.NewString()
}

// sameTopics compares the subscriptions of consumers without what they own, which
// a restart forgets; of other protocol types it knows nothing.
func sameTopics(protocolType string, before, now []byte) bool {
	a, ok := subscription(protocolType, before)
	b, alsoOK := subscription(protocolType, now)
	if !ok || !alsoOK || len(a) != len(b) {
		return false
	}
	for t := range a {
		if _, found := b[t]; !found {
			return false
		}
	}
	return true
}

const consumerProtocol = "consumer"

// subscription is the topics of a consumer's metadata; false when it cannot be read.
func subscription(protocolType string, metadata []byte) (map[string]struct{}, bool) {
	var m kmsg.ConsumerMemberMetadata
	if protocolType != consumerProtocol || m.ReadFrom(metadata) != nil {
		return nil, false
	}
	topics := make(map[string]struct{}, len(m.Topics))
	for _, t := range m.Topics {
		topics[t] = struct{}{}
	}
	return topics, true
}

// seat is a node epoch's right to coordinate a group, as of a view.
type seat struct {
	view  *cluster.State
	epoch mink.NodeEpoch
}

// seatOf answers codeNone when this node coordinates the group.
func (gs *groups) seatOf(name string) (seat, code) {
	if cluster.CheckGroupName(name) != nil {
		return seat{}, codeInvalidGroupID
	}
	v := gs.backend.View()
	_, epoch, ok := v.GroupCoordinator(name)
	if !ok || !gs.holds(epoch) {
		// Nobody's, while no node is registered: "not available" would be truer, but
		// Java's consumers fail for good when a fetch of offsets is answered so.
		return seat{}, codeNotCoordinator
	}
	return seat{v, epoch}, codeNone
}

// succeeds reports that the group may have lost its members with its coordinator a
// moment ago: nodes came or went, or the metadata took them from it and have heard
// of none here.
func (gs *groups) succeeds(s seat, name string) bool {
	if gs.nodesChanged(s.view) {
		return true
	}
	info, ok := s.view.Group(name)
	return ok && info.MovedIndex > 0 && !info.Occupied && s.view.TimeMs() < info.EmptiedMs+groupAdopts.Milliseconds()
}

// nodesChanged reports that the nodes that may coordinate are others than a moment
// ago. A listener that begins among others takes it that they were.
func (gs *groups) nodesChanged(v *cluster.State) bool {
	var now []mink.NodeEpoch
	for _, n := range v.LiveNodes() {
		if n.KafkaAddress != "" {
			now = append(now, n.Epoch)
		}
	}
	gs.nodes.Lock()
	defer gs.nodes.Unlock()
	if v.Index() >= gs.nodes.asOf && !slices.Equal(now, gs.nodes.epochs) {
		if gs.nodes.epochs != nil || len(now) > 1 {
			gs.nodes.changed = time.Now()
		}
		gs.nodes.epochs, gs.nodes.asOf = now, v.Index()
	}
	return !gs.nodes.changed.IsZero() && time.Since(gs.nodes.changed) < groupAdopts
}

// holds reports that the epoch is this process's own and its lease live: not that
// of a process that took this one's id, nor one that others may have replaced.
func (gs *groups) holds(epoch mink.NodeEpoch) bool {
	mine, err := gs.backend.Lease()
	return err == nil && mine == epoch
}

// unknown is what a member is told whose group is not open here.
func (gs *groups) unknown(s seat, name, member string) group.Error {
	if member != "" && len(member) <= group.MaxAdoptedID && gs.succeeds(s, name) {
		return group.RebalanceInProgress
	}
	return group.UnknownMember
}

// stranger is unknown, or why this node has nothing to say about the group.
func (gs *groups) stranger(name, member string) code {
	s, c := gs.seatOf(name)
	if c != codeNone {
		return c
	}
	return code(gs.unknown(s, name, member))
}

// still is c for an answer that is made, unless the right to give it went meanwhile:
// while a member waited, or the process stood still.
func (gs *groups) still(s seat, c code) code {
	if c == codeNone && !gs.holds(s.epoch) {
		return codeNotCoordinator
	}
	return c
}

// event runs f on the group, with the time, and sends what it answers. g is nil
// when the group is not open and mayOpen is false. size is about what f makes the
// group keep.
func (gs *groups) event(name string, mayOpen bool, size int, f func(now time.Time, g *openGroup) []group.Reply) code {
	s, c := gs.seatOf(name)
	if c != codeNone {
		return c
	}
	var out delivery
	putOff := gs.underLock(name, s, mayOpen, size, &out, f)
	out.send()
	if putOff != "" {
		gs.reports.Do(func() {
			gs.log.Warn("a member of a consumer group is put off, its client tries again", "group", name, "why", putOff)
		})
		return codeCoordinatorLoading
	}
	return gs.still(s, codeNone)
}

// underLock takes the lock itself. It answers why nothing was done.
func (gs *groups) underLock(name string, s seat, mayOpen bool, size int, out *delivery, f func(now time.Time, g *openGroup) []group.Reply) (putOff string) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if mayOpen && gs.mu.deleting[name] > 0 {
		return "the group is being deleted"
	}
	g := gs.seatedLocked(name, s, out)
	if size > 0 && gs.mu.bytes+size > gs.cfg.GroupBytesMax {
		return "the members of all groups brought as much metadata as may be kept"
	}
	if g == nil && mayOpen {
		if len(gs.mu.open) >= gs.cfg.GroupsMax {
			return "as many groups as may be have members"
		}
		g = &openGroup{Group: group.New(&gs.machine), name: name, epoch: s.epoch, loaded: s.view.Index(), at: -1}
		if gs.succeeds(s, name) {
			// The metadata's index grows faster than generations, whoever counts them.
			g.Group = group.NewAfter(&gs.machine, int32(g.loaded%(1<<30)), time.Now().Add(groupAdopts))
		}
		gs.mu.open[name] = g
	}
	occupied := g != nil && g.Occupied()
	gs.collectLocked(f(time.Now(), g), out)
	if g != nil {
		gs.settleLocked(g, occupied)
	}
	return ""
}

// seatedLocked is the open group, nil when there is none. One that was opened
// under another seat is closed: the group may have lived elsewhere in between.
func (gs *groups) seatedLocked(name string, s seat, out *delivery) *openGroup {
	g := gs.mu.open[name]
	if g == nil {
		return nil
	}
	info, _ := s.view.Group(name)
	if g.epoch == s.epoch && info.MovedIndex <= g.loaded {
		return g
	}
	if s.view.Index() < g.loaded {
		return g // this caller's view is the older one
	}
	gs.closeLocked(g, out)
	return nil
}

// settleLocked follows an event: the sums, the deadline, and whether the metadata
// must hear of it.
func (gs *groups) settleLocked(g *openGroup, wasOccupied bool) {
	gs.mu.bytes += g.Bytes() - g.bytes
	g.bytes = g.Bytes()
	if g.Occupied() != wasOccupied {
		gs.markLocked(g.name)
	}
	if g.Idle() {
		gs.forgetLocked(g)
		return
	}
	due, ok := g.Deadline()
	switch {
	case !ok && g.at >= 0:
		heap.Remove(&gs.mu.deadline, g.at)
	case !ok:
	case g.at < 0:
		g.due = due
		heap.Push(&gs.mu.deadline, g)
	case !g.due.Equal(due):
		g.due = due
		heap.Fix(&gs.mu.deadline, g.at)
	}
	if g.at == 0 {
		signal(gs.timers)
	}
}

func (gs *groups) forgetLocked(g *openGroup) {
	if g.at >= 0 {
		heap.Remove(&gs.mu.deadline, g.at)
	}
	gs.mu.bytes -= g.bytes
	delete(gs.mu.open, g.name)
}

// closeLocked turns a group's members away: another node has it.
func (gs *groups) closeLocked(g *openGroup, out *delivery) {
	gs.collectLocked(g.Close(group.NotCoordinator), out)
	gs.forgetLocked(g)
}

// delivery is answers on their way; each channel has room for its one.
type delivery struct {
	to      []chan group.Reply
	replies []group.Reply
}

func (gs *groups) collectLocked(replies []group.Reply, out *delivery) {
	for _, r := range replies {
		if ch, ok := gs.mu.waiting[r.Token]; ok {
			delete(gs.mu.waiting, r.Token)
			out.to, out.replies = append(out.to, ch), append(out.replies, r)
		}
	}
}

func (d *delivery) send() {
	for i, ch := range d.to {
		ch <- d.replies[i]
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ask runs an event that answers a token, and waits for the answer. A listener
// that stops, a client that goes, or a node whose lease has ended, does not wait
// longer: its members may have joined again elsewhere, and who waits here would not
// hear of it.
func (gs *groups) ask(ctx context.Context, name, member string, mayOpen bool, size int, f func(now time.Time, g *openGroup, t group.Token) []group.Reply) (group.Reply, code, error) {
	answer := make(chan group.Reply, 1)
	var token group.Token
	c := gs.event(name, mayOpen, size, func(now time.Time, g *openGroup) []group.Reply {
		if g == nil {
			return nil
		}
		gs.mu.last++
		token = gs.mu.last
		gs.mu.waiting[token] = answer
		return f(now, g, token)
	})
	if c == codeNone && token == 0 {
		c = gs.stranger(name, member)
	}
	if c != codeNone {
		return group.Reply{}, c, nil
	}
	select {
	case r := <-answer:
		return r, codeNone, nil
	default:
	}
	around := time.NewTicker(groupLookAround)
	defer around.Stop()
	for {
		select {
		case r := <-answer:
			if _, c := gs.seatOf(name); c != codeNone {
				return group.Reply{}, c, nil
			}
			return r, codeNone, nil
		case <-around.C:
			if _, err := gs.backend.Lease(); err == nil {
				continue
			}
			gs.abandon(name, token)
			return group.Reply{}, codeNotCoordinator, nil
		case <-gs.stopping:
			gs.abandon(name, token)
			return group.Reply{}, codeNotCoordinator, nil
		case <-ctx.Done():
			gs.abandon(name, token)
			return group.Reply{}, codeNone, ctx.Err()
		}
	}
}

// commitTurn waits until no other commit of the group is on its way from its check
// to its place in the order: else one of a member that is thrown out in between
// could come after those of its successor, and take the offsets back. done must
// follow.
func (gs *groups) commitTurn(ctx context.Context, name string) (done func(), err error) {
	turn := gs.turns[maphash.String(gs.seed, name)%commitStripes]
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// abandon forgets a waiting request, unless it was answered.
func (gs *groups) abandon(name string, t group.Token) {
	var out delivery
	defer out.send()
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.mu.open[name]
	if _, waits := gs.mu.waiting[t]; !waits || g == nil {
		return
	}
	delete(gs.mu.waiting, t)
	occupied := g.Occupied()
	gs.collectLocked(g.Abandon(time.Now(), t), &out)
	gs.settleLocked(g, occupied)
}

// deadlines is a heap of the open groups that have one.
type deadlines []*openGroup

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].at, d[j].at = i, j
}

func (d *deadlines) Push(x any) {
	g := x.(*openGroup)
	g.at = len(*d)
	*d = append(*d, g)
}

func (d *deadlines) Pop() any {
	old := *d
	g := old[len(old)-1]
	g.at = -1
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return g
}
