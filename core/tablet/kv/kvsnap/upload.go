package kvsnap

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Uploader makes the snapshots of one bucket under one leadership. Its memory of
// what is on the store already makes it cheaper than a new one; a new one is as
// right. Calls follow one another.
type Uploader struct {
	cfg    Config
	store  objstore.Store
	bucket mink.BucketRef
	epoch  mink.LeaderEpoch
	nonce  uint64

	last    uint64                           // number given out
	hashed  map[string]hashedFile            // by name
	waiting map[kvplan.ContentID]kvplan.File // uploaded here and in no snapshot that the metadata showed yet
	doubted []kvplan.File                    // missing, or named by snapshots that turned out damaged: never named again
}

// hashedFile is a table file whose content is known. Checkpoints are hard links: the
// same file shows up in one directory after the other.
type hashedFile struct {
	info    os.FileInfo
	content kvplan.ContentID
}

// NewUploader makes an uploader for the leadership. nonce is the node's registration
// nonce, not 0.
func NewUploader(cfg Config, store objstore.Store, bucket mink.BucketRef, epoch mink.LeaderEpoch, nonce uint64) (*Uploader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !store.Capabilities().CreateOnlyPut {
		return nil, fmt.Errorf("KV snapshots of bucket %s: the object store has no create-only PUT: %w", bucket, mink.ErrUnsupported)
	}
	return &Uploader{
		cfg: cfg, store: store, bucket: bucket, epoch: epoch, nonce: nonce,
		hashed: map[string]hashedFile{}, waiting: map[kvplan.ContentID]kvplan.File{},
	}, nil
}

// Result is what Upload made.
type Result struct {
	Snapshot kvplan.Snapshot // without ID and CommittedMs
	// Uploaded and UploadedBytes are what went to the store, Reused and ReusedBytes
	// what was there.
	Uploaded, Reused           int
	UploadedBytes, ReusedBytes int64
}

// Restored tells the uploader of files in the store's directory that came from the
// object store: they need not be read again to be known. Files of snapshots that could
// not be restored are uploaded anew when the store has their content again: compactions
// of the same rows make the same bytes.
func (u *Uploader) Restored(o Origin) {
	maps.Copy(u.hashed, o.files)
	u.doubted = append(u.doubted, o.doubted...)
}

// shared reports that a file never changes under its name: Pebble's tables and their
// separated values.
func shared(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

// Upload brings a checkpoint to the store: dir holds the bucket's store with every
// change below offset and none from it on, rows of them (-1: not counted), and nobody
// changes it meanwhile. known is what the metadata have of the bucket, or had: files
// of retained snapshots are named again, not uploaded. Whatever becomes of it, what
// was uploaded stays and is used by the next Upload.
func (u *Uploader) Upload(ctx context.Context, dir string, offset mink.Offset, rows int64, known *kvplan.Bucket) (Result, error) {
	r, err := u.upload(ctx, dir, offset, rows, known)
	if err != nil {
		return r, fmt.Errorf("KV snapshot of bucket %s at offset %d: %w", u.bucket, offset, err)
	}
	return r, nil
}

func (u *Uploader) upload(ctx context.Context, dir string, offset mink.Offset, rows int64, known *kvplan.Bucket) (Result, error) {
	u.observe(known)
	if err := u.verify(ctx, known); err != nil {
		return Result{}, err
	}
	h := head{bucket: u.bucket, offset: offset, rows: rows}
	tables, err := u.look(dir, &h)
	if err != nil {
		return Result{}, err
	}
	if err := u.hash(ctx, dir, tables); err != nil {
		return Result{}, err
	}
	var r Result
	r.Snapshot = kvplan.Snapshot{Epoch: u.epoch, Offset: offset, Rows: rows, Files: make([]kvplan.File, 1, len(tables)+1)}
	todo, err := u.choose(tables, known, &h, &r)
	if err != nil {
		return Result{}, err
	}
	if err := u.send(ctx, dir, todo, &r); err != nil {
		return Result{}, err
	}
	data := h.encode()
	if len(data) > HeadBytesMax {
		return Result{}, fmt.Errorf("the files that are not tables make a head of %d bytes, the limit is %d: %w", len(data), HeadBytesMax, mink.ErrTooLarge)
	}
	first := u.newFile(contentOf(data), int64(len(data)))
	if err := newTransfer(u.cfg, u.store).putBytes(ctx, kvplan.BucketFile{Bucket: u.bucket, File: first}.Key(), data); err != nil {
		return Result{}, err
	}
	r.Uploaded, r.UploadedBytes = r.Uploaded+1, r.UploadedBytes+first.Size
	r.Snapshot.Files[0] = first
	return r, r.Snapshot.Check()
}

// observe forgets uploads that the metadata know by now, or would not take any more.
func (u *Uploader) observe(known *kvplan.Bucket) {
	if known == nil || known.Epoch != u.epoch {
		return
	}
	u.last = max(u.last, known.Number)
	maps.DeleteFunc(u.waiting, func(_ kvplan.ContentID, f kvplan.File) bool { return f.Number <= known.Number })
}

// verify forgets what is not on the store any more, whoever deleted it: it is uploaded
// anew.
func (u *Uploader) verify(ctx context.Context, known *kvplan.Bucket) error {
	there, err := filesThere(ctx, u.cfg, u.store, u.bucket)
	if err != nil {
		return err
	}
	if known != nil {
		u.doubted = append(u.doubted, there.missing(known.Snapshots)...)
	}
	maps.DeleteFunc(u.waiting, func(_ kvplan.ContentID, f kvplan.File) bool { return !there.has(f) })
	return nil
}

// newFile gives the next number out.
func (u *Uploader) newFile(content kvplan.ContentID, size int64) kvplan.File {
	u.last++
	return kvplan.File{Epoch: u.epoch, Number: u.last, Nonce: u.nonce, Content: content, Size: size}
}

// table is a table file of the checkpoint.
type table struct {
	name string
	info os.FileInfo
}

// look lists the directory: table files to the answer, the others, which are small,
// into the head.
func (u *Uploader) look(dir string, h *head) ([]table, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var tables []table
	left := int64(HeadBytesMax)
	for _, e := range entries { // by name
		info, err := e.Info()
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is no regular file: %w", filepath.Join(dir, e.Name()), mink.ErrInvalid)
		case shared(e.Name()):
			tables = append(tables, table{e.Name(), info})
			continue
		}
		if left -= info.Size(); left < 0 {
			return nil, fmt.Errorf("%s has %d bytes; files that are not tables may have %d together: %w", filepath.Join(dir, e.Name()), info.Size(), HeadBytesMax, mink.ErrTooLarge)
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		h.others = append(h.others, otherFile{e.Name(), data})
	}
	if len(tables) >= kvplan.FilesMax {
		return nil, fmt.Errorf("%d table files, a snapshot has at most %d: %w", len(tables), kvplan.FilesMax-1, mink.ErrTooLarge)
	}
	return tables, nil
}

// hash makes u.hashed know exactly the tables.
func (u *Uploader) hash(ctx context.Context, dir string, tables []table) error {
	next := make(map[string]hashedFile, len(tables))
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(u.cfg.Requests)
	for _, t := range tables {
		old, ok := u.hashed[t.name]
		if ok && os.SameFile(old.info, t.info) && old.info.Size() == t.info.Size() && old.info.ModTime().Equal(t.info.ModTime()) {
			mu.Lock()
			next[t.name] = old
			mu.Unlock()
			continue
		}
		g.Go(func() error {
			file, err := os.Open(filepath.Join(dir, t.name))
			if err != nil {
				return err
			}
			defer file.Close()
			id, err := contentOfFile(gctx, file, t.info.Size())
			if err != nil {
				return fmt.Errorf("read %s: %w", file.Name(), err)
			}
			mu.Lock()
			defer mu.Unlock()
			next[t.name] = hashedFile{t.info, id}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	u.hashed = next
	return nil
}

// sending is a file to be uploaded.
type sending struct {
	name string
	file kvplan.File
}

// choose names a file for each table and answers those that are not on the store.
func (u *Uploader) choose(tables []table, known *kvplan.Bucket, h *head, r *Result) ([]sending, error) {
	there := maps.Clone(u.waiting)
	if known != nil {
		for _, f := range kvplan.FilesOf(known.Snapshots, nil) {
			if !slices.ContainsFunc(u.doubted, f.Same) {
				there[f.Content] = f
			}
		}
	}
	index := map[kvplan.ContentID]int{}
	var todo []sending
	for _, t := range tables {
		content, size := u.hashed[t.name].content, t.info.Size()
		at, again := index[content]
		if !again {
			f, ok := there[content]
			if ok && f.Size != size {
				return nil, fmt.Errorf("%s has %d bytes and the content id of %s: %w", t.name, size, f, mink.ErrCorrupt)
			}
			if ok {
				r.Reused, r.ReusedBytes = r.Reused+1, r.ReusedBytes+size
			} else {
				f = u.newFile(content, size)
				todo = append(todo, sending{t.name, f})
			}
			at = len(r.Snapshot.Files)
			index[content] = at
			r.Snapshot.Files = append(r.Snapshot.Files, f)
		}
		h.tables = append(h.tables, tableFile{t.name, at})
	}
	return todo, nil
}

// send uploads the files; those that made it are remembered even when others fail.
func (u *Uploader) send(ctx context.Context, dir string, todo []sending, r *Result) error {
	t := newTransfer(u.cfg, u.store)
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(u.cfg.Requests)
	// The largest first, so that the end is not one file's parts.
	slices.SortStableFunc(todo, func(a, b sending) int { return int(min(max(b.file.Size-a.file.Size, math.MinInt32), math.MaxInt32)) })
	for _, s := range todo {
		g.Go(func() error {
			file, err := os.Open(filepath.Join(dir, s.name))
			if err != nil {
				return err
			}
			defer file.Close()
			if err := t.putFile(gctx, kvplan.BucketFile{Bucket: u.bucket, File: s.file}.Key(), file, s.file.Size); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			u.waiting[s.file.Content] = s.file
			r.Uploaded, r.UploadedBytes = r.Uploaded+1, r.UploadedBytes+s.file.Size
			return nil
		})
	}
	return g.Wait()
}
