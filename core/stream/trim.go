package stream

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Trim raises the stream's start to `to`, clamped to the high watermark. What
// lies above the latest committed checkpoint must stay until the next upload
// brings a newer one: that part of the trim is held and carried out then. nil
// means that the trim is applied as far as it goes now, and the rest is held.
func (s *Stream) Trim(ctx context.Context, to mink.Offset) error {
	_, some, err := s.ask(to)
	if err != nil || !some {
		return err
	}
	return s.engine.trim(ctx, []*Stream{s})
}

// ask notes a trim as wanted, up to the high watermark; some is false when the stream
// begins there already.
func (s *Stream) ask(to mink.Offset) (at mink.Offset, some bool, err error) {
	to = min(to, s.HighWatermark())
	if to <= s.Start() {
		return to, false, nil
	}
	s.mu.RLock()
	closed := s.mu.closed
	s.mu.RUnlock()
	if closed != nil {
		return to, false, fmt.Errorf("trim to %d: %w", to, closed)
	}
	s.want(to)
	return to, true, nil
}

// Discard is Trim that does not wait for sinks which took nothing since giveUpMs: what
// they lack is noted as wanted. What an upload holds of it is held as Trim's, and then
// waits for sinks too.
func (s *Stream) Discard(ctx context.Context, to mink.Offset, giveUpMs int64) error {
	to, some, err := s.ask(to)
	if err != nil || !some {
		return err
	}
	e := s.engine
	v, ok := e.deps.Meta.View().Stream(s.id)
	if to = min(to, e.trimLimit(v)); !ok || to <= s.Start() {
		return nil
	}
	if err := e.deps.Meta.TrimStreams(ctx, []plan.Trim{{Stream: s.id, Start: to, GiveUpMs: giveUpMs}}); err != nil {
		return fmt.Errorf("trim to %d: %w", to, err)
	}
	if v, ok := e.deps.Meta.View().Stream(s.id); ok {
		s.raiseStart(v.Start)
	}
	return nil
}

// HeldTrim is the start that Trim was asked for last and has not reached, and how far
// uploads and checkpoints let it go by now; held is false when nothing is held. Other
// bounds of the metadata may lie lower.
func (s *Stream) HeldTrim() (want, limit mink.Offset, held bool) {
	want = mink.Offset(s.trimTo.Load())
	if want <= s.Start() {
		return 0, 0, false
	}
	limit = s.Start()
	if v, ok := s.engine.deps.Meta.View().Stream(s.id); ok {
		limit = s.engine.trimLimit(v)
	}
	return want, limit, true
}

// want remembers the highest start that was asked for.
func (s *Stream) want(to mink.Offset) {
	for {
		held := s.trimTo.Load()
		if int64(to) <= held || s.trimTo.CompareAndSwap(held, int64(to)) {
			return
		}
	}
}

// Trim is Stream.Trim for many streams in one command: retention. Streams that
// are not open here are skipped.
func (e *Engine) Trim(ctx context.Context, trims []plan.Trim) error {
	var streams []*Stream
	e.app.Lock()
	for _, t := range trims {
		if s := e.app.streams[t.Stream]; s != nil {
			s.want(min(t.Start, s.HighWatermark()))
			streams = append(streams, s)
		}
	}
	e.app.Unlock()
	return e.trim(ctx, streams)
}

// flushTrims carries out what was held.
func (e *Engine) flushTrims(ctx context.Context) error { return e.trim(ctx, e.openStreams()) }

// trimLimit is how far a stream may be trimmed now.
func (e *Engine) trimLimit(v plan.Stream) mink.Offset {
	if e.deps.Folder != nil && v.Checkpoint.IsZero() {
		return v.Start
	}
	return v.TrimLimit()
}

// trim proposes one command for the streams whose wanted start can move.
func (e *Engine) trim(ctx context.Context, streams []*Stream) error {
	view := e.deps.Meta.View()
	var trims []plan.Trim
	var moved []*Stream
	for _, s := range streams {
		want := mink.Offset(s.trimTo.Load())
		if want <= s.Start() {
			continue
		}
		v, ok := view.Stream(s.id)
		if !ok {
			continue
		}
		if to := min(want, e.trimLimit(v)); to > s.Start() {
			trims = append(trims, plan.Trim{Stream: s.id, Start: to})
			moved = append(moved, s)
		}
	}
	if len(trims) == 0 {
		return nil
	}
	if err := e.deps.Meta.TrimStreams(ctx, trims); err != nil {
		return fmt.Errorf("trim %d streams: %w", len(trims), err)
	}
	view = e.deps.Meta.View()
	for _, s := range moved {
		if v, ok := view.Stream(s.id); ok {
			s.raiseStart(v.Start)
		}
	}
	return nil
}

func (s *Stream) raiseStart(to mink.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(to) > s.start.Load() {
		s.start.Store(int64(to))
		s.wake()
	}
}
