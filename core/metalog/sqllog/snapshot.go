package sqllog

import (
	"context"
	"errors"
	"fmt"
	"iter"

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
		// What this or a dead holder left of an earlier attempt.
		_, err := q.exec(ctx, `DELETE FROM meta_snapshot WHERE NOT EXISTS (
			SELECT 1 FROM meta_snapshot_head h WHERE h.applied_idx = meta_snapshot.applied_idx AND h.lease = meta_snapshot.lease)`)
		return err
	})
	if err != nil {
		return err
	}
	parts, bytes := 0, int64(0)
	for part, err := range s.Parts {
		if err == nil {
			err = metalog.CheckPart(part)
		}
		if err != nil {
			return err
		}
		err = l.db.write(ctx, func(q querier) error {
			if err := checkLease(ctx, q, s.Lease); err != nil {
				return err
			}
			_, err := q.exec(ctx, `INSERT INTO meta_snapshot (applied_idx, lease, part, payload) VALUES ($1, $2, $3, $4)`, index, lease, parts, part)
			return err
		})
		if err != nil {
			return err
		}
		parts++
		bytes += int64(len(part))
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
