package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// clean cleans the buckets of compacted topics that are due, one after the other, the
// dirtiest first: a cleaning may take the memory of a large map, and rewrites are in no
// hurry. A bucket that a map's room was too small for has another turn when the others
// have had theirs. A bucket that fails does not hold up the others.
func (b *buckets) clean(ctx context.Context) error {
	var errs []error
	failed := map[mink.StreamID]bool{}
	for again := true; again && ctx.Err() == nil; {
		again = false
		due, err := b.dirty(ctx, failed)
		errs = append(errs, err...)
		for _, d := range due {
			if ctx.Err() != nil {
				break
			}
			more, err := b.cleanOne(ctx, d)
			if err != nil {
				failed[d.bucket.id] = true
				errs = append(errs, fmt.Errorf("bucket %s: %w", d.bucket.ref, err))
			}
			again = again || more
		}
	}
	return errors.Join(errs...)
}

// dirtyBucket is a bucket that is due.
type dirtyBucket struct {
	bucket *bucket
	state  tablet.CleanState
}

// ratio is the share of bytes that no cleaning has looked at.
func (d dirtyBucket) ratio() float64 {
	return float64(d.state.DirtyBytes) / float64(max(d.state.CleanBytes+d.state.DirtyBytes, 1))
}

func (b *buckets) dirty(ctx context.Context, failed map[mink.StreamID]bool) (due []dirtyBucket, errs []error) {
	now := time.Now().UnixMilli()
	for _, e := range b.snapshot() {
		if e.log == nil || failed[e.id] || ctx.Err() != nil {
			continue
		}
		st, err := e.log.CleanState(ctx, now)
		switch {
		case err != nil && !errors.Is(err, mink.ErrClosed): // closed: led elsewhere, or dropped
			failed[e.id] = true
			errs = append(errs, fmt.Errorf("bucket %s: %w", e.ref, err))
		case err == nil && st.Due != "":
			due = append(due, dirtyBucket{e, st})
		}
	}
	slices.SortStableFunc(due, func(x, y dirtyBucket) int { return cmp.Compare(y.ratio(), x.ratio()) })
	return due, errs
}

// cleanOne does one cleaning; one that the bucket's other work made stale waits for the
// next run.
func (b *buckets) cleanOne(ctx context.Context, d dirtyBucket) (more bool, err error) {
	n := b.inc.node
	start := time.Now()
	res, err := d.bucket.log.Clean(ctx, tablet.CleanOptions{NowMs: start.UnixMilli(), MapBytes: n.cfg.CleanMapBytes})
	level := slog.LevelDebug
	switch {
	case errors.Is(err, mink.ErrConflict):
		n.logger.Debug("a cleaning was overtaken and waits", "bucket", d.bucket.ref.String(), "error", err)
		return false, nil
	case errors.Is(err, mink.ErrClosed), errors.Is(err, mink.ErrFenced):
		return false, nil
	case err != nil:
		return false, err
	case res.Removed > 0:
		level = slog.LevelInfo
	}
	n.logger.Log(ctx, level, "bucket cleaned", "bucket", d.bucket.ref.String(), "why", string(d.state.Due), "upper", res.Upper,
		"kept", res.Kept, "removed", res.Removed, "tombstones_removed", res.Tombstones, "bytes_before", d.state.CleanBytes+d.state.DirtyBytes,
		"bytes", res.Bytes, "more", res.More, "took", time.Since(start).Round(time.Millisecond).String())
	return res.More, nil
}
