package cluster

import (
	"cmp"
	"slices"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// recoverAcrossLoss recovers a WAL some of whose slots are accepted as lost. It
// alternates: items up to the next hole of each stream, then the accepted gaps
// that fill those holes. A hole that no accepted gap fills refuses the whole
// command. A gap at the very end raises the end too: its offsets were given out.
func (t *txn) recoverAcrossLoss(w *walEntry, c plan.RecoverWAL) *clusterpb.Result {
	before := t.savepoint()
	gaps := acceptedGaps(w.lost)
	var rest []plan.Item // those that count
	for _, it := range c.Items {
		if st, found := t.s.Stream(it.Stream); found && st.Owner == (plan.Owner{Node: c.WAL.Node, NodeEpoch: c.WAL.Epoch, LeaderEpoch: it.LeaderEpoch}) {
			rest = append(rest, it)
		}
	}
	for {
		var now, later []plan.Item
		blocked := map[mink.StreamID]mink.Offset{} // stream -> where its first deferred item starts
		ends := map[mink.StreamID]mink.Offset{}
		for _, it := range rest {
			if _, stop := blocked[it.Stream]; stop {
				later = append(later, it)
				continue
			}
			end, seen := ends[it.Stream]
			if !seen {
				st, _ := t.s.Stream(it.Stream)
				end = st.End
			}
			if it.Start > end && len(gaps[it.Stream]) > 0 {
				blocked[it.Stream] = it.Start
				later = append(later, it)
				continue
			}
			ends[it.Stream] = max(end, it.End)
			now = append(now, it)
		}
		part := c
		part.Items = now
		t.setWAL(c.WAL.Epoch, func(w *walEntry) { w.Recovered = false })
		d, err := plan.ApplyRecoverWAL(t.s, part)
		if err != nil {
			t.rollback(before)
			return refuseErr(err)
		}
		t.apply(d)
		if len(later) == 0 {
			break
		}
		if r := t.fillHoles(c, gaps, blocked, later); r != nil {
			t.rollback(before)
			return r
		}
		rest = later
	}
	t.fillTails(c.WAL, gaps)
	return ok()
}

// fillHoles moves each blocked stream's end over accepted gaps towards its next
// item. Every pass must move every blocked stream.
func (t *txn) fillHoles(c plan.RecoverWAL, gaps map[mink.StreamID][]plan.Gap, blocked map[mink.StreamID]mink.Offset, later []plan.Item) *clusterpb.Result {
	for _, it := range later {
		want, first := blocked[it.Stream]
		if !first {
			continue // an item behind the first deferred one
		}
		delete(blocked, it.Stream)
		st, _ := t.s.Stream(it.Stream)
		end := gapEnd(gaps[it.Stream], st.End, want)
		if end < want {
			return conflict("recover wal %s: stream %d misses [%d, %d), which no accepted loss covers", c.WAL, st.ID, st.End, want)
		}
		st, err := st.AddGap(plan.Gap{Start: st.End, End: want})
		if err != nil {
			return refuseErr(err)
		}
		t.putStream(st)
	}
	return nil
}

func (t *txn) fillTails(wal plan.WALID, gaps map[mink.StreamID][]plan.Gap) {
	for st := range t.s.StreamsLedBy(wal.Epoch) {
		g := gaps[st.ID]
		if len(g) == 0 {
			continue
		}
		last := slices.MaxFunc(g, func(a, b plan.Gap) int { return cmp.Compare(a.End, b.End) })
		end := gapEnd(g, st.End, last.End)
		if end > st.End {
			if next, err := st.AddGap(plan.Gap{Start: st.End, End: end}); err == nil {
				t.putStream(next)
			}
		}
	}
}

// acceptedGaps are the lost ranges per stream, by start.
func acceptedGaps(lost []LostSlot) map[mink.StreamID][]plan.Gap {
	gaps := map[mink.StreamID][]plan.Gap{}
	for _, slot := range lost {
		for _, g := range slot.Gaps {
			gaps[g.Stream] = append(gaps[g.Stream], g.Gap)
		}
	}
	for _, list := range gaps {
		slices.SortFunc(list, func(a, b plan.Gap) int { return cmp.Compare(a.Start, b.Start) })
	}
	return gaps
}

// gapEnd is how far the gaps reach from `from` without a break, at most to `to`.
func gapEnd(gaps []plan.Gap, from, to mink.Offset) mink.Offset {
	for _, g := range gaps {
		if g.Start <= from && g.End > from {
			from = g.End
		}
	}
	return min(from, to)
}
