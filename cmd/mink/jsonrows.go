package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/schema"
)

// jsonRows reads JSON objects as batches. Arrow's own reader drops fields that
// the schema lacks and does not say which row or column is bad; this one refuses
// and says so.
type jsonRows struct {
	dec    *json.Decoder
	schema *arrow.Schema
	index  map[string]int
	chunk  int
	read   int64 // rows before the current batch
	rec    arrow.RecordBatch
	err    error
}

func newJSONRows(in io.Reader, s *arrow.Schema, chunk int) *jsonRows {
	r := &jsonRows{dec: json.NewDecoder(in), schema: s, index: map[string]int{}, chunk: chunk}
	for i, f := range s.Fields() {
		r.index[f.Name] = i
	}
	return r
}

func (r *jsonRows) Err() error                     { return r.err }
func (r *jsonRows) RecordBatch() arrow.RecordBatch { return r.rec }

// Release frees the current batch.
func (r *jsonRows) Release() {
	if r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
}

// Next reads up to a chunk of rows. A bad row ends it: the rows of its batch
// are not answered.
func (r *jsonRows) Next() bool {
	r.Release()
	if r.err != nil {
		return false
	}
	columns := make([][]json.RawMessage, r.schema.NumFields())
	rows := 0
	for ; rows < r.chunk; rows++ {
		var row map[string]json.RawMessage
		err := r.dec.Decode(&row)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && row == nil {
			err = errors.New("null is not an object")
		}
		if other := (*json.UnmarshalTypeError)(nil); errors.As(err, &other) {
			err = fmt.Errorf("this is a JSON %s", other.Value)
		}
		if err != nil {
			r.err = fmt.Errorf("row %d: want one JSON object a line: %w", r.read+int64(rows)+1, err)
			return false
		}
		if err := r.add(columns, row); err != nil {
			r.err = fmt.Errorf("row %d: %w", r.read+int64(rows)+1, err)
			return false
		}
	}
	if rows == 0 {
		return false
	}
	if r.rec, r.err = r.build(columns, rows); r.err != nil {
		return false
	}
	r.read += int64(rows)
	return true
}

func (r *jsonRows) add(columns [][]json.RawMessage, row map[string]json.RawMessage) error {
	for name := range row {
		if _, ok := r.index[name]; !ok {
			return fmt.Errorf("the table has no column %q; it has %s", name, strings.Join(columnNames(r.schema), ", "))
		}
	}
	for i, f := range r.schema.Fields() {
		v, ok := row[f.Name]
		if !ok {
			v = jsonNull
		}
		if !f.Nullable && bytes.Equal(v, jsonNull) {
			return fmt.Errorf("column %q is NOT NULL and has no value", f.Name)
		}
		if !utf8.Valid(v) {
			return fmt.Errorf("column %q: %.100q is not UTF-8", f.Name, v)
		}
		columns[i] = append(columns[i], v)
	}
	return nil
}

func (r *jsonRows) build(columns [][]json.RawMessage, rows int) (arrow.RecordBatch, error) {
	arrays := make([]arrow.Array, len(columns))
	defer func() {
		for _, a := range arrays {
			if a != nil {
				a.Release()
			}
		}
	}()
	for i, f := range r.schema.Fields() {
		a, bad, err := columnOf(f.Type, columns[i])
		if err != nil {
			return nil, fmt.Errorf("row %d: column %q is %s: cannot read %.100s: %w", r.read+int64(bad)+1, f.Name, typeText(f), columns[i][bad], err)
		}
		arrays[i] = a
	}
	return array.NewRecordBatch(r.schema, arrays, int64(rows)), nil
}

// columnOf reads the values of one column; of a bad one it answers the place.
func columnOf(t arrow.DataType, values []json.RawMessage) (column arrow.Array, bad int, err error) {
	b := array.NewBuilder(defaultAllocator, t)
	defer b.Release()
	for i, v := range values {
		if err := appendJSONValue(b, v); err != nil {
			return nil, i, err
		}
	}
	return b.NewArray(), 0, nil
}

// typeText is the column's type as Mink writes it.
func typeText(f arrow.Field) string {
	if t, ok := f.Metadata.GetValue(schema.MetaType); ok {
		return t
	}
	return f.Type.String()
}
