package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// OffsetForTimestamp answers the first kept frame that was committed at or after
// ts (commit), or that holds a record of ts or later; ok is false when there is
// none below the high watermark. ts in ms. Block indexes lead there; one block
// is read.
func (s *Stream) OffsetForTimestamp(ctx context.Context, ts int64, commit bool) (Frame, bool, error) {
	for try := 0; ; try++ {
		f, ok, err := s.findTimestamp(ctx, ts, commit)
		if err == nil || !errors.Is(err, objstore.ErrNotExist) || try == viewRetries {
			if err != nil {
				err = fmt.Errorf("timestamp %d in stream %d: %w", ts, s.id, classify(err))
			}
			return f, ok, err
		}
	}
}

func stamp(maxTs, commitTs int64, commit bool) int64 {
	if commit {
		return commitTs
	}
	return maxTs
}

func (s *Stream) findTimestamp(ctx context.Context, ts int64, commit bool) (Frame, bool, error) {
	segs, begins, err := s.allCached()
	if err != nil {
		return Frame{}, false, err
	}
	start := s.Start()
	if start < begins {
		f, ok, err := s.findCold(ctx, ts, commit, start, begins)
		if ok || err != nil {
			return f, ok, err
		}
	}
	for _, g := range segs {
		r := g.r()
		if r.end <= start || stamp(r.maxTs, r.lastComTs, commit) < ts {
			continue
		}
		for k := r.first; k < r.first+r.n; k++ {
			en := &g.bulk.entries[k]
			if en.start+mink.Offset(en.span) > start && stamp(en.maxTs, en.comTs, commit) >= ts {
				return g.bulk.frame(k, r.epoch), true, nil
			}
		}
	}
	return Frame{}, false, nil
}

func (s *Stream) allCached() ([]segment, mink.Offset, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mu.closed != nil {
		return nil, 0, s.mu.closed
	}
	if len(s.mu.chain) == 0 {
		return nil, mink.Offset(s.hw.Load()), nil
	}
	return slices.Clone(s.mu.chain), s.mu.chain[0].r().start, nil
}

func (s *Stream) findCold(ctx context.Context, ts int64, commit bool, start, end mink.Offset) (Frame, bool, error) {
	view, ok := s.engine.deps.Meta.View().Stream(s.id)
	if !ok {
		return Frame{}, false, mink.ErrNotExist
	}
	ranges := view.Ranges
	if commit { // commit times never fall: bisect the ranges by their last block
		var failed error
		i, _ := slices.BinarySearchFunc(ranges, ts, func(r plan.Range, ts int64) int {
			last, err := s.lastBlock(ctx, r)
			if err != nil {
				failed = err
			}
			if err != nil || last.CommitTimestamp < ts {
				return -1
			}
			return 1
		})
		if failed != nil {
			return Frame{}, false, failed
		}
		ranges = ranges[i:]
	}
	for _, r := range ranges {
		if r.End <= start {
			continue
		}
		if r.Start >= end {
			break
		}
		f, ok, err := s.findInRange(ctx, r, ts, commit, max(start, r.Start), min(end, r.End))
		if ok || err != nil {
			return f, ok, err
		}
	}
	return Frame{}, false, nil
}

func (s *Stream) lastBlock(ctx context.Context, r plan.Range) (object.BlockInfo, error) {
	src, err := s.engine.openSource(ctx, r.Object, false)
	if err != nil {
		return object.BlockInfo{}, err
	}
	blocks := src.index.BlocksFrom(s.id, r.End-1)
	if len(blocks) == 0 {
		return object.BlockInfo{}, fmt.Errorf("object %s has no block of stream %d at %d: %w", src.object.Key(), s.id, r.End-1, mink.ErrCorrupt)
	}
	return blocks[0], nil
}

func (s *Stream) findInRange(ctx context.Context, r plan.Range, ts int64, commit bool, start, end mink.Offset) (Frame, bool, error) {
	src, err := s.engine.openSource(ctx, r.Object, false)
	if err != nil {
		return Frame{}, false, err
	}
	blocks := src.index.BlocksFrom(s.id, start)
	for k := range blocks {
		b := &blocks[k]
		if b.Start >= end {
			break
		}
		if stamp(b.MaxTimestamp, b.CommitTimestamp, commit) < ts {
			continue
		}
		frames, err := s.engine.block(ctx, src, blocks[k:], b.End(), false, 0)
		if err != nil {
			return Frame{}, false, err
		}
		for _, f := range frames {
			if f.End() > start && f.Start < end && stamp(f.MaxTimestamp, f.CommitTimestamp, commit) >= ts {
				return f, true, nil
			}
		}
	}
	return Frame{}, false, nil
}
