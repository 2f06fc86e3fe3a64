// Package gate stands between one process of a test's cluster and what the
// processes share: object store, metadata database.
package gate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// ErrDead is what a crashed process hears from the world.
var ErrDead = errors.New("the process is dead")

// Gate stands between one process and the world. A dead process reaches nothing
// any more; a paused one stands still in whatever call it makes, and goes on
// with the same beliefs later. A request that is on its way when its sender
// crashes, or gives up, may be carried out all the same, up to lateMax later.
// Safe for concurrent use.
type Gate struct {
	landing *sync.WaitGroup // requests on their way
	lateMax time.Duration
	dead    chan struct{} // closed by the crash

	mu struct {
		sync.Mutex
		rng    *rand.Rand
		paused chan struct{} // closed when it goes on; nil: it runs
		over   bool
	}
}

// New makes a gate that lets everything through. Every random choice comes from
// seed; landing counts the requests on their way, and must be waited for before
// what is behind the gate is closed.
func New(seed uint64, lateMax time.Duration, landing *sync.WaitGroup) *Gate {
	g := &Gate{landing: landing, lateMax: lateMax, dead: make(chan struct{})}
	g.mu.rng = rand.New(rand.NewPCG(seed, 1))
	return g
}

// Kill makes the process dead, for ever.
func (g *Gate) Kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mu.over {
		g.mu.over = true
		close(g.dead)
	}
}

// Pause makes the process stand still.
func (g *Gate) Pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.paused == nil {
		g.mu.paused = make(chan struct{})
	}
}

// Resume lets it go on.
func (g *Gate) Resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.paused != nil {
		close(g.mu.paused)
		g.mu.paused = nil
	}
}

// Paused reports that it stands still.
func (g *Gate) Paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.paused != nil
}

// Dead is closed by Kill.
func (g *Gate) Dead() <-chan struct{} { return g.dead }

func (g *Gate) coin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.rng.IntN(2) == 0
}

func (g *Gate) lateness() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lateMax <= 0 || g.mu.rng.IntN(2) == 0 {
		return 0
	}
	return time.Duration(g.mu.rng.Int64N(int64(g.lateMax)))
}

// Thaw waits while the process is paused, and answers whether it was; ErrDead once
// it is dead.
func (g *Gate) Thaw() (was bool, err error) {
	for {
		g.mu.Lock()
		paused := g.mu.paused
		g.mu.Unlock()
		if paused == nil {
			break
		}
		was = true
		select {
		case <-paused:
		case <-g.dead:
		}
		select {
		case <-g.dead:
			return was, ErrDead
		default:
		}
	}
	select {
	case <-g.dead:
		return was, ErrDead
	default:
		return was, nil
	}
}

// do carries out one request. unknown: the caller's error when it stops waiting.
func (g *Gate) do(ctx context.Context, unknown func(error) error, f func(context.Context) error) error {
	was, err := g.Thaw()
	if err != nil {
		return unknown(err)
	}
	if was && g.coin() {
		// A process that stood still finds its timers over only after its next call.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		ctx = late
	}
	if err := ctx.Err(); err != nil {
		return unknown(err)
	}
	request, drop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	g.landing.Go(func() {
		defer drop()
		done <- f(request)
	})
	abandon := func(why error) error {
		if d := g.lateness(); d > 0 {
			time.AfterFunc(d, drop)
		} else {
			drop()
		}
		return unknown(why)
	}
	select {
	case err := <-done:
		if _, dead := g.Thaw(); dead != nil {
			return unknown(dead)
		}
		return err
	case <-ctx.Done():
		if _, dead := g.Thaw(); dead != nil {
			return abandon(dead)
		}
		return abandon(ctx.Err())
	case <-g.dead:
		return abandon(ErrDead)
	}
}

// Store is the process's way to an object store; closing it closes nothing.
func (g *Gate) Store(s objstore.Store) objstore.Store { return &gatedStore{s, g} }

// Log is the process's way to a metadata database; closing it closes nothing.
func (g *Gate) Log(l metalog.Log) metalog.Log { return &gatedLog{l, g} }

type gatedStore struct {
	objstore.Store
	gate *Gate
}

func (s *gatedStore) Close() error { return nil }

func gated[T any](ctx context.Context, g *Gate, unknown func(error) error, f func(context.Context) (T, error)) (T, error) {
	got := make(chan T, 1)
	err := g.do(ctx, unknown, func(ctx context.Context) error {
		v, err := f(ctx)
		got <- v
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return <-got, nil
}

func lostWrite(op, key string) func(error) error {
	return func(why error) error { return objstore.UnknownOutcome(op, key, why) }
}

func lostRead(op, key string) func(error) error {
	return func(why error) error {
		if errors.Is(why, ErrDead) {
			return fmt.Errorf("%s %q: %w: %w", op, key, objstore.ErrUnavailable, why)
		}
		return fmt.Errorf("%s %q: %w", op, key, why)
	}
}

func (s *gatedStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	return gated(ctx, s.gate, lostWrite("put", req.Key), func(ctx context.Context) (objstore.PutResponse, error) { return s.Store.Put(ctx, req) })
}

func (s *gatedStore) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	req.Into = nil // an answer that nobody waits for must not be written there
	return gated(ctx, s.gate, lostRead("get", req.Key), func(ctx context.Context) (objstore.GetRangeResponse, error) { return s.Store.GetRange(ctx, req) })
}

func (s *gatedStore) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	return gated(ctx, s.gate, lostRead("head", key), func(ctx context.Context) (objstore.ObjectInfo, error) { return s.Store.Head(ctx, key) })
}

func (s *gatedStore) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	return gated(ctx, s.gate, lostRead("list", req.Prefix), func(ctx context.Context) (objstore.ListResponse, error) { return s.Store.List(ctx, req) })
}

func (s *gatedStore) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	keys = append([]string(nil), keys...)
	return gated(ctx, s.gate, lostWrite("delete", ""), func(ctx context.Context) (objstore.DeleteResponse, error) { return s.Store.DeleteBatch(ctx, keys) })
}

type gatedLog struct {
	metalog.Log
	gate *Gate
}

func (l *gatedLog) Close() error { return nil }

func lostTransaction(why error) error { return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, why) }

func lostQuery(why error) error { return fmt.Errorf("%w: %w", mink.ErrUnavailable, why) }

func (l *gatedLog) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	return gated(ctx, l.gate, lostTransaction, func(ctx context.Context) ([]metalog.Entry, error) { return l.Log.Append(ctx, a) })
}

func (l *gatedLog) Read(ctx context.Context, after uint64, entries, bytes int) ([]metalog.Entry, error) {
	return gated(ctx, l.gate, lostQuery, func(ctx context.Context) ([]metalog.Entry, error) { return l.Log.Read(ctx, after, entries, bytes) })
}

func (l *gatedLog) Head(ctx context.Context) (metalog.Position, error) {
	return gated(ctx, l.gate, lostQuery, l.Log.Head)
}

func (l *gatedLog) WriteSnapshot(ctx context.Context, s metalog.SnapshotWrite) error {
	return l.gate.do(ctx, lostTransaction, func(ctx context.Context) error { return l.Log.WriteSnapshot(ctx, s) })
}

func (l *gatedLog) Snapshots(ctx context.Context) ([]metalog.SnapshotInfo, error) {
	return gated(ctx, l.gate, lostQuery, l.Log.Snapshots)
}

func (l *gatedLog) ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for part, err := range l.Log.ReadSnapshot(ctx, index) {
			if _, dead := l.gate.Thaw(); dead != nil {
				yield(nil, lostQuery(dead))
				return
			}
			if !yield(part, err) {
				return
			}
		}
	}
}

func (l *gatedLog) Truncate(ctx context.Context, through uint64, lease metalog.Lease) error {
	return l.gate.do(ctx, lostTransaction, func(ctx context.Context) error { return l.Log.Truncate(ctx, through, lease) })
}

func (l *gatedLog) TakeLease(ctx context.Context, t metalog.TakeLease) (metalog.Lease, metalog.Entry, error) {
	type answer struct {
		lease metalog.Lease
		entry metalog.Entry
	}
	a, err := gated(ctx, l.gate, lostTransaction, func(ctx context.Context) (answer, error) {
		lease, entry, err := l.Log.TakeLease(ctx, t)
		return answer{lease, entry}, err
	})
	return a.lease, a.entry, err
}

func (l *gatedLog) RenewLease(ctx context.Context, lease metalog.Lease, ttl time.Duration) (metalog.Lease, error) {
	return gated(ctx, l.gate, lostTransaction, func(ctx context.Context) (metalog.Lease, error) { return l.Log.RenewLease(ctx, lease, ttl) })
}

func (l *gatedLog) ReleaseLease(ctx context.Context, lease metalog.Lease) error {
	return l.gate.do(ctx, lostTransaction, func(ctx context.Context) error { return l.Log.ReleaseLease(ctx, lease) })
}

func (l *gatedLog) ReadLease(ctx context.Context) (metalog.Lease, bool, error) {
	type answer struct {
		lease metalog.Lease
		live  bool
	}
	a, err := gated(ctx, l.gate, lostQuery, func(ctx context.Context) (answer, error) {
		lease, live, err := l.Log.ReadLease(ctx)
		return answer{lease, live}, err
	})
	return a.lease, a.live, err
}

func (l *gatedLog) Heartbeat(ctx context.Context, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) (uint64, error) {
	return gated(ctx, l.gate, lostTransaction, func(ctx context.Context) (uint64, error) { return l.Log.Heartbeat(ctx, node, epoch, applied) })
}

func (l *gatedLog) Heartbeats(ctx context.Context) ([]metalog.HeartbeatRow, error) {
	return gated(ctx, l.gate, lostQuery, l.Log.Heartbeats)
}
