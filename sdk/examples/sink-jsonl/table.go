package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// table is a handle. What it keeps in memory is the open round; all else it asks
// the directory, which other processes change as well.
type table struct {
	sink *jsonl
	spec sink.TableSpec
	dir  string

	staged string // directory of the open round, "" for none
	file   *os.File
	rows   *bufio.Writer
}

// follow keeps a schema under its id. Schemas are made once and never changed:
// whichever of several processes is first.
func (t *table) follow(next sink.Schema) error {
	if err := next.Validate(); err != nil {
		return err
	}
	names, err := os.ReadDir(filepath.Join(t.dir, "schemas"))
	if err != nil {
		return ioError(err)
	}
	name := number(int(next.ID)) + ".arrow"
	for _, have := range names {
		if !strings.HasPrefix(have.Name(), ".") && have.Name() > name {
			return fmt.Errorf("table %s has schema %s, schema %d is older: %w", t.spec.FullName(), have.Name(), next.ID, sink.ErrConflict)
		}
	}
	path := filepath.Join(t.dir, "schemas", name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := t.sink.writeFile(path, encodeSchema(next.Arrow)); err != nil {
			return err
		}
	}
	t.spec.Schema = next
	return nil
}

func (t *table) Recover(ctx context.Context, _ sink.RecoverRequest) (sink.RecoverResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.RecoverResponse{}, err
	}
	c, n, err := lastRound(t.dir)
	if err == nil && n > 0 {
		// Whoever committed may have been killed before its own fsync, and the worker
		// is about to rely on this round.
		err = t.sink.syncDir(filepath.Join(t.dir, "rounds"))
	}
	return sink.RecoverResponse{Committed: c}, err
}

// stagedName begins with the fence: rounds of lower ones can be told.
func stagedName(fence mink.LeaseEpoch, round sink.RoundID) string {
	return fmt.Sprintf("%d-%s", fence, round)
}

func (t *table) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return sink.BeginRoundResponse{}, err
	}
	if err := t.giveUp(); err != nil {
		return sink.BeginRoundResponse{}, err
	}
	names, err := os.ReadDir(filepath.Join(t.dir, "staged"))
	if err != nil {
		return sink.BeginRoundResponse{}, ioError(err)
	}
	for _, n := range names {
		text, _, _ := strings.Cut(n.Name(), "-")
		fence, err := strconv.ParseInt(text, 10, 64)
		if err != nil || mink.LeaseEpoch(fence) > req.Fence {
			continue
		}
		if err := t.sink.discard(filepath.Join(t.dir, "staged", n.Name())); err != nil {
			return sink.BeginRoundResponse{}, err
		}
	}
	dir := filepath.Join(t.dir, "staged", stagedName(req.Fence, req.Round))
	if err := os.Mkdir(dir, 0o750); err != nil {
		return sink.BeginRoundResponse{}, ioError(err)
	}
	t.staged = dir
	t.file, err = os.OpenFile(filepath.Join(dir, rowsName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return sink.BeginRoundResponse{}, ioError(err)
	}
	t.rows = bufio.NewWriterSize(t.file, 1<<20)
	return sink.BeginRoundResponse{}, nil
}

// giveUp drops the open round.
func (t *table) giveUp() error {
	if t.staged == "" {
		return nil
	}
	err := t.sink.discard(t.staged)
	if t.file != nil {
		err = errors.Join(err, t.file.Close())
	}
	t.staged, t.file, t.rows = "", nil, nil
	return err
}

func (t *table) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if err := errors.Join(ctx.Err(), req.Validate(t.spec)); err != nil {
		return sink.WriteResponse{}, err
	}
	if t.rows == nil {
		return sink.WriteResponse{}, fmt.Errorf("%w: write to %s: no round is open", sink.ErrInvalid, t.spec.FullName())
	}
	return sink.WriteResponse{}, ioError(writeRows(t.rows, req))
}

func (t *table) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.PrepareResponse{}, err
	}
	if t.rows == nil {
		return sink.PrepareResponse{}, fmt.Errorf("%w: prepare of %s: no round is open", sink.ErrInvalid, t.spec.FullName())
	}
	err := errors.Join(t.rows.Flush(), t.sink.sync(t.file))
	if err == nil { // it says as well that the round is prepared
		err = t.sink.writeFile(filepath.Join(t.staged, schemaName), encodeSchema(t.spec.Schema.Arrow))
	}
	if err == nil {
		err = t.sink.syncDir(filepath.Dir(t.staged))
	}
	if err != nil {
		return sink.PrepareResponse{}, ioError(errors.Join(err, t.giveUp()))
	}
	name := filepath.Base(t.staged)
	err = t.file.Close()
	t.staged, t.file, t.rows = "", nil, nil
	return sink.PrepareResponse{Staged: []byte(name)}, ioError(err)
}

// stagedDir is what Prepare's answer names; it came from outside.
func (t *table) stagedDir(round sink.RoundID, staged []byte) (string, error) {
	fence, rest, _ := strings.Cut(string(staged), "-")
	if _, err := strconv.ParseUint(fence, 10, 64); err != nil || rest != string(round) {
		return "", fmt.Errorf("%w: round %s of %s: %.80q is not what Prepare answered for it", sink.ErrInvalid, round, t.spec.FullName(), staged)
	}
	return filepath.Join(t.dir, "staged", string(staged)), nil
}

func (t *table) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return sink.CommitResponse{}, err
	}
	last, n, err := lastRound(t.dir)
	if err != nil {
		return sink.CommitResponse{}, err
	}
	replay, err := last.Check(req)
	if err != nil {
		return sink.CommitResponse{}, fmt.Errorf("table %s: %w", t.spec.FullName(), err)
	}
	if replay {
		return sink.CommitResponse{Snapshot: last.Snapshot}, t.sink.syncDir(filepath.Join(t.dir, "rounds"))
	}
	dir, err := t.stagedDir(req.Round, req.Staged)
	if err != nil {
		return sink.CommitResponse{}, err
	}
	if _, err := os.Stat(filepath.Join(dir, schemaName)); err != nil {
		return sink.CommitResponse{}, fmt.Errorf("round %s of table %s is not staged: %w", req.Round, t.spec.FullName(), ioError(err))
	}
	snapshot := strconv.Itoa(n + 1)
	state, err := json.Marshal(last.After(req, snapshot))
	if err == nil {
		err = t.sink.writeFile(filepath.Join(dir, roundName), state)
	}
	if err != nil {
		return sink.CommitResponse{}, err
	}
	if err := t.sink.rename(dir, filepath.Join(t.dir, "rounds", number(n+1))); err != nil {
		return t.lost(req, err)
	}
	err = errors.Join(t.sink.syncDir(filepath.Join(t.dir, "rounds")), t.sink.syncDir(filepath.Join(t.dir, "staged")))
	if err != nil { // the rename may be undone by a power loss
		return sink.CommitResponse{}, fmt.Errorf("%w: round %s of table %s: %w", sink.ErrUnknownOutcome, req.Round, t.spec.FullName(), err)
	}
	return sink.CommitResponse{Snapshot: snapshot}, nil
}

// lost answers for a rename that failed: somebody else committed the number, or
// this round from another process, or removed it.
func (t *table) lost(req sink.CommitRequest, cause error) (sink.CommitResponse, error) {
	last, _, err := lastRound(t.dir)
	if err != nil {
		return sink.CommitResponse{}, err
	}
	replay, err := last.Check(req)
	switch {
	case err != nil:
		return sink.CommitResponse{}, fmt.Errorf("table %s: %w", t.spec.FullName(), err)
	case replay:
		return sink.CommitResponse{Snapshot: last.Snapshot}, t.sink.syncDir(filepath.Join(t.dir, "rounds"))
	}
	return sink.CommitResponse{}, fmt.Errorf("round %s of table %s: %w", req.Round, t.spec.FullName(), ioError(cause))
}

func (t *table) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	if err := errors.Join(ctx.Err(), req.Validate()); err != nil {
		return sink.AbortResponse{}, err
	}
	dir, err := t.stagedDir(req.Round, req.Staged)
	if err == nil {
		err = t.sink.discard(dir)
	}
	return sink.AbortResponse{}, err
}

func (t *table) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.SchemaChangeResponse{}, err
	}
	if t.rows != nil {
		return sink.SchemaChangeResponse{}, fmt.Errorf("%w: schema change of %s: a round is open", sink.ErrInvalid, t.spec.FullName())
	}
	return sink.SchemaChangeResponse{}, t.follow(req.Schema)
}

func (t *table) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.DropResponse{}, err
	}
	return sink.DropResponse{}, errors.Join(t.giveUp(), t.sink.discard(t.dir))
}

func (t *table) Close() error { return t.giveUp() }
