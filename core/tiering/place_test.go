package tiering

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// place is a target as a lake is one: tables by name; files that are written first and named by a
// commit, and that are gone when somebody removed them.
type place struct {
	mu     sync.Mutex
	world  *world
	tables map[string]*pTable
	breaks placeFaults
	// compactMost is how many lists of files a compaction merges at most; 0: all.
	compactMost int
	log         []string // commits, for failures
}

// placeFaults are what a wrong target would do.
type placeFaults struct{ noBase, noFence bool }

type pTable struct {
	id        mink.TableID
	schema    sink.Schema
	committed sink.Committed
	rounds    [][]string       // names of files, as committed
	files     map[string]pFile // staged and committed
	staged    map[sink.RoundID]mink.LeaseEpoch
	dropped   bool
	made      int // snapshots
	expiries  int
}

// pFile is what one Write brought.
type pFile struct {
	round sink.RoundID
	req   sink.WriteRequest
}

func newPlace() *place { return &place{tables: map[string]*pTable{}} }

func (p *place) Describe() sink.Description {
	return sink.Description{Name: "files", Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied, StagedSurvives: true, SchemaChanges: true}
}

func (p *place) Close() error { return nil }

func (p *place) Open(_ context.Context, req sink.OpenRequest) (sink.Table, error) {
	if err := req.Table.Validate(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tables[req.Table.Name]
	switch {
	case t == nil:
		t = &pTable{id: req.Table.ID, schema: req.Table.Schema, files: map[string]pFile{}, staged: map[sink.RoundID]mink.LeaseEpoch{}}
		p.tables[req.Table.Name] = t
	case t.id != req.Table.ID:
		return nil, fmt.Errorf("%s has table %d: %w", req.Table.Name, t.id, sink.ErrAlreadyExists)
	case t.schema.ID > req.Table.Schema.ID:
		return nil, fmt.Errorf("schema %d, have %d: %w", req.Table.Schema.ID, t.schema.ID, sink.ErrConflict)
	default:
		t.schema = req.Table.Schema
	}
	return &pHandle{p: p, t: t, spec: req.Table}, nil
}

type pHandle struct {
	p    *place
	t    *pTable
	spec sink.TableSpec

	round    *sink.BeginRoundRequest
	writes   []string
	compacts int // lists of files that one takes the place of
	of       int // that there were
}

func (h *pHandle) lock() (func(), error) {
	h.p.mu.Lock()
	if h.t.dropped {
		h.p.mu.Unlock()
		return nil, fmt.Errorf("table %d was dropped: %w", h.t.id, sink.ErrNotExist)
	}
	return h.p.mu.Unlock, nil
}

func (h *pHandle) Recover(context.Context, sink.RecoverRequest) (sink.RecoverResponse, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.RecoverResponse{}, err
	}
	defer unlock()
	return sink.RecoverResponse{Committed: h.t.committed.Clone()}, nil
}

func (h *pHandle) BeginRound(_ context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	if err := req.Validate(); err != nil {
		return sink.BeginRoundResponse{}, err
	}
	unlock, err := h.lock()
	if err != nil {
		return sink.BeginRoundResponse{}, err
	}
	defer unlock()
	if req.Fence < h.t.committed.Fence && !h.p.breaks.noFence {
		return sink.BeginRoundResponse{}, sink.ErrFenced
	}
	h.round, h.writes, h.compacts = &req, nil, 0
	return sink.BeginRoundResponse{}, nil
}

func (h *pHandle) Write(_ context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	spec := h.spec
	if err := req.Validate(spec); err != nil {
		return sink.WriteResponse{}, err
	}
	unlock, err := h.lock()
	if err != nil {
		return sink.WriteResponse{}, err
	}
	defer unlock()
	if h.round == nil {
		return sink.WriteResponse{}, sink.ErrInvalid
	}
	req.Batch.Retain()
	name := fmt.Sprintf("%s/%d", h.round.Round, len(h.writes))
	h.t.files[name] = pFile{h.round.Round, req}
	h.writes = append(h.writes, name)
	return sink.WriteResponse{}, nil
}

func (h *pHandle) Prepare(context.Context, sink.PrepareRequest) (sink.PrepareResponse, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.PrepareResponse{}, err
	}
	defer unlock()
	if h.round == nil {
		return sink.PrepareResponse{}, sink.ErrInvalid
	}
	h.t.staged[h.round.Round] = h.round.Fence
	staged := strconv.Itoa(len(h.writes))
	if h.compacts > 0 {
		staged = fmt.Sprintf("c%d/%d", h.compacts, h.of)
	}
	h.round = nil
	return sink.PrepareResponse{Staged: []byte(staged)}, nil
}

// Commit names the files; it does not look whether they are there, as a catalog does
// not. The files of rounds that cannot be committed any more are removed then.
func (h *pHandle) Commit(_ context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	if err := req.Validate(); err != nil {
		return sink.CommitResponse{}, err
	}
	unlock, err := h.lock()
	if err != nil {
		return sink.CommitResponse{}, err
	}
	defer unlock()
	have := h.t.committed
	if h.p.breaks.noBase {
		req.Base, have.Ends = have.Round, nil
	}
	if h.p.breaks.noFence {
		have.Fence = 0
	}
	replay, err := have.Check(req)
	if err != nil || replay {
		return sink.CommitResponse{Snapshot: h.t.committed.Snapshot}, err
	}
	if merged, ok := strings.CutPrefix(string(req.Staged), "c"); ok {
		var n, of int
		if _, err := fmt.Sscanf(merged, "%d/%d", &n, &of); err != nil || of != len(h.t.rounds) {
			return sink.CommitResponse{}, fmt.Errorf("a compaction of %s, there are %d: %w", merged, len(h.t.rounds), sink.ErrConflict)
		}
		h.t.rounds = append([][]string{slices.Concat(h.t.rounds[:n]...)}, h.t.rounds[n:]...)
	} else {
		n, _ := strconv.Atoi(string(req.Staged))
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("%s/%d", req.Round, i)
		}
		h.covers(req, names)
		h.t.rounds = append(h.t.rounds, names)
	}
	h.t.made++
	snapshot := strconv.Itoa(h.t.made)
	h.t.committed = h.t.committed.After(req, snapshot)
	delete(h.t.staged, req.Round)
	for round, fence := range h.t.staged {
		if fence <= req.Fence {
			h.remove(round)
		}
	}
	h.p.log = append(h.p.log, fmt.Sprintf("table %d: round %s on %q, fence %d: %v", h.t.id, req.Round, req.Base, req.Fence, req.Ranges))
	return sink.CommitResponse{Snapshot: snapshot}, nil
}

// covers holds the worker to the contract: the writes of each bucket follow one another
// from the range's start to its end, and buckets do not alternate.
func (h *pHandle) covers(req sink.CommitRequest, names []string) {
	at := map[mink.BucketRef]mink.Offset{}
	var order []mink.BucketRef
	for _, name := range names {
		f, ok := h.t.files[name]
		if !ok {
			h.p.world.failf("round %s names file %s, which is gone", req.Round, name)
			continue
		}
		if n := len(order); n == 0 || order[n-1] != f.req.Bucket {
			order = append(order, f.req.Bucket)
		}
		if a, ok := at[f.req.Bucket]; ok && a != f.req.Start {
			h.p.world.failf("round %s: bucket %s is written from %d after %d", req.Round, f.req.Bucket, f.req.Start, a)
		} else if !ok && !slices.ContainsFunc(req.Ranges, func(r sink.Range) bool { return r.Bucket == f.req.Bucket && r.Start == f.req.Start }) {
			h.p.world.failf("round %s: bucket %s is written from %d: %v", req.Round, f.req.Bucket, f.req.Start, req.Ranges)
		}
		at[f.req.Bucket] = f.req.End
	}
	if len(order) != len(at) {
		h.p.world.failf("round %s: buckets alternate: %v", req.Round, order)
	}
	for _, r := range req.Ranges {
		if at[r.Bucket] != r.End {
			h.p.world.failf("round %s: bucket %s is written to %d and committed to %d", req.Round, r.Bucket, at[r.Bucket], r.End)
		}
	}
}

func (h *pHandle) remove(round sink.RoundID) {
	delete(h.t.staged, round)
	maps.DeleteFunc(h.t.files, func(_ string, f pFile) bool { return f.round == round })
}

func (h *pHandle) Abort(_ context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.AbortResponse{}, nil //nolint:nilerr // what is gone is removed
	}
	defer unlock()
	if _, there := h.t.staged[req.Round]; there {
		h.remove(req.Round)
	}
	return sink.AbortResponse{}, nil
}

func (h *pHandle) SchemaChange(_ context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.SchemaChangeResponse{}, err
	}
	defer unlock()
	if req.Schema.ID < h.t.schema.ID {
		return sink.SchemaChangeResponse{}, sink.ErrConflict
	}
	h.t.schema, h.spec.Schema = req.Schema, req.Schema
	return sink.SchemaChangeResponse{}, nil
}

func (h *pHandle) Drop(context.Context, sink.DropRequest) (sink.DropResponse, error) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if t := h.p.tables[h.spec.Name]; t == h.t {
		t.dropped = true
		delete(h.p.tables, h.spec.Name)
	}
	return sink.DropResponse{}, nil
}

func (h *pHandle) Close() error { return nil }

// rows is what a reader of the target finds, as text in the columns of t's newest schema.
func (p *place) rows(t *wTable) (map[string]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, latest := map[string]int{}, map[string][]string{}
	pt := p.tables[t.name]
	if pt == nil {
		return out, nil
	}
	if pt.id != t.id {
		return nil, fmt.Errorf("the place of table %d has table %d", t.id, pt.id)
	}
	for _, names := range pt.rounds {
		for _, name := range names {
			f, ok := pt.files[name]
			if !ok {
				return nil, fmt.Errorf("table %d refers to file %s, which was deleted", t.id, name)
			}
			for i := range int(f.req.Batch.NumRows()) {
				row := rowText(f.req.Batch, i, t.fields)
				if !t.keyed {
					out[row]++
					continue
				}
				// The values of its partition and the bucket's number are where a key is: an
				// insert looks for no older row there.
				key := fmt.Sprint(f.req.Batch.Column(1).ValueStr(i), f.req.Bucket.Index, f.req.Batch.Column(0).ValueStr(i))
				switch f.req.Changes[i] {
				case mink.ChangeDelete:
					delete(latest, key)
				case mink.ChangeInsert:
					latest[key] = append(latest[key], row)
				case mink.ChangeUpdateAfter:
					latest[key] = []string{row}
				}
			}
		}
	}
	for _, rows := range latest {
		for _, row := range rows {
			out[row]++
		}
	}
	return out, nil
}

func rowText(b arrow.RecordBatch, row int, fields []wField) string {
	var values []any
	for _, f := range fields {
		var v any
		for i, x := range b.Schema().Fields() {
			if id, _ := x.Metadata.GetValue(mink.MetaFieldID); id != strconv.Itoa(int(f.id)) || b.Column(i).IsNull(row) {
				continue
			}
			switch c := b.Column(i).(type) {
			case *array.Int64:
				v = c.Value(row)
			case *array.String:
				v = c.Value(row)
			}
		}
		values = append(values, f.id, v)
	}
	return fmt.Sprint(values...)
}
