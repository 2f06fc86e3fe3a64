package server

import (
	"context"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// backend is the node as the listeners see it. They are opened before the node
// is built, and run after it.
type backend struct{ parts *parts }

func (b *backend) node() *node.Node { return b.parts.node }

// kafkaBackend is the node behind the Kafka listener.
type kafkaBackend struct{ *backend }

var _ kafka.Backend = kafkaBackend{}

func (b kafkaBackend) View() *cluster.State { return b.node().View() }

func (b kafkaBackend) Self() mink.NodeID {
	id, _ := b.node().Self()
	return id
}

func (b kafkaBackend) Log(ref mink.BucketRef) (kafka.Log, error) {
	l, err := b.node().Log(ref)
	if err != nil {
		return nil, err
	}
	return kafka.FromTablet(l), nil
}

func (b kafkaBackend) CreateDatabase(ctx context.Context, name string) error {
	return b.node().CreateDatabase(ctx, name, true)
}

func (b kafkaBackend) CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error) {
	return b.node().CreateTable(ctx, d, ifNotExists)
}

func (b kafkaBackend) AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change) (*cluster.Table, error) {
	return b.node().AlterTable(ctx, id, changes, 0)
}

func (b kafkaBackend) DeleteRecords(ctx context.Context, bucket mink.BucketRef, to mink.Offset) (mink.Offset, error) {
	return b.node().DeleteRecords(ctx, bucket, to)
}

func (b kafkaBackend) DropTable(ctx context.Context, id mink.TableID) error {
	return b.node().DropTable(ctx, id, false)
}

func (b kafkaBackend) AllocateWriter(ctx context.Context) (mink.WriterID, error) {
	return b.node().AllocateWriter(ctx)
}

func (b kafkaBackend) StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (func(context.Context) error, error) {
	return b.node().StartGroupCommit(ctx, c)
}

func (b kafkaBackend) MarkGroup(ctx context.Context, name, protocolType string, occupied bool) error {
	return b.node().MarkGroup(ctx, name, protocolType, occupied)
}

func (b kafkaBackend) DeleteGroups(ctx context.Context, names []string) ([]error, error) {
	return b.node().DeleteGroups(ctx, names)
}

func (b kafkaBackend) DeleteGroupOffsets(ctx context.Context, group string, buckets []mink.BucketRef) error {
	return b.node().DeleteGroupOffsets(ctx, group, buckets)
}
