package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// Op is a set of store operations.
type Op uint16

// The operations.
const (
	Put Op = 1 << iota
	Get
	Head
	List
	Delete
	StartUpload
	PutPart
	CompleteUpload
	AbortUpload

	// Writes change what a reader sees.
	Writes = Put | Delete | CompleteUpload
	// Reads change nothing.
	Reads = Get | Head | List
	// AnyOp is every operation.
	AnyOp = Writes | Reads | StartUpload | PutPart | AbortUpload
)

var opNames = []string{"put", "get", "head", "list", "delete", "start upload", "put part", "complete upload", "abort upload"}

// String names the operations in the set, joined by "|".
func (o Op) String() string {
	var names []string
	for i, name := range opNames {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}

// mutates says that a caller who saw no answer cannot know the effect.
func (o Op) mutates() bool { return o&Reads == 0 }

// Call is one call of the store, as rules and observers see it.
type Call struct {
	Op         Op
	Key        string   // List: the prefix; Delete: the first key
	Keys       []string // Delete only
	Bytes      int64    // bytes to write; a read's observer sees the bytes read
	CreateOnly bool
	N          int // the how manyth call of this Op and Key it is, from 1
}

// String is for messages.
func (c Call) String() string { return fmt.Sprintf("%s %q (call %d)", c.Op, c.Key, c.N) }

// Rule says what happens to which calls. Of several rules that match a call the
// delays add up and the first other action wins.
type Rule struct {
	Ops         Op              // 0: AnyOp
	Prefix      string          // of the key; of any key of a Delete
	Match       func(Call) bool // more conditions; nil: none. Called under the store's lock: must not block
	Skip        int             // lets so many matching calls pass first
	Times       int             // acts so many times, then never again; 0: for ever
	Probability float64         // of acting, in (0, 1]; 0: always
	Do          Action
}

func (r *Rule) matches(c Call) bool {
	ops := r.Ops
	if ops == 0 {
		ops = AnyOp
	}
	if ops&c.Op == 0 {
		return false
	}
	hit := strings.HasPrefix(c.Key, r.Prefix)
	for _, k := range c.Keys {
		hit = hit || strings.HasPrefix(k, r.Prefix)
	}
	return hit && (r.Match == nil || r.Match(c))
}

type actionKind uint8

const (
	actNothing actionKind = iota
	actDelay
	actFailBefore
	actFailAfter
	actOwnConflict
	actHold
	actLate
	actShortRead
	actFlipBit
)

// Action is what a rule does; the zero Action does nothing.
type Action struct {
	kind  actionKind
	err   error
	delay time.Duration
}

// String names the kind of the action.
func (a Action) String() string {
	switch a.kind {
	case actDelay:
		return "delay"
	case actFailBefore, actFailAfter:
		for _, known := range []struct {
			kind actionKind
			err  error
			name string
		}{
			{actFailBefore, objstore.ErrUnknownOutcome, "lost request"}, {actFailAfter, objstore.ErrUnknownOutcome, "lost response"},
			{actFailBefore, objstore.ErrThrottled, "throttled"}, {actFailBefore, objstore.ErrUnavailable, "unavailable"},
		} {
			if a.kind == known.kind && errors.Is(a.err, known.err) {
				return known.name
			}
		}
		return "error"
	case actOwnConflict:
		return "conflict with its own retry"
	case actHold:
		return "no answer"
	case actLate:
		return "late write"
	case actShortRead:
		return "short read"
	case actFlipBit:
		return "flipped bit"
	}
	return "nothing"
}

// FailBefore answers err and does not touch the store.
func FailBefore(err error) Action { return Action{kind: actFailBefore, err: err} }

// FailAfter does the operation, then answers err whatever came of it.
func FailAfter(err error) Action { return Action{kind: actFailAfter, err: err} }

// LoseRequest answers ErrUnknownOutcome; the write never lands.
func LoseRequest() Action { return FailBefore(objstore.ErrUnknownOutcome) }

// LoseResponse answers ErrUnknownOutcome after the write landed.
func LoseResponse() Action { return FailAfter(objstore.ErrUnknownOutcome) }

// Throttle answers the equivalent of a 503 SlowDown.
func Throttle(retryAfter time.Duration) Action {
	return FailBefore(&objstore.ThrottledError{RetryAfter: retryAfter})
}

// OwnConflict lands the write, then answers as a service does whose client
// library sent the request twice: ErrAlreadyExists for create-only, ErrConflict
// otherwise.
func OwnConflict() Action { return Action{kind: actOwnConflict} }

// Hold keeps the call until the test lands or drops it (Store.Pending). A caller
// whose context ends first gets ErrUnknownOutcome, or the context's error for a
// read; the held write can still land afterwards.
func Hold() Action { return Action{kind: actHold} }

// Late answers ErrUnknownOutcome at once; the write lands when the test says so
// (Store.Pending). Chunks are not copied: what the caller does to them before the
// landing is what lands, unless a checksum refuses it. Reads ignore it.
func Late() Action { return Action{kind: actLate} }

// LateAfter is Late with the landing after d, by the clock.
func LateAfter(d time.Duration) Action { return Action{kind: actLate, delay: d} }

// DelayBy adds d before the operation.
func DelayBy(d time.Duration) Action { return Action{kind: actDelay, delay: d} }

// ShortRead makes a GetRange answer fewer bytes than it should, without an error.
// Other operations ignore it.
func ShortRead() Action { return Action{kind: actShortRead} }

// FlipBit flips one bit: of the answer of a GetRange, or of what a Put stores (its
// checksum is not passed on). Other operations ignore it.
func FlipBit() Action { return Action{kind: actFlipBit} }

// Chaos are rules in which every fault that an honest service can show happens
// with probability p each (so about 7p of the writes suffer): lost requests and
// responses, own conflicts, throttling, unavailability, late landings up to
// lateMax after the answer. Mangled bytes are not among them.
func Chaos(p float64, lateMax time.Duration) []Rule {
	return []Rule{
		{Ops: Writes, Probability: p, Do: LoseRequest()},
		{Ops: Writes, Probability: p, Do: LoseResponse()},
		{Ops: Put | CompleteUpload, Probability: p, Do: OwnConflict()},
		{Ops: Writes, Probability: p, Do: LateAfter(lateMax / 10)},
		{Ops: Writes, Probability: p, Do: LateAfter(lateMax)},
		{Ops: AnyOp, Probability: p, Do: Throttle(0)},
		{Ops: AnyOp, Probability: p, Do: FailBefore(objstore.ErrUnavailable)},
	}
}
