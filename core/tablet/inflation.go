package tablet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/sdk/mink"
)

// inflateFree is what a message may expand to without being asked for room: about what
// its stream takes anyway, so that small batches never wait for large ones.
const inflateFree = 1 << 20

// Inflation bounds the memory that compressed Arrow batches of writers take at a time
// while they are checked and unpacked: a few KiB may say that they are 128 MiB. One is
// for a whole node. Whoever holds room must not ask for more of it. Safe for concurrent
// use.
type Inflation struct {
	max  int64
	wait time.Duration
	room *semaphore.Weighted

	taken, peak, waiting atomic.Int64
}

// NewInflation makes one of max bytes; who asks waits for at most wait.
func NewInflation(max int64, wait time.Duration) *Inflation {
	return &Inflation{max: max, wait: wait, room: semaphore.NewWeighted(max)}
}

// DefaultInflation is of 256 MiB, for two of the largest batches, and waits for 10 s.
func DefaultInflation() *Inflation {
	return NewInflation(2*arrowipc.DefaultMaxBytes, 10*time.Second)
}

// Take takes the room that a message needs, in the order of the calls, and answers
// what gives it back: once, or not at all for room of 0. What is not compressed, or is
// small, needs none. Errors: a *record.BatchError for a damaged message and for one
// that never has room here, mink.ErrThrottled when the wait was in vain, ctx's.
func (f *Inflation) Take(ctx context.Context, metadata, body []byte) (give func(), err error) {
	n, err := arrowipc.PlainSize(metadata, body)
	if err != nil {
		return nil, err
	}
	if n <= inflateFree {
		return func() {}, nil
	}
	if most := min(f.max, arrowipc.DefaultMaxBytes); n > most {
		return nil, record.Errorf(record.KindTooLarge, "the batch says that it expands to %d bytes, at most %d are unpacked: send fewer rows at a time", n, most)
	}
	if !f.room.TryAcquire(n) {
		if err := f.queue(ctx, n); err != nil {
			return nil, err
		}
	}
	now := f.taken.Add(n)
	for {
		peak := f.peak.Load()
		if now <= peak || f.peak.CompareAndSwap(peak, now) {
			break
		}
	}
	return func() {
		f.taken.Add(-n)
		f.room.Release(n)
	}, nil
}

func (f *Inflation) queue(ctx context.Context, n int64) error {
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	wait, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	if f.room.Acquire(wait, n) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%d bytes of batches of other writers are being unpacked, %d are allowed at a time and this one takes %d: %w", f.taken.Load(), f.max, n, mink.ErrThrottled)
}

// InflationStats are bytes, but for Waiting.
type InflationStats struct {
	Taken, Peak, Max int64
	Waiting          int64 // batches
}

// Stats answers a snapshot.
func (f *Inflation) Stats() InflationStats {
	return InflationStats{Taken: f.taken.Load(), Peak: f.peak.Load(), Max: f.max, Waiting: f.waiting.Load()}
}
