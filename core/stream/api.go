package stream

import (
	"context"
	"iter"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// View is one immutable state of the metadata, as the engine sees it.
type View interface {
	Index() uint64
	Stream(mink.StreamID) (plan.Stream, bool)
	Object(plan.ObjectID) (plan.Object, bool)
	WAL(mink.NodeEpoch) (plan.WAL, bool)
	WALs() iter.Seq[plan.WAL]
	Objects() iter.Seq[plan.Object]
	// ObjectRanges answers which live ranges name the object.
	ObjectRanges(plan.ObjectID) []ObjectRange
	Destroyed() iter.Seq[plan.Destroyed]
	// TimeLine is the index at which metadata that may have lost their newest entries
	// were accepted; 0: never. What node epochs at or below it wrote and the view does
	// not name may hold records of the lost entries: it is not swept.
	TimeLine() uint64
}

// ObjectRange is one live range of an object, seen from the object.
type ObjectRange = plan.ObjectRange

// Meta is what the engine asks of the metadata log. Each proposing call returns
// nil when THIS node has applied the command and apply accepted it; an error
// that is mink.ErrFenced means this node epoch is sealed; mink.ErrConflict that
// apply refused it (re-read the view and plan again).
type Meta interface {
	View() View
	// Changed is closed once a view newer than index is applied.
	Changed(index uint64) <-chan struct{}
	CommitObjects(context.Context, plan.CommitObjects) error
	ReplaceObjects(context.Context, plan.ReplaceObjects) error
	RewriteStream(context.Context, plan.RewriteStream) error
	TrimStreams(context.Context, []plan.Trim) error
	// ForgetObjects drops destroyed objects from the state after their deletion;
	// given none, it only goes through the log.
	ForgetObjects(context.Context, []plan.ObjectID) error
	// ReadHorizon answers the smallest Engine.ReadHorizon of all live nodes, by
	// their heartbeats: no read anywhere uses an older view.
	ReadHorizon(context.Context) (uint64, error)
	// Remembered answers the metadata index below which the log cannot go back
	// unnoticed. What a later command made deletable must stay: a log that was
	// restored to before that command still needs it.
	Remembered(context.Context) (uint64, error)
}

// Frame is one append: an opaque record batch that takes Span offsets from
// Start. Its bytes are immutable and stay valid as long as they are referenced;
// a reference keeps up to 1 MiB of neighbours alive.
type Frame = object.Frame

// AppendRequest is one frame to append. Parts are copied before Append returns.
type AppendRequest struct {
	Start           mink.Offset // must be the stream's log end
	Span            uint64
	Count           uint32
	MaxTimestamp    int64
	CommitTimestamp int64
	Parts           [][]byte // the frame's bytes, concatenated
}

// ReadRequest asks for whole frames from the one that holds From.
type ReadRequest struct {
	From     mink.Offset
	MaxBytes int  // soft: the first frame is returned whatever its size; below 1 is 1
	Cached   bool // never touch the store: mink.ErrNotCached when the first frame is not in memory
}

// ReadResult is a run of consecutive frames below the high watermark. Next is
// where to go on: past the last frame, or past a gap.
type ReadResult struct {
	Frames        []Frame
	Next          mink.Offset
	Start         mink.Offset // log start
	HighWatermark mink.Offset
}

// Rewrite is other frames for the offsets of one stream below Upper.
type Rewrite struct {
	// Upper is where they end: a frame's start, at most Stream.CleanLimit's.
	Upper mink.Offset
	// Frames makes the new frames out of the old ones, both in offset order. A new
	// frame covers the offsets of one old frame or of several that follow one another,
	// and is made when the last of them has been read. The new ones' bytes are copied.
	Frames func(old iter.Seq2[Frame, error]) iter.Seq2[Frame, error]
	// DueMs is asked when the frames have ended: plan.Cleaned.DueMs.
	DueMs func() int64
}

// Folder turns frames into a stream's checkpoint: a pure function of the log.
// Fold gets the previous checkpoint (nil at offset 0) and the frames from there
// on, and answers the checkpoint at the last frame's end.
type Folder interface {
	Fold(prev []byte, frames iter.Seq2[Frame, error]) ([]byte, error)
}
