package lake

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/sdk/objstore"
)

// partSize is how much of a file is in memory before it goes to the store.
const partSize = 8 << 20

// upload writes one object as its bytes come, in parts once it is larger than one.
// Not safe for concurrent use.
type upload struct {
	ctx   context.Context
	store objstore.Store
	key   string
	buf   []byte
	part  int   // size
	size  int64 // written so far
	multi objstore.Multiparter
	id    objstore.UploadID
	parts []objstore.Part
	err   error
}

// newUpload begins one; done or abort must follow. The object must not exist. A
// store without multipart gets the whole file at once: its size is bounded by
// where files are rolled.
func newUpload(ctx context.Context, store objstore.Store, key string) *upload {
	u := &upload{ctx: ctx, store: store, key: key}
	if multi, ok := objstore.Multipart(store); ok {
		caps := store.Capabilities()
		u.multi = multi
		u.part = int(max(partSize, caps.PartSizeMin))
	}
	return u
}

// Write keeps the bytes and sends full parts.
func (u *upload) Write(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	n := len(p)
	u.size += int64(n)
	if u.multi == nil {
		u.buf = append(u.buf, p...)
		return n, nil
	}
	for len(p) > 0 {
		if u.buf == nil {
			u.buf = make([]byte, 0, min(u.part, max(1<<16, len(p))))
		}
		take := min(len(p), u.part-len(u.buf))
		u.buf = append(u.buf, p[:take]...)
		if p = p[take:]; len(u.buf) == u.part {
			if u.err = u.send(); u.err != nil {
				return 0, u.err
			}
		}
	}
	return n, nil
}

// send writes the buffer as the next part. The store may still read it after an
// error, so that each part has memory of its own.
func (u *upload) send() error {
	if u.id == "" {
		id, err := u.multi.StartUpload(u.ctx, u.key)
		if err != nil {
			return fmt.Errorf("write %s: %w", u.key, err)
		}
		u.id = id
	}
	part, err := u.multi.PutPart(u.ctx, objstore.PutPartRequest{Key: u.key, Upload: u.id, Number: len(u.parts) + 1, Chunks: [][]byte{u.buf}})
	if err != nil {
		return fmt.Errorf("write %s: part %d: %w", u.key, len(u.parts)+1, err)
	}
	u.parts, u.buf = append(u.parts, part), make([]byte, 0, u.part)
	return nil
}

// done makes the object.
func (u *upload) done() error {
	if u.err != nil {
		return u.err
	}
	if u.id == "" {
		if _, err := u.store.Put(u.ctx, objstore.PutRequest{Key: u.key, Chunks: [][]byte{u.buf}, CreateOnly: true}); err != nil {
			return fmt.Errorf("write %s: %w", u.key, err)
		}
		return nil
	}
	if len(u.buf) > 0 {
		if err := u.send(); err != nil {
			return err
		}
	}
	if _, err := u.multi.CompleteUpload(u.ctx, objstore.CompleteUploadRequest{Key: u.key, Upload: u.id, Parts: u.parts, CreateOnly: true}); err != nil {
		return fmt.Errorf("write %s: %w", u.key, err)
	}
	return nil
}

// abort drops what was written; the context may be over, and then the store's own
// rules remove the parts.
func (u *upload) abort() {
	if u.id != "" {
		_ = u.multi.AbortUpload(context.WithoutCancel(u.ctx), u.key, u.id)
	}
	u.err, u.buf = objstore.ErrInvalid, nil
}
