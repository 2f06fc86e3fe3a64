package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/objstore"
)

// SweepNow deletes what no command will ever name: objects that ended epochs
// wrote and did not commit, WAL slots that recovery left behind, and late PUTs
// that landed after their object was deleted. It runs again and again: what
// lands after one sweep is found by the next.
//
// Only epochs of the present time line that the state calls recovered are listed:
// nothing of them can be named any more that the view does not name. The slot at the log's end is
// the tombstone; it is never deleted. Its place comes from the state, never from
// the list.
func (e *Engine) SweepNow(ctx context.Context) error {
	view := e.deps.Meta.View()
	live := liveWALs(view)
	errs := []error{e.sweepLeftovers(ctx)}
	var known func(plan.ObjectID) bool
	for w := range view.WALs() {
		if !w.Recovered || uint64(w.ID.Epoch) <= view.TimeLine() || !e.responsible(live, w.ID) {
			continue
		}
		if known == nil {
			known = knownIn(view)
		}
		errs = append(errs, e.sweepData(ctx, w, known), e.sweepSlots(ctx, w, known))
	}
	return errors.Join(errs...)
}

// knownIn reports whether the view names an object or has it among the
// destroyed, which are CleanNow's.
func knownIn(view View) func(plan.ObjectID) bool {
	destroyed := map[plan.ObjectID]bool{}
	for d := range view.Destroyed() {
		destroyed[d.Object.ID] = true
	}
	return func(id plan.ObjectID) bool {
		_, named := view.Object(id)
		return named || destroyed[id]
	}
}

func (e *Engine) sweepData(ctx context.Context, w plan.WAL, known func(plan.ObjectID) bool) error {
	prefix := plan.DataPrefix(w.ID)
	return e.sweepPrefix(ctx, e.deps.Objects, prefix, func(o objstore.ObjectInfo) bool {
		id, ok := parseData(w.ID, strings.TrimPrefix(o.Key, prefix))
		return ok && !known(id) && time.Since(o.Modified) >= e.cfg.OrphanAge
	})
}

func (e *Engine) sweepSlots(ctx context.Context, w plan.WAL, known func(plan.ObjectID) bool) error {
	prefix := plan.WALPrefix(w.ID)
	return e.sweepPrefix(ctx, e.deps.WALStore, prefix, func(o objstore.ObjectInfo) bool {
		seq, ok := plan.ParseSeq(strings.TrimPrefix(o.Key, prefix))
		if !ok || !plan.SlotDeletable(w, seq, known(plan.ObjectID{Epoch: w.ID.Epoch, Kind: plan.KindWAL, Seq: seq})) {
			return false
		}
		return time.Since(o.Modified) >= e.cfg.OrphanAge
	})
}

// sweepPrefix lists a prefix to its end and deletes what is dead.
func (e *Engine) sweepPrefix(ctx context.Context, store objstore.Store, prefix string, dead func(objstore.ObjectInfo) bool) error {
	after := ""
	var errs []error
	for {
		page, err := store.List(ctx, objstore.ListRequest{Prefix: prefix, StartAfter: after})
		if err != nil {
			return fmt.Errorf("sweep %s: %w", prefix, err)
		}
		var keys []string
		for _, o := range page.Objects {
			if after = o.Key; dead(o) {
				keys = append(keys, o.Key)
			}
		}
		left, err := deleteEach(ctx, store, keys)
		e.stats.orphansDeleted.Add(int64(len(keys) - len(left)))
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", prefix, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !page.More || len(page.Objects) == 0 { // an empty page has nowhere to go on from
			return errors.Join(errs...)
		}
	}
}

// parseData reads "<counter, 20 digits>-<sso|so>". What is not exactly a key
// that plan.Key writes is none of the sweep's business.
func parseData(w plan.WALID, name string) (plan.ObjectID, bool) {
	digits, kind, ok := strings.Cut(name, "-")
	seq, isSeq := plan.ParseSeq(digits)
	id := plan.ObjectID{Epoch: w.Epoch, Seq: seq}
	switch kind {
	case "sso":
		id.Kind = plan.KindStreamSet
	case "so":
		id.Kind = plan.KindStream
	default:
		ok = false
	}
	return id, ok && isSeq
}
