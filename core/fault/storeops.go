package fault

import (
	"context"
	"fmt"
	"slices"

	"github.com/mink-project/mink/sdk/objstore"
)

// Capabilities implements objstore.Store.
func (s *Store) Capabilities() objstore.Capabilities {
	c := s.inner.Capabilities()
	if s.cfg.PageMax > 0 && s.cfg.PageMax < c.ListPageMax {
		c.ListPageMax = s.cfg.PageMax
	}
	if s.cfg.Latency != (Latency{}) {
		c.PutLatency = s.cfg.Latency.Put.Median
		c.Local = false
	}
	return c
}

// Alloc implements objstore.Store.
func (s *Store) Alloc(n int) objstore.Buffer { return s.inner.Alloc(n) }

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, req objstore.PutRequest) (objstore.PutResponse, error) {
	p := s.plan(Call{Op: Put, Key: req.Key, Bytes: objstore.SizeOf(req.Chunks), CreateOnly: req.CreateOnly})
	if p.action.kind == actFlipBit {
		if err := req.Validate(); err != nil {
			return objstore.PutResponse{}, err
		}
		data := slices.Concat(req.Chunks...)
		p.flipBit(data)
		req.Chunks, req.HasCRC32C = [][]byte{data}, false
	}
	var resp objstore.PutResponse
	err := s.carry(ctx, p, func(ctx context.Context) (err error) {
		resp, err = s.inner.Put(ctx, req)
		return err
	})
	if err != nil { // resp may still be written to by a late landing
		return objstore.PutResponse{}, err
	}
	return resp, nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, req objstore.GetRangeRequest) (objstore.GetRangeResponse, error) {
	p := s.plan(Call{Op: Get, Key: req.Key})
	if p.action.kind == actHold {
		req.Into = nil // a read that is let go after its caller left must not write there
	}
	var resp objstore.GetRangeResponse
	err := s.carry(ctx, p, func(ctx context.Context) (err error) {
		resp, err = s.inner.GetRange(ctx, req)
		if err != nil {
			return err
		}
		p.read.Store(int64(len(resp.Data)))
		switch p.action.kind {
		case actFlipBit:
			p.flipBit(resp.Data)
		case actShortRead:
			if n := len(resp.Data); n > 0 {
				resp.Data = resp.Data[:p.rng.IntN(n)]
			}
		}
		return nil
	})
	if err != nil {
		return objstore.GetRangeResponse{}, err
	}
	return resp, nil
}

func (p *plan) flipBit(data []byte) {
	if len(data) > 0 {
		data[p.rng.IntN(len(data))] ^= 1 << p.rng.IntN(8)
	}
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.ObjectInfo, error) {
	var info objstore.ObjectInfo
	err := s.carry(ctx, s.plan(Call{Op: Head, Key: key}), func(ctx context.Context) (err error) {
		info, err = s.inner.Head(ctx, key)
		return err
	})
	if err != nil {
		return objstore.ObjectInfo{}, err
	}
	return info, nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, req objstore.ListRequest) (objstore.ListResponse, error) {
	if s.cfg.PageMax > 0 && req.Limit >= 0 && (req.Limit == 0 || req.Limit > s.cfg.PageMax) {
		req.Limit = s.cfg.PageMax
	}
	var resp objstore.ListResponse
	err := s.carry(ctx, s.plan(Call{Op: List, Key: req.Prefix}), func(ctx context.Context) (err error) {
		resp, err = s.inner.List(ctx, req)
		return err
	})
	if err != nil {
		return objstore.ListResponse{}, err
	}
	return resp, nil
}

// DeleteBatch implements objstore.Store. A fault hits the whole batch.
func (s *Store) DeleteBatch(ctx context.Context, keys []string) (objstore.DeleteResponse, error) {
	c := Call{Op: Delete, Keys: slices.Clone(keys)}
	if len(keys) > 0 {
		c.Key = keys[0]
	}
	var resp objstore.DeleteResponse
	err := s.carry(ctx, s.plan(c), func(ctx context.Context) (err error) {
		resp, err = s.inner.DeleteBatch(ctx, c.Keys)
		return err
	})
	if err != nil {
		return objstore.DeleteResponse{}, err
	}
	return resp, nil
}

func (s *Store) parts(op Op, key string) (objstore.Multiparter, error) {
	m, ok := objstore.Multipart(s.inner)
	if !ok {
		return nil, fmt.Errorf("%s %q: %w: the store has no multipart uploads", op, key, objstore.ErrUnimplemented)
	}
	return m, nil
}

// StartUpload implements objstore.Multiparter.
func (s *Store) StartUpload(ctx context.Context, key string) (objstore.UploadID, error) {
	inner, err := s.parts(StartUpload, key)
	if err != nil {
		return "", err
	}
	var id objstore.UploadID
	err = s.carry(ctx, s.plan(Call{Op: StartUpload, Key: key}), func(ctx context.Context) (err error) {
		id, err = inner.StartUpload(ctx, key)
		return err
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// PutPart implements objstore.Multiparter.
func (s *Store) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	inner, err := s.parts(PutPart, req.Key)
	if err != nil {
		return objstore.Part{}, err
	}
	var part objstore.Part
	c := Call{Op: PutPart, Key: req.Key, Bytes: objstore.SizeOf(req.Chunks)}
	err = s.carry(ctx, s.plan(c), func(ctx context.Context) (err error) {
		part, err = inner.PutPart(ctx, req)
		return err
	})
	if err != nil {
		return objstore.Part{}, err
	}
	return part, nil
}

// CompleteUpload implements objstore.Multiparter.
func (s *Store) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	inner, err := s.parts(CompleteUpload, req.Key)
	if err != nil {
		return objstore.PutResponse{}, err
	}
	var resp objstore.PutResponse
	c := Call{Op: CompleteUpload, Key: req.Key, CreateOnly: req.CreateOnly}
	err = s.carry(ctx, s.plan(c), func(ctx context.Context) (err error) {
		resp, err = inner.CompleteUpload(ctx, req)
		return err
	})
	if err != nil {
		return objstore.PutResponse{}, err
	}
	return resp, nil
}

// AbortUpload implements objstore.Multiparter.
func (s *Store) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	inner, err := s.parts(AbortUpload, key)
	if err != nil {
		return err
	}
	return s.carry(ctx, s.plan(Call{Op: AbortUpload, Key: key}), func(ctx context.Context) error {
		return inner.AbortUpload(ctx, key, id)
	})
}
