package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// cleaner cleans the buckets of compacted topics. Its fields are its loop's.
type cleaner struct {
	buckets *buckets
	every   time.Duration // of the loop
	failed  map[mink.StreamID]cleanFailure
}

// cleanFailure is a bucket whose cleaning failed, perhaps after it had read much of it.
type cleanFailure struct {
	err   error
	times int // in a row
	retry time.Time
}

// cleanRetryMax bounds how many intervals of the loop a failing bucket waits.
const cleanRetryMax = 64

func newCleaner(b *buckets, every time.Duration) *cleaner {
	return &cleaner{buckets: b, every: every, failed: map[mink.StreamID]cleanFailure{}}
}

// clean cleans the buckets that are due, one after the other, the dirtiest first: a cleaning
// may take the memory of a large map, and rewrites are in no hurry. A bucket that a map's
// room was too small for has another turn when the others have had theirs. A bucket that
// fails does not hold up the others; it waits longer after each failure, and its
// error is answered meanwhile.
func (c *cleaner) clean(ctx context.Context) error {
	tried := map[mink.StreamID]bool{} // and failed, in this run
	for again := true; again && ctx.Err() == nil; {
		again = false
		for _, d := range c.due(ctx, tried) {
			if ctx.Err() != nil {
				break
			}
			more, err := c.buckets.cleanOne(ctx, d)
			c.ended(d.bucket, tried, err)
			again = again || more
		}
	}
	return c.errors()
}

// ended notes how a bucket's cleaning, or the look whether it is due, went.
func (c *cleaner) ended(b *bucket, tried map[mink.StreamID]bool, err error) {
	if err == nil {
		delete(c.failed, b.id)
		return
	}
	tried[b.id] = true
	f := c.failed[b.id]
	f.err = fmt.Errorf("bucket %s: %w", b.ref, err)
	f.retry = time.Now().Add(c.every * time.Duration(min(1<<min(f.times, 16), cleanRetryMax)))
	f.times++
	c.failed[b.id] = f
}

// errors joins what is failing, of buckets that are still led here.
func (c *cleaner) errors() error {
	var errs []error
	led := map[mink.StreamID]bool{}
	for _, e := range c.buckets.snapshot() {
		led[e.id] = true
		if f, failing := c.failed[e.id]; failing {
			errs = append(errs, fmt.Errorf("%w (failed %d times in a row, next try after %s)", f.err, f.times, f.retry.UTC().Format(time.RFC3339)))
		}
	}
	maps.DeleteFunc(c.failed, func(id mink.StreamID, _ cleanFailure) bool { return !led[id] })
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

func (c *cleaner) due(ctx context.Context, tried map[mink.StreamID]bool) (due []dirtyBucket) {
	now := time.Now()
	for _, e := range c.buckets.snapshot() {
		if e.log == nil || tried[e.id] || c.failed[e.id].retry.After(now) || ctx.Err() != nil {
			continue
		}
		st, err := e.log.CleanState(ctx, now.UnixMilli())
		switch {
		case errors.Is(err, mink.ErrClosed): // led elsewhere, or dropped
		case err != nil:
			c.ended(e, tried, err)
		case st.Due != "":
			due = append(due, dirtyBucket{e, st})
		default:
			delete(c.failed, e.id)
		}
	}
	slices.SortStableFunc(due, func(x, y dirtyBucket) int { return cmp.Compare(y.ratio(), x.ratio()) })
	return due
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
