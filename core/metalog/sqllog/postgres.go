package sqllog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/internal/wake"
	"github.com/mink-project/mink/sdk/mink"
)

// postgresDB is the Postgres backend. It has a goroutine that listens for the
// head's notifications; close ends it.
type postgresDB struct {
	pool    *pgxpool.Pool
	where   string // host/database, for messages
	channel string
	closed  atomic.Bool
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

var postgresDialect = dialect{
	now: `(extract(epoch FROM clock_timestamp()) * 1000)::bigint`, lock: `FOR UPDATE`, blob: `BYTEA`, int: `BIGINT`, numbered: `$`,
}

// connectTimeout bounds one attempt when the URL names none.
const connectTimeout = 10 * time.Second

// idleTransactionMax is after how long without a statement the database ends a
// transaction, and with it the session: a process that stands still in one, or that
// packets do not reach, has the head's lock, and no other could write until it comes back.
const idleTransactionMax = 5 * time.Second

func openPostgres(ctx context.Context, rawURL string, cfg Config, w *wake.Signal, logger *slog.Logger) (*postgresDB, error) {
	pc, err := pgxpool.ParseConfig(rawURL)
	if err != nil { // its text hides the password
		return nil, fmt.Errorf("metadata url: %w: %w", mink.ErrInvalid, err)
	}
	cc := pc.ConnConfig
	where := fmt.Sprintf("%s:%d/%s", cc.Host, cc.Port, cc.Database)
	pc.MaxConns = int32(cfg.Connections)
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = connectTimeout
	}
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "mink"
	}
	if !cfg.ReadOnly {
		cc.ValidateConnect = refuseStandby
	}
	pc.AfterConnect = checkSession
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("metadata database %s: %w", where, err)
	}
	db := &postgresDB{pool: pool, where: where}
	var schemaName *string
	err = pool.QueryRow(ctx, `SELECT current_schema()`).Scan(&schemaName)
	if err == nil && schemaName == nil {
		err = fmt.Errorf("no schema of the search_path exists, create one: %w", mink.ErrInvalid)
	}
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("cannot connect to the metadata database %s: %w", where, postgresError(err, false))
	}
	db.channel = channelOf(*schemaName)
	lctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	db.stop = stop
	db.wg.Go(func() { db.listen(lctx, cc.Copy(), w, logger) })
	return db, nil
}

// channelBytesMax is what Postgres takes as a channel's name; pg_notify fails on a
// longer one.
const channelBytesMax = 63

// channelOf is the channel of the tables in a schema.
func channelOf(schemaName string) string {
	channel := "mink_meta_" + schemaName
	if len(channel) > channelBytesMax {
		channel = fmt.Sprintf("mink_meta_%x", sha256.Sum224([]byte(schemaName)))[:channelBytesMax]
	}
	return channel
}

// refuseStandby makes a connection go on to the URL's next host. After a failover the
// first one may be the old primary, which is a standby by then: nothing could be written
// there, and what it holds is of before.
func refuseStandby(ctx context.Context, conn *pgconn.PgConn) error {
	rs, err := conn.Exec(ctx, `SELECT pg_is_in_recovery()`).ReadAll()
	if err != nil {
		return err
	}
	if len(rs) == 1 && len(rs[0].Rows) == 1 && string(rs[0].Rows[0][0]) == "t" {
		return fmt.Errorf("it is a standby; point the metadata url at the primary, or name all hosts: %w", mink.ErrUnavailable)
	}
	return nil
}

// checkSession refuses a session in which an acknowledged commit could be lost,
// fixes the isolation that the statements are written for, and bounds how long a lock is held.
func checkSession(ctx context.Context, conn *pgx.Conn) error {
	var commit string
	err := conn.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&commit)
	if err != nil {
		return err
	}
	if commit == "off" {
		return fmt.Errorf("postgres has synchronous_commit = off: an acknowledged change could be lost in a crash; set it to on for this database or role: %w", mink.ErrInvalid)
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`SET default_transaction_isolation = 'read committed'; SET idle_in_transaction_session_timeout = %d`, idleTransactionMax.Milliseconds()))
	return err
}

func (d *postgresDB) dialect() dialect { return postgresDialect }
func (d *postgresDB) name() string     { return d.where }

func (d *postgresDB) close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.stop()
	d.wg.Wait()
	d.pool.Close()
	return nil
}

// listen turns notifications into wake-ups. After a reconnect it wakes all:
// some may have been missed.
func (d *postgresDB) listen(ctx context.Context, cc *pgx.ConnConfig, w *wake.Signal, logger *slog.Logger) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	for ctx.Err() == nil {
		err := d.listenOnce(ctx, cc, w, retry)
		if ctx.Err() != nil {
			return
		}
		pause := retry.NextBackOff()
		logger.Warn("listening for metadata changes failed, will reconnect; polling goes on", "database", d.where, "in", pause, "error", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (d *postgresDB) listenOnce(ctx context.Context, cc *pgx.ConnConfig, w *wake.Signal, retry *backoff.ExponentialBackOff) error {
	conn, err := pgx.ConnectConfig(ctx, cc.Copy())
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(cctx) // it is given up anyway
	}()
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{d.channel}.Sanitize()); err != nil {
		return err
	}
	retry.Reset()
	w.Poke()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if index, err := strconv.ParseUint(n.Payload, 10, 64); err == nil {
			w.Advance(index)
		}
	}
}

func (d *postgresDB) notify(ctx context.Context, q querier, index uint64) error {
	var ignored any
	return q.row(ctx, `SELECT pg_notify($1, $2)::text`, d.channel, strconv.FormatUint(index, 10)).scan(&ignored)
}

func (d *postgresDB) lockSchema(ctx context.Context, q querier) error {
	_, err := q.exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('mink metadata schema'))`)
	return err
}

func (d *postgresDB) write(ctx context.Context, fn func(querier) error) error {
	if d.closed.Load() {
		return mink.ErrClosed
	}
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return postgresError(err, false)
	}
	if err := fn(postgresTx{tx}); err != nil {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(rctx) // a connection that fails here is dropped, which rolls back too
		return postgresError(err, false)
	}
	return postgresError(tx.Commit(ctx), true)
}

func (d *postgresDB) read(ctx context.Context, fn func(querier) error) error {
	if d.closed.Load() {
		return mink.ErrClosed
	}
	return postgresError(fn(postgresTx{d.pool}), false)
}

func (d *postgresDB) statement(ctx context.Context, sql string, args []any, dest ...any) error {
	if d.closed.Load() {
		return mink.ErrClosed
	}
	return postgresError(postgresTx{d.pool}.row(ctx, sql, args...).scan(dest...), true)
}

// fastPayloadsMax: the chain's recursion joins every payload with every step.
const fastPayloadsMax = 32

// The whole append as one statement, hence one round trip, during which alone
// the head's lock is held. The lock is taken by head, so that ok and chain see
// the newest head; sha256 here is metalog.Chain. Other rows (leases, heartbeats)
// are as of the statement's start: appends that touch them go the general way.
const appendSQL = `WITH RECURSIVE
	head AS MATERIALIZED (SELECT idx, hash, greatest(time_ms, {now}) AS t FROM meta_head WHERE id = 1 FOR UPDATE),
	ok AS (SELECT * FROM head WHERE idx >= $2 AND ($3::bigint IS NULL OR idx = $3 AND hash = $4::bytea)),
	p AS MATERIALIZED (SELECT ord, payload FROM unnest($1::bytea[]) WITH ORDINALITY AS u(payload, ord)),
	chain(ord, idx, hash, t, payload) AS (
		SELECT 0::bigint, idx, hash, t, NULL::bytea FROM ok
		UNION ALL
		SELECT p.ord, c.idx + 1, sha256(c.hash || int8send(c.idx + 1) || int8send(c.t) || p.payload), c.t, p.payload
		FROM chain c JOIN p ON p.ord = c.ord + 1),
	ins AS (INSERT INTO meta_log (idx, time_ms, hash, payload) SELECT idx, t, hash, payload FROM chain WHERE ord > 0),
	last AS MATERIALIZED (SELECT idx, hash, t FROM chain ORDER BY ord DESC LIMIT 1),
	up AS (UPDATE meta_head SET idx = last.idx, hash = last.hash, time_ms = last.t FROM last WHERE id = 1),
	told AS MATERIALIZED (SELECT pg_notify($5, last.idx::text) FROM last)
	SELECT head.idx, head.hash, c.idx, c.hash, c.t, (SELECT count(*) FROM told) FROM head LEFT JOIN chain c ON c.ord > 0 ORDER BY c.idx`

func (d *postgresDB) appendFast(ctx context.Context, a metalog.Append) (entries []metalog.Entry, ok bool, err error) {
	if a.Register != 0 || len(a.Seal) > 0 || a.Lease.Epoch != 0 || len(a.Payloads) > fastPayloadsMax {
		return nil, false, nil
	}
	if d.closed.Load() {
		return nil, true, mink.ErrClosed
	}
	var expectIndex *int64
	var expectHash []byte
	if a.Expect != nil {
		i := int64(a.Expect.Index)
		expectIndex, expectHash = &i, a.Expect.Hash[:]
	}
	rs, err := d.pool.Query(ctx, postgresDialect.sql(appendSQL), a.Payloads, int64(a.AtLeast), expectIndex, expectHash, d.channel)
	if err != nil {
		return nil, true, postgresError(err, true)
	}
	defer rs.Close()
	var head metalog.Position
	for rs.Next() {
		var idx, t *int64
		var hash []byte
		var told int64
		if err := rs.Scan(&head.Index, (*hashScan)(&head.Hash), &idx, &hash, &t, &told); err != nil {
			return nil, true, fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, err)
		}
		if idx == nil {
			break
		}
		e := metalog.Entry{Index: uint64(*idx), TimeMs: *t, Payload: a.Payloads[len(entries)]}
		if err := (*hashScan)(&e.Hash).Scan(hash); err != nil {
			return nil, true, fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, err)
		}
		entries = append(entries, e)
	}
	rs.Close()
	if err := rs.Err(); err != nil {
		return nil, true, postgresError(err, true)
	}
	if len(entries) == len(a.Payloads) {
		return entries, true, nil
	}
	if err := checkExpect(head, a.Expect, a.AtLeast); err != nil {
		return nil, true, err
	}
	return nil, true, fmt.Errorf("meta_head has no row: restore the database from a backup that is whole: %w", mink.ErrCorrupt)
}

// postgresQuerier is what a pool and a transaction have in common.
type postgresQuerier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type postgresTx struct{ q postgresQuerier }

func (t postgresTx) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := t.q.Exec(ctx, postgresDialect.sql(sql), args...)
	return tag.RowsAffected(), err
}

func (t postgresTx) row(ctx context.Context, sql string, args ...any) row {
	return postgresRow{t.q.QueryRow(ctx, postgresDialect.sql(sql), args...)}
}

func (t postgresTx) query(ctx context.Context, sql string, args ...any) (rows, error) {
	rs, err := t.q.Query(ctx, postgresDialect.sql(sql), args...)
	if err != nil {
		return nil, err
	}
	return postgresRows{rs}, nil
}

func (t postgresTx) hasTable(ctx context.Context, table string) (exists bool, err error) {
	err = t.row(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).scan(&exists)
	return exists, err
}

func (t postgresTx) insertEntries(ctx context.Context, entries []metalog.Entry) error {
	idx, times := make([]int64, len(entries)), make([]int64, len(entries))
	hashes, payloads := make([][]byte, len(entries)), make([][]byte, len(entries))
	for i, e := range entries {
		idx[i], times[i], hashes[i], payloads[i] = int64(e.Index), e.TimeMs, e.Hash[:], e.Payload
	}
	_, err := t.exec(ctx, `INSERT INTO meta_log (idx, time_ms, hash, payload)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])`, idx, times, hashes, payloads)
	return err
}

type postgresRow struct{ pgx.Row }

func (r postgresRow) scan(dest ...any) error {
	if err := r.Scan(dest...); !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return errNoRow
}

type postgresRows struct{ pgx.Rows }

func (r postgresRows) next() bool             { return r.Next() }
func (r postgresRows) scan(dest ...any) error { return r.Scan(dest...) }
func (r postgresRows) close() error           { r.Close(); return r.Err() }

// postgresError puts an error into its class and says what to do. committing:
// it came from a statement that commits, so a lost answer leaves its outcome
// unknown.
func postgresError(err error, committing bool) error {
	if err == nil || errors.Is(err, errNoRow) || classified(err) {
		return err
	}
	lost := mink.ErrUnavailable
	if committing && !pgconn.SafeToRetry(err) {
		lost = mink.ErrUnknownOutcome
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if _, scan := errors.AsType[pgx.ScanArgError](err); scan {
			return err
		}
		return fmt.Errorf("%w: %w", lost, err)
	}
	say := func(what string, class error) error { return fmt.Errorf("%s: %w: %w", what, class, err) }
	switch {
	case e.Code == "25006":
		return say("the database is read-only (a standby?); point the metadata url at the primary", mink.ErrUnavailable)
	case e.Code == "53100":
		return say("the database's disk is full; free space, the log goes on by itself", mink.ErrUnavailable)
	case e.Code == "25P03":
		return say("this process stood still in a transaction, and the database ended it", mink.ErrUnavailable)
	case e.Code[:2] == "53", e.Code == "40001", e.Code == "40P01", e.Code == "55P03":
		return say("the database is busy", mink.ErrUnavailable)
	case e.Code == "57014" || e.Code[:2] == "57" || e.Code[:2] == "08" || e.Code == "40003":
		// A shutdown can end the wait for a standby after the local commit.
		return say("the database stopped the session", lost)
	case e.Code[:2] == "28":
		return say("the database refuses this user; check user, password and pg_hba.conf", mink.ErrInvalid)
	case e.Code == "3D000":
		return say("create the database first", mink.ErrInvalid)
	case e.Code == "42501":
		return say("this user lacks a privilege; it must own the tables or be allowed to create them", mink.ErrInvalid)
	case e.Code[:2] == "XX":
		return say("the database reports damage", mink.ErrCorrupt)
	}
	return err
}

// classified: the error has its class from this package already.
func classified(err error) bool {
	for _, class := range []error{
		mink.ErrUnavailable, mink.ErrUnknownOutcome, mink.ErrConflict, mink.ErrFenced, mink.ErrInvalid, mink.ErrTooLarge,
		mink.ErrExists, mink.ErrNotExist, mink.ErrCorrupt, mink.ErrUnsupported, mink.ErrClosed, metalog.ErrWentBack,
	} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}
