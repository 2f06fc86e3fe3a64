package stream

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	cursorsMax = 4       // sequential cold readers that one stream tells apart
	aheadGet   = 2 << 20 // bytes of one GET of a readahead
	aheadWidth = 4       // GETs of one readahead at a time
)

// cursor is one sequential cold reader, known by where it will go on.
type cursor struct {
	next   mink.Offset // -1 while a read is under way
	ahead  mink.Offset // fetched ahead up to here
	window int64
	busy   bool // a readahead runs
}

// cursors are the latest cold readers of a stream.
type cursors struct {
	sync.Mutex
	list []*cursor // least recently used first
}

// at answers the cursor that goes on at the offset, or a new one, and how much
// its reader may fetch at a time: twice as much as the last time.
func (c *cursors) at(from mink.Offset, cfg Config) (cur *cursor, window int64) {
	c.Lock()
	defer c.Unlock()
	for i, cur := range c.list {
		if cur.next == from {
			cur.next, cur.window = -1, min(cur.window*2, cfg.ReadaheadMax)
			copy(c.list[i:], c.list[i+1:])
			c.list[len(c.list)-1] = cur
			return cur, cur.window
		}
	}
	cur = &cursor{next: -1, ahead: from, window: max(cfg.ReadaheadMin/2, 1)}
	if len(c.list) == cursorsMax {
		c.list = append(c.list[:0], c.list[1:]...)
	}
	c.list = append(c.list, cur)
	return cur, cur.window
}

func (c *cursors) advance(cur *cursor, next mink.Offset) {
	c.Lock()
	defer c.Unlock()
	cur.next = next
}

// readAhead fetches the cursor's window behind next in the background when the
// reader has proved sequential. One readahead per reader, within the budget of
// all readers.
func (s *Stream) readAhead(cur *cursor, next, end mink.Offset) {
	e := s.engine
	s.reads.Lock()
	window := cur.window
	from := max(cur.ahead, next)
	due := !cur.busy && window >= e.cfg.ReadaheadMin && from < end && e.ahead.TryAcquire(window)
	if due {
		cur.busy = true
	}
	s.reads.Unlock()
	if !due {
		return
	}
	ended := func(to mink.Offset) {
		e.ahead.Release(window)
		s.reads.Lock()
		cur.busy, cur.ahead = false, max(cur.ahead, to)
		s.reads.Unlock()
	}
	if !e.spawn(func(ctx context.Context) { ended(s.fetchAhead(ctx, from, end, window)) }) {
		ended(from)
	}
}

// fetchAhead brings about window bytes from `from` on into the block cache and
// answers where it stopped. Errors are left to the reader.
func (s *Stream) fetchAhead(ctx context.Context, from, end mink.Offset, window int64) mink.Offset {
	e := s.engine
	view, ok := e.deps.Meta.View().Stream(s.id)
	if !ok {
		return from
	}
	var g errgroup.Group
	g.SetLimit(aheadWidth)
	defer func() { _ = g.Wait() }()
	for window > 0 && from < end {
		i, ok := view.Find(from)
		if !ok {
			break
		}
		r := view.Ranges[i]
		src, err := e.openSource(ctx, r.Object, false)
		if err != nil {
			break
		}
		from, window = s.fetchRange(ctx, &g, src, r, max(from, r.Start), window)
	}
	return from
}

func (s *Stream) fetchRange(ctx context.Context, g *errgroup.Group, src source, r plan.Range, from mink.Offset, window int64) (mink.Offset, int64) {
	blocks := src.index.BlocksFrom(s.id, from)
	for len(blocks) > 0 && blocks[0].Start < r.End && window > 0 {
		size, n := blocks[0].Len(), 1
		for n < len(blocks) && blocks[n].Start < r.End && size+blocks[n].Len() <= min(aheadGet, window) {
			size += blocks[n].Len()
			n++
		}
		run := blocks[:n:n]
		g.Go(func() error {
			_, err := s.engine.block(ctx, src, run, r.End, false, size)
			return err
		})
		from, window, blocks = run[n-1].End(), window-size, blocks[n:]
	}
	if len(blocks) == 0 || blocks[0].Start >= r.End {
		from = r.End
	}
	return from, window
}

// spawn runs f in the background while the engine runs; Run waits for it.
func (e *Engine) spawn(f func(context.Context)) bool {
	e.app.Lock()
	defer e.app.Unlock()
	if e.app.background == nil || e.app.failed != nil {
		return false
	}
	ctx := e.app.background
	e.prefetch.Go(func() { f(ctx) })
	return true
}
