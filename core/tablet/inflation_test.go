package tablet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/sdk/mink"
)

// bomb is a batch of one row that expands to a little more than size bytes.
func bomb(t *testing.T, size int, options ...ipc.Option) (metadata, body []byte) {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "v", Type: arrow.BinaryTypes.String}}, nil))
	defer b.Release()
	b.Field(0).(*array.StringBuilder).Append(strings.Repeat("a", size))
	rows := b.NewRecordBatch()
	defer rows.Release()
	metadata, body, err := arrowipc.Encode(rows, options...)
	if err != nil {
		t.Fatal(err)
	}
	return metadata, body
}

// What many unpack at a time is never more than the bound, and each of them has its
// turn.
func TestInflationIsBounded(t *testing.T) {
	const limit = 10 << 20
	f := NewInflation(limit, time.Hour)
	var held, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		size := int64(2+i%4) << 20
		metadata, body := bomb(t, int(size), ipc.WithZstd())
		if len(body) > 100<<10 {
			t.Fatalf("%d bytes are no bomb", len(body))
		}
		wg.Go(func() {
			give, err := f.Take(t.Context(), metadata, body)
			if err != nil {
				t.Error(err)
				return
			}
			now := held.Add(size)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
			held.Add(-size)
			give()
		})
	}
	wg.Wait()
	if s := f.Stats(); most.Load() > limit || s.Taken != 0 || s.Waiting != 0 || s.Peak == 0 || s.Peak > limit {
		t.Fatal(most.Load(), s)
	}
}

// Room is given in order, to those who wait for no longer than they may; what needs
// none has it at once.
func TestInflationWaits(t *testing.T) {
	big, bigBody := bomb(t, 6<<20, ipc.WithLZ4())
	mid, midBody := bomb(t, 3<<20, ipc.WithZstd())
	small, smallBody := bomb(t, 100<<10, ipc.WithZstd())
	plain, plainBody := bomb(t, 20<<20)
	synctest.Test(t, func(t *testing.T) {
		f := NewInflation(8<<20, 5*time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		give, err := f.Take(ctx, big, bigBody)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 3)
		take := func(ctx context.Context, name string, metadata, body []byte) {
			give, err := f.Take(ctx, metadata, body)
			switch {
			case err == nil:
				got <- name
				give()
			case errors.Is(err, mink.ErrThrottled):
				got <- name + " is throttled"
			default:
				got <- name + ": " + err.Error()
			}
		}
		go take(ctx, "first", big, bigBody)
		synctest.Wait()
		go take(t.Context(), "second", mid, midBody)
		synctest.Wait()
		for _, m := range [][2][]byte{{small, smallBody}, {plain, plainBody}} {
			g, err := f.Take(t.Context(), m[0], m[1])
			if err != nil {
				t.Fatal(err)
			}
			g()
		}
		if s := f.Stats(); s.Waiting != 2 || s.Taken < 6<<20 {
			t.Fatal(s)
		}
		give()
		if a, b := <-got, <-got; a != "first" || b != "second" {
			t.Fatal(a, b)
		}
		if give, err = f.Take(t.Context(), big, bigBody); err != nil {
			t.Fatal(err)
		}
		take(t.Context(), "late", mid, midBody)
		go take(ctx, "gone", mid, midBody)
		synctest.Wait()
		cancel(errors.New("went away"))
		if a, b := <-got, <-got; a != "late is throttled" || b != "gone: went away" {
			t.Fatal(a, b)
		}
		give()
	})
}

// A batch that has no room even alone is refused at once, for good; so is a damaged one.
func TestInflationRefuses(t *testing.T) {
	f := NewInflation(8<<20, time.Hour)
	var bad *record.BatchError
	metadata, body := bomb(t, 9<<20, ipc.WithZstd())
	if _, err := f.Take(t.Context(), metadata, body); !errors.As(err, &bad) || bad.Kind != record.KindTooLarge {
		t.Fatal(err)
	}
	if _, err := f.Take(t.Context(), metadata[:20], body); !errors.As(err, &bad) || bad.Kind != record.KindCorrupt {
		t.Fatal(err)
	}
	metadata, body = bomb(t, arrowipc.DefaultMaxBytes, ipc.WithZstd())
	if _, err := NewInflation(1<<30, time.Hour).Take(t.Context(), metadata, body); !errors.As(err, &bad) || bad.Kind != record.KindTooLarge {
		t.Fatal(err)
	}
}
