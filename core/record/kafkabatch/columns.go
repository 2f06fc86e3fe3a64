package kafkabatch

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

// The places of the four columns of a Kafka topic:
// key BYTES, value BYTES, headers ARRAY<ROW<key STRING, value BYTES>>,
// timestamp TIMESTAMP_LTZ(3).
const (
	ColKey = iota
	ColValue
	ColHeaders
	ColTimestamp
	colCount
)

// CheckSchema reports whether s has the four columns of a Kafka topic, by type
// and place; names and metadata are not looked at. It wraps mink.ErrInvalid.
func CheckSchema(s *arrow.Schema) error {
	if s.NumFields() != colCount {
		return fmt.Errorf("kafka columns: %w: %d columns, a topic has %d", mink.ErrInvalid, s.NumFields(), colCount)
	}
	for i, want := range []string{"binary", "binary", "list of struct<utf8, binary>", "timestamp[ms]"} {
		if !fits(i, s.Field(i).Type) {
			return fmt.Errorf("kafka columns: %w: column %d is %s, a topic has %s there", mink.ErrInvalid, i, s.Field(i).Type, want)
		}
	}
	return nil
}

func fits(col int, t arrow.DataType) bool {
	switch col {
	case ColHeaders:
		l, ok := t.(*arrow.ListType)
		if !ok {
			return false
		}
		st, ok := l.Elem().(*arrow.StructType)
		return ok && st.NumFields() == 2 && st.Field(0).Type.ID() == arrow.STRING && st.Field(1).Type.ID() == arrow.BINARY
	case ColTimestamp:
		ts, ok := t.(*arrow.TimestampType)
		return ok && ts.Unit == arrow.Millisecond
	default:
		return t.ID() == arrow.BINARY
	}
}

// Columns builds the four columns straight from batches' varints. Not for
// concurrent use.
type Columns struct {
	b       *array.RecordBuilder
	key     *array.BinaryBuilder
	value   *array.BinaryBuilder
	headers *array.ListBuilder
	header  *array.StructBuilder
	hkey    *array.StringBuilder
	hvalue  *array.BinaryBuilder
	ts      *array.TimestampBuilder
}

// NewColumns makes a builder for a schema that CheckSchema accepts.
func NewColumns(mem memory.Allocator, s *arrow.Schema) (*Columns, error) {
	if err := CheckSchema(s); err != nil {
		return nil, err
	}
	b := array.NewRecordBuilder(mem, s)
	c := &Columns{
		b:       b,
		key:     b.Field(ColKey).(*array.BinaryBuilder),
		value:   b.Field(ColValue).(*array.BinaryBuilder),
		headers: b.Field(ColHeaders).(*array.ListBuilder),
		ts:      b.Field(ColTimestamp).(*array.TimestampBuilder),
	}
	c.header = c.headers.ValueBuilder().(*array.StructBuilder)
	c.hkey = c.header.FieldBuilder(0).(*array.StringBuilder)
	c.hvalue = c.header.FieldBuilder(1).(*array.BinaryBuilder)
	return c, nil
}

// Release frees what was not taken.
func (c *Columns) Release() { c.b.Release() }

// Rows is how many rows are built.
func (c *Columns) Rows() int { return c.key.Len() }

// Take answers the rows built so far and starts over.
func (c *Columns) Take() arrow.RecordBatch { return c.b.NewRecordBatch() }

// Append adds the rows of v: all of them, or none and an error (*record.BatchError).
// There is one per offset up to the last record's, an empty one where a cleaning has
// taken the record (Missing). A header key that is not UTF-8 gets U+FFFD for its bad
// bytes: the column is a STRING.
func (c *Columns) Append(v View, d *Decoder) error {
	records, err := d.Records(v)
	if err != nil {
		return err
	}
	size, err := measure(v, records)
	if err != nil {
		return err
	}
	if held := max(c.key.DataLen(), c.value.DataLen(), c.hkey.DataLen(), c.hvalue.DataLen()); held+len(records) > math.MaxInt32 {
		return record.Errorf(record.KindTooLarge, "a column holds at most 2 GiB: take the %d rows first", c.Rows())
	}
	n := size.rows
	c.key.Reserve(n)
	c.key.ReserveData(size.keys)
	c.value.Reserve(n)
	c.value.ReserveData(size.values)
	c.headers.Reserve(n)
	c.ts.Reserve(n)
	r := NewReader(v, records)
	next := int32(0)
	for rec := (Record{}); r.Next(&rec); next = rec.Delta + 1 {
		for ; next < rec.Delta; next++ {
			for _, col := range c.b.Fields() {
				col.AppendEmptyValue()
			}
		}
		appendBytes(c.key, rec.Key)
		appendBytes(c.value, rec.Value)
		c.headers.Append(true)
		for h := rec.Headers(); ; {
			key, value, ok := h.Next()
			if !ok {
				break
			}
			c.header.Append(true)
			if utf8.Valid(key) {
				c.hkey.BinaryBuilder.Append(key)
			} else {
				c.hkey.Append(strings.ToValidUTF8(string(key), "\uFFFD"))
			}
			appendBytes(c.hvalue, value)
		}
		c.ts.UnsafeAppend(arrow.Timestamp(rec.Timestamp))
	}
	return r.Err()
}

func appendBytes(b *array.BinaryBuilder, v []byte) {
	if v == nil {
		b.AppendNull()
		return
	}
	b.Append(v)
}

type sizes struct{ rows, keys, values int }

// measure walks all framing first, so that a bad record leaves no half rows.
func measure(v View, records []byte) (sizes, error) {
	var s sizes
	if v.LastOffsetDelta() < v.Count()-1 {
		return s, record.Errorf(record.KindInvalidRecord, "%d records with last offset delta %d", v.Count(), v.LastOffsetDelta())
	}
	r := NewReader(v, records)
	for rec := (Record{}); r.Next(&rec); {
		s.rows = int(rec.Delta) + 1
		s.keys += len(rec.Key)
		s.values += len(rec.Value)
	}
	return s, r.Err()
}

// DeltaRun is offsets from base + First to base + Last.
type DeltaRun struct{ First, Last int32 }

// Missing answers the offsets of v that a cleaning has left without a record, in order.
func Missing(v View, d *Decoder) ([]DeltaRun, error) {
	if v.LastOffsetDelta() == v.Count()-1 {
		return nil, nil
	}
	records, err := d.Records(v)
	if err != nil {
		return nil, err
	}
	var out []DeltaRun
	next := int32(0)
	r := NewReader(v, records)
	for rec := (Record{}); r.Next(&rec); next = rec.Delta + 1 {
		if rec.Delta > next {
			out = append(out, DeltaRun{next, rec.Delta - 1})
		}
	}
	if last := v.LastOffsetDelta(); next <= last {
		out = append(out, DeltaRun{next, last})
	}
	return out, r.Err()
}

// Check walks all records of v, decompressed, as a reader would. nil: Append,
// Find and every Kafka consumer can read them.
func Check(v View, d *Decoder) error {
	records, err := d.Records(v)
	if err != nil {
		return err
	}
	_, err = measure(v, records)
	return err
}

// Find answers the first record at or after offset delta from whose timestamp
// is at least ms.
func Find(v View, d *Decoder, from int32, ms int64) (delta int32, ts int64, ok bool, err error) {
	records, err := d.Records(v)
	if err != nil {
		return 0, 0, false, err
	}
	r := NewReader(v, records)
	for rec := (Record{}); r.Next(&rec); {
		if rec.Delta >= from && rec.Timestamp >= ms {
			return rec.Delta, rec.Timestamp, true, nil
		}
	}
	return 0, 0, false, r.Err()
}

// Latest answers the first record at or after offset delta from that has the
// largest timestamp.
func Latest(v View, d *Decoder, from int32) (delta int32, ts int64, ok bool, err error) {
	records, err := d.Records(v)
	if err != nil {
		return 0, 0, false, err
	}
	r := NewReader(v, records)
	for rec := (Record{}); r.Next(&rec); {
		if rec.Delta >= from && (!ok || rec.Timestamp > ts) {
			delta, ts, ok = rec.Delta, rec.Timestamp, true
		}
	}
	return delta, ts, ok, r.Err()
}
