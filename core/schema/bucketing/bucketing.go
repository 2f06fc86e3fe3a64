// Package bucketing finds the bucket of every row of a record batch.
package bucketing

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/mink-project/mink/core/schema"
)

// Bucketer maps rows to buckets.
type Bucketer struct{}

// New makes the bucketer of a table; not for round-robin tables (ErrInvalid).
func New(d *schema.Descriptor) (*Bucketer, error) { panic("not built yet") }

// Buckets fills out[row] for each row of the batch; columns are found by name.
// len(out) must be the number of rows.
func (b *Bucketer) Buckets(rec arrow.RecordBatch, out []int32) error { panic("not built yet") }
