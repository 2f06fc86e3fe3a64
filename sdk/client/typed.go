package client

import (
	"context"
	"fmt"
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/client/internal/gorow"
)

// tableCodec compiles T for a table's columns; a column that may be left out of a
// write counts as nullable.
func tableCodec[T any](v *tableView) (*gorow.Codec, error) {
	s, err := v.targets(nil)
	if err != nil {
		return nil, err
	}
	c, err := gorow.Compile(reflect.TypeFor[T](), s.Arrow())
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", v.name, err)
	}
	return c, nil
}

func encodeAll[T any](c *gorow.Codec, mem memory.Allocator, s *arrow.Schema, rows []T) (arrow.RecordBatch, error) {
	return c.Encode(mem, s, len(rows), func(i int) reflect.Value { return reflect.ValueOf(&rows[i]).Elem() })
}

// TypedWriter is a Writer of values of T, a struct with `mink:"column"` tags (Decode).
type TypedWriter[T any] struct {
	*Writer
	codec *gorow.Codec
}

// NewTypedWriter opens a writer on a log table. Columns that T does not have are null.
func NewTypedWriter[T any](ctx context.Context, c *Client, table string, cfg WriterConfig) (*TypedWriter[T], error) {
	w, err := c.NewWriter(ctx, table, cfg)
	if err != nil {
		return nil, err
	}
	codec, err := tableCodec[T](w.s.table)
	if err != nil {
		_ = w.Close(ctx) // nothing was written
		return nil, err
	}
	return &TypedWriter[T]{w, codec}, nil
}

// AppendRows is Append of values.
func (w *TypedWriter[T]) AppendRows(ctx context.Context, rows ...T) (*Append, error) {
	rec, err := encodeAll(w.codec, w.s.cfg.Allocator, w.Schema(), rows)
	if err != nil {
		return nil, fmt.Errorf("append to %s: %w", w.s.table.name, err)
	}
	defer rec.Release()
	return w.Append(ctx, rec)
}

// TypedUpsertWriter is an UpsertWriter of values of T, a struct with `mink:"column"`
// tags (Decode).
//
//	type Item struct {
//		Region string  `mink:"region"`
//		ID     int64   `mink:"id"`
//		Name   *string `mink:"name"`
//	}
//	w, err := client.NewTypedUpsertWriter[Item](ctx, c, "shop.items", client.DefaultUpsert())
//	_, err = w.UpsertRows(ctx, Item{Region: "eu", ID: 7, Name: &boots})
//	_, err = w.DeleteRows(ctx, Item{Region: "eu", ID: 7})
type TypedUpsertWriter[T any] struct {
	*UpsertWriter
	codec, keys *gorow.Codec
}

// NewTypedUpsertWriter opens an upsert writer. When T does not have all columns of the
// table (an auto-increment one aside) and cfg.Columns is empty, the updates are partial:
// T's columns are set, the others keep their values.
func NewTypedUpsertWriter[T any](ctx context.Context, c *Client, table string, cfg UpsertConfig) (*TypedUpsertWriter[T], error) {
	v, err := c.openTable(ctx, table)
	if err != nil {
		return nil, err
	}
	codec, err := tableCodec[T](v)
	if err != nil {
		return nil, err
	}
	if len(cfg.Columns) == 0 {
		names := codec.Names()
		have := map[string]bool{}
		for _, n := range names {
			have[n] = true
		}
		for _, column := range v.desc.Schema.Columns {
			if !have[column.Name] && !column.AutoIncrement {
				cfg.Columns = names
			}
		}
	}
	w, err := c.NewUpsertWriter(ctx, table, cfg)
	if err != nil {
		return nil, err
	}
	return &TypedUpsertWriter[T]{w, codec.Within(w.Schema()), codec.Within(w.KeySchema())}, nil
}

// UpsertRows is Upsert of values.
func (w *TypedUpsertWriter[T]) UpsertRows(ctx context.Context, rows ...T) (*Append, error) {
	rec, err := encodeAll(w.codec, w.s.cfg.Allocator, w.Schema(), rows)
	if err != nil {
		return nil, fmt.Errorf("put into %s: %w", w.s.table.name, err)
	}
	defer rec.Release()
	return w.Upsert(ctx, rec)
}

// DeleteRows is Delete of the values' keys: the primary key's columns count, those of
// the partition among them.
func (w *TypedUpsertWriter[T]) DeleteRows(ctx context.Context, rows ...T) (*Append, error) {
	rec, err := encodeAll(w.keys, w.s.cfg.Allocator, w.KeySchema(), rows)
	if err != nil {
		return nil, fmt.Errorf("delete from %s: %w", w.s.table.name, err)
	}
	defer rec.Release()
	return w.Delete(ctx, rec)
}

// TypedLookuper is a Lookuper of values of T by keys of K: structs with
// `mink:"column"` tags (Decode), K also one value when the primary key has one column.
//
//	l, err := client.NewTypedLookuper[int64, Item](ctx, c, "shop.items", client.DefaultLookup())
//	item, ok, err := l.Find(ctx, 7)
type TypedLookuper[K, T any] struct {
	*Lookuper
	key, row *gorow.Codec
}

// NewTypedLookuper opens a lookuper. With empty cfg.Columns only T's columns are read.
// Columns of K beside the primary key's are passed over.
func NewTypedLookuper[K, T any](ctx context.Context, c *Client, table string, cfg LookupConfig) (*TypedLookuper[K, T], error) {
	v, err := c.openTable(ctx, table)
	if err != nil {
		return nil, err
	}
	row, err := tableCodec[T](v)
	if err != nil {
		return nil, err
	}
	if len(cfg.Columns) == 0 {
		cfg.Columns = row.Names()
	}
	l, err := c.NewLookuper(ctx, table, cfg)
	if err != nil {
		return nil, err
	}
	var key *gorow.Codec
	if t := reflect.TypeFor[K](); gorow.Single(t) {
		key, err = gorow.Compile(t, l.key)
	} else if key, err = tableCodec[K](v); err == nil {
		key = key.Within(l.key)
	}
	if err != nil {
		_ = l.Close() // has no lookups
		return nil, fmt.Errorf("key of table %s: %w", table, err)
	}
	return &TypedLookuper[K, T]{l, key, row.Within(l.rows)}, nil
}

// Find finds one row; ok is false when there is none.
func (l *TypedLookuper[K, T]) Find(ctx context.Context, key K) (row T, ok bool, err error) {
	rows, found, err := l.FindAll(ctx, key)
	if err != nil {
		return row, false, err
	}
	return rows[0], found[0], nil
}

// FindAll finds the rows of keys: row i is that of key i when found[i].
func (l *TypedLookuper[K, T]) FindAll(ctx context.Context, keys ...K) (rows []T, found []bool, err error) {
	rec, err := encodeAll(l.key, l.cfg.Allocator, l.KeySchema(), keys)
	if err != nil {
		return nil, nil, fmt.Errorf("lookup in %s: %w", l.table.name, err)
	}
	defer rec.Release()
	f, err := l.Lookup(ctx, rec)
	if err != nil {
		return nil, nil, err
	}
	defer f.Rows.Release()
	rows, found = make([]T, len(keys)), make([]bool, len(keys))
	at, missing := 0, f.Missing
	for i := range rows {
		if len(missing) > 0 && missing[0] == i {
			missing = missing[1:]
			continue
		}
		found[i] = true
		if err := l.row.Decode(f.Rows, at, reflect.ValueOf(&rows[i]).Elem()); err != nil {
			return nil, nil, fmt.Errorf("lookup in %s: %w", l.table.name, err)
		}
		at++
	}
	return rows, found, nil
}
