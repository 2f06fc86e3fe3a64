package mergetest

import (
	"slices"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

// BucketKey is the key of a row within its bucket: without the partition's columns.
func BucketKey(d *schema.Descriptor, r Row) ([]byte, error) {
	var types []schema.Type
	var values []any
	for _, name := range d.PrimaryKey {
		if i := d.Schema.Index(name); !slices.Contains(d.PartitionKeys, name) {
			types, values = append(types, d.Schema.Columns[i].Type), append(values, r[i])
		}
	}
	return keyenc.Encode(types, values)
}

// Message is the writes of one put, all of the same columns, as a client sends them:
// the columns' field ids (nil: all of the version), what each row is, and the halves of
// the Arrow message. The rows are those of the schema version.
func Message(s *schema.Schema, writes []Write) (ids []mink.FieldID, changes, metadata, body []byte, err error) {
	columns := writes[0].Columns
	sent := *s
	if columns != nil {
		sent.Columns, ids = nil, []mink.FieldID{}
		for _, c := range columns {
			sent.Columns = append(sent.Columns, s.Columns[c])
			ids = append(ids, s.Columns[c].ID)
		}
	}
	var rows []Row
	for _, w := range writes {
		row := w.Row
		if columns != nil {
			row = nil
			for _, c := range columns {
				row = append(row, w.Row[c])
			}
		}
		rows = append(rows, row)
		kind := byte(mink.ChangeAppend)
		if w.Delete {
			kind = byte(mink.ChangeDelete)
		}
		changes = append(changes, kind)
	}
	rec := Batch(&sent, rows)
	defer rec.Release()
	metadata, body, err = arrowipc.Encode(rec)
	return ids, changes, metadata, body, err
}
