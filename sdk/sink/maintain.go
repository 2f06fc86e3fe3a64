package sink

import (
	"context"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// Maintainer is a companion of Table, for targets that many small rounds wear out: it keeps
// them in shape between rounds. Get it with MaintainerOf. It is not in the protocol of
// plugins yet.
//
// A compaction is a round without rows:
//
//	PlanCompaction   is there anything to do?
//	BeginRound       as of any round
//	Compact          instead of Write
//	Prepare, Commit  without ranges: the committed ends stay as they are
//
// so that all that holds of rounds holds of it: the fence, the base, one commit or none,
// staged state that the next worker removes or settles.
type Maintainer interface {
	// PlanCompaction answers what Compact would replace now, and changes nothing.
	PlanCompaction(ctx context.Context, req CompactRequest) (Compaction, error)

	// Compact writes into the open round what its commit puts in the place of what is
	// there. Readers see the same rows before and after. The commit is ErrConflict when
	// anything else was committed since BeginRound. A round in which it found nothing to
	// do is aborted by the worker.
	Compact(ctx context.Context, req CompactRequest) (Compaction, error)

	// Expire lets go of old states of the target and of what no state needs. No round is
	// open and none of unknown outcome. ErrFenced: a higher fence was committed.
	Expire(ctx context.Context, req ExpireRequest) (ExpireResponse, error)
}

// CompactRequest says how much.
type CompactRequest struct {
	// All: everything that can be merged, and every delete; otherwise what is worn.
	All bool
	// BytesMax bounds the stored bytes of what is replaced, but for one piece that cannot
	// be divided. What is left is said by Compaction.More. 0: no bound.
	BytesMax int64
	// Progress is called now and then; nil: never.
	Progress func()
}

// Compaction is what is replaced, and by what.
type Compaction struct {
	DataFiles   int // that are replaced
	DeleteFiles int // that go, merged or applied
	Bytes       int64
	NewFiles    int // zero of a plan
	NewBytes    int64
	More        bool // than BytesMax allowed
}

// Empty reports that nothing is replaced.
func (c Compaction) Empty() bool { return c.DataFiles == 0 && c.DeleteFiles == 0 }

// Add sums two up; More is the later one's.
func (c Compaction) Add(next Compaction) Compaction {
	return Compaction{
		DataFiles: c.DataFiles + next.DataFiles, DeleteFiles: c.DeleteFiles + next.DeleteFiles, Bytes: c.Bytes + next.Bytes,
		NewFiles: c.NewFiles + next.NewFiles, NewBytes: c.NewBytes + next.NewBytes, More: next.More,
	}
}

// ExpireRequest says what may go.
type ExpireRequest struct {
	Fence mink.LeaseEpoch
	// Keep are states that may still be read, as Commit answered them.
	Keep []string
	// StateAge: states that were superseded longer ago go, but for the newest, those that
	// others named (branches, tags), and what the sink itself needs. 0: all stay.
	StateAge time.Duration
	// OrphanAge: files of the table that no state names go when they are older, but for
	// what is staged. 0: all stay.
	OrphanAge time.Duration
	// Progress is called now and then; nil: never.
	Progress func()
}

// ExpireResponse is what went.
type ExpireResponse struct {
	States    int
	Files     int
	Bytes     int64 // of the files
	Manifests int   // lists of files that were merged into fewer
}

// Add sums two up.
func (r ExpireResponse) Add(next ExpireResponse) ExpireResponse {
	return ExpireResponse{States: r.States + next.States, Files: r.Files + next.Files, Bytes: r.Bytes + next.Bytes, Manifests: r.Manifests + next.Manifests}
}

// MaintainerOf gives the table's maintenance, if it has any.
func MaintainerOf(t Table) (Maintainer, bool) {
	m, ok := t.(Maintainer)
	return m, ok
}
