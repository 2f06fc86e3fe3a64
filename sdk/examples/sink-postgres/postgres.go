package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// postgres is the sink. Beside the tables that readers see it has, in the schema
// state_schema:
//
//	tables    a row for each table: its name, its columns as an Arrow schema, and the
//	          last committed round as sink.Committed
//	rounds    a row for each prepared round: its fence, its staging table, how many rows
//	s7_0f3a.. a staging table: the rows of a round that is open or prepared
//
//	BeginRound   one transaction: rounds that are given up go
//	... Prepare  one transaction: a staging table, COPY for each Write, a row of rounds
//	Commit       one transaction: lock the row of tables, check round, base and fence,
//	             merge the staging table, store the round, drop the staging table
//
// Whoever changes a table locks its row of tables first, so that two workers take
// turns, and the second sees what the first has done. Commit notices by the number of rows
// when somebody was at a staging table.
type postgres struct {
	pool   *pgxpool.Pool
	schema string // of the tables; "": the database's name
	state  string // schema of the sink's own tables, quoted
	hook   func(point string) error
}

// The least version: its extract() answers exact numbers.
const versionMin = 140000

// nameMax is the longest identifier of Postgres, bytes; longer ones would be cut.
const nameMax = 63

// open connects and makes the sink's own tables.
func open(ctx context.Context, options map[string]string) (*postgres, error) {
	cfg, err := pgxpool.ParseConfig(options["url"])
	if err != nil { // its text has no password
		return nil, fmt.Errorf("%w: option url: %w", sink.ErrInvalid, err)
	}
	n, err := strconv.ParseInt(options["connections"], 10, 32)
	if err != nil || n < 2 {
		return nil, fmt.Errorf("%w: option connections is %q; it must be a number from 2", sink.ErrInvalid, options["connections"])
	}
	cfg.MaxConns = int32(n)
	wait, err := time.ParseDuration(options["lock_timeout"])
	if err != nil || wait < time.Millisecond {
		return nil, fmt.Errorf("%w: option lock_timeout is %q; it must be a duration such as 1m", sink.ErrInvalid, options["lock_timeout"])
	}
	for _, name := range []string{"schema", "state_schema"} {
		if err := checkIdentifier(options[name]); options[name] != "" && err != nil {
			return nil, fmt.Errorf("%w: option %s: %w", sink.ErrInvalid, name, err)
		}
	}
	if options["state_schema"] == "" {
		return nil, fmt.Errorf("%w: option state_schema is empty", sink.ErrInvalid)
	}
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return prepareSession(ctx, c, wait) }
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: option url: %w", sink.ErrInvalid, err)
	}
	s := &postgres{pool: pool, schema: options["schema"], state: quote(options["state_schema"])}
	if err := s.makeState(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// prepareSession: a transaction of a worker that vanished must not hold its locks for
// longer than this, and a commit that was acknowledged must be on disk.
func prepareSession(ctx context.Context, c *pgx.Conn, lockTimeout time.Duration) error {
	set := fmt.Sprintf(`SET lock_timeout = %d; SET idle_in_transaction_session_timeout = '15min'; SET tcp_keepalives_idle = 20; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
		SET timezone = 'UTC'; SET standard_conforming_strings = on; SET search_path = pg_catalog; SET default_transaction_isolation = 'read committed'`, lockTimeout.Milliseconds())
	if _, err := c.Exec(ctx, set); err != nil {
		return err
	}
	_, err := c.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local')`)
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func checkIdentifier(name string) error {
	if len(name) < 1 || len(name) > nameMax || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("%q is no name that Postgres keeps: 1 to %d bytes", name, nameMax)
	}
	return nil
}

// lockKey is the advisory lock under which schemas and tables are made.
const lockKey = 0x6d696e6b73696e6b // "minksink"

func (s *postgres) makeState(ctx context.Context) error {
	return s.transact(ctx, func(tx pgx.Tx) error {
		var number int
		if err := tx.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&number); err != nil {
			return err
		}
		if number < versionMin {
			return fmt.Errorf("%w: Postgres %d, 14 or newer is needed", sink.ErrUnimplemented, number/10000)
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(lockKey)); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, s.state+".rounds").Scan(&there); err != nil || there {
			return err // without the right to make a schema, it may have been made by somebody else
		}
		_, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+s.state+`;
			CREATE TABLE `+s.state+`.tables (
				id bigint PRIMARY KEY, schema_name text NOT NULL, table_name text NOT NULL, schema_id int NOT NULL, arrow bytea NOT NULL,
				committed json NOT NULL, UNIQUE (schema_name, table_name));
			CREATE TABLE `+s.state+`.rounds (
				table_id bigint NOT NULL, round text NOT NULL, fence bigint NOT NULL, staging text NOT NULL, schema_id int NOT NULL, row_count bigint NOT NULL,
				PRIMARY KEY (table_id, round))`)
		return err
	})
}

func (s *postgres) Describe() sink.Description {
	return sink.Description{
		Name: "postgres", Version: version, Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied,
		StagedSurvives: true, SchemaChanges: true, ReadBack: true,
	}
}

// closeWait bounds how long Close waits for handles that nobody closed.
const closeWait = 5 * time.Second

func (s *postgres) Close() error {
	closed := make(chan struct{})
	go func() { s.pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(closeWait): // their connections end with the process
	}
	return nil
}

// at is a point at which tests end things.
func (s *postgres) at(point string) error {
	if s.hook == nil {
		return nil
	}
	return s.hook(point)
}

// place is where a table is.
type place struct{ schema, table string }

func (p place) String() string { return pgx.Identifier{p.schema, p.table}.Sanitize() }

// place is where a table that is new here goes.
func (s *postgres) place(spec sink.TableSpec) (place, error) {
	p := place{s.schema, spec.Name}
	if p.schema == "" {
		p.schema = spec.Database
	}
	if own := spec.Options["schema"]; own != "" {
		p.schema = own
	}
	if own := spec.Options["table"]; own != "" {
		p.table = own
	}
	for key := range spec.Options {
		if key != "schema" && key != "table" {
			return p, fmt.Errorf("%w: table %s: sink-postgres knows no option %q of a table; it has schema and table", sink.ErrInvalid, spec.FullName(), key)
		}
	}
	for _, name := range []string{p.schema, p.table} {
		if err := checkIdentifier(name); err != nil {
			return p, fmt.Errorf("%w: table %s: %w", sink.ErrInvalid, spec.FullName(), err)
		}
	}
	if quote(p.schema) == s.state {
		return p, fmt.Errorf("%w: table %s: schema %q is the sink's own (state_schema)", sink.ErrInvalid, spec.FullName(), p.schema)
	}
	return p, nil
}

func (s *postgres) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if err := errors.Join(ctx.Err(), req.Table.Validate()); err != nil {
		return nil, err
	}
	t := &table{sink: s, spec: req.Table}
	if req.Drop {
		return t, nil
	}
	if err := checkTable(req.Table); err != nil {
		return nil, err
	}
	err := s.transact(ctx, func(tx pgx.Tx) error {
		now, err := s.lock(ctx, tx, req.Table.ID)
		if errors.Is(err, pgx.ErrNoRows) {
			return s.create(ctx, tx, req.Table)
		}
		if err == nil {
			err = s.follow(ctx, tx, now, req.Table.Schema)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", req.Table.FullName(), err)
	}
	return t, nil
}

// known is a row of tables.
type known struct {
	id        mink.TableID
	at        place
	schemaID  mink.SchemaID
	arrow     *arrow.Schema
	committed sink.Committed
}

// lock answers the row of a table, which is this transaction's until its end.
func (s *postgres) lock(ctx context.Context, tx pgx.Tx, id mink.TableID) (known, error) {
	k := known{id: id}
	var ipc, committed []byte
	err := tx.QueryRow(ctx, `SELECT schema_name, table_name, schema_id, arrow, committed::text FROM `+s.state+`.tables WHERE id = $1 FOR UPDATE`, int64(id)).
		Scan(&k.at.schema, &k.at.table, &k.schemaID, &ipc, &committed)
	if err != nil {
		return k, err
	}
	if k.arrow, err = decodeSchema(ipc); err != nil {
		return k, fmt.Errorf("%w: the columns that are stored of table %d: %w", sink.ErrCorrupt, id, err)
	}
	return k, json.Unmarshal(committed, &k.committed)
}

// create makes the place of a table. Nothing that is there already is taken for it.
func (s *postgres) create(ctx context.Context, tx pgx.Tx, spec sink.TableSpec) error {
	at, err := s.place(spec)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(lockKey)); err != nil {
		return err
	}
	if _, err := s.lock(ctx, tx, spec.ID); !errors.Is(err, pgx.ErrNoRows) {
		if err == nil { // another worker was first
			err = fmt.Errorf("%w: another worker has just made it", sink.ErrUnavailable)
		}
		return err
	}
	var id int64
	var relation bool
	err = tx.QueryRow(ctx, `SELECT coalesce((SELECT id FROM `+s.state+`.tables WHERE schema_name = $1 AND table_name = $2), 0),
		EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)`, at.schema, at.table).Scan(&id, &relation)
	switch {
	case err != nil:
		return err
	case id != 0:
		return fmt.Errorf("%w: %s is table %d of Mink, this one has the id %d", sink.ErrAlreadyExists, at, id, spec.ID)
	case relation:
		return fmt.Errorf("%w: %s is there and not Mink's: rename or drop it, or name another place with the table options sink.NAME.options.schema and sink.NAME.options.table", sink.ErrAlreadyExists, at)
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, at.schema).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, `CREATE SCHEMA `+quote(at.schema)); err != nil {
			return err
		}
	}
	var columns []string
	for _, f := range spec.Schema.Arrow.Fields() {
		text := quote(f.Name) + " " + typeOf(f.Type)
		if !f.Nullable {
			text += " NOT NULL"
		}
		columns = append(columns, text)
	}
	if len(spec.PrimaryKey) > 0 {
		columns = append(columns, "PRIMARY KEY ("+quoteAll(spec.PrimaryKey)+")")
	}
	if _, err := tx.Exec(ctx, `CREATE TABLE `+at.String()+` (`+strings.Join(columns, ", ")+`)`); err != nil {
		return err
	}
	none, err := json.Marshal(sink.Committed{})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO `+s.state+`.tables (id, schema_name, table_name, schema_id, arrow, committed) VALUES ($1, $2, $3, $4, $5, $6)`,
		int64(spec.ID), at.schema, at.table, int32(spec.Schema.ID), encodeSchema(spec.Schema.Arrow), string(none))
	return err
}

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quote(n)
	}
	return strings.Join(quoted, ", ")
}

// follow changes the columns of a table to those of a newer schema, by their field
// ids.
func (s *postgres) follow(ctx context.Context, tx pgx.Tx, now known, next sink.Schema) error {
	switch {
	case next.ID == now.schemaID:
		return nil
	case next.ID < now.schemaID:
		return fmt.Errorf("schema %d is older than %d, which the target has: %w", next.ID, now.schemaID, sink.ErrConflict)
	}
	statements, err := changes(now.at, now.arrow, next.Arrow)
	if err != nil {
		return err
	}
	for _, text := range statements {
		if _, err := tx.Exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	_, err = tx.Exec(ctx, `UPDATE `+s.state+`.tables SET schema_id = $2, arrow = $3 WHERE id = $1`, int64(now.id), int32(next.ID), encodeSchema(next.Arrow))
	return err
}

// changes are the statements that bring a table from one schema to another.
func changes(at place, from, to *arrow.Schema) ([]string, error) {
	alter := `ALTER TABLE ` + at.String() + ` `
	old, kept := map[string]arrow.Field{}, map[string]bool{}
	for _, f := range from.Fields() {
		old[fieldID(f)] = f
	}
	for _, f := range to.Fields() {
		kept[fieldID(f)] = true
	}
	var first, renames, last []string
	for _, f := range from.Fields() {
		if !kept[fieldID(f)] {
			first = append(first, alter+`DROP COLUMN `+quote(f.Name))
		}
	}
	for _, f := range to.Fields() {
		was, found := old[fieldID(f)]
		if !found {
			last = append(last, alter+`ADD COLUMN `+quote(f.Name)+` `+typeOf(f.Type))
			continue
		}
		if was.Name != f.Name { // names may be swapped: all go through one that nobody has
			between := "__mink_" + fieldID(f)
			first = append(first, alter+`RENAME COLUMN `+quote(was.Name)+` TO `+quote(between))
			renames = append(renames, alter+`RENAME COLUMN `+quote(between)+` TO `+quote(f.Name))
		}
		if a, b := typeOf(was.Type), typeOf(f.Type); a != b {
			using, err := widen(was.Type, f.Type, quote(f.Name))
			if err != nil {
				return nil, fmt.Errorf("%w: column %q: %w", sink.ErrUnimplemented, f.Name, err)
			}
			last = append(last, alter+`ALTER COLUMN `+quote(f.Name)+` TYPE `+b+` USING `+using)
		}
		if f.Nullable && !was.Nullable {
			last = append(last, alter+`ALTER COLUMN `+quote(f.Name)+` DROP NOT NULL`)
		}
	}
	return append(append(first, renames...), last...), nil
}

func fieldID(f arrow.Field) string {
	id, _ := f.Metadata.GetValue(mink.MetaFieldID)
	return id
}

// transact runs one transaction. An error is one of the contract's; of the commit
// itself it is sink.ErrUnknownOutcome when nobody knows.
func (s *postgres) transact(ctx context.Context, do func(tx pgx.Tx) error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return contract(err)
	}
	return finish(ctx, tx, do(tx))
}

// finish commits, or rolls back when there is an error already.
func finish(ctx context.Context, tx pgx.Tx, err error) error {
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(over) // the connection's end does it too
		return contract(err)
	}
	if err := tx.Commit(ctx); err != nil {
		if !refusedCommit(err) {
			return fmt.Errorf("%w: the answer to COMMIT did not come: %w", sink.ErrUnknownOutcome, contract(err))
		}
		return contract(err)
	}
	return nil
}
