package stream

import (
	"sync/atomic"

	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/stream/cache"
)

// Stats is a snapshot of an engine's counters and gauges.
type Stats struct {
	Loops []loop.Status

	Streams         int
	LogCacheBytes   int64  // accounted, open bulk included
	PinnedBytes     int64  // of these: not uploaded yet
	InFlight        int    // WAL slots submitted, not acknowledged
	Bulks           int64  // WAL objects acknowledged
	BulkBytes       int64  // their size
	Puts            int64  // stream objects written
	PutBytes        int64  // their size
	Gets            int64  // ranged reads
	GetBytes        int64  //
	Compactions     int64  // merges committed
	Rewrites        int64  // streams rewritten
	ObjectsDeleted  int64  // destroyed objects
	SlotsDeleted    int64  // WAL slots
	OrphansDeleted  int64  // by the sweep
	TrimsHeld       int    // streams whose trim waits for a checkpoint
	WALTrim         uint64 // committed
	Blocks, Indexes cache.Stats
}

type counters struct {
	bulks, bulkBytes, puts, putBytes, gets, getBytes                    atomic.Int64
	compactions, rewrites, objectsDeleted, slotsDeleted, orphansDeleted atomic.Int64
}

// Stats answers a snapshot; it waits for no I/O.
func (e *Engine) Stats() Stats {
	st := Stats{
		Bulks: e.stats.bulks.Load(), BulkBytes: e.stats.bulkBytes.Load(),
		Puts: e.stats.puts.Load(), PutBytes: e.stats.putBytes.Load(),
		Gets: e.stats.gets.Load(), GetBytes: e.stats.getBytes.Load(),
		Compactions: e.stats.compactions.Load(), Rewrites: e.stats.rewrites.Load(), ObjectsDeleted: e.stats.objectsDeleted.Load(),
		SlotsDeleted: e.stats.slotsDeleted.Load(), OrphansDeleted: e.stats.orphansDeleted.Load(),
		Blocks: e.blocks.Stats(), Indexes: e.indexes.Stats(),
	}
	for _, l := range e.loops {
		st.Loops = append(st.Loops, l.Status())
	}
	e.app.Lock()
	st.Streams = len(e.app.streams)
	st.PinnedBytes = e.app.pinned + e.app.open.mem
	st.LogCacheBytes = e.app.open.mem
	for _, s := range e.app.streams {
		if s.trimTo.Load() > s.start.Load() {
			st.TrimsHeld++
		}
	}
	e.app.Unlock()
	e.queue.Lock()
	st.LogCacheBytes += e.queue.cached
	st.InFlight = e.queue.inflight
	e.queue.Unlock()
	if w, ok := e.deps.Meta.View().WAL(e.deps.WAL.Epoch); ok {
		st.WALTrim = w.Trim
	}
	return st
}
