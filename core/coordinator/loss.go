package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// listedLosses is how many losses of a slot Damaged lists.
const listedLosses = 100

// surveyTimeout bounds one reading of all damaged logs.
const surveyTimeout = 2 * time.Minute

// damage is a survey, and how many losses were accepted by then.
type damage struct {
	wal.Damage
	losses int
}

// noteDamage keeps what a failed recovery stopped at, for Damaged. It reads the
// log again only when the damage is another one than before.
func (c *Coordinator) noteDamage(ctx context.Context, w plan.WAL, losses int, err error) {
	bad := (*wal.CorruptSlotError)(nil)
	c.mu.Lock()
	known := c.mu.damage[w.ID.Epoch]
	if err == nil {
		delete(c.mu.damage, w.ID.Epoch)
	}
	c.mu.Unlock()
	if !errors.As(err, &bad) || len(known.Slots) > 0 && known.losses == losses && known.Slots[0].Slot == bad.Slot {
		return
	}
	d, err := c.survey(ctx, c.deps.Meta.View(), w)
	if err != nil || len(d.Slots) == 0 {
		d = wal.Damage{WAL: w.ID, Slots: []wal.DamagedSlot{{Slot: bad.Slot, Key: bad.Key, Why: bad.Why}}}
	}
	c.mu.Lock()
	c.mu.damage[w.ID.Epoch] = damage{d, losses}
	c.mu.Unlock()
	if c.deps.Stopped != nil {
		c.deps.Stopped()
	}
}

// Stuck reports that the recovery of a log stopped at damage that nobody has
// mended or accepted yet, as far as is known here.
func (c *Coordinator) Stuck(epoch mink.NodeEpoch) bool {
	view := c.deps.Meta.View()
	w, ok := view.WAL(epoch)
	c.mu.Lock()
	defer c.mu.Unlock()
	d, known := c.mu.damage[epoch]
	return ok && known && !w.Recovered && d.losses == len(view.LostSlots(epoch))
}

func (c *Coordinator) survey(ctx context.Context, view *cluster.State, w plan.WAL) (wal.Damage, error) {
	var accepted []wal.StreamGap
	for _, s := range view.LostSlots(w.ID.Epoch) {
		for _, g := range s.Gaps {
			accepted = append(accepted, wal.StreamGap{Stream: g.Stream, Start: g.Start, End: g.End})
		}
	}
	return wal.Survey(ctx, c.recoverConfig(view, w), view.StreamsLedBy(w.ID.Epoch), accepted)
}

// Damaged lists the logs that recovery stops at, as last seen here: nothing on a
// node that does not hold the lease. Long lists of losses are cut.
func (c *Coordinator) Damaged() []api.DamagedLog {
	if _, ok := c.held(); !ok {
		return nil
	}
	view := c.deps.Meta.View()
	c.mu.Lock()
	var all []wal.Damage
	for epoch, d := range c.mu.damage {
		if w, ok := view.WAL(epoch); ok && !w.Recovered {
			all = append(all, d.Damage)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b wal.Damage) int { return cmp.Compare(a.WAL.Epoch, b.WAL.Epoch) })
	var out []api.DamagedLog
	for _, d := range all {
		out = append(out, describe(view, d, listedLosses))
	}
	return out
}

// AcceptLoss answers what is lost with the damaged slots of one log, or of all;
// when r confirms it, the loss is accepted: the recovery goes on without those
// slots, and the offsets that they held are skipped and never given out again.
//
// Errors: mink.ErrNotExist for a log that never was, mink.ErrConflict for one
// that waits for no decision, or when r.Slots are not the damaged ones.
func (c *Coordinator) AcceptLoss(ctx context.Context, r api.AcceptLoss) (api.LossReport, error) {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	view := c.deps.Meta.View()
	logs, err := logsToSurvey(view, r)
	if err != nil {
		return api.LossReport{}, err
	}
	out := api.LossReport{Logs: []api.DamagedLog{}}
	var commands []*clusterpb.Command
	for _, w := range logs {
		d, err := c.survey(ctx, view, w)
		if err != nil {
			return api.LossReport{}, err
		}
		if len(d.Slots) == 0 {
			continue
		}
		out.Logs = append(out.Logs, describe(view, d, -1))
		commands = append(commands, acceptCommands(d)...)
	}
	if !r.Confirm {
		return out, nil
	}
	var found []uint64
	for _, d := range out.Logs {
		for _, s := range d.Slots {
			found = append(found, s.Slot)
		}
	}
	if asked := slices.Sorted(slices.Values(r.Slots)); len(found) == 0 || !slices.Equal(asked, found) {
		return api.LossReport{}, fmt.Errorf("accept the loss of slots %v of the log of node %d, epoch %d: the damaged ones are %v; look again before you decide: %w",
			asked, r.Node, r.Epoch, found, mink.ErrConflict)
	}
	if err := c.propose(ctx, commands...); err != nil {
		return api.LossReport{}, fmt.Errorf("accept the loss: %w", err)
	}
	out.Accepted = true
	c.logger.Warn("the loss of damaged write-ahead slots was accepted", "node", r.Node, "epoch", r.Epoch, "slots", found)
	return out, nil
}

// logsToSurvey are the logs that r speaks of and that wait for recovery.
func logsToSurvey(view *cluster.State, r api.AcceptLoss) ([]plan.WAL, error) {
	if r.Node == 0 && r.Epoch == 0 {
		if r.Confirm {
			return nil, fmt.Errorf("accept a loss: name the log by its node and epoch: %w", mink.ErrInvalid)
		}
		var out []plan.WAL
		for w := range view.WALs() {
			if w.Sealed && !w.Recovered {
				out = append(out, w)
			}
		}
		return out, nil
	}
	w, ok := view.WAL(r.Epoch)
	switch {
	case !ok || w.ID.Node != r.Node:
		return nil, fmt.Errorf("node %d never had epoch %d: %w", r.Node, r.Epoch, mink.ErrNotExist)
	case !w.Sealed:
		return nil, fmt.Errorf("node %d, epoch %d, is alive: only the log of an epoch that is over has losses to accept: %w", r.Node, r.Epoch, mink.ErrConflict)
	case w.Recovered:
		return nil, fmt.Errorf("the log of node %d, epoch %d, is recovered: there is nothing to accept: %w", r.Node, r.Epoch, mink.ErrConflict)
	}
	return []plan.WAL{w}, nil
}

func acceptCommands(d wal.Damage) []*clusterpb.Command {
	var out []*clusterpb.Command
	for _, s := range d.Slots {
		c := &clusterpb.AcceptLoss{Wal: &clusterpb.WALID{Node: int32(d.WAL.Node), Epoch: int64(d.WAL.Epoch), Nonce: d.WAL.Nonce}, Slot: s.Slot}
		for _, l := range s.Losses {
			c.Gaps = append(c.Gaps, &clusterpb.Gap{Stream: int64(l.Stream), Start: int64(l.Start), End: int64(l.End)})
		}
		out = append(out, &clusterpb.Command{Kind: &clusterpb.Command_AcceptLoss{AcceptLoss: c}})
	}
	return out
}

// describe names tables and buckets; at most `most` losses of each slot, -1: all.
func describe(view *cluster.State, d wal.Damage, most int) api.DamagedLog {
	out := api.DamagedLog{Node: d.WAL.Node, Epoch: d.WAL.Epoch, Slots: []api.DamagedSlot{}}
	for _, s := range d.Slots {
		slot := api.DamagedSlot{Slot: s.Slot, Object: s.Key, Reason: s.Why, Losses: []api.Loss{}}
		for _, l := range s.Losses {
			if most >= 0 && len(slot.Losses) == most {
				slot.More = len(s.Losses) - most
				break
			}
			st, ok := view.Stream(l.Stream)
			if !ok {
				continue // dropped meanwhile
			}
			loss := api.Loss{Bucket: st.Bucket, Start: l.Start, End: l.End, Exact: l.Exact}
			if t, ok := view.Table(st.Bucket.Table); ok {
				loss.Table = t.Descriptor.Name()
			}
			slot.Losses = append(slot.Losses, loss)
		}
		out.Slots = append(out.Slots, slot)
	}
	return out
}
