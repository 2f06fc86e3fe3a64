package cluster

import (
	"bytes"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// sim drives a State with a seeded stream of commands: valid ones, ones planned
// on an old view, repeated batches, old batches that land late, and damaged
// ones. After each it checks the state and compares it with the state before.
type sim struct {
	r     *rand.Rand
	s     *State
	views []*State // older ones, to plan stale commands on
	nodes [4]simNode
	past  []*clusterpb.Batch // to send again
	lease int64

	answered map[[2]int64][]*clusterpb.Result // (epoch, counter) -> first answer
	gone     map[plan.ObjectID]bool           // destroyed or forgotten: never named again
	kv       kvModel
	tiers    tierModel
	maxID    struct {
		table     mink.TableID
		partition mink.PartitionID
		stream    mink.StreamID
		writer    int64
	}
	codes map[clusterpb.Code]int
	kinds map[string]int // accepted commands
	log   []entry
	cuts  []cut

	groups groupModel
	given  map[mink.StreamID]mink.Offset // by lost time lines
}

type entry struct {
	timeMs int64
	batch  *clusterpb.Batch
}

// cut is a state on the way with its snapshot as it was then.
type cut struct {
	s        *State
	snapshot [][]byte
}

type simNode struct {
	nonce   uint64
	counter uint64
	objects uint64
	epoch   mink.NodeEpoch // as it believes
}

func newSim(seed uint64, f faults) *sim {
	s := NewState()
	s.faults = f
	return &sim{
		r: rand.New(rand.NewPCG(seed, 7)), s: s, answered: map[[2]int64][]*clusterpb.Result{},
		gone: map[plan.ObjectID]bool{}, codes: map[clusterpb.Code]int{}, kinds: map[string]int{},
		groups: newGroupModel(), kv: newKVModel(), tiers: newTierModel(), given: map[mink.StreamID]mink.Offset{},
	}
}

func (m *sim) chance(percent int) bool { return m.r.IntN(100) < percent }

// step makes one batch, applies it and checks what came out.
func (m *sim) step() error {
	b := m.next()
	before := m.s
	e := entry{before.timeMs + int64(m.r.IntN(50)), b}
	m.log = append(m.log, e)
	after, results, err := before.Apply(before.index+1, e.timeMs, b)
	if err != nil {
		return err
	}
	m.s = after
	if err := m.judge(before, after, b, results); err != nil {
		return fmt.Errorf("index %d: %w\n%v\n%v", after.index, err, b, results)
	}
	m.past = append(m.past, b)
	if len(m.past) > 50 {
		m.past = m.past[1:]
	}
	m.views = append(m.views, after)
	if len(m.views) > 20 {
		m.views = m.views[1:]
	}
	return nil
}

// next is a new batch or one of the last 50 again.
func (m *sim) next() *clusterpb.Batch {
	if len(m.past) > 0 && m.chance(12) {
		return m.past[len(m.past)-1-m.r.IntN(min(len(m.past), 1+m.r.IntN(50)))]
	}
	if m.r.IntN(300) == 0 {
		return m.lost()
	}
	i := m.r.IntN(len(m.nodes))
	n := &m.nodes[i]
	id := mink.NodeID(i + 1)
	if n.epoch == 0 || m.chance(1) || m.isSealed(n.epoch) && m.chance(12) {
		return m.register(id, n)
	}
	if m.chance(2) {
		m.lease++
		return &clusterpb.Batch{Commands: []*clusterpb.Command{leaseCmd(id, n.epoch, m.lease-int64(m.r.IntN(2)))}}
	}
	n.counter++
	b := &clusterpb.Batch{Epoch: int64(n.epoch), Counter: n.counter, FeatureLevel: 1}
	for range 1 + m.r.IntN(2) {
		c := m.command(id, n)
		if m.chance(3) {
			m.damage(c.ProtoReflect())
		}
		b.Commands = append(b.Commands, c)
	}
	return b
}

// lost makes the metadata go back: what the store shows is anything at or behind
// the ends.
func (m *sim) lost() *clusterpb.Batch {
	c := &clusterpb.SetIncarnation{Incarnation: m.r.Uint64() | 1, Lost: true}
	for st := range m.s.Streams() {
		if m.chance(40) {
			c.Ends = append(c.Ends, &clusterpb.StreamEnd{Stream: int64(st.ID), End: int64(st.End) + int64(m.r.IntN(20))})
		}
	}
	for w := range m.s.WALs() {
		if m.chance(70) {
			l := &clusterpb.LostWAL{Wal: walPB(w.ID), Trim: w.Trim + uint64(m.r.IntN(3))}
			for slot := range uint64(4) {
				if m.chance(30) {
					l.Missing = append(l.Missing, l.Trim+slot)
				}
			}
			c.Wals = append(c.Wals, l)
		}
	}
	if m.chance(70) { // of an earlier time line, and of one of much later
		c.SinkFence = int64(m.s.SinkFence(m.s.lease.Epoch+1)) << m.r.IntN(3)
	}
	for t := range m.s.EveryTiering() {
		if m.chance(30) {
			c.Stopped = append(c.Stopped, &clusterpb.StoppedSink{Table: int64(t.Table), Sink: t.Sink, Reason: "test"})
		}
	}
	return &clusterpb.Batch{Commands: []*clusterpb.Command{{Kind: &clusterpb.Command_SetIncarnation{SetIncarnation: c}}}}
}

func (m *sim) isSealed(epoch mink.NodeEpoch) bool {
	w, ok := m.s.WAL(epoch)
	return !ok || w.Sealed
}

func (m *sim) register(id mink.NodeID, n *simNode) *clusterpb.Batch {
	if n.epoch == 0 || !m.chance(15) { // else the same nonce again: the answer was lost
		n.nonce = m.r.Uint64() | 1
		n.counter, n.objects = 0, 0
	}
	n.epoch = mink.NodeEpoch(m.s.index + 1)
	if w := m.walByNonce(id, n.nonce); w != 0 {
		n.epoch = w
	}
	return &clusterpb.Batch{Commands: []*clusterpb.Command{registerCmd(id, n.nonce)}}
}

func (m *sim) walByNonce(id mink.NodeID, nonce uint64) mink.NodeEpoch {
	for w := range m.s.WALs() {
		if w.ID.Node == id && w.ID.Nonce == nonce {
			return w.ID.Epoch
		}
	}
	return 0
}

// sameContent: nothing but index, time and, if asked, dedup differs.
func sameContent(a, b *State, dedup bool) bool {
	ha, hb := a.header, b.header
	ha.index, ha.timeMs, hb.index, hb.timeMs = 0, 0, 0, 0
	return ha == hb && a.nodes == b.nodes && a.wals == b.wals && a.databases == b.databases && a.tables == b.tables &&
		a.partitions == b.partitions && a.streams == b.streams && a.objects == b.objects && a.parked == b.parked &&
		a.destroyed == b.destroyed && a.producers == b.producers && a.groups == b.groups && a.groupOffsets == b.groupOffsets &&
		a.kv == b.kv && a.kvDestroyed == b.kvDestroyed && a.autoIncrement == b.autoIncrement &&
		a.tierings == b.tierings && a.tiered == b.tiered && a.droppedSinks == b.droppedSinks && a.former == b.former && (!dedup || a.dedup == b.dedup)
}

func (m *sim) judge(before, after *State, b *clusterpb.Batch, results []*clusterpb.Result) error {
	if len(results) != len(b.Commands) {
		return fmt.Errorf("%d results for %d commands", len(results), len(b.Commands))
	}
	accepted := 0
	for i, r := range results {
		m.codes[r.Code]++
		if r.Code == clusterpb.Code_OK {
			accepted++
			m.kinds[fmt.Sprintf("%T", b.Commands[i].GetKind())]++
		} else if r.Message == "" {
			return fmt.Errorf("result %d says nothing", i)
		}
	}
	if accepted == 0 && !sameContent(before, after, false) {
		return fmt.Errorf("refused commands changed the state")
	}
	if b.Epoch != 0 {
		key := [2]int64{b.Epoch, int64(b.Counter)}
		first, again := m.answered[key]
		if again && !sameContent(before, after, true) {
			return fmt.Errorf("batch %d of epoch %d was applied twice", b.Counter, b.Epoch)
		}
		if c, last := before.Results(mink.NodeEpoch(b.Epoch)); again && c == b.Counter && (len(last) != len(first) || !equalResults(first, results)) {
			return fmt.Errorf("the answer to batch %d of epoch %d changed", b.Counter, b.Epoch)
		}
		if w, ok := before.WAL(mink.NodeEpoch(b.Epoch)); !ok || w.Sealed {
			if !sameContent(before, after, true) || slices.ContainsFunc(results, func(r *clusterpb.Result) bool { return r.Code != clusterpb.Code_FENCED }) {
				return fmt.Errorf("epoch %d is sealed and changed something", b.Epoch)
			}
		} else if !again {
			m.answered[key] = results
		}
	}
	if sameContent(before, after, true) {
		return nil // checked before
	}
	if err := after.Check(); err != nil {
		return err
	}
	return m.compare(before, after, b, results)
}

func equalResults(a, b []*clusterpb.Result) bool {
	return slices.EqualFunc(a, b, func(x, y *clusterpb.Result) bool { return proto.Equal(x, y) })
}

// compare checks what may never change from one state to the next.
func (m *sim) compare(before, after *State, b *clusterpb.Batch, results []*clusterpb.Result) error {
	released := map[mink.StreamID]bool{}
	for i, c := range b.Commands {
		if k := c.GetRelease(); k != nil && results[i].Code == clusterpb.Code_OK {
			released[mink.StreamID(k.Stream)] = true
		}
		if k := c.GetRewriteStream(); k != nil && results[i].Code == clusterpb.Code_OK {
			if err := checkRewrite(before, mink.NodeEpoch(b.Epoch), k); err != nil && len(b.Commands) == 1 {
				return err
			}
		}
		if k := c.GetAllocateWriters(); k != nil && results[i].Code == clusterpb.Code_OK && before.nextWriter != after.nextWriter {
			if results[i].Id <= m.maxID.writer {
				return fmt.Errorf("writer id %d was given out before", results[i].Id)
			}
			m.maxID.writer = results[i].Id + int64(k.Count) - 1
		}
	}
	if before.wals != after.wals {
		for w := range before.WALs() {
			now, ok := after.WAL(w.ID.Epoch)
			if !ok || now.ID != w.ID || now.Trim < w.Trim || now.CommitSeq < w.CommitSeq || w.Sealed && !now.Sealed {
				return fmt.Errorf("wal %+v became %+v", w, now)
			}
			if w.Recovered && now != w {
				return fmt.Errorf("wal %+v was recovered and became %+v", w, now)
			}
		}
	}
	if err := m.respected(after, b, results); err != nil {
		return err
	}
	if before.streams != after.streams {
		for old := range before.Streams() {
			if now, ok := after.Stream(old.ID); ok {
				if err := compareStream(after, old, now, released); err != nil {
					return err
				}
			}
		}
	}
	if err := m.freshIDs(before, after); err != nil {
		return err
	}
	if err := m.groups.compare(before, after, b, results); err != nil {
		return err
	}
	if err := m.kv.compare(before, after, b, results); err != nil {
		return err
	}
	if err := m.tiers.compare(before, after, b, results); err != nil {
		return err
	}
	for o := range after.Objects() {
		if m.gone[o.ID] {
			return fmt.Errorf("object %+v came back", o.ID)
		}
	}
	for d := range after.Destroyed() {
		m.gone[d.Object.ID] = true
	}
	return nil
}

// respected: whoever leads a stream appends behind all that lost time lines gave out.
func (m *sim) respected(after *State, b *clusterpb.Batch, results []*clusterpb.Result) error {
	for i, c := range b.Commands {
		k := c.GetSetIncarnation()
		if !k.GetLost() || results[i].Code != clusterpb.Code_OK {
			continue
		}
		for w := range after.WALs() {
			if !w.Sealed {
				return fmt.Errorf("wal %s outlived its time line", w.ID)
			}
		}
		if f := after.SinkFence(1); int64(f) <= k.SinkFence {
			return fmt.Errorf("sinks have fence %d and get %d", k.SinkFence, f)
		}
		for _, l := range k.Stopped {
			m.tiers.stopped[mink.TableID(l.Table)] = true
		}
		for _, e := range k.Ends {
			m.given[mink.StreamID(e.Stream)] = max(m.given[mink.StreamID(e.Stream)], mink.Offset(e.End))
		}
	}
	for id, end := range m.given {
		st, ok := after.Stream(id)
		if w, found := after.WAL(st.Owner.NodeEpoch); ok && found && !w.Sealed && st.End < end {
			return fmt.Errorf("stream %d is led again at %d, offsets up to %d were given out", id, st.End, end)
		}
	}
	return nil
}

// checkRewrite: who rewrites a stream leads it, and read what it holds.
func checkRewrite(before *State, proposer mink.NodeEpoch, c *clusterpb.RewriteStream) error {
	st, _ := before.Stream(mink.StreamID(c.Stream))
	if st.Owner.NodeEpoch != proposer || st.Owner.LeaderEpoch != mink.LeaderEpoch(c.LeaderEpoch) {
		return fmt.Errorf("stream %d was rewritten by epoch %d, leader epoch %d, its owner is %+v", c.Stream, proposer, c.LeaderEpoch, st.Owner)
	}
	sources, err := rangesOf(c.Sources)
	sources = slices.DeleteFunc(sources, func(r plan.Range) bool { return r.End <= st.Start }) // trimmed meanwhile
	if err != nil || st.Start < mink.Offset(c.Start) || len(sources) == 0 || !slices.Equal(sources, st.Below(mink.Offset(c.Upper))) {
		return fmt.Errorf("stream %+v was rewritten by %v", st, c)
	}
	return nil
}

func compareStream(after *State, old, now plan.Stream, released map[mink.StreamID]bool) error {
	if now.End < old.End || now.Start < old.Start || now.CheckEnd < old.CheckEnd || now.Cleaned.End < old.Cleaned.End || now.Bucket != old.Bucket {
		return fmt.Errorf("stream %+v went back to %+v", old, now)
	}
	if now.Owner == old.Owner {
		return nil
	}
	if !released[old.ID] && !after.Orphan(old) {
		return fmt.Errorf("stream %d was taken from a living owner %+v by %+v", old.ID, old.Owner, now.Owner)
	}
	if now.Owner.NodeEpoch != 0 && now.Owner.LeaderEpoch <= old.Owner.LeaderEpoch || now.Owner.LeaderEpoch < old.Owner.LeaderEpoch {
		return fmt.Errorf("stream %d: leader epoch %d after %d", old.ID, now.Owner.LeaderEpoch, old.Owner.LeaderEpoch)
	}
	return nil
}

func (m *sim) freshIDs(before, after *State) error {
	for t := range after.AllTables() {
		if _, known := before.Table(t.ID); !known && t.ID <= m.maxID.table {
			return fmt.Errorf("table id %d was used before", t.ID)
		}
		m.maxID.table = max(m.maxID.table, t.ID)
	}
	for id := range after.partitions.all() {
		if _, known := before.Partition(id); !known && id <= m.maxID.partition {
			return fmt.Errorf("partition id %d was used before", id)
		}
		m.maxID.partition = max(m.maxID.partition, id)
	}
	newest := m.maxID.stream
	for id := range after.streams.all() {
		if _, known := before.Stream(id); !known && id <= m.maxID.stream {
			return fmt.Errorf("stream id %d was used before", id)
		}
		newest = max(newest, id)
	}
	m.maxID.stream = newest
	return nil
}

// checkReplay: the log from the start, and from each snapshot on, gives the
// same bytes as the run; and the states on the way are what they were.
func (m *sim) checkReplay(t *testing.T) {
	t.Helper()
	want := snapshot(m.s)
	for i, c := range append(m.cuts, cut{NewState(), snapshot(NewState())}) {
		if !equalRecords(snapshot(c.s), c.snapshot) {
			t.Fatalf("the state at index %d changed after it was left behind", c.s.index)
		}
		s, err := DecodeSnapshot(records(c.snapshot))
		if err != nil {
			t.Fatal(err)
		}
		if !equalRecords(snapshot(s), c.snapshot) {
			t.Fatalf("cut %d: the decoded state encodes to other bytes", i)
		}
		for _, e := range m.log[s.index:] {
			if s, _, err = s.Apply(s.index+1, e.timeMs, e.batch); err != nil {
				t.Fatal(err)
			}
		}
		if !equalRecords(snapshot(s), want) {
			t.Fatalf("snapshot at %d and the tail differ from the run", c.s.index)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

func snapshot(s *State) (out [][]byte) {
	if err := s.EncodeSnapshot(func(r []byte) error { out = append(out, r); return nil }); err != nil {
		panic(err)
	}
	return out
}

func records(list [][]byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, r := range list {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func equalRecords(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func runSim(seed uint64, f faults, steps int) (*sim, error) {
	m := newSim(seed, f)
	for i := range steps {
		if i%(1+steps/2) == steps/4 {
			m.cuts = append(m.cuts, cut{m.s, snapshot(m.s)})
		}
		if err := m.step(); err != nil {
			return m, fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	return m, nil
}

// Failure list of the stream engine, items 15 to 17: ends, ids, stale plans.
func TestSimulation(t *testing.T) {
	seeds, steps := 6, 12_000
	if testing.Short() || raceEnabled {
		seeds = 2
	}
	codes, kinds := map[clusterpb.Code]int{}, map[string]int{}
	for seed := range seeds {
		m, err := runSim(uint64(seed), faults{}, steps)
		if err != nil {
			t.Fatal(err)
		}
		m.checkReplay(t)
		for c, n := range m.codes {
			codes[c] += n
		}
		for k, n := range m.kinds {
			kinds[k] += n
		}
	}
	t.Log(codes, kinds)
	// A generator that stopped reaching a command would prove nothing about it.
	fields := (&clusterpb.Command{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	if len(kinds) != fields.Len() {
		t.Fatalf("%d of %d command kinds were ever accepted: %v", len(kinds), fields.Len(), kinds)
	}
}

// Each protection taken out must be noticed.
func TestSimulationNoticesFaults(t *testing.T) {
	for name, f := range map[string]faults{
		"dedup": {noDedup: true}, "seal": {noSealCheck: true}, "recover once": {recoverTwice: true}, "parking": {noParking: true},
		"sources": {noSources: true}, "leader fence": {noLeadFence: true},
		"group fence": {noGroupFence: true}, "group moves": {noMoveCheck: true},
		"KV fence": {noKVFence: true}, "KV reuse": {noKVReuse: true}, "KV prune": {pruneNamed: true}, "KV end": {noKVEnd: true}, "KV trim bound": {noKVBound: true},
		"ends of a lost time line": {noLostEnds: true}, "removal of a living node": {removeEarly: true},
		"sinks' fences of a lost time line": {fenceBack: true}, "stopped sinks": {keepStopped: true},
		"lease of rounds": {noRoundLease: true}, "base of rounds": {noBaseRound: true}, "round once": {roundTwice: true}, "ends back": {endsBack: true}, "ends ahead": {endsAhead: true},
		"trim bound of sinks": {noTierBound: true}, "read grace": {noReadGrace: true}, "ends of dropped partitions": {keepTiered: true}, "former partitions": {forgetFormer: true},
		"early drop of partitions": {dropEarly: true}, "gaps": {noGaps: true},
	} {
		found := false
		for seed := uint64(0); seed < 60 && !found; seed++ { // stale merges meet once in ten
			_, err := runSim(seed, f, 3000)
			if found = err != nil; found {
				t.Logf("%s: %.200s", name, err)
			}
		}
		if !found {
			t.Errorf("the simulation did not notice that %q was taken out", name)
		}
	}
}
