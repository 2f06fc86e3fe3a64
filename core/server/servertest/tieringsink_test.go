package servertest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// shelf is a sink in memory that all nodes share. Rows are texts; a primary key is the first
// column.
type shelf struct {
	mu     sync.Mutex
	tables map[string]*shelfTable
	// before, when set, is called before each call, with the table's name.
	before func(ctx context.Context, call, table string) error
}

type shelfTable struct {
	id        mink.TableID
	committed sink.Committed
	staged    map[string][]shelfRow
	rows      []shelfRow
	snapshots int // rows of KV snapshots
}

type shelfRow struct {
	key, text string
	change    mink.Change
	snapshot  bool
}

func newShelf() *shelf {
	return &shelf{tables: map[string]*shelfTable{}, before: func(context.Context, string, string) error { return nil }}
}

func (s *shelf) Describe() sink.Description {
	return sink.Description{Name: "shelf", Delivery: sink.ExactlyOnce, Changes: sink.ChangesApplied, StagedSurvives: true, SchemaChanges: true}
}

func (s *shelf) Close() error { return nil }

// rows is what a reader finds: texts, and how often.
func (s *shelf) rows(table string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, latest := map[string]int{}, map[string]string{}
	t := s.tables[table]
	if t == nil {
		return out
	}
	for _, r := range t.rows {
		switch r.change {
		case mink.ChangeAppend:
			out[r.text]++
		case mink.ChangeDelete:
			delete(latest, r.key)
		case mink.ChangeInsert, mink.ChangeUpdateAfter:
			latest[r.key] = r.text
		}
	}
	for _, text := range latest {
		out[text]++
	}
	return out
}

func (s *shelf) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if err := s.before(ctx, "open", req.Table.Name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[req.Table.Name]
	if t == nil {
		t = &shelfTable{id: req.Table.ID, staged: map[string][]shelfRow{}}
		s.tables[req.Table.Name] = t
	}
	if t.id != req.Table.ID {
		return nil, fmt.Errorf("%s is table %d: %w", req.Table.Name, t.id, sink.ErrAlreadyExists)
	}
	return &shelfHandle{s: s, t: t, spec: req.Table}, nil
}

type shelfHandle struct {
	s     *shelf
	t     *shelfTable
	spec  sink.TableSpec
	round sink.RoundID
	open  []shelfRow
}

func (h *shelfHandle) do(ctx context.Context, call string, f func() error) error {
	if err := h.s.before(ctx, call, h.spec.Name); err != nil {
		return err
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return f()
}

func (h *shelfHandle) Recover(ctx context.Context, _ sink.RecoverRequest) (resp sink.RecoverResponse, err error) {
	err = h.do(ctx, "recover", func() error { resp.Committed = h.t.committed.Clone(); return nil })
	return resp, err
}

func (h *shelfHandle) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return sink.BeginRoundResponse{}, h.do(ctx, "begin", func() error { h.round, h.open = req.Round, nil; return req.Validate() })
}

func (h *shelfHandle) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	return sink.WriteResponse{}, h.do(ctx, "write", func() error {
		if err := req.Validate(h.spec); err != nil {
			return err
		}
		for i := range int(req.Batch.NumRows()) {
			r := shelfRow{text: textOf(req.Batch, i), key: fmt.Sprint(req.Bucket, req.Batch.Column(0).ValueStr(i)), snapshot: req.Snapshot}
			if req.Changes != nil {
				r.change = req.Changes[i]
			}
			h.open = append(h.open, r)
		}
		return nil
	})
}

func textOf(b arrow.RecordBatch, row int) string {
	var out []string
	for i, f := range b.Schema().Fields() {
		out = append(out, f.Name+"="+b.Column(i).ValueStr(row))
	}
	return strings.Join(out, " ")
}

func (h *shelfHandle) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	return sink.PrepareResponse{Staged: []byte(h.round)}, h.do(ctx, "prepare", func() error { h.t.staged[string(h.round)] = h.open; return nil })
}

func (h *shelfHandle) Commit(ctx context.Context, req sink.CommitRequest) (resp sink.CommitResponse, err error) {
	err = h.do(ctx, "commit", func() error {
		replay, err := h.t.committed.Check(req)
		if err != nil || replay {
			resp.Snapshot = h.t.committed.Snapshot
			return err
		}
		rows, ok := h.t.staged[string(req.Staged)]
		if !ok {
			return sink.ErrNotExist
		}
		for _, r := range rows {
			if r.snapshot {
				h.t.snapshots++
			}
		}
		h.t.rows = append(h.t.rows, rows...)
		resp.Snapshot = fmt.Sprint(len(h.t.rows))
		h.t.committed = h.t.committed.After(req, resp.Snapshot)
		return nil
	})
	if err == nil {
		err = h.s.before(ctx, "committed", h.spec.Name)
	}
	return resp, err
}

func (h *shelfHandle) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	return sink.AbortResponse{}, h.do(ctx, "abort", func() error { delete(h.t.staged, string(req.Staged)); return nil })
}

func (h *shelfHandle) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	return sink.SchemaChangeResponse{}, h.do(ctx, "schema", func() error { h.spec.Schema = req.Schema; return nil })
}

func (h *shelfHandle) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	return sink.DropResponse{}, h.do(ctx, "drop", func() error {
		if h.s.tables[h.spec.Name] == h.t {
			delete(h.s.tables, h.spec.Name)
		}
		return nil
	})
}

func (h *shelfHandle) Close() error { return nil }
