package client

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/client/internal/gorow"
	"github.com/mink-project/mink/sdk/mink"
)

// Text is a key value as text, for a column of any type, as `mink write --format csv`
// takes it: "7", "2026-01-31", "2026-01-31T07:05:00", BYTES in base64.
type Text string

// keyRow makes a batch of one row of a key's first columns from Go values (as Decode
// has them, or Text). Fewer values than columns make a prefix.
func keyRow(mem memory.Allocator, columns []schema.Column, values []any) (arrow.RecordBatch, error) {
	if len(values) > len(columns) {
		return nil, fmt.Errorf("%w key: %d values for the columns %s", mink.ErrInvalid, len(values), columnNames(columns))
	}
	s := (&schema.Schema{Columns: columns[:len(values)]}).Arrow()
	b := array.NewRecordBuilder(mem, s)
	defer b.Release()
	var texts *jsonrow.Reader
	for i, v := range values {
		if text, ok := v.(Text); ok {
			if texts == nil {
				texts = jsonrow.New(s).NewReader()
			}
			if err := texts.AppendText(b.Field(i), i, string(text)); err != nil {
				return nil, fmt.Errorf("%w key: column %q is %s: cannot read %.100q: %w", mink.ErrInvalid, columns[i].Name, columns[i].Type, string(text), err)
			}
			continue
		}
		if v == nil {
			return nil, fmt.Errorf("%w key: column %q is null, a key has a value in every column", mink.ErrInvalid, columns[i].Name)
		}
		c, err := gorow.ValueOf("the key", reflect.TypeOf(v), s.Field(i))
		if err == nil {
			err = c.Append(b.Field(i), reflect.ValueOf(v))
		}
		if err != nil {
			return nil, fmt.Errorf("key column %q: %w", columns[i].Name, err)
		}
	}
	return b.NewRecordBatch(), nil
}

func columnNames(columns []schema.Column) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return strings.Join(names, ", ")
}

// rowKey is the columns of a row's key within its bucket: the primary key without
// the partition's columns, in its order.
func (v *tableView) rowKey() []schema.Column {
	var out []schema.Column
	for _, name := range v.desc.PrimaryKey {
		if !slices.Contains(v.desc.PartitionKeys, name) {
			c, _ := v.desc.Schema.Column(name)
			out = append(out, c)
		}
	}
	return out
}

// keyJSON is the JSON object of the named columns of a row.
func keyJSON(rec arrow.RecordBatch, names []string, row int) []byte {
	fields := make([]arrow.Field, len(names))
	columns := make([]arrow.Array, len(names))
	for i, name := range names {
		at := rec.Schema().FieldIndices(name)[0]
		fields[i], columns[i] = rec.Schema().Field(at), rec.Column(at)
	}
	return jsonrow.AppendObject(nil, fields, columns, row)
}

func fieldNames(s *arrow.Schema) []string {
	names := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		names[i] = f.Name
	}
	return names
}
