package cache_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/stream/cache"
)

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(0, 100).Draw(t, "limit")
		c := cache.New[int, int](limit)
		put := map[int]int{}
		t.Repeat(map[string]func(*rapid.T){
			"load": func(t *rapid.T) {
				k, cost := rapid.IntRange(0, 9).Draw(t, "key"), rapid.Int64Range(0, 20).Draw(t, "cost")
				v, err := c.Load(context.Background(), k, func(context.Context) (int, int64, error) {
					put[k] = rapid.Int().Draw(t, "value")
					return put[k], cost, nil
				})
				if err != nil || v != put[k] {
					t.Fatalf("key %d: %d, %v; last loaded %d", k, v, err, put[k])
				}
			},
			"drop": func(t *rapid.T) {
				k := rapid.IntRange(0, 9).Draw(t, "key")
				c.Drop(func(x int) bool { return x == k })
				if _, ok := c.Get(k); ok {
					t.Fatalf("key %d is still there", k)
				}
			},
			"": func(t *rapid.T) {
				if s := c.Stats(); s.Bytes > limit || s.Bytes < 0 {
					t.Fatalf("%d bytes of %d", s.Bytes, limit)
				}
			},
		})
	})
}

func TestClockKeepsWhatIsUsed(t *testing.T) {
	c := cache.New[int, int](80)
	load := func(k int) {
		_, _ = c.Load(context.Background(), k, func(context.Context) (int, int64, error) { return k, 10, nil })
	}
	for k := range 8 {
		load(k)
	}
	for k := 8; k < 100; k++ {
		c.Get(3)
		load(k)
	}
	if _, ok := c.Get(3); !ok {
		t.Fatal("the entry that every round used was evicted")
	}
}

func TestOneLoadServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache.New[string, int](100)
		var loads atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				v, err := c.Load(t.Context(), "k", func(context.Context) (int, int64, error) {
					loads.Add(1)
					time.Sleep(time.Second) // virtual
					return 7, 1, nil
				})
				if v != 7 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
			})
		}
		wg.Wait()
		if loads.Load() != 1 {
			t.Fatalf("%d loads", loads.Load())
		}
	})
}

func TestWaitersOutliveACanceledLoader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache.New[string, int](100)
		ctx, cancel := context.WithCancel(t.Context())
		load := func(ctx context.Context) (int, int64, error) {
			select {
			case <-ctx.Done():
				return 0, 0, ctx.Err()
			case <-time.After(time.Minute):
				return 7, 1, nil
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Load(ctx, "k", load); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled loader: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if v, err := c.Load(t.Context(), "k", load); v != 7 || err != nil {
				t.Errorf("waiter: %d, %v", v, err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

func TestErrorsAreNotCached(t *testing.T) {
	c := cache.New[string, int](100)
	boom := errors.New("boom")
	if _, err := c.Load(t.Context(), "k", func(context.Context) (int, int64, error) { return 0, 1, boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if v, err := c.Load(t.Context(), "k", func(context.Context) (int, int64, error) { return 5, 1, nil }); v != 5 || err != nil {
		t.Fatal(v, err)
	}
}
