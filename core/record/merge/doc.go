// Package merge decides what a write to a primary-key table does to the row of its
// key: merge engines, delete behaviour, partial updates and deletes.
//
//	old row (or none) + write (row, target columns, upsert or delete)  ->  Keep | Put row | Delete
//
// Rows are in the form of record/row, under the table's current schema version.
//
//	upsert      no old row             old row
//	last_write  the targets' values    the targets' values; other columns stay
//	first_row   the row                nothing
//	versioned   the row                the row when its version is larger or equal, else nothing
//	aggregation the targets' values    column by column, function of old and new; other columns stay
//
//	delete of   no old row   old row
//	the row     nothing      Delete
//	columns     nothing      the targets become null; Delete when nothing but the key is left
//
// A delete of columns names some beside the key, but not all. What a write does not
// name is null in a new row, whatever stands in the write's row there. An upsert that
// names only the key changes nothing when there is a row. A write that keeps the row
// has no place in the changelog; one that puts a row has, also when the new row equals
// the old one.
//
// Values are compared as keys are: NaN is above +Inf and equal to NaN, -0.0 equals
// 0.0, texts and bytes go byte by byte. As a version, null is below everything.
//
// Integers and decimals that do not fit their column fail the write, FLOAT and DOUBLE
// follow IEEE 754. A product of decimals has the column's scale, a half is rounded away
// from zero. Errors name the column and the values; whose row it was is for the caller
// to say.
package merge
