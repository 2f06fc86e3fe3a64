package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

func (r *run) createTable(buckets int32, options map[string]string, partitionKeys ...string) {
	r.number++
	name := fmt.Sprintf("t%d", r.number)
	var id mink.TableID
	r.ensure("create table", func(ctx context.Context, p *Process) error {
		if err := p.Node().CreateDatabase(ctx, "sim", true); err != nil {
			return err
		}
		d, err := schema.KafkaTopic("sim", name, buckets, nil)
		if err != nil {
			return err
		}
		d = d.Clone()
		for k, v := range options {
			if d.Options == nil {
				d.Options = map[string]string{}
			}
			d.Options[k] = v
		}
		d.PartitionKeys = append(d.PartitionKeys, partitionKeys...)
		t, err := p.Node().CreateTable(ctx, d, true)
		if err == nil {
			id = t.ID
		}
		return err
	})
	r.truth.Look()
	tab := table{id: id, name: name, partitioned: len(partitionKeys) > 0}
	for p := range r.truth.State().Partitions(id) {
		tab.refs = append(tab.refs, bucketsOf(p)...)
	}
	for _, ref := range tab.refs {
		if ttl := options["log_ttl"]; ttl != "" {
			d, err := units.ParseDuration(ttl)
			if err != nil {
				r.Broken("%v", err)
			}
			r.model.Expire(ref, d)
		}
		topic := name
		if tab.partitioned {
			topic = "" // no Kafka client sees it
		}
		r.produce(ref, topic, true)
		if r.rng.IntN(2) == 0 {
			r.produce(ref, topic, false)
		}
	}
	r.tables = append(r.tables, tab)
}

// createCompacted makes a compacted topic, which stays.
func (r *run) createCompacted() {
	var id mink.TableID
	r.ensure("create compacted topic", func(ctx context.Context, p *Process) error {
		if err := p.Node().CreateDatabase(ctx, "sim", true); err != nil {
			return err
		}
		d, err := schema.KafkaTopic("sim", "keyed", 1, nil)
		if err != nil {
			return err
		}
		d = d.Clone()
		if d.Options == nil {
			d.Options = map[string]string{}
		}
		maps.Copy(d.Options, r.keyed.Options())
		t, err := p.Node().CreateTable(ctx, d, true)
		if err == nil {
			id = t.ID
		}
		return err
	})
	r.truth.Look()
	for p := range r.truth.State().Partitions(id) {
		for _, ref := range bucketsOf(p) {
			for range 2 {
				r.number++
				name, seed := fmt.Sprint("keyed", r.number), r.rng.Uint64()
				r.clients.Go(func() { r.keyed.Write(r.ctx, ref, name, time.Duration(r.cfg.Pace)*300*time.Millisecond, seed) })
			}
		}
	}
}

// groupName is the consumer group of the first table, which stays.
const groupName = "readers"

// createMembers starts a group of n consumers.
func (r *run) createMembers(n int) {
	t := r.tables[0]
	pace := time.Duration(r.cfg.Pace)
	for range n {
		r.number++
		m := &WireMember{
			Name: fmt.Sprint("member", r.number), Group: groupName, Topic: t.name, Count: int32(len(t.refs)),
			Session: pace * 6 * time.Second, Pause: pace * 200 * time.Millisecond, Patience: 4 * time.Second,
		}
		seed := r.rng.Uint64()
		r.clients.Go(func() { r.members.Run(r.ctx, m, seed) })
	}
}

// partitionedTable is one that still exists, nil when none does.
func (r *run) partitionedTable() *table {
	for i := range r.tables {
		if r.tables[i].partitioned {
			return &r.tables[i]
		}
	}
	return nil
}

// createPartition makes one more partition of the partitioned table.
func (r *run) createPartition() {
	t := r.partitionedTable()
	if t == nil {
		return
	}
	r.number++
	values := []string{fmt.Sprintf("p%d", r.number)}
	var made *cluster.Partition
	r.ensure("create partition", func(ctx context.Context, p *Process) (err error) {
		made, err = p.Node().EnsurePartition(ctx, t.id, values)
		return err
	})
	if made == nil {
		return // said so
	}
	t.partitions = append(t.partitions, made.ID)
	for _, ref := range bucketsOf(made) {
		t.refs = append(t.refs, ref)
		r.produce(ref, "", true)
	}
}

// dropPartition drops the oldest partition of the partitioned table, at once or
// closed first, as the coordinator does, and a while later.
func (r *run) dropPartition() {
	t := r.partitionedTable()
	if t == nil || len(t.partitions) < 2 {
		return
	}
	table, id := t.id, t.partitions[0]
	t.partitions = t.partitions[1:]
	t.refs = slices.DeleteFunc(t.refs, func(ref mink.BucketRef) bool {
		if ref.Partition == id {
			r.model.Dropped(ref)
		}
		return ref.Partition == id
	})
	if r.rng.IntN(2) == 0 {
		r.ensure("close partition", func(ctx context.Context, p *Process) error {
			results, err := p.Node().Propose(ctx, &clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{
				ClosePartition: &clusterpb.ClosePartition{Table: int64(table), Partition: int64(id)},
			}})
			if err != nil {
				return err
			}
			if err := cluster.ResultError(results[0]); !errors.Is(err, mink.ErrNotExist) {
				return err
			}
			return nil // closed by an attempt whose answer was lost, and dropped since: its loop drops closed ones
		})
		r.truth.Look()
		if p, ok := r.truth.State().Partition(id); ok && !p.Closed {
			r.Broken("partition %d was closed and is not", id)
		}
		time.Sleep(time.Duration(r.rng.Int64N(int64(3 * time.Second))))
	}
	r.ensure("drop partition", func(ctx context.Context, p *Process) error {
		return p.Node().DropPartition(ctx, table, id, true)
	})
	r.truth.Look()
	if _, ok := r.truth.State().Partition(id); ok {
		r.Broken("partition %d was dropped and is still there", id)
	}
}

// produce starts a producer: on the network when the bucket is a topic's partition.
func (r *run) produce(ref mink.BucketRef, topic string, idempotent bool) {
	r.number++
	kind := "plain"
	if idempotent {
		kind = "idem"
	}
	name, depth, seed := fmt.Sprintf("%s%d", kind, r.number), 1+r.rng.IntN(5), r.rng.Uint64()
	pause, patience := r.pause(), 4*time.Second
	if topic != "" {
		p := &WireProducer{Name: name, Topic: topic, Bucket: ref, Idempotent: idempotent, Depth: depth, Pause: pause, Patience: patience}
		r.clients.Go(func() { r.model.ProduceWire(r.ctx, p, seed) })
		return
	}
	p := &Producer{Name: name, Bucket: ref, Idempotent: idempotent, Depth: depth, Pause: pause, Patience: patience}
	r.clients.Go(func() { r.model.Produce(r.ctx, p, seed) })
}

// pause is a client's mean time between two batches.
func (r *run) pause() time.Duration {
	return time.Duration(r.cfg.Pace) * time.Duration(50+r.rng.IntN(300)) * time.Millisecond
}

// createRows makes the table of Flight clients, which stays, with its writers.
func (r *run) createRows() {
	r.ensure("create the table of rows", func(ctx context.Context, _ *Process) error { return r.rows.Create(ctx, 3) })
	r.truth.Look()
	for _, f := range []func(context.Context, time.Duration, uint64){r.rows.Write, r.rows.Put} {
		mean, seed := 2*r.pause(), r.rng.Uint64()
		r.clients.Go(func() { f(r.ctx, mean, seed) })
	}
}

func (r *run) dropTable() {
	if len(r.tables) < 4 { // those of the beginning stay
		return
	}
	t := r.tables[len(r.tables)-1]
	r.tables = r.tables[:len(r.tables)-1]
	for _, ref := range t.refs {
		r.model.Dropped(ref)
	}
	r.ensure("drop table", func(ctx context.Context, p *Process) error { return p.Node().DropTable(ctx, t.id, true) })
}

func (r *run) alterTable() {
	t := r.tables[r.rng.IntN(len(r.tables))]
	ttl := r.cfg.Pace * (20 + r.rng.IntN(20))
	if t.id == r.tables[0].id || t.partitioned {
		return // keeps everything
	}
	for _, ref := range t.refs {
		r.model.Expire(ref, time.Duration(ttl)*time.Second)
	}
	change := schema.Change{Op: schema.SetOptions, Options: map[string]string{"log_ttl": fmt.Sprintf("%ds", ttl)}}
	r.ensure("alter table", func(ctx context.Context, p *Process) error {
		_, err := p.Node().AlterTable(ctx, t.id, []schema.Change{change}, 0)
		return err
	})
}
