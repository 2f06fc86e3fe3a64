package dirstore

import (
	"io"
	"time"
)

// Files is the file layer below a store: the few operations that it makes, so
// that a test can put a model of a disk there (core/fault.CrashFS). Names are
// absolute paths. Errors are those of package os: errors.Is knows fs.ErrNotExist,
// fs.ErrExist and the syscall.Errno. Safe for concurrent use.
type Files interface {
	// Create makes a new file to write; it must not exist.
	Create(name string) (File, error)
	// Open opens a file to read.
	Open(name string) (File, error)
	// Mkdir makes one directory.
	Mkdir(name string) error
	// Link makes newName another name of the file oldName; atomic; newName must
	// not exist.
	Link(oldName, newName string) error
	// Rename moves a file, over newName if that exists; atomic.
	Rename(oldName, newName string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// SyncAll makes everything durable on the file system that holds name.
	SyncAll(name string) error
	// ReadDir gives the names in a directory, in any order.
	ReadDir(name string) ([]string, error)
	// Stat describes a file or directory.
	Stat(name string) (FileInfo, error)
	// Lock takes an advisory lock on a file, which it makes if needed, until the
	// Closer is closed or the process ends. ok is false when another holds it.
	Lock(name string) (unlock io.Closer, ok bool, err error)
}

// File is an open file. One that Create made is written from its start to its end.
type File interface {
	io.Writer
	io.ReaderAt
	// Sync makes the content durable, not the name.
	Sync() error
	Stat() (FileInfo, error)
	Close() error
}

// FileInfo describes a file.
type FileInfo struct {
	Size     int64
	Modified time.Time
	Links    int // names that the file has
	Dir      bool
}

// cached is a File whose content the system caches in memory.
type cached interface {
	// DropCache advises the system to forget what is synced.
	DropCache()
}
