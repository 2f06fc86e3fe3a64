// Package mergetest has a model of primary-key tables for tests: what rows a table
// has after some writes, and what its changelog shows of them. It is written to be
// plainly right and shares no code with record/merge and record/row. Beside it are
// random tables, rows and writes, and the way from rows to Arrow and back.
//
// A row is a []any with the values of the columns, in the order of the schema:
//
//	BOOLEAN bool   TINYINT int8   SMALLINT int16   INT int32   BIGINT int64   FLOAT float32   DOUBLE float64
//	DECIMAL decimal128.Num   CHAR, STRING string   BINARY, BYTES []byte   DATE arrow.Date32
//	TIME arrow.Time32 (up to 3 digits), arrow.Time64   TIMESTAMP, TIMESTAMP_LTZ arrow.Timestamp
//	ARRAY []any   MAP [][2]any   ROW []any   null nil
package mergetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

// Row is the values of a row.
type Row []any

// Write is an upsert, or a delete, of one row. Values of columns that are not
// targets count for nothing.
type Write struct {
	Row     Row
	Columns []int // the target columns' positions; nil: all of the writer's
	Delete  bool
	// Writer is the older schema version that the writer knows; nil: the newest. Row
	// and Columns are by the newest all the same.
	Writer *schema.Schema
}

// Change is one record of the changelog.
type Change struct {
	Kind mink.Change
	Row  Row
}

// ErrRefused is what Apply answers when a write must fail.
var ErrRefused = errors.New("refused")

// Model is a primary-key table.
type Model struct {
	// NextID gives the numbers of the auto-increment column; nil: 1, 2, 3, ...
	NextID func() int64

	d    *schema.Descriptor
	o    schema.Options
	rows map[string]Row // by key
	auto int
	last int64
}

// New is an empty table of a valid descriptor.
func New(d *schema.Descriptor) *Model {
	o, err := d.ParsedOptions()
	if err != nil {
		panic(err)
	}
	m := &Model{d: d, o: o, rows: map[string]Row{}, auto: -1}
	m.NextID = func() int64 { m.last++; return m.last }
	for i, c := range d.Schema.Columns {
		if c.AutoIncrement {
			m.auto = i
		}
	}
	return m
}

// Key is the key of a row as core/schema/keyenc encodes all primary-key columns.
func (m *Model) Key(r Row) string {
	var types []schema.Type
	var values []any
	for _, name := range m.d.PrimaryKey {
		i := m.d.Schema.Index(name)
		types, values = append(types, m.d.Schema.Columns[i].Type), append(values, r[i])
	}
	key, err := keyenc.Encode(types, values)
	if err != nil {
		panic(err)
	}
	return string(key)
}

// Rows are the table's rows in key order.
func (m *Model) Rows() []Row {
	var rows []Row
	for _, key := range slices.Sorted(maps.Keys(m.rows)) {
		rows = append(rows, m.rows[key])
	}
	return rows
}

// Get is the row of a key, nil when there is none.
func (m *Model) Get(key string) Row { return m.rows[key] }

// Apply does the writes of one batch in order and answers what they put into the
// changelog. When one is refused none has happened.
func (m *Model) Apply(writes []Write) ([]Change, error) {
	before, last := maps.Clone(m.rows), m.last
	var changes []Change
	for i, w := range writes {
		c, err := m.apply(w)
		if err != nil {
			m.rows, m.last = before, last
			return nil, fmt.Errorf("write %d: %w", i, err)
		}
		changes = append(changes, c...)
	}
	return changes, nil
}

func (m *Model) isKey(column int) bool {
	return slices.Contains(m.d.PrimaryKey, m.d.Schema.Columns[column].Name)
}

// targets are the columns whose values count, whether they are all that there are
// (the auto-increment column aside), and whether they are all that the writer knows.
func (m *Model) targets(w Write) (set []bool, all, whole bool) {
	set = make([]bool, len(m.d.Schema.Columns))
	all, whole = true, true
	for i, c := range m.d.Schema.Columns {
		known := w.Writer == nil || w.Writer.IndexByID(c.ID) >= 0
		named := known && (w.Columns == nil || slices.Contains(w.Columns, i))
		set[i] = named && i != m.auto
		all = all && (named || i == m.auto)
		whole = whole && (named || !known || i == m.auto)
	}
	return set, all, whole
}

func (m *Model) apply(w Write) ([]Change, error) {
	set, all, whole := m.targets(w)
	key := m.Key(w.Row)
	old, exists := m.rows[key]
	// Without looking at the old row nobody knows whether there is one.
	blind := m.o.WALImage && m.o.MergeEngine == schema.LastWrite && m.auto < 0 && all
	if w.Delete {
		return m.delete(w, set, whole, blind, key, old)
	}
	if err := m.checkUpsert(w, set, whole); err != nil {
		return nil, err
	}
	var row Row
	switch {
	case !exists || blind:
		row = m.fresh(w, set)
	case m.o.MergeEngine == schema.FirstRow || !slices.ContainsFunc(m.valueColumns(set), func(int) bool { return true }):
		return nil, nil
	default:
		var err error
		if row, err = m.merged(w, set, old); row == nil {
			return nil, err
		}
	}
	m.rows[key] = row
	if !exists && !blind {
		return []Change{{mink.ChangeInsert, row}}, nil
	}
	return m.update(old, row), nil
}

// valueColumns are the columns of the set outside of the key.
func (m *Model) valueColumns(set []bool) (columns []int) {
	for i, in := range set {
		if in && !m.isKey(i) {
			columns = append(columns, i)
		}
	}
	return columns
}

func (m *Model) update(old, row Row) []Change {
	if m.o.WALImage {
		return []Change{{mink.ChangeUpdateAfter, row}}
	}
	return []Change{{mink.ChangeUpdateBefore, old}, {mink.ChangeUpdateAfter, row}}
}

func (m *Model) checkUpsert(w Write, set []bool, whole bool) error {
	if !whole && (m.o.MergeEngine == schema.FirstRow || m.o.MergeEngine == schema.Versioned) {
		return fmt.Errorf("%w: some columns", ErrRefused)
	}
	for i, c := range m.d.Schema.Columns {
		if i == m.auto {
			if w.Row[i] != nil && (w.Columns == nil || slices.Contains(w.Columns, i)) {
				return fmt.Errorf("%w: a number for column %s", ErrRefused, c.Name)
			}
		} else if c.Type.NotNull && (!set[i] || w.Row[i] == nil) {
			return fmt.Errorf("%w: no value for column %s", ErrRefused, c.Name)
		}
	}
	return nil
}

// fresh is the row of a key that had none.
func (m *Model) fresh(w Write, set []bool) Row {
	row := make(Row, len(set))
	for i := range set {
		switch {
		case set[i]:
			row[i] = w.Row[i]
		case i == m.auto:
			id := m.NextID()
			row[i] = id
			if m.d.Schema.Columns[i].Type.Kind == schema.Int {
				row[i] = int32(id)
			}
		}
	}
	return row
}

// merged is the row that takes the place of old, nil when old stays.
func (m *Model) merged(w Write, set []bool, old Row) (Row, error) {
	if m.o.MergeEngine == schema.Versioned {
		i := m.d.Schema.Index(m.o.VersionColumn)
		if was, is := old[i], w.Row[i]; was != nil && (is == nil || Compare(is, was) < 0) {
			return nil, nil
		}
	}
	row := slices.Clone(old)
	for i, c := range m.d.Schema.Columns {
		switch {
		case !set[i]:
		case m.o.MergeEngine == schema.Aggregation && !m.isKey(i):
			var err error
			if row[i], err = Aggregate(c, old[i], w.Row[i]); err != nil {
				return nil, err
			}
		default:
			row[i] = w.Row[i]
		}
	}
	return row, nil
}

func (m *Model) delete(w Write, set []bool, whole, blind bool, key string, old Row) ([]Change, error) {
	switch m.o.DeleteBehavior {
	case schema.DeleteIgnore:
		return nil, nil
	case schema.DeleteDisable:
		return nil, fmt.Errorf("%w: a delete", ErrRefused)
	}
	named := m.valueColumns(set)
	namesAuto := m.auto >= 0 && slices.Contains(w.Columns, m.auto)
	if !whole && (len(named) > 0 || namesAuto) { // of columns
		if namesAuto {
			return nil, fmt.Errorf("%w: a delete of the auto-increment column", ErrRefused)
		}
		for _, i := range named {
			if m.d.Schema.Columns[i].Type.NotNull {
				return nil, fmt.Errorf("%w: a delete of a NOT NULL column", ErrRefused)
			}
		}
		if old == nil {
			return nil, nil
		}
		row, left := slices.Clone(old), false
		for _, i := range named {
			row[i] = nil
		}
		for i, v := range row {
			left = left || v != nil && !m.isKey(i)
		}
		if left {
			m.rows[key] = row
			return m.update(old, row), nil
		}
	}
	if old == nil && !blind {
		return nil, nil
	}
	delete(m.rows, key)
	if !m.o.WALImage {
		return []Change{{mink.ChangeDelete, old}}, nil
	}
	row := make(Row, len(set)) // the key alone
	for i := range row {
		if m.isKey(i) {
			if row[i] = w.Row[i]; old != nil && !blind {
				row[i] = old[i] // equal, but -0.0 and the bits of NaN
			}
		}
	}
	return []Change{{mink.ChangeDelete, row}}, nil
}

// Compare orders two values of one type, neither nil, that has an order: NaN above
// all other numbers.
func Compare(a, b any) int {
	switch a := a.(type) {
	case int8:
		return cmp.Compare(a, b.(int8))
	case int16:
		return cmp.Compare(a, b.(int16))
	case int32:
		return cmp.Compare(a, b.(int32))
	case int64:
		return cmp.Compare(a, b.(int64))
	case float32:
		return Compare(float64(a), float64(b.(float32)))
	case float64:
		b := b.(float64)
		switch {
		case math.IsNaN(a) && math.IsNaN(b):
			return 0
		case math.IsNaN(a):
			return 1
		case math.IsNaN(b):
			return -1
		}
		return cmp.Compare(a, b)
	case decimal128.Num:
		return a.BigInt().Cmp(b.(decimal128.Num).BigInt())
	case string:
		return strings.Compare(a, b.(string))
	case []byte:
		return bytes.Compare(a, b.([]byte))
	case arrow.Date32:
		return cmp.Compare(a, b.(arrow.Date32))
	case arrow.Time32:
		return cmp.Compare(a, b.(arrow.Time32))
	case arrow.Time64:
		return cmp.Compare(a, b.(arrow.Time64))
	case arrow.Timestamp:
		return cmp.Compare(a, b.(arrow.Timestamp))
	}
	panic(fmt.Sprintf("%T has no order", a))
}

// Aggregate is the column's function of the old and the new value.
func Aggregate(c schema.Column, old, in any) (any, error) {
	switch c.Aggregate {
	case schema.AggregateLastValue:
		return in, nil
	case schema.AggregateFirstValue:
		return old, nil
	}
	if old == nil {
		return in, nil
	}
	if in == nil {
		return old, nil
	}
	larger := func() bool { return Compare(in, old) > 0 }
	smaller := func() bool { return Compare(in, old) < 0 }
	switch c.Aggregate {
	case schema.AggregateSum:
		return sum(c.Type, old, in)
	case schema.AggregateProduct:
		return product(c.Type, old, in)
	case schema.AggregateMax:
		if larger() {
			return in, nil
		}
		return old, nil
	case schema.AggregateMin:
		if smaller() {
			return in, nil
		}
		return old, nil
	case schema.AggregateFirstValueIgnoreNulls:
		return old, nil
	case schema.AggregateBoolAnd:
		return old.(bool) && in.(bool), nil
	case schema.AggregateBoolOr:
		return old.(bool) || in.(bool), nil
	}
	return in, nil
}

// whole is an integer or unscaled decimal as a number of any size.
func whole(v any) *big.Int {
	switch v := v.(type) {
	case int8:
		return big.NewInt(int64(v))
	case int16:
		return big.NewInt(int64(v))
	case int32:
		return big.NewInt(int64(v))
	case int64:
		return big.NewInt(v)
	}
	return v.(decimal128.Num).BigInt()
}

// fit brings a number back to the column's type.
func fit(t schema.Type, v *big.Int) (any, error) {
	low, high := big.NewInt(0), big.NewInt(0)
	if t.Kind == schema.Decimal {
		high.Exp(big.NewInt(10), big.NewInt(int64(t.Precision)), nil)
		high.Sub(high, big.NewInt(1))
		low.Neg(high)
	} else {
		width := map[schema.Kind]uint{schema.TinyInt: 8, schema.SmallInt: 16, schema.Int: 32, schema.BigInt: 64}[t.Kind]
		high.Lsh(big.NewInt(1), width-1)
		low.Neg(high)
		high.Sub(high, big.NewInt(1))
	}
	if v.Cmp(low) < 0 || v.Cmp(high) > 0 {
		return nil, fmt.Errorf("%w: overflow", ErrRefused)
	}
	switch t.Kind {
	case schema.TinyInt:
		return int8(v.Int64()), nil
	case schema.SmallInt:
		return int16(v.Int64()), nil
	case schema.Int:
		return int32(v.Int64()), nil
	case schema.BigInt:
		return v.Int64(), nil
	}
	return decimal128.FromBigInt(v), nil
}

func sum(t schema.Type, old, in any) (any, error) {
	switch old := old.(type) {
	case float32:
		return old + in.(float32), nil
	case float64:
		return old + in.(float64), nil
	}
	return fit(t, new(big.Int).Add(whole(old), whole(in)))
}

func product(t schema.Type, old, in any) (any, error) {
	switch old := old.(type) {
	case float32:
		return old * in.(float32), nil
	case float64:
		return old * in.(float64), nil
	}
	v := new(big.Int).Mul(whole(old), whole(in))
	if t.Kind == schema.Decimal && t.Scale > 0 {
		unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(t.Scale)), nil)
		quotient, rest := new(big.Int).QuoRem(v, unit, new(big.Int)) // towards zero
		if rest.Abs(rest).Lsh(rest, 1).Cmp(unit) >= 0 {
			quotient.Add(quotient, big.NewInt(int64(v.Sign())))
		}
		v = quotient
	}
	return fit(t, v)
}
