package dirstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

const (
	formatText = "mink directory store, format 1\n"
	lockSuffix = ".lock"
	openLock   = "open" + lockSuffix
)

// lockPoll is how often a held open.lock is tried again; it is held for
// milliseconds.
const lockPoll = 5 * time.Millisecond

// openSession makes the directories, cleans up behind the dead, and leaves this
// session's lock held. Sessions begin and get cleaned only under open.lock, so
// that a lock file without a holder always means a dead session.
func (s *Store) openSession(ctx context.Context) (err error) {
	if err := s.makeRoot(); err != nil {
		return s.explain("make", s.root, err)
	}
	foreign, err := s.checkFormat()
	if err != nil {
		return err
	}
	tmp := s.root + "/" + tempDir
	if err := s.files.Mkdir(tmp); err != nil && !errors.Is(err, fs.ErrExist) {
		return s.explain("make", tmp, err)
	}
	release, err := s.waitLock(ctx, tmp+"/"+openLock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release.Close()) }()
	if err := s.clean(tmp); err != nil {
		return s.explain("clean", tmp, err)
	}
	s.session = tmp + "/" + strings.ToLower(rand.Text())
	unlock, ok, err := s.files.Lock(s.session + lockSuffix)
	if err != nil {
		return s.explain("lock", s.session+lockSuffix, err)
	}
	if !ok {
		return fmt.Errorf("lock %s: %w: a new session's lock is held", s.session, objstore.ErrUnavailable)
	}
	s.unlock = unlock
	if err := s.startSession(ctx, foreign); err != nil {
		return errors.Join(err, s.closeSession())
	}
	return nil
}

func (s *Store) startSession(ctx context.Context, unmarked bool) error {
	if err := s.files.Mkdir(s.session); err != nil {
		return s.explain("make", s.session, err)
	}
	if !unmarked {
		return nil
	}
	// The marker is published like an object; that also proves that links work.
	temp, err := s.writeTemp(ctx, formatFile, false, func(f io.Writer) error {
		_, err := io.WriteString(f, formatText)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.files.Link(temp, s.root+"/"+formatFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return s.explainLink("mark", s.root, err)
	}
	if err := s.files.SyncDir(s.root); err != nil {
		return s.explain("sync", s.root, err)
	}
	return s.files.Remove(temp)
}

// makeRoot makes the store's directory with its parents, each durable in its own
// parent. The parent of the deepest one that was there is synced too: another run
// may have died between making and syncing it.
func (s *Store) makeRoot() error {
	var missing []string
	dir := s.root
	for {
		info, err := s.files.Stat(dir)
		if err == nil && !info.Dir {
			return fmt.Errorf("%s is not a directory: %w", dir, syscall.ENOTDIR)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, dir)
		dir = filepath.Dir(dir)
	}
	// Not ours, perhaps not even readable: whoever made it long ago synced it.
	if err := s.syncDir(filepath.Dir(dir), omitRootSync); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := s.files.Mkdir(missing[i]); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := s.syncDir(filepath.Dir(missing[i]), omitRootSync); err != nil {
			return err
		}
	}
	return nil
}

// checkFormat reads the marker, or finds that there is none yet in a directory
// that holds nothing else.
func (s *Store) checkFormat() (unmarked bool, err error) {
	f, err := s.files.Open(s.root + "/" + formatFile)
	if errors.Is(err, fs.ErrNotExist) {
		names, err := s.files.ReadDir(s.root)
		if err != nil {
			return false, s.explain("read", s.root, err)
		}
		for _, n := range names {
			if n == formatFile { // made meanwhile, by another that opens it
				return s.checkFormat()
			}
		}
		for _, n := range names {
			if n != tempDir && n != "lost+found" {
				return false, fmt.Errorf("%w: the directory holds %q but is not a Mink store; give an empty or a new one", objstore.ErrInvalid, n)
			}
		}
		return true, nil
	}
	if err != nil {
		return false, s.explain("read", formatFile, err)
	}
	defer func() { _ = f.Close() }() // only read
	text := make([]byte, len(formatText)+1)
	n, err := f.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, s.explain("read", formatFile, err)
	}
	if string(text[:n]) != formatText {
		return false, fmt.Errorf("%w: %s says %q, this version of Mink knows %q only", objstore.ErrInvalid, formatFile, text[:n], formatText)
	}
	return false, nil
}

func (s *Store) waitLock(ctx context.Context, name string) (io.Closer, error) {
	for {
		release, ok, err := s.files.Lock(name)
		if err != nil {
			return nil, s.explain("lock", name, err)
		}
		if ok {
			return release, nil
		}
		t := time.NewTimer(lockPoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("wait for %s, which another process holds: %w", name, ctx.Err())
		}
	}
}

// clean removes the files of dead sessions. open.lock is held.
func (s *Store) clean(tmp string) error {
	names, err := s.files.ReadDir(tmp)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, n := range names {
		if n != openLock {
			dirs[strings.TrimSuffix(n, lockSuffix)] = true
		}
	}
	for session := range dirs {
		dir := tmp + "/" + session
		unlock, ok, err := s.files.Lock(dir + lockSuffix)
		if err != nil {
			return err
		}
		if !ok {
			continue // it lives
		}
		err = s.removeSession(dir)
		if err := errors.Join(err, unlock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// removeSession removes a session's files, then its lock file. A file with a
// second name is an object that was published but perhaps not synced; taking the
// temporary name away would take that sign away, so everything is synced first.
func (s *Store) removeSession(dir string) error {
	names, err := s.files.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.omit&omitOpenSync == 0 {
		for _, n := range names {
			info, err := s.files.Stat(dir + "/" + n)
			if err != nil {
				return err
			}
			if info.Links > 1 {
				if err := s.files.SyncAll(s.root); err != nil {
					return err
				}
				break
			}
		}
	}
	for _, n := range names {
		if err := s.files.Remove(dir + "/" + n); err != nil {
			return err
		}
	}
	for _, name := range []string{dir, dir + lockSuffix} {
		if err := s.files.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *Store) closeSession() error {
	err := s.removeSession(s.session)
	return errors.Join(err, s.unlock.Close())
}

func (s *Store) tempName() string {
	return s.session + "/" + strconv.FormatUint(s.temp.Add(1), 10)
}
