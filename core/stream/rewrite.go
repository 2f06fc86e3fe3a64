package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// CleanLimit answers how far a rewrite may go now, and what the last one left. Frames
// that are not uploaded, and those that the replay of the newest checkpoint may read,
// stay as they are.
func (s *Stream) CleanLimit() (mink.Offset, plan.Cleaned, error) {
	v, ok := s.engine.deps.Meta.View().Stream(s.id)
	if !ok {
		return 0, plan.Cleaned{}, fmt.Errorf("stream %d: %w", s.id, mink.ErrNotExist)
	}
	return s.engine.trimLimit(v), v.Cleaned, nil
}

// AskCheckpoint makes the next upload bring a checkpoint up to what is uploaded now, when
// the newest one is older: what a recovery takes over has none, and CleanLimit would stay
// below it until the next append.
func (s *Stream) AskCheckpoint() {
	v, ok := s.engine.deps.Meta.View().Stream(s.id)
	if ok && s.engine.deps.Folder != nil && s.engine.trimLimit(v) < v.End {
		s.checkTo.Store(int64(v.End))
	}
}

// Scan yields the uploaded frames of [from, to), the first being the one that holds
// from; to is a frame's start, or the end. It reads large pieces and keeps nothing in the block cache: for background
// work on much of a stream. A frame's bytes are immutable. Errors as of Read; offsets
// below the start and gaps are passed over.
func (s *Stream) Scan(ctx context.Context, from, to mink.Offset) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		for try := 0; ; try++ {
			v, ok := s.engine.deps.Meta.View().Stream(s.id)
			if !ok {
				yield(Frame{}, fmt.Errorf("scan stream %d: %w", s.id, mink.ErrNotExist))
				return
			}
			stale := false
			for f, err := range s.frameList(ctx, v, v.Below(to), max(from, v.Start)) {
				if errors.Is(err, mink.ErrConflict) && try < viewRetries {
					stale = true
					break
				}
				if err != nil {
					err = fmt.Errorf("scan stream %d at %d: %w", s.id, from, err)
				}
				if !yield(f, err) || err != nil {
					return
				}
				from = f.End()
			}
			if !stale {
				return
			}
		}
	}
}

// frameList yields the frames of the ranges from `from` on, straight from the store.
// mink.ErrConflict: an object is named no more, the ranges are stale.
func (s *Stream) frameList(ctx context.Context, v plan.Stream, ranges []plan.Range, from mink.Offset) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		for _, r := range ranges {
			if r.End <= from {
				continue
			}
			more, err := s.frameRange(ctx, v, r, max(r.Start, from), yield)
			if err != nil {
				yield(Frame{}, s.staleOr(r.Object, err))
				return
			}
			if !more {
				return
			}
		}
	}
}

// staleOr tells an object that others have replaced from one that is missing.
func (s *Stream) staleOr(id plan.ObjectID, err error) error {
	if _, named := s.engine.deps.Meta.View().Object(id); !named && errors.Is(err, objstore.ErrNotExist) {
		return fmt.Errorf("object %+v was replaced: %w: %w", id, mink.ErrConflict, err)
	}
	return classify(err)
}

func (s *Stream) frameRange(ctx context.Context, v plan.Stream, r plan.Range, at mink.Offset, yield func(Frame, error) bool) (more bool, err error) {
	src, err := s.engine.openSource(ctx, r.Object, false)
	if err != nil {
		return false, err
	}
	in := newInput(s.engine, src)
	first := true
	blocks := in.index.BlocksFrom(v.ID, at)
	for k := range blocks {
		if blocks[k].Start >= r.End {
			break
		}
		raw, err := in.block(ctx, &blocks[k])
		if err != nil {
			return false, err
		}
		frames, err := object.DecodeBlock(blocks[k], raw)
		if err != nil {
			return false, in.wrong(v.ID, blocks[k].Start, err)
		}
		for _, f := range frames {
			if f.End() <= at || f.Start >= r.End {
				continue
			}
			if f.End() > r.End && !slices.Contains(v.Ranges, r) {
				return false, fmt.Errorf("%d is within the frame [%d, %d): %w", r.End, f.Start, f.End(), mink.ErrInvalid)
			}
			if at, first, err = in.expect(v.ID, f.Start, f.End(), at, first, r); err != nil {
				return false, err
			}
			if !yield(f, nil) {
				return false, nil
			}
		}
	}
	if at != r.End {
		return false, in.wrong(v.ID, at, fmt.Errorf("metadata says [%d, %d): %w", r.Start, r.End, mink.ErrCorrupt))
	}
	return true, nil
}

// Rewrite puts other frames in the place of those below r.Upper and answers what it
// left. Reads, appends and merges go on meanwhile; a read that began before may still bring the
// frames of before. Merges of this node leave the objects alone that it reads.
//
// Errors: mink.ErrConflict when the stream was merged or rewritten, led by others or trimmed to
// Upper meanwhile (try again later), mink.ErrInvalid for a wrong Upper or frames that do not
// fit, what Read answers, and the error of r.Frames. After an error the stream is
// as it was, or, when nobody knows the command's fate, perhaps rewritten.
func (s *Stream) Rewrite(ctx context.Context, r Rewrite) (plan.Cleaned, error) {
	e := s.engine
	v, done, err := s.planRewrite(ctx, r.Upper)
	if err != nil {
		return plan.Cleaned{}, err
	}
	defer done()
	w := &rewriter{outputs: newOutputs(e, plan.KindStream, 1), stream: s, view: v, sources: v.Below(r.Upper), upper: r.Upper}
	if err := w.run(ctx, r.Frames); err != nil {
		w.giveUp(ctx)
		return plan.Cleaned{}, fmt.Errorf("rewrite stream %d below %d: %w", s.id, r.Upper, err)
	}
	left := plan.Cleaned{End: r.Upper, Bytes: w.left, DueMs: r.DueMs()}
	err = e.deps.Meta.RewriteStream(ctx, plan.RewriteStream{
		WAL: e.deps.WAL, Stream: s.id, LeaderEpoch: s.epoch, Start: v.Start, Upper: r.Upper, Sources: w.sources,
		Objects: w.objects, Items: w.items, Cleaned: left,
	})
	w.settle(ctx, err)
	if err != nil {
		return plan.Cleaned{}, fmt.Errorf("rewrite stream %d below %d: %w", s.id, r.Upper, err)
	}
	e.stats.rewrites.Add(1)
	s.uncache(r.Upper)
	return left, nil
}

// planRewrite checks what a rewrite goes by, between two merges, and keeps later merges
// away from the objects that it reads, until done. It holds up no merge of others,
// however long the rewrite takes.
func (s *Stream) planRewrite(ctx context.Context, upper mink.Offset) (v plan.Stream, done func(), err error) {
	e := s.engine
	select {
	case e.compaction.turn <- struct{}{}:
		defer func() { <-e.compaction.turn }()
	case <-ctx.Done():
		return v, nil, ctx.Err()
	}
	if err := e.failure(); err != nil {
		return v, nil, fmt.Errorf("rewrite stream %d: %w", s.id, err)
	}
	if v, err = e.ownedView(s.id, s.epoch); err != nil {
		return v, nil, fmt.Errorf("rewrite: %w", err)
	}
	if upper > 0 && upper <= v.Start {
		return v, nil, fmt.Errorf("rewrite stream %d up to %d: it starts at %d: %w", s.id, upper, v.Start, mink.ErrConflict)
	}
	if upper <= 0 || upper < v.Cleaned.End || upper > e.trimLimit(v) {
		return v, nil, fmt.Errorf("rewrite stream %d up to %d: it starts at %d, is rewritten up to %d and may be up to %d: %w",
			s.id, upper, v.Start, v.Cleaned.End, e.trimLimit(v), mink.ErrInvalid)
	}
	return v, e.compaction.rewriting.add(v.Below(upper)), nil
}

// uncache makes reads below upper go to the objects, which this node's view names by now.
// The bulks themselves stay cached until room is needed: they hold other streams too.
func (s *Stream) uncache(upper mink.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.mu.chain) > 0 && s.mu.chain[0].r().end <= upper {
		s.mu.chain[0] = segment{}
		s.mu.chain = s.mu.chain[1:]
	}
	if len(s.mu.chain) == 0 {
		s.mu.chain = nil
	}
}

// rewriter reads the ranges of one stream front to back and writes what is made of
// them. Memory: a buffer of the input, what Frames holds back, a part of the output.
type rewriter struct {
	outputs
	stream  *Stream
	view    plan.Stream
	sources []plan.Range
	upper   mink.Offset
	left    int64 // bytes of the new frames

	old []frameSpan // frames that were read and are not covered yet
}

// frameSpan is the offsets of one frame.
type frameSpan struct{ start, end mink.Offset }

func (w *rewriter) run(ctx context.Context, frames func(iter.Seq2[Frame, error]) iter.Seq2[Frame, error]) error {
	for f, err := range frames(w.read(ctx)) {
		if err != nil {
			return err
		}
		if err := w.write(ctx, &f); err != nil {
			return err
		}
	}
	if len(w.old) > 0 {
		return fmt.Errorf("no frame was made for %v: %w", w.old, mink.ErrInvalid)
	}
	return w.finish(ctx)
}

// read yields the old frames and notes them.
func (w *rewriter) read(ctx context.Context) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		for f, err := range w.stream.frameList(ctx, w.view, w.sources, w.view.Start) {
			if err == nil {
				err = w.unchanged()
			}
			if err != nil {
				yield(Frame{}, err)
				return
			}
			w.old = append(w.old, frameSpan{f.Start, f.End()})
			if !yield(f, nil) {
				return
			}
		}
	}
}

// unchanged ends work that would be refused.
func (w *rewriter) unchanged() error {
	w.stream.mu.RLock()
	closed := w.stream.mu.closed
	w.stream.mu.RUnlock()
	if closed != nil {
		return closed
	}
	if start := w.stream.Start(); start >= w.upper {
		return fmt.Errorf("it was trimmed to %d meanwhile: %w", start, mink.ErrConflict)
	}
	return nil
}

// covered takes out the old frames that f stands for: one or several without a gap
// between them, from the first that is left.
func (w *rewriter) covered(f *Frame) error {
	at := f.Start
	for i, o := range w.old {
		if o.start != at || o.end > f.End() {
			break
		}
		if at = o.end; at == f.End() {
			w.old = slices.Delete(w.old, 0, i+1)
			return nil
		}
	}
	return fmt.Errorf("a frame was made for [%d, %d), those that were read are %v: %w", f.Start, f.End(), w.old, mink.ErrInvalid)
}

func (w *rewriter) write(ctx context.Context, f *Frame) error {
	if err := w.covered(f); err != nil {
		return err
	}
	size := int64(len(f.Bytes))
	if size > w.engine.cfg.RecordBytesMax {
		return fmt.Errorf("the frame made for [%d, %d) has %d bytes, the limit is %d: %w", f.Start, f.End(), size, w.engine.cfg.RecordBytesMax, mink.ErrTooLarge)
	}
	if err := w.makeRoom(ctx, size); err != nil {
		return err
	}
	own := *f
	own.Bytes = slices.Clone(f.Bytes) // or one small frame would keep the input's whole buffer
	if err := w.output().b.AddFrame(w.view.ID, &own); err != nil {
		return err
	}
	w.place(w.view.ID, f.Start, f.End())
	w.left += size
	return w.out.send(ctx)
}
