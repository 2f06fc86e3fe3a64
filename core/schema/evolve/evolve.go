// Package evolve brings old record batches to a newer schema by field id.
package evolve

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/mink-project/mink/core/schema"
)

// Remap makes a batch of schema "to" from one of schema "from". The caller
// releases the result and still owns rec.
func Remap(mem memory.Allocator, rec arrow.RecordBatch, from, to *schema.Schema) (arrow.RecordBatch, error) {
	panic("not built yet")
}
