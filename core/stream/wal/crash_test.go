package wal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// crashModes are what can have become of the store call in which a process died.
var crashModes = map[string]fault.Action{
	"before it":          fault.FailBefore(objstore.ErrUnavailable),
	"after it":           fault.LoseResponse(),
	"while it is late":   fault.Late(),
	"and nobody answers": fault.Hold(),
}

// crashAt lets n calls pass, does mode to the next, and fails all others.
func crashAt(n int, mode fault.Action) []fault.Rule {
	return []fault.Rule{
		{Skip: n, Times: 1, Do: mode},
		{Skip: n, Do: fault.FailBefore(objstore.ErrUnavailable)},
	}
}

// mustHold checks that res is a sound log that holds what was acknowledged.
func mustHold(t testing.TB, res Result, acked uint64) {
	t.Helper()
	if res.End < acked {
		t.Fatalf("%d slots were acknowledged, the recovered log ends at %d", acked, res.End)
	}
	checkLog(t, res, 0, res.End)
}

// A writer dies at every one of its store calls; what it acknowledged survives,
// also when its last Put lands after the recovery.
func TestWriterCrashesAtEveryCall(t *testing.T) {
	for name, mode := range crashModes {
		t.Run(name, func(t *testing.T) {
			fired := true
			for n := 0; fired; n++ {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, pages2(), fault.Config{Rules: crashAt(n, mode)}, func(c *Config) { c.Window = 2 })
					for range 6 {
						if r.submit(t.Context()) != nil {
							break
						}
					}
					synctest.Wait()
					r.end()
					fired = r.store.Stats().Faults > 0
					first, err := Recover(t.Context(), recoverConfig(r.mem, 0))
					if err != nil {
						t.Fatalf("call %d: %v", n, err)
					}
					mustHold(t, first, r.acked())
					r.store.LandAll()
					second, err := Recover(t.Context(), recoverConfig(r.mem, 0))
					if err != nil || !cmp.Equal(first, second) {
						t.Fatalf("call %d: recovered %+v, then %+v, %v", n, first, second, err)
					}
				})
			}
		})
	}
}

// zombie is a writer of window 4 with two acknowledged bulks and n Puts under way.
func zombie(t testing.TB, n int) *rig {
	r := newRig(t, pages2(), fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Skip: 2, Times: n, Do: fault.Hold()}}})
	r.submitAll(2)
	synctest.Wait()
	r.submitAll(n)
	synctest.Wait()
	if r.acked() != 2 || len(r.store.Pending()) != n {
		t.Fatalf("%d acknowledged, %d under way", r.acked(), len(r.store.Pending()))
	}
	return r
}

// landSlot lands the zombie's Put of one slot, if it is under way.
func (r *rig) landSlot(slot uint64) {
	for _, p := range r.store.Pending() {
		if p.Call.Key == key(slot) {
			_ = p.Land()
		}
	}
	synctest.Wait()
}

// A recoverer dies at every one of its store calls, beside a writer that is
// alive and lands its Puts before, between and after.
func TestRecovererCrashesAtEveryCall(t *testing.T) {
	for name, mode := range crashModes {
		t.Run(name, func(t *testing.T) {
			for land := range 4 { // which Put lands between the recoveries: slot 2..4, or none
				fired := true
				for n := 0; fired; n++ {
					synctest.Test(t, func(t *testing.T) {
						z := zombie(t, 3)
						defer z.end()
						z.landSlot(3) // slot 2 is a hole
						s := fault.New(z.mem, fault.Config{Shared: true, PageMax: 2, Rules: crashAt(n, mode)})
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						crashed, crashedErr := Recover(ctx, recoverConfig(s, 0))
						fired = s.Stats().Faults > 0
						z.landSlot(uint64(2 + land))
						first, err := Recover(t.Context(), recoverConfig(z.mem, 0))
						if err != nil {
							t.Fatalf("call %d: %v", n, err)
						}
						if crashedErr == nil && !cmp.Equal(crashed, first) {
							t.Fatalf("call %d: two recoveries disagree: %+v, %+v", n, crashed, first)
						}
						s.LandAll() // the dead recoverer's last Put
						z.store.LandAll()
						synctest.Wait()
						mustHold(t, first, z.acked())
						second, err := Recover(t.Context(), recoverConfig(z.mem, 0))
						if err != nil || !cmp.Equal(first, second) {
							t.Fatalf("call %d: recovered %+v, then %+v, %v", n, first, second, err)
						}
					})
				}
			}
		})
	}
}

// Case 7 of the design's failure list: a paused writer with n Puts in flight; a
// recoverer that dies, one that finishes, a sweep; the writer resumes; recovered
// again.
func TestPausedZombie(t *testing.T) {
	for n := range 5 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				z := zombie(t, n)
				s := fault.New(z.mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: fault.Put, Skip: 1, Do: fault.FailBefore(objstore.ErrUnavailable)}}})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := Recover(ctx, recoverConfig(s, 0)); err == nil {
					t.Fatal("the first recoverer was to die after its first tombstone")
				}
				first, err := Recover(t.Context(), recoverConfig(z.mem, 0))
				if err != nil {
					t.Fatal(err)
				}
				sweepAfter(t, z.mem, first.End)
				z.store.LandAll() // resumes
				synctest.Wait()
				sweepAfter(t, z.mem, first.End)
				if n == 0 {
					z.submitAll(1)
				}
				if err := <-z.ran; !errors.Is(err, mink.ErrFenced) {
					t.Errorf("the zombie ended with %v", err)
				}
				mustHold(t, first, z.acked())
				second, err := Recover(t.Context(), recoverConfig(z.mem, 0))
				if err != nil || !cmp.Equal(first, second) {
					t.Errorf("recovered %+v, then %+v, %v", first, second, err)
				}
				z.stop()
			})
		})
	}
}

func sweepAfter(t testing.TB, s objstore.Store, end uint64) {
	t.Helper()
	for slot, err := range Slots(context.Background(), s, modelWAL, end+1, maxSlot) {
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := s.DeleteBatch(context.Background(), []string{slot.Key}); err != nil {
			t.Error(err)
		}
	}
}

// meta is the metadata log of TestFenceWithGoroutines.
type meta struct {
	sync.Mutex
	wal plan.WAL
}

func (m *meta) get() plan.WAL {
	m.Lock()
	defer m.Unlock()
	return m.wal
}

// The fence with the real goroutines, over a store that loses, delays, repeats
// and refuses, in virtual time.
func TestFenceWithGoroutines(t *testing.T) {
	n := 150
	if testing.Short() {
		n = 30
	}
	fenced := 0
	for seed := range uint64(n) {
		if t.Failed() {
			break
		}
		synctest.Test(t, func(t *testing.T) {
			if oneLife(t, seed) {
				fenced++
			}
		})
	}
	t.Logf("%d of %d writers were fenced alive", fenced, n)
	if fenced < n/4 {
		t.Error("too few: the schedules have become too tame")
	}
}

// oneLife reports whether the writer was alive when its log was closed.
func oneLife(t *testing.T, seed uint64) bool {
	rng := rand.New(rand.NewPCG(seed, 1))
	chaos := fault.Config{Seed: seed, Shared: true, PageMax: 2, Rules: fault.Chaos(0.02+0.1*rng.Float64(), 10*time.Second)}
	chaos.Rules = append(chaos.Rules, fault.Rule{Ops: fault.Put, Probability: 0.5, Do: fault.DelayBy(20 * time.Millisecond)})
	r := newRig(t, pages2(), chaos, func(c *Config) { c.Window = 1 + rng.IntN(8); c.AttemptTimeout = time.Second })
	m := &meta{wal: plan.WAL{ID: modelWAL}}
	var g sync.WaitGroup
	g.Go(func() {
		for range 400 {
			if r.submit(t.Context()) != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	for k := range uint64(2) {
		start, patience := time.Duration(rng.IntN(3000))*time.Millisecond, time.Duration(1+rng.IntN(1000))*time.Millisecond
		g.Go(func() {
			time.Sleep(start)
			recoverUntilDone(t, r, m, 2*seed+k, patience)
		})
	}
	g.Wait()
	for range 3 {
		sweepAfter(t, r.mem, m.get().End)
		time.Sleep(5 * time.Second)
	}
	fenced := errors.Is(r.w.Err(), mink.ErrFenced)
	r.end()
	r.store.WaitLate()
	w := m.get()
	if acked := r.acked(); acked > w.End {
		t.Errorf("seed %d: %d slots were acknowledged, the recovered log ends at %d", seed, acked, w.End)
	}
	sweepAfter(t, r.mem, w.End)
	res, err := Recover(t.Context(), recoverConfig(r.mem, w.Trim))
	if err != nil || res.End != w.End || uint64(len(res.Objects)) != w.End-w.Trim {
		t.Errorf("seed %d: log [%d, %d) reads back as [.., %d), %v", seed, w.Trim, w.End, res.End, err)
	}
	return fenced
}

// recoverUntilDone is a recoverer that dies and starts again until the log is
// recovered, by it or the other.
func recoverUntilDone(t *testing.T, r *rig, m *meta, seed uint64, patience time.Duration) {
	s := fault.New(r.mem, fault.Config{Seed: seed, Shared: true, PageMax: 2, Rules: fault.Chaos(0.05, 5*time.Second)})
	defer s.WaitLate()
	for {
		cfg := recoverConfig(s, m.get().Trim)
		cfg.Nonce = seed
		cfg.StillNeeded = func() bool { return !m.get().Recovered }
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		res, err := Recover(ctx, cfg)
		cancel()
		patience *= 2
		switch {
		case err == nil:
			m.Lock()
			if !m.wal.Recovered {
				m.wal.Recovered, m.wal.End = true, res.End
			}
			m.Unlock()
			return
		case errors.Is(err, ErrRecovered):
			return
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("seed %d: %v", seed, err)
			return
		}
	}
}
