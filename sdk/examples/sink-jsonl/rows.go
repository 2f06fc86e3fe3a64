package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// writeRows writes a line for each row: where it comes from, then its columns, as
// Arrow's JSON has them.
//
//	{"__bucket":"7/1/0","__offset":12,"__change":"+U","id":3,"note":"x"}
func writeRows(w *bufio.Writer, req sink.WriteRequest) error {
	names := make([][]byte, req.Batch.NumCols())
	for c := range names {
		names[c], _ = json.Marshal(req.Batch.ColumnName(c)) // a string: it cannot fail
	}
	for row := range int(req.Batch.NumRows()) {
		_, _ = fmt.Fprintf(w, `{"__bucket":%q`, req.Bucket)
		if !req.Snapshot {
			_, _ = fmt.Fprintf(w, `,"__offset":%d`, req.Start+mink.Offset(row))
		}
		if req.Changes != nil {
			_, _ = fmt.Fprintf(w, `,"__change":%q`, req.Changes[row])
		}
		for c, name := range names {
			value, err := json.Marshal(req.Batch.Column(c).GetOneForMarshal(row))
			if err != nil {
				return fmt.Errorf("column %s, row %d: %w", name, row, err)
			}
			_ = w.WriteByte(',')
			_, _ = w.Write(name)
			_ = w.WriteByte(':')
			_, _ = w.Write(value)
		}
		if _, err := w.WriteString("}\n"); err != nil { // of any write before, too
			return err
		}
	}
	return nil
}

func encodeSchema(s *arrow.Schema) []byte {
	var b bytes.Buffer
	_ = ipc.NewWriter(&b, ipc.WithSchema(s)).Close() // into memory: it cannot fail
	return b.Bytes()
}

// batchRows is how many rows readRound gives at once.
const batchRows = 4096

// readRound gives a round's rows, each with the schema that it was written under.
func readRound(dir string, changes bool, yield func(arrow.RecordBatch, []mink.Change) bool) (more bool, err error) {
	data, err := os.ReadFile(filepath.Join(dir, schemaName))
	if err != nil {
		return false, err
	}
	r, err := ipc.NewReader(bytes.NewReader(data))
	if err != nil {
		return false, fmt.Errorf("%w: %s: %w", sink.ErrCorrupt, dir, err)
	}
	defer r.Release()
	f, err := os.Open(filepath.Join(dir, rowsName))
	if err != nil {
		return false, fmt.Errorf("%w: %w", sink.ErrCorrupt, err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewReaderSize(f, 1<<20)
	b := array.NewRecordBuilder(memory.DefaultAllocator, r.Schema())
	defer b.Release()
	var kinds []mink.Change
	flush := func() bool {
		batch := b.NewRecordBatch()
		defer batch.Release()
		ok := yield(batch, kinds)
		kinds = nil
		return ok
	}
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return flush(), nil
		}
		if err == nil {
			err = b.UnmarshalJSON(line)
		}
		if err == nil && changes {
			kinds, err = appendChange(kinds, line)
		}
		if err != nil {
			return false, fmt.Errorf("%w: %s, line %d of %s: %w", sink.ErrCorrupt, dir, n, rowsName, err)
		}
		if n%batchRows == 0 && !flush() {
			return false, nil
		}
	}
}

func appendChange(kinds []mink.Change, line []byte) ([]mink.Change, error) {
	var own struct {
		Change string `json:"__change"`
	}
	if err := json.Unmarshal(line, &own); err != nil {
		return nil, err
	}
	for c := mink.ChangeInsert; c <= mink.ChangeDelete; c++ {
		if c.String() == own.Change {
			return append(kinds, c), nil
		}
	}
	return nil, fmt.Errorf("%q is no kind of change", own.Change)
}
