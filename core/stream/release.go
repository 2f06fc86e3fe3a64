package stream

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Drain refuses further appends for good (mink.ErrUnavailable and mink.ErrClosed) and waits until the admitted ones are
// acknowledged; reads go on. It answers the stream's end. When ctx ends first
// the stream stays closed for appends: nothing re-admits.
func (s *Stream) Drain(ctx context.Context) (mink.Offset, error) {
	e := s.engine
	e.app.Lock()
	s.app.drains = true
	if b := e.app.open; s.app.bulk == b.number {
		e.app.hurried = b.number // nobody is served until it is durable
	}
	e.app.Unlock()
	e.committerWake.signal()
	for {
		changed := s.Changed()
		if s.HighWatermark() == s.LogEnd() {
			return s.LogEnd(), nil
		}
		if err := e.failure(); err != nil {
			return 0, fmt.Errorf("drain stream %d: %w", s.id, err)
		}
		s.mu.RLock()
		closed := s.mu.closed
		s.mu.RUnlock()
		if closed != nil {
			return 0, fmt.Errorf("drain stream %d: %w", s.id, closed)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("drain stream %d: %w", s.id, ctx.Err())
		}
	}
}

// Release drains the stream and answers the command that hands it over by
// reference, to a node (0: the coordinator chooses): the WAL objects that hold
// what is not committed yet. An upload that is applied first makes the command
// stale (mink.ErrConflict): ask again. Close the stream once the command is applied.
func (s *Stream) Release(ctx context.Context, to mink.NodeID) (plan.Release, error) {
	end, err := s.Drain(ctx)
	if err != nil {
		return plan.Release{}, err
	}
	e := s.engine
	r := plan.Release{WAL: e.deps.WAL, Stream: s.id, LeaderEpoch: s.epoch, End: end, To: to}
	// The queue before the view: a bulk that has left the queue by then is
	// committed, and this node has applied the commit.
	e.queue.Lock()
	bulks := append([]*bulk(nil), e.queue.acked...)
	e.queue.Unlock()
	v, ok := e.deps.Meta.View().Stream(s.id)
	if !ok {
		return plan.Release{}, fmt.Errorf("release stream %d: %w", s.id, mink.ErrNotExist)
	}
	for _, b := range bulks {
		named := false
		for i := range b.runs {
			x := &b.runs[i]
			if x.stream != s || x.end <= v.End {
				continue
			}
			if !named {
				r.Objects, named = append(r.Objects, b.object), true
			}
			r.Items = append(r.Items, plan.Item{Stream: s.id, LeaderEpoch: s.epoch, Object: b.object.ID, Start: max(x.start, v.End), End: x.end})
		}
	}
	return r, nil
}
