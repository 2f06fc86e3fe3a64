package sinktest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

// fault is what a sink of this test does wrong; 0: nothing.
type fault int

const (
	none fault = iota
	noFence
	noBase
	noStart
	tornCommit // the rows first, then the round
	commitTwice
	visibleAtPrepare
	visibleAtWrite
	abortOfCommitted
	abortDoesNothing
	keepsUnprepared
	keepsBatches // without Retain
	ignoresChanges
	losesDeletes
	forgetsOffsets
	forgetsTables
	byName
	oneTable
	dropKeepsRound
	dropKeepsRows
	schemaByName
	stagedInMemory
	ignoresContext
	losesLastRow
	wrongSnapshot
	beginTakesAll // removes staged state of higher fences
	openEndsRound
	refusesDarkly // a type, and does not say which column has it
	refusesMost   // of the types
	faults        // their number
)

var faultNames = [...]string{
	none: "none", noFence: "noFence", noBase: "noBase", noStart: "noStart", tornCommit: "tornCommit", commitTwice: "commitTwice",
	visibleAtPrepare: "visibleAtPrepare", visibleAtWrite: "visibleAtWrite", abortOfCommitted: "abortOfCommitted", abortDoesNothing: "abortDoesNothing",
	keepsUnprepared: "keepsUnprepared", keepsBatches: "keepsBatches", ignoresChanges: "ignoresChanges", losesDeletes: "losesDeletes",
	forgetsOffsets: "forgetsOffsets", forgetsTables: "forgetsTables", byName: "byName", oneTable: "oneTable", dropKeepsRound: "dropKeepsRound",
	dropKeepsRows: "dropKeepsRows", schemaByName: "schemaByName", stagedInMemory: "stagedInMemory", ignoresContext: "ignoresContext",
	losesLastRow: "losesLastRow", wrongSnapshot: "wrongSnapshot", beginTakesAll: "beginTakesAll", openEndsRound: "openEndsRound",
	refusesDarkly: "refusesDarkly", refusesMost: "refusesMost",
}

// TestKitOnRightSinks: what is right passes.
func TestKitOnRightSinks(t *testing.T) {
	for name, d := range map[string]sink.Description{
		"applied":       {Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied, StagedSurvives: true, SchemaChanges: true},
		"kept":          {Delivery: sink.ExactlyOnce, Changes: sink.ChangesKept, SchemaChanges: true},
		"refused":       {Delivery: sink.ExactlyOnce, Changes: sink.ChangesRefused, StagedSurvives: true},
		"at least once": {Delivery: sink.AtLeastOnce, Changes: sink.ChangesKept, SchemaChanges: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sinktest.Run(t, func(t *testing.T) sinktest.Target { return newPlace(d, none).target() })
		})
	}
}

// TestKitEndsWhatItStarts: a sink may be a process.
func TestKitEndsWhatItStarts(t *testing.T) {
	d := sink.Description{Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied, StagedSurvives: true, SchemaChanges: true}
	for _, c := range sinktest.Checks() {
		var started, killed atomic.Int64
		target := newPlace(d, none).target()
		start := target.Start
		target.Start = func(ctx context.Context) (sink.Sink, func(), error) {
			s, kill, err := start(ctx)
			started.Add(1)
			return s, sync.OnceFunc(func() { killed.Add(1); kill() }), err
		}
		if r := sinktest.RunCheck(t.Context(), c, target); r.Failed || started.Load() != killed.Load() {
			t.Errorf("%s: %d sinks were started and %d ended: %s", c.Name, started.Load(), killed.Load(), r.Text)
		}
	}
}

// TestKitFindsEveryFault: what is wrong fails, whichever way it is wrong.
func TestKitFindsEveryFault(t *testing.T) {
	d := sink.Description{Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied, StagedSurvives: true, SchemaChanges: true}
	for f := none + 1; f < faults; f++ {
		t.Run(faultNames[f], func(t *testing.T) {
			t.Parallel()
			var failed []string
			for _, c := range sinktest.Checks() {
				if r := sinktest.RunCheck(t.Context(), c, newPlace(d, f).target()); r.Failed {
					failed = append(failed, r.Name+": "+strings.SplitN(r.Text, "\n", 2)[0])
				}
			}
			if len(failed) == 0 {
				t.Fatal("the kit passes a sink with this fault")
			}
			t.Logf("%d checks fail, the first: %.200s", len(failed), failed[0])
		})
	}
}

// place is a target in memory: it survives the sinks.
type place struct {
	d     sink.Description
	fault fault

	mu     sync.Mutex
	tables map[string]*placeTable
}

type placeTable struct {
	id        mink.TableID
	schema    sink.Schema
	committed sink.Committed
	rounds    [][]piece
	staged    map[string][]piece // by fence and round
	seen      mink.LeaseEpoch
}

// piece is what one Write brought.
type piece struct {
	batch   arrow.RecordBatch
	changes []mink.Change
}

func newPlace(d sink.Description, f fault) *place {
	d.Name, d.ReadBack = "memory", true
	return &place{d: d, fault: f, tables: map[string]*placeTable{}}
}

func (p *place) target() sinktest.Target {
	return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
		s := &memory{place: p, staged: map[string][]piece{}}
		return s, func() { s.dead.Store(true) }, nil
	}}
}

// memory is one process's sink.
type memory struct {
	*place
	dead   atomic.Bool
	staged map[string][]piece // with stagedInMemory
}

var errDead = errors.New("the process is gone")

func (s *memory) Describe() sink.Description { return s.d }
func (s *memory) Close() error               { return nil }

func (s *memory) key(spec sink.TableSpec) string {
	switch s.fault {
	case byName:
		return spec.FullName()
	case oneTable:
		return "all"
	}
	return fmt.Sprint(spec.ID)
}

// change is one atomic change of the place, unless the process is gone.
func (s *memory) change(ctx context.Context, do func() error) error {
	if err := ctx.Err(); err != nil && s.fault != ignoresContext {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead.Load() {
		return errDead
	}
	return do()
}

func (s *memory) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if s.d.Changes == sink.ChangesRefused && len(req.Table.PrimaryKey) > 0 {
		return nil, fmt.Errorf("table %s has a primary key: %w", req.Table.FullName(), sink.ErrUnimplemented)
	}
	for _, f := range req.Table.Schema.Arrow.Fields() {
		switch {
		case s.fault == refusesDarkly && arrow.TypeEqual(f.Type, arrow.FixedWidthTypes.Time64ns):
			return nil, fmt.Errorf("a type cannot be kept: %w", sink.ErrUnimplemented)
		case s.fault == refusesMost && strings.HasPrefix(f.Name, "Col "):
			return nil, fmt.Errorf("column %q cannot be kept: %w", f.Name, sink.ErrUnimplemented)
		}
	}
	h := &handle{memory: s, spec: req.Table}
	err := s.change(ctx, func() error {
		key := s.key(req.Table)
		t := s.tables[key]
		if t == nil || s.fault == forgetsTables {
			t = &placeTable{id: req.Table.ID, schema: req.Table.Schema, staged: map[string][]piece{}}
			s.tables[key] = t
		}
		if s.fault == openEndsRound {
			clear(t.staged)
		}
		h.t = t
		return h.follow(req.Table.Schema)
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

type handle struct {
	*memory
	spec  sink.TableSpec
	t     *placeTable
	round sink.BeginRoundRequest
	open  []piece
	busy  bool
}

func (h *handle) follow(next sink.Schema) error {
	switch {
	case next.ID == h.t.schema.ID:
		return nil
	case !h.d.SchemaChanges:
		return fmt.Errorf("schema %d: %w", next.ID, sink.ErrUnimplemented)
	case next.ID < h.t.schema.ID:
		return fmt.Errorf("schema %d: %w", next.ID, sink.ErrConflict)
	}
	h.t.schema, h.spec.Schema = next, next
	return nil
}

func (h *handle) Recover(ctx context.Context, req sink.RecoverRequest) (resp sink.RecoverResponse, err error) {
	err = h.change(ctx, func() error {
		if req.Fence > h.t.seen {
			h.t.seen = req.Fence
		}
		if h.d.Delivery == sink.ExactlyOnce {
			resp.Committed = h.t.committed.Clone()
		}
		if h.fault == forgetsOffsets && len(resp.Committed.Ends) > 1 {
			for b := range resp.Committed.Ends {
				delete(resp.Committed.Ends, b)
				break
			}
		}
		return nil
	})
	return resp, err
}

func stagedKey(fence mink.LeaseEpoch, round sink.RoundID) string {
	return fmt.Sprintf("%08d %s", fence, round)
}

func (h *handle) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return sink.BeginRoundResponse{}, h.change(ctx, func() error {
		if h.fault != keepsUnprepared {
			h.open = nil
		}
		h.round, h.busy = req, true
		maps.DeleteFunc(h.t.staged, func(key string, _ []piece) bool {
			return key < stagedKey(req.Fence+1, "") || h.fault == beginTakesAll
		})
		return nil
	})
}

func (h *handle) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if err := req.Validate(h.spec); err != nil {
		return sink.WriteResponse{}, err
	}
	return sink.WriteResponse{}, h.change(ctx, func() error {
		if !h.busy {
			return sink.ErrInvalid
		}
		if h.fault != keepsBatches {
			req.Batch.Retain()
		}
		p := piece{batch: req.Batch, changes: slices.Clone(req.Changes)}
		if n := p.batch.NumRows(); h.fault == losesLastRow && n > 3 {
			p.batch = p.batch.NewSlice(0, n-1)
			p.changes = p.changes[:min(len(p.changes), int(n-1))]
		}
		h.open = append(h.open, p)
		if h.fault == visibleAtWrite || h.d.Delivery == sink.AtLeastOnce {
			h.t.rounds = append(h.t.rounds, []piece{p})
		}
		return nil
	})
}

func (h *handle) stage() map[string][]piece {
	if h.fault == stagedInMemory || !h.d.StagedSurvives {
		return h.staged
	}
	return h.t.staged
}

func (h *handle) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	key := stagedKey(h.round.Fence, h.round.Round)
	return sink.PrepareResponse{Staged: []byte(key)}, h.change(ctx, func() error {
		if !h.busy {
			return sink.ErrInvalid
		}
		h.stage()[key] = h.open
		if h.fault == visibleAtPrepare {
			h.t.rounds = append(h.t.rounds, h.open)
		}
		if h.fault != keepsUnprepared {
			h.open = nil
		}
		h.busy = false
		return nil
	})
}

// judge is Committed.Check but for the fault.
func (h *handle) judge(req sink.CommitRequest) (bool, error) {
	c := h.t.committed
	if h.d.Delivery == sink.AtLeastOnce {
		return false, nil
	}
	switch h.fault {
	case noFence:
		c.Fence = 0
	case noBase:
		req.Base = c.Round
	case noStart:
		c.Ends = nil
	case commitTwice:
		if req.Round == c.Round {
			return false, nil
		}
	}
	return c.Check(req)
}

func (h *handle) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	var snapshot string
	var pieces []piece
	replayed := false
	err := h.change(ctx, func() error {
		replay, err := h.judge(req)
		if err != nil || replay {
			replayed, snapshot = replay, h.t.committed.Snapshot
			if h.fault == wrongSnapshot {
				snapshot += "again"
			}
			return err
		}
		var there bool
		pieces, there = h.stage()[string(req.Staged)]
		if !there && h.fault == commitTwice && req.Round == h.t.committed.Round {
			pieces, there = h.t.rounds[len(h.t.rounds)-1], true
		}
		if !there && h.d.Delivery == sink.ExactlyOnce {
			return fmt.Errorf("round %s: %w", req.Round, sink.ErrNotExist)
		}
		if h.d.Delivery == sink.AtLeastOnce {
			return nil
		}
		if h.fault != visibleAtPrepare && h.fault != visibleAtWrite {
			h.t.rounds = append(h.t.rounds, pieces)
		}
		if h.fault != abortOfCommitted {
			delete(h.stage(), string(req.Staged))
		}
		if h.fault == tornCommit {
			return nil
		}
		snapshot = fmt.Sprint(len(h.t.rounds))
		h.t.committed = h.t.committed.After(req, snapshot)
		return nil
	})
	if err == nil && !replayed && h.fault == tornCommit {
		time.Sleep(time.Millisecond)
		err = h.change(ctx, func() error {
			h.t.committed = h.t.committed.After(req, snapshot)
			return nil
		})
	}
	return sink.CommitResponse{Snapshot: snapshot}, err
}

func (h *handle) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	return sink.AbortResponse{}, h.change(ctx, func() error {
		if h.fault == abortDoesNothing {
			return nil
		}
		if p, there := h.stage()[string(req.Staged)]; there && h.fault == abortOfCommitted {
			h.t.rounds = slices.DeleteFunc(h.t.rounds, func(r []piece) bool { return len(r) > 0 && len(p) > 0 && r[0].batch == p[0].batch })
		}
		delete(h.stage(), string(req.Staged))
		return nil
	})
}

func (h *handle) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	return sink.SchemaChangeResponse{}, h.change(ctx, func() error { return h.follow(req.Schema) })
}

func (h *handle) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	return sink.DropResponse{}, h.change(ctx, func() error {
		t := h.tables[h.key(h.spec)]
		delete(h.tables, h.key(h.spec))
		switch {
		case t == nil:
		case h.fault == dropKeepsRound:
			h.tables[h.key(h.spec)] = &placeTable{id: t.id, schema: t.schema, staged: t.staged, committed: t.committed}
		case h.fault == dropKeepsRows:
			h.tables[h.key(h.spec)] = &placeTable{id: t.id, schema: t.schema, staged: map[string][]piece{}, rounds: t.rounds}
		}
		return nil
	})
}

func (h *handle) Close() error { return nil }

// Read gives pieces as they came, or with ChangesApplied the newest row of each key.
func (s *memory) Read(_ context.Context, req sink.ReadRequest, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[s.key(req.Table)]
	if t == nil {
		return nil
	}
	applied := len(req.Table.PrimaryKey) > 0 && s.d.Changes == sink.ChangesApplied
	latest := map[string]arrow.RecordBatch{}
	for _, p := range slices.Concat(t.rounds...) {
		if s.fault == schemaByName {
			p.batch = withoutIDs(p.batch)
		}
		if !applied {
			if !yield(p.batch, p.changes) {
				return nil
			}
			continue
		}
		for i := range p.batch.NumRows() {
			key := p.batch.Column(0).ValueStr(int(i))
			switch c := p.changes[i]; {
			case c == mink.ChangeDelete && s.fault != losesDeletes && s.fault != ignoresChanges:
				delete(latest, key)
			case c == mink.ChangeInsert, c == mink.ChangeUpdateAfter, s.fault == ignoresChanges:
				latest[key] = p.batch.NewSlice(i, i+1)
			}
		}
	}
	for _, row := range latest {
		if !yield(row, nil) {
			return nil
		}
	}
	return nil
}

func withoutIDs(b arrow.RecordBatch) arrow.RecordBatch {
	fields := slices.Clone(b.Schema().Fields())
	for i := range fields {
		fields[i].Metadata = arrow.Metadata{}
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), b.Columns(), b.NumRows())
}
