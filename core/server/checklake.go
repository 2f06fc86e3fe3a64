package server

import (
	"context"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// lakeGrace is the age from which files of the lake that nothing names are listed, at least:
// other engines write theirs long before they commit.
const lakeGrace = 24 * time.Hour

// lakeCheckTries is how often a table is looked at whose rounds go on meanwhile.
const lakeCheckTries = 3

// checkLake adds to a report what is found of the tables that are tiered to the lake. A table
// whose store or catalog does not answer is a problem, and the others are looked at.
func (p *parts) checkLake(ctx context.Context, deep bool, r *api.CheckReport) error {
	add := func(kind, object, text string) {
		r.Problems = append(r.Problems, api.Problem{Kind: kind, Object: object, Text: text})
	}
	if _, given := p.given.Sinks[cluster.LakeSink]; given {
		return nil // the lake is somebody else's
	}
	for t := range p.node.View().Tierings() {
		if t.Sink != cluster.LakeSink {
			continue
		}
		if p.warehouse == nil {
			add("lake_table", "", "tables are tiered to the lake, and this node has none (lake_catalog, storage_uri): ask a node that has")
			break
		}
		found, ok, err := p.checkLakeTable(ctx, t.Table, deep)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			add("lake_table", "", err.Error()+": look again when it answers")
		case ok:
			for _, f := range found.Problems {
				add(f.Kind, f.Object, f.Text)
			}
			r.Lake = append(r.Lake, api.LakeCheck{
				Table: found.table, Snapshots: found.Snapshots, Files: found.Files, Bytes: found.Bytes, Rows: found.Rows,
				Orphans: found.Orphans, OrphanFiles: found.OrphanFiles, OrphanBytes: found.OrphanBytes,
			})
		}
	}
	r.Clean = len(r.Problems) == 0
	return nil
}

type lakeChecked struct {
	lake.CheckReport
	table string
}

// checkLakeTable looks at one table, again when a round was recorded meanwhile; ok is false
// when it is not tiered any more.
func (p *parts) checkLakeTable(ctx context.Context, id mink.TableID, deep bool) (out lakeChecked, ok bool, err error) {
	for try := 1; ; try++ {
		view := p.node.View()
		req, ok := p.lakeCheckRequest(view, id)
		if !ok {
			return out, false, nil
		}
		req.Deep = deep
		out.table = req.ID.Namespace[0] + "." + req.ID.Name
		out.CheckReport, err = p.warehouse.Check(ctx, req)
		now, still := p.node.View().Tiering(id, cluster.LakeSink)
		switch {
		case !still:
			return out, false, nil
		case err != nil || len(out.Problems) == 0 || sink.RoundID(now.Round) == req.Round || try == lakeCheckTries:
			return out, true, err
		}
	}
}

// lakeCheckRequest is what the metadata know of a table in the lake.
func (p *parts) lakeCheckRequest(view *cluster.State, id mink.TableID) (lake.CheckRequest, bool) {
	t, on := view.Tiering(id, cluster.LakeSink)
	table, there := view.Table(id)
	if !on || !there {
		return lake.CheckRequest{}, false
	}
	d := table.Descriptor
	req := lake.CheckRequest{
		ID: catalog.Identifier{Namespace: []string{d.Database}, Name: d.Table}, Table: id, Schema: &d.Schema, PrimaryKey: d.PrimaryKey,
		Round: sink.RoundID(t.Round), Snapshot: t.Snapshot, Ends: map[mink.BucketRef]mink.Offset{}, Committed: map[mink.BucketRef]mink.Offset{},
		Grace: max(lakeGrace, 2*time.Duration(p.cfg.OrphanAge)),
	}
	for dropped := range view.DroppedSinks() {
		if dropped.Table == id && dropped.Sink == cluster.LakeSink { // it begins anew, and what was there goes
			return lake.CheckRequest{}, false
		}
	}
	for _, s := range t.Snapshots {
		req.Readable = append(req.Readable, s.Snapshot)
	}
	for part := range view.Partitions(id) {
		for i, stream := range part.Streams {
			ref := mink.BucketRef{Table: id, Partition: part.ID, Index: int32(i)}
			if st, ok := view.Stream(stream); ok {
				req.Committed[ref] = st.End
			}
			if base, end, ok := view.TieredEnd(cluster.LakeSink, ref); ok && end != base {
				req.Ends[ref] = end
			}
		}
	}
	return req, true
}
