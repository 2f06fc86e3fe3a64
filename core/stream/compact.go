package stream

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	// rewriteChecks bounds the indexes that one look for half-dead objects reads.
	rewriteChecks = 16
	// staleTries is how often a merge whose plan went stale is planned anew at once.
	staleTries = 3
	// badRetry is how long an unreadable object is left out: somebody may have
	// restored it.
	badRetry = time.Hour
)

// compactState belongs to the holder of turn.
type compactState struct {
	turn    chan struct{}
	seed    maphash.Seed
	checked map[plan.ObjectID]uint64 // ranges that an object had when it was found live enough
	// bad are objects that could not be read, and when to try again: they are left
	// out, or the first of them would keep all others from being merged for ever.
	bad map[plan.ObjectID]time.Time

	rewriting busyObjects
}

// busyObjects are what rewrites under way read: merges leave them alone, as each would make
// the other's plan stale. They are added by the holder of compactState.turn, so
// that no merge has planned with them.
type busyObjects struct {
	mu sync.Mutex
	of map[plan.ObjectID]int // how many rewrites
}

// add answers what takes the objects out again.
func (b *busyObjects) add(ranges []plan.Range) (done func()) {
	change := func(by int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, r := range ranges {
			if b.of[r.Object] += by; b.of[r.Object] == 0 {
				delete(b.of, r.Object)
			}
		}
	}
	change(1)
	return func() { change(-1) }
}

func (b *busyObjects) has(id plan.ObjectID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[id] > 0
}

// CompactNow merges until nothing is due: one job at a time, each planned on a
// view that holds the one before. A rewrite that waits comes between two jobs.
func (e *Engine) CompactNow(ctx context.Context) error {
	stale := 0
	var bad []error
	for {
		did, leftOut, err := e.compactNext(ctx)
		switch {
		case err == nil && !did:
			return errors.Join(bad...)
		case err == nil:
		case errors.Is(err, mink.ErrConflict) && stale < staleTries:
			stale++
		case leftOut:
			bad = append(bad, fmt.Errorf("compact: %w", err))
		default:
			return errors.Join(append(bad, fmt.Errorf("compact: %w", err))...)
		}
	}
}

// compactNext does what is due first. leftOut: an object could not be read and is in no
// plan from now on.
func (e *Engine) compactNext(ctx context.Context) (did, leftOut bool, err error) {
	select {
	case e.compaction.turn <- struct{}{}:
		defer func() { <-e.compaction.turn }()
	case <-ctx.Done():
		return false, false, ctx.Err()
	}
	if err := e.failure(); err != nil {
		return false, false, err
	}
	did, err = e.compactOnce(ctx)
	if errors.Is(err, errLeft) { // of a trim or a rewrite meanwhile
		err = fmt.Errorf("%w: %w", mink.ErrConflict, err)
	}
	leftOut = err != nil && !errors.Is(err, mink.ErrConflict) && e.leaveOut(err)
	return did, leftOut, err
}

// sourceError says which object could not be read.
type sourceError struct {
	id  plan.ObjectID
	err error
}

func (s *sourceError) Error() string { return s.err.Error() }
func (s *sourceError) Unwrap() error { return s.err }

// leaveOut reports that the error is one object's damage, which is left out of
// the next plans.
func (e *Engine) leaveOut(err error) bool {
	var src *sourceError
	if !errors.As(err, &src) || !errors.Is(classify(err), mink.ErrCorrupt) {
		return false
	}
	if _, named := e.deps.Meta.View().Object(src.id); !named {
		return false // not missing: the plan was stale
	}
	e.log.Error("an object cannot be read and is left out of merges", "object", fmt.Sprintf("%+v", src.id), "for", badRetry, "err", err)
	e.compaction.bad[src.id] = time.Now().Add(badRetry)
	return true
}

func (e *Engine) compactOnce(ctx context.Context) (bool, error) {
	view := e.deps.Meta.View()
	mine := e.myObjects(view)
	job, ok := plan.PlanCompaction(e.cfg.Compaction, mine, time.Now().UnixMilli(), func(id plan.ObjectID) (mink.StreamID, bool) {
		r := view.ObjectRanges(id)
		if len(r) == 0 {
			return 0, false
		}
		return r[0].Stream, true
	})
	if !ok {
		var err error
		if job, ok, err = e.rewriteJob(ctx, view, mine); err != nil || !ok {
			return false, err
		}
	}
	return true, e.merge(ctx, view, job)
}

// liveWALs are the incarnations that may propose.
func liveWALs(view View) []plan.WALID {
	var live []plan.WALID
	for w := range view.WALs() {
		if !w.Sealed {
			live = append(live, w.ID)
		}
	}
	return live
}

// responsible reports that this incarnation looks after the writer's objects.
func (e *Engine) responsible(live []plan.WALID, writer plan.WALID) bool {
	w, ok := plan.Compactor(writer, live)
	return ok && w == e.deps.WAL
}

func (e *Engine) myObjects(view View) []plan.Object {
	live := liveWALs(view)
	var mine []plan.Object
	now := time.Now()
	for id, until := range e.compaction.bad {
		if now.After(until) {
			delete(e.compaction.bad, id)
		}
	}
	for o := range view.Objects() {
		if _, bad := e.compaction.bad[o.ID]; !bad && e.responsible(live, o.WAL) && !e.compaction.rewriting.has(o.ID) {
			mine = append(mine, o)
		}
	}
	return mine
}

// rewriteJob finds an object that is more than half dead. Tier 0 is merged soon
// anyway. An object whose ranges did not change since it was found live enough
// is not looked at again.
func (e *Engine) rewriteJob(ctx context.Context, view View, mine []plan.Object) (plan.Job, bool, error) {
	if len(e.compaction.checked) > 2*len(mine)+64 { // forget objects that are gone
		named := make(map[plan.ObjectID]uint64, len(mine))
		for _, o := range mine {
			if mark, ok := e.compaction.checked[o.ID]; ok {
				named[o.ID] = mark
			}
		}
		e.compaction.checked = named
	}
	checks := 0
	for _, o := range mine {
		if o.Tier == 0 && o.ID.Kind != plan.KindStream {
			continue
		}
		ranges := view.ObjectRanges(o.ID)
		mark := e.mark(ranges)
		if e.compaction.checked[o.ID] == mark {
			continue
		}
		if checks++; checks > rewriteChecks {
			break
		}
		src, err := e.openSource(ctx, o.ID, false)
		if err != nil {
			return plan.Job{}, false, &sourceError{o.ID, err}
		}
		live, total := liveBytes(src, ranges)
		if plan.RewriteDue(live, total) {
			return plan.Job{Sources: []plan.ObjectID{o.ID}, Tier: o.Tier}, true, nil
		}
		e.compaction.checked[o.ID] = mark
	}
	return plan.Job{}, false, nil
}

func (e *Engine) mark(ranges []plan.ObjectRange) uint64 {
	var sum uint64 // order does not matter
	for _, r := range ranges {
		sum += maphash.Comparable(e.compaction.seed, r)
	}
	return sum
}

// liveBytes estimates what the ranges keep of an object: of a block that is
// partly live, the share of its offsets.
func liveBytes(src source, ranges []plan.ObjectRange) (live, total int64) {
	for i := range src.index.Blocks {
		total += src.index.Blocks[i].Len()
	}
	for _, r := range ranges {
		for _, b := range src.index.BlocksFrom(r.Stream, r.Start) {
			if b.Start >= r.End {
				break
			}
			share := float64(min(b.End(), r.End)-max(b.Start, r.Start)) / float64(b.Span)
			live += int64(share * float64(b.Len()))
		}
	}
	return live, total
}

// merge carries out one job. Its outputs are deleted again when the plan turned
// out stale, and left to the sweep when their fate is unknown.
func (e *Engine) merge(ctx context.Context, view View, job plan.Job) error {
	m := newMerger(e, view, job)
	command, err := m.run(ctx)
	if err != nil {
		m.giveUp(ctx)
		return err
	}
	err = e.deps.Meta.ReplaceObjects(ctx, command)
	m.settle(ctx, err)
	if err != nil {
		return fmt.Errorf("replace %d objects: %w", len(job.Sources), err)
	}
	e.stats.compactions.Add(1)
	// Fresh outputs are live: a frame that a trim cut through cannot be halved, so
	// looking again before the ranges change would never end.
	now := e.deps.Meta.View()
	for _, o := range m.objects {
		e.compaction.checked[o.ID] = e.mark(now.ObjectRanges(o.ID))
	}
	return nil
}
