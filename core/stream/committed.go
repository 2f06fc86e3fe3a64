package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Run is a piece of a stream: whole frames, in order. The first one may begin before
// the piece, and the last one end behind it.
type Run struct {
	Start, End mink.Offset // the next one starts at End
	Frames     []Frame     // none: an allowed gap
}

// Committed answers the range of a stream that the store has in objects that metadata
// name. mink.ErrNotExist: there is no such stream.
func (e *Engine) Committed(id mink.StreamID) (start, end mink.Offset, err error) {
	v, ok := e.deps.Meta.View().Stream(id)
	if !ok {
		return 0, 0, fmt.Errorf("stream %d: %w", id, mink.ErrNotExist)
	}
	return v.Start, v.End, nil
}

// ReadCommitted yields [from, to) of what is committed of any stream, led here or not,
// from the store alone. It goes through the objects once, front to back, and fetches
// ahead: at most Config.ReadaheadMax and one block are in memory beside what was
// yielded, and nothing enters the block cache. A request to the store is made on a view
// of its own, so that ReadHorizon counts it however long the whole takes; objects that
// are replaced meanwhile are looked for in a newer view. Frames' bytes are immutable.
//
// Errors: *mink.OutOfRangeError below the start, also when it has risen meanwhile, and
// past the committed end; mink.ErrNotExist, mink.ErrCorrupt (names object and block; of
// one that is missing also objstore.ErrNotExist), mink.ErrUnavailable.
func (e *Engine) ReadCommitted(ctx context.Context, id mink.StreamID, from, to mink.Offset) iter.Seq2[Run, error] {
	return func(yield func(Run, error) bool) {
		for try := 0; from < to; try++ {
			p := committedPass{engine: e, id: id, at: from, to: to}
			next, ended, err := p.run(ctx, yield)
			if ended {
				return
			}
			if next > from {
				try = 0
			}
			from = next
			if err != nil && (!errors.Is(err, errStale) || try == viewRetries) {
				yield(Run{}, fmt.Errorf("read committed stream %d at %d: %w", id, from, classify(err)))
				return
			}
		}
	}
}

// errStale: an object has left the metadata since the ranges were looked up.
var errStale = fmt.Errorf("it was replaced meanwhile, again and again: %w", mink.ErrUnavailable)

// committedGet is about how many bytes one GET of a committedPass asks for.
const committedGet = 2 << 20

// indexesAhead is how many objects' indexes are fetched before their turn: those of
// fresh uploads are many, with little of one stream in each.
const indexesAhead = 4

// committedPass reads a stream's ranges as of one view. Only the fetches of its queue
// run beside it.
//
//	          at --> to plan
//	  queue: [done][done][under way][under way]
//	yielded ^
type committedPass struct {
	engine *Engine
	id     mink.StreamID
	at, to mink.Offset
	view   plan.Stream
	rng    plan.Range         // that is being cut up
	src    source             // its object
	blocks []object.BlockInfo // what is left of it
	warmed int                // ranges whose index was asked for

	fetches sync.WaitGroup
	queue   []*piece
	bytes   int64 // in the queue
}

// piece is one GET.
type piece struct {
	Run
	rng    plan.Range
	src    source
	blocks []object.BlockInfo
	size   int64
	lent   bool // counts in the engine's budget of readaheads
	done   chan struct{}
	err    error
}

// run yields pieces and answers how far it came; ended: the caller wants no more.
func (p *committedPass) run(ctx context.Context, yield func(Run, error) bool) (next mink.Offset, ended bool, err error) {
	next = p.at
	v, ok := p.engine.deps.Meta.View().Stream(p.id)
	switch {
	case !ok:
		return next, false, mink.ErrNotExist
	case p.at < v.Start:
		return next, false, &mink.OutOfRangeError{Asked: p.at, Start: v.Start, End: v.End}
	case p.to > v.End:
		return next, false, &mink.OutOfRangeError{Asked: p.to, Start: v.Start, End: v.End}
	}
	p.view = v
	ctx, cancel := context.WithCancel(ctx)
	defer p.fetches.Wait()
	defer cancel()
	defer func() {
		for _, q := range p.queue {
			p.release(q)
		}
	}()
	var failed error // of planning; what was planned before is good
	for {
		for more := true; more && failed == nil && p.at < p.to && p.mayPlan(); {
			more, failed = p.plan(ctx)
		}
		if len(p.queue) == 0 {
			return next, false, failed
		}
		q := p.queue[0]
		select {
		case <-q.done:
		case <-ctx.Done():
			return next, false, context.Cause(ctx)
		}
		if q.err != nil {
			return next, false, q.err
		}
		if !yield(q.Run, nil) {
			return next, true, nil
		}
		next = q.End
		p.queue = p.queue[1:]
		p.release(q)
	}
}

// mayPlan says whether another piece may be fetched: one always, more within the window
// and what all readers share.
func (p *committedPass) mayPlan() bool {
	return len(p.queue) == 0 || p.bytes+committedGet <= p.engine.cfg.ReadaheadMax && len(p.queue) < indexesAhead*2
}

func (p *committedPass) release(q *piece) {
	p.bytes -= q.size
	if q.lent {
		p.engine.ahead.Release(q.size)
	}
}

// plan adds the next piece to the queue; false: all readers together have fetched enough
// ahead.
func (p *committedPass) plan(ctx context.Context) (bool, error) {
	if len(p.blocks) == 0 {
		i, found := p.view.Find(p.at)
		if !found || p.view.Ranges[i].Start > p.at {
			return true, p.planGap()
		}
		p.rng = p.view.Ranges[i]
		p.warm(ctx, i)
		var err error
		if p.src, err = p.engine.openSource(ctx, p.rng.Object, false); err != nil {
			return false, p.staleOr(p.rng.Object, err)
		}
		p.blocks = p.src.index.BlocksFrom(p.id, p.at)
		if len(p.blocks) == 0 || p.blocks[0].Start >= p.rng.End {
			return false, fmt.Errorf("object %s: stream %d is not there at %d, metadata says [%d, %d): %w", p.src.object.Key(), p.id, p.at, p.rng.Start, p.rng.End, mink.ErrCorrupt)
		}
	}
	end, n, size := min(p.rng.End, p.to), 1, p.blocks[0].Len()
	for n < len(p.blocks) && p.blocks[n].Start < end && size+p.blocks[n].Len() <= committedGet {
		size += p.blocks[n].Len() // they lie back to back
		n++
	}
	q := &piece{Run: Run{Start: p.at, End: end}, rng: p.rng, src: p.src, blocks: p.blocks[:n:n], size: size, done: make(chan struct{})}
	if len(p.queue) > 0 {
		if q.lent = p.engine.ahead.TryAcquire(size); !q.lent {
			return false, nil
		}
	}
	p.blocks = p.blocks[n:]
	if len(p.blocks) == 0 || p.blocks[0].Start >= end {
		p.blocks = nil
	} else {
		q.End = p.blocks[0].Start
	}
	p.at = q.End
	p.queue, p.bytes = append(p.queue, q), p.bytes+size
	p.fetches.Go(func() {
		defer close(q.done)
		if q.Frames, q.err = p.engine.fetchPiece(ctx, p.id, q); q.err != nil {
			q.err = p.staleOr(q.rng.Object, q.err)
		}
	})
	return true, nil
}

func (p *committedPass) planGap() error {
	next, gap := skipGap(p.view, p.at)
	if !gap {
		return fmt.Errorf("offset %d is in no object of the view, which ends at %d: %w", p.at, p.view.End, mink.ErrCorrupt)
	}
	q := &piece{Run: Run{Start: p.at, End: min(next, p.to)}, done: make(chan struct{})}
	close(q.done)
	p.queue, p.at = append(p.queue, q), q.End
	return nil
}

// warm fetches the indexes of the ranges that follow the i-th; errors are met when it is
// their turn.
func (p *committedPass) warm(ctx context.Context, i int) {
	for p.warmed = max(p.warmed, i+1); p.warmed < len(p.view.Ranges) && p.warmed <= i+indexesAhead; p.warmed++ {
		r := p.view.Ranges[p.warmed]
		if r.Start >= p.to {
			return
		}
		p.fetches.Go(func() { _, _ = p.engine.openSource(ctx, r.Object, false) })
	}
}

// staleOr tells an object that was replaced from one that is missing.
func (p *committedPass) staleOr(id plan.ObjectID, err error) error {
	if _, named := p.engine.deps.Meta.View().Object(id); !named && errors.Is(err, objstore.ErrNotExist) {
		return fmt.Errorf("object %+v: %w", id, errStale)
	}
	return err
}

// fetchPiece reads a piece's blocks with one GET and checks that its frames follow one
// another from its start to its end.
func (e *Engine) fetchPiece(ctx context.Context, id mink.StreamID, q *piece) ([]Frame, error) {
	if _, named := e.deps.Meta.View().Object(q.rng.Object); !named {
		return nil, fmt.Errorf("object %s left the metadata: %w", q.src.object.Key(), objstore.ErrNotExist)
	}
	from := q.blocks[0].Pos
	data, err := e.get(ctx, q.src.object, from, q.size)
	if err != nil {
		return nil, err
	}
	var out []Frame
	at := q.Start
	for _, b := range q.blocks {
		frames, err := object.DecodeBlock(b, data[b.Pos-from:b.Pos-from+b.Len()])
		if err != nil {
			return nil, fmt.Errorf("object %s, block of stream %d at %d: %w", q.src.object.Key(), id, b.Start, err)
		}
		for _, f := range frames {
			if f.End() <= at {
				continue
			}
			if f.Start >= q.End {
				break
			}
			if f.Start > at || f.End() > q.rng.End {
				return nil, fmt.Errorf("object %s, block of stream %d at %d: frame [%d, %d) where %d was expected, range [%d, %d): %w",
					q.src.object.Key(), id, b.Start, f.Start, f.End(), at, q.rng.Start, q.rng.End, mink.ErrCorrupt)
			}
			out = append(out, f)
			at = f.End()
		}
	}
	if at < q.End {
		return nil, fmt.Errorf("object %s: stream %d ends at %d, metadata says %d: %w", q.src.object.Key(), id, at, q.End, mink.ErrCorrupt)
	}
	return out, nil
}
