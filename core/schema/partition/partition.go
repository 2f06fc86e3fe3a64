// Package partition turns partition-key values to canonical text and back, and
// does the calendar arithmetic of automatic partitions.
package partition

import (
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/mink-project/mink/core/schema"
)

// Reader gives the partition values of rows.
type Reader struct{}

// NewReader makes the reader of a table's partition keys.
func NewReader(d *schema.Descriptor) (*Reader, error) { panic("not built yet") }

// Values is the canonical text of a row's partition values, in key order.
func (r *Reader) Values(rec arrow.RecordBatch, row int) ([]string, error) { panic("not built yet") }

// CheckValues refuses values that are not the canonical text of their types.
func CheckValues(d *schema.Descriptor, values []string) error { panic("not built yet") }

// Schedule is the calendar of a table with automatic partitions.
type Schedule struct{}

// NewSchedule makes the calendar; loc is the zone named by the options.
func NewSchedule(d *schema.Descriptor, loc *time.Location) (*Schedule, error) { panic("not built yet") }
