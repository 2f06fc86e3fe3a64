// Package sqllog is the metadata log in a SQL database: SQLite for one node,
// Postgres for a cluster. One implementation of metalog.Log over two dialects.
//
//	meta_schema         version                       migrations that were applied
//	meta_head           idx, hash, time_ms            one row; its lock is the ordering point
//	meta_log            idx -> time_ms, hash, payload gapless
//	meta_snapshot_head  applied_idx -> hash, parts    complete snapshots
//	meta_snapshot       (applied_idx, lease, part) -> payload
//	meta_lease          node, epoch, expires_ms       one row; the database's clock
//	meta_node           epoch -> node, applied, beat_ms, marked
//
// A snapshot's parts are inserted in a transaction each, and it becomes visible
// with its row in meta_snapshot_head: a long state never holds SQLite's one
// write lock, and a writer that died leaves only parts that nobody reads.
package sqllog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/internal/wake"
	"github.com/mink-project/mink/sdk/mink"
)

// Config tunes the database connections.
type Config struct {
	// Connections bounds the open ones: readers on SQLite (writes have one of
	// their own), the pool on Postgres (the listener has one of its own). Default 4.
	Connections int
	// ReadOnly opens what is there and changes nothing: no table is made or migrated.
	// A SQLite file may then be open in a node too.
	ReadOnly bool
	// BinaryVersion is recorded beside the migrations that this binary applies.
	BinaryVersion string
}

// Default is the configuration for a running node.
func Default() Config { return Config{Connections: 4, BinaryVersion: "dev"} }

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	if c.Connections < 1 || c.Connections > 1000 {
		return fmt.Errorf("sqllog: Connections is %d, must be 1..1000: %w", c.Connections, mink.ErrInvalid)
	}
	return nil
}

// Open connects to the database that the URL names, and creates or migrates its
// tables:
//
//	sqlite:./data/meta.db            a file; its directory must exist
//	postgres://user@host/database    libpq's URL; tables go to the search_path's schema;
//	                                 of several hosts (h1,h2) the one that is no standby
//
// Only one process may have a SQLite log open; the caller guards that. Errors:
// mink.ErrInvalid (URL, Postgres with synchronous_commit off), mink.ErrUnavailable
// (cannot connect, busy, disk full, read-only), mink.ErrUnsupported (tables of a
// newer version), mink.ErrCorrupt.
func Open(ctx context.Context, rawURL string, cfg Config, logger *slog.Logger) (metalog.Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	scheme, rest, ok := strings.Cut(rawURL, ":")
	switch {
	case ok && scheme == "sqlite":
		path, err := sqlitePath(rest)
		if err != nil {
			return nil, fmt.Errorf("metadata url %q: %w", rawURL, err)
		}
		return contract(openLog(ctx, cfg, func(l *Log) (backend, error) {
			if cfg.ReadOnly {
				if _, err := os.Stat(path); err != nil {
					return nil, fmt.Errorf("metadata database %s: %w", path, err)
				}
			}
			return openSQLite(ctx, path, cfg, sqliteOptions{})
		}))
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		return contract(openLog(ctx, cfg, func(l *Log) (backend, error) {
			return openPostgres(ctx, rawURL, cfg, &l.wake, logger)
		}))
	}
	return nil, fmt.Errorf("metadata url %q: want sqlite:./path.db or postgres://host/database: %w", redact(rawURL), mink.ErrInvalid)
}

// contract keeps a failed open from becoming a non-nil interface around a nil Log.
func contract(l *Log, err error) (metalog.Log, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

func sqlitePath(rest string) (string, error) {
	path := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		path = after // sqlite:///abs and sqlite://./rel
	}
	if path == "" || strings.HasSuffix(path, "/") || strings.ContainsAny(path, "?#\x00") || path == ":memory:" {
		return "", fmt.Errorf("a path to a database file must follow, as in sqlite:./data/meta.db: %w", mink.ErrInvalid)
	}
	return path, nil
}

// redact drops what may be a password.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable)"
	}
	return u.Redacted()
}

// Log implements metalog.Log. Safe for concurrent use.
type Log struct {
	db   backend
	wake wake.Signal
}

var _ metalog.Log = (*Log)(nil)

func openLog(ctx context.Context, cfg Config, connect func(*Log) (backend, error)) (*Log, error) {
	l := &Log{}
	db, err := connect(l)
	if err != nil {
		return nil, err
	}
	l.db = db
	if cfg.ReadOnly {
		err = l.checkSchema(ctx)
	} else {
		err = l.migrate(ctx, cfg.BinaryVersion)
	}
	if err == nil {
		err = l.checkHead(ctx)
	}
	if err != nil {
		_ = db.close() // the first error is the one to report
		return nil, fmt.Errorf("open metadata database %s: %w", db.name(), err)
	}
	return l, nil
}

// checkHead verifies that the head row and the newest log row agree. One
// statement, hence one moment: other processes append meanwhile.
func (l *Log) checkHead(ctx context.Context) error {
	return l.db.read(ctx, func(q querier) error {
		var head metalog.Position
		var topIndex *int64
		var topHash []byte
		err := q.row(ctx, `SELECT h.idx, h.hash, l.idx, l.hash FROM meta_head h LEFT JOIN meta_log l ON l.idx = (SELECT max(idx) FROM meta_log)`).
			scan(&head.Index, (*hashScan)(&head.Hash), &topIndex, &topHash)
		if errors.Is(err, errNoRow) {
			return fmt.Errorf("meta_head has no row: restore the database from a backup that is whole: %w", mink.ErrCorrupt)
		}
		if err != nil {
			return err
		}
		if topIndex != nil && (uint64(*topIndex) != head.Index || !bytes.Equal(topHash, head.Hash[:])) {
			return fmt.Errorf("meta_head says %s, the newest row of meta_log is %d (%.8x): restore the database from a backup that is whole: %w",
				head, *topIndex, topHash, mink.ErrCorrupt)
		}
		l.wake.Advance(head.Index)
		return nil
	})
}

// Changed implements metalog.Log.
func (l *Log) Changed(index uint64) <-chan struct{} { return l.wake.Changed(index) }

// Close implements metalog.Log.
func (l *Log) Close() error {
	err := l.db.close()
	l.wake.Poke()
	return err
}
