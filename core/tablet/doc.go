// Package tablet is one bucket's data. The log tablet (Log) turns appends into
// offsets of one stream, keeps idempotent writers exact, and answers reads,
// timestamps, epochs and retention.
//
//	append -> check (no lock) -> [ writer window -> offsets -> Stream.Append -> state ] -> *Pending
//	                               one mutex, no I/O under it
//
// Everything that a log must remember beside its records (writer windows, epoch
// starts, the last commit time, the largest timestamp, sizes) is a pure function
// of its frames: the state. Folder computes it into checkpoints, OpenLog replays
// it from the last checkpoint, and each append applies the same step, so that a
// new leader answers exactly as the old one would have.
//
// Guarantees. An append is answered when it is durable and visible. Commit
// timestamps never fall. A batch of an idempotent writer is stored once, as long
// as the writer writes within seven days of its last batch, by the commit
// timestamps in the log; it is never refused for what only the server forgot.
// Lock order: Log.mu, then the engine's locks.
package tablet
