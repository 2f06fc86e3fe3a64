// Package tiering writes the history of tables to their sinks. It runs on every
// node and works on the one that holds the coordinator lease: for each table at
// each sink it decides when a round is due, and a worker makes it.
//
// What has been written is the sink's to say (sink.Table.Recover); the metadata log
// repeats it for the bounds of trims and for readers. Everything else is in memory
// and follows from the view, so that a node that takes over, or one that was killed
// between any two calls, needs nothing of its predecessor. DESIGN.md has the pictures.
package tiering
