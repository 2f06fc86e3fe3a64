package tiering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Tiering runs on every node and acts on the one that holds the lease. Safe for
// concurrent use.
type Tiering struct {
	cfg    Config
	deps   Deps
	logger *slog.Logger
	loop   *loop.Loop
	faults faults
	work   sync.WaitGroup // the attempts under way

	mu struct {
		sync.Mutex
		lease   mink.LeaseEpoch // of the entries; 0: not this node's
		entries map[Target]*entry
		totals  totals
	}
}

// faults take one protection out each, so that tests can show that they would
// notice. Always zero outside of this package's tests.
type faults struct {
	noLeaseCheck  bool // rounds go on when the lease is lost
	abortUnknown  bool // a commit of unknown outcome is aborted
	startRecorded bool // rounds go on from the recorded ends, not the sink's
	fromBase      bool // a sink that lost its rounds is written from the base again
	noGap         bool // trimmed offsets are left out of the ranges
	skipTail      bool // what the source does not answer counts as written
	cutToEnd      bool // a round that was cut counts as written to its end
	recordFirst   bool // a round is recorded before it is committed
	forgetFirst   bool // a dropped table is forgotten when it was removed once
	insertRemade  bool // keys of a partition that was made again are inserted
}

// entry is one target. Its fields are guarded by Tiering.mu.
type entry struct {
	target  Target
	dropped *Dropped  // its table is dropped: it is to be removed at the sink
	removed time.Time // when it was, in this reign; zero: not yet
	job     Job       // as of the last look

	state     State
	since     time.Time // of pending
	full      time.Time // when the last round of all buckets began
	last      time.Time // when the last round began
	lags      time.Time // since when the sink has been seen without rows of the log; zero: it has all
	cut       bool      // there is more to write at once
	after     mink.BucketRef
	held      *unresolved
	look      time.Time // when the view is looked at next
	failures  int       // in a row
	retry     time.Time // not before, after a failure
	pause     *backoff.ExponentialBackOff
	lastError string
	lastRound sink.RoundID
	slow      bool // its last attempt failed or took long: it leaves a worker to others
	requests  []*request
	totals    totals
	upkeep    upkeep
	keeps     *keepPlan // what the worker that comes is to do; nil: a round

	running *running // nil: no worker has it
}

// running is an attempt under way.
type running struct {
	attempt *attempt // nil: of a drop
	started time.Time
	cancel  context.CancelCauseFunc
	gone    bool // it was cancelled and has not returned: its worker counts as free
	serves  []*request
	keeps   *keepPlan // maintenance; nil: a round
	asks    []*keepRequest
}

type totals struct {
	Rounds, Failures, Rows, Bytes int64
	UpkeepDone
	UpkeepFailures int64
}

// request waits for the end of a round that began after it.
type request struct{ done chan error } // takes one

// New makes a Tiering that has not started.
func New(cfg Config, deps Deps) (*Tiering, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Tiering{cfg: cfg, deps: deps, logger: deps.Logger.With("component", "tiering")}
	t.mu.entries = map[Target]*entry{}
	t.loop = loop.New("tiering", cfg.Tick, t.logger, t.schedule)
	return t, nil
}

// Run works until ctx is done and every worker has ended.
func (t *Tiering) Run(ctx context.Context) error {
	err := t.loop.Run(ctx)
	t.mu.Lock()
	t.endReign(ErrLeaseLost)
	t.mu.Unlock()
	t.work.Wait()
	return err
}

// Loops answers the status of the loop.
func (t *Tiering) Loops() []loop.Status { return []loop.Status{t.loop.Status()} }

// schedule looks at the lease, at what is due, and gives it to free workers.
func (t *Tiering) schedule(ctx context.Context) error {
	lease, held := t.deps.Meta.Lease()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !held {
		t.endReign(ErrLeaseLost)
		return loop.ErrIdle
	}
	if lease != t.mu.lease {
		t.endReign(ErrLeaseLost)
		t.mu.lease = lease
	}
	now, view := time.Now(), t.deps.Meta.View()
	t.meet(view, now)
	for _, e := range t.mu.entries {
		t.endSilent(e, now)
		if e.running == nil && !now.Before(e.look) {
			t.consider(e, view, now)
		}
	}
	t.start(ctx, now)
	return nil
}

// endReign gives everything up that was begun under the lease. What runs keeps
// its entry, so that nothing else begins on the target before it has ended.
func (t *Tiering) endReign(why error) {
	t.mu.lease = 0
	for target, e := range t.mu.entries {
		e.answer(fmt.Errorf("%s: %w: %w", target, why, mink.ErrUnavailable))
		e.upkeep.answerAll(fmt.Errorf("%s: %w: %w", target, why, mink.ErrUnavailable))
		if e.running != nil {
			if !t.faults.noLeaseCheck {
				e.running.cancel(why)
			}
			continue
		}
		delete(t.mu.entries, target)
	}
}

// meet makes entries of what the view has, and forgets what it has not.
func (t *Tiering) meet(view View, now time.Time) {
	there := map[Target]bool{}
	for target := range view.Targets() {
		there[target] = true
		if t.mu.entries[target] == nil {
			t.mu.entries[target] = t.newEntry(target, now)
		}
	}
	dropped := map[Target]bool{}
	for d := range view.Dropped() {
		there[d.Target], dropped[d.Target] = true, true
		e := t.mu.entries[d.Target]
		if e == nil {
			e = t.newEntry(d.Target, now)
			t.mu.entries[d.Target] = e
		}
		if e.dropped == nil {
			e.dropped, e.held, e.retry, e.look = &d, nil, time.Time{}, now
			e.answer(fmt.Errorf("%s: the table was dropped: %w", e.target, mink.ErrNotExist))
			e.upkeep.answerAll(fmt.Errorf("%s: the table was dropped: %w", e.target, mink.ErrNotExist))
			if e.running != nil {
				e.running.cancel(fmt.Errorf("%s: the table was dropped: %w", e.target, mink.ErrNotExist))
			}
		}
	}
	for target, e := range t.mu.entries {
		if there[target] && e.dropped != nil && !dropped[target] && e.running == nil { // the place is clear: it begins anew
			fresh := t.newEntry(target, now)
			fresh.requests, fresh.upkeep.asked = e.requests, e.upkeep.asked
			t.mu.entries[target] = fresh
		}
		if !there[target] && e.running == nil {
			e.answer(fmt.Errorf("%s: there is no such table, or it does not name the sink: %w", target, mink.ErrNotExist))
			e.upkeep.answerAll(fmt.Errorf("%s: there is no such table, or it does not name the sink: %w", target, mink.ErrNotExist))
			delete(t.mu.entries, target)
		}
	}
}

func (t *Tiering) newEntry(target Target, now time.Time) *entry {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval = t.cfg.RetryMin, t.cfg.RetryMax
	return &entry{target: target, state: StateScheduled, look: now, pause: p, upkeep: newUpkeep(now)}
}

// endSilent cancels an attempt that shows no progress.
func (t *Tiering) endSilent(e *entry, now time.Time) {
	if e.running == nil || e.running.gone || e.running.attempt == nil && now.Sub(e.running.started) < t.cfg.Silence {
		return
	}
	if a := e.running.attempt; a != nil {
		a.progress.Lock()
		at, step := a.progress.at, a.progress.step
		a.progress.Unlock()
		limit := t.cfg.Silence
		if step == stepRestore {
			limit *= 6
		}
		if now.Sub(at) < limit {
			return
		}
		e.running.cancel(fmt.Errorf("%w for %s (tiering_timeout) in step %q", errSilent, now.Sub(at).Round(time.Second), step))
	} else {
		e.running.cancel(errSilent)
	}
	e.running.gone, e.slow = true, true
}

// lookShare is how many looks at a table there are within its freshness, lookMax the
// longest time between two.
const (
	lookShare = 20
	lookMax   = 30 * time.Second
)

// consider decides whether the target is due.
func (t *Tiering) consider(e *entry, view View, now time.Time) {
	if e.dropped != nil {
		if settled := e.removed.Add(t.cfg.Settle); !e.removed.IsZero() && now.Before(settled) {
			e.state, e.look = StateScheduled, settled
			return
		}
		t.wait(e, now)
		return
	}
	job, ok := view.Job(e.target)
	if !ok {
		return
	}
	if e.full.IsZero() && !job.Committed.IsZero() {
		e.full = job.Committed
		if e.full.After(now) {
			e.full = now // the metadata clock is another machine's
		}
	}
	e.job = job
	if offsets, _ := job.untiered(); offsets == 0 {
		e.lags = time.Time{}
	} else if e.lags.IsZero() {
		e.lags = now
	}
	e.look = now.Add(min(max(job.Freshness/lookShare, t.cfg.Tick), lookMax))
	due, _ := job.due(now, e.full, e.last, len(e.requests) > 0, t.cfg.DueBytes)
	plan, keeps := e.upkeep.due(job.Upkeep, now)
	e.keeps = nil
	if keeps && e.held == nil && (e.upkeep.starved() || !due && !e.cut) && (e.failures == 0 || len(e.upkeep.asked) > 0) {
		e.keeps = &plan
	}
	switch {
	case e.keeps != nil:
		t.wait(e, now)
	case due || e.cut || e.held != nil:
		t.wait(e, now)
	default:
		e.state = StateTiered
		if offsets, _ := job.untiered(); offsets > 0 {
			e.state = StateScheduled
		}
		if len(e.requests) > 0 { // everything is at the sink
			e.answer(nil)
		}
	}
}

// wait puts the entry in the queue, unless it is to pause after a failure.
func (t *Tiering) wait(e *entry, now time.Time) {
	if now.Before(e.retry) && len(e.requests) == 0 && e.keeps == nil {
		e.state, e.look = StateFailed, e.retry
		return
	}
	if e.state != StatePending {
		e.state, e.since = StatePending, now
	}
	e.look = now
}

// start gives pending targets to free workers, the one that waited longest first. Targets that
// failed or were slow the last time leave one worker to the others, if there are two.
func (t *Tiering) start(ctx context.Context, now time.Time) {
	var queue []*entry
	busy, slow, stuck := 0, 0, 0
	for _, e := range t.mu.entries {
		switch {
		case e.running != nil && e.running.gone:
			stuck++
		case e.running != nil && !e.running.gone:
			busy++
			if e.slow {
				slow++
			}
		case e.running == nil && e.state == StatePending:
			queue = append(queue, e)
		}
	}
	slices.SortFunc(queue, func(a, b *entry) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.target.Table, b.target.Table), cmp.Compare(a.target.Sink, b.target.Sink))
	})
	if stuck >= t.cfg.GivenUpMax {
		for _, e := range queue {
			e.lastError = fmt.Sprintf("no round begins: %d that were given up have not returned, and keep their memory; their sinks do not answer (tiering_timeout). Restart this node if they do not come back", stuck)
		}
		return
	}
	for _, e := range queue {
		if busy >= t.cfg.Workers {
			return
		}
		if e.slow {
			if slow >= max(1, t.cfg.Workers-1) {
				continue
			}
			slow++
		}
		busy++
		t.begin(ctx, e, now)
	}
}

// begin starts a worker on the entry.
func (t *Tiering) begin(ctx context.Context, e *entry, now time.Time) {
	ctx, cancel := context.WithCancelCause(ctx)
	e.state = StateTiering
	r := &running{started: now, cancel: cancel, serves: slices.Clone(e.requests)}
	if e.dropped == nil && e.keeps != nil {
		r.keeps, r.asks, r.serves = e.keeps, slices.Clone(e.upkeep.asked), nil
	}
	e.running = r
	s, known := t.deps.Sinks[e.target.Sink]
	lease, held := t.mu.lease, e.held
	run := func() (outcome, *unresolved, error) {
		return outcome{}, held, fmt.Errorf("%s: the configuration of this node, which holds the coordinator lease, has no sink %[2]s: add [sinks.%[2]s] to that of every node and start them again; the rows wait in the log: %[3]w", e.target, e.target.Sink, mink.ErrNotExist)
	}
	switch {
	case known && e.dropped != nil:
		d, again := *e.dropped, !e.removed.IsZero()
		run = func() (outcome, *unresolved, error) { return outcome{}, nil, t.drop(ctx, d, s, lease, again) }
	case known:
		a := &attempt{
			t: t, target: e.target, lease: lease, sink: s, now: now,
			requested: len(e.requests) > 0 || e.cut, full: e.full, last: e.last, after: e.after, held: held,
		}
		a.progress.at, a.progress.step = now, "begin"
		r.attempt = a
		run = func() (outcome, *unresolved, error) {
			work := a.run
			if r.keeps != nil {
				work = func(ctx context.Context) error { return a.keep(ctx, *r.keeps) }
			}
			err := work(ctx)
			return a.out, a.held, err
		}
	}
	t.work.Go(func() {
		out, held, err := run()
		if epoch, held := t.deps.Meta.Lease(); err != nil && (!held || epoch != lease) {
			err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		} else if cause := context.Cause(ctx); cause != nil && err != nil && !errors.Is(cause, context.Canceled) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		cancel(nil)
		t.finish(e, r, lease, out, held, err)
		t.loop.Trigger()
	})
}

// finish takes the worker's result into the entry.
func (t *Tiering) finish(e *entry, r *running, lease mink.LeaseEpoch, out outcome, held *unresolved, err error) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	e.running = nil
	e.look = now
	e.totals.Rows, t.mu.totals.Rows = e.totals.Rows+out.rows, t.mu.totals.Rows+out.rows
	e.totals.Bytes, t.mu.totals.Bytes = e.totals.Bytes+out.bytes, t.mu.totals.Bytes+out.bytes
	if out.round != "" && out.kept.Compactions > 0 {
		e.lastRound = out.round
	} else if out.round != "" {
		e.lastRound, e.last = out.round, r.started
		e.totals.Rounds++
		t.mu.totals.Rounds++
		e.upkeep.round()
	}
	if lease != t.mu.lease { // what it knew is of another reign
		fresh := t.newEntry(e.target, now)
		fresh.requests, fresh.upkeep.asked = e.requests, e.upkeep.asked
		if t.mu.entries[e.target] = fresh; t.mu.lease == 0 {
			fresh.answer(fmt.Errorf("%s: %w: %w", e.target, ErrLeaseLost, mink.ErrUnavailable))
			fresh.upkeep.answerAll(fmt.Errorf("%s: %w: %w", e.target, ErrLeaseLost, mink.ErrUnavailable))
			delete(t.mu.entries, e.target)
		}
		return
	}
	if e.dropped != nil && r.attempt != nil { // dropped in mid-round
		e.state = StateScheduled
		return
	}
	e.held = held
	if errors.Is(err, sink.ErrAlreadyExists) {
		t.removeAgain(e)
	}
	if r.keeps != nil {
		t.finishUpkeep(e, r, out, err, now)
		return
	}
	switch {
	case errors.Is(err, ErrLeaseLost):
		e.state = StateScheduled
	case err != nil:
		t.failed(e, now, err)
	default:
		e.failures, e.lastError, e.retry = 0, "", time.Time{}
		e.pause.Reset()
		e.state, e.cut, e.after = StateTiered, out.cut, out.after
		e.slow = now.Sub(r.started) > max(e.job.Freshness, roundTimeMin)
		if out.all && !out.cut {
			e.full = r.started
		}
		if e.dropped != nil && e.removed.IsZero() {
			e.removed = now
		}
	}
	if err != nil || !out.cut {
		e.settle(r.serves, err)
	}
}

// removeAgain: somebody made the place of a dropped table of the entry's name again.
func (t *Tiering) removeAgain(e *entry) {
	for _, d := range t.mu.entries {
		if d.dropped != nil && d.target.Sink == e.target.Sink && d.dropped.Spec.FullName() == e.job.Name {
			d.removed, d.look = time.Time{}, time.Now()
		}
	}
}

// removed reports that the sink has dropped the table in this reign.
func (t *Tiering) removed(target Target) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.mu.entries[target]
	return e != nil && e.dropped != nil && !e.removed.IsZero()
}

func (t *Tiering) failed(e *entry, now time.Time, err error) {
	pause := e.pause.NextBackOff()
	if errors.Is(err, ErrSinkBehind) || errors.Is(err, ErrRowsMissing) || errors.Is(err, sink.ErrCorrupt) || errors.Is(err, sink.ErrUnimplemented) {
		pause = t.cfg.RetryMax // a person must look
	}
	e.failures++
	e.totals.Failures++
	t.mu.totals.Failures++
	e.state, e.slow, e.lastError, e.retry = StateFailed, true, err.Error(), now.Add(pause)
	t.logger.Warn("a table was not tiered", "table", e.target.Table, "sink", e.target.Sink, "error", err, "failures_in_a_row", e.failures, "retry_in", pause)
}

// settle answers those whom an attempt served.
func (e *entry) settle(served []*request, err error) {
	e.requests = slices.DeleteFunc(e.requests, func(r *request) bool {
		if !slices.Contains(served, r) {
			return false
		}
		r.done <- err
		return true
	})
}

// answer ends every request.
func (e *entry) answer(err error) {
	for _, r := range e.requests {
		r.done <- err
	}
	e.requests = nil
}

// Ask makes a round of everything that the target's log has committed, now. The channel gets nil
// once that is at the sink and recorded, or the error of the attempt that failed.
// mink.ErrUnavailable: this node does not hold the lease, or lost it. mink.ErrNotExist.
func (t *Tiering) Ask(target Target) (<-chan error, error) {
	r, now := &request{done: make(chan error, 1)}, time.Now()
	err := t.withEntry(target, now, func(e *entry) {
		e.requests = append(e.requests, r)
		e.look = now
	})
	return r.done, err
}

// withEntry changes the entry of a target, on the holder of the lease, and has it looked at.
func (t *Tiering) withEntry(target Target, now time.Time, change func(e *entry)) error {
	if _, held := t.deps.Meta.Lease(); !held {
		return fmt.Errorf("%s: this node does not hold the coordinator lease: %w", target, mink.ErrUnavailable)
	}
	if _, ok := t.deps.Meta.View().Job(target); !ok {
		return fmt.Errorf("%s: there is no such table, or it does not name the sink: %w", target, mink.ErrNotExist)
	}
	t.mu.Lock()
	e := t.mu.entries[target]
	if e == nil {
		e = t.newEntry(target, now)
		t.mu.entries[target] = e
	}
	change(e)
	t.mu.Unlock()
	t.loop.Trigger()
	return nil
}

// Request is Ask, and waits. The round goes on when ctx ends.
func (t *Tiering) Request(ctx context.Context, target Target) error {
	done, err := t.Ask(target)
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: the round goes on: %w", target, ctx.Err())
	}
}
