package cluster

import (
	"fmt"
	"iter"
	"slices"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// TierHold says what of tiering bounds a trim.
type TierHold struct {
	Sink  string
	Bound mink.Offset
	// Grace: the sink has more than that, but a snapshot of it that readers may still
	// use has not.
	Grace    bool
	Snapshot string // that snapshot
	UntilMs  int64  // when it is out of its grace; 0: not Grace
}

// TierBound is how far sinks let a stream be trimmed; ok is false when none holds it.
func (s *State) TierBound(id mink.StreamID) (TierHold, bool) {
	st, found := s.streams.get(id)
	if !found {
		return TierHold{}, false
	}
	_, hold, ok := s.tierBound(st, 0)
	return hold, ok
}

// TierHolds are the bounds of all retaining sinks of a stream, by sink.
func (s *State) TierHolds(id mink.StreamID) iter.Seq[TierHold] {
	return func(yield func(TierHold) bool) {
		st, found := s.streams.get(id)
		if !found {
			return
		}
		for b := range s.tieredOf(id) {
			t, on := s.Tiering(st.Bucket.Table, b.sink)
			if on && t.Retains && !yield(TierHold{Sink: b.sink, Bound: b.neededEnd(t, s.timeMs)}) {
				return
			}
		}
	}
}

// tierBound is the lowest bound of all sinks that retain and took something since
// giveUpMs. It only rises: ends do, and snapshots leave their grace.
func (s *State) tierBound(st *plan.Stream, giveUpMs int64) (bound mink.Offset, hold TierHold, ok bool) {
	for b := range s.tieredOf(st.ID) {
		t, on := s.Tiering(st.Bucket.Table, b.sink)
		if !on || !t.Retains || t.LastMs() < giveUpMs {
			continue
		}
		to := b.neededEnd(t, s.timeMs)
		if s.faults.noReadGrace {
			to = b.end()
		}
		if ok && bound <= to {
			continue
		}
		bound, ok = to, true
		hold = TierHold{Sink: b.sink, Bound: to}
		if needed, some := t.needed(s.timeMs); some && to < b.end() {
			hold.Grace, hold.Snapshot, hold.UntilMs = true, needed.Snapshot, needed.SupersededMs+t.ReadGraceMs
		}
	}
	return bound, hold, ok
}

// allowGaps notes what sinks will lack once a log is trimmed to an offset: they
// were given up, or nothing.
func (t *txn) allowGaps(st *plan.Stream, to mink.Offset) {
	for _, old := range slices.Collect(t.s.tieredOf(st.ID)) {
		s, on := t.s.Tiering(st.Bucket.Table, old.sink)
		if !on || t.s.faults.noGaps {
			continue
		}
		b := *old
		if has := max(b.neededEnd(s, t.s.timeMs), b.start); has < to {
			b.addGap(plan.Gap{Start: has, End: to})
			t.s.tiered.set(&b)
		}
	}
}

// checkTiering verifies that options, ends, logs and snapshots agree.
func (s *State) checkTiering() error {
	for t := range s.tierings.all() {
		table, found := s.tables.get(t.Table)
		if !found {
			return fmt.Errorf("table %d is tiered to %q and does not exist", t.Table, t.Sink)
		}
		if on := table.Descriptor.TiersTo(t.Sink); on == t.Off {
			return fmt.Errorf("table %d: its options say %t of sink %q, it is switched off: %t", t.Table, on, t.Sink, t.Off)
		}
		if want := table.Descriptor.SinkRetains(t.Sink); !t.Off && want != t.Retains {
			return fmt.Errorf("table %d: its options say %t of retaining for sink %q, it retains: %t", t.Table, want, t.Sink, t.Retains)
		}
		if err := t.check(s); err != nil {
			return fmt.Errorf("table %d at sink %q: %w", t.Table, t.Sink, err)
		}
	}
	for id, table := range s.tables.all() {
		for _, name := range table.Descriptor.Sinks() {
			if _, on := s.Tiering(id, name); !on {
				return fmt.Errorf("table %d: its options name sink %q, which does not know it", id, name)
			}
		}
	}
	for b := range s.tiered.all() {
		if err := s.checkTiered(b); err != nil {
			return fmt.Errorf("stream %d at sink %q: %w", b.stream, b.sink, err)
		}
	}
	for _, st := range s.streams.all() {
		for t := range s.TieringsOf(st.Bucket.Table) {
			if _, found := s.tiered.get(&tieredBucket{stream: st.ID, sink: t.Sink}); !found {
				return fmt.Errorf("stream %d has no base offset at sink %q", st.ID, t.Sink)
			}
		}
	}
	for f := range s.former.all() {
		table, found := s.tables.get(f.table)
		if !found || len(table.Descriptor.PrimaryKey) == 0 || !s.EverTiered(f.table, f.sink) {
			return fmt.Errorf("sink %q has a former partition %q of table %d, which is no primary-key table there", f.sink, f.values, f.table)
		}
	}
	for d := range s.droppedSinks.all() {
		if d.Table <= 0 || d.Table >= s.nextTable || d.index > s.index || d.DroppedMs > s.timeMs {
			return fmt.Errorf("table %d was dropped at sink %q at index %d, the state is at %d", d.Table, d.Sink, d.index, s.index)
		}
	}
	return nil
}

func (t *Tiering) check(s *State) error {
	n := len(t.Snapshots)
	switch {
	case t.Rounds < 0 || (t.Rounds == 0) != (n == 0) || (t.Rounds == 0) != (t.Round == ""):
		return fmt.Errorf("%d rounds, the last one %q, %d snapshots", t.Rounds, t.Round, n)
	case n > maxLakeSnapshots || t.ReadGraceMs < 0 || t.ReadGraceMs > MaxReadGrace || t.EnabledMs > s.timeMs || t.CommittedMs > s.timeMs || t.Fence > s.lease.Epoch:
		return fmt.Errorf("%d snapshots, read grace %d, enabled at %d, committed at %d under lease %d; now is %d, lease %d", n, t.ReadGraceMs, t.EnabledMs, t.CommittedMs, t.Fence, s.timeMs, s.lease.Epoch)
	case n == 0:
		return nil
	}
	if l := t.Snapshots[n-1]; l.Snapshot != t.Snapshot || l.number != t.Rounds || l.CommittedMs != t.CommittedMs || l.SupersededMs != 0 {
		return fmt.Errorf("the current snapshot is %+v, the last round made %q, number %d at %d", l, t.Snapshot, t.Rounds, t.CommittedMs)
	}
	for i, l := range t.Snapshots[:n-1] {
		if next := t.Snapshots[i+1]; l.number < 1 || l.number >= next.number || l.CommittedMs > l.SupersededMs || l.SupersededMs > next.CommittedMs {
			return fmt.Errorf("snapshot %+v before %+v", l, next)
		}
	}
	return nil
}

func (s *State) checkTiered(b *tieredBucket) error {
	st, found := s.streams.get(b.stream)
	if !found {
		return fmt.Errorf("the stream does not exist")
	}
	t, found := s.tierings.get(&Tiering{Table: st.Bucket.Table, Sink: b.sink})
	if !found {
		return fmt.Errorf("table %d is not tiered to it", st.Bucket.Table)
	}
	end, round := b.base, int64(0)
	for _, e := range b.ends {
		if e.round <= round || e.end < end || e.round > t.Rounds {
			return fmt.Errorf("base %d, ends %v, of %d rounds", b.base, b.ends, t.Rounds)
		}
		end, round = e.end, e.round
	}
	if b.finished && !s.isClosed(st.Bucket.Partition) {
		return fmt.Errorf("its log is finished and partition %d is not closed", st.Bucket.Partition)
	}
	if b.base < 0 || b.start < 0 || b.start > st.Start || end > st.End {
		return fmt.Errorf("base %d, log start %d then, end %d of a log [%d, %d)", b.base, b.start, end, st.Start, st.End)
	}
	last := mink.Offset(-1)
	for _, g := range b.gaps {
		if g.Start <= last || g.End <= g.Start || g.End > st.Start {
			return fmt.Errorf("gaps %v of a log that starts at %d", b.gaps, st.Start)
		}
		last = g.End
	}
	if t.Off || !t.Retains {
		return nil
	}
	// What the oldest snapshot does not have is in the log, or may be missing.
	has := max(b.neededEnd(t, s.timeMs), b.start)
	for _, g := range b.gaps {
		if g.Start <= has {
			has = max(has, g.End)
		}
	}
	if st.Start > has {
		return fmt.Errorf("trimmed to %d, readers of it have %d", st.Start, has)
	}
	return nil
}
