// Package dirstore is an object store in a local directory: the default of a
// single node, and good for several processes on one machine at once.
//
// A Put that returned is on the disk. The order is: write a temporary file, sync
// it, make and sync missing directories, give the file its name with link(2)
// (create-only: exactly one wins) or rename(2), sync the directory, remove the
// temporary name. So an object is absent or whole, whatever happens when.
//
//	DIR/%this-is-a-mink-store     format version
//	DIR/%tmp/open.lock            held while a session opens and cleans
//	DIR/%tmp/<session>.lock       held as long as the session's process lives
//	DIR/%tmp/<session>/<n>        files being written
//	DIR/...                       objects; names.go says how keys map to names
//
// The temporary name has a second purpose: until it is removed the object has two
// links, which tells every reader, in this process or another, that the object's
// name may not be durable yet. A reader syncs the directory before it shows such
// an object, for what a reader has seen must survive a power loss too. (A backup
// by hard links, "cp -al", makes every read pay for such a sync.)
//
// Directories are never removed, so a directory known to be durable stays so.
// Objects are not removed by age; leftovers of dead sessions are, by the next Open.
//
// Refused: compare-and-swap, file systems without hard links.
package dirstore

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
	"golang.org/x/sync/semaphore"
)

// Config of a directory store.
type Config struct {
	// Dir is the directory; made if missing. Everything under it must lie on one
	// file system. Required.
	Dir string
	// ListPageMax is the most keys that one List answers. Every page reads the
	// directories that it touches anew. Default 1000.
	ListPageMax int
	// OpsMax bounds the calls that are at work at once, each of which occupies an
	// operating system thread while the disk is busy; further ones wait. Default 64.
	OpsMax int
	// Files is the file layer; nil: the operating system's.
	Files Files
}

// Default lacks only Dir.
func Default() Config { return Config{ListPageMax: 1000, OpsMax: 64, Files: OSFiles{}} }

// Validate refuses an empty Dir and limits below 1.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return fmt.Errorf("directory store: %w: no directory given", objstore.ErrInvalid)
	case c.ListPageMax < 1 || c.OpsMax < 1:
		return fmt.Errorf("directory store: %w: list_page_max %d and ops_max %d must be at least 1", objstore.ErrInvalid, c.ListPageMax, c.OpsMax)
	}
	return nil
}

// Store implements objstore.Store and objstore.Multiparter. A context is looked at
// between file operations; none of those can be interrupted.
type Store struct {
	cfg   Config
	root  string // absolute
	files Files
	omit  omission

	session string // directory of this session's temporary files
	unlock  io.Closer
	temp    atomic.Uint64 // names in it

	ops    *semaphore.Weighted // Close takes all of it
	closed atomic.Bool

	mu struct { // never held across I/O
		sync.Mutex
		durable map[string]struct{} // directories whose name is known to be synced
		uploads map[objstore.UploadID]*upload
	}
}

var (
	_ objstore.Store       = (*Store)(nil)
	_ objstore.Multiparter = (*Store)(nil)
)

// omission names a step to leave out. Only tests set it: leaving out any must
// make the crash tests fail.
type omission uint16

const (
	omitFileSync     omission = 1 << iota // sync of the temporary file
	omitPublishSync                       // sync of the object's directory
	omitParentSync                        // sync of a new directory's parent
	omitExistingSync                      // the same where another made the directory
	omitDeleteSync                        // sync of the directory after a delete
	omitReadSync                          // sync before showing a fresh object
	omitOpenSync                          // sync before removing leftovers
	omitRootSync                          // sync of the store's own directory's parent
	omitSecondLink                        // the overwrite's sign that it is not durable
)

// durableMax bounds the memory of the set of durable directories.
const durableMax = 1 << 16

// Open makes or opens the store in cfg.Dir and removes what dead sessions left
// behind. Errors: ErrReadOnly, ErrUnauthorized, ErrNoSpace, ErrInvalid for a
// directory that holds something else, ErrUnimplemented for a file system without
// hard links.
func Open(ctx context.Context, cfg Config) (*Store, error) { return open(ctx, cfg, 0) }

func open(ctx context.Context, cfg Config, omit omission) (*Store, error) {
	def := Default()
	if cfg.Files == nil {
		cfg.Files = def.Files
	}
	if cfg.ListPageMax == 0 {
		cfg.ListPageMax = def.ListPageMax
	}
	if cfg.OpsMax == 0 {
		cfg.OpsMax = def.OpsMax
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("directory store %s: %w: %w", cfg.Dir, objstore.ErrInvalid, err)
	}
	s := &Store{cfg: cfg, root: root, files: cfg.Files, omit: omit, ops: semaphore.NewWeighted(int64(cfg.OpsMax))}
	s.mu.durable = map[string]struct{}{}
	s.mu.uploads = map[objstore.UploadID]*upload{}
	if err := s.openSession(ctx); err != nil {
		return nil, fmt.Errorf("open directory store %s: %w", root, err)
	}
	return s, nil
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{
		CreateOnlyPut: true,
		ListPageMax:   s.cfg.ListPageMax,
		PutSizeMax:    math.MaxInt64,
		PartSizeMin:   1,
		PartSizeMax:   math.MaxInt64,
		PutLatency:    time.Millisecond,
		Local:         true,
	}
}

// Alloc implements objstore.Store.
func (s *Store) Alloc(n int) objstore.Buffer { return objstore.HeapAlloc(n) }

// begin admits a call; end must follow when it answers nil.
func (s *Store) begin(ctx context.Context, op, key string) error {
	if err := objstore.ContextError(ctx, op, key); err != nil {
		return err
	}
	if s.closed.Load() { // Close may hold the semaphore for good
		return s.closedError(op, key)
	}
	if err := s.ops.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("%s %q: %w", op, key, err)
	}
	if s.closed.Load() {
		s.end()
		return s.closedError(op, key)
	}
	return nil
}

func (s *Store) end() { s.ops.Release(1) }

func (s *Store) closedError(op, key string) error {
	return fmt.Errorf("%s %q: %w: the directory store is closed", op, key, objstore.ErrUnavailable)
}

// Close implements objstore.Store: it waits for the calls at work, then removes
// this session's temporary files.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	// Background: Close has no context, and calls end by themselves.
	if err := s.ops.Acquire(context.Background(), int64(s.cfg.OpsMax)); err != nil {
		return err
	}
	defer s.ops.Release(int64(s.cfg.OpsMax)) // waiting calls see closed and leave
	return s.closeSession()
}

// pathTo gives the directory and the path of a key's file.
func (s *Store) pathTo(key string) (dir, path string) {
	dirs, file := pathOf(key)
	dir = s.root
	for _, d := range dirs {
		dir += "/" + d
	}
	return dir, dir + "/" + file
}

// syncDir makes names in dir durable, unless a test omits this use of it.
func (s *Store) syncDir(dir string, use omission) error {
	if s.omit&use != 0 {
		return nil
	}
	return s.files.SyncDir(dir)
}
