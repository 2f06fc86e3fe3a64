// Package schema holds a table's definition: its types, columns, keys and
// options, how they print, how they map to Arrow, and how they change.
//
// It is pure: no clock, no I/O, no goroutines, and the same input gives the same
// bytes on every machine, because descriptors and changes travel through the
// metadata log and are applied on every node.
//
//	text  "DECIMAL(10,2) NOT NULL"  <-ParseType/String->  Type  <-Arrow/FromArrow->  arrow.Field
//	JSON  descriptor                <-Encode/Decode->     Descriptor -Apply([]Change)-> Descriptor
//
// Every column, and every field nested in one, has a field id that is unique in
// its table and never used again after a drop. Readers match data to columns by
// that id, never by position and never by name.
//
// All errors about bad input wrap mink.ErrInvalid (mink.ErrUnsupported when the
// request is understood but not built) and name the column or option.
//
// Beside it: schema/keyenc (order-preserving key bytes), schema/bucketing (row
// to bucket), schema/partition (partition values and time-unit partitions),
// schema/evolve (old batches to the current schema).
package schema
