// Package metalogtest is the conformance suite of metalog.Log: every
// implementation runs it.
package metalogtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Options says how to make logs.
type Options struct {
	// Open makes an empty log; the suite closes it.
	Open func(t *testing.T) metalog.Log
	// Reopen opens a closed log's database again; nil when nothing survives Close.
	Reopen func(t *testing.T, closed metalog.Log) metalog.Log
}

// Run checks the whole contract.
func Run(t *testing.T, o Options) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Options)
	}{
		{"append and read", testAppendRead},
		{"read limits", testReadLimits},
		{"bad appends", testBadAppends},
		{"expected head", testExpect},
		{"concurrent appends", testConcurrentAppends},
		{"changed", testChanged},
		{"heartbeats and marks", testHeartbeats},
		{"concurrent registrations", testConcurrentRegistrations},
		{"lease", testLease},
		{"lease guards", testLeaseGuards},
		{"lease expires", testLeaseExpires},
		{"concurrent lease takers", testConcurrentTakers},
		{"snapshots", testSnapshots},
		{"aborted snapshots", testAbortedSnapshots},
		{"truncation", testTruncation},
		{"seed", testSeed},
		{"cancelled context", testCancelled},
		{"close and reopen", testReopen},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, o) })
	}
}

func open(t *testing.T, o Options) metalog.Log {
	t.Helper()
	l := o.Open(t)
	t.Cleanup(func() { check(t, l.Close()) })
	return l
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func appendOne(t *testing.T, l metalog.Log, payload string) metalog.Entry {
	t.Helper()
	es, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{[]byte(payload)}})
	check(t, err)
	if len(es) != 1 {
		t.Fatalf("one payload made %d entries", len(es))
	}
	return es[0]
}

func register(t *testing.T, l metalog.Log, node mink.NodeID) mink.NodeEpoch {
	t.Helper()
	es, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{[]byte("register")}, Register: node})
	check(t, err)
	return mink.NodeEpoch(es[0].Index)
}

func head(t *testing.T, l metalog.Log) metalog.Position {
	t.Helper()
	h, err := l.Head(t.Context())
	check(t, err)
	return h
}

// readAll reads everything after the position and checks the chain.
func readAll(t *testing.T, l metalog.Log, at metalog.Position) []metalog.Entry {
	t.Helper()
	var all []metalog.Entry
	var timeMs int64
	for {
		es, err := l.Read(t.Context(), at.Index, 7, 1<<20)
		check(t, err)
		if len(es) == 0 {
			return all
		}
		for _, e := range es {
			if e.Index != at.Index+1 {
				t.Fatalf("entry %d follows %d", e.Index, at.Index)
			}
			if want := metalog.Chain(at.Hash, e.Index, e.TimeMs, e.Payload); e.Hash != want {
				t.Fatalf("entry %d has hash %s, the chain gives %s", e.Index, e.Hash, want)
			}
			if e.TimeMs < timeMs {
				t.Fatalf("entry %d: time falls from %d to %d", e.Index, timeMs, e.TimeMs)
			}
			timeMs = e.TimeMs
			at = e.Position()
		}
		all = append(all, es...)
	}
}

func testAppendRead(t *testing.T, o Options) {
	l := open(t, o)
	if h := head(t, l); h != (metalog.Position{}) {
		t.Fatalf("an empty log's head is %s", h)
	}
	before := time.Now().Add(-time.Hour).UnixMilli()
	var want [][]byte
	var got []metalog.Entry
	for i := range 10 {
		var group [][]byte
		for j := range i%3 + 1 {
			group = append(group, fmt.Appendf(nil, "entry %d.%d", i, j))
		}
		es, err := l.Append(t.Context(), metalog.Append{Payloads: group})
		check(t, err)
		want, got = append(want, group...), append(got, es...)
	}
	var group [][]byte
	for j := range 100 {
		group = append(group, fmt.Appendf(nil, "large group %d", j))
	}
	es, err := l.Append(t.Context(), metalog.Append{Payloads: group})
	check(t, err)
	want, got = append(want, group...), append(got, es...)
	big := bytes.Repeat([]byte{0, 1, 255, '\''}, 1<<18)
	want = append(want, big)
	got = append(got, appendOne(t, l, string(big)))
	all := readAll(t, l, metalog.Position{})
	if len(all) != len(want) || len(got) != len(want) {
		t.Fatalf("appended %d, answered %d, read %d", len(want), len(got), len(all))
	}
	for i, e := range all {
		if !bytes.Equal(e.Payload, want[i]) || !bytes.Equal(got[i].Payload, want[i]) {
			t.Fatalf("entry %d: payload differs", e.Index)
		}
		if e.Position() != got[i].Position() || e.TimeMs != got[i].TimeMs {
			t.Fatalf("append answered %s at %d, read gives %s at %d", got[i].Position(), got[i].TimeMs, e.Position(), e.TimeMs)
		}
		if e.TimeMs < before || e.TimeMs > time.Now().Add(time.Hour).UnixMilli() {
			t.Fatalf("entry %d has time %d: not milliseconds since 1970", e.Index, e.TimeMs)
		}
	}
	if h := head(t, l); h != all[len(all)-1].Position() {
		t.Fatalf("head %s, last entry %s", h, all[len(all)-1].Position())
	}
}

func testReadLimits(t *testing.T, o Options) {
	l := open(t, o)
	for range 6 {
		appendOne(t, l, "0123456789")
	}
	for _, c := range []struct {
		after           uint64
		max, bytes, got int
	}{
		{0, 4, 1 << 20, 4}, {0, 100, 1 << 20, 6}, {4, 100, 1 << 20, 2}, {6, 100, 1 << 20, 0},
		{0, 100, 1, 1}, {0, 100, 25, 2}, {0, 100, 30, 3}, {2, 1, 1, 1},
	} {
		es, err := l.Read(t.Context(), c.after, c.max, c.bytes)
		check(t, err)
		if len(es) != c.got {
			t.Errorf("Read(after %d, max %d, bytes %d) answers %d entries, want %d", c.after, c.max, c.bytes, len(es), c.got)
		}
		for i, e := range es {
			if e.Index != c.after+uint64(i)+1 {
				t.Errorf("Read(after %d) answers index %d at place %d", c.after, e.Index, i)
			}
		}
	}
	_, err := l.Read(t.Context(), 7, 1, 1)
	wantErr(t, err, metalog.ErrWentBack)
}

func testBadAppends(t *testing.T, o Options) {
	l := open(t, o)
	for _, a := range []metalog.Append{
		{}, {Payloads: [][]byte{{}}}, {Payloads: [][]byte{{1}, nil}},
		{Payloads: [][]byte{{1}, {2}}, Register: 1},
	} {
		_, err := l.Append(t.Context(), a)
		wantErr(t, err, mink.ErrInvalid)
	}
	_, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{make([]byte, metalog.PayloadBytesMax+1)}})
	wantErr(t, err, mink.ErrTooLarge)
	if h := head(t, l); h.Index != 0 {
		t.Fatalf("refused appends moved the head to %s", h)
	}
}

func testExpect(t *testing.T, o Options) {
	l := open(t, o)
	try := func(a metalog.Append) error {
		a.Payloads = [][]byte{[]byte("x")}
		_, err := l.Append(t.Context(), a)
		return err
	}
	check(t, try(metalog.Append{Expect: &metalog.Position{}}))
	wantErr(t, try(metalog.Append{Expect: &metalog.Position{}}), metalog.ErrHeadMoved)
	h := head(t, l)
	wrong := h
	wrong.Hash[3] ^= 1
	wantErr(t, try(metalog.Append{Expect: &wrong}), metalog.ErrHeadMoved)
	wantErr(t, try(metalog.Append{Expect: &wrong}), mink.ErrConflict)
	check(t, try(metalog.Append{Expect: &h, AtLeast: h.Index}))
	wantErr(t, try(metalog.Append{AtLeast: 3}), metalog.ErrWentBack)
	check(t, try(metalog.Append{AtLeast: 2}))
	if h := head(t, l); h.Index != 3 {
		t.Fatalf("head %s, want index 3", h)
	}
	readAll(t, l, metalog.Position{})
}

func testConcurrentAppends(t *testing.T, o Options) {
	l := open(t, o)
	const writers, each = 6, 12
	var mu sync.Mutex
	answered := map[uint64]metalog.Entry{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				es, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{fmt.Appendf(nil, "%d/%d", w, i), {1}}})
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				mu.Lock()
				for _, e := range es {
					answered[e.Index] = e
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	all := readAll(t, l, metalog.Position{})
	if len(all) != 2*writers*each || len(answered) != len(all) {
		t.Fatalf("%d entries, %d answered, want %d", len(all), len(answered), 2*writers*each)
	}
	for _, e := range all {
		if a := answered[e.Index]; a.Hash != e.Hash || !bytes.Equal(a.Payload, e.Payload) {
			t.Fatalf("entry %d: append answered another one", e.Index)
		}
	}
}

func testChanged(t *testing.T, o Options) {
	l := open(t, o)
	e := appendOne(t, l, "one")
	ch := l.Changed(e.Index)
	select {
	case <-ch:
		t.Fatal("Changed is closed without a newer entry")
	default:
	}
	appendOne(t, l, "two")
	await(t, "Changed after an append", func() bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	})
	select {
	case <-l.Changed(e.Index):
	default:
		t.Fatal("Changed below a known head is not closed at once")
	}
}

// await polls a condition that the database's clock or another goroutine makes true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still waiting: %s", what)
		}
	}
}

func testCancelled(t *testing.T, o Options) {
	l := open(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Append(ctx, metalog.Append{Payloads: [][]byte{{1}}})
	wantErr(t, err, context.Canceled)
	_, err = l.Read(ctx, 0, 1, 1)
	wantErr(t, err, context.Canceled)
	appendOne(t, l, "the log still works")
}

func testReopen(t *testing.T, o Options) {
	l := o.Open(t)
	epoch := register(t, l, 4)
	lease := take(t, l, 4, epoch, time.Hour)
	writeSnapshot(t, l, lease, "a", "b")
	want := readAll(t, l, metalog.Position{})
	check(t, l.Close())
	_, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{{1}}})
	wantErr(t, err, mink.ErrClosed)
	check(t, l.Close())
	if o.Reopen == nil {
		return
	}
	l = o.Reopen(t, l)
	defer func() { check(t, l.Close()) }()
	got := readAll(t, l, metalog.Position{})
	if !slices.EqualFunc(got, want, func(a, b metalog.Entry) bool {
		return a.Position() == b.Position() && a.TimeMs == b.TimeMs && bytes.Equal(a.Payload, b.Payload)
	}) {
		t.Fatalf("after a reopen the log is %v, was %v", got, want)
	}
	have, live, err := l.ReadLease(t.Context())
	check(t, err)
	if have != lease || !live {
		t.Fatalf("after a reopen the lease is %v (live %v), was %v", have, live, lease)
	}
	_, err = l.Heartbeat(t.Context(), 4, epoch, 1)
	check(t, err)
	if got := collect(t, l.ReadSnapshot(t.Context(), newestSnapshot(t, l))); len(got) != 2 {
		t.Fatalf("after a reopen the snapshot has %d parts", len(got))
	}
	appendOne(t, l, "goes on")
	readAll(t, l, metalog.Position{})
}

func newestSnapshot(t *testing.T, l metalog.Log) uint64 {
	t.Helper()
	infos, err := l.Snapshots(t.Context())
	check(t, err)
	if len(infos) == 0 {
		t.Fatal("no snapshot")
	}
	return infos[0].Index
}

func collect(t *testing.T, parts iter.Seq2[[]byte, error]) []string {
	t.Helper()
	var out []string
	for p, err := range parts {
		check(t, err)
		out = append(out, string(p))
	}
	return out
}
