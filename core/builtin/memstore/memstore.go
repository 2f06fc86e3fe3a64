// Package memstore is an object store in memory, for tests, demos and the
// simulation. It has everything that the contract knows (create-only, compare and
// swap, multipart) and nothing survives it. Nothing in it blocks: its mutex guards
// memory only, so that it runs inside a testing/synctest bubble.
package memstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/tidwall/btree"
)

// Config of a memory store. The zero value is Default().
type Config struct {
	// PageMax is the most keys that one List answers; 0: 1000, as S3 has. A small
	// one (2) finds callers that read the first page only.
	PageMax int
	// PartSizeMin is the smallest part of a multipart upload but the last, bytes;
	// 0: 1. S3 has 5 MiB.
	PartSizeMin int64
	// BytesMax refuses writes with ErrNoSpace that would take the stored bytes over
	// it; 0: no limit.
	BytesMax int64
	// Now is the store's clock; nil: time.Now.
	Now func() time.Time
}

// Default is a store with pages of 1000 keys and no limit.
func Default() Config { return Config{PageMax: 1000, PartSizeMin: 1, Now: time.Now} }

// Validate refuses negative limits.
func (c Config) Validate() error {
	if c.PageMax < 0 || c.PartSizeMin < 0 || c.BytesMax < 0 {
		return fmt.Errorf("memstore: %w: a limit is negative: %+v", objstore.ErrInvalid, c)
	}
	return nil
}

// object is immutable once it is in the tree.
type object struct {
	key      string
	data     []byte
	modified time.Time
	version  string
}

type upload struct {
	key   string
	parts map[int]part
}

type part struct {
	data []byte
	tag  string
}

// Store implements objstore.Store and objstore.Multiparter.
type Store struct {
	cfg Config

	mu struct {
		sync.Mutex
		closed  bool
		objects *btree.BTreeG[*object]
		bytes   int64
		uploads map[objstore.UploadID]*upload
		next    uint64 // versions, upload ids and part tags: never the same twice
	}
}

var (
	_ objstore.Store       = (*Store)(nil)
	_ objstore.Multiparter = (*Store)(nil)
)

// New makes an empty store. It panics on a Config that Validate refuses.
func New(cfg Config) *Store {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	def := Default()
	if cfg.PageMax == 0 {
		cfg.PageMax = def.PageMax
	}
	if cfg.PartSizeMin == 0 {
		cfg.PartSizeMin = def.PartSizeMin
	}
	if cfg.Now == nil {
		cfg.Now = def.Now
	}
	s := &Store{cfg: cfg}
	s.mu.objects = btree.NewBTreeGOptions(
		func(a, b *object) bool { return a.key < b.key },
		btree.Options{NoLocks: true})
	s.mu.uploads = map[objstore.UploadID]*upload{}
	return s
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{
		CreateOnlyPut:  true,
		CompareAndSwap: true,
		ListPageMax:    s.cfg.PageMax,
		PutSizeMax:     math.MaxInt64,
		PartSizeMin:    s.cfg.PartSizeMin,
		PartSizeMax:    math.MaxInt64,
		Local:          true,
	}
}

// Alloc implements objstore.Store.
func (s *Store) Alloc(n int) objstore.Buffer { return objstore.HeapAlloc(n) }

// begin locks the store for a call, unless it is closed or ctx is over.
func (s *Store) begin(ctx context.Context, op, key string) error {
	if err := objstore.ContextError(ctx, op, key); err != nil {
		return err
	}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return fmt.Errorf("%s %q: %w: the store is closed", op, key, objstore.ErrUnavailable)
	}
	return nil
}

// Put implements objstore.Store. The chunks are copied.
func (s *Store) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if err := req.Validate(); err != nil {
		return objstore.PutResponse{}, err
	}
	data := slices.Concat(req.Chunks...)
	if err := s.begin(ctx, "put", req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	defer s.mu.Unlock()
	return s.publish(req.Key, data, req.CreateOnly, req.IfMatch)
}

// publish needs the lock.
func (s *Store) publish(key string, data []byte, createOnly bool, ifMatch string) (objstore.PutResponse, error) {
	old, taken := s.mu.objects.Get(&object{key: key})
	switch {
	case createOnly && taken:
		return objstore.PutResponse{}, fmt.Errorf("put %q: %w", key, objstore.ErrAlreadyExists)
	case ifMatch != "" && !taken:
		return objstore.PutResponse{}, fmt.Errorf("put %q over version %s: %w: it does not exist", key, ifMatch, objstore.ErrConflict)
	case ifMatch != "" && old.version != ifMatch:
		return objstore.PutResponse{}, fmt.Errorf("put %q over version %s: %w: it is at version %s", key, ifMatch, objstore.ErrConflict, old.version)
	}
	grow := int64(len(data))
	if taken {
		grow -= int64(len(old.data))
	}
	if err := s.grow(key, grow); err != nil {
		return objstore.PutResponse{}, err
	}
	o := &object{key: key, data: data, modified: s.cfg.Now(), version: s.id("v")}
	s.mu.objects.Set(o)
	return objstore.PutResponse{Version: o.version}, nil
}

func (s *Store) grow(key string, n int64) error {
	if s.cfg.BytesMax > 0 && n > 0 && s.mu.bytes+n > s.cfg.BytesMax {
		return fmt.Errorf("put %q: %w: %d of %d bytes are used, %d more were asked for", key, objstore.ErrNoSpace, s.mu.bytes, s.cfg.BytesMax, n)
	}
	s.mu.bytes += n
	return nil
}

func (s *Store) id(kind string) string {
	s.mu.next++
	return kind + strconv.FormatUint(s.mu.next, 10)
}

func (s *Store) lookup(op, key string) (*object, error) {
	o, ok := s.mu.objects.Get(&object{key: key})
	if !ok {
		return nil, fmt.Errorf("%s %q: %w", op, key, objstore.ErrNotExist)
	}
	return o, nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if err := objstore.ValidateKey(req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	if err := s.begin(ctx, "get", req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	o, err := s.lookup("get", req.Key)
	s.mu.Unlock()
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	size := int64(len(o.data))
	n, err := req.Resolve(size)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	data := req.Memory(n)
	copy(data, o.data[req.Offset:])
	return objstore.GetRangeResponse{Data: data, Size: size, Version: o.version}, nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if err := objstore.ValidateKey(key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	if err := s.begin(ctx, "head", key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	defer s.mu.Unlock()
	o, err := s.lookup("head", key)
	if err != nil {
		return objstore.ObjectInfo{}, err
	}
	return o.info(), nil
}

func (o *object) info() objstore.ObjectInfo {
	return objstore.ObjectInfo{Key: o.key, Size: int64(len(o.data)), Modified: o.modified, Version: o.version}
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	limit, err := req.PageSize(s.cfg.PageMax)
	if err != nil {
		return objstore.ListResponse{}, err
	}
	if err := s.begin(ctx, "list", req.Prefix); err != nil {
		return objstore.ListResponse{}, err
	}
	defer s.mu.Unlock()
	var resp objstore.ListResponse
	from := max(req.Prefix, req.StartAfter)
	s.mu.objects.Ascend(&object{key: from}, func(o *object) bool {
		switch {
		case o.key == req.StartAfter:
			return true
		case !strings.HasPrefix(o.key, req.Prefix):
			return false
		case len(resp.Objects) == limit:
			resp.More = true
			return false
		}
		resp.Objects = append(resp.Objects, o.info())
		return true
	})
	return resp, nil
}

// DeleteBatch implements objstore.Store.
func (s *Store) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	if err := objstore.ValidateDelete(keys); err != nil {
		return objstore.DeleteResponse{}, err
	}
	if err := s.begin(ctx, "delete", ""); err != nil {
		return objstore.DeleteResponse{}, err
	}
	defer s.mu.Unlock()
	resp := objstore.DeleteResponse{Errors: make([]error, len(keys))}
	for i, key := range keys {
		if resp.Errors[i] = objstore.ValidateKey(key); resp.Errors[i] != nil {
			continue
		}
		if old, ok := s.mu.objects.Delete(&object{key: key}); ok {
			s.mu.bytes -= int64(len(old.data))
		}
	}
	return resp, nil
}

// Close implements objstore.Store and frees the memory.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	s.mu.objects.Clear()
	s.mu.uploads = nil
	s.mu.bytes = 0
	return nil
}
