package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// across takes a plugin's error to the host.
func across(err error, ef effect) error {
	return objectStore.failed(context.Background(), objectStore.status(err), ef)
}

func TestEveryErrorOfTheContractCrossesTheBorder(t *testing.T) {
	sentinels := []error{
		objstore.ErrNotExist, objstore.ErrAlreadyExists, objstore.ErrConflict, objstore.ErrInvalid, objstore.ErrUnauthorized,
		objstore.ErrThrottled, objstore.ErrUnavailable, objstore.ErrUnknownOutcome, objstore.ErrCorrupt, objstore.ErrNoSpace,
		objstore.ErrReadOnly, objstore.ErrUnimplemented, context.Canceled, context.DeadlineExceeded,
	}
	if len(sentinels) != len(objectStore.words) {
		t.Errorf("%d sentinels, %d words", len(sentinels), len(objectStore.words))
	}
	for _, s := range sentinels {
		for _, ef := range []effect{reads, writes} {
			err := across(fmt.Errorf("put %q: %w: the service says so", "a/ü", s), ef)
			for _, other := range sentinels {
				if errors.Is(err, other) != errors.Is(other, s) {
					t.Errorf("%v is %v: %v", s, other, errors.Is(err, other))
				}
			}
			if want := fmt.Sprintf("put \"a/ü\": %v: the service says so", s); err.Error() != want {
				t.Errorf("text %q, want %q", err, want)
			}
		}
	}
}

func TestErrorsThatAreSeveralThings(t *testing.T) {
	err := across(objstore.UnknownOutcome("put", "k", context.DeadlineExceeded), writes)
	if !errors.Is(err, objstore.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, objstore.ErrUnavailable) {
		t.Error(err)
	}
	err = across(fmt.Errorf("get: %w", &objstore.ThrottledError{RetryAfter: 1500 * time.Millisecond}), reads)
	var throttled *objstore.ThrottledError
	if !errors.Is(err, objstore.ErrThrottled) || !errors.As(err, &throttled) || throttled.RetryAfter != 1500*time.Millisecond {
		t.Error(err)
	}
}

func TestErrorsThatNobodyNamed(t *testing.T) {
	for _, ef := range []effect{reads, writes} {
		err := across(errors.New("the disk is on fire"), ef)
		if !strings.Contains(err.Error(), "the disk is on fire") {
			t.Error(err)
		}
		wantBroken(t, err, ef, false)
		// A code of a later version of the enum.
		st, serr := status.New(codes.Unknown, "").WithDetails(&pb.Error{Codes: []pb.Code{99}, Message: "new"})
		if serr != nil {
			t.Fatal(serr)
		}
		wantBroken(t, objectStore.failed(t.Context(), st.Err(), ef), ef, false)
		for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.Canceled, codes.Unknown} {
			wantBroken(t, objectStore.failed(t.Context(), status.Error(code, "broke"), ef), ef, true)
		}
		wantBroken(t, objectStore.failed(t.Context(), protocolError("odd"), ef), ef, true)
	}
	err := objectStore.failed(t.Context(), status.Error(codes.Unimplemented, "unknown method Put"), writes)
	if !errors.Is(err, objstore.ErrUnimplemented) || errors.Is(err, objstore.ErrUnknownOutcome) {
		t.Errorf("a call that an older plugin does not know: %v", err)
	}
}

// wantBroken: a read is unavailable, a write of unknown outcome (and unavailable
// too, when the call itself broke).
func wantBroken(t *testing.T, err error, ef effect, both bool) {
	t.Helper()
	unknown, unavailable := errors.Is(err, objstore.ErrUnknownOutcome), errors.Is(err, objstore.ErrUnavailable)
	if unknown != (ef == writes) || unavailable != (ef == reads || both) || errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("effect %v: %v", ef, err)
	}
}

func TestTheCallersContextIsTheError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := objectStore.failed(ctx, status.Error(codes.Canceled, "context canceled"), writes)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, objstore.ErrUnknownOutcome) {
		t.Error(err)
	}
	err = objectStore.failed(ctx, status.Error(codes.Canceled, "context canceled"), reads)
	if !errors.Is(err, context.Canceled) || errors.Is(err, objstore.ErrUnavailable) {
		t.Error(err)
	}
	err = objectStore.failed(t.Context(), status.Error(codes.DeadlineExceeded, "a moment early"), writes)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, objstore.ErrUnknownOutcome) {
		t.Error(err)
	}
}

func TestCodesAreNeverRenumbered(t *testing.T) {
	released := map[pb.Code]int32{
		pb.Code_NOT_EXIST: 1, pb.Code_ALREADY_EXISTS: 2, pb.Code_CONFLICT: 3, pb.Code_FENCED: 4, pb.Code_INVALID: 5, pb.Code_UNAUTHORIZED: 6,
		pb.Code_THROTTLED: 7, pb.Code_UNAVAILABLE: 8, pb.Code_UNKNOWN_OUTCOME: 9, pb.Code_CORRUPT: 10, pb.Code_UNIMPLEMENTED: 11,
		pb.Code_NO_SPACE: 12, pb.Code_READ_ONLY: 13, pb.Code_CANCELED: 14, pb.Code_DEADLINE_EXCEEDED: 15,
	}
	for c, n := range released {
		if int32(c) != n {
			t.Errorf("%v is %d, was %d", c, c, n)
		}
	}
}

// FuzzDecode: whatever a plugin sends as an error is an error with a bounded,
// printable text, and a write is never taken for certain unless a known code says
// so.
func FuzzDecode(f *testing.F) {
	for _, e := range []*pb.Error{
		{}, {Codes: []pb.Code{1, 1, 99, -3}, Message: "x"}, objectStore.encode(&objstore.ThrottledError{RetryAfter: time.Hour}),
	} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := &pb.Error{}
		if proto.Unmarshal(data, e) != nil {
			return
		}
		err := objectStore.decode(e, objstore.ErrUnknownOutcome)
		if err == nil || len(err.Error()) > errorTextMax+100 || !utf8.ValidString(err.Error()) {
			t.Fatalf("%v", err)
		}
		known := false
		for _, w := range objectStore.words {
			known = known || errors.Is(err, w.sentinel)
		}
		var throttled *objstore.ThrottledError
		if !known || errors.As(err, &throttled) && throttled.RetryAfter < 0 {
			t.Fatalf("%v of %v", err, e)
		}
	})
}

// What the store has said of the key is not said twice; a store that forgot it is
// helped.
func TestErrorsNameTheCallOnce(t *testing.T) {
	for text, want := range map[string]string{
		`put "a/b": gone wrong`: `put "a/b": gone wrong`,
		`gone wrong`:            `put "a/b": gone wrong`,
	} {
		err := failed(t.Context(), "put", "a/b", objectStore.status(fmt.Errorf("%s: %w", text, objstore.ErrInvalid)), writes)
		if !errors.Is(err, objstore.ErrInvalid) || !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), "a/b") != 1 {
			t.Errorf("%q became %q", text, err)
		}
	}
}
