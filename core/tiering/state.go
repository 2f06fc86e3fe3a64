package tiering

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// stateView is a cluster's state as a View. For one goroutine.
type stateView struct {
	*cluster.State
	sizes map[plan.ObjectID]int64 // offsets that an object holds of all streams
}

// ViewOf makes a View of a state, for one goroutine.
func ViewOf(s *cluster.State) View { return &stateView{State: s, sizes: map[plan.ObjectID]int64{}} }

// StateOf is the state of a view that ViewOf made.
func StateOf(v View) *cluster.State { return v.(*stateView).State }

func (v *stateView) Targets() iter.Seq[Target] {
	return func(yield func(Target) bool) {
		for t := range v.Tierings() {
			if !yield(Target{Table: t.Table, Sink: t.Sink}) {
				return
			}
		}
	}
}

func (v *stateView) Dropped() iter.Seq[Dropped] {
	return func(yield func(Dropped) bool) {
		for d := range v.DroppedSinks() {
			if !yield(Dropped{Target: Target{Table: d.Table, Sink: d.Sink}, Spec: specOf(d.Table, d.Descriptor, d.Sink)}) {
				return
			}
		}
	}
}

func (v *stateView) Spec(t Target) (sink.TableSpec, error) {
	table, ok := v.Table(t.Table)
	if !ok {
		return sink.TableSpec{}, fmt.Errorf("%s: %w", t, mink.ErrNotExist)
	}
	return specOf(t.Table, table.Descriptor, t.Sink), nil
}

// specOf is a table as its sink needs to know it.
func specOf(id mink.TableID, d *schema.Descriptor, name string) sink.TableSpec {
	s := sink.TableSpec{
		ID: id, Database: d.Database, Name: d.Table, Schema: sink.Schema{ID: d.Schema.ID, Arrow: d.Schema.Arrow()},
		PrimaryKey: d.PrimaryKey, PartitionKeys: d.PartitionKeys, BucketKeys: d.BucketKeys, BucketCount: d.BucketCount,
	}
	if s.Options = d.SinkOptions(name); name != cluster.LakeSink {
		return s
	}
	for k, value := range d.Options {
		if strings.HasPrefix(k, "lake_") {
			s.Options[k] = value
		}
	}
	for k, value := range d.Properties {
		if strings.HasPrefix(k, "iceberg.") {
			s.Options[k] = value
		}
	}
	return s
}

func (v *stateView) Job(t Target) (Job, bool) {
	tiering, ok := v.Tiering(t.Table, t.Sink)
	if !ok {
		return Job{}, false
	}
	table, ok := v.Table(t.Table)
	if !ok {
		return Job{}, false
	}
	d := table.Descriptor
	j := Job{
		Name: d.Name(), Schema: d.Schema.ID, Keyed: len(d.PrimaryKey) > 0, Freshness: freshness(d, t.Sink), Anew: schema.SinkGenerationOption(t.Sink),
		Retains: tiering.Retains, Round: sink.RoundID(tiering.Round), Snapshot: tiering.Snapshot, Stopped: tiering.Stopped, Upkeep: upkeepOf(d),
	}
	for _, s := range tiering.Snapshots {
		j.Upkeep.Pinned = append(j.Upkeep.Pinned, s.Snapshot)
	}
	if tiering.CommittedMs > 0 {
		j.Committed = time.UnixMilli(tiering.CommittedMs)
	}
	for p := range v.Partitions(t.Table) {
		for i, id := range p.Streams {
			st, ok := v.Stream(id)
			if !ok {
				continue
			}
			b := Bucket{Ref: mink.BucketRef{Table: t.Table, Partition: p.ID, Index: int32(i)}, Partition: p.Values, Closed: p.Closed, Start: st.Start, End: st.End}
			if b.Base, b.Tiered, ok = v.TieredEnd(t.Sink, b.Ref); !ok {
				continue // its base comes with it: not yet in this state
			}
			if b.Tiered < b.End {
				v.untiered(&b, t.Sink, st, j.Keyed)
			}
			j.Buckets = append(j.Buckets, b)
		}
	}
	return j, true
}

func freshness(d *schema.Descriptor, name string) time.Duration {
	o, err := d.SinkSettings(name)
	if err != nil { // they were checked when they were set
		return 3 * time.Minute
	}
	return o.Freshness
}

// upkeepOf reads the table's options.
func upkeepOf(d *schema.Descriptor) Upkeep {
	o, err := d.ParsedOptions()
	if err != nil {
		return Upkeep{}
	}
	return Upkeep{Compact: o.LakeCompaction, StateAge: o.LakeSnapshotAge, OrphanAge: o.LakeOrphanAge}
}

// untiered adds what only a bucket with something to do needs.
func (v *stateView) untiered(b *Bucket, name string, st plan.Stream, keyed bool) {
	for _, g := range v.AllowedGaps(name, b.Ref) {
		b.Gaps = append(b.Gaps, Gap{g.Start, g.End})
	}
	b.Remade = v.Remade(name, b.Ref)
	if s := v.KVSnapshots(st.ID); keyed && len(s) > 0 {
		b.Snapshot = s[len(s)-1].Offset
	}
	b.Bytes = v.bytesFrom(st, b.Tiered)
}

// bytesMax is where an estimate ends: more is as urgent.
const bytesMax = 1 << 30

// bytesFrom estimates the stored bytes from an offset on: of each object the stream's
// share by offsets.
func (v *stateView) bytesFrom(st plan.Stream, from mink.Offset) (n int64) {
	for i := len(st.Ranges) - 1; i >= 0 && n < bytesMax; i-- {
		r := st.Ranges[i]
		if r.End <= from {
			break
		}
		o, ok := v.Object(r.Object)
		if !ok {
			continue
		}
		whole, known := v.sizes[r.Object]
		if !known {
			for _, other := range v.ObjectRanges(r.Object) {
				whole += int64(other.End - other.Start)
			}
			v.sizes[r.Object] = whole
		}
		if whole > 0 {
			n += int64(float64(o.Size) * float64(r.End-max(r.Start, from)) / float64(whole))
		}
	}
	return n
}
