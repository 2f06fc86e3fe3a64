package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

// kvSlot is the store of a bucket of a primary-key table: opened when somebody asks
// for it, closed when nobody has for a while. Its fields are guarded by buckets.mu.
//
//	closed --KV--> opening --> open --idle, failed--> closing --> closed
//	   ^--- error, with a pause ---'        a pause, when it did not serve for a while
type kvSlot struct {
	tablet   *kv.Tablet    // open
	opened   time.Time     // when
	busy     chan struct{} // opening or closing: closed when that is over
	err      error         // why it is closed; nil: for being idle
	failures int           // in a row
	retry    time.Time     // before it nobody tries
	restored restoredKV
}

// pause notes why a store is closed, and when it may be opened again.
func (k *kvSlot) pause(err error) {
	k.err, k.retry = err, time.Now().Add(min(reopenMin<<min(k.failures, 10), reopenMax))
	k.failures++
}

// kvServedLong is how long a store must have been open for its end not to count with the
// failures before it.
const kvServedLong = time.Minute

// KV is the open store of a bucket of a primary-key table led here; it opens when it
// is not, which ctx bounds for this caller. Ask for it for each request: a store that
// was closed for being idle answers mink.ErrClosed. Errors as of Log, and
// mink.ErrInvalid for a table without a primary key; mink.ErrCorrupt, too, when
// neither a snapshot nor the log builds the store before a person acts.
func (n *Node) KV(ctx context.Context, bucket mink.BucketRef) (*kv.Tablet, error) {
	for {
		view := n.View()
		if _, err := n.Log(bucket); err != nil {
			return nil, err
		}
		id, ok := view.StreamOf(bucket)
		s, ok2 := view.Stream(id)
		inc := n.incarnation()
		if !ok || !ok2 || inc == nil {
			return nil, fmt.Errorf("bucket %s: %w", bucket, mink.ErrUnavailable)
		}
		t, busy, err := inc.buckets.kvOf(view, id, s.Owner.LeaderEpoch)
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %w", bucket, err)
		}
		if t != nil {
			return t, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, fmt.Errorf("bucket %s: its store is opening: %w", bucket, context.Cause(ctx))
		}
	}
}

// kvOf answers the open store of exactly that leadership, or what to wait for before
// asking again.
func (b *buckets) kvOf(view *cluster.State, id mink.StreamID, epoch mink.LeaderEpoch) (*kv.Tablet, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.mu.led[id]
	if b.mu.closed || e == nil || e.epoch != epoch || e.log == nil {
		return nil, nil, fmt.Errorf("opening: %w", mink.ErrUnavailable)
	}
	b.catchUp(e, view)
	k := &e.kv
	switch {
	case e.leaves():
		return nil, nil, e.moving.unavailable()
	case len(e.table.Descriptor.PrimaryKey) == 0:
		return nil, nil, fmt.Errorf("table %s has no primary key: %w", e.table.Descriptor.Name(), mink.ErrInvalid)
	case k.busy != nil:
		return nil, k.busy, nil
	case k.tablet != nil && k.tablet.Err() == nil:
		k.tablet.Touch()
		return k.tablet, nil, nil
	case k.tablet != nil:
		b.startKV(e, func() { b.closeKV(e) })
		return nil, k.busy, nil
	case k.err != nil && time.Now().Before(k.retry):
		err := fmt.Errorf("its store is not open and is tried again: %w", k.err)
		if !errors.Is(err, mink.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", mink.ErrUnavailable, err)
		}
		return nil, nil, err
	}
	b.startKV(e, func() { b.openKV(e) })
	return nil, k.busy, nil
}

// startKV runs one step of a slot's life. Under mu, with the slot not busy.
func (b *buckets) startKV(e *bucket, step func()) {
	busy := make(chan struct{})
	e.kv.busy = busy
	b.jobs.work.Go(func() {
		defer close(busy)
		step()
	})
}

// openKV is a slot's step from closed to open.
func (b *buckets) openKV(e *bucket) {
	b.mu.Lock()
	table := e.table
	b.mu.Unlock()
	t, err := b.openKVTablet(e, table)
	b.mu.Lock()
	wanted := !b.mu.closed && b.mu.led[e.id] == e && !e.leaves()
	k := &e.kv
	k.busy, k.err = nil, nil
	switch {
	case err != nil:
		k.pause(err)
	case wanted:
		k.tablet, k.opened = t, time.Now()
		if table != e.table { // it changed meanwhile
			b.configure(e, e.log)
		}
	}
	b.mu.Unlock()
	if err != nil && b.jobs.ctx.Err() == nil {
		b.inc.node.logger.Error("the store of a primary-key bucket does not open", "bucket", e.ref.String(), "leader_epoch", e.epoch, "error", err)
	}
	if wanted {
		return
	}
	if t != nil {
		_ = b.endKV(e, t) // logged
	}
	b.removeKV(e)
}

func (b *buckets) openKVTablet(e *bucket, table *cluster.Table) (*kv.Tablet, error) {
	n := b.inc.node
	shared, _, err := n.home()
	if err != nil {
		return nil, err
	}
	cfg := n.cfg.KV
	cfg.Table = kvTable(table)
	cfg.Shared, cfg.Dir, cfg.Logger = shared, b.kvDir(e), n.logger
	cfg.LeaseIDs = func(ctx context.Context, count int64) (int64, int64, error) { return n.leaseIDs(ctx, e, count) }
	cfg.MayAnswer = b.inc.mayAnswer
	cfg.Restore = b.restorer(e)
	began := time.Now()
	t, err := kv.Open(b.jobs.ctx, e.log, cfg)
	if err != nil {
		return nil, err
	}
	n.logger.Debug("store opened", "bucket", e.ref.String(), "up_to", t.VisibleHighWatermark(), "took", time.Since(began).Round(time.Millisecond).String())
	return t, nil
}

// leaseIDs takes numbers of the table's auto-increment column for this leadership.
func (n *Node) leaseIDs(ctx context.Context, e *bucket, count int64) (first, last int64, err error) {
	r, err := n.one(ctx, cluster.LeaseAutoIncrementCommand(e.id, e.epoch, int(min(count, cluster.MaxAutoIncrementLease))))
	if err != nil {
		return 0, 0, err
	}
	return cluster.LeasedNumbers(r)
}

// kvDir is a leadership's working directory; "" while there is no home.
func (b *buckets) kvDir(e *bucket) string {
	h := &b.inc.node.kv
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared == nil {
		return ""
	}
	return filepath.Join(h.dir, fmt.Sprintf("%d-%d", e.id, e.epoch))
}

// closeKV is a slot's step from open to closed.
func (b *buckets) closeKV(e *bucket) {
	b.mu.Lock()
	t := e.kv.tablet
	e.kv.tablet = nil
	b.mu.Unlock()
	var why error
	if t != nil {
		why = b.endKV(e, t)
	}
	b.mu.Lock()
	k := &e.kv
	k.busy = nil
	if time.Since(k.opened) >= kvServedLong {
		k.failures = 0
	}
	switch {
	case why == nil:
	case k.failures == 0: // at once
		k.failures = 1
	default:
		k.pause(fmt.Errorf("it ended %s after it had opened: %w: %s", time.Since(k.opened).Round(time.Millisecond), mink.ErrUnavailable, why.Error())) // not its class: it is built anew
	}
	if errors.Is(why, mink.ErrCorrupt) {
		k.restored.suspect(b.inc.node.View().KVSnapshots(e.id), why)
	}
	gone := b.mu.closed || b.mu.led[e.id] != e
	b.mu.Unlock()
	if gone {
		b.removeKV(e)
	}
}

// endKV closes a store, and answers why it had ended by itself. The directory of a
// damaged one is of no use.
func (b *buckets) endKV(e *bucket, t *kv.Tablet) error {
	why := t.Err()
	if err := t.Close(); err != nil && why == nil {
		b.inc.node.logger.Error("a store did not close in order", "bucket", e.ref.String(), "error", err)
		why = err
	}
	if why != nil {
		b.removeKV(e)
	}
	return why
}

func (b *buckets) removeKV(e *bucket) {
	dir := b.kvDir(e)
	if dir == "" {
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		b.inc.node.logger.Error("the working directory of a store was not removed", "bucket", e.ref.String(), "error", err)
	}
}

func kvTable(t *cluster.Table) kv.Table {
	return kv.Table{Descriptor: t.Descriptor, Schemas: t.Schemas}
}

// idleKV closes the stores that nobody has asked for lately, and those that have ended
// by themselves.
func (b *buckets) idleKV(context.Context) error {
	limit := b.inc.node.cfg.KVIdleClose
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.mu.led {
		k := &e.kv
		if k.tablet == nil || k.busy != nil || b.mu.closed {
			continue
		}
		switch idle := time.Duration(k.tablet.Idle()) >= limit; {
		case k.tablet.Err() != nil, idle && b.inc.snapshots.MayClose(e.source()):
			b.startKV(e, func() { b.closeKV(e) })
		case idle: // once its changes are in a snapshot
			b.inc.snapshot.Trigger()
		}
	}
	return nil
}

// end closes the store of a bucket that is led no more, and the bucket.
func (b *buckets) end(e *bucket) {
	b.mu.Lock()
	t := e.kv.tablet
	busy := e.kv.busy != nil // one that opens or closes notices by itself that it is not wanted
	e.kv.tablet = nil
	b.mu.Unlock()
	if t != nil { // before the log: what is durable is answered
		_ = b.endKV(e, t) // logged
	}
	if t != nil || !busy { // what it kept when it was idle is of no use, too
		b.removeKV(e)
	}
	e.close()
}

// kvHome is what the stores of this process share, and where they are: made when the
// first one opens.
type kvHome struct {
	mu     sync.Mutex
	shared *kv.Shared
	dir    string
	ours   bool // a temporary directory
	wiped  bool
	left   bool

	reads   chan struct{} // held by each reader of a KV snapshot: Config.KVReadsMax
	numbers atomic.Uint64 // of their directories
}

// wipe removes what an earlier process left in the directory, once. Under mu.
func (h *kvHome) wipe(dir string) error {
	if h.wiped {
		return nil
	}
	err := wipe(dir)
	h.wiped = err == nil
	return err
}

// isLeft is why a reader of a KV snapshot must end, when it must: the node leaves.
func (h *kvHome) isLeft(bucket mink.BucketRef) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left {
		return fmt.Errorf("KV snapshot of bucket %s: the node has stopped: %w", bucket, mink.ErrClosed)
	}
	return nil
}

// home makes sure that there is one. What an earlier process left in the directory is
// removed: a store does not outlive its process.
func (n *Node) home() (*kv.Shared, string, error) {
	h := &n.kv
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left {
		return nil, "", fmt.Errorf("working directory of stores: the node has stopped: %w", mink.ErrClosed)
	}
	if h.shared != nil {
		return h.shared, h.dir, nil
	}
	dir, ours := n.cfg.KVDir, false
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", "mink-kv-")
		ours = true
	} else {
		err = h.wipe(dir)
	}
	if err != nil {
		return nil, "", fmt.Errorf("working directory of stores: %w", err)
	}
	cfg := n.cfg.KVShared
	cfg.OpensMax, cfg.Logger = n.cfg.OpensMax, n.logger
	shared, err := kv.NewShared(cfg)
	if err != nil {
		return nil, "", err
	}
	h.shared, h.dir, h.ours = shared, dir, ours
	return shared, dir, nil
}

// leave closes what the stores shared, after the last one; readers of KV snapshots end
// with their next batch.
func (h *kvHome) leave() error {
	h.mu.Lock()
	h.left = true
	h.mu.Unlock()
	for range cap(h.reads) {
		h.reads <- struct{}{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared == nil {
		return nil
	}
	h.shared.Close()
	h.shared = nil
	if h.ours {
		return os.RemoveAll(h.dir)
	}
	return nil
}

func wipe(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
