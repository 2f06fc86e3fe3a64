package sinktest

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func crashChecks() []Check {
	return []Check{
		{Name: "KilledBetweenCalls", Run: func(t T, target Target) { checkKilledBetween(t, target, false) }},
		{Name: "KilledBetweenCallsChanges", Applies: takesChanges, Run: func(t T, target Target) { checkKilledBetween(t, target, true) }},
		{Name: "AnswerLost", Run: checkAnswerLost},
		{Name: "KilledDuringCommit", Run: checkKilledDuringCommit},
		{Name: "KilledAnywhere", Run: checkKilledAnywhere},
	}
}

// who goes on after a sink was killed.
type successor int

const (
	sameWorker successor = iota // the worker lives and knows its round
	newWorker                   // another one, which knows nothing
)

// checkKilledBetween kills the sink after each call of two rounds, each time in a
// table of its own.
func checkKilledBetween(t T, target Target, primaryKey bool) {
	id := mink.TableID(100)
	for _, who := range []successor{sameWorker, newWorker} {
		for calls := 1; ; calls++ {
			id++
			w := newWorld(t, target, tableOptions{id: id, primaryKey: primaryKey})
			w.goal, w.chunk = 14, 7
			k := w.worker()
			for range calls {
				k.step()
			}
			if k.next == atEnd {
				k.stop()
				break
			}
			k.killed()
			if who == newWorker {
				k = w.worker()
			}
			k.finish()
			k.stop()
		}
	}
}

// checkAnswerLost commits, and the worker never hears of it.
func checkAnswerLost(t T, target Target) {
	id := mink.TableID(200)
	for _, who := range []successor{sameWorker, newWorker} {
		id++
		w := newWorld(t, target, tableOptions{id: id})
		k := prepareRound(w)
		a := attempt{req: k.request(), schema: k.schema}
		resp, err := k.table.Commit(t.Context(), a.req)
		k.must(err)
		w.unknown = append(w.unknown, a)
		if w.desc.Delivery != sink.ExactlyOnce {
			w.committed(a, resp, nil)
		}
		k.killed()
		if who == newWorker {
			k = w.worker()
		} else {
			k.must(k.start())
			k.prepared = false
			k.must(k.open())
			k.must(k.recover()) // accepts the unknown one
			resp, err := k.table.Commit(t.Context(), a.req)
			k.must(err)
			w.committed(a, resp, nil)
		}
		k.finish()
		k.stop()
	}
}

// checkKilledDuringCommit kills at a random moment of Commit, in short steps up to
// twice as long as a commit takes.
func checkKilledDuringCommit(t T, target Target) {
	const tries = 16
	rng := rand.New(rand.NewPCG(1, 2))
	took := 2 * time.Millisecond
	for i := range tries {
		w := newWorld(t, target, tableOptions{id: mink.TableID(300 + i)})
		w.storm = true
		k := prepareRound(w)
		delay := time.Duration(rng.Int64N(int64(2 * took)))
		began, kill := time.Now(), k.kill
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(delay)
			kill()
		})
		k.step()
		if err := time.Since(began); i == 0 || err < took {
			took = max(err, 100*time.Microsecond)
		}
		wg.Wait()
		k.killed()
		heir := w.worker()
		heir.finish()
		heir.stop()
	}
}

// checkKilledAnywhere runs a worker while its sinks are killed at random times.
func checkKilledAnywhere(t T, target Target) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, target, tableOptions{id: mink.TableID(400 + int(seed)), partitioned: true, primaryKey: seed%2 == 1})
		if seed%2 == 1 && describe(t, target).Changes == sink.ChangesRefused {
			continue
		}
		w.storm, w.goal = true, 36
		k := w.worker()
		for kills := 0; kills < 8 && k.next != atEnd; {
			k.step()
			if k.kill == nil || rng.IntN(5) > 0 {
				continue
			}
			kills++
			kill := k.kill
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Millisecond))))
				kill()
			})
			k.step()
			wg.Wait()
			k.killed()
			if rng.IntN(2) == 0 {
				k = w.worker()
			}
		}
		w.storm = false
		if k.next != atStart {
			k.killed()
		}
		last := w.worker()
		last.finish()
		last.stop()
	}
}
