package kafka

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/kafka/group"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	commitUnknownGroup int16 = 9 // before, an unknown group with a generation is an old generation
	fetchAllTopics     int16 = 2 // null is all
	fetchGroups        int16 = 8 // several groups in one request
)

// groupCode maps an error of the metadata's commands about groups.
func groupCode(err error) code {
	switch {
	case err == nil:
		return codeNone
	case errors.Is(err, cluster.ErrNotCoordinator), errors.Is(err, mink.ErrFenced):
		return codeNotCoordinator
	case errors.Is(err, mink.ErrThrottled):
		return codeCoordinatorLoading
	case errors.Is(err, mink.ErrNotExist):
		return codeGroupIDNotFound
	case errors.Is(err, mink.ErrTooLarge):
		return codeInvalidCommitOffsetSize
	case errors.Is(err, mink.ErrInvalid):
		return codeInvalidRequest
	case errors.Is(err, mink.ErrUnavailable), errors.Is(err, mink.ErrUnknownOutcome), errors.Is(err, mink.ErrClosed),
		errors.Is(err, mink.ErrConflict), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return codeCoordinatorNotAvailable
	default:
		return codeUnknownServerError
	}
}

// acceptOffsetCommit gives the commit its place, as an append has one: a client
// that commits every record without waiting for the answers has all of them
// gathered, and its heartbeats do not wait for a round of the metadata for each.
func (b *broker) acceptOffsetCommit(ctx context.Context, cl *call, body []byte) error {
	r := kmsg.NewPtrOffsetCommitRequest()
	if err := decode(cl, r, body); err != nil {
		return err
	}
	resp, stored := b.startOffsetCommit(ctx, r)
	if err := ctx.Err(); err != nil {
		return err
	}
	cl.answer = func(ctx context.Context) (reply, error) {
		if stored != nil {
			if err := stored(ctx); err != nil {
				return reply{}, err
			}
		}
		resp.SetVersion(r.Version)
		return reply{body: resp}, nil
	}
	return nil
}

// startOffsetCommit hands the offsets to the metadata. stored waits until it has
// them and this node knows it, and completes resp; nil when there are none to store.
func (b *broker) startOffsetCommit(ctx context.Context, r *kmsg.OffsetCommitRequest) (resp *kmsg.OffsetCommitResponse, stored func(context.Context) error) {
	sctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	topics := b.lookup(ctx)
	found := make([]*topic, len(r.Topics)) // before the turn: it may wait
	for i := range found {
		t := &r.Topics[i]
		found[i] = topics.byName(t.Topic, partitionsNamed(t.Partitions, func(p *kmsg.OffsetCommitRequestTopicPartition) int32 { return p.Partition }))
	}
	commit, c := cluster.GroupCommit{}, codeCoordinatorLoading
	if done, err := b.groups.commitTurn(sctx, r.Group); err == nil {
		defer done()
		commit, c = b.groups.mayCommit(r)
	}
	resp = kmsg.NewPtrOffsetCommitResponse()
	var storing []*kmsg.OffsetCommitResponseTopicPartition
	for i := range r.Topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic = r.Topics[i].Topic
		rt.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(r.Topics[i].Partitions))
		for j := range rt.Partitions {
			p, rp := &r.Topics[i].Partitions[j], &rt.Partitions[j]
			*rp = kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition = p.Partition
			pc := c
			if c == codeNone {
				var o cluster.GroupOffset
				if o, pc = offsetOf(found[i], p); pc == codeNone {
					commit.Offsets = append(commit.Offsets, o)
					storing = append(storing, rp)
				}
			}
			if pc != codeNone {
				rp.ErrorCode = b.fail("OffsetCommit", pc)
			}
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(storing) == 0 {
		return resp, nil
	}
	wait, err := b.backend.StartGroupCommit(sctx, commit)
	return resp, func(ctx context.Context) error {
		if err == nil {
			wctx, cancel := b.timeout(ctx, 0)
			defer cancel()
			err = wait(wctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.report("offsets of a consumer group were not committed", "group", r.Group, "error", err)
			for _, rp := range storing {
				rp.ErrorCode = b.fail("OffsetCommit", groupCode(err))
			}
		}
		// The commit also says whether the group has members, as it was before.
		if _, occupied := b.groups.membership(r.Group); occupied != commit.Occupied {
			b.groups.mark(r.Group)
		}
		return nil
	}
}

// offsetOf is one partition of a commit. t is nil when there is no such topic.
func offsetOf(t *topic, p *kmsg.OffsetCommitRequestTopicPartition) (cluster.GroupOffset, code) {
	if t == nil {
		return cluster.GroupOffset{}, codeUnknownTopicOrPartition
	}
	ref, ok := t.bucket(p.Partition)
	o := cluster.GroupOffset{Bucket: ref, Offset: mink.Offset(p.Offset), LeaderEpoch: mink.LeaderEpoch(max(p.LeaderEpoch, -1)), Metadata: text(p.Metadata)}
	switch {
	case !ok:
		return o, codeUnknownTopicOrPartition
	case len(o.Metadata) > cluster.MaxOffsetMetadata:
		return o, codeOffsetMetadataTooLarge
	case o.Offset < 0:
		return o, codeInvalidRequest
	}
	return o, codeNone
}

// mayCommit checks who commits and prepares the command.
func (gs *groups) mayCommit(r *kmsg.OffsetCommitRequest) (cluster.GroupCommit, code) {
	commit := cluster.GroupCommit{Group: r.Group}
	member, instance := r.MemberID, text(r.InstanceID)
	result, open, deleting := group.None, false, false
	c := gs.event(r.Group, false, 0, func(now time.Time, g *openGroup) []group.Reply {
		deleting = gs.mu.deleting[r.Group] > 0
		if g != nil {
			open = true
			result = g.CheckCommit(now, r.Generation, member, instance)
			commit.ProtocolType, commit.Occupied, commit.LoadedIndex = g.ProtocolType(), g.Occupied(), g.loaded
		}
		return nil
	})
	if deleting {
		return commit, codeCoordinatorLoading
	}
	if c != codeNone || open {
		if c == codeNone {
			c = code(result)
		}
		return commit, c
	}
	// No members: an outsider commits, or somebody whose group was forgotten.
	s, c := gs.seatOf(r.Group)
	if c != codeNone {
		return commit, c
	}
	commit.LoadedIndex = s.view.Index()
	if r.Generation < 0 {
		return commit, codeNone
	}
	unknown := gs.unknown(s, r.Group, member)
	switch _, known := s.view.Group(r.Group); {
	case known, unknown != group.UnknownMember:
		return commit, code(unknown)
	case r.Version >= commitUnknownGroup:
		return commit, codeGroupIDNotFound
	default:
		return commit, codeIllegalGeneration
	}
}

// offsetFetch answers what the applied metadata holds; nothing is pending, as
// there are no transactions.
func (b *broker) offsetFetch(ctx context.Context, r *kmsg.OffsetFetchRequest) (*kmsg.OffsetFetchResponse, error) {
	tctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	resp := kmsg.NewPtrOffsetFetchResponse()
	seen := map[wantedOffset]struct{}{}
	if r.Version >= fetchGroups {
		for i := range r.Groups {
			g := &r.Groups[i]
			rg := kmsg.NewOffsetFetchResponseGroup()
			rg.Group = g.Group
			all := g.Topics == nil
			if all && !firstTime(seen, wantedOffset{group: g.Group, partition: -1}) {
				continue
			}
			s, c := b.groups.lasting(tctx, g.Group)
			if c == codeNone {
				rg.Topics = b.committed(s.view, g.Group, g.Topics, all, seen)
				c = b.groups.still(s, c)
			}
			if rg.ErrorCode = b.fail("OffsetFetch", c); c != codeNone {
				rg.Topics = nil
			}
			resp.Groups = append(resp.Groups, rg)
		}
		return resp, ctx.Err()
	}
	wanted := make([]kmsg.OffsetFetchRequestGroupTopic, len(r.Topics))
	for i, t := range r.Topics {
		wanted[i] = kmsg.NewOffsetFetchRequestGroupTopic()
		wanted[i].Topic, wanted[i].Partitions = t.Topic, t.Partitions
	}
	s, c := b.groups.lasting(tctx, r.Group)
	var found []kmsg.OffsetFetchResponseGroupTopic
	if c == codeNone {
		found = b.committed(s.view, r.Group, wanted, r.Topics == nil && r.Version >= fetchAllTopics, seen)
		c = b.groups.still(s, c)
	}
	if c != codeNone {
		found = nil
		resp.ErrorCode = b.fail("OffsetFetch", c)
		if r.Version < fetchAllTopics { // has no place for it
			found = uncommitted(r.Group, wanted, c, map[wantedOffset]struct{}{})
		}
	}
	for _, t := range found {
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, ctx.Err()
}

// settled waits until no commit of the group is between its check and the view: those of
// members of an earlier generation were checked before this one began, and would come
// behind what a member of this one reads and commits, or be taken back by it.
func (gs *groups) settled(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, groupSettleWait)
	defer cancel()
	done, err := gs.commitTurn(ctx, name)
	if err != nil {
		return err
	}
	done() // who had the turn has a place now
	return gs.backend.SettleGroup(ctx, name)
}

// lasting is a view of a group's offsets, with all that was accepted before, that do not
// expire while the group has members. The metadata hear of the first member from the side: what this reads is
// only given out once they did, or its offsets could go under a member that read
// from them.
func (gs *groups) lasting(ctx context.Context, name string) (seat, code) {
	s, c := gs.seatOf(name)
	if c != codeNone {
		return s, c
	}
	if err := gs.settled(ctx, name); err != nil {
		return s, gs.putOff(name, "commits of its group have no verdict yet", err)
	}
	if s, c = gs.seatOf(name); c != codeNone {
		return s, c
	}
	info, known := s.view.Group(name)
	protocolType, occupied := gs.membership(name)
	if !known || info.Occupied || !occupied {
		return s, codeNone
	}
	err := gs.backend.MarkGroup(ctx, name, protocolType, true)
	if _, occupied = gs.membership(name); !occupied {
		gs.mark(name)
	}
	if err != nil {
		return s, gs.putOff(name, "the metadata were not told that its group has members", err)
	}
	return gs.seatOf(name)
}

// putOff is what a consumer is told that cannot have its offsets now: to look for the
// coordinator, or the one other code that all of them try again after.
func (gs *groups) putOff(name, why string, err error) code {
	if c := groupCode(err); c == codeNotCoordinator {
		return c
	}
	gs.reports.Do(func() {
		gs.log.Warn("a consumer is put off: "+why, "group", name, "error", err)
	})
	return codeCoordinatorLoading
}

// wantedOffset is what an OffsetFetch may name once; partition -1: everything.
type wantedOffset struct {
	group, topic string
	partition    int32
}

// firstTime reports that a request has not named x before. What it names again is
// not answered again: a small request could ask for a huge answer.
func firstTime[K comparable](seen map[K]struct{}, x K) bool {
	if _, again := seen[x]; again {
		return false
	}
	seen[x] = struct{}{}
	return true
}

// noOffset is a partition without a committed offset; that is no error.
func noOffset(partition int32, c code) kmsg.OffsetFetchResponseGroupTopicPartition {
	p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = partition, -1, -1, new(string), int16(c)
	return p
}

func uncommitted(group string, wanted []kmsg.OffsetFetchRequestGroupTopic, c code, seen map[wantedOffset]struct{}) []kmsg.OffsetFetchResponseGroupTopic {
	var out []kmsg.OffsetFetchResponseGroupTopic
	for _, w := range wanted {
		rt := kmsg.NewOffsetFetchResponseGroupTopic()
		rt.Topic = w.Topic
		for _, p := range w.Partitions {
			if firstTime(seen, wantedOffset{group, w.Topic, p}) {
				rt.Partitions = append(rt.Partitions, noOffset(p, c))
			}
		}
		out = append(out, rt)
	}
	return out
}

// committed is the group's offsets of the wanted partitions, or all that it has.
func (b *broker) committed(v *cluster.State, name string, wanted []kmsg.OffsetFetchRequestGroupTopic, all bool, seen map[wantedOffset]struct{}) []kmsg.OffsetFetchResponseGroupTopic {
	if all {
		return b.allCommitted(v, name)
	}
	out := uncommitted(name, wanted, codeNone, seen)
	for i := range out {
		t := b.topicByName(v, out[i].Topic)
		if t == nil {
			continue
		}
		for j := range out[i].Partitions {
			p := &out[i].Partitions[j]
			ref, ok := t.bucket(p.Partition)
			if !ok {
				continue
			}
			if o, found := v.GroupOffset(name, ref); found {
				p.Offset, p.LeaderEpoch, p.Metadata = int64(o.Offset), int32(o.LeaderEpoch), &o.Metadata
			}
		}
	}
	return out
}

func (b *broker) allCommitted(v *cluster.State, name string) []kmsg.OffsetFetchResponseGroupTopic {
	var out []kmsg.OffsetFetchResponseGroupTopic
	var last *topic
	for ref, o := range v.GroupOffsets(name) { // by table
		if last == nil || last.table.ID != ref.Table {
			last = nil
			if t, ok := v.Table(ref.Table); ok {
				last = b.asTopic(v, t, b.topicName(t))
			}
			if last == nil {
				continue // not Kafka's to see
			}
			rt := kmsg.NewOffsetFetchResponseGroupTopic()
			rt.Topic = last.name
			out = append(out, rt)
		}
		p := noOffset(ref.Index, codeNone)
		p.Offset, p.LeaderEpoch, p.Metadata = int64(o.Offset), int32(o.LeaderEpoch), &o.Metadata
		rt := &out[len(out)-1]
		rt.Partitions = append(rt.Partitions, p)
	}
	return out
}

// offsetDelete forgets offsets of partitions that no member reads.
func (b *broker) offsetDelete(ctx context.Context, r *kmsg.OffsetDeleteRequest) (*kmsg.OffsetDeleteResponse, error) {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	s, c := b.groups.seatOf(r.Group)
	var read map[string]struct{}
	everything := false
	if c == codeNone {
		info, open := b.groups.describe(r.Group)
		if _, known := s.view.Group(r.Group); !known && !open {
			c = codeGroupIDNotFound
		} else if len(info.Members) > 0 {
			if info.ProtocolType != consumerProtocol {
				c = codeNonEmptyGroup
			}
			read, everything = b.groups.reading(r.Group)
		}
	}
	if resp.ErrorCode = b.fail("OffsetDelete", c); c != codeNone {
		return resp, nil
	}
	var buckets []mink.BucketRef
	var done []*kmsg.OffsetDeleteResponseTopicPartition
	for _, t := range r.Topics {
		rt := kmsg.NewOffsetDeleteResponseTopic()
		rt.Topic = t.Topic
		rt.Partitions = make([]kmsg.OffsetDeleteResponseTopicPartition, len(t.Partitions))
		found := b.topicByName(s.view, t.Topic)
		_, subscribed := read[t.Topic]
		for j, p := range t.Partitions {
			rp := &rt.Partitions[j]
			*rp = kmsg.NewOffsetDeleteResponseTopicPartition()
			rp.Partition = p.Partition
			var ref mink.BucketRef
			ok := false
			if found != nil {
				ref, ok = found.bucket(p.Partition)
			}
			switch {
			case !ok:
				rp.ErrorCode = b.fail("OffsetDelete", codeUnknownTopicOrPartition)
			case subscribed || everything:
				rp.ErrorCode = b.fail("OffsetDelete", codeGroupSubscribed)
			default:
				buckets, done = append(buckets, ref), append(done, rp)
			}
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(buckets) == 0 {
		return resp, nil
	}
	tctx, cancel := b.timeout(ctx, 0)
	defer cancel()
	err := b.backend.DeleteGroupOffsets(tctx, r.Group, buckets)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil && !errors.Is(err, mink.ErrNotExist) { // it has no offsets at all
		for _, rp := range done {
			rp.ErrorCode = b.fail("OffsetDelete", groupCode(err))
		}
	}
	return resp, nil
}

// reading is the topics that a group's members subscribe to; everything when one
// cannot be read.
func (gs *groups) reading(name string) (topics map[string]struct{}, everything bool) {
	protocolType, all := gs.metadataOf(name)
	topics = map[string]struct{}{}
	for _, metadata := range all {
		of, ok := subscription(protocolType, metadata)
		if !ok {
			return nil, true
		}
		for t := range of {
			topics[t] = struct{}{}
		}
	}
	return topics, false
}

// metadataOf is what a group's members said, to be read without the lock: it may be
// many MB, and every group has the same one.
func (gs *groups) metadataOf(name string) (protocolType string, all [][]byte) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.mu.open[name]
	if g == nil {
		return "", nil
	}
	return g.ProtocolType(), slices.Collect(g.AllMetadata())
}
