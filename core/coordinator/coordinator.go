// Package coordinator is what the holder of the lease does for the cluster:
// it seals silent nodes, recovers dead write-ahead logs, gives buckets without a
// leader to live nodes, makes and drops automatic partitions, expires what has
// an age, removes nodes that ended long ago, writes the metadata's state image, keeps the object store's memory of
// their head, and deletes files of KV snapshots that are needed no more.
//
// Every command it proposes carries the lease epoch or is harmless when sent
// twice, so that a holder that was replaced without noticing changes nothing.
// It keeps nothing that it cannot rebuild from the view.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Coordinator runs on every node and acts on the one that holds the lease.
type Coordinator struct {
	cfg    Config
	deps   Deps
	logger *slog.Logger
	silent silence
	clock  clock

	lease    *loop.Loop
	look     *loop.Loop
	tick     *loop.Loop
	recovery *loop.Loop
	snapshot *loop.Loop
	head     *loop.Loop
	kvClean  *loop.Loop
	kvSweep  *loop.Loop
	kvSwept  string // kvSweep's: the last key that it has looked at; "": it begins anew

	balancing sync.Mutex // held by the rebalance under way

	mu struct {
		sync.Mutex
		lease metalog.Lease // last one taken or renewed here; Epoch 0: none
		since time.Time     // of that
		// failed are the logs whose recovery failed, with the losses accepted by then:
		// only the loop's own pace tries them again, not every change of the view.
		failed map[mink.NodeEpoch]int
		damage map[mink.NodeEpoch]damage // of the logs that recovery stops at
	}
}

// New makes a coordinator that has not started.
func New(cfg Config, deps Deps) (*Coordinator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Coordinator{cfg: cfg, deps: deps, logger: deps.Logger.With("component", "coordinator")}
	c.mu.failed, c.mu.damage = map[mink.NodeEpoch]int{}, map[mink.NodeEpoch]damage{}
	c.lease = loop.New("lease", cfg.LeaseTTL/4, c.logger, c.keepLease)
	// Apart from the tick, whose interval and other jobs know nothing of the lease:
	// looks that are far apart find nobody silent.
	c.look = loop.New("silent nodes", min(cfg.Tick, cfg.LeaseTTL/4), c.logger, c.sealSilent)
	c.tick = loop.New("coordinator tick", cfg.Tick, c.logger, c.runTick)
	c.recovery = loop.New("wal recovery", cfg.Tick, c.logger, c.runRecovery)
	c.snapshot = loop.New("metadata snapshot", cfg.SnapshotInterval, c.logger, c.runSnapshot)
	c.head = loop.New("metadata head", cfg.LeaseTTL, c.logger, c.keepHead)
	c.kvClean = loop.New("KV file deletion", cfg.CleanInterval, c.logger, c.cleanKV)
	c.kvSweep = loop.New("KV orphan sweep", cfg.SweepInterval, c.logger, c.sweepKV)
	return c, nil
}

// Run coordinates until ctx is done, then gives the lease back.
func (c *Coordinator) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, l := range c.loops() {
		g.Go(func() error { return l.Run(gctx) })
	}
	g.Go(func() error { return c.watch(gctx) })
	g.Go(func() error { return c.hurryHead(gctx) })
	err := g.Wait()
	c.mu.Lock()
	l := c.mu.lease // whether or not the node is still registered
	c.mu.lease = metalog.Lease{}
	c.mu.Unlock()
	if l.Epoch != 0 {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.cfg.LeaseTTL/4, releaseTimeout))
		defer cancel()
		if e := c.deps.Log.ReleaseLease(release, l); e != nil {
			c.logger.Warn("the lease was not given back; it expires by itself", "error", e)
		}
	}
	return err
}

// releaseTimeout bounds what a stopping coordinator waits for the database.
const releaseTimeout = 5 * time.Second

// Loops answers the status of the coordinator's loops.
func (c *Coordinator) Loops() []loop.Status {
	var out []loop.Status
	for _, l := range c.loops() {
		out = append(out, l.Status())
	}
	return out
}

func (c *Coordinator) loops() []*loop.Loop {
	return []*loop.Loop{c.lease, c.look, c.tick, c.recovery, c.snapshot, c.head, c.kvClean, c.kvSweep}
}

// Leading reports whether this node held the lease when it last looked.
func (c *Coordinator) Leading() bool {
	_, ok := c.held()
	return ok
}

// Lease is the lease that this node holds, unless it may have expired since it was renewed
// last: a process that stood still does not act on what it held before.
func (c *Coordinator) Lease() (mink.LeaseEpoch, bool) {
	l, ok := c.held()
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.Epoch, ok && time.Since(c.mu.since) < c.cfg.LeaseTTL
}

// held is the lease of this node's current epoch, as last taken or renewed,
// unless the view shows a later one: then what it would propose is refused, and
// each refusal would be an entry that wakes it again.
func (c *Coordinator) held() (metalog.Lease, bool) {
	node, epoch := c.deps.Self()
	later := c.deps.Meta.View().Lease().Epoch
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.mu.lease
	return l, l.Epoch != 0 && epoch != 0 && l.Node == node && l.NodeEpoch == epoch && l.Epoch >= later
}

func (c *Coordinator) setLease(l metalog.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lease, c.mu.since = l, time.Now()
}

// writable reports that the database took a write of this process lately, as it
// would have taken the heartbeats of others.
func (c *Coordinator) writable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.mu.since) <= c.cfg.LeaseTTL/2
}

// Wake makes the coordinator look for the lease at once: this node registered.
func (c *Coordinator) Wake() { c.lease.Trigger() }

// leasePause is how soon after a holder's work came up a node that does not hold the
// lease asks for it; twice as long after each further time, up to the interval of the
// lease's loop.
const leasePause = 50 * time.Millisecond

// watch triggers the loops when the view holds work that should not wait for
// their next run: an unrecovered log, a bucket without a leader. A holder that stops
// ends its epoch first and then gives the lease back, of which the log says nothing:
// the work that is left is what tells the others to ask for it.
func (c *Coordinator) watch(ctx context.Context) error {
	pause := leasePause
	var ask <-chan time.Time
	for {
		view := c.deps.Meta.View()
		c.clock.observe(view)
		orphans := false
		for range view.Orphans() {
			orphans = true
			break
		}
		switch _, held := c.held(); {
		case held:
			if c.freshLogs(view) {
				c.recovery.Trigger()
			}
			if orphans {
				c.tick.Trigger()
			}
			ask, pause = nil, leasePause
		case !orphans && !c.freshLogs(view):
			ask, pause = nil, leasePause
		case ask == nil:
			ask = time.After(pause)
			pause = min(2*pause, c.cfg.LeaseTTL/4)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.deps.Meta.Changed(view.Index()):
		case <-ask:
			ask = nil
			c.lease.Trigger()
		}
	}
}

// freshLogs reports a log to recover that has not been tried as it is now.
func (c *Coordinator) freshLogs(view *cluster.State) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range view.WALs() {
		if w.Sealed && !w.Recovered {
			if losses, tried := c.mu.failed[w.ID.Epoch]; !tried || losses != len(view.LostSlots(w.ID.Epoch)) {
				return true
			}
		}
	}
	return false
}

// keepLease renews the lease, or takes it when it is free.
func (c *Coordinator) keepLease(ctx context.Context) error {
	node, epoch := c.deps.Self()
	if epoch == 0 {
		return nil
	}
	if l, ok := c.held(); ok {
		renewed, err := c.renew(ctx, l)
		if err == nil {
			c.setLease(renewed)
			return nil
		}
		if !errors.Is(err, metalog.ErrLeaseLost) && !errors.Is(err, mink.ErrFenced) {
			return fmt.Errorf("renew the coordinator lease: %w", err)
		}
		c.logger.Warn("the coordinator lease was lost", "lease", l.Epoch, "error", err)
		c.setLease(metalog.Lease{})
	}
	l, err := c.deps.Meta.TakeLease(ctx, c.cfg.LeaseTTL)
	if held := (*metalog.LeaseHeldError)(nil); errors.As(err, &held) {
		c.setLease(metalog.Lease{})
		return nil
	}
	if errors.Is(err, mink.ErrFenced) {
		return nil // the node sees the seal and registers anew
	}
	if err != nil {
		return fmt.Errorf("take the coordinator lease: %w", err)
	}
	c.setLease(l)
	c.silent.reset()
	c.logger.Info("holds the coordinator lease", "node", node, "epoch", epoch, "lease", l.Epoch)
	c.look.Trigger()
	c.tick.Trigger()
	c.recovery.Trigger()
	c.head.Trigger()
	return nil
}

func (c *Coordinator) renew(ctx context.Context, l metalog.Lease) (metalog.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL/4)
	defer cancel()
	return c.deps.Log.RenewLease(ctx, l, c.cfg.LeaseTTL)
}

// runTick does each of its jobs whatever became of the others. None may hold up
// the others for longer than a lease.
func (c *Coordinator) runTick(ctx context.Context) error {
	l, ok := c.held()
	if !ok {
		return loop.ErrIdle
	}
	var errs []error
	for _, job := range []func(context.Context, metalog.Lease) error{c.leadOrphans, c.keepPartitions, c.expireProducers, c.expireGroups, c.forgetNodes} {
		jobCtx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL)
		errs = append(errs, job(jobCtx, l))
		cancel()
	}
	return errors.Join(errs...)
}

// propose runs commands and joins the refused verdicts.
func (c *Coordinator) propose(ctx context.Context, commands ...*clusterpb.Command) error {
	if len(commands) == 0 {
		return nil
	}
	results, err := c.deps.Meta.Propose(ctx, commands...)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range results {
		errs = append(errs, cluster.ResultError(r))
	}
	return errors.Join(errs...)
}

// keepHead tells the object store how far the metadata are.
func (c *Coordinator) keepHead(ctx context.Context) error {
	if _, ok := c.held(); !ok {
		return loop.ErrIdle
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL)
	defer cancel()
	if err := c.deps.Head.Keep(ctx); err != nil {
		return fmt.Errorf("keep the metadata's head on the object store: %w", err)
	}
	return nil
}

// headPause bounds the PUTs of a head that deletions wait for. Without the hurry a
// busy node keeps the log slots of a whole lease, some GB of them.
const headPause = time.Second

// hurryHead keeps the head before its time when something waits to be deleted.
func (c *Coordinator) hurryHead(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.deps.Head.Wanted():
			c.head.Trigger()
		}
		pause := time.NewTimer(headPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// snapshotTimeout bounds the writing and reading back of a state image: hundreds
// of MB.
const snapshotTimeout = 10 * time.Minute

// runSnapshot writes the state image and truncates the log behind the older of
// the two that are kept.
func (c *Coordinator) runSnapshot(ctx context.Context) error {
	l, ok := c.held()
	if !ok {
		return loop.ErrIdle
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	have, err := c.deps.Log.Snapshots(ctx)
	if err != nil {
		return fmt.Errorf("list metadata snapshots: %w", err)
	}
	var newest uint64
	if len(have) > 0 {
		newest = have[0].Index
	}
	if c.deps.Meta.View().Index() < newest+c.cfg.SnapshotEntries {
		return nil
	}
	if _, err := c.deps.Meta.SnapshotNow(ctx, l); err != nil {
		return fmt.Errorf("write a metadata snapshot: %w", err)
	}
	// The head first: a store that remembers a truncated entry could not tell
	// whether the log ever had it.
	if err := c.deps.Head.Keep(ctx); err != nil {
		return fmt.Errorf("truncate the metadata log: %w", err)
	}
	if _, err := c.deps.Meta.TruncateNow(ctx, l); err != nil {
		return fmt.Errorf("truncate the metadata log: %w", err)
	}
	return nil
}
