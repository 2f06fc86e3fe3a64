package sqllog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Rows are locked in one order everywhere: head, lease, nodes.

// readLease locks the lease row and answers it with the database's time.
func readLease(ctx context.Context, q querier) (lease metalog.Lease, now int64, err error) {
	err = q.row(ctx, `SELECT node, node_epoch, epoch, expires_ms, {now} FROM meta_lease WHERE id = 1 {lock}`).
		scan(&lease.Node, &lease.NodeEpoch, &lease.Epoch, &lease.ExpiresMs, &now)
	return lease, now, err
}

// checkLease holds the lease row until the transaction ends.
func checkLease(ctx context.Context, q querier, want metalog.Lease) error {
	have, _, err := readLease(ctx, q)
	if err != nil {
		return err
	}
	if want.Epoch == 0 || have.Epoch != want.Epoch || have.Node != want.Node || have.NodeEpoch != want.NodeEpoch {
		return fmt.Errorf("lease %d of node %d; the current one is %d of node %d: %w", want.Epoch, want.Node, have.Epoch, have.Node, metalog.ErrLeaseLost)
	}
	return nil
}

// checkHolder is checkLease for what its holder does, who must be alive.
func checkHolder(ctx context.Context, q querier, lease metalog.Lease) error {
	if err := checkLease(ctx, q, lease); err != nil {
		return err
	}
	return checkUnmarked(ctx, q, lease.Node, lease.NodeEpoch)
}

func fenced(node mink.NodeID, epoch mink.NodeEpoch) error {
	return fmt.Errorf("node %d epoch %d is sealed: %w", node, epoch, mink.ErrFenced)
}

func checkUnmarked(ctx context.Context, q querier, node mink.NodeID, epoch mink.NodeEpoch) error {
	var one int
	err := q.row(ctx, `SELECT 1 FROM meta_node WHERE epoch = $1 AND node = $2 AND marked = 0 {lock}`, int64(epoch), int64(node)).scan(&one)
	if errors.Is(err, errNoRow) {
		return fenced(node, epoch)
	}
	return err
}

// TakeLease implements metalog.Log.
func (l *Log) TakeLease(ctx context.Context, t metalog.TakeLease) (lease metalog.Lease, entry metalog.Entry, err error) {
	if err := t.Validate(); err != nil {
		return lease, entry, err
	}
	err = l.db.write(ctx, func(q querier) error {
		h, err := readHead(ctx, q, true)
		if err != nil {
			return err
		}
		if err := checkExpect(h.Position, t.Expect, 0); err != nil {
			return err
		}
		have, now, err := readLease(ctx, q)
		if err != nil {
			return err
		}
		if err := checkUnmarked(ctx, q, t.Node, t.NodeEpoch); err != nil {
			return err
		}
		if have.Node != t.Node && have.ExpiresMs > now {
			return &metalog.LeaseHeldError{Lease: have, ExpiresIn: time.Duration(have.ExpiresMs-now) * time.Millisecond}
		}
		lease = metalog.Lease{Node: t.Node, NodeEpoch: t.NodeEpoch, Epoch: have.Epoch + 1, ExpiresMs: now + t.TTL.Milliseconds()}
		if _, err := q.exec(ctx, `UPDATE meta_lease SET node = $1, node_epoch = $2, epoch = $3, expires_ms = $4 WHERE id = 1`,
			int64(lease.Node), int64(lease.NodeEpoch), int64(lease.Epoch), lease.ExpiresMs); err != nil {
			return err
		}
		payload, err := t.Payload(lease.Epoch)
		if err != nil {
			return err
		}
		a := metalog.Append{Payloads: [][]byte{payload}}
		if err := a.Validate(); err != nil {
			return err
		}
		entries, err := l.addEntries(ctx, q, h, a.Payloads)
		if err == nil {
			entry = entries[0]
		}
		return err
	})
	if err != nil {
		return metalog.Lease{}, metalog.Entry{}, fmt.Errorf("take the coordinator lease: %w", err)
	}
	l.wake.Advance(entry.Index)
	return lease, entry, nil
}

// RenewLease implements metalog.Log.
func (l *Log) RenewLease(ctx context.Context, lease metalog.Lease, ttl time.Duration) (metalog.Lease, error) {
	err := l.db.write(ctx, func(q querier) error {
		if err := checkHolder(ctx, q, lease); err != nil {
			return err
		}
		rows, err := q.exec(ctx, `UPDATE meta_lease SET expires_ms = {now} + $1 WHERE id = 1 AND expires_ms > 0`, ttl.Milliseconds())
		if err != nil {
			return err
		}
		if rows == 0 {
			return fmt.Errorf("lease %d was released: %w", lease.Epoch, metalog.ErrLeaseLost)
		}
		lease, _, err = readLease(ctx, q)
		return err
	})
	if err != nil {
		return metalog.Lease{}, fmt.Errorf("renew the coordinator lease: %w", err)
	}
	return lease, nil
}

// ReleaseLease implements metalog.Log.
func (l *Log) ReleaseLease(ctx context.Context, lease metalog.Lease) error {
	err := l.db.write(ctx, func(q querier) error {
		if err := checkLease(ctx, q, lease); err != nil {
			return err
		}
		_, err := q.exec(ctx, `UPDATE meta_lease SET expires_ms = 0 WHERE id = 1`)
		return err
	})
	if err != nil && !errors.Is(err, metalog.ErrLeaseLost) {
		return fmt.Errorf("release the coordinator lease: %w", err)
	}
	return nil
}

// ReadLease implements metalog.Log.
func (l *Log) ReadLease(ctx context.Context) (lease metalog.Lease, live bool, err error) {
	var now int64
	err = l.db.read(ctx, func(q querier) error {
		return q.row(ctx, `SELECT node, node_epoch, epoch, expires_ms, {now} FROM meta_lease WHERE id = 1`).
			scan(&lease.Node, &lease.NodeEpoch, &lease.Epoch, &lease.ExpiresMs, &now)
	})
	if err != nil {
		return metalog.Lease{}, false, fmt.Errorf("read the coordinator lease: %w", err)
	}
	return lease, lease.ExpiresMs > now, nil
}

// Heartbeat implements metalog.Log.
func (l *Log) Heartbeat(ctx context.Context, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) (head uint64, err error) {
	err = l.db.statement(ctx, `UPDATE meta_node SET beat_ms = {now}, applied = CASE WHEN applied < $3 THEN $3 ELSE applied END
		WHERE epoch = $1 AND node = $2 AND marked = 0 RETURNING (SELECT idx FROM meta_head)`,
		[]any{int64(epoch), int64(node), int64(applied)}, &head)
	if errors.Is(err, errNoRow) {
		err = fenced(node, epoch)
	}
	if err != nil {
		return 0, fmt.Errorf("heartbeat: %w", err)
	}
	l.wake.Advance(head)
	return head, nil
}

// Heartbeats implements metalog.Log.
func (l *Log) Heartbeats(ctx context.Context) (out []metalog.HeartbeatRow, err error) {
	err = l.db.read(ctx, func(q querier) error {
		out = nil
		rs, err := q.query(ctx, `SELECT node, epoch, applied, {now} - beat_ms, marked FROM meta_node ORDER BY node, epoch`)
		if err != nil {
			return err
		}
		for rs.next() {
			var r metalog.HeartbeatRow
			var marked int
			if err = rs.scan(&r.Node, &r.Epoch, &r.Applied, &r.AgeMs, &marked); err != nil {
				break
			}
			r.Marked = marked != 0
			out = append(out, r)
		}
		return errors.Join(err, rs.close())
	})
	if err != nil {
		return nil, fmt.Errorf("list heartbeats: %w", err)
	}
	return out, nil
}
