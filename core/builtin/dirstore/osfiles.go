package dirstore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/gofrs/flock"
)

// Permissions: the objects are data that only the node's user and group need.
const (
	filePerm = 0o640
	dirPerm  = 0o750
)

// OSFiles is the operating system's file layer.
type OSFiles struct{}

var _ Files = OSFiles{}

// Create implements Files.
func (OSFiles) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, filePerm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open implements Files.
func (OSFiles) Open(name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Mkdir implements Files.
func (OSFiles) Mkdir(name string) error { return os.Mkdir(name, dirPerm) }

// Link implements Files.
func (OSFiles) Link(oldName, newName string) error { return os.Link(oldName, newName) }

// Rename implements Files.
func (OSFiles) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Remove implements Files.
func (OSFiles) Remove(name string) error { return os.Remove(name) }

// SyncDir implements Files.
func (OSFiles) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// SyncAll implements Files.
func (OSFiles) SyncAll(name string) error { return syncFileSystem(name) }

// ReadDir implements Files.
func (OSFiles) ReadDir(name string) ([]string, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

// Stat implements Files.
func (OSFiles) Stat(name string) (FileInfo, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return FileInfo{}, err
	}
	return infoOf(fi)
}

func infoOf(fi fs.FileInfo) (FileInfo, error) {
	sys, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return FileInfo{}, fmt.Errorf("stat %s: %w: this system does not count links", fi.Name(), errors.ErrUnsupported)
	}
	return FileInfo{Size: fi.Size(), Modified: fi.ModTime(), Links: int(sys.Nlink), Dir: fi.IsDir()}, nil
}

// Lock implements Files with flock(2).
func (OSFiles) Lock(name string) (io.Closer, bool, error) {
	l := flock.New(name, flock.SetPermissions(filePerm))
	ok, err := l.TryLock()
	if err != nil || !ok {
		return nil, false, errors.Join(err, l.Close())
	}
	return l, true, nil
}

type osFile struct{ *os.File }

func (f osFile) Stat() (FileInfo, error) {
	fi, err := f.File.Stat()
	if err != nil {
		return FileInfo{}, err
	}
	return infoOf(fi)
}
