package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/record/jsonrow"
)

// csvRows reads CSV with a header line as batches of the table's columns.
// Arrow's own reader names neither row nor column of a bad value and panics on
// nested types.
type csvRows struct {
	in     *csv.Reader
	schema *arrow.Schema
	values *jsonrow.Reader
	at     []int // position in a record of each column, -1: not there
	chunk  int
	rec    arrow.RecordBatch
	err    error
}

func newCSVRows(in io.Reader, s *arrow.Schema, chunk int) (*csvRows, error) {
	r := &csvRows{in: csv.NewReader(in), schema: s, values: jsonrow.New(s).NewReader(), chunk: chunk}
	r.in.ReuseRecord = true
	header, err := r.in.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("no header line")
	}
	if err != nil {
		return nil, err
	}
	header = slices.Clone(header)
	header[0] = strings.TrimPrefix(header[0], "\ufeff")
	for i, name := range header {
		if !s.HasField(name) {
			return nil, fmt.Errorf("header: the table has no column %q; it has %s", name, strings.Join(columnNames(s), ", "))
		}
		if slices.Contains(header[:i], name) {
			return nil, fmt.Errorf("header: column %q occurs twice", name)
		}
	}
	for _, f := range s.Fields() {
		at := slices.Index(header, f.Name)
		if at < 0 && !f.Nullable {
			return nil, fmt.Errorf("header: column %q is NOT NULL and absent", f.Name)
		}
		r.at = append(r.at, at)
	}
	return r, nil
}

func columnNames(s *arrow.Schema) []string {
	names := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		names[i] = f.Name
	}
	return names
}

func (r *csvRows) Err() error                     { return r.err }
func (r *csvRows) RecordBatch() arrow.RecordBatch { return r.rec }

// Release frees the current batch.
func (r *csvRows) Release() {
	if r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
}

// Next reads up to a chunk of rows. A bad row ends it: the rows of its batch
// are not answered.
func (r *csvRows) Next() bool {
	r.Release()
	if r.err != nil {
		return false
	}
	b := array.NewRecordBuilder(defaultAllocator, r.schema)
	defer b.Release()
	rows := 0
	for ; rows < r.chunk; rows++ {
		record, err := r.in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = r.add(b, record)
		}
		if err != nil {
			r.err = err
			return false
		}
	}
	if rows == 0 {
		return false
	}
	r.rec = b.NewRecordBatch()
	return true
}

func (r *csvRows) add(b *array.RecordBuilder, record []string) error {
	for i, f := range r.schema.Fields() {
		value := ""
		if r.at[i] >= 0 {
			value = record[r.at[i]]
		}
		isText := f.Type.ID() == arrow.STRING
		if value == "" && (f.Nullable || !isText) {
			if !f.Nullable {
				line, _ := r.in.FieldPos(r.at[i])
				return fmt.Errorf("line %d: column %q is NOT NULL and has no value", line, f.Name)
			}
			b.Field(i).AppendNull()
			continue
		}
		if err := r.values.AppendText(b.Field(i), i, value); err != nil {
			line, _ := r.in.FieldPos(r.at[i])
			return fmt.Errorf("line %d: column %q is %s: cannot read %.100q: %w", line, f.Name, r.values.TypeText(i), value, err)
		}
	}
	return nil
}
