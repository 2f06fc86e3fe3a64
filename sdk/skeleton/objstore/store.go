package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// store works, with objects in the memory of the process, which go with it: put
// requests to your service in their place. What each method must do is written at
// objstore.Store.
type store struct {
	mu      sync.Mutex
	objects map[string]object
	closed  bool
}

type object struct {
	data     []byte
	modified time.Time
}

// open makes a store from its URI, skeleton://bucket/prefix.
func open(uri string) (*store, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%w: %q: want skeleton://bucket/prefix", objstore.ErrInvalid, uri)
	}
	return &store{objects: map[string]object{}}, nil
}

// Capabilities declares what the conformance kit then checks.
func (s *store) Capabilities() objstore.Capabilities {
	return objstore.Capabilities{
		CreateOnlyPut: true, // without it a node refuses the store
		ListPageMax:   1000,
		PutSizeMax:    128 << 20,
		PutLatency:    time.Millisecond,
	}
}

func (s *store) Alloc(n int) objstore.Buffer { return objstore.HeapAlloc(n) }

// begin is how every call starts; end must follow when it answers nil.
func (s *store) begin(ctx context.Context, op, key string) error {
	if err := objstore.ContextError(ctx, op, key); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("%s %q: %w: the store is closed", op, key, objstore.ErrUnavailable)
	}
	return nil
}

func (s *store) end() { s.mu.Unlock() }

func (s *store) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if err := req.Validate(); err != nil {
		return objstore.PutResponse{}, err
	}
	if req.IfMatch != "" {
		return objstore.PutResponse{}, fmt.Errorf("put %q: %w: compare-and-swap", req.Key, objstore.ErrUnimplemented)
	}
	if err := s.begin(ctx, "put", req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	defer s.end()
	if _, there := s.objects[req.Key]; there && req.CreateOnly {
		return objstore.PutResponse{}, fmt.Errorf("put %q: %w", req.Key, objstore.ErrAlreadyExists)
	}
	s.objects[req.Key] = object{data: bytes.Join(req.Chunks, nil), modified: time.Now()}
	return objstore.PutResponse{}, nil
}

// find needs the lock.
func (s *store) find(op, key string) (object, error) {
	o, there := s.objects[key]
	if !there {
		return o, fmt.Errorf("%s %q: %w", op, key, objstore.ErrNotExist)
	}
	return o, nil
}

func (s *store) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if err := objstore.ValidateKey(req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	if err := s.begin(ctx, "get", req.Key); err != nil {
		return objstore.GetRangeResponse{}, err
	}
	defer s.end()
	o, err := s.find("get", req.Key)
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	n, err := req.Resolve(int64(len(o.data)))
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	data := req.Memory(n)
	copy(data, o.data[req.Offset:])
	return objstore.GetRangeResponse{Data: data, Size: int64(len(o.data))}, nil
}

func (s *store) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if err := objstore.ValidateKey(key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	if err := s.begin(ctx, "head", key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	defer s.end()
	o, err := s.find("head", key)
	return objstore.ObjectInfo{Key: key, Size: int64(len(o.data)), Modified: o.modified}, err
}

func (s *store) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	page, err := req.PageSize(s.Capabilities().ListPageMax)
	if err != nil {
		return objstore.ListResponse{}, err
	}
	if err := s.begin(ctx, "list", req.Prefix); err != nil {
		return objstore.ListResponse{}, err
	}
	defer s.end()
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, req.Prefix) && key > req.StartAfter {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	resp := objstore.ListResponse{More: len(keys) > page}
	for _, key := range keys[:min(page, len(keys))] {
		o := s.objects[key]
		resp.Objects = append(resp.Objects, objstore.ObjectInfo{Key: key, Size: int64(len(o.data)), Modified: o.modified})
	}
	return resp, nil
}

func (s *store) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	if err := objstore.ValidateDelete(keys); err != nil {
		return objstore.DeleteResponse{}, err
	}
	if err := s.begin(ctx, "delete", ""); err != nil {
		return objstore.DeleteResponse{}, err
	}
	defer s.end()
	resp := objstore.DeleteResponse{Errors: make([]error, len(keys))}
	for i, key := range keys {
		if resp.Errors[i] = objstore.ValidateKey(key); resp.Errors[i] == nil {
			delete(s.objects, key)
		}
	}
	return resp, nil
}

func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
