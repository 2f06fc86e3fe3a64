package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/mink-project/mink/sdk/catalog"
)

// store is a directory with one file, catalog.json, which has everything.
type store struct{ dir string }

// state maps namespaces, by their levels as JSON, to what is in them.
type state map[string]*namespace

type namespace struct {
	Levels     []string          `json:"levels"`
	Properties map[string]string `json:"properties"`
	Tables     map[string]string `json:"tables"` // name -> location of the metadata
}

// transact shows the state to change and, when that answers true, replaces it. One
// process at a time is in it; one that is killed leaves the old state or the new one.
func (s store) transact(ctx context.Context, change func(state) (bool, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	defer func() { _ = lock.Close() }() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	now := state{}
	path := filepath.Join(s.dir, "catalog.json")
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &now)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s: %w", catalog.ErrCorrupt, path, err)
	}
	changed, err := change(now)
	if err != nil || !changed {
		return err
	}
	if data, err = json.Marshal(now); err != nil {
		return err
	}
	return replace(path, data)
}

func replace(path string, data []byte) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil { // a power loss may undo the rename
		return fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
