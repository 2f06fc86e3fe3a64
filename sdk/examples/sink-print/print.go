package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

const version = "0.1.0"

// printer is the sink.
type printer struct {
	path string   // "": the log
	file *os.File // nil: the log
	mu   sync.Mutex
}

func open(path string) (*printer, error) {
	p := &printer{path: path}
	if path == "" {
		return p, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("%w: option file: %w", sink.ErrInvalid, err)
	}
	p.file = f
	return p, nil
}

func (p *printer) Describe() sink.Description {
	return sink.Description{
		Name: "print", Version: version, Delivery: sink.AtLeastOnce, Changes: sink.ChangesKept,
		SchemaChanges: true, ReadBack: p.file != nil,
	}
}

func (p *printer) Close() error {
	if p.file == nil {
		return nil
	}
	if err := p.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// line is what is printed: a row, or the columns of a schema before its first row.
type line struct {
	Table   string                  `json:"table"`
	ID      mink.TableID            `json:"table_id"`
	Schema  mink.SchemaID           `json:"schema"`
	Columns map[mink.FieldID]string `json:"columns,omitempty"`
	Bucket  string                  `json:"bucket,omitempty"`
	Offset  mink.Offset             `json:"offset,omitempty"`
	Change  string                  `json:"change,omitempty"`
	Row     map[string]any          `json:"row,omitempty"`
}

// print writes lines with one call, so that those of two processes do not mix.
func (p *printer) print(lines []line) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, l := range lines {
		if err := e.Encode(l); err != nil {
			return fmt.Errorf("%w: table %s: %w", sink.ErrInvalid, l.Table, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		for text := range bytes.Lines(b.Bytes()) {
			slog.Info(string(bytes.TrimSuffix(text, []byte("\n"))))
		}
		return nil
	}
	if _, err := p.file.Write(b.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", sink.ErrUnavailable, err)
	}
	return nil
}

func (p *printer) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	if len(req.Table.Options) > 0 && !req.Drop {
		return nil, fmt.Errorf("%w: table %s: sink-print has no options of a table, and it has %q", sink.ErrInvalid, req.Table.FullName(), slices.Sorted(maps.Keys(req.Table.Options)))
	}
	t := &table{p: p, spec: req.Table}
	_, err := t.SchemaChange(ctx, sink.SchemaChangeRequest{Schema: req.Table.Schema})
	return t, err
}

// table is a handle. Rows are printed as they come: there is nothing to stage, to
// commit or to remove.
type table struct {
	p    *printer
	spec sink.TableSpec
	open bool // a round is
}

func (t *table) line() line {
	return line{Table: t.spec.FullName(), ID: t.spec.ID, Schema: t.spec.Schema.ID}
}

func (t *table) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.SchemaChangeResponse{}, err
	}
	t.spec.Schema = req.Schema
	l := t.line()
	l.Columns = map[mink.FieldID]string{}
	for _, f := range req.Schema.Arrow.Fields() {
		l.Columns[fieldID(f)] = f.Name
	}
	return sink.SchemaChangeResponse{}, t.p.print([]line{l})
}

func (t *table) Recover(ctx context.Context, _ sink.RecoverRequest) (sink.RecoverResponse, error) {
	return sink.RecoverResponse{}, ctx.Err() // Mink's own metadata say how far it came
}

func (t *table) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	t.open = true
	return sink.BeginRoundResponse{}, errors.Join(ctx.Err(), req.Validate())
}

func (t *table) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	if err := errors.Join(ctx.Err(), req.Validate(t.spec)); err != nil {
		return sink.WriteResponse{}, err
	}
	if !t.open {
		return sink.WriteResponse{}, fmt.Errorf("%w: write to %s: no round is open", sink.ErrInvalid, t.spec.FullName())
	}
	lines := make([]line, req.Batch.NumRows())
	for i := range lines {
		l := t.line()
		l.Bucket, l.Row = req.Bucket.String(), row(req.Batch, i)
		if !req.Snapshot {
			l.Offset = req.Start + mink.Offset(i)
		}
		if req.Changes != nil {
			l.Change = req.Changes[i].String()
		}
		lines[i] = l
	}
	return sink.WriteResponse{}, t.p.print(lines)
}

// row is one row by column name, as Arrow's JSON has it.
func row(batch arrow.RecordBatch, i int) map[string]any {
	r := make(map[string]any, batch.NumCols())
	for c, column := range batch.Columns() {
		r[batch.ColumnName(c)] = column.GetOneForMarshal(i)
	}
	return r
}

func (t *table) Prepare(ctx context.Context, _ sink.PrepareRequest) (sink.PrepareResponse, error) {
	if err := ctx.Err(); err != nil {
		return sink.PrepareResponse{}, err
	}
	if !t.open {
		return sink.PrepareResponse{}, fmt.Errorf("%w: prepare of %s: no round is open", sink.ErrInvalid, t.spec.FullName())
	}
	t.open = false
	if t.p.file != nil {
		if err := t.p.file.Sync(); err != nil {
			return sink.PrepareResponse{}, fmt.Errorf("%w: %w", sink.ErrUnavailable, err)
		}
	}
	return sink.PrepareResponse{}, nil
}

func (t *table) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	return sink.CommitResponse{}, errors.Join(ctx.Err(), req.Validate())
}

func (t *table) Abort(ctx context.Context, _ sink.AbortRequest) (sink.AbortResponse, error) {
	return sink.AbortResponse{}, ctx.Err() // what is printed is printed
}

func (t *table) Drop(ctx context.Context, _ sink.DropRequest) (sink.DropResponse, error) {
	return sink.DropResponse{}, ctx.Err()
}

func (t *table) Close() error { return nil }
