// Package partition turns the values of partition keys into canonical text and
// back, and does the calendar arithmetic of automatic partitions (schedule.go).
//
// A partition is named by the text of its values, one per partition key. Every
// value has exactly one text, so that equal values are one partition in every
// language and protocol:
//
//	BOOLEAN          true, false
//	TINYINT..BIGINT  -7
//	FLOAT, DOUBLE    shortest that reads back: 0.1, 1e+21, NaN, Infinity; -0.0 is 0
//	CHAR, STRING     as is
//	BINARY, BYTES    lower-case hexadecimal
//	DATE             2024-01-31; years of five digits or more and before 0: +12024-.., -0044-..
//	TIME             07:05:00, 07:05:00.25        no zeros at the end of the fraction
//	TIMESTAMP        2024-01-31T07:05:00.25
//	TIMESTAMP_LTZ    2024-01-31T07:05:00.25Z
package partition

import (
	"fmt"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

// MaxValueBytes bounds the text of one value: partitions are metadata.
const MaxValueBytes = 200

// Reader gives the partition values of rows. Immutable: safe for concurrent use.
type Reader struct{ columns []schema.Column }

// NewReader makes the reader of a valid descriptor's partition keys. Without
// partition keys every row has the empty list of values.
func NewReader(d *schema.Descriptor) (*Reader, error) {
	columns, err := keyColumns(d)
	return &Reader{columns: columns}, err
}

func keyColumns(d *schema.Descriptor) ([]schema.Column, error) {
	var columns []schema.Column
	for _, name := range d.PartitionKeys {
		c, ok := d.Schema.Column(name)
		if !ok || c.Type.Nested() || c.Type.Kind == schema.Decimal {
			return nil, fmt.Errorf("%w table %s: partition key %q", mink.ErrInvalid, d.Name(), name)
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// Values is the canonical text of one row's partition values, in key order. It
// looks columns up by name: for many rows use Split.
func (r *Reader) Values(rec arrow.RecordBatch, row int) ([]string, error) {
	values := make([]string, 0, len(r.columns))
	for _, c := range r.columns {
		arr, err := keyenc.KeyColumn(rec, c)
		if err != nil {
			return nil, err
		}
		text, err := valueText(arr, row, c)
		if err != nil {
			return nil, err
		}
		values = append(values, text)
	}
	return values, nil
}

// Group is the rows of one partition, ascending.
type Group struct {
	Values []string
	Rows   []int32
}

// Split groups the rows of a batch by partition, in the order in which the
// partitions first occur. maxGroups bounds how many partitions one batch may
// touch; more is mink.ErrInvalid. A null, absent or mistyped key column is an
// error that names it.
func (r *Reader) Split(rec arrow.RecordBatch, maxGroups int) ([]Group, error) {
	if rec.NumRows() == 0 {
		return nil, nil
	}
	names := make([]string, len(r.columns))
	for i, c := range r.columns {
		names[i] = c.Name
	}
	enc, err := keyenc.New(&schema.Schema{Columns: r.columns}, names)
	if err != nil {
		return nil, err
	}
	if err := enc.Bind(rec); err != nil {
		return nil, err
	}
	var groups []Group
	var key []byte
	index := map[string]int{} // by key bytes: equal values, equal bytes, and cheaper than text
	last, lastKey := -1, ""
	for row := range int(rec.NumRows()) {
		key = enc.Append(key[:0], row)
		at := last
		if last < 0 || string(key) != lastKey {
			known := false
			if at, known = index[string(key)]; !known {
				if len(groups) == maxGroups {
					return nil, fmt.Errorf("%w batch: it touches more than %d partitions; sort or split it", mink.ErrInvalid, maxGroups)
				}
				values, err := r.Values(rec, row)
				if err != nil {
					return nil, err
				}
				at = len(groups)
				index[string(key)] = at
				groups = append(groups, Group{Values: values})
			}
			last, lastKey = at, string(key)
		}
		groups[at].Rows = append(groups[at].Rows, int32(row))
	}
	return groups, nil
}

func valueText(arr arrow.Array, row int, c schema.Column) (string, error) {
	if row < 0 || row >= arr.Len() {
		return "", fmt.Errorf("%w: row %d of %d", mink.ErrInvalid, row, arr.Len())
	}
	text, err := Format(c.Type, value(arr, row))
	if err != nil {
		return "", fmt.Errorf("row %d, partition key %q: %w", row, c.Name, err)
	}
	return text, nil
}

func value(arr arrow.Array, row int) any {
	switch arr := arr.(type) {
	case *array.Boolean:
		return arr.Value(row)
	case *array.Int8:
		return arr.Value(row)
	case *array.Int16:
		return arr.Value(row)
	case *array.Int32:
		return arr.Value(row)
	case *array.Int64:
		return arr.Value(row)
	case *array.Float32:
		return arr.Value(row)
	case *array.Float64:
		return arr.Value(row)
	case *array.String:
		return arr.Value(row)
	case *array.Binary:
		return arr.Value(row)
	case *array.FixedSizeBinary:
		return arr.Value(row)
	case *array.Date32:
		return arr.Value(row)
	case *array.Time32:
		return arr.Value(row)
	case *array.Time64:
		return arr.Value(row)
	case *array.Timestamp:
		return arr.Value(row)
	}
	return nil
}

// CheckValues refuses a list of values that does not name a partition of the
// table: a wrong count, or text that is not the canonical text of its type.
func CheckValues(d *schema.Descriptor, values []string) error {
	columns, err := keyColumns(d)
	if err != nil {
		return err
	}
	if len(values) != len(columns) {
		return fmt.Errorf("%w partition: %d values, table %s has %d partition keys", mink.ErrInvalid, len(values), d.Name(), len(columns))
	}
	for i, c := range columns {
		if _, err := Parse(c.Type, values[i]); err != nil {
			return fmt.Errorf("partition key %q: %w", c.Name, err)
		}
	}
	return nil
}

// checkText is what holds for the text of every type.
func checkText(t schema.Type, text string) error {
	if len(text) > MaxValueBytes {
		return fmt.Errorf("%w partition value of %s: its text has %d bytes, at most %d are allowed", mink.ErrInvalid, t, len(text), MaxValueBytes)
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("%w partition value %q of %s: it is not UTF-8", mink.ErrInvalid, text, t)
	}
	return nil
}
