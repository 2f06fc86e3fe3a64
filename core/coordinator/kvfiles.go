package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/objstore"
)

// kvTimeout bounds one run over the files of KV snapshots: a store that does not
// answer fails it, and the next run goes on with what is left.
const kvTimeout = 10 * time.Minute

// cleanKV deletes the destroyed files of KV snapshots whose grace is over, as the
// engine does with objects:
//
//	destroyed DestroyGrace ago, by the metadata clock, and
//	below the read horizon: no node uses a view that names it any more, and
//	the object store remembers that entry: a database that goes back does not name
//	it again.
//
// The metadata forget a file after the store has deleted it.
func (c *Coordinator) cleanKV(ctx context.Context) error {
	if _, ok := c.held(); !ok {
		return loop.ErrIdle
	}
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	view := c.deps.Meta.View()
	before := c.clock.nowMs(view) - c.cfg.DestroyGrace.Milliseconds()
	var waiting []kvplan.Destroyed
	for d := range view.DestroyedKV() {
		if d.DestroyedMs <= before {
			waiting = append(waiting, d)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	horizon, err := metalog.ReadHorizon(ctx, c.deps.Log, c.deps.Meta)
	if err != nil {
		return fmt.Errorf("delete files of KV snapshots: %w", err)
	}
	remembered, err := c.deps.Head.Covered(ctx)
	if err != nil {
		return fmt.Errorf("delete files of KV snapshots: %w", err)
	}
	due := slices.DeleteFunc(waiting, func(d kvplan.Destroyed) bool { return d.Index > min(horizon, remembered) })
	var errs []error
	for chunk := range slices.Chunk(due, objstore.DeleteMax) {
		errs = append(errs, c.deleteKV(ctx, chunk))
	}
	return errors.Join(errs...)
}

// deleteKV deletes and forgets what it can; the rest is tried again.
func (c *Coordinator) deleteKV(ctx context.Context, due []kvplan.Destroyed) error {
	keys := make([]string, len(due))
	for i, d := range due {
		keys[i] = d.Key()
	}
	left, err := deleteEach(ctx, c.deps.Objects, keys)
	var gone []kvplan.BucketFile
	for i, d := range due {
		if !left[keys[i]] {
			gone = append(gone, d.BucketFile)
		}
	}
	if len(gone) == 0 {
		return err
	}
	if e := c.propose(ctx, cluster.ForgetKVFilesCommand(gone)); e != nil {
		return errors.Join(err, fmt.Errorf("forget %d deleted files of KV snapshots: %w", len(gone), e))
	}
	c.logger.Debug("files of KV snapshots deleted", "files", len(gone))
	return err
}

// deleteEach deletes keys, at most objstore.DeleteMax, and answers those that may
// still be there.
func deleteEach(ctx context.Context, store objstore.Store, keys []string) (left map[string]bool, err error) {
	left = map[string]bool{}
	r, err := store.DeleteBatch(ctx, keys)
	if err != nil {
		for _, k := range keys {
			left[k] = true
		}
		return left, fmt.Errorf("delete %d files of KV snapshots: %w", len(keys), err)
	}
	var first error
	for i, k := range keys {
		if e := r.Errors[i]; e != nil {
			left[k] = true
			first = errors.Join(first, e)
		}
	}
	if first != nil {
		return left, fmt.Errorf("delete files of KV snapshots, %d of %d are left: %w", len(left), len(keys), first)
	}
	return left, nil
}

// sweepKV deletes files of KV snapshots that nothing names and nothing ever will:
// uploads that no commit followed, late PUTs of former leaders, what a dropped bucket's
// leader was uploading. Never files of a leadership that goes on: their commit may be
// under way. Nor files of a registration of before the metadata went back or were
// restored, whether they know it or not: they may be what was lost. A run that did not
// come to the end is gone on with by the next.
func (c *Coordinator) sweepKV(ctx context.Context) error {
	if _, ok := c.held(); !ok {
		return loop.ErrIdle
	}
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	view := c.deps.Meta.View()
	nonces := map[uint64]bool{}
	for w := range view.WALs() {
		nonces[w.ID.Nonce] = uint64(w.ID.Epoch) > view.TimeLine()
	}
	var errs []error
	for {
		page, err := c.deps.Objects.List(ctx, objstore.ListRequest{Prefix: kvplan.Prefix, StartAfter: c.kvSwept, Limit: objstore.DeleteMax})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("sweep %s: %w", kvplan.Prefix, err))...)
		}
		var dead []string
		for _, o := range page.Objects {
			f, ok := kvplan.ParseKey(o.Key)
			if ok && nonces[f.Nonce] && view.KVOrphan(f) && time.Since(o.Modified) >= c.cfg.OrphanAge {
				dead = append(dead, o.Key)
			}
		}
		if len(dead) > 0 {
			left, err := deleteEach(ctx, c.deps.Objects, dead)
			errs = append(errs, err)
			c.logger.Info("files of KV snapshots that nothing named were deleted", "files", len(dead)-len(left))
		}
		if !page.More || len(page.Objects) == 0 {
			c.kvSwept = ""
			return errors.Join(errs...)
		}
		c.kvSwept = page.Objects[len(page.Objects)-1].Key
	}
}
