package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	clusterplan "github.com/mink-project/mink/core/cluster/plan"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
)

// silence remembers how long each node epoch's heartbeat row has stood still,
// as watched by this process: a row's age alone also grows while the database
// is down, which must not fence the cluster.
type silence struct {
	mu   sync.Mutex
	seen map[mink.NodeEpoch]beat
}

type beat struct {
	applied uint64
	ageMs   int64
	since   time.Time // when the row was first seen with this age's origin
}

func (s *silence) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// observe answers the epochs whose rows did not move for ttl. A beat between
// two looks shows as an age that is smaller than the time since the last look.
func (s *silence) observe(rows []metalog.HeartbeatRow, now time.Time, ttl time.Duration) []metalog.HeartbeatRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[mink.NodeEpoch]beat{}
	var dead []metalog.HeartbeatRow
	for _, r := range rows {
		if r.Marked {
			continue
		}
		b, known := s.seen[r.Epoch]
		moved := !known || r.Applied != b.applied || r.AgeMs <= b.ageMs
		if moved {
			b.since = now
		}
		b.applied, b.ageMs = r.Applied, r.AgeMs
		next[r.Epoch] = b
		if now.Sub(b.since) >= ttl && time.Duration(r.AgeMs)*time.Millisecond >= ttl {
			dead = append(dead, r)
		}
	}
	s.seen = next
	return dead
}

func (c *Coordinator) sealSilent(ctx context.Context, l metalog.Lease) error {
	rows, err := c.deps.Log.Heartbeats(ctx)
	if err != nil {
		c.silent.reset() // an unbroken watch begins again
		return fmt.Errorf("read heartbeats: %w", err)
	}
	var commands []*clusterpb.Command
	for _, r := range c.silent.observe(rows, time.Now(), c.cfg.LeaseTTL) {
		if r.Epoch == l.NodeEpoch {
			continue
		}
		c.logger.Warn("node is silent, sealing its epoch", "node", r.Node, "epoch", r.Epoch, "silent_ms", r.AgeMs)
		commands = append(commands, &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{
			Epoch: int64(r.Epoch), Lease: int64(l.Epoch), Reason: fmt.Sprintf("no heartbeat for %s", c.cfg.LeaseTTL),
		}}})
	}
	return c.propose(ctx, commands...)
}

// recoverLogs recovers every sealed WAL by reference, several at once. One that
// is corrupt stays unrecovered and its buckets closed; the others go on.
func (c *Coordinator) recoverLogs(ctx context.Context, l metalog.Lease) error {
	var g errgroup.Group
	g.SetLimit(c.cfg.RecoveriesMax)
	var mu sync.Mutex
	var errs []error
	for w := range c.deps.Meta.View().WALs() {
		if !w.Sealed || w.Recovered {
			continue
		}
		g.Go(func() error {
			if err := c.recoverLog(ctx, l, w); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("recover the write-ahead log of %s: %w", w.ID, err))
			}
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

func (c *Coordinator) recoverLog(ctx context.Context, l metalog.Lease, w plan.WAL) error {
	nonce, err := randomNonce()
	if err != nil {
		return err
	}
	began := time.Now()
	var lost []uint64
	for _, s := range c.deps.Meta.View().LostSlots(w.ID.Epoch) {
		lost = append(lost, s.Slot)
	}
	r, err := wal.Recover(ctx, wal.RecoverConfig{
		AcceptLost: lost,
		Store:      c.deps.WALStore, WAL: w.ID, From: w.Trim, Window: c.cfg.WALWindow, Nonce: nonce, Logger: c.logger,
		StillNeeded: func() bool {
			now, ok := c.deps.Meta.View().WAL(w.ID.Epoch)
			return ok && !now.Recovered
		},
	})
	if errors.Is(err, wal.ErrRecovered) {
		return nil
	}
	if err != nil {
		return err
	}
	err = c.propose(ctx, cluster.RecoverWALCommand(plan.RecoverWAL{
		WAL: w.ID, Lease: l.Epoch, End: r.End, Objects: r.Objects, Items: r.Items,
	}))
	if err != nil {
		return err
	}
	c.logger.Info("write-ahead log recovered", "wal", w.ID.String(), "slots", r.End-min(w.Trim, r.End), "objects", len(r.Objects), "took", time.Since(began))
	return nil
}

func randomNonce() (uint64, error) {
	var b [8]byte
	_, err := rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// leadsPerCommand bounds one LeadBuckets command.
const leadsPerCommand = 10_000

// leadOrphans gives buckets without a leader to the least-loaded live nodes.
func (c *Coordinator) leadOrphans(ctx context.Context, l metalog.Lease) error {
	view := c.deps.Meta.View()
	leads := planLeads(view)
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
