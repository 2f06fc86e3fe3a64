package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/record/jsonrow"
)

// jsonRows reads JSON objects as batches.
type jsonRows struct {
	dec    *json.Decoder
	schema *arrow.Schema
	reader *jsonrow.Reader
	object json.RawMessage
	chunk  int
	read   int64 // rows so far
	rec    arrow.RecordBatch
	err    error
}

func newJSONRows(in io.Reader, s *arrow.Schema, chunk int) *jsonRows {
	return &jsonRows{dec: json.NewDecoder(in), schema: s, reader: jsonrow.New(s).NewReader(), chunk: chunk}
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
	b := array.NewRecordBuilder(defaultAllocator, r.schema)
	defer b.Release()
	rows := 0
	for ; rows < r.chunk; rows++ {
		err := r.dec.Decode(&r.object)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			err = fmt.Errorf("want one JSON object a line: %w", err)
		case r.object[0] != '{':
			err = fmt.Errorf("want one JSON object a line: this begins with %.20q", r.object)
		default:
			err = r.reader.Append(b, r.object)
		}
		if err != nil {
			r.err = fmt.Errorf("row %d: %w", r.read+1, err)
			return false
		}
		r.read++
	}
	if rows == 0 {
		return false
	}
	r.rec = b.NewRecordBatch()
	return true
}
