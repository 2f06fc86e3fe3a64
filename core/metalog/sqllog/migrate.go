package sqllog

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// migrate brings the tables to this binary's version. A database that is up to
// date is only read, so that a read-only one gives its own clear error later.
func (l *Log) migrate(ctx context.Context, binary string) error {
	have, err := l.schemaVersion(ctx)
	if err != nil {
		return err
	}
	if have == len(schema) {
		return nil
	}
	if have > len(schema) {
		return fmt.Errorf("its tables have schema version %d, this binary knows up to %d: start a newer mink: %w", have, len(schema), mink.ErrUnsupported)
	}
	return l.db.write(ctx, func(q querier) error {
		if err := l.db.lockSchema(ctx, q); err != nil {
			return err
		}
		if _, err := q.exec(ctx, `CREATE TABLE IF NOT EXISTS meta_schema (version {int} PRIMARY KEY, applied_ms {int} NOT NULL, binary_version TEXT NOT NULL)`); err != nil {
			return err
		}
		var have int // again: another process may have been faster
		if err := q.row(ctx, `SELECT coalesce(max(version), 0) FROM meta_schema`).scan(&have); err != nil {
			return err
		}
		for v := have; v < len(schema); v++ {
			for _, s := range schema[v] {
				if _, err := q.exec(ctx, s); err != nil {
					return fmt.Errorf("bring the tables to schema version %d: %w", v+1, err)
				}
			}
			if v == 0 {
				if _, err := q.exec(ctx, `INSERT INTO meta_head (id, idx, hash, time_ms) VALUES (1, 0, $1, 0)`, make([]byte, len(metalog.Hash{}))); err != nil {
					return err
				}
			}
			if _, err := q.exec(ctx, `INSERT INTO meta_schema (version, applied_ms, binary_version) VALUES ($1, {now}, $2)`, v+1, binary); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkSchema refuses a database whose tables are not this binary's.
func (l *Log) checkSchema(ctx context.Context) error {
	switch have, err := l.schemaVersion(ctx); {
	case err != nil:
		return err
	case have == 0:
		return fmt.Errorf("it holds no metadata: %w", mink.ErrNotExist)
	case have > len(schema):
		return fmt.Errorf("its tables have schema version %d, this binary knows up to %d: use a newer mink: %w", have, len(schema), mink.ErrUnsupported)
	case have < len(schema):
		return fmt.Errorf("its tables have schema version %d, this binary wants %d: start a node of this version on it first: %w", have, len(schema), mink.ErrUnsupported)
	}
	return nil
}

// schemaVersion is 0 for a database without the tables.
func (l *Log) schemaVersion(ctx context.Context) (version int, err error) {
	err = l.db.read(ctx, func(q querier) error {
		exists, err := q.hasTable(ctx, "meta_schema")
		if err != nil || !exists {
			return err
		}
		return q.row(ctx, `SELECT coalesce(max(version), 0) FROM meta_schema`).scan(&version)
	})
	return version, err
}
