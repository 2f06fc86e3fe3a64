package sqllog_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// tmpfs mounts a small file system of its own; only root can.
func tmpfs(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("LEFT OUT: mounting a small tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// A full disk is a clear error; nothing acknowledged is lost, and the log goes
// on by itself when there is room again.
func TestSQLiteFullDisk(t *testing.T) {
	dir := tmpfs(t, 2<<20)
	filler := filepath.Join(dir, "filler")
	url := "sqlite:" + filepath.Join(dir, "meta.db")
	l := openURL(t, url)
	fill(t, filler, 1<<20)
	var acked []metalog.Entry
	var err error
	for range 1000 {
		var es []metalog.Entry
		if es, err = l.Append(t.Context(), metalog.Append{Payloads: [][]byte{make([]byte, 20_000)}}); err != nil {
			break
		}
		acked = append(acked, es...)
	}
	if !errors.Is(err, mink.ErrUnavailable) && !errors.Is(err, mink.ErrUnknownOutcome) {
		t.Fatalf("appending to a full disk: %v", err)
	}
	wantText(t, err, "full")
	verify := func(l metalog.Log) {
		t.Helper()
		got, err := l.Read(t.Context(), 0, 10_000, 1<<30)
		check(t, err)
		if len(got) < len(acked) || len(acked) == 0 {
			t.Fatalf("%d acknowledged, %d left", len(acked), len(got))
		}
		for i, e := range acked {
			if got[i].Position() != e.Position() {
				t.Fatalf("entry %d changed", e.Index)
			}
		}
	}
	verify(l)
	check(t, unix.Unlink(filler))
	es, err := l.Append(t.Context(), metalog.Append{Payloads: [][]byte{make([]byte, 20_000)}})
	check(t, err)
	acked = append(acked, es...)
	check(t, l.Close())
	l = openURL(t, url)
	verify(l)
	check(t, l.Close())
}

func fill(t *testing.T, path string, n int) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY, 0o600)
	check(t, err)
	check(t, unix.Fallocate(fd, 0, 0, int64(n)))
	check(t, unix.Close(fd))
}

func TestSQLiteReadOnlyDisk(t *testing.T) {
	dir := tmpfs(t, 2<<20)
	remount := func(flags uintptr) { check(t, unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "")) }
	remount(unix.MS_RDONLY)
	err := openErr(t, "sqlite:"+filepath.Join(dir, "new.db"))
	wantErr(t, err, mink.ErrUnavailable)
	wantText(t, err, "writable for this user")
	remount(0)
	check(t, openErr(t, "sqlite:"+filepath.Join(dir, "meta.db")))
	remount(unix.MS_RDONLY)
	err = openErr(t, "sqlite:"+filepath.Join(dir, "meta.db"))
	wantErr(t, err, mink.ErrUnavailable)
	wantText(t, err, "writable for this user")
}
