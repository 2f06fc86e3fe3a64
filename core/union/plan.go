package union

import (
	"fmt"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// Plan is which lake snapshot a read of a table is of, as the metadata has it: the one of
// the last recorded round, with the ends that were recorded with it.
type Plan struct {
	Table *cluster.Table
	// Snapshot is the lake's; "": no round was recorded yet, there is nothing in the lake.
	Snapshot string
	view     *cluster.State
}

// NewPlan plans a read of a table that is tiered to the lake. Others wrap mink.ErrInvalid.
func NewPlan(view *cluster.State, t *cluster.Table) (*Plan, error) {
	tiering, ok := view.Tiering(t.ID, cluster.LakeSink)
	if !ok {
		return nil, fmt.Errorf("%w: table %s is not in the lake: its option %q is not set", mink.ErrInvalid, t.Descriptor.Name(), "lake")
	}
	return &Plan{Table: t, Snapshot: tiering.Snapshot, view: view}, nil
}

// Ends is where a bucket began in the lake and where its rows end there: what came before
// end is there, or was never wanted there. They are equal when no round came to it.
func (p *Plan) Ends(b mink.BucketRef) (base, end mink.Offset, err error) {
	base, end, ok := p.view.TieredEnd(cluster.LakeSink, b)
	if !ok {
		return 0, 0, fmt.Errorf("where bucket %s ends in the lake: %w: the metadata does not say", b, mink.ErrNotExist)
	}
	return base, end, nil
}

// CheckTail says where the tail of a bucket begins that ends at end in the lake, with a log
// that has offsets from start on. Rows between that are in neither are an error, unless
// somebody took them out on purpose.
func CheckTail(view *cluster.State, b mink.BucketRef, snapshot string, end, start mink.Offset) (mink.Offset, error) {
	if end >= start {
		return end, nil
	}
	from := end
	for _, g := range view.AllowedGaps(cluster.LakeSink, b) {
		if g.Start <= from && g.End > from {
			from = g.End
		}
	}
	if from >= start {
		return start, nil
	}
	return 0, fmt.Errorf("bucket %s: %w: it ends at offset %d in lake snapshot %s, and its log begins at %d: the rows between are in neither; "+
		"a plan is good for read_grace, make a new one", b, &mink.OutOfRangeError{Asked: from, Start: start, End: start}, end, snapshot, start)
}
