package tiering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func always(*proc, string) fate { return succeeds }

// TestAnIdleTableCostsNothing: no call to sink, source or metadata, however long.
func TestAnIdleTableCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := storyWorld()
		var calls atomic.Int64
		p := startProc(t, w, testConfig(), faults{}, func(*proc, string) fate { calls.Add(1); return succeeds })
		p.takeLease()
		if err := waitTiered(w, 10*time.Minute, p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		before := calls.Load()
		for range 3 { // of the lease too: a new holder asks nobody
			time.Sleep(time.Hour)
			p.takeLease()
		}
		time.Sleep(time.Hour)
		if n := calls.Load() - before; before == 0 || n != 0 {
			t.Errorf("%d calls for idle tables, after %d", n, before)
		}
		for _, s := range p.tiering.Stats().Targets {
			if s.State != StateTiered || s.LagOffsets != 0 || s.LagMs != 0 {
				t.Errorf("idle: %+v", s)
			}
		}
		p.stop()
	})
}

// A call that takes long and says that it goes on is not given up; one that says nothing is.
func TestALongCallShowsThatItLives(t *testing.T) {
	for _, says := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			tab := w.table("events", "lake", false, false, 1, time.Minute)
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
			p := startProc(t, w, testConfig(), faults{}, always)
			p.long = func(ctx context.Context) {
				for range 6 {
					time.Sleep(testConfig().Silence / 2)
					if says {
						sink.Progress(ctx)
					}
				}
			}
			p.takeLease()
			time.Sleep(time.Hour)
			w.mu.Lock()
			tiered := tab.buckets[0].tiered == tab.buckets[0].end
			w.mu.Unlock()
			if tiered != says {
				t.Errorf("a call that says that it goes on: %t, its round ended well: %t", says, tiered)
			}
			p.stop()
		})
	}
}

// Rounds that were given up and do not return keep their memory: there are so many of them, no
// more, and what waits for them says so.
func TestRoundsThatDoNotReturnAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for _, name := range []string{"bad0", "bad1", "good"} {
			tab := w.table(name, "lake", false, false, 1, time.Minute)
			tab.buckets[0].append(tab, wRecord{key: 1})
		}
		w.changed()
		release := make(chan struct{})
		cfg := testConfig()
		cfg.GivenUpMax = 2
		p := startProc(t, w, cfg, faults{}, func(_ *proc, point string) fate {
			if strings.HasSuffix(point, " bad0") || strings.HasSuffix(point, " bad1") {
				<-release // whatever happens to the context
			}
			return succeeds
		})
		p.takeLease()
		time.Sleep(10 * time.Minute)
		s := p.tiering.Stats()
		if last := s.Targets[2]; s.GivenUp != 2 || last.LagOffsets == 0 || !strings.Contains(last.LastError, "2 that were given up have not returned") {
			t.Errorf("given up %d, the table that waits: %+v", s.GivenUp, last)
		}
		close(release)
		if err := waitTiered(w, 10*time.Minute, p); err != nil {
			t.Error(err)
		}
		if n := p.tiering.Stats().GivenUp; n != 0 {
			t.Errorf("%d are given up still", n)
		}
		p.stop()
	})
}

// TestABadTableHoldsUpNoOther: tables whose place is down, hangs or is slow for ever.
func TestABadTableHoldsUpNoOther(t *testing.T) {
	for name, bad := range map[string]func() fate{
		"down":    func() fate { return refused },
		"hanging": func() fate { return hangs },
		"slow":    func() fate { time.Sleep(20 * time.Second); return succeeds },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				var good []*wTable
				for i := range 12 {
					n := fmt.Sprintf("good%d", i)
					if i%3 == 0 {
						n = fmt.Sprintf("bad%d", i)
					}
					tab := w.table(n, "lake", false, false, 1, time.Minute)
					if i%3 != 0 {
						good = append(good, tab)
					}
				}
				p := startProc(t, w, testConfig(), faults{}, func(_ *proc, point string) fate {
					if strings.Contains(point, " bad") {
						return bad()
					}
					return succeeds
				})
				p.takeLease()
				// Rows all the time; the good tables are at the sink before the next but two.
				for range 30 {
					w.mu.Lock()
					for _, tab := range w.tables {
						tab.buckets[0].append(tab, wRecord{key: 1}, wRecord{key: 2})
					}
					w.changed()
					w.mu.Unlock()
					time.Sleep(time.Minute)
				}
				time.Sleep(2 * time.Minute)
				w.mu.Lock()
				for _, tab := range good {
					if b := tab.buckets[0]; b.tiered < b.end {
						t.Errorf("%s is tiered to %d of %d", tab.name, b.tiered, b.end)
					}
				}
				w.mu.Unlock()
				for _, s := range p.tiering.Stats().Targets {
					if name != "slow" && strings.Contains(s.Name, ".bad") != (s.InARow > 1) {
						t.Errorf("%s: %d failures in a row, state %s, %q", s.Name, s.InARow, s.State, s.LastError)
					}
				}
				p.kill()
				p.stop()
			})
		})
	}
}

// rolledBack takes rounds away from the target. The table must stop with a clear error, and go on when
// the target is as it was.
func rolledBack(t *testing.T, keep int, f faults) (err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		p := startProc(t, w, testConfig(), f, always)
		p.takeLease()
		for range 3 {
			w.mu.Lock()
			tab.buckets[0].append(tab, wRecord{key: 1}, wRecord{key: 2})
			w.changed()
			w.mu.Unlock()
			err = errors.Join(err, waitTiered(w, 10*time.Minute, p))
		}
		w.place.mu.Lock()
		pt := w.place.tables["events"]
		was, rounds := pt.committed, pt.rounds
		if pt.committed = (sink.Committed{}); keep > 0 {
			pt.committed = sink.Committed{Round: "older", Fence: 1, Ends: map[mink.BucketRef]mink.Offset{tab.buckets[0].ref: mink.Offset(2 * keep)}}
		}
		pt.rounds = rounds[:keep]
		w.place.mu.Unlock()
		w.mu.Lock()
		tab.buckets[0].append(tab, wRecord{key: 3})
		w.changed()
		w.mu.Unlock()
		time.Sleep(30 * time.Minute)
		synctest.Wait() // for an attempt that began right now
		w.place.mu.Lock()
		if len(pt.rounds) != keep {
			err = errors.Join(err, fmt.Errorf("%d rounds were committed to a target that was rolled back", len(pt.rounds)-keep))
		}
		pt.committed, pt.rounds = was, rounds
		w.place.mu.Unlock()
		if s := p.tiering.Stats().Targets[0]; s.State != StateFailed || !strings.Contains(s.LastError, ErrSinkBehind.Error()) {
			err = errors.Join(err, fmt.Errorf("state %s, %q", s.State, s.LastError))
		}
		err = errors.Join(err, waitTiered(w, 10*time.Minute, p))
		p.stop()
		err = errors.Join(err, w.check())
	})
	return err
}

// TestASinkThatWasRolledBackStopsItsTable: never again from the base.
func TestASinkThatWasRolledBackStopsItsTable(t *testing.T) {
	for keep := range 3 {
		if err := rolledBack(t, keep, faults{}); err != nil {
			t.Errorf("%d of 3 rounds left: %v", keep, err)
		}
	}
}

// TestRowsThatWereTrimmedStopTheTable: unless somebody trimmed them by hand.
func TestRowsThatWereTrimmedStopTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("events", "lake", false, false, 1, time.Minute)
		b := tab.buckets[0]
		for k := range int64(9) {
			b.append(tab, wRecord{key: k})
		}
		b.start, b.gaps = 5, []Gap{{0, 2}, {3, 5}}
		w.changed()
		p := startProc(t, w, testConfig(), faults{}, always)
		p.takeLease()
		time.Sleep(10 * time.Minute)
		s := p.tiering.Stats().Targets[0]
		if b.tiered != 0 || s.State != StateFailed || !strings.Contains(s.LastError, "its log starts at 5") {
			t.Errorf("tiered to %d, state %s, %q", b.tiered, s.State, s.LastError)
		}
		p.stop()
	})
}

// TestRequest: a round at once, and its error.
func TestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("events", "lake", false, false, 2, time.Hour)
		broken := w.table("broken", "lake", false, false, 1, time.Hour)
		var bad atomic.Bool
		p := startProc(t, w, testConfig(), faults{}, func(_ *proc, point string) fate {
			if bad.Load() && strings.HasSuffix(point, " broken") {
				return refused
			}
			return succeeds
		})
		if err := p.tiering.Request(t.Context(), tab.target()); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("request of a node without the lease: %v", err)
		}
		p.takeLease()
		add := func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, x := range w.tables {
				for _, b := range x.buckets {
					for k := range int64(40) { // several rounds
						b.append(x, wRecord{key: k})
					}
				}
			}
			w.changed()
		}
		add()
		if err := waitTiered(w, time.Minute, p); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			add()
			if err := p.tiering.Request(t.Context(), tab.target()); err != nil {
				t.Fatal(err)
			}
			for _, b := range tab.buckets {
				if b.tiered != b.end {
					t.Errorf("after the request bucket %s is tiered to %d of %d", b.ref, b.tiered, b.end)
				}
			}
		}
		if err := p.tiering.Request(t.Context(), tab.target()); err != nil {
			t.Errorf("nothing to do: %v", err)
		}
		bad.Store(true)
		add()
		if err := p.tiering.Request(t.Context(), broken.target()); !errors.Is(err, sink.ErrUnavailable) {
			t.Errorf("the sink is away: %v", err)
		}
		if err := p.tiering.Request(t.Context(), Target{Table: 99, Sink: "lake"}); !errors.Is(err, mink.ErrNotExist) {
			t.Errorf("no such table: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.tiering.Request(ctx, broken.target()); !errors.Is(err, context.Canceled) {
			t.Errorf("the caller is gone: %v", err)
		}
		p.stop()
	})
}

// TestStalled: how long rows wait beyond their time, whatever the sink was doing before they
// came, and no longer once it has them.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("events", "lake", false, false, 1, 3*time.Minute)
		var bad atomic.Bool
		p := startProc(t, w, testConfig(), faults{}, func(*proc, string) fate {
			if bad.Load() {
				return refused
			}
			return succeeds
		})
		add := func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			tab.buckets[0].append(tab, wRecord{key: 1})
			w.changed()
		}
		look := func(what string, low, high time.Duration, warned bool) {
			t.Helper()
			s := p.tiering.Stats().Targets[0]
			if at := time.Duration(s.StalledMs) * time.Millisecond; at < low || at > high {
				t.Errorf("%s: stalled for %s, want %s to %s", what, at, low, high)
			}
			if got := p.tiering.Stalled(); (len(got) == 1) != warned {
				t.Errorf("%s: warned of %v", what, got)
			}
		}
		p.takeLease()
		add()
		time.Sleep(time.Hour)
		look("all is tiered", 0, 0, false)
		bad.Store(true)
		add()
		time.Sleep(90 * time.Second)
		look("rows that came after an idle hour", time.Minute, 90*time.Second, false)
		time.Sleep(3 * time.Minute)
		look("beyond twice the freshness", 4*time.Minute, 5*time.Minute, true)
		if s := p.tiering.Stalled()[0]; s.LastError == "" || s.InARow == 0 || s.FreshnessMs != 180_000 {
			t.Errorf("%+v", s)
		}
		bad.Store(false)
		if err := waitTiered(w, 10*time.Minute, p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		look("after the sink is back", 0, 0, false)
		bad.Store(true)
		add()
		time.Sleep(time.Minute)
		look("rows whose time has not come", 0, 0, false)
		p.stop()
	})
}
