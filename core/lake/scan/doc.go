// Package scan reads one pinned snapshot of a lake table as rows of Mink's table.
//
//	plan     files of the snapshot, pruned by what of the filter may be pushed down
//	assign   which bucket a file is of: its key says so; rows of other engines' files are
//	         put to buckets by the table's bucket function
//	read     deletes of every kind applied by the library; row groups pruned
//	convert  Iceberg types to Mink's, exactly; columns by field id: absent ones are null
//	filter   the whole filter once more, exactly
//
// What is pushed down is an over-approximation from a whitelist, because the library
// (iceberg-go v0.7.0) panics, fails or is slow on the rest: push.go has the list.
//
// A Snapshot holds metadata only and is safe for concurrent use; each Read has its own
// files and goroutines, which end with its iteration.
package scan
