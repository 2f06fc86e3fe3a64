package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// Committed is the last committed round of one table: what a sink that is
// ExactlyOnce keeps beside the rows and changes with them in one atomic step. The
// zero value is the state before the first round. Its JSON form is stable: a sink
// may store it.
type Committed struct {
	Round    RoundID
	Fence    mink.LeaseEpoch
	Snapshot string // what Commit answered
	// Ends has the committed end of every bucket that a round ever named.
	Ends map[mink.BucketRef]mink.Offset
}

// Check decides on a commit, by the contract's rules and in their order. replay:
// the round is the last committed one already, answer its Snapshot and change
// nothing. The request was validated.
func (c Committed) Check(req CommitRequest) (replay bool, err error) {
	switch {
	case req.Fence < c.Fence:
		return false, fmt.Errorf("commit of round %s: fence %d, but round %s was committed with fence %d: %w", req.Round, req.Fence, c.Round, c.Fence, ErrFenced)
	case req.Round == c.Round:
		return true, nil
	case req.Base != c.Round:
		return false, fmt.Errorf("commit of round %s on base %q, but the last committed round is %q: %w", req.Round, req.Base, c.Round, ErrConflict)
	}
	buckets := len(c.Ends)
	for _, r := range req.Ranges {
		end, ok := c.Ends[r.Bucket]
		if !ok {
			buckets++
		}
		if ok && end != r.Start {
			return false, fmt.Errorf("commit of round %s: bucket %s starts at offset %d, but its committed end is %d: %w", req.Round, r.Bucket, r.Start, end, ErrConflict)
		}
	}
	if buckets > RangesMax { // what is stored must stay readable
		return false, fmt.Errorf("%w: commit of round %s: the table would have had %d buckets at the sink, at most %d", ErrInvalid, req.Round, buckets, RangesMax)
	}
	return false, nil
}

// After is the state with the round. c is not changed.
func (c Committed) After(req CommitRequest, snapshot string) Committed {
	next := Committed{Round: req.Round, Fence: req.Fence, Snapshot: snapshot, Ends: maps.Clone(c.Ends)}
	if next.Ends == nil {
		next.Ends = map[mink.BucketRef]mink.Offset{}
	}
	for _, r := range req.Ranges {
		next.Ends[r.Bucket] = r.End
	}
	return next
}

// Clone shares nothing with c.
func (c Committed) Clone() Committed {
	c.Ends = maps.Clone(c.Ends)
	return c
}

// Buckets are the buckets of Ends, in order.
func (c Committed) Buckets() []mink.BucketRef {
	return slices.SortedFunc(maps.Keys(c.Ends), compareBuckets)
}

type committedJSON struct {
	Version  int             `json:"version"`
	Round    RoundID         `json:"round"`
	Fence    mink.LeaseEpoch `json:"fence"`
	Snapshot string          `json:"snapshot"`
	Ends     []endJSON       `json:"ends"`
}

type endJSON struct {
	mink.BucketRef
	End mink.Offset `json:"end"`
}

// committedVersion is the version of the JSON form.
const committedVersion = 1

// MarshalJSON writes the same bytes for the same state.
func (c Committed) MarshalJSON() ([]byte, error) {
	w := committedJSON{Version: committedVersion, Round: c.Round, Fence: c.Fence, Snapshot: c.Snapshot, Ends: []endJSON{}}
	for _, b := range c.Buckets() {
		w.Ends = append(w.Ends, endJSON{BucketRef: b, End: c.Ends[b]})
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON wrote; ErrCorrupt for anything else.
func (c *Committed) UnmarshalJSON(data []byte) error {
	var w committedJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return fmt.Errorf("%w: last committed round: %w", ErrCorrupt, err)
	}
	if w.Version != committedVersion {
		return fmt.Errorf("%w: last committed round: version %d, want %d: a newer sink wrote it", ErrCorrupt, w.Version, committedVersion)
	}
	next := Committed{Round: w.Round, Fence: w.Fence, Snapshot: w.Snapshot, Ends: make(map[mink.BucketRef]mink.Offset, len(w.Ends))}
	for _, e := range w.Ends {
		next.Ends[e.BucketRef] = e.End
	}
	if len(next.Ends) != len(w.Ends) {
		return fmt.Errorf("%w: last committed round: a bucket stands in it twice", ErrCorrupt)
	}
	if err := next.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	*c = next
	return nil
}
