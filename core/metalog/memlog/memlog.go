// Package memlog is the metadata log in memory, for tests and simulation. It
// keeps the whole contract of metalog.Log except durability; its clock is
// time.Now, so that it runs in virtual time inside a testing/synctest bubble.
// Several replicas may share one Log, as several nodes share a database.
package memlog

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/internal/wake"
	"github.com/mink-project/mink/sdk/mink"
)

// Log is a metalog.Log in memory. Safe for concurrent use.
type Log struct {
	wake wake.Signal
	mu   struct {
		sync.Mutex
		closed    bool
		base      metalog.Position // everything up to it was truncated
		entries   []metalog.Entry  // entries[i].Index == base.Index+1+i
		timeMs    int64            // of the newest entry ever
		lease     metalog.Lease
		beats     map[mink.NodeEpoch]*beat
		snapshots []snapshot // newest first
	}
}

type beat struct {
	node    mink.NodeID
	applied uint64
	at      time.Time
	marked  bool
}

type snapshot struct {
	metalog.SnapshotInfo
	parts [][]byte
}

var _ metalog.Log = (*Log)(nil)

// New makes an empty log.
func New() *Log {
	l := &Log{}
	l.mu.beats = map[mink.NodeEpoch]*beat{}
	return l
}

func (l *Log) enter(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memlog: %s: %w", op, err)
	}
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		return fmt.Errorf("memlog: %s: %w", op, mink.ErrClosed)
	}
	return nil
}

func (l *Log) headLocked() metalog.Position {
	if n := len(l.mu.entries); n > 0 {
		return l.mu.entries[n-1].Position()
	}
	return l.mu.base
}

// Append implements metalog.Log.
func (l *Log) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	if err := a.Validate(); err != nil {
		return nil, err
	}
	if err := l.enter(ctx, "append"); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	head := l.headLocked()
	if head.Index < a.AtLeast {
		return nil, fmt.Errorf("append: the log ends at %d, index %d was there before: %w", head.Index, a.AtLeast, metalog.ErrWentBack)
	}
	if a.Expect != nil && *a.Expect != head {
		return nil, fmt.Errorf("append: expected head %s, it is %s: %w", a.Expect, head, metalog.ErrHeadMoved)
	}
	if a.Lease.Epoch != 0 {
		if err := l.checkLeaseLocked(a.Lease); err != nil {
			return nil, fmt.Errorf("append: %w", err)
		}
		if _, err := l.beatLocked(a.Lease.Node, a.Lease.NodeEpoch); err != nil {
			return nil, fmt.Errorf("append: %w", err)
		}
	}
	out := l.appendLocked(a.Payloads)
	l.markLocked(a, out[0].Index)
	return out, nil
}

func (l *Log) appendLocked(payloads [][]byte) []metalog.Entry {
	l.mu.timeMs = max(l.mu.timeMs, time.Now().UnixMilli())
	head := l.headLocked()
	first := len(l.mu.entries)
	for _, p := range payloads {
		e := metalog.Entry{Index: head.Index + 1, TimeMs: l.mu.timeMs, Payload: slices.Clone(p)}
		e.Hash = metalog.Chain(head.Hash, e.Index, e.TimeMs, e.Payload)
		l.mu.entries = append(l.mu.entries, e)
		head = e.Position()
	}
	l.wake.Advance(head.Index)
	return slices.Clone(l.mu.entries[first:])
}

func (l *Log) markLocked(a metalog.Append, index uint64) {
	for _, epoch := range a.Seal {
		if b := l.mu.beats[epoch]; b != nil {
			b.marked = true
		}
	}
	if a.Register == 0 {
		return
	}
	for epoch, b := range l.mu.beats {
		if b.node != a.Register {
			continue
		}
		if b.marked { // a missing row refuses as well as a marked one
			delete(l.mu.beats, epoch)
		}
		b.marked = true
	}
	l.mu.beats[mink.NodeEpoch(index)] = &beat{node: a.Register, at: time.Now()}
}

// Read implements metalog.Log.
func (l *Log) Read(ctx context.Context, after uint64, maxEntries, maxBytes int) ([]metalog.Entry, error) {
	if err := l.enter(ctx, "read"); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	head := l.headLocked()
	switch {
	case after > head.Index:
		return nil, fmt.Errorf("read after %d, the log ends at %d: %w", after, head.Index, metalog.ErrWentBack)
	case after < l.mu.base.Index:
		return nil, fmt.Errorf("read after %d, the log starts after %d: %w", after, l.mu.base.Index, metalog.ErrTruncated)
	}
	rest := l.mu.entries[after-l.mu.base.Index:]
	n, size := 0, 0
	for n < len(rest) && (n == 0 || n < maxEntries && size+len(rest[n].Payload) <= maxBytes) {
		size += len(rest[n].Payload)
		n++
	}
	return slices.Clone(rest[:n]), nil
}

// Head implements metalog.Log.
func (l *Log) Head(ctx context.Context) (metalog.Position, error) {
	if err := l.enter(ctx, "head"); err != nil {
		return metalog.Position{}, err
	}
	defer l.mu.Unlock()
	return l.headLocked(), nil
}

// Changed implements metalog.Log.
func (l *Log) Changed(index uint64) <-chan struct{} { return l.wake.Changed(index) }

// WriteSnapshot implements metalog.Log.
func (l *Log) WriteSnapshot(ctx context.Context, s metalog.SnapshotWrite) error {
	snap := snapshot{SnapshotInfo: metalog.SnapshotInfo{Position: s.Position}}
	if err := snap.fill(s.Parts); err != nil {
		return fmt.Errorf("write snapshot at %d: %w", s.Index, err)
	}
	if err := l.enter(ctx, "write snapshot"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if err := l.checkSnapshotLocked(s, snap.Parts); err != nil {
		return err
	}
	l.mu.snapshots = append(l.mu.snapshots, snap)
	slices.SortFunc(l.mu.snapshots, func(a, b snapshot) int { return cmp.Compare(b.Index, a.Index) })
	if len(l.mu.snapshots) > metalog.SnapshotsKept {
		l.mu.snapshots = l.mu.snapshots[:metalog.SnapshotsKept]
	}
	return nil
}

func (s *snapshot) fill(parts iter.Seq2[[]byte, error]) error {
	for part, err := range parts {
		if err == nil {
			err = metalog.CheckPart(part)
		}
		if err != nil {
			return err
		}
		s.parts = append(s.parts, slices.Clone(part))
		s.Bytes += int64(len(part))
	}
	s.Parts = len(s.parts)
	return nil
}

func (l *Log) checkSnapshotLocked(s metalog.SnapshotWrite, parts int) error {
	if parts == 0 {
		return fmt.Errorf("snapshot at %d has no parts: %w", s.Index, mink.ErrInvalid)
	}
	if err := l.checkLeaseLocked(s.Lease); err != nil {
		return fmt.Errorf("write snapshot at %d: %w", s.Index, err)
	}
	if !l.holdsLocked(s.Position) {
		return fmt.Errorf("snapshot at %s: the log does not hold that position: %w", s.Position, mink.ErrInvalid)
	}
	for _, have := range l.mu.snapshots {
		if have.Index == s.Index {
			return fmt.Errorf("snapshot at %d: %w", s.Index, mink.ErrExists)
		}
	}
	return nil
}

func (l *Log) holdsLocked(p metalog.Position) bool {
	if p == l.mu.base {
		return true
	}
	i := p.Index - l.mu.base.Index - 1
	return p.Index > l.mu.base.Index && i < uint64(len(l.mu.entries)) && l.mu.entries[i].Hash == p.Hash
}

func (l *Log) checkLeaseLocked(want metalog.Lease) error {
	have := l.mu.lease
	if want.Epoch == 0 || have.Epoch != want.Epoch || have.Node != want.Node || have.NodeEpoch != want.NodeEpoch {
		return fmt.Errorf("lease %d of node %d; the current one is %d of node %d: %w", want.Epoch, want.Node, have.Epoch, have.Node, metalog.ErrLeaseLost)
	}
	return nil
}

// Snapshots implements metalog.Log.
func (l *Log) Snapshots(ctx context.Context) ([]metalog.SnapshotInfo, error) {
	if err := l.enter(ctx, "list snapshots"); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	var out []metalog.SnapshotInfo
	for _, s := range l.mu.snapshots {
		out = append(out, s.SnapshotInfo)
	}
	return out, nil
}

// ReadSnapshot implements metalog.Log.
func (l *Log) ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if err := l.enter(ctx, "read snapshot"); err != nil {
			yield(nil, err)
			return
		}
		var parts [][]byte
		for _, s := range l.mu.snapshots {
			if s.Index == index {
				parts = s.parts
			}
		}
		l.mu.Unlock()
		if parts == nil {
			yield(nil, fmt.Errorf("snapshot at %d: %w", index, mink.ErrNotExist))
			return
		}
		for _, p := range parts {
			if !yield(slices.Clone(p), nil) {
				return
			}
		}
	}
}

// Truncate implements metalog.Log.
func (l *Log) Truncate(ctx context.Context, through uint64, lease metalog.Lease) error {
	if err := l.enter(ctx, "truncate"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if err := l.checkLeaseLocked(lease); err != nil {
		return fmt.Errorf("truncate through %d: %w", through, err)
	}
	n := len(l.mu.snapshots)
	if n < metalog.SnapshotsKept || l.mu.snapshots[n-1].Index < through {
		return fmt.Errorf("truncate through %d: %d snapshots at or above it are needed: %w", through, metalog.SnapshotsKept, mink.ErrInvalid)
	}
	if through <= l.mu.base.Index {
		return nil
	}
	cut := through - l.mu.base.Index
	l.mu.base = l.mu.entries[cut-1].Position()
	l.mu.entries = slices.Clone(l.mu.entries[cut:])
	return nil
}

// Seed implements metalog.Log.
func (l *Log) Seed(ctx context.Context, s metalog.Seed) error {
	snap := snapshot{SnapshotInfo: metalog.SnapshotInfo{Position: s.Position}}
	if err := snap.fill(s.Parts); err != nil {
		return fmt.Errorf("seed at %d: %w", s.Index, err)
	}
	if err := s.Validate(snap.Parts); err != nil {
		return err
	}
	if err := l.enter(ctx, "seed"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if head := l.headLocked(); head != s.Replaces {
		return fmt.Errorf("seed: expected head %s, it is %s: %w", s.Replaces, head, metalog.ErrHeadMoved)
	}
	if now := time.Now().UnixMilli(); l.mu.lease.ExpiresMs > now {
		return &metalog.LeaseHeldError{Lease: l.mu.lease, ExpiresIn: time.Duration(l.mu.lease.ExpiresMs-now) * time.Millisecond}
	}
	l.mu.base, l.mu.entries, l.mu.timeMs = s.Position, nil, s.TimeMs
	l.mu.snapshots, l.mu.beats = []snapshot{snap}, map[mink.NodeEpoch]*beat{}
	l.mu.lease = metalog.Lease{Epoch: s.Lease}
	l.wake.Advance(s.Index)
	return nil
}

// Rewind makes the database go back to an earlier index, as a restore from a
// backup does. For tests. The index must not be truncated.
func (l *Log) Rewind(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.entries = slices.Clone(l.mu.entries[:index-l.mu.base.Index])
	l.mu.snapshots = slices.DeleteFunc(l.mu.snapshots, func(s snapshot) bool { return s.Index > index })
}

// Close implements metalog.Log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = true
	l.wake.Poke()
	return nil
}
