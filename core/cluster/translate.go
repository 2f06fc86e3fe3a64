package cluster

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// This file is the only translator between the engine's types (core/stream/plan)
// and the log's. Every numeric field is range-checked on the way in: a command
// is data that someone else wrote.

// CommitObjectsCommand is the command's wire form. An item whose object is not
// among the command's objects is refused by apply.
func CommitObjectsCommand(c plan.CommitObjects) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_CommitObjects{CommitObjects: &clusterpb.CommitObjects{
		Wal: walPB(c.WAL), Seq: c.Seq, Objects: objectsPB(c.Objects), Items: itemsPB(c.Items, c.Objects), WalTrim: c.WALTrim,
	}}}
}

// ReplaceObjectsCommand is the command's wire form.
func ReplaceObjectsCommand(c plan.ReplaceObjects) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_ReplaceObjects{ReplaceObjects: &clusterpb.ReplaceObjects{
		Wal: walPB(c.WAL), BasedOn: c.BasedOn, Sources: objectIDsPB(c.Sources), Objects: objectsPB(c.Objects), Items: itemsPB(c.Items, c.Objects),
	}}}
}

// RewriteStreamCommand is the command's wire form.
func RewriteStreamCommand(c plan.RewriteStream) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_RewriteStream{RewriteStream: &clusterpb.RewriteStream{
		Wal: walPB(c.WAL), Stream: int64(c.Stream), LeaderEpoch: int32(c.LeaderEpoch), Start: int64(c.Start), Upper: int64(c.Upper),
		Sources: rangesPB(c.Sources), Objects: objectsPB(c.Objects), Items: itemsPB(c.Items, c.Objects),
		CleanedBytes: c.Cleaned.Bytes, CleanedDueMs: c.Cleaned.DueMs,
	}}}
}

// RecoverWALCommand is the command's wire form.
func RecoverWALCommand(c plan.RecoverWAL) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_RecoverWal{RecoverWal: &clusterpb.RecoverWAL{
		Wal: walPB(c.WAL), Lease: int64(c.Lease), End: c.End, Part: c.Part, From: c.From, Objects: objectsPB(c.Objects), Items: itemsPB(c.Items, c.Objects),
	}}}
}

// ReleaseCommand is the command's wire form.
func ReleaseCommand(c plan.Release) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_Release{Release: &clusterpb.Release{
		Wal: walPB(c.WAL), Stream: int64(c.Stream), LeaderEpoch: int32(c.LeaderEpoch), End: int64(c.End),
		Objects: objectsPB(c.Objects), Items: itemsPB(c.Items, c.Objects), To: int32(c.To),
	}}}
}

// TrimStreamsCommand is the command's wire form.
func TrimStreamsCommand(trims []plan.Trim) *clusterpb.Command {
	c := &clusterpb.TrimStreams{Trims: make([]*clusterpb.Trim, len(trims))}
	for i, t := range trims {
		c.Trims[i] = &clusterpb.Trim{Stream: int64(t.Stream), Start: int64(t.Start), GiveUpMs: t.GiveUpMs}
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_TrimStreams{TrimStreams: c}}
}

// ForgetObjectsCommand is the command's wire form.
func ForgetObjectsCommand(ids []plan.ObjectID) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_ForgetObjects{ForgetObjects: &clusterpb.ForgetObjects{Objects: objectIDsPB(ids)}}}
}

func walPB(w plan.WALID) *clusterpb.WALID {
	return &clusterpb.WALID{Node: int32(w.Node), Epoch: int64(w.Epoch), Nonce: w.Nonce}
}

func walID(w *clusterpb.WALID) plan.WALID {
	return plan.WALID{Node: mink.NodeID(w.GetNode()), Epoch: mink.NodeEpoch(w.GetEpoch()), Nonce: w.GetNonce()}
}

func objectIDPB(id plan.ObjectID) *clusterpb.ObjectID {
	if id.IsZero() {
		return nil
	}
	return &clusterpb.ObjectID{Epoch: int64(id.Epoch), Kind: uint32(id.Kind), Seq: id.Seq}
}

func objectID(id *clusterpb.ObjectID) (plan.ObjectID, error) {
	if id.GetKind() > 255 {
		return plan.ObjectID{}, fmt.Errorf("object kind %d is out of range: %w", id.GetKind(), mink.ErrInvalid)
	}
	return plan.ObjectID{Epoch: mink.NodeEpoch(id.GetEpoch()), Kind: plan.ObjectKind(id.GetKind()), Seq: id.GetSeq()}, nil
}

func objectIDsPB(ids []plan.ObjectID) []*clusterpb.ObjectID {
	out := make([]*clusterpb.ObjectID, len(ids))
	for i, id := range ids {
		out[i] = objectIDPB(id)
	}
	return out
}

func objectIDs(ids []*clusterpb.ObjectID) ([]plan.ObjectID, error) {
	out := make([]plan.ObjectID, len(ids))
	for i, id := range ids {
		var err error
		if out[i], err = objectID(id); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func objectPB(o plan.Object) *clusterpb.Object {
	return &clusterpb.Object{
		Id: objectIDPB(o.ID), Size: o.Size, IndexPos: o.IndexPos, IndexLen: o.IndexLen, IndexCrc: o.IndexCRC,
		Tier: uint32(o.Tier), CreatedMs: o.CreatedMs,
	}
}

// object reads an object of the given WAL: the wire form leaves it out, because
// the id's epoch names it.
func object(o *clusterpb.Object, w plan.WALID) (plan.Object, error) {
	id, err := objectID(o.GetId())
	if err != nil {
		return plan.Object{}, err
	}
	if id.Epoch != w.Epoch {
		return plan.Object{}, fmt.Errorf("object %+v is not of wal %s: %w", id, w, mink.ErrInvalid)
	}
	if o.GetTier() > 255 {
		return plan.Object{}, fmt.Errorf("object %+v: tier %d is out of range: %w", id, o.GetTier(), mink.ErrInvalid)
	}
	return plan.Object{
		ID: id, WAL: w, Size: o.GetSize(), IndexPos: o.GetIndexPos(), IndexLen: o.GetIndexLen(), IndexCRC: o.GetIndexCrc(),
		Tier: uint8(o.GetTier()), CreatedMs: o.GetCreatedMs(),
	}, nil
}

func objectsPB(objects []plan.Object) []*clusterpb.Object {
	out := make([]*clusterpb.Object, len(objects))
	for i, o := range objects {
		out[i] = objectPB(o)
	}
	return out
}

func objectsOf(list []*clusterpb.Object, w plan.WALID) ([]plan.Object, error) {
	out := make([]plan.Object, len(list))
	for i, o := range list {
		var err error
		if out[i], err = object(o, w); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func rangesPB(ranges []plan.Range) []*clusterpb.Range {
	out := make([]*clusterpb.Range, len(ranges))
	for i, r := range ranges {
		out[i] = &clusterpb.Range{Object: objectIDPB(r.Object), Start: int64(r.Start), End: int64(r.End)}
	}
	return out
}

func rangesOf(list []*clusterpb.Range) ([]plan.Range, error) {
	var out []plan.Range
	for _, r := range list {
		id, err := objectID(r.GetObject())
		if err != nil {
			return nil, err
		}
		out = append(out, plan.Range{Object: id, Start: mink.Offset(r.GetStart()), End: mink.Offset(r.GetEnd())})
	}
	return out, nil
}

func itemsPB(items []plan.Item, objects []plan.Object) *clusterpb.Items {
	if len(items) == 0 {
		return nil
	}
	index := make(map[plan.ObjectID]uint32, len(objects))
	for i, o := range objects {
		index[o.ID] = uint32(i)
	}
	n := len(items)
	c := &clusterpb.Items{
		Stream: make([]int64, n), LeaderEpoch: make([]int32, n), Start: make([]int64, n), Span: make([]int64, n),
	}
	object, checkpoint := make([]uint32, n), make([]bool, n)
	anyObject, anyCheckpoint := false, false
	last := mink.StreamID(0)
	for i, it := range items {
		c.Stream[i], last = int64(it.Stream-last), it.Stream
		c.LeaderEpoch[i], c.Start[i], c.Span[i] = int32(it.LeaderEpoch), int64(it.Start), int64(it.End-it.Start)
		pos, found := index[it.Object]
		if !found {
			pos = uint32(len(objects)) // names none: apply refuses it
		}
		object[i], checkpoint[i] = pos, it.Checkpoint
		anyObject, anyCheckpoint = anyObject || pos != 0, anyCheckpoint || it.Checkpoint
	}
	if anyObject {
		c.Object = object
	}
	if anyCheckpoint {
		c.Checkpoint = checkpoint
	}
	return c
}

func itemsOf(c *clusterpb.Items, objects []plan.Object) ([]plan.Item, error) {
	n := len(c.GetStream())
	if len(c.GetLeaderEpoch()) != n || len(c.GetStart()) != n || len(c.GetSpan()) != n ||
		len(c.GetObject()) != n && len(c.GetObject()) != 0 || len(c.GetCheckpoint()) != n && len(c.GetCheckpoint()) != 0 {
		return nil, fmt.Errorf("item columns have different lengths: %w", mink.ErrInvalid)
	}
	items := make([]plan.Item, n)
	last := int64(0)
	for i := range items {
		last += c.Stream[i]
		pos, start, span := uint32(0), c.Start[i], c.Span[i]
		if len(c.Object) != 0 {
			pos = c.Object[i]
		}
		if int64(pos) >= int64(len(objects)) {
			return nil, fmt.Errorf("item %d, of stream %d, names object %d of %d: %w", i, last, pos, len(objects), mink.ErrInvalid)
		}
		if start < 0 || span < 0 || start+span < start {
			return nil, fmt.Errorf("item %d, of stream %d, starts at %d and spans %d: %w", i, last, start, span, mink.ErrInvalid)
		}
		items[i] = plan.Item{
			Stream: mink.StreamID(last), LeaderEpoch: mink.LeaderEpoch(c.LeaderEpoch[i]), Object: objects[pos].ID,
			Start: mink.Offset(start), End: mink.Offset(start + span), Checkpoint: len(c.Checkpoint) != 0 && c.Checkpoint[i],
		}
	}
	return items, nil
}

// manifest is the part that the object commands share.
func manifest(w *clusterpb.WALID, objects []*clusterpb.Object, items *clusterpb.Items) (plan.WALID, []plan.Object, []plan.Item, error) {
	id := walID(w)
	objs, err := objectsOf(objects, id)
	if err != nil {
		return id, nil, nil, err
	}
	its, err := itemsOf(items, objs)
	return id, objs, its, err
}

func bucketOffsetsPB(offsets []BucketOffset) []*clusterpb.BucketOffset {
	out := make([]*clusterpb.BucketOffset, len(offsets))
	for i, o := range offsets {
		out[i] = &clusterpb.BucketOffset{Table: int64(o.Bucket.Table), Partition: int64(o.Bucket.Partition), Bucket: o.Bucket.Index, Offset: int64(o.Offset)}
	}
	return out
}

func bucketOffsets(list []*clusterpb.BucketOffset) []BucketOffset {
	out := make([]BucketOffset, len(list))
	for i, o := range list {
		out[i] = BucketOffset{
			Bucket: mink.BucketRef{Table: mink.TableID(o.GetTable()), Partition: mink.PartitionID(o.GetPartition()), Index: o.GetBucket()},
			Offset: mink.Offset(o.GetOffset()),
		}
	}
	return out
}

// CommitGroupOffsetsCommands is the wire form of the commits, in their order, as
// few commands as keep each below about bytesMax; a commit that is too long is cut,
// each piece with what it says of the group. of[c][p] is the commit that part p
// of command c is of.
func CommitGroupOffsetsCommands(commits []GroupCommit, bytesMax int) (commands []*clusterpb.Command, of [][]int) {
	var c *clusterpb.CommitGroupOffsets
	bytes, offsets := 0, 0
	for i, commit := range commits {
		for rest, again := commit.Offsets, true; again; again = len(rest) > 0 {
			g := &clusterpb.GroupCommit{Group: commit.Group, ProtocolType: commit.ProtocolType, Occupied: commit.Occupied, LoadedIndex: commit.LoadedIndex}
			head := proto.Size(g) + perMessage
			if c == nil || bytes+head > bytesMax || offsets == MaxGroupOffsets || len(c.Groups) == MaxGroups {
				c, bytes, offsets = &clusterpb.CommitGroupOffsets{}, 0, 0
				commands = append(commands, &clusterpb.Command{Kind: &clusterpb.Command_CommitGroupOffsets{CommitGroupOffsets: c}})
				of = append(of, nil)
			}
			bytes += head
			for len(rest) > 0 && offsets < MaxGroupOffsets {
				o := groupOffsetPB(rest[0])
				n := proto.Size(o) + perMessage
				if bytes+n > bytesMax && len(g.Offsets) > 0 {
					break
				}
				g.Offsets, rest = append(g.Offsets, o), rest[1:]
				bytes += n
				offsets++
			}
			c.Groups = append(c.Groups, g)
			of[len(of)-1] = append(of[len(of)-1], i)
			if len(rest) > 0 {
				c = nil
			}
		}
	}
	return commands, of
}

// perMessage bounds the tag and length in front of a nested message.
const perMessage = 6

func groupCommitOf(g *clusterpb.GroupCommit) GroupCommit {
	c := GroupCommit{
		Group: g.GetGroup(), ProtocolType: g.GetProtocolType(), Occupied: g.GetOccupied(), LoadedIndex: g.GetLoadedIndex(),
		Offsets: make([]GroupOffset, len(g.GetOffsets())),
	}
	for i, o := range g.GetOffsets() {
		c.Offsets[i] = groupOffsetOf(o)
	}
	return c
}

// groupOffsetPB leaves the commit time out: in a command it is the entry's.
func groupOffsetPB(o GroupOffset) *clusterpb.GroupOffset {
	return &clusterpb.GroupOffset{
		Table: int64(o.Bucket.Table), Partition: int64(o.Bucket.Partition), Bucket: o.Bucket.Index,
		Offset: int64(o.Offset), LeaderEpoch: int32(o.LeaderEpoch), Metadata: []byte(o.Metadata),
	}
}

func groupOffsetOf(o *clusterpb.GroupOffset) GroupOffset {
	return GroupOffset{
		Bucket: mink.BucketRef{Table: mink.TableID(o.GetTable()), Partition: mink.PartitionID(o.GetPartition()), Index: o.GetBucket()},
		Offset: mink.Offset(o.GetOffset()), LeaderEpoch: mink.LeaderEpoch(o.GetLeaderEpoch()), Metadata: string(o.GetMetadata()),
	}
}

// DeleteGroupsCommand is the command's wire form.
func DeleteGroupsCommand(groups []string) *clusterpb.Command {
	return &clusterpb.Command{Kind: &clusterpb.Command_DeleteGroups{DeleteGroups: &clusterpb.DeleteGroups{Groups: groups}}}
}

// DeleteGroupOffsetsCommand is the command's wire form.
func DeleteGroupOffsetsCommand(group string, buckets []mink.BucketRef) *clusterpb.Command {
	c := &clusterpb.DeleteGroupOffsets{Group: group, Buckets: make([]*clusterpb.BucketRef, len(buckets))}
	for i, b := range buckets {
		c.Buckets[i] = bucketRefPB(b)
	}
	return &clusterpb.Command{Kind: &clusterpb.Command_DeleteGroupOffsets{DeleteGroupOffsets: c}}
}

func bucketRefPB(b mink.BucketRef) *clusterpb.BucketRef {
	return &clusterpb.BucketRef{Table: int64(b.Table), Partition: int64(b.Partition), Bucket: b.Index}
}

func bucketRefOf(b *clusterpb.BucketRef) mink.BucketRef {
	return mink.BucketRef{Table: mink.TableID(b.GetTable()), Partition: mink.PartitionID(b.GetPartition()), Index: b.GetBucket()}
}
