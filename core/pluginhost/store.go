package pluginhost

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/objstore"
)

// store is an objstore.Store, and Multiparter, in whatever process of its plugin
// serves now.
type store struct {
	*opened[objstore.Store]
	caps objstore.Capabilities // of the first process
}

// openStore opens the store for the first time.
func openStore(ctx context.Context, sup *supervisor, uri string, options map[string]string) (*store, error) {
	s := &store{opened: &opened[objstore.Store]{sup: sup, what: "store", open: func(ctx context.Context, p *host.Process) (objstore.Store, error) {
		return p.OpenStore(ctx, uri, options)
	}}}
	inner, err := s.first(ctx)
	if err != nil {
		return nil, err
	}
	s.caps = inner.Capabilities()
	s.fits = func(again objstore.Store) error {
		if caps := again.Capabilities(); !covers(caps, s.caps) {
			return fmt.Errorf("its new process can do less than the one before (%+v, was %+v)", caps, s.caps)
		}
		return nil
	}
	return s, nil
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
