package cluster

import (
	"slices"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// checkSinks refuses a change of options that would leave a sink with a hole.
func (t *txn) checkSinks(next *Table) *clusterpb.Result {
	for old := range t.s.tieringsOf(next.ID) {
		name := old.Sink
		if !old.Off || next.Descriptor.SinkGeneration(name) > old.Generation || !next.Descriptor.TiersTo(name) || len(next.Descriptor.PrimaryKey) == 0 {
			continue
		}
		for st := range t.s.streamsOfTable(next.ID) {
			b, found := t.s.tiered.get(&tieredBucket{stream: st.ID, sink: name})
			if found && len(b.ends) > 0 && st.Start > b.end() {
				return conflict("alter table %s: sink %s was switched off when it had bucket %s up to offset %d, and the log begins at %d by now: changes between them, deletes too, would be missing there; raise %s to begin it anew",
					next.Descriptor.Name(), name, st.Bucket, b.end(), st.Start, schema.SinkGenerationOption(name))
			}
		}
	}
	return nil
}

// syncSinks brings what is known of the table's sinks to its options. Each bucket
// gets its base offset with it.
func (t *txn) syncSinks(table *Table) {
	for _, name := range t.s.sinksOf(table) {
		old, found := t.s.tierings.get(&Tiering{Table: table.ID, Sink: name})
		on, raised, retains := table.Descriptor.TiersTo(name), table.Descriptor.SinkGeneration(name), table.Descriptor.SinkRetains(name)
		if found && raised > old.Generation {
			t.forgetSink(table, old)
			found = false
		}
		switch {
		case on && (!found || old.Off):
			next := &Tiering{Table: table.ID, Sink: name, Generation: raised}
			if found {
				again := *old
				next = &again
			}
			next.Retains, next.Off, next.EnabledMs = retains, false, t.s.timeMs
			t.s.tierings.set(next)
			for st := range t.s.streamsOfTable(table.ID) {
				t.tierBucket(&st, table, name)
			}
		case !on && found && !old.Off:
			off := *old
			off.Off = true
			t.s.tierings.set(&off)
		case on && old.Retains != retains: // what trims let go of meanwhile are gaps already
			next := *old
			next.Retains = retains
			t.s.tierings.set(&next)
		}
	}
}

// tierBucket records where a bucket begins at a sink, or goes on there.
func (t *txn) tierBucket(st *plan.Stream, table *Table, name string) {
	old, found := t.s.tiered.get(&tieredBucket{stream: st.ID, sink: name})
	keyed := len(table.Descriptor.PrimaryKey) > 0
	b := tieredBucket{stream: st.ID, sink: name, start: st.Start}
	if p, there := t.s.partitions.get(st.Bucket.Partition); there && keyed && !t.s.faults.forgetFormer {
		_, b.remade = t.s.former.get(newFormer(table.ID, name, p.Values))
	}
	switch {
	case found: // also without an end: the sink may have rounds that were not recorded
		b.base, b.ends, b.gaps, b.finished = old.base, old.ends, old.gaps, old.finished
		if st.Start > old.end() && !keyed { // let go of while it was off
			b.addGap(plan.Gap{Start: old.end(), End: st.Start})
		}
	case !keyed:
		b.base = st.Start
	}
	t.s.tiered.set(&b)
}

// tierStreams records the bases of new buckets.
func (t *txn) tierStreams(table *Table, ids []mink.StreamID) {
	for s := range t.s.TieringsOf(table.ID) {
		for _, id := range ids {
			st, _ := t.s.streams.get(id)
			t.tierBucket(st, table, s.Sink)
		}
	}
}

// rememberFormer notes for every sink that the table ever had that rows of a partition stay
// there.
func (t *txn) rememberFormer(p *Partition) {
	table, found := t.s.tables.get(p.Table)
	if !found || len(table.Descriptor.PrimaryKey) == 0 {
		return
	}
	for s := range t.s.tieringsOf(p.Table) {
		t.s.former.set(newFormer(p.Table, s.Sink, p.Values))
	}
}

// dropTiered forgets a stream that is dropped.
func (t *txn) dropTiered(id mink.StreamID) {
	for _, b := range slices.Collect(t.s.tieredOf(id)) {
		t.s.tiered.del(b)
	}
}

// dropSinks remembers which sinks have something of a table that is dropped, also
// those that are switched off: the next table of the name finds its place there
// empty once that is removed.
func (t *txn) dropSinks(table *Table) {
	for _, s := range slices.Collect(t.s.tieringsOf(table.ID)) {
		t.forgetSink(table, s)
	}
}

// forgetSink leaves to whoever clears the sink what it has of a table.
func (t *txn) forgetSink(table *Table, s *Tiering) {
	t.s.tierings.del(s)
	for st := range t.s.streamsOfTable(table.ID) {
		t.s.tiered.del(&tieredBucket{stream: st.ID, sink: s.Sink})
	}
	for _, f := range slices.Collect(t.s.formerOf(table.ID, s.Sink)) {
		t.s.former.del(f)
	}
	t.s.droppedSinks.set(&DroppedSink{
		Table: table.ID, Sink: s.Sink, Database: table.Descriptor.Database, Name: table.Descriptor.Table, Descriptor: table.Descriptor,
		DroppedMs: t.s.timeMs, index: t.s.index, descriptor: table.descriptorJSON,
	})
}
