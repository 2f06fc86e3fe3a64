package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/core/tablet/kv/kvsnap"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// A batch of a KV snapshot's rows has at most so many rows, and about so many bytes.
const (
	snapshotRows  = 8192
	snapshotBytes = 4 << 20
)

// ReadKVSnapshot answers the rows of a KV snapshot of a bucket, led here or not: of the
// newest that the metadata retain now and whose offset is within the log's committed end
// as of view; when all of those have gone, of the newest. They come in the order of their keys and brought to the target schema by field id: the
// latest row of each key as of the offset at; the changelog goes on from there. Their
// Start and End are both at, their Changes nil. A damaged snapshot gives way to the one
// before.
//
// The snapshot is restored to the node's disk, Config.KVReadsMax of them at a time: others
// wait. The caller must range over rows, once, to its end or not: then the files are
// removed; they are also when ctx ends before, and by the next start after a crash.
//
// Errors: mink.ErrNotExist, there is no such bucket or it has no snapshot;
// mink.ErrCorrupt, none of them can be restored; mink.ErrUnavailable, among others for a
// full disk.
func (s *Source) ReadKVSnapshot(ctx context.Context, view *cluster.State, bucket mink.BucketRef, target *schema.Schema) (at mink.Offset, rows iter.Seq2[Rows, error], err error) {
	id, ok := view.StreamOf(bucket)
	if !ok {
		return 0, nil, fmt.Errorf("KV snapshot of bucket %s: %w", bucket, mink.ErrNotExist)
	}
	n := s.node
	read := &snapshotRead{node: n, bucket: bucket}
	select {
	case n.kv.reads <- struct{}{}:
	case <-ctx.Done():
		return 0, nil, fmt.Errorf("KV snapshot of bucket %s: %d are read already: %w", bucket, cap(n.kv.reads), context.Cause(ctx))
	}
	in, _ := view.Stream(id)
	if err = read.open(ctx, id, in.End); err == nil {
		var offset mink.Offset
		if offset = read.store.Offset(); offset != read.of.Offset {
			err = fmt.Errorf("snapshot %d of offset %d is as of %d: %w", read.of.ID, read.of.Offset, offset, mink.ErrCorrupt)
		}
		at = offset
	}
	if err != nil {
		read.end()
		return 0, nil, fmt.Errorf("KV snapshot of bucket %s: %w", bucket, err)
	}
	forget := context.AfterFunc(ctx, read.end)
	return at, func(yield func(Rows, error) bool) {
		if !forget() { // ctx ended
			yield(Rows{}, fmt.Errorf("KV snapshot of bucket %s: %w", bucket, context.Cause(ctx)))
			return
		}
		defer read.end()
		for rec, err := range read.store.Scan(ctx, target, snapshotRows, snapshotBytes) {
			if err == nil {
				err = n.kv.isLeft(bucket)
			}
			if err != nil {
				yield(Rows{}, err)
				return
			}
			if !yield(Rows{Batch: rec, Start: at, End: at}, nil) {
				return
			}
		}
	}, nil
}

// snapshotRead is a restored snapshot and the right to have one.
type snapshotRead struct {
	node   *Node
	bucket mink.BucketRef
	dir    string
	of     kvplan.Snapshot
	store  *kv.Restored
	once   sync.Once
}

// open restores and opens the newest snapshot that is of use, one up to an offset if there
// still is one.
func (r *snapshotRead) open(ctx context.Context, id mink.StreamID, upTo mink.Offset) error {
	n := r.node
	shared, home, err := n.home()
	if err != nil {
		return diskError(n.cfg.KVDir, err)
	}
	r.dir = filepath.Join(home, fmt.Sprintf("snapshot-%d-%d", id, n.kv.numbers.Add(1)))
	retained := func() []kvplan.Snapshot {
		all := n.View().KVSnapshots(id)
		k := len(all)
		for k > 0 && all[k-1].Offset > upTo {
			k--
		}
		if k == 0 {
			return all
		}
		return all[:k]
	}
	refused := map[kvplan.File]error{}
	for synced := false; ; {
		o, ok, err := kvsnap.RestoreNewest(ctx, n.cfg.KVSnapshots.Transfer, n.deps.Objects, r.bucket, retained, refused, r.dir, n.logger)
		if errors.Is(err, objstore.ErrNotExist) && !synced { // this node's view may be behind
			synced = true
			if e := n.Sync(ctx); e != nil {
				return fmt.Errorf("%w: a file is missing, and the metadata cannot be asked whether it was replaced: %w: %s", mink.ErrUnavailable, e, err.Error())
			}
			continue
		}
		if err != nil {
			return diskError(home, err)
		}
		if !ok {
			return fmt.Errorf("there is none: %w", mink.ErrNotExist)
		}
		table, ok := n.View().Table(r.bucket.Table) // after the snapshot: it knows the versions of its rows
		if !ok {
			return mink.ErrNotExist
		}
		r.of = o.Snapshot
		if r.store, err = shared.OpenRestored(r.dir, r.bucket, kvTable(table)); err == nil {
			return nil
		}
		if !errors.Is(err, mink.ErrCorrupt) {
			return diskError(home, err)
		}
		refused[o.Snapshot.Head()] = err
		if err := os.RemoveAll(r.dir); err != nil {
			return err
		}
	}
}

// end closes the store, removes its files and makes room for the next reader.
func (r *snapshotRead) end() {
	r.once.Do(func() {
		var err error
		if r.store != nil {
			err = r.store.Close()
		}
		if r.dir != "" {
			err = errors.Join(err, os.RemoveAll(r.dir))
		}
		if err != nil {
			r.node.logger.Error("the files of a KV snapshot that was read were not removed", "bucket", r.bucket.String(), "directory", r.dir, "error", err)
		}
		<-r.node.kv.reads
	})
}

// diskError names what the node's disk lacks.
func diskError(dir string, err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of %s is full: a KV snapshot is restored there to be read, make room: %w: %w", dir, mink.ErrUnavailable, err)
	case errors.As(err, &errno) && !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnavailable):
		return fmt.Errorf("directory %s: %w: %w", dir, mink.ErrUnavailable, err)
	}
	return err
}
