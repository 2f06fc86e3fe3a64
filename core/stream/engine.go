package stream

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/stream/cache"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Deps is what an engine works on. It owns none of it.
type Deps struct {
	Objects  objstore.Store // stream objects
	WALStore objstore.Store // write-ahead log; often the same
	WAL      plan.WALID     // this incarnation; registered, its log not begun
	Meta     Meta
	Folder   Folder       // nil: streams have no checkpoints
	Logger   *slog.Logger // nil: none
}

// Engine holds all streams that one incarnation of a node leads. It keeps
// nothing on the node: after a crash another incarnation recovers its WAL.
//
// Lock order: app, then Stream.mu, then queue. No lock is held over I/O, a
// channel operation that can wait, or a callback.
type Engine struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	wal  logWriter

	// app is the append mutex: the open bulk and what every append touches.
	app struct {
		sync.Mutex
		open     *bulk
		bulks    uint64    // number of the open one
		openedAt time.Time // first append of the open bulk
		hurried  uint64    // number of the bulk that is sealed at once: a drain waits for it
		pinned   int64     // accounted bytes of sealed bulks that are not uploaded
		streams  map[mink.StreamID]*Stream
		closing  map[mink.StreamID]*Stream // closed, with records not yet uploaded
		scratch  []entry
		draining bool
		failed   error

		background context.Context // of spawned work; nil before Run
	}

	// queue holds the sealed bulks in slot order.
	queue struct {
		sync.Mutex
		evictable []*bulk   // uploaded, still cached; oldest first
		acked     []*bulk   // acknowledged, not uploaded
		inflight  int       // submitted, not acknowledged
		idleSince time.Time // inflight is 0; zero: since the beginning
		cached    int64     // accounted bytes of all of these
	}

	uploads    uploadState
	compaction compactState
	cleaning   chan struct{} // held by the one CleanNow at work
	left       leftovers
	parts      objstore.Multiparter // of Objects; nil: merges write whole objects
	horizon    horizon
	loops      []*loop.Loop
	blocks     *cache.Cache[blockKey, []Frame]
	indexes    *cache.Cache[plan.ObjectID, *object.Index]
	ahead      *semaphore.Weighted // bytes of all readaheads
	prefetch   sync.WaitGroup      // spawned work
	stats      counters

	committerWake signal // the open bulk may be due
	ackedWake     signal // a bulk was acknowledged
	failedc       chan struct{}
}

// logWriter is what the engine needs of *wal.Writer, which says what each does.
type logWriter interface {
	Window() uint16
	Next(ctx context.Context) (slot uint64, err error)
	Submit(ctx context.Context, chunks [][]byte, crc uint32, done func(slot uint64, err error)) (uint64, error)
	Run(ctx context.Context) error
}

// New makes an engine; it does no I/O until Run. The config must be valid.
func New(cfg Config, deps Deps) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Objects == nil || deps.WALStore == nil || deps.Meta == nil {
		return nil, fmt.Errorf("new stream engine: %w: %w", errNoDeps, mink.ErrInvalid)
	}
	log := deps.Logger
	if log == nil {
		log = discardLogger
	}
	wc := wal.Default()
	wc.Window, wc.GiveUpAfter = cfg.WALWindow, cfg.WALGiveUpAfter
	wc.AttemptTimeout = min(wc.AttemptTimeout, cfg.WALGiveUpAfter)
	w, err := wal.NewWriter(wc, deps.WALStore, deps.WAL, log)
	if err != nil {
		return nil, err
	}
	return newEngine(cfg, deps, log, w), nil
}

func newEngine(cfg Config, deps Deps, log *slog.Logger, w logWriter) *Engine {
	e := &Engine{cfg: cfg, deps: deps, log: log, wal: w}
	e.parts, e.cfg.CompactPartBytes, e.cfg.Compaction.ObjectBytes = partsOf(deps.Objects, cfg)
	e.horizon.index = deps.Meta.View().Index()
	e.openBulk(nil)
	e.app.streams = map[mink.StreamID]*Stream{}
	e.app.closing = map[mink.StreamID]*Stream{}
	e.blocks = cache.New[blockKey, []Frame](cfg.BlockCacheBytes)
	e.indexes = cache.New[plan.ObjectID, *object.Index](cfg.IndexCacheBytes)
	e.ahead = semaphore.NewWeighted(cfg.ReadaheadBudget)
	e.committerWake, e.ackedWake = newSignal(), newSignal()
	e.failedc = make(chan struct{})
	e.loops = e.newLoops()
	e.uploads.turn, e.compaction.turn, e.cleaning = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	e.compaction.checked, e.compaction.seed = map[plan.ObjectID]uint64{}, maphash.MakeSeed()
	e.compaction.bad, e.compaction.rewriting.of = map[plan.ObjectID]time.Time{}, map[plan.ObjectID]int{}
	return e
}

var discardLogger = slog.New(slog.DiscardHandler)

// errStop ends the loops of a drained engine.
var errStop = errors.New("stream engine stopped")

// Run does the engine's work until ctx ends or the WAL is fenced or given up.
// When ctx ends it drains first: what was admitted is acknowledged, then
// uploaded, within DrainTimeout. It returns when all that it started is gone:
// nil after a drain, an error that wraps mink.ErrFenced when the epoch is lost
// (every stream has failed with it). Call it once.
func (e *Engine) Run(ctx context.Context) error {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(errStop)
	e.app.Lock()
	e.app.background = work
	e.app.Unlock()
	var g errgroup.Group
	g.Go(func() error {
		if err := e.wal.Run(work); err != nil && work.Err() == nil {
			e.fail(fmt.Errorf("write-ahead log %s: %w", e.deps.WAL, err))
		}
		return nil
	})
	g.Go(func() error { e.runCommitter(work); return nil })
	for _, l := range e.loops {
		g.Go(func() error { return l.Run(work) })
	}
	var drained error
	g.Go(func() error {
		select {
		case <-e.failedc:
		case <-ctx.Done():
			drained = e.drain(work)
		}
		e.fail(fmt.Errorf("stream engine of wal %s: %w", e.deps.WAL, errStopped))
		cancel(errStop)
		return nil
	})
	_ = g.Wait() // no member answers an error: they fail the engine
	e.prefetch.Wait()
	if err := e.failure(); !errors.Is(err, errStopped) {
		return err
	}
	return drained
}

// errStopped is what streams of a stopped engine answer.
var errStopped = fmt.Errorf("the engine has stopped: %w", mink.ErrClosed)

// drain acknowledges and uploads what was admitted, as far as the time allows.
// What was not uploaded is recovered from the WAL; what was not acknowledged has
// an unknown fate, which is an error.
func (e *Engine) drain(work context.Context) error {
	ctx, cancel := context.WithTimeout(work, e.cfg.DrainTimeout)
	defer cancel()
	e.app.Lock()
	e.app.draining = true
	e.app.Unlock()
	e.committerWake.signal()
	if err := e.waitAcked(ctx); err != nil {
		return fmt.Errorf("stop wal %s: not all appends were acknowledged: %w", e.deps.WAL, err)
	}
	if err := e.UploadNow(ctx); err != nil {
		e.log.Warn("stop: the last upload failed; recovery will read the write-ahead log", "wal", e.deps.WAL.String(), "err", err)
	}
	return nil
}

// waitAcked waits until nothing is open or in flight.
func (e *Engine) waitAcked(ctx context.Context) error {
	for {
		e.app.Lock()
		e.queue.Lock()
		idle := len(e.app.open.entries) == 0 && e.queue.inflight == 0
		e.queue.Unlock()
		err := e.app.failed
		e.app.Unlock()
		if err != nil {
			return err
		}
		if idle {
			return nil
		}
		select {
		case <-e.ackedWake:
		case <-e.failedc:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fail ends the epoch: the first error sticks, every stream closes with it.
func (e *Engine) fail(err error) {
	e.app.Lock()
	if e.app.failed != nil {
		e.app.Unlock()
		return
	}
	if !errors.Is(err, mink.ErrFenced) && !errors.Is(err, mink.ErrClosed) {
		err = fmt.Errorf("%w: %w", mink.ErrFenced, err)
	}
	e.app.failed = err
	b := e.app.open
	e.openBulk(nil)
	streams := make([]*Stream, 0, len(e.app.streams))
	for _, s := range e.app.streams {
		streams = append(streams, s)
	}
	e.app.Unlock()
	b.ticket.err = err
	close(b.ticket.done)
	for _, s := range streams {
		s.shut(fmt.Errorf("stream %d: %w", s.id, err))
	}
	close(e.failedc)
}

func (e *Engine) failure() error {
	e.app.Lock()
	defer e.app.Unlock()
	return e.app.failed
}

// signal wakes one waiter; further signals before it looks are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) signal() {
	select {
	case s <- struct{}{}:
	default:
	}
}
