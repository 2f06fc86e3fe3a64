package sinktest

import (
	"context"
	"errors"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

func roundChecks() []Check {
	return []Check{
		{Name: "Describe", Run: checkDescribe},
		{Name: "Rounds", Run: checkRounds},
		{Name: "EmptyRound", Run: checkEmptyRound},
		{Name: "NotVisibleBeforeCommit", Applies: exactlyOnce, Run: checkNotVisible},
		{Name: "CommitAgain", Applies: exactlyOnce, Run: checkCommitAgain},
		{Name: "Abort", Applies: exactlyOnce, Run: checkAbort},
		{Name: "GivenUpRound", Applies: exactlyOnce, Run: checkGivenUp},
		{Name: "NoRoundOpen", Run: checkNoRoundOpen},
		{Name: "ContextOver", Run: checkContextOver},
	}
}

func checkDescribe(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	k.must(k.start())
	d := k.s.Describe()
	if err := d.Validate(); err != nil {
		t.Fatalf("%v", err)
	}
	if _, ok := k.s.(sink.Reader); d.ReadBack && !ok {
		t.Errorf("the sink declares ReadBack but is no Reader")
	}
	if again := k.s.Describe(); again != d {
		t.Errorf("Describe changes: %+v, then %+v", d, again)
	}
	k.stop()
	if again := describe(t, target); again != d {
		t.Errorf("Describe changes with a restart: %+v, then %+v", d, again)
	}
}

// describe asks a sink of its own, which ends.
func describe(t T, target Target) sink.Description {
	t.Helper()
	s, kill, err := target.Start(t.Context())
	if err != nil {
		t.Fatalf("start the sink: %v", err)
	}
	defer kill()
	return s.Describe()
}

// checkRounds writes many rounds of several buckets in two partitions.
func checkRounds(t T, target Target) {
	w := newWorld(t, target, tableOptions{partitioned: true, buckets: 2})
	w.goal, w.chunk = 60, 9
	k := w.worker()
	k.finish()
	k.stop()
	if len(w.accepted) != 7 {
		t.Fatalf("%d rounds of 9 offsets up to 60", len(w.accepted))
	}
	w.goal = 75 // another process goes on
	heir := w.worker()
	heir.finish()
	heir.stop()
}

func checkEmptyRound(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	k.must(k.start())
	k.must(k.open())
	k.must(k.recover())
	empty := func(ranges []sink.Range) {
		t.Helper()
		k.must(k.beginRanges(nil))
		k.must(k.prepare())
		k.ranges = ranges
		k.must(k.commit())
		k.must(k.recover())
	}
	empty(nil) // the first round of all
	empty([]sink.Range{{Bucket: w.logs[0].ref, Start: 0, End: 0}})
	w.check(k.s)
	k.next = atBegin
	k.finish()
	last := k.committed.Ends[w.logs[0].ref]
	empty(nil)
	// Offsets of which none has a row.
	at := last
	for !w.logs[0].at(at).skip {
		at++
	}
	w.goal, w.chunk = at-w.logs[0].base, at
	k.must(k.recover())
	k.finish()
	k.must(k.recover())
	k.must(k.beginRanges([]sink.Range{{Bucket: w.logs[0].ref, Start: at, End: at + 1}}))
	for k.next == atWrite {
		k.must(k.write())
	}
	k.must(k.prepare())
	k.must(k.commit())
	k.must(k.recover())
	w.check(k.s)
	k.stop()
}

// prepareRound is a worker with a prepared round.
func prepareRound(w *world) *worker {
	w.t.Helper()
	k := w.worker()
	for k.next != atCommit {
		if k.next == atEnd {
			w.t.Fatalf("nothing left to write")
		}
		k.step()
	}
	return k
}

func checkNotVisible(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := prepareRound(w)
	w.check(k.s) // nothing
	k.step()
	w.check(k.s)
	for k.next != atPrepare {
		k.step()
	}
	w.check(k.s) // the first round
	k.stop()
	reader := w.worker()
	reader.must(reader.start())
	w.check(reader.s)
	reader.stop()
}

// checkCommitAgain repeats the last round's commit, as after an answer that was lost.
func checkCommitAgain(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := prepareRound(w)
	req, schema := k.request(), k.schema
	again := func() {
		t.Helper()
		resp, err := k.table.Commit(t.Context(), req)
		k.must(err)
		w.committed(attempt{req: req, schema: schema}, resp, nil)
		k.must(k.recover())
		w.check(k.s)
	}
	k.step()
	again()
	again()
	k.stop()
	k.must(k.start())
	k.must(k.open())
	again()
	k.next = atBegin
	k.finish()
	_, err := k.table.Commit(t.Context(), req) // not the last one any more
	wantIs(t, err, sink.ErrConflict, "commit of an older round again")
	k.must(k.recover())
	w.check(k.s)
	k.stop()
}

func wantIs(t T, err, target error, format string, args ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf(format+": got the error %v, want %v", append(args, err, target)...)
	}
}

func checkAbort(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := prepareRound(w)
	abort := func(round sink.RoundID, staged []byte) {
		t.Helper()
		_, err := k.table.Abort(t.Context(), sink.AbortRequest{Round: round, Staged: staged})
		k.must(err)
		w.check(k.s)
	}
	first, firstStaged := k.round, k.staged
	abort(first, firstStaged)
	abort(first, firstStaged)
	_, err := k.table.Commit(t.Context(), k.request())
	wantIs(t, err, sink.ErrNotExist, "commit of a round that was aborted")
	k.must(k.recover())
	w.check(k.s)

	for k.next = atBegin; k.next != atCommit; {
		k.step()
	}
	second, secondStaged := k.round, k.staged
	k.step()
	abort(second, secondStaged) // is committed: stays
	k.must(k.recover())
	k.finish()
	abort(second, secondStaged)
	abort(first, firstStaged)
	k.must(k.recover())
	k.stop()
}

// checkGivenUp leaves rounds at every stage and begins anew.
func checkGivenUp(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	for _, stage := range []place{atWrite, atPrepare, atCommit} {
		for _, reopened := range []bool{false, true} {
			if k.next == atStart {
				k.step()
				k.step()
				k.step()
			}
			for k.next != stage {
				k.step()
			}
			if k.prepared = false; reopened {
				k.must(k.table.Close())
				k.must(k.open())
				k.must(k.recover())
			}
			k.next = atBegin
		}
	}
	k.finish()
	k.stop()
}

func checkNoRoundOpen(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	k := w.worker()
	k.must(k.start())
	k.must(k.open())
	refused := func() {
		t.Helper()
		err := k.writeRange(sink.Range{Bucket: w.logs[0].ref, Start: 0, End: 4})
		wantIs(t, err, sink.ErrInvalid, "write without an open round")
		_, err = k.table.Prepare(t.Context(), sink.PrepareRequest{})
		wantIs(t, err, sink.ErrInvalid, "prepare without an open round")
	}
	refused()
	k.must(k.recover())
	for k.next != atCommit {
		k.step()
	}
	refused()
	k.step()
	k.must(k.recover())
	w.check(k.s)
	k.stop()
}

// checkContextOver makes every call once with a context that is over: it fails and
// does nothing.
func checkContextOver(t T, target Target) {
	w := newWorld(t, target, tableOptions{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	k := w.worker()
	k.must(k.start())
	failed := func(call string, err error) {
		t.Helper()
		if err == nil {
			t.Fatalf("%s did not look at its context", call)
		}
	}
	_, err := k.s.Open(over, sink.OpenRequest{Table: w.spec})
	failed("Open", err)
	k.must(k.open())
	_, err = k.table.Recover(over, sink.RecoverRequest{Fence: k.fence})
	failed("Recover", err)
	k.must(k.recover())
	for k.next != atCommit {
		k.step()
	}
	a := attempt{req: k.request(), schema: k.schema}
	resp, err := k.table.Commit(over, a.req)
	failed("Commit", err)
	if w.desc.Delivery == sink.ExactlyOnce {
		w.unknown = append(w.unknown, a) // a sink behind a connection may have done it
	}
	_ = resp
	k.prepared = false
	k.must(k.recover())
	k.finish()
	_, err = k.table.BeginRound(over, sink.BeginRoundRequest{Round: w.roundID(k.fence), Base: k.committed.Round, Fence: k.fence})
	failed("BeginRound", err)
	_, err = k.table.SchemaChange(over, sink.SchemaChangeRequest{Schema: w.spec.Schema})
	failed("SchemaChange", err)
	_, err = k.table.Drop(over, sink.DropRequest{})
	failed("Drop", err)
	w.check(k.s)
	k.stop()
}

// onlyBucket is the ref of a table's first bucket.
func (w *world) onlyBucket() mink.BucketRef { return w.logs[0].ref }
