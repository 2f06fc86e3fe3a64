package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// groupCommand makes the commands of consumer groups:
//
//	commit-groups GROUP [type=T] [occupied] [loaded=N] [T/P/B=OFFSET[@EPOCH][:METADATA]]... [; GROUP ...]
//	delete-groups GROUP...
//	delete-group-offsets GROUP T/P/B...
//	expire-groups before=MS max=N
func (st *story) groupCommand(verb string, args []string) *clusterpb.Command {
	switch verb {
	case "commit-groups":
		c := &clusterpb.CommitGroupOffsets{}
		for text := range strings.SplitSeq(strings.Join(args, " "), ";") {
			words := strings.Fields(text)
			if len(words) == 0 {
				continue
			}
			g := &clusterpb.GroupCommit{Group: words[0], ProtocolType: st.text(words, "type"), Occupied: st.flag(words, "occupied"), LoadedIndex: uint64(max(0, st.arg(words, "loaded")))}
			for _, w := range words[1:] {
				w, metadata, _ := strings.Cut(w, ":")
				w, epoch, known := strings.Cut(w, "@")
				o := clusterpb.GroupOffset{LeaderEpoch: -1, Metadata: []byte(metadata)}
				if known {
					o.LeaderEpoch = int32(st.num(epoch))
				}
				if n, _ := fmt.Sscanf(w, "%d/%d/%d=%d", &o.Table, &o.Partition, &o.Bucket, &o.Offset); n == 4 {
					g.Offsets = append(g.Offsets, &o)
				}
			}
			c.Groups = append(c.Groups, g)
		}
		return &clusterpb.Command{Kind: &clusterpb.Command_CommitGroupOffsets{CommitGroupOffsets: c}}
	case "delete-groups":
		return DeleteGroupsCommand(args)
	case "delete-group-offsets":
		var buckets []mink.BucketRef
		for _, a := range args[1:] {
			var b mink.BucketRef
			if _, err := fmt.Sscanf(a, "%d/%d/%d", &b.Table, &b.Partition, &b.Index); err != nil {
				st.t.Fatal(a, err)
			}
			buckets = append(buckets, b)
		}
		return DeleteGroupOffsetsCommand(args[0], buckets)
	case "expire-groups":
		return expireGroupsCmd(st.arg(args, "before"), int32(st.arg(args, "max")))
	}
	st.t.Fatalf("unknown command %q", verb)
	return nil
}

func expireGroupsCmd(before int64, limit int32) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_ExpireGroups{ExpireGroups: &clusterpb.ExpireGroups{BeforeMs: before, Max: limit}}}
}

var simGroups = []string{"g0", "g1", "g2", "g3", "g4", "g5"}

// group makes a command of consumer groups, most of the time of their coordinator.
func (m *sim) group(v *State, n *simNode) *clusterpb.Command {
	var mine []string
	for _, g := range simGroups {
		if _, epoch, ok := v.GroupCoordinator(g); ok && epoch == n.epoch {
			mine = append(mine, g)
		}
	}
	name := func() string {
		g, ok := pick(m, mine)
		if !ok || m.chance(15) {
			g, _ = pick(m, simGroups)
		}
		return g
	}
	streams := slices.Collect(v.Streams())
	switch x := m.r.IntN(100); {
	case x < 6:
		return DeleteGroupsCommand([]string{name(), name()})
	case x < 14:
		buckets := []mink.BucketRef{{Table: 1, Partition: 1}}
		if st, ok := pick(m, streams); ok {
			buckets = append(buckets, st.Bucket)
		}
		return DeleteGroupOffsetsCommand(name(), buckets)
	case x < 22:
		return expireGroupsCmd(v.timeMs-m.r.Int64N(2000), int32(m.r.IntN(8)))
	}
	var commits []GroupCommit
	for range 1 + m.r.IntN(3) {
		c := GroupCommit{Group: name(), Occupied: m.chance(60), LoadedIndex: v.index}
		if m.chance(70) {
			c.ProtocolType = "consumer"
		}
		if old, ok := pick(m, m.views); ok && m.chance(40) {
			c.LoadedIndex = old.index
		} else if m.chance(30) {
			c.LoadedIndex = 0
		}
		for _, st := range streams {
			if m.chance(40) {
				c.Offsets = append(c.Offsets, GroupOffset{Bucket: st.Bucket, Offset: mink.Offset(m.r.IntN(100)), LeaderEpoch: mink.LeaderEpoch(m.r.IntN(4) - 1), Metadata: fmt.Sprint(m.r.IntN(3))})
			}
		}
		commits = append(commits, c)
	}
	commands, _ := CommitGroupOffsetsCommands(commits, 1<<20)
	return commands[0]
}

// groupModel knows of groups what must hold whatever chooses their coordinators:
// while the same nodes live, only one of them commits for a group, and a commit
// of a node whose coordination was interrupted since it loaded the group is refused.
type groupModel struct {
	committer map[string]committer
	movedAt   map[string]uint64
}

type committer struct {
	live  string
	epoch int64
}

func newGroupModel() groupModel {
	return groupModel{map[string]committer{}, map[string]uint64{}}
}

func (m groupModel) compare(before, after *State, b *clusterpb.Batch, results []*clusterpb.Result) error {
	explained, seals := false, false // losses; a change of coordinators within the batch
	changed := map[string]bool{}
	expireBefore := int64(-1)
	for i, c := range b.Commands {
		accepted := results[i].Code == clusterpb.Code_OK
		seals = seals || c.GetSealNode() != nil
		if e := c.GetExpireGroups(); e != nil && accepted {
			expireBefore = max(expireBefore, e.BeforeMs)
		}
		explained = explained || accepted && (c.GetDeleteGroups() != nil || c.GetDeleteGroupOffsets() != nil || c.GetDropTable() != nil || c.GetDropPartition() != nil || c.GetDropDatabase() != nil)
		for p, g := range c.GetCommitGroupOffsets().GetGroups() {
			if p >= len(results[i].Parts) || results[i].Parts[p].Code != clusterpb.Code_OK {
				continue
			}
			changed[g.Group] = true
			if seals {
				continue
			}
			now := committer{fmt.Sprint(before.LiveNodes()), b.Epoch}
			if was, ok := m.committer[g.Group]; ok && was.live == now.live && was.epoch != now.epoch {
				return fmt.Errorf("epochs %d and %d both commit for group %s while the same nodes live", was.epoch, now.epoch, g.Group)
			}
			m.committer[g.Group] = now
			if at := m.movedAt[g.Group]; g.LoadedIndex != 0 && g.LoadedIndex < at && !explained && expireBefore < 0 { // else it may be made anew within the batch
				return fmt.Errorf("group %s moved at %d, a commit of epoch %d, which loaded it at %d, was accepted", g.Group, at, b.Epoch, g.LoadedIndex)
			}
		}
	}
	for _, g := range simGroups {
		_, was, _ := before.GroupCoordinator(g)
		_, is, _ := after.GroupCoordinator(g)
		_, existed := before.Group(g)
		info, exists := after.Group(g)
		if existed && was != is {
			m.movedAt[g] = after.index
			if info.Occupied {
				return fmt.Errorf("group %s lost its coordinator's memory and is still said to have members", g)
			}
		}
		if !exists || explained || expireBefore >= 0 { // or made anew within the batch
			delete(m.movedAt, g)
		}
	}
	for o := range before.groupOffsets.all() {
		now, kept := after.GroupOffset(o.group, o.Bucket)
		g, _ := before.Group(o.group)
		switch {
		case kept && now == o.GroupOffset, kept && changed[o.group], explained:
		case !kept && !g.Occupied && (g.ProtocolType != "" && g.EmptiedMs < expireBefore || g.ProtocolType == "" && o.CommittedMs < expireBefore):
		default:
			return fmt.Errorf("offset %+v of group %+v became %+v (kept %v), which no command explains", o.GroupOffset, g, now, kept)
		}
	}
	return nil
}

// commits of random shapes survive the cutting into commands.
func TestGroupCommandsAreCut(t *testing.T) {
	m := newSim(11, faults{})
	for range 300 {
		var commits []GroupCommit
		for i := range m.r.IntN(6) {
			c := GroupCommit{Group: fmt.Sprint("group", i), ProtocolType: "consumer", Occupied: m.chance(50), LoadedIndex: m.r.Uint64N(5)}
			for j := range m.r.IntN(40) {
				c.Offsets = append(c.Offsets, GroupOffset{Bucket: mink.BucketRef{Table: 1, Partition: 1, Index: int32(j)}, Offset: mink.Offset(m.r.Int64N(1 << 40)), LeaderEpoch: -1, Metadata: strings.Repeat("x", m.r.IntN(60))})
			}
			commits = append(commits, c)
		}
		const limit = 700
		commands, of := CommitGroupOffsetsCommands(commits, limit)
		back := make([]GroupCommit, len(commits))
		last := 0
		for c, command := range commands {
			if n := proto.Size(command); n > limit+200 {
				t.Fatalf("a command of %d bytes, the limit is %d", n, limit)
			}
			for p, g := range command.GetCommitGroupOffsets().GetGroups() {
				i := of[c][p]
				piece := groupCommitOf(g)
				if i < last {
					t.Fatal("out of order", of)
				}
				last = i
				piece.Offsets = append(back[i].Offsets, piece.Offsets...)
				back[i] = piece
			}
		}
		for i := range commits {
			if !slices.Equal(back[i].Offsets, commits[i].Offsets) || back[i].Group != commits[i].Group || back[i].Occupied != commits[i].Occupied ||
				back[i].ProtocolType != commits[i].ProtocolType || back[i].LoadedIndex != commits[i].LoadedIndex {
				t.Fatalf("%+v became %+v", commits[i], back[i])
			}
		}
	}
	// No command is over the state's limits either.
	var many GroupCommit
	many.Group, many.Offsets = "g", make([]GroupOffset, MaxGroupOffsets+1)
	commands, _ := CommitGroupOffsetsCommands([]GroupCommit{many, {Group: "h"}}, 1<<30)
	if len(commands) != 2 || len(commands[0].GetCommitGroupOffsets().Groups[0].Offsets) != MaxGroupOffsets || len(commands[1].GetCommitGroupOffsets().Groups) != 2 {
		t.Fatalf("%d commands for %d offsets", len(commands), MaxGroupOffsets+1)
	}
}

func TestGroupCommitsAreValidated(t *testing.T) {
	good := GroupOffset{Bucket: mink.BucketRef{Table: 1, Partition: 1}, LeaderEpoch: -1, Metadata: strings.Repeat("x", MaxOffsetMetadata)}
	bad := func(change func(*GroupOffset)) GroupCommit {
		o := good
		change(&o)
		return GroupCommit{Group: "g", Offsets: []GroupOffset{good, o}}
	}
	if err := (GroupCommit{Group: "g", Offsets: []GroupOffset{good}}).Validate(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		commit GroupCommit
		class  error
	}{
		"no name":       {GroupCommit{}, mink.ErrInvalid},
		"long name":     {GroupCommit{Group: strings.Repeat("g", MaxGroupName+1)}, mink.ErrInvalid},
		"name no UTF-8": {GroupCommit{Group: "\xff"}, mink.ErrInvalid},
		"type no UTF-8": {GroupCommit{Group: "g", ProtocolType: "\xff"}, mink.ErrInvalid},
		"long type":     {GroupCommit{Group: "g", ProtocolType: strings.Repeat("g", MaxProtocolType+1)}, mink.ErrInvalid},
		"offset":        {bad(func(o *GroupOffset) { o.Offset = -1 }), mink.ErrInvalid},
		"epoch":         {bad(func(o *GroupOffset) { o.LeaderEpoch = -2 }), mink.ErrInvalid},
		"bucket":        {bad(func(o *GroupOffset) { o.Bucket.Table = 0 }), mink.ErrInvalid},
		"long metadata": {bad(func(o *GroupOffset) { o.Metadata += "x" }), mink.ErrTooLarge},
	} {
		if err := c.commit.Validate(); !errors.Is(err, c.class) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPartError(t *testing.T) {
	mixed := inParts([]*clusterpb.Result{refuse(clusterpb.Code_NOT_COORDINATOR, "a"), okID(1)})
	if err := ResultError(mixed); err != nil {
		t.Error(err)
	}
	if err := PartError(mixed, 0); !errors.Is(err, ErrNotCoordinator) {
		t.Error(err)
	}
	if err := PartError(mixed, 1); err != nil {
		t.Error(err)
	}
	if err := PartError(mixed, 2); !errors.Is(err, mink.ErrUnknownOutcome) {
		t.Error("a part without a verdict:", err)
	}
	none := inParts([]*clusterpb.Result{refuse(clusterpb.Code_NOT_COORDINATOR, "a"), invalid("b")})
	if err := ResultError(none); !errors.Is(err, ErrNotCoordinator) {
		t.Error("all parts are refused:", err)
	}
	if err := PartError(fenced("c"), 5); !errors.Is(err, mink.ErrFenced) {
		t.Error("refused as a whole:", err)
	}
}

// A change of the live nodes looks at the groups that get another coordinator, whatever
// others there are.
func TestAChangeOfNodesLooksAtGroupsThatMove(t *testing.T) {
	const groups, nodes = 5000, 4
	s := NewState()
	s.index, s.timeMs = 10, 1000
	work := &txn{s: s}
	join := func(id mink.NodeID, epoch mink.NodeEpoch) (moved, looked int) {
		before := work.savepoint()
		s.index++
		s.nodes.set(id, &Node{ID: id, Epoch: epoch, KafkaAddress: "a:1"})
		looked = work.moveGroups(&before)
		for g := range s.Groups() {
			if g.MovedIndex == s.index {
				moved++
				if g.Occupied || g.EmptiedMs != s.timeMs {
					t.Fatalf("%+v has members after its coordinator changed", g)
				}
			}
		}
		return moved, looked
	}
	for i := range mink.NodeID(nodes - 1) {
		join(i+1, mink.NodeEpoch(i+1))
	}
	for i := range groups {
		work.putGroup(GroupInfo{Name: fmt.Sprint("group-", i), ProtocolType: "consumer", Occupied: i%2 == 0, EmptiedMs: int64(i%2) * s.timeMs, Offsets: 1})
	}
	for name, c := range map[string]struct {
		id    mink.NodeID
		epoch mink.NodeEpoch
	}{"a node joins": {nodes, 90}, "a node restarts": {1, 91}} {
		moved, looked := join(c.id, c.epoch)
		if looked != moved || moved < groups/nodes/2 || moved > groups/nodes*2 {
			t.Errorf("%s: %d of %d groups were looked at, %d moved", name, looked, groups, moved)
		}
	}
	if moved, looked := join(nodes, 90); moved+looked != 0 {
		t.Errorf("nothing changes: %d of %d groups were looked at, %d moved", looked, groups, moved)
	}
}

func TestCheckSeesGroups(t *testing.T) {
	base := smallState(t)
	o, _ := first(base.groupOffsets.all())
	for name, damage := range map[string]func(s *State){
		"offset gone":           func(s *State) { s.groupOffsets.del(o) },
		"offset not listed":     func(s *State) { s.groupsOf.del(bucketGroup{o.Bucket, o.group}) },
		"listed without offset": func(s *State) { s.groupsOf.set(bucketGroup{o.Bucket, "nobody"}) },
		"group gone":            func(s *State) { s.groups.del(o.group) },
		"group in no slot":      func(s *State) { s.groupSlots.del(slotGroupOf(o.group)) },
		"slot of no group":      func(s *State) { s.groupSlots.set(slotGroupOf("nobody")) },
		"count": func(s *State) {
			g, _ := s.Group(o.group)
			g.Offsets++
			s.groups.set(g.Name, &g)
		},
		"empty since the future": func(s *State) {
			g, _ := s.Group(o.group)
			g.Occupied, g.EmptiedMs = false, s.timeMs+1
			s.groups.set(g.Name, &g)
		},
		"moved in the future": func(s *State) {
			g, _ := s.Group(o.group)
			g.MovedIndex = s.index + 1
			s.groups.set(g.Name, &g)
		},
		"neither members nor offsets": func(s *State) { s.groups.set("nobody", &GroupInfo{Name: "nobody"}) },
		"offset of no bucket": func(s *State) {
			x := *o
			x.Bucket.Index = 1 << 20
			s.groupOffsets.del(o)
			s.groupsOf.del(bucketGroup{o.Bucket, o.group})
			s.groupOffsets.set(&x)
			s.groupsOf.set(bucketGroup{x.Bucket, x.group})
		},
	} {
		s := *base
		damage(&s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: not seen", name)
		}
		if err := base.Check(); err != nil {
			t.Fatal("the damage reached the original:", err)
		}
	}
}

// consumers is a state of one node and one group that has offsets of n buckets.
func consumers(tb testing.TB, n int) (*State, GroupCommit) {
	c := GroupCommit{Group: "a-consumer-group", ProtocolType: "consumer", Occupied: true, LoadedIndex: 3}
	s := NewState()
	apply := func(b *clusterpb.Batch) {
		next, results, err := s.Apply(s.index+1, 1_800_000_000_000+int64(s.index), b)
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range results {
			if err := ResultError(r); err != nil {
				tb.Fatal(err)
			}
		}
		s = next
	}
	apply(&clusterpb.Batch{Commands: []*clusterpb.Command{registerCmd(1, 1)}})
	apply(&clusterpb.Batch{Epoch: 1, Counter: 1, Commands: []*clusterpb.Command{createDatabaseCmd("d")}})
	for i := range (n + 999) / 1000 {
		apply(&clusterpb.Batch{Epoch: 1, Counter: 2 + uint64(i), Commands: []*clusterpb.Command{createTableCmd(descriptor("d", fmt.Sprint("t", i), int32(min(1000, n-1000*i)), false, false), byte(i+1))}})
	}
	for st := range s.Streams() {
		c.Offsets = append(c.Offsets, GroupOffset{Bucket: st.Bucket, Offset: 1_000_000_000 + mink.Offset(st.ID), LeaderEpoch: 5})
	}
	commands, _ := CommitGroupOffsetsCommands([]GroupCommit{c}, 1<<20)
	apply(&clusterpb.Batch{Epoch: 1, Counter: 99, Commands: commands})
	return s, c
}

// 10,000 partitions committed every 5 s are 30 bytes each, in the log and in a
// snapshot, and no snapshot record grows with the group.
func TestGroupBytes(t *testing.T) {
	const n = 10_000
	s, c := consumers(t, n)
	commands, _ := CommitGroupOffsetsCommands([]GroupCommit{c}, 1<<20)
	if size := proto.Size(commands[0]); len(commands) != 1 || size > 30*n {
		t.Errorf("%d commands, the first of %d bytes", len(commands), size)
	}
	size, count := 0, 0
	for _, data := range snapshot(s) {
		var r clusterpb.Record
		if err := proto.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		if r.GetGroup() != nil || r.GetGroupOffsets() != nil {
			size += len(data)
			count++
		}
	}
	if size > 40*n || count != 1+n/groupOffsetsPerRecord {
		t.Errorf("%d records of %d bytes in a snapshot", count, size)
	}
	back, err := DecodeSnapshot(records(snapshot(s)))
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := back.Group(c.Group); !ok || g.Offsets != n || !bytes.Equal(framed(snapshot(back)), framed(snapshot(s))) {
		t.Errorf("read back: %+v", g)
	}
}

// What a busy cluster does ten times a second.
func BenchmarkApplyGroupCommit200Of10kBuckets(b *testing.B) {
	s, c := consumers(b, 10_000)
	m := newSim(1, faults{})
	m.r.Shuffle(len(c.Offsets), func(i, j int) { c.Offsets[i], c.Offsets[j] = c.Offsets[j], c.Offsets[i] })
	c.Offsets = c.Offsets[:200]
	commands, _ := CommitGroupOffsetsCommands([]GroupCommit{c}, 1<<20)
	batch := &clusterpb.Batch{Epoch: 1, Counter: 100, Commands: commands}
	b.ReportAllocs()
	for b.Loop() {
		if _, r, err := s.Apply(s.index+1, s.timeMs+1, batch); err != nil || ResultError(r[0]) != nil {
			b.Fatal(err, r)
		}
	}
}
