//go:build unix

package sqllog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// crashFS is a SQLite VFS over the operating system's that knows what would be
// left after a power cut: bytes that were synced, under names whose directory
// was synced. Reads and writes go to the real files, so SQLite sees a healthy
// machine; beside them the model follows writes, truncations, deletions, file
// syncs and directory syncs. At every sync, before and after it takes effect, it
// takes an image of what a crash at that moment would leave.
type crashFS struct {
	dir     string
	acked   func() int        // acknowledged so far
	forgets func(string) bool // syncs that this machine ignores, by file name; "." is the directory

	mu struct {
		sync.Mutex
		names   map[string]*crashFile // as SQLite sees the directory
		durable map[string]*crashFile // as the directory was last synced
		images  []crashImage
	}
	methods map[uintptr]uintptr // the system's io_methods -> ours
	vfs     uintptr
	keep    []any // Go functions that only SQLite's memory points to
}

type crashFile struct {
	synced  []byte
	pending []crashWrite
}

// crashWrite is a write at off, or a truncation to off when data is nil.
type crashWrite struct {
	off  int64
	data []byte
}

func (w crashWrite) apply(b []byte) []byte {
	size := int(w.off) + len(w.data)
	if w.data == nil && len(b) > size {
		return b[:size]
	}
	if len(b) < size {
		b = append(b, make([]byte, size-len(b))...)
	}
	copy(b[w.off:], w.data)
	return b
}

// crashImage is what one crash leaves, and what had been acknowledged by then.
type crashImage struct {
	at    string
	acked int
	files map[string][]byte
}

var (
	crashNumber  atomic.Int64
	crashCurrent atomic.Pointer[crashFS] // whose directory syncs are observed
)

type crashHandle struct {
	fs   *crashFS
	name string
	orig uintptr // the system's io_methods
}

var crashHandles sync.Map // pFile uintptr -> crashHandle

// in is C memory as a Go value.
func in[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// fn calls a C function pointer of SQLite's as the Go function it is.
func fn[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&struct{ uintptr }{p})) }

type (
	fnOpen     = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	fnDelete   = func(tls *libc.TLS, vfs, name uintptr, dirSync int32) int32
	fnWrite    = func(tls *libc.TLS, file, buf uintptr, n int32, off int64) int32
	fnTruncate = func(tls *libc.TLS, file uintptr, size int64) int32
	fnSync     = func(tls *libc.TLS, file uintptr, flags int32) int32
	fnClose    = func(tls *libc.TLS, file uintptr) int32
	fnOpenDir  = func(tls *libc.TLS, name, fd uintptr) int32
	fnSetCall  = func(tls *libc.TLS, vfs, name, call uintptr) int32
	fnGetCall  = func(tls *libc.TLS, vfs, name uintptr) uintptr
)

// newCrashFS registers the VFS; its name is the answer's second value.
func newCrashFS(t *testing.T, acked func() int, forgets func(string) bool) (*crashFS, string) {
	t.Helper()
	c := &crashFS{dir: t.TempDir(), acked: acked, forgets: forgets, methods: map[uintptr]uintptr{}}
	c.mu.names, c.mu.durable = map[string]*crashFile{}, map[string]*crashFile{}
	tls := libc.NewTLS()
	name := fmt.Sprintf("crash%d", crashNumber.Add(1))
	cname, err := libc.CString(name)
	if err != nil {
		t.Fatal(err)
	}
	base := sqlite3.Xsqlite3_vfs_find(tls, 0)
	size := unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})
	c.vfs = libc.Xmalloc(tls, libc.Tsize_t(size))
	v := in[sqlite3.Tsqlite3_vfs](c.vfs)
	*v = *in[sqlite3.Tsqlite3_vfs](base)
	v.FpNext, v.FzName = 0, cname
	setFn(c, &v.FxOpen, c.xOpen(base, v.FxOpen))
	setFn(c, &v.FxDelete, c.xDelete(base, v.FxDelete))
	if rc := sqlite3.Xsqlite3_vfs_register(tls, c.vfs, 0); rc != sqlite3.SQLITE_OK {
		t.Fatalf("register VFS: %d", rc)
	}
	restore := c.observeDirectorySyncs(t, tls, base)
	t.Cleanup(func() {
		restore()
		sqlite3.Xsqlite3_vfs_unregister(tls, c.vfs)
		for _, m := range c.methods {
			libc.Xfree(tls, m)
		}
		libc.Xfree(tls, c.vfs)
		libc.Xfree(tls, cname)
		tls.Close()
	})
	return c, name
}

// setFn stores a Go function in SQLite's memory and keeps it alive.
func setFn[F any](c *crashFS, field *uintptr, f F) {
	p := &f
	c.keep = append(c.keep, p)
	*(*F)(unsafe.Pointer(field)) = f
}

// observeDirectorySyncs sees the directory syncs that SQLite's unix VFS makes:
// it opens a directory for nothing else.
func (c *crashFS) observeDirectorySyncs(t *testing.T, tls *libc.TLS, base uintptr) (restore func()) {
	t.Helper()
	call, err := libc.CString("openDirectory")
	if err != nil {
		t.Fatal(err)
	}
	v := in[sqlite3.Tsqlite3_vfs](base)
	orig := fn[fnGetCall](v.FxGetSystemCall)(tls, base, call)
	if orig == 0 {
		t.Fatal("SQLite's VFS has no openDirectory call")
	}
	var ours uintptr
	setFn[fnOpenDir](c, &ours, func(tls *libc.TLS, name, fd uintptr) int32 {
		if c := crashCurrent.Load(); c != nil && strings.HasPrefix(libc.GoString(name), c.dir) {
			c.syncDir()
		}
		return fn[fnOpenDir](orig)(tls, name, fd)
	})
	if rc := fn[fnSetCall](v.FxSetSystemCall)(tls, base, call, ours); rc != sqlite3.SQLITE_OK {
		t.Fatalf("observe openDirectory: %d", rc)
	}
	crashCurrent.Store(c)
	return func() {
		crashCurrent.Store(nil)
		fn[fnSetCall](v.FxSetSystemCall)(tls, base, call, orig)
		libc.Xfree(tls, call)
	}
}

func (c *crashFS) xOpen(base, orig uintptr) fnOpen {
	return func(tls *libc.TLS, _, zName, file uintptr, flags int32, outFlags uintptr) int32 {
		rc := fn[fnOpen](orig)(tls, base, zName, file, flags, outFlags)
		if rc != sqlite3.SQLITE_OK || zName == 0 {
			return rc
		}
		name := filepath.Base(libc.GoString(zName))
		f := in[sqlite3.Tsqlite3_file](file)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.mu.names[name] == nil {
			c.mu.names[name] = &crashFile{}
		}
		crashHandles.Store(file, crashHandle{c, name, f.FpMethods})
		f.FpMethods = c.wrapMethods(tls, f.FpMethods)
		return rc
	}
}

// wrapMethods answers our io_methods over the system's; mu is held.
func (c *crashFS) wrapMethods(tls *libc.TLS, orig uintptr) uintptr {
	if m := c.methods[orig]; m != 0 {
		return m
	}
	p := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
	m := in[sqlite3.Tsqlite3_io_methods](p)
	*m = *in[sqlite3.Tsqlite3_io_methods](orig)
	o := *m
	setFn[fnWrite](c, &m.FxWrite, func(tls *libc.TLS, file, buf uintptr, n int32, off int64) int32 {
		rc := fn[fnWrite](o.FxWrite)(tls, file, buf, n, off)
		if rc == sqlite3.SQLITE_OK {
			data := append([]byte{}, unsafe.Slice(in[byte](buf), n)...)
			c.note(file, crashWrite{off, data})
		}
		return rc
	})
	setFn[fnTruncate](c, &m.FxTruncate, func(tls *libc.TLS, file uintptr, size int64) int32 {
		rc := fn[fnTruncate](o.FxTruncate)(tls, file, size)
		if rc == sqlite3.SQLITE_OK {
			c.note(file, crashWrite{off: size})
		}
		return rc
	})
	setFn[fnSync](c, &m.FxSync, func(tls *libc.TLS, file uintptr, flags int32) int32 {
		c.syncFile(file) // before the call: it may sync the directory as well
		return fn[fnSync](o.FxSync)(tls, file, flags)
	})
	setFn[fnClose](c, &m.FxClose, func(tls *libc.TLS, file uintptr) int32 {
		crashHandles.Delete(file)
		return fn[fnClose](o.FxClose)(tls, file)
	})
	c.methods[orig] = p
	return p
}

func (c *crashFS) xDelete(base, orig uintptr) fnDelete {
	return func(tls *libc.TLS, _, zName uintptr, dirSync int32) int32 {
		c.mu.Lock()
		delete(c.mu.names, filepath.Base(libc.GoString(zName)))
		c.mu.Unlock()
		return fn[fnDelete](orig)(tls, base, zName, dirSync)
	}
}

func (c *crashFS) handle(file uintptr) (string, *crashFile) {
	h, _ := crashHandles.Load(file)
	name := h.(crashHandle).name
	f := c.mu.names[name]
	if f == nil { // deleted while open: no name leads to it any more
		f = &crashFile{}
	}
	return name, f
}

func (c *crashFS) note(file uintptr, w crashWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, f := c.handle(file)
	f.pending = append(f.pending, w)
}

func (c *crashFS) syncFile(file uintptr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, f := c.handle(file)
	c.image("before the sync of " + name)
	if !c.forgets(name) {
		for _, w := range f.pending {
			f.synced = w.apply(f.synced)
		}
		f.pending = nil
	}
	c.image("after the sync of " + name)
}

func (c *crashFS) syncDir() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.image("before the sync of the directory")
	if !c.forgets(".") {
		c.mu.durable = maps.Clone(c.mu.names)
	}
	c.image("after the sync of the directory")
}

// ack takes an image at an acknowledgement.
func (c *crashFS) ack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.image("after an acknowledgement")
}

// image takes two images, mu held: everything unsynced is lost; and of what is
// unsynced, some writes have reached the disk, in any order.
func (c *crashFS) image(at string) {
	rng := rand.New(rand.NewPCG(uint64(len(c.mu.images)), 1))
	lost, torn := map[string][]byte{}, map[string][]byte{}
	for name, f := range c.mu.durable {
		if strings.HasSuffix(name, "-shm") { // shared memory: rebuilt after a crash
			continue
		}
		lost[name] = append([]byte{}, f.synced...)
		b := append([]byte{}, f.synced...)
		for _, w := range f.pending {
			if rng.IntN(2) == 0 {
				b = w.apply(b)
			}
		}
		torn[name] = b
	}
	n := c.acked()
	c.mu.images = append(c.mu.images, crashImage{at, n, lost}, crashImage{at + ", torn", n, torn})
}

// sum tells images apart.
func (i crashImage) sum() (out [sha256.Size]byte) {
	h := sha256.New()
	fmt.Fprintln(h, i.acked)
	for _, name := range slices.Sorted(maps.Keys(i.files)) {
		fmt.Fprintln(h, name, len(i.files[name]))
		h.Write(i.files[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// write puts the image into a directory.
func (i crashImage) write(dir string) error {
	var errs []error
	for name, b := range i.files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	return errors.Join(errs...)
}
