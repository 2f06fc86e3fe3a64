package stream_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

var everyCall = flag.Bool("every-call", false, "interrupt at every call, not at every fourth")

// interrupt acts at the k-th call that a node makes to store or metadata.
type interrupt struct {
	at     int64
	after  bool // the call has its effect, the caller gets an error
	late   bool // a write lands half an hour later
	sticky bool // nothing works from there on: the node is gone
	calls  atomic.Int64
}

func (i *interrupt) String() string {
	return fmt.Sprintf("call %d, after %v, late %v, sticky %v", i.at, i.after, i.late, i.sticky)
}

// install counts every call and acts on one, and with sticky on all later ones.
func (i *interrupt) install(n *node) {
	here := func(c int64) bool { return c == i.at }
	beyond := func(c int64) bool { return i.sticky && c > i.at }
	n.store.Inject(fault.Rule{Match: func(fault.Call) bool { i.calls.Add(1); return false }})
	hit := func(f func(int64) bool) func(fault.Call) bool {
		return func(fault.Call) bool { return f(i.calls.Load()) }
	}
	switch {
	case i.late:
		n.store.Inject(fault.Rule{Ops: fault.Writes, Match: hit(here), Do: fault.LateAfter(30 * time.Minute)})
	case i.after:
		n.store.Inject(fault.Rule{Match: hit(here), Do: fault.FailAfter(objstore.ErrUnknownOutcome)})
	default:
		n.store.Inject(fault.Rule{Match: hit(here), Do: fault.FailBefore(objstore.ErrUnavailable)})
	}
	n.store.Inject(fault.Rule{Match: hit(beyond), Do: fault.FailBefore(objstore.ErrUnavailable)})
	n.meta.inject(func(string) (error, error) {
		c := i.calls.Add(1)
		switch {
		case beyond(c):
			return errCrash, nil
		case here(c) && i.after:
			return nil, mink.ErrUnknownOutcome
		case here(c):
			return mink.ErrUnavailable, nil
		}
		return nil, nil
	})
}

// life is a day of a node: appends, uploads, a trim, a release, merges,
// deletion, sweep. Anything may fail; what was acknowledged is noted.
func (w *world) life(n *node) {
	ctx := context.Background()
	var open []*stream.Stream
	for id := mink.StreamID(1); id <= 3; id++ {
		s, err := n.Open(ctx, id, w.meta.Lead(id, n.id))
		if err != nil {
			return
		}
		open = append(open, s)
	}
	put := func(s *stream.Stream) {
		at := s.LogEnd()
		t, err := s.Append(request(s.ID(), at, 2, ckptFrame))
		if err != nil {
			return
		}
		if <-t.Done(); t.Err() == nil {
			w.note(s.ID(), at, at+2)
		}
	}
	for round := range 9 {
		for i, s := range open {
			if (round+i)%4 != 0 {
				put(s)
			}
		}
		_ = n.UploadNow(ctx)
		switch round {
		case 2, 6, 7:
			_ = rewrite(open[1])
		case 3:
			_ = open[0].Trim(ctx, 3)
		case 4:
			_ = rewrite(open[0])
		case 5:
			put(open[2])
			w.move(n, open, 2)
		}
	}
	put(open[1])
	time.Sleep(11 * time.Minute)
	_ = n.CompactNow(ctx)
	_ = rewrite(open[0]) // what a merge made, cut by a trim
	_ = rewrite(open[2])
	_ = n.CleanNow(ctx)
	time.Sleep(10 * time.Minute)
	_ = n.CleanNow(ctx)
	_ = n.SweepNow(ctx)
	put(open[0])
}

// move releases a stream and leads it again on the same node.
func (w *world) move(n *node, open []*stream.Stream, i int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for range 5 {
		r, err := open[i].Release(ctx, 0)
		if err != nil {
			return
		}
		err = n.meta.around("release", func() error { return w.meta.Release(ctx, r) })
		if err != nil && !errors.Is(err, mink.ErrUnknownOutcome) {
			continue
		}
		if v, _ := w.meta.View().Stream(open[i].ID()); v.Owner.Node != 0 {
			continue
		}
		open[i].Close()
		s, err := n.Open(ctx, open[i].ID(), w.meta.Lead(open[i].ID(), n.id))
		if err == nil {
			open[i] = s
		}
		return
	}
}

// TestCrashAtEveryCall stops the node at every call that it makes, before and
// after the call's effect, recovers, and requires all that was acknowledged.
func TestCrashAtEveryCall(t *testing.T) {
	eachInterrupt(t, func(t *testing.T, i *interrupt) {
		i.sticky = true
		w := newWorld(t)
		n := w.start(1)
		i.install(n)
		w.life(n)
		n.crash()
		n.store.WaitLate() // nothing: late writes are not part of this test
		w.recover(n.id)
		n = w.start(1)
		w.settled(t, n)
		// Once more, with nothing interrupted.
		n.crash()
		w.recover(n.id)
		n = w.start(1)
		w.settled(t, n)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}, []*interrupt{{}, {after: true}})
}

// TestEveryCallFailsOnce requires that the node lives on and finishes all its
// work whichever call fails, with or without effect, or lands late (failures 8,
// 9, 11, 13).
func TestEveryCallFailsOnce(t *testing.T) {
	eachInterrupt(t, func(t *testing.T, i *interrupt) {
		w := newWorld(t)
		n := w.start(1)
		i.install(n)
		w.life(n)
		n.store.ClearRules()
		n.meta.inject(nil)
		time.Sleep(time.Hour)
		if err := n.UploadNow(t.Context()); err != nil {
			t.Fatalf("%s: %v", i, err)
		}
		for id := mink.StreamID(1); id <= 3; id++ {
			v, _ := w.meta.View().Stream(id)
			for at, end := range w.acked[id] {
				if end > v.End {
					t.Fatalf("%s: stream %d: [%d, %d) is not uploaded, end %d", i, id, at, end, v.End)
				}
			}
		}
		n.crash()
		w.recover(n.id)
		n = w.start(1)
		w.settled(t, n)
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}, []*interrupt{{}, {after: true}, {late: true}})
}

// eachInterrupt runs f for the calls of an uninterrupted life (all with -every-call)
// and every kind of interrupt.
func eachInterrupt(t *testing.T, f func(*testing.T, *interrupt), kinds []*interrupt) {
	count := &interrupt{at: -1}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(1)
		count.install(n)
		w.life(n)
		if n.store.Stats().Parts == 0 {
			t.Error("no merge wrote parts")
		}
		if got := n.Stats().Rewrites; got != 6 {
			t.Errorf("%d rewrites of 6", got)
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	})
	total := count.calls.Load()
	if total < 60 {
		t.Fatalf("a life makes %d calls only", total)
	}
	step := int64(4)
	switch {
	case *everyCall:
		step = 1
	case testing.Short():
		step = 11
	}
	for _, kind := range kinds {
		for at := int64(1); at <= total; at += step {
			i := &interrupt{at: at, after: kind.after, late: kind.late}
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Logf("interrupt: %s", i)
					}
				}()
				f(t, i)
			})
			if t.Failed() {
				return
			}
		}
	}
}

// settled opens all streams on a fresh node, compares them with the model, lets
// a day pass, compares again, and requires that store and metadata agree.
func (w *world) settled(t *testing.T, n *node) {
	t.Helper()
	var open []*stream.Stream
	for id := mink.StreamID(1); id <= 3; id++ {
		s := n.open(id)
		open = append(open, s)
		w.check(s)
		if s.Start() > 3 {
			t.Fatalf("stream %d was trimmed to %d, past what was asked", id, s.Start())
		}
		w.put(s, 2, ckptFrame)
		w.check(s)
	}
	time.Sleep(24 * time.Hour)
	w.valid()
	for i, s := range open {
		s = n.reopen(s)
		open[i] = s
		w.check(s)
		w.checkFolded(s)
	}
	time.Sleep(2 * time.Hour)
	w.sameAsStore()
	w.onlyTombstones(n)
}

// onlyTombstones requires that the slots in the store are the tombstones of
// recovered logs and what the living log still needs.
func (w *world) onlyTombstones(n *node) {
	w.t.Helper()
	want := 0
	for _, l := range w.meta.State().Logs {
		if l.Recovered {
			want++
		}
	}
	if got := w.keys("wal/"); len(got) != want {
		w.t.Fatalf("%d slots for %d recovered logs: %v", len(got), want, got)
	}
}

// checkFolded requires that the committed checkpoint continues what is in the
// store: the fold of all frames that were ever in the log, acknowledged or not.
func (w *world) checkFolded(s *stream.Stream) {
	w.t.Helper()
	data, at, err := s.Checkpoint(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if at != s.HighWatermark() {
		w.t.Fatalf("stream %d: checkpoint at %d after a day, end %d", s.ID(), at, s.HighWatermark())
	}
	// Every frame of a life spans 2 offsets and has the same size.
	want, err := chain{}.Fold(nil, func(yield func(stream.Frame, error) bool) {
		for o := mink.Offset(0); o < at; o += 2 {
			if !yield(stream.Frame{Start: o, Span: 2, Bytes: payload(s.ID(), o, ckptFrame)}, nil) {
				return
			}
		}
	})
	if err != nil || string(want) != string(data) {
		w.t.Fatalf("stream %d: checkpoint at %d is not the fold of the log: %v", s.ID(), at, err)
	}
}
