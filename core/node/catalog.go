package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/partition"
	"github.com/mink-project/mink/sdk/mink"
)

// writersPerBlock is how many writer ids one command takes from the cluster.
const writersPerBlock = 1000

// one proposes a single command and answers its result, or its verdict as an error.
func (n *Node) one(ctx context.Context, c *clusterpb.Command) (*clusterpb.Result, error) {
	results, err := n.Propose(ctx, c)
	if err != nil {
		return nil, err
	}
	return results[0], cluster.ResultError(results[0])
}

// CreateDatabase creates a database.
func (n *Node) CreateDatabase(ctx context.Context, name string, ifNotExists bool) error {
	_, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_CreateDatabase{
		CreateDatabase: &clusterpb.CreateDatabase{Name: name, IfNotExists: ifNotExists},
	}})
	return err
}

// DropDatabase drops a database; with cascade its tables too.
func (n *Node) DropDatabase(ctx context.Context, name string, ifExists, cascade bool) error {
	_, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_DropDatabase{
		DropDatabase: &clusterpb.DropDatabase{Name: name, IfExists: ifExists, Cascade: cascade},
	}})
	return err
}

// CreateTable normalizes, validates and creates a table, and waits a moment for
// the buckets that this node leads to open. With ifNotExists an existing table
// of the name is answered as it is.
func (n *Node) CreateTable(ctx context.Context, d *schema.Descriptor, ifNotExists bool) (*cluster.Table, error) {
	d, err := d.Normalize()
	if err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if err := n.buildable(d, nil); err != nil {
		return nil, err
	}
	if err := d.CheckCase(); err != nil {
		return nil, err
	}
	var uuid [16]byte
	if _, err := rand.Read(uuid[:]); err != nil {
		return nil, err
	}
	r, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{
		CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: uuid[:], IfNotExists: ifNotExists},
	}})
	if err != nil {
		return nil, err
	}
	id := mink.TableID(r.Id)
	n.waitOpen(ctx, n.View().Partitions(id))
	t, ok := n.View().Table(id)
	if !ok {
		return nil, fmt.Errorf("table %s.%s was dropped while it was created: %w", d.Database, d.Table, mink.ErrNotExist)
	}
	return t, nil
}

// buildable refuses what is valid but cannot be served here, or not kept in the lake
// that it is tiered to, and sinks that this node does not have or that cannot take the
// table; old are those that the table has already.
func (n *Node) buildable(d *schema.Descriptor, old []string) error {
	for _, name := range d.Sinks() {
		if n.deps.CheckSink == nil || slices.Contains(old, name) {
			continue
		}
		if err := n.deps.CheckSink(d, name); err != nil {
			return fmt.Errorf("table %s: %w", d.Name(), err)
		}
	}
	if d.Options[schema.OptionLake] == "true" {
		if err := d.CheckLake(); err != nil {
			return err
		}
	}
	_, err := partition.ScheduleOf(d)
	return err
}

// DropTable drops a table by id.
func (n *Node) DropTable(ctx context.Context, id mink.TableID, ifExists bool) error {
	_, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_DropTable{
		DropTable: &clusterpb.DropTable{Table: int64(id), IfExists: ifExists},
	}})
	return err
}

// AlterTable applies changes in order, all or none, and answers the table as it
// is then. The open tablets here work by it; buckets that it added get a moment
// to open. expected is the schema version the changes were made for; 0: any.
func (n *Node) AlterTable(ctx context.Context, id mink.TableID, changes []schema.Change, expected mink.SchemaID) (*cluster.Table, error) {
	if t, ok := n.View().Table(id); ok {
		d, err := t.Descriptor.Apply(changes)
		if err != nil {
			return nil, err
		}
		if err := n.buildable(d, t.Descriptor.Sinks()); err != nil {
			return nil, err
		}
		if n.View().EverTiered(id, cluster.LakeSink) { // the lake has files under the schema as it is
			if err := schema.CheckLakeChange(&t.Descriptor.Schema, &d.Schema); err != nil {
				return nil, fmt.Errorf("alter table %s: %w", t.Descriptor.Name(), err)
			}
		}
		if err := d.CheckCase(); err != nil && t.Descriptor.CheckCase() == nil {
			return nil, err
		}
	}
	_, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_AlterTable{
		AlterTable: &clusterpb.AlterTable{Table: int64(id), Changes: schema.EncodeChanges(changes), ExpectedSchema: int32(expected)},
	}})
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(changes, func(c schema.Change) bool { return c.Op == schema.SetBucketCount }) {
		n.waitOpen(ctx, n.View().Partitions(id))
	}
	n.catchUp(id)
	t, ok := n.View().Table(id)
	if !ok {
		return nil, fmt.Errorf("table %d was dropped while it was altered: %w", id, mink.ErrNotExist)
	}
	return t, nil
}

// CreatePartition creates a partition by its canonical values, and waits a moment
// for its buckets that this node leads to open.
func (n *Node) CreatePartition(ctx context.Context, table mink.TableID, values []string, ifNotExists bool) (*cluster.Partition, error) {
	if t, ok := n.View().Table(table); ok {
		if err := withinRetention(t.Descriptor, values, time.Now()); err != nil {
			return nil, err
		}
	}
	r, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_CreatePartition{
		CreatePartition: &clusterpb.CreatePartition{Table: int64(table), Values: values, IfNotExists: ifNotExists},
	}})
	if err != nil {
		return nil, err
	}
	p, ok := n.View().Partition(mink.PartitionID(r.Id))
	if !ok {
		return nil, fmt.Errorf("partition %v of table %d was dropped while it was created: %w", values, table, mink.ErrNotExist)
	}
	n.waitOpen(ctx, slices.Values([]*cluster.Partition{p}))
	return p, nil
}

// withinRetention refuses a partition that the next tick would drop again.
func withinRetention(d *schema.Descriptor, values []string, now time.Time) error {
	if len(values) != len(d.PartitionKeys) {
		return nil // the state machine's to refuse
	}
	s, err := partition.ScheduleOf(d)
	if err != nil || s == nil {
		return err
	}
	return s.CheckWrite(values, now)
}

// EnsurePartition answers the partition with the values and creates it when it
// is missing: the first write.
func (n *Node) EnsurePartition(ctx context.Context, table mink.TableID, values []string) (*cluster.Partition, error) {
	if p, ok := n.View().PartitionByValues(table, values); ok {
		return p, nil
	}
	return n.CreatePartition(ctx, table, values, true)
}

// DropPartition drops a partition by id. One that the table's sinks do not have whole
// is closed, and dropped by the coordinator once they have.
func (n *Node) DropPartition(ctx context.Context, table mink.TableID, partition mink.PartitionID, ifExists bool) error {
	_, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_DropPartition{
		DropPartition: &clusterpb.DropPartition{Table: int64(table), Partition: int64(partition), IfExists: ifExists},
	}})
	return err
}

// waitOpen gives new partitions' buckets that this node leads a moment to open,
// so that the first request after a create is not refused. Best effort.
func (n *Node) waitOpen(ctx context.Context, partitions iter.Seq[*cluster.Partition]) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.ReadyTimeout)
	defer cancel()
	for p := range partitions {
		for i := range p.Streams {
			if !n.waitBucket(ctx, mink.BucketRef{Table: p.Table, Partition: p.ID, Index: int32(i)}) {
				return
			}
		}
	}
}

// catchUp brings the open tablets of a table to this node's view: they may be in
// the hands of appends that began before.
func (n *Node) catchUp(table mink.TableID) {
	for p := range n.View().Partitions(table) {
		for i := range p.Streams {
			_, _ = n.Log(mink.BucketRef{Table: p.Table, Partition: p.ID, Index: int32(i)}) // Log brings it; one that is not open will be opened with it
		}
	}
}

// waitBucket waits until a bucket is open, another node's, or beyond waiting for;
// false when ctx is done.
func (n *Node) waitBucket(ctx context.Context, ref mink.BucketRef) bool {
	for {
		n.mu.Lock()
		changed := n.mu.changed
		n.mu.Unlock()
		index := n.View().Index()
		if _, err := n.Log(ref); !errors.Is(err, mink.ErrUnavailable) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-n.deps.Meta.Changed(index):
		}
	}
}

// writerBlock hands out writer ids from a block that the cluster gave this
// process; ids that a process did not use are never used.
type writerBlock struct {
	mu        sync.Mutex
	next, end mink.WriterID
	fetching  chan struct{} // closed when the fetch in flight is over
}

// AllocateWriter answers a writer id that was never given out before.
func (n *Node) AllocateWriter(ctx context.Context) (mink.WriterID, error) {
	w := &n.writers
	for {
		w.mu.Lock()
		if w.next < w.end {
			id := w.next
			w.next++
			w.mu.Unlock()
			return id, nil
		}
		if wait := w.fetching; wait != nil {
			w.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		done := make(chan struct{})
		w.fetching = done
		w.mu.Unlock()

		r, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{
			AllocateWriters: &clusterpb.AllocateWriters{Count: writersPerBlock},
		}})
		w.mu.Lock()
		w.fetching = nil
		if err == nil {
			w.next, w.end = mink.WriterID(r.Id), mink.WriterID(r.Id)+writersPerBlock
		}
		w.mu.Unlock()
		close(done)
		if err != nil {
			return 0, fmt.Errorf("allocate writer ids: %w", err)
		}
	}
}

// CommitProducer stores a named producer's position and end offsets together.
// version is the expected one, 0 for any; it answers the new one.
func (n *Node) CommitProducer(ctx context.Context, c *clusterpb.CommitProducerOffsets) (version int64, err error) {
	r, err := n.one(ctx, &clusterpb.Command{Kind: &clusterpb.Command_CommitProducerOffsets{CommitProducerOffsets: c}})
	if err != nil {
		return 0, fmt.Errorf("commit offsets of producer %q: %w", c.Producer, err)
	}
	return r.Id, nil
}

// Uptime is how long this process has run as a node.
func (n *Node) Uptime() time.Duration { return time.Since(n.started) }
