package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// server is the sink. It works, exactly once, with files in a directory: put your
// target in their place. What must stay is the order of things, above all that
// transact changes the rows that readers see and Committed in one atomic step; for
// a database that is one transaction.
type server struct{ dir string }

func open(dir string) (*server, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: the option dir is not set", sink.ErrInvalid)
	}
	return &server{dir: dir}, nil
}

// Describe declares what the conformance kit then checks.
func (s *server) Describe() sink.Description {
	return sink.Description{
		Name: "skeleton", Version: version,
		Delivery:       sink.ExactlyOnce,
		Changes:        sink.ChangesRefused, // log tables only; see sink.Changes
		StagedSurvives: true,                // a prepared file is there after a restart
		SchemaChanges:  true,                // every file has its own schema
		ReadBack:       true,
	}
}

func (s *server) Close() error { return nil }

func (s *server) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if err := errors.Join(ctx.Err(), req.Table.Validate()); err != nil {
		return nil, err
	}
	if len(req.Table.PrimaryKey) > 0 {
		return nil, fmt.Errorf("table %s has a primary key: %w", req.Table.FullName(), sink.ErrUnimplemented)
	}
	if len(req.Table.Options) > 0 && !req.Drop { // the user's --sink NAME,options.KEY=VALUE
		return nil, fmt.Errorf("%w: table %s: the sink has no options of a table, and it has %q", sink.ErrInvalid, req.Table.FullName(), slices.Sorted(maps.Keys(req.Table.Options)))
	}
	t := &table{spec: req.Table, store: s.store(req.Table)}
	return t, t.store.create()
}

// store is a table's place. The id keeps a table apart from an older one of its name.
func (s *server) store(spec sink.TableSpec) store {
	return store{dir: filepath.Join(s.dir, fmt.Sprintf("%s.%d", spec.FullName(), spec.ID))}
}

// Read gives the committed rows to the conformance kit.
func (s *server) Read(ctx context.Context, req sink.ReadRequest, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	st := s.store(req.Table)
	var files []string
	err := st.transact(ctx, func(now *state) (bool, error) {
		files = now.Files
		return false, nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no such table
	}
	for _, name := range files {
		err = errors.Join(err, st.readFile(name, func(b arrow.RecordBatch) bool { return yield(b, nil) }))
	}
	return err
}

// table is one worker's handle.
type table struct {
	spec  sink.TableSpec
	store store
	round string // file of the open round, "" for none
	file  *os.File
	rows  *ipc.Writer
}

func (t *table) Recover(ctx context.Context, _ sink.RecoverRequest) (resp sink.RecoverResponse, err error) {
	err = t.store.transact(ctx, func(now *state) (bool, error) {
		resp.Committed = now.Committed
		return false, nil
	})
	return resp, err
}

func (t *table) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	if err := errors.Join(req.Validate(), t.Close()); err != nil {
		return sink.BeginRoundResponse{}, err
	}
	err := t.store.transact(ctx, func(now *state) (bool, error) {
		return false, t.store.removeStaged(now, req.Fence)
	})
	if err != nil {
		return sink.BeginRoundResponse{}, err
	}
	t.round = stagedName(req.Fence, req.Round)
	if t.file, err = os.Create(filepath.Join(t.store.dir, t.round)); err != nil {
		return sink.BeginRoundResponse{}, unavailable(err)
	}
	t.rows = ipc.NewWriter(t.file, ipc.WithSchema(t.spec.Schema.Arrow))
	return sink.BeginRoundResponse{}, nil
}

func (t *table) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if err := errors.Join(ctx.Err(), req.Validate(t.spec)); err != nil {
		return sink.WriteResponse{}, err
	}
	if t.rows == nil {
		return sink.WriteResponse{}, fmt.Errorf("%w: no round is open", sink.ErrInvalid)
	}
	batch := array.NewRecordBatch(t.spec.Schema.Arrow, req.Batch.Columns(), req.Batch.NumRows())
	defer batch.Release()
	return sink.WriteResponse{}, unavailable(t.rows.Write(batch))
}

func (t *table) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.PrepareResponse{}, err
	}
	if t.rows == nil {
		return sink.PrepareResponse{}, fmt.Errorf("%w: no round is open", sink.ErrInvalid)
	}
	name := t.round
	err := errors.Join(t.rows.Close(), t.file.Sync(), t.Close(), syncDir(t.store.dir))
	return sink.PrepareResponse{Staged: []byte(name)}, unavailable(err)
}

func (t *table) Commit(ctx context.Context, req sink.CommitRequest) (resp sink.CommitResponse, err error) {
	if err := req.Validate(); err != nil {
		return resp, err
	}
	err = t.store.transact(ctx, func(now *state) (bool, error) {
		replay, err := now.Committed.Check(req)
		if err != nil {
			return false, err
		}
		if replay { // it happened already, and the answer was lost
			resp.Snapshot = now.Committed.Snapshot
			return false, nil
		}
		if err := t.store.staged(req.Staged); err != nil {
			return false, err
		}
		now.Files = append(now.Files, string(req.Staged))
		resp.Snapshot = fmt.Sprint(len(now.Files))
		now.Committed = now.Committed.After(req, resp.Snapshot)
		return true, nil
	})
	return resp, err
}

func (t *table) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	if err := req.Validate(); err != nil {
		return sink.AbortResponse{}, err
	}
	return sink.AbortResponse{}, t.store.transact(ctx, func(now *state) (bool, error) {
		if slices.Contains(now.Files, string(req.Staged)) {
			return false, nil // committed: it stays
		}
		err := t.store.staged(req.Staged)
		if err == nil {
			err = unavailable(os.Remove(filepath.Join(t.store.dir, string(req.Staged))))
		}
		if errors.Is(err, sink.ErrNotExist) {
			err = nil // gone already
		}
		return false, err
	})
}

func (t *table) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	if err := errors.Join(ctx.Err(), req.Schema.Validate()); err != nil {
		return sink.SchemaChangeResponse{}, err
	}
	t.spec.Schema = req.Schema
	return sink.SchemaChangeResponse{}, nil
}

func (t *table) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	if err := t.Close(); err != nil {
		return sink.DropResponse{}, err
	}
	return sink.DropResponse{}, t.store.transact(ctx, func(now *state) (bool, error) {
		*now = state{}
		return true, t.store.removeStaged(now, 1<<62)
	})
}

// Close gives up the open round; its file goes with the next BeginRound.
func (t *table) Close() error {
	if t.file == nil {
		return nil
	}
	err := t.file.Close()
	t.round, t.file, t.rows = "", nil, nil
	return unavailable(err)
}
