package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// rig is a writer over a faulty store with pages of two keys.
type rig struct {
	t     testing.TB
	mem   *memstore.Store
	store *fault.Store
	w     *Writer
	ran   chan error
	stop  context.CancelFunc

	mu   sync.Mutex
	done []ack
}

type ack struct {
	slot uint64
	err  error
}

func newRig(t testing.TB, mem *memstore.Store, fc fault.Config, change ...func(*Config)) *rig {
	t.Helper()
	fc.Shared = true
	r := &rig{t: t, mem: mem, store: fault.New(mem, fc), ran: make(chan error, 1)}
	cfg := Default()
	cfg.Window = 4
	for _, f := range change {
		f(&cfg)
	}
	w, err := NewWriter(cfg, r.store, modelWAL, quiet)
	if err != nil {
		t.Fatal(err)
	}
	w.jitter = 0
	r.w = w
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ran <- w.Run(ctx) }()
	return r
}

// end stops the writer and waits for it.
func (r *rig) end() {
	r.stop()
	r.w.Close()
	<-r.ran
}

// drain closes the writer once it runs, which waits for every acknowledgement.
func (r *rig) drain() {
	synctest.Wait()
	r.w.Close()
}

// submit sends the next bulk, of one offset: the slot's number.
func (r *rig) submit(ctx context.Context) error {
	slot, err := r.w.Next(ctx)
	if err != nil {
		return err
	}
	chunks, sum := buildBulk(r.t, modelWAL, slot, r.w.Window(), slot, 1)
	got, err := r.w.Submit(ctx, chunks, sum.CRC, func(slot uint64, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if slot != uint64(len(r.done)) {
			r.t.Errorf("slot %d is done after %d others", slot, len(r.done))
		}
		if n := len(r.done) - 1; err == nil && n >= 0 && r.done[n].err != nil {
			r.t.Errorf("slot %d succeeded after slot %d had failed", slot, n)
		}
		r.done = append(r.done, ack{slot, err})
	})
	if err == nil && got != slot {
		r.t.Errorf("Next said slot %d, Submit took %d", slot, got)
	}
	return err
}

func (r *rig) submitAll(n int) {
	r.t.Helper()
	for range n {
		if err := r.submit(context.Background()); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) acks() []ack {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.done)
}

// acked is how many slots were acknowledged.
func (r *rig) acked() (n uint64) {
	for _, a := range r.acks() {
		if a.err == nil {
			n++
		}
	}
	return n
}

func key(slot uint64) string { return plan.Key(modelWAL, plan.KindWAL, slot) }

func pages2() *memstore.Store { return memstore.New(memstore.Config{PageMax: 2}) }

func put(t testing.TB, s objstore.Store, key string, b []byte) {
	t.Helper()
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: key, Chunks: [][]byte{b}}); err != nil {
		t.Fatal(err)
	}
}

func TestAcknowledgesInSlotOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Do: fault.Hold()}}})
		defer r.end()
		r.submitAll(4)
		held, err := r.store.WaitPending(t.Context(), 4)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(held, func(a, b *fault.Pending) int { return strings.Compare(a.Call.Key, b.Call.Key) })
		for _, c := range []struct {
			land int
			want uint64
		}{{2, 0}, {1, 0}, {0, 3}, {3, 4}} {
			if err := held[c.land].Land(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := r.acked(); got != c.want {
				t.Errorf("%d acknowledged after slot %d landed, want %d", got, c.land, c.want)
			}
			if got := r.w.InFlight(); got != 4-int(c.want) {
				t.Errorf("%d in flight, want %d", got, 4-c.want)
			}
		}
	})
}

func TestWindowIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Do: fault.Hold()}}})
		defer r.end()
		r.submitAll(4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.submit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a fifth bulk in a window of 4: %v", err)
		}
		landAt := func(slot uint64) {
			t.Helper()
			for _, p := range r.store.Pending() {
				if p.Call.Key == key(slot) {
					if err := p.Land(); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					return
				}
			}
			t.Fatalf("slot %d is not under way", slot)
		}
		landAt(2) // no room yet: slot 0 is not acknowledged
		ctx2, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		if _, err := r.w.Next(ctx2); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("room behind an unacknowledged slot: %v", err)
		}
		landAt(0)
		if slot, err := r.w.Next(t.Context()); err != nil || slot != 4 {
			t.Fatalf("next slot %d, %v", slot, err)
		}
		if slot, err := r.w.Next(t.Context()); err != nil || slot != 4 {
			t.Fatalf("asked again: next slot %d, %v", slot, err)
		}
		r.submitAll(1)
		if _, err := r.store.WaitPending(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		r.store.LandAll()
		synctest.Wait()
	})
}

// Whatever an honest store may answer, the bulk lands once and is acknowledged.
func TestDoubtIsResolved(t *testing.T) {
	for name, rules := range map[string][]fault.Rule{
		"lost request":              {{Ops: fault.Put, Times: 1, Do: fault.LoseRequest()}},
		"lost response":             {{Ops: fault.Put, Times: 1, Do: fault.LoseResponse()}},
		"its own conflict":          {{Ops: fault.Put, Times: 1, Do: fault.OwnConflict()}},
		"conflict, nothing landed":  {{Ops: fault.Put, Times: 1, Do: fault.FailBefore(objstore.ErrConflict)}},
		"throttled":                 {{Ops: fault.Put, Times: 3, Do: fault.Throttle(0)}},
		"lands a moment later":      {{Ops: fault.Put, Times: 1, Do: fault.LateAfter(5 * time.Millisecond)}},
		"lands after the retry":     {{Ops: fault.Put, Times: 1, Do: fault.LateAfter(10 * time.Second)}},
		"no answer at all":          {{Ops: fault.Put, Times: 1, Do: fault.Hold()}},
		"unauthorized for a while":  {{Ops: fault.Put, Times: 2, Do: fault.FailBefore(objstore.ErrUnauthorized)}},
		"lost, and the look too":    {{Ops: fault.Put, Times: 1, Do: fault.LoseResponse()}, {Ops: fault.Get, Times: 2, Do: fault.FailBefore(objstore.ErrUnavailable)}},
		"look damaged on the way":   {{Ops: fault.Put, Times: 1, Do: fault.LoseResponse()}, {Ops: fault.Get, Times: 2, Do: fault.FlipBit()}},
		"look cut short on the way": {{Ops: fault.Put, Times: 1, Do: fault.LoseResponse()}, {Ops: fault.Get, Times: 1, Do: fault.ShortRead()}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, pages2(), fault.Config{Rules: rules})
				defer r.end()
				r.submitAll(3)
				r.drain()
				if got := r.acked(); got != 3 {
					t.Fatalf("%d acknowledged: %v", got, r.acks())
				}
				if r.store.Stats().Faults == 0 {
					t.Error("the fault did not happen")
				}
				r.store.LandAll()
				r.store.WaitLate()
				for s := range uint64(3) {
					want, _ := buildBulk(t, modelWAL, s, 4, s, 1)
					got, err := r.mem.GetRange(t.Context(), objstore.GetRangeRequest{Key: key(s), Length: -1})
					if err != nil || string(got.Data) != string(slices.Concat(want...)) {
						t.Errorf("slot %d holds %d bytes, %v", s, len(got.Data), err)
					}
				}
			})
		})
	}
}

// ptrStore notes the memory that each Put was given, and fails some.
type ptrStore struct {
	objstore.Store
	mu   sync.Mutex
	seen map[string][]*byte
}

func (s *ptrStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	s.mu.Lock()
	s.seen[req.Key] = append(s.seen[req.Key], &req.Chunks[len(req.Chunks)-1][0])
	n := len(s.seen[req.Key])
	s.mu.Unlock()
	if n < 3 {
		return objstore.PutResponse{}, objstore.ErrUnknownOutcome
	}
	return s.Store.Put(ctx, req)
}

// Case 8 of the design's failure list: a retry sends the very same memory, and
// no slot ever gets another slot's.
func TestNoBufferIsReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &ptrStore{Store: pages2(), seen: map[string][]*byte{}}
		w, err := NewWriter(Default(), s, modelWAL, quiet)
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		go func() { ran <- w.Run(t.Context()) }()
		for slot := range uint64(5) {
			chunks, sum := buildBulk(t, modelWAL, slot, w.Window(), slot, 1)
			if _, err := w.Submit(t.Context(), chunks, sum.CRC, func(_ uint64, err error) {
				if err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		w.Close()
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		owner := map[*byte]string{}
		for k, ps := range s.seen {
			for _, p := range ps {
				if p != ps[0] || owner[p] != "" && owner[p] != k {
					t.Errorf("%s: attempts read other memory", k)
				}
				owner[p] = k
			}
		}
	})
}

func TestFenced(t *testing.T) {
	other := modelWAL
	other.Nonce++
	own := slices.Concat(bulkChunks(t, modelWAL, 1, 4, 1, 1)...)
	for name, inSlot := range map[string][]byte{
		"by a tombstone":                  object.Tombstone(modelWAL, 1, 77),
		"by another log's bulk":           slices.Concat(bulkChunks(t, other, 1, 4, 1, 1)...),
		"by a bulk with another nonce":    func() []byte { h, _ := object.ParseHeader(own); h.Nonce++; return object.AppendHeader(nil, h) }(),
		"by a bulk of another slot":       slices.Concat(bulkChunks(t, modelWAL, 2, 4, 1, 1)...),
		"by garbage":                      []byte(strings.Repeat("garbage ", 20)),
		"by less than a header":           []byte("x"),
		"by nothing at all":               {},
		"by half of what was to be there": own[:len(own)-1],
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Do: fault.DelayBy(time.Second)}}})
				defer r.stop()
				put(t, r.mem, key(1), inSlot)
				r.submitAll(3)
				err := <-r.ran
				if !errors.Is(err, mink.ErrFenced) {
					t.Fatalf("run ended with %v", err)
				}
				acks := r.acks()
				if len(acks) != 3 || acks[1].err == nil || acks[2].err == nil {
					t.Fatalf("done: %v", acks)
				}
				for _, a := range acks[1:] {
					if !errors.Is(a.err, mink.ErrFenced) || a.err.Error() != err.Error() {
						t.Errorf("slot %d: %v", a.slot, a.err)
					}
				}
				if err := r.submit(t.Context()); !errors.Is(err, mink.ErrFenced) {
					t.Errorf("submitted afterwards: %v", err)
				}
				if err := r.w.Err(); !errors.Is(err, mink.ErrFenced) {
					t.Error(err)
				}
			})
		})
	}
}

func TestGivesUp(t *testing.T) {
	for name, rule := range map[string]fault.Rule{
		"refused":   {Prefix: key(1), Do: fault.FailBefore(objstore.ErrUnavailable)},
		"no answer": {Prefix: key(1), Do: fault.Hold()},
		"throttled": {Prefix: key(1), Do: fault.Throttle(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{rule}})
				defer r.stop()
				r.submitAll(4)
				err := <-r.ran
				if took := time.Since(begun); took != Default().GiveUpAfter {
					t.Errorf("gave up after %s", took)
				}
				if !errors.Is(err, mink.ErrUnavailable) || r.acked() != 1 || len(r.acks()) != 4 {
					t.Errorf("%v; done %v", err, r.acks())
				}
				r.store.DropAll()
			})
		})
	}
}

// An error that no retry can mend ends the log at once.
func TestHopelessPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Do: fault.FailBefore(objstore.ErrInvalid)}}})
		defer r.stop()
		r.submitAll(1)
		if err := <-r.ran; !errors.Is(err, mink.ErrUnavailable) || time.Since(begun) != 0 {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

func TestEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Skip: 1, Do: fault.Hold()}}})
		r.submitAll(3)
		synctest.Wait()
		r.stop()
		if err := <-r.ran; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		acks := r.acks()
		if len(acks) != 3 {
			t.Fatalf("done: %v", acks)
		}
		for _, a := range acks[r.acked():] {
			if !errors.Is(a.err, mink.ErrClosed) {
				t.Errorf("slot %d: %v", a.slot, a.err)
			}
		}
		r.w.Close()
		r.store.DropAll()
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Do: fault.DelayBy(time.Second)}}})
		r.submitAll(3)
		r.drain()
		if r.acked() != 3 {
			t.Errorf("done: %v", r.acks())
		}
		if err := <-r.ran; err != nil {
			t.Error(err)
		}
		if err := r.submit(t.Context()); !errors.Is(err, mink.ErrClosed) {
			t.Error(err)
		}
		r.w.Close() // again
		if err := r.w.Run(t.Context()); !errors.Is(err, mink.ErrInvalid) {
			t.Error("ran twice:", err)
		}
		r.stop()
	})
}

func TestCloseWithoutRun(t *testing.T) {
	w, err := NewWriter(Default(), pages2(), modelWAL, quiet)
	if err != nil {
		t.Fatal(err)
	}
	var got error
	chunks, sum := buildBulk(t, modelWAL, 0, w.Window(), 0, 1)
	if _, err := w.Submit(t.Context(), chunks, sum.CRC, func(_ uint64, err error) { got = err }); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if !errors.Is(got, mink.ErrClosed) {
		t.Error(got)
	}
}

// A Run that was refused is none that a second Close could wait for.
func TestCloseAfterARefusedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := NewWriter(Default(), pages2(), modelWAL, quiet)
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := w.Run(t.Context()); !errors.Is(err, mink.ErrInvalid) {
			t.Error("ran after close:", err)
		}
		w.Close()
	})
}

type overwriting struct{ objstore.Store }

func (o overwriting) Capabilities() objstore.Capabilities {
	c := o.Store.Capabilities()
	c.CreateOnlyPut = false
	return c
}

func TestRefusals(t *testing.T) {
	if _, err := NewWriter(Default(), overwriting{pages2()}, modelWAL, quiet); !errors.Is(err, mink.ErrUnsupported) {
		t.Error("a store without create-only put:", err)
	}
	for name, change := range map[string]func(*Config){
		"window 0":       func(c *Config) { c.Window = 0 },
		"window 1025":    func(c *Config) { c.Window = 1025 },
		"no timeout":     func(c *Config) { c.AttemptTimeout = 0 },
		"never gives up": func(c *Config) { c.GiveUpAfter = 0 },
		"no pause":       func(c *Config) { c.RetryMin = 0 },
		"pauses crossed": func(c *Config) { c.RetryMax = 1 },
	} {
		cfg := Default()
		change(&cfg)
		if _, err := NewWriter(cfg, pages2(), modelWAL, quiet); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, err := NewWriter(Default(), pages2(), modelWAL, quiet)
	if err != nil {
		t.Fatal(err)
	}
	other := modelWAL
	other.Epoch++
	for name, chunks := range map[string][][]byte{
		"no bytes":       nil,
		"no header":      {[]byte("x")},
		"another log":    bulkChunks(t, other, 0, 8, 0, 1),
		"another slot":   bulkChunks(t, modelWAL, 1, 8, 0, 1),
		"another window": bulkChunks(t, modelWAL, 0, 7, 0, 1),
		"a tombstone":    {object.Tombstone(modelWAL, 0, 1)},
	} {
		never := func(uint64, error) { t.Errorf("%s: done was called", name) }
		if _, err := w.Submit(t.Context(), chunks, 0, never); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.Close()
}

func TestProbe(t *testing.T) {
	ctx := t.Context()
	mem := pages2()
	if err := Probe(ctx, mem, 3, 1); err != nil {
		t.Fatal(err)
	}
	left, err := mem.List(ctx, objstore.ListRequest{})
	if err != nil || len(left.Objects) != 0 {
		t.Errorf("left behind: %v, %v", left.Objects, err)
	}
	if err := Probe(ctx, overwriting{mem}, 3, 1); !errors.Is(err, mink.ErrUnsupported) {
		t.Error(err)
	}
	if err := Probe(ctx, liar{mem}, 3, 2); !errors.Is(err, mink.ErrUnsupported) {
		t.Error("a store that overwrites in spite of what it says:", err)
	}
	for _, op := range []fault.Op{fault.Put, fault.Get, fault.List, fault.Delete} {
		f := fault.New(mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: op, Do: fault.FailBefore(objstore.ErrUnavailable)}}})
		if err := Probe(ctx, f, 3, uint64(op)); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("%s fails: %v", op, err)
		}
	}
	f := fault.New(mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: fault.Get, Do: fault.FlipBit()}}})
	if err := Probe(ctx, f, 3, 9); !errors.Is(err, mink.ErrUnavailable) {
		t.Error("other bytes came back:", err)
	}
}

// liar claims create-only and does not keep it.
type liar struct{ objstore.Store }

func (l liar) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	req.CreateOnly = false
	return l.Store.Put(ctx, req)
}

func BenchmarkWriter(b *testing.B) {
	for _, window := range []int{1, 8} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			r := newRig(b, pages2(), fault.Config{}, func(c *Config) { c.Window = window })
			for b.Loop() {
				r.submitAll(1)
			}
			r.w.Close()
			r.end()
		})
	}
}
