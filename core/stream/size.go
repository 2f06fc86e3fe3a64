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

// Bytes is about how many bytes the uploaded part of [from, to) takes in the store: of a
// block that is partly in it, the share of its offsets. It reads object indexes, which
// are cached. Errors as of Read.
func (s *Stream) Bytes(ctx context.Context, from, to mink.Offset) (int64, error) {
	var n int64
	err := s.onView(func(v plan.Stream) error {
		n = 0
		for _, r := range v.Below(to) {
			if r.End <= from {
				continue
			}
			src, err := s.engine.openSource(ctx, r.Object, false)
			if err != nil {
				return err
			}
			live, _ := liveBytes(src, []plan.ObjectRange{{Stream: s.id, Start: max(r.Start, from, v.Start), End: r.End}})
			n += live
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("bytes of stream %d: %w", s.id, err)
	}
	return n, nil
}

// OffsetForBytes answers the largest start of a block behind which, with the block, the
// uploaded part has at least so many bytes; false when it has fewer in all. Cost and
// errors as of Bytes.
func (s *Stream) OffsetForBytes(ctx context.Context, bytes int64) (at mink.Offset, ok bool, err error) {
	err = s.onView(func(v plan.Stream) error {
		left := bytes
		at, ok = 0, false
		for _, r := range slices.Backward(v.Ranges) {
			src, err := s.engine.openSource(ctx, r.Object, false)
			if err != nil {
				return err
			}
			blocks := src.index.BlocksFrom(s.id, max(r.Start, v.Start))
			for len(blocks) > 0 && blocks[len(blocks)-1].Start >= r.End {
				blocks = blocks[:len(blocks)-1]
			}
			for k := range blocks {
				b := &blocks[len(blocks)-1-k]
				if left -= b.Len(); left <= 0 {
					at, ok = max(b.Start, r.Start, v.Start), true
					return nil
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("last %d bytes of stream %d: %w", bytes, s.id, err)
	}
	return at, ok, nil
}

// onView calls f with the stream as the view has it, and anew with a newer view when an
// object that it named is gone.
func (s *Stream) onView(f func(plan.Stream) error) error {
	for try := 0; ; try++ {
		v, ok := s.engine.deps.Meta.View().Stream(s.id)
		if !ok {
			return mink.ErrNotExist
		}
		err := f(v)
		if err == nil || !errors.Is(err, objstore.ErrNotExist) || try == viewRetries {
			if err != nil {
				err = classify(err)
			}
			return err
		}
	}
}
