package flight

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// class is one error class on the wire.
type class struct {
	err    error
	code   codes.Code
	reason string
	doc    string // what the caller does
}

// classes is the error table of docs/flight.md, in the order of their match: an
// error may wrap several. mink.ErrFenced of a bucket is not in it: only a fenced
// writer is told so; a fenced leader is "unavailable", see classOf.
var classes = []class{
	{mink.ErrOutOfOrder, codes.FailedPrecondition, api.ReasonOutOfOrder, "batches of this writer are missing before this one: send those first"},
	{mink.ErrOutOfRange, codes.OutOfRange, api.ReasonOutOfRange, "the log holds other offsets: metadata start and end say which"},
	{mink.ErrTooLarge, codes.InvalidArgument, api.ReasonTooLarge, "send smaller batches"},
	{mink.ErrUnsupported, codes.Unimplemented, api.ReasonUnsupported, "not built yet: docs/limits.md"},
	{mink.ErrInvalid, codes.InvalidArgument, api.ReasonInvalid, "the request can never succeed as written: the text names the field"},
	{mink.ErrNotExist, codes.NotFound, api.ReasonNotExist, "create it, or look for the name"},
	{mink.ErrExists, codes.AlreadyExists, api.ReasonExists, "the name is taken"},
	{mink.ErrConflict, codes.Aborted, api.ReasonConflict, "read again, decide again"},
	{mink.ErrCorrupt, codes.DataLoss, api.ReasonCorrupt, "stored bytes fail their checks: run mink fsck"},
	{mink.ErrUnknownOutcome, codes.Unknown, api.ReasonUnknownOutcome, "it may or may not have happened: read before you send again"},
	{mink.ErrThrottled, codes.ResourceExhausted, api.ReasonThrottled, "retry after a pause"},
	{mink.ErrUnavailable, codes.Unavailable, api.ReasonUnavailable, "retry"},
	{mink.ErrFenced, codes.Unavailable, api.ReasonUnavailable, "retry"},
	{mink.ErrClosed, codes.Unavailable, api.ReasonUnavailable, "retry"},
}

var (
	classNotLeader = class{nil, codes.FailedPrecondition, api.ReasonNotLeader, "ask the node in metadata address; without one, retry"}
	classFenced    = class{mink.ErrFenced, codes.FailedPrecondition, api.ReasonFenced, "another instance took over this writer id: take a new one"}
)

// classOf answers an error's class and the metadata of its detail; false for an
// error that no caller can act on.
func classOf(err error) (class, map[string]string, bool) {
	var moved *mink.NotLeaderError
	if errors.As(err, &moved) {
		m := map[string]string{"bucket": moved.Bucket.String(), "leader": strconv.Itoa(int(moved.Leader)), "leader_epoch": strconv.Itoa(int(moved.Epoch))}
		if moved.Address != "" {
			m["address"] = moved.Address
		}
		return classNotLeader, m, true
	}
	var fenced *tablet.WriterFencedError
	if errors.As(err, &fenced) {
		return classFenced, nil, true
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c, detail(err), true
		}
	}
	return class{}, nil, false
}

// detail is what an error's class has to say beside its text.
func detail(err error) map[string]string {
	var rng *mink.OutOfRangeError
	if errors.As(err, &rng) {
		return map[string]string{"start": rng.Start.String(), "end": rng.End.String()}
	}
	var order *tablet.OutOfOrderError
	if errors.As(err, &order) {
		return map[string]string{"next_sequence": strconv.Itoa(int(order.Next))}
	}
	var batch *record.BatchError
	if errors.As(err, &batch) && batch.Record >= 0 {
		return map[string]string{"row": strconv.Itoa(batch.Record)}
	}
	return nil
}

// toStatus makes the error that goes to the client. A status is passed on: it is
// the transport's own.
func (s *service) toStatus(method string, err error) error {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	c, md, ok := classOf(err)
	switch {
	case ok:
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	default:
		s.log.Error("flight call failed in a way that has no class", "method", method, "error", err)
		return status.Error(codes.Internal, err.Error())
	}
	if c.code == codes.DataLoss {
		s.log.Error("flight call met corrupt bytes", "method", method, "error", err)
	}
	st := status.New(c.code, err.Error())
	detailed, derr := st.WithDetails(&errdetails.ErrorInfo{Reason: c.reason, Domain: api.ErrorDomain, Metadata: md})
	if derr != nil { // cannot happen: the code is not OK
		return st.Err()
	}
	return detailed.Err()
}

// codeOf names the gRPC code of a bucket's error in a PutResult.
func codeOf(err error) string {
	if c, _, ok := classOf(err); ok {
		return c.reason
	}
	return codes.Internal.String()
}

// leaderError says more about a log that closed under a call: who leads the
// bucket now, when that is known.
func (s *service) leaderError(bucket mink.BucketRef, err error) error {
	var writer *tablet.WriterFencedError
	if errors.As(err, &writer) || !errors.Is(err, mink.ErrClosed) && !errors.Is(err, mink.ErrFenced) {
		return err
	}
	if _, now := s.backend.Log(bucket); now != nil {
		return now
	}
	return fmt.Errorf("bucket %s: its leadership changed: %w: %w", bucket, mink.ErrUnavailable, err)
}
