package flight

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/union"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// WithLake lets the server read tables in the lake. open answers nil as long as this node
// has none.
func WithLake(open func() *scan.Opener) Option {
	return func(s *service) { s.lake = open }
}

// lakeOpener opens lake tables, or says that this node has no lake.
func (s *service) lakeOpener() (*scan.Opener, error) {
	if s.lake != nil {
		if o := s.lake(); o != nil {
			return o, nil
		}
	}
	return nil, fmt.Errorf("read of the lake: this node has no lake: %w", mink.ErrUnsupported)
}

// layoutOf is how a table's rows are spread, as the view has it.
func layoutOf(view *cluster.State, t *cluster.Table) scan.Layout {
	return scan.Layout{Table: t.ID, Descriptor: t.Descriptor, Partitions: func(yield func(mink.PartitionID, []string) bool) {
		for p := range view.Partitions(t.ID) {
			if !yield(p.ID, p.Values) {
				return
			}
		}
	}}
}

// lakePlan is what a request of mode union or lake was fixed to.
type lakePlan struct {
	*union.Plan
	snapshot string                         // "": there is nothing in the lake
	ends     map[mink.BucketRef]mink.Offset // of another snapshot than the recorded one; nil: the metadata's
}

func (s *service) planLake(ctx context.Context, view *cluster.State, t *cluster.Table) (*lakePlan, error) {
	p, err := union.NewPlan(view, t)
	if err != nil {
		return nil, err
	}
	opener, err := s.lakeOpener()
	if err != nil {
		return nil, err
	}
	plan := &lakePlan{Plan: p}
	plan.snapshot, plan.ends, err = opener.Plan(ctx, layoutOf(view, t), p.Snapshot)
	if errors.Is(err, mink.ErrNotExist) && p.Snapshot == "" { // no round came that far
		return plan, nil
	}
	return plan, err
}

// end is where a bucket ends in the lake, and whether it has anything there.
func (p *lakePlan) end(b mink.BucketRef) (end mink.Offset, begun bool, err error) {
	base, end, err := p.Ends(b)
	if err != nil {
		return 0, false, err
	}
	if p.ends != nil {
		var ok bool
		if end, ok = p.ends[b]; !ok {
			end = base
		}
	}
	return end, p.snapshot != "" && end > base, nil
}

// lakeEndpoints makes the endpoints of modes union and lake: one per bucket, and one for
// the partitions that are in the lake alone by now.
func (s *service) lakeEndpoints(ctx context.Context, view *cluster.State, t *cluster.Table, c *api.Command) ([]*flight.FlightEndpoint, error) {
	refs, of, err := bucketsOf(view, t, c.Partition, nil)
	if err != nil {
		return nil, err
	}
	plan, err := s.planLake(ctx, view, t)
	if err != nil {
		return nil, err
	}
	var untils []mink.Offset
	if c.Mode == api.ModeUnion {
		var errs []error
		untils, errs = s.offsets(ctx, t, refs, "latest", api.Position{Kind: api.AtLatest})
		if err := errors.Join(errs...); err != nil {
			return nil, fmt.Errorf("where the log ends: %w", err)
		}
	}
	var out []*flight.FlightEndpoint
	var known []mink.PartitionID
	for i, b := range refs {
		end, begun, err := plan.end(b)
		if err != nil {
			return nil, err
		}
		snapshot := ""
		if begun {
			snapshot = plan.snapshot
		}
		if i == 0 || b.Partition != refs[i-1].Partition {
			known = append(known, b.Partition)
		}
		e := &flight.FlightEndpoint{}
		ticket, at := api.Ticket{}, mink.Offset(-1)
		switch {
		case c.Mode == api.ModeUnion:
			ticket.Union = &api.Union{Bucket: b, LakeSnapshot: snapshot, LakeEnd: end, Until: max(untils[i], end), Columns: c.Columns, Filter: c.Filter}
			e.Location = location(leaderOf(view, b))
			if at = ticket.Union.Until; hasKey(t) && !begun {
				at = -1 // as of when it is used
			}
		case plan.snapshot == "":
			continue
		default:
			ticket.Lake = &api.Lake{Table: t.ID, Snapshot: plan.snapshot, Bucket: &b, Columns: c.Columns, Filter: c.Filter}
		}
		e.Ticket = &flight.Ticket{Ticket: api.JSON(ticket)}
		e.AppMetadata = api.JSON(api.BucketOffset{Bucket: b, Offset: at, Values: of[i].Values})
		out = append(out, e)
	}
	if len(t.Descriptor.PartitionKeys) == 0 || len(c.Partition) > 0 || plan.snapshot == "" {
		return out, nil
	}
	ticket := api.Ticket{Lake: &api.Lake{Table: t.ID, Snapshot: plan.snapshot, WithoutPartitions: known, Columns: c.Columns, Filter: c.Filter}}
	return append(out, &flight.FlightEndpoint{
		Ticket:      &flight.Ticket{Ticket: api.JSON(ticket)},
		AppMetadata: api.JSON(api.BucketOffset{Bucket: mink.BucketRef{Table: t.ID}, Offset: -1}),
	}), nil
}
