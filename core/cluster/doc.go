// Package cluster is the replicated state machine of the metadata: nodes and
// their write-ahead logs, streams and objects, the catalog, leadership, writer
// ids, snapshots of primary-key buckets, the offsets of producers and of consumer groups.
//
//	log entry (index, time, Batch) --Apply--> State' + one Result per command
//	          State --EncodeSnapshot--> records --DecodeSnapshot--> State
//
// It is pure: the same entries give the same state and the same snapshot bytes
// on every node, whatever the order of maps or the time of day. A State is
// immutable: readers keep one for as long as a decision takes while newer ones
// are made beside it, sharing all that did not change.
//
// A command is accepted or refused as a whole: a Result whose code is not OK
// means that the command changed nothing. Commands that speak of many consumer
// groups are decided group by group (Result.parts). Apply returns an error only when this
// binary must not go on: a command it does not know, or a log that is not the
// continuation of the state.
//
// What it refuses: anything from a sealed node epoch, a stream's end moving back,
// a gap that nobody accepted, a second recovery, a leadership taken from a node
// that may still append, a group's offsets from a node that does not coordinate it. DESIGN.md has the rules with their reasons.
package cluster
