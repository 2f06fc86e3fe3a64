package pluginhost

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/objstore"
)

// closeWait bounds how long Close waits for the calls in progress.
const closeWait = 30 * time.Second

// store is an objstore.Store, and Multiparter, in whatever process of its plugin
// serves now.
type store struct {
	sup      *supervisor
	uri      string
	options  map[string]string
	caps     objstore.Capabilities // of the first process
	opening  singleflight.Group
	released func() error

	mu struct {
		sync.Mutex
		inner      objstore.Store // in the process of generation
		generation uint64
		closed     bool
		calls      int
		idle       chan struct{} // closed when the last call ends after Close; nil before Close
	}
}

// openStore opens the store for the first time.
func openStore(ctx context.Context, sup *supervisor, uri string, options map[string]string) (*store, error) {
	s := &store{sup: sup, uri: uri, options: options}
	p, generation, err := sup.serving(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sup.cfg.StartTimeout)
	defer cancel()
	inner, err := p.OpenStore(ctx, uri, options)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", sup.in.Manifest.Name, err)
	}
	s.caps = inner.Capabilities()
	s.mu.inner, s.mu.generation = inner, generation
	return s, nil
}

// begin answers the store in the process that serves, opened there when it is new.
// The caller calls end when it is nil-error.
func (s *store) begin(ctx context.Context) (objstore.Store, error) {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("plugin %s: %w: the store is closed", s.sup.in.Manifest.Name, objstore.ErrUnavailable)
	}
	s.mu.calls++
	s.mu.Unlock()
	inner, err := s.current(ctx)
	if err != nil {
		s.end()
	}
	return inner, err
}

func (s *store) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls--
	if s.mu.calls == 0 && s.mu.idle != nil {
		close(s.mu.idle)
	}
}

func (s *store) current(ctx context.Context) (objstore.Store, error) {
	p, generation, err := s.sup.serving(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	inner, have := s.mu.inner, s.mu.generation
	s.mu.Unlock()
	if have == generation {
		return inner, nil
	}
	// One opens for all who wait, and not on the context of any of them.
	opened := s.opening.DoChan(strconv.FormatUint(generation, 10), func() (any, error) { return s.reopen(p, generation) })
	select {
	case r := <-opened:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(objstore.Store), nil //nolint:forcetypeassert // reopen's
	case <-ctx.Done():
		return nil, fmt.Errorf("plugin %s: %w", s.sup.in.Manifest.Name, ctx.Err())
	}
}

// reopen opens the store in a new process. Whatever the reason why it fails, the
// caller's own request is not at fault: it is unavailable.
func (s *store) reopen(p *host.Process, generation uint64) (objstore.Store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.sup.cfg.StartTimeout)
	defer cancel()
	inner, err := p.OpenStore(ctx, s.uri, s.options)
	if err != nil {
		s.sup.logger.Error("the store cannot be opened in the plugin's new process; it is tried again", "error", err)
		return nil, fmt.Errorf("plugin %s: %w: its new process cannot open the store: %v", s.sup.in.Manifest.Name, objstore.ErrUnavailable, err) //nolint:errorlint // see above
	}
	if caps := inner.Capabilities(); !covers(caps, s.caps) {
		_ = inner.Close() // the next call opens it again, perhaps in a better process
		return nil, fmt.Errorf("plugin %s: %w: its new process can do less than the one before (%+v, was %+v): start the node again", s.sup.in.Manifest.Name, objstore.ErrUnavailable, caps, s.caps)
	}
	s.mu.Lock()
	if generation > s.mu.generation { // a newer process may have been quicker
		s.mu.inner, s.mu.generation = inner, generation
	}
	s.mu.Unlock()
	return inner, nil
}

// covers says whether what was planned with want works with got.
func covers(got, want objstore.Capabilities) bool {
	return (got.CreateOnlyPut || !want.CreateOnlyPut) && (got.CompareAndSwap || !want.CompareAndSwap) &&
		got.PutSizeMax >= want.PutSizeMax && got.PartSizeMin <= want.PartSizeMin && got.PartSizeMax >= want.PartSizeMax &&
		(got.PartSizeMin > 0) == (want.PartSizeMin > 0)
}

// call runs one operation and counts it. in are the bytes that it sends.
func call[T any](ctx context.Context, s *store, op operation, in int64, f func(objstore.Store) (T, int64, error)) (T, error) {
	var none T
	if err := objstore.ContextError(ctx, string(op), ""); err != nil {
		return none, err
	}
	done := s.sup.meter.begin(op)
	inner, err := s.begin(ctx)
	if err != nil {
		done(0, 0, err)
		return none, err
	}
	defer s.end()
	v, out, err := f(inner)
	done(in, out, err)
	return v, err
}

func (s *store) Capabilities() objstore.Capabilities { return s.caps }

func (s *store) Alloc(n int) objstore.Buffer { return objstore.HeapAlloc(n) }

func (s *store) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	return call(ctx, s, opPut, objstore.SizeOf(req.Chunks), func(inner objstore.Store) (objstore.PutResponse, int64, error) {
		resp, err := inner.Put(ctx, req)
		return resp, 0, err
	})
}

func (s *store) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	return call(ctx, s, opGet, 0, func(inner objstore.Store) (objstore.GetRangeResponse, int64, error) {
		resp, err := inner.GetRange(ctx, req)
		return resp, int64(len(resp.Data)), err
	})
}

func (s *store) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	return call(ctx, s, opHead, 0, func(inner objstore.Store) (objstore.ObjectInfo, int64, error) {
		info, err := inner.Head(ctx, key)
		return info, 0, err
	})
}

func (s *store) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	return call(ctx, s, opList, 0, func(inner objstore.Store) (objstore.ListResponse, int64, error) {
		page, err := inner.List(ctx, req)
		return page, 0, err
	})
}

func (s *store) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	return call(ctx, s, opDelete, 0, func(inner objstore.Store) (objstore.DeleteResponse, int64, error) {
		resp, err := inner.DeleteBatch(ctx, keys)
		return resp, 0, err
	})
}

func (s *store) StartUpload(ctx context.Context, key string) (objstore.UploadID, error) {
	return callParts(ctx, s, opUpload, 0, func(m objstore.Multiparter) (objstore.UploadID, error) {
		return m.StartUpload(ctx, key)
	})
}

func (s *store) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	return callParts(ctx, s, opPutPart, objstore.SizeOf(req.Chunks), func(m objstore.Multiparter) (objstore.Part, error) {
		return m.PutPart(ctx, req)
	})
}

func (s *store) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	return callParts(ctx, s, opUpload, 0, func(m objstore.Multiparter) (objstore.PutResponse, error) {
		return m.CompleteUpload(ctx, req)
	})
}

func (s *store) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	_, err := callParts(ctx, s, opUpload, 0, func(m objstore.Multiparter) (struct{}, error) {
		return struct{}{}, m.AbortUpload(ctx, key, id)
	})
	return err
}

func callParts[T any](ctx context.Context, s *store, op operation, in int64, f func(objstore.Multiparter) (T, error)) (T, error) {
	return call(ctx, s, op, in, func(inner objstore.Store) (T, int64, error) {
		m, ok := objstore.Multipart(inner)
		if !ok {
			var none T
			return none, 0, fmt.Errorf("%w: multipart uploads", objstore.ErrUnimplemented)
		}
		v, err := f(m)
		return v, 0, err
	})
}

// Close waits for the calls in progress, closes the store in the plugin, and ends
// the plugin's process when no other store of it is open.
func (s *store) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	s.mu.idle = make(chan struct{})
	if s.mu.calls == 0 {
		close(s.mu.idle)
	}
	idle, inner, generation := s.mu.idle, s.mu.inner, s.mu.generation
	s.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(closeWait):
		s.sup.logger.Warn("calls in progress did not end in time; the store is closed all the same", "limit", closeWait)
	}
	s.sup.mu.Lock()
	same := s.sup.mu.process != nil && s.sup.mu.generation == generation
	s.sup.mu.Unlock()
	var err error
	if same {
		err = inner.Close()
	}
	if rerr := s.released(); err == nil {
		err = rerr
	}
	return err
}
