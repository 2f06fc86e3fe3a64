package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// PlanCompaction counts the lists of files.
func (h *pHandle) PlanCompaction(context.Context, sink.CompactRequest) (sink.Compaction, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.Compaction{}, err
	}
	defer unlock()
	return h.piece(), nil
}

// piece is what a compaction takes at once: all lists, or as many as the place allows.
func (h *pHandle) piece() (c sink.Compaction) {
	n := len(h.t.rounds)
	if n < 2 {
		return c
	}
	if h.p.compactMost > 0 {
		n = min(n, h.p.compactMost)
	}
	return sink.Compaction{DataFiles: n, More: n < len(h.t.rounds)}
}

// Compact stages one list in the place of several.
func (h *pHandle) Compact(context.Context, sink.CompactRequest) (sink.Compaction, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.Compaction{}, err
	}
	defer unlock()
	if h.round == nil || len(h.writes) > 0 {
		return sink.Compaction{}, sink.ErrInvalid
	}
	done := h.piece()
	h.compacts, h.of, done.NewFiles = done.DataFiles, len(h.t.rounds), 1
	return done, nil
}

// Expire checks that what readers may have in use is said.
func (h *pHandle) Expire(_ context.Context, req sink.ExpireRequest) (sink.ExpireResponse, error) {
	unlock, err := h.lock()
	if err != nil {
		return sink.ExpireResponse{}, err
	}
	defer unlock()
	if req.Fence < h.t.committed.Fence {
		return sink.ExpireResponse{}, sink.ErrFenced
	}
	if !slices.Contains(req.Keep, h.t.committed.Snapshot) {
		h.p.world.failf("table %d: an expiry that does not keep snapshot %s: %v", h.t.id, h.t.committed.Snapshot, req.Keep)
	}
	h.t.expiries++
	return sink.ExpireResponse{States: 1}, nil
}

func (t *procTable) PlanCompaction(ctx context.Context, req sink.CompactRequest) (sink.Compaction, error) {
	return callTable(ctx, t, "plan compaction", req, t.table.(sink.Maintainer).PlanCompaction)
}

func (t *procTable) Compact(ctx context.Context, req sink.CompactRequest) (sink.Compaction, error) {
	return callTable(ctx, t, "compact", req, t.table.(sink.Maintainer).Compact)
}

func (t *procTable) Expire(ctx context.Context, req sink.ExpireRequest) (sink.ExpireResponse, error) {
	return callTable(ctx, t, "expire", req, t.table.(sink.Maintainer).Expire)
}

// TestUpkeepComesBetweenRounds, and stops when there are none.
func TestUpkeepComesBetweenRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upkeep = true
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		p := startProc(t, w, testConfig(), faults{}, always)
		p.takeLease()
		for range 30 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			w.mu.Unlock()
			time.Sleep(time.Minute)
		}
		if err := waitTiered(w, 10*time.Minute, p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		s := p.tiering.Stats()
		if s.Upkeep.Compactions < 5 || s.Upkeep.Compactions > 11 || s.Upkeep.Expired.States < 1 || s.Upkeep.Expired.States > 2 || s.UpkeepFailures != 0 {
			t.Errorf("%+v", s)
		}
		if s.Rounds < 25 || s.Rounds > 31 {
			t.Errorf("%d rounds: compactions are none", s.Rounds)
		}
		if got := s.Targets[0]; got.State != StateTiered || got.Upkeep.Compactions != s.Upkeep.Compactions {
			t.Errorf("%+v", got)
		}
		if err := w.check(); err != nil {
			t.Error(err)
		}
		p.stop()
	})
}

// TestUpkeepOfATableThatIsNeverIdle: rows come all the time, and a round is always due.
func TestUpkeepOfATableThatIsNeverIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upkeep = true
		tab := w.table("events", "lake", false, false, 1, time.Millisecond)
		p := startProc(t, w, testConfig(), faults{}, func(*proc, string) fate {
			time.Sleep(50 * time.Millisecond)
			return succeeds
		})
		p.takeLease()
		for range 6000 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			w.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
		s := p.tiering.Stats()
		if s.Rounds < 2*starvedRounds || s.Upkeep.Compactions == 0 || int64(s.Upkeep.Compactions) > s.Rounds/(starvedRounds-1) {
			t.Errorf("%d rounds and %d compactions", s.Rounds, s.Upkeep.Compactions)
		}
		if err := waitTiered(w, 10*time.Minute, p); err != nil {
			t.Fatal(err)
		}
		if err := w.check(); err != nil {
			t.Error(err)
		}
		p.stop()
	})
}

// TestUpkeepExpiresAfterItsCompaction, and keeps the snapshot that the compaction made.
func TestUpkeepExpiresAfterItsCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		p := startProc(t, w, testConfig(), faults{}, always)
		p.takeLease()
		for range 3 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			w.mu.Unlock()
			if err := waitTiered(w, 5*time.Minute, p); err != nil {
				t.Fatal(err)
			}
		}
		w.mu.Lock()
		w.upkeep = true
		w.changed()
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if s := p.tiering.Stats(); s.Upkeep.Compactions != 1 || s.Upkeep.Expired.States != 1 {
			t.Errorf("%+v", s)
		}
		if err := w.check(); err != nil {
			t.Error(err)
		}
		p.stop()
	})
}

// TestUpkeepInPieces: who asked for a compaction is answered when nothing is left of it.
func TestUpkeepInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.place.compactMost = 2
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		p := startProc(t, w, testConfig(), faults{}, always)
		p.takeLease()
		for range 5 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			w.mu.Unlock()
			if err := waitTiered(w, 5*time.Minute, p); err != nil {
				t.Fatal(err)
			}
		}
		done, err := p.tiering.AskUpkeep(tab.target(), WorkCompact)
		if err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.Err != nil || r.Done.Compactions != 4 || r.Done.Compacted.DataFiles != 8 {
			t.Errorf("%+v", r)
		}
		w.mu.Lock()
		if made := w.place.tables["events"].committed.Snapshot; tab.snapshot != made {
			t.Errorf("readers go on from snapshot %s, the last compaction made %s", tab.snapshot, made)
		}
		w.mu.Unlock()
		if err := w.check(); err != nil {
			t.Error(err)
		}
		p.stop()
	})
}

// TestUpkeepThatFailsHoldsUpNoRound, and is tried later.
func TestUpkeepThatFailsHoldsUpNoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upkeep = true
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		p := startProc(t, w, testConfig(), faults{}, func(_ *proc, point string) fate {
			if strings.HasPrefix(point, "compact ") {
				return refused
			}
			return succeeds
		})
		p.takeLease()
		for range 20 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			w.mu.Unlock()
			time.Sleep(time.Minute)
		}
		if err := waitTiered(w, 5*time.Minute, p); err != nil {
			t.Fatal(err)
		}
		s := p.tiering.Stats()
		if s.Failures != 0 || s.UpkeepFailures < 3 || s.UpkeepFailures > 40 || s.Targets[0].UpkeepError == "" || s.Upkeep.Compactions != 0 {
			t.Errorf("%+v", s)
		}
		p.stop()
	})
}

// TestUpkeepOnRequest does all there is, and says why it did not.
func TestUpkeepOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upkeep = true
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		broken := false
		p := startProc(t, w, testConfig(), faults{}, func(_ *proc, point string) fate {
			if broken && strings.HasPrefix(point, "compact ") {
				return refused
			}
			return succeeds
		})
		ask := func(work Work) KeepResult {
			t.Helper()
			done, err := p.tiering.AskUpkeep(tab.target(), work)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case r := <-done:
				return r
			case <-time.After(time.Minute):
				t.Fatal("no answer")
				return KeepResult{}
			}
		}
		if _, err := p.tiering.AskUpkeep(tab.target(), WorkCompact); !errors.Is(err, mink.ErrUnavailable) {
			t.Fatalf("without the lease: %v", err)
		}
		p.takeLease()
		time.Sleep(2 * time.Second)
		if _, err := p.tiering.AskUpkeep(Target{999, "lake"}, WorkCompact); !errors.Is(err, mink.ErrNotExist) {
			t.Fatalf("of no table: %v", err)
		}
		if r := ask(WorkCompact); r.Err != nil || r.Done.Compactions != 0 {
			t.Fatalf("of a table that was never tiered: %+v", r)
		}
		for range 2 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			w.mu.Unlock()
			if err := waitTiered(w, 5*time.Minute, p); err != nil {
				t.Fatal(err)
			}
		}
		broken = true
		if r := ask(WorkCompact); !errors.Is(r.Err, sink.ErrUnavailable) {
			t.Fatalf("%+v", r)
		}
		broken = false
		if r := ask(WorkCompact); r.Err != nil || r.Done.Compactions != 1 || r.Done.Compacted.DataFiles != 2 {
			t.Fatalf("%+v", r)
		}
		if r := ask(WorkExpire); r.Err != nil || r.Done.Expired.States != 1 {
			t.Fatalf("%+v", r)
		}
		if err := w.check(); err != nil {
			t.Error(err)
		}
		p.stop()
	})
}

// TestKilledInACompaction: at each of its calls, and with each answer of its commit, the
// next holder has a table that is whole, and rounds go on.
func TestKilledInACompaction(t *testing.T) {
	for _, point := range []string{"plan compaction", "begin", "compact", "prepare", "commit", "record", "expire"} {
		for _, f := range []fate{killedBefore, killedAfter, refused, lost, late, never, unspecified} {
			if f >= lost && point != "commit" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", point, f), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld()
					w.upkeep = true
					tab := w.table("events", "lake", false, false, 1, time.Minute)
					var compacting, struck atomic.Bool
					p := startProc(t, w, testConfig(), faults{}, func(_ *proc, at string) fate {
						if strings.HasPrefix(at, "plan compaction") {
							compacting.Store(true)
						}
						if compacting.Load() && strings.HasPrefix(at, point) && struck.CompareAndSwap(false, true) {
							return f
						}
						return succeeds
					})
					p.takeLease()
					rows := func(n int, until func() bool) {
						for range n {
							w.mu.Lock()
							tab.buckets[0].append(tab, wRecord{key: 1})
							w.changed()
							w.mu.Unlock()
							time.Sleep(90 * time.Second)
							if until() {
								return
							}
						}
					}
					rows(20, func() bool { return struck.Load() })
					if !struck.Load() {
						t.Fatal("it was never there")
					}
					next := p
					if p.isDead() {
						next = startProc(t, w, testConfig(), faults{}, always)
						next.takeLease()
					}
					rows(12, func() bool { return false })
					if err := waitTiered(w, 10*time.Minute, next); err != nil {
						t.Fatal(err)
					}
					if err := w.check(); err != nil {
						t.Error(err)
					}
					if s := next.tiering.Stats(); s.Upkeep.Compactions == 0 {
						t.Errorf("never again: %+v", s)
					}
					next.stop()
					if next != p {
						p.stop()
					}
				})
			})
		}
	}
}
