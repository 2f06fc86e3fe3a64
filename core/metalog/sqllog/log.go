package sqllog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// headRow is meta_head's row.
type headRow struct {
	metalog.Position
	timeMs int64
}

func readHead(ctx context.Context, q querier, lock bool) (h headRow, err error) {
	sql := `SELECT idx, hash, time_ms FROM meta_head WHERE id = 1`
	if lock {
		sql += ` {lock}`
	}
	err = q.row(ctx, sql).scan(&h.Index, (*hashScan)(&h.Hash), &h.timeMs)
	if errors.Is(err, errNoRow) {
		err = fmt.Errorf("meta_head has no row: restore the database from a backup that is whole: %w", mink.ErrCorrupt)
	}
	return h, err
}

func checkExpect(h metalog.Position, expect *metalog.Position, atLeast uint64) error {
	if h.Index < atLeast {
		return fmt.Errorf("the log ends at %d, index %d was there before: %w", h.Index, atLeast, metalog.ErrWentBack)
	}
	if expect != nil && *expect != h {
		return fmt.Errorf("expected head %s, it is %s: %w", expect, h, metalog.ErrHeadMoved)
	}
	return nil
}

// Append implements metalog.Log.
func (l *Log) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	if err := a.Validate(); err != nil {
		return nil, err
	}
	entries, ok, err := l.db.appendFast(ctx, a)
	if !ok {
		err = l.db.write(ctx, func(q querier) (err error) {
			entries, err = l.appendIn(ctx, q, a)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("append to the metadata log: %w", err)
	}
	l.wake.Advance(entries[len(entries)-1].Index)
	return entries, nil
}

// appendIn appends within a transaction. The head row's lock comes first: every
// statement after it sees all that earlier entries' transactions did.
func (l *Log) appendIn(ctx context.Context, q querier, a metalog.Append) ([]metalog.Entry, error) {
	h, err := readHead(ctx, q, true)
	if err != nil {
		return nil, err
	}
	if err := checkExpect(h.Position, a.Expect, a.AtLeast); err != nil {
		return nil, err
	}
	if a.Lease.Epoch != 0 {
		if err := checkHolder(ctx, q, a.Lease); err != nil {
			return nil, err
		}
	}
	entries, err := l.addEntries(ctx, q, h, a.Payloads)
	if err != nil {
		return nil, err
	}
	for _, epoch := range a.Seal {
		if _, err := q.exec(ctx, `UPDATE meta_node SET marked = 1 WHERE epoch = $1`, int64(epoch)); err != nil {
			return nil, err
		}
	}
	if a.Register != 0 {
		return entries, admit(ctx, q, a.Register, entries[0].Index)
	}
	return entries, nil
}

// addEntries writes the rows after the locked head.
func (l *Log) addEntries(ctx context.Context, q querier, h headRow, payloads [][]byte) ([]metalog.Entry, error) {
	var now int64
	if err := q.row(ctx, `SELECT {now}`).scan(&now); err != nil {
		return nil, err
	}
	h.timeMs = max(h.timeMs, now)
	entries := make([]metalog.Entry, len(payloads))
	for i, p := range payloads {
		entries[i] = metalog.Entry{Index: h.Index + 1, TimeMs: h.timeMs, Payload: p}
		entries[i].Hash = metalog.Chain(h.Hash, h.Index+1, h.timeMs, p)
		h.Position = entries[i].Position()
	}
	if err := q.insertEntries(ctx, entries); err != nil {
		return nil, err
	}
	if _, err := q.exec(ctx, `UPDATE meta_head SET idx = $1, hash = $2, time_ms = $3 WHERE id = 1`, int64(h.Index), h.Hash[:], h.timeMs); err != nil {
		return nil, err
	}
	return entries, l.db.notify(ctx, q, h.Index)
}

// markedRowsKept is how long the heartbeat row of an ended epoch is kept for whoever
// looks at the table.
const markedRowsKept = 7 * 24 * time.Hour

// admit gives the new epoch its heartbeat row and marks the node's earlier
// ones. Rows that were marked before go: a missing row refuses as well. So do those of
// ids that are not used any more.
func admit(ctx context.Context, q querier, node mink.NodeID, index uint64) error {
	if _, err := q.exec(ctx, `DELETE FROM meta_node WHERE marked = 1 AND (node = $1 OR beat_ms < {now} - $2)`, int64(node), markedRowsKept.Milliseconds()); err != nil {
		return err
	}
	if _, err := q.exec(ctx, `UPDATE meta_node SET marked = 1 WHERE node = $1`, int64(node)); err != nil {
		return err
	}
	_, err := q.exec(ctx, `INSERT INTO meta_node (epoch, node, applied, beat_ms, marked) VALUES ($1, $2, 0, {now}, 0)`, int64(index), int64(node))
	return err
}

// The head and the rows come from one statement, hence from one moment. The
// running sum bounds the bytes inside the database.
const readSQL = `SELECT h.idx, l.idx, l.time_ms, l.hash, l.payload FROM meta_head h LEFT JOIN (
	SELECT idx, time_ms, hash, payload FROM (
		SELECT idx, time_ms, hash, payload, sum(octet_length(payload)) OVER (ORDER BY idx) AS run FROM (
			SELECT idx, time_ms, hash, payload FROM meta_log WHERE idx > $1 ORDER BY idx LIMIT $2) a) b
	WHERE run <= $3 OR idx = $4) l ON 1 = 1 ORDER BY l.idx`

// Read implements metalog.Log.
func (l *Log) Read(ctx context.Context, after uint64, maxEntries, maxBytes int) ([]metalog.Entry, error) {
	var head uint64
	var out []metalog.Entry
	err := l.db.read(ctx, func(q querier) error {
		head, out = 0, nil
		rs, err := q.query(ctx, readSQL, int64(after), int64(max(maxEntries, 1)), int64(maxBytes), int64(after)+1)
		if err != nil {
			return err
		}
		for rs.next() {
			var idx, timeMs *int64
			var hash, payload []byte
			if err = rs.scan(&head, &idx, &timeMs, &hash, &payload); err != nil {
				break
			}
			if idx == nil {
				break
			}
			e := metalog.Entry{Index: uint64(*idx), TimeMs: *timeMs, Payload: payload}
			if err = (*hashScan)(&e.Hash).Scan(hash); err != nil {
				break
			}
			out = append(out, e)
		}
		return errors.Join(err, rs.close())
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the metadata log after %d: %w", after, err)
	case after > head:
		return nil, fmt.Errorf("read after %d, the log ends at %d: %w", after, head, metalog.ErrWentBack)
	case after < head && (len(out) == 0 || out[0].Index != after+1):
		return nil, fmt.Errorf("read after %d: %w", after, metalog.ErrTruncated)
	}
	l.wake.Advance(head)
	return out, nil
}

// Head implements metalog.Log.
func (l *Log) Head(ctx context.Context) (p metalog.Position, err error) {
	err = l.db.read(ctx, func(q querier) error {
		h, err := readHead(ctx, q, false)
		p = h.Position
		return err
	})
	if err != nil {
		return metalog.Position{}, fmt.Errorf("read the metadata log's head: %w", err)
	}
	l.wake.Advance(p.Index)
	return p, nil
}
