package server

import (
	"time"

	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/ops"
	"github.com/mink-project/mink/core/stream"
)

// figures are the node's numbers for /metrics.
func (p *parts) figures() []ops.Figure {
	if p.node == nil {
		return nil
	}
	s := p.node.Stats()
	return p.figuresOf(s, p.loopsOf(s))
}

func (p *parts) figuresOf(s node.Stats, loops []loop.Status) []ops.Figure {
	ready := 0.0
	if s.Ready {
		ready = 1
	}
	quarantined, refused := p.badBatches(s)
	out := []ops.Figure{
		{Name: "mink_node_ready", Help: "1 when the node serves.", Value: ready},
		{Name: "mink_node_epoch", Help: "Node epoch; 0 while not registered.", Value: float64(s.Epoch)},
		{Name: "mink_metadata_applied_index", Help: "Metadata index that this node has applied.", Value: float64(s.Applied)},
		{Name: "mink_node_buckets", Help: "Buckets led here.", Value: float64(len(s.Buckets))},
		{Name: "mink_quarantined_batches", Help: "Batches that readers could not decode, and runs of records that are no rows, which they skip, since their buckets were opened here.", Value: quarantined},
		{Name: "mink_source_quarantined_offsets_total", Help: "Offsets that tiering and reads of committed rows skipped, because nobody can decode them; each time they were read.", Counter: true, Value: float64(p.node.Source().Stats().Quarantined)},
		{Name: "mink_refused_batches", Help: "Appended batches that failed their checks, since their buckets were opened here.", Value: refused},
		{Name: "mink_wal_damaged_slots", Help: "Write-ahead objects that keep a log from being recovered, as the coordinator's node sees it.", Value: p.damagedSlots()},
	}
	unpacked := p.inflation.Stats()
	out = append(out,
		ops.Figure{Name: "mink_flight_unpacked_bytes", Help: "What compressed batches of writers take now, unpacked.", Value: float64(unpacked.Taken)},
		ops.Figure{Name: "mink_flight_unpacked_waiting", Help: "Compressed batches that wait to be unpacked.", Value: float64(unpacked.Waiting)})
	out = append(out, engineFigures(s.Engine)...)
	out = append(out, tieringFigures(p.tiering.Stats())...)
	for _, l := range loops {
		out = append(out, loopFigures(l)...)
	}
	for _, st := range p.plugins.Stats() {
		out = append(out, pluginFigures(st)...)
	}
	return append(out, p.lakeFigures()...)
}

func (p *parts) badBatches(s node.Stats) (quarantined, refused float64) {
	for _, b := range s.Buckets {
		if l, err := p.node.Log(b.Bucket); err == nil {
			st := l.Stats()
			quarantined += float64(st.Quarantined)
			refused += float64(st.Refused)
		}
	}
	return quarantined, refused
}

func (p *parts) damagedSlots() (n float64) {
	for _, d := range p.coordinator.Damaged() {
		n += float64(len(d.Slots))
	}
	return n
}

func engineFigures(e stream.Stats) []ops.Figure {
	counter := func(name, help string, v int64) ops.Figure {
		return ops.Figure{Name: name, Help: help, Counter: true, Value: float64(v)}
	}
	gauge := func(name, help string, v int64) ops.Figure {
		return ops.Figure{Name: name, Help: help, Value: float64(v)}
	}
	return []ops.Figure{
		counter("mink_wal_objects_total", "Write-ahead objects acknowledged by the store.", e.Bulks),
		counter("mink_wal_bytes_total", "Bytes of write-ahead objects.", e.BulkBytes),
		gauge("mink_wal_in_flight_objects", "Write-ahead objects on their way to the store.", int64(e.InFlight)),
		counter("mink_stream_objects_total", "Stream objects written: uploads and merges.", e.Puts),
		counter("mink_stream_bytes_total", "Bytes of stream objects written.", e.PutBytes),
		counter("mink_stream_reads_total", "Ranged reads from the store.", e.Gets),
		counter("mink_stream_read_bytes_total", "Bytes read from the store.", e.GetBytes),
		counter("mink_stream_compactions_total", "Merges committed.", e.Compactions),
		counter("mink_stream_rewrites_total", "Buckets of compacted topics cleaned.", e.Rewrites),
		counter("mink_stream_objects_deleted_total", "Destroyed objects deleted from the store.", e.ObjectsDeleted),
		counter("mink_wal_slots_deleted_total", "Write-ahead objects deleted from the store.", e.SlotsDeleted),
		counter("mink_stream_orphans_deleted_total", "Objects of ended epochs that nothing named, deleted.", e.OrphansDeleted),
		gauge("mink_log_cache_bytes", "Memory of the newest records.", e.LogCacheBytes),
		gauge("mink_log_cache_pinned_bytes", "Of it: records that are not in stream objects yet.", e.PinnedBytes),
		gauge("mink_block_cache_bytes", "Memory of blocks read back.", e.Blocks.Bytes),
		counter("mink_block_cache_hits_total", "Blocks found in memory.", e.Blocks.Hits),
		counter("mink_block_cache_misses_total", "Blocks fetched from the store.", e.Blocks.Misses),
		gauge("mink_stream_trims_held", "Buckets whose trim waits, for a checkpoint.", int64(e.TrimsHeld)),
	}
}

func loopFigures(l loop.Status) []ops.Figure {
	labels, values := []string{"loop"}, []string{l.Name}
	at := func(t time.Time) float64 { return float64(millis(t)) / 1000 }
	yes := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	return []ops.Figure{
		{Name: "mink_loop_runs_total", Help: "Runs of a periodic job.", Counter: true, Labels: labels, Values: values, Value: float64(l.Runs)},
		{Name: "mink_loop_failures_total", Help: "Failed runs of a periodic job.", Counter: true, Labels: labels, Values: values, Value: float64(l.Failures)},
		{Name: "mink_loop_last_run_seconds", Help: "When a periodic job last ended, seconds since 1970.", Labels: labels, Values: values, Value: at(l.LastEnd)},
		{Name: "mink_loop_next_run_seconds", Help: "When a periodic job runs next, seconds since 1970; a change or a failure makes it sooner.", Labels: labels, Values: values, Value: at(l.Next)},
		{Name: "mink_loop_failing", Help: "1 when the last run of a periodic job failed.", Labels: labels, Values: values, Value: yes(l.LastError != "")},
		{Name: "mink_loop_idle", Help: "1 when the last run found the work to be another node's, such as the lease holder's.", Labels: labels, Values: values, Value: yes(l.Idle)},
		{Name: "mink_loop_interval_seconds", Help: "Interval of a periodic job.", Labels: labels, Values: values, Value: l.Interval.Seconds()},
	}
}

// loopsOf lists every periodic job of the process.
func (p *parts) loopsOf(s node.Stats) []loop.Status {
	out := append([]loop.Status{}, s.Loops...)
	out = append(out, p.coordinator.Loops()...)
	out = append(out, p.tiering.Loops()...)
	return append(out, s.Engine.Loops...)
}
