// Package lake writes and reads Iceberg tables on Mink's object store, and is the
// only door to the Iceberg library.
//
//	io.go         locations of files (URIs) and keys of the store; the library's file interface over the store
//	warehouse.go  tables by name: a catalog and the store
//	commit.go     a change of a table: requirements, updates, a new metadata file, the swap
//	guard.go      what others may do with Mink's tables
//	sink.go, handle.go, round.go, staged.go   rounds of tiering
//	compactplan.go, compact.go                small files and deletes merged, as a round without rows
//	expire.go                                 snapshots that nobody needs, and files that nothing names
//
// Everything of a lake table lies below lake/ in the store. Nothing here reaches a
// key elsewhere, whatever a location says: the stream engine's objects are beside it.
package lake
