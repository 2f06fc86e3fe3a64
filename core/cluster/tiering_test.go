package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// inLake is the descriptor of a table that is tiered to the lake.
func inLake(d *schema.Descriptor) *schema.Descriptor {
	d.Options = map[string]string{schema.OptionLake: "true"}
	return d
}

// setSinks switches sinks on: NAME, or NAME! for one that does not retain, separated
// by commas.
func setSinks(d *schema.Descriptor, names string) {
	for _, name := range strings.Split(names, ",") {
		name, drops := strings.CutSuffix(name, "!")
		if name == "" {
			continue
		}
		if d.Options == nil {
			d.Options = map[string]string{}
		}
		d.Options[schema.SinkOption(name)] = "true"
		if drops {
			d.Options[schema.SinkOption(name)+".retain"] = "false"
		}
	}
}

// tier is what the lease holder proposes about sinks.
func (m *sim) tier(v *State) *clusterpb.Command {
	lease := v.lease.Epoch
	if m.chance(5) {
		lease--
	}
	if d, found := pick(m, slices.Collect(v.DroppedSinks())); found && m.chance(30) {
		return ForgetDroppedSinkCommand(d.Table, d.Sink, lease)
	}
	t, found := pick(m, slices.Collect(v.Tierings()))
	if !found {
		return ForgetDroppedSinkCommand(1, LakeSink, lease)
	}
	m.tiers.rounds++
	r := TieredRound{
		Table: t.Table, Sink: t.Sink, Lease: lease, BaseRound: t.Round, Round: fmt.Sprintf("r-%d", m.tiers.rounds),
		Snapshot: fmt.Sprintf("s%d", m.tiers.rounds), ReadGraceMs: m.r.Int64N(1500),
	}
	again := t.Round != "" && m.chance(15)
	if again {
		r.Round = t.Round
	}
	for st := range v.streamsOfTable(t.Table) {
		_, end, _ := v.TieredEnd(t.Sink, st.Bucket)
		switch {
		case again:
		case m.chance(70):
			end += mink.Offset(m.r.Int64N(int64(max(0, st.End-end)) + 1))
			ahead := m.odd()
			end += mink.Offset(ahead - m.odd())
		default:
			continue
		}
		r.Ends = append(r.Ends, BucketOffset{st.Bucket, end})
	}
	if m.chance(3) {
		r.BaseRound = "other"
	}
	return CommitTieredRoundCommand(r)
}

func generationOf(s *State, id mink.TableID) int64 {
	t, _ := s.Table(id)
	return t.Descriptor.SinkGeneration(LakeSink)
}

func (m *sim) odd() int {
	if m.chance(3) {
		return 1 + m.r.IntN(5)
	}
	return 0
}

// tierModel remembers every round, whatever the state thins out.
type tierModel struct {
	rounds int
	seen   map[mink.TableID][]modelRound
	bases  map[mink.StreamID]mink.Offset
	ends   map[mink.StreamID]mink.Offset // the highest ever
	// values of dropped partitions of primary-key tables whose sink keeps the rows
	former map[mink.TableID][]string
	// stopped with a time line, and not begun anew since
	stopped map[mink.TableID]bool
}

type modelRound struct {
	left        bool // out of its read grace
	id          string
	committedMs int64
	ends        map[mink.StreamID]mink.Offset // of all buckets
}

func newTierModel() tierModel {
	return tierModel{seen: map[mink.TableID][]modelRound{}, bases: map[mink.StreamID]mink.Offset{}, ends: map[mink.StreamID]mink.Offset{}, stopped: map[mink.TableID]bool{}, former: map[mink.TableID][]string{}}
}

// compare checks who records a round, that ends only rise, that nothing is trimmed
// which a sink or a reader of it lacks, and that tables leave and take nothing.
func (k *tierModel) compare(before, after *State, b *clusterpb.Batch, results []*clusterpb.Result) error {
	for i, c := range b.Commands {
		if r := c.GetCommitTieredRound(); r != nil && results[i].Code == clusterpb.Code_OK && len(b.Commands) == 1 {
			if err := k.round(before, after, b, r); err != nil {
				return err
			}
		}
	}
	for t := range after.tierings.all() { // begun anew
		if old, found := before.tierings.get(t); found && old.Generation < t.Generation {
			k.anew(after, t.Table)
		}
	}
	if err := k.dropped(before, after, b); err != nil {
		return err
	}
	if err := k.remade(before, after, b); err != nil {
		return err
	}
	if err := k.gaps(before, after, b); err != nil {
		return err
	}
	if err := k.partitions(before, after, b); err != nil {
		return err
	}
	if before.tierings == after.tierings && before.tiered == after.tiered && before.streams == after.streams {
		return nil
	}
	for t := range after.tierings.all() {
		k.note(before, after, t)
	}
	for id := range k.ends {
		if _, found := after.Stream(id); !found {
			delete(k.ends, id)
		}
	}
	for st := range after.Streams() {
		for b := range after.tieredOf(st.ID) {
			if b.end() < k.ends[st.ID] || b.end() > st.End {
				return fmt.Errorf("stream %+v is tiered up to %d after %d", st, b.end(), k.ends[st.ID])
			}
			k.ends[st.ID] = b.end()
		}
		if old, found := before.Stream(st.ID); found && st.Start > old.Start {
			if err := k.trimmed(after, old, st); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *tierModel) round(before, after *State, b *clusterpb.Batch, r *clusterpb.CommitTieredRound) error {
	old, _ := before.Tiering(mink.TableID(r.Table), r.Sink)
	if old == nil {
		return fmt.Errorf("round %q of table %d, which is not tiered", r.Round, r.Table)
	}
	if old.Round == r.Round {
		if before.tierings != after.tierings || before.tiered != after.tiered {
			return fmt.Errorf("round %q was recorded twice", r.Round)
		}
		return nil
	}
	if k.stopped[old.Table] {
		return fmt.Errorf("round %q of table %d, whose sink is stopped", r.Round, r.Table)
	}
	if r.BaseRound != old.Round {
		return fmt.Errorf("round %q follows %q, recorded was %q", r.Round, r.BaseRound, old.Round)
	}
	if l := before.lease; int64(l.Epoch) != r.Lease || int64(l.NodeEpoch) != b.Epoch {
		return fmt.Errorf("round %q by epoch %d under lease %d, the lease is %+v", r.Round, b.Epoch, r.Lease, l)
	}
	return nil
}

func (k *tierModel) dropped(before, after *State, b *clusterpb.Batch) error {
	for t := range before.tierings.all() {
		if _, left := after.tierings.get(t); left {
			continue
		}
		_, table := after.Table(t.Table)
		if _, noted := after.droppedSinks.get(&DroppedSink{Table: t.Table, Sink: t.Sink}); table && generationOf(after, t.Table) <= t.Generation || !noted && len(b.Commands) == 1 {
			return fmt.Errorf("table %d at sink %q was forgotten: the table is there: %t, noted as dropped: %t", t.Table, t.Sink, table, noted)
		}
		k.anew(after, t.Table)
	}
	for d := range before.DroppedSinks() {
		_, left := after.droppedSinks.get(&d)
		if holder := int64(before.lease.NodeEpoch) == b.Epoch; !left && !holder {
			return fmt.Errorf("table %d at sink %q was reported as removed by epoch %d, the lease is %+v", d.Table, d.Sink, b.Epoch, before.lease)
		}
	}
	return nil
}

func (k *tierModel) anew(after *State, table mink.TableID) {
	delete(k.seen, table)
	delete(k.stopped, table)
	delete(k.former, table)
	for st := range after.streamsOfTable(table) {
		delete(k.bases, st.ID)
		delete(k.ends, st.ID)
	}
}

// remade: a partition of a primary-key table whose values were dropped before says so.
func (k *tierModel) remade(before, after *State, b *clusterpb.Batch) error {
	if before.partitions == after.partitions && before.tiered == after.tiered {
		return nil
	}
	if len(b.Commands) > 1 { // what came first in it is not looked at
		clear(k.former)
		for f := range after.former.all() {
			k.former[f.table] = append(k.former[f.table], fmt.Sprint(f.values))
		}
	}
	for id, p := range before.partitions.all() {
		_, there := after.Partition(id)
		table, found := after.Table(p.Table)
		if len(b.Commands) > 1 || there || !found || len(table.Descriptor.PrimaryKey) == 0 || !before.EverTiered(p.Table, LakeSink) || !after.EverTiered(p.Table, LakeSink) {
			continue
		}
		k.former[p.Table] = append(k.former[p.Table], fmt.Sprint(p.Values))
	}
	for b := range after.tiered.all() {
		st, _ := after.Stream(b.stream)
		p, _ := after.Partition(st.Bucket.Partition)
		if len(k.former[p.Table]) == 0 && !b.remade {
			continue
		}
		if table, _ := after.Table(p.Table); b.remade != (len(table.Descriptor.PrimaryKey) > 0 && slices.Contains(k.former[p.Table], fmt.Sprint(p.Values))) {
			return fmt.Errorf("partition %d %q of table %d at sink %q: made again: %t, dropped before were %q", p.ID, p.Values, p.Table, b.sink, b.remade, k.former[p.Table])
		}
	}
	return nil
}

// gaps: what may be missing was given up by name, or let go of while the sink was off.
func (k *tierModel) gaps(before, after *State, b *clusterpb.Batch) error {
	if before.tiered == after.tiered {
		return nil
	}
	allowed, altered := map[mink.StreamID]bool{}, false
	for _, c := range b.Commands {
		for _, trim := range c.GetTrimStreams().GetTrims() {
			allowed[mink.StreamID(trim.Stream)] = allowed[mink.StreamID(trim.Stream)] || trim.GiveUpMs > 0
		}
		altered = altered || c.GetAlterTable() != nil
	}
	for now := range after.tiered.all() {
		old, found := before.tiered.get(now)
		if !found {
			old = &tieredBucket{}
		}
		for _, g := range now.gaps {
			covered := slices.ContainsFunc(old.gaps, func(o plan.Gap) bool { return o.Start <= g.Start && g.End <= o.End })
			if !covered && !altered && !allowed[now.stream] {
				return fmt.Errorf("stream %d may lack %+v at %q, nobody gave it up", now.stream, g, now.sink)
			}
		}
	}
	return nil
}

// partitions: one that a sink is to have goes when the sink has it, or when somebody
// says so.
func (k *tierModel) partitions(before, after *State, b *clusterpb.Batch) error {
	if before.partitions == after.partitions {
		return nil
	}
	for _, c := range b.Commands {
		if c.GetDropPartition().GetNow() || c.GetDropTable() != nil || c.GetDropDatabase() != nil || c.GetAlterTable() != nil {
			return nil
		}
	}
	for id, p := range before.partitions.all() {
		if _, left := after.Partition(id); left {
			continue
		}
		if _, on := before.Tiering(p.Table, LakeSink); !on {
			continue
		}
		for _, stream := range p.Streams {
			st, _ := before.Stream(stream)
			b, _ := before.tiered.get(&tieredBucket{stream: stream, sink: LakeSink})
			has := b.end()
			for _, g := range b.gaps {
				if g.Start <= has {
					has = max(has, g.End)
				}
			}
			if has < st.End {
				return fmt.Errorf("partition %d was dropped, sink %q has stream %+v up to %d", id, LakeSink, st, has)
			}
		}
	}
	return nil
}

// note adds the newest round and new bases.
func (k *tierModel) note(before, after *State, t *Tiering) {
	rounds := k.seen[t.Table]
	fresh := t.Round != "" && (len(rounds) == 0 || rounds[len(rounds)-1].id != t.Round)
	r := modelRound{id: t.Round, committedMs: t.CommittedMs, ends: map[mink.StreamID]mink.Offset{}}
	for st := range after.streamsOfTable(t.Table) {
		b, found := after.tiered.get(&tieredBucket{stream: st.ID, sink: t.Sink})
		if !found {
			continue
		}
		if _, known := k.bases[st.ID]; !known || len(b.ends) == 0 {
			k.bases[st.ID] = b.base
		}
		r.ends[st.ID] = b.end()
	}
	if !fresh {
		return
	}
	// What is out of its grace stays out, when this round has a longer one.
	if old, on := before.Tiering(t.Table, t.Sink); on {
		for i := range max(len(rounds)-1, 0) {
			rounds[i].left = rounds[i].left || rounds[i+1].committedMs <= after.timeMs-old.ReadGraceMs
		}
	}
	k.seen[t.Table] = append(rounds, r)
}

// trimmed checks a trim against all rounds.
func (k *tierModel) trimmed(after *State, old, st plan.Stream) error {
	t, on := after.Tiering(st.Bucket.Table, LakeSink)
	if !on {
		return nil
	}
	has, now := k.bases[st.ID], after.timeMs
	rounds := k.seen[t.Table]
	for i, r := range rounds {
		if i == len(rounds)-1 || !r.left && rounds[i+1].committedMs > now-t.ReadGraceMs {
			if end, found := r.ends[st.ID]; found {
				has = end
			}
			break
		}
	}
	b, found := after.tiered.get(&tieredBucket{stream: st.ID, sink: LakeSink})
	if !found {
		return fmt.Errorf("stream %d has no base", st.ID)
	}
	has = max(has, old.Start)
	for _, g := range b.gaps {
		if g.Start <= has {
			has = max(has, g.End)
		}
	}
	if st.Start > has {
		return fmt.Errorf("stream %d was trimmed from %d to %d, a reader of the sink has %d: %+v", st.ID, old.Start, st.Start, has, b)
	}
	return nil
}

// tieringCommand reads
//
//	round TABLE ROUND base=ROUND snapshot=S lease=N [sink=S] [grace=MS] PARTITION/BUCKET=OFFSET...
//	forget-sink TABLE lease=N
//	finish STREAM@LEADER=END...
func (st *story) tieringCommand(verb string, args []string) *clusterpb.Command {
	sinkName := st.text(args, "sink")
	if sinkName == "" {
		sinkName = LakeSink
	}
	switch verb {
	case "round":
		r := TieredRound{
			Table: mink.TableID(st.num(args[0])), Sink: sinkName, Lease: mink.LeaseEpoch(st.arg(args, "lease")), Round: args[1],
			BaseRound: st.text(args, "base"), Snapshot: st.text(args, "snapshot"), ReadGraceMs: max(0, st.arg(args, "grace")),
		}
		for _, a := range args[2:] {
			o := BucketOffset{Bucket: mink.BucketRef{Table: r.Table}}
			if n, _ := fmt.Sscanf(a, "%d/%d=%d", &o.Bucket.Partition, &o.Bucket.Index, &o.Offset); n == 3 {
				r.Ends = append(r.Ends, o)
			}
		}
		return CommitTieredRoundCommand(r)
	case "finish":
		var list []FinishedBucket
		for _, a := range args {
			var f FinishedBucket
			if n, _ := fmt.Sscanf(a, "%d@%d=%d", &f.Stream, &f.Epoch, &f.End); n != 3 {
				st.t.Fatal(a)
			}
			list = append(list, f)
		}
		return FinishBucketsCommand(list)
	case "forget-sink":
		return ForgetDroppedSinkCommand(mink.TableID(st.num(args[0])), sinkName, mink.LeaseEpoch(st.arg(args, "lease")))
	}
	return nil
}

func dumpTiering(s *State) (out []string) {
	for t := range s.tierings.all() {
		state := "on"
		if t.Off {
			state = "off"
		}
		var list []string
		for _, l := range t.Snapshots {
			list = append(list, fmt.Sprintf("%s@%d", l.Snapshot, l.CommittedMs))
		}
		if t.Stopped != "" {
			state = fmt.Sprintf("stopped %q", t.Stopped)
		}
		out = append(out, fmt.Sprintf("tiering %d to %s %s round=%q number=%d lease=%d grace=%d snapshots %v", t.Table, t.Sink, state, t.Round, t.Rounds, t.Fence, t.ReadGraceMs, list))
	}
	for b := range s.tiered.all() {
		var ends []string
		for _, e := range b.ends {
			ends = append(ends, fmt.Sprintf("%d:%d", e.round, e.end))
		}
		for _, g := range b.gaps {
			ends = append(ends, fmt.Sprintf("gap[%d,%d)", g.Start, g.End))
		}
		if b.finished {
			ends = append(ends, "finished")
		}
		if b.remade {
			ends = append(ends, "remade")
		}
		out = append(out, strings.TrimRight(fmt.Sprintf("tiered %d to %s base=%d ends %s", b.stream, b.sink, b.base, strings.Join(ends, " ")), " "))
	}
	for d := range s.DroppedSinks() {
		out = append(out, fmt.Sprintf("dropped table %d %s.%s at %s at index %d", d.Table, d.Database, d.Name, d.Sink, d.index))
	}
	return out
}
