package kvsnap

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// damage overwrites an object with other bytes of the same length, or removes it.
func damage(t *testing.T, store objstore.Store, f kvplan.BucketFile, remove bool) {
	t.Helper()
	if remove {
		if _, err := store.DeleteBatch(t.Context(), []string{f.Key()}); err != nil {
			t.Fatal(err)
		}
		return
	}
	r, err := store.GetRange(t.Context(), objstore.GetRangeRequest{Key: f.Key(), Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Clone(r.Data)
	data[len(data)/2] ^= 4
	if _, err := store.Put(t.Context(), objstore.PutRequest{Key: f.Key(), Chunks: [][]byte{data}}); err != nil {
		t.Fatal(err)
	}
}

// One flipped bit in any file, or a missing one: the error names the object, nothing
// is left of the directory, and the snapshot before is taken.
func TestDamage(t *testing.T) {
	for at := range 6 {
		for _, remove := range []bool{false, true} {
			store, m := newStore(t), newMeta(t)
			m.append(t, 10)
			u := newUploader(t, store, 1)
			old := local{"000001.sst": content(7, 10), "OPTIONS": nil}
			for i, l := range []local{old, with(files, "empty.sst", content(8, 1))} {
				r, err := u.Upload(t.Context(), l.write(t, t.TempDir()), mink.Offset(i+1), 1, m.View().KVBucket(1))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
					t.Fatal(err)
				}
			}
			retained := func() []kvplan.Snapshot { return m.View().KVSnapshots(1) }
			newest := retained()[1]
			f := kvplan.BucketFile{Bucket: testBucket, File: newest.Files[at]}
			damage(t, store, f, remove)
			want := mink.ErrCorrupt
			if remove {
				want = objstore.ErrNotExist
			}
			dir := filepath.Join(t.TempDir(), "restored")
			_, err := Restore(t.Context(), small(), store, testBucket, newest, dir)
			if !errors.Is(err, want) || !strings.Contains(err.Error(), f.Key()) {
				t.Fatalf("file %d: %v", at, err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("something is left: %v", err)
			}
			if err := CheckFile(t.Context(), small(), store, f, true); !errors.Is(err, want) {
				t.Fatal(err)
			}
			o, ok, err := RestoreNewest(t.Context(), small(), store, testBucket, retained, nil, dir, slog.New(slog.DiscardHandler))
			if err != nil || !ok || o.Snapshot.ID != 1 {
				t.Fatalf("file %d: %+v %v %v", at, o.Snapshot, ok, err)
			}
			old.equal(t, dir)
			// The one before as well: an error that names both.
			g := kvplan.BucketFile{Bucket: testBucket, File: retained()[0].Files[1]}
			damage(t, store, g, remove)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			_, _, err = RestoreNewest(t.Context(), small(), store, testBucket, retained, nil, dir, slog.New(slog.DiscardHandler))
			if !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), f.Key()) || !strings.Contains(err.Error(), g.Key()) {
				t.Fatal(err)
			}
		}
	}
}

// Sizes that are not what the metadata say, a head of another bucket, another offset.
func TestFactsAreChecked(t *testing.T) {
	store := newStore(t)
	l := local{"000001.sst": content(7, 10), "OPTIONS": nil}
	r, err := newUploader(t, store, 1).Upload(t.Context(), l.write(t, t.TempDir()), 5, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*kvplan.Snapshot){
		"longer":  func(s *kvplan.Snapshot) { s.Files[1].Size++ },
		"shorter": func(s *kvplan.Snapshot) { s.Files[1].Size-- },
		"offset":  func(s *kvplan.Snapshot) { s.Offset++ },
		"rows":    func(s *kvplan.Snapshot) { s.Rows++ },
		"files":   func(s *kvplan.Snapshot) { s.Files = s.Files[:1] },
		"a head that nobody could hold": func(s *kvplan.Snapshot) {
			s.Files[0].Size = HeadBytesMax + 1
		},
	} {
		s := r.Snapshot
		s.Files = slices.Clone(s.Files)
		change(&s)
		if _, err := Restore(t.Context(), small(), store, testBucket, s, filepath.Join(t.TempDir(), "x")); !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), small(), store, testBucket, r.Snapshot, full); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(full, "x")); err != nil {
		t.Fatal("a directory that was refused lost a file:", err)
	}
}

// Files go while they are read: the view is taken again, but not for ever.
func TestRestoreWhileFilesGo(t *testing.T) {
	store, m := newStore(t), newMeta(t)
	m.append(t, 100)
	u := newUploader(t, store, 1)
	var last local
	snapshot := func(i int) {
		last = local{"000001.sst": content(uint64(i), 10), "OPTIONS": nil}
		r, err := u.Upload(t.Context(), last.write(t, t.TempDir()), mink.Offset(i), 1, m.View().KVBucket(1))
		if err == nil {
			_, err = Commit(t.Context(), m, 1, r.Snapshot, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		for d := range m.View().DestroyedKV() { // deleted sooner than it may be
			damage(t, store, d.BucketFile, true)
		}
	}
	snapshot(1)
	n := 1
	views := 0
	goOn := func() []kvplan.Snapshot { // every second look comes too late
		views++
		list := m.View().KVSnapshots(1)
		if views%2 == 1 && n < 3 {
			n++
			snapshot(n)
		}
		return list
	}
	dir := filepath.Join(t.TempDir(), "restored")
	o, ok, err := RestoreNewest(t.Context(), small(), store, testBucket, goOn, nil, dir, slog.New(slog.DiscardHandler))
	if err != nil || !ok || o.Snapshot.Offset != 3 {
		t.Fatalf("%+v %v %v", o.Snapshot, ok, err)
	}
	last.equal(t, dir)

	stale := m.View().KVSnapshots(1)
	snapshot(4)
	calls := 0
	_, _, err = RestoreNewest(t.Context(), small(), store, testBucket, func() []kvplan.Snapshot {
		calls++
		if calls%2 == 1 {
			return stale
		}
		return m.View().KVSnapshots(1)
	}, nil, dir+"2", slog.New(slog.DiscardHandler))
	if !errors.Is(err, mink.ErrUnavailable) || errors.Is(err, mink.ErrCorrupt) || calls != 2*viewsMax {
		t.Fatal(calls, err)
	}
	if _, ok, err := RestoreNewest(t.Context(), small(), store, testBucket, func() []kvplan.Snapshot { return nil }, nil, dir+"3", nil); ok || err != nil {
		t.Fatal(ok, err)
	}
}

// A store that does not answer is no reason to take an older snapshot.
// A store that was built of the log, or of an older snapshot, may come to a file of the
// same bytes as the damaged one: it is uploaded, not named again. What the older snapshot
// shares with the damaged one was read, and is.
func TestDamagedFilesAreNotNamedAgain(t *testing.T) {
	for _, whole := range []bool{false, true} { // the log: no snapshot is of use
		store, m := newStore(t), newMeta(t)
		m.append(t, 10)
		u, work := newUploader(t, store, 1), t.TempDir()
		old := local{"000001.sst": content(7, 10), "OPTIONS": nil}
		now := with(old, "000002.sst", content(8, 20))
		for i, l := range []local{old, now} {
			r, err := u.Upload(t.Context(), l.write(t, work), mink.Offset(i+1), 1, m.View().KVBucket(1))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
				t.Fatal(err)
			}
		}
		retained := func() []kvplan.Snapshot { return m.View().KVSnapshots(1) }
		bad := retained()[1].Files[2]
		if whole {
			bad = retained()[1].Files[1]
		}
		damage(t, store, kvplan.BucketFile{Bucket: testBucket, File: bad}, false)
		m.failOver(t)
		o, ok, err := RestoreNewest(t.Context(), small(), store, testBucket, retained, nil, filepath.Join(t.TempDir(), "restored"), slog.New(slog.DiscardHandler))
		if ok == whole || errors.Is(err, mink.ErrCorrupt) != whole {
			t.Fatal(ok, err)
		}
		next := newUploader(t, store, 2)
		next.Restored(o)
		r, err := next.Upload(t.Context(), now.write(t, t.TempDir()), 3, 1, m.View().KVBucket(1))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 0}[whole]; r.Reused != want {
			t.Errorf("whole log %v: %d files are named again, not %d", whole, r.Reused, want)
		}
		if _, err := Commit(t.Context(), m, 1, r.Snapshot, 2); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(t.Context(), small(), store, testBucket, retained()[1], filepath.Join(t.TempDir(), "again")); err != nil {
			t.Fatalf("whole log %v: %v", whole, err)
		}
	}
}

func TestUnavailableStoreIsNoDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Config{})
		store := fault.New(mem, fault.Config{})
		defer store.Close()
		r, err := newUploader(t, store, 1).Upload(t.Context(), files.write(t, t.TempDir()), 1, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		store.Inject(fault.Rule{Ops: fault.Get, Skip: 1, Do: fault.FailBefore(objstore.ErrUnavailable)})
		_, _, err = RestoreNewest(t.Context(), small(), store, testBucket, func() []kvplan.Snapshot { return []kvplan.Snapshot{r.Snapshot, r.Snapshot} }, nil, filepath.Join(t.TempDir(), "x"), slog.New(slog.DiscardHandler))
		if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, mink.ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

// A file that somebody deleted is not named again because a snapshot names it, or because
// it was uploaded a moment ago: the next snapshot has it anew.
func TestUploadDoesNotTrustTheMetadata(t *testing.T) {
	store, m, work := newStore(t), newMeta(t), t.TempDir()
	u := newUploader(t, store, 1)
	files := local{"000001.sst": content(1, 1000), "000002.sst": content(2, 1000), "OPTIONS": content(3, 50)}
	remove := func(f kvplan.File) {
		if _, err := store.DeleteBatch(t.Context(), []string{kvplan.BucketFile{Bucket: testBucket, File: f}.Key()}); err != nil {
			t.Fatal(err)
		}
	}
	take := func(u *Uploader, offset mink.Offset, uploaded int) Result {
		t.Helper()
		m.append(t, offset)
		r, err := u.Upload(t.Context(), files.write(t, work), offset, 1, m.View().KVBucket(1))
		if err != nil || r.Uploaded != uploaded {
			t.Fatalf("%+v %v", r, err)
		}
		return r
	}
	commit := func(r Result) {
		t.Helper()
		if _, err := Commit(t.Context(), m, 1, r.Snapshot, 1); err != nil {
			t.Fatal(err)
		}
	}
	remove(take(u, 1, 3).Snapshot.Files[1]) // no commit follows
	commit(take(u, 1, 2))
	sound(t, m, store)
	commit(take(u, 2, 1))
	remove(m.View().KVSnapshots(1)[0].Files[2])
	commit(take(newUploader(t, store, 1), 3, 2))
	sound(t, m, store)
}
