package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mink-project/mink/sdk/sink"
)

// The four steps that make a change of the disk survive a power loss: write a file
// of another name, fsync it, rename it, fsync the directory.

// writeFile makes a file whole: readers see all of it or none.
func (s *jsonl) writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return ioError(err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, s.sync(f), f.Close())
	if err == nil {
		err = s.rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return ioError(err)
	}
	return s.syncDir(filepath.Dir(path))
}

// did tells a test of a step that matters for durability.
func (s *jsonl) did(step, path string) {
	if s.trace != nil {
		s.trace(step, path)
	}
}

func (s *jsonl) sync(f *os.File) error {
	err := f.Sync()
	s.did("sync", f.Name())
	return err
}

func (s *jsonl) rename(from, to string) error {
	s.did("rename", from)
	err := os.Rename(from, to)
	s.did("renamed to", to)
	return err
}

func (s *jsonl) syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return ioError(err)
	}
	err = errors.Join(d.Sync(), d.Close())
	s.did("sync directory", path)
	return ioError(err)
}

// makeDirs makes dir and what is missing above it, up to the root, for good.
func (s *jsonl) makeDirs(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return ioError(err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if err := s.syncDir(d); err != nil || d == s.dir || d == filepath.Dir(d) {
			return err
		}
	}
}

// discard removes a directory at once for everybody, and then its files. Removed
// file by file in its place, another process could still rename half of it.
func (s *jsonl) discard(dir string) error {
	trash, err := os.MkdirTemp(filepath.Join(s.dir, trashName), "")
	if err != nil {
		return ioError(err)
	}
	if err := os.Rename(dir, filepath.Join(trash, "it")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError(err)
	}
	if err := s.syncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, sink.ErrNotExist) {
		return err
	}
	return ioError(os.RemoveAll(trash))
}

// diskError is an error of the file system with the contract's name.
type diskError struct{ is, cause error }

func (e *diskError) Error() string   { return e.cause.Error() }
func (e *diskError) Unwrap() []error { return []error{e.is, e.cause} }

func ioError(err error) error {
	switch {
	case err == nil, errors.As(err, new(*diskError)):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return &diskError{sink.ErrNotExist, err}
	case errors.Is(err, fs.ErrPermission):
		return &diskError{sink.ErrUnauthorized, err}
	case isFull(err):
		return &diskError{sink.ErrNoSpace, err}
	}
	return &diskError{sink.ErrUnavailable, err}
}
