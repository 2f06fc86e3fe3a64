package kvsnap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Origin is which files of a restored directory hold which content, and which files on
// the store are not to be relied on. The zero Origin knows of none.
type Origin struct {
	Snapshot kvplan.Snapshot
	files    map[string]hashedFile
	doubted  []kvplan.File // of snapshots that are damaged, as far as nothing shows that they are whole
}

// Restore makes dir of the snapshot: the files that Upload found, byte for byte. dir
// must not exist, or be empty; after an error it does not exist. Nothing is synced: a
// working copy does not outlive its process. Errors: mink.ErrCorrupt naming the
// object; objstore.ErrNotExist when one of the files is gone.
func Restore(ctx context.Context, cfg Config, store objstore.Store, bucket mink.BucketRef, s kvplan.Snapshot, dir string) (o Origin, err error) {
	if err := cfg.Validate(); err != nil {
		return Origin{}, err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return Origin{}, fmt.Errorf("restore KV snapshot %d of bucket %s: %s is not empty: %w", s.ID, bucket, dir, mink.ErrInvalid)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore KV snapshot %d of bucket %s: %w", s.ID, bucket, errors.Join(err, os.RemoveAll(dir)))
		}
	}()
	t := newTransfer(cfg, store)
	h, err := t.getHead(ctx, bucket, s)
	if err != nil {
		return Origin{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Origin{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(cfg.Requests)
	for _, f := range h.tables {
		g.Go(func() error {
			return t.getFile(gctx, kvplan.BucketFile{Bucket: bucket, File: s.Files[f.index]}, filepath.Join(dir, f.name))
		})
	}
	if err := g.Wait(); err != nil {
		return Origin{}, err
	}
	for _, f := range h.others {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, 0o600); err != nil {
			return Origin{}, err
		}
	}
	o = Origin{Snapshot: s, files: make(map[string]hashedFile, len(h.tables))}
	for _, f := range h.tables {
		info, err := os.Stat(filepath.Join(dir, f.name))
		if err != nil {
			return Origin{}, err
		}
		o.files[f.name] = hashedFile{info, s.Files[f.index].Content}
	}
	return o, nil
}

// getHead reads the snapshot's head and checks that it is this snapshot's.
func (t *transfer) getHead(ctx context.Context, bucket mink.BucketRef, s kvplan.Snapshot) (head, error) {
	f := kvplan.BucketFile{Bucket: bucket, File: s.Head()}
	if f.Size > HeadBytesMax {
		return head{}, fmt.Errorf("object %s: a head of %d bytes: %w", f.Key(), f.Size, mink.ErrCorrupt)
	}
	data := make([]byte, f.Size)
	if err := t.get(ctx, f, func(at int64, part []byte) error { copy(data[at:], part); return nil }); err != nil {
		return head{}, err
	}
	h, err := decodeHead(data, len(s.Files))
	if err == nil && (h.bucket != bucket || h.offset != s.Offset || h.rows != s.Rows) {
		err = fmt.Errorf("it is of bucket %s at offset %d, %d rows: %w", h.bucket, h.offset, h.rows, mink.ErrCorrupt)
	}
	if err != nil {
		return head{}, fmt.Errorf("object %s: %w", f.Key(), err)
	}
	return h, nil
}

func (t *transfer) getFile(ctx context.Context, f kvplan.BucketFile, path string) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return t.get(ctx, f, func(at int64, data []byte) error {
		_, err := file.WriteAt(data, at)
		return err
	})
}

// viewsMax is how many views RestoreNewest takes before files that are gone are an
// error.
const viewsMax = 3

// RestoreNewest restores the newest retained snapshot, or when that is damaged the one
// before. retained answers the bucket's retained snapshots as of now, oldest first;
// they are asked for again when a file is gone. refused says, by their heads, of which
// snapshots the files are whole and the store is of no use: they are passed over. false:
// there is none. mink.ErrCorrupt: none of them can be restored, the error says why for
// each, and the Origin is what an Uploader must know if the store is built of the log
// instead.
func RestoreNewest(ctx context.Context, cfg Config, store objstore.Store, bucket mink.BucketRef, retained func() []kvplan.Snapshot, refused map[kvplan.File]error, dir string, logger *slog.Logger) (Origin, bool, error) {
	var errs []error
	for range viewsMax {
		errs = nil
		list := retained()
		if len(list) == 0 {
			return Origin{}, false, nil
		}
		stale := false
		for i := len(list) - 1; i >= 0 && !stale; i-- {
			if why := refused[list[i].Head()]; why != nil {
				errs = append(errs, fmt.Errorf("KV snapshot %d: %w", list[i].ID, why))
				continue
			}
			o, err := Restore(ctx, cfg, store, bucket, list[i], dir)
			switch {
			case err == nil:
				o.doubted = kvplan.FilesOf(list[i+1:], list[i:i+1])
				return o, true, nil
			case errors.Is(err, objstore.ErrNotExist):
				stale = !retains(retained(), list[i])
			case !errors.Is(err, mink.ErrCorrupt):
				return Origin{}, false, err // the store's or the disk's trouble: not the snapshot's
			}
			if !stale {
				logger.Error("a KV snapshot is damaged; trying the one before", "bucket", bucket.String(), "snapshot", list[i].ID, "error", err)
			}
			errs = append(errs, err)
		}
		if !stale {
			return Origin{doubted: kvplan.FilesOf(list, nil)}, false, fmt.Errorf("bucket %s: none of %d KV snapshots can be restored: %w: %w", bucket, len(list), mink.ErrCorrupt, errors.Join(errs...))
		}
	}
	return Origin{}, false, fmt.Errorf("bucket %s: KV snapshots went while they were read, %d times (a longer object_grace keeps them): %w: %w", bucket, viewsMax, mink.ErrUnavailable, errors.Join(errs...))
}

func retains(list []kvplan.Snapshot, s kvplan.Snapshot) bool {
	for _, have := range list {
		if have.ID == s.ID && have.Head() == s.Head() {
			return true
		}
	}
	return false
}

// CheckFile verifies that a file is on the store with its size; deep reads it and
// verifies its content too. Errors as Restore's.
func CheckFile(ctx context.Context, cfg Config, store objstore.Store, f kvplan.BucketFile, deep bool) error {
	t := newTransfer(cfg, store)
	if deep {
		return t.get(ctx, f, func(int64, []byte) error { return nil })
	}
	var have objstore.ObjectInfo
	err := t.retry(ctx, func() (err error) {
		have, err = store.Head(ctx, f.Key())
		return err
	})
	if err == nil && have.Size != f.Size {
		err = wrongSize(f.Key(), have.Size, f.Size)
	}
	return err
}
