package cloudstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/mink-project/mink/sdk/objstore"
)

// Store is an objstore.Store, and an objstore.Multiparter when the service is a
// Parts.
type Store struct {
	service  Service
	prefix   string // "" or with a slash at its end
	attempts int

	calls sync.WaitGroup
	mu    struct {
		sync.Mutex
		closed bool
	}
}

var (
	_ objstore.Store       = (*Store)(nil)
	_ objstore.Multiparter = (*Store)(nil)
)

// New makes a store of a service, which it closes, with a prefix of every object's
// name that has no slashes at its ends; "" for the whole bucket.
func New(service Service, prefix string, limits Limits) *Store {
	s := &Store{service: service, prefix: prefix, attempts: limits.orDefault().Attempts}
	if prefix != "" {
		s.prefix += "/"
	}
	return s
}

// Open is New and Check: what a plugin does before it says that the store of a URI
// is open. It closes the service of one that is not.
func Open(ctx context.Context, uri string, service Service, prefix string, limits Limits) (objstore.Store, error) {
	s := New(service, prefix, limits)
	if err := s.Check(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", uri, err), s.Close())
	}
	return s, nil
}

// Check asks for one key: an answer shows that endpoint, bucket and credentials
// are right.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.List(ctx, objstore.ListRequest{Limit: 1})
	return err
}

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	c := s.service.Capabilities()
	if _, ok := s.service.(Parts); !ok {
		c.PartSizeMin, c.PartSizeMax = 0, 0
	}
	return c
}

// Alloc implements objstore.Store.
func (s *Store) Alloc(n int) objstore.Buffer { return objstore.HeapAlloc(n) }

// begin admits a call, unless the store is closed or ctx is over; the caller
// calls end when it is done.
func (s *Store) begin(ctx context.Context, op, key string) (end func(), err error) {
	if err := objstore.ContextError(ctx, op, key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, fmt.Errorf("%s %q: %w: the store is closed", op, key, objstore.ErrUnavailable)
	}
	s.calls.Add(1)
	return s.calls.Done, nil
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	s.calls.Wait()
	if closed {
		return nil
	}
	return s.service.Close()
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	if err := req.Validate(); err != nil {
		return objstore.PutResponse{}, err
	}
	caps := s.service.Capabilities()
	w := Write{
		Name: s.prefix + req.Key, Chunks: req.Chunks, Size: objstore.SizeOf(req.Chunks),
		CRC32C: req.CRC32C, CreateOnly: req.CreateOnly, IfMatch: req.IfMatch,
	}
	switch {
	case w.Size > caps.PutSizeMax:
		return objstore.PutResponse{}, fmt.Errorf("put %q: %w: %d bytes; a single put takes %d", req.Key, objstore.ErrInvalid, w.Size, caps.PutSizeMax)
	case req.IfMatch != "" && !caps.CompareAndSwap:
		return objstore.PutResponse{}, fmt.Errorf("put %q over a version: %w", req.Key, objstore.ErrUnimplemented)
	}
	if !req.HasCRC32C {
		w.CRC32C = objstore.Checksum(req.Chunks...)
	}
	end, err := s.begin(ctx, "put", req.Key)
	if err != nil {
		return objstore.PutResponse{}, err
	}
	defer end()
	var resp objstore.PutResponse
	c := call{op: "put", key: req.Key, write: true, once: req.CreateOnly || req.IfMatch != ""}
	err = s.run(ctx, c, func(ctx context.Context) (err error) {
		resp.Version, err = s.service.Put(ctx, w)
		return err
	})
	if req.CreateOnly {
		err = s.settle(ctx, req.Key, err)
	}
	return resp, err
}

// settle looks whether the key is taken, where a create-only write was refused
// because of another one that was still going on.
func (s *Store) settle(ctx context.Context, key string, err error) error {
	if !errors.Is(err, errTaken) {
		return err
	}
	if _, headErr := s.head(ctx, key); headErr == nil {
		return fmt.Errorf("put %q: %w", key, objstore.ErrAlreadyExists)
	}
	return err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if err := objstore.ValidateKey(key); err != nil {
		return objstore.ObjectInfo{}, err
	}
	end, err := s.begin(ctx, "head", key)
	if err != nil {
		return objstore.ObjectInfo{}, err
	}
	defer end()
	return s.head(ctx, key)
}

func (s *Store) head(ctx context.Context, key string) (info objstore.ObjectInfo, err error) {
	err = s.run(ctx, call{op: "head", key: key}, func(ctx context.Context) (err error) {
		info, err = s.service.Head(ctx, s.prefix+key)
		return err
	})
	info.Key = strings.TrimPrefix(info.Key, s.prefix)
	return info, err
}

// DeleteBatch implements objstore.Store.
func (s *Store) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	if err := objstore.ValidateDelete(keys); err != nil {
		return objstore.DeleteResponse{}, err
	}
	end, err := s.begin(ctx, "delete", "")
	if err != nil {
		return objstore.DeleteResponse{}, err
	}
	defer end()
	resp := objstore.DeleteResponse{Errors: make([]error, len(keys))}
	results := map[string]error{} // by distinct valid key
	for i, key := range keys {
		if resp.Errors[i] = objstore.ValidateKey(key); resp.Errors[i] == nil {
			results[key] = errPending
		}
	}
	if err := s.delete(ctx, results); err != nil {
		return objstore.DeleteResponse{}, err
	}
	for i, key := range keys {
		if resp.Errors[i] == nil {
			resp.Errors[i] = results[key]
		}
	}
	return resp, nil
}

// errPending marks a key whose deletion may still be tried.
var errPending = errors.New("not deleted yet")

// delete fills in the results of the keys that are pending. Keys that failed in
// a way that may pass are tried again with the next attempt.
func (s *Store) delete(ctx context.Context, results map[string]error) error {
	err := s.run(ctx, call{op: "delete", key: s.prefix + "...", write: true}, func(ctx context.Context) error {
		var keys, names []string
		for key, err := range results {
			if errors.Is(err, errPending) {
				keys, names = append(keys, key), append(names, s.prefix+key)
			}
		}
		if len(names) == 0 {
			return nil
		}
		errs, err := s.service.Delete(ctx, names)
		if err != nil {
			return err
		}
		var passing error
		for i, key := range keys {
			results[key] = nil
			if errs[i] == nil {
				continue
			}
			fault, err := s.judge(ctx, call{op: "delete", key: key, write: true}, errs[i], true)
			results[key] = err
			if fault.Unsure || errors.Is(err, objstore.ErrThrottled) || errors.Is(err, objstore.ErrUnavailable) {
				results[key] = &pending{err}
				passing = errs[i]
			}
		}
		return passing
	})
	for key, result := range results {
		if p := new(pending); errors.As(result, &p) {
			results[key], err = p.error, nil
		}
	}
	return err
}

// pending is the error of a key that may be tried again.
type pending struct{ error }

func (p *pending) Is(target error) bool { return target == errPending }

// eachMax is how many requests of one Each are under way.
const eachMax = 32

// Each calls do for every name, some at once, and answers the errors in the order
// of the names.
func Each(ctx context.Context, names []string, do func(context.Context, string) error) []error {
	ctx = apart(ctx)
	errs := make([]error, len(names))
	limit := make(chan struct{}, eachMax)
	var wg sync.WaitGroup
	for i, name := range names {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			errs[i] = do(ctx, name)
		})
	}
	wg.Wait()
	return errs
}
