package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// viewRetries is how often a read takes the view anew when an object that the
// view named is gone.
const viewRetries = 3

// Read answers whole frames from the one that holds From, from the log cache,
// the block cache or the store. At the high watermark it answers none. Frames
// are shared and immutable.
//
// Errors: *mink.OutOfRangeError below the start or past the high watermark,
// mink.ErrNotCached (Cached), mink.ErrCorrupt (names object and block),
// mink.ErrUnavailable, mink.ErrClosed or mink.ErrFenced.
func (s *Stream) Read(ctx context.Context, req ReadRequest) (ReadResult, error) {
	req.MaxBytes = max(req.MaxBytes, 1)
	for try := 0; ; try++ {
		res, err := s.readOnce(ctx, req)
		if err == nil || !errors.Is(err, objstore.ErrNotExist) || try == viewRetries {
			if err != nil {
				err = fmt.Errorf("read stream %d at %d: %w", s.id, req.From, classify(err))
			}
			return res, err
		}
	}
}

// classify gives a store's error its class in mink's terms.
func classify(err error) error {
	switch {
	case errors.Is(err, mink.ErrCorrupt), errors.Is(err, mink.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, objstore.ErrCorrupt), errors.Is(err, objstore.ErrInvalid):
		// A range past the object's end: the object is not what metadata says.
		return fmt.Errorf("%w: %w", mink.ErrCorrupt, err)
	case errors.Is(err, objstore.ErrNotExist):
		return fmt.Errorf("%w: an object that metadata names is missing: %w", mink.ErrCorrupt, err)
	case errors.Is(err, objstore.ErrUnavailable), errors.Is(err, objstore.ErrThrottled), errors.Is(err, objstore.ErrUnknownOutcome), errors.Is(err, objstore.ErrUnauthorized):
		return fmt.Errorf("%w: %w", mink.ErrUnavailable, err)
	}
	return err
}

func (s *Stream) readOnce(ctx context.Context, req ReadRequest) (ReadResult, error) {
	// The cache before the view: what was evicted by then is committed, and this
	// node has applied the commit, so that a later view names it.
	segs, begins, err := s.cached(req.From, int64(req.MaxBytes))
	if err != nil {
		return ReadResult{}, err
	}
	res := ReadResult{Next: req.From, Start: s.Start(), HighWatermark: s.HighWatermark()}
	if req.From < res.Start || req.From > res.HighWatermark {
		return res, &mink.OutOfRangeError{Asked: req.From, Start: res.Start, End: res.HighWatermark}
	}
	if req.From == res.HighWatermark {
		return res, nil
	}
	if len(segs) > 0 {
		res.Frames = hotFrames(segs, req.From, req.MaxBytes)
		res.Next = res.Frames[len(res.Frames)-1].End()
		return res, nil
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	return s.readCold(ctx, req, res, begins)
}

// hotFrames reads segments, the first of which holds from.
func hotFrames(segs []segment, from mink.Offset, maxBytes int) []Frame {
	r := segs[0].r()
	entries := segs[0].bulk.entries[r.first : r.first+r.n]
	i, _ := slices.BinarySearchFunc(entries, from, func(e entry, at mink.Offset) int {
		if e.start+mink.Offset(e.span) <= at {
			return -1
		}
		return 1
	})
	var out []Frame
	for k, g := range segs {
		r := g.r()
		first := r.first
		if k == 0 {
			first += uint32(i)
		}
		if k == 0 && r.n > 0 {
			// Sized by the average: most runs have frames of one size.
			mean := int(r.frameBytes/int64(r.n)) + 1
			out = make([]Frame, 0, min(int(r.n)-i, maxBytes/mean+1))
		}
		for e := first; e < r.first+r.n; e++ {
			f := g.bulk.frame(e, r.epoch)
			if maxBytes -= len(f.Bytes); maxBytes < 0 && len(out) > 0 {
				return out
			}
			out = append(out, f)
		}
	}
	return out
}

// readCold reads from objects, up to where the log cache begins.
func (s *Stream) readCold(ctx context.Context, req ReadRequest, res ReadResult, begins mink.Offset) (ReadResult, error) {
	view, ok := s.engine.deps.Meta.View().Stream(s.id)
	if !ok {
		return res, mink.ErrNotExist
	}
	if req.From < view.Start { // trimmed since
		return res, &mink.OutOfRangeError{Asked: req.From, Start: view.Start, End: res.HighWatermark}
	}
	cur, window := s.reads.at(req.From, s.engine.cfg)
	left := req.MaxBytes
	for res.Next < begins {
		i, found := view.Find(res.Next)
		if !found || view.Ranges[i].Start > res.Next {
			next, gap := skipGap(view, res.Next)
			if !gap {
				return res, fmt.Errorf("offset %d is in no object of the view, which ends at %d: %w", res.Next, view.End, mink.ErrCorrupt)
			}
			if len(res.Frames) > 0 {
				break // the caller sees the gap as its own step
			}
			res.Next = next
			continue
		}
		full, err := s.readRange(ctx, view.Ranges[i], req.Cached, window, &res, &left)
		if err != nil {
			if len(res.Frames) > 0 && !errors.Is(err, mink.ErrCorrupt) {
				break // what is there is good; the next read meets the error
			}
			return ReadResult{Next: req.From, Start: res.Start, HighWatermark: res.HighWatermark}, err
		}
		if full {
			break
		}
	}
	s.reads.advance(cur, res.Next)
	if !req.Cached {
		s.readAhead(cur, res.Next, begins)
	}
	return res, nil
}

// skipGap answers the end of the allowed gap that holds the offset.
func skipGap(v plan.Stream, at mink.Offset) (mink.Offset, bool) {
	for _, g := range v.Gaps {
		if g.Start <= at && at < g.End {
			return g.End, true
		}
	}
	return at, false
}

// readRange appends frames of one range from res.Next on; full says that the
// request has its bytes.
func (s *Stream) readRange(ctx context.Context, r plan.Range, cachedOnly bool, window int64, res *ReadResult, left *int) (full bool, err error) {
	e := s.engine
	src, err := e.openSource(ctx, r.Object, cachedOnly)
	if err != nil {
		return false, err
	}
	blocks := src.index.BlocksFrom(s.id, res.Next)
	for k := range blocks {
		if blocks[k].Start >= r.End {
			break
		}
		if *left <= 0 && len(res.Frames) > 0 {
			return true, nil
		}
		frames, err := e.block(ctx, src, blocks[k:], r.End, cachedOnly, window)
		if err != nil {
			return false, err
		}
		for _, f := range frames {
			if f.End() <= res.Next {
				continue
			}
			if f.Start >= r.End {
				break
			}
			if f.Start > res.Next || f.End() > r.End {
				return false, fmt.Errorf("object %s, block of stream %d at %d: frame [%d, %d) where %d was expected, range [%d, %d): %w",
					src.object.Key(), s.id, blocks[k].Start, f.Start, f.End(), res.Next, r.Start, r.End, mink.ErrCorrupt)
			}
			if *left -= len(f.Bytes); *left < 0 && len(res.Frames) > 0 {
				return true, nil
			}
			res.Frames = append(res.Frames, f)
			res.Next = f.End()
		}
	}
	if res.Next < r.End {
		return false, fmt.Errorf("object %s: stream %d ends at %d, metadata says %d: %w", src.object.Key(), s.id, res.Next, r.End, mink.ErrCorrupt)
	}
	return false, nil
}
