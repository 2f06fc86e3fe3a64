package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// store is one table's directory: a file of rows per round, and state.json, which
// says which of them are committed.
type store struct{ dir string }

// state is what changes in one step: the last committed round and its rows.
type state struct {
	Committed sink.Committed `json:"committed"`
	Files     []string       `json:"files"`
}

func (s store) create() error { return unavailable(os.MkdirAll(s.dir, 0o750)) }

// transact shows the state to change and, when that answers true, replaces it.
// One process at a time is in it; one that is killed leaves the old state or the
// new one.
func (s store) transact(ctx context.Context, change func(*state) (bool, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = lock.Close() }() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return unavailable(err)
	}
	var now state
	path := filepath.Join(s.dir, "state.json")
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &now)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s: %w", sink.ErrCorrupt, path, err)
	}
	changed, err := change(&now)
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
		return unavailable(err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return unavailable(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return unavailable(err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil { // a power loss may undo the rename
		return fmt.Errorf("%w: %w", sink.ErrUnknownOutcome, err)
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

// stagedName sorts by fence.
func stagedName(fence mink.LeaseEpoch, round sink.RoundID) string {
	return fmt.Sprintf("%019d-%s.arrow", fence, round)
}

// staged looks whether a prepared file is there.
func (s store) staged(name []byte) error {
	if filepath.Base(string(name)) != string(name) {
		return fmt.Errorf("%w: %.80q is not what Prepare answered", sink.ErrInvalid, name)
	}
	if _, err := os.Stat(filepath.Join(s.dir, string(name))); err != nil {
		return fmt.Errorf("%w: %w", sink.ErrNotExist, err)
	}
	return nil
}

// removeStaged removes what is not committed, of fences up to the given one.
func (s store) removeStaged(now *state, fence mink.LeaseEpoch) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return unavailable(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".arrow") || slices.Contains(now.Files, name) || name >= stagedName(fence+1, "") {
			continue
		}
		err = errors.Join(err, os.Remove(filepath.Join(s.dir, name)))
	}
	return unavailable(err)
}

func (s store) readFile(name string, yield func(arrow.RecordBatch) bool) error {
	f, err := os.Open(filepath.Join(s.dir, name))
	if err != nil {
		return fmt.Errorf("%w: %w", sink.ErrCorrupt, err)
	}
	defer func() { _ = f.Close() }()
	r, err := ipc.NewReader(f)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", sink.ErrCorrupt, name, err)
	}
	defer r.Release()
	for r.Next() {
		if !yield(r.RecordBatch()) {
			break
		}
	}
	return r.Err()
}

// unavailable gives an error of the file system a name of the contract.
func unavailable(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w", sink.ErrNoSpace, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", sink.ErrNotExist, err)
	}
	return fmt.Errorf("%w: %w", sink.ErrUnavailable, err)
}
