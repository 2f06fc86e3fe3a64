package flight

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/partition"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

func (s *service) createDatabase(ctx context.Context, b api.Named) (any, error) {
	return nothing{}, s.backend.CreateDatabase(ctx, b.Name, b.IfNotExists)
}

func (s *service) dropDatabase(ctx context.Context, b api.Named) (any, error) {
	return nothing{}, s.backend.DropDatabase(ctx, b.Name, b.IfExists, b.Cascade)
}

func (s *service) listDatabases(context.Context, nothing) (any, error) {
	view := s.backend.View()
	out := api.Databases{Databases: []api.Database{}}
	for d := range view.Databases() {
		n := 0
		for range view.Tables(d.Name) {
			n++
		}
		out.Databases = append(out.Databases, api.Database{Name: d.Name, CreatedMs: d.CreatedMs, Tables: n})
	}
	return out, nil
}

func (s *service) createTable(ctx context.Context, b api.CreateTable) (any, error) {
	if len(b.Descriptor) == 0 {
		return nil, fmt.Errorf(`create_table: %w: field "descriptor" is missing`, mink.ErrInvalid)
	}
	d, err := schema.DecodeDescriptor(b.Descriptor)
	if err != nil {
		return nil, err
	}
	t, err := s.backend.CreateTable(ctx, d, b.IfNotExists)
	if err != nil {
		return nil, err
	}
	return tableOf(s.backend.View(), t), nil
}

func tableOf(view *cluster.State, t *cluster.Table) api.Table {
	n := 0
	for range view.Partitions(t.ID) {
		n++
	}
	return api.Table{
		ID: t.ID, UUID: uuid.UUID(t.UUID).String(), Name: t.Descriptor.Name(), Descriptor: t.Descriptor.Encode(),
		SchemaID: t.Schemas[len(t.Schemas)-1].ID, Partitions: n, Buckets: t.Descriptor.BucketCount,
		CreatedMs: t.CreatedMs, ModifiedMs: t.ModifiedMs, Sinks: sinksOf(view, t),
	}
}

func sinksOf(view *cluster.State, t *cluster.Table) []api.TableSink {
	var out []api.TableSink
	for at := range view.TieringsOf(t.ID) {
		s := api.TableSink{
			Sink: at.Sink, Retains: at.Retains, EnabledMs: at.EnabledMs, Round: at.Round, Snapshot: at.Snapshot, TieredMs: at.CommittedMs, Rounds: at.Rounds,
		}
		if o, err := t.Descriptor.SinkSettings(at.Sink); err == nil {
			s.FreshnessMs = o.Freshness.Milliseconds()
		}
		for p := range view.Partitions(t.ID) {
			for i, id := range p.Streams {
				_, end, tiered := view.TieredEnd(at.Sink, mink.BucketRef{Table: t.ID, Partition: p.ID, Index: int32(i)})
				if st, ok := view.Stream(id); ok && tiered {
					s.LagOffsets += int64(max(0, st.End-end))
				}
			}
		}
		out = append(out, s)
	}
	return out
}

func (s *service) dropTable(ctx context.Context, b api.Named) (any, error) {
	t, err := tableNamed(s.backend.View(), b.Name)
	if errors.Is(err, mink.ErrNotExist) && b.IfExists {
		return nothing{}, nil
	}
	if err != nil {
		return nil, err
	}
	return nothing{}, s.backend.DropTable(ctx, t.ID, b.IfExists)
}

func (s *service) alterTable(ctx context.Context, b api.AlterTable) (any, error) {
	t, err := tableNamed(s.backend.View(), b.Table)
	if err != nil {
		return nil, err
	}
	if len(b.Changes) == 0 {
		return nil, fmt.Errorf(`alter_table: %w: field "changes" is missing`, mink.ErrInvalid)
	}
	changes, err := schema.DecodeChanges(b.Changes)
	if err != nil {
		return nil, err
	}
	if t, err = s.backend.AlterTable(ctx, t.ID, changes, b.Expected); err != nil {
		return nil, err
	}
	return tableOf(s.backend.View(), t), nil
}

func (s *service) describeTable(_ context.Context, b api.Named) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Name)
	if err != nil {
		return nil, err
	}
	return tableOf(view, t), nil
}

func (s *service) listTables(_ context.Context, b api.Named) (any, error) {
	view := s.backend.View()
	if _, ok := view.Database(b.Name); b.Name != "" && !ok {
		return nil, fmt.Errorf("database %.200q %w", b.Name, mink.ErrNotExist)
	}
	out := api.Tables{Tables: []api.Table{}}
	for d := range view.Databases() {
		if b.Name != "" && d.Name != b.Name {
			continue
		}
		for t := range view.Tables(d.Name) {
			out.Tables = append(out.Tables, tableOf(view, t))
		}
	}
	return out, nil
}

func (s *service) createPartition(ctx context.Context, b api.PartitionRequest) (any, error) {
	t, err := tableNamed(s.backend.View(), b.Table)
	if err != nil {
		return nil, err
	}
	if err := partition.CheckValues(t.Descriptor, b.Values); err != nil {
		return nil, err
	}
	var p *cluster.Partition
	if p, err = s.backend.CreatePartition(ctx, t.ID, b.Values, b.IfNotExists); err != nil {
		return nil, err
	}
	return partitionOf(s.backend.View(), p), nil
}

func partitionOf(view *cluster.State, p *cluster.Partition) api.Partition {
	out := api.Partition{
		ID: p.ID, Values: p.Values, Closed: p.Closed, Automatic: p.Automatic, CreatedMs: p.CreatedMs,
		Buckets: make([]api.Bucket, len(p.Streams)),
	}
	if out.Values == nil {
		out.Values = []string{}
	}
	for i := range p.Streams {
		out.Buckets[i] = leaderOf(view, mink.BucketRef{Table: p.Table, Partition: p.ID, Index: int32(i)})
	}
	return out
}

func (s *service) dropPartition(ctx context.Context, b api.PartitionRequest) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Table)
	if err != nil {
		return nil, err
	}
	if len(t.Descriptor.PartitionKeys) == 0 {
		return nil, fmt.Errorf("%w: table %s has no partition keys; drop the table", mink.ErrInvalid, t.Descriptor.Name())
	}
	p, err := partitionNamed(view, t, b.Values)
	if errors.Is(err, mink.ErrNotExist) && b.IfExists {
		return nothing{}, nil
	}
	if err != nil {
		return nil, err
	}
	return nothing{}, s.backend.DropPartition(ctx, t.ID, p.ID, b.IfExists)
}

// mayName refuses to name leaders without a live lease: a node that is cut off from the
// metadata names those of before, itself among them, for as long as that lasts. Who asks
// it finds another node.
func (s *service) mayName() error {
	if _, err := s.backend.Lease(); err != nil {
		return fmt.Errorf("the leaders of now are not known here: %w", err)
	}
	return nil
}

func (s *service) listPartitions(_ context.Context, b api.Named) (any, error) {
	if err := s.mayName(); err != nil {
		return nil, err
	}
	view := s.backend.View()
	t, err := tableNamed(view, b.Name)
	if err != nil {
		return nil, err
	}
	out := api.Partitions{Partitions: []api.Partition{}}
	for p := range view.Partitions(t.ID) {
		out.Partitions = append(out.Partitions, partitionOf(view, p))
	}
	slices.SortStableFunc(out.Partitions, func(a, b api.Partition) int { return slices.Compare(a.Values, b.Values) })
	return out, nil
}
