package wal

import (
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// This file is the recoverer's whole judgement, without I/O: next says what to
// ask of the store, the listed/read/created/needed methods take the answer.
// Recover does the asking; the fence model drives the same code through every
// kind of schedule.

// CorruptSlotError says that a slot of a log holds what it must not, or has lost
// what it held. errors.Is(err, mink.ErrCorrupt).
type CorruptSlotError struct {
	WAL  plan.WALID
	Slot uint64
	Key  string
	Why  string
}

func (e *CorruptSlotError) Error() string {
	return fmt.Sprintf("wal %s slot %d (%s) is corrupt: %s; restore the object, or give its records up with mink cluster accept-loss %d/%d",
		e.WAL, e.Slot, e.Key, e.Why, e.WAL.Node, e.WAL.Epoch)
}

// Is makes errors.Is(err, mink.ErrCorrupt) true.
func (e *CorruptSlotError) Is(target error) bool { return target == mink.ErrCorrupt }

type slotKind uint8

const (
	slotUnread    slotKind = iota // occupied, not looked at yet
	slotBulk                      // a bulk of this log
	slotTombstone                 // an exact tombstone of this slot
	slotCorrupt                   // anything else: why
	slotGone                      // was there, is not any more
)

// content is what a slot holds.
type content struct {
	kind   slotKind
	size   int64 // -1: unknown, not from a listing
	window uint64
	object plan.Object
	items  []plan.Item
	why    string
}

type opKind uint8

const (
	opList      opKind = iota // the page of slots >= from after key
	opRead                    // the slots
	opNeeded                  // does anybody still need this recovery?
	opTombstone               // create one in slots[0]
	opDone                    // end is the log's end
	opFail                    // err
	opMoot                    // somebody else's recovery is on record
)

type op struct {
	kind  opKind
	after string   // opList: go on after this key
	slots []uint64 // opRead, opTombstone
	err   error    // opFail
}

// readBatch is how many slots are read at a time.
const readBatch = 32

type recovery struct {
	wal    plan.WALID
	from   uint64 // slots below hold nothing that is needed
	window uint64 // how far beyond the first free slot the first tombstone goes
	accept map[uint64]bool

	after   string
	listed  bool
	slots   map[uint64]*content
	unread  []uint64 // ascending
	run     uint64   // [from, run) are bulks and accepted losses
	far     uint64   // where the far tombstone goes, once hop is set
	hop     uint64
	checked bool // opNeeded was answered just now
	moot    bool

	noTombstones bool // for tests of the tests only: breaks the fence
}

func newRecovery(id plan.WALID, from, window uint64, accept []uint64) *recovery {
	r := &recovery{wal: id, from: from, run: from, window: window, slots: map[uint64]*content{}, accept: map[uint64]bool{}}
	for _, s := range accept {
		r.accept[s] = true
	}
	return r
}

// next is the next thing to do; it changes nothing that asking twice would.
func (r *recovery) next() op {
	switch {
	case r.moot:
		return op{kind: opMoot}
	case !r.listed:
		return op{kind: opList, after: r.after}
	case len(r.unread) > 0:
		return op{kind: opRead, slots: r.unread[:min(readBatch, len(r.unread))]}
	}
	r.advance()
	c := r.slots[r.run]
	switch slot, why := r.damage(); {
	case why == "":
	case slot == r.run && c == nil:
		// A listing takes its time: the slot may have been filled, and those after it,
		// since its page was read. Only a look now tells.
		r.suspect()
		return r.next()
	default:
		return r.certainly(op{kind: opFail, err: r.corrupt(slot, why)})
	}
	if c != nil || r.noTombstones {
		return op{kind: opDone}
	}
	return r.certainly(op{kind: opTombstone, slots: []uint64{r.target()}})
}

// suspect makes the free slot where the run ends the next to be read.
func (r *recovery) suspect() {
	r.slots[r.run] = &content{size: -1}
	r.unread = append(r.unread, r.run)
}

// certainly puts the question whether the recovery is still needed before o.
func (r *recovery) certainly(o op) op {
	if !r.checked {
		return op{kind: opNeeded}
	}
	return o
}

// advance moves run over bulks, and over slots that are accepted as lost. A free
// one of those gets a tombstone first: its writer might still fill it.
func (r *recovery) advance() {
	for {
		c := r.slots[r.run]
		if c == nil || c.kind != slotBulk && !r.accept[r.run] {
			return
		}
		r.run++
	}
}

// target is where the next tombstone goes: first far ahead, at a distance where
// no writer can be yet; if one was quicker, twice as far ahead each time; then
// wherever the run stops.
func (r *recovery) target() uint64 {
	if r.hop == 0 {
		r.hop = r.window
		r.far = r.run + r.hop
	}
	for {
		switch c := r.slots[r.far]; {
		case c == nil:
			return r.far
		case c.kind == slotTombstone:
			return r.run
		}
		r.hop *= 2
		r.far += r.hop
	}
}

// damage is the lowest slot at or after the run's end that is not as it must be,
// and why; "" when all is well.
func (r *recovery) damage() (slot uint64, why string) {
	slot = ^uint64(0)
	for s, c := range r.slots {
		switch {
		case s < r.run || s > slot:
		case c.kind == slotCorrupt && !r.accept[s]:
			slot, why = s, c.why
		case c.kind == slotGone:
			slot, why = s, "its bulk was there, and is not any more"
		case c.kind == slotBulk && s-r.run >= c.window && slot > r.run && !r.accept[r.run]:
			// Whoever wrote s had seen slot run in the store.
			slot, why = r.run, fmt.Sprintf("its bulk is missing: slot %d was written, with a window of %d", s, c.window)
		}
	}
	return slot, why
}

func (r *recovery) corrupt(slot uint64, why string) error {
	return &CorruptSlotError{WAL: r.wal, Slot: slot, Key: plan.Key(r.wal, plan.KindWAL, slot), Why: why}
}

// listedPage takes one page of the listing.
func (r *recovery) listedPage(p page) {
	for _, s := range p.slots {
		if _, known := r.slots[s.Seq]; known || s.Seq < r.from {
			continue
		}
		r.slots[s.Seq] = &content{size: s.Size}
		r.unread = append(r.unread, s.Seq)
	}
	r.after, r.listed = p.last, !p.more
}

// read takes what the slots of an opRead hold, in the same order.
func (r *recovery) read(contents []content) {
	for k, c := range contents {
		s := r.unread[k]
		if c.kind == slotGone && r.accept[s] {
			delete(r.slots, s) // free again
			continue
		}
		*r.slots[s] = c
	}
	r.unread = r.unread[len(contents):]
	r.checked = false
}

// created takes the answer to an opTombstone: whether the slot was free.
func (r *recovery) created(slot uint64, free bool) {
	r.checked = false
	if free {
		r.slots[slot] = &content{kind: slotTombstone}
		return
	}
	r.slots[slot] = &content{size: -1}
	r.unread = append(r.unread, slot)
}

// needed takes the answer to an opNeeded.
func (r *recovery) needed(yes bool) { r.checked, r.moot = true, !yes }

// result is for after opDone.
func (r *recovery) result() Result {
	res := Result{End: r.run}
	seqs := make([]uint64, 0, len(r.slots))
	for s, c := range r.slots {
		if s < r.run && c.kind == slotBulk {
			seqs = append(seqs, s)
		}
	}
	slices.Sort(seqs)
	next := r.from
	ends := map[mink.StreamID]mink.Offset{}
	for _, s := range seqs {
		for ; next < s; next++ {
			res.Lost = append(res.Lost, next)
		}
		next = s + 1
		c := r.slots[s]
		res.Objects = append(res.Objects, c.object)
		res.Items = append(res.Items, c.items...)
		if len(r.accept) > 0 {
			res.Gaps = appendGaps(res.Gaps, ends, c.items, len(res.Lost) > 0)
		}
	}
	for ; next < r.run; next++ {
		res.Lost = append(res.Lost, next)
	}
	return res
}

// appendGaps notes where a stream's items do not adjoin. After a loss, a stream's
// first item may follow a gap whose start only metadata knows.
func appendGaps(gaps []StreamGap, ends map[mink.StreamID]mink.Offset, items []plan.Item, lost bool) []StreamGap {
	for _, it := range items {
		end, known := ends[it.Stream]
		switch {
		case !lost:
		case !known:
			gaps = append(gaps, StreamGap{Stream: it.Stream, Start: FromCommittedEnd, End: it.Start})
		case end < it.Start:
			gaps = append(gaps, StreamGap{Stream: it.Stream, Start: end, End: it.Start})
		}
		ends[it.Stream] = it.End
	}
	return gaps
}
