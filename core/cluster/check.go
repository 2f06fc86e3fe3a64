package cluster

import (
	"fmt"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Check verifies everything that must hold of a state, in time proportional to
// its size. nil: it holds. A snapshot passes through it before it is used; the
// simulations call it after each command.
func (s *State) Check() error {
	for _, check := range []func() error{s.checkNodes, s.checkCatalog, s.checkStreams, s.checkRefs, s.checkObjects, s.checkGroups, s.checkKV, s.checkTiering} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) checkNodes() error {
	if s.timeLine > s.index {
		return fmt.Errorf("the time line begins at %d, the index is %d", s.timeLine, s.index)
	}
	for epoch, w := range s.wals.all() {
		n, found := s.nodes.get(w.ID.Node)
		switch {
		case epoch <= 0 || w.ID.Epoch != epoch || w.ID.Node <= 0 || uint64(epoch) > s.index:
			return fmt.Errorf("wal %s under node epoch %d at index %d", w.ID, epoch, s.index)
		case !w.Sealed && (!found || n.Epoch != epoch || n.Sealed):
			return fmt.Errorf("wal %s is not sealed and not its node's current one", w.ID)
		case !w.used.valid() || w.Sealed && len(w.used) > 0:
			return fmt.Errorf("wal %s: impossible set of used numbers %v", w.ID, w.used)
		case w.Recovered && !w.Sealed:
			return fmt.Errorf("wal %s is recovered and not sealed", w.ID)
		case w.Recovered && w.End < w.Trim:
			return fmt.Errorf("wal %s ends at %d below its trim %d", w.ID, w.End, w.Trim)
		}
		for i := 1; i < len(w.lost); i++ {
			if w.lost[i-1].Slot >= w.lost[i].Slot {
				return fmt.Errorf("wal %s: lost slots out of order", w.ID)
			}
		}
	}
	for id, n := range s.nodes.all() {
		w, found := s.wals.get(n.Epoch)
		if id <= 0 || n.ID != id || !found || w.ID != n.WAL() || w.Sealed != n.Sealed {
			return fmt.Errorf("node %d, epoch %d, and its wal disagree", id, n.Epoch)
		}
	}
	for epoch := range s.dedup.all() {
		if w, found := s.wals.get(epoch); !found || w.Sealed {
			return fmt.Errorf("dedup entry of node epoch %d, which is sealed or unknown", epoch)
		}
	}
	return nil
}

func (s *State) checkCatalog() error {
	for name, d := range s.databases.all() {
		if d.ID <= 0 || d.ID >= s.nextDatabase || d.Name != name {
			return fmt.Errorf("database %q has id %d, the next one is %d", name, d.ID, s.nextDatabase)
		}
	}
	for id, t := range s.tables.all() {
		if id <= 0 || id >= s.nextTable || t.ID != id {
			return fmt.Errorf("table %d, the next one is %d", id, s.nextTable)
		}
		if _, found := s.databases.get(t.Descriptor.Database); !found {
			return fmt.Errorf("table %d is in database %q, which does not exist", id, t.Descriptor.Database)
		}
		if same, found := s.TableByName(t.Descriptor.Database, t.Descriptor.Table); !found || same != t {
			return fmt.Errorf("table %d is not found by its name", id)
		}
		if same, found := s.TableByUUID(t.UUID); !found || same != t {
			return fmt.Errorf("table %d is not found by its uuid", id)
		}
	}
	if s.tableNames.len() != s.tables.len() || s.tableUUIDs.len() != s.tables.len() {
		return fmt.Errorf("%d tables, %d names, %d uuids", s.tables.len(), s.tableNames.len(), s.tableUUIDs.len())
	}
	return s.checkPartitions()
}

func (s *State) checkPartitions() error {
	streams := 0
	for id, p := range s.partitions.all() {
		t, found := s.tables.get(p.Table)
		switch {
		case id <= 0 || id >= s.nextPartition || p.ID != id:
			return fmt.Errorf("partition %d, the next one is %d", id, s.nextPartition)
		case !found:
			return fmt.Errorf("partition %d is of table %d, which does not exist", id, p.Table)
		case len(p.Values) != len(t.Descriptor.PartitionKeys) || len(p.Streams) != int(t.Descriptor.BucketCount):
			return fmt.Errorf("partition %d has %d values and %d streams", id, len(p.Values), len(p.Streams))
		}
		if same, found := s.PartitionByValues(p.Table, p.Values); !found || same != p {
			return fmt.Errorf("partition %d is not found by its values", id)
		}
		if _, found := s.partsOf.get(tablePartition{p.Table, id}); !found {
			return fmt.Errorf("partition %d is not listed under its table", id)
		}
		for i, stream := range p.Streams {
			st, found := s.streams.get(stream)
			if !found || st.Bucket != (mink.BucketRef{Table: p.Table, Partition: id, Index: int32(i)}) {
				return fmt.Errorf("bucket %d of partition %d and stream %d disagree", i, id, stream)
			}
		}
		streams += len(p.Streams)
	}
	if streams != s.streams.len() || s.partsOf.len() != s.partitions.len() || s.partValues.len() != s.partitions.len() {
		return fmt.Errorf("%d streams of %d in partitions", streams, s.streams.len())
	}
	return nil
}

func (s *State) checkStreams() error {
	for id, st := range s.streams.all() {
		if id <= 0 || id >= s.nextStream || st.ID != id {
			return fmt.Errorf("stream %d, the next one is %d", id, s.nextStream)
		}
		if err := st.Validate(); err != nil {
			return err
		}
		if _, found := s.byOwner.get(owned{st.Owner.NodeEpoch, id}); !found {
			return fmt.Errorf("stream %d is not listed under its owner, epoch %d", id, st.Owner.NodeEpoch)
		}
		if st.Owner.NodeEpoch == 0 {
			if st.Owner.Node != 0 {
				return fmt.Errorf("stream %d is led by node %d of no epoch", id, st.Owner.Node)
			}
			continue
		}
		if w, found := s.wals.get(st.Owner.NodeEpoch); !found || w.ID.Node != st.Owner.Node || st.Owner.LeaderEpoch < 1 {
			return fmt.Errorf("stream %d has an impossible owner %+v", id, st.Owner)
		}
	}
	if s.byOwner.len() != s.streams.len() {
		return fmt.Errorf("%d streams, %d listed under owners", s.streams.len(), s.byOwner.len())
	}
	return nil
}

// checkRefs verifies that the reverse index is what the streams say.
func (s *State) checkRefs() error {
	total := 0
	for _, st := range s.streams.all() {
		total += len(st.Ranges)
		if !st.Checkpoint.IsZero() {
			total++
		}
	}
	counted := 0
	for r := range s.refs.all() {
		st, found := s.streams.get(r.stream)
		if !found {
			return fmt.Errorf("object %+v is named by stream %d, which does not exist", r.object, r.stream)
		}
		n := int32(0)
		for _, g := range st.Ranges {
			if g.Object == r.object {
				n++
			}
		}
		if st.Checkpoint == r.object {
			n++
		}
		if n != r.count || n == 0 {
			return fmt.Errorf("stream %d names object %+v %d times, %d are counted", r.stream, r.object, n, r.count)
		}
		counted += int(n)
	}
	if counted != total {
		return fmt.Errorf("streams name objects %d times, %d are counted", total, counted)
	}
	return nil
}

// checkObjects verifies that each object has exactly one owner and that it is
// the right one.
func (s *State) checkObjects() error {
	t := txn{s: s}
	var last plan.ObjectID
	for r := range s.refs.all() {
		if r.object == last && !last.IsZero() {
			continue
		}
		last = r.object
		if _, found := s.objects.get(&plan.Object{ID: r.object}); !found {
			return fmt.Errorf("object %+v is named and not known", r.object)
		}
	}
	for o := range s.objects.all() {
		_, parked := s.parked.get(o)
		_, destroyed := s.destroyed.get(&plan.Destroyed{Object: *o})
		switch {
		case parked || destroyed:
			return fmt.Errorf("object %+v has two owners", o.ID)
		case !t.named(o.ID):
			return fmt.Errorf("object %+v is kept and not named", o.ID)
		}
	}
	for o := range s.parked.all() {
		if _, destroyed := s.destroyed.get(&plan.Destroyed{Object: *o}); destroyed || !s.walOwns(o.ID) {
			return fmt.Errorf("parked object %+v is not its wal's", o.ID)
		}
	}
	for d := range s.destroyed.all() {
		if s.walOwns(d.Object.ID) {
			return fmt.Errorf("destroyed object %+v may be needed by its wal", d.Object.ID)
		}
		if d.Index > s.index {
			return fmt.Errorf("object %+v was destroyed at index %d, the state is at %d", d.Object.ID, d.Index, s.index)
		}
	}
	return nil
}

// checkGroups verifies that groups, their offsets and the buckets agree.
func (s *State) checkGroups() error {
	counted := 0
	for name, g := range s.groups.all() {
		n := 0
		for range s.GroupOffsets(name) {
			n++
		}
		counted += n
		switch {
		case g.Name != name || g.Offsets != n:
			return fmt.Errorf("group %q has %d offsets, %d are counted", name, n, g.Offsets)
		case n == 0 && !g.Occupied:
			return fmt.Errorf("group %q has neither members nor offsets", name)
		case g.Occupied && g.EmptiedMs != 0 || g.EmptiedMs < 0 || g.EmptiedMs > s.timeMs:
			return fmt.Errorf("group %q: occupied %t, empty since %d at %d", name, g.Occupied, g.EmptiedMs, s.timeMs)
		case g.MovedIndex > s.index:
			return fmt.Errorf("group %q moved at index %d, the state is at %d", name, g.MovedIndex, s.index)
		}
		if err := checkGroupNames(name, g.ProtocolType); err != nil {
			return err
		}
		if _, found := s.groupSlots.get(slotGroupOf(name)); !found {
			return fmt.Errorf("group %q is not listed in its slot", name)
		}
	}
	if n := s.groupSlots.len(); n != s.groups.len() {
		return fmt.Errorf("%d groups are in slots, there are %d", n, s.groups.len())
	}
	for o := range s.groupOffsets.all() {
		if err := o.validate(); err != nil {
			return fmt.Errorf("group %q: %w", o.group, err)
		}
		if _, found := s.StreamOf(o.Bucket); !found {
			return fmt.Errorf("group %q has an offset of bucket %s, which does not exist", o.group, o.Bucket)
		}
		if _, found := s.groupsOf.get(bucketGroup{o.Bucket, o.group}); !found {
			return fmt.Errorf("group %q is not listed under bucket %s", o.group, o.Bucket)
		}
	}
	if counted != s.groupOffsets.len() || counted != s.groupsOf.len() {
		return fmt.Errorf("groups have %d offsets, there are %d, %d are listed under buckets", counted, s.groupOffsets.len(), s.groupsOf.len())
	}
	return nil
}
