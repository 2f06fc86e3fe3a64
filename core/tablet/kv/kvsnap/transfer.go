package kvsnap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// transfer is the requests of one upload or restore.
type transfer struct {
	cfg   Config
	store objstore.Store
	slots *semaphore.Weighted // one per request under way, with its memory
	free  chan []byte         // memory of ranges that were read
}

func newTransfer(cfg Config, store objstore.Store) *transfer {
	return &transfer{cfg: cfg, store: store, slots: semaphore.NewWeighted(int64(cfg.Requests)), free: make(chan []byte, cfg.Requests)}
}

// memory is for one range; keep takes it back. That of a range that failed is left to
// the garbage collector: the request may have been given up and write there yet.
func (t *transfer) memory() []byte {
	select {
	case b := <-t.free:
		return b
	default:
		return make([]byte, t.cfg.RequestBytes)
	}
}

func (t *transfer) keep(b []byte) {
	if int64(cap(b)) < t.cfg.RequestBytes {
		return
	}
	select {
	case t.free <- b[:t.cfg.RequestBytes]:
	default:
	}
}

// retry makes a request until it succeeds, fails for good, or has been tried often
// enough.
func (t *transfer) retry(ctx context.Context, request func() error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = t.cfg.RetryMin, t.cfg.RetryMax
	var last error
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		last = request()
		if last != nil && final(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(pauses), backoff.WithMaxTries(uint(t.cfg.Tries)), backoff.WithMaxElapsedTime(0))
	if err != nil && last != nil && ctx.Err() == nil {
		return last
	}
	return err
}

// final says that another try would fail the same way.
func final(err error) bool {
	for _, class := range []error{objstore.ErrNotExist, objstore.ErrInvalid, objstore.ErrUnauthorized, objstore.ErrReadOnly, objstore.ErrUnimplemented, objstore.ErrNoSpace, context.Canceled} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// ours settles a create-only write that was answered with err: an object of this size
// under the key is what was to be written. The key names the content, and nobody else
// writes it.
func (t *transfer) ours(ctx context.Context, key string, size int64, err error) error {
	if err == nil || !errors.Is(err, objstore.ErrAlreadyExists) && !errors.Is(err, objstore.ErrUnknownOutcome) {
		return err
	}
	have, herr := t.store.Head(ctx, key)
	switch {
	case herr == nil && have.Size == size:
		return nil
	case herr == nil:
		return fmt.Errorf("%s is there with %d bytes, not %d: %w", key, have.Size, size, objstore.ErrInvalid)
	}
	return err
}

// putBytes writes an object from memory.
func (t *transfer) putBytes(ctx context.Context, key string, data []byte) error {
	req := objstore.PutRequest{Key: key, Chunks: [][]byte{data}, CreateOnly: true, CRC32C: objstore.Checksum(data), HasCRC32C: true}
	err := t.retry(ctx, func() error {
		_, err := t.store.Put(ctx, req)
		return t.ours(ctx, key, int64(len(data)), err)
	})
	if err != nil {
		return fmt.Errorf("put %s, %d bytes: %w", key, len(data), err)
	}
	return nil
}

// putFile writes the first size bytes of a file as an object, in parts if they are
// many.
func (t *transfer) putFile(ctx context.Context, key string, file io.ReaderAt, size int64) error {
	parts, ok := objstore.Multipart(t.store)
	caps := t.store.Capabilities()
	partBytes := max(t.cfg.RequestBytes, caps.PartSizeMin, (size+objstore.PartNumberMax-1)/objstore.PartNumberMax)
	if ok && size > partBytes && partBytes <= caps.PartSizeMax {
		return t.putParts(ctx, parts, key, file, size, partBytes)
	}
	if size > max(t.cfg.WholeBytesMax, t.cfg.RequestBytes) || size > caps.PutSizeMax || size > math.MaxInt {
		return fmt.Errorf("put %s: %d bytes are too many for one request, and the store takes no parts of %d: %w", key, size, partBytes, mink.ErrTooLarge)
	}
	return t.withSlot(ctx, func() error {
		buf := t.store.Alloc(int(size))
		data := buf.Bytes()
		if _, err := file.ReadAt(data, 0); err != nil && !(errors.Is(err, io.EOF) && size == 0) {
			buf.Release()
			return fmt.Errorf("read for %s: %w", key, err)
		}
		err := t.putBytes(ctx, key, data)
		if err == nil { // else an attempt may still be reading it
			buf.Release()
		}
		return err
	})
}

func (t *transfer) withSlot(ctx context.Context, f func() error) error {
	if err := t.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer t.slots.Release(1)
	return f()
}

func (t *transfer) putParts(ctx context.Context, m objstore.Multiparter, key string, file io.ReaderAt, size, partBytes int64) error {
	var upload objstore.UploadID
	err := t.retry(ctx, func() (err error) {
		upload, err = m.StartUpload(ctx, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("start the upload of %s: %w", key, err)
	}
	sent := make([]objstore.Part, (size+partBytes-1)/partBytes)
	g, gctx := errgroup.WithContext(ctx)
	for i := range sent {
		if err := t.slots.Acquire(gctx, 1); err != nil {
			break // the group has failed
		}
		g.Go(func() error {
			defer t.slots.Release(1)
			at := int64(i) * partBytes
			part, err := t.putPart(gctx, m, objstore.PutPartRequest{Key: key, Upload: upload, Number: i + 1}, file, at, min(partBytes, size-at))
			sent[i] = part
			return err
		})
	}
	err = g.Wait()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = t.retry(ctx, func() error {
			_, err := m.CompleteUpload(ctx, objstore.CompleteUploadRequest{Key: key, Upload: upload, Parts: sent, CreateOnly: true})
			if errors.Is(err, objstore.ErrNotExist) { // the upload is gone: an attempt before this one completed it
				err = fmt.Errorf("%w: %w", objstore.ErrUnknownOutcome, err)
			}
			return t.ours(ctx, key, size, err)
		})
		if err == nil {
			return nil
		}
	}
	if ctx.Err() == nil { // else the store's own clean-up has it
		_ = m.AbortUpload(ctx, key, upload)
	}
	return fmt.Errorf("put %s, %d bytes in %d parts: %w", key, size, len(sent), err)
}

func (t *transfer) putPart(ctx context.Context, m objstore.Multiparter, req objstore.PutPartRequest, file io.ReaderAt, at, n int64) (objstore.Part, error) {
	buf := t.store.Alloc(int(n))
	if _, err := file.ReadAt(buf.Bytes(), at); err != nil {
		buf.Release()
		return objstore.Part{}, fmt.Errorf("read for %s: %w", req.Key, err)
	}
	req.Chunks = [][]byte{buf.Bytes()}
	req.CRC32C, req.HasCRC32C = objstore.Checksum(buf.Bytes()), true
	var part objstore.Part
	err := t.retry(ctx, func() (err error) {
		part, err = m.PutPart(ctx, req)
		return err
	})
	if err == nil {
		buf.Release()
	}
	return part, err
}

// get reads a file's object and verifies it. write takes the ranges, in any order,
// from several goroutines; it may be called again for all of them. Errors:
// objstore.ErrNotExist; mink.ErrCorrupt, when the bytes are not those that were
// uploaded.
func (t *transfer) get(ctx context.Context, f kvplan.BucketFile, write func(at int64, data []byte) error) error {
	err := t.getOnce(ctx, f, write)
	if errors.Is(err, mink.ErrCorrupt) { // on the way, perhaps
		err = t.getOnce(ctx, f, write)
	}
	return err
}

func (t *transfer) getOnce(ctx context.Context, f kvplan.BucketFile, write func(at int64, data []byte) error) error {
	key, sums := f.Key(), newDigests(f.Size)
	if f.Size == 0 {
		have, err := t.store.Head(ctx, key)
		if err == nil && have.Size != 0 {
			err = wrongSize(key, have.Size, f.Size)
		}
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for at := int64(0); at < f.Size; at += t.cfg.RequestBytes {
		if err := t.slots.Acquire(gctx, 1); err != nil {
			break // the group has failed
		}
		g.Go(func() error {
			defer t.slots.Release(1)
			data, err := t.getRange(gctx, key, at, min(t.cfg.RequestBytes, f.Size-at), f.Size)
			if err != nil {
				return err
			}
			sums.add(at, data)
			err = write(at, data)
			t.keep(data)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if got := sums.id(); got != f.Content {
		return fmt.Errorf("object %s: its content is %x, not %x: %w", key, got[:], f.Content[:], mink.ErrCorrupt)
	}
	return nil
}

func wrongSize(key string, have, want int64) error {
	return fmt.Errorf("object %s has %d bytes, the metadata say %d: %w", key, have, want, mink.ErrCorrupt)
}

func (t *transfer) getRange(ctx context.Context, key string, at, n, size int64) ([]byte, error) {
	var r objstore.GetRangeResponse
	into := t.memory()
	err := t.retry(ctx, func() (err error) {
		r, err = t.store.GetRange(ctx, objstore.GetRangeRequest{Key: key, Offset: at, Length: n, Into: into})
		if err == nil && r.Size == size && int64(len(r.Data)) != n {
			err = fmt.Errorf("object %s: %d bytes at %d came, not %d: %w", key, len(r.Data), at, n, objstore.ErrUnavailable)
		}
		return err
	})
	switch {
	case errors.Is(err, objstore.ErrInvalid):
		return nil, fmt.Errorf("object %s is shorter than the %d bytes that the metadata say: %w: %w", key, size, mink.ErrCorrupt, err)
	case errors.Is(err, objstore.ErrCorrupt):
		return nil, fmt.Errorf("object %s: %w: %w", key, mink.ErrCorrupt, err)
	case err != nil:
		return nil, fmt.Errorf("get %s, %d bytes at %d: %w", key, n, at, err)
	case r.Size != size:
		return nil, wrongSize(key, r.Size, size)
	}
	return r.Data, nil
}
