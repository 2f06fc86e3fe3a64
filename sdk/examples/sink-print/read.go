package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func fieldID(f arrow.Field) mink.FieldID {
	text, _ := f.Metadata.GetValue(mink.MetaFieldID)
	id, _ := strconv.ParseInt(text, 10, 32) // 0 for none
	return mink.FieldID(id)
}

// Read gives the printed rows of a table back, with the types of its newest
// schema.
func (p *printer) Read(ctx context.Context, req sink.ReadRequest, yield func(arrow.RecordBatch, []mink.Change) bool) error {
	f, err := os.Open(p.path)
	if err != nil {
		return fmt.Errorf("%w: %w", sink.ErrUnavailable, err)
	}
	defer func() { _ = f.Close() }()
	names := map[mink.FieldID]string{} // of the newest schema
	for _, field := range req.Table.Schema.Arrow.Fields() {
		names[fieldID(field)] = field.Name
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, req.Table.Schema.Arrow)
	defer b.Release()
	renamed := map[mink.SchemaID]map[string]string{} // printed name -> newest name
	var changes []mink.Change
	for lines := bufio.NewReader(f); ctx.Err() == nil; {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // a line without an end was cut off by a kill
			break
		}
		var l struct {
			line
			Row map[string]json.RawMessage `json:"row"`
		}
		if err := json.Unmarshal(text, &l); err != nil { // goes on after a line that was cut off
			continue
		}
		switch {
		case l.ID != req.Table.ID:
			continue
		case l.Columns != nil:
			renamed[l.Schema] = map[string]string{}
			for id, name := range l.Columns {
				renamed[l.Schema][name] = names[id]
			}
			continue
		}
		row := map[string]json.RawMessage{}
		for name, value := range l.Row {
			if now := renamed[l.Schema][name]; now != "" {
				row[now] = value
			}
		}
		again, err := json.Marshal(row)
		if err == nil {
			err = b.UnmarshalJSON(again)
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %w", sink.ErrCorrupt, p.path, err)
		}
		if len(req.Table.PrimaryKey) > 0 {
			changes = append(changes, kind(l.Change))
		}
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	yield(batch, changes)
	return ctx.Err()
}

func kind(text string) mink.Change {
	for c := mink.ChangeAppend; c <= mink.ChangeDelete; c++ {
		if c.String() == text {
			return c
		}
	}
	return mink.ChangeAppend
}
