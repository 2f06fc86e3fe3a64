package main

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// asText is the batch with strings in place of BYTES, also inside nested
// columns, on the same buffers. JSON shows bytes that are not UTF-8 as U+FFFD.
func asText(rec arrow.RecordBatch) arrow.RecordBatch {
	fields := make([]arrow.Field, rec.NumCols())
	columns := make([]arrow.Array, rec.NumCols())
	for i, c := range rec.Columns() {
		data := textData(c.Data())
		columns[i] = array.MakeFromData(data)
		data.Release()
		fields[i] = rec.Schema().Field(i)
		fields[i].Type = columns[i].DataType()
	}
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, rec.NumRows())
}

// textData is the caller's to release.
func textData(d arrow.ArrayData) arrow.ArrayData {
	children := make([]arrow.ArrayData, len(d.Children()))
	for i, c := range d.Children() {
		children[i] = textData(c)
		defer children[i].Release()
	}
	return array.NewData(textType(d.DataType()), d.Len(), d.Buffers(), children, d.NullN(), d.Offset())
}

func textType(t arrow.DataType) arrow.DataType {
	as := func(f arrow.Field) arrow.Field { f.Type = textType(f.Type); return f }
	switch t := t.(type) {
	case *arrow.BinaryType:
		return arrow.BinaryTypes.String
	case *arrow.ListType:
		return arrow.ListOfField(as(t.ElemField()))
	case *arrow.MapType:
		return arrow.MapOfFields(as(t.KeyField()), as(t.ItemField()))
	case *arrow.StructType:
		fields := make([]arrow.Field, t.NumFields())
		for i, f := range t.Fields() {
			fields[i] = as(f)
		}
		return arrow.StructOf(fields...)
	}
	return t
}
