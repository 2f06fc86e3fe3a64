package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// reasons maps the reason in a status to the error class.
var reasons = map[string]error{
	api.ReasonNotExist: mink.ErrNotExist, api.ReasonExists: mink.ErrExists, api.ReasonInvalid: mink.ErrInvalid,
	api.ReasonTooLarge: mink.ErrTooLarge, api.ReasonUnavailable: mink.ErrUnavailable, api.ReasonThrottled: mink.ErrThrottled,
	api.ReasonConflict: mink.ErrConflict, api.ReasonFenced: mink.ErrFenced, api.ReasonUnknownOutcome: mink.ErrUnknownOutcome,
	api.ReasonCorrupt: mink.ErrCorrupt, api.ReasonOutOfRange: mink.ErrOutOfRange, api.ReasonOutOfOrder: mink.ErrOutOfOrder,
	api.ReasonUnsupported: mink.ErrUnsupported,
}

// codesOf maps bare gRPC codes, of statuses that no Mink node wrote.
var codesOf = map[codes.Code]error{
	codes.Unavailable: mink.ErrUnavailable, codes.ResourceExhausted: mink.ErrThrottled, codes.NotFound: mink.ErrNotExist,
	codes.AlreadyExists: mink.ErrExists, codes.InvalidArgument: mink.ErrInvalid, codes.Unimplemented: mink.ErrUnsupported,
	codes.DataLoss: mink.ErrCorrupt, codes.Aborted: mink.ErrConflict, codes.OutOfRange: mink.ErrOutOfRange,
}

// serverError is a status of a node: its text, and its class for errors.Is.
type serverError struct {
	text  string
	class error
}

func (e *serverError) Error() string { return e.text }
func (e *serverError) Unwrap() error { return e.class }

// FromStatus turns a gRPC status of a node into an error of sdk/mink's classes, for
// programs that speak Flight themselves. what is put before its text, unless it is
// empty: then the caller says more.
func FromStatus(what string, err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	switch s.Code() {
	case codes.Canceled:
		return behind(what, context.Canceled)
	case codes.DeadlineExceeded:
		return behind(what, context.DeadlineExceeded)
	}
	class := codesOf[s.Code()]
	if s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "message larger than max") {
		class = mink.ErrTooLarge // gRPC's own limit, of either side
	}
	for _, d := range s.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.Domain != api.ErrorDomain {
			continue
		}
		if info.Reason == api.ReasonNotLeader {
			return behind(what, notLeader(info.Metadata))
		}
		if c := reasons[info.Reason]; c != nil {
			class = c
		}
	}
	if class == nil {
		class = err
	}
	text := s.Message()
	if what != "" && !strings.HasPrefix(text, what+": ") { // the node names the action too
		text = what + ": " + text
	}
	return &serverError{text: text, class: class}
}

func behind(what string, err error) error {
	if what == "" {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

func notLeader(m map[string]string) *mink.NotLeaderError {
	leader, _ := strconv.ParseInt(m["leader"], 10, 32)
	epoch, _ := strconv.ParseInt(m["leader_epoch"], 10, 32)
	var b mink.BucketRef
	_, _ = fmt.Sscanf(m["bucket"], "%d/%d/%d", &b.Table, &b.Partition, &b.Index) // what is not there stays 0
	return &mink.NotLeaderError{Bucket: b, Leader: mink.NodeID(leader), Address: m["address"], Epoch: mink.LeaderEpoch(epoch)}
}

// retriable reports whether the same call may succeed later, here or elsewhere.
func retriable(err error) bool {
	var moved *mink.NotLeaderError
	return errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrThrottled) || errors.As(err, &moved)
}

func decode(what string, b []byte, out any) error {
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s: the node's answer is not what this client expects: %w", what, err)
	}
	return nil
}
