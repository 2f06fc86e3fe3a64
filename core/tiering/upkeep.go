package tiering

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Upkeep is what a table allows at a sink that has maintenance (sink.Maintainer).
type Upkeep struct {
	Compact   bool
	StateAge  time.Duration // of superseded states of the target; 0: all stay
	OrphanAge time.Duration // of files that no state names; 0: all stay
	// Pinned are states that readers may have in use: the recorded one, and those that were
	// superseded less than the read grace ago.
	Pinned []string
}

// Work is a kind of maintenance.
type Work string

// The kinds.
const (
	WorkCompact Work = "compact"
	WorkExpire  Work = "expire"
)

// When a target is looked at. Nothing wears out without rounds, so an idle table costs
// nothing.
const (
	compactRounds = 3                // rounds between two looks
	expireEvery   = time.Hour        // if there were rounds
	orphansEvery  = 6 * time.Hour    // the same
	starvedRounds = 16               // rounds after which maintenance comes before the next one
	upkeepPause   = 30 * time.Second // after the first failure; up to an hour
)

// UpkeepDone is what was done on a request, or since this node took the lease.
type UpkeepDone struct {
	Compactions int
	Compacted   sink.Compaction
	Expired     sink.ExpireResponse
}

func (u UpkeepDone) add(next UpkeepDone) UpkeepDone {
	return UpkeepDone{u.Compactions + next.Compactions, u.Compacted.Add(next.Compacted), u.Expired.Add(next.Expired)}
}

// upkeep is the maintenance of one entry. Guarded by Tiering.mu.
type upkeep struct {
	rounds   int  // committed since the last look at what is worn
	more     bool // the last compaction was cut
	since    bool // there were rounds since the last expiry
	expired  time.Time
	orphans  time.Time
	asked    []*keepRequest
	failures int
	retry    time.Time
	pause    *backoff.ExponentialBackOff
	last     string // error; "" when it succeeded
	none     bool   // the sink has none
	done     UpkeepDone
}

// keepRequest waits for maintenance that begins after it.
type keepRequest struct {
	work Work
	had  UpkeepDone
	done chan KeepResult // takes one
}

// KeepResult ends a request.
type KeepResult struct {
	Done UpkeepDone
	Err  error
}

func newUpkeep(now time.Time) upkeep {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval = upkeepPause, time.Hour
	// What was before this node took the lease is not known: the first round has a look.
	return upkeep{rounds: compactRounds - 1, pause: p, expired: now.Add(-expireEvery), orphans: now.Add(-orphansEvery)}
}

// plan is the maintenance of one attempt.
type keepPlan struct {
	compact, compactAll bool
	expire, orphans     bool
}

// due says what maintenance there is to do now.
func (u *upkeep) due(allowed Upkeep, now time.Time) (p keepPlan, due bool) {
	for _, r := range u.asked {
		p.compact, p.compactAll = p.compact || r.work == WorkCompact, p.compactAll || r.work == WorkCompact
		p.expire, p.orphans = p.expire || r.work == WorkExpire, p.orphans || r.work == WorkExpire
	}
	if !u.none && !now.Before(u.retry) {
		p.compact = p.compact || allowed.Compact && (u.rounds >= compactRounds || u.more)
		if u.since && (allowed.StateAge > 0 || allowed.OrphanAge > 0) {
			p.expire = p.expire || now.Sub(u.expired) >= expireEvery
			p.orphans = p.orphans || p.expire && now.Sub(u.orphans) >= orphansEvery
		}
	}
	return p, p.compact || p.expire
}

// starved: rounds come so fast that nothing else has its turn.
func (u *upkeep) starved() bool { return u.rounds >= starvedRounds || len(u.asked) > 0 }

// round notes a committed round.
func (u *upkeep) round() { u.rounds, u.since = u.rounds+1, true }

// finish takes the result of an attempt.
func (u *upkeep) finish(p keepPlan, serves []*keepRequest, done UpkeepDone, none bool, err error, now time.Time) {
	u.done = u.done.add(done)
	for _, r := range serves {
		r.had = r.had.add(done)
	}
	switch {
	case none:
		u.none = true
		err = fmt.Errorf("the sink keeps nothing in shape: %w", mink.ErrUnsupported)
	case err != nil:
		u.failures++
		u.last, u.retry = err.Error(), now.Add(u.pause.NextBackOff())
	default:
		u.failures, u.last, u.retry = 0, "", time.Time{}
		u.pause.Reset()
		if p.compact {
			if u.more = done.Compacted.More; !u.more {
				u.rounds = 0
			}
		}
		if p.expire {
			u.expired, u.since = now, false
		}
		if p.orphans {
			u.orphans = now
		}
	}
	if none {
		u.rounds, u.since = 0, false
	}
	for _, r := range serves {
		if err == nil && r.work == WorkCompact && u.more {
			continue // the rest of it comes
		}
		u.answer(r, err)
	}
}

func (u *upkeep) answer(r *keepRequest, err error) {
	for i, other := range u.asked {
		if other == r {
			u.asked = append(u.asked[:i:i], u.asked[i+1:]...)
			r.done <- KeepResult{r.had, err}
			return
		}
	}
}

func (u *upkeep) answerAll(err error) {
	for _, r := range u.asked {
		r.done <- KeepResult{r.had, err}
	}
	u.asked = nil
}

// AskUpkeep has maintenance done now, whatever the table's options say of its time: of a
// compaction everything that can be merged, of an expiry what is old enough. The channel
// gets one result. mink.ErrUnavailable: this node does not hold the lease, or lost it.
// mink.ErrNotExist; mink.ErrUnsupported: the sink has no maintenance.
func (t *Tiering) AskUpkeep(target Target, work Work) (<-chan KeepResult, error) {
	r, now := &keepRequest{work: work, done: make(chan KeepResult, 1)}, time.Now()
	err := t.withEntry(target, now, func(e *entry) {
		e.upkeep.asked = append(e.upkeep.asked, r)
		e.look = now
	})
	return r.done, err
}

// keep is a worker's maintenance of its target.
func (a *attempt) keep(ctx context.Context, p keepPlan) error {
	if err := a.look(); err != nil || a.out.gone {
		return err
	}
	if a.job.Round == "" {
		return nil // nothing is there yet
	}
	if err := a.open(ctx); err != nil {
		return err
	}
	defer a.close()
	m, ok := sink.MaintainerOf(a.table)
	ok = ok && a.sink.Describe().Delivery == sink.ExactlyOnce
	if a.out.noUpkeep = !ok; !ok {
		return nil
	}
	if _, _, err := a.recover(ctx); err != nil || a.out.gone {
		return err
	}
	if p.compact {
		if err := a.compact(ctx, m, p.compactAll); err != nil || a.out.gone {
			return err
		}
	}
	if p.expire {
		return a.expire(ctx, m, p.orphans)
	}
	return nil
}

// alive shows progress within a step.
func (a *attempt) alive() {
	a.progress.Lock()
	defer a.progress.Unlock()
	a.progress.at = time.Now()
}

// compact makes one round of a compaction, recorded as any other: readers go on from its
// snapshot.
func (a *attempt) compact(ctx context.Context, m sink.Maintainer, all bool) error {
	req := sink.CompactRequest{All: all, BytesMax: a.t.cfg.CompactBytes, Progress: a.alive}
	a.step("plan compaction")
	plan, err := m.PlanCompaction(ctx, req)
	if err != nil {
		return fmt.Errorf("plan a compaction of %s: %w", a.job.Name, err)
	}
	if plan.Empty() {
		return nil
	}
	if err := a.holds(ctx); err != nil {
		return err
	}
	round, base := newRoundID(a.lease), a.committed
	a.progress.Lock()
	a.progress.round = round
	a.progress.Unlock()
	a.step("begin")
	if _, err := a.table.BeginRound(ctx, sink.BeginRoundRequest{Round: round, Base: base.Round, Fence: a.fence()}); err != nil {
		return fmt.Errorf("begin compaction %s of %s: %w", round, a.job.Name, err)
	}
	a.step("compact")
	done, err := m.Compact(ctx, req)
	if err != nil {
		return fmt.Errorf("compaction %s of %s: %w", round, a.job.Name, err)
	}
	a.step("prepare")
	resp, err := a.table.Prepare(ctx, sink.PrepareRequest{})
	if err != nil {
		return fmt.Errorf("prepare compaction %s of %s: %w", round, a.job.Name, err)
	}
	commit := sink.CommitRequest{Round: round, Base: base.Round, Fence: a.fence(), Staged: resp.Staged}
	if done.Empty() { // somebody was faster
		return a.abort(ctx, commit)
	}
	if err := a.holds(ctx); err != nil {
		a.giveUp(ctx, commit)
		return err
	}
	made, err := a.commit(ctx, commit)
	if err != nil {
		return err
	}
	a.out.kept.Compactions, a.out.kept.Compacted = 1, done
	return a.record(ctx, round, made.Snapshot, base.Ends)
}

func (a *attempt) expire(ctx context.Context, m sink.Maintainer, orphans bool) error {
	if err := a.look(); err != nil || a.out.gone { // what is recorded by now may be in use
		return err
	}
	if err := a.holds(ctx); err != nil {
		return err
	}
	a.step("expire")
	req := sink.ExpireRequest{Fence: a.fence(), Keep: a.job.Upkeep.Pinned, StateAge: a.job.Upkeep.StateAge, Progress: a.alive}
	if orphans {
		req.OrphanAge = a.job.Upkeep.OrphanAge
	}
	done, err := m.Expire(ctx, req)
	a.out.kept.Expired = done
	if err != nil {
		return fmt.Errorf("expire snapshots of %s: %w", a.job.Name, err)
	}
	return nil
}

// finishUpkeep takes the result of maintenance into the entry. A failure is not one of
// the table's rounds, but for a commit whose outcome is to be settled by the next one.
func (t *Tiering) finishUpkeep(e *entry, r *running, out outcome, err error, now time.Time) {
	e.state = StateScheduled
	if errors.Is(err, ErrLeaseLost) || out.gone {
		return
	}
	if err != nil {
		t.logger.Warn("a table was not kept in shape", "table", e.target.Table, "sink", e.target.Sink, "error", err)
	}
	if out.kept.Compactions > 0 {
		t.logger.Info("a table was compacted", "table", e.target.Table, "sink", e.target.Sink, "data_files", out.kept.Compacted.DataFiles, "delete_files", out.kept.Compacted.DeleteFiles,
			"bytes", out.kept.Compacted.Bytes, "new_files", out.kept.Compacted.NewFiles, "new_bytes", out.kept.Compacted.NewBytes)
	}
	t.mu.totals.UpkeepDone = t.mu.totals.add(out.kept)
	if err != nil {
		t.mu.totals.UpkeepFailures++
	}
	e.upkeep.finish(*r.keeps, r.asks, out.kept, out.noUpkeep, err, now)
}
