package cluster

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"unicode/utf8"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	clusterplan "github.com/mink-project/mink/core/cluster/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Limits of what is kept of a consumer group, and of one command.
const (
	MaxGroupName      = 1024 // bytes
	MaxProtocolType   = 255  // bytes
	MaxOffsetMetadata = 4096 // bytes
	MaxGroups         = 1 << 16
	MaxGroupOffsets   = 1 << 16 // of all groups of a command
)

// GroupInfo is a consumer group that has committed offsets; its members live in the
// memory of its coordinator.
type GroupInfo struct {
	Name         string
	ProtocolType string // "": a simple group, which never had members
	Occupied     bool   // has members, as its coordinator last said
	EmptiedMs    int64  // since when it has none, by the metadata clock; 0: Occupied
	MovedIndex   uint64 // of the newest change of its coordinator; 0: none since it exists
	Offsets      int    // how many buckets it has offsets of
}

// GroupOffset is the next offset of a bucket that a consumer group wants to read.
type GroupOffset struct {
	Bucket      mink.BucketRef
	Offset      mink.Offset
	LeaderEpoch mink.LeaderEpoch // of the last record read; -1: unknown
	Metadata    string           // the client's, opaque
	CommittedMs int64            // by the metadata clock; set by the state
}

// GroupCommit is what a coordinator says of one consumer group: whether it has
// members, and new offsets, if any.
type GroupCommit struct {
	Group        string
	ProtocolType string // "": not known; keeps what is
	Occupied     bool
	// LoadedIndex is the index of the view from which the coordinator made its
	// memory of the group, having found itself the group's coordinator there. When
	// the coordination moved after it, even away and back, that memory is not to be
	// trusted and the commit is refused. 0: not checked.
	LoadedIndex uint64
	Offsets     []GroupOffset // the later one of a bucket wins
}

// Validate refuses, with mink.ErrInvalid or mink.ErrTooLarge (the client's
// metadata), what no state accepts. Callers that send several commits together
// check each of them first.
func (c GroupCommit) Validate() error {
	if err := checkGroupNames(c.Group, c.ProtocolType); err != nil {
		return err
	}
	for _, o := range c.Offsets {
		if err := o.validate(); err != nil {
			return fmt.Errorf("group %q: %w", c.Group, err)
		}
	}
	return nil
}

// CheckGroupName refuses, with mink.ErrInvalid, a name that no group can have.
func CheckGroupName(name string) error {
	if name == "" || len(name) > MaxGroupName || !utf8.ValidString(name) {
		return fmt.Errorf("group name of %d bytes: 1 to %d bytes of UTF-8 are allowed: %w", len(name), MaxGroupName, mink.ErrInvalid)
	}
	return nil
}

func checkGroupNames(name, protocolType string) error {
	if err := CheckGroupName(name); err != nil {
		return err
	}
	if len(protocolType) > MaxProtocolType || !utf8.ValidString(protocolType) {
		return fmt.Errorf("group %q: protocol type of %d bytes: at most %d bytes of UTF-8 are allowed: %w", name, len(protocolType), MaxProtocolType, mink.ErrInvalid)
	}
	return nil
}

func (o GroupOffset) validate() error {
	switch {
	case o.Bucket.Table <= 0 || o.Bucket.Partition <= 0 || o.Bucket.Index < 0 || o.Offset < 0 || o.LeaderEpoch < -1:
		return fmt.Errorf("offset %d, leader epoch %d, of bucket %s: ids start at 1, offsets at 0, epochs at -1 for unknown: %w", o.Offset, o.LeaderEpoch, o.Bucket, mink.ErrInvalid)
	case len(o.Metadata) > MaxOffsetMetadata:
		return fmt.Errorf("offset of bucket %s: metadata of %d bytes, at most %d are allowed: %w", o.Bucket, len(o.Metadata), MaxOffsetMetadata, mink.ErrTooLarge)
	}
	return nil
}

// groupOffset shares its group's name with the group.
type groupOffset struct {
	group string
	GroupOffset
}

// firstOffset sorts before every offset of its group.
var firstOffset = GroupOffset{Bucket: mink.BucketRef{Table: math.MinInt64}}

type bucketGroup struct {
	bucket mink.BucketRef
	group  string
}

// slotGroup is a group in its slot.
type slotGroup struct {
	slot  clusterplan.GroupSlot
	group string
}

func slotGroupOf(group string) slotGroup {
	return slotGroup{clusterplan.SlotOfGroup(group), group}
}

func lessSlotGroup(a, b slotGroup) bool {
	return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.group, b.group)) < 0
}

func compareBucket(a, b mink.BucketRef) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Index, b.Index))
}

func lessGroupOffset(a, b *groupOffset) bool {
	if a.group != b.group {
		return a.group < b.group
	}
	return compareBucket(a.Bucket, b.Bucket) < 0
}

func lessBucketGroup(a, b bucketGroup) bool {
	if c := compareBucket(a.bucket, b.bucket); c != 0 {
		return c < 0
	}
	return a.group < b.group
}

// commitGroupOffsets decides group by group: one that is refused fails no other.
func (t *txn) commitGroupOffsets(c *clusterpb.CommitGroupOffsets) *clusterpb.Result {
	offsets := 0
	for _, g := range c.GetGroups() {
		offsets += len(g.GetOffsets())
	}
	if n := len(c.GetGroups()); n < 1 || n > MaxGroups || offsets > MaxGroupOffsets {
		return invalid("commit %d offsets of %d groups: 1 to %d groups and at most %d offsets at a time", offsets, n, MaxGroups, MaxGroupOffsets)
	}
	parts := make([]*clusterpb.Result, len(c.GetGroups()))
	for i, g := range c.GetGroups() {
		parts[i] = t.commitGroup(groupCommitOf(g))
	}
	return inParts(parts)
}

func (t *txn) commitGroup(c GroupCommit) *clusterpb.Result {
	if err := c.Validate(); err != nil {
		return refuseErr(err)
	}
	if r := t.checkGroupCoordinator("commit offsets of", c.Group, c.LoadedIndex); r != nil {
		return r
	}
	old, found := t.s.groups.get(c.Group)
	if !found {
		old = &GroupInfo{Name: c.Group, EmptiedMs: t.s.timeMs}
	}
	g := *old
	g.ProtocolType = cmp.Or(c.ProtocolType, g.ProtocolType)
	g.Occupied = c.Occupied
	switch {
	case g.Occupied:
		g.EmptiedMs = 0
	case old.Occupied || g.ProtocolType != old.ProtocolType:
		g.EmptiedMs = t.s.timeMs
	}
	stored := 0
	for _, o := range c.Offsets {
		if _, exists := t.s.StreamOf(o.Bucket); !exists {
			continue // dropped meanwhile
		}
		o.CommittedMs = t.s.timeMs
		if t.putGroupOffset(&groupOffset{group: g.Name, GroupOffset: o}) {
			g.Offsets++
		}
		stored++
	}
	if found || g.Offsets > 0 {
		t.putGroup(g)
	}
	return okID(int64(stored))
}

// checkGroupCoordinator refuses a proposer that does not coordinate the group,
// or that did not without a break since it loaded the group; loaded 0: not asked.
func (t *txn) checkGroupCoordinator(verb, group string, loaded uint64) *clusterpb.Result {
	refused := func(format string, args ...any) *clusterpb.Result {
		return refuse(clusterpb.Code_NOT_COORDINATOR, "%s group %q: %s", verb, group, fmt.Sprintf(format, args...))
	}
	node, epoch, found := t.s.GroupCoordinator(group)
	switch {
	case !found:
		return refused("no live node has a Kafka address")
	case epoch != t.epoch && !t.s.faults.noGroupFence:
		return refused("node %d, epoch %d, coordinates it; the proposer is epoch %d", node, epoch, t.epoch)
	}
	if g, found := t.s.groups.get(group); found && loaded > 0 && loaded < g.MovedIndex && !t.s.faults.noMoveCheck {
		return refused("its coordinator changed at index %d, after the proposer loaded it at %d: load it again", g.MovedIndex, loaded)
	}
	return nil
}

// putGroup stores a changed group; one with neither members nor offsets goes.
func (t *txn) putGroup(g GroupInfo) {
	if g.Offsets == 0 && !g.Occupied {
		t.delGroup(g.Name)
		return
	}
	old, found := t.s.groups.get(g.Name)
	if !found || *old != g {
		t.s.groups.set(g.Name, &g)
	}
	if !found {
		t.s.groupSlots.set(slotGroupOf(g.Name))
	}
}

func (t *txn) delGroup(name string) {
	t.s.groups.del(name)
	t.s.groupSlots.del(slotGroupOf(name))
}

// putGroupOffset reports whether the group had no offset of the bucket. It leaves
// the group's count to its caller.
func (t *txn) putGroupOffset(o *groupOffset) bool {
	_, found := t.s.groupOffsets.get(o)
	t.s.groupOffsets.set(o)
	if !found {
		t.s.groupsOf.set(bucketGroup{o.Bucket, o.group})
	}
	return !found
}

// dropGroupOffset drops one offset, if it is there, and its group with the last.
func (t *txn) dropGroupOffset(group string, bucket mink.BucketRef) bool {
	o := &groupOffset{group: group, GroupOffset: GroupOffset{Bucket: bucket}}
	if _, found := t.s.groupOffsets.get(o); !found {
		return false
	}
	t.s.groupOffsets.del(o)
	t.s.groupsOf.del(bucketGroup{bucket, group})
	if old, found := t.s.groups.get(group); found {
		g := *old
		g.Offsets--
		t.putGroup(g)
	}
	return true
}

// forgetBuckets drops what consumer groups committed for a partition's buckets.
func (t *txn) forgetBuckets(p *Partition) {
	var gone []bucketGroup
	for bg := range t.s.groupsOf.from(bucketGroup{bucket: mink.BucketRef{Table: p.Table, Partition: p.ID}}) {
		if bg.bucket.Table != p.Table || bg.bucket.Partition != p.ID {
			break
		}
		gone = append(gone, bg)
	}
	for _, bg := range gone {
		t.dropGroupOffset(bg.group, bg.bucket)
	}
}

// moveGroups follows a change of the live nodes: a group whose coordinator is
// another one than before has lost its members, which lived in that one's memory,
// and what the old one still sends is refused, even when it coordinates again. It looks at
// the groups of slots that moved, and answers how many these are.
func (t *txn) moveGroups(before *State) (looked int) {
	for slot := range clusterplan.GroupSlot(clusterplan.GroupSlots) {
		_, was, _ := before.slotCoordinator(slot)
		_, is, _ := t.s.slotCoordinator(slot)
		if was == is {
			continue
		}
		for at := range before.groupSlots.from(slotGroup{slot: slot}) {
			if at.slot != slot {
				break
			}
			looked++
			old, _ := before.groups.get(at.group)
			g := *old
			g.MovedIndex = t.s.index
			if g.Occupied {
				g.Occupied, g.EmptiedMs = false, t.s.timeMs
			}
			t.putGroup(g)
		}
	}
	return looked
}

// deleteGroups drops groups with all their offsets, each or not.
func (t *txn) deleteGroups(c *clusterpb.DeleteGroups) *clusterpb.Result {
	if n := len(c.GetGroups()); n < 1 || n > MaxGroups {
		return invalid("delete %d groups: 1 to %d at a time", n, MaxGroups)
	}
	parts := make([]*clusterpb.Result, len(c.GetGroups()))
	for i, name := range c.GetGroups() {
		parts[i] = t.deleteGroup(name)
	}
	return inParts(parts)
}

func (t *txn) deleteGroup(name string) *clusterpb.Result {
	if r := t.checkGroupCoordinator("delete", name, 0); r != nil {
		return r
	}
	if _, found := t.s.groups.get(name); !found {
		return notExist("group %q does not exist", name)
	}
	n := t.dropGroup(name)
	t.delGroup(name) // one with members too: its coordinator says that it has none
	return okID(int64(n))
}

// dropGroup drops all offsets of a group, and the group unless it has members.
func (t *txn) dropGroup(name string) int {
	var buckets []mink.BucketRef
	for b := range t.s.GroupOffsets(name) {
		buckets = append(buckets, b)
	}
	for _, b := range buckets {
		t.dropGroupOffset(name, b)
	}
	return len(buckets)
}

// deleteGroupOffsets drops single offsets; id is how many there were.
func (t *txn) deleteGroupOffsets(c *clusterpb.DeleteGroupOffsets) *clusterpb.Result {
	if n := len(c.GetBuckets()); n < 1 || n > MaxGroupOffsets {
		return invalid("delete %d offsets of group %q: 1 to %d at a time", n, c.GetGroup(), MaxGroupOffsets)
	}
	if r := t.checkGroupCoordinator("delete offsets of", c.GetGroup(), 0); r != nil {
		return r
	}
	if _, found := t.s.groups.get(c.GetGroup()); !found {
		return notExist("group %q does not exist", c.GetGroup())
	}
	n := 0
	for _, b := range c.GetBuckets() {
		if t.dropGroupOffset(c.GetGroup(), bucketRefOf(b)) {
			n++
		}
	}
	return okID(int64(n))
}

// expireGroups drops offsets that are over; id is how many.
func (t *txn) expireGroups(c *clusterpb.ExpireGroups) *clusterpb.Result {
	switch {
	case c.GetMax() < 1:
		return invalid("expire groups: at most %d offsets is none", c.GetMax())
	case c.GetBeforeMs() > t.s.timeMs:
		return invalid("expire groups that were empty before %d, which is ahead of the metadata clock, %d", c.GetBeforeMs(), t.s.timeMs)
	}
	var old []*groupOffset
	for o := range t.s.expired(c.GetBeforeMs()) {
		if len(old) >= int(c.GetMax()) && old[len(old)-1].group != o.group {
			break
		}
		old = append(old, o)
	}
	for _, o := range old {
		t.dropGroupOffset(o.group, o.Bucket)
	}
	return okID(int64(len(old)))
}

// expired are the offsets that ExpireGroups drops: all of a group that has had no
// members since before the time (KIP-211), or that were committed before it, of a
// simple group.
func (s *State) expired(beforeMs int64) iter.Seq[*groupOffset] {
	return func(yield func(*groupOffset) bool) {
		for name, g := range s.groups.all() {
			simple := g.ProtocolType == ""
			if g.Occupied || !simple && g.EmptiedMs >= beforeMs {
				continue
			}
			for o := range s.groupOffsets.from(&groupOffset{group: name, GroupOffset: firstOffset}) {
				if o.group != name {
					break
				}
				if (!simple || o.CommittedMs < beforeMs) && !yield(o) {
					return
				}
			}
		}
	}
}

// HasExpiredGroups reports whether ExpireGroups would drop anything.
func (s *State) HasExpiredGroups(beforeMs int64) bool {
	_, found := first(s.expired(beforeMs))
	return found
}
