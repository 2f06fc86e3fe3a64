package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// table is a handle. What it holds is the transaction of the open round; all else it
// asks Postgres, which other processes change as well.
type table struct {
	sink *postgres
	spec sink.TableSpec
	open *openRound // nil: none
}

// openRound is the transaction from BeginRound to Prepare.
type openRound struct {
	tx      pgx.Tx
	round   sink.RoundID
	fence   mink.LeaseEpoch
	staging string // without its schema
	rows    int64
}

func (t *table) Recover(ctx context.Context, _ sink.RecoverRequest) (resp sink.RecoverResponse, err error) {
	if err := ctx.Err(); err != nil {
		return resp, err
	}
	err = t.sink.transact(ctx, func(tx pgx.Tx) error { // the lock waits for a commit that is under way
		now, err := t.sink.lock(ctx, tx, t.spec.ID)
		resp.Committed = now.committed
		return err
	})
	if err != nil {
		return sink.RecoverResponse{}, t.failed("recover", "", readOnly(err))
	}
	return resp, nil
}

// readOnly: the transaction changed nothing, whatever became of it.
func readOnly(err error) error {
	if errors.Is(err, sink.ErrUnknownOutcome) {
		return fmt.Errorf("%w: %v", sink.ErrUnavailable, err) //nolint:errorlint // see above
	}
	return err
}

func (t *table) failed(call string, round sink.RoundID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s, table %s, round %q: %w", call, t.spec.FullName(), round, err)
}

// stagingName is the staging table of a round: round ids are longer than names may be.
func stagingName(id mink.TableID, round sink.RoundID) string {
	return fmt.Sprintf("s%d_%x", id, sha256.Sum256([]byte(round)))[:40]
}

func (t *table) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (resp sink.BeginRoundResponse, err error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return resp, err
	}
	t.giveUp(ctx)
	err = t.sink.transact(ctx, func(tx pgx.Tx) error {
		now, err := t.sink.lock(ctx, tx, t.spec.ID)
		switch {
		case err != nil:
			return err
		case req.Fence < now.committed.Fence:
			return fmt.Errorf("fence %d, but round %s was committed with fence %d: %w", req.Fence, now.committed.Round, now.committed.Fence, sink.ErrFenced)
		}
		return t.discard(ctx, tx, `fence <= $2`, int64(req.Fence))
	})
	if err != nil {
		return resp, t.failed("begin", req.Round, readOnly(err))
	}
	if err := t.sink.at("begin"); err != nil {
		return resp, t.failed("begin", req.Round, err)
	}
	tx, err := t.sink.pool.Begin(ctx)
	if err != nil {
		return resp, t.failed("begin", req.Round, contract(err))
	}
	r := &openRound{tx: tx, round: req.Round, fence: req.Fence, staging: stagingName(t.spec.ID, req.Round)}
	columns := []string{"seq bigint NOT NULL", "change smallint NOT NULL"}
	for _, f := range t.spec.Schema.Arrow.Fields() {
		columns = append(columns, "f"+fieldID(f)+" "+typeOf(f.Type))
	}
	// Not UNLOGGED: Postgres that crashes after the roll-back of such a table's making, before
	// the record of that is written, does not recover ("could not create file: File exists").
	if _, err := tx.Exec(ctx, `CREATE TABLE `+t.sink.state+`.`+r.staging+` (`+strings.Join(columns, ", ")+`)`); err != nil {
		return resp, t.failed("begin", req.Round, finish(ctx, tx, err))
	}
	t.open = r
	return resp, nil
}

// discard drops staging tables and forgets their rounds.
func (t *table) discard(ctx context.Context, tx pgx.Tx, where string, arg any) error {
	rows, err := tx.Query(ctx, `DELETE FROM `+t.sink.state+`.rounds WHERE table_id = $1 AND `+where+` RETURNING staging`, int64(t.spec.ID), arg)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := tx.Exec(ctx, `DROP TABLE IF EXISTS `+t.sink.state+`.`+quote(name)); err != nil {
			return err
		}
	}
	return nil
}

// giveUp rolls the open round back.
func (t *table) giveUp(ctx context.Context) {
	if t.open != nil {
		_ = finish(ctx, t.open.tx, errGivenUp)
		t.open = nil
	}
}

var errGivenUp = fmt.Errorf("%w: the round was given up", sink.ErrNotExist)

func (t *table) Write(ctx context.Context, req sink.WriteRequest) (resp sink.WriteResponse, err error) {
	if err := errors.Join(ctx.Err(), req.Validate(t.spec)); err != nil {
		return resp, err
	}
	r := t.open
	if r == nil {
		return resp, t.failed("write", "", fmt.Errorf("%w: no round is open", sink.ErrInvalid))
	}
	source := &rowSource{batch: req.Batch, changes: req.Changes, seq: r.rows, at: -1}
	if source.columns, err = encodersOf(req.Batch); err != nil {
		return resp, t.failed("write", r.round, err)
	}
	names := []string{"seq", "change"}
	for _, f := range t.spec.Schema.Arrow.Fields() {
		names = append(names, "f"+fieldID(f))
	}
	if err := t.sink.at("write"); err != nil {
		return resp, t.failed("write", r.round, err)
	}
	n, err := r.tx.CopyFrom(ctx, pgx.Identifier{unquoted(t.sink.state), r.staging}, names, source)
	if err != nil {
		if source.err != nil {
			err = source.err
		}
		return resp, t.failed("write", r.round, contract(err))
	}
	r.rows += n
	return resp, nil
}

// unquoted is the name of a quoted identifier.
func unquoted(name string) string {
	return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(name, `"`), `"`), `""`, `"`)
}

// stagedNote is what Prepare answers.
type stagedNote struct {
	Staging string `json:"staging"`
}

func (t *table) Prepare(ctx context.Context, _ sink.PrepareRequest) (resp sink.PrepareResponse, err error) {
	if err := ctx.Err(); err != nil {
		return resp, err
	}
	r := t.open
	if r == nil {
		return resp, t.failed("prepare", "", fmt.Errorf("%w: no round is open", sink.ErrInvalid))
	}
	t.open = nil
	_, err = r.tx.Exec(ctx, `INSERT INTO `+t.sink.state+`.rounds (table_id, round, fence, staging, schema_id, row_count) VALUES ($1, $2, $3, $4, $5, $6)`,
		int64(t.spec.ID), string(r.round), int64(r.fence), r.staging, int32(t.spec.Schema.ID), r.rows)
	if err == nil {
		err = t.sink.at("prepare")
	}
	if err := finish(ctx, r.tx, err); err != nil { // nothing of it is visible to readers
		return resp, t.failed("prepare", r.round, readOnly(err))
	}
	resp.Staged, err = json.Marshal(stagedNote{r.staging})
	return resp, err
}

// stagingOf reads what Prepare answered; it came from outside.
func (t *table) stagingOf(round sink.RoundID, staged []byte) (string, error) {
	var note stagedNote
	if err := json.Unmarshal(staged, &note); err != nil || note.Staging != stagingName(t.spec.ID, round) {
		return "", fmt.Errorf("%w: %.80q is not what Prepare answered for it", sink.ErrInvalid, staged)
	}
	return note.Staging, nil
}

func (t *table) Commit(ctx context.Context, req sink.CommitRequest) (resp sink.CommitResponse, err error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return resp, err
	}
	err = t.sink.transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = '1min'`); err != nil {
			return err
		}
		now, err := t.sink.lock(ctx, tx, t.spec.ID)
		if err != nil {
			return err
		}
		replay, err := now.committed.Check(req)
		if err != nil {
			return err
		}
		if replay {
			resp.Snapshot = now.committed.Snapshot
			return nil
		}
		resp.Snapshot, err = t.merge(ctx, tx, now, req)
		return err
	})
	if err != nil {
		return sink.CommitResponse{}, t.failed("commit", req.Round, err)
	}
	if err := t.sink.at("committed"); err != nil {
		return sink.CommitResponse{}, t.failed("commit", req.Round, err)
	}
	return resp, nil
}

// merge brings the staged rows into the table, in the transaction that stores the
// round.
func (t *table) merge(ctx context.Context, tx pgx.Tx, now known, req sink.CommitRequest) (snapshot string, err error) {
	staging, err := t.stagingOf(req.Round, req.Staged)
	if err != nil {
		return "", err
	}
	gone := fmt.Errorf("%w: it is not staged any more", sink.ErrNotExist)
	var schemaID int32
	var want, have int64
	err = tx.QueryRow(ctx, `SELECT schema_id, row_count FROM `+t.sink.state+`.rounds WHERE table_id = $1 AND round = $2`, int64(t.spec.ID), string(req.Round)).Scan(&schemaID, &want)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", gone
	}
	if err != nil {
		return "", err
	}
	if mink.SchemaID(schemaID) != now.schemaID {
		return "", fmt.Errorf("%w: it was staged under schema %d, the table has %d", gone, schemaID, now.schemaID)
	}
	from := t.sink.state + "." + quote(staging)
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM `+from).Scan(&have); err != nil {
		return "", err
	}
	if have != want {
		return "", fmt.Errorf("%w: %d of %d rows are left of it: Postgres has crashed since", gone, have, want)
	}
	if err := t.sink.at("locked"); err != nil {
		return "", err
	}
	text, err := mergeSQL(now, t.spec.PrimaryKey, from)
	if err != nil {
		return "", err
	}
	if _, err := tx.Exec(ctx, text); err != nil {
		return "", err
	}
	if err := t.sink.at("merged"); err != nil {
		return "", err
	}
	if err := tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&snapshot); err != nil {
		return "", err
	}
	next, err := json.Marshal(now.committed.After(req, snapshot))
	if err != nil {
		return "", err
	}
	if _, err := tx.Exec(ctx, `UPDATE `+t.sink.state+`.tables SET committed = $2 WHERE id = $1`, int64(t.spec.ID), string(next)); err != nil {
		return "", err
	}
	if err := t.discard(ctx, tx, `round = $2`, string(req.Round)); err != nil {
		return "", err
	}
	return snapshot, t.sink.at("stored")
}

// mergeSQL is the statement that brings staged rows into a table: of each key the last
// change counts.
func mergeSQL(now known, primaryKey []string, from string) (string, error) {
	ids := map[string]string{}
	var names, staged, sets []string
	for _, f := range now.arrow.Fields() {
		ids[f.Name] = "f" + fieldID(f)
		names, staged = append(names, quote(f.Name)), append(staged, "f"+fieldID(f))
	}
	insert := `INSERT INTO ` + now.at.String() + ` (` + strings.Join(names, ", ") + `) SELECT ` + strings.Join(staged, ", ")
	if len(primaryKey) == 0 {
		return insert + ` FROM ` + from + ` ORDER BY seq`, nil
	}
	var keys, same []string
	isKey := map[string]bool{}
	for _, k := range primaryKey {
		id, ok := ids[k]
		if !ok {
			return "", fmt.Errorf("%w: the stored columns lack the key %q", sink.ErrCorrupt, k)
		}
		isKey[k] = true
		keys, same = append(keys, id), append(same, "t."+quote(k)+" = l."+id)
	}
	for _, f := range now.arrow.Fields() {
		if !isKey[f.Name] {
			sets = append(sets, quote(f.Name)+" = EXCLUDED."+quote(f.Name))
		}
	}
	onConflict := `DO NOTHING`
	if len(sets) > 0 {
		onConflict = `DO UPDATE SET ` + strings.Join(sets, ", ")
	}
	by := strings.Join(keys, ", ")
	return fmt.Sprintf(`WITH last AS MATERIALIZED (SELECT DISTINCT ON (%s) * FROM %s ORDER BY %s, seq DESC),
		gone AS (DELETE FROM %s t USING last l WHERE l.change = %d AND %s)
		%s FROM last WHERE change <> %d ON CONFLICT (%s) %s`,
		by, from, by, now.at, mink.ChangeDelete, strings.Join(same, " AND "), insert, mink.ChangeDelete, quoteAll(primaryKey), onConflict), nil
}

func (t *table) Abort(ctx context.Context, req sink.AbortRequest) (resp sink.AbortResponse, err error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return resp, err
	}
	if _, err := t.stagingOf(req.Round, req.Staged); err != nil {
		return resp, t.failed("abort", req.Round, err)
	}
	err = t.sink.transact(ctx, func(tx pgx.Tx) error {
		if _, err := t.sink.lock(ctx, tx, t.spec.ID); errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		return t.discard(ctx, tx, `round = $2`, string(req.Round))
	})
	return resp, t.failed("abort", req.Round, readOnly(err))
}

func (t *table) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (resp sink.SchemaChangeResponse, err error) {
	if err := errors.Join(ctx.Err(), req.Schema.Validate()); err != nil {
		return resp, err
	}
	if t.open != nil {
		return resp, t.failed("schema change", t.open.round, fmt.Errorf("%w: a round is open", sink.ErrInvalid))
	}
	next := t.spec
	next.Schema = req.Schema
	if err := checkTable(next); err != nil {
		return resp, err
	}
	err = t.sink.transact(ctx, func(tx pgx.Tx) error {
		now, err := t.sink.lock(ctx, tx, t.spec.ID)
		if err != nil {
			return err
		}
		if err := t.sink.follow(ctx, tx, now, req.Schema); err != nil {
			return err
		}
		return t.sink.at("followed")
	})
	if err != nil {
		return resp, t.failed("schema change", "", readOnly(err))
	}
	t.spec = next
	return resp, nil
}

func (t *table) Drop(ctx context.Context, _ sink.DropRequest) (resp sink.DropResponse, err error) {
	if err := ctx.Err(); err != nil {
		return resp, err
	}
	t.giveUp(ctx)
	err = t.sink.transact(ctx, func(tx pgx.Tx) error {
		now, err := t.sink.lock(ctx, tx, t.spec.ID)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // gone, or never there
		}
		if err != nil {
			return err
		}
		if err := t.discard(ctx, tx, `$2::text IS NOT NULL`, "all"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DROP TABLE IF EXISTS `+now.at.String()); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM `+t.sink.state+`.tables WHERE id = $1`, int64(t.spec.ID))
		return err
	})
	return resp, t.failed("drop", "", readOnly(err))
}

// Close gives the open round up.
func (t *table) Close() error {
	t.giveUp(context.Background())
	return nil
}
