package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// The model of ../../models/moves done again against the state machine itself:
// nodes write two or three streams into shared WAL slots, upload, compact, trim,
// move streams among each other, die, are recovered and restart, while answers
// get lost and old proposals land late. After each step every range that the
// state names must be in the store, and every acknowledged record must be in a
// named object or in a slot that recovery will read. Failure list, item 19.

// rule is what the store's cleaner believes.
type rule int

const (
	good                  rule = iota // plan.SlotDeletable, and what the state says is destroyed
	destroyDeletes                    // a slot goes when its last name goes
	trimDeletesReferenced             // a slot below the trim goes, named or not
)

type piece struct {
	stream     mink.StreamID
	leader     mink.LeaderEpoch
	start, end mink.Offset
}

type moves struct {
	r     *rand.Rand
	rule  rule
	s     *State
	older *State // what a slow cleaner sees
	store map[plan.ObjectID][]piece
	once  map[plan.ObjectID]bool // slots that were named at some time
	tombs map[mink.NodeEpoch]bool
	acked map[mink.StreamID]mink.Offset
	nodes []*moveNode
	past  []*clusterpb.Batch
	lease int64

	broken error // the first wrong rewrite

	moved, recovered, lost, deleted, rewritten int
}

type moveNode struct {
	id       mink.NodeID
	wal      plan.WALID
	counter  uint64
	uploads  uint64
	slot     uint64 // next
	open     map[mink.StreamID]*openStream
	pending  *clusterpb.Batch // sent, answer unknown: nothing else goes out before it is resolved
	onAnswer func(*clusterpb.Result)
	fenced   bool
}

type openStream struct {
	leader    mink.LeaderEpoch
	end       mink.Offset
	releasing bool
}

func newMoves(seed uint64, rl rule, f faults) *moves {
	m := &moves{
		r: rand.New(rand.NewPCG(seed, 19)), rule: rl, s: NewState(), store: map[plan.ObjectID][]piece{}, once: map[plan.ObjectID]bool{},
		tombs: map[mink.NodeEpoch]bool{}, acked: map[mink.StreamID]mink.Offset{},
	}
	m.s.faults = f
	m.older = m.s
	for id := mink.NodeID(1); id <= 3; id++ {
		m.nodes = append(m.nodes, &moveNode{id: id})
		m.register(m.nodes[id-1])
	}
	m.takeLease(m.nodes[0])
	n := m.nodes[0]
	m.send(n, createDatabaseCmd("d"), nil)
	m.send(n, createTableCmd(descriptor("d", "t", int32(2+m.r.IntN(2)), false, false), 1), nil)
	m.openAll()
	return m
}

func (m *moves) apply(b *clusterpb.Batch) []*clusterpb.Result {
	next, results, err := m.s.Apply(m.s.index+1, m.s.timeMs+1, b)
	if err != nil {
		panic(err)
	}
	if k := b.Commands[0].GetRewriteStream(); k != nil && results[0].Code == clusterpb.Code_OK && m.s.streams != next.streams {
		m.rewritten++
		if err := checkRewrite(m.s, mink.NodeEpoch(b.Epoch), k); err != nil && !m.s.faults.noSources { // the frames themselves must show that
			m.broken = err
		}
	}
	if m.r.IntN(3) == 0 {
		m.older = m.s
	}
	m.s = next
	for o := range next.Objects() {
		m.once[o.ID] = true
	}
	return results
}

func (m *moves) register(n *moveNode) {
	*n = moveNode{id: n.id, open: map[mink.StreamID]*openStream{}}
	nonce := m.r.Uint64() | 1
	r := m.apply(&clusterpb.Batch{Commands: []*clusterpb.Command{registerCmd(n.id, nonce)}})
	n.wal = plan.WALID{Node: n.id, Epoch: mink.NodeEpoch(r[0].Id), Nonce: nonce}
}

func (m *moves) takeLease(n *moveNode) {
	m.lease++
	m.apply(&clusterpb.Batch{Commands: []*clusterpb.Command{leaseCmd(n.id, n.wal.Epoch, m.lease)}})
}

// send proposes; the answer may get lost on the way there or back.
func (m *moves) send(n *moveNode, c *clusterpb.Command, onAnswer func(*clusterpb.Result)) {
	n.counter++
	b := &clusterpb.Batch{Epoch: int64(n.wal.Epoch), Counter: n.counter, Commands: []*clusterpb.Command{c}}
	n.pending, n.onAnswer = b, onAnswer
	m.past = append(m.past, b)
	switch m.r.IntN(8) {
	case 0: // lost before the commit
		m.lost++
	case 1: // lost after the commit
		m.lost++
		m.apply(b)
	default:
		m.resolve(n)
	}
}

func (m *moves) resolve(n *moveNode) {
	b, onAnswer := n.pending, n.onAnswer
	n.pending, n.onAnswer = nil, nil
	r := m.apply(b)[0]
	if r.Code == clusterpb.Code_FENCED {
		n.fenced = true
		return
	}
	if onAnswer != nil {
		onAnswer(r)
	}
}

// openAll: each node looks at the state and opens what it leads now.
func (m *moves) openAll() {
	for _, n := range m.nodes {
		if n.fenced {
			continue
		}
		for st := range m.s.StreamsLedBy(n.wal.Epoch) {
			if o := n.open[st.ID]; o == nil || o.leader != st.Owner.LeaderEpoch {
				n.open[st.ID] = &openStream{leader: st.Owner.LeaderEpoch, end: st.End}
			}
		}
	}
}

func (m *moves) step() {
	n := m.nodes[m.r.IntN(len(m.nodes))]
	x := m.r.IntN(100)
	switch {
	case x < 30:
		m.write(n)
	case x < 33 && len(m.past) > 0: // an old proposal lands late
		m.apply(m.past[m.r.IntN(len(m.past))])
	case n.pending != nil || n.fenced:
		if n.pending != nil && !n.fenced {
			m.resolve(n)
		} else if m.r.IntN(3) == 0 {
			m.register(n)
		}
	case x < 45:
		m.upload(n)
	case x < 57:
		m.releaseOne(n)
	case x < 67:
		m.compact(n)
	case x < 71:
		m.trimOne(n)
	case x < 75:
		m.rewriteOne(n)
	case x < 83:
		m.clean(n)
	case x < 85:
		m.register(n) // a fast restart
	default:
		m.coordinate(n)
	}
	m.openAll()
}

// write puts one slot. A sealed node does so too until recovery closes its log.
func (m *moves) write(n *moveNode) {
	if m.tombs[n.wal.Epoch] {
		n.fenced = true
	}
	if n.fenced {
		return
	}
	var content []piece
	for _, st := range slices.Collect(m.s.Streams()) {
		if o := n.open[st.ID]; o != nil && !o.releasing && m.r.IntN(5) > 0 {
			end := o.end + mink.Offset(1+m.r.IntN(3))
			content = append(content, piece{st.ID, o.leader, o.end, end})
			o.end = end
			m.acked[st.ID] = max(m.acked[st.ID], end)
		}
	}
	if len(content) > 0 {
		m.store[plan.ObjectID{Epoch: n.wal.Epoch, Kind: plan.KindWAL, Seq: n.slot}] = content
		n.slot++
	}
}

func slotObject(w plan.WALID, seq uint64) plan.Object {
	return plan.Object{ID: plan.ObjectID{Epoch: w.Epoch, Kind: plan.KindWAL, Seq: seq}, WAL: w, Size: 100, IndexPos: 10, IndexLen: 10}
}

func (m *moves) newUpload(n *moveNode) plan.Object {
	n.uploads++
	return plan.Object{ID: plan.ObjectID{Epoch: n.wal.Epoch, Kind: plan.KindStreamSet, Seq: n.uploads}, WAL: n.wal, Size: 100, IndexPos: 10, IndexLen: 10}
}

// tail lists what a stream has in the slots [from, to) behind its committed end.
func (m *moves) tail(w plan.WALID, st plan.Stream, from, to uint64) (items []plan.Item, slots []uint64) {
	for seq := from; seq < to; seq++ {
		for _, p := range m.store[slotObject(w, seq).ID] {
			if p.stream == st.ID && p.leader == st.Owner.LeaderEpoch && p.end > st.End {
				items = append(items, plan.Item{Stream: st.ID, LeaderEpoch: p.leader, Object: slotObject(w, seq).ID, Start: max(p.start, st.End), End: p.end})
				slots = append(slots, seq)
			}
		}
	}
	return items, slots
}

func (m *moves) upload(n *moveNode) {
	w, _ := m.s.WAL(n.wal.Epoch)
	to := w.Trim
	if n.slot > w.Trim {
		to += m.r.Uint64N(n.slot - w.Trim + 1)
	}
	o := m.newUpload(n)
	c := plan.CommitObjects{WAL: n.wal, Seq: w.CommitSeq + 1, Objects: []plan.Object{o}, WALTrim: to}
	for st := range m.s.StreamsLedBy(n.wal.Epoch) {
		if items, _ := m.tail(n.wal, st, w.Trim, to); len(items) > 0 {
			it := items[0]
			it.Object, it.End = o.ID, items[len(items)-1].End
			c.Items = append(c.Items, it)
			m.store[o.ID] = append(m.store[o.ID], piece{st.ID, it.LeaderEpoch, it.Start, it.End})
		}
	}
	m.send(n, CommitObjectsCommand(c), nil)
}

func (m *moves) releaseOne(n *moveNode) {
	for _, st := range slices.Collect(m.s.StreamsLedBy(n.wal.Epoch)) {
		o := n.open[st.ID]
		if o == nil || o.releasing || m.r.IntN(2) == 0 {
			continue
		}
		o.releasing = true
		w, _ := m.s.WAL(n.wal.Epoch)
		c := plan.Release{WAL: n.wal, Stream: st.ID, LeaderEpoch: o.leader, End: o.end, To: mink.NodeID(m.r.IntN(4))}
		items, slots := m.tail(n.wal, st, w.Trim, n.slot)
		c.Items = items
		for _, seq := range slices.Compact(slots) {
			c.Objects = append(c.Objects, slotObject(n.wal, seq))
		}
		m.send(n, ReleaseCommand(c), func(r *clusterpb.Result) {
			if r.Code == clusterpb.Code_OK {
				m.moved++
			}
			o.releasing = false // refused: open again; accepted: the state says who leads
			if r.Code == clusterpb.Code_OK && n.open[st.ID] == o {
				delete(n.open, st.ID)
			}
		})
		return
	}
}

func (m *moves) compact(n *moveNode) {
	c := plan.ReplaceObjects{WAL: n.wal, BasedOn: m.s.index, Objects: []plan.Object{m.newUpload(n)}}
	byStream := map[mink.StreamID][]plan.ObjectRange{}
	for o := range m.s.Objects() {
		if m.r.IntN(3) > 0 {
			continue
		}
		c.Sources = append(c.Sources, o.ID)
		for _, r := range m.s.ObjectRanges(o.ID) {
			byStream[r.Stream] = append(byStream[r.Stream], r)
		}
	}
	if len(c.Sources) == 0 {
		return
	}
	out := c.Objects[0].ID
	for st := range m.s.Streams() {
		list := byStream[st.ID]
		slices.SortFunc(list, func(a, b plan.ObjectRange) int { return int(a.Start - b.Start) })
		for _, r := range list {
			c.Items = append(c.Items, plan.Item{Stream: st.ID, Object: out, Start: r.Start, End: r.End})
			m.store[out] = append(m.store[out], piece{st.ID, 0, r.Start, r.End})
		}
	}
	m.send(n, ReplaceObjectsCommand(c), nil)
}

// rewriteOne puts one frame in the place of all that a stream holds below some frame's
// end, as the newest state or an older one has it.
func (m *moves) rewriteOne(n *moveNode) {
	v := m.s
	if m.r.IntN(3) == 0 {
		v = m.older
	}
	for st := range v.StreamsLedBy(n.wal.Epoch) {
		if len(st.Ranges) == 0 || m.r.IntN(2) == 0 {
			continue
		}
		c := plan.RewriteStream{WAL: n.wal, Stream: st.ID, LeaderEpoch: st.Owner.LeaderEpoch, Start: st.Start}
		c.Upper = max(st.Ranges[m.r.IntN(len(st.Ranges))].End, st.Cleaned.End)
		c.Sources = st.Below(c.Upper)
		o := m.newUpload(n)
		o.ID.Kind = plan.KindStream
		c.Objects = []plan.Object{o}
		c.Items = []plan.Item{{Stream: st.ID, Object: o.ID, Start: c.Sources[0].Start, End: c.Upper}}
		m.store[o.ID] = []piece{{st.ID, 0, c.Sources[0].Start, c.Upper}}
		m.send(n, RewriteStreamCommand(c), nil)
		return
	}
}

func (m *moves) trimOne(n *moveNode) {
	for st := range m.s.StreamsLedBy(n.wal.Epoch) {
		m.send(n, TrimStreamsCommand([]plan.Trim{{Stream: st.ID, Start: st.Start + mink.Offset(m.r.IntN(6))}}), nil)
		return
	}
}

// clean deletes from the store what a view, perhaps an older one, allows.
func (m *moves) clean(n *moveNode) {
	v := m.s
	if m.r.IntN(2) == 0 {
		v = m.older
	}
	var forget []plan.ObjectID
	for d := range v.Destroyed() {
		delete(m.store, d.Object.ID)
		forget = append(forget, d.Object.ID)
		m.deleted++
	}
	for id := range m.store {
		w, known := v.WAL(id.Epoch)
		if id.Kind != plan.KindWAL || !known {
			continue
		}
		_, named := v.Object(id)
		del := false
		switch m.rule {
		case good:
			del = plan.SlotDeletable(w, id.Seq, named)
		case destroyDeletes:
			del = plan.SlotDeletable(w, id.Seq, named) || !named && m.once[id]
		case trimDeletesReferenced:
			del = id.Seq < w.Trim
		}
		if del {
			delete(m.store, id)
			m.deleted++
		}
	}
	if len(forget) > 0 {
		m.send(n, ForgetObjectsCommand(forget), nil)
	}
}

// coordinate is a tick of the lease holder, and sometimes a kill.
func (m *moves) coordinate(n *moveNode) {
	if l := m.s.Lease(); l.NodeEpoch != n.wal.Epoch {
		if _, live := m.s.live(l.NodeEpoch); live && m.r.IntN(10) > 0 {
			return
		}
		m.takeLease(n)
	}
	lease := m.s.Lease().Epoch
	for w := range m.s.WALs() {
		if !w.Sealed && w.ID.Epoch != n.wal.Epoch && m.r.IntN(20) == 0 {
			m.send(n, sealCmd(w.ID.Epoch, int64(lease)), nil)
			return
		}
		if w.Sealed && !w.Recovered && m.r.IntN(2) == 0 {
			m.recover(n, w, lease)
			return
		}
	}
	leads := &clusterpb.LeadBuckets{Lease: int64(lease)}
	for st := range m.s.Orphans() {
		live := m.s.LiveNodes()
		to := live[m.r.IntN(len(live))]
		leads.Leads = append(leads.Leads, &clusterpb.Lead{Stream: int64(st.ID), Node: int32(to.ID), Epoch: int64(to.Epoch), ExpectedLeaderEpoch: int32(st.Owner.LeaderEpoch)})
	}
	if len(leads.Leads) > 0 {
		m.send(n, &clusterpb.Command{Kind: &clusterpb.Command_LeadBuckets{LeadBuckets: leads}}, nil)
	}
}

// recover closes the log behind its last slot and takes every slot over from the
// trim on, whole: apply clips.
func (m *moves) recover(n *moveNode, w plan.WAL, lease mink.LeaseEpoch) {
	m.tombs[w.ID.Epoch] = true
	c := plan.RecoverWAL{WAL: w.ID, Lease: lease, From: w.Trim, End: w.Trim}
	for {
		o := slotObject(w.ID, c.End)
		content, there := m.store[o.ID]
		if !there {
			break
		}
		c.Objects = append(c.Objects, o)
		for _, p := range content {
			c.Items = append(c.Items, plan.Item{Stream: p.stream, LeaderEpoch: p.leader, Object: o.ID, Start: p.start, End: p.end})
		}
		c.End++
	}
	// In parts, any of which may get lost: none may count without those before it.
	for _, part := range plan.RecoverParts(c, 1+m.r.IntN(10)) {
		m.send(n, RecoverWALCommand(part), func(r *clusterpb.Result) {
			if r.Code == clusterpb.Code_OK && !part.Part {
				m.recovered++
			}
		})
	}
}

func (m *moves) holds(id plan.ObjectID, stream mink.StreamID, start, end mink.Offset) bool {
	for at := start; at < end; {
		next := at
		for _, p := range m.store[id] {
			if p.stream == stream && p.start <= at && p.end > at {
				next = max(next, p.end)
			}
		}
		if next == at {
			return false
		}
		at = next
	}
	return true
}

// cuts reports that a range begins or ends within a frame: a reader of the range
// before it or behind it has the offsets there twice, or never.
func (m *moves) cuts(st plan.Stream, r plan.Range) bool {
	begins, ends := r.Start <= st.Start, false
	for _, p := range m.store[r.Object] {
		begins = begins || p.stream == st.ID && p.start == r.Start
		ends = ends || p.stream == st.ID && p.end == r.End
	}
	return !begins || !ends
}

func (m *moves) check() error {
	if m.broken != nil {
		return m.broken
	}
	for st := range m.s.Streams() {
		for _, r := range st.Ranges {
			if m.cuts(st, r) {
				return fmt.Errorf("stream %d: [%d, %d) of %+v cuts a frame", st.ID, r.Start, r.End, r.Object)
			}
			if !m.holds(r.Object, st.ID, max(r.Start, st.Start), r.End) {
				return fmt.Errorf("stream %d: [%d, %d) is gone from %+v", st.ID, r.Start, r.End, r.Object)
			}
		}
		w, _ := m.s.WAL(st.Owner.NodeEpoch)
		for at := st.End; at < m.acked[st.ID]; at++ {
			found := false
			for id, content := range m.store {
				found = found || id.Kind == plan.KindWAL && id.Epoch == st.Owner.NodeEpoch && id.Seq >= w.Trim && !w.Recovered &&
					slices.ContainsFunc(content, func(p piece) bool {
						return p.stream == st.ID && p.leader == st.Owner.LeaderEpoch && p.start <= at && at < p.end
					})
			}
			if !found {
				return fmt.Errorf("stream %d: acknowledged offset %d is lost, committed end %d, owner %+v", st.ID, at, st.End, st.Owner)
			}
		}
	}
	return nil
}

func runMoves(seed uint64, rl rule, f faults) (*moves, error) {
	m := newMoves(seed, rl, f)
	for i := range 250 {
		m.step()
		if err := m.check(); err != nil {
			return m, fmt.Errorf("seed %d, step %d: %w", seed, i, err)
		}
	}
	return m, m.s.Check()
}

func TestMoves(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() || raceEnabled {
		seeds = 100
	}
	var moved, recovered, lost, deleted, rewritten int
	for seed := range seeds {
		m, err := runMoves(seed, good, faults{})
		if err != nil {
			t.Fatal(err)
		}
		moved, recovered, lost, deleted, rewritten = moved+m.moved, recovered+m.recovered, lost+m.lost, deleted+m.deleted, rewritten+m.rewritten
	}
	t.Logf("%d moves, %d recoveries, %d lost answers, %d deletions, %d rewrites", moved, recovered, lost, deleted, rewritten)
	if n := int(seeds); moved < n || recovered < n || lost < n || deleted < 5*n || rewritten < n {
		t.Fatal("the schedules hardly do anything")
	}
}

// The wrong rules and the missing protections must lose data in the model.
func TestMovesNoticesFaults(t *testing.T) {
	for name, c := range map[string]struct {
		rule rule
		f    faults
	}{
		"destroy deletes":         {rule: destroyDeletes},
		"trim deletes referenced": {rule: trimDeletesReferenced},
		"no parking":              {f: faults{noParking: true}},
		"no leader fence":         {f: faults{noLeadFence: true}},
		"no check of sources":     {f: faults{noSources: true}},
	} {
		var err error
		for seed := uint64(0); seed < 300 && err == nil; seed++ {
			_, err = runMoves(seed, c.rule, c.f)
		}
		if err == nil {
			t.Errorf("%s: not noticed", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
