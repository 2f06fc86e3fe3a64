package node

import (
	"cmp"
	"context"
	"slices"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/storescan"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/api"
)

// unnamed lists what the store has from before the present time line and the
// metadata do not name.
func (c *check) unnamed(ctx context.Context) error {
	if c.view.TimeLine() == 0 {
		return nil
	}
	stores := storescan.Stores{Objects: c.node.deps.Objects, WAL: c.node.deps.WALStore, Logger: c.node.logger}
	var found []storescan.Found
	err := storescan.Scan(ctx, stores, c.view, func(f storescan.Found) error {
		if !f.Pending && !f.Tombstone {
			found = append(found, f)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Nodes that registered after the view, and put objects since, are in this one.
	head, err := c.node.deps.Log.Head(ctx)
	if err == nil {
		err = c.node.WaitApplied(ctx, head.Index)
	}
	if err != nil {
		return err
	}
	present := presentNonces(c.node.View())
	slices.SortFunc(found, func(a, b storescan.Found) int { return cmp.Compare(a.Key, b.Key) })
	for _, f := range found {
		if present[f.WAL.Nonce] {
			continue
		}
		c.report.UnnamedObjects++
		c.report.UnnamedBytes += f.Bytes
		if len(c.report.Unnamed) < problemsMax {
			c.report.Unnamed = append(c.report.Unnamed, c.describe(f))
		}
	}
	return nil
}

// presentNonces are of the registrations of the present time line.
func presentNonces(view *cluster.State) map[uint64]bool {
	nonces := map[uint64]bool{}
	for w := range view.WALs() {
		if uint64(w.ID.Epoch) > view.TimeLine() {
			nonces[w.ID.Nonce] = true
		}
	}
	return nonces
}

func (c *check) describe(f storescan.Found) api.UnnamedObject {
	u := api.UnnamedObject{Object: f.Key, Bytes: f.Bytes}
	if f.Damage != nil {
		u.Damage = f.Damage.Error()
	}
	for _, it := range f.Items {
		if st, ok := c.view.Stream(it.Stream); ok {
			u.Holds = append(u.Holds, c.lossOf(st, plan.Gap{Start: it.Start, End: it.End}))
		} else {
			u.Others++
		}
	}
	return u
}
