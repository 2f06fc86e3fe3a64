package metalogtest

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

func parts(ps ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, p := range ps {
			if !yield([]byte(p), nil) {
				return
			}
		}
	}
}

// writeSnapshot stores one at the head.
func writeSnapshot(t *testing.T, l metalog.Log, lease metalog.Lease, ps ...string) metalog.Position {
	t.Helper()
	at := head(t, l)
	check(t, l.WriteSnapshot(t.Context(), metalog.SnapshotWrite{Position: at, Lease: lease, Parts: parts(ps...)}))
	return at
}

func testSnapshots(t *testing.T, o Options) {
	l := open(t, o)
	infos, err := l.Snapshots(t.Context())
	check(t, err)
	if len(infos) != 0 {
		t.Fatalf("a new log has snapshots %v", infos)
	}
	for _, err := range l.ReadSnapshot(t.Context(), 1) {
		wantErr(t, err, mink.ErrNotExist)
	}
	lease := take(t, l, 1, register(t, l, 1), time.Hour)
	big := strings.Repeat("\x00\xffx", metalog.PartBytesMax/3)
	var at []metalog.Position
	for range 3 {
		appendOne(t, l, "x")
		at = append(at, writeSnapshot(t, l, lease, "a", big, "c"))
	}
	infos, err = l.Snapshots(t.Context())
	check(t, err)
	want := metalog.SnapshotInfo{Position: at[2], Parts: 3, Bytes: int64(len(big)) + 2}
	if len(infos) != metalog.SnapshotsKept || infos[0] != want || infos[1].Position != at[1] {
		t.Fatalf("snapshots %+v, want %+v and one at %s", infos, want, at[1])
	}
	for _, i := range infos {
		if got := collect(t, l.ReadSnapshot(t.Context(), i.Index)); !slices.Equal(got, []string{"a", big, "c"}) {
			t.Fatalf("snapshot at %d reads back %d parts", i.Index, len(got))
		}
	}
	for _, err := range l.ReadSnapshot(t.Context(), at[0].Index) {
		wantErr(t, err, mink.ErrNotExist)
	}
	for _, err := range l.ReadSnapshot(t.Context(), at[2].Index) {
		if err != nil {
			t.Fatal(err)
		}
		break // an early stop releases what the read holds
	}
	appendOne(t, l, "the log goes on")
}

func testAbortedSnapshots(t *testing.T, o Options) {
	l := open(t, o)
	epoch := register(t, l, 1)
	lease := take(t, l, 1, epoch, time.Hour)
	at := head(t, l)
	write := func(p metalog.Position, lease metalog.Lease, ps iter.Seq2[[]byte, error]) error {
		return l.WriteSnapshot(t.Context(), metalog.SnapshotWrite{Position: p, Lease: lease, Parts: ps})
	}
	boom := errors.New("boom")
	wantErr(t, write(at, lease, func(yield func([]byte, error) bool) {
		if yield([]byte("half"), nil) {
			yield(nil, boom)
		}
	}), boom)
	other := lease
	other.Epoch++
	wantErr(t, write(at, other, parts("a")), metalog.ErrLeaseLost)
	other = lease
	other.NodeEpoch++
	wantErr(t, write(at, other, parts("a")), metalog.ErrLeaseLost)
	wantErr(t, write(at, lease, parts()), mink.ErrInvalid)
	wantErr(t, write(at, lease, parts("")), mink.ErrInvalid)
	wantErr(t, write(at, lease, parts(strings.Repeat("x", metalog.PartBytesMax+1))), mink.ErrInvalid)
	wrong := at
	wrong.Hash[0] ^= 1
	wantErr(t, write(wrong, lease, parts("a")), mink.ErrInvalid)
	wrong = at
	wrong.Index++
	wantErr(t, write(wrong, lease, parts("a")), mink.ErrInvalid)
	// The lease is lost while the parts are written.
	wantErr(t, write(at, lease, func(yield func([]byte, error) bool) {
		if !yield([]byte("a"), nil) {
			return
		}
		lease2 := take(t, l, 1, epoch, time.Hour)
		if lease2.Epoch <= lease.Epoch {
			t.Errorf("lease epoch did not grow: %+v", lease2)
		}
		yield([]byte("b"), nil)
	}), metalog.ErrLeaseLost)

	infos, err := l.Snapshots(t.Context())
	check(t, err)
	if len(infos) != 0 {
		t.Fatalf("aborted writes left snapshots %+v", infos)
	}
	lease, _, err = l.ReadLease(t.Context())
	check(t, err)
	check(t, write(at, lease, parts("whole")))
	wantErr(t, write(at, lease, parts("again")), mink.ErrExists)
	if got := collect(t, l.ReadSnapshot(t.Context(), at.Index)); !slices.Equal(got, []string{"whole"}) {
		t.Fatalf("snapshot reads back %q", got)
	}
}

func testTruncation(t *testing.T, o Options) {
	l := open(t, o)
	lease := take(t, l, 1, register(t, l, 1), time.Hour)
	for range 5 {
		appendOne(t, l, "x")
	}
	older := writeSnapshot(t, l, lease, "a")
	wantErr(t, l.Truncate(t.Context(), older.Index, lease), mink.ErrInvalid) // only one
	for range 5 {
		appendOne(t, l, "y")
	}
	newer := writeSnapshot(t, l, lease, "b")
	wantErr(t, l.Truncate(t.Context(), newer.Index, lease), mink.ErrInvalid)
	lost := lease
	lost.Epoch++
	wantErr(t, l.Truncate(t.Context(), older.Index, lost), metalog.ErrLeaseLost)
	if n := len(readAll(t, l, metalog.Position{})); n != 12 {
		t.Fatalf("refused truncations left %d of 12 entries", n)
	}
	for range 2 {
		check(t, l.Truncate(t.Context(), older.Index, lease))
	}
	check(t, l.Truncate(t.Context(), 2, lease))
	for after := range older.Index {
		_, err := l.Read(t.Context(), after, 10, 1000)
		wantErr(t, err, metalog.ErrTruncated)
	}
	if n := len(readAll(t, l, older)); n != 5 {
		t.Fatalf("%d entries are left, want 5", n)
	}
	appendOne(t, l, "z")
	if n := len(readAll(t, l, older)); n != 6 {
		t.Fatalf("%d entries are left, want 6", n)
	}
	// Down to nothing: the head is still known.
	h := writeSnapshot(t, l, lease, "c")
	appendOne(t, l, "last")
	last := writeSnapshot(t, l, lease, "d")
	check(t, l.Truncate(t.Context(), h.Index, lease))
	if head(t, l) != last || len(readAll(t, l, h)) != 1 {
		t.Fatalf("head %s, want %s", head(t, l), last)
	}
}

// A log that a restore begins, over an empty one and over another.
func testSeed(t *testing.T, o Options) {
	l := open(t, o)
	first := metalog.Position{Index: 70, Hash: metalog.Hash{7}}
	seed := metalog.Seed{Position: first, TimeMs: 1 << 45, Lease: 5, Parts: parts("a", "b")}
	wantErr(t, l.Seed(t.Context(), metalog.Seed{Position: first, Parts: parts()}), mink.ErrInvalid)
	broken := errors.New("broken")
	wantErr(t, l.Seed(t.Context(), metalog.Seed{Position: first, Parts: func(yield func([]byte, error) bool) {
		if yield([]byte("a"), nil) {
			yield(nil, broken)
		}
	}}), broken)
	if at := head(t, l); at != (metalog.Position{}) {
		t.Fatalf("a failed seed left %s", at)
	}
	check(t, l.Seed(t.Context(), seed))
	wantErr(t, l.Seed(t.Context(), seed), metalog.ErrHeadMoved)
	if at := head(t, l); at != first {
		t.Fatalf("the head is %s, want %s", at, first)
	}
	if got := collect(t, l.ReadSnapshot(t.Context(), 70)); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("read back %v", got)
	}
	_, err := l.Read(t.Context(), 69, 10, 1000)
	wantErr(t, err, metalog.ErrTruncated)
	if got := readAll(t, l, first); len(got) != 0 {
		t.Fatalf("entries %v", got)
	}
	e := appendOne(t, l, "x")
	if e.Index != 71 || e.TimeMs < 1<<45 || e.Hash != metalog.Chain(first.Hash, 71, e.TimeMs, []byte("x")) {
		t.Fatalf("went on with %+v", e)
	}
	epoch := register(t, l, 1)
	lease := take(t, l, 1, epoch, time.Hour)
	if lease.Epoch != 6 {
		t.Errorf("the next lease is %d", lease.Epoch)
	}
	writeSnapshot(t, l, lease, "c")
	again := metalog.Seed{Position: first, TimeMs: 3, Lease: 1, Replaces: head(t, l), Parts: parts("d")}
	held := (*metalog.LeaseHeldError)(nil)
	if err := l.Seed(t.Context(), again); !errors.As(err, &held) || held.Lease.Node != 1 {
		t.Fatalf("seeded beside a lease: %v", err)
	}
	check(t, l.ReleaseLease(t.Context(), lease))
	check(t, l.Seed(t.Context(), again))
	infos, err := l.Snapshots(t.Context())
	check(t, err)
	if len(infos) != 1 || infos[0] != (metalog.SnapshotInfo{Position: first, Parts: 1, Bytes: 1}) {
		t.Fatalf("snapshots %+v", infos)
	}
	if got := collect(t, l.ReadSnapshot(t.Context(), 70)); !slices.Equal(got, []string{"d"}) {
		t.Fatalf("read back %v", got)
	}
	wantErr(t, beat(t, l, 1, epoch, 0), mink.ErrFenced)
	rows, err := l.Heartbeats(t.Context())
	check(t, err)
	if len(rows) != 0 {
		t.Errorf("rows of before: %+v", rows)
	}
	if lease := take(t, l, 2, register(t, l, 2), time.Hour); lease.Epoch != 2 {
		t.Errorf("the next lease is %d", lease.Epoch)
	}
}
