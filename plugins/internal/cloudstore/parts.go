package cloudstore

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/sdk/objstore"
)

func (s *Store) parts(op, key string) (Parts, error) {
	p, ok := s.service.(Parts)
	if !ok {
		return nil, fmt.Errorf("%s %q: %w", op, key, objstore.ErrUnimplemented)
	}
	return p, nil
}

// StartUpload implements objstore.Multiparter.
func (s *Store) StartUpload(ctx context.Context, key string) (id objstore.UploadID, err error) {
	if err := objstore.ValidateKey(key); err != nil {
		return "", err
	}
	p, err := s.parts("start upload", key)
	if err != nil {
		return "", err
	}
	end, err := s.begin(ctx, "start upload", key)
	if err != nil {
		return "", err
	}
	defer end()
	// Not a write in the sense of unknown outcomes: an upload whose id was lost
	// is never visible.
	err = s.run(ctx, call{op: "start upload", key: key}, func(ctx context.Context) (err error) {
		id, err = p.Start(ctx, s.prefix+key)
		return err
	})
	return id, err
}

// PutPart implements objstore.Multiparter.
func (s *Store) PutPart(ctx context.Context, req objstore.PutPartRequest) (objstore.Part, error) {
	if err := req.Validate(); err != nil {
		return objstore.Part{}, err
	}
	p, err := s.parts("put part", req.Key)
	if err != nil {
		return objstore.Part{}, err
	}
	w := Write{Name: s.prefix + req.Key, Chunks: req.Chunks, Size: objstore.SizeOf(req.Chunks), CRC32C: req.CRC32C}
	if most := s.service.Capabilities().PartSizeMax; w.Size > most {
		return objstore.Part{}, fmt.Errorf("part %d of %q: %w: %d bytes; a part takes %d", req.Number, req.Key, objstore.ErrInvalid, w.Size, most)
	}
	if !req.HasCRC32C {
		w.CRC32C = objstore.Checksum(req.Chunks...)
	}
	end, err := s.begin(ctx, "put part", req.Key)
	if err != nil {
		return objstore.Part{}, err
	}
	defer end()
	part := objstore.Part{Number: req.Number, Size: w.Size}
	err = s.run(ctx, call{op: "put part", key: req.Key, write: true}, func(ctx context.Context) (err error) {
		part.Tag, err = p.PutPart(ctx, req.Upload, req.Number, w)
		return err
	})
	if err != nil {
		return objstore.Part{}, err
	}
	return part, nil
}

// CompleteUpload implements objstore.Multiparter. It is sent once: a second
// completion would not find the upload that the first one has completed.
func (s *Store) CompleteUpload(ctx context.Context, req objstore.CompleteUploadRequest) (objstore.PutResponse, error) {
	if err := req.Validate(s.service.Capabilities().PartSizeMin); err != nil {
		return objstore.PutResponse{}, err
	}
	p, err := s.parts("complete upload", req.Key)
	if err != nil {
		return objstore.PutResponse{}, err
	}
	end, err := s.begin(ctx, "complete upload", req.Key)
	if err != nil {
		return objstore.PutResponse{}, err
	}
	defer end()
	var resp objstore.PutResponse
	err = s.run(ctx, call{op: "complete upload", key: req.Key, write: true, once: true}, func(ctx context.Context) (err error) {
		resp.Version, err = p.Complete(ctx, s.prefix+req.Key, req.Upload, req.Parts, req.CreateOnly)
		return err
	})
	if req.CreateOnly {
		err = s.settle(ctx, req.Key, err)
	}
	return resp, err
}

// AbortUpload implements objstore.Multiparter.
func (s *Store) AbortUpload(ctx context.Context, key string, id objstore.UploadID) error {
	if err := objstore.ValidateKey(key); err != nil {
		return err
	}
	p, err := s.parts("abort upload", key)
	if err != nil {
		return err
	}
	end, err := s.begin(ctx, "abort upload", key)
	if err != nil {
		return err
	}
	defer end()
	return s.run(ctx, call{op: "abort upload", key: key, write: true}, func(ctx context.Context) error {
		return p.Abort(ctx, s.prefix+key, id)
	})
}
