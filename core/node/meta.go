package node

import (
	"context"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
)

// meta is the metadata log as the stream engine asks for it.
type meta struct {
	replica *metalog.Replica
	log     metalog.Log
	head    *storehead.Keeper
}

var _ stream.Meta = meta{}

func (m meta) View() stream.View { return m.replica.View() }

func (m meta) Changed(index uint64) <-chan struct{} { return m.replica.Changed(index) }

func (m meta) CommitObjects(ctx context.Context, c plan.CommitObjects) error {
	return m.propose(ctx, cluster.CommitObjectsCommand(c))
}

func (m meta) ReplaceObjects(ctx context.Context, c plan.ReplaceObjects) error {
	return m.propose(ctx, cluster.ReplaceObjectsCommand(c))
}

func (m meta) RewriteStream(ctx context.Context, c plan.RewriteStream) error {
	return m.propose(ctx, cluster.RewriteStreamCommand(c))
}

func (m meta) TrimStreams(ctx context.Context, trims []plan.Trim) error {
	return m.propose(ctx, cluster.TrimStreamsCommand(trims))
}

func (m meta) ForgetObjects(ctx context.Context, ids []plan.ObjectID) error {
	return m.propose(ctx, cluster.ForgetObjectsCommand(ids))
}

func (m meta) ReadHorizon(ctx context.Context) (uint64, error) {
	return metalog.ReadHorizon(ctx, m.log, m.replica)
}

func (m meta) Remembered(ctx context.Context) (uint64, error) { return m.head.Covered(ctx) }

func (m meta) propose(ctx context.Context, c *clusterpb.Command) error {
	results, err := m.replica.Propose(ctx, c)
	if err != nil {
		return err
	}
	return cluster.ResultError(results[0])
}
