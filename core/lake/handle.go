package lake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// commitTries is how often a round is put on a newer snapshot after another
// engine's commit was faster.
const commitTries = 5

// lakeTable is one worker's handle.
type lakeTable struct {
	sink         *Sink
	store        objstore.Store
	spec         sink.TableSpec
	id           catalog.Identifier
	dir          string // of its keys, with a slash at the end
	cols         *columns
	partitioning iceberg.PartitionSpec
	round        *round // the open one
}

func (t *lakeTable) load(ctx context.Context) (*table.Table, error) {
	tbl, err := t.sink.w.Load(ctx, t.id)
	if err != nil {
		return nil, err
	}
	return tbl, t.own(tbl)
}

// fail adds the table and the round to an error.
func (t *lakeTable) fail(op string, round sink.RoundID, err error) error {
	if round == "" {
		return fmt.Errorf("%s lake table %s: %w", op, t.spec.FullName(), sinkError(err))
	}
	return fmt.Errorf("%s round %s of lake table %s: %w", op, round, t.spec.FullName(), sinkError(err))
}

// Recover reads the last round from the table's history.
func (t *lakeTable) Recover(ctx context.Context, _ sink.RecoverRequest) (sink.RecoverResponse, error) {
	tbl, err := t.load(ctx)
	if err != nil {
		return sink.RecoverResponse{}, t.fail("recover", "", err)
	}
	c, err := currentOffsets(ctx, tbl)
	if err != nil {
		return sink.RecoverResponse{}, t.fail("recover", "", err)
	}
	return sink.RecoverResponse{Committed: c}, nil
}

// BeginRound removes what was staged of rounds that were given up.
func (t *lakeTable) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	if err := req.Validate(); err != nil {
		return sink.BeginRoundResponse{}, t.fail("begin", req.Round, err)
	}
	t.leave()
	r, err := t.begin(ctx, req)
	if err != nil {
		return sink.BeginRoundResponse{}, t.fail("begin", req.Round, err)
	}
	t.round = r
	return sink.BeginRoundResponse{}, nil
}

func (t *lakeTable) begin(ctx context.Context, req sink.BeginRoundRequest) (*round, error) {
	if t.cols == nil {
		return nil, fmt.Errorf("%w: the handle was opened to drop the table", sink.ErrInvalid)
	}
	tbl, err := t.load(ctx)
	if err != nil {
		return nil, err
	}
	last, err := currentOffsets(ctx, tbl)
	switch {
	case err != nil:
		return nil, err
	case req.Fence < last.Fence:
		return nil, fmt.Errorf("fence %d, but round %s was committed with fence %d: %w", req.Fence, last.Round, last.Fence, sink.ErrFenced)
	case req.Base != last.Round:
		return nil, fmt.Errorf("base %q, but the last committed round is %q: %w", req.Base, last.Round, sink.ErrConflict)
	}
	if err := t.cleanRounds(ctx, req.Round, req.Fence); err != nil {
		return nil, err
	}
	if err := t.putJSON(ctx, t.stagedKey(req.Round, "open"), openRound{Fence: req.Fence, Base: req.Base}); err != nil {
		if errors.Is(err, objstore.ErrAlreadyExists) {
			err = fmt.Errorf("%w: the round was begun before", sink.ErrInvalid)
		}
		return nil, err
	}
	return t.newRound(req, tbl)
}

// leave gives up the open round of this handle: its files are removed by the next
// BeginRound.
func (t *lakeTable) leave() {
	if t.round != nil {
		t.round.abort()
		t.round = nil
	}
}

// Write adds rows to the open round.
func (t *lakeTable) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if t.round == nil {
		return sink.WriteResponse{}, t.fail("write", "", fmt.Errorf("%w: no round is open", sink.ErrInvalid))
	}
	name := t.round.req.Round
	if err := req.Validate(t.writeSpec()); err != nil {
		return sink.WriteResponse{}, t.fail("write", name, err)
	}
	if err := t.round.write(ctx, req); err != nil {
		t.leave()
		return sink.WriteResponse{}, t.fail("write", name, err)
	}
	return sink.WriteResponse{}, nil
}

// writeSpec is the table with the columns that the handle has.
func (t *lakeTable) writeSpec() sink.TableSpec { return t.spec }

// Prepare ends the open round.
func (t *lakeTable) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	if t.round == nil {
		return sink.PrepareResponse{}, t.fail("prepare", "", fmt.Errorf("%w: no round is open", sink.ErrInvalid))
	}
	r := t.round
	staged, err := r.prepare(ctx)
	if err != nil {
		t.leave()
		return sink.PrepareResponse{}, t.fail("prepare", r.req.Round, err)
	}
	t.round = nil
	return sink.PrepareResponse{Staged: staged}, nil
}

// Commit makes one commit of the Iceberg table.
func (t *lakeTable) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	if err := req.Validate(); err != nil {
		return sink.CommitResponse{}, t.fail("commit", req.Round, err)
	}
	snapshot, err := t.commit(ctx, req)
	if err != nil {
		return sink.CommitResponse{}, t.fail("commit", req.Round, err)
	}
	if err := t.forget(ctx, req.Round); err != nil { // the next BeginRound does it
		t.sink.cfg.Logger.Warn("staged state of a committed round was not removed", "table", t.spec.FullName(), "round", req.Round, "error", err)
	}
	return sink.CommitResponse{Snapshot: snapshot}, nil
}

func (t *lakeTable) commit(ctx context.Context, req sink.CommitRequest) (string, error) {
	var files []iceberg.DataFile
	var replaced []string
	var note stagedNote
	again := replan{t: t}
	for try := 1; ; try++ {
		tbl, err := t.load(ctx)
		if err != nil {
			return "", err
		}
		last, err := currentOffsets(ctx, tbl)
		if err != nil {
			return "", err
		}
		last = t.living(last, req)
		replay, err := last.Check(req)
		if err != nil || replay {
			return last.Snapshot, err
		}
		if try == 1 {
			if err := again.admits(ctx, tbl, req); err != nil {
				return "", err
			}
			if note, files, replaced, err = t.claim(ctx, tbl, req); err != nil {
				return "", err
			}
		}
		if err := t.fits(tbl, note); err != nil {
			return "", err
		}
		put, err := again.onto(ctx, tbl, note, files)
		if err != nil {
			return "", err
		}
		snapshot, err := t.commitOn(ctx, tbl, last.After(req, ""), put, replaced)
		if err == nil {
			again.tidy(ctx, req.Round)
		}
		if err == nil || !errors.Is(err, sink.ErrConflict) || errors.Is(err, sink.ErrUnknownOutcome) || try == commitTries {
			return snapshot, err
		}
	}
}

// claim decides that the round is committed and not removed, and reads its files and the
// locations of those that they replace.
func (t *lakeTable) claim(ctx context.Context, tbl *table.Table, req sink.CommitRequest) (stagedNote, []iceberg.DataFile, []string, error) {
	note, err := parseNote(req.Staged, req.Round)
	if err != nil {
		return note, nil, nil, err
	}
	if uuid := tbl.Metadata().TableUUID().String(); uuid != note.Table {
		return note, nil, nil, fmt.Errorf("%w: the round was staged for lake table %s, which was dropped; this one is %s", sink.ErrNotExist, note.Table, uuid)
	}
	d, err := t.decide(ctx, req.Round, decision{Commit: true, Base: req.Base})
	switch {
	case err != nil:
		return note, nil, nil, err
	case !d.Commit:
		return note, nil, nil, fmt.Errorf("%w: the round was given up", sink.ErrNotExist)
	case d.Base != req.Base:
		return note, nil, nil, fmt.Errorf("%w: the round was tried on base %q before", sink.ErrConflict, d.Base)
	}
	files, replaced, err := t.readFiles(ctx, note, tbl.Metadata())
	return note, files, replaced, err
}

// fits says whether the round can be put on the current snapshot.
func (t *lakeTable) fits(tbl *table.Table, note stagedNote) error {
	if len(t.spec.PrimaryKey) > 0 && tbl.Metadata().DefaultPartitionSpec() != note.Spec {
		return fmt.Errorf("%w: another engine changed the partition spec: deletes would miss the files that it writes; set the spec with id %d again", sink.ErrCorrupt, note.Spec)
	}
	if current := tbl.CurrentSnapshot(); note.Replaced > 0 && current != nil && current.SnapshotID != note.Planned {
		return fmt.Errorf("%w: a compaction was planned on snapshot %d, the current one is %d", sink.ErrConflict, note.Planned, current.SnapshotID)
	}
	return nil
}

// living forgets the ends of partitions that are gone, but for those of the round: they never
// come back, and what a table can have is bounded (sink.RangesMax).
func (t *lakeTable) living(c sink.Committed, req sink.CommitRequest) sink.Committed {
	if t.sink.cfg.Gone == nil {
		return c
	}
	c = c.Clone()
	maps.DeleteFunc(c.Ends, func(b mink.BucketRef, _ mink.Offset) bool {
		return t.sink.cfg.Gone(b.Partition) && !slices.ContainsFunc(req.Ranges, func(r sink.Range) bool { return r.Bucket == b })
	})
	return c
}

// once is the catalog of one attempt: what the library asks for is committed at
// most once, and its answer is known.
type once struct {
	t     *lakeTable
	tried bool
	err   error
}

func (o *once) LoadTable(ctx context.Context, _ table.Identifier) (*table.Table, error) {
	return o.t.load(ctx)
}

func (o *once) CommitTable(ctx context.Context, _ table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	if o.tried {
		return nil, "", fmt.Errorf("%w: a commit is tried once", sink.ErrConflict)
	}
	o.tried = true
	tbl, err := o.t.sink.w.Commit(ctx, o.t.id, reqs, updates)
	if o.err = err; err != nil {
		return nil, "", err
	}
	return tbl.Metadata(), tbl.MetadataLocation(), nil
}

// commitOn makes the next snapshot on the table's current one.
func (t *lakeTable) commitOn(ctx context.Context, tbl *table.Table, next sink.Committed, files []iceberg.DataFile, replaced []string) (string, error) {
	props, err := roundProperties(t.tableID(), next, func(name string, data []byte) (string, error) {
		key := t.dir + name
		_, err := t.store.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{data}}) // its name says what is in it
		return t.sink.w.Location(key), err
	})
	if err != nil {
		return "", err
	}
	attempt := &once{t: t}
	tx := table.New(tbl.Identifier(), tbl.Metadata(), tbl.MetadataLocation(), tbl.FS, attempt).NewTransaction()
	if err := t.stage(ctx, tx, tbl, props, files, replaced); err != nil {
		return "", fmt.Errorf("plan the snapshot: %w", err)
	}
	made, err := tx.Commit(ctx)
	switch {
	case !attempt.tried:
		return "", fmt.Errorf("commit: %w", errors.Join(err, ctx.Err()))
	case attempt.err != nil:
		return "", commitError(attempt.err)
	case err != nil || made.CurrentSnapshot() == nil: // it is in the catalog all the same
		return "", fmt.Errorf("%w: after the commit: %w", sink.ErrUnknownOutcome, err)
	}
	return strconv.FormatInt(made.CurrentSnapshot().SnapshotID, 10), nil
}

func (t *lakeTable) stage(ctx context.Context, tx *table.Transaction, tbl *table.Table, props iceberg.Properties, files []iceberg.DataFile, replaced []string) error {
	if err := tx.AssertRefSnapshotID(table.MainBranch); err != nil {
		return err
	}
	switch {
	case len(replaced) > 0:
		if err := t.stageCompaction(ctx, tx, tbl, props, files, replaced); err != nil {
			return err
		}
	case len(files) == 0: // offsets without rows
		empty, err := array.NewRecordReader(arrow.NewSchema(nil, nil), nil)
		if err != nil {
			return err
		}
		defer empty.Release()
		if err := tx.Append(ctx, empty, props); err != nil {
			return err
		}
	default:
		delta := tx.NewRowDelta(props)
		for _, f := range files {
			if f.ContentType() == iceberg.EntryContentData {
				delta.AddRows(f)
			} else {
				delta.AddDeletes(f)
			}
		}
		if err := delta.Commit(ctx); err != nil {
			return err
		}
	}
	var stale []string
	for _, k := range []string{keyOffsets, keyOffsetsFile, keyOffsetsCRC} {
		if _, there := tbl.Properties()[k]; there && props[k] == "" {
			stale = append(stale, k)
		}
	}
	if len(stale) > 0 {
		if err := tx.RemoveProperties(stale); err != nil {
			return err
		}
	}
	return tx.SetProperties(props)
}

// commitError: what the contract does not know may have happened.
func commitError(err error) error {
	for _, known := range []error{sink.ErrUnknownOutcome, sink.ErrConflict, sink.ErrNotExist, sink.ErrInvalid, sink.ErrUnauthorized,
		sink.ErrThrottled, sink.ErrUnavailable, sink.ErrCorrupt, sink.ErrNoSpace, sink.ErrReadOnly, sink.ErrUnimplemented, sink.ErrFenced} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", sink.ErrUnknownOutcome, err)
}

// Abort removes a staged round, unless it was or may yet be committed.
func (t *lakeTable) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	if err := req.Validate(); err != nil {
		return sink.AbortResponse{}, t.fail("abort", req.Round, err)
	}
	if err := t.abort(ctx, req.Round); err != nil {
		return sink.AbortResponse{}, t.fail("abort", req.Round, err)
	}
	return sink.AbortResponse{}, nil
}

func (t *lakeTable) abort(ctx context.Context, round sink.RoundID) error {
	if _, err := t.store.Head(ctx, t.stagedKey(round, "open")); errors.Is(err, objstore.ErrNotExist) {
		return nil // gone, or committed
	} else if err != nil {
		return err
	}
	return t.giveUp(ctx, round)
}

// SchemaChange lets the Iceberg table have newer columns.
func (t *lakeTable) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	fail := func(err error) (sink.SchemaChangeResponse, error) {
		return sink.SchemaChangeResponse{}, t.fail("change the schema of", "", err)
	}
	if t.round != nil || t.cols == nil {
		return fail(fmt.Errorf("%w: a round is open, or the handle was opened to drop the table", sink.ErrInvalid))
	}
	if err := req.Schema.Validate(); err != nil {
		return fail(err)
	}
	spec := t.spec
	spec.Schema = req.Schema
	if err := renameKeys(&spec, t.cols.mink, req.Schema); err != nil {
		return fail(err)
	}
	cols, err := newColumns(spec)
	if err != nil {
		return fail(err)
	}
	tbl, err := t.load(ctx)
	if err != nil {
		return fail(err)
	}
	if _, err := t.follow(ctx, tbl, cols); err != nil {
		return fail(err)
	}
	t.spec, t.cols = spec, cols
	return sink.SchemaChangeResponse{}, nil
}

// Drop takes the table out of the catalog and removes its files.
func (t *lakeTable) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	t.leave()
	err := sink.ErrConflict
	for tries := 0; tries < schemaTries && errors.Is(err, sink.ErrConflict); tries++ {
		var tbl *table.Table
		if tbl, err = t.load(ctx); err == nil { // a late drop takes no table that has the name by then
			err = t.sink.w.DropLoaded(ctx, t.id, tbl, false)
		}
	}
	gone := errors.Is(err, sink.ErrNotExist) || errors.Is(err, mink.ErrNotExist)
	if others := errors.Is(err, sink.ErrAlreadyExists); err == nil || gone || others { // others: the name is another table's by now
		err = t.deleteAll(ctx, t.dir)
	}
	if err != nil {
		return sink.DropResponse{}, t.fail("drop", "", err)
	}
	return sink.DropResponse{}, nil
}

// Close gives the open round up.
func (t *lakeTable) Close() error {
	t.leave()
	return nil
}
