package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema/partition"
)

// expiredPerCommand bounds one ExpireProducerOffsets command.
const expiredPerCommand = 1000

// expireProducers drops the offsets of producers that did not commit for the
// TTL, by the metadata's clock: the newest entry's time, plus this process's
// clock since, is never ahead of the database's by more than the two drift.
func (c *Coordinator) expireProducers(ctx context.Context) error {
	view := c.deps.Meta.View()
	before := time.Now().Add(-c.cfg.ProducerOffsetsTTL).UnixMilli()
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

// keepPartitions makes and drops the partitions of tables with auto_partition.
// One failing table does not stop the others.
func (c *Coordinator) keepPartitions(ctx context.Context) error {
	view := c.deps.Meta.View()
	var errs []error
	for db := range view.Databases() {
		for t := range view.Tables(db.Name) {
			if err := c.keepTable(ctx, view, t); err != nil {
				errs = append(errs, fmt.Errorf("automatic partitions of %s.%s: %w", t.Descriptor.Database, t.Descriptor.Table, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (c *Coordinator) keepTable(ctx context.Context, view *cluster.State, t *cluster.Table) error {
	o, err := t.Descriptor.ParsedOptions()
	if err != nil || o.AutoPartition.Unit == "" {
		return err
	}
	loc, err := time.LoadLocation(o.AutoPartition.Zone)
	if err != nil {
		return fmt.Errorf("time zone: %w", err)
	}
	s, err := partition.NewSchedule(t.Descriptor, loc)
	if err != nil {
		return err
	}
	now := time.Now()
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
			return fmt.Errorf("partition %v: %w", p.Values, err)
		}
		if expired {
			commands = append(commands,
				&clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{ClosePartition: &clusterpb.ClosePartition{Table: int64(t.ID), Partition: int64(p.ID)}}},
				&clusterpb.Command{Kind: &clusterpb.Command_DropPartition{DropPartition: &clusterpb.DropPartition{Table: int64(t.ID), Partition: int64(p.ID), IfExists: true}}})
		}
	}
	return c.propose(ctx, commands...)
}
