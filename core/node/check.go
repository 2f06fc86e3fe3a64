package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// problemsMax bounds each list of a report.
const problemsMax = 1000

// check is one run of the consistency check, against one view.
type check struct {
	node   *Node
	view   *cluster.State
	deep   bool
	report api.CheckReport
}

// Check compares the metadata with the object store: every object that is named
// exists with its size and its index's checksum, the ranges that streams name
// are in it without holes, every stream is contiguous, every slot that a
// write-ahead log may still need for recovery is sound, every file of a KV snapshot is
// there, and no slot, object or file of
// an ended epoch is on the store that nothing names any more and that the sweep
// would not remove. Deep reads and verifies every named block, every such slot and
// every such file too. It reads one view and one object at a time; what was destroyed since the
// view is no problem. What is left of before the metadata were restored, or went back, is
// listed and no problem. An error says that the store could not be asked.
func (n *Node) Check(ctx context.Context, deep bool) (api.CheckReport, error) {
	c := &check{node: n, view: n.View(), deep: deep}
	for s := range c.view.Streams() {
		c.stream(s)
		c.accepted(s)
	}
	for o := range c.view.Objects() {
		if err := c.object(ctx, o); err != nil {
			return api.CheckReport{}, err
		}
	}
	for _, part := range []func(context.Context) error{c.snapshots, c.logs, c.orphans, c.unnamed} {
		if err := part(ctx); err != nil {
			return api.CheckReport{}, err
		}
	}
	c.report.Clean = len(c.report.Problems) == 0
	return c.report, nil
}

func (c *check) problem(p api.Problem) {
	if len(c.report.Problems) < problemsMax {
		c.report.Problems = append(c.report.Problems, p)
	}
}

func (c *check) store(o plan.Object) objstore.Store {
	if o.ID.Kind == plan.KindWAL {
		return c.node.deps.WALStore
	}
	return c.node.deps.Objects
}

func (c *check) object(ctx context.Context, o plan.Object) error {
	c.report.Objects++
	c.report.Bytes += o.Size
	r, err := c.store(o).GetRange(ctx, objstore.GetRangeRequest{Key: o.Key(), Offset: o.IndexPos, Length: o.IndexLen})
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		if _, named := c.node.View().Object(o.ID); named {
			c.problem(api.Problem{Kind: "missing", Object: o.Key(), Text: fmt.Sprintf("object %s is named by the metadata and not on the store: its records are lost unless it is restored there", o.Key())})
		}
		return nil
	case errors.Is(err, objstore.ErrInvalid):
		c.problem(api.Problem{Kind: "size", Object: o.Key(), Text: fmt.Sprintf("object %s is shorter than the %d bytes that the metadata says", o.Key(), o.Size)})
		return nil
	case err != nil:
		return fmt.Errorf("check object %s: %w", o.Key(), err)
	}
	if r.Size != o.Size {
		c.problem(api.Problem{Kind: "size", Object: o.Key(), Text: fmt.Sprintf("object %s has %d bytes, the metadata says %d", o.Key(), r.Size, o.Size)})
		return nil
	}
	x, err := object.ParseIndexOf(r.Data, o.IndexPos, o.IndexCRC)
	if err != nil {
		c.problem(api.Problem{Kind: "corrupt", Object: o.Key(), Text: fmt.Sprintf("object %s: %v", o.Key(), err)})
		return nil
	}
	return c.content(ctx, o, x)
}

// stream checks what needs no object.
func (c *check) stream(s plan.Stream) {
	c.report.Streams++
	if err := s.Validate(); err != nil {
		c.problem(api.Problem{Kind: "gap", Stream: int64(s.ID), Text: fmt.Sprintf("stream %d of bucket %s: %v", s.ID, s.Bucket, err)})
	}
	for _, r := range s.Ranges {
		if _, ok := c.view.Object(r.Object); !ok {
			c.problem(api.Problem{Kind: "missing", Stream: int64(s.ID), Text: fmt.Sprintf("stream %d names an object that the metadata does not have for [%d, %d)", s.ID, r.Start, r.End)})
		}
	}
}

// accepted reports what a stream skips because a person gave it up.
func (c *check) accepted(s plan.Stream) {
	for _, g := range s.Gaps {
		if len(c.report.AcceptedLosses) == problemsMax {
			return
		}
		c.report.AcceptedLosses = append(c.report.AcceptedLosses, c.lossOf(s, g))
	}
}

func (c *check) lossOf(s plan.Stream, g plan.Gap) api.Loss {
	l := api.Loss{Bucket: s.Bucket, Start: g.Start, End: g.End}
	if t, ok := c.view.Table(s.Bucket.Table); ok {
		l.Table = t.Descriptor.Name()
	}
	return l
}

// content checks that an object holds what streams expect of it.
func (c *check) content(ctx context.Context, o plan.Object, x *object.Index) error {
	for _, r := range c.view.ObjectRanges(o.ID) {
		if _, ok := x.CheckpointOf(r.Stream); r.Checkpoint && !ok {
			c.problem(api.Problem{Kind: "checkpoint", Object: o.Key(), Stream: int64(r.Stream), Text: fmt.Sprintf("stream %d: object %s should hold its checkpoint and has none", r.Stream, o.Key())})
		}
		if r.Start == r.End {
			continue
		}
		if err := c.rangeOf(ctx, o, x, r); err != nil {
			return err
		}
	}
	return nil
}

// rangeOf checks that the object's blocks cover the range.
func (c *check) rangeOf(ctx context.Context, o plan.Object, x *object.Index, r plan.ObjectRange) error {
	at := r.Start
	if s, ok := c.view.Stream(r.Stream); ok {
		at = max(at, s.Start)
	}
	for _, b := range x.BlocksFrom(r.Stream, at) {
		if b.Start > at || b.Start >= r.End {
			break
		}
		c.report.Records += int64(b.Count)
		if c.deep {
			if err := c.block(ctx, o, b); err != nil {
				return err
			}
		}
		at = b.End()
	}
	if at < r.End {
		c.problem(api.Problem{Kind: "gap", Stream: int64(r.Stream), Object: o.Key(), Text: fmt.Sprintf("stream %d: object %s should hold [%d, %d) and ends at %d", r.Stream, o.Key(), r.Start, r.End, at)})
	}
	return nil
}

// logs checks the slots of logs that are not recovered, from the committed trim
// on: recovery would stop at a bad one.
func (c *check) logs(ctx context.Context) error {
	for w := range c.view.WALs() {
		if w.Recovered {
			continue
		}
		for slot, err := range wal.Slots(ctx, c.node.deps.WALStore, w.ID, w.Trim, math.MaxInt64) {
			if err != nil {
				return fmt.Errorf("check: %w", err)
			}
			err = wal.CheckSlot(ctx, c.node.deps.WALStore, w.ID, slot, c.deep)
			switch {
			case err == nil, errors.Is(err, objstore.ErrNotExist): // deleted since: it was uploaded
			case errors.Is(err, mink.ErrCorrupt):
				c.problem(api.Problem{Kind: "corrupt", Object: slot.Key, Text: err.Error()})
			default:
				return fmt.Errorf("check: %w", err)
			}
		}
	}
	return nil
}

func (c *check) block(ctx context.Context, o plan.Object, b object.BlockInfo) error {
	r, err := c.store(o).GetRange(ctx, objstore.GetRangeRequest{Key: o.Key(), Offset: b.Pos, Length: b.Len()})
	if err == nil {
		_, err = object.DecodeBlock(b, r.Data)
	}
	switch {
	case err == nil:
	case errors.Is(err, mink.ErrCorrupt), errors.Is(err, objstore.ErrInvalid):
		c.problem(api.Problem{Kind: "corrupt", Object: o.Key(), Stream: int64(b.Stream), Text: fmt.Sprintf("object %s, block at %d (stream %d, offsets [%d, %d)): %v", o.Key(), b.Pos, b.Stream, b.Start, b.End(), err)})
	case errors.Is(err, objstore.ErrNotExist):
		if _, named := c.node.View().Object(o.ID); named {
			c.problem(api.Problem{Kind: "missing", Object: o.Key(), Text: fmt.Sprintf("object %s vanished while it was checked", o.Key())})
		}
	default:
		return fmt.Errorf("check object %s: %w", o.Key(), err)
	}
	return nil
}

// orphans looks below the prefixes of epochs that are over for objects that
// nothing names. The sweep removes them once they are old enough; until then
// they are not problems, only when they are older than twice its age. A process
// that has not run for two sweeps has yet to remove what fell due while no node
// was up: it reports none. Nor is anything of an epoch a problem that was recovered
// within that time: its tombstone, which recovery writes, is as young.
func (c *check) orphans(ctx context.Context) error {
	if c.node.Uptime() < 2*c.node.cfg.Stream.SweepInterval {
		return nil
	}
	known := map[mink.NodeEpoch]map[string]bool{}
	know := func(o plan.Object) {
		if known[o.ID.Epoch] == nil {
			known[o.ID.Epoch] = map[string]bool{}
		}
		known[o.ID.Epoch][o.Key()] = true
	}
	for o := range c.view.Objects() {
		know(o)
	}
	for d := range c.view.Destroyed() {
		know(d.Object)
	}
	for w := range c.view.WALs() {
		if !w.Recovered || uint64(w.ID.Epoch) <= c.view.TimeLine() {
			continue // of an earlier time line: unnamed lists it
		}
		tombstone := plan.Object{WAL: w.ID, ID: plan.ObjectID{Epoch: w.ID.Epoch, Kind: plan.KindTombstone, Seq: w.End}}
		know(tombstone)
		if end, err := c.node.deps.WALStore.Head(ctx, tombstone.Key()); err != nil && !errors.Is(err, objstore.ErrNotExist) {
			return fmt.Errorf("look for the tombstone of %s: %w", w.ID, err)
		} else if err == nil && time.Since(end.Modified) <= 2*c.node.cfg.Stream.OrphanAge {
			continue
		}
		named := known[w.ID.Epoch]
		for _, at := range []struct {
			store  objstore.Store
			prefix string
		}{{c.node.deps.WALStore, plan.WALPrefix(w.ID)}, {c.node.deps.Objects, plan.DataPrefix(w.ID)}} {
			if err := c.orphansBelow(ctx, named, at.store, at.prefix); err != nil {
				return err
			}
		}
	}
	return c.kvOrphans(ctx)
}

func (c *check) orphansBelow(ctx context.Context, named map[string]bool, store objstore.Store, prefix string) error {
	old := 2 * c.node.cfg.Stream.OrphanAge
	for after := ""; ; {
		page, err := store.List(ctx, objstore.ListRequest{Prefix: prefix, StartAfter: after})
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, o := range page.Objects {
			after = o.Key
			if !named[o.Key] && time.Since(o.Modified) > old {
				c.problem(api.Problem{Kind: "orphan", Object: o.Key, Text: fmt.Sprintf("object %s is named by nothing and was not swept", o.Key)})
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
	}
}
