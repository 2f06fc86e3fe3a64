package cluster

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// NoSlot is the slot of a LostSlot that speaks of no slot: no log has it.
const NoSlot = math.MaxUint64

// How far ids skip ahead when a time line begins. What the lost entries gave out
// is not given out again: a client that still knows the id of a lost table, or a
// writer id, must not meet another one under it, nor an object another stream's.
const (
	idSkip     = 1 << 20
	writerSkip = 1 << 32
)

// TimeLine is the index at which the present time line began: where metadata that
// may lack their newest entries were accepted; 0: they never were. Objects of node
// epochs at or below it that the state does not name may hold records of the lost
// entries: no sweep takes them.
func (s *State) TimeLine() uint64 { return s.timeLine }

// SinkFence is the fence that sinks get of a holder of a lease. It is higher for a later lease,
// and after metadata went back higher than what sinks have seen of the lost entries, whose
// leases had greater numbers.
//
//	sinkFence or time line << 20 | lease     a million leases in each time line, which is the index of an entry
func (s *State) SinkFence(lease mink.LeaseEpoch) mink.LeaseEpoch {
	return max(mink.LeaseEpoch(s.timeLine<<timeLineShift), mink.LeaseEpoch(s.sinkFence)) + lease
}

const (
	timeLineShift = 20
	fenceSkip     = 1 << timeLineShift // of workers whose rounds were not committed
	sinkFenceMax  = 1 << 62
	stoppedMax    = 1000 // bytes of a reason
)

// beginTimeLine goes on from metadata that may lack their newest entries.
//
//	every node epoch            is sealed: its log is recovered by whoever holds the lease
//	ids                         skip ahead
//	a stream without a log to   ends at what the store shows was given out, behind an
//	recover                     accepted gap
//	a stream with one           the same, once that log is recovered: first comes what
//	                            the log still holds
func (t *txn) beginTimeLine(c *clusterpb.SetIncarnation) *clusterpb.Result {
	if t.epoch != 0 {
		return invalid("a time line begins with a batch of epoch 0, the proposer is epoch %d", t.epoch)
	}
	for _, l := range c.GetWals() {
		if w, found := t.s.wals.get(mink.NodeEpoch(l.GetWal().GetEpoch())); !found || w.ID != walID(l.GetWal()) {
			return notExist("begin a time line: wal %s was never registered", walID(l.GetWal()))
		}
	}
	if r := t.checkLostSinks(c); r != nil {
		return r
	}
	before := t.savepoint()
	for epoch, w := range before.wals.all() {
		if !w.Sealed {
			t.seal(epoch, "the metadata were restored, or went back")
		}
	}
	t.moveGroups(&before)
	for _, l := range c.GetWals() {
		t.cutWAL(l)
	}
	t.respectEnds(c.GetEnds())
	for _, l := range c.GetStopped() {
		t.stopSink(l)
	}
	h := &t.s.header
	if c.GetSinkFence() > 0 && !t.s.faults.fenceBack {
		h.sinkFence = max(h.sinkFence, c.GetSinkFence()+fenceSkip)
	}
	h.nextDatabase += idSkip
	h.nextTable += idSkip
	h.nextPartition += idSkip
	h.nextStream += idSkip
	h.nextProducerVersion += idSkip
	h.nextWriter += writerSkip
	h.timeLine = h.index
	return nil
}

// cutWAL notes what a log has not got any more: it was uploaded and deleted after
// the last entry that the metadata have.
func (t *txn) cutWAL(l *clusterpb.LostWAL) {
	epoch := mink.NodeEpoch(l.GetWal().GetEpoch())
	if w, _ := t.s.wals.get(epoch); w.Recovered {
		return
	}
	t.setWAL(epoch, func(w *walEntry) {
		w.Trim = max(w.Trim, l.GetTrim())
		w.lost = slices.Clone(w.lost)
		for _, slot := range l.GetMissing() {
			if slot >= w.Trim {
				w.addLost(LostSlot{Slot: slot})
			}
		}
	})
	t.unpark(epoch)
}

// addLost keeps the slots in order; one that is known keeps its ranges.
func (w *walEntry) addLost(l LostSlot) {
	at, known := sort.Find(len(w.lost), func(i int) int { return cmp.Compare(l.Slot, w.lost[i].Slot) })
	if !known {
		w.lost = slices.Insert(w.lost, at, l)
	}
}

func (t *txn) respectEnds(ends []*clusterpb.StreamEnd) {
	if t.s.faults.noLostEnds {
		return
	}
	pending := map[mink.NodeEpoch][]LostRange{}
	for _, e := range ends {
		st, found := t.s.streams.get(mink.StreamID(e.GetStream()))
		gap := plan.Gap{End: mink.Offset(e.GetEnd())}
		if !found || gap.End <= st.End {
			continue
		}
		gap.Start = st.End
		if w, found := t.s.wals.get(st.Owner.NodeEpoch); found && !w.Recovered {
			pending[w.ID.Epoch] = append(pending[w.ID.Epoch], LostRange{Stream: st.ID, Gap: gap})
			continue
		}
		if next, err := st.AddGap(gap); err == nil {
			t.putStream(next)
		}
	}
	for _, epoch := range slices.Sorted(maps.Keys(pending)) {
		t.setWAL(epoch, func(w *walEntry) {
			w.lost = slices.Clone(w.lost)
			w.addLost(LostSlot{Slot: NoSlot})
			last := &w.lost[len(w.lost)-1]
			last.Gaps = append(slices.Clone(last.Gaps), pending[epoch]...)
		})
	}
}

func (t *txn) checkLostSinks(c *clusterpb.SetIncarnation) *clusterpb.Result {
	if f := c.GetSinkFence(); f < 0 || f > sinkFenceMax {
		return invalid("begin a time line: a sink's fence of %d, 0 to %d are allowed", f, int64(sinkFenceMax))
	}
	for _, l := range c.GetStopped() {
		if n := len(l.GetReason()); n == 0 || n > stoppedMax {
			return invalid("begin a time line: table %d at sink %q stops for a reason of %d bytes, 1 to %d are allowed", l.GetTable(), l.GetSink(), n, stoppedMax)
		}
	}
	return nil
}

// stopSink ends the rounds of a table at a sink until it begins anew there. One that is
// not tiered is skipped.
func (t *txn) stopSink(l *clusterpb.StoppedSink) {
	old, found := t.s.tierings.get(&Tiering{Table: mink.TableID(l.GetTable()), Sink: l.GetSink()})
	if !found || t.s.faults.keepStopped {
		return
	}
	next := *old
	next.Stopped = l.GetReason()
	t.s.tierings.set(&next)
}
