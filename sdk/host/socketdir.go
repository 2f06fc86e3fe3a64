package host

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// socketDirPrefix and a number are a socket's directory. No plugin's name begins so:
// its files may lie in the temporary directory too.
const socketDirPrefix = "mink-socket-"

// socketDir holds a plugin's socket. It is this user's alone and locked while the
// host lives, so that another host can tell what a killed one left behind.
type socketDir struct {
	path string
	lock *os.File
}

// tempMax is the longest temporary directory that leaves room for a socket's name:
// the system takes 103 bytes for all of it.
const tempMax = 103 - len(socketDirPrefix+"4294967295/plugin-dir4294967295/plugin4294967295") - 1

// newSocketDir makes one, and removes those whose host is gone.
func newSocketDir() (*socketDir, error) {
	temp := os.TempDir()
	if len(temp) > tempMax {
		temp = "/tmp"
	}
	sweepSocketDirs(temp)
	path, err := os.MkdirTemp(temp, socketDirPrefix) // mode 0700
	if err != nil {
		return nil, err
	}
	f, err := lockDir(path)
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, err
	}
	return &socketDir{path: path, lock: f}, nil
}

func (d *socketDir) remove() {
	_ = os.RemoveAll(d.path)
	_ = d.lock.Close()
}

// lockDir fails when somebody holds the lock. The kernel releases it with the
// process.
func lockDir(path string) (*os.File, error) {
	f, err := os.Open(path) //nolint:gosec // made here, or found by its prefix
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { //nolint:gosec // a descriptor fits
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweepAge keeps away from directories that are being made and not locked yet.
const sweepAge = time.Minute

func sweepSocketDirs(temp string) {
	dirs, _ := filepath.Glob(filepath.Join(temp, socketDirPrefix+"*")) // the pattern is well formed
	for _, path := range dirs {
		_, notOurs := strconv.ParseUint(filepath.Base(path)[len(socketDirPrefix):], 10, 64)
		info, err := os.Lstat(path)
		if err != nil || notOurs != nil || !info.IsDir() || time.Since(info.ModTime()) < sweepAge {
			continue
		}
		if f, err := lockDir(path); err == nil {
			_ = os.RemoveAll(path)
			_ = f.Close()
		}
	}
}
