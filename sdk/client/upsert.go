package client

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// UpsertConfig tunes an upsert writer.
type UpsertConfig struct {
	WriterConfig
	// Columns makes the updates partial: only these columns are set, all of the
	// primary key among them; the others keep their values, and are null in a row
	// that is new. Empty: every column is set.
	Columns []string
}

// DefaultUpsert is DefaultWriter, of whole rows.
func DefaultUpsert() UpsertConfig { return UpsertConfig{WriterConfig: DefaultWriter()} }

// UpsertWriter upserts into and deletes from a primary-key table, idempotently:
// each batch is applied once and in order per bucket, whatever has to be sent
// again. Writes of one key take effect in the order of the calls. Safe for
// concurrent use.
//
//	w, err := c.NewUpsertWriter(ctx, "shop.items", client.DefaultUpsert())
//	u, err := w.Upsert(ctx, rows)   // arrow.RecordBatch of w.Schema()
//	d, err := w.Delete(ctx, keys)   // of w.KeySchema()
//	err = d.Wait(ctx)               // durable, and seen by lookups
//	err = w.Close(ctx)
type UpsertWriter struct {
	s       *sender
	to      *target
	columns schema.Schema // of to
	keys    schema.Schema
	key     *arrow.Schema
	partial bool
}

// NewUpsertWriter opens a writer on "database.table", a primary-key table, with a
// fresh writer id. ctx bounds the opening only. Close it.
func (c *Client) NewUpsertWriter(ctx context.Context, table string, cfg UpsertConfig) (*UpsertWriter, error) {
	t, err := c.openTable(ctx, table)
	if err != nil {
		return nil, err
	}
	if err := t.wantPrimaryKey("upsert"); err != nil {
		return nil, err
	}
	w := &UpsertWriter{keys: t.keySchema()}
	w.key = w.keys.Arrow()
	if w.columns, err = t.targets(cfg.Columns); err != nil {
		return nil, err
	}
	w.partial = len(w.columns.Columns) < len(t.desc.Schema.Columns)
	if w.s, err = c.newSender(ctx, "put into", t, cfg.WriterConfig); err != nil {
		return nil, err
	}
	w.to = w.puts()
	return w, nil
}

// wantPrimaryKey refuses log tables.
func (v *tableView) wantPrimaryKey(what string) error {
	if len(v.desc.PrimaryKey) == 0 {
		return fmt.Errorf("%w %s: table %s is a log table: it has no primary key", mink.ErrInvalid, what, v.name)
	}
	return nil
}

// keySchema is the primary key's columns, in its order.
func (v *tableView) keySchema() schema.Schema {
	s := schema.Schema{ID: v.desc.Schema.ID}
	for _, name := range v.desc.PrimaryKey {
		c, _ := v.desc.Schema.Column(name)
		s.Columns = append(s.Columns, c)
	}
	return s
}

// targets is the columns that a writer sets, in the table's order, checked; an
// auto-increment column may be null.
func (v *tableView) targets(columns []string) (schema.Schema, error) {
	s := v.desc.Schema.Clone()
	for i := range s.Columns {
		if s.Columns[i].AutoIncrement {
			s.Columns[i].Type.NotNull = false
		}
	}
	if len(columns) == 0 {
		return s, nil
	}
	if err := v.checkColumns(columns); err != nil {
		return s, err
	}
	for _, name := range v.desc.PrimaryKey {
		if !slices.Contains(columns, name) {
			return s, fmt.Errorf("%w columns: %s leave out %q of the primary key (%s) of table %s", mink.ErrInvalid,
				strings.Join(columns, ", "), name, strings.Join(v.desc.PrimaryKey, ", "), v.name)
		}
	}
	for i, name := range columns {
		if slices.Contains(columns[:i], name) {
			return s, fmt.Errorf("%w columns: %q stands twice", mink.ErrInvalid, name)
		}
	}
	s.Columns = slices.DeleteFunc(s.Columns, func(c schema.Column) bool { return !slices.Contains(columns, c.Name) })
	return s, nil
}

// puts is the target of a writer's rows.
func (w *UpsertWriter) puts() *target {
	var columns []string
	if w.partial {
		for _, c := range w.columns.Columns {
			columns = append(columns, c.Name)
		}
	}
	id := w.s.table.desc.Schema.ID
	return &target{
		arrow: w.columns.Arrow(),
		command: func(ref mink.BucketRef, writer api.Writer) api.Command {
			return api.Command{Put: &api.Put{Bucket: ref, SchemaID: id, Columns: columns, WriterID: writer.WriterID, WriterEpoch: writer.Epoch}}
		},
		metadata: func(s *sequenced) any {
			return api.PutMetadata{Sequence: s.sequence, Delete: s.deletes, Changes: s.changes}
		},
	}
}

// Schema is the Arrow schema of the columns that this writer sets, in the table's
// order. An auto-increment column is nullable here: leave it null.
func (w *UpsertWriter) Schema() *arrow.Schema { return w.to.arrow }

// KeySchema is the Arrow schema of the primary key, in its order.
func (w *UpsertWriter) KeySchema() *arrow.Schema { return w.key }

// Upsert hands rows over: each replaces the row with its key, or is a new one. The
// columns are Schema's by name and type, in any order; one that may be null can be
// left out, and is set to null. It waits only for room (PendingBytesMax). The record
// is retained until its rows are applied; the caller may release its own reference
// at once.
func (w *UpsertWriter) Upsert(ctx context.Context, rec arrow.RecordBatch) (*Append, error) {
	if rec.Schema().Equal(w.to.arrow) {
		return w.s.send(ctx, rec, w.to, false)
	}
	m, err := w.columns.MatchArrow(rec.Schema())
	if err != nil {
		return nil, fmt.Errorf("put into %s: %w", w.s.table.name, err)
	}
	rows, err := project(w.s.cfg.Allocator, rec, w.to.arrow, m.Columns)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	return w.s.send(ctx, rows, w.to, false)
}

// Delete hands keys over whose rows are to be removed; keys without a row are no
// error. The record has the columns of KeySchema by name and type, those of the
// partition among them; other columns of the table are passed over. Through a writer
// of some columns it sets those to null, and removes a row when no column beside its
// key is left. Else as Upsert.
func (w *UpsertWriter) Delete(ctx context.Context, keys arrow.RecordBatch) (*Append, error) {
	rows, err := w.deletes(keys)
	if err != nil {
		return nil, fmt.Errorf("delete from %s: %w", w.s.table.name, err)
	}
	defer rows.Release()
	return w.s.send(ctx, rows, w.to, true)
}

// deletes answers the writer's columns with the keys; what stands in the others does
// not matter, and fills NOT NULL columns.
func (w *UpsertWriter) deletes(keys arrow.RecordBatch) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, w.to.arrow.NumFields())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for _, f := range keys.Schema().Fields() {
		if _, ok := w.s.table.desc.Schema.Column(f.Name); !ok {
			return nil, w.s.table.checkColumns([]string{f.Name})
		}
	}
	for i, c := range w.columns.Columns {
		f := w.to.arrow.Field(i)
		if w.keys.Index(c.Name) < 0 {
			columns[i] = filler(w, f, int(keys.NumRows()))
			continue
		}
		at := keys.Schema().FieldIndices(c.Name)
		if len(at) != 1 {
			return nil, fmt.Errorf("%w batch: key column %q occurs %d times, want once: a delete names %s", mink.ErrInvalid, c.Name, len(at), strings.Join(w.s.table.desc.PrimaryKey, ", "))
		}
		from := keys.Column(at[0])
		if !c.Type.Accepts(from.DataType()) {
			return nil, fmt.Errorf("%w batch: column %q is %s, which needs the Arrow type %s; got %s", mink.ErrInvalid, c.Name, c.Type, f.Type, from.DataType())
		}
		d := retype(from.Data(), f.Type)
		columns[i] = array.MakeFromData(d)
		d.Release()
	}
	return array.NewRecordBatch(w.to.arrow, columns, keys.NumRows()), nil
}

func filler(w *UpsertWriter, f arrow.Field, n int) arrow.Array {
	if f.Nullable {
		return array.MakeArrayOfNull(w.s.cfg.Allocator, f.Type, n)
	}
	b := array.NewBuilder(w.s.cfg.Allocator, f.Type)
	defer b.Release()
	b.AppendEmptyValues(n)
	return b.NewArray()
}

// Flush waits until everything handed over so far is durable and seen by lookups,
// and answers the first error of what was handed over since the last Flush: also of
// a call whose Wait has told.
func (w *UpsertWriter) Flush(ctx context.Context) error { return w.s.flush(ctx) }

// Close flushes for as long as ctx lets it, then ends the writer; what is not
// durable by then fails with mink.ErrUnknownOutcome.
func (w *UpsertWriter) Close(ctx context.Context) error { return w.s.close(ctx) }
