package sinktest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// entry is what one offset of a bucket's log holds.
type entry struct {
	skip    bool // no row: the record was quarantined
	change  mink.Change
	key     int64
	content mink.Offset // the row's other values follow from the bucket and this
}

// bucketLog is one bucket's endless log; every look at an offset shows the same.
type bucketLog struct {
	ref     mink.BucketRef
	values  []string    // of the partition
	base    mink.Offset // its first offset that is written to the sink
	changes bool        // a primary-key table's
	dense   bool        // every offset has a row
	entries []entry     // from base on
	state   map[int64]mink.Offset
}

// at answers the entry of an offset >= base.
func (l *bucketLog) at(o mink.Offset) entry {
	for int(o-l.base) >= len(l.entries) {
		l.grow()
	}
	return l.entries[o-l.base]
}

// scramble is a hash: it makes the choices of the log.
func scramble(a, b int64) uint64 {
	x := uint64(a)*0x9e3779b97f4a7c15 ^ uint64(b)*0xc2b2ae3d27d4eb4f
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// keysPerBucket is small, so that keys come again.
const keysPerBucket = 7

func (l *bucketLog) grow() {
	next := l.base + mink.Offset(len(l.entries))
	h := scramble(int64(l.ref.Index)+l.bucketNumber(), int64(next))
	if h%11 == 0 && !l.dense {
		l.entries = append(l.entries, entry{skip: true})
		return
	}
	if !l.changes {
		l.entries = append(l.entries, entry{key: l.bucketNumber()*1_000_000 + int64(next), content: next})
		return
	}
	if l.state == nil {
		l.state = map[int64]mink.Offset{}
	}
	key := l.bucketNumber()*1000 + int64(h>>8%keysPerBucket)
	old, there := l.state[key]
	switch {
	case !there:
		l.entries = append(l.entries, entry{change: mink.ChangeInsert, key: key, content: next})
	case h>>16%3 == 0:
		l.entries = append(l.entries, entry{change: mink.ChangeDelete, key: key, content: old})
		delete(l.state, key)
		return
	case h>>20%2 == 0: // both halves of the update
		l.entries = append(l.entries, entry{change: mink.ChangeUpdateBefore, key: key, content: old})
		next++
		fallthrough
	default:
		l.entries = append(l.entries, entry{change: mink.ChangeUpdateAfter, key: key, content: next})
	}
	l.state[key] = next
}

// bucketNumber differs for all buckets of a table.
func (l *bucketLog) bucketNumber() int64 {
	return int64(l.ref.Partition)*100 + int64(l.ref.Index)
}

// Columns of the kit's own tables, by field id. A table has some of them.
const (
	columnKey    mink.FieldID = 1
	columnRegion mink.FieldID = 2 // the partition's value
	columnNote   mink.FieldID = 3
	columnAmount mink.FieldID = 4
	columnRatio  mink.FieldID = 5
	columnAdded  mink.FieldID = 6
)

// value is a column's value at an entry, as JSON has it for Arrow.
func (l *bucketLog) value(e entry, id mink.FieldID) any {
	h := scramble(e.key, int64(e.content))
	switch id {
	case columnKey:
		return strconv.FormatInt(e.key, 10)
	case columnRegion:
		return l.values[0]
	case columnNote:
		if h%5 == 0 {
			return nil
		}
		return fmt.Sprintf("bucket %s, offset %d, %s", l.ref, e.content, strings.Repeat("ä\"\n", int(h%4)))
	case columnAmount:
		return strconv.Itoa(int(int32(h)))
	case columnRatio:
		return float64(int8(h)) / 4 // exact in FLOAT and DOUBLE
	default:
		return fmt.Sprintf("added, %d", e.content)
	}
}

// column makes a field of the kit's own tables.
func column(id mink.FieldID, name, mtype string, dt arrow.DataType, nullable bool) arrow.Field {
	number := strconv.Itoa(int(id))
	if !nullable {
		mtype += " NOT NULL"
	}
	return arrow.Field{Name: name, Type: dt, Nullable: nullable, Metadata: arrow.NewMetadata(
		[]string{mink.MetaFieldID, mink.MetaParquetFieldID, mink.MetaType}, []string{number, number, mtype})}
}

func plainSchema(partitioned bool) sink.Schema {
	fields := []arrow.Field{column(columnKey, "id", "BIGINT", arrow.PrimitiveTypes.Int64, false)}
	if partitioned {
		fields = append(fields, column(columnRegion, "region", "STRING", arrow.BinaryTypes.String, false))
	}
	fields = append(fields,
		column(columnNote, "note", "STRING", arrow.BinaryTypes.String, true),
		column(columnAmount, "amount", "INT", arrow.PrimitiveTypes.Int32, true),
		column(columnRatio, "ratio", "FLOAT", arrow.PrimitiveTypes.Float32, true))
	return sink.Schema{ID: 1, Arrow: arrow.NewSchema(fields, nil)}
}

// batch makes rows of a schema; the caller releases it.
func (l *bucketLog) batch(mem memory.Allocator, schema *arrow.Schema, entries []entry) (arrow.RecordBatch, error) {
	rows := make([]map[string]any, len(entries))
	for i, e := range entries {
		rows[i] = map[string]any{}
		for _, f := range schema.Fields() {
			rows[i][f.Name] = l.value(e, fieldID(f))
		}
	}
	return batchOf(mem, schema, rows)
}

// batchOf decodes row by row: the decoder's time grows with the square of a
// text's length when strings have escapes.
func batchOf(mem memory.Allocator, schema *arrow.Schema, rows []map[string]any) (arrow.RecordBatch, error) {
	b := array.NewRecordBuilder(mem, schema)
	defer b.Release()
	for _, r := range rows {
		text, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if err := b.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("the kit's own rows: %w", err)
		}
	}
	return b.NewRecordBatch(), nil
}
