package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/objstore"
)

// cleanState belongs to the holder of turn.
type cleanState struct {
	turn chan struct{}
	// applied is when each destroy was first seen to be applied by every live
	// node: from then on no new read uses the object.
	applied map[plan.ObjectID]time.Time
}

// CleanNow deletes the destroyed objects that this incarnation looks after and
// whose grace is over:
//
//	destroyed DestroyGrace ago, by the metadata clock, and
//	every live node has applied the destroy, and
//	ReadTimeout has passed since that was seen, so that reads on older views ended,
//	and, for a slot of a WAL, its own WAL does not need it for recovery.
//
// The metadata forgets an object after the store has deleted it. A restart
// begins the waiting anew, which does no harm.
func (e *Engine) CleanNow(ctx context.Context) error {
	select {
	case e.cleaning.turn <- struct{}{}:
		defer func() { <-e.cleaning.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	view := e.deps.Meta.View()
	live := liveWALs(view)
	now := time.Now()
	var waiting []plan.Destroyed
	for d := range view.Destroyed() {
		if e.responsible(live, d.Object.WAL) {
			waiting = append(waiting, d)
		}
	}
	if len(waiting) == 0 {
		clear(e.cleaning.applied)
		return nil
	}
	everywhere, err := e.deps.Meta.AppliedEverywhere(ctx)
	if err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	still := make(map[plan.ObjectID]time.Time, len(waiting))
	var due []plan.Object
	for _, d := range waiting {
		if d.Index > everywhere {
			continue
		}
		since, seen := e.cleaning.applied[d.Object.ID]
		if !seen {
			since = now
		}
		still[d.Object.ID] = since
		if now.Sub(since) >= e.cfg.ReadTimeout && now.UnixMilli()-d.DestroyedAt >= e.cfg.DestroyGrace.Milliseconds() &&
			plan.ObjectDeletable(view, d.Object.ID) {
			due = append(due, d.Object)
		}
	}
	e.cleaning.applied = still
	return e.deleteObjects(ctx, due)
}

// deleteObjects deletes and forgets what it can; the rest is tried again.
func (e *Engine) deleteObjects(ctx context.Context, objects []plan.Object) error {
	var errs []error
	for chunk := range slices.Chunk(objects, objstore.DeleteMax) {
		errs = append(errs, e.deleteSome(ctx, chunk))
	}
	return errors.Join(errs...)
}

func (e *Engine) deleteSome(ctx context.Context, objects []plan.Object) error {
	var data, slots []string
	for _, o := range objects {
		if o.ID.Kind == plan.KindWAL {
			slots = append(slots, o.Key())
		} else {
			data = append(data, o.Key())
		}
	}
	left, failed := deleteEach(ctx, e.deps.Objects, data)
	slotsLeft, slotsFailed := deleteEach(ctx, e.deps.WALStore, slots)
	remain := make(map[string]bool, len(left)+len(slotsLeft))
	for _, k := range append(left, slotsLeft...) {
		remain[k] = true
	}
	ids := make([]plan.ObjectID, 0, len(objects))
	gone := make(map[plan.ObjectID]bool, len(objects))
	for _, o := range objects {
		if !remain[o.Key()] {
			ids, gone[o.ID] = append(ids, o.ID), true
		}
	}
	err := errors.Join(failed, slotsFailed)
	if len(ids) == 0 {
		return err
	}
	e.indexes.Drop(func(id plan.ObjectID) bool { return gone[id] })
	e.blocks.Drop(func(k blockKey) bool { return gone[k.object] })
	if ferr := e.deps.Meta.ForgetObjects(ctx, ids); ferr != nil {
		return errors.Join(err, fmt.Errorf("forget %d deleted objects: %w", len(ids), ferr))
	}
	e.stats.objectsDeleted.Add(int64(len(ids)))
	return err
}

// leftovers are objects of this living epoch that were written, or may yet be,
// and that no accepted command names as far as is known.
type leftovers struct {
	sync.Mutex
	list []leftover
}

type leftover struct {
	object plan.Object
	since  time.Time
}

// abandon leaves objects to the sweep.
func (e *Engine) abandon(objects []plan.Object) {
	e.left.Lock()
	defer e.left.Unlock()
	for _, o := range objects {
		e.left.list = append(e.left.list, leftover{o, time.Now()})
	}
}
