package dirstore_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
	"pgregory.net/rapid"
)

var runKit = objstoretest.Run

func openIn(t testing.TB, dir string) *dirstore.Store {
	t.Helper()
	s, err := dirstore.Open(t.Context(), dirstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, s)
	return s
}

func closeAtEnd(t testing.TB, s *dirstore.Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func put(ctx context.Context, s objstore.Store, key, value string) error {
	_, err := s.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{[]byte(value)}, CreateOnly: true})
	return err
}

func wantIs(t *testing.T, err, target error, says string) {
	t.Helper()
	if !errors.Is(err, target) || !strings.Contains(err.Error(), says) {
		t.Fatalf("error %v, want %v that says %q", err, target, says)
	}
}

func TestConformance(t *testing.T) {
	runKit(t, func(t *testing.T) objstore.Store { return openIn(t, filepath.Join(t.TempDir(), "made", "here")) })
}

func TestConformanceSmallPages(t *testing.T) {
	runKit(t, func(t *testing.T) objstore.Store {
		s, err := dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", ListPageMax: 2, OpsMax: 1, Files: fault.NewCrashFS(1).Process(-1)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestReopenKeepsObjectsAndCleansLeftovers(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	if err := put(t.Context(), s, "a/b", "v"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(dir, "%tmp", "deadsession")
	if err := os.Mkdir(dead, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "1"), []byte("half"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dead+".lock", nil, 0o640); err != nil {
		t.Fatal(err)
	}
	s = openIn(t, dir)
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the dead session is still there: %v", err)
	}
	got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "a/b", Length: -1})
	if err != nil || string(got.Data) != "v" {
		t.Fatalf("%q, %v", got.Data, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "%tmp"))
	if err != nil || len(left) != 1 {
		t.Fatalf("left in %%tmp: %v, %v", left, err)
	}
}

func TestASecondSessionLeavesTheFirstAlone(t *testing.T) {
	dir := t.TempDir()
	first := openIn(t, dir)
	m, _ := objstore.Multipart(first)
	id, err := m.StartUpload(t.Context(), "up")
	if err != nil {
		t.Fatal(err)
	}
	part, err := m.PutPart(t.Context(), objstore.PutPartRequest{Key: "up", Upload: id, Number: 1, Chunks: [][]byte{[]byte("part")}})
	if err != nil {
		t.Fatal(err)
	}
	second := openIn(t, dir)
	if err := put(t.Context(), second, "k", "second"); err != nil {
		t.Fatal(err)
	}
	wantIs(t, put(t.Context(), first, "k", "first"), objstore.ErrAlreadyExists, "k")
	if _, err := m.CompleteUpload(t.Context(), objstore.CompleteUploadRequest{Key: "up", Upload: id, Parts: []objstore.Part{part}}); err != nil {
		t.Fatalf("the second session's Open took the first one's files away: %v", err)
	}
	for _, s := range []*dirstore.Store{second, first} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOrdinaryKeysAreTheirOwnPaths(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	for key, file := range map[string]string{
		"lake/db/t/data/dt=2026-01-01/00000-0-abc.parquet": "lake/db/t/data/dt=2026-01-01/00000-0-abc.parquet",
		"wal/1/7-ab/00000000000000000003":                  "wal/1/7-ab/00000000000000000003~",
		"Upper/x.y/z":                                      "%55pper/x.y~/z~",
	} {
		if err := put(t.Context(), s, key, "v"); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != "v" {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
}

func TestOpenRefusesWhatIsNotAStore(t *testing.T) {
	open := func(dir string) error {
		_, err := dirstore.Open(t.Context(), dirstore.Config{Dir: dir})
		return err
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.doc"), nil, 0o640); err != nil {
		t.Fatal(err)
	}
	wantIs(t, open(foreign), objstore.ErrInvalid, "thesis.doc")
	wantIs(t, open(filepath.Join(foreign, "thesis.doc")), objstore.ErrInvalid, "not a")
	wantIs(t, open(filepath.Join(foreign, "thesis.doc", "sub")), objstore.ErrInvalid, "a file stands where a directory is needed")
	wantIs(t, open(""), objstore.ErrInvalid, "no directory")

	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "%this-is-a-mink-store"), []byte("mink directory store, format 2\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	wantIs(t, open(newer), objstore.ErrInvalid, "format 2")

	onDiskRoot := t.TempDir()
	if err := os.Mkdir(filepath.Join(onDiskRoot, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := openIn(t, onDiskRoot)
	page, err := s.List(t.Context(), objstore.ListRequest{})
	if err != nil || len(page.Objects) != 0 {
		t.Fatalf("%v, %v", page, err)
	}
}

// Two processes make one store at once: the slower one looks for the marker just
// before the faster one has made it and put an object.
func TestOpenWhileAnotherMakesTheStore(t *testing.T) {
	disk := fault.NewCrashFS(1)
	cfg := dirstore.Config{Dir: "/d", Files: disk.Process(-1)}
	first, err := dirstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, first)
	if err := put(t.Context(), first, "wal/1/0", "v"); err != nil {
		t.Fatal(err)
	}
	looked := false
	disk.Fail(func(op fault.FileOp, name string) error {
		if op == fault.FileOpen && strings.HasSuffix(name, "/%this-is-a-mink-store") && !looked {
			looked = true
			return fs.ErrNotExist
		}
		return nil
	})
	cfg.Files = disk.Process(-1)
	second, err := dirstore.Open(t.Context(), cfg)
	if err != nil || !looked {
		t.Fatalf("looked: %v, %v", looked, err)
	}
	closeAtEnd(t, second)
}

func TestForeignFilesAreNotListed(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	for _, name := range []string{"README", "Big.txt", ".hidden", "a%zz.x", "%.x", "~", "x.y+", "sp ace.x", "d.ir"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "d.ir")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d.ir"), 0o750); err != nil { // named as a file
		t.Fatal(err)
	}
	// README has a directory's name; listing must survive that it is none.
	if err := os.Remove(filepath.Join(dir, "README")); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(t.Context(), objstore.ListRequest{})
	if err != nil || len(page.Objects) != 0 {
		t.Fatalf("%+v, %v", page.Objects, err)
	}
}

// onModel opens a store on a modelled disk with one object in it.
func onModel(t *testing.T) (*fault.CrashFS, *dirstore.Store) {
	t.Helper()
	disk := fault.NewCrashFS(1)
	s, err := dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", Files: disk.Process(-1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), s, "dir/old", "old value"); err != nil {
		t.Fatal(err)
	}
	return disk, s
}

func TestFullDisk(t *testing.T) {
	disk, s := onModel(t)
	disk.SetCapacity(1000)
	wantIs(t, put(t.Context(), s, "dir/new", strings.Repeat("x", 2000)), objstore.ErrNoSpace, "free space on the disk of /d")
	page, err := s.List(t.Context(), objstore.ListRequest{})
	if err != nil || len(page.Objects) != 1 {
		t.Fatalf("%v, %v", page, err)
	}
	for range 50 { // what failed must not use up the rest
		if err := put(t.Context(), s, "dir/new", strings.Repeat("x", 1001)); !errors.Is(err, objstore.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	if err := put(t.Context(), s, "dir/small", strings.Repeat("x", 800)); err != nil {
		t.Fatalf("what fits: %v", err)
	}
	if resp, err := s.DeleteBatch(t.Context(), []string{"dir/old"}); err != nil || resp.Errors[0] != nil {
		t.Fatalf("deleting on a full disk: %v, %v", resp, err)
	}
}

func TestFileErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		errno syscall.Errno
		op    fault.FileOp
		want  error
		says  string
	}{
		{syscall.ENOSPC, fault.FileSync, objstore.ErrNoSpace, "free space"},
		{syscall.ENOSPC, fault.FileLink, objstore.ErrNoSpace, "free space"},
		{syscall.ENOSPC, fault.FileMkdir, objstore.ErrNoSpace, "free space"},
		{syscall.EDQUOT, fault.FileWrite, objstore.ErrNoSpace, "quota"},
		{syscall.EROFS, fault.FileCreate, objstore.ErrReadOnly, "remount"},
		{syscall.EACCES, fault.FileCreate, objstore.ErrUnauthorized, "permission on /d"},
		{syscall.EMFILE, fault.FileCreate, objstore.ErrUnavailable, "ulimit -n"},
		{syscall.EIO, fault.FileSync, objstore.ErrUnavailable, "kernel's log"},
		{syscall.EPERM, fault.FileLink, objstore.ErrUnimplemented, "no hard links"},
		{syscall.EOPNOTSUPP, fault.FileLink, objstore.ErrUnimplemented, "no hard links"},
		{syscall.EXDEV, fault.FileLink, objstore.ErrInvalid, "one file system"},
		{syscall.EIO, fault.FileSyncDir, objstore.ErrUnavailable, "kernel's log"},
	} {
		t.Run(fmt.Sprint(c.op, " ", c.errno), func(t *testing.T) {
			disk, s := onModel(t)
			disk.Fail(func(op fault.FileOp, _ string) error {
				if op == c.op {
					return c.errno
				}
				return nil
			})
			err := put(t.Context(), s, "fresh/new", "v")
			wantIs(t, err, c.want, c.says)
			if !errors.Is(err, c.errno) {
				t.Fatalf("%v does not carry the system's error", err)
			}
			disk.Fail(nil)
			if _, err := s.Head(t.Context(), "fresh/new"); !errors.Is(err, objstore.ErrNotExist) {
				t.Fatalf("half a put is visible: %v", err)
			}
			if err := put(t.Context(), s, "fresh/new", "again"); err != nil {
				t.Fatalf("after the fault is gone: %v", err)
			}
		})
	}
}

func TestReadErrorsSayWhatToDo(t *testing.T) {
	disk, s := onModel(t)
	for _, c := range []struct {
		errno syscall.Errno
		want  error
	}{{syscall.EACCES, objstore.ErrUnauthorized}, {syscall.EIO, objstore.ErrUnavailable}, {syscall.EMFILE, objstore.ErrUnavailable}} {
		disk.Fail(func(op fault.FileOp, _ string) error { return c.errno })
		_, get := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: "dir/old", Length: -1})
		_, head := s.Head(t.Context(), "dir/old")
		_, list := s.List(t.Context(), objstore.ListRequest{})
		resp, _ := s.DeleteBatch(t.Context(), []string{"dir/old"})
		for _, err := range []error{get, head, list, resp.Errors[0]} {
			wantIs(t, err, c.want, "")
		}
	}
}

func TestAFailedDirectorySyncIsAnUnknownOutcome(t *testing.T) {
	disk, s := onModel(t)
	failing := func(op fault.FileOp, _ string) error {
		if op == fault.FileSyncDir {
			return syscall.EIO
		}
		return nil
	}
	disk.Fail(failing) // the directory is known: only the publication syncs
	err := put(t.Context(), s, "dir/new", "v")
	wantIs(t, err, objstore.ErrUnknownOutcome, "kernel's log")
	// It is visible, but nobody may be shown it while it cannot be made durable.
	_, err = s.Head(t.Context(), "dir/new")
	wantIs(t, err, objstore.ErrUnavailable, "")
	wantIs(t, put(t.Context(), s, "dir/new", "w"), objstore.ErrUnavailable, "")
	resp, err := s.DeleteBatch(t.Context(), []string{"dir/old"})
	if err != nil {
		t.Fatal(err)
	}
	wantIs(t, resp.Errors[0], objstore.ErrUnknownOutcome, "")
	disk.Fail(nil)
	if _, err := s.Head(t.Context(), "dir/new"); err != nil {
		t.Fatal(err)
	}
	wantIs(t, put(t.Context(), s, "dir/new", "w"), objstore.ErrAlreadyExists, "")
}

func TestReadOnlyDirectory(t *testing.T) {
	disk, s := onModel(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Fail(func(op fault.FileOp, _ string) error {
		switch op {
		case fault.FileCreate, fault.FileMkdir, fault.FileLock, fault.FileRemove:
			return syscall.EROFS
		}
		return nil
	})
	_, err := dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", Files: disk.Process(-1)})
	wantIs(t, err, objstore.ErrReadOnly, "remount")
}

func TestOpenWaitsForAnotherOpenUntilItsContextEnds(t *testing.T) {
	disk, s := onModel(t)
	closeAtEnd(t, s)
	other := disk.Process(-1)
	lock, ok, err := other.Lock("/d/%tmp/open.lock")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = dirstore.Open(ctx, dirstore.Config{Dir: "/d", Files: disk.Process(-1)})
	wantIs(t, err, context.DeadlineExceeded, "open.lock")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := dirstore.Open(t.Context(), dirstore.Config{Dir: "/d", Files: disk.Process(-1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestListReadsOnlyWhatItMust counts the directories that a page reads.
func TestListReadsOnlyWhatItMust(t *testing.T) {
	disk, s := onModel(t)
	for d := range 50 {
		for o := range 3 {
			if err := put(t.Context(), s, fmt.Sprintf("wal/%02d/e/%d", d, o), "v"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		req  objstore.ListRequest
		most int
	}{
		{objstore.ListRequest{Prefix: "wal/07/e/"}, 1},
		{objstore.ListRequest{Prefix: "wal/07/e/", StartAfter: "wal/07/e/1"}, 1},
		{objstore.ListRequest{Prefix: "wal/07"}, 3},
		{objstore.ListRequest{Prefix: "wal/", StartAfter: "wal/40/e/1", Limit: 1}, 5},
		{objstore.ListRequest{Limit: 4}, 7},
		{objstore.ListRequest{Prefix: "nothing/here/"}, 1},
	} {
		reads := 0
		disk.Fail(func(op fault.FileOp, _ string) error {
			if op == fault.FileReadDir {
				reads++
			}
			return nil
		})
		page, err := s.List(t.Context(), c.req)
		if err != nil || reads > c.most {
			t.Errorf("%+v: %d keys, %d directories read, want at most %d; %v", c.req, len(page.Objects), reads, c.most, err)
		}
	}
}

func TestNamesRoundTripAndNeverMeet(t *testing.T) {
	owner := map[string]string{}
	check := func(t interface{ Fatalf(string, ...any) }, key string) {
		dirs, file := dirstore.PathOf(key)
		back := ""
		for i, name := range append(slices.Clone(dirs), file) {
			k, kind, ok := dirstore.ParseName(name)
			if !ok || (kind == "file") != (i == len(dirs)) {
				t.Fatalf("key %q: name %q parses as %s %q, %v", key, name, kind, k, ok)
			}
			if len(name) > 255 || name != strings.ToLower(name) || name[0] == '.' || strings.Contains(name, "/") || strings.HasPrefix(name, "%t") {
				t.Fatalf("key %q: bad file name %q", key, name)
			}
			back += k
		}
		if back != key {
			t.Fatalf("key %q came back as %q", key, back)
		}
		for i := range dirs {
			path := strings.Join(dirs[:i+1], "/")
			if was, ok := owner[path]; ok && was != "" {
				t.Fatalf("%q is the file of %q and a directory of %q", path, was, key)
			}
			owner[path] = ""
		}
		path := strings.Join(append(slices.Clone(dirs), file), "/")
		if was, ok := owner[path]; ok && was != key {
			t.Fatalf("%q belongs to %q and to %q", path, was, key)
		}
		owner[path] = key
	}
	for _, k := range objstoretest.HostileKeys() {
		check(t, k)
	}
	rapid.Check(t, func(t *rapid.T) {
		segment := rapid.StringOfN(rapid.SampledFrom([]rune("aAbz09-_=,.~+% !ü\u0308")), 1, 200, 260)
		key := strings.Join(rapid.SliceOfN(segment, 1, 4).Draw(t, "segments"), "/")
		if objstore.ValidateKey(key) == nil {
			check(t, key)
		}
	})
}

func FuzzParseName(f *testing.F) {
	for _, name := range []string{
		"a", "a~", "a.b", "a.b~", "~", "~~", "a~~", "+", "a+", "%2e", "%2e.%2e~", "%41", "%4", "%2f", "a%2fb~", "%tmp", "A", "\xc3\xbc", "%c3%bc~",
		strings.Repeat("s", 80) + "+", strings.Repeat("s", 80) + "~", strings.Repeat("%2e", 80) + "+",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		key, kind, ok := dirstore.ParseName(name)
		if !ok {
			return
		}
		if strings.Contains(strings.TrimSuffix(key, "/"), "/") {
			t.Fatalf("%q means %q: a slash within a segment", name, key)
		}
		// A name that is understood is the only one of its key.
		if kind == "piece" || len(key) >= 80 || strings.TrimSuffix(key, "/") == "" {
			return
		}
		dirs, file := dirstore.PathOf(key)
		if kind == "directory" {
			file = dirs[len(dirs)-1]
		}
		if file != name {
			t.Fatalf("%q means %q, whose name is %q", name, key, file)
		}
	})
}

// rawPublish is the floor: the least system calls that publish a file durably.
func rawPublish(b *testing.B, dir string, n int, data []byte) {
	temp, path := filepath.Join(dir, "temp"), filepath.Join(dir, fmt.Sprint(n))
	f, err := os.Create(temp)
	if err != nil {
		b.Fatal(err)
	}
	_, werr := f.Write(data)
	if err := errors.Join(werr, f.Sync(), f.Close(), os.Rename(temp, path)); err != nil {
		b.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		data := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{}).Read(data)
		b.Run(fmt.Sprintf("store/%dKiB", size>>10), func(b *testing.B) {
			s := openIn(b, b.TempDir())
			b.SetBytes(int64(size))
			n := 0
			for b.Loop() {
				n++
				_, err := s.Put(b.Context(), objstore.PutRequest{
					Key: fmt.Sprintf("wal/1/7/%020d", n), Chunks: [][]byte{data}, CreateOnly: true,
					CRC32C: objstore.Checksum(data), HasCRC32C: true,
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("raw/%dKiB", size>>10), func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(int64(size))
			n := 0
			for b.Loop() {
				n++
				rawPublish(b, dir, n, data)
			}
		})
	}
}

func BenchmarkGetRange(b *testing.B) {
	s := openIn(b, b.TempDir())
	if _, err := s.Put(b.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{make([]byte, 1<<20)}}); err != nil {
		b.Fatal(err)
	}
	into := make([]byte, 64<<10)
	b.SetBytes(int64(len(into)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.GetRange(b.Context(), objstore.GetRangeRequest{Key: "k", Offset: 4096, Length: int64(len(into)), Into: into}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkList lists one page in the middle of a directory of 10,000 objects.
func BenchmarkList(b *testing.B) {
	dir := b.TempDir()
	s := openIn(b, dir)
	if err := put(b.Context(), s, "wal/00000~", "v"); err != nil {
		b.Fatal(err)
	}
	for n := range 10_000 { // without syncs: only their names matter
		if err := os.WriteFile(filepath.Join(dir, "wal", fmt.Sprintf("%05d~", n)), []byte("v"), 0o640); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		page, err := s.List(b.Context(), objstore.ListRequest{Prefix: "wal/", StartAfter: "wal/05000", Limit: 1000})
		if err != nil || len(page.Objects) != 1000 || !page.More {
			b.Fatal(len(page.Objects), err)
		}
	}
}
