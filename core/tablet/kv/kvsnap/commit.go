package kvsnap

import (
	"context"
	"fmt"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
)

// Meta is what a commit asks of the metadata log; *metalog.Replica is one.
type Meta interface {
	View() *cluster.State
	Changed(index uint64) <-chan struct{} // closed once the view is past index
	Propose(ctx context.Context, commands ...*clusterpb.Command) ([]*clusterpb.Result, error)
}

// Commit puts an uploaded snapshot into the metadata, of which retain are kept, once
// the log is committed up to its offset: the engine uploads every few seconds. It
// answers the snapshot's id.
//
// Errors: mink.ErrFenced when the leadership is over or the bucket dropped;
// mink.ErrConflict and mink.ErrInvalid when the metadata refuse it. After any other
// error nobody knows whether it is committed: nothing may be deleted, and the
// next snapshot is right either way.
func Commit(ctx context.Context, meta Meta, stream mink.StreamID, s kvplan.Snapshot, retain int) (int64, error) {
	for {
		view := meta.View()
		st, ok := view.Stream(stream)
		if !ok || st.Owner.LeaderEpoch != s.Epoch {
			return 0, fmt.Errorf("commit the KV snapshot of stream %d at offset %d: leader epoch %d is over: %w", stream, s.Offset, s.Epoch, mink.ErrFenced)
		}
		if st.End >= s.Offset {
			break
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("commit the KV snapshot of stream %d at offset %d: the log is uploaded up to %d: %w", stream, s.Offset, st.End, context.Cause(ctx))
		case <-meta.Changed(view.Index()):
		}
	}
	results, err := meta.Propose(ctx, cluster.CommitKVSnapshotCommand(stream, s, retain))
	if err == nil {
		err = cluster.ResultError(results[0])
	}
	if err != nil {
		return 0, fmt.Errorf("commit the KV snapshot of stream %d at offset %d: %w", stream, s.Offset, err)
	}
	return results[0].GetId(), nil
}
