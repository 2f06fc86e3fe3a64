package sqllog

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mink-project/mink/core/metalog"
)

// backend is what differs between the databases. Statements are written once,
// with $1 placeholders and the macros that dialect replaces.
type backend interface {
	// write runs fn in one serialized, durable transaction. When it returns nil
	// the transaction is durable. fn's own errors come back as they are, database
	// errors in the classes of metalog.Log.
	write(ctx context.Context, fn func(querier) error) error
	// read runs fn where it sees committed data only.
	read(ctx context.Context, fn func(querier) error) error
	// statement runs one writing statement as its own transaction and scans the
	// row it returns; errNoRow when it touched nothing.
	statement(ctx context.Context, sql string, args []any, dest ...any) error
	// appendFast appends payloads in one round trip, or answers ok false: the
	// general way must be taken.
	appendFast(ctx context.Context, a metalog.Append) (entries []metalog.Entry, ok bool, err error)
	// lockSchema keeps other processes from migrating at the same time.
	lockSchema(ctx context.Context, q querier) error
	// notify tells other processes of the new head when the transaction commits.
	notify(ctx context.Context, q querier, index uint64) error
	dialect() dialect
	name() string
	close() error
}

// querier runs statements inside a transaction.
type querier interface {
	exec(ctx context.Context, sql string, args ...any) (rows int64, err error)
	row(ctx context.Context, sql string, args ...any) row
	query(ctx context.Context, sql string, args ...any) (rows, error)
	hasTable(ctx context.Context, table string) (bool, error)
	// insertEntries adds rows to meta_log.
	insertEntries(ctx context.Context, entries []metalog.Entry) error
}

// row is one awaited row; scan answers errNoRow when there is none.
type row interface{ scan(dest ...any) error }

// rows are closed by close; err is valid after it.
type rows interface {
	next() bool
	scan(dest ...any) error
	close() error
}

var errNoRow = errors.New("no row")

// dialect rewrites the shared statements: {now} is the database clock in ms,
// {lock} locks the selected rows, {blob} and {int} are column types.
type dialect struct {
	now, lock, blob, int string
	numbered             string // placeholder prefix
}

func (d dialect) sql(s string) string {
	return strings.NewReplacer("{now}", d.now, "{lock}", d.lock, "{blob}", d.blob, "{int}", d.int, "$", d.numbered).Replace(s)
}

// hashScan reads a hash column.
type hashScan metalog.Hash

// Scan implements sql.Scanner.
func (h *hashScan) Scan(v any) error {
	b, ok := v.([]byte)
	if !ok || len(b) != len(h) {
		return fmt.Errorf("hash column holds %T of %d bytes, want %d", v, len(b), len(h))
	}
	copy(h[:], b)
	return nil
}

// schema is the list of migrations; entry i brings version i+1. A released one
// never changes.
var schema = [][]string{{
	`CREATE TABLE meta_log (idx {int} PRIMARY KEY, time_ms {int} NOT NULL, hash {blob} NOT NULL, payload {blob} NOT NULL)`,
	`CREATE TABLE meta_head (id {int} PRIMARY KEY CHECK (id = 1), idx {int} NOT NULL, hash {blob} NOT NULL, time_ms {int} NOT NULL)`,
	`CREATE TABLE meta_snapshot_head (applied_idx {int} PRIMARY KEY, hash {blob} NOT NULL, lease {int} NOT NULL,
		parts {int} NOT NULL, bytes {int} NOT NULL, written_ms {int} NOT NULL)`,
	`CREATE TABLE meta_snapshot (applied_idx {int} NOT NULL, lease {int} NOT NULL, part {int} NOT NULL, payload {blob} NOT NULL,
		PRIMARY KEY (applied_idx, lease, part))`,
	`CREATE TABLE meta_lease (id {int} PRIMARY KEY CHECK (id = 1), node {int} NOT NULL, node_epoch {int} NOT NULL,
		epoch {int} NOT NULL, expires_ms {int} NOT NULL)`,
	`CREATE TABLE meta_node (epoch {int} PRIMARY KEY, node {int} NOT NULL, applied {int} NOT NULL, beat_ms {int} NOT NULL, marked {int} NOT NULL)`,
	`CREATE INDEX meta_node_by_node ON meta_node (node)`,
	`INSERT INTO meta_lease (id, node, node_epoch, epoch, expires_ms) VALUES (1, 0, 0, 0, 0)`,
}}
