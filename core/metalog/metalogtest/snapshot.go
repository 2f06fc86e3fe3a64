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
