package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/mink-project/mink/sdk/catalog"
	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// errorTextMax is the most bytes of an error's text that travel: they go in a
// header.
const errorTextMax = 4 << 10

// word pairs a code with a contract's sentinel.
type word struct {
	code     pb.Code
	sentinel error
}

// vocabulary is one contract's errors. Codes that it lacks are read as unknown.
type vocabulary struct {
	words       []word
	unavailable error // a call that failed and had no effect, or a read
	unknown     error // a write that may have landed
	throttled   func(retryAfter time.Duration) error
	retryAfter  func(error) time.Duration
}

var contextWords = []word{
	{pb.Code_CANCELED, context.Canceled},
	{pb.Code_DEADLINE_EXCEEDED, context.DeadlineExceeded},
}

var objectStore = vocabulary{
	words: append([]word{
		{pb.Code_NOT_EXIST, objstore.ErrNotExist},
		{pb.Code_ALREADY_EXISTS, objstore.ErrAlreadyExists},
		{pb.Code_CONFLICT, objstore.ErrConflict},
		{pb.Code_INVALID, objstore.ErrInvalid},
		{pb.Code_UNAUTHORIZED, objstore.ErrUnauthorized},
		{pb.Code_THROTTLED, objstore.ErrThrottled},
		{pb.Code_UNAVAILABLE, objstore.ErrUnavailable},
		{pb.Code_UNKNOWN_OUTCOME, objstore.ErrUnknownOutcome},
		{pb.Code_CORRUPT, objstore.ErrCorrupt},
		{pb.Code_UNIMPLEMENTED, objstore.ErrUnimplemented},
		{pb.Code_NO_SPACE, objstore.ErrNoSpace},
		{pb.Code_READ_ONLY, objstore.ErrReadOnly},
	}, contextWords...),
	unavailable: objstore.ErrUnavailable,
	unknown:     objstore.ErrUnknownOutcome,
	throttled:   func(d time.Duration) error { return &objstore.ThrottledError{RetryAfter: d} },
	retryAfter: func(err error) time.Duration {
		var t *objstore.ThrottledError
		if errors.As(err, &t) {
			return t.RetryAfter
		}
		return 0
	},
}

// sinks are the words of object stores, and fences.
var sinks = func() vocabulary {
	v := objectStore
	v.words = append([]word{{pb.Code_FENCED, mink.ErrFenced}}, v.words...)
	return v
}()

// catalogs are the words of sinks, and namespaces that are in use.
var catalogs = func() vocabulary {
	v := sinks
	v.words = append([]word{{pb.Code_NOT_EMPTY, catalog.ErrNotEmpty}}, v.words...)
	return v
}()

// grpcCodes are for tools that look at the status alone; a host reads the detail.
var grpcCodes = map[pb.Code]codes.Code{
	pb.Code_NOT_EXIST: codes.NotFound, pb.Code_ALREADY_EXISTS: codes.AlreadyExists,
	pb.Code_CONFLICT: codes.Aborted, pb.Code_FENCED: codes.FailedPrecondition, pb.Code_INVALID: codes.InvalidArgument,
	pb.Code_UNAUTHORIZED: codes.PermissionDenied, pb.Code_THROTTLED: codes.ResourceExhausted,
	pb.Code_UNAVAILABLE: codes.Unavailable, pb.Code_CORRUPT: codes.DataLoss, pb.Code_UNIMPLEMENTED: codes.Unimplemented,
	pb.Code_NO_SPACE: codes.ResourceExhausted, pb.Code_READ_ONLY: codes.FailedPrecondition,
	pb.Code_CANCELED: codes.Canceled, pb.Code_DEADLINE_EXCEEDED: codes.DeadlineExceeded,
	pb.Code_NOT_EMPTY: codes.FailedPrecondition,
}

// encode is the plugin's side; nil for nil.
func (v *vocabulary) encode(err error) *pb.Error {
	if err == nil {
		return nil
	}
	e := &pb.Error{Message: cut(strings.ToValidUTF8(err.Error(), "\uFFFD"), errorTextMax)}
	for _, w := range v.words {
		if errors.Is(err, w.sentinel) {
			e.Codes = append(e.Codes, w.code)
		}
	}
	if d := v.retryAfter(err); d > 0 {
		e.RetryAfter = durationpb.New(d)
	}
	return e
}

// status makes a handler's error one that carries encode's; nil for nil.
func (v *vocabulary) status(err error) error {
	if err == nil {
		return nil
	}
	e, code := v.encode(err), codes.Unknown
	if len(e.GetCodes()) > 0 && !slices.Contains(e.GetCodes(), pb.Code_UNKNOWN_OUTCOME) {
		code = grpcCodes[e.GetCodes()[0]]
	}
	st, derr := status.New(code, cut(e.GetMessage(), 256)).WithDetails(e)
	if derr != nil { // it cannot be: the detail is a known message
		return status.Error(code, e.GetMessage())
	}
	return st.Err()
}

// remoteError is a plugin's error on the host's side.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }

// decode is the host's side of encode. fallback is what an error is whose codes
// say nothing that this side knows.
func (v *vocabulary) decode(e *pb.Error, fallback error) error {
	err := &remoteError{text: cut(strings.ToValidUTF8(e.GetMessage(), "\uFFFD"), errorTextMax)}
	for _, c := range e.GetCodes() {
		for _, w := range v.words {
			if w.code != c || slices.Contains(err.is, w.sentinel) {
				continue
			}
			err.is = append(err.is, w.sentinel)
			if c == pb.Code_THROTTLED && e.GetRetryAfter().IsValid() {
				err.is = append(err.is, v.throttled(max(0, e.GetRetryAfter().AsDuration())))
			}
		}
	}
	if len(err.is) == 0 {
		err.is = []error{fallback}
		err.text = fmt.Sprintf("%v: %s", fallback, err.text)
	}
	return err
}

// effect is what a call that broke may have done.
type effect bool

const (
	reads  effect = false // or a write that is harmless to repeat
	writes effect = true
)

// answer is the plugin's own answer in the error of a gRPC call; nil when the call
// broke before one came.
func answer(err error) *pb.Error {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range st.Details() {
		if e, ok := d.(*pb.Error); ok {
			return e
		}
	}
	return nil
}

// failed turns the error of a gRPC call into the contract's. A call that broke
// before its answer came is unavailable, or, for a write, of unknown outcome.
func (v *vocabulary) failed(ctx context.Context, err error, ef effect) error {
	fallback := v.unavailable
	if ef == writes {
		fallback = v.unknown
	}
	if bad := (*answerError)(nil); errors.As(err, &bad) {
		if ef == writes {
			return fmt.Errorf("%w: %w: %w", v.unknown, v.unavailable, bad)
		}
		return fmt.Errorf("%w: %w", v.unavailable, bad)
	}
	if e := answer(err); e != nil {
		return v.decode(e, fallback)
	}
	st, ok := status.FromError(err)
	text := cut(strings.ToValidUTF8(err.Error(), "\uFFFD"), errorTextMax)
	if ok {
		text = cut(strings.ToValidUTF8(st.Message(), "\uFFFD"), errorTextMax)
	}
	switch {
	case st.Code() == codes.Unimplemented: // a call that an older plugin does not know
		return v.decode(&pb.Error{Codes: []pb.Code{pb.Code_UNIMPLEMENTED}, Message: "the plugin does not know this call: " + text}, fallback)
	case ctx.Err() != nil && ef == writes:
		return fmt.Errorf("%w: %w", v.unknown, ctx.Err())
	case ctx.Err() != nil:
		return ctx.Err()
	case st.Code() == codes.DeadlineExceeded && ef == writes: // gRPC's timer was a moment earlier than the context's
		return fmt.Errorf("%w: %w", v.unknown, context.DeadlineExceeded)
	case st.Code() == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case ef == writes:
		return fmt.Errorf("%w: the call to the plugin broke (%s): %w", v.unknown, text, v.unavailable)
	}
	return fmt.Errorf("%w: the call to the plugin broke (%s)", v.unavailable, text)
}

// answerError is an answer that breaks the protocol.
type answerError struct{ text string }

func (e *answerError) Error() string { return "the plugin's answer breaks the protocol: " + e.text }

func protocolError(format string, args ...any) error {
	return &answerError{text: fmt.Sprintf(format, args...)}
}

// cut shortens s to at most n bytes, at the border of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
