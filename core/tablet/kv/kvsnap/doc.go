// Package kvsnap carries the stores of primary-key buckets to the object store and
// back. It knows files, not what is in them.
//
//	a checkpoint's directory            objects                        metadata
//	  000012.sst ---- not retained ---> kv/.../<content>-...-7  --+
//	  000009.sst ---- retained -------------------------- reused --+--> CommitKVSnapshot
//	  MANIFEST-..., OPTIONS-... -- head -> kv/.../<content>-...-8 -+
//
// Upload makes a snapshot of a directory that nobody changes: table files are
// objects of their own, uploaded once and shared by later snapshots; the other files,
// which change with each checkpoint, travel together in the head. Commit puts it into
// the metadata. Restore makes a directory of a snapshot again.
//
// It promises: a snapshot that was committed has all its files on the store until
// the metadata call them destroyed; a restored directory holds the bytes that were
// uploaded, or is not there; memory is bounded by Config, whatever the files' size.
// An upload or a commit that fails deletes nothing: what may have been named stays.
// Files that no commit named are the sweep's, once the leadership is over.
//
// DESIGN.md has the crash table.
package kvsnap
