package fault

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// CrashFS models a disk under a kernel. Each process that uses it has its own
// Process, which can be killed: what it did so far stays, in the kernel's memory,
// for other processes to see. A power loss kills all and leaves what was synced:
//
//   - a file's content as of its last Sync (none: an empty file);
//   - a directory's names as of its last SyncDir; a directory that no synced name
//     leads to is gone, with everything in it.
//
// Whatever was not synced may still have reached the disk: Survival says how
// likely, each name and each 512-byte sector by itself, in any combination. Real
// file systems promise more (order, renames that move two names at once); code that
// is right here does not lean on that.
type CrashFS struct {
	seed uint64

	mu struct {
		sync.Mutex
		root     *inode
		next     uint64 // inode ids
		losses   uint64 // power losses so far
		live     map[*Process]struct{}
		locks    map[string]*Process
		capacity int64 // 0: no limit
		used     int64
		fail     func(FileOp, string) error
	}
}

// FileOp is one kind of file operation.
type FileOp string

// The file operations.
const (
	FileCreate   FileOp = "create"
	FileOpen     FileOp = "open"
	FileMkdir    FileOp = "mkdir"
	FileLink     FileOp = "link"
	FileRename   FileOp = "rename"
	FileRemove   FileOp = "remove"
	FileSyncDir  FileOp = "syncdir"
	FileSyncAll  FileOp = "syncall"
	FileReadDir  FileOp = "readdir"
	FileStat     FileOp = "stat"
	FileLock     FileOp = "lock"
	FileWrite    FileOp = "write"
	FileTruncate FileOp = "truncate"
	FileSync     FileOp = "sync"
	FileRead     FileOp = "read"
)

// changes says that the operation changes the disk or what is durable on it: the
// points at which a crash makes a difference.
func (o FileOp) changes() bool {
	return !slices.Contains([]FileOp{FileOpen, FileReadDir, FileStat, FileLock, FileRead}, o)
}

// ErrKilled is what a killed process gets from every file operation.
var ErrKilled = errors.New("the process was killed")

// inode is a file or a directory.
type inode struct {
	id       uint64
	links    int
	modified time.Time

	data, durable []byte // file: content, and as of the last sync

	dir                     bool
	entries, durableEntries map[string]*inode
}

// NewCrashFS makes an empty disk; seed decides what survives a power loss by luck.
func NewCrashFS(seed uint64) *CrashFS {
	c := &CrashFS{seed: seed}
	c.mu.live = map[*Process]struct{}{}
	c.mu.locks = map[string]*Process{}
	c.mu.root = c.newInode(true)
	return c
}

// newInode needs the lock, or nobody else to know c.
func (c *CrashFS) newInode(dir bool) *inode {
	c.mu.next++
	n := &inode{id: c.mu.next, links: 1, modified: time.Now(), dir: dir}
	if dir {
		n.entries, n.durableEntries = map[string]*inode{}, map[string]*inode{}
	}
	return n
}

// SetCapacity makes writes fail with ENOSPC that would take the content of all
// files over so many bytes; 0: no limit.
func (c *CrashFS) SetCapacity(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.capacity = bytes
}

// Fail calls hook before every operation of every process; the operation fails
// with the error that it answers. nil: none. hook must not block.
func (c *CrashFS) Fail(hook func(op FileOp, name string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.fail = hook
}

// Survival is how likely that survives a power loss which was not synced, in 0..1.
type Survival struct {
	Names   float64 // each changed name of a directory
	Sectors float64 // each changed sector of a file, and a changed length
}

// PowerLoss kills all processes and reverts the disk to what was synced, give or
// take what survives by luck. What is then there is durable.
func (c *CrashFS) PowerLoss(luck Survival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.mu.live {
		p.die()
	}
	c.mu.losses++
	c.mu.used = 0
	seen := map[*inode]bool{}
	c.revert(c.mu.root, luck, seen)
}

// coin needs the lock. It depends on the inodes, not on names: those of temporary
// files may be random.
func (c *CrashFS) coin(a, b uint64) *rand.Rand {
	h := fnv.New64a()
	var buf [24]byte
	binary.LittleEndian.PutUint64(buf[:], c.mu.losses)
	binary.LittleEndian.PutUint64(buf[8:], a)
	binary.LittleEndian.PutUint64(buf[16:], b)
	_, _ = h.Write(buf[:]) // never fails
	return rand.New(rand.NewPCG(c.seed, h.Sum64()))
}

func (c *CrashFS) revert(n *inode, luck Survival, seen map[*inode]bool) {
	if seen[n] {
		n.links++
		return
	}
	seen[n] = true
	n.links = 1
	if !n.dir {
		n.data = survive(n.durable, n.data, luck.Sectors, c.coin(n.id, 0))
		n.durable = slices.Clone(n.data)
		c.mu.used += int64(len(n.data))
		return
	}
	names := map[string]bool{}
	for name := range n.entries {
		names[name] = true
	}
	for name := range n.durableEntries {
		names[name] = true
	}
	after := map[string]*inode{}
	for name := range names {
		old, now := n.durableEntries[name], n.entries[name]
		pick := old
		if old != now && c.coin(n.id, idOf(old)<<32|idOf(now)).Float64() < luck.Names {
			pick = now
		}
		if pick != nil {
			after[name] = pick
		}
	}
	n.entries, n.durableEntries = after, maps.Clone(after)
	for _, child := range after {
		c.revert(child, luck, seen)
	}
}

func idOf(n *inode) uint64 {
	if n == nil {
		return 0
	}
	return n.id
}

const sector = 512

// survive mixes the synced content with the later one, sector by sector.
func survive(synced, later []byte, luck float64, r *rand.Rand) []byte {
	size := len(synced)
	if len(later) != size && r.Float64() < luck {
		size = min(size, len(later)) + r.IntN(max(size, len(later))-min(size, len(later))+1)
	}
	out := make([]byte, size)
	copy(out, synced)
	for at := 0; at < size; at += sector {
		if r.Float64() < luck && at < len(later) {
			copy(out[at:min(at+sector, size)], later[at:])
		}
	}
	return out
}

// lookup needs the lock.
func (c *CrashFS) lookup(op FileOp, name string) (*inode, error) {
	n := c.mu.root
	for part := range strings.SplitSeq(strings.Trim(path.Clean(name), "/"), "/") {
		if part == "" {
			continue
		}
		if !n.dir {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		next, ok := n.entries[part]
		if !ok {
			return nil, pathError(op, name, syscall.ENOENT)
		}
		n = next
	}
	return n, nil
}

// parent needs the lock. It answers the directory that holds name, and its entry.
func (c *CrashFS) parent(op FileOp, name string) (dir *inode, base string, err error) {
	name = path.Clean(name)
	dir, err = c.lookup(op, path.Dir(name))
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", pathError(op, name, syscall.ENOTDIR)
	}
	return dir, path.Base(name), nil
}

// unlink needs the lock.
func (c *CrashFS) unlink(n *inode) {
	n.links--
	if n.links == 0 && !n.dir {
		c.mu.used -= int64(len(n.data))
	}
}

func pathError(op FileOp, name string, errno syscall.Errno) error {
	return &fs.PathError{Op: string(op), Path: name, Err: errno}
}
