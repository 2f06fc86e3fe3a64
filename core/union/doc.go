// Package union reads a table as one thing: what is in the lake, and behind it what is
// only in the log yet.
//
//	offset    0 ........ E ............... Until
//	          in the lake  tail of the log        rows that come later
//
// Plan fixes, for all buckets of a read, one lake snapshot and, per bucket, its end E in
// that snapshot; the high watermark at the plan is Until. A read of the plan gives the
// same rows however often it runs, while tiering commits further snapshots.
//
//	log table    rows of the lake, then those of the tail
//	primary key  1. the tail's keys alone -> the offset of each key's last change
//	             2. rows of the lake, without those keys
//	             3. the tail again: rows at those offsets, but of deletes
//
// The keys of 1 are held in memory. Past a limit the read makes several passes, each over
// the keys with one value in the first bits of a hash: memory stays bounded, nothing is
// written to disk, and the lake is read once per pass.
//
// A primary-key bucket that is in no lake snapshot is read from its store instead, as of
// the moment of the read.
package union
