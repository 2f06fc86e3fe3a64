package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// problemsMax bounds a report.
const problemsMax = 1000

// check is one run of the consistency check, against one view.
type check struct {
	node   *Node
	view   *cluster.State
	deep   bool
	report api.CheckReport
	index  map[plan.ObjectID]*object.Index // of the objects that are sound
}

// Check compares the metadata with the object store: every object that is named
// exists with its size and its index's checksum, the ranges that streams name
// are in it without holes, every stream is contiguous, and no slot or object of
// an ended epoch is on the store that nothing names any more and that the sweep
// would not remove. Deep reads and verifies every named block too. It reads one
// view; objects that were destroyed since are not problems.
func (n *Node) Check(ctx context.Context, deep bool) (api.CheckReport, error) {
	c := &check{node: n, view: n.View(), deep: deep, index: map[plan.ObjectID]*object.Index{}}
	for o := range c.view.Objects() {
		if err := c.object(ctx, o); err != nil {
			return api.CheckReport{}, err
		}
	}
	for s := range c.view.Streams() {
		if err := c.stream(ctx, s); err != nil {
			return api.CheckReport{}, err
		}
	}
	if err := c.orphans(ctx); err != nil {
		return api.CheckReport{}, err
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
	c.index[o.ID] = x
	return nil
}

func (c *check) stream(ctx context.Context, s plan.Stream) error {
	c.report.Streams++
	if err := s.Validate(); err != nil {
		c.problem(api.Problem{Kind: "gap", Stream: int64(s.ID), Text: fmt.Sprintf("stream %d of bucket %s: %v", s.ID, s.Bucket, err)})
	}
	for _, r := range s.Ranges {
		if err := c.rangeOf(ctx, s, r); err != nil {
			return err
		}
	}
	if !s.Checkpoint.IsZero() {
		if x := c.index[s.Checkpoint]; x != nil {
			if _, ok := x.CheckpointOf(s.ID); !ok {
				c.problem(api.Problem{Kind: "checkpoint", Stream: int64(s.ID), Text: fmt.Sprintf("stream %d: the object that should hold its checkpoint has none", s.ID)})
			}
		}
	}
	return nil
}

// rangeOf checks that the object's blocks cover the range.
func (c *check) rangeOf(ctx context.Context, s plan.Stream, r plan.Range) error {
	o, ok := c.view.Object(r.Object)
	if !ok {
		c.problem(api.Problem{Kind: "missing", Stream: int64(s.ID), Text: fmt.Sprintf("stream %d names an object that the metadata does not have for [%d, %d)", s.ID, r.Start, r.End)})
		return nil
	}
	x := c.index[r.Object]
	if x == nil {
		return nil // reported already
	}
	at := max(r.Start, s.Start)
	for _, b := range x.BlocksFrom(s.ID, at) {
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
		c.problem(api.Problem{Kind: "gap", Stream: int64(s.ID), Object: o.Key(), Text: fmt.Sprintf("stream %d: object %s should hold [%d, %d) and ends at %d", s.ID, o.Key(), r.Start, r.End, at)})
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
// they are not problems, only when they are older than twice its age.
func (c *check) orphans(ctx context.Context) error {
	for w := range c.view.WALs() {
		if !w.Recovered {
			continue
		}
		for _, at := range []struct {
			store  objstore.Store
			prefix string
		}{{c.node.deps.WALStore, plan.WALPrefix(w.ID)}, {c.node.deps.Objects, plan.DataPrefix(w.ID)}} {
			if err := c.orphansBelow(ctx, w, at.store, at.prefix); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *check) orphansBelow(ctx context.Context, w plan.WAL, store objstore.Store, prefix string) error {
	named := map[string]bool{plan.Key(w.ID, plan.KindTombstone, w.End): true}
	for o := range c.view.Objects() {
		if o.ID.Epoch == w.ID.Epoch {
			named[o.Key()] = true
		}
	}
	for d := range c.view.Destroyed() {
		if d.Object.ID.Epoch == w.ID.Epoch {
			named[d.Object.Key()] = true
		}
	}
	old := 2 * c.node.cfg.Stream.OrphanAge
	for after := ""; ; {
		page, err := store.List(ctx, objstore.ListRequest{Prefix: prefix, StartAfter: after})
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, o := range page.Objects {
			after = o.Key
			if !named[o.Key] && strings.HasPrefix(o.Key, prefix) && time.Since(o.Modified) > old {
				c.problem(api.Problem{Kind: "orphan", Object: o.Key, Text: fmt.Sprintf("object %s is named by nothing and was not swept", o.Key)})
			}
		}
		if !page.More {
			return nil
		}
	}
}
