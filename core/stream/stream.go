package stream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// segment is one sealed, acknowledged bulk's part of a stream's log cache.
type segment struct {
	bulk *bulk
	run  int // in bulk.runs
}

func (g segment) r() *run { return &g.bulk.runs[g.run] }

// Stream is one stream that this node leads. Safe for concurrent use.
//
//	Start            CheckEnd    committed end     HighWatermark      LogEnd
//	  |  objects in the store  |  objects    |  log cache   |  on its way  |
type Stream struct {
	engine *Engine
	id     mink.StreamID
	epoch  mink.LeaderEpoch

	start  atomic.Int64
	hw     atomic.Int64
	logEnd atomic.Int64 // written under engine.app

	// Guarded by engine.app.
	app struct {
		bulk   uint64 // number of the bulk in which run is this stream's; not a pointer, or a silent stream would keep a bulk for ever
		run    int
		pinned int64 // bytes appended and not yet uploaded
		closed bool
		drains bool // for good
	}

	mu struct {
		sync.RWMutex
		chain   []segment     // offset order, contiguous, ends at hw
		changed chan struct{} // nil: nobody waits
		closed  error         // nil: open
	}

	ckpt    checkpoints
	reads   cursors
	trimTo  atomic.Int64 // wanted start that waits for a checkpoint
	checkTo atomic.Int64 // the next upload brings a checkpoint up to here
}

// Open admits appends to a stream under its leader epoch. The metadata view
// must name this engine's WAL and the epoch as the owner: mink.ErrFenced when a
// newer one owns it, mink.ErrUnavailable when the view is not there yet,
// mink.ErrNotExist when the stream is gone. mink.ErrExists when it is open.
// mink.ErrUnavailable also while records of an earlier Open wait for upload.
func (e *Engine) Open(ctx context.Context, id mink.StreamID, epoch mink.LeaderEpoch) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open stream %d: %w", id, err)
	}
	s := &Stream{engine: e, id: id, epoch: epoch}
	s.app.run = -1
	e.app.Lock()
	defer e.app.Unlock()
	if e.app.failed != nil {
		return nil, fmt.Errorf("open stream %d: %w", id, e.app.failed)
	}
	v, err := e.ownedView(id, epoch)
	if err != nil {
		return nil, err
	}
	if old := e.app.streams[id]; old != nil {
		return nil, fmt.Errorf("open stream %d under epoch %d: it is open under %d: %w", id, epoch, old.epoch, mink.ErrExists)
	}
	if old := e.app.closing[id]; old != nil && v.End < old.LogEnd() {
		e.hurryUpload()
		return nil, fmt.Errorf("open stream %d: records up to %d wait for upload, committed end %d: %w", id, old.LogEnd(), v.End, mink.ErrUnavailable)
	}
	s.start.Store(int64(v.Start))
	s.hw.Store(int64(v.End))
	s.logEnd.Store(int64(v.End))
	e.app.streams[id] = s
	return s, nil
}

func (e *Engine) ownedView(id mink.StreamID, epoch mink.LeaderEpoch) (plan.Stream, error) {
	v, ok := e.deps.Meta.View().Stream(id)
	me := plan.Owner{Node: e.deps.WAL.Node, NodeEpoch: e.deps.WAL.Epoch, LeaderEpoch: epoch}
	switch {
	case !ok:
		return v, fmt.Errorf("open stream %d: %w", id, mink.ErrNotExist)
	case v.Owner.LeaderEpoch > epoch || v.Owner.LeaderEpoch == epoch && v.Owner != me:
		return v, fmt.Errorf("open stream %d under epoch %d: owned by %+v: %w", id, epoch, v.Owner, mink.ErrFenced)
	case v.Owner != me:
		return v, fmt.Errorf("open stream %d: the view is at epoch %d, not yet at %d: %w", id, v.Owner.LeaderEpoch, epoch, mink.ErrUnavailable)
	}
	return v, nil
}

// ID is the stream's.
func (s *Stream) ID() mink.StreamID { return s.id }

// LeaderEpoch is the epoch it was opened under.
func (s *Stream) LeaderEpoch() mink.LeaderEpoch { return s.epoch }

// Start is the first offset that is kept.
func (s *Stream) Start() mink.Offset { return mink.Offset(s.start.Load()) }

// HighWatermark is the end of what is durable and readable.
func (s *Stream) HighWatermark() mink.Offset { return mink.Offset(s.hw.Load()) }

// LogEnd is the next offset to be assigned: past what is on its way.
func (s *Stream) LogEnd() mink.Offset { return mink.Offset(s.logEnd.Load()) }

// Changed is closed at the next advance of the high watermark, trim or close.
// Take it before looking at what it guards.
func (s *Stream) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.changed == nil {
		s.mu.changed = make(chan struct{})
		if s.mu.closed != nil {
			close(s.mu.changed)
		}
	}
	return s.mu.changed
}

// Close refuses further appends and reads. Admitted appends go on to be
// acknowledged and uploaded as long as the metadata says that this node owns
// the stream.
func (s *Stream) Close() {
	s.shut(fmt.Errorf("stream %d: %w", s.id, mink.ErrClosed))
}

func (s *Stream) shut(why error) {
	e := s.engine
	e.app.Lock()
	s.app.closed = true
	if e.app.streams[s.id] == s {
		delete(e.app.streams, s.id)
		if s.app.pinned > 0 {
			e.app.closing[s.id] = s
		}
	}
	e.app.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed != nil {
		return
	}
	s.mu.closed = why
	s.mu.chain = nil
	s.wake()
}

// wake needs s.mu held.
func (s *Stream) wake() {
	if s.mu.changed == nil {
		return
	}
	select {
	case <-s.mu.changed: // closed for good
	default:
		close(s.mu.changed)
	}
	if s.mu.closed == nil {
		s.mu.changed = nil
	}
}

// publish makes an acknowledged run readable.
func (s *Stream) publish(g segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed == nil {
		s.mu.chain = append(s.mu.chain, g)
	}
	s.hw.Store(int64(g.r().end))
	s.wake()
}

// evict forgets the segments up to the bulk's. Two evictions may be under way at
// once, and the one of the later bulk come first: it takes the older ones along,
// which have left the queue by then. Nothing is left when the stream was closed
// since, or opened after the bulk.
func (s *Stream) evict(b *bulk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.mu.chain) > 0 && s.mu.chain[0].bulk.seq <= b.seq {
		s.mu.chain[0] = segment{}
		s.mu.chain = s.mu.chain[1:]
	}
	if len(s.mu.chain) == 0 {
		s.mu.chain = nil
	}
}

// cached copies the segments from the one that holds `from` until they hold
// about maxBytes. It answers where the cache begins; hw when it is empty.
func (s *Stream) cached(from mink.Offset, maxBytes int64) (out []segment, begins mink.Offset, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mu.closed != nil {
		return nil, 0, s.mu.closed
	}
	c := s.mu.chain
	if len(c) == 0 {
		return nil, mink.Offset(s.hw.Load()), nil
	}
	begins = c[0].r().start
	if from < begins {
		return nil, begins, nil
	}
	i, _ := slices.BinarySearchFunc(c, from, func(g segment, at mink.Offset) int {
		if g.r().end <= at {
			return -1
		}
		return 1
	})
	for ; i < len(c); i++ {
		out = append(out, c[i])
		if maxBytes -= c[i].r().frameBytes; maxBytes <= 0 && len(out) > 1 {
			break
		}
	}
	return out, begins, nil
}
