package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/objstore"
)

// CleanNow deletes the destroyed objects that this incarnation looks after and
// whose grace is over:
//
//	destroyed DestroyGrace ago, by the metadata clock, and
//	below the read horizon: no read on any live node uses a view that names it,
//	and, for a slot of a WAL, its own WAL does not need it for recovery.
//
// Nothing of this is remembered here: a node that restarts again and again
// deletes all the same, for the reads of its earlier lives ended with them. The
// metadata forgets an object after the store has deleted it.
func (e *Engine) CleanNow(ctx context.Context) error {
	select {
	case e.cleaning <- struct{}{}:
		defer func() { <-e.cleaning }()
	case <-ctx.Done():
		return ctx.Err()
	}
	view := e.deps.Meta.View()
	live := liveWALs(view)
	before := time.Now().Add(-e.cfg.DestroyGrace).UnixMilli()
	var waiting []plan.Destroyed
	for d := range view.Destroyed() {
		if d.DestroyedAt <= before && e.responsible(live, d.Object.WAL) {
			waiting = append(waiting, d)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	horizon, err := e.deps.Meta.ReadHorizon(ctx)
	if err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	remembered, err := e.deps.Meta.Remembered(ctx)
	if err != nil {
		return fmt.Errorf("delete objects: %w", err)
	}
	horizon = min(horizon, remembered)
	var due []plan.Object
	for _, d := range waiting {
		if d.Index <= horizon && plan.ObjectDeletable(view, d.Object.ID) {
			due = append(due, d.Object)
		}
	}
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
