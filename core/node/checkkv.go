package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// snapshots checks the files of every retained KV snapshot: that they are there with
// their sizes, and when deep, that they are what was uploaded.
func (c *check) snapshots(ctx context.Context) error {
	for id, b := range c.view.KVBuckets() {
		s, ok := c.view.Stream(id)
		if !ok {
			continue
		}
		for _, f := range kvplan.FilesOf(b.Snapshots, nil) {
			if err := c.snapshotFile(ctx, kvplan.BucketFile{Bucket: s.Bucket, File: f}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *check) snapshotFile(ctx context.Context, f kvplan.BucketFile) error {
	c.report.Objects++
	c.report.Bytes += f.Size
	err := kvsnap.CheckFile(ctx, c.node.cfg.KVSnapshots.Transfer, c.node.deps.Objects, f, c.deep)
	id, _ := c.view.StreamOf(f.Bucket)
	p := api.Problem{Object: f.Key(), Stream: int64(id)}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, objstore.ErrNotExist):
		if !c.node.View().KVBucket(id).Names(f.File) {
			return nil // a later snapshot took over
		}
		p.Kind, p.Text = "missing", fmt.Sprintf("object %s is named by a KV snapshot of bucket %s and not on the store: %s", f.Key(), f.Bucket, damagedSnapshot)
	case errors.Is(err, mink.ErrCorrupt):
		p.Kind, p.Text = "corrupt", fmt.Sprintf("a KV snapshot of bucket %s: %v: %s", f.Bucket, err, damagedSnapshot)
	default:
		return fmt.Errorf("check object %s: %w", f.Key(), err)
	}
	c.problem(p)
	return nil
}

// damagedSnapshot is what follows from the loss of a file.
const damagedSnapshot = "the snapshots that share it cannot be restored, an older one and more log are used; restore the object. Its leader names it for as long as its own store has that file: compactions replace it in time, and a leader that starts from an older snapshot, or from the whole log, does without"

// kvOrphans looks for files of KV snapshots that nothing names and that the sweep
// should have removed.
func (c *check) kvOrphans(ctx context.Context) error {
	nonces := presentNonces(c.view)
	old := 2 * c.node.cfg.Stream.OrphanAge
	err := objstore.All(ctx, c.node.deps.Objects, kvplan.Prefix, "", func(o objstore.ObjectInfo) bool {
		f, ok := kvplan.ParseKey(o.Key)
		if ok && nonces[f.Nonce] && c.view.KVOrphan(f) && time.Since(o.Modified) > old {
			c.problem(api.Problem{Kind: "orphan", Object: o.Key, Text: fmt.Sprintf("object %s is named by no KV snapshot and was not swept", o.Key)})
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", kvplan.Prefix, err)
	}
	return nil
}
