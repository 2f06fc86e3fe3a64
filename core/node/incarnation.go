package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// What no retry mends.
var (
	errUnusableStore = errors.New("the object store cannot hold a write-ahead log")
	errCannotJoin    = errors.New("this node cannot join the cluster")
)

// incarnation is one node epoch: its engine and its buckets.
type incarnation struct {
	node      *Node
	epoch     mink.NodeEpoch
	nonce     uint64
	since     time.Time                 // of its registration
	heard     atomic.Pointer[time.Time] // before the last heartbeat whose head was applied, or the registration
	engine    *stream.Engine
	buckets   *buckets
	heartbeat *loop.Loop
	retention *loop.Loop
	finishing *loop.Loop
	cleaning  *loop.Loop
	idle      *loop.Loop // closes stores
	snapshots *kvsnap.Scheduler[kvSource]
	snapshot  *loop.Loop // runs snapshots
	groups    *groupCommits
	rowless   chan struct{} // told once when the database has lost this epoch's row
}

func (n *Node) runIncarnation(ctx context.Context) error {
	if err := n.checkReplaced(ctx); err != nil {
		return err
	}
	if err := n.probe(ctx); err != nil {
		return err
	}
	inc, err := n.register(ctx)
	if err != nil {
		return err
	}
	n.setCurrent(inc)
	if n.deps.Registered != nil {
		n.deps.Registered()
	}
	n.logger.Info("registered", "epoch", inc.epoch, "nonce", fmt.Sprintf("%016x", inc.nonce))
	err = inc.run(ctx)
	n.setCurrent(nil)
	if err == nil {
		inc.resign(ctx)
	}
	return err
}

// checkReplaced answers ErrReplaced when another process has registered as this
// node since this one last did. A process that was paused finds its log closed
// before it has read why; registering anew would then end the process that
// replaced it.
func (n *Node) checkReplaced(ctx context.Context) error {
	if n.last == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	head, err := n.deps.Log.Head(ctx)
	if err != nil {
		return fmt.Errorf("look for another process with this node's id: %w", err)
	}
	if err := n.WaitApplied(ctx, head.Index); err != nil {
		return fmt.Errorf("look for another process with this node's id: %w", err)
	}
	return n.replacedError(n.last)
}

func (n *Node) replacedError(epoch mink.NodeEpoch) error {
	if now, ok := n.View().Node(n.cfg.NodeID); ok && now.Epoch > epoch && !n.nonces[now.Nonce] {
		return fmt.Errorf("node %d, epoch %d: %w (epoch %d); give each process a --node-id of its own", n.cfg.NodeID, epoch, ErrReplaced, now.Epoch)
	}
	return nil
}

// probe shows that the WAL's store does create-only writes before the node
// promises anything on it.
func (n *Node) probe(ctx context.Context) error {
	if !n.deps.WALStore.Capabilities().CreateOnlyPut {
		return fmt.Errorf("%w: it has no create-only PUT, which is what keeps a replaced node from writing; choose a store that has one", errUnusableStore)
	}
	nonce, err := wal.NewNonce()
	if err != nil {
		return err
	}
	if err := wal.Probe(ctx, n.deps.WALStore, n.cfg.NodeID, nonce); err != nil {
		if errors.Is(err, mink.ErrUnsupported) || errors.Is(err, objstore.ErrReadOnly) || errors.Is(err, objstore.ErrUnauthorized) {
			return fmt.Errorf("%w: %w", errUnusableStore, err)
		}
		return fmt.Errorf("probe of the write-ahead log's store: %w", err)
	}
	return nil
}

func (n *Node) register(ctx context.Context) (*incarnation, error) {
	nonce, err := wal.NewNonce()
	if err != nil {
		return nil, err
	}
	n.nonces[nonce] = true
	asked := time.Now()
	epoch, err := n.deps.Meta.Register(ctx, &clusterpb.RegisterNode{
		Node: int32(n.cfg.NodeID), Nonce: nonce,
		FlightAddress: n.cfg.FlightAddress, KafkaAddress: n.cfg.KafkaAddress, HttpAddress: n.cfg.HTTPAddress,
		Rack: n.cfg.Rack, FeatureLevel: n.cfg.FeatureLevel, Version: n.cfg.Version,
		LeaseTtlMs: (n.cfg.LeaseTTL + time.Millisecond - 1).Milliseconds(),
	})
	if errors.Is(err, mink.ErrFenced) {
		if now, ok := n.View().Node(n.cfg.NodeID); ok && now.Nonce != nonce {
			return nil, fmt.Errorf("register node %d: %w at the same time (epoch %d); give each process a --node-id of its own", n.cfg.NodeID, ErrReplaced, now.Epoch)
		}
	}
	if errors.Is(err, mink.ErrUnsupported) || errors.Is(err, mink.ErrInvalid) {
		err = fmt.Errorf("%w: %w", errCannotJoin, err)
	}
	if err != nil {
		return nil, fmt.Errorf("register node %d: %w", n.cfg.NodeID, err)
	}
	n.last = epoch
	inc := &incarnation{node: n, epoch: epoch, nonce: nonce, since: time.Now(), rowless: make(chan struct{}, 1)}
	inc.heard.Store(&asked)
	inc.engine, err = stream.New(n.cfg.Stream, stream.Deps{
		Objects: n.deps.Objects, WALStore: n.deps.WALStore,
		WAL:    plan.WALID{Node: n.cfg.NodeID, Epoch: epoch, Nonce: nonce},
		Meta:   meta{replica: n.deps.Meta, log: n.deps.Log, head: n.deps.Head},
		Folder: tablet.Folder{},
		Logger: n.logger.With("epoch", epoch),
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCannotJoin, err)
	}
	inc.buckets = newBuckets(inc)
	inc.heartbeat = loop.New("heartbeat", n.cfg.LeaseTTL/4, n.logger, inc.beat)
	inc.groups = newGroupCommits(n.cfg, n.deps.Meta.Propose)
	inc.retention = loop.New("log retention", n.cfg.LogRetentionInterval, n.logger, inc.buckets.retain)
	inc.finishing = loop.New("closed partitions", n.cfg.FinishInterval, n.logger, inc.buckets.finish)
	inc.cleaning = loop.New("topic cleaning", n.cfg.TopicCleaningInterval, n.logger, newCleaner(inc.buckets, n.cfg.TopicCleaningInterval).clean)
	inc.snapshots = inc.newSnapshots()
	inc.snapshot = loop.New("KV snapshots", snapshotLook(n.cfg.KVSnapshots.Interval), n.logger, inc.snapshots.Run)
	inc.idle = loop.New("idle stores", max(n.cfg.KVIdleClose/4, time.Second), n.logger, inc.buckets.idleKV)
	return inc, nil
}

// run leads until ctx is done or the epoch ends. The engine drains before run
// returns, with heartbeats going on meanwhile; tablets close last, so that what
// was admitted is answered.
func (inc *incarnation) run(ctx context.Context) error {
	beating, stopBeats := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeats()
	var beats errgroup.Group
	inc.heartbeat.Trigger() // deletions, here and elsewhere, wait for this node's read horizon
	beats.Go(func() error { return inc.heartbeat.Run(beating) })

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := inc.engine.Run(gctx); err != nil {
			return fmt.Errorf("stream engine: %w", err)
		}
		if gctx.Err() == nil {
			return fmt.Errorf("stream engine ended: %w", mink.ErrFenced)
		}
		return nil
	})
	g.Go(func() error { return inc.buckets.run(gctx) })
	g.Go(func() error { return inc.retention.Run(gctx) })
	g.Go(func() error { return inc.finishing.Run(gctx) })
	g.Go(func() error { return inc.cleaning.Run(gctx) })
	g.Go(func() error { return inc.idle.Run(gctx) })
	g.Go(func() error { return inc.snapshot.Run(gctx) })
	g.Go(func() error { return inc.groups.run(gctx) })
	g.Go(func() error { return inc.watchSeal(gctx) })
	err := g.Wait()
	inc.buckets.closeAll()
	stopBeats()
	_ = beats.Wait() // a loop answers no error
	return err
}

// resign seals the drained epoch: whoever holds the lease recovers what little
// is in its log and gives its buckets away, without waiting for silence. Best
// effort: a node that cannot say so is found silent.
func (inc *incarnation) resign(ctx context.Context) {
	n := inc.node
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(n.cfg.LeaseTTL/4, resignTimeout))
	defer cancel()
	_, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{
		Epoch: int64(inc.epoch), Reason: "the node stopped",
	}}})
	if err != nil && !errors.Is(err, mink.ErrFenced) {
		n.logger.Warn("the stopped epoch was not sealed; other nodes notice its silence", "epoch", inc.epoch, "error", err)
	}
}

// resignTimeout bounds what a stopping node waits for the metadata log.
const resignTimeout = 5 * time.Second

// beat is one heartbeat. A refused one shows in the view as a seal, where
// watchSeal sees it with its reason. When it does not, the database has lost this
// epoch's row: nobody would notice its silence any more, so it ends.
func (inc *incarnation) beat(ctx context.Context) error {
	n := inc.node
	ctx, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL/4)
	defer cancel()
	began := time.Now()
	head, err := n.deps.Meta.Heartbeat(ctx, inc.engine.ReadHorizon())
	if errors.Is(err, mink.ErrFenced) {
		if w, ok := n.View().WAL(inc.epoch); ok && !w.Sealed {
			select {
			case inc.rowless <- struct{}{}:
			default:
			}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	// Only once the head is applied: another node may have taken something over by
	// what lies between, without this one being sealed for it (a consumer group).
	if err := n.WaitApplied(ctx, head); err != nil {
		return fmt.Errorf("apply the metadata up to the heartbeat's head, index %d: %w", head, err)
	}
	inc.heard.Store(&began)
	return nil
}

// mayAnswer refuses to answer from a working copy once nobody may have heard of this
// epoch for a whole lease: it may be sealed for silence, and its buckets led elsewhere.
// Nobody is sealed for silence earlier than a lease after a heartbeat that was taken,
// which is not before it was sent. Nor is the view that this node answers by older.
func (inc *incarnation) mayAnswer() error {
	if silent := time.Since(*inc.heard.Load()); silent >= inc.node.cfg.LeaseTTL {
		return fmt.Errorf("%w: no heartbeat of this node was taken for %s, longer than its lease (%s): another node may serve in its place",
			mink.ErrUnavailable, silent.Round(time.Millisecond), inc.node.cfg.LeaseTTL)
	}
	return nil
}

// watchSeal ends the incarnation when the view shows that its epoch is sealed, or
// when its heartbeats are refused although it is not.
func (inc *incarnation) watchSeal(ctx context.Context) error {
	n := inc.node
	for {
		view := n.View()
		if w, ok := view.WAL(inc.epoch); ok && w.Sealed {
			if err := n.replacedError(inc.epoch); err != nil {
				return err
			}
			return fmt.Errorf("node epoch %d was sealed (%s): %w", inc.epoch, view.SealReason(inc.epoch), mink.ErrFenced)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-inc.rowless:
			return fmt.Errorf("node epoch %d: the metadata database has no live heartbeat row of it, and no seal: it was changed by hand or not restored whole: %w", inc.epoch, mink.ErrFenced)
		case <-n.deps.Meta.Changed(view.Index()):
		}
	}
}
