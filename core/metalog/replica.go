package metalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog/internal/wake"
	"github.com/mink-project/mink/sdk/mink"
)

// Replica is one node's copy of the cluster state. It tails the log, applies
// every entry, and proposes this node's commands. All methods are safe for
// concurrent use; only one Run at a time, once.
//
// Goroutines: Run owns a tailer, which alone replaces the view, and a proposer,
// which alone appends. No lock is held across a call to the log.
type Replica struct {
	log    Log
	cfg    Config
	logger *slog.Logger

	view    atomic.Pointer[view]
	applied wake.Signal
	kick    chan struct{} // asks the tailer to look now
	queue   chan *proposal
	done    chan struct{} // closed when Run has ended; mu.err says why

	mu struct {
		sync.Mutex
		err    error
		self   identity
		flight *flight
	}
	reloads atomic.Uint64 // how often a snapshot skipped entries
	counter uint64        // last one used; the proposer's own

	// reuseNothing is a mutation for the test of the tests: a retry takes a new
	// counter, so that the state cannot recognise it.
	reuseNothing bool
}

type view struct {
	state *cluster.State
	Position
}

// identity is who this replica proposes as.
type identity struct {
	node  mink.NodeID
	epoch mink.NodeEpoch // 0: not registered
}

// flight is the one batch whose verdict is awaited.
type flight struct {
	epoch   mink.NodeEpoch
	counter uint64
	reloads uint64 // of the replica, when it began
	results []*clusterpb.Result
	landed  chan struct{} // closed when results are set and the view has them
}

// Open loads the newest snapshot and applies the log up to its present head.
// Errors: mink.ErrUnavailable (the database cannot be reached), ErrWentBack,
// mink.ErrCorrupt, mink.ErrUnsupported (written by a newer version).
func Open(ctx context.Context, log Log, cfg Config, logger *slog.Logger) (*Replica, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Replica{
		log: log, cfg: cfg, logger: logger,
		kick:  make(chan struct{}, 1),
		queue: make(chan *proposal, cfg.QueueMax),
		done:  make(chan struct{}),
	}
	r.view.Store(&view{state: cluster.NewState()})
	load, cancel := context.WithTimeout(ctx, cfg.ReloadTimeout) // a database that hangs is an error
	snap, err := r.newestSnapshot(load)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("open metadata: %w", err)
	}
	if snap != nil {
		r.publish(snap, nil, nil)
	}
	for {
		more, err := r.catchUp(ctx)
		if err != nil {
			return nil, fmt.Errorf("open metadata: %w", err)
		}
		if !more {
			return r, nil
		}
	}
}

// Run tails and proposes until ctx is done (nil) or the replica must not go on:
// ErrWentBack, mink.ErrCorrupt, or an entry that this version does not know.
// While the database is unreachable it retries and logs.
func (r *Replica) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.tail(gctx) })
	g.Go(func() error { return r.serveProposals(gctx) })
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	r.mu.Lock()
	r.mu.err = err
	r.mu.Unlock()
	close(r.done)
	return err
}

// stopped is why Run ended; only after done is closed.
func (r *Replica) stopped() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.err == nil {
		return fmt.Errorf("metadata replica: %w", mink.ErrClosed)
	}
	return fmt.Errorf("metadata replica stopped: %w", r.mu.err)
}

// View is the state as applied here; immutable. Take one per decision.
func (r *Replica) View() *cluster.State { return r.view.Load().state }

// Applied is the log position that View stands at.
func (r *Replica) Applied() Position { return r.view.Load().Position }

// ViewAt is View with the position that it stands at.
func (r *Replica) ViewAt() (*cluster.State, Position) {
	v := r.view.Load()
	return v.state, v.Position
}

// Self is who this replica is registered as; epoch 0 before Register.
func (r *Replica) Self() (mink.NodeID, mink.NodeEpoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.self.node, r.mu.self.epoch
}

// Changed is closed once a view above index is published.
func (r *Replica) Changed(index uint64) <-chan struct{} { return r.applied.Changed(index) }

// WaitApplied returns once View stands at or above index.
func (r *Replica) WaitApplied(ctx context.Context, index uint64) error {
	for {
		if index == 0 || r.view.Load().Index >= index {
			return nil
		}
		select {
		case <-r.applied.Changed(index - 1):
		case <-ctx.Done():
			return fmt.Errorf("wait for metadata index %d, at %d: %w", index, r.view.Load().Index, ctx.Err())
		case <-r.done:
			return r.stopped()
		}
	}
}

// Heartbeat renews this node epoch's row with the index that it reports, and
// answers the log's head: reads may rely on the heartbeat once that is applied.
// mink.ErrFenced when the row is marked or gone; the view has applied by then what
// the log says of it.
func (r *Replica) Heartbeat(ctx context.Context, applied uint64) (head uint64, err error) {
	node, epoch := r.Self()
	if epoch == 0 {
		return 0, errNotRegistered
	}
	hctx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
	defer cancel()
	head, err = r.log.Heartbeat(hctx, node, epoch, applied)
	switch {
	case errors.Is(err, mink.ErrFenced):
		if serr := r.Sync(ctx); serr != nil {
			return 0, fmt.Errorf("the heartbeat of node %d epoch %d is refused, and why cannot be read: %w", node, epoch, serr)
		}
	case err == nil && head > r.Applied().Index:
		r.wakeTail()
	}
	return head, err
}

func (r *Replica) wakeTail() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// transient errors are retried; all others stop the replica.
func transient(err error) bool {
	return errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded)
}

func (r *Replica) newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = r.cfg.RetryBackoff, r.cfg.RetryBackoffMax
	return b
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tail applies what is in the log, for ever.
func (r *Replica) tail(ctx context.Context) error {
	retry := r.newBackoff()
	poll := time.NewTimer(r.cfg.PollInterval)
	defer poll.Stop()
	for {
		changed := r.log.Changed(r.Applied().Index)
		more, err := r.catchUp(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !transient(err) && !errors.Is(err, mink.ErrInvalid): // a user that is refused may be let in again
			return err
		case err != nil:
			d := retry.NextBackOff()
			r.logger.Warn("reading the metadata log failed, will retry", "applied", r.Applied().Index, "in", d, "error", err)
			if err := pause(ctx, d); err != nil {
				return err
			}
			continue
		}
		retry.Reset()
		if more {
			continue
		}
		poll.Reset(r.cfg.PollInterval)
		select {
		case <-changed:
		case <-r.kick:
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp reads and applies one portion; more: there may be another.
func (r *Replica) catchUp(ctx context.Context) (more bool, err error) {
	at := r.view.Load()
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
	defer cancel()
	entries, err := r.log.Read(ctx, at.Index, r.cfg.ReadEntriesMax, r.cfg.ReadBytesMax)
	switch {
	case errors.Is(err, ErrTruncated):
		return true, r.reload(outer)
	case err != nil:
		return false, r.explain(err, at)
	case len(entries) == 0:
		return false, r.checkHead(ctx, at)
	}
	if err := r.checkChain(ctx, at.Position, entries); err != nil {
		return false, err
	}
	r.mu.Lock()
	waiting := r.mu.flight
	r.mu.Unlock()
	next, verdict, err := applyAll(at, entries, waiting)
	if next != at {
		r.publish(next, waiting, verdict)
	}
	return err == nil, err
}

// applyAll applies entries in order and picks out the verdict on the awaited
// batch, nil when it is not among them. On an error the view before the failing
// entry is answered with it.
func applyAll(at *view, entries []Entry, waiting *flight) (next *view, verdict []*clusterpb.Result, err error) {
	next = at
	for _, e := range entries {
		var b clusterpb.Batch
		if err := proto.Unmarshal(e.Payload, &b); err != nil {
			return next, verdict, fmt.Errorf("metadata entry %d: %w: %w", e.Index, mink.ErrCorrupt, err)
		}
		state, results, err := next.state.Apply(e.Index, e.TimeMs, &b)
		if err != nil {
			return next, verdict, fmt.Errorf("metadata entry %d, written by version %q (feature level %d): %w", e.Index, b.WriterVersion, b.FeatureLevel, err)
		}
		if verdict == nil && waiting.is(&b) {
			verdict = results
		}
		next = &view{state: state, Position: e.Position()}
	}
	return next, verdict, nil
}

// is reports whether the entry is the awaited batch.
func (f *flight) is(b *clusterpb.Batch) bool {
	return f != nil && mink.NodeEpoch(b.Epoch) == f.epoch && b.Counter == f.counter
}

// verdict answers the results once they are in and the view has them.
func (f *flight) verdict() ([]*clusterpb.Result, bool) {
	select {
	case <-f.landed:
		return f.results, true
	default:
		return nil, false
	}
}

// publish makes a view visible and answers the batch in flight: by its verdict,
// or, when a snapshot skipped the entry, by what the state remembers.
func (r *Replica) publish(v *view, waiting *flight, verdict []*clusterpb.Result) {
	r.mu.Lock()
	r.view.Store(v)
	r.settleLocked(v.state, waiting, verdict)
	r.mu.Unlock()
	r.applied.Advance(v.Index)
}

// settledView is a view of which the batch in flight has had its verdict.
func (r *Replica) settledView() *view {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.Load()
}

func (r *Replica) settleLocked(state *cluster.State, waiting *flight, verdict []*clusterpb.Result) {
	f := r.mu.flight
	if f == nil {
		return
	}
	if f != waiting { // the verdict is on an earlier one
		verdict = nil
	}
	if verdict == nil {
		if counter, results := state.Results(f.epoch); counter == f.counter {
			verdict = results
		}
	}
	if verdict == nil {
		return
	}
	f.results = verdict
	close(f.landed)
	r.mu.flight = nil
}

// checkChain verifies that entries continue the position.
func (r *Replica) checkChain(ctx context.Context, at Position, entries []Entry) error {
	for i, e := range entries {
		if e.Index == at.Index+1 && e.Hash == Chain(at.Hash, e.Index, e.TimeMs, e.Payload) {
			at = e.Position()
			continue
		}
		if i == 0 {
			if err := r.checkStillThere(ctx, at); err != nil {
				return err
			}
		}
		return fmt.Errorf("metadata entry %d (hash %s) does not continue %s: %w", e.Index, e.Hash, at, mink.ErrCorrupt)
	}
	return nil
}

// checkStillThere answers ErrWentBack when the log has another entry at the
// position that was applied here.
func (r *Replica) checkStillThere(ctx context.Context, at Position) error {
	if at.Index == 0 {
		return nil
	}
	same, err := r.log.Read(ctx, at.Index-1, 1, 1)
	if errors.Is(err, ErrTruncated) {
		return nil
	}
	if err != nil {
		return r.explain(err, &view{Position: at})
	}
	if len(same) == 0 || same[0].Position() != at {
		return wentBack("this node has applied %s, the database has another entry at that index", at)
	}
	return nil
}

// checkHead runs when nothing follows the applied position.
func (r *Replica) checkHead(ctx context.Context, at *view) error {
	head, err := r.log.Head(ctx)
	if err != nil {
		return err
	}
	if head.Index < at.Index {
		return wentBack("this node has applied %s, the log ends at %s", at.Position, head)
	}
	if head.Index == at.Index && head.Hash != at.Hash {
		return wentBack("this node has applied %s, the log's head is %s", at.Position, head)
	}
	return nil
}

func (r *Replica) explain(err error, at *view) error {
	if errors.Is(err, ErrWentBack) {
		return wentBack("this node has applied %s: %v", at.Position, err)
	}
	return err
}

func wentBack(format string, args ...any) error {
	return fmt.Errorf("%w: %s; it was restored from a backup or failed over without its last commits. "+
		"Stop all nodes; restore or promote the newest copy of the database that there is; then run mink serve on one node, which says what is lost, if anything, and how to go on (docs/disaster-recovery.md)", ErrWentBack, fmt.Sprintf(format, args...))
}
