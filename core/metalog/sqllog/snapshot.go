package sqllog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// truncateRows bounds one deleting transaction.
const truncateRows = 5000

// WriteSnapshot implements metalog.Log.
func (l *Log) WriteSnapshot(ctx context.Context, s metalog.SnapshotWrite) error {
	if err := l.writeSnapshot(ctx, s); err != nil {
		return fmt.Errorf("write metadata snapshot at %d: %w", s.Index, err)
	}
	return nil
}

func (l *Log) writeSnapshot(ctx context.Context, s metalog.SnapshotWrite) error {
	index, lease := int64(s.Index), int64(s.Lease.Epoch)
	err := l.db.write(ctx, func(q querier) error {
		if err := l.checkSnapshot(ctx, q, s); err != nil {
			return err
		}
		return dropUnfinished(ctx, q)
	})
	if err != nil {
		return err
	}
	parts, bytes, err := l.writeParts(ctx, index, lease, s.Parts, func(q querier) error { return checkLease(ctx, q, s.Lease) })
	if err != nil {
		return err
	}
	if parts == 0 {
		return fmt.Errorf("it has no parts: %w", mink.ErrInvalid)
	}
	return l.db.write(ctx, func(q querier) error {
		if err := l.checkSnapshot(ctx, q, s); err != nil {
			return err
		}
		if _, err := q.exec(ctx, `INSERT INTO meta_snapshot_head (applied_idx, hash, lease, parts, bytes, written_ms)
			VALUES ($1, $2, $3, $4, $5, {now})`, index, s.Hash[:], lease, parts, bytes); err != nil {
			return err
		}
		return dropOldSnapshots(ctx, q)
	})
}

// dropUnfinished deletes what this or a dead process left of an earlier attempt.
func dropUnfinished(ctx context.Context, q querier) error {
	_, err := q.exec(ctx, `DELETE FROM meta_snapshot WHERE NOT EXISTS (
		SELECT 1 FROM meta_snapshot_head h WHERE h.applied_idx = meta_snapshot.applied_idx AND h.lease = meta_snapshot.lease)`)
	return err
}

// writeParts inserts parts, each in a transaction of its own that may checks.
func (l *Log) writeParts(ctx context.Context, index, lease int64, parts iter.Seq2[[]byte, error], may func(querier) error) (n int, bytes int64, err error) {
	for part, err := range parts {
		if err == nil {
			err = metalog.CheckPart(part)
		}
		if err != nil {
			return 0, 0, err
		}
		err = l.db.write(ctx, func(q querier) error {
			if err := may(q); err != nil {
				return err
			}
			_, err := q.exec(ctx, `INSERT INTO meta_snapshot (applied_idx, lease, part, payload) VALUES ($1, $2, $3, $4)`, index, lease, n, part)
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		n++
		bytes += int64(len(part))
	}
	return n, bytes, nil
}

// Seed implements metalog.Log. The parts are nobody's until the last transaction.
func (l *Log) Seed(ctx context.Context, s metalog.Seed) error {
	if err := l.seed(ctx, s); err != nil {
		return fmt.Errorf("seed the metadata log at %d: %w", s.Index, err)
	}
	l.wake.Advance(s.Index)
	return nil
}

func (l *Log) seed(ctx context.Context, s metalog.Seed) error {
	may := func(q querier) error {
		h, err := readHead(ctx, q, true)
		if err != nil {
			return err
		}
		if err := checkExpect(h.Position, &s.Replaces, 0); err != nil {
			return err
		}
		have, now, err := readLease(ctx, q)
		if err == nil && have.ExpiresMs > now {
			err = &metalog.LeaseHeldError{Lease: have, ExpiresIn: time.Duration(have.ExpiresMs-now) * time.Millisecond}
		}
		return err
	}
	var lease int64 // below 0, which no lease is, and of no snapshot that is there
	err := l.db.write(ctx, func(q querier) error {
		if err := may(q); err != nil {
			return err
		}
		if err := dropUnfinished(ctx, q); err != nil {
			return err
		}
		err := q.row(ctx, `SELECT coalesce(min(lease), 0) FROM meta_snapshot`).scan(&lease)
		lease = min(lease, 0) - 1
		return err
	})
	if err != nil {
		return err
	}
	parts, bytes, err := l.writeParts(ctx, int64(s.Index), lease, s.Parts, may)
	if err != nil {
		return err
	}
	if err := s.Validate(parts); err != nil {
		return err
	}
	return l.db.write(ctx, func(q querier) error {
		if err := may(q); err != nil {
			return err
		}
		for _, st := range []struct {
			sql  string
			args []any
		}{
			{`DELETE FROM meta_log`, nil},
			{`DELETE FROM meta_snapshot_head`, nil},
			{`DELETE FROM meta_snapshot WHERE applied_idx <> $1 OR lease <> $2`, []any{int64(s.Index), lease}},
			{`DELETE FROM meta_node`, nil},
			{`UPDATE meta_lease SET node = 0, node_epoch = 0, epoch = $1, expires_ms = 0 WHERE id = 1`, []any{int64(s.Lease)}},
			{`UPDATE meta_head SET idx = $1, hash = $2, time_ms = $3 WHERE id = 1`, []any{int64(s.Index), s.Hash[:], s.TimeMs}},
			{`INSERT INTO meta_snapshot_head (applied_idx, hash, lease, parts, bytes, written_ms) VALUES ($1, $2, $3, $4, $5, {now})`,
				[]any{int64(s.Index), s.Hash[:], lease, parts, bytes}},
		} {
			if _, err := q.exec(ctx, st.sql, st.args...); err != nil {
				return err
			}
		}
		return l.db.notify(ctx, q, s.Index)
	})
}

func (l *Log) checkSnapshot(ctx context.Context, q querier, s metalog.SnapshotWrite) error {
	if err := checkLease(ctx, q, s.Lease); err != nil {
		return err
	}
	var there int
	err := q.row(ctx, `SELECT 1 FROM meta_snapshot_head WHERE applied_idx = $1`, int64(s.Index)).scan(&there)
	if err == nil {
		return mink.ErrExists
	}
	if !errors.Is(err, errNoRow) {
		return err
	}
	err = q.row(ctx, `SELECT 1 FROM meta_log WHERE idx = $1 AND hash = $2 UNION SELECT 1 FROM meta_head WHERE idx = $1 AND hash = $2`,
		int64(s.Index), s.Hash[:]).scan(&there)
	if errors.Is(err, errNoRow) {
		return fmt.Errorf("the log does not hold position %s: %w", s.Position, mink.ErrInvalid)
	}
	return err
}

func dropOldSnapshots(ctx context.Context, q querier) error {
	if _, err := q.exec(ctx, `DELETE FROM meta_snapshot_head WHERE applied_idx NOT IN (
		SELECT applied_idx FROM (SELECT applied_idx FROM meta_snapshot_head ORDER BY applied_idx DESC LIMIT $1) keep)`, metalog.SnapshotsKept); err != nil {
		return err
	}
	_, err := q.exec(ctx, `DELETE FROM meta_snapshot WHERE applied_idx NOT IN (SELECT applied_idx FROM meta_snapshot_head)`)
	return err
}

// Snapshots implements metalog.Log.
func (l *Log) Snapshots(ctx context.Context) (out []metalog.SnapshotInfo, err error) {
	err = l.db.read(ctx, func(q querier) error {
		out = nil
		rs, err := q.query(ctx, `SELECT applied_idx, hash, parts, bytes FROM meta_snapshot_head ORDER BY applied_idx DESC`)
		if err != nil {
			return err
		}
		for rs.next() {
			var s metalog.SnapshotInfo
			if err = rs.scan(&s.Index, (*hashScan)(&s.Hash), &s.Parts, &s.Bytes); err != nil {
				break
			}
			out = append(out, s)
		}
		return errors.Join(err, rs.close())
	})
	if err != nil {
		return nil, fmt.Errorf("list metadata snapshots: %w", err)
	}
	return out, nil
}

// ReadSnapshot implements metalog.Log. One part is in memory at a time; a
// snapshot that is dropped meanwhile ends in mink.ErrNotExist.
func (l *Log) ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		fail := func(err error) {
			if errors.Is(err, errNoRow) {
				err = mink.ErrNotExist
			}
			yield(nil, fmt.Errorf("read metadata snapshot at %d: %w", index, err))
		}
		var lease int64
		var parts int
		err := l.db.read(ctx, func(q querier) error {
			return q.row(ctx, `SELECT lease, parts FROM meta_snapshot_head WHERE applied_idx = $1`, int64(index)).scan(&lease, &parts)
		})
		if err != nil {
			fail(err)
			return
		}
		for n := range parts {
			var part []byte
			err := l.db.read(ctx, func(q querier) error {
				return q.row(ctx, `SELECT payload FROM meta_snapshot WHERE applied_idx = $1 AND lease = $2 AND part = $3`, int64(index), lease, n).scan(&part)
			})
			if err != nil {
				fail(err)
				return
			}
			if !yield(part, nil) {
				return
			}
		}
	}
}

// Truncate implements metalog.Log. Rows go oldest first, some per transaction,
// so what is left is always gapless.
func (l *Log) Truncate(ctx context.Context, through uint64, lease metalog.Lease) error {
	for {
		var rows int64
		err := l.db.write(ctx, func(q querier) error {
			if err := checkLease(ctx, q, lease); err != nil {
				return err
			}
			var above int
			if err := q.row(ctx, `SELECT count(*) FROM meta_snapshot_head WHERE applied_idx >= $1`, int64(through)).scan(&above); err != nil {
				return err
			}
			if above < metalog.SnapshotsKept {
				return fmt.Errorf("%d snapshots at or above it are needed, there are %d: %w", metalog.SnapshotsKept, above, mink.ErrInvalid)
			}
			var err error
			rows, err = q.exec(ctx, `DELETE FROM meta_log WHERE idx <= $1 AND idx < (SELECT min(idx) FROM meta_log) + $2`, int64(through), truncateRows)
			return err
		})
		if err != nil {
			return fmt.Errorf("truncate the metadata log through %d: %w", through, err)
		}
		if rows < truncateRows {
			return nil
		}
	}
}
