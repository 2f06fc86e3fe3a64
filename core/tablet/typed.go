package tablet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/sdk/mink"
)

// A typed topic keeps Kafka batches verbatim. Their values are JSON objects, which
// are checked against the current schema when they are produced and read under the
// same version ever after; see docs/decisions/015-typed-topics.md.

// valueReader reads the values of one schema version.
type valueReader struct {
	mapper  *jsonrow.Mapper
	readers sync.Pool
}

func (t *valueReader) reader() *jsonrow.Reader {
	if r, ok := t.readers.Get().(*jsonrow.Reader); ok {
		return r
	}
	return t.mapper.NewReader()
}

var (
	errTombstone = errors.New("it has no value (a tombstone), which is no row")
	errMore      = errors.New("it is no row of the table, like records before it in its batch")
)

// checkValue says why a value is no row. The reason is for people, and costs more
// than the check: many are not given.
func checkValue(r *jsonrow.Reader, value []byte, bad *badRecords) error {
	switch {
	case value == nil:
		return errTombstone
	case len(*bad) < badWhys:
		return r.Check(value)
	case !r.Fits(value):
		return errMore
	}
	return nil
}

// jsonRows are the rows of a stored batch, one per record. Records that are no
// rows can only be there when they were let in: the rest is read once.
func (lay *layout) jsonRows(v kafkabatch.View, d *kafkabatch.Decoder) (arrow.RecordBatch, badRecords, error) {
	records, err := d.Records(v)
	if err != nil {
		return nil, nil, err
	}
	rows, err := lay.goodRows(v, records)
	if !errors.Is(err, errNoRow) {
		return rows, nil, err
	}
	return lay.someRows(v, records)
}

var errNoRow = errors.New("a record is no row")

func (lay *layout) goodRows(v kafkabatch.View, records []byte) (arrow.RecordBatch, error) {
	r := lay.json.reader()
	defer lay.json.readers.Put(r)
	b := array.NewRecordBuilder(memory.DefaultAllocator, lay.Schema())
	defer b.Release()
	b.Reserve(int(v.Count()))
	in := kafkabatch.NewReader(v, records)
	for rec := (kafkabatch.Record{}); in.Next(&rec); {
		if rec.Value == nil || r.Append(b, rec.Value) != nil {
			return nil, errNoRow
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return b.NewRecordBatch(), nil
}

// someRows has an empty row in the place of each record that is none.
func (lay *layout) someRows(v kafkabatch.View, records []byte) (arrow.RecordBatch, badRecords, error) {
	r := lay.json.reader()
	defer lay.json.readers.Put(r)
	b := array.NewRecordBuilder(memory.DefaultAllocator, lay.Schema())
	defer b.Release()
	var bad badRecords
	in := kafkabatch.NewReader(v, records)
	for rec := (kafkabatch.Record{}); in.Next(&rec); {
		err := checkValue(r, rec.Value, &bad)
		if err == nil {
			if err := r.Append(b, rec.Value); err != nil {
				return nil, nil, fmt.Errorf("record %d was checked and is not taken: %w", rec.Delta, err)
			}
			continue
		}
		bad.add(rec.Delta, err)
		for _, c := range b.Fields() {
			c.AppendEmptyValue()
		}
	}
	if err := in.Err(); err != nil {
		return nil, nil, err
	}
	return b.NewRecordBatch(), bad, nil
}

// badRecords are runs of records that are no rows, in order, by offset delta.
type badRecords []badRun

type badRun struct {
	first, last int32
	why         string
}

// badWhys bounds the runs of a batch whose reason is kept.
const badWhys = 100

func (b *badRecords) add(delta int32, err error) {
	if n := len(*b); n > 0 && (*b)[n-1].last == delta-1 {
		(*b)[n-1].last = delta
		return
	}
	why := errMore.Error()
	if len(*b) < badWhys {
		why = fmt.Sprintf("record %d: %v", delta, err)
	}
	*b = append(*b, badRun{delta, delta, why})
}

// at places the runs in a batch that begins at base.
func (b badRecords) at(base mink.Offset) []Quarantined {
	if len(b) == 0 {
		return nil
	}
	out := make([]Quarantined, len(b))
	for i, r := range b {
		out[i] = Quarantined{base + mink.Offset(r.first), base + mink.Offset(r.last), record.EncodingKafka, r.why}
	}
	return out
}

// rowBytesMax bounds what the JSON values of one Kafka batch may take as rows, beside
// their text: whoever reads the columns has all of them in memory, and an empty
// object has every column.
const rowBytesMax = 256 << 20

// jsonBytesMax bounds what the rows of one arrow batch may take as JSON.
const jsonBytesMax = 64 << 20

// recordBytes is about what a Kafka record takes beside its value.
const recordBytes = 16

// jsonValues writes rows as the values of Kafka records, in order.
func jsonValues(rows arrow.RecordBatch) func([]byte, int) ([]byte, error) {
	fields, columns, left := rows.Schema().Fields(), rows.Columns(), jsonBytesMax
	return func(dst []byte, i int) ([]byte, error) {
		dst, ok := jsonrow.AppendObjectUpTo(dst, left, fields, columns, i)
		if left -= len(dst) + recordBytes; !ok || left < 0 {
			return dst, record.RecordErrorf(record.KindTooLarge, i, "up to here the rows take more than %d MiB as JSON for Kafka consumers: send fewer at a time", jsonBytesMax>>20)
		}
		return dst, nil
	}
}

// checkJSON makes sure that KafkaBatch can write a batch, whose few bits may be
// gigabytes of JSON.
func (l *Log) checkJSON(lay *layout, a *ArrowAppend) error {
	return l.codecs.withArrow(func(d *arrowipc.Decoder) error {
		rows, err := d.Decode(lay.Layout, a.Metadata, a.Body, nil)
		if err != nil {
			return err
		}
		defer rows.Release()
		value := jsonValues(rows)
		var scratch []byte
		for i := range int(rows.NumRows()) {
			if scratch, err = value(scratch[:0], i); err != nil {
				return err
			}
		}
		return nil
	})
}
