package sqlcatalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/mink-project/mink/sdk/catalog"
)

// busyTimeout covers the writes of other clients of a SQLite file.
const busyTimeout = 10 * time.Second

// connectTimeout bounds one attempt when the URL names none.
const connectTimeout = 10 * time.Second

// idleTransactionMax is after how long without a statement Postgres ends a transaction: a
// process that stands still in one holds locks that others wait for.
const idleTransactionMax = 5 * time.Second

// database is what both kinds have in common; statements have $1 placeholders,
// which both know.
type database struct {
	*sql.DB
	where    string // for messages: the file, or host/database
	postgres bool
}

type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func openDatabase(ctx context.Context, raw string, connections int) (*database, error) {
	scheme, rest, _ := strings.Cut(raw, ":")
	var db *database
	var err error
	switch scheme {
	case "sqlite":
		db, err = openSQLite(strings.TrimPrefix(rest, "//"))
	case "postgres", "postgresql":
		db, err = openPostgres(raw)
	default:
		return nil, fmt.Errorf("lake catalog url %q: want sqlite:./catalog.db or postgres://host/database: %w", redact(raw), catalog.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect to the lake catalog %s: %w", db.where, db.class(err, false)), db.Close())
	}
	return db, nil
}

// redact drops what may be a password.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable)"
	}
	return u.Redacted()
}

// openSQLite shares the file with other processes: pyiceberg may have it open.
func openSQLite(path string) (*database, error) {
	if path == "" || strings.HasSuffix(path, "/") || strings.ContainsAny(path, "?#\x00") || path == ":memory:" {
		return nil, fmt.Errorf("lake catalog url: a path to a database file must follow sqlite:, as in sqlite:./data/catalog.db: %w", catalog.ErrInvalid)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("lake catalog %s: %w", path, err)
	}
	if info, err := os.Stat(filepath.Dir(abs)); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("lake catalog %s: its directory does not exist, create it first: %w", path, catalog.ErrInvalid)
	}
	q := url.Values{
		"_pragma": {fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)"},
		"_txlock": {"immediate"},
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: abs, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("lake catalog %s: %w", path, err)
	}
	return &database{DB: db, where: path}, nil
}

func openPostgres(raw string) (*database, error) {
	cc, err := pgx.ParseConfig(raw)
	if err != nil { // its text hides the password
		return nil, fmt.Errorf("lake catalog url: %w: %w", catalog.ErrInvalid, err)
	}
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = connectTimeout
	}
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "mink lake catalog"
	}
	db := &database{where: fmt.Sprintf("%s:%d/%s", cc.Host, cc.Port, cc.Database), postgres: true}
	db.DB = stdlib.OpenDB(*cc, stdlib.OptionAfterConnect(checkSession))
	return db, nil
}

// checkSession refuses sessions in which an acknowledged commit could be lost, and
// sets the isolation that the statements are written for: an UPDATE that waited for
// another looks at the row anew.
func checkSession(ctx context.Context, conn *pgx.Conn) error {
	var standby bool
	var commit string
	if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('synchronous_commit')`).Scan(&standby, &commit); err != nil {
		return err
	}
	if standby {
		return fmt.Errorf("it is a standby; point the url at the primary, or name all hosts: %w", catalog.ErrUnavailable)
	}
	if commit == "off" {
		return fmt.Errorf("postgres has synchronous_commit = off: an acknowledged commit could be lost in a crash; set it to on for this database or role: %w", catalog.ErrInvalid)
	}
	_, err := conn.Exec(ctx, fmt.Sprintf(`SET default_transaction_isolation = 'read committed'; SET idle_in_transaction_session_timeout = %d`, idleTransactionMax.Milliseconds()))
	return err
}

// tables are as SQLAlchemy makes them for pyiceberg.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS iceberg_tables (
		catalog_name VARCHAR(255) NOT NULL,
		table_namespace VARCHAR(255) NOT NULL,
		table_name VARCHAR(255) NOT NULL,
		metadata_location VARCHAR(1000),
		previous_metadata_location VARCHAR(1000),
		iceberg_type VARCHAR(5),
		PRIMARY KEY (catalog_name, table_namespace, table_name))`,
	`CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
		catalog_name VARCHAR(255) NOT NULL,
		namespace VARCHAR(255) NOT NULL,
		property_key VARCHAR(255) NOT NULL,
		property_value VARCHAR(1000) NOT NULL,
		PRIMARY KEY (catalog_name, namespace, property_key))`,
}

func (d *database) createTables(ctx context.Context) error {
	return d.write(ctx, func(q querier) error {
		if d.postgres { // two at once would meet in Postgres' own tables
			if _, err := q.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('mink lake catalog'))`); err != nil {
				return err
			}
		}
		for _, statement := range tables {
			if _, err := q.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		var none int
		err := q.QueryRowContext(ctx, `SELECT count(iceberg_type) FROM iceberg_tables WHERE 1 = 0`).Scan(&none)
		if err != nil {
			return fmt.Errorf("its tables are of an older layout: ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5): %w: %w", catalog.ErrInvalid, err)
		}
		return nil
	})
}

// change runs one statement as its own transaction.
func (d *database) change(ctx context.Context, query string, args ...any) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if !d.postgres {
		// Local and short, and a commit that was cut off would have an unknown outcome.
		ctx = context.WithoutCancel(ctx)
	}
	n, err := affected(d.ExecContext(ctx, query, args...))
	return n, d.class(err, true)
}

// write runs fn in a transaction.
func (d *database) write(ctx context.Context, fn func(querier) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !d.postgres {
		ctx = context.WithoutCancel(ctx)
	}
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return d.class(err, false)
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback() // a connection that fails here is dropped, which rolls back too
		return d.class(err, false)
	}
	return d.class(tx.Commit(), true)
}

func (d *database) close() error {
	if err := d.Close(); err != nil {
		return fmt.Errorf("close lake catalog %s: %w", d.where, err)
	}
	return nil
}

// sentinels are the classes that this package gives by itself.
var sentinels = []error{
	catalog.ErrNotExist, catalog.ErrAlreadyExists, catalog.ErrConflict, catalog.ErrInvalid, catalog.ErrUnauthorized,
	catalog.ErrUnavailable, catalog.ErrUnknownOutcome, catalog.ErrCorrupt, catalog.ErrNotEmpty,
}

// class puts an error into its class. committing: it came from what commits, so a lost
// answer leaves the outcome unknown.
func (d *database) class(err error, committing bool) error {
	if err == nil {
		return nil
	}
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return err
		}
	}
	if errors.Is(err, sql.ErrConnDone) || err.Error() == "sql: database is closed" {
		return fmt.Errorf("%w: the catalog is closed: %w", catalog.ErrUnavailable, err)
	}
	if d.postgres {
		return postgresClass(err, committing)
	}
	return sqliteClass(err, committing)
}

func postgresClass(err error, committing bool) error {
	lost := catalog.ErrUnavailable
	if committing && !pgconn.SafeToRetry(err) {
		lost = catalog.ErrUnknownOutcome
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("%w: %w", lost, err)
	}
	say := func(what string, class error) error { return fmt.Errorf("%s: %w: %w", what, class, err) }
	switch {
	case e.Code == "23505":
		return say("the name is taken", catalog.ErrAlreadyExists)
	case e.Code == "22001" || e.Code == "22021" || e.Code == "22P05":
		return say("the text does not fit its column", catalog.ErrInvalid)
	case e.Code == "25006":
		return say("the database is read-only (a standby?); point the url at the primary", catalog.ErrUnavailable)
	case e.Code == "53100":
		return say("the database's disk is full; free space", catalog.ErrUnavailable)
	case e.Code[:2] == "53", e.Code == "40001", e.Code == "40P01", e.Code == "55P03":
		return say("the database is busy", catalog.ErrUnavailable)
	case e.Code[:2] == "28", e.Code == "42501":
		return say("the database refuses this user; it must own iceberg_tables and iceberg_namespace_properties, or be allowed to create them", catalog.ErrUnauthorized)
	case e.Code == "3D000" || e.Code == "3F000":
		return say("create the database first", catalog.ErrInvalid)
	case e.Code == "42P01":
		return say("its tables were dropped; start the node again to make new ones", catalog.ErrCorrupt)
	case e.Code[:2] == "XX":
		return say("the database reports damage", catalog.ErrCorrupt)
	case e.Code == "57014" || e.Code[:2] == "57" || e.Code[:2] == "08" || e.Code == "40003":
		// A shutdown can end the wait for a standby after the local commit.
		return say("the database stopped the session", lost)
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err) // it answered: nothing was changed
}

func sqliteClass(err error, committing bool) error {
	say := func(what string, class error) error { return fmt.Errorf("%s: %w: %w", what, class, err) }
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	failed := catalog.ErrUnavailable
	if committing {
		failed = catalog.ErrUnknownOutcome
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT:
		return say("the name is taken", catalog.ErrAlreadyExists)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return say("another process holds the database file", catalog.ErrUnavailable)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return say("the database file or its directory is read-only; make it writable for this user", catalog.ErrUnavailable)
	case sqlite3.SQLITE_CANTOPEN:
		return say("the database file cannot be opened; check that its directory is there and writable for this user", catalog.ErrUnavailable)
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return say("the file is not a sound SQLite database; restore it from a backup", catalog.ErrCorrupt)
	case sqlite3.SQLITE_FULL:
		return say("the disk is full; free space", catalog.ErrUnavailable)
	case sqlite3.SQLITE_IOERR:
		return say("the disk fails or is full", failed)
	}
	return fmt.Errorf("%w: %w", failed, err)
}
