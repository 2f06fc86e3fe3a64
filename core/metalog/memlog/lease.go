package memlog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

func (l *Log) beatLocked(node mink.NodeID, epoch mink.NodeEpoch) (*beat, error) {
	b := l.mu.beats[epoch]
	if b == nil || b.marked || b.node != node {
		return nil, fmt.Errorf("node %d epoch %d is sealed: %w", node, epoch, mink.ErrFenced)
	}
	return b, nil
}

// TakeLease implements metalog.Log.
func (l *Log) TakeLease(ctx context.Context, t metalog.TakeLease) (metalog.Lease, metalog.Entry, error) {
	if err := t.Validate(); err != nil {
		return metalog.Lease{}, metalog.Entry{}, err
	}
	if err := l.enter(ctx, "take lease"); err != nil {
		return metalog.Lease{}, metalog.Entry{}, err
	}
	defer l.mu.Unlock()
	fail := func(err error) (metalog.Lease, metalog.Entry, error) {
		return metalog.Lease{}, metalog.Entry{}, fmt.Errorf("take lease: %w", err)
	}
	head := l.headLocked()
	if t.Expect != nil && *t.Expect != head {
		return fail(fmt.Errorf("expected head %s, it is %s: %w", t.Expect, head, metalog.ErrHeadMoved))
	}
	if _, err := l.beatLocked(t.Node, t.NodeEpoch); err != nil {
		return fail(err)
	}
	now, have := time.Now().UnixMilli(), l.mu.lease
	if have.Node != t.Node && have.ExpiresMs > now {
		return fail(&metalog.LeaseHeldError{Lease: have, ExpiresIn: time.Duration(have.ExpiresMs-now) * time.Millisecond})
	}
	next := metalog.Lease{Node: t.Node, NodeEpoch: t.NodeEpoch, Epoch: have.Epoch + 1, ExpiresMs: now + t.TTL.Milliseconds()}
	payload, err := t.Payload(next.Epoch)
	if err == nil {
		err = metalog.Append{Payloads: [][]byte{payload}}.Validate()
	}
	if err != nil {
		return fail(err)
	}
	l.mu.lease = next
	return next, l.appendLocked([][]byte{payload})[0], nil
}

// RenewLease implements metalog.Log.
func (l *Log) RenewLease(ctx context.Context, lease metalog.Lease, ttl time.Duration) (metalog.Lease, error) {
	if err := l.enter(ctx, "renew lease"); err != nil {
		return metalog.Lease{}, err
	}
	defer l.mu.Unlock()
	if err := l.checkLeaseLocked(lease); err != nil {
		return metalog.Lease{}, fmt.Errorf("renew: %w", err)
	}
	if _, err := l.beatLocked(lease.Node, lease.NodeEpoch); err != nil {
		return metalog.Lease{}, fmt.Errorf("renew lease: %w", err)
	}
	if l.mu.lease.ExpiresMs == 0 {
		return metalog.Lease{}, fmt.Errorf("renew: lease %d was released: %w", lease.Epoch, metalog.ErrLeaseLost)
	}
	l.mu.lease.ExpiresMs = time.Now().UnixMilli() + ttl.Milliseconds()
	return l.mu.lease, nil
}

// ReleaseLease implements metalog.Log.
func (l *Log) ReleaseLease(ctx context.Context, lease metalog.Lease) error {
	if err := l.enter(ctx, "release lease"); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if l.checkLeaseLocked(lease) == nil {
		l.mu.lease.ExpiresMs = 0
	}
	return nil
}

// ReadLease implements metalog.Log.
func (l *Log) ReadLease(ctx context.Context) (metalog.Lease, bool, error) {
	if err := l.enter(ctx, "read lease"); err != nil {
		return metalog.Lease{}, false, err
	}
	defer l.mu.Unlock()
	return l.mu.lease, l.mu.lease.ExpiresMs > time.Now().UnixMilli(), nil
}

// Heartbeat implements metalog.Log.
func (l *Log) Heartbeat(ctx context.Context, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) (uint64, error) {
	if err := l.enter(ctx, "heartbeat"); err != nil {
		return 0, err
	}
	defer l.mu.Unlock()
	b, err := l.beatLocked(node, epoch)
	if err != nil {
		return 0, fmt.Errorf("heartbeat: %w", err)
	}
	b.at = time.Now()
	b.applied = max(b.applied, applied)
	return l.headLocked().Index, nil
}

// Heartbeats implements metalog.Log.
func (l *Log) Heartbeats(ctx context.Context) ([]metalog.HeartbeatRow, error) {
	if err := l.enter(ctx, "list heartbeats"); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	var out []metalog.HeartbeatRow
	for epoch, b := range l.mu.beats {
		out = append(out, metalog.HeartbeatRow{
			Node: b.node, Epoch: epoch, Applied: b.applied, AgeMs: time.Since(b.at).Milliseconds(), Marked: b.marked,
		})
	}
	slices.SortFunc(out, func(a, b metalog.HeartbeatRow) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Epoch, b.Epoch))
	})
	return out, nil
}
