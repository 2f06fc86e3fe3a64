// Package wal is a node's write-ahead log on an object store, fenced by the
// store itself.
//
// A log is named by one incarnation of one node (plan.WALID). It is a row of
// slots 0, 1, 2, ...; each slot is an object that is created once and never
// overwritten, because every Put is create-only:
//
//	slot     0    1    2    3    4    5    6    7    8    9
//	       +----+----+----+----+----+    +----+         +----+
//	       |bulk|bulk|bulk|bulk| T  |    |late|         | T  |
//	       +----+----+----+----+----+    +----+         +----+
//	       acknowledged   ^    ^ end E    ^ garbage      ^ far tombstone
//	                      landed, perhaps never acknowledged: in the log all the same
//
// Writer sends bulks, up to Window of them at a time, each in its own slot and
// with the same bytes until it lands. Bulk n is acknowledged when 0..n have all
// landed. When an answer is lost, the writer reads the slot's first 64 bytes:
// its own header means success, anything else that the log has been closed.
//
// Recover closes the log of a dead (or slow, or paused) writer by putting
// tombstones into free slots. The log is the run of bulks before the first
// tombstone. Why this is safe:
//
//   - a slot that holds a tombstone never holds a bulk, so no writer can
//     acknowledge past the first tombstone, however late its Puts land;
//   - what was acknowledged is an unbroken run of bulks from slot 0, so it lies
//     before every tombstone;
//   - two recoverers that finish see the same first tombstone, as long as neither
//     it nor the bulks before it are deleted before the end is on record.
//
// The first tombstone goes Window slots beyond the first free slot, where no
// writer can be yet: it bounds how far a writer that is quicker than the
// recoverer can run on. (If one got there all the same, twice as far ahead.) Then
// free slots are closed in order until one Put wins. That is two Puts as a rule.
// The far tombstone, and Puts that land after the end, are garbage for a sweep.
// The tombstone at E is none: without it a late Put would extend the log.
// plan.SlotDeletable knows, with the end from metadata; a listing cannot tell it,
// because recoverers that were late may have left tombstones below it.
//
// An occupied slot that is neither a bulk of this log nor a tombstone of this
// slot, or a free slot with bulks beyond the window behind it, is corruption
// (CorruptSlotError): recovery stops, and only a person may accept the loss. What
// cannot be told from an end is that somebody deleted the last bulks of a log, up
// to Window of them.
package wal
