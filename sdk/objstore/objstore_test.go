package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

func TestChecksumIsCastagnoliOverAllChunks(t *testing.T) {
	// The check value of CRC-32C (RFC 3720, appendix B.4).
	if got := objstore.Checksum([]byte("1234"), nil, []byte("56789")); got != 0xe3069283 {
		t.Fatalf("%08x", got)
	}
}

func TestThrottledErrorIsThrottled(t *testing.T) {
	err := fmt.Errorf("put: %w", &objstore.ThrottledError{RetryAfter: time.Second})
	var typed *objstore.ThrottledError
	if !errors.Is(err, objstore.ErrThrottled) || !errors.As(err, &typed) || typed.RetryAfter != time.Second {
		t.Fatal(err)
	}
	if errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal("it is every error")
	}
}

func TestUnknownOutcomeKeepsItsCause(t *testing.T) {
	err := objstore.UnknownOutcome("put", "k", context.DeadlineExceeded)
	if !errors.Is(err, objstore.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if again := objstore.UnknownOutcome("put", "k", err); strings.Count(again.Error(), objstore.ErrUnknownOutcome.Error()) != 1 {
		t.Fatal(again)
	}
}

func TestCompleteUploadRequestIsChecked(t *testing.T) {
	part := func(n int, size int64) objstore.Part { return objstore.Part{Number: n, Size: size} }
	for _, c := range []struct {
		parts []objstore.Part
		ok    bool
	}{
		{[]objstore.Part{part(1, 10), part(2, 1)}, true},
		{[]objstore.Part{part(3, 10), part(7, 10)}, true},
		{[]objstore.Part{part(1, 1)}, true},
		{nil, false},
		{[]objstore.Part{part(1, 9), part(2, 10)}, false},
		{[]objstore.Part{part(0, 10)}, false},
		{[]objstore.Part{part(objstore.PartNumberMax+1, 10)}, false},
		{[]objstore.Part{part(2, 10), part(2, 10)}, false},
	} {
		err := objstore.CompleteUploadRequest{Key: "k", Parts: c.parts}.Validate(10)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, objstore.ErrInvalid) {
			t.Errorf("%v: %v", c.parts, err)
		}
	}
}

func FuzzValidateKey(f *testing.F) {
	for _, k := range []string{"a", "a/b", "", "/", "a//b", "..", "a/../b", "a\x00", "a\\b", "\xff", strings.Repeat("k", 901), "\uffff", "ü/日本"} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if err := objstore.ValidateKey(key); err != nil {
			if !errors.Is(err, objstore.ErrInvalid) || len(err.Error()) > 8*objstore.KeyMax {
				t.Fatal(err)
			}
			return
		}
		if key == "" || len(key) > objstore.KeyMax || strings.Contains("/"+key+"/", "/../") ||
			strings.Contains("/"+key+"/", "//") || strings.ContainsAny(key, "\x00\n\\") {
			t.Fatalf("%q is valid", key)
		}
	})
}

func FuzzResolve(f *testing.F) {
	f.Add(int64(0), int64(-1), int64(10))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(math.MinInt64), int64(math.MinInt64), int64(0))
	f.Fuzz(func(t *testing.T, offset, length, size int64) {
		if size < 0 {
			return
		}
		n, err := objstore.GetRangeRequest{Offset: offset, Length: length}.Resolve(size)
		if err != nil {
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Fatal(err)
			}
			if offset >= 0 && length >= 0 && uint64(offset)+uint64(length) <= uint64(size) {
				t.Fatalf("refused [%d, +%d) of %d", offset, length, size)
			}
			return
		}
		if n < 0 || offset < 0 || uint64(offset)+uint64(n) > uint64(size) || length >= 0 && n != length {
			t.Fatalf("[%d, +%d) of %d gives %d bytes", offset, length, size, n)
		}
	})
}
