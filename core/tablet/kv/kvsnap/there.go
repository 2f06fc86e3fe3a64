package kvsnap

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// there is which files of a bucket are on the store, with their sizes.
type there struct {
	bucket mink.BucketRef
	sizes  map[string]int64 // by key
}

// filesThere lists a bucket's files.
func filesThere(ctx context.Context, cfg Config, store objstore.Store, bucket mink.BucketRef) (there, error) {
	t := there{bucket: bucket}
	err := newTransfer(cfg, store).retry(ctx, func() error {
		t.sizes = map[string]int64{}
		return objstore.All(ctx, store, kvplan.BucketPrefix(bucket), "", func(o objstore.ObjectInfo) bool {
			t.sizes[o.Key] = o.Size
			return true
		})
	})
	if err != nil {
		return there{}, fmt.Errorf("list the files of bucket %s: %w", bucket, err)
	}
	return t, nil
}

func (t there) has(f kvplan.File) bool {
	size, ok := t.sizes[kvplan.BucketFile{Bucket: t.bucket, File: f}.Key()]
	return ok && size == f.Size
}

// missing are the snapshots' files that are not there, each once.
func (t there) missing(snapshots []kvplan.Snapshot) (out []kvplan.File) {
	for _, f := range kvplan.FilesOf(snapshots, nil) {
		if !t.has(f) {
			out = append(out, f)
		}
	}
	return out
}
