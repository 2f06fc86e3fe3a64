package flight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// tierTable asks the leaders first where their logs end: rows that were acknowledged before
// the call are in the sink when it has these offsets.
func (s *service) tierTable(ctx context.Context, b api.TierTable) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Table)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(b.Sink, onlySink(view, t))
	if !b.Wait {
		return s.backend.TierTable(ctx, t.ID, name, nil)
	}
	if _, on := view.Tiering(t.ID, name); !on {
		return nil, notTiered(t, name)
	}
	refs, _, err := bucketsOf(view, t, nil, nil)
	if err != nil {
		return nil, err
	}
	ends, errs := s.upload(ctx, t, refs)
	upTo := make(map[mink.BucketRef]mink.Offset, len(refs))
	for i, ref := range refs {
		if upTo[ref] = ends[i]; errors.Is(errs[i], mink.ErrNotExist) { // it was dropped meanwhile
			delete(upTo, ref)
			errs[i] = nil
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("tier table %s: where its logs end, and their upload: %w", t.Descriptor.Name(), err)
	}
	return s.backend.TierTable(ctx, t.ID, name, upTo)
}

// onlySink is the sink of a table that has one, the lake of others.
func onlySink(view *cluster.State, t *cluster.Table) string {
	sinks := slices.Collect(view.TieringsOf(t.ID))
	if len(sinks) == 1 {
		return sinks[0].Sink
	}
	return cluster.LakeSink
}

func notTiered(t *cluster.Table, sink string) error {
	return fmt.Errorf("table %s is not tiered to sink %q: its copy there %w (mink table alter %[1]s --sink %[2]s)", t.Descriptor.Name(), sink, mink.ErrNotExist)
}

func (s *service) uploadBuckets(ctx context.Context, b api.UploadBuckets) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Table)
	if err != nil {
		return nil, err
	}
	refs, of, err := bucketsOf(view, t, nil, b.Buckets)
	if err != nil {
		return nil, err
	}
	ends, errs := s.upload(ctx, t, refs)
	return offsetsAnswer(refs, of, ends, errs), ctx.Err()
}

// upload answers where the log of each bucket ends, when all below is in stream objects.
func (s *service) upload(ctx context.Context, t *cluster.Table, refs []mink.BucketRef) ([]mink.Offset, []error) {
	ends, errs := s.positions(ctx, refs, api.Position{Kind: api.AtLatest}, func(led []mink.BucketRef) (string, any) {
		return api.ActionUploadBuckets, api.UploadBuckets{Table: t.Descriptor.Name(), Buckets: led}
	})
	led := func(i int) bool { _, err := s.backend.Log(refs[i]); return err == nil }
	var here []int
	for i := range refs {
		if errs[i] == nil && led(i) {
			here = append(here, i)
		}
	}
	if len(here) == 0 {
		return ends, errs
	}
	if err := s.backend.Upload(ctx); err != nil {
		for _, i := range here {
			errs[i] = fmt.Errorf("bucket %s: %w", refs[i], err)
		}
	}
	return ends, errs
}

// lakeSnapshot says how far a table is in the lake.
func (s *service) lakeSnapshot(ctx context.Context, b api.Named) (any, error) {
	view := s.backend.View()
	t, err := tableNamed(view, b.Name)
	if err != nil {
		return nil, err
	}
	tiering, on := view.Tiering(t.ID, cluster.LakeSink)
	if !on {
		return nil, notTiered(t, cluster.LakeSink)
	}
	out := api.LakeSnapshot{
		Table: t.Descriptor.Name(), TableID: t.ID, Snapshot: tiering.Snapshot, Round: tiering.Round, Rounds: tiering.Rounds, CommittedMs: tiering.CommittedMs,
		Buckets: []api.LakeBucket{},
	}
	refs, of, err := bucketsOf(view, t, nil, nil)
	if err != nil {
		return nil, err
	}
	marks, errs := s.offsets(ctx, t, refs, "latest", api.Position{Kind: api.AtLatest})
	for i, ref := range refs {
		l, ok := lakeBucket(view, ref, marks[i], errs[i])
		if !ok {
			continue
		}
		l.Values = of[i].Values
		out.Buckets = append(out.Buckets, l)
		out.LagOffsets += l.LagOffsets
	}
	s.lookInCatalog(ctx, view, t, &out)
	return out, ctx.Err()
}

// lakeBucket is how far one bucket is; ok is false when it is not tiered.
func lakeBucket(view *cluster.State, ref mink.BucketRef, mark mink.Offset, err error) (l api.LakeBucket, ok bool) {
	_, end, tiered := view.TieredEnd(cluster.LakeSink, ref)
	id, known := view.StreamOf(ref)
	st, there := view.Stream(id)
	if !tiered || !known || !there {
		return l, false
	}
	l = api.LakeBucket{Bucket: ref, End: end, HighWatermark: max(mark, st.End)}
	if err != nil {
		l.Error, l.Code = err.Error(), codeOf(err)
	}
	l.LagOffsets = max(0, int64(l.HighWatermark-max(end, st.Start)))
	return l, true
}

// lookInCatalog adds what the catalog says.
func (s *service) lookInCatalog(ctx context.Context, view *cluster.State, t *cluster.Table, out *api.LakeSnapshot) {
	opener, err := s.lakeOpener()
	if err == nil {
		var found, e = opener.Look(ctx, layoutOf(view, t))
		if err = e; err == nil {
			out.Location, out.MetadataLocation, out.CatalogSnapshot = found.Location, found.Metadata, found.Current
			out.Expired = out.Snapshot != "" && !slices.Contains(found.Snapshots, out.Snapshot)
		}
	}
	if err != nil && (out.Snapshot != "" || !errors.Is(err, mink.ErrNotExist)) { // no round made it yet
		out.CatalogError = err.Error()
	}
}
