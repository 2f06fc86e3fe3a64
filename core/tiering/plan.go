package tiering

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// Why a table stops until a person has looked. Rounds are tried again all the
// same, after the longest pause, so that what was mended goes on by itself.
var (
	// ErrSinkBehind: the sink has less than the metadata log says it had. Somebody
	// rolled the target's table back, expired what Mink had written on it, or restored
	// it; rows of before may be trimmed from the log by now.
	ErrSinkBehind = errors.New("the sink has less than was recorded of it")
	// ErrSinkAhead: the sink has rows that the table's log has not, or not yet in the
	// newest view of this node.
	ErrSinkAhead = errors.New("the sink has rows that the log has not")
	// ErrStopped: metadata that lack their newest entries were accepted, and the sink has of
	// those what the table cannot follow.
	ErrStopped = errors.New("nothing is written to the sink's table until it begins anew")
	// ErrRowsMissing: rows that are not at the sink are gone from the log, and nobody trimmed
	// them by hand.
	ErrRowsMissing = errors.New("rows were trimmed from the log before they were tiered")
)

// reconcile compares what the sink committed with what is recorded, and answers where each
// bucket goes on. propose: the sink is ahead by a round whose record was lost.
//
//	sink        recorded     the log
//	round = r   r            goes on
//	r'          r            ends all >= recorded: r' is recorded first
//	none        none         goes on at each bucket's base
//	none        r            stops: never again from the base
func (j Job) reconcile(c sink.Committed, f faults) (starts map[mink.BucketRef]mink.Offset, propose bool, err error) {
	starts = make(map[mink.BucketRef]mink.Offset, len(j.Buckets))
	if c.Round == "" && j.Round != "" && !f.fromBase {
		return nil, false, fmt.Errorf("table %s: round %s (snapshot %q) is recorded, and the sink says that there was none: "+
			"bring the target's table back as it was, or raise the table option %s to begin anew there: %w", j.Name, j.Round, j.Snapshot, j.Anew, ErrSinkBehind)
	}
	for _, b := range j.Buckets {
		end, ok := c.Ends[b.Ref]
		if !ok {
			if end = b.Tiered; end != b.Base {
				if f.fromBase {
					starts[b.Ref] = b.Base
					continue
				}
				return nil, false, fmt.Errorf("table %s: bucket %s is recorded as tiered up to offset %d, and round %s of the sink does not name it: %w",
					j.Name, b.Ref, b.Tiered, c.Round, ErrSinkBehind)
			}
		}
		switch {
		case f.startRecorded:
			end = b.Tiered
		case end < b.Tiered:
			return nil, false, fmt.Errorf("table %s: bucket %s is recorded as tiered up to offset %d by round %s, and at the sink, whose last round is %s, it ends at %d: "+
				"bring the target's table back to snapshot %q or a later one: %w", j.Name, b.Ref, b.Tiered, j.Round, c.Round, end, j.Snapshot, ErrSinkBehind)
		case end > b.End:
			return nil, false, fmt.Errorf("table %s: bucket %s ends at offset %d at the sink (round %s) and at %d in the log: "+
				"a newer view of the metadata shows them: %w", j.Name, b.Ref, end, c.Round, b.End, ErrSinkAhead)
		case end > b.Tiered && c.Round == j.Round:
			return nil, false, fmt.Errorf("table %s: round %s ends bucket %s at offset %d at the sink and at %d in the metadata: %w",
				j.Name, c.Round, b.Ref, end, b.Tiered, mink.ErrCorrupt)
		}
		starts[b.Ref] = end
	}
	return starts, c.Round != j.Round && c.Round != "" && !f.startRecorded, nil
}

// split is one bucket's part of a round.
type split struct {
	bucket   Bucket
	from, to mink.Offset
	trimmed  mink.Offset // [from, trimmed) were trimmed by hand
	snapshot bool        // the rows are those of the KV snapshot; to is not known yet
}

// plan is the splits of a round over the buckets that take says, those after the one that the
// round before was cut in first: a bucket without end does not hold up the others.
func (j Job) plan(starts map[mink.BucketRef]mink.Offset, take func(Bucket) bool, after mink.BucketRef) ([]split, error) {
	var splits []split
	for _, b := range j.Buckets {
		from := starts[b.Ref]
		if from >= b.End || !take(b) {
			continue
		}
		s := split{bucket: b, from: from, to: b.End, trimmed: max(from, b.Start)}
		switch {
		case j.Keyed && from == b.Base && b.Tiered == b.Base && b.Snapshot > from:
			s.snapshot, s.trimmed = true, from
		case from < b.Start && !covered(b.Gaps, from, b.Start):
			return nil, fmt.Errorf("table %s: bucket %s is tiered up to offset %d, and its log starts at %d: %w", j.Name, b.Ref, from, b.Start, ErrRowsMissing)
		}
		splits = append(splits, s)
	}
	i := slices.IndexFunc(splits, func(s split) bool { return compareBuckets(s.bucket.Ref, after) > 0 })
	if i > 0 {
		splits = slices.Concat(splits[i:], splits[:i])
	}
	return splits, nil
}

// covered: every offset of [from, to) is in a gap.
func covered(gaps []Gap, from, to mink.Offset) bool {
	for _, g := range gaps {
		if g.Start <= from && g.End > from {
			from = g.End
		}
	}
	return from >= to
}

// untiered is what is not at the sink as far as is recorded.
func (j Job) untiered() (offsets, bytes int64) {
	for _, b := range j.Buckets {
		if b.End > b.Tiered {
			offsets += int64(b.End - b.Tiered)
			bytes += b.Bytes
		}
	}
	return offsets, bytes
}

// due says whether a round should begin now. all: of every bucket with untiered
// rows, because their freshness is over or somebody asked; else of those that are
// large, or closed, but not at once after the last round: each makes a snapshot of the
// target. full is when the last round of all buckets began, last when any did.
func (j Job) due(now, full, last time.Time, requested bool, dueBytes int64) (due, all bool) {
	all = requested || !now.Before(full.Add(j.Freshness))
	rested := !now.Before(last.Add(max(j.Freshness/hurryShare, min(hurryMin, j.Freshness))))
	for _, b := range j.Buckets {
		if b.End > b.Tiered && (all || rested && hurries(b, dueBytes)) {
			return true, all
		}
	}
	return false, all
}

// The shortest time between rounds that do not wait for the freshness.
const (
	hurryShare = 4
	hurryMin   = 10 * time.Second
)

// hurries: the bucket does not wait for its freshness.
func hurries(b Bucket, dueBytes int64) bool { return b.Closed || b.Bytes >= dueBytes }

func compareBuckets(a, b mink.BucketRef) int {
	return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Index, b.Index))
}
