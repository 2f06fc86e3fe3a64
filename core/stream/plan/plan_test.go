package plan_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/plan/plantest"
	"github.com/mink-project/mink/sdk/mink"
)

func walID(epoch mink.NodeEpoch) plan.WALID {
	return plan.WALID{Node: mink.NodeID(epoch%3 + 1), Epoch: epoch, Nonce: uint64(epoch) * 77}
}

func object(w plan.WALID, kind plan.ObjectKind, seq uint64) plan.Object {
	return plan.Object{ID: plan.ObjectID{Epoch: w.Epoch, Kind: kind, Seq: seq}, WAL: w, Size: 1000, IndexPos: 900, IndexLen: 50}
}

// model is what the state must mean: for every offset of a stream the object
// that holds it, or that it is a gap.
type cell struct {
	start, end mink.Offset
	object     plan.ObjectID // zero: gap
}

type machine struct {
	*plantest.State
	seq   uint64 // next data object
	cells map[mink.StreamID][]cell
	cur   plan.WALID
	next  mink.NodeEpoch
	slots map[mink.NodeEpoch]uint64
}

// length draws small lengths and ones that overflow 32 bits (failure 1).
func length(t *rapid.T) mink.Offset {
	if rapid.IntRange(0, 4).Draw(t, "huge") == 0 {
		return mink.Offset(rapid.Int64Range(1<<31, 1<<40).Draw(t, "len"))
	}
	return mink.Offset(rapid.Int64Range(1, 20).Draw(t, "len"))
}

func (m *machine) check(t *rapid.T) {
	t.Helper()
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	for id, cells := range m.cells {
		s, ok := m.Stream(id)
		if !ok {
			t.Fatalf("stream %d vanished", id)
		}
		for _, c := range cells {
			for _, at := range []mink.Offset{c.start, c.start + (c.end-c.start)/2, c.end - 1} {
				if at < s.Start {
					continue
				}
				i, ok := s.Find(at)
				held := ok && s.Ranges[i].Start <= at
				if c.object.IsZero() == held {
					t.Fatalf("stream %d offset %d: held %v, model %+v", id, at, held, c)
				}
			}
		}
		if len(cells) > 0 && cells[len(cells)-1].end != s.End {
			t.Fatalf("stream %d ends at %d, model %d", id, s.End, cells[len(cells)-1].end)
		}
	}
}

func (m *machine) register(t *rapid.T) {
	if m.cur.Epoch != 0 {
		w := m.Logs[m.cur.Epoch]
		w.Sealed = true
		m.Logs[m.cur.Epoch] = w
	}
	m.next++
	m.cur = walID(m.next)
	m.Logs[m.cur.Epoch] = plan.WAL{ID: m.cur}
}

func (m *machine) lead(id mink.StreamID) {
	s := m.Streams[id]
	s.Owner = plan.Owner{Node: m.cur.Node, NodeEpoch: m.cur.Epoch, LeaderEpoch: s.Owner.LeaderEpoch + 1}
	m.Streams[id] = s
}

func TestStateMachineKeepsEveryOffset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{State: plantest.New(), cells: map[mink.StreamID][]cell{}, slots: map[mink.NodeEpoch]uint64{}}
		m.register(t)
		for id := mink.StreamID(1); id <= 4; id++ {
			m.Streams[id] = plan.Stream{ID: id}
			m.lead(id)
		}
		streams := func(t *rapid.T) []mink.StreamID {
			var out []mink.StreamID
			for id := mink.StreamID(1); id <= 4; id++ {
				if rapid.Bool().Draw(t, "in") {
					out = append(out, id)
				}
			}
			return out
		}
		t.Repeat(map[string]func(*rapid.T){
			"": m.check,
			"upload": func(t *rapid.T) {
				m.seq++
				o := object(m.cur, plan.KindStreamSet, m.seq)
				w := m.Logs[m.cur.Epoch]
				c := plan.CommitObjects{WAL: m.cur, Seq: w.CommitSeq + 1, Objects: []plan.Object{o}, WALTrim: w.Trim + 1}
				for _, id := range streams(t) {
					s := m.Streams[id]
					if s.Owner.NodeEpoch != m.cur.Epoch {
						continue
					}
					n := length(t)
					c.Items = append(c.Items, plan.Item{Stream: id, LeaderEpoch: s.Owner.LeaderEpoch, Object: o.ID, Start: s.End, End: s.End + n, Checkpoint: rapid.Bool().Draw(t, "ckpt")})
					m.cells[id] = append(m.cells[id], cell{s.End, s.End + n, o.ID})
				}
				d, err := plan.ApplyCommitObjects(m, c)
				if err != nil {
					t.Fatal(err)
				}
				m.Apply(d)
				again, err := plan.ApplyCommitObjects(m, c)
				if err != nil || len(again.Streams)+len(again.Objects)+len(again.Destroyed) != 0 || again.WAL != nil {
					t.Fatalf("a repeated commit did %+v, %v", again, err)
				}
			},
			"trim": func(t *rapid.T) {
				id := mink.StreamID(rapid.Int64Range(1, 5).Draw(t, "stream"))
				to := m.Streams[id].Start + mink.Offset(rapid.Int64Range(-5, 1<<33).Draw(t, "to"))
				before := m.Streams[id].Start
				m.Apply(plan.ApplyTrims(m, []plan.Trim{{Stream: id, Start: to}}))
				if m.Streams[id].Start < before {
					t.Fatalf("start moved back from %d to %d", before, m.Streams[id].Start)
				}
			},
			"gap": func(t *rapid.T) {
				id := mink.StreamID(rapid.Int64Range(1, 4).Draw(t, "stream"))
				s := m.Streams[id]
				n := length(t)
				next, err := s.AddGap(plan.Gap{Start: s.End, End: s.End + n})
				if err != nil {
					t.Fatal(err)
				}
				m.Streams[id] = next
				m.cells[id] = append(m.cells[id], cell{s.End, s.End + n, plan.ObjectID{}})
			},
			"compact": func(t *rapid.T) {
				var sources []plan.ObjectID
				for id := range m.Named {
					sources = append(sources, id)
				}
				slices.SortFunc(sources, func(a, b plan.ObjectID) int { return int(a.Seq) - int(b.Seq) + 1000*int(a.Epoch-b.Epoch) })
				sources = slices.DeleteFunc(sources, func(plan.ObjectID) bool { return rapid.Bool().Draw(t, "skip") })
				if len(sources) == 0 {
					t.Skip()
				}
				c := compaction(m, sources)
				sabotage := rapid.SampledFrom([]string{"", "", "drop", "shrink", "grow"}).Draw(t, "sabotage")
				bad := damage(t, m, &c, sabotage)
				d, err := plan.ApplyReplaceObjects(m, c)
				if bad {
					if !errors.Is(err, mink.ErrConflict) && !errors.Is(err, mink.ErrInvalid) {
						t.Fatalf("%s was accepted: %v", sabotage, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				m.Apply(d)
				for _, id := range sources {
					if _, ok := m.Named[id]; ok {
						t.Fatalf("source %+v is still named", id)
					}
				}
				if _, err := plan.ApplyReplaceObjects(m, c); err == nil {
					t.Fatal("a stale plan was accepted")
				}
			},
			"rewrite": func(t *rapid.T) {
				id := mink.StreamID(rapid.Int64Range(1, 4).Draw(t, "stream"))
				s := m.Streams[id]
				limit := s.TrimLimit()
				if limit <= s.Start || limit < s.Cleaned.End {
					t.Skip()
				}
				m.seq++
				o := object(m.cur, plan.KindStream, m.seq)
				upper := max(mink.Offset(rapid.Int64Range(int64(s.Start)+1, int64(limit)).Draw(t, "upper")), s.Cleaned.End)
				c := plan.RewriteStream{WAL: m.cur, Stream: id, LeaderEpoch: s.Owner.LeaderEpoch, Start: s.Start, Upper: upper, Sources: s.Below(upper), Objects: []plan.Object{o}}
				for _, r := range c.Sources {
					c.Items = append(c.Items, plan.Item{Stream: id, Object: o.ID, Start: r.Start, End: r.End})
				}
				refused := func(bad plan.RewriteStream, what string) {
					if _, err := plan.ApplyRewriteStream(m, bad); !errors.Is(err, mink.ErrConflict) && !errors.Is(err, mink.ErrInvalid) {
						t.Fatalf("%s was accepted: %v", what, err)
					}
				}
				late := c
				late.LeaderEpoch--
				refused(late, "a former leader's rewrite")
				if s.Owner.NodeEpoch != m.cur.Epoch {
					refused(c, "a rewrite of another's stream")
					return
				}
				if len(c.Sources) == 0 {
					refused(c, "a rewrite of nothing")
					return
				}
				short := c
				short.Items = slices.Clone(c.Items)
				short.Items[len(short.Items)-1].End--
				refused(short, "a rewrite that lacks an offset")
				if rapid.IntRange(0, 3).Draw(t, "trimmed meanwhile") == 0 {
					to := mink.Offset(rapid.Int64Range(int64(s.Start), int64(upper)).Draw(t, "trim"))
					m.Apply(plan.ApplyTrims(m, []plan.Trim{{Stream: id, Start: to}}))
					if s = m.Streams[id]; to == upper || len(s.Below(upper)) == 0 {
						refused(c, "a rewrite of what was trimmed")
						return
					}
				}
				d, err := plan.ApplyRewriteStream(m, c)
				if err != nil {
					t.Fatal(err)
				}
				m.Apply(d)
				refused(c, "a rewrite of what is gone") // its object is known, too
				if now := m.Streams[id]; now.Cleaned.End != upper || now.End != s.End || now.Start != s.Start || len(now.Ranges) > 0 && now.Ranges[0].End <= now.Start || now.Checkpoint != s.Checkpoint {
					t.Fatalf("stream %+v was rewritten to %+v", s, now)
				}
			},
			"restart": func(t *rapid.T) {
				old := m.cur
				m.register(t)
				c := plan.RecoverWAL{WAL: old, End: m.Logs[old.Epoch].Trim + 3}
				o := object(old, plan.KindWAL, c.End-1)
				c.Objects = []plan.Object{o}
				for _, id := range streams(t) {
					s := m.Streams[id]
					// The slot may hold what was committed already.
					back := min(s.End, mink.Offset(rapid.Int64Range(0, 9).Draw(t, "back")))
					if s.Owner.NodeEpoch != old.Epoch {
						continue
					}
					n := length(t)
					c.Items = append(c.Items, plan.Item{Stream: id, LeaderEpoch: s.Owner.LeaderEpoch, Object: o.ID, Start: s.End - back, End: s.End + n})
					m.cells[id] = append(m.cells[id], cell{s.End, s.End + n, o.ID})
				}
				d, err := plan.ApplyRecoverWAL(m, c)
				if err != nil {
					t.Fatal(err)
				}
				m.Apply(d)
				if again, err := plan.ApplyRecoverWAL(m, c); err != nil || again.WAL != nil {
					t.Fatalf("a second recovery did %+v, %v", again, err)
				}
				for id := range m.Streams {
					m.lead(id)
				}
				if _, err := plan.ApplyCommitObjects(m, plan.CommitObjects{WAL: old, Seq: m.Logs[old.Epoch].CommitSeq + 1}); !errors.Is(err, mink.ErrFenced) {
					t.Fatalf("a sealed epoch committed: %v", err)
				}
			},
		})
	})
}

// compaction plans a merge from the state's ranges.
func compaction(m *machine, sources []plan.ObjectID) plan.ReplaceObjects {
	m.seq++
	out := object(m.cur, plan.KindStreamSet, m.seq)
	c := plan.ReplaceObjects{WAL: m.cur, BasedOn: m.Index, Sources: sources, Objects: []plan.Object{out}}
	for id := mink.StreamID(1); id <= 4; id++ {
		s := m.Streams[id]
		for _, r := range s.Ranges {
			if slices.Contains(sources, r.Object) {
				c.Items = append(c.Items, plan.Item{Stream: id, Object: out.ID, Start: r.Start, End: r.End})
			}
		}
		if slices.Contains(sources, s.Checkpoint) {
			c.Items = append(c.Items, plan.Item{Stream: id, Object: out.ID, Start: s.CheckEnd, End: s.CheckEnd, Checkpoint: true})
		}
	}
	return c
}

// damage makes the plan wrong in one way; false when it could not.
func damage(t *rapid.T, m *machine, c *plan.ReplaceObjects, how string) bool {
	for i, it := range c.Items {
		live := m.Streams[it.Stream].Start
		switch how {
		case "drop":
			if it.Checkpoint || it.End > live {
				c.Items = slices.Delete(c.Items, i, i+1)
				return true
			}
		case "shrink":
			if !it.Checkpoint && it.End-1 >= live {
				c.Items[i].End--
				return true
			}
		case "grow":
			if !it.Checkpoint && it.End > live {
				c.Items[i].End += 1 << 50
				return true
			}
		}
	}
	return false
}

func TestAppendRefusesGapsAndOverlaps(t *testing.T) {
	o := plan.ObjectID{Epoch: 1, Kind: plan.KindStreamSet, Seq: 1}
	s := plan.Stream{ID: 1, Start: 3, End: 10}
	for _, tc := range []struct {
		start, end mink.Offset
		check      bool
		want       error
	}{
		{10, 11, false, nil}, {10, math.MaxInt64, false, nil}, {10, 10, true, nil},
		{11, 12, false, mink.ErrConflict}, {9, 12, false, mink.ErrConflict}, {0, 10, false, mink.ErrConflict},
		{10, 10, false, mink.ErrInvalid}, {10, 9, false, mink.ErrInvalid}, {-1, 4, false, mink.ErrInvalid},
	} {
		got, err := s.Append(plan.Item{Stream: 1, Object: o, Start: tc.start, End: tc.end, Checkpoint: tc.check})
		if !errors.Is(err, tc.want) {
			t.Errorf("[%d, %d): %v, want %v", tc.start, tc.end, err, tc.want)
		}
		if err == nil && got.End != tc.end {
			t.Errorf("[%d, %d): end %d", tc.start, tc.end, got.End)
		}
	}
}

func TestChangesDoNotReachSharedSlices(t *testing.T) {
	o1, o2 := plan.ObjectID{Epoch: 1, Kind: 2, Seq: 1}, plan.ObjectID{Epoch: 1, Kind: 2, Seq: 2}
	ranges := make([]plan.Range, 0, 8)
	s := plan.Stream{ID: 1, End: 4, Ranges: append(ranges, plan.Range{Object: o1, End: 2}, plan.Range{Object: o2, Start: 2, End: 4})}
	before := fmt.Sprint(s)
	a, _ := s.Append(plan.Item{Object: o2, Start: 4, End: 6}) // merges into the last range
	b, _ := s.Append(plan.Item{Object: o1, Start: 4, End: 9})
	c := s.Trim(3)
	if _, err := c.Append(plan.Item{Object: o1, Start: 4, End: 7}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(s) != before {
		t.Fatalf("was %s, is %v", before, s)
	}
	if a.End != 6 || len(a.Ranges) != 2 || b.End != 9 || len(b.Ranges) != 3 || len(c.Ranges) != 1 {
		t.Fatal(a, b, c)
	}
}

// A checkpoint of what is not in the log would let trims and replays pass over what is.
func TestReplaceRefusesACheckpointPastTheEnd(t *testing.T) {
	old, out := plan.ObjectID{Epoch: 1, Kind: 2, Seq: 1}, plan.ObjectID{Epoch: 1, Kind: 2, Seq: 2}
	s := plan.Stream{ID: 1, End: 10, Checkpoint: old, CheckEnd: 6, Ranges: []plan.Range{{Object: old, End: 10}}}
	for at, want := range map[mink.Offset]error{6: nil, 10: nil, 5: mink.ErrConflict, 11: mink.ErrInvalid, math.MaxInt64: mink.ErrInvalid} {
		got, err := s.Replace(func(o plan.ObjectID) bool { return o == old }, []plan.Item{
			{Stream: 1, Object: out, End: 10}, {Stream: 1, Object: out, Start: at, End: at, Checkpoint: true},
		})
		if !errors.Is(err, want) || err == nil && (got.CheckEnd != at || got.Checkpoint != out) {
			t.Errorf("a checkpoint at %d: %v, want %v; %+v", at, err, want, got)
		}
	}
}

func TestTrimIsHeldAtTheCheckpoint(t *testing.T) {
	s := plan.Stream{ID: 1, End: 10, Checkpoint: plan.ObjectID{Epoch: 1, Kind: 2, Seq: 1}, CheckEnd: 6,
		Ranges: []plan.Range{{Object: plan.ObjectID{Epoch: 1, Kind: 2, Seq: 1}, End: 10}}}
	if got := s.Trim(9).Start; got != 6 {
		t.Fatalf("trimmed to %d past the checkpoint at 6", got)
	}
	s.CheckEnd = 10
	if got := s.Trim(math.MaxInt64); got.Start != 10 || !got.Names(s.Checkpoint) || len(got.Ranges) != 0 {
		t.Fatalf("a full trim leaves %+v; the checkpoint must stay", got)
	}
}

func TestReleaseCommitsTheTail(t *testing.T) {
	m := plantest.New()
	w := walID(4)
	m.Logs[4] = plan.WAL{ID: w}
	m.Streams[1] = plan.Stream{ID: 1, Owner: plan.Owner{Node: w.Node, NodeEpoch: 4, LeaderEpoch: 2}}
	slot := object(w, plan.KindWAL, 0)
	r := plan.Release{WAL: w, Stream: 1, LeaderEpoch: 2, End: 5, Objects: []plan.Object{slot},
		Items: []plan.Item{{Stream: 1, LeaderEpoch: 2, Object: slot.ID, End: 5}}}
	wrong := r
	wrong.End = 6
	if _, err := plan.ApplyRelease(m, wrong); !errors.Is(err, mink.ErrConflict) {
		t.Fatalf("acknowledged records would be lost: %v", err)
	}
	d, err := plan.ApplyRelease(m, r)
	if err != nil {
		t.Fatal(err)
	}
	m.Apply(d)
	if m.Streams[1].End != 5 || len(m.Named) != 1 {
		t.Fatalf("%+v", m)
	}
	if _, err := plan.ApplyRelease(m, r); !errors.Is(err, mink.ErrConflict) {
		t.Fatalf("released twice: %v", err)
	}
}

func TestSlotDeletable(t *testing.T) {
	live := plan.WAL{Trim: 5}
	dead := plan.WAL{Trim: 5, Sealed: true, Recovered: true, End: 9}
	for _, tc := range []struct {
		w     plan.WAL
		seq   uint64
		named bool
		want  bool
	}{
		{live, 4, false, true}, {live, 5, false, false}, {live, 4, true, false},
		{dead, 8, false, true}, {dead, 8, true, false}, {dead, 9, false, false}, {dead, 10, false, true},
		{plan.WAL{Trim: 5, Sealed: true}, 6, false, false},
	} {
		if got := plan.SlotDeletable(tc.w, tc.seq, tc.named); got != tc.want {
			t.Errorf("%+v slot %d named %v: %v", tc.w, tc.seq, tc.named, got)
		}
	}
}

// Failure 19: a slot that another stream of its living node still needs is
// destroyed by the moved stream's trim; it must wait for the WAL's own trim.
func TestDestroyedSlotWaitsForItsWAL(t *testing.T) {
	m := plantest.New()
	w := walID(4)
	slot := object(w, plan.KindWAL, 7)
	m.Logs[4] = plan.WAL{ID: w, Trim: 7}
	m.Gone[slot.ID] = plan.Destroyed{Object: slot}
	if plan.ObjectDeletable(m, slot.ID) {
		t.Fatal("the slot is still needed for recovery")
	}
	m.Logs[4] = plan.WAL{ID: w, Trim: 8}
	if !plan.ObjectDeletable(m, slot.ID) {
		t.Fatal("nobody needs the slot")
	}
	m.Logs[4] = plan.WAL{ID: w, Trim: 7, Sealed: true, Recovered: true, End: 8}
	if !plan.ObjectDeletable(m, slot.ID) {
		t.Fatal("the epoch is recovered")
	}
}

func TestPlanCompaction(t *testing.T) {
	p := plan.DefaultCompaction()
	w := walID(1)
	noStream := func(plan.ObjectID) (mink.StreamID, bool) { return 0, false }
	make0 := func(n int, kind plan.ObjectKind, tier uint8, created func(i int) int64) []plan.Object {
		var out []plan.Object
		for i := range n {
			o := object(w, kind, uint64(i+1))
			o.Tier, o.CreatedMs = tier, created(i)
			out = append(out, o)
		}
		return out
	}
	at := func(ms int64) func(int) int64 { return func(int) int64 { return ms } }
	each := func(i int) int64 { return int64(i) }
	one := func(plan.ObjectID) (mink.StreamID, bool) { return 3, true }
	big := make0(2, plan.KindStreamSet, 0, each)
	big[0].Size, big[1].Size = 200<<20, 60<<20
	huge := make0(9, plan.KindStreamSet, 0, each)
	for i := range huge {
		huge[i].Size = 600 << 20
	}
	wide := make0(9, plan.KindStream, 0, each)
	for i := range wide {
		wide[i].Size = 64 << 20
	}
	for _, tc := range []struct {
		name    string
		objects []plan.Object
		now     int64
		stream  func(plan.ObjectID) (mink.StreamID, bool)
		sources int
		tier    uint8
	}{
		{"seven are too few", make0(7, plan.KindStreamSet, 0, each), 100, noStream, 0, 0},
		{"eight inputs", make0(8, plan.KindStreamSet, 0, each), 100, noStream, 8, 1},
		{"bytes", big, 100, noStream, 2, 1},
		{"age", make0(2, plan.KindStreamSet, 0, each), 10 * 60 * 1000, noStream, 2, 1},
		{"one old upload stays", make0(1, plan.KindStreamSet, 0, each), 1 << 40, noStream, 0, 0},
		{"one old slot is taken over", make0(1, plan.KindWAL, 0, each), 10 * 60 * 1000, noStream, 1, 1},
		{"a young slot waits", make0(1, plan.KindWAL, 0, each), 1000, noStream, 0, 0},
		{"fan-in is bounded", make0(500, plan.KindWAL, 0, each), 1000, noStream, 64, 1},
		{"bytes of one merge are bounded", huge, 1000, noStream, 3, 1},
		{"eight objects of one run", make0(8, plan.KindStreamSet, 1, at(5)), 1 << 40, noStream, 0, 0},
		{"eight runs", make0(8, plan.KindStreamSet, 1, each), 100, noStream, 8, 2},
		{"last tier merges with itself", make0(9, plan.KindStreamSet, 3, each), 100, noStream, 8, 3},
		{"stream objects", make0(9, plan.KindStream, 0, each), 100, one, 8, 1},
		{"large stream objects stay", wide, 1 << 40, one, 0, 0},
		{"stream objects of many streams", make0(9, plan.KindStream, 0, each), 1 << 40, func(id plan.ObjectID) (mink.StreamID, bool) { return mink.StreamID(id.Seq), true }, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			job, ok := plan.PlanCompaction(p, tc.objects, tc.now, tc.stream)
			if ok != (tc.sources > 0) || ok && (len(job.Sources) != tc.sources || job.Tier != tc.tier) {
				t.Fatalf("got %v %+v", ok, job)
			}
			reversed := slices.Clone(tc.objects)
			slices.Reverse(reversed)
			if again, _ := plan.PlanCompaction(p, reversed, tc.now, tc.stream); ok && !cmp.Equal(job, again) {
				t.Fatalf("the order of the objects changed the plan: %+v, %+v", job, again)
			}
		})
	}
}

func TestCompactorIsOneLiveNode(t *testing.T) {
	a, b, c := plan.WALID{Node: 1, Epoch: 10, Nonce: 1}, plan.WALID{Node: 2, Epoch: 11, Nonce: 2}, plan.WALID{Node: 3, Epoch: 12, Nonce: 3}
	if got, ok := plan.Compactor(plan.WALID{Node: 2, Epoch: 5}, []plan.WALID{a, b, c}); !ok || got != b {
		t.Fatalf("node 2 is registered, got %v", got)
	}
	if _, ok := plan.Compactor(a, nil); ok {
		t.Fatal("nobody is live")
	}
	count := map[plan.WALID]int{}
	for e := mink.NodeEpoch(100); e < 400; e++ {
		x, _ := plan.Compactor(plan.WALID{Node: 9, Epoch: e}, []plan.WALID{a, b, c})
		y, _ := plan.Compactor(plan.WALID{Node: 9, Epoch: e}, []plan.WALID{c, a, b})
		if x != y {
			t.Fatal("the answer depends on the order")
		}
		count[x]++
	}
	for w, n := range count {
		if n < 60 {
			t.Errorf("node %d got %d of 300", w.Node, n)
		}
	}
}

// Key and ParseSeq agree, and nothing else is a number of a key.
func TestSeqOfAKey(t *testing.T) {
	w := walID(1)
	for _, seq := range []uint64{0, 7, 1 << 63, 1<<64 - 1} {
		if got, ok := plan.ParseSeq(strings.TrimPrefix(plan.Key(w, plan.KindWAL, seq), plan.WALPrefix(w))); !ok || got != seq {
			t.Errorf("%d came back as %d, %v", seq, got, ok)
		}
	}
	for _, s := range []string{"", "7", "0000000000000000000", "000000000000000000007", "+0000000000000000007", "-0000000000000000007", "0000000000000000000x", "0_000000000000000007", "99999999999999999999"} {
		if got, ok := plan.ParseSeq(s); ok {
			t.Errorf("%q is taken for %d", s, got)
		}
	}
}
