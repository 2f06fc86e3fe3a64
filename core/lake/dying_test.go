package lake

import (
	"context"
	"sync"

	"github.com/mink-project/mink/sdk/objstore"
)

// dyingStore is the store of a process that is killed at one of its requests: that one and
// all that follow fail, and with lost it takes effect. With then it does not die: then is
// called before the request.
type dyingStore struct {
	objstore.Store
	lost bool
	then func()
	// still, when set, says of which keys reads are not counted; they are noted in read.
	still func(key string) bool
	read  map[string]bool

	mu    sync.Mutex
	armed bool
	left  int
	died  bool
}

// arm counts requests from now on, and lets it die at number stop; 0: never.
func (s *dyingStore) arm(stop int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.left = stop > 0, stop
	if stop > 0 {
		s.died = false
	}
}

func (s *dyingStore) dead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.died
}

// step counts one request, and reports that the process is dead.
func (s *dyingStore) step() bool {
	s.mu.Lock()
	if !s.armed {
		s.mu.Unlock()
		return false
	}
	s.left--
	now := s.left == 0
	s.died = s.died || now
	dead := s.died && s.then == nil
	s.mu.Unlock()
	if now && s.then != nil {
		s.then()
	}
	return dead
}

// uncounted reports that a read of the key is no step.
func (s *dyingStore) uncounted(key string) bool {
	if s.still == nil || !s.still(key) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed {
		s.read[key] = true
	}
	return true
}

func dying[T any](s *dyingStore, call func() (T, error)) (T, error) {
	var zero T
	s.mu.Lock()
	was := s.armed && s.died
	s.mu.Unlock()
	if s.step() {
		if s.lost && !was {
			_, _ = call()
			return zero, objstore.ErrUnknownOutcome
		}
		return zero, objstore.ErrUnavailable
	}
	return call()
}

func (s *dyingStore) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	return dying(s, func() (objstore.PutResponse, error) { return s.Store.Put(ctx, req) })
}

func (s *dyingStore) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	if s.uncounted(req.Key) {
		return s.Store.GetRange(ctx, req)
	}
	return dying(s, func() (objstore.GetRangeResponse, error) { return s.Store.GetRange(ctx, req) })
}

func (s *dyingStore) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	if s.uncounted(key) {
		return s.Store.Head(ctx, key)
	}
	return dying(s, func() (objstore.ObjectInfo, error) { return s.Store.Head(ctx, key) })
}

func (s *dyingStore) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	return dying(s, func() (objstore.ListResponse, error) { return s.Store.List(ctx, req) })
}

func (s *dyingStore) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	return dying(s, func() (objstore.DeleteResponse, error) { return s.Store.DeleteBatch(ctx, keys) })
}
