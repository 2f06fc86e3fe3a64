package wal

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/mink-project/mink/core/internal/invariant"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// This file is the writer's whole judgement, without goroutines, clock or I/O,
// so that the fence model drives it through every kind of schedule.

// ledger knows which slots are acknowledged: [0, acked) are, [acked, next) are
// submitted, and landed says which of those are in the store.
type ledger struct {
	window      uint64
	acked, next uint64
	landed      []bool // slot s at s % window
	err         error  // set once; nothing is acknowledged after it

	ackInAnyOrder bool // for tests of the tests only: breaks the log
}

func newLedger(window int) *ledger {
	return &ledger{window: uint64(window), landed: make([]bool, window)}
}

// outstanding is how many slots are submitted and not acknowledged.
func (l *ledger) outstanding() uint64 { return l.next - l.acked }

// submit takes the next slot.
func (l *ledger) submit() uint64 {
	invariant.Check(l.outstanding() < l.window, "wal: slot %d is outside the window of %d from slot %d", l.next, l.window, l.acked)
	l.next++
	return l.next - 1
}

// land records that slot's bulk is in the store and returns up to where slots
// are acknowledged now.
func (l *ledger) land(slot uint64) (acked uint64) {
	if l.ackInAnyOrder {
		l.acked = max(l.acked, slot+1)
		return l.acked
	}
	invariant.Check(slot >= l.acked && slot < l.next, "wal: slot %d landed, outstanding are [%d, %d)", slot, l.acked, l.next)
	l.landed[slot%l.window] = true
	if l.err != nil {
		return l.acked
	}
	for l.acked < l.next && l.landed[l.acked%l.window] {
		l.landed[l.acked%l.window] = false
		l.acked++
	}
	return l.acked
}

// fail makes err final, unless an earlier one is.
func (l *ledger) fail(err error) error {
	if l.err == nil {
		l.err = err
	}
	return l.err
}

// step is what to do next for one slot.
type step uint8

const (
	stepPut    step = iota // create the slot
	stepLook               // read its first 64 bytes
	stepLanded             // it is ours
	stepFailed             // it never will be: attempt.err
)

// maxBadLooks is how many unreadable headers are taken for damage on the way
// rather than in the store.
const maxBadLooks = 3

// attempt is the way of one bulk into its slot.
type attempt struct {
	wal      plan.WALID
	slot     uint64
	header   []byte // of the bulk: says whether a taken slot is ours
	size     int64
	pause    bool  // wait before the next step
	taken    bool  // the last Put found something in the slot
	last     error // the last one that was retried, for messages
	err      error // why it failed
	badLooks int

	trustExists bool // for tests of the tests only: takes any taken slot for ours
}

func (a *attempt) fail(class error, format string, args ...any) step {
	a.err = fmt.Errorf("wal %s slot %d: %w: %w", a.wal, a.slot, class, fmt.Errorf(format, args...))
	return stepFailed
}

// afterPut judges the answer to a create-only Put.
func (a *attempt) afterPut(err error) step {
	a.pause, a.taken = false, errors.Is(err, objstore.ErrAlreadyExists)
	switch {
	case err == nil:
		return stepLanded
	case a.taken:
		if a.trustExists {
			return stepLanded
		}
		return stepLook
	case errors.Is(err, objstore.ErrInvalid), errors.Is(err, objstore.ErrUnimplemented):
		return a.fail(mink.ErrUnavailable, "the store will never take this: %w", err)
	}
	a.last, a.pause = err, true
	if errors.Is(err, objstore.ErrThrottled) {
		return stepPut // refused before anything happened
	}
	return stepLook
}

// afterLook judges the slot's first 64 bytes.
func (a *attempt) afterLook(resp objstore.GetRangeResponse, err error) step {
	a.pause = false
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		// The Put never landed, or has not yet: then the next one will tell.
		a.pause, a.last = a.taken, err
		return stepPut
	case errors.Is(err, objstore.ErrInvalid):
		return a.fail(mink.ErrFenced, "something shorter than a header is in it: %w", err)
	case err != nil:
		a.last, a.pause = err, true
		return stepLook
	case bytes.Equal(resp.Data, a.header):
		if resp.Size != a.size {
			return a.fail(mink.ErrFenced, "%w: it holds %d bytes of our bulk's %d", mink.ErrCorrupt, resp.Size, a.size)
		}
		return stepLanded
	}
	h, err := object.ParseHeader(resp.Data)
	switch {
	case err != nil && a.badLooks+1 < maxBadLooks:
		a.badLooks++
		a.last, a.pause = err, true
		return stepLook
	case err != nil:
		return a.fail(mink.ErrFenced, "something else is in it: %w", err)
	case h.Kind == plan.KindTombstone && h.WAL == a.wal && h.Seq == a.slot:
		return a.fail(mink.ErrFenced, "a recoverer closed the log with tombstone %016x", h.Nonce)
	default:
		return a.fail(mink.ErrFenced, "it holds an object of wal %s, slot %d, kind %d, nonce %016x", h.WAL, h.Seq, h.Kind, h.Nonce)
	}
}
