package flight

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record/arrowipc"
)

// allocator is of all rows that this package makes; tests count what it gives.
var allocator = memory.DefaultAllocator

// noRows makes a batch of zero rows.
func noRows(s *arrow.Schema) arrow.RecordBatch {
	cols := make([]arrow.Array, s.NumFields())
	for i, f := range s.Fields() {
		cols[i] = array.MakeArrayOfNull(allocator, f.Type, 0)
	}
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	return array.NewRecordBatch(s, cols, 0)
}

// joinBody makes one slice of a cut body; a whole one is not copied.
func joinBody(c arrowipc.Cut) []byte {
	if len(c.Body) == 1 {
		return c.Body[0]
	}
	return bytes.Join(c.Body, nil)
}
