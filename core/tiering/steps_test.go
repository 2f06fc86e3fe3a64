package tiering

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// testConfig makes rounds small.
func testConfig() Config {
	c := Default()
	c.DueBytes, c.RoundBytes, c.Silence, c.RetryMax = 20*64, 1500, 30*time.Second, time.Minute
	c.Settle = 30 * time.Second
	return c
}

// storyWorld has a log table and a primary-key table with rows, records without rows at the
// end, a KV snapshot, a trim by hand and a dropped table whose name was taken again.
func storyWorld() *world {
	w := newWorld()
	log := w.table("events", "lake", false, true, 2, time.Minute)
	for i, b := range log.buckets {
		for n := range int64(12) {
			b.append(log, wRecord{key: n, skip: n%5 == 4})
		}
		b.append(log, wRecord{skip: true}, wRecord{skip: true}) // case 30
		if i == 1 {
			b.trimByHand(3)
		}
	}
	keyed := w.table("users", "lake", true, false, 2, time.Minute)
	for _, b := range keyed.buckets {
		for n := range int64(4) {
			b.append(keyed, wRecord{key: n, change: mink.ChangeInsert})
		}
		b.append(keyed, wRecord{key: 1, change: mink.ChangeDelete}, wRecord{key: 2, change: mink.ChangeUpdateBefore}, wRecord{key: 2, change: mink.ChangeUpdateAfter})
	}
	keyed.buckets[0].snapshots = []mink.Offset{5}
	keyed.buckets[0].start = 3
	old := w.table("again", "lake", false, false, 1, time.Minute)
	old.buckets[0].append(old, wRecord{key: 1})
	w.changed()
	return w
}

// secondAct is what happens after the first rows are tiered.
func secondAct(w *world) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range sortedTables(w) {
		if t.name == "again" {
			t.dropped = true
			heir := w.table("again", "lake", false, false, 1, time.Minute)
			heir.buckets[0].append(heir, wRecord{key: 2}, wRecord{key: 3})
			continue
		}
		w.evolve(t)
		for _, b := range t.buckets {
			if t.keyed {
				b.append(t, wRecord{key: 3, change: mink.ChangeDelete}, wRecord{key: 9, change: mink.ChangeInsert}, wRecord{skip: true})
			} else {
				b.append(t, wRecord{key: 20}, wRecord{key: 21})
			}
		}
	}
	w.changed()
}

// waitTiered waits, in bubble time, until everything is at its sink.
func waitTiered(w *world, limit time.Duration, procs ...*proc) error {
	for waited := time.Duration(0); ; waited += time.Second {
		behind := w.behind()
		switch {
		case len(behind) == 0:
			return nil
		case waited > limit:
			var states []string
			for _, p := range procs {
				for _, s := range p.tiering.Stats().Targets {
					states = append(states, fmt.Sprintf("%s %s step %q: %s", s.Name, s.State, s.Step, s.LastError))
				}
			}
			return fmt.Errorf("wedged: %s; %s", strings.Join(behind, "; "), strings.Join(states, "; "))
		}
		time.Sleep(time.Second)
	}
}

// story runs the two acts. At its call number at, the first process meets its fate; when
// that was its end, a second one goes on. calls is how many calls there were.
func story(t *testing.T, at int, meets fate, f faults) (calls int, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := storyWorld()
		var mu sync.Mutex
		p := startProc(t, w, testConfig(), f, func(_ *proc, point string) fate {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls-1 != at || meets >= lost && !strings.HasPrefix(point, "commit") {
				return succeeds
			}
			return meets
		})
		p.takeLease()
		procs := []*proc{p}
		survive := func() {
			if last := procs[len(procs)-1]; last.isDead() {
				next := startProc(t, w, testConfig(), f, func(*proc, string) fate { return succeeds })
				next.takeLease()
				procs = append(procs, next)
			}
		}
		act := func() {
			for i := 0; i < 300 && !procs[len(procs)-1].isDead() && len(w.behind()) > 0; i++ {
				time.Sleep(time.Second)
			}
			survive()
			err = errors.Join(err, waitTiered(w, 20*time.Minute, procs[len(procs)-1]))
		}
		act()
		secondAct(w)
		act()
		time.Sleep(2 * lateAfter)
		for _, p := range procs {
			p.stop()
		}
		err = errors.Join(err, w.check())
	})
	return calls, err
}

var fates = map[fate]string{
	killedBefore: "killed before", killedAfter: "killed after", refused: "refused", hangs: "hangs",
	lost: "answer lost", late: "happens late", never: "did not happen", unspecified: "error of no class",
}

// TestEveryStep: whatever becomes of any one call, every row is at the sink once.
// Cases 25, 27 and 30.
func TestEveryStep(t *testing.T) {
	calls, err := story(t, -1, succeeds, faults{})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 60 {
		t.Fatalf("a story of %d calls does not try much", calls)
	}
	for f, name := range fates {
		t.Run(name, func(t *testing.T) {
			for at := range calls {
				if _, err := story(t, at, f, faults{}); err != nil {
					t.Fatalf("call %d of %d %s: %v", at, calls, name, err)
				}
			}
		})
	}
	t.Logf("%d calls", calls)
}

// paused runs the first act; the process stands still in its call number at, while a
// successor tiers everything and more, and then goes on, believing for a while that it
// holds the lease, or knowing better.
func paused(t *testing.T, at int, knows bool, f faults) (calls int, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := storyWorld()
		asleep, wake := make(chan struct{}), make(chan struct{})
		var mu sync.Mutex
		patient := testConfig()
		patient.Silence = time.Hour // the whole process stands still, its clock too
		old := startProc(t, w, patient, f, func(*proc, string) fate {
			mu.Lock()
			calls++
			mine := calls-1 == at
			mu.Unlock()
			if mine {
				close(asleep)
				<-wake
			}
			return succeeds
		})
		old.takeLease()
		select {
		case <-asleep:
		case <-time.After(5 * time.Minute):
		}
		mu.Lock()
		first := calls
		mu.Unlock()
		heir := startProc(t, w, testConfig(), f, func(*proc, string) fate { return succeeds })
		heir.takeLease()
		err = waitTiered(w, 20*time.Minute, heir)
		secondAct(w)
		err = errors.Join(err, waitTiered(w, 20*time.Minute, heir))
		if knows {
			old.believe(0)
			time.Sleep(10 * time.Second)
		}
		mu.Lock()
		asIs := calls
		mu.Unlock()
		close(wake)
		time.Sleep(10 * time.Second)
		old.believe(0)
		mu.Lock()
		if n := calls - asIs; knows && n > 0 {
			err = errors.Join(err, fmt.Errorf("a process that knew that it does not hold the lease went on with %d calls", n))
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		err = errors.Join(err, waitTiered(w, 20*time.Minute, heir))
		mu.Lock()
		before := calls
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		mu.Lock()
		if calls != before {
			err = errors.Join(err, fmt.Errorf("a process made %d calls after it knew that it does not hold the lease", calls-before))
		}
		mu.Unlock()
		old.stop()
		heir.stop()
		err = errors.Join(err, w.check())
		calls = first
	})
	return calls, err
}

// TestPausedAtEveryStep is case 26.
func TestPausedAtEveryStep(t *testing.T) {
	calls, err := paused(t, -1, false, faults{})
	if err != nil {
		t.Fatal(err)
	}
	for at := range calls {
		for _, knows := range []bool{false, true} {
			if _, err := paused(t, at, knows, faults{}); err != nil {
				t.Fatalf("paused in call %d of %d, knows %t: %v", at, calls, knows, err)
			}
		}
	}
	t.Logf("%d calls", calls)
}

// zombie: a process that does not know yet that its lease is lost and that its table is dropped
// makes the table's place again, and another table takes the name.
func zombie(t *testing.T, f faults) (err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		tab := w.table("again", "lake", false, false, 1, time.Minute)
		tab.buckets[0].append(tab, wRecord{key: 1})
		w.changed()
		old := startProc(t, w, testConfig(), f, always)
		old.takeLease()
		err = waitTiered(w, 10*time.Minute, old)
		w.mu.Lock()
		tab.buckets[0].append(tab, wRecord{key: 2})
		w.changed()
		stale := len(w.views) - 1
		tab.dropped = true
		w.changed()
		w.mu.Unlock()
		old.setLag(func() int { return len(w.views) - 1 - stale })
		heir := startProc(t, w, testConfig(), f, always)
		heir.takeLease()
		time.Sleep(3 * time.Second) // the table is dropped at the sink
		_ = old.tiering.Request(t.Context(), tab.target())
		if p := w.place.tables["again"]; p == nil || p.id != tab.id {
			err = errors.Join(err, errors.New("the place was not made again: the test tests nothing"))
		}
		w.mu.Lock()
		next := w.table("again", "lake", false, false, 1, time.Minute)
		next.buckets[0].append(next, wRecord{key: 3})
		w.changed()
		w.mu.Unlock()
		old.believe(0)
		err = errors.Join(err, waitTiered(w, 20*time.Minute, heir))
		old.stop()
		heir.stop()
		err = errors.Join(err, w.check())
	})
	return err
}

func TestAPlaceThatWasMadeAgain(t *testing.T) {
	if err := zombie(t, faults{}); err != nil {
		t.Fatal(err)
	}
}
