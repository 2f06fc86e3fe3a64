package sinktest

import (
	"math/rand/v2"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func rivalChecks() []Check {
	return []Check{
		{Name: "StaleBase", Applies: exactlyOnce, Run: checkStaleBase},
		{Name: "StaleFence", Applies: exactlyOnce, Run: checkStaleFence},
		{Name: "WrongStart", Applies: exactlyOnce, Run: checkWrongStart},
		{Name: "RivalPrepared", Applies: exactlyOnce, Run: checkRivalPrepared},
		{Name: "OlderBegins", Applies: exactlyOnce, Run: checkOlderBegins},
		{Name: "TwoWorkers", Applies: exactlyOnce, Run: checkTwoWorkers},
	}
}

// refused makes a commit that must fail and change nothing.
func (k *worker) refused(req sink.CommitRequest, want error, format string, args ...any) {
	k.w.t.Helper()
	_, err := k.table.Commit(k.w.t.Context(), req)
	wantIs(k.w.t, err, want, format, args...)
	k.must(k.recover())
	k.w.check(k.s)
}

func checkStaleBase(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	w.goal, w.chunk = 40, 10
	k := prepareRound(w)
	base0 := k.committed.Round
	k.step()
	base1 := k.committed.Round
	for k.next != atCommit {
		k.step()
	}
	for _, base := range []sink.RoundID{base0, "never-was"} {
		req := k.request()
		req.Base = base
		k.refused(req, sink.ErrConflict, "commit on base %q while the last committed round is %q", base, base1)
	}
	k.next = atCommit
	k.step() // the right base is taken still
	k.finish()
	k.stop()
}

func checkStaleFence(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	w.goal, w.chunk = 40, 10
	old := w.worker() // fence 1
	for range 3 {
		old.step()
	}
	k := w.worker() // fence 2
	for len(w.accepted) == 0 {
		k.step()
	}
	// The old worker knows the newest round, so that only its fence is wrong.
	err := old.recover()
	if err == nil {
		err = old.begin()
	}
	for err == nil && old.next == atWrite {
		err = old.write()
	}
	if err == nil {
		if err = old.prepare(); err == nil {
			_, err = old.table.Commit(t.Context(), old.request())
		}
	}
	wantIs(t, err, sink.ErrFenced, "a round with fence 1 after one with fence 2")
	w.check(k.s)
	if !old.fenced && old.prepared {
		_, err := old.table.Abort(t.Context(), sink.AbortRequest{Round: old.round, Staged: old.staged})
		old.must(err)
	}
	k.finish() // fence 2 goes on
	k.stop()
	old.killed()
}

// checkWrongStart commits ranges that leave a gap to the committed end or overlap it.
func checkWrongStart(t T, target Target) {
	w := newWorld(t, target, tableOptions{buckets: 2})
	w.goal, w.chunk = 40, 10
	k := prepareRound(w)
	k.step()
	for k.next != atCommit {
		k.step()
	}
	for _, by := range []mink.Offset{-1, 1} {
		req := k.request()
		req.Ranges = append([]sink.Range{}, req.Ranges...)
		req.Ranges[1].Start += by
		k.refused(req, sink.ErrConflict, "commit of a bucket that starts %+d off its committed end", by)
	}
	k.next = atCommit
	k.finish()
	k.stop()
}

// checkRivalPrepared has two prepared rounds on one base: exactly one gets in.
func checkRivalPrepared(t T, target Target) {
	for i, olderFirst := range []bool{true, false} {
		w := newWorld(t, target, tableOptions{id: mink.TableID(510 + i)})
		older := prepareRound(w)
		newer := prepareRound(w)
		first, second := newer, older
		if olderFirst {
			first, second = older, newer
		}
		first.step()
		if olderFirst && len(w.accepted) == 0 { // the newer one's Recover or BeginRound ended it: allowed
			first, second = second, first
			first.step()
		}
		if len(w.accepted) != 1 {
			t.Fatalf("of two prepared rounds on one base, %d were committed after the first attempt", len(w.accepted))
		}
		second.step()
		if len(w.accepted) != 1 {
			t.Fatalf("two rounds on one base were both committed")
		}
		newer.finish()
		newer.stop()
		older.killed()
	}
}

// checkOlderBegins lets a worker with a lower fence begin, and write, while a newer
// one has a prepared round, which must stay.
func checkOlderBegins(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	older := w.worker()
	for older.next != atBegin {
		older.step()
	}
	newer := prepareRound(w)
	older.step() // BeginRound: it may be refused
	for range 3 {
		older.step()
	}
	newer.step()
	if len(w.accepted) != 1 {
		t.Fatalf("the prepared round of the highest fence was not committed")
	}
	newer.finish()
	newer.stop()
	older.killed()
}

// checkTwoWorkers lets workers with different fences take turns in random order,
// while sinks are killed and newer workers come.
func checkTwoWorkers(t T, target Target) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t, target, tableOptions{id: mink.TableID(600 + int(seed)), partitioned: seed%2 == 1})
		w.goal, w.chunk = 40, mink.Offset(5+rng.IntN(15))
		pair := [2]*worker{w.worker(), w.worker()}
		for range 60 + rng.IntN(60) {
			i := rng.IntN(2)
			k := pair[i]
			k.step()
			if k.s != nil && k.next > atOpen && rng.IntN(40) == 0 {
				k.killed()
			}
			if k.next == atEnd || rng.IntN(60) == 0 {
				k.killed()
				pair[i] = w.worker()
			}
		}
		for _, k := range pair {
			k.killed()
		}
		last := w.worker()
		last.finish()
		last.stop()
	}
}
