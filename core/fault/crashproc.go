package fault

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/mink-project/mink/core/builtin/dirstore"
)

// Process is the file layer of one process on a CrashFS. Safe for concurrent use.
type Process struct {
	disk *CrashFS

	// Guarded by disk.mu.
	dead   bool
	done   int // operations that change the disk, so far
	budget int // it is killed at the operation after so many; < 0: never
}

var (
	_ dirstore.Files = (*Process)(nil)
	_ dirstore.File  = (*CrashFile)(nil)
)

// Process starts one. killAfter is the number of disk-changing operations after
// which the next one kills it (a write gets half done); negative: never.
func (c *CrashFS) Process(killAfter int) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &Process{disk: c, budget: killAfter}
	c.mu.live[p] = struct{}{}
	return p
}

// Kill ends the process at once; its locks are free.
func (p *Process) Kill() {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	p.die()
}

// Dead says whether it was killed, by whatever.
func (p *Process) Dead() bool {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	return p.dead
}

// Changes is how many disk-changing operations it made.
func (p *Process) Changes() int {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	return p.done
}

// die needs the lock.
func (p *Process) die() {
	p.dead = true
	delete(p.disk.mu.live, p)
	maps.DeleteFunc(p.disk.mu.locks, func(_ string, owner *Process) bool { return owner == p })
}

// begin locks the disk for one operation. fatal says that the process dies at it:
// it fails with ErrKilled, a write after half of its work.
func (p *Process) begin(op FileOp, name string) (fatal bool, err error) {
	c := p.disk
	c.mu.Lock()
	if p.dead {
		c.mu.Unlock()
		return false, fmt.Errorf("%s %s: %w", op, name, ErrKilled)
	}
	if c.mu.fail != nil {
		if err := c.mu.fail(op, name); err != nil {
			c.mu.Unlock()
			return false, fmt.Errorf("%s %s: %w", op, name, err)
		}
	}
	if !op.changes() {
		return false, nil
	}
	if p.budget >= 0 && p.done >= p.budget {
		p.die()
		if op == FileWrite {
			return true, nil
		}
		c.mu.Unlock()
		return false, fmt.Errorf("%s %s: %w", op, name, ErrKilled)
	}
	p.done++
	return false, nil
}

func (p *Process) end() { p.disk.mu.Unlock() }

// Create implements dirstore.Files.
func (p *Process) Create(name string) (dirstore.File, error) {
	if _, err := p.begin(FileCreate, name); err != nil {
		return nil, err
	}
	defer p.end()
	n, err := p.add(FileCreate, name, false)
	if err != nil {
		return nil, err
	}
	return &CrashFile{process: p, name: name, node: n}, nil
}

// add needs the lock.
func (p *Process) add(op FileOp, name string, dir bool) (*inode, error) {
	parent, base, err := p.disk.parent(op, name)
	if err != nil {
		return nil, err
	}
	if _, taken := parent.entries[base]; taken {
		return nil, pathError(op, name, syscall.EEXIST)
	}
	n := p.disk.newInode(dir)
	parent.entries[base] = n
	return n, nil
}

// Open implements dirstore.Files.
func (p *Process) Open(name string) (dirstore.File, error) {
	f, err := p.OpenFile(name, false)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenFile opens a file to read and write anywhere in it, as a database does;
// create makes it if it is missing.
func (p *Process) OpenFile(name string, create bool) (*CrashFile, error) {
	if _, err := p.begin(FileOpen, name); err != nil {
		return nil, err
	}
	n, err := p.disk.lookup(FileOpen, name)
	p.end()
	if err == nil {
		return &CrashFile{process: p, name: name, node: n}, nil
	}
	if !create {
		return nil, err
	}
	f, err := p.Create(name)
	if err != nil {
		return nil, err
	}
	return f.(*CrashFile), nil
}

// Mkdir implements dirstore.Files.
func (p *Process) Mkdir(name string) error {
	if _, err := p.begin(FileMkdir, name); err != nil {
		return err
	}
	defer p.end()
	_, err := p.add(FileMkdir, name, true)
	return err
}

// Link implements dirstore.Files.
func (p *Process) Link(oldName, newName string) error {
	if _, err := p.begin(FileLink, newName); err != nil {
		return err
	}
	defer p.end()
	n, err := p.disk.lookup(FileLink, oldName)
	if err != nil {
		return err
	}
	parent, base, err := p.disk.parent(FileLink, newName)
	if err != nil {
		return err
	}
	if _, taken := parent.entries[base]; taken {
		return pathError(FileLink, newName, syscall.EEXIST)
	}
	parent.entries[base] = n
	n.links++
	return nil
}

// Rename implements dirstore.Files.
func (p *Process) Rename(oldName, newName string) error {
	if _, err := p.begin(FileRename, newName); err != nil {
		return err
	}
	defer p.end()
	n, err := p.disk.lookup(FileRename, oldName)
	if err != nil {
		return err
	}
	from, oldBase, err := p.disk.parent(FileRename, oldName)
	if err != nil {
		return err
	}
	to, newBase, err := p.disk.parent(FileRename, newName)
	if err != nil {
		return err
	}
	if over := to.entries[newBase]; over == n {
		return nil // two names of one file: POSIX leaves both
	} else if over != nil {
		if over.dir {
			return pathError(FileRename, newName, syscall.EISDIR)
		}
		p.disk.unlink(over)
	}
	delete(from.entries, oldBase)
	to.entries[newBase] = n
	return nil
}

// Remove implements dirstore.Files.
func (p *Process) Remove(name string) error {
	if _, err := p.begin(FileRemove, name); err != nil {
		return err
	}
	defer p.end()
	n, err := p.disk.lookup(FileRemove, name)
	if err != nil {
		return err
	}
	if n.dir && len(n.entries) > 0 {
		return pathError(FileRemove, name, syscall.ENOTEMPTY)
	}
	parent, base, err := p.disk.parent(FileRemove, name)
	if err != nil {
		return err
	}
	delete(parent.entries, base)
	p.disk.unlink(n)
	return nil
}

// SyncDir implements dirstore.Files.
func (p *Process) SyncDir(name string) error {
	if _, err := p.begin(FileSyncDir, name); err != nil {
		return err
	}
	defer p.end()
	n, err := p.disk.lookup(FileSyncDir, name)
	if err != nil {
		return err
	}
	n.durableEntries = maps.Clone(n.entries)
	return nil
}

// SyncAll implements dirstore.Files.
func (p *Process) SyncAll(name string) error {
	if _, err := p.begin(FileSyncAll, name); err != nil {
		return err
	}
	defer p.end()
	p.disk.mu.root.syncTree()
	return nil
}

func (n *inode) syncTree() {
	if !n.dir {
		n.durable = slices.Clone(n.data)
		return
	}
	n.durableEntries = maps.Clone(n.entries)
	for _, child := range n.entries {
		child.syncTree()
	}
}

// ReadDir implements dirstore.Files.
func (p *Process) ReadDir(name string) ([]string, error) {
	if _, err := p.begin(FileReadDir, name); err != nil {
		return nil, err
	}
	defer p.end()
	n, err := p.disk.lookup(FileReadDir, name)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, pathError(FileReadDir, name, syscall.ENOTDIR)
	}
	return slices.Sorted(maps.Keys(n.entries)), nil
}

// Stat implements dirstore.Files.
func (p *Process) Stat(name string) (dirstore.FileInfo, error) {
	if _, err := p.begin(FileStat, name); err != nil {
		return dirstore.FileInfo{}, err
	}
	defer p.end()
	n, err := p.disk.lookup(FileStat, name)
	if err != nil {
		return dirstore.FileInfo{}, err
	}
	return n.info(), nil
}

func (n *inode) info() dirstore.FileInfo {
	return dirstore.FileInfo{Size: int64(len(n.data)), Modified: n.modified, Links: n.links, Dir: n.dir}
}

// Lock implements dirstore.Files. The lock belongs to the name and is not on the
// disk; the file is made as flock(2)'s users make it.
func (p *Process) Lock(name string) (io.Closer, bool, error) {
	if _, err := p.OpenFile(name, true); err != nil {
		return nil, false, err
	}
	if _, err := p.begin(FileLock, name); err != nil {
		return nil, false, err
	}
	defer p.end()
	if p.disk.mu.locks[name] != nil {
		return nil, false, nil
	}
	p.disk.mu.locks[name] = p
	return crashLock{p, name}, true, nil
}

type crashLock struct {
	process *Process
	name    string
}

// Close frees the lock.
func (l crashLock) Close() error {
	c := l.process.disk
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.locks[l.name] == l.process {
		delete(c.mu.locks, l.name)
	}
	return nil
}

// CrashFile is an open file of a Process.
type CrashFile struct {
	process *Process
	name    string
	node    *inode
	at      int64 // of Write
}

// Write appends at this handle's position.
func (f *CrashFile) Write(b []byte) (int, error) {
	n, err := f.WriteAt(b, f.at)
	f.at += int64(n)
	return n, err
}

// WriteAt implements io.WriterAt.
func (f *CrashFile) WriteAt(b []byte, at int64) (int, error) {
	fatal, err := f.process.begin(FileWrite, f.name)
	if err != nil {
		return 0, err
	}
	defer f.process.end()
	if fatal {
		b = b[:len(b)/2]
		err = fmt.Errorf("write %s: %w", f.name, ErrKilled)
	}
	c := f.process.disk
	grow := at + int64(len(b)) - int64(len(f.node.data))
	if room := c.mu.capacity - c.mu.used; c.mu.capacity > 0 && grow > max(room, 0) {
		b = b[:max(0, int64(len(b))-(grow-max(room, 0)))]
		grow = at + int64(len(b)) - int64(len(f.node.data))
		err = pathError(FileWrite, f.name, syscall.ENOSPC)
	}
	if grow > 0 && len(b) > 0 {
		f.node.data = append(f.node.data, make([]byte, grow)...)
		c.mu.used += grow
	}
	f.node.modified = time.Now()
	if len(b) == 0 {
		return 0, err
	}
	return copy(f.node.data[at:], b), err
}

// ReadAt implements io.ReaderAt.
func (f *CrashFile) ReadAt(b []byte, at int64) (int, error) {
	if _, err := f.process.begin(FileRead, f.name); err != nil {
		return 0, err
	}
	defer f.process.end()
	if at >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.data[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// Truncate sets the length; new bytes are zero.
func (f *CrashFile) Truncate(size int64) error {
	if _, err := f.process.begin(FileTruncate, f.name); err != nil {
		return err
	}
	defer f.process.end()
	old := int64(len(f.node.data))
	if size > old {
		f.node.data = append(f.node.data, make([]byte, size-old)...)
	}
	f.node.data = f.node.data[:size:size]
	f.process.disk.mu.used += size - old
	return nil
}

// Sync makes the content durable.
func (f *CrashFile) Sync() error {
	if _, err := f.process.begin(FileSync, f.name); err != nil {
		return err
	}
	defer f.process.end()
	f.node.durable = slices.Clone(f.node.data)
	return nil
}

// Stat implements dirstore.File.
func (f *CrashFile) Stat() (dirstore.FileInfo, error) {
	if _, err := f.process.begin(FileStat, f.name); err != nil {
		return dirstore.FileInfo{}, err
	}
	defer f.process.end()
	return f.node.info(), nil
}

// Close implements dirstore.File; it syncs nothing.
func (f *CrashFile) Close() error { return nil }
