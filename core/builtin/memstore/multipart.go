package memstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/mink-project/mink/sdk/objstore"
)

// StartUpload implements objstore.Multiparter.
func (s *Store) StartUpload(ctx context.Context, key string) (objstore.UploadID, error) {
	if err := objstore.ValidateKey(key); err != nil {
		return "", err
	}
	if err := s.begin(ctx, "start upload", key); err != nil {
		return "", err
	}
	defer s.mu.Unlock()
	id := objstore.UploadID(s.id("u"))
	s.mu.uploads[id] = &upload{key: key, parts: map[int]part{}}
	return id, nil
}

func (s *Store) upload(op, key string, id objstore.UploadID) (*upload, error) {
	u := s.mu.uploads[id]
	if u == nil || u.key != key {
		return nil, fmt.Errorf("%s %q, upload %q: %w: no such upload", op, key, id, objstore.ErrNotExist)
	}
	return u, nil
}

// PutPart implements objstore.Multiparter. The chunks are copied.
func (s *Store) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	if err := req.Validate(); err != nil {
		return objstore.Part{}, err
	}
	data := slices.Concat(req.Chunks...)
	if err := s.begin(ctx, "put part", req.Key); err != nil {
		return objstore.Part{}, err
	}
	defer s.mu.Unlock()
	u, err := s.upload("put part", req.Key, req.Upload)
	if err != nil {
		return objstore.Part{}, err
	}
	if err := s.grow(req.Key, int64(len(data)-len(u.parts[req.Number].data))); err != nil {
		return objstore.Part{}, err
	}
	p := part{data: data, tag: s.id("p")}
	u.parts[req.Number] = p
	return objstore.Part{Number: req.Number, Size: int64(len(data)), Tag: p.tag}, nil
}

// CompleteUpload implements objstore.Multiparter.
func (s *Store) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	if err := req.Validate(s.cfg.PartSizeMin); err != nil {
		return objstore.PutResponse{}, err
	}
	if err := s.begin(ctx, "complete upload", req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	defer s.mu.Unlock()
	u, err := s.upload("complete upload", req.Key, req.Upload)
	if err != nil {
		return objstore.PutResponse{}, err
	}
	chunks := make([][]byte, len(req.Parts))
	for i, want := range req.Parts {
		have, ok := u.parts[want.Number]
		if !ok || have.tag != want.Tag || int64(len(have.data)) != want.Size {
			return objstore.PutResponse{}, fmt.Errorf("complete upload %q: %w: part %d is not the one that was written last", req.Key, objstore.ErrInvalid, want.Number)
		}
		chunks[i] = have.data
	}
	held := u.bytes()
	s.mu.bytes -= held // the parts make room for the object
	resp, err := s.publish(req.Key, slices.Concat(chunks...), req.CreateOnly, "")
	if err != nil {
		s.mu.bytes += held
		return objstore.PutResponse{}, err
	}
	delete(s.mu.uploads, req.Upload)
	return resp, nil
}

// Uploads is how many multipart uploads are neither completed nor aborted.
func (s *Store) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.uploads)
}

func (u *upload) bytes() int64 {
	var n int64
	for _, p := range u.parts {
		n += int64(len(p.data))
	}
	return n
}

// AbortUpload implements objstore.Multiparter.
func (s *Store) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	if err := objstore.ValidateKey(key); err != nil {
		return err
	}
	if err := s.begin(ctx, "abort upload", key); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if u := s.mu.uploads[id]; u != nil && u.key == key {
		s.mu.bytes -= u.bytes()
		delete(s.mu.uploads, id)
	}
	return nil
}
