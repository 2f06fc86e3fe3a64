package kvsnap

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/builtin/dirstore"
)

// A bucket of 256 MiB in table files of 8 MiB, on a directory store: what a snapshot
// without reuse and a restore cost, with the floor of each: reading and hashing the
// files, and copying them.
func BenchmarkSnapshot256MiB(b *testing.B) {
	const files, size = 32, 8 << 20
	cfg := dirstore.Default()
	cfg.Dir = b.TempDir()
	store, err := dirstore.Open(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	l := local{"MANIFEST-000001": content(1, 40<<10), "OPTIONS-000002": content(2, 4<<10)}
	for i := range files {
		l[fmt.Sprintf("%06d.sst", i)] = content(uint64(i), size)
	}
	dir := l.write(b, b.TempDir())
	var r Result
	b.Run("upload", func(b *testing.B) {
		b.SetBytes(files * size)
		for i := 0; b.Loop(); i++ {
			u, err := NewUploader(Default(), store, testBucket, 1, uint64(b.N*1000+i+1))
			if err != nil {
				b.Fatal(err)
			}
			if r, err = u.Upload(b.Context(), dir, 1, 1, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.SetBytes(files * size)
		for b.Loop() {
			to := filepath.Join(b.TempDir(), "to")
			if _, err := Restore(b.Context(), Default(), store, testBucket, r.Snapshot, to); err != nil {
				b.Fatal(err)
			}
			if err := os.RemoveAll(to); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hash", func(b *testing.B) {
		b.SetBytes(files * size)
		for b.Loop() {
			for _, data := range l {
				contentOf(data)
			}
		}
	})
}
