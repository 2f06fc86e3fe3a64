package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// bubble runs f in virtual time and requires that the node stops cleanly.
func bubble(t *testing.T, f func(t *testing.T, w *world, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		f(t, w, n)
		if err := n.stop(); err != nil {
			t.Fatalf("stop: %v", err)
		}
		w.valid()
	})
}

func TestAppendReadFromCache(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		for i := range 50 {
			w.put(s, uint64(i%3+1), i*100)
		}
		gets := n.store.Stats()
		w.check(s)
		if err := w.compare(s, 1); err != nil {
			t.Fatal(err)
		}
		if now := n.store.Stats(); now.GetBytes != gets.GetBytes {
			t.Fatal("a read of the tail touched the store")
		}
		if _, err := s.Read(t.Context(), stream.ReadRequest{From: s.HighWatermark(), MaxBytes: 1}); err != nil {
			t.Fatal(err)
		}
		if res, err := s.Read(t.Context(), stream.ReadRequest{MaxBytes: -1 << 20}); err != nil || len(res.Frames) != 1 {
			t.Fatalf("a read of less than nothing: %d frames, %v", len(res.Frames), err)
		}
		var out *mink.OutOfRangeError
		if _, err := s.Read(t.Context(), stream.ReadRequest{From: s.HighWatermark() + 1}); !errors.As(err, &out) || out.End != s.HighWatermark() {
			t.Fatal(err)
		}
	})
}

func TestAppendRefusals(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 5, 10)
		for _, tc := range []struct {
			name string
			req  stream.AppendRequest
			want error
		}{
			{"behind the end", request(1, 4, 1, 10), mink.ErrInvalid},
			{"past the end", request(1, 6, 1, 10), mink.ErrInvalid},
			{"no span", request(1, 5, 0, 10), mink.ErrInvalid},
			{"span overflows", request(1, 5, 1<<63-5, 10), mink.ErrInvalid},
			{"too large", request(1, 5, 1, 16<<20+1), mink.ErrTooLarge},
		} {
			if _, err := s.Append(tc.req); !errors.Is(err, tc.want) {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
		if s.LogEnd() != 5 {
			t.Fatalf("refused appends moved the end to %d", s.LogEnd())
		}
		w.put(s, 1<<40, 0) // an empty frame over a huge span is fine
		w.put(s, 1, 16<<20)
		w.check(s)
	})
}

func TestGroupCommitTiming(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		n.store.Inject(fault.Rule{Ops: fault.Put, Prefix: "wal/", Do: fault.DelayBy(30 * time.Millisecond)})
		s := n.open(1)
		took := func(f func()) time.Duration { at := time.Now(); f(); return time.Since(at) }
		if d := took(func() { w.put(s, 1, 10) }); d != 35*time.Millisecond {
			t.Errorf("a lone write took %s, want idle wait and one put", d)
		}
		if d := took(func() { w.put(s, 1, 10) }); d != 200*time.Millisecond {
			t.Errorf("the write after it took %s, want the batch interval since the last seal", d)
		}
		time.Sleep(time.Second)
		w.put(s, 1, 10)
		if d := took(func() { w.put(s, 1, 64<<10) }); d != 35*time.Millisecond {
			t.Errorf("64 KiB with nothing in flight took %s, want idle wait and one put", d)
		}
		// What the acknowledged producers send at once shares a put with what waited.
		time.Sleep(time.Second)
		bulks := n.Stats().Bulks
		a := w.append(s, 1, 64<<10)
		time.Sleep(6 * time.Millisecond)
		waited := w.append(s, 1, 64<<10)
		<-a.Done()
		refill := w.append(s, 1, 64<<10)
		<-refill.Done()
		<-waited.Done()
		if got := n.Stats().Bulks - bulks; got != 2 {
			t.Errorf("%d puts, want one for what came first and one for the rest", got)
		}
		time.Sleep(time.Second)
		// In flight: 64 KiB wait for the interval, 4 MiB do not.
		a = w.append(s, 1, 64<<10)
		time.Sleep(6 * time.Millisecond)
		b := w.append(s, 1, 64<<10)
		synctest.Wait()
		if got := n.Stats().InFlight; got != 1 {
			t.Errorf("%d bulks in flight, want 1", got)
		}
		at := time.Now()
		c := w.append(s, 1, 4<<20)
		<-c.Done()
		if d := time.Since(at); d != 30*time.Millisecond {
			t.Errorf("a full bulk took %s", d)
		}
		<-a.Done()
		<-b.Done()
	})
}

func TestIdleEngineMakesNoPut(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		s := n.open(1)
		w.put(s, 1, 10)
		time.Sleep(time.Minute)
		before, commits := n.store.Stats(), w.meta.Proposals("commit")
		time.Sleep(6 * time.Hour)
		after := n.store.Stats()
		if before.Puts != after.Puts || commits != w.meta.Proposals("commit") {
			t.Fatalf("an idle engine made %d puts", after.Puts-before.Puts)
		}
	})
}

func TestPutRateIsBoundedByTheInterval(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		var streams []*stream.Stream
		for id := mink.StreamID(1); id <= 100; id++ {
			streams = append(streams, n.open(id))
		}
		before := n.Stats().Bulks
		for range 1000 { // 10 s of writes to all
			for _, s := range streams[:10] {
				w.append(s, 1, 20)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := n.Stats().Bulks - before; got > 52 {
			t.Fatalf("%d bulks in 10 s at an interval of 200 ms", got)
		}
	})
}

// Failures 2 and 3: puts land in any order; acknowledgement, visibility and cache
// are in slot order, and an acknowledged record is readable at that moment.
func TestAcksAreInOrder(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, n *node) {
				s := n.open(1)
				n.store.Inject(fault.Rule{Ops: fault.Put, Prefix: "wal/", Do: fault.Hold()})
				var tickets []*stream.Ticket
				for i := range 8 {
					tickets = append(tickets, w.append(s, 1, 4<<20))
					synctest.Wait()
					_ = i
				}
				held := n.store.Pending()
				if len(held) != 8 {
					t.Fatalf("%d puts in flight", len(held))
				}
				landed := map[int]bool{}
				for _, k := range permutation(seed, 8) {
					if err := held[k].Land(); err != nil {
						t.Fatal(err)
					}
					landed[k] = true
					synctest.Wait()
					prefix := 0
					for landed[prefix] {
						prefix++
					}
					if got := int(s.HighWatermark()); got != prefix {
						t.Fatalf("landed %v: high watermark %d", landed, got)
					}
					for i, tk := range tickets {
						select {
						case <-tk.Done():
							if i >= prefix {
								t.Fatalf("landed %v: %d is acknowledged", landed, i)
							}
							if tk.Err() != nil {
								t.Fatal(tk.Err())
							}
							res, err := s.Read(t.Context(), stream.ReadRequest{From: mink.Offset(i), MaxBytes: 1, Cached: true})
							if err != nil || len(res.Frames) != 1 {
								t.Fatalf("acknowledged and not readable: %v", err)
							}
						default:
							if i < prefix {
								t.Fatalf("landed %v: %d is not acknowledged", landed, i)
							}
						}
					}
				}
				for i := range 8 {
					w.note(1, mink.Offset(i), mink.Offset(i+1))
				}
				n.store.ClearRules()
				w.check(s)
			})
		})
	}
}

func TestOpenChecksTheOwner(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, n *node) {
		ctx := context.Background()
		if _, err := n.Open(ctx, 9, 1); !errors.Is(err, mink.ErrNotExist) {
			t.Errorf("unknown stream: %v", err)
		}
		e1 := w.meta.Lead(1, n.id)
		if _, err := n.Open(ctx, 1, e1+1); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("a view that lags: %v", err)
		}
		e2 := w.meta.Lead(1, n.id)
		if _, err := n.Open(ctx, 1, e1); !errors.Is(err, mink.ErrFenced) {
			t.Errorf("an old epoch: %v", err)
		}
		s, err := n.Open(ctx, 1, e2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Open(ctx, 1, e2); !errors.Is(err, mink.ErrExists) {
			t.Errorf("open twice: %v", err)
		}
		w.put(s, 1, 10)
		s.Close()
		if _, err := s.Append(request(1, 1, 1, 10)); !errors.Is(err, mink.ErrClosed) {
			t.Errorf("append after close: %v", err)
		}
		if _, err := s.Read(ctx, stream.ReadRequest{}); !errors.Is(err, mink.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
		// What is acknowledged and not uploaded must not be given out twice.
		if _, err := n.Open(ctx, 1, e2); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("reopened over records that wait for upload: %v", err)
		}
		if err := n.UploadNow(ctx); err != nil {
			t.Fatal(err)
		}
		s, err = n.Open(ctx, 1, e2)
		if err != nil {
			t.Fatal(err)
		}
		if s.LogEnd() != 1 {
			t.Fatalf("reopened at %d", s.LogEnd())
		}
		w.put(s, 1, 10)
		w.check(s)
	})
}

func TestFencedWALFailsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s, idle := n.open(1), n.open(2)
		w.put(s, 1, 10)
		changed := idle.Changed()
		w.recover(n.id) // somebody else closes the log
		tk := w.append(s, 1, 10)
		<-tk.Done()
		if !errors.Is(tk.Err(), mink.ErrFenced) {
			t.Fatalf("acknowledged into a recovered log: %v", tk.Err())
		}
		if err := <-n.done; !errors.Is(err, mink.ErrFenced) {
			t.Fatalf("run: %v", err)
		}
		<-changed // waiters of idle streams wake up too
		if _, err := idle.Append(request(2, 0, 1, 1)); !errors.Is(err, mink.ErrFenced) {
			t.Fatalf("append: %v", err)
		}
		if _, err := idle.Read(t.Context(), stream.ReadRequest{}); !errors.Is(err, mink.ErrFenced) {
			t.Fatalf("read: %v", err)
		}
		if _, err := n.Open(t.Context(), 3, w.meta.Lead(3, n.id)); !errors.Is(err, mink.ErrFenced) {
			t.Fatalf("open: %v", err)
		}
		n.cancel()
	})
}

// A store that takes no writes ends the epoch after the give-up time.
func TestGivesUpWhenTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		s := n.open(1)
		n.store.Inject(fault.Rule{Ops: fault.Put, Do: fault.FailBefore(objstore.ErrUnavailable)})
		at := time.Now()
		tk := w.append(s, 1, 10)
		err := <-n.done
		if !errors.Is(err, mink.ErrFenced) || time.Since(at) > 2*w.cfg.WALGiveUpAfter {
			t.Fatalf("after %s: %v", time.Since(at), err)
		}
		<-tk.Done()
		if tk.Err() == nil {
			t.Fatal("acknowledged without a store")
		}
		n.cancel()
	})
}

func TestStopDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		n.store.Inject(fault.Rule{Ops: fault.Put, Do: fault.DelayBy(time.Second)})
		s := n.open(1)
		tk := w.append(s, 1, 10)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		<-tk.Done()
		if tk.Err() != nil {
			t.Fatalf("an admitted append was not acknowledged: %v", tk.Err())
		}
		if v, _ := w.meta.View().Stream(1); v.End != 1 {
			t.Fatalf("the drain did not upload: end %d", v.End)
		}
		if _, err := s.Append(request(1, 1, 1, 1)); !errors.Is(err, mink.ErrClosed) {
			t.Fatal(err)
		}
	})
}

// permutation is a seeded order of 0..n-1.
func permutation(seed uint64, n int) []int { return seeded(seed).Perm(n) }

func TestConfigNamesEachField(t *testing.T) {
	for name, breakIt := range map[string]func(*stream.Config){
		"BlockCacheBytes": func(c *stream.Config) { c.BlockCacheBytes = -1 },
		"IndexCacheBytes": func(c *stream.Config) { c.IndexCacheBytes = -1 },
		"LogCacheBytes":   func(c *stream.Config) { c.LogCacheBytes = c.RecordBytesMax },
		"WALWindow":       func(c *stream.Config) { c.WALWindow = 1025 },
		"ReadTimeout":     func(c *stream.Config) { c.ReadTimeout = 0 },
	} {
		c := newWorld(t).cfg
		breakIt(&c)
		if err := c.Validate(); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), name+" is out of range") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
