package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	clusterplan "github.com/mink-project/mink/core/cluster/plan"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
)

// silence remembers how long each node epoch's heartbeat row has stood still,
// as watched by this process: a row's age alone also grows while the database
// is down, which must not fence the cluster. While the looks succeed one after
// the other, so could the heartbeats.
type silence struct {
	mu   sync.Mutex
	last time.Time // look
	seen map[mink.NodeEpoch]beat
}

type beat struct {
	applied uint64
	since   time.Time // of the watch in which the row has stood still
}

func (s *silence) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// observe answers the epochs whose rows did not move for their lease, the one that
// leaseOf answers; those of which it knows none are not dead. A beat between two
// looks shows as an age below the time between them. Looks that are more than
// half a lease apart are two watches, not one.
func (s *silence) observe(rows []metalog.HeartbeatRow, now time.Time, leaseOf func(mink.NodeEpoch) (time.Duration, bool)) []metalog.HeartbeatRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := now.Sub(s.last)
	s.last = now
	next := map[mink.NodeEpoch]beat{}
	var dead []metalog.HeartbeatRow
	for _, r := range rows {
		if r.Marked {
			continue
		}
		age := time.Duration(r.AgeMs) * time.Millisecond
		ttl, judged := leaseOf(r.Epoch)
		b, known := s.seen[r.Epoch]
		if !known || elapsed > ttl/2 || r.Applied != b.applied || age < elapsed {
			b.since = now
		}
		b.applied = r.Applied
		next[r.Epoch] = b
		if judged && now.Sub(b.since) >= ttl && age >= ttl {
			dead = append(dead, r)
		}
	}
	s.seen = next
	return dead
}

// leases are how long the registered epochs may be silent: as long as each of them
// registered to answer reads without a heartbeat, and never less than this node's own
// lease, at whose pace it looks. An epoch that this view does not know yet has none.
func (c *Coordinator) leases(view *cluster.State) map[mink.NodeEpoch]time.Duration {
	out := map[mink.NodeEpoch]time.Duration{}
	for n := range view.Nodes() {
		out[n.Epoch] = max(c.cfg.LeaseTTL, time.Duration(n.LeaseTTLMs)*time.Millisecond)
	}
	return out
}

// sealSilent is one look at the heartbeats.
func (c *Coordinator) sealSilent(ctx context.Context) error {
	l, ok := c.held()
	if !ok {
		c.silent.reset()
		return loop.ErrIdle
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL)
	defer cancel()
	look, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL/4)
	rows, err := c.deps.Log.Heartbeats(look)
	cancel()
	if err != nil {
		c.silent.reset() // an unbroken watch begins again
		return fmt.Errorf("read heartbeats: %w", err)
	}
	if !c.writable() {
		c.silent.reset()
		return nil
	}
	var commands []*clusterpb.Command
	leases := c.leases(c.deps.Meta.View())
	leaseOf := func(e mink.NodeEpoch) (time.Duration, bool) { ttl, ok := leases[e]; return ttl, ok }
	for _, r := range c.silent.observe(rows, time.Now(), leaseOf) {
		if r.Epoch == l.NodeEpoch {
			continue
		}
		c.logger.Warn("node is silent, sealing its epoch", "node", r.Node, "epoch", r.Epoch, "silent_ms", r.AgeMs)
		commands = append(commands, &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{
			Epoch: int64(r.Epoch), Lease: int64(l.Epoch), Reason: fmt.Sprintf("no heartbeat for %s", leases[r.Epoch]),
		}}})
	}
	return c.propose(ctx, commands...)
}

// recoveryTimeout bounds one try at one log, in leases: what waits behind a log
// whose store does not answer waits no longer.
const recoveryTimeout = 4

// runRecovery recovers every sealed log by reference, several at once. One that
// is corrupt stays unrecovered and its buckets closed; the others go on.
func (c *Coordinator) runRecovery(ctx context.Context) error {
	l, ok := c.held()
	if !ok {
		return loop.ErrIdle
	}
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout*c.cfg.LeaseTTL)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	recoverOne := func(w plan.WAL, losses int) {
		err := c.recoverLog(ctx, l, w)
		c.noteDamage(ctx, w, losses, err)
		c.recovered(w.ID.Epoch, losses, err)
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, fmt.Errorf("recover the write-ahead log of %s: %w", w.ID, err))
		}
	}
	begun, running, ended := map[mink.NodeEpoch]bool{}, 0, make(chan struct{})
	for {
		view := c.deps.Meta.View()
		for w := range view.WALs() {
			if !w.Sealed || w.Recovered || begun[w.ID.Epoch] || running == c.cfg.RecoveriesMax {
				continue
			}
			begun[w.ID.Epoch] = true
			running++
			go func() {
				recoverOne(w, len(view.LostSlots(w.ID.Epoch)))
				ended <- struct{}{}
			}()
		}
		if running == 0 {
			return errors.Join(errs...)
		}
		select { // a log that is sealed while another one's store does not answer must not wait for it
		case <-ended:
			running--
		case <-c.deps.Meta.Changed(view.Index()):
		}
	}
}

func (c *Coordinator) recovered(epoch mink.NodeEpoch, losses int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.mu.failed[epoch] = losses
	} else {
		delete(c.mu.failed, epoch)
	}
}

func (c *Coordinator) recoverConfig(view *cluster.State, w plan.WAL) wal.RecoverConfig {
	cfg := wal.RecoverConfig{
		Store: c.deps.WALStore, WAL: w.ID, From: w.Trim, Window: c.cfg.WALWindow, Logger: c.logger,
		StillNeeded: func() bool {
			now, ok := c.deps.Meta.View().WAL(w.ID.Epoch)
			return ok && !now.Recovered
		},
	}
	for _, s := range view.LostSlots(w.ID.Epoch) {
		cfg.AcceptLost = append(cfg.AcceptLost, s.Slot)
	}
	return cfg
}

// recoverItems bounds the items of one RecoverWAL command, below the 16 MiB that
// an entry of the metadata log may have: the log of a node whose uploads failed
// for a while, with thousands of busy buckets, holds more.
const recoverItems = 400_000

func (c *Coordinator) recoverLog(ctx context.Context, l metalog.Lease, w plan.WAL) error {
	nonce, err := wal.NewNonce()
	if err != nil {
		return err
	}
	began := time.Now()
	cfg := c.recoverConfig(c.deps.Meta.View(), w)
	cfg.Nonce = nonce
	r, err := wal.Recover(ctx, cfg)
	if errors.Is(err, wal.ErrRecovered) {
		return nil
	}
	if err != nil {
		return err
	}
	whole := plan.RecoverWAL{WAL: w.ID, Lease: l.Epoch, From: w.Trim, End: r.End, Objects: r.Objects, Items: r.Items}
	parts := []plan.RecoverWAL{whole}
	if len(cfg.AcceptLost) == 0 {
		parts = plan.RecoverParts(whole, recoverItems)
	}
	for _, part := range parts {
		if err := c.propose(ctx, cluster.RecoverWALCommand(part)); err != nil {
			return err
		}
	}
	c.logger.Info("write-ahead log recovered", "wal", w.ID.String(), "slots", r.End-min(w.Trim, r.End), "objects", len(r.Objects), "took", time.Since(began))
	return nil
}

// leadsPerCommand bounds one LeadBuckets command.
const leadsPerCommand = 10_000

// leadOrphans gives buckets without a leader to the least-loaded live nodes.
func (c *Coordinator) leadOrphans(ctx context.Context, l metalog.Lease) error {
	return c.lead(ctx, l, planLeads(c.deps.Meta.View()))
}

func (c *Coordinator) lead(ctx context.Context, l metalog.Lease, leads []*clusterpb.Lead) error {
	if len(leads) == 0 {
		return nil
	}
	var commands []*clusterpb.Command
	for chunk := range slices.Chunk(leads, leadsPerCommand) {
		commands = append(commands, &clusterpb.Command{Kind: &clusterpb.Command_LeadBuckets{
			LeadBuckets: &clusterpb.LeadBuckets{Lease: int64(l.Epoch), Leads: chunk},
		}})
	}
	if err := c.propose(ctx, commands...); err != nil {
		return fmt.Errorf("lead %d buckets: %w", len(leads), err)
	}
	c.logger.Info("buckets got leaders", "buckets", len(leads))
	return nil
}

func planLeads(view *cluster.State) []*clusterpb.Lead {
	var orphans []mink.StreamID
	epochs := map[mink.StreamID]mink.LeaderEpoch{}
	for s := range view.Orphans() {
		orphans = append(orphans, s.ID)
		epochs[s.ID] = s.Owner.LeaderEpoch
	}
	if len(orphans) == 0 {
		return nil
	}
	var loads []clusterplan.Load
	nodes := map[mink.NodeID]mink.NodeEpoch{}
	for _, n := range view.LiveNodes() {
		nodes[n.ID] = n.Epoch
		load := clusterplan.Load{Node: n.ID}
		for range view.StreamsLedBy(n.Epoch) {
			load.Buckets++
		}
		loads = append(loads, load)
	}
	var leads []*clusterpb.Lead
	for _, m := range clusterplan.Relead(orphans, loads) {
		leads = append(leads, &clusterpb.Lead{
			Stream: int64(m.Stream), Node: int32(m.Node), Epoch: int64(nodes[m.Node]),
			ExpectedLeaderEpoch: int32(epochs[m.Stream]),
		})
	}
	return leads
}
