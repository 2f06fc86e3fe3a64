package cluster

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

func registerCmd(id mink.NodeID, nonce uint64) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_RegisterNode{RegisterNode: &clusterpb.RegisterNode{
		Node: int32(id), Nonce: nonce, FlightAddress: fmt.Sprintf("n%d:1", id), KafkaAddress: fmt.Sprintf("n%d:2", id), FeatureLevel: 1, Version: "test"}}}
}

func leaseCmd(id mink.NodeID, epoch mink.NodeEpoch, lease int64) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_LeaseTaken{LeaseTaken: &clusterpb.LeaseTaken{Node: int32(id), Epoch: int64(epoch), Lease: lease}}}
}

func sealCmd(epoch mink.NodeEpoch, lease int64) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{Epoch: int64(epoch), Lease: lease, Reason: "test"}}}
}

func createDatabaseCmd(name string) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_CreateDatabase{CreateDatabase: &clusterpb.CreateDatabase{Name: name}}}
}

func createTableCmd(d *schema.Descriptor, uuid byte) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{
		Descriptor_: d.Encode(), Uuid: append(make([]byte, 15), uuid)}}}
}

// descriptor makes "a INT, b STRING" with the given keys, and with a primary key
// "n INT", which counts by itself.
func descriptor(database, table string, buckets int32, primary, partitioned bool) *schema.Descriptor {
	d := &schema.Descriptor{Database: database, Table: table, BucketCount: buckets, Schema: schema.Schema{Columns: []schema.Column{
		{Name: "a", Type: schema.MustParseType("INT")}, {Name: "b", Type: schema.MustParseType("STRING")}}}}
	if primary {
		d.PrimaryKey = []string{"a", "b"}
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: "n", Type: schema.MustParseType("INT"), AutoIncrement: true})
	}
	if partitioned {
		d.PartitionKeys = []string{"b"}
	}
	n, err := d.Normalize()
	if err != nil {
		panic(err)
	}
	return n
}

// view is the newest state, or an older one.
func (m *sim) view() *State {
	if len(m.views) > 0 && m.chance(10) {
		return m.views[m.r.IntN(len(m.views))]
	}
	return m.s
}

func pick[T any](m *sim, list []T) (T, bool) {
	if len(list) == 0 {
		var none T
		return none, false
	}
	return list[m.r.IntN(len(list))], true
}

// command makes a command as the node would, most of the time one that fits.
func (m *sim) command(id mink.NodeID, n *simNode) *clusterpb.Command {
	v := m.view()
	if v.lease.NodeEpoch == n.epoch && m.chance(12) {
		return m.tier(v)
	}
	if v.lease.NodeEpoch == n.epoch && m.chance(35) {
		return m.coordinate(v)
	}
	if m.chance(9) {
		return m.group(v, n)
	}
	if m.chance(10) {
		return m.primaryKey(v, n)
	}
	switch x := m.r.IntN(100); {
	case x < 26:
		return m.commit(v, id, n)
	case x < 33:
		return m.replace(v, id, n)
	case x < 36:
		return m.rewrite(v, id, n)
	case x < 44:
		return m.trim(v, n)
	case x < 50:
		return m.releaseCmd(v, id, n)
	case x < 66:
		return m.coordinate(v)
	case x < 86:
		return m.catalog(v)
	case x < 90:
		return m.producers(v)
	case x < 92:
		return &clusterpb.Command{Kind: &clusterpb.Command_AllocateWriters{AllocateWriters: &clusterpb.AllocateWriters{Count: int32(m.r.IntN(1000))}}}
	case x < 93:
		return sealCmd(n.epoch, 0)
	case x < 94:
		return &clusterpb.Command{Kind: &clusterpb.Command_SetIncarnation{SetIncarnation: &clusterpb.SetIncarnation{Incarnation: m.r.Uint64N(3)}}}
	case x < 96:
		return &clusterpb.Command{Kind: &clusterpb.Command_RemoveNode{RemoveNode: &clusterpb.RemoveNode{Node: int32(1 + m.r.IntN(4)), Lease: int64(v.lease.Epoch)}}}
	default:
		var ids []plan.ObjectID
		for d := range v.Destroyed() {
			if m.chance(60) {
				ids = append(ids, d.Object.ID)
			}
		}
		return ForgetObjectsCommand(ids)
	}
}

func (m *sim) object(w plan.WALID, kind plan.ObjectKind, seq uint64) plan.Object {
	return plan.Object{ID: plan.ObjectID{Epoch: w.Epoch, Kind: kind, Seq: seq}, WAL: w, Size: 1000 + int64(seq), IndexPos: 10, IndexLen: 20, IndexCRC: uint32(seq)}
}

func (m *sim) upload(w plan.WALID, n *simNode) plan.Object {
	n.objects++
	return m.object(w, plan.KindStreamSet, n.objects)
}

func (m *sim) commit(v *State, id mink.NodeID, n *simNode) *clusterpb.Command {
	w := plan.WALID{Node: id, Epoch: n.epoch, Nonce: n.nonce}
	state, _ := v.WAL(n.epoch)
	o := m.upload(w, n)
	c := plan.CommitObjects{WAL: w, Seq: state.CommitSeq + 1, WALTrim: state.Trim + uint64(m.r.IntN(2)), Objects: []plan.Object{o}}
	if m.chance(3) {
		c.Seq += uint64(m.r.IntN(3)) - 1
	}
	for st := range v.StreamsLedBy(n.epoch) {
		if !m.chance(50) {
			continue
		}
		it := plan.Item{Stream: st.ID, LeaderEpoch: st.Owner.LeaderEpoch, Object: o.ID, Start: st.End, End: st.End + mink.Offset(1+m.r.IntN(9)), Checkpoint: m.chance(40)}
		if m.chance(2) {
			it.Start += mink.Offset(m.r.IntN(3) - 1)
		}
		if m.chance(2) {
			it.LeaderEpoch += mink.LeaderEpoch(m.r.IntN(3) - 1)
		}
		c.Items = append(c.Items, it)
	}
	return CommitObjectsCommand(c)
}

func (m *sim) replace(v *State, id mink.NodeID, n *simNode) *clusterpb.Command {
	w := plan.WALID{Node: id, Epoch: n.epoch, Nonce: n.nonce}
	c := plan.ReplaceObjects{WAL: w, BasedOn: v.index, Objects: []plan.Object{m.upload(w, n)}}
	ranges := map[mink.StreamID][]plan.ObjectRange{}
	var streams []mink.StreamID
	for o := range v.Objects() {
		if m.chance(70) || len(c.Sources) == 4 {
			continue
		}
		c.Sources = append(c.Sources, o.ID)
		for _, r := range v.ObjectRanges(o.ID) {
			if len(ranges[r.Stream]) == 0 {
				streams = append(streams, r.Stream)
			}
			ranges[r.Stream] = append(ranges[r.Stream], r)
		}
	}
	slices.Sort(streams)
	for _, id := range streams {
		list := ranges[id]
		slices.SortFunc(list, func(a, b plan.ObjectRange) int { return int(a.Start - b.Start) })
		for _, r := range list {
			if r.Start < r.End {
				c.Items = append(c.Items, plan.Item{Stream: id, Object: c.Objects[0].ID, Start: r.Start, End: r.End})
			}
		}
		if slices.ContainsFunc(list, func(r plan.ObjectRange) bool { return r.Checkpoint }) && !m.chance(2) {
			st, _ := v.Stream(id)
			c.Items = append(c.Items, plan.Item{Stream: id, Object: c.Objects[0].ID, Start: st.CheckEnd, End: st.CheckEnd, Checkpoint: true})
		}
	}
	if len(c.Items) > 0 && m.chance(3) {
		at := m.r.IntN(len(c.Items))
		c.Items = slices.Delete(c.Items, at, at+1)
	}
	return ReplaceObjectsCommand(c)
}

// rewrite covers what a stream that the node leads holds below some offset.
func (m *sim) rewrite(v *State, id mink.NodeID, n *simNode) *clusterpb.Command {
	w := plan.WALID{Node: id, Epoch: n.epoch, Nonce: n.nonce}
	st, _ := pick(m, slices.Collect(v.StreamsLedBy(n.epoch)))
	c := plan.RewriteStream{WAL: w, Stream: st.ID, LeaderEpoch: st.Owner.LeaderEpoch, Start: st.Start, Upper: st.TrimLimit()}
	if m.chance(50) && c.Upper > c.Start {
		c.Upper = max(c.Start+1+mink.Offset(m.r.Int64N(int64(c.Upper-c.Start))), st.Cleaned.End)
	}
	c.Sources = st.Below(c.Upper)
	n.objects++
	c.Objects = []plan.Object{m.object(w, plan.KindStream, n.objects)}
	for _, r := range c.Sources {
		c.Items = append(c.Items, plan.Item{Stream: st.ID, Object: c.Objects[0].ID, Start: r.Start, End: r.End})
	}
	if m.chance(5) && len(c.Items) > 0 {
		c.Items = c.Items[1:]
	}
	if m.chance(10) && c.LeaderEpoch > 1 { // begun when it led the stream before
		c.LeaderEpoch--
	}
	c.Cleaned = plan.Cleaned{Bytes: m.r.Int64N(1000), DueMs: m.r.Int64N(2) * v.timeMs}
	return RewriteStreamCommand(c)
}

func (m *sim) trim(v *State, n *simNode) *clusterpb.Command {
	var trims []plan.Trim
	for st := range v.StreamsLedBy(n.epoch) {
		if m.chance(30) {
			trim := plan.Trim{Stream: st.ID, Start: st.Start + mink.Offset(m.r.IntN(12))}
			if m.chance(15) {
				trim.GiveUpMs = v.timeMs - m.r.Int64N(2000)
			} else if m.chance(8) {
				trim.GiveUpMs = math.MaxInt64
			}
			trims = append(trims, trim)
		}
	}
	if m.chance(25) {
		var list []FinishedBucket
		for st := range v.StreamsLedBy(n.epoch) {
			if p, _ := v.Partition(st.Bucket.Partition); p.Closed || m.chance(1) {
				list = append(list, FinishedBucket{st.ID, st.Owner.LeaderEpoch, st.End + mink.Offset(m.odd())})
			}
		}
		return FinishBucketsCommand(list)
	}
	return TrimStreamsCommand(trims)
}

// slots makes consecutive WAL slots from `from` on with items of the streams.
func (m *sim) slots(w plan.WALID, from uint64, streams []plan.Stream) (objects []plan.Object, items []plan.Item, next uint64) {
	ends := make([]mink.Offset, len(streams))
	for i, st := range streams {
		ends[i] = max(0, st.End-mink.Offset(m.r.IntN(4)))
	}
	next = from + uint64(m.r.IntN(4))
	for slot := from; slot < next; slot++ {
		o := m.object(w, plan.KindWAL, slot)
		objects = append(objects, o)
		for i, st := range streams {
			if m.chance(60) {
				end := ends[i] + mink.Offset(1+m.r.IntN(5))
				items = append(items, plan.Item{Stream: st.ID, LeaderEpoch: st.Owner.LeaderEpoch, Object: o.ID, Start: ends[i], End: end})
				ends[i] = end
			}
		}
	}
	return objects, items, next
}

func (m *sim) releaseCmd(v *State, id mink.NodeID, n *simNode) *clusterpb.Command {
	w := plan.WALID{Node: id, Epoch: n.epoch, Nonce: n.nonce}
	st, ok := pick(m, slices.Collect(v.StreamsLedBy(n.epoch)))
	if !ok {
		return createDatabaseCmd("d2")
	}
	state, _ := v.WAL(n.epoch)
	c := plan.Release{WAL: w, Stream: st.ID, LeaderEpoch: st.Owner.LeaderEpoch, End: st.End, To: mink.NodeID(m.r.IntN(6))}
	objects, items, _ := m.slots(w, state.Trim, []plan.Stream{st})
	for _, it := range items { // as an honest node would: from the committed end on
		if it.End > st.End {
			it.Start = max(it.Start, st.End)
			c.Items, c.End = append(c.Items, it), it.End
		}
	}
	c.Objects = objects
	if m.chance(3) {
		c.End++
	}
	return ReleaseCommand(c)
}

// coordinate is a command of the lease holder.
func (m *sim) coordinate(v *State) *clusterpb.Command {
	lease := v.lease.Epoch
	if m.chance(2) {
		lease--
	}
	var dead []plan.WAL
	for w := range v.WALs() {
		if w.Sealed && (!w.Recovered || m.chance(3)) {
			dead = append(dead, w)
		}
	}
	for n := range v.Nodes() {
		if n.Sealed && (m.chance(50) || v.CheckRemoveNode(n.ID, n.Epoch) == nil) && !slices.ContainsFunc(dead, func(w plan.WAL) bool { return w.ID.Node == n.ID && !w.Recovered }) {
			return &clusterpb.Command{Kind: &clusterpb.Command_RemoveNode{RemoveNode: &clusterpb.RemoveNode{Node: int32(n.ID), Epoch: int64(n.Epoch), Lease: int64(lease)}}}
		}
	}
	switch x := m.r.IntN(100); {
	case x < 8:
		if n, ok := pick(m, v.LiveNodes()); ok {
			return sealCmd(n.Epoch, int64(lease))
		}
	case x < 50:
		if w, ok := pick(m, dead); ok {
			objects, items, end := m.slots(w.ID, w.Trim, slices.Collect(v.StreamsLedBy(w.ID.Epoch)))
			parts := plan.RecoverParts(plan.RecoverWAL{WAL: w.ID, Lease: lease, From: w.Trim, End: end, Objects: objects, Items: items}, 1+m.r.IntN(20))
			return RecoverWALCommand(parts[m.r.IntN(len(parts))])
		}
	case x < 56:
		if w, ok := pick(m, dead); ok {
			c := &clusterpb.AcceptLoss{Wal: walPB(w.ID), Slot: w.Trim + m.r.Uint64N(3)}
			for st := range v.StreamsLedBy(w.ID.Epoch) {
				at := st.End + mink.Offset(m.r.IntN(3))
				c.Gaps = append(c.Gaps, &clusterpb.Gap{Stream: int64(st.ID), Start: int64(at), End: int64(at) + 1 + m.r.Int64N(4)})
			}
			return &clusterpb.Command{Kind: &clusterpb.Command_AcceptLoss{AcceptLoss: c}}
		}
	}
	c := &clusterpb.LeadBuckets{Lease: int64(lease)}
	live := v.LiveNodes()
	for st := range v.Orphans() {
		if n, ok := pick(m, live); ok {
			c.Leads = append(c.Leads, &clusterpb.Lead{Stream: int64(st.ID), Node: int32(n.ID), Epoch: int64(n.Epoch), ExpectedLeaderEpoch: int32(st.Owner.LeaderEpoch)})
		}
	}
	if st, ok := pick(m, slices.Collect(v.Streams())); ok && m.chance(10) { // one that may not move
		n := v.LiveNodes()
		if len(n) > 0 {
			c.Leads = append(c.Leads, &clusterpb.Lead{Stream: int64(st.ID), Node: int32(n[0].ID), Epoch: int64(n[0].Epoch), ExpectedLeaderEpoch: int32(st.Owner.LeaderEpoch)})
		}
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_LeadBuckets{LeadBuckets: c}}
}

var simDescriptors = func() (list []*schema.Descriptor) {
	for i, name := range []string{"t1", "t2", "t3", "t4"} {
		list = append(list, descriptor("d1", name, int32(1+i), i == 1, i == 2), inLake(descriptor("d2", name, 2, i == 2 || i == 0, i == 3 || i == 0)))
	}
	return list
}()

func (m *sim) catalog(v *State) *clusterpb.Command {
	tables := slices.Collect(v.AllTables())
	table, have := pick(m, tables)
	x := m.r.IntN(100)
	if !have {
		x = m.r.IntN(40)
	}
	switch {
	case x < 10:
		return createDatabaseCmd([]string{"d1", "d2", "bad name"}[m.r.IntN(3)])
	case x < 40:
		c := createTableCmd(simDescriptors[m.r.IntN(len(simDescriptors))], byte(m.r.IntN(256)))
		c.GetCreateTable().IfNotExists = m.chance(30)
		return c
	case x < 44:
		return &clusterpb.Command{Kind: &clusterpb.Command_DropTable{DropTable: &clusterpb.DropTable{Table: int64(table.ID), IfExists: m.chance(50)}}}
	case x < 46:
		return &clusterpb.Command{Kind: &clusterpb.Command_DropDatabase{DropDatabase: &clusterpb.DropDatabase{Name: table.Descriptor.Database, Cascade: m.chance(30)}}}
	case x < 54:
		comment := fmt.Sprint(x)
		changes := []schema.Change{{Op: schema.SetComment, Comment: &comment}}
		if m.chance(30) {
			changes[0] = schema.Change{Op: schema.AddColumn, Column: &schema.Column{Name: fmt.Sprintf("c%d", m.r.IntN(5)), Type: schema.MustParseType("INT")}}
		}
		if m.chance(40) {
			changes = append(changes, schema.Change{Op: schema.SetOptions, Options: map[string]string{schema.OptionLake: fmt.Sprint(m.chance(70))}})
			if m.chance(20) {
				changes = append(changes, schema.Change{Op: schema.SetOptions, Options: map[string]string{schema.OptionLakeGeneration: fmt.Sprint(m.r.IntN(5))}})
			}
		}
		if m.chance(20) {
			changes = append(changes, schema.Change{Op: schema.SetBucketCount, BucketCount: table.Descriptor.BucketCount + int32(m.r.IntN(3))})
		}
		return &clusterpb.Command{Kind: &clusterpb.Command_AlterTable{AlterTable: &clusterpb.AlterTable{
			Table: int64(table.ID), Changes: schema.EncodeChanges(changes), ExpectedSchema: int32(m.r.IntN(3))}}}
	}
	for _, t := range tables {
		if len(t.Descriptor.PartitionKeys) > 0 {
			table = t
		}
	}
	p, found := pick(m, slices.Collect(v.Partitions(table.ID)))
	switch {
	case x < 84 || !found:
		return &clusterpb.Command{Kind: &clusterpb.Command_CreatePartition{CreatePartition: &clusterpb.CreatePartition{
			Table: int64(table.ID), Values: []string{fmt.Sprint(m.r.IntN(6))}, IfNotExists: m.chance(50)}}}
	case x < 88:
		return &clusterpb.Command{Kind: &clusterpb.Command_ClosePartition{ClosePartition: &clusterpb.ClosePartition{Table: int64(table.ID), Partition: int64(p.ID)}}}
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_DropPartition{DropPartition: &clusterpb.DropPartition{Table: int64(table.ID), Partition: int64(p.ID), Now: m.chance(30)}}}
}

func (m *sim) producers(v *State) *clusterpb.Command {
	if m.chance(10) {
		return &clusterpb.Command{Kind: &clusterpb.Command_ExpireProducerOffsets{ExpireProducerOffsets: &clusterpb.ExpireProducerOffsets{
			BeforeMs: v.timeMs - m.r.Int64N(2000), Max: int32(m.r.IntN(4))}}}
	}
	name := fmt.Sprintf("p%d", m.r.IntN(5))
	c := &clusterpb.CommitProducerOffsets{Producer: name, Position: []byte(name)}
	if p, ok := v.Producer(name); ok && m.chance(60) {
		c.ExpectedVersion = p.Version
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_CommitProducerOffsets{CommitProducerOffsets: c}}
}

// damage changes one random number somewhere in the command.
func (m *sim) damage(msg protoreflect.Message) {
	fields := msg.Descriptor().Fields()
	for range 8 {
		f := fields.Get(m.r.IntN(fields.Len()))
		if !msg.Has(f) {
			continue
		}
		switch {
		case f.IsList():
			if l := msg.Mutable(f).List(); f.Kind() == protoreflect.MessageKind {
				m.damage(l.Get(m.r.IntN(l.Len())).Message())
			} else if m.chance(30) {
				l.Truncate(l.Len() - 1)
			} else if f.Kind() == protoreflect.Int64Kind || f.Kind() == protoreflect.Sint64Kind {
				l.Set(m.r.IntN(l.Len()), protoreflect.ValueOfInt64(int64(m.r.Uint64())>>m.r.IntN(64)))
			}
		case f.Kind() == protoreflect.MessageKind:
			m.damage(msg.Mutable(f).Message())
		case f.Kind() == protoreflect.Int64Kind:
			msg.Set(f, protoreflect.ValueOfInt64(int64(m.r.Uint64())>>m.r.IntN(64)))
		case f.Kind() == protoreflect.Int32Kind:
			msg.Set(f, protoreflect.ValueOfInt32(int32(m.r.Uint32())>>m.r.IntN(32)))
		case f.Kind() == protoreflect.Uint64Kind:
			msg.Set(f, protoreflect.ValueOfUint64(m.r.Uint64()>>m.r.IntN(64)))
		case f.Kind() == protoreflect.BytesKind:
			if b := slices.Clone(msg.Get(f).Bytes()); len(b) > 0 {
				b[m.r.IntN(len(b))] ^= 1 << m.r.IntN(8)
				msg.Set(f, protoreflect.ValueOfBytes(b))
			}
		}
		return
	}
}
