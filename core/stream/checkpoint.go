package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// foldBytes is how much of the log one step of a fold reads.
const foldBytes = 1 << 20

// checkpoints holds the newest state that is known of a stream, committed or
// not: it is a function of the log, so a lost upload does not make it wrong.
type checkpoints struct {
	sync.Mutex
	known bool
	data  []byte
	at    mink.Offset
}

// Checkpoint answers the latest committed checkpoint and the offset that it
// stands at; nil and the log start when there is none. Frames from there on are
// not in it.
func (s *Stream) Checkpoint(ctx context.Context) (data []byte, at mink.Offset, err error) {
	for try := 0; ; try++ {
		data, at, err = s.committedCheckpoint(ctx)
		if err == nil || !errors.Is(err, objstore.ErrNotExist) || try == viewRetries {
			if err != nil {
				err = fmt.Errorf("checkpoint of stream %d: %w", s.id, classify(err))
			}
			return data, at, err
		}
	}
}

func (s *Stream) committedCheckpoint(ctx context.Context) ([]byte, mink.Offset, error) {
	view, ok := s.engine.deps.Meta.View().Stream(s.id)
	if !ok {
		return nil, 0, mink.ErrNotExist
	}
	if view.Checkpoint.IsZero() {
		return nil, view.Start, nil
	}
	data, err := s.engine.readCheckpoint(ctx, view)
	return data, view.CheckEnd, err
}

func (e *Engine) readCheckpoint(ctx context.Context, view plan.Stream) ([]byte, error) {
	src, err := e.openSource(ctx, view.Checkpoint, false)
	if err != nil {
		return nil, err
	}
	info, ok := src.index.CheckpointOf(view.ID)
	if !ok || info.End != view.CheckEnd {
		return nil, fmt.Errorf("object %s: no checkpoint of stream %d at %d: %w", src.object.Key(), view.ID, view.CheckEnd, mink.ErrCorrupt)
	}
	raw, err := e.get(ctx, src.object, info.Pos, int64(info.Len))
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", src.object.Key(), err)
	}
	data, err := object.DecodeCheckpoint(info, raw)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", src.object.Key(), err)
	}
	return data, nil
}

// SeedCheckpoint gives the state at an offset that the owner reached by its own
// replay, so that the engine need not read the log again to go on from it. An
// older one than the engine has is ignored.
func (s *Stream) SeedCheckpoint(data []byte, at mink.Offset) {
	s.ckpt.set(slices.Clone(data), at)
}

func (c *checkpoints) set(data []byte, at mink.Offset) {
	c.Lock()
	defer c.Unlock()
	if !c.known || at > c.at {
		c.known, c.data, c.at = true, data, at
	}
}

func (c *checkpoints) get() (data []byte, at mink.Offset, known bool) {
	c.Lock()
	defer c.Unlock()
	return c.data, c.at, c.known
}

// foldTo answers the checkpoint at `to`, below the high watermark; ok is false
// when the newest known state is past it.
func (s *Stream) foldTo(ctx context.Context, to mink.Offset) (data []byte, ok bool, err error) {
	base, at, known := s.ckpt.get()
	if !known {
		if base, at, err = s.Checkpoint(ctx); err != nil {
			return nil, false, err
		}
	}
	switch {
	case at > to:
		return nil, false, nil
	case at == to && known:
		return base, true, nil
	}
	data, err = s.engine.deps.Folder.Fold(base, s.frames(ctx, at, to))
	if err != nil {
		return nil, false, fmt.Errorf("checkpoint of stream %d from %d to %d: %w", s.id, at, to, err)
	}
	s.ckpt.set(data, to)
	return data, true, nil
}

// frames reads [from, to), which begins and ends with frames.
func (s *Stream) frames(ctx context.Context, from, to mink.Offset) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		for from < to {
			res, err := s.Read(ctx, ReadRequest{From: from, MaxBytes: foldBytes})
			if err == nil && res.Next <= from {
				err = fmt.Errorf("stream %d: a read at %d, below %d, brought nothing: %w", s.id, from, to, mink.ErrCorrupt)
			}
			if err != nil {
				yield(Frame{}, err)
				return
			}
			for _, f := range res.Frames {
				if f.Start >= to {
					return
				}
				if !yield(f, nil) {
					return
				}
			}
			from = res.Next
		}
	}
}
