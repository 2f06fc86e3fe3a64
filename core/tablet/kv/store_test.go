package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/goleak"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bucket7 = mink.BucketRef{Table: 7, Partition: 8, Index: 9}

func newShared(t testing.TB, change ...func(*SharedConfig)) *Shared {
	t.Helper()
	cfg := DefaultShared()
	cfg.CacheBytes, cfg.MemtableBytes = 32<<20, 256<<10
	for _, c := range change {
		c(&cfg)
	}
	s, err := NewShared(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func mustOpen(t testing.TB, sh *Shared, dir string) (*store, meta) {
	t.Helper()
	s, m, err := sh.openStore(dir, bucket7, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, m
}

func mustClose(t testing.TB, s *store) {
	t.Helper()
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

func testKey(i int) []byte { return rowKey(nil, binary.BigEndian.AppendUint64(nil, uint64(i))) }

// put stores rows from..to-1 with the value, up to offset to.
func put(t testing.TB, s *store, from, to int, value string) {
	t.Helper()
	b := s.newBatch(0)
	for i := from; i < to; i++ {
		if err := b.set(testKey(i), fmt.Append(nil, value, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.commit(b, meta{flushed: mink.Offset(to), rows: int64(to)}); err != nil {
		t.Fatal(err)
	}
}

func stored(t testing.TB, s *store, i int) string {
	t.Helper()
	v, c, err := s.db.Get(testKey(i))
	if errors.Is(err, pebble.ErrNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	return string(v)
}

// A store that was closed in order has what it had.
func TestStoreReopens(t *testing.T) {
	sh := newShared(t)
	dir := filepath.Join(t.TempDir(), "s")
	s, m := mustOpen(t, sh, dir)
	if m != (meta{}) {
		t.Fatalf("a new store has %+v", m)
	}
	put(t, s, 0, 10_000, "v")
	mustClose(t, s)
	s, m = mustOpen(t, sh, dir)
	defer mustClose(t, s)
	if want := (meta{10_000, 10_000}); m != want {
		t.Fatalf("%+v, want %+v", m, want)
	}
	if v := stored(t, s, 9_999); v != "v9999" {
		t.Fatal(v)
	}
	if n, err := rowCount(s.db, func() error { return nil }); n != 10_000 || err != nil {
		t.Fatal(n, err)
	}
}

// A checkpoint holds what was committed before it, and what its meta says, however
// the store goes on.
func TestStoreCheckpoint(t *testing.T) {
	sh := newShared(t)
	dir := t.TempDir()
	s, _ := mustOpen(t, sh, filepath.Join(dir, "s"))
	defer mustClose(t, s)
	put(t, s, 0, 5_000, "a")
	cp, err := s.checkpoint(filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, 7_000, "b")
	if cp.Offset != 5_000 || cp.Rows != 5_000 {
		t.Fatalf("%+v", cp)
	}
	linked := 0
	for _, f := range cp.Files {
		info, err := os.Stat(filepath.Join(dir, "c", f.Name))
		if err != nil || info.Size() != f.Size {
			t.Fatal(f, info, err)
		}
		if strings.HasSuffix(f.Name, ".sst") {
			linked++
		}
	}
	if linked == 0 {
		t.Fatal("a checkpoint without a table file")
	}
	c, m := mustOpen(t, sh, filepath.Join(dir, "c"))
	defer mustClose(t, c)
	if m != (meta{5_000, 5_000}) || stored(t, c, 0) != "a0" || stored(t, c, 6_000) != "" {
		t.Fatalf("%+v %q %q", m, stored(t, c, 0), stored(t, c, 6_000))
	}
}

func TestStoreOfAnotherBucket(t *testing.T) {
	sh := newShared(t)
	dir := filepath.Join(t.TempDir(), "s")
	s, _ := mustOpen(t, sh, dir)
	mustClose(t, s)
	other := bucket7
	other.Index++
	if _, _, err := sh.openStore(dir, other, nil); !errors.Is(err, mink.ErrCorrupt) {
		t.Fatal(err)
	}
}

// Damaged table files and a directory without a meta are corrupt, whoever reads.
func TestStoreCorrupt(t *testing.T) {
	sh := newShared(t)
	dir := filepath.Join(t.TempDir(), "s")
	s, _ := mustOpen(t, sh, dir)
	put(t, s, 0, 20_000, "some value that is long enough for many blocks ")
	mustClose(t, s)
	files, _ := filepath.Glob(filepath.Join(dir, "*.sst"))
	if len(files) == 0 {
		t.Fatal("no table files")
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i := 100; i < len(b)/2; i += 512 {
			b[i] ^= 0x55
		}
		if err := os.WriteFile(f, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var told []error
	var mu sync.Mutex
	s, _, err := sh.openStore(dir, bucket7, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, err)
	})
	if err == nil { // the meta's block may be a good one
		_, err = rowCount(s.db, func() error { return nil })
		if cerr := s.close(); cerr != nil && !errors.Is(cerr, mink.ErrCorrupt) {
			t.Error(cerr)
		}
	}
	if !errors.Is(err, mink.ErrCorrupt) {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 1 || !errors.Is(told[0], mink.ErrCorrupt) {
		t.Fatalf("told %v", told)
	}
}

func TestMeta(t *testing.T) {
	m := meta{flushed: 1 << 40, rows: -1}
	b := m.encode(nil, bucket7)
	if got, err := decodeMeta(b, bucket7); got != m || err != nil {
		t.Fatal(got, err)
	}
	for n := range b {
		if _, err := decodeMeta(b[:n], bucket7); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
}

// All stores together compact within the node's bound, and each of them gets its
// turn: none is left with files that it should have merged.
func TestCompactionsAreBounded(t *testing.T) {
	sh := newShared(t, func(c *SharedConfig) { c.CompactionsMax, c.MemtableBytes = 1, 64<<10 })
	var wg sync.WaitGroup
	var stores []*store
	for i := range 8 {
		s, _ := mustOpen(t, sh, filepath.Join(t.TempDir(), fmt.Sprint(i)))
		defer mustClose(t, s)
		stores = append(stores, s)
	}
	for _, s := range stores {
		wg.Go(func() {
			for round := range 40 {
				put(t, s, 0, 3000, fmt.Sprint(round, " a value of some length "))
				if n := sh.compact.count(); n > 1 {
					t.Errorf("%d compactions at a time", n)
				}
			}
			if err := s.db.Flush(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, s := range stores {
		for { // compactions end by themselves
			m := s.db.Metrics()
			if m.Compact.NumInProgress == 0 && m.Levels[0].Sublevels < 8 {
				if m.Compact.Count == 0 {
					t.Errorf("store %d never compacted", i)
				}
				break
			}
			if t.Context().Err() != nil {
				t.Fatalf("store %d: %s", i, m)
			}
		}
	}
}

// Every table file fits a single Put of a store without multipart uploads, and a bucket of
// a TiB in a snapshot.
func TestTableFilesFitOnePut(t *testing.T) {
	o := newShared(t).options(&store{bucket: bucket7, failed: &failure{}})
	o.EnsureDefaults()
	for level, size := range o.TargetFileSizes {
		if size < 4<<20 || 2*size > kvsnap.Default().WholeBytesMax {
			t.Errorf("level %d: files of %d bytes", level, size)
		}
	}
	if last := o.TargetFileSizes[len(o.TargetFileSizes)-1]; last*kvplan.FilesMax < 1<<40 {
		t.Errorf("%d files of %d bytes", kvplan.FilesMax, last)
	}
}
