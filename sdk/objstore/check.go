package objstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C (Castagnoli) of the chunks, in order.
func Checksum(chunks ...[]byte) uint32 {
	var crc uint32
	for _, c := range chunks {
		crc = crc32.Update(crc, castagnoli, c)
	}
	return crc
}

// SizeOf is the number of bytes in the chunks.
func SizeOf(chunks [][]byte) int64 {
	var n int64
	for _, c := range chunks {
		n += int64(len(c))
	}
	return n
}

// Validate refuses a request that no store can serve: a bad key (ErrInvalid),
// CreateOnly together with IfMatch (ErrInvalid), chunks that do not have the
// checksum given with them (ErrCorrupt). It reads every chunk when HasCRC32C.
func (r PutRequest) Validate() error {
	if err := ValidateKey(r.Key); err != nil {
		return err
	}
	if r.CreateOnly && r.IfMatch != "" {
		return fmt.Errorf("%w: put of %q asks for create-only and for a version to replace", ErrInvalid, r.Key)
	}
	if r.HasCRC32C {
		return verify(r.Chunks, r.CRC32C, r.Key)
	}
	return nil
}

func verify(chunks [][]byte, want uint32, key string) error {
	if got := Checksum(chunks...); got != want {
		return fmt.Errorf("%w: bytes for %q have crc32c %08x, the request says %08x; nothing was written", ErrCorrupt, key, got, want)
	}
	return nil
}

// Resolve gives the length to read of an object of size bytes, or ErrInvalid for
// a range that is negative or ends past it.
func (r GetRangeRequest) Resolve(size int64) (int64, error) {
	n := r.Length
	if n == -1 {
		n = size - r.Offset
	}
	// Written so that no sum can overflow.
	if r.Offset < 0 || n < 0 || r.Offset > size || n > size-r.Offset {
		return 0, fmt.Errorf("%w: range [%d, +%d) of %q, which has %d bytes", ErrInvalid, r.Offset, r.Length, r.Key, size)
	}
	return n, nil
}

// Memory is n bytes to read into: Into when it has the capacity, else new.
func (r GetRangeRequest) Memory(n int64) []byte {
	if int64(cap(r.Into)) >= n && r.Into != nil {
		return r.Into[:n]
	}
	return make([]byte, n)
}

// PageSize is the number of keys to answer, given the store's largest page.
func (r ListRequest) PageSize(pageMax int) (int, error) {
	switch {
	case r.Limit < 0:
		return 0, fmt.Errorf("%w: list limit %d", ErrInvalid, r.Limit)
	case r.Limit == 0 || r.Limit > pageMax:
		return pageMax, nil
	}
	return r.Limit, nil
}

// ValidateDelete refuses a batch over DeleteMax. A key that is not valid is an
// error of its own slot, not of the batch.
func ValidateDelete(keys []string) error {
	if len(keys) > DeleteMax {
		return fmt.Errorf("%w: delete of %d keys, the limit is %d", ErrInvalid, len(keys), DeleteMax)
	}
	return nil
}

// ThrottledError is ErrThrottled with the pause that the service asked for.
type ThrottledError struct {
	RetryAfter time.Duration // 0: the service did not say
}

func (e *ThrottledError) Error() string {
	if e.RetryAfter == 0 {
		return ErrThrottled.Error()
	}
	return fmt.Sprintf("%s, retry after %v", ErrThrottled, e.RetryAfter)
}

// Is makes errors.Is(err, ErrThrottled) true.
func (e *ThrottledError) Is(target error) bool { return target == ErrThrottled }

// ContextError is the error of a call that ctx ended before it had an effect, or
// nil while ctx goes on.
func ContextError(ctx context.Context, op, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %q: %w", op, key, err)
	}
	return nil
}

// UnknownOutcome wraps why a write's fate is unknown: the result is both
// ErrUnknownOutcome and cause.
func UnknownOutcome(op, key string, cause error) error {
	if errors.Is(cause, ErrUnknownOutcome) {
		return fmt.Errorf("%s %q: %w", op, key, cause)
	}
	return fmt.Errorf("%s %q: %w: %w", op, key, ErrUnknownOutcome, cause)
}

// All calls yield for every object under the prefix, page by page, until yield
// answers false or an error comes. startAfter is exclusive, "" from the start.
func All(ctx context.Context, s Store, prefix, startAfter string, yield func(ObjectInfo) bool) error {
	for {
		page, err := s.List(ctx, ListRequest{Prefix: prefix, StartAfter: startAfter})
		if err != nil {
			return err
		}
		for _, o := range page.Objects {
			if !yield(o) {
				return nil
			}
		}
		if !page.More {
			return nil
		}
		if len(page.Objects) == 0 {
			return fmt.Errorf("list %q after %q: %w: an empty page that is not the last", prefix, startAfter, ErrCorrupt)
		}
		startAfter = page.Objects[len(page.Objects)-1].Key
	}
}
