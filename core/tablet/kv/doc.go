// Package kv is the tablet of a bucket of a primary-key table: the latest row of
// each key in a Pebble store on the node's disk, and a changelog in the bucket's
// log. The log is the truth; the store is a working copy that is built from it.
//
//	Put -> turn { writer window, old rows, merge, one changelog batch, append } -> *Pending
//	flusher: batch durable -> one store batch { rows, flushed offset, row count } -> answer
//	Lookup, View, Count: the store only
//
// Guarantees. A put is answered when its rows can be looked up, and its changes
// are seen in the log at the same moment. Only what is durable enters a store. A
// put is applied whole or not at all. A batch that an idempotent writer sends
// again is merged once.
//
// DESIGN.md has the picture, the order of locks and the crashes.
package kv
