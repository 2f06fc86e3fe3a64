package dirstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/mink-project/mink/sdk/objstore"
)

// settle makes an object's name durable if it may not be so yet.
func (s *Store) settle(info FileInfo, dir string) error {
	if info.Links > 1 {
		return s.syncDir(dir, omitReadSync)
	}
	return nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if err := objstore.ValidateKey(req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	if err := s.begin(ctx, "get", req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	defer s.end()
	dir, path := s.pathTo(req.Key)
	f, err := s.files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return objstore.GetRangeResponse{}, notExist("get", req.Key)
	}
	if err != nil {
		return objstore.GetRangeResponse{}, s.explain("get", req.Key, err)
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err == nil {
		err = s.settle(info, dir)
	}
	if err != nil {
		return objstore.GetRangeResponse{}, s.explain("get", req.Key, err)
	}
	n, err := req.Resolve(info.Size)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	data := req.Memory(n)
	if got, err := f.ReadAt(data, req.Offset); got < len(data) {
		if err == nil || errors.Is(err, io.EOF) {
			return objstore.GetRangeResponse{}, fmt.Errorf("get %q: %w: the file ended at byte %d of %d: something else changes the store's files", req.Key, objstore.ErrCorrupt, req.Offset+int64(got), info.Size)
		}
		return objstore.GetRangeResponse{}, s.explain("get", req.Key, err)
	}
	return objstore.GetRangeResponse{Data: data, Size: info.Size}, nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if err := objstore.ValidateKey(key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	if err := s.begin(ctx, "head", key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	defer s.end()
	dir, path := s.pathTo(key)
	info, err := s.files.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return objstore.ObjectInfo{}, notExist("head", key)
	}
	if err == nil {
		err = s.settle(info, dir)
	}
	if err != nil {
		return objstore.ObjectInfo{}, s.explain("head", key, err)
	}
	return objstore.ObjectInfo{Key: key, Size: info.Size, Modified: info.Modified}, nil
}

// List implements objstore.Store. It reads the directories that hold the page and
// those on the way from the prefix's directory to them, nothing else.
func (s *Store) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	limit, err := req.PageSize(s.cfg.ListPageMax)
	if err != nil {
		return objstore.ListResponse{}, err
	}
	if err := s.begin(ctx, "list", req.Prefix); err != nil {
		return objstore.ListResponse{}, err
	}
	defer s.end()
	if len(req.Prefix) > objstore.KeyMax {
		return objstore.ListResponse{}, nil
	}
	// Every key of the answer lies below the prefix's last slash.
	base := req.Prefix[:strings.LastIndexByte(req.Prefix, '/')+1]
	dir, _ := s.pathTo(base)
	l := lister{store: s, req: req, limit: limit}
	if _, err := l.walk(ctx, dir, base); err != nil {
		if ctx.Err() != nil {
			return objstore.ListResponse{}, objstore.ContextError(ctx, "list", req.Prefix)
		}
		return objstore.ListResponse{}, s.explain("list", req.Prefix, err)
	}
	return l.page, nil
}

type lister struct {
	store *Store
	req   objstore.ListRequest
	limit int
	page  objstore.ListResponse
}

// walk lists the directory dir, all of whose keys start with base. full says that
// the page is.
func (l *lister) walk(ctx context.Context, dir, base string) (full bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	names, err := l.store.files.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var entries []entry
	want := l.within(base)
	for _, n := range names {
		if e, ok := parseName(n); ok && want.has(e) {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	synced := false
	for _, e := range entries {
		path := dir + "/" + e.name
		if e.kind != kindFile {
			if full, err := l.walk(ctx, path, base+e.key); full || err != nil {
				return full, err
			}
			continue
		}
		if objstore.ValidateKey(base+e.key) != nil {
			continue // a foreign file
		}
		if len(l.page.Objects) == l.limit {
			l.page.More = true
			return true, nil
		}
		info, err := l.store.files.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Dir {
			continue // deleted meanwhile; or nothing that this store made
		}
		if err == nil && !synced && info.Links > 1 {
			err, synced = l.store.settle(info, dir), true
		}
		if err != nil {
			return false, err
		}
		l.page.Objects = append(l.page.Objects, objstore.ObjectInfo{Key: base + e.key, Size: info.Size, Modified: info.Modified})
	}
	return false, nil
}

// window is what a request wants of one directory: keys there are relative to the
// directory's own, and one may be empty (below a cut segment).
type window struct {
	prefix, after string
	all           bool // after does not matter: every key here comes behind it
}

// within cuts the request down to a directory whose keys start with base. The
// walk enters no directory that the request's prefix or start rule out as a whole,
// and begins at the prefix's own.
func (l *lister) within(base string) window {
	w := window{prefix: strings.TrimPrefix(l.req.Prefix, base), after: l.req.StartAfter}
	if len(l.req.Prefix) < len(base) {
		w.prefix = "" // base starts with it
	}
	switch after, below := strings.CutPrefix(l.req.StartAfter, base); {
	case below:
		w.after = after
	case l.req.StartAfter < base:
		w.all = true
	default:
		w.after = "\xff" // every key here comes before it: no UTF-8 sorts after this
	}
	return w
}

// has says whether an object, or anything in a directory, can be in the answer.
func (w window) has(e entry) bool {
	if e.kind == kindFile {
		return strings.HasPrefix(e.key, w.prefix) && (w.all || e.key > w.after)
	}
	return (strings.HasPrefix(e.key, w.prefix) || strings.HasPrefix(w.prefix, e.key)) &&
		(w.all || e.key > w.after || strings.HasPrefix(w.after, e.key))
}
