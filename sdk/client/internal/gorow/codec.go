// Package gorow maps Go values to rows of Arrow record batches and back: what
// sdk/client's typed rows are made of.
//
// A field is a column when it has a tag `mink:"name"`;
// fields of embedded structs count as the struct's own. A pointer, a sql.Null and
// its kin, a slice and a map can be null; into anything else null is an error.
//
//	BOOLEAN                  bool
//	TINYINT .. BIGINT        every integer type; values that do not fit are errors
//	FLOAT, DOUBLE            float32, float64; no float64 into FLOAT
//	DECIMAL(p, s)            string, decimal128.Num (unscaled)
//	CHAR, STRING             string types
//	BINARY(n), BYTES         []byte, [n]byte
//	DATE                     time.Time: its calendar day; read as midnight UTC
//	TIME                     time.Duration since midnight
//	TIMESTAMP                time.Time: what its clock and calendar show; read in UTC
//	TIMESTAMP_LTZ            time.Time: the instant; read in UTC
//	ARRAY<T>, MAP<K, V>      slices, maps
//	ROW<...>                 structs with tags
//
// Digits of a time that a column does not keep are cut off, towards the past.
package gorow

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/nearest"
)

// member is one tagged field of a struct type.
type member struct {
	column string
	index  []int // reflect path
	where  string
	typ    reflect.Type
}

// membersOf lists a struct type's tagged fields.
func membersOf(t reflect.Type) ([]member, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%w type: %s is no struct with `mink:\"column\"` tags", mink.ErrInvalid, t)
	}
	var out []member
	seen := map[string]string{}
	for _, f := range reflect.VisibleFields(t) {
		name, tagged := f.Tag.Lookup("mink")
		if !tagged || name == "-" {
			continue
		}
		where := t.String() + "." + f.Name
		switch {
		case name == "":
			return nil, fmt.Errorf("%w tag: %s has an empty `mink` tag: name the column, or leave the tag out", mink.ErrInvalid, where)
		case !f.IsExported():
			return nil, fmt.Errorf("%w tag: %s is not exported, so that it cannot be column %q", mink.ErrInvalid, where, name)
		case seen[name] != "":
			return nil, fmt.Errorf("%w tag: %s and %s are both column %q", mink.ErrInvalid, seen[name], where, name)
		case viaPointer(t, f.Index):
			return nil, fmt.Errorf("%w tag: %s is in a struct that is embedded by pointer; embed it by value", mink.ErrInvalid, where)
		}
		seen[name] = where
		out = append(out, member{column: name, index: f.Index, where: where, typ: f.Type})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w type: %s has no field with a `mink:\"column\"` tag", mink.ErrInvalid, t)
	}
	return out, nil
}

func viaPointer(t reflect.Type, index []int) bool {
	for i := range index[:len(index)-1] {
		if t.FieldByIndex(index[:i+1]).Type.Kind() == reflect.Pointer {
			return true
		}
	}
	return false
}

// Codec maps one Go type to columns and back. Immutable.
type Codec struct {
	typ     reflect.Type
	columns []bound
}

// bound is a member and its column.
type bound struct {
	member
	at    int // position in the schema
	value Value
}

// Compile compiles a type for the columns of a schema. Every member must be a
// column of it; columns without a member are left out.
func Compile(t reflect.Type, s *arrow.Schema) (*Codec, error) {
	members := []member{{where: t.String(), typ: t}}
	if Single(t) {
		if s.NumFields() != 1 {
			return nil, fmt.Errorf("%w type: %s stands for one column, wanted are %s: use a struct with `mink` tags", mink.ErrInvalid, t, strings.Join(fieldNames(s), ", "))
		}
		members[0].column = s.Field(0).Name
	} else {
		var err error
		if members, err = membersOf(t); err != nil {
			return nil, err
		}
	}
	c := &Codec{typ: t}
	for _, m := range members {
		at := s.FieldIndices(m.column)
		if len(at) != 1 {
			return nil, noColumn(m, s)
		}
		v, err := ValueOf(m.where, m.typ, s.Field(at[0]))
		if err != nil {
			return nil, err
		}
		c.columns = append(c.columns, bound{m, at[0], v})
	}
	return c, nil
}

// Single reports whether a type is one value, not a row.
func Single(t reflect.Type) bool {
	return t.Kind() != reflect.Struct || t == timeType || t == decimalType || isSQLNull(t)
}

func noColumn(m member, s *arrow.Schema) error {
	names := fieldNames(s)
	if near, ok := nearest.Close(m.column, names); ok {
		return fmt.Errorf("%w tag: %s is column %q, which is not there; did you mean %q?", mink.ErrInvalid, m.where, m.column, near)
	}
	return fmt.Errorf("%w tag: %s is column %q, which is not there; there are %s", mink.ErrInvalid, m.where, m.column, strings.Join(names, ", "))
}

func fieldNames(s *arrow.Schema) []string {
	names := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		names[i] = f.Name
	}
	return names
}

// Encode makes a batch of the schema's columns from values of the Codec's type.
// Columns without a member are null.
func (c *Codec) Encode(mem memory.Allocator, s *arrow.Schema, n int, row func(int) reflect.Value) (arrow.RecordBatch, error) {
	have := make([]bool, s.NumFields())
	for _, b := range c.columns {
		have[b.at] = true
	}
	for i, f := range s.Fields() {
		if !have[i] && !f.Nullable {
			return nil, fmt.Errorf("%w type: column %q is NOT NULL and no field of %s has its tag", mink.ErrInvalid, f.Name, c.typ)
		}
	}
	b := array.NewRecordBuilder(mem, s)
	defer b.Release()
	for i := range n {
		v := row(i)
		for _, m := range c.columns {
			if err := m.value.Append(b.Field(m.at), m.of(v)); err != nil {
				return nil, fmt.Errorf("row %d, %s, column %q: %w", i, m.where, m.column, err)
			}
		}
		for i := range have {
			if !have[i] {
				b.Field(i).AppendNull()
			}
		}
	}
	return b.NewRecordBatch(), nil
}

func (m member) of(v reflect.Value) reflect.Value {
	if m.index == nil {
		return v
	}
	return v.FieldByIndex(m.index)
}

// Decode sets v from a row of a batch of the Codec's schema.
func (c *Codec) Decode(rec arrow.RecordBatch, row int, v reflect.Value) error {
	for _, m := range c.columns {
		if err := m.value.Read(rec.Column(m.at), row, m.of(v)); err != nil {
			return fmt.Errorf("row %d, column %q, %s: %w", row, m.column, m.where, err)
		}
	}
	return nil
}

// Within is the codec of those columns that another schema has.
func (c *Codec) Within(s *arrow.Schema) *Codec {
	out := &Codec{typ: c.typ}
	for _, b := range c.columns {
		if at := s.FieldIndices(b.column); len(at) == 1 {
			b.at = at[0]
			out.columns = append(out.columns, b)
		}
	}
	return out
}

// Names of the columns.
func (c *Codec) Names() []string {
	out := make([]string, len(c.columns))
	for i, b := range c.columns {
		out[i] = b.column
	}
	return out
}
