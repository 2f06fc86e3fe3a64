package flight

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// bucketsOf lists the buckets of a table, or of one partition of it, or those named.
func bucketsOf(view *cluster.State, t *cluster.Table, values []string, named []mink.BucketRef) (refs []mink.BucketRef, of []*cluster.Partition, err error) {
	partitions, err := partitionsOf(view, t, values)
	if err != nil {
		return nil, nil, err
	}
	only := map[mink.BucketRef]bool{}
	for _, b := range named {
		only[b] = true
	}
	for _, p := range partitions {
		for i := range p.Streams {
			b := mink.BucketRef{Table: t.ID, Partition: p.ID, Index: int32(i)}
			if len(named) > 0 && !only[b] {
				continue
			}
			delete(only, b)
			refs, of = append(refs, b), append(of, p)
		}
	}
	for b := range only {
		return nil, nil, fmt.Errorf("buckets: bucket %s of table %s %w", b, t.Descriptor.Name(), mink.ErrNotExist)
	}
	return refs, of, nil
}

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
	refs, of, err := bucketsOf(view, t, b.Partition, b.Buckets)
	if err != nil {
		return nil, err
	}
	offsets, errs := s.offsets(ctx, t, refs, b.At, at)
	return offsetsAnswer(refs, of, offsets, errs), ctx.Err()
}

func offsetsAnswer(refs []mink.BucketRef, of []*cluster.Partition, offsets []mink.Offset, errs []error) api.Offsets {
	out := api.Offsets{Offsets: make([]api.BucketOffset, len(refs))}
	for i, ref := range refs {
		o := api.BucketOffset{Bucket: ref, Values: of[i].Values}
		if errs[i] != nil {
			o.Error, o.Code = errs[i].Error(), codeOf(errs[i])
		} else {
			o.Offset = offsets[i]
		}
		out.Offsets[i] = o
	}
	return out
}

// offsets finds a position in each of a table's buckets.
func (s *service) offsets(ctx context.Context, t *cluster.Table, refs []mink.BucketRef, text string, at api.Position) ([]mink.Offset, []error) {
	return s.positions(ctx, refs, at, func(led []mink.BucketRef) (string, any) {
		return api.ActionListOffsets, api.ListOffsets{Table: t.Descriptor.Name(), At: text, Buckets: led}
	})
}

// positions finds a position in each bucket: here, and at other nodes by the action that ask
// makes for the buckets that one of them leads.
func (s *service) positions(ctx context.Context, refs []mink.BucketRef, at api.Position, ask func(led []mink.BucketRef) (action string, body any)) ([]mink.Offset, []error) {
	out := make([]mink.Offset, len(refs))
	errs := s.atLeaders(ctx, refs, func(i int) error {
		log, err := s.backend.Log(refs[i])
		if err == nil {
			out[i], err = s.resolve(ctx, refs[i], log, at)
		}
		return err
	}, func(ctx context.Context, n cluster.Node, led []int) ([]error, error) {
		var buckets []mink.BucketRef
		place := map[mink.BucketRef]int{}
		for k, i := range led {
			buckets = append(buckets, refs[i])
			place[refs[i]] = k
		}
		var answer api.Offsets
		action, body := ask(buckets)
		if err := s.peers.Action(ctx, n, action, body, &answer); err != nil {
			return nil, err
		}
		errs := make([]error, len(led))
		for i := range errs {
			errs[i] = fmt.Errorf("node %d left bucket %s out of its answer: %w", n.ID, refs[led[i]], mink.ErrUnavailable)
		}
		for _, o := range answer.Offsets {
			if k, ok := place[o.Bucket]; ok {
				out[led[k]], errs[k] = o.Offset, bucketError(o.Bucket, o.Error, o.Code)
			}
		}
		return errs, nil
	})
	return out, errs
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
	return api.Health{Ready: ready, Reason: reason, Node: id, Uptime: s.backend.Uptime().Seconds(), DamagedLogs: s.backend.Damaged(), StalledSinks: s.backend.StalledSinks(),
		LeaseTTLMs: s.cfg.LeaseTTL.Milliseconds(), ClusterID: s.cfg.ClusterID, Version: s.cfg.Version, ClockMs: time.Now().UnixMilli()}, nil
}

func (s *service) check(ctx context.Context, b api.CheckRequest) (any, error) {
	return s.backend.Check(ctx, b.Deep)
}

func (s *service) acceptLoss(ctx context.Context, b api.AcceptLoss) (any, error) {
	return s.backend.AcceptLoss(ctx, b)
}

func (s *service) rebalance(ctx context.Context, b api.Rebalance, send func(any) error) error {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	report, err := s.backend.Rebalance(ctx, b.DryRun, func(m api.MoveProgress) {
		if err := send(api.RebalanceStep{Move: &m}); err != nil {
			leave(fmt.Errorf("the caller has left: %w", err))
		}
	})
	if err != nil {
		return err
	}
	return send(api.RebalanceStep{Report: &report})
}

func (s *service) removeNode(ctx context.Context, b api.RemoveNode) (any, error) {
	return s.backend.RemoveNode(ctx, b)
}

func (s *service) maintainTable(ctx context.Context, b api.MaintainTable) (any, error) {
	t, err := tableNamed(s.backend.View(), b.Table)
	if err != nil {
		return nil, err
	}
	b.Sink = cmp.Or(b.Sink, cluster.LakeSink)
	return s.backend.MaintainTable(ctx, t.ID, b)
}

func (s *service) releaseBucket(ctx context.Context, b api.ReleaseBucket) (any, error) {
	return nothing{}, s.backend.ReleaseBucket(ctx, b.Bucket, b.To)
}
