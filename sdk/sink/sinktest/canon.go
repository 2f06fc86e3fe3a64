package sinktest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
)

// canonRow is a row as one text: "field id=value" for each column that is not
// null, ascending. Two rows are the same if their texts are, whatever the width
// of their types and the names and order of their columns.
func canonRow(batch arrow.RecordBatch, row int, columns map[mink.FieldID]int) string {
	ids := make([]mink.FieldID, 0, len(columns))
	for id := range columns {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var b strings.Builder
	for _, id := range ids {
		if c := batch.Column(columns[id]); c.IsValid(row) {
			fmt.Fprintf(&b, "%d=%s|", id, canon(c, row))
		}
	}
	return b.String()
}

// columnsOf finds the columns of want in a schema, by field id or by name for
// fields without one.
func columnsOf(got, want *arrow.Schema) map[mink.FieldID]int {
	columns := map[mink.FieldID]int{}
	for _, w := range want.Fields() {
		id := fieldID(w)
		for i, g := range got.Fields() {
			if gid := fieldID(g); gid == id || gid == 0 && g.Name == w.Name {
				columns[id] = i
			}
		}
	}
	return columns
}

func fieldID(f arrow.Field) mink.FieldID {
	text, _ := f.Metadata.GetValue(mink.MetaFieldID)
	id, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return mink.FieldID(id)
}

// canon is one value as text.
func canon(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch a := a.(type) {
	case *array.Boolean:
		return strconv.FormatBool(a.Value(i))
	case *array.Int8:
		return strconv.FormatInt(int64(a.Value(i)), 10)
	case *array.Int16:
		return strconv.FormatInt(int64(a.Value(i)), 10)
	case *array.Int32:
		return strconv.FormatInt(int64(a.Value(i)), 10)
	case *array.Int64:
		return strconv.FormatInt(a.Value(i), 10)
	case *array.Float32:
		return strconv.FormatFloat(float64(a.Value(i)), 'g', -1, 64)
	case *array.Float64:
		return strconv.FormatFloat(a.Value(i), 'g', -1, 64)
	case *array.Decimal128:
		return fmt.Sprintf("%se-%d", a.Value(i).BigInt(), a.DataType().(*arrow.Decimal128Type).Scale)
	case *array.String:
		if s := a.Value(i); len(s) > 1<<10 {
			return fmt.Sprintf("%d bytes, SHA-256 %x", len(s), sha256.Sum256([]byte(s)))
		}
		return strconv.Quote(a.Value(i))
	case *array.Binary:
		return hex.EncodeToString(a.Value(i))
	case *array.FixedSizeBinary:
		return hex.EncodeToString(a.Value(i))
	case *array.Date32:
		return strconv.Itoa(int(a.Value(i)))
	case *array.Time32:
		return canonTime(int64(a.Value(i)), a.DataType().(*arrow.Time32Type).Unit)
	case *array.Time64:
		return canonTime(int64(a.Value(i)), a.DataType().(*arrow.Time64Type).Unit)
	case *array.Timestamp:
		return canonTime(int64(a.Value(i)), a.DataType().(*arrow.TimestampType).Unit)
	}
	return canonNested(a, i)
}

// canonTime is seconds and nanoseconds, so that no unit overflows.
func canonTime(v int64, unit arrow.TimeUnit) string {
	per := int64(time.Second / unit.Multiplier())
	seconds, rest := v/per, v%per
	if rest < 0 {
		seconds, rest = seconds-1, rest+per
	}
	return fmt.Sprintf("%d.%09d", seconds, rest*int64(unit.Multiplier()))
}

func canonNested(a arrow.Array, i int) string {
	var parts []string
	switch a := a.(type) {
	case *array.Map: // before List, which it embeds
		start, end := a.ValueOffsets(i)
		for j := int(start); j < int(end); j++ {
			parts = append(parts, canon(a.Keys(), j)+":"+canon(a.Items(), j))
		}
		slices.Sort(parts)
	case *array.List:
		start, end := a.ValueOffsets(i)
		for j := int(start); j < int(end); j++ {
			parts = append(parts, canon(a.ListValues(), j))
		}
	case *array.Struct:
		for j := range a.NumField() {
			parts = append(parts, canon(a.Field(j), i))
		}
	default:
		return "a column of Arrow type " + a.DataType().String() + ", which no Mink type has"
	}
	return "(" + strings.Join(parts, ",") + ")"
}
