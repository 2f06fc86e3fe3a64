package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/schema/partition"
)

// expiredPerCommand bounds one ExpireProducerOffsets or ExpireGroups command.
const expiredPerCommand = 1000

// clock tells the metadata database's time without asking it: the time of the
// newest entry, and this process's clock since it was seen. It is never ahead of
// the database's, and a node whose own clock is wrong expires nothing early.
type clock struct {
	mu     sync.Mutex
	index  uint64
	timeMs int64
	seen   time.Time
}

func (c *clock) observe(view *cluster.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if view.Index() > c.index {
		c.index, c.timeMs, c.seen = view.Index(), max(view.TimeMs(), c.nowLocked()), time.Now()
	}
}

func (c *clock) nowLocked() int64 {
	if c.seen.IsZero() {
		return 0
	}
	return c.timeMs + time.Since(c.seen).Milliseconds()
}

// nowMs is the time by the view's clock.
func (c *clock) nowMs(view *cluster.State) int64 {
	c.observe(view)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

// expireProducers drops the offsets of producers that did not commit for the
// TTL.
func (c *Coordinator) expireProducers(ctx context.Context, _ metalog.Lease) error {
	view := c.deps.Meta.View()
	before := c.clock.nowMs(view) - c.cfg.ProducerOffsetsTTL.Milliseconds()
	expired := false
	for p := range view.Producers() {
		if p.CommittedMs < before {
			expired = true
			break
		}
	}
	if !expired {
		return nil
	}
	err := c.propose(ctx, &clusterpb.Command{Kind: &clusterpb.Command_ExpireProducerOffsets{
		ExpireProducerOffsets: &clusterpb.ExpireProducerOffsets{BeforeMs: before, Max: expiredPerCommand},
	}})
	if err != nil {
		return fmt.Errorf("expire producer offsets: %w", err)
	}
	return nil
}

// expireGroups drops the offsets of consumer groups whose retention is over.
func (c *Coordinator) expireGroups(ctx context.Context, _ metalog.Lease) error {
	view := c.deps.Meta.View()
	before := c.clock.nowMs(view) - c.cfg.GroupOffsetsRetention.Milliseconds()
	if !view.HasExpiredGroups(before) {
		return nil
	}
	err := c.propose(ctx, &clusterpb.Command{Kind: &clusterpb.Command_ExpireGroups{
		ExpireGroups: &clusterpb.ExpireGroups{BeforeMs: before, Max: expiredPerCommand},
	}})
	if err != nil {
		return fmt.Errorf("expire offsets of consumer groups: %w", err)
	}
	return nil
}

// keepPartitions makes and drops the partitions of tables with auto_partition.
// One failing table does not stop the others.
func (c *Coordinator) keepPartitions(ctx context.Context, _ metalog.Lease) error {
	view := c.deps.Meta.View()
	now := time.UnixMilli(c.clock.nowMs(view))
	var errs []error
	for db := range view.Databases() {
		for t := range view.Tables(db.Name) {
			err := errors.Join(c.dropClosed(ctx, view, t), c.keepTable(ctx, view, t, now))
			if err != nil {
				errs = append(errs, fmt.Errorf("automatic partitions of %s.%s: %w", t.Descriptor.Database, t.Descriptor.Table, err))
			}
		}
	}
	return errors.Join(errs...)
}

// dropClosed drops partitions that were closed for the table's sinks to take their last
// rows, now that they have.
func (c *Coordinator) dropClosed(ctx context.Context, view *cluster.State, t *cluster.Table) error {
	if len(t.Descriptor.PartitionKeys) == 0 {
		return nil
	}
	var commands []*clusterpb.Command
	for p := range view.Partitions(t.ID) {
		if p.Closed && view.Waiting(p) == "" {
			commands = append(commands, &clusterpb.Command{Kind: &clusterpb.Command_DropPartition{
				DropPartition: &clusterpb.DropPartition{Table: int64(t.ID), Partition: int64(p.ID), IfExists: true},
			}})
		}
	}
	return c.propose(ctx, commands...)
}

func (c *Coordinator) keepTable(ctx context.Context, view *cluster.State, t *cluster.Table, now time.Time) error {
	s, err := partition.ScheduleOf(t.Descriptor)
	if err != nil || s == nil {
		return err
	}
	var errs []error
	var commands []*clusterpb.Command
	for _, values := range s.Precreate(now) {
		if _, ok := view.PartitionByValues(t.ID, values); !ok {
			commands = append(commands, &clusterpb.Command{Kind: &clusterpb.Command_CreatePartition{
				CreatePartition: &clusterpb.CreatePartition{Table: int64(t.ID), Values: values, IfNotExists: true, Automatic: true},
			}})
		}
	}
	for p := range view.Partitions(t.ID) {
		expired, err := s.Expired(p.Values, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("partition %v: %w", p.Values, err))
		}
		if expired && (!p.Closed || view.Waiting(p) == "") { // else sinks have yet to take its last rows
			commands = append(commands,
				&clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{ClosePartition: &clusterpb.ClosePartition{Table: int64(t.ID), Partition: int64(p.ID)}}},
				&clusterpb.Command{Kind: &clusterpb.Command_DropPartition{DropPartition: &clusterpb.DropPartition{Table: int64(t.ID), Partition: int64(p.ID), IfExists: true}}})
		}
	}
	return errors.Join(append(errs, c.propose(ctx, commands...))...)
}
