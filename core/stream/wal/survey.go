package wal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// UnknownTail is how many offsets are given up where nothing says how many a
// damaged slot held: more than one bulk has of one stream.
const UnknownTail = 1 << 32

// Damage is what keeps a log from being recovered.
type Damage struct {
	WAL   plan.WALID
	Slots []DamagedSlot // ascending
}

// DamagedSlot is one slot that recovery stops at.
type DamagedSlot struct {
	Slot   uint64
	Key    string
	Why    string
	Losses []Loss // by stream; none: what it held is committed, or was nothing
}

// Loss is a range of offsets that goes with a slot. Where later records of the
// stream or the damaged object itself say what was in it, it is Exact; else it
// is UnknownTail offsets long, so that no offset that was given out is given out
// again.
type Loss struct {
	Stream     mink.StreamID
	Start, End mink.Offset
	Exact      bool
}

// Survey reads a log as Recover does, without writing anything, and answers
// every slot that Recover would stop at, one after the other, beyond those of
// cfg.AcceptLost. streams are those that the log's epoch leads, accepted the
// ranges that metadata already lets go for the slots of AcceptLost.
// The log's epoch must be sealed. Errors as of Recover, without CorruptSlotError.
func Survey(ctx context.Context, cfg RecoverConfig, streams iter.Seq[plan.Stream], accepted []StreamGap) (Damage, error) {
	d, err := newDriver(cfg)
	if err != nil {
		return Damage{}, err
	}
	damage := Damage{WAL: cfg.WAL}
	r := newRecovery(cfg.WAL, cfg.From, uint64(cfg.Window), cfg.AcceptLost)
	for done := false; !done; {
		switch o := r.next(); o.kind {
		case opDone:
			done = true
		case opNeeded:
			r.needed(true)
		case opTombstone: // as if it were put
			r.created(o.slots[0], true)
		case opFail:
			c := (*CorruptSlotError)(nil)
			if !errors.As(o.err, &c) || r.accept[c.Slot] {
				return Damage{}, o.err
			}
			damage.Slots = append(damage.Slots, DamagedSlot{Slot: c.Slot, Key: c.Key, Why: c.Why})
			r.giveUp(c.Slot)
		default:
			if err := d.ask(ctx, r, o); err != nil {
				return Damage{}, fmt.Errorf("survey wal %s: %w", cfg.WAL, err)
			}
		}
	}
	slices.SortFunc(damage.Slots, func(a, b DamagedSlot) int { return cmp.Compare(a.Slot, b.Slot) })
	salvaged := make([]object.Salvaged, len(damage.Slots))
	for i := range damage.Slots {
		if salvaged[i], err = d.salvage(ctx, damage.Slots[i]); err != nil {
			return Damage{}, fmt.Errorf("survey wal %s: %w", cfg.WAL, err)
		}
	}
	damage.assign(streams, r.result().Items, salvaged, accepted)
	return damage, nil
}

// giveUp accepts the loss of a slot in the middle of a recovery.
func (r *recovery) giveUp(slot uint64) {
	r.accept[slot] = true
	if c := r.slots[slot]; c != nil && c.kind == slotGone {
		delete(r.slots, slot)
	}
}

// salvageMax bounds what is read of a damaged object. Bulks are smaller.
const salvageMax = 256 << 20

// salvage reads what a damaged slot says of itself; nothing when it is missing
// or holds what was never meant for it.
func (d *driver) salvage(ctx context.Context, s DamagedSlot) (object.Salvaged, error) {
	resp, err := retry(ctx, d, func(ctx context.Context) (objstore.GetRangeResponse, error) {
		info, err := d.cfg.Store.Head(ctx, s.Key)
		if err != nil || info.Size == 0 {
			return objstore.GetRangeResponse{}, err
		}
		return d.cfg.Store.GetRange(ctx, objstore.GetRangeRequest{Key: s.Key, Length: min(info.Size, salvageMax)})
	})
	switch {
	case permanent(err):
		return object.Salvaged{}, nil
	case err != nil:
		return object.Salvaged{}, fmt.Errorf("read slot %d: %w", s.Slot, err)
	}
	if h, err := object.ParseHeader(resp.Data); err == nil && (h.WAL != d.cfg.WAL || h.Seq != s.Slot || h.Kind != plan.KindWAL) {
		return object.Salvaged{}, nil
	}
	return object.Salvage(resp.Data), nil
}

// assign works out what each slot's loss takes of each stream: the offsets
// between what lies before the slot and what lies behind it.
func (d *Damage) assign(streams iter.Seq[plan.Stream], items []plan.Item, salvaged []object.Salvaged, accepted []StreamGap) {
	byStream := map[mink.StreamID][]plan.Item{}
	for _, it := range items {
		byStream[it.Stream] = append(byStream[it.Stream], it)
	}
	gone := map[mink.StreamID][]StreamGap{}
	for _, g := range accepted {
		gone[g.Stream] = append(gone[g.Stream], g)
	}
	for s := range streams {
		at := s.End
		slot := 0 // the first of d.Slots at or behind which the next hole begins
		lose := func(i int, end mink.Offset, exact bool) {
			d.Slots[i].Losses = append(d.Slots[i].Losses, Loss{Stream: s.ID, Start: at, End: end, Exact: exact})
			at = end
		}
		for _, it := range byStream[s.ID] {
			if it.LeaderEpoch != s.Owner.LeaderEpoch {
				continue
			}
			at = max(at, acceptedEnd(gone[s.ID], at, it.Start))
			if it.Start > at && slot < len(d.Slots) && d.Slots[slot].Slot < it.Object.Seq {
				lose(slot, it.Start, true)
			}
			at = max(at, it.End)
			for slot < len(d.Slots) && d.Slots[slot].Slot < it.Object.Seq {
				slot++
			}
		}
		at = max(at, acceptedEnd(gone[s.ID], at, -1))
		for ; slot < len(d.Slots); slot++ {
			end, known, ok := salvaged[slot].Ends(s.ID, s.Owner.LeaderEpoch)
			switch {
			case !known:
				lose(slot, max(at, end)+UnknownTail, false)
			case ok && end > at:
				lose(slot, end, true)
			}
		}
	}
	for i := range d.Slots {
		slices.SortFunc(d.Slots[i].Losses, func(a, b Loss) int { return cmp.Compare(a.Stream, b.Stream) })
	}
}

// acceptedEnd is how far the ranges reach from `at` without a break; to -1: as
// far as they go.
func acceptedEnd(gaps []StreamGap, at, to mink.Offset) mink.Offset {
	for moved := true; moved; {
		moved = false
		for _, g := range gaps {
			if g.Start <= at && g.End > at {
				at, moved = g.End, true
			}
		}
	}
	if to >= 0 {
		at = min(at, to)
	}
	return at
}
