package cluster

import (
	"math"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// Limits of one command.
const (
	MaxWriters          = 1 << 20 // ids of one AllocateWriters
	MaxProducerName     = 255     // bytes
	MaxProducerPosition = 4 << 10 // bytes
	MaxProducerOffsets  = 1 << 16
)

func (t *txn) allocateWriters(c *clusterpb.AllocateWriters) *clusterpb.Result {
	if c.GetCount() < 1 || c.GetCount() > MaxWriters {
		return invalid("allocate %d writer ids: 1 to %d at a time", c.GetCount(), MaxWriters)
	}
	first := t.s.nextWriter
	if first > math.MaxInt64-mink.WriterID(c.GetCount()) {
		return invalid("allocate %d writer ids: they are used up", c.GetCount())
	}
	t.s.nextWriter += mink.WriterID(c.GetCount())
	return okID(int64(first))
}

// commitProducerOffsets replaces a named producer's position; id is the new
// version.
func (t *txn) commitProducerOffsets(c *clusterpb.CommitProducerOffsets) *clusterpb.Result {
	name := c.GetProducer()
	switch {
	case name == "" || len(name) > MaxProducerName:
		return invalid("producer name of %d bytes: 1 to %d are allowed", len(name), MaxProducerName)
	case len(c.GetPosition()) > MaxProducerPosition:
		return invalid("producer %q: a position of %d bytes, at most %d are allowed", name, len(c.GetPosition()), MaxProducerPosition)
	case len(c.GetOffsets()) > MaxProducerOffsets:
		return invalid("producer %q: %d bucket offsets, at most %d are allowed", name, len(c.GetOffsets()), MaxProducerOffsets)
	}
	old, found := t.s.producers.get(name)
	if want := c.GetExpectedVersion(); want != 0 && (!found || old.Version != want) {
		have := int64(0)
		if found {
			have = old.Version
		}
		return conflict("producer %q is at version %d, expected %d: another instance committed, or its offsets expired; read them again", name, have, want)
	}
	offsets := bucketOffsets(c.GetOffsets())
	seen := make(map[mink.BucketRef]bool, len(offsets))
	for _, o := range offsets {
		switch {
		case o.Bucket.Table <= 0 || o.Bucket.Partition <= 0 || o.Bucket.Index < 0 || o.Offset < 0:
			return invalid("producer %q: offset %d of bucket %s: ids start at 1, offsets at 0", name, o.Offset, o.Bucket)
		case seen[o.Bucket]:
			return invalid("producer %q: bucket %s twice", name, o.Bucket)
		}
		seen[o.Bucket] = true
	}
	version := t.s.nextProducerVersion
	t.s.nextProducerVersion++
	t.s.producers.set(name, &Producer{Name: name, Position: c.GetPosition(), Offsets: offsets, CommittedMs: t.s.timeMs, Version: version})
	return okID(version)
}

// expireProducerOffsets drops up to max producers, by name; id is how many.
func (t *txn) expireProducerOffsets(c *clusterpb.ExpireProducerOffsets) *clusterpb.Result {
	switch {
	case c.GetMax() < 1:
		return invalid("expire producer offsets: at most %d of them is none", c.GetMax())
	case c.GetBeforeMs() > t.s.timeMs:
		return invalid("expire producer offsets committed before %d, which is ahead of the metadata clock, %d", c.GetBeforeMs(), t.s.timeMs)
	}
	var old []string
	for name, p := range t.s.producers.all() {
		if int32(len(old)) == c.GetMax() {
			break
		}
		if p.CommittedMs < c.GetBeforeMs() {
			old = append(old, name)
		}
	}
	for _, name := range old {
		t.s.producers.del(name)
	}
	return okID(int64(len(old)))
}
