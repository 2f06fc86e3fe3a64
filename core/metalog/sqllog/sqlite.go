package sqllog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// busyTimeout covers a backup or an inspection tool that holds the file.
const busyTimeout = 10 * time.Second

// sqliteOptions are for tests.
type sqliteOptions struct {
	vfs         string // a registered VFS; "" is the operating system's
	synchronous string // "" is FULL: each commit is synced before it is acknowledged
	checkpoint  int    // WAL pages that start a checkpoint; 0: SQLite's 1000
}

// sqliteDB is the SQLite backend: WAL mode, one writing connection, some
// reading ones beside it. SQLite syncs the directory itself when it makes its
// files; the directory's own name is its maker's to sync.
type sqliteDB struct {
	path           string
	writer, reader *sql.DB
	closed         atomic.Bool
}

var sqliteDialect = dialect{
	now: `CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)`, lock: ``, blob: `BLOB`, int: `INTEGER`, numbered: `?`,
}

func openSQLite(ctx context.Context, path string, cfg Config, o sqliteOptions) (*sqliteDB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("metadata database %s: %w", path, err)
	}
	if o.vfs == "" {
		if err := checkDir(filepath.Dir(abs)); err != nil {
			return nil, fmt.Errorf("metadata database %s: %w", path, err)
		}
	}
	if o.synchronous == "" {
		o.synchronous = "FULL"
	}
	dsn := func(pragmas ...string) string {
		q := url.Values{"_pragma": append([]string{fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds())}, pragmas...)}
		if o.vfs != "" {
			q.Set("vfs", o.vfs)
		}
		return (&url.URL{Scheme: "file", Path: abs, RawQuery: q.Encode()}).String()
	}
	modes := []string{"journal_mode(WAL)", "synchronous(" + o.synchronous + ")"}
	if cfg.ReadOnly {
		modes = append(modes, "query_only(1)")
	}
	if o.checkpoint > 0 {
		modes = append(modes, fmt.Sprintf("wal_autocheckpoint(%d)", o.checkpoint))
	}
	db := &sqliteDB{path: path}
	db.writer, err = sql.Open("sqlite", dsn(modes...))
	if err == nil {
		db.writer.SetMaxOpenConns(1)
		err = db.checkModes(ctx, o)
	}
	if err == nil {
		db.reader, err = sql.Open("sqlite", dsn("query_only(1)"))
	}
	if err != nil {
		_ = db.close() // the first error is the one to report
		return nil, fmt.Errorf("open metadata database %s: %w", path, sqliteError(err))
	}
	db.reader.SetMaxOpenConns(cfg.Connections)
	return db, nil
}

func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("directory %s does not exist, create it first: %w", dir, mink.ErrInvalid)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory: %w", dir, mink.ErrInvalid)
	}
	return nil
}

// checkModes opens the writing connection and refuses one that would not be
// durable: some file systems silently keep SQLite out of WAL mode.
func (d *sqliteDB) checkModes(ctx context.Context, o sqliteOptions) error {
	var journal string
	var synchronous int
	if err := d.writer.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&journal); err != nil {
		return err
	}
	if err := d.writer.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&synchronous); err != nil {
		return err
	}
	if journal != "wal" || o.synchronous == "FULL" && synchronous != 2 {
		return fmt.Errorf("journal_mode is %q and synchronous %d, must be wal and 2: put the file on a local file system: %w", journal, synchronous, mink.ErrUnsupported)
	}
	return nil
}

func (d *sqliteDB) dialect() dialect { return sqliteDialect }
func (d *sqliteDB) name() string     { return d.path }

func (d *sqliteDB) close() error {
	if d.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, db := range []*sql.DB{d.reader, d.writer} { // the last to close folds the WAL into the file
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// write ignores the end of ctx once the transaction has begun: it is local and
// short, and a COMMIT that was interrupted would have an unknown outcome.
func (d *sqliteDB) write(ctx context.Context, fn func(querier) error) error {
	conn, err := d.conn(ctx, d.writer)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // back to the pool
	ctx = context.WithoutCancel(ctx)
	if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return sqliteError(err)
	}
	if err := fn(&sqliteTx{conn: conn}); err != nil {
		_, _ = conn.ExecContext(ctx, `ROLLBACK`) // fails when SQLite has rolled back by itself
		return sqliteError(err)
	}
	if _, err := conn.ExecContext(ctx, `COMMIT`); err != nil {
		_, _ = conn.ExecContext(ctx, `ROLLBACK`)
		return commitError(err)
	}
	return nil
}

func (d *sqliteDB) conn(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	if d.closed.Load() {
		return nil, mink.ErrClosed
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		if d.closed.Load() {
			return nil, mink.ErrClosed
		}
		return nil, sqliteError(err)
	}
	return conn, nil
}

func (d *sqliteDB) read(ctx context.Context, fn func(querier) error) error {
	conn, err := d.conn(ctx, d.reader)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // back to the pool
	return sqliteError(fn(&sqliteTx{conn: conn}))
}

func (d *sqliteDB) statement(ctx context.Context, sql string, args []any, dest ...any) error {
	return d.write(ctx, func(q querier) error { return q.row(context.WithoutCancel(ctx), sql, args...).scan(dest...) })
}

func (d *sqliteDB) appendFast(context.Context, metalog.Append) ([]metalog.Entry, bool, error) {
	return nil, false, nil
}

// BEGIN IMMEDIATE has the database's only write lock.
func (d *sqliteDB) lockSchema(context.Context, querier) error { return nil }

// Only this process has the log open; it wakes its own readers.
func (d *sqliteDB) notify(context.Context, querier, uint64) error { return nil }

type sqliteTx struct{ conn *sql.Conn }

func (q *sqliteTx) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	res, err := q.conn.ExecContext(context.WithoutCancel(ctx), sqliteDialect.sql(sql), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (q *sqliteTx) row(ctx context.Context, sql string, args ...any) row {
	return sqliteRow{q.conn.QueryRowContext(ctx, sqliteDialect.sql(sql), args...)}
}

func (q *sqliteTx) query(ctx context.Context, sql string, args ...any) (rows, error) {
	rs, err := q.conn.QueryContext(ctx, sqliteDialect.sql(sql), args...)
	if err != nil {
		return nil, err
	}
	return sqliteRows{rs}, nil
}

func (q *sqliteTx) hasTable(ctx context.Context, table string) (bool, error) {
	var n int
	err := q.row(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = $1`, table).scan(&n)
	return n > 0, err
}

func (q *sqliteTx) insertEntries(ctx context.Context, entries []metalog.Entry) error {
	ctx = context.WithoutCancel(ctx)
	stmt, err := q.conn.PrepareContext(ctx, `INSERT INTO meta_log (idx, time_ms, hash, payload) VALUES (?, ?, ?, ?)`)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	for _, e := range entries {
		if _, err := stmt.ExecContext(ctx, int64(e.Index), e.TimeMs, e.Hash[:], e.Payload); err != nil {
			return err
		}
	}
	return nil
}

type sqliteRow struct{ *sql.Row }

func (r sqliteRow) scan(dest ...any) error {
	if err := r.Scan(dest...); !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return errNoRow
}

type sqliteRows struct{ *sql.Rows }

func (r sqliteRows) next() bool             { return r.Next() }
func (r sqliteRows) scan(dest ...any) error { return r.Scan(dest...) }
func (r sqliteRows) close() error           { return errors.Join(r.Err(), r.Close()) }

// commitError: an I/O error in COMMIT may have left a whole transaction in the
// WAL file, which recovery after a crash would bring back.
func commitError(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqlite3.SQLITE_IOERR {
		return fmt.Errorf("%w: commit: %w", mink.ErrUnknownOutcome, err)
	}
	return sqliteError(err)
}

// sqliteError puts a SQLite error into its class and says what to do.
func sqliteError(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("%w: %w", mink.ErrUnavailable, err)
	}
	if !ok {
		return err
	}
	say := func(what string, class error) error { return fmt.Errorf("%s: %w: %w", what, class, err) }
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return say("another process holds the database file; stop it", mink.ErrUnavailable)
	case sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL:
		return say("the statement was cut off", mink.ErrUnavailable)
	case sqlite3.SQLITE_FULL:
		return say("the disk is full; free space, the log goes on by itself", mink.ErrUnavailable)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return say("the database file or its directory is read-only; make it writable for this user", mink.ErrUnavailable)
	case sqlite3.SQLITE_CANTOPEN:
		return say("the database file cannot be opened; check that its directory is there and writable for this user", mink.ErrUnavailable)
	case sqlite3.SQLITE_IOERR:
		return say("the disk fails or is full", mink.ErrUnavailable)
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return say("the file is not a sound SQLite database; restore it from a backup", mink.ErrCorrupt)
	}
	return err
}
