package plan

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// CompactionPolicy says when objects are merged.
type CompactionPolicy struct {
	Inputs      int   // tier 0: objects that make a merge; higher tiers: runs that do
	Bytes       int64 // tier 0: bytes that make a merge
	AgeMs       int64 // tier 0: age of the oldest that makes a merge
	Tiers       uint8 // number of tiers; runs of the last one merge among themselves
	InputsMax   int   // most objects of one merge; two runs are merged whatever they have
	BytesMax    int64 // tier 0: bytes at which a merge takes no more inputs: it is all or nothing
	ObjectBytes int64 // size at which outputs are cut
	StreamBytes int64 // objects of one stream are merged until they are half as large
}

// DefaultCompaction is the design's: 8 runs of tier t make one of t+1, 4 tiers.
func DefaultCompaction() CompactionPolicy {
	return CompactionPolicy{
		Inputs: 8, Bytes: 256 << 20, AgeMs: 10 * 60 * 1000, Tiers: 4, InputsMax: 64, BytesMax: 2 << 30,
		ObjectBytes: 1 << 30, StreamBytes: 128 << 20,
	}
}

// Job is one merge: the objects to read and the tier of what it makes.
type Job struct {
	Sources []ObjectID
	Tier    uint8
}

// PlanCompaction chooses at most one merge among the objects, which the caller
// has narrowed to its own (Compactor). streamOf answers the only stream of a
// KindStream object. The choice depends on the set of objects and on nowMs
// alone, never on their order.
//
// Objects that one merge made share WAL, tier and CreatedMs: a run. Tier 0 has
// runs of one object.
func PlanCompaction(p CompactionPolicy, objects []Object, nowMs int64, streamOf func(ObjectID) (mink.StreamID, bool)) (Job, bool) {
	objects = slices.Clone(objects)
	slices.SortFunc(objects, byAge)
	if j, ok := planTierZero(p, objects, nowMs); ok {
		return j, true
	}
	if j, ok := planRuns(p, objects); ok {
		return j, true
	}
	return planStreamObjects(p, objects, streamOf)
}

func byAge(a, b Object) int {
	return cmp.Or(cmp.Compare(a.CreatedMs, b.CreatedMs), cmp.Compare(a.ID.Epoch, b.ID.Epoch),
		cmp.Compare(a.ID.Kind, b.ID.Kind), cmp.Compare(a.ID.Seq, b.ID.Seq))
}

func planTierZero(p CompactionPolicy, objects []Object, nowMs int64) (Job, bool) {
	var job Job
	var size, oldest int64
	wal, count := false, 0
	for _, o := range objects {
		if o.Tier != 0 || o.ID.Kind == KindStream {
			continue
		}
		if count++; count == 1 {
			oldest = o.CreatedMs
		}
		if len(job.Sources) < 2 || len(job.Sources) < p.InputsMax && size+o.Size <= p.BytesMax {
			job.Sources = append(job.Sources, o.ID)
			size += o.Size
			wal = wal || o.ID.Kind == KindWAL
		}
	}
	// Rewriting a single upload gains nothing; a WAL object is taken over even
	// alone, so that its slot can go.
	if count == 0 || count == 1 && !wal {
		return Job{}, false
	}
	job.Tier = 1
	return job, count >= p.Inputs || size >= p.Bytes || nowMs-oldest >= p.AgeMs
}

// runKey names what one merge made.
type runKey struct {
	wal     WALID
	created int64
}

func planRuns(p CompactionPolicy, objects []Object) (Job, bool) {
	for tier := uint8(1); tier < p.Tiers; tier++ {
		var keys []runKey
		runs := map[runKey][]ObjectID{}
		for _, o := range objects {
			if min(o.Tier, p.Tiers-1) != tier || o.ID.Kind == KindStream {
				continue
			}
			k := runKey{o.WAL, o.CreatedMs}
			if _, ok := runs[k]; !ok {
				keys = append(keys, k)
			}
			runs[k] = append(runs[k], o.ID)
		}
		if len(keys) < p.Inputs {
			continue
		}
		job := Job{Tier: min(tier+1, p.Tiers-1)}
		for i, k := range keys[:p.Inputs] {
			if i >= 2 && len(job.Sources)+len(runs[k]) > p.InputsMax {
				break
			}
			job.Sources = append(job.Sources, runs[k]...)
		}
		return job, true
	}
	return Job{}, false
}

// planStreamObjects merges the small objects of one busy stream: without it a
// stream that fills one object per upload would gather thousands of ranges.
func planStreamObjects(p CompactionPolicy, objects []Object, streamOf func(ObjectID) (mink.StreamID, bool)) (Job, bool) {
	enough := min(p.StreamBytes, p.ObjectBytes) // what a cut leaves must not be merged again for ever
	small := map[mink.StreamID][]ObjectID{}
	bytes := map[mink.StreamID]int64{}
	for _, o := range objects {
		if o.ID.Kind != KindStream || o.Size*2 >= enough {
			continue
		}
		s, ok := streamOf(o.ID)
		if !ok {
			continue
		}
		small[s] = append(small[s], o.ID)
		bytes[s] += o.Size
		if len(small[s]) >= p.Inputs || len(small[s]) >= 2 && bytes[s] >= enough {
			return Job{Sources: small[s], Tier: 1}, true
		}
	}
	return Job{}, false
}

// RewriteDue reports whether a partly trimmed object is worth rewriting: less
// than half of its bytes are live.
func RewriteDue(liveBytes, totalBytes int64) bool { return liveBytes*2 < totalBytes }

// Compactor answers which live incarnation looks after objects of the writer:
// the same node while it is registered, otherwise rendezvous hashing spreads
// the orphans. ok is false when nobody is live.
func Compactor(writer WALID, live []WALID) (WALID, bool) {
	var best WALID
	var bestScore uint64
	found := false
	for _, w := range live {
		if w.Node == writer.Node {
			return w, true
		}
		score := rendezvous(writer, w)
		if !found || score > bestScore || score == bestScore && w.Epoch < best.Epoch {
			best, bestScore, found = w, score, true
		}
	}
	return best, found
}

func rendezvous(a, b WALID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.String())) // a hash never fails
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(b.String()))
	return h.Sum64()
}
