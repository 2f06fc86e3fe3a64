package kv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/mink-project/mink/sdk/mink"
)

// workFS is the local file system without syncs: a store does not outlive its
// process, so that nothing is gained by waiting for the disk.
//
// The first write that fails (a full disk, a directory that somebody removed) ends the
// store. What is written from then on goes nowhere, and succeeds: Pebble tries a failed
// flush again without a pause and without end, and commits, checkpoints and the end of
// the store would wait for it. Manifests are not written then either: what the directory
// has is as of an earlier moment, if it opens at all. The write to a manifest that fails
// first succeeds, too: Pebble's manifest would keep its error for ever, and the flush in
// an Open, which nobody can end, with it.
type workFS struct {
	vfs.FS
	failed *failure
}

func (f workFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if f.failed.is() {
		return lostFile{}, nil
	}
	file, err := f.FS.Create(name, c)
	if strings.HasPrefix(filepath.Base(name), "MANIFEST-") {
		return f.manifest(file, err)
	}
	return f.unsynced(file, err)
}

func (f workFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.unsynced(f.FS.OpenReadWrite(name, c, o...))
}

func (f workFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return workFile{file, f.failed}, nil
}

func (f workFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.unsynced(f.FS.ReuseForWrite(from, to, c))
}

func (f workFS) Unwrap() vfs.FS { return f.FS }

func (f workFS) unsynced(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, f.failed.write(err)
	}
	return workFile{file, f.failed}, nil
}

func (f workFS) manifest(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		_ = f.failed.write(err)
		return lostFile{}, nil
	}
	return manifestFile{workFile{file, f.failed}}, nil
}

// manifestFile takes everything: a write that fails ends the store, without Pebble's
// knowing.
type manifestFile struct{ workFile }

func (f manifestFile) Write(p []byte) (int, error) {
	_, _ = f.workFile.Write(p)
	return len(p), nil
}

// write ends the store for a write that failed.
func (f *failure) write(err error) error {
	f.set(fmt.Errorf("%w: its disk takes no more: %w", mink.ErrUnavailable, err))
	return err
}

type workFile struct {
	vfs.File
	failed *failure
}

func (f workFile) Write(p []byte) (int, error) {
	if f.failed.is() {
		return len(p), nil
	}
	n, err := f.File.Write(p)
	if err != nil {
		err = f.failed.write(err)
	}
	return n, err
}

func (f workFile) WriteAt(p []byte, off int64) (int, error) {
	if f.failed.is() {
		return len(p), nil
	}
	n, err := f.File.WriteAt(p, off)
	if err != nil {
		err = f.failed.write(err)
	}
	return n, err
}

func (workFile) Sync() error                { return nil }
func (workFile) SyncData() error            { return nil }
func (workFile) SyncTo(int64) (bool, error) { return false, nil }

// lostFile takes what is written to a store that has ended. It is not read.
type lostFile struct{ vfs.File }

func (lostFile) Close() error                           { return nil }
func (lostFile) Write(p []byte) (int, error)            { return len(p), nil }
func (lostFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (lostFile) Read([]byte) (int, error)               { return 0, os.ErrNotExist }
func (lostFile) ReadAt([]byte, int64) (int, error)      { return 0, os.ErrNotExist }
func (lostFile) Stat() (vfs.FileInfo, error)            { return nil, os.ErrNotExist }
func (lostFile) Preallocate(int64, int64) error         { return nil }
func (lostFile) Prefetch(int64, int64) error            { return nil }
func (lostFile) Sync() error                            { return nil }
func (lostFile) SyncData() error                        { return nil }
func (lostFile) SyncTo(int64) (bool, error)             { return false, nil }
func (lostFile) Fd() uintptr                            { return vfs.InvalidFd }

// dirExists reports that there is something in a directory.
func dirExists(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return false, nil
	}
	return len(entries) > 0, err
}
