package dirstore_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestRealFullThenReadOnlyDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("mink-test", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := openIn(t, filepath.Join(dir, "store"))
	if err := put(t.Context(), s, "old", "value"); err != nil {
		t.Fatal(err)
	}
	wantIs(t, put(t.Context(), s, "new", strings.Repeat("x", 300<<10)), objstore.ErrNoSpace, "free space")
	if err := put(t.Context(), s, "fits", strings.Repeat("x", 100<<10)); err != nil {
		t.Fatal(err)
	}
	// The same disk, made read-only below an open store.
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	wantIs(t, put(t.Context(), s, "more", "x"), objstore.ErrReadOnly, "remount")
	if _, err := s.Head(t.Context(), "fits"); err != nil {
		t.Fatalf("reading goes on: %v", err)
	}
	_, err := dirstore.Open(t.Context(), dirstore.Config{Dir: filepath.Join(dir, "store")})
	wantIs(t, err, objstore.ErrReadOnly, "remount")
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
