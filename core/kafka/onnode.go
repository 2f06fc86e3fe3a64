package kafka

import (
	"context"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Node is what a Backend is made of: *node.Node, where each method is documented.
type Node interface {
	View() *cluster.State
	Sync(ctx context.Context) error
	Self() (mink.NodeID, mink.NodeEpoch)
	Lease() (mink.NodeEpoch, error)
	Log(bucket mink.BucketRef) (*tablet.Log, error)
	CreateDatabase(ctx context.Context, name string, ifNotExists bool) error
	CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error)
	AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change, expected mink.SchemaID) (*cluster.Table, error)
	DropTable(ctx context.Context, id mink.TableID, ifExists bool) error
	DeleteRecords(ctx context.Context, bucket mink.BucketRef, to mink.Offset) (mink.Offset, error)
	AllocateWriter(ctx context.Context) (mink.WriterID, error)
	StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (wait func(context.Context) error, err error)
	SettleGroup(ctx context.Context, group string) error
	MarkGroup(ctx context.Context, name, protocolType string, occupied bool) error
	DeleteGroups(ctx context.Context, names []string) (errs []error, err error)
	DeleteGroupOffsets(ctx context.Context, group string, buckets []mink.BucketRef) error
}

// OnNode is a node as a Backend. node is asked at every call: a listener is
// opened before its node is built.
func OnNode(node func() Node) Backend { return onNode(node) }

type onNode func() Node

func (n onNode) View() *cluster.State { return n().View() }

func (n onNode) Sync(ctx context.Context) error { return n().Sync(ctx) }

func (n onNode) Self() mink.NodeID {
	id, _ := n().Self()
	return id
}

func (n onNode) Lease() (mink.NodeEpoch, error) { return n().Lease() }

func (n onNode) Log(bucket mink.BucketRef) (Log, error) {
	l, err := n().Log(bucket)
	if err != nil {
		return nil, err
	}
	return FromTablet(l), nil
}

func (n onNode) CreateDatabase(ctx context.Context, name string) error {
	return n().CreateDatabase(ctx, name, true)
}

func (n onNode) CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error) {
	return n().CreateTable(ctx, d, ifNotExists)
}

func (n onNode) AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change) (*cluster.Table, error) {
	return n().AlterTable(ctx, id, changes, 0)
}

func (n onNode) DropTable(ctx context.Context, id mink.TableID) error {
	return n().DropTable(ctx, id, false)
}

func (n onNode) DeleteRecords(ctx context.Context, bucket mink.BucketRef, to mink.Offset) (mink.Offset, error) {
	return n().DeleteRecords(ctx, bucket, to)
}

func (n onNode) AllocateWriter(ctx context.Context) (mink.WriterID, error) {
	return n().AllocateWriter(ctx)
}

func (n onNode) StartGroupCommit(ctx context.Context, c cluster.GroupCommit) (func(context.Context) error, error) {
	return n().StartGroupCommit(ctx, c)
}

func (n onNode) SettleGroup(ctx context.Context, group string) error {
	return n().SettleGroup(ctx, group)
}

func (n onNode) MarkGroup(ctx context.Context, name, protocolType string, occupied bool) error {
	return n().MarkGroup(ctx, name, protocolType, occupied)
}

func (n onNode) DeleteGroups(ctx context.Context, names []string) ([]error, error) {
	return n().DeleteGroups(ctx, names)
}

func (n onNode) DeleteGroupOffsets(ctx context.Context, group string, buckets []mink.BucketRef) error {
	return n().DeleteGroupOffsets(ctx, group, buckets)
}
