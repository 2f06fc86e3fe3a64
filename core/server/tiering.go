package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/ops"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tiering"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// buildTiering makes what writes tables to their sinks while this node holds the lease.
func (p *parts) buildTiering() (err error) {
	c := tiering.Default()
	c.Workers, c.RoundBytes = int(p.cfg.TieringWorkers), int64(p.cfg.TieringRoundBytes)
	c.Silence = time.Duration(p.cfg.TieringTimeout)
	c.Settle = max(c.Settle, 4*time.Duration(p.cfg.LeaseTTL))
	if p.warehouse != nil {
		scratch := filepath.Join(p.cfg.DataDir, "tiering")
		if err := errors.Join(os.RemoveAll(scratch), os.MkdirAll(scratch, 0o750)); err != nil {
			return fmt.Errorf("data_dir: the directory for changes that are sorted for the lake: %w", err)
		}
		p.sinks[cluster.LakeSink] = lake.NewSink(p.warehouse, lake.SinkConfig{ScratchDir: scratch, KeepSnapshots: 2 * time.Duration(p.cfg.ReadGrace), Gone: func(id mink.PartitionID) bool { return p.node.View().PartitionGone(id) }, SortBytes: max(4<<20, min(64<<20, memoryLimit()/40)), Logger: p.logger})
	}
	if p.given.WrapSink != nil {
		for name, s := range p.sinks {
			p.sinks[name] = p.given.WrapSink(name, s)
		}
	}
	maps.Copy(p.sinks, p.given.Sinks)
	p.tiering, err = tiering.New(c, tiering.Deps{Meta: tieringMeta{p}, Source: tieringSource{p}, Sinks: p.sinks, Logger: p.logger})
	return err
}

// tieringMeta is the metadata log as tiering asks for it.
type tieringMeta struct{ parts *parts }

var _ tiering.Meta = tieringMeta{}

func (m tieringMeta) View() tiering.View { return tiering.ViewOf(m.parts.node.View()) }

func (m tieringMeta) Lease() (mink.LeaseEpoch, bool) { return m.parts.coordinator.Lease() }

func (m tieringMeta) CommitRound(ctx context.Context, r tiering.Round) error {
	c := cluster.TieredRound{
		Table: r.Target.Table, Sink: r.Target.Sink, Lease: r.Lease, Round: string(r.Round), BaseRound: string(r.Base), Snapshot: r.Snapshot,
	}
	for b, end := range r.Ends {
		c.Ends = append(c.Ends, cluster.BucketOffset{Bucket: b, Offset: end})
	}
	return m.parts.node.CommitTieredRound(ctx, c)
}

func (m tieringMeta) ForgetDropped(ctx context.Context, t tiering.Target, lease mink.LeaseEpoch) error {
	return m.parts.node.ForgetDroppedSink(ctx, t.Table, t.Sink, lease)
}

// tieringSource is the node's Source as tiering asks for it.
type tieringSource struct{ parts *parts }

var _ tiering.Source = tieringSource{}

func (s tieringSource) columns(v tiering.View, b mink.BucketRef) (*cluster.State, *schema.Schema, error) {
	view := tiering.StateOf(v)
	t, ok := view.Table(b.Table)
	if !ok {
		return nil, nil, fmt.Errorf("bucket %s: its table %w", b, mink.ErrNotExist)
	}
	return view, &t.Descriptor.Schema, nil
}

func (s tieringSource) ReadLog(ctx context.Context, v tiering.View, b mink.BucketRef, from, to mink.Offset) iter.Seq2[tiering.Rows, error] {
	return func(yield func(tiering.Rows, error) bool) {
		view, columns, err := s.columns(v, b)
		if err != nil {
			yield(tiering.Rows{}, err)
			return
		}
		for r, err := range s.parts.node.Source().ReadCommitted(ctx, view, b, from, to, columns) {
			if !yield(tiering.Rows{Batch: r.Batch, Changes: r.Changes, Start: r.Start, End: r.End}, err) {
				return
			}
		}
	}
}

func (s tieringSource) ReadKVSnapshot(ctx context.Context, v tiering.View, b mink.BucketRef) (mink.Offset, iter.Seq2[tiering.Rows, error], error) {
	view, columns, err := s.columns(v, b)
	if err != nil {
		return 0, nil, err
	}
	at, rows, err := s.parts.node.Source().ReadKVSnapshot(ctx, view, b, columns)
	if err != nil {
		return 0, nil, err
	}
	return at, func(yield func(tiering.Rows, error) bool) {
		for r, err := range rows {
			if !yield(tiering.Rows{Batch: r.Batch, Changes: r.Changes}, err) {
				return
			}
		}
	}, nil
}

// TierTable implements flight.Backend.
func (b flightBackend) TierTable(ctx context.Context, table mink.TableID, name string, upTo map[mink.BucketRef]mink.Offset) (api.TierReport, error) {
	p := b.parts
	r := api.TierReport{Sink: name}
	if t, ok := p.node.View().Table(table); ok {
		r.Table = t.Descriptor.Name()
	}
	// What was uploaded elsewhere, this node's view shows a moment later.
	err := p.waitView(ctx, func(view *cluster.State) bool { return committedUpTo(view, upTo) })
	if err != nil {
		return r, err
	}
	done, err := p.tiering.Ask(tiering.Target{Table: table, Sink: name})
	if err != nil || upTo == nil {
		return r, err
	}
	select {
	case err := <-done:
		switch {
		case errors.Is(err, tiering.ErrLeaseLost):
			return r, err // the client asks the next holder
		case err != nil:
			r.Error = err.Error()
			return r, nil //nolint:nilerr // the table's trouble is the answer, the call did what it should
		}
	case <-ctx.Done():
		return r, ctx.Err()
	}
	if err := p.waitView(ctx, func(view *cluster.State) bool { return tieredUpTo(view, name, upTo) }); err != nil {
		return r, err
	}
	r.Tiered = true
	if t, ok := p.node.View().Tiering(table, name); ok {
		r.Round, r.Snapshot = t.Round, t.Snapshot
	}
	return r, nil
}

// waitView waits for a view of which ok holds.
func (p *parts) waitView(ctx context.Context, ok func(*cluster.State) bool) error {
	for {
		view := p.node.View()
		if ok(view) {
			return nil
		}
		if err := p.node.WaitApplied(ctx, view.Index()+1); err != nil {
			return err
		}
	}
}

// committedUpTo reports that all of these logs is in stream objects; those of buckets that
// are gone are not waited for.
func committedUpTo(view *cluster.State, upTo map[mink.BucketRef]mink.Offset) bool {
	for b, end := range upTo {
		id, known := view.StreamOf(b)
		if st, there := view.Stream(id); known && there && st.End < end {
			return false
		}
	}
	return true
}

func tieredUpTo(view *cluster.State, name string, upTo map[mink.BucketRef]mink.Offset) bool {
	for b, want := range upTo {
		if _, end, there := view.TieredEnd(name, b); there && end < want {
			return false
		}
	}
	return true
}

// MaintainTable implements flight.Backend.
func (b flightBackend) MaintainTable(ctx context.Context, table mink.TableID, ask api.MaintainTable) (api.MaintenanceReport, error) {
	p := b.parts
	r := api.MaintenanceReport{Sink: ask.Sink, Work: ask.Work}
	work := tiering.Work(ask.Work)
	if work != tiering.WorkCompact && work != tiering.WorkExpire {
		return r, fmt.Errorf("%w maintenance %q: want %s or %s", mink.ErrInvalid, ask.Work, tiering.WorkCompact, tiering.WorkExpire)
	}
	if t, ok := p.node.View().Table(table); ok {
		r.Table = t.Descriptor.Name()
	}
	done, err := p.tiering.AskUpkeep(tiering.Target{Table: table, Sink: ask.Sink}, work)
	if err != nil || !ask.Wait {
		return r, err
	}
	select {
	case result := <-done:
		r.Did = maintenance(result.Done)
		switch {
		case errors.Is(result.Err, tiering.ErrLeaseLost):
			return r, result.Err // the client asks the next holder
		case result.Err != nil:
			r.Error = result.Err.Error()
		default:
			r.Done = true
		}
	case <-ctx.Done():
		return r, ctx.Err()
	}
	return r, nil
}

func maintenance(u tiering.UpkeepDone) api.MaintenanceStats {
	return api.MaintenanceStats{
		Compactions: int64(u.Compactions), DataFiles: int64(u.Compacted.DataFiles), DeleteFiles: int64(u.Compacted.DeleteFiles), Bytes: u.Compacted.Bytes,
		NewFiles: int64(u.Compacted.NewFiles), NewBytes: u.Compacted.NewBytes,
		Snapshots: int64(u.Expired.States), Manifests: int64(u.Expired.Manifests), Removed: int64(u.Expired.Files), RemovedBytes: u.Expired.Bytes,
	}
}

func (p *parts) tieringStats() []api.TieringStats {
	var out []api.TieringStats
	for _, t := range p.tiering.Stats().Targets {
		kept := maintenance(t.Upkeep)
		kept.InARow, kept.LastError = int64(t.UpkeepInARow), t.UpkeepError
		stats := api.TieringStats{
			Table: t.Name, TableID: t.Table, Sink: t.Sink, Retains: t.Retains, Dropping: t.Drop, State: string(t.State), Round: string(t.Round), Step: t.Step, RoundRows: t.RoundRows,
			StartedMs: millis(t.Started), LastRound: string(t.LastRound), TieredMs: millis(t.LastTiered), DueMs: millis(t.Due),
			LagOffsets: t.LagOffsets, LagBytes: t.LagBytes, LagMs: t.LagMs, StalledMs: t.StalledMs,
			Rounds: t.Rounds, Failures: t.Failures, InARow: int64(t.InARow), Rows: t.Rows, Bytes: t.Bytes, LastError: t.LastError,
		}
		if kept != (api.MaintenanceStats{}) {
			stats.Maintenance = &kept
		}
		out = append(out, stats)
	}
	return out
}

// StalledSinks implements flight.Backend.
func (b flightBackend) StalledSinks() []api.StalledSink {
	var out []api.StalledSink
	for _, t := range b.parts.tiering.Stalled() {
		out = append(out, api.StalledSink{
			Table: t.Name, Sink: t.Sink, StalledMs: t.StalledMs, FreshnessMs: t.FreshnessMs, TieredMs: millis(t.LastTiered), LagOffsets: t.LagOffsets,
			InARow: int64(t.InARow), LastError: t.LastError,
		})
	}
	return out
}

// tieringFigures are totals of the process, and for each table at a sink what an alert asks for.
func tieringFigures(s tiering.Stats) []ops.Figure {
	counter := func(name, help string, v int64) ops.Figure {
		return ops.Figure{Name: name, Help: help, Counter: true, Value: float64(v)}
	}
	out := []ops.Figure{
		counter("mink_tiering_rounds_total", "Rounds of tiering committed here.", s.Rounds),
		counter("mink_tiering_failures_total", "Attempts at a round of tiering that failed here.", s.Failures),
		counter("mink_tiering_rows_total", "Rows written to sinks here.", s.Rows),
		counter("mink_tiering_bytes_total", "Bytes of rows written to sinks here, as Arrow in memory.", s.Bytes),
		counter("mink_lake_compactions_total", "Compactions of tables at their sinks that were committed here.", int64(s.Upkeep.Compactions)),
		counter("mink_lake_compacted_files_total", "Data and delete files that compactions replaced here.", int64(s.Upkeep.Compacted.DataFiles+s.Upkeep.Compacted.DeleteFiles)),
		counter("mink_lake_compacted_bytes_total", "Stored bytes of the files that compactions replaced here.", s.Upkeep.Compacted.Bytes),
		counter("mink_lake_compaction_written_bytes_total", "Stored bytes of the files that compactions wrote here.", s.Upkeep.Compacted.NewBytes),
		counter("mink_lake_expired_snapshots_total", "Snapshots of tables that were expired here.", int64(s.Upkeep.Expired.States)),
		counter("mink_lake_removed_files_total", "Files of tables at their sinks that nothing named any more and that were deleted here.", int64(s.Upkeep.Expired.Files)),
		counter("mink_lake_maintenance_failures_total", "Compactions and expiries that failed here.", s.UpkeepFailures),
		{Name: "mink_tiering_busy_workers", Help: "Tables that are being tiered here now.", Value: float64(s.Busy)},
		{Name: "mink_tiering_given_up_rounds", Help: "Rounds that were given up here, for they showed no progress, and whose sink has not returned.", Value: float64(s.GivenUp)},
	}
	states := map[tiering.State]int{}
	for _, t := range s.Targets {
		states[t.State]++
		labels, values := []string{"table", "sink"}, []string{t.Name, t.Sink}
		if t.Drop {
			continue // the name may be another table's
		}
		out = append(out,
			ops.Figure{Name: "mink_tiering_lag_seconds", Help: "Since when a sink lacks rows of a table's log: since the last round of all buckets began. 0 when it has all.", Labels: labels, Values: values, Value: float64(t.LagMs) / 1000},
			ops.Figure{Name: "mink_tiering_stalled_seconds", Help: "How long rows of a table wait that a sink should have: beyond lake_freshness since the last round of all buckets. 0 when none are due.", Labels: labels, Values: values, Value: float64(t.StalledMs) / 1000},
			ops.Figure{Name: "mink_tiering_lag_offsets", Help: "Offsets of a table's log that a sink lacks.", Labels: labels, Values: values, Value: float64(t.LagOffsets)},
			ops.Figure{Name: "mink_tiering_failures_in_a_row", Help: "Failed attempts at a round of a table since the last one that succeeded.", Labels: labels, Values: values, Value: float64(t.InARow)})
	}
	for _, state := range []tiering.State{tiering.StateScheduled, tiering.StatePending, tiering.StateTiering, tiering.StateTiered, tiering.StateFailed} {
		out = append(out, ops.Figure{
			Name: "mink_tiering_tables", Help: "Tables at their sinks by state, on the node that tiers.", Labels: []string{"state"}, Values: []string{string(state)}, Value: float64(states[state]),
		})
	}
	return out
}

// closeSinks ends the sinks, after the workers.
func (p *parts) closeSinks() error {
	var errs []error
	for _, s := range p.sinks {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
