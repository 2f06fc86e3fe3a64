package tiering

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// bytesOf is what the rows take; a slice counts its own rows only.
func bytesOf(b arrow.RecordBatch) (n int64) {
	for _, c := range b.Columns() {
		n += bytesOfArray(c)
	}
	return n
}

func bytesOfArray(c arrow.Array) int64 {
	n := int64(c.Len())
	switch c := c.(type) {
	case array.BinaryLike:
		return 5*n + int64(len(c.ValueBytes()))
	case array.ListLike: // and Map
		from, to := int64(0), int64(0)
		if n > 0 {
			from, _ = c.ValueOffsets(0)
			_, to = c.ValueOffsets(int(n) - 1)
		}
		if whole := int64(c.ListValues().Len()); whole > 0 {
			return 5*n + bytesOfArray(c.ListValues())*(to-from)/whole
		}
		return 5 * n
	case *array.Struct:
		size := n
		for i := range c.NumField() {
			size += bytesOfArray(c.Field(i))
		}
		return size
	}
	if w, ok := c.DataType().(arrow.FixedWidthDataType); ok {
		return n + n*int64(w.BitWidth())/8
	}
	return n
}
