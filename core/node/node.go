// Package node is one member of the cluster: it registers, leads the buckets
// that the metadata gives it, and is what the listeners talk to.
//
//	                   +--------------- incarnation (one node epoch) --------------+
//	metadata view ---> | reconcile: open / close tablets    heartbeat    retention |
//	                   |        tablet --append--> stream engine --> object store  |
//	                   +-----------------------------------------------------------+
//	fenced or given up: every tablet closes, the node registers anew
//
// It promises: a tablet that it hands out belongs to an epoch that was current
// when it was opened, and is closed before the node takes part under another
// epoch. What a node does because of a command follows from the difference
// between views, never from having seen the command.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

// ErrReplaced: another process registered with this node's id. This one must
// end; it does not come back by itself.
var ErrReplaced = errors.New("another process registered with this node's id")

// Node is safe for concurrent use.
type Node struct {
	cfg     Config
	deps    Deps
	logger  *slog.Logger
	writers writerBlock
	started time.Time
	// groupsFull bounds the log lines about groups that are refused.
	groupsFull rate.Sometimes
	last       mink.NodeEpoch  // the newest one this process registered; Run's own
	nonces     map[uint64]bool // of its registrations, also of those without an answer; Run's own
	kv         kvHome
	source     Source

	mu struct {
		sync.Mutex
		current *incarnation  // nil while not registered
		changed chan struct{} // closed and replaced at every change of readiness
	}
}

// New makes a node that has not started.
func New(cfg Config, deps Deps) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, deps: deps, logger: deps.Logger.With("node", cfg.NodeID), started: time.Now(), nonces: map[uint64]bool{}, groupsFull: rate.Sometimes{Interval: 10 * time.Second}}
	n.mu.changed = make(chan struct{})
	n.source.node, n.kv.reads = n, make(chan struct{}, cfg.KVReadsMax)
	return n, nil
}

// Run registers and leads until ctx is done, then drains: what was admitted is
// made durable and uploaded, and the epoch is sealed, so that other nodes take
// its buckets over at once. It returns nil after an orderly end, ErrReplaced, or
// an error that a restart does not mend. Call it once.
func (n *Node) Run(ctx context.Context) error {
	n.kv.mu.Lock()
	if n.cfg.KVDir != "" && !n.kv.left {
		if err := n.kv.wipe(n.cfg.KVDir); err != nil { // it is tried again before it is used
			n.logger.Error("what an earlier process left in the stores' working directory was not removed", "error", err)
		}
	}
	n.kv.mu.Unlock()
	defer func() {
		if err := n.kv.leave(); err != nil {
			n.logger.Error("the stores' working directory was not removed", "error", err)
		}
	}()
	for failures := 0; ; failures++ {
		began := time.Now()
		err := n.runIncarnation(ctx)
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())):
			return nil
		case ctx.Err() != nil, errors.Is(err, ErrReplaced), errors.Is(err, errUnusableStore), errors.Is(err, errCannotJoin):
			return err
		}
		if time.Since(began) > n.cfg.LeaseTTL {
			failures = 0
		}
		wait := min(n.cfg.LeaseTTL, 200*time.Millisecond<<min(failures, 10))
		n.logger.Error("node epoch ended; registering anew", "error", err, "in", wait)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// View is the newest state of the metadata that this node has applied.
func (n *Node) View() *cluster.State { return n.deps.Meta.View() }

// Sync waits until the view has all that the metadata log has at the call, for at most a
// lease. mink.ErrUnavailable: the database does not say.
func (n *Node) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	return n.deps.Meta.Sync(ctx)
}

// WaitApplied waits until the view is at index or later.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	return n.deps.Meta.WaitApplied(ctx, index)
}

// Propose runs commands; each result is the state machine's verdict. An error
// says that none of them is known to be applied.
func (n *Node) Propose(ctx context.Context, commands ...*clusterpb.Command) ([]*clusterpb.Result, error) {
	return n.deps.Meta.Propose(ctx, commands...)
}

// Self is this node's identity; epoch 0 while it is not registered.
func (n *Node) Self() (mink.NodeID, mink.NodeEpoch) {
	if inc := n.incarnation(); inc != nil {
		return n.cfg.NodeID, inc.epoch
	}
	return n.cfg.NodeID, 0
}

// Lease is this node's epoch while its lease is live: nobody was given its place
// behind its back, and its view is no older than a lease. Answers that only the one
// in charge can give (where a log ends, what a consumer group's members are told)
// ask it at the moment of the answer. mink.ErrUnavailable: not registered, or no
// heartbeat was taken for a whole lease.
func (n *Node) Lease() (mink.NodeEpoch, error) {
	inc := n.incarnation()
	if inc == nil {
		return 0, fmt.Errorf("this node is not registered at the moment: %w", mink.ErrUnavailable)
	}
	return inc.epoch, inc.mayAnswer()
}

func (n *Node) incarnation() *incarnation {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.current
}

// Log is the tablet of a bucket led here. Errors: mink.ErrNotExist,
// *mink.NotLeaderError when another live node leads it, mink.ErrUnavailable while
// it is opening or between two leaders, mink.ErrCorrupt when it cannot be opened
// before a person acts. The tablet knows what the metadata of this node said of
// its table at the call, or later.
func (n *Node) Log(bucket mink.BucketRef) (*tablet.Log, error) {
	view := n.View()
	id, ok := view.StreamOf(bucket)
	if !ok {
		return nil, fmt.Errorf("bucket %s: %w", bucket, mink.ErrNotExist)
	}
	s, ok := view.Stream(id)
	if !ok {
		return nil, fmt.Errorf("bucket %s: %w", bucket, mink.ErrNotExist)
	}
	leader, ok := view.Node(s.Owner.Node)
	switch {
	case s.Owner.NodeEpoch == 0:
		return nil, fmt.Errorf("bucket %s: nobody leads it at the moment: %w", bucket, mink.ErrUnavailable)
	case !ok, leader.Epoch != s.Owner.NodeEpoch, leader.Sealed:
		if n.stuck(s.Owner.NodeEpoch) {
			return nil, fmt.Errorf("bucket %s: the write-ahead log of its last leader (node %d, epoch %d) is damaged; mink cluster accept-loss shows what is lost: %w",
				bucket, s.Owner.Node, s.Owner.NodeEpoch, mink.ErrCorrupt)
		}
		return nil, fmt.Errorf("bucket %s: its leader, node %d, has ended and another one is chosen: %w", bucket, s.Owner.Node, mink.ErrUnavailable)
	case s.Owner.Node != n.cfg.NodeID:
		return nil, &mink.NotLeaderError{Bucket: bucket, Leader: leader.ID, Address: leader.FlightAddress, Epoch: s.Owner.LeaderEpoch}
	}
	inc := n.incarnation()
	if inc == nil || inc.epoch != s.Owner.NodeEpoch {
		return nil, fmt.Errorf("bucket %s: this node is not registered at the moment: %w", bucket, mink.ErrUnavailable)
	}
	t, err := inc.buckets.tablet(view, id, s.Owner.LeaderEpoch)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return t, nil
}

// Ready reports whether the node is registered and every bucket it leads is
// open. The reason says what is missing, bucket by bucket as far as it is short.
func (n *Node) Ready() (ok bool, reason string) {
	reason, _ = n.missing()
	return reason == "", reason
}

// missing says what readiness lacks, "" when nothing; comes reports that time
// alone brings it.
func (n *Node) missing() (reason string, comes bool) {
	inc := n.incarnation()
	if inc == nil {
		return "not registered", true
	}
	if opening := inc.buckets.missing(); opening != "" { // the usual case, without a look at every bucket
		return opening, true
	}
	var closed closedBuckets
	view := n.View()
	for s := range view.Streams() {
		if s.Owner.Node != n.cfg.NodeID {
			continue
		}
		if s.Owner.NodeEpoch != inc.epoch {
			comes = comes || time.Since(inc.since) < n.cfg.RecoveryWait && !n.stuck(s.Owner.NodeEpoch)
			closed.add(view, s.Bucket, fmt.Sprintf("recovering node epoch %d, an earlier one of this node", s.Owner.NodeEpoch))
			continue
		}
		_, err := inc.buckets.tablet(view, s.ID, s.Owner.LeaderEpoch)
		switch {
		case err == nil, errors.Is(err, errMoving):
		case !errors.Is(err, mink.ErrCorrupt):
			return fmt.Sprintf("bucket %s: %v", s.Bucket, err), true
		default:
			closed.add(view, s.Bucket, err.Error())
		}
	}
	return closed.String(), comes
}

// WaitReady waits until Ready, or until all that is still missing needs a person:
// buckets that are corrupt, a recovery that is stuck or takes longer than
// RecoveryWait. The others must not wait for these. It fails when ctx is done.
func (n *Node) WaitReady(ctx context.Context) error {
	for {
		n.mu.Lock()
		changed := n.mu.changed
		n.mu.Unlock()
		view := n.View()
		reason, comes := n.missing()
		if reason == "" {
			return nil
		}
		if !comes {
			n.logger.Error("the node serves without some of its buckets", "missing", reason)
			return nil
		}
		again := time.NewTimer(n.cfg.RecoveryWait)
		select {
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("node is not ready: %s: %w", reason, context.Cause(ctx))
		case <-changed:
		case <-n.deps.Meta.Changed(view.Index()):
		case <-again.C:
		}
		again.Stop()
	}
}

func (n *Node) stuck(epoch mink.NodeEpoch) bool { return n.deps.Stuck != nil && n.deps.Stuck(epoch) }

// Look makes WaitReady look again: Deps.Stuck answers something else.
func (n *Node) Look() { n.wake() }

// wake tells WaitReady to look again.
func (n *Node) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.mu.changed)
	n.mu.changed = make(chan struct{})
}

func (n *Node) setCurrent(inc *incarnation) {
	n.mu.Lock()
	n.mu.current = inc
	n.mu.Unlock()
	n.wake()
}

// Stats is what the node can say of itself.
type Stats struct {
	Node       mink.NodeID
	Epoch      mink.NodeEpoch
	Started    time.Time
	Applied    uint64 // metadata index
	Ready      bool
	NotReady   string
	Buckets    []BucketStats
	Loops      []loop.Status
	Engine     stream.Stats
	Registered bool
}

// BucketStats describes one bucket led here.
type BucketStats struct {
	Bucket        mink.BucketRef
	Stream        mink.StreamID
	LeaderEpoch   mink.LeaderEpoch
	LogStart      mink.Offset
	HighWatermark mink.Offset
	LogEnd        mink.Offset
	Clean         tablet.CleanStats
	KV            *kv.Stats        // of a primary-key table, while its store is open
	KVSnapshot    *KVSnapshotStats // of a primary-key table
	HeldTrim      *HeldTrim        // nil: none
	Error         string           // why it is not open, or its store
}

// Stats answers a snapshot of the node's figures.
func (n *Node) Stats() Stats {
	s := Stats{Node: n.cfg.NodeID, Started: n.started, Applied: n.View().Index()}
	s.Ready, s.NotReady = n.Ready()
	inc := n.incarnation()
	if inc == nil {
		return s
	}
	s.Registered = true
	s.Epoch = inc.epoch
	s.Buckets = inc.buckets.stats()
	s.Engine = inc.engine.Stats()
	s.Loops = append(s.Loops, inc.heartbeat.Status(), inc.retention.Status(), inc.finishing.Status(), inc.cleaning.Status(), inc.idle.Status(), inc.snapshot.Status())
	return s
}

// Engine is the stream engine of the current epoch, nil when there is none.
func (n *Node) Engine() *stream.Engine {
	if inc := n.incarnation(); inc != nil {
		return inc.engine
	}
	return nil
}
