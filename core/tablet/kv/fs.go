package kv

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// workFS is the local file system without syncs: a store does not outlive its
// process, so that nothing is gained by waiting for the disk.
type workFS struct{ vfs.FS }

func (f workFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return unsynced(f.FS.Create(name, c))
}

func (f workFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return unsynced(f.FS.OpenReadWrite(name, c, o...))
}

func (f workFS) OpenDir(name string) (vfs.File, error) { return unsynced(f.FS.OpenDir(name)) }

func (f workFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return unsynced(f.FS.ReuseForWrite(from, to, c))
}

func (f workFS) Unwrap() vfs.FS { return f.FS }

func unsynced(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return workFile{f}, nil
}

type workFile struct{ vfs.File }

func (workFile) Sync() error                { return nil }
func (workFile) SyncData() error            { return nil }
func (workFile) SyncTo(int64) (bool, error) { return false, nil }

// dirExists reports that there is something in a directory.
func dirExists(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return false, nil
	}
	return len(entries) > 0, err
}
