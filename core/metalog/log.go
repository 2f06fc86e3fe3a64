// Package metalog is the metadata log and a node's replica of the state that
// it builds up.
//
// The log is a table in a SQL database. There is no consensus protocol between
// nodes: the database's serialized transaction is the ordering point.
//
//	Propose --> Batch --> Log.Append (one transaction) --> entry n
//	                                                          |
//	   Propose's waiters <-- Result <-- State.Apply <-- tail --+   (on every node)
//
// What holds: indexes are gapless and in commit order; each entry's hash covers
// the one before it; an entry that Append acknowledged survives a crash of the
// database; a proposal is applied at most once, however often its transaction
// had to be retried.
package metalog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Limits that every Log enforces.
const (
	PayloadBytesMax = 16 << 20 // one entry
	PartBytesMax    = 4 << 20  // one part of a snapshot, its header included
	SnapshotsKept   = 2
)

var (
	// ErrTruncated: the entries asked for are behind the log's truncation; load a
	// snapshot instead.
	ErrTruncated = errors.New("metadata log is truncated there")
	// ErrWentBack: the database holds an older or another history than this
	// process has already acted upon. Nothing may be done before a person looked.
	ErrWentBack = errors.New("the metadata database went back")
	// ErrHeadMoved: Append or TakeLease expected another head. Wraps mink.ErrConflict.
	ErrHeadMoved = fmt.Errorf("the log's head moved: %w", mink.ErrConflict)
	// ErrLeaseLost: the lease that the call relies on is no longer the current
	// one. Wraps mink.ErrConflict.
	ErrLeaseLost = fmt.Errorf("the coordinator lease was lost: %w", mink.ErrConflict)
)

// LeaseHeldError: another node holds an unexpired lease. errors.Is(err, mink.ErrConflict).
type LeaseHeldError struct {
	Lease     Lease
	ExpiresIn time.Duration // by the database clock
}

func (e *LeaseHeldError) Error() string {
	return fmt.Sprintf("coordinator lease %d is held by node %d (epoch %d) for another %s",
		e.Lease.Epoch, e.Lease.Node, e.Lease.NodeEpoch, e.ExpiresIn)
}

// Is makes errors.Is(err, mink.ErrConflict) true.
func (e *LeaseHeldError) Is(target error) bool { return target == mink.ErrConflict }

// Hash is an entry's SHA-256 over its predecessor's hash and itself; the hash
// of index 0, before the first entry, is all zero.
type Hash [sha256.Size]byte

// String is the first 8 bytes in hex: enough to compare by eye.
func (h Hash) String() string { return fmt.Sprintf("%x", h[:8]) }

// Chain is the hash of the entry at index:
//
//	SHA-256( previous hash 32 | index u64 | time ms u64 | payload )   big endian
func Chain(prev Hash, index uint64, timeMs int64, payload []byte) Hash {
	var b [sha256.Size + 16]byte
	copy(b[:], prev[:])
	binary.BigEndian.PutUint64(b[32:], index)
	binary.BigEndian.PutUint64(b[40:], uint64(timeMs))
	h := sha256.New()
	h.Write(b[:])
	h.Write(payload)
	return Hash(h.Sum(nil))
}

// Position is a place in the log: the entry at Index has Hash.
type Position struct {
	Index uint64
	Hash  Hash
}

// String is "index (hash)".
func (p Position) String() string { return fmt.Sprintf("%d (%s)", p.Index, p.Hash) }

// Entry is one row of the log. TimeMs is the database clock at its commit, in
// milliseconds since 1970; it never falls from one entry to the next.
type Entry struct {
	Index   uint64
	Hash    Hash
	TimeMs  int64
	Payload []byte // immutable
}

// Position is where the entry stands.
func (e Entry) Position() Position { return Position{Index: e.Index, Hash: e.Hash} }

// Append asks for one transaction that adds Payloads as consecutive entries.
type Append struct {
	// Payloads become one entry each; at least one, each of 1 .. PayloadBytesMax bytes.
	Payloads [][]byte
	// Expect, when set, must be the head, else ErrHeadMoved and nothing happens.
	// Of several attempts with one Expect at most one can ever commit, even one
	// that lands after its client gave up.
	Expect *Position
	// AtLeast is an index that the log must have reached, else ErrWentBack.
	AtLeast uint64
	// Register, when not 0, admits a node: its heartbeat row has the epoch of the
	// (only) entry's index; rows of its earlier epochs are marked.
	Register mink.NodeID
	// Seal marks the heartbeat rows of these epochs: their next heartbeat is refused.
	Seal []mink.NodeEpoch
	// Lease, when its Epoch is not 0, must be the current lease, else ErrLeaseLost,
	// and its holder's row unmarked, else mink.ErrFenced. Its expiry does not count.
	Lease Lease
}

// Validate checks what needs no database.
func (a Append) Validate() error {
	if len(a.Payloads) == 0 {
		return fmt.Errorf("append without a payload: %w", mink.ErrInvalid)
	}
	for i, p := range a.Payloads {
		if len(p) == 0 {
			return fmt.Errorf("append: payload %d is empty: %w", i, mink.ErrInvalid)
		}
		if len(p) > PayloadBytesMax {
			return fmt.Errorf("append: payload %d of %d bytes, the limit is %d: %w", i, len(p), PayloadBytesMax, mink.ErrTooLarge)
		}
	}
	if a.Register != 0 && len(a.Payloads) != 1 {
		return fmt.Errorf("append: a registration stands alone, got %d payloads: %w", len(a.Payloads), mink.ErrInvalid)
	}
	return nil
}

// Lease is the coordinator lease: who holds it. Epoch grows with every taking.
type Lease struct {
	Node      mink.NodeID
	NodeEpoch mink.NodeEpoch
	Epoch     mink.LeaseEpoch // 0: never taken
	ExpiresMs int64           // database clock; 0: released
}

// TakeLease asks for the lease. Payload makes the LeaseTaken entry, which is
// appended in the same transaction, from the lease epoch it will have.
type TakeLease struct {
	Node      mink.NodeID
	NodeEpoch mink.NodeEpoch
	TTL       time.Duration // >= 1 ms
	Expect    *Position     // as in Append
	Payload   func(mink.LeaseEpoch) ([]byte, error)
}

// HeartbeatRow is what the database knows of one node epoch.
type HeartbeatRow struct {
	Node    mink.NodeID
	Epoch   mink.NodeEpoch
	Applied uint64 // reported by the node: its reads use no older view; never falls
	AgeMs   int64  // since its last heartbeat, by the database clock
	Marked  bool   // sealed: its heartbeats are refused
}

// SnapshotInfo describes one complete snapshot: the whole state at Position.
type SnapshotInfo struct {
	Position
	Parts int
	Bytes int64 // of all parts
}

// SnapshotWrite is a snapshot to be stored. Parts yields parts of 1 ..
// PartBytesMax bytes; an error that it yields aborts the write.
type SnapshotWrite struct {
	Position
	Lease Lease // checked in every transaction of the write
	Parts iter.Seq2[[]byte, error]
}

// Seed makes a log begin with a snapshot, as a restore does.
type Seed struct {
	Position                 // where the snapshot stands and the log goes on
	TimeMs   int64           // of the entry there
	Lease    mink.LeaseEpoch // the next one taken has a higher epoch
	Replaces Position        // the head as it must be: zero for an empty log
	Parts    iter.Seq2[[]byte, error]
}

// Log is the contract of a metadata log; metalogtest.Run checks it. All methods
// are safe for concurrent use. Errors: mink.ErrUnavailable = certainly nothing
// happened, retry; mink.ErrUnknownOutcome = the transaction may have committed,
// or may yet commit; anything else = certainly nothing happened and a retry
// will not help.
type Log interface {
	// Append adds entries in one serialized, durable transaction. Answers them in
	// order, without their payloads' being copied.
	Append(ctx context.Context, a Append) ([]Entry, error)
	// Read answers entries after the given index, in order, at most max and about
	// maxBytes, but at least one when there is one. ErrTruncated when the next one
	// was truncated away; ErrWentBack when the log ends before after.
	Read(ctx context.Context, after uint64, max, maxBytes int) ([]Entry, error)
	// Head is the last entry's position; zero for an empty log.
	Head(ctx context.Context) (Position, error)
	// Changed is closed when an entry above index is known to exist. A hint: it
	// can be late or missing, so the caller polls slowly behind it.
	Changed(index uint64) <-chan struct{}

	// WriteSnapshot stores a snapshot; it becomes visible with its last part.
	// ErrLeaseLost when the lease is not current, mink.ErrExists when there is one
	// at that index, mink.ErrInvalid when the log does not hold that position.
	// Older ones than the newest SnapshotsKept are dropped.
	WriteSnapshot(ctx context.Context, s SnapshotWrite) error
	// Snapshots lists the complete ones, newest first.
	Snapshots(ctx context.Context) ([]SnapshotInfo, error)
	// ReadSnapshot yields the parts of the snapshot at index, in order. It yields
	// mink.ErrNotExist when it is not, or no longer, there.
	ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error]
	// Truncate drops entries up to and including through; mink.ErrInvalid unless
	// SnapshotsKept snapshots stand at or above it. Idempotent.
	Truncate(ctx context.Context, through uint64, lease Lease) error

	// Seed replaces all that the log holds, in one step: entries, snapshots, heartbeat
	// rows, lease. ErrHeadMoved when the head is not s.Replaces; *LeaseHeldError while
	// a node holds an unexpired lease.
	Seed(ctx context.Context, s Seed) error

	// TakeLease takes a lease that is free, expired by the database clock, or held
	// by an epoch of the same node, and appends the LeaseTaken entry in the same
	// transaction. *LeaseHeldError when another node's is unexpired; mink.ErrFenced
	// when the epoch's heartbeat row is marked or missing.
	TakeLease(ctx context.Context, t TakeLease) (Lease, Entry, error)
	// RenewLease extends it from the database's now; ErrLeaseLost when it is not
	// the current one, mink.ErrFenced when its holder is marked. An expired lease
	// that nobody took can be renewed.
	RenewLease(ctx context.Context, l Lease, ttl time.Duration) (Lease, error)
	// ReleaseLease frees it; a no-op when it is no longer the current one.
	ReleaseLease(ctx context.Context, l Lease) error
	// ReadLease answers the current lease and whether it is unexpired.
	ReadLease(ctx context.Context) (l Lease, live bool, err error)

	// Heartbeat renews the row of a node epoch and answers the head's index.
	// mink.ErrFenced when the row is marked or missing.
	Heartbeat(ctx context.Context, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) (head uint64, err error)
	// Heartbeats lists the rows, by node, then epoch.
	Heartbeats(ctx context.Context) ([]HeartbeatRow, error)

	// Close releases everything and waits for what the log started.
	Close() error
}

// Validate checks what needs no database.
func (t TakeLease) Validate() error {
	if t.Node <= 0 || t.NodeEpoch <= 0 || t.TTL < time.Millisecond || t.Payload == nil {
		return fmt.Errorf("take lease: node %d, epoch %d and ttl %s must be positive: %w", t.Node, t.NodeEpoch, t.TTL, mink.ErrInvalid)
	}
	return nil
}

// Validate checks what needs no database.
func (s Seed) Validate(parts int) error {
	if s.Index == 0 || s.TimeMs < 0 || s.Lease < 0 || parts == 0 {
		return fmt.Errorf("seed at index %d, time %d, lease %d, with %d parts: %w", s.Index, s.TimeMs, s.Lease, parts, mink.ErrInvalid)
	}
	return nil
}
