package mink

import (
	"errors"
	"fmt"
)

// The error classes that callers branch on. Code wraps them with the operation
// and the ids: fmt.Errorf("append to %s: %w", bucket, mink.ErrFenced).
var (
	// ErrNotExist: the named thing (table, database, partition, object) is absent.
	ErrNotExist = errors.New("does not exist")
	// ErrExists: the name is taken.
	ErrExists = errors.New("already exists")
	// ErrInvalid: the request can never succeed as written.
	ErrInvalid = errors.New("invalid")
	// ErrTooLarge: a record, batch or message is over its limit.
	ErrTooLarge = errors.New("too large")
	// ErrUnavailable: not now; the same request may succeed later.
	ErrUnavailable = errors.New("unavailable, retry")
	// ErrThrottled: refused for load; retry after a pause.
	ErrThrottled = errors.New("overloaded, retry later")
	// ErrConflict: a compare-and-swap lost; re-read, then decide again.
	ErrConflict = errors.New("conflict")
	// ErrFenced: this node, leader or writer was replaced; do not retry here.
	ErrFenced = errors.New("fenced by a newer owner")
	// ErrUnknownOutcome: the effect may or may not have happened; re-read before a retry.
	ErrUnknownOutcome = errors.New("unknown outcome")
	// ErrCorrupt: stored bytes fail their checks; never served, never skipped silently.
	ErrCorrupt = errors.New("corrupt")
	// ErrOutOfRange: an offset below the log's start or past its end.
	ErrOutOfRange = errors.New("offset out of range")
	// ErrOutOfOrder: a writer's batch sequence is not the next one.
	ErrOutOfOrder = errors.New("out-of-order batch sequence")
	// ErrUnsupported: understood, but not built; docs/limits.md lists it.
	ErrUnsupported = errors.New("not supported")
	// ErrClosed: the component was closed.
	ErrClosed = errors.New("closed")
	// ErrNotCached: a read that may not block found that its bytes are not in memory.
	ErrNotCached = errors.New("not in the cache")
)

// NotLeaderError says that another node leads the bucket.
type NotLeaderError struct {
	Bucket  BucketRef
	Leader  NodeID // 0: nobody leads it at the moment
	Address string // the leader's advertised Flight address, "" when unknown
	Epoch   LeaderEpoch
}

func (e *NotLeaderError) Error() string {
	if e.Leader == 0 {
		return fmt.Sprintf("bucket %s has no leader at the moment, retry", e.Bucket)
	}
	return fmt.Sprintf("bucket %s is led by node %d at %s (leader epoch %d)", e.Bucket, e.Leader, e.Address, e.Epoch)
}

// OutOfRangeError says which offsets a bucket holds. errors.Is(err, ErrOutOfRange).
type OutOfRangeError struct {
	Asked, Start, End Offset // the log holds [Start, End)
}

func (e *OutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d out of range: the log holds [%d, %d)", e.Asked, e.Start, e.End)
}

// Is makes errors.Is(err, ErrOutOfRange) true.
func (e *OutOfRangeError) Is(target error) bool { return target == ErrOutOfRange }
