package flight

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// lookupsAtOnce is how many buckets one list_offsets looks up side by side: by
// timestamp each may read from the store.
const lookupsAtOnce = 16

func (s *service) listOffsets(ctx context.Context, b api.ListOffsets) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Table)
	if err != nil {
		return nil, err
	}
	at, err := api.ParsePosition(b.At)
	if err != nil {
		return nil, fmt.Errorf("at: %w", err)
	}
	partitions, err := partitionsOf(view, t, b.Partition)
	if err != nil {
		return nil, err
	}
	out := api.Offsets{Offsets: []api.BucketOffset{}}
	for _, p := range partitions {
		for i := range p.Streams {
			out.Offsets = append(out.Offsets, api.BucketOffset{Bucket: mink.BucketRef{Table: t.ID, Partition: p.ID, Index: int32(i)}, Values: p.Values})
		}
	}
	var g errgroup.Group
	g.SetLimit(lookupsAtOnce)
	for i := range out.Offsets {
		o := &out.Offsets[i]
		g.Go(func() error {
			log, err := s.backend.Log(o.Bucket)
			if err == nil {
				o.Offset, err = resolve(ctx, log, at)
			}
			if err != nil {
				err = s.leaderError(o.Bucket, err)
				o.Error, o.Code = err.Error(), codeOf(err)
			}
			return nil
		})
	}
	_ = g.Wait() // no member fails
	return out, ctx.Err()
}

func (s *service) initWriter(ctx context.Context, _ nothing) (any, error) {
	id, err := s.backend.AllocateWriter(ctx)
	return api.Writer{WriterID: id}, err
}

func (s *service) commitProducer(ctx context.Context, b api.Producer) (any, error) {
	c := &clusterpb.CommitProducerOffsets{Producer: b.Name, Position: b.Position, ExpectedVersion: b.Version}
	for _, o := range b.Offsets {
		c.Offsets = append(c.Offsets, &clusterpb.BucketOffset{
			Table: int64(o.Bucket.Table), Partition: int64(o.Bucket.Partition), Bucket: o.Bucket.Index, Offset: int64(o.Offset),
		})
	}
	version, err := s.backend.CommitProducer(ctx, c)
	if err != nil {
		return nil, err
	}
	b.Version = version
	if p, ok := s.backend.View().Producer(b.Name); ok && p.Version == version {
		b.CommittedMs = p.CommittedMs
	}
	return b, nil
}

func (s *service) getProducer(_ context.Context, b api.Named) (any, error) {
	p, ok := s.backend.View().Producer(b.Name)
	if !ok {
		return nil, fmt.Errorf("producer %.255q: it never committed or its offsets expired: %w", b.Name, mink.ErrNotExist)
	}
	out := api.Producer{Name: p.Name, Position: p.Position, Version: p.Version, CommittedMs: p.CommittedMs, Offsets: make([]api.BucketOffset, len(p.Offsets))}
	for i, o := range p.Offsets {
		out.Offsets[i] = api.BucketOffset{Bucket: o.Bucket, Offset: o.Offset}
	}
	return out, nil
}

func (s *service) describeCluster(context.Context, nothing) (any, error) {
	view := s.backend.View()
	out := api.Cluster{ID: s.cfg.ClusterID, Version: s.cfg.Version, AppliedIndex: view.Index(), Nodes: []api.Node{}}
	buckets := map[mink.NodeID]int{}
	for st := range view.Streams() {
		buckets[st.Owner.Node]++
		out.Buckets++
	}
	for d := range view.Databases() {
		out.Databases++
		for range view.Tables(d.Name) {
			out.Tables++
		}
	}
	for n := range view.Nodes() {
		node := api.Node{
			ID: n.ID, Epoch: n.Epoch, FlightAddress: n.FlightAddress, KafkaAddress: n.KafkaAddress, HTTPAddress: n.HTTPAddress,
			Version: n.Version, RegisteredMs: n.RegisteredMs, Live: !n.Sealed, Buckets: buckets[n.ID],
		}
		out.Nodes = append(out.Nodes, node)
		if n.ID == view.Lease().Node {
			out.Coordinator = node
		}
	}
	return out, nil
}

func (s *service) getConfig(context.Context, nothing) (any, error) {
	return api.Config{Values: s.backend.Settings()}, nil
}

func (s *service) nodeStats(context.Context, nothing) (any, error) { return s.backend.Stats(), nil }

func (s *service) health(context.Context, nothing) (any, error) {
	ready, reason := s.backend.Ready()
	id, _ := s.backend.Self()
	return api.Health{Ready: ready, Reason: reason, Node: id, Uptime: s.backend.Uptime().Seconds(), DamagedLogs: s.backend.Damaged()}, nil
}

func (s *service) check(ctx context.Context, b api.CheckRequest) (any, error) {
	return s.backend.Check(ctx, b.Deep)
}

func (s *service) acceptLoss(ctx context.Context, b api.AcceptLoss) (any, error) {
	return s.backend.AcceptLoss(ctx, b)
}
