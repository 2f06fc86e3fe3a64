package tiering

import (
	"cmp"
	"slices"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// State is where a target is.
type State string

// The states. Dropped tables that are to be removed at the sink have them too.
const (
	StateScheduled State = "scheduled" // rows wait for their time
	StatePending   State = "pending"   // due, waits for a worker
	StateTiering   State = "tiering"   // a worker is at it
	StateTiered    State = "tiered"    // the sink has everything
	StateFailed    State = "failed"    // the last attempt failed; the next comes
)

// Stats is what the holder of the lease knows.
type Stats struct {
	Leading bool // this node holds the lease; else there are no targets
	Workers int
	Busy    int // workers with a round
	GivenUp int // rounds that were given up and have not returned
	// Totals of this process.
	Rounds, Failures, Rows, Bytes int64
	Upkeep                        UpkeepDone
	UpkeepFailures                int64
	Targets                       []TargetStats // by table and sink
}

// TargetStats is one target. Counts are since this node took the lease.
type TargetStats struct {
	Table mink.TableID
	Sink  string
	Name  string // database.table; of a dropped table too
	Drop  bool   // the table is dropped, and is to be removed at the sink
	// Retains: the log keeps what the sink has not.
	Retains bool

	State      State
	Round      sink.RoundID // of the round under way; "": none yet
	Step       string       // what the worker does
	RoundRows  int64        // rows that it wrote so far
	Started    time.Time    // of the attempt under way
	LastRound  sink.RoundID // the last one recorded, here or before
	LastTiered time.Time    // when the last round of all buckets began; or was recorded, before this reign
	LastError  string       // of the last attempt; "" when it succeeded
	InARow     int          // failures
	Due        time.Time    // when the next attempt is due, zero: when there are rows

	LagOffsets int64 // that the sink has not
	LagBytes   int64 // an estimate
	LagMs      int64 // since the last round of all buckets began, or before the first since rows were seen; 0 when the sink has everything
	// StalledMs is how long rows wait that the sink should have: since the freshness was over
	// after the last round of all buckets, or since rows were seen, whichever is later. A round
	// under way counts; 0 when none are due.
	StalledMs   int64
	FreshnessMs int64

	Rounds, Failures, Rows, Bytes int64

	Upkeep       UpkeepDone
	UpkeepError  string    // of the last maintenance; "" when it succeeded
	UpkeepInARow int       // failures
	Expired      time.Time // when snapshots were last looked at in this reign; zero: not yet
}

// Stats answers the current state.
func (t *Tiering) Stats() Stats {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{
		Leading: t.mu.lease != 0, Workers: t.cfg.Workers, Rounds: t.mu.totals.Rounds, Failures: t.mu.totals.Failures,
		Rows: t.mu.totals.Rows, Bytes: t.mu.totals.Bytes, Upkeep: t.mu.totals.UpkeepDone, UpkeepFailures: t.mu.totals.UpkeepFailures,
	}
	for _, e := range t.mu.entries {
		if e.running != nil {
			s.Busy++
			if e.running.gone {
				s.GivenUp++
			}
		}
		if s.Leading {
			s.Targets = append(s.Targets, e.stats(now))
		}
	}
	slices.SortFunc(s.Targets, func(a, b TargetStats) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Sink, b.Sink))
	})
	return s
}

// stallMin is how long a target's rows wait beyond their time, at least, before it counts as
// stalled: a round takes a while.
const stallMin = time.Minute

// Stalled are the targets that lack rows for longer than twice their freshness, and for a
// minute more than it, on the holder of the lease.
func (t *Tiering) Stalled() []TargetStats {
	return slices.DeleteFunc(t.Stats().Targets, func(s TargetStats) bool {
		return s.Drop || s.StalledMs <= max(s.FreshnessMs, stallMin.Milliseconds())
	})
}

func (e *entry) stats(now time.Time) TargetStats {
	s := TargetStats{
		Table: e.target.Table, Sink: e.target.Sink, Name: e.job.Name, Drop: e.dropped != nil, Retains: e.job.Retains, State: e.state,
		LastRound: cmp.Or(e.lastRound, e.job.Round), LastTiered: e.full, LastError: e.lastError, InARow: e.failures,
		Rounds: e.totals.Rounds, Failures: e.totals.Failures, Rows: e.totals.Rows, Bytes: e.totals.Bytes,
		Upkeep: e.upkeep.done, UpkeepError: e.upkeep.last, UpkeepInARow: e.upkeep.failures,
	}
	if !e.upkeep.since { // an expiry came after the last round
		s.Expired = e.upkeep.expired
	}
	if e.dropped != nil {
		s.Name = e.dropped.Spec.FullName()
	}
	s.LagOffsets, s.LagBytes = e.job.untiered()
	switch {
	case e.state == StateFailed:
		s.Due = e.retry
	case e.dropped != nil: // its rows have no time any more
	case s.LagOffsets > 0 && e.full.IsZero():
		s.Due = e.lags
	case s.LagOffsets > 0:
		s.Due = e.full.Add(e.job.Freshness)
	}
	if since := e.full; s.LagOffsets > 0 && !e.lags.IsZero() {
		if since.IsZero() {
			since = e.lags
		}
		s.LagMs = max(0, now.Sub(since).Milliseconds())
		due := e.full.Add(e.job.Freshness)
		if due.Before(e.lags) {
			due = e.lags
		}
		s.StalledMs = max(0, now.Sub(due).Milliseconds())
	}
	s.FreshnessMs = e.job.Freshness.Milliseconds()
	if r := e.running; r != nil {
		s.Started = r.started
		if a := r.attempt; a != nil {
			a.progress.Lock()
			s.Round, s.Step, s.RoundRows = a.progress.round, a.progress.step, a.progress.rows
			a.progress.Unlock()
		}
	}
	return s
}
