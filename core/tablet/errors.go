package tablet

import (
	"fmt"

	"github.com/mink-project/mink/sdk/mink"
)

// WriterFencedError refuses a batch of an older epoch of its writer: another
// instance took over. errors.Is(err, mink.ErrFenced).
type WriterFencedError struct {
	Bucket mink.BucketRef
	Writer mink.WriterID
	Epoch  int16 // of the refused batch
	Known  int16
}

func (e *WriterFencedError) Error() string {
	return fmt.Sprintf("append to bucket %s: writer %d of epoch %d was replaced by epoch %d", e.Bucket, e.Writer, e.Epoch, e.Known)
}

// Is makes errors.Is(err, mink.ErrFenced) true.
func (e *WriterFencedError) Is(target error) bool { return target == mink.ErrFenced }

// OutOfOrderError refuses a batch that is neither the writer's next nor one that
// was stored before. errors.Is(err, mink.ErrOutOfOrder).
type OutOfOrderError struct {
	Bucket      mink.BucketRef
	Writer      mink.WriterID
	Epoch       int16
	First, Last int32 // of the refused batch
	Next        int32 // the sequence that is expected
}

func (e *OutOfOrderError) Error() string {
	return fmt.Sprintf("append to bucket %s: writer %d (epoch %d) sent sequences %d to %d, %d comes next",
		e.Bucket, e.Writer, e.Epoch, e.First, e.Last, e.Next)
}

// Is makes errors.Is(err, mink.ErrOutOfOrder) true.
func (e *OutOfOrderError) Is(target error) bool { return target == mink.ErrOutOfOrder }

// QuarantineError says that a stored batch cannot be decoded. Its offsets are
// taken; a scan skips them, reports them and goes on at Last+1.
type QuarantineError struct {
	Bucket      mink.BucketRef
	First, Last mink.Offset
	Why         string
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("bucket %s: offsets %d to %d cannot be decoded and are skipped: %s", e.Bucket, e.First, e.Last, e.Why)
}
