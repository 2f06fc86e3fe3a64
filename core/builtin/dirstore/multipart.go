package dirstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/mink-project/mink/sdk/objstore"
)

// upload is one multipart upload. Its parts are temporary files of this session,
// so it ends with the session. Completing copies them: a local disk copies at
// memory speed what is still in the page cache.
type upload struct {
	key   string
	parts map[int]part
}

type part struct {
	path string
	size int64
}

// StartUpload implements objstore.Multiparter.
func (s *Store) StartUpload(ctx context.Context, key string) (objstore.UploadID, error) {
	if err := objstore.ValidateKey(key); err != nil {
		return "", err
	}
	if err := s.begin(ctx, "start upload", key); err != nil {
		return "", err
	}
	defer s.end()
	id := objstore.UploadID(path.Base(s.tempName()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.uploads[id] = &upload{key: key, parts: map[int]part{}}
	return id, nil
}

// lookup needs the lock.
func (s *Store) lookup(op, key string, id objstore.UploadID) (*upload, error) {
	u := s.mu.uploads[id]
	if u == nil || u.key != key {
		return nil, fmt.Errorf("%s %q, upload %q: %w: no such upload", op, key, id, objstore.ErrNotExist)
	}
	return u, nil
}

// PutPart implements objstore.Multiparter.
func (s *Store) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	if err := req.Validate(); err != nil {
		return objstore.Part{}, err
	}
	if err := s.begin(ctx, "put part", req.Key); err != nil {
		return objstore.Part{}, err
	}
	defer s.end()
	s.mu.Lock()
	_, err := s.lookup("put part", req.Key, req.Upload)
	s.mu.Unlock()
	if err != nil {
		return objstore.Part{}, err
	}
	p := part{path: s.tempName(), size: objstore.SizeOf(req.Chunks)}
	if err := s.writePart(ctx, p.path, req.Chunks); err != nil {
		s.dropTemp(p.path)
		if ctx.Err() != nil {
			return objstore.Part{}, objstore.ContextError(ctx, "put part", req.Key)
		}
		return objstore.Part{}, s.explain("put part", req.Key, err)
	}
	s.mu.Lock()
	u, err := s.lookup("put part", req.Key, req.Upload) // aborted meanwhile?
	var replaced string
	if err == nil {
		replaced = u.parts[req.Number].path
		u.parts[req.Number] = p
	}
	s.mu.Unlock()
	if err != nil {
		s.dropTemp(p.path)
		return objstore.Part{}, err
	}
	if replaced != "" {
		s.dropTemp(replaced)
	}
	return objstore.Part{Number: req.Number, Size: p.size, Tag: path.Base(p.path)}, nil
}

func (s *Store) writePart(ctx context.Context, name string, chunks [][]byte) error {
	f, err := s.files.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(writeChunks(ctx, f, chunks), f.Close())
}

// CompleteUpload implements objstore.Multiparter.
func (s *Store) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	const op = "complete upload"
	if err := req.Validate(1); err != nil {
		return objstore.PutResponse{}, err
	}
	if err := s.begin(ctx, op, req.Key); err != nil {
		return objstore.PutResponse{}, err
	}
	defer s.end()
	parts, err := s.chosen(op, req)
	if err != nil {
		return objstore.PutResponse{}, err
	}
	temp, err := s.writeTemp(ctx, req.Key, false, func(w io.Writer) error {
		for _, p := range parts {
			if err := s.copyPart(ctx, w, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = s.publish(ctx, op, temp, req.Key, req.CreateOnly)
	}
	if err != nil {
		return objstore.PutResponse{}, err
	}
	s.forget(req.Key, req.Upload)
	return objstore.PutResponse{}, nil
}

// chosen gives the files of the parts that the request names.
func (s *Store) chosen(op string, req objstore.CompleteUploadRequest) ([]part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.lookup(op, req.Key, req.Upload)
	if err != nil {
		return nil, err
	}
	parts := make([]part, len(req.Parts))
	for i, want := range req.Parts {
		have, ok := u.parts[want.Number]
		if !ok || path.Base(have.path) != want.Tag || have.size != want.Size {
			return nil, fmt.Errorf("%s %q: %w: part %d is not the one that was written last", op, req.Key, objstore.ErrInvalid, want.Number)
		}
		parts[i] = have
	}
	return parts, nil
}

func (s *Store) copyPart(ctx context.Context, w io.Writer, p part) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := s.files.Open(p.path)
	if err != nil {
		return err
	}
	n, err := io.Copy(w, io.NewSectionReader(f, 0, p.size))
	if err == nil && n < p.size {
		err = fmt.Errorf("part has %d of %d bytes: %w", n, p.size, io.ErrUnexpectedEOF)
	}
	return errors.Join(err, f.Close())
}

// AbortUpload implements objstore.Multiparter.
func (s *Store) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	if err := objstore.ValidateKey(key); err != nil {
		return err
	}
	if err := s.begin(ctx, "abort upload", key); err != nil {
		return err
	}
	defer s.end()
	s.forget(key, id)
	return nil
}

// forget drops an upload, if it is there, and its files.
func (s *Store) forget(key string, id objstore.UploadID) {
	s.mu.Lock()
	u, err := s.lookup("forget", key, id)
	if err == nil {
		delete(s.mu.uploads, id)
	}
	s.mu.Unlock()
	if err != nil {
		return
	}
	for _, p := range u.parts {
		s.dropTemp(p.path)
	}
}
