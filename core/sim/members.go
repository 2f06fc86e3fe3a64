package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/fault/memnet"
	"github.com/mink-project/mink/sdk/mink"
)

// Members knows what members of consumer groups committed, and checks that none of it is
// taken back: who has a partition begins where the one before has ended, whatever becomes
// of the group's coordinator. Safe for concurrent use.
type Members struct {
	world *World

	mu          sync.Mutex
	told        map[place]int64 // the highest offset of which a commit was acknowledged
	commits     int             // acknowledged
	generations int             // that somebody read offsets in
}

// place is a group's offset of one partition of its topic.
type place struct {
	group     string
	partition int32
}

// NewMembers knows nothing.
func (w *World) NewMembers() *Members { return &Members{world: w, told: map[place]int64{}} }

// Commits is how many were acknowledged, and how many times a member began in a
// generation.
func (m *Members) Commits() (commits, generations int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits, m.generations
}

// Check compares what was acknowledged with the metadata. refs are the topic's partitions.
func (m *Members) Check(s *cluster.State, group string, refs []mink.BucketRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ref := range refs {
		told := m.told[place{group, ref.Index}]
		if o, ok := s.GroupOffset(group, ref); told > 0 && (!ok || int64(o.Offset) < told) {
			m.world.Broken("group %s: a commit of %d in partition %d was acknowledged, the metadata say %d (%t)", group, told, ref.Index, o.Offset, ok)
		}
	}
}

func (m *Members) acknowledged(at place, offset int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told[at] = max(m.told[at], offset)
	m.commits++
}

func (m *Members) all() map[place]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[place]int64, len(m.told))
	for at, offset := range m.told {
		out[at] = offset
	}
	return out
}

// WireMember is a member of a consumer group, over the network. It reads no records: from
// the committed offset on it commits higher ones, as fast as a consumer may. When it does
// not know what became of a commit it forgets who it was and joins anew, so that the
// next generation shuts that commit out; a client that sends a lower offset after a higher
// one, or goes on beside a commit that is still on its way, takes offsets back on any broker.
type WireMember struct {
	Name     string
	Group    string
	Topic    string        // in the listeners' database
	Count    int32         // partitions of the topic
	Session  time.Duration // and how long a rebalance may take
	Pause    time.Duration // mean between requests
	Patience time.Duration // how long it waits for an answer

	members    *Members
	host       *memnet.Host
	rng        *rand.Rand
	conn       *kafkaConn // to the coordinator; nil: unknown
	id         string     // "": none was given
	generation int32      // -1: none
	positions  map[int32]int64
	// low: it began below what was acknowledged, as a coordinator may tell it that has not
	// heard of its successor yet; none of its commits may be accepted.
	low string
}

const (
	groupProtocol       = "range"
	commitVersion int16 = 7
)

// Run is the member until ctx ends.
func (m *Members) Run(ctx context.Context, w *WireMember, seed uint64) {
	w.members, w.rng, w.generation = m, rand.New(rand.NewPCG(seed, 5)), -1
	w.host = m.world.net.Host("client-" + w.Name)
	defer w.host.End()
	defer w.drop()
	for ctx.Err() == nil {
		switch {
		case w.conn == nil:
			w.connect(ctx)
		case w.generation < 0:
			w.join(ctx)
		case w.rng.IntN(30) == 0:
			w.leave(ctx)
		case w.rng.IntN(2) == 0:
			w.heartbeat(ctx)
		default:
			w.commit(ctx)
		}
		t := time.NewTimer(time.Duration(w.rng.ExpFloat64() * float64(w.Pause)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (w *WireMember) drop() {
	if w.conn != nil {
		w.conn.close()
		w.conn = nil
	}
}

// ask waits for the coordinator's answer; without one it is looked for again.
func (w *WireMember) ask(ctx context.Context, patience time.Duration, version int16, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req.SetVersion(version)
	resp, err := w.conn.ask(ctx, req)
	if err != nil {
		w.drop()
	}
	return resp, err
}

func (w *WireMember) connect(ctx context.Context) {
	procs := w.members.world.Processes()
	if len(procs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.Patience)
	defer cancel()
	some, err := dialKafka(ctx, w.host, procs[w.rng.IntN(len(procs))].KafkaAddress())
	if err != nil {
		return
	}
	defer some.close()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey = w.Group
	req.SetVersion(2)
	resp, err := some.ask(ctx, req)
	if err != nil || resp.(*kmsg.FindCoordinatorResponse).ErrorCode != 0 {
		return
	}
	found := resp.(*kmsg.FindCoordinatorResponse)
	if conn, err := dialKafka(ctx, w.host, fmt.Sprintf("%s:%d", found.Host, found.Port)); err == nil {
		w.conn = conn
	}
}

// refused follows a code that is no success. All of them say that nothing was done, but
// those that commit does not leave to it.
func (w *WireMember) refused(code int16) {
	switch err := kerr.ErrorForCode(code); {
	case errors.Is(err, kerr.NotCoordinator), errors.Is(err, kerr.CoordinatorNotAvailable):
		w.drop()
	case errors.Is(err, kerr.UnknownMemberID):
		w.id, w.generation = "", -1
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.RebalanceInProgress):
		w.generation = -1
	case errors.Is(err, kerr.CoordinatorLoadInProgress):
	default:
		w.members.world.Broken("group %s: member %s is refused: %v", w.Group, w.Name, err)
		w.id, w.generation = "", -1
	}
}

// join becomes a member of the next generation, and reads its offsets.
func (w *WireMember) join(ctx context.Context) {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType = w.Group, w.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(w.Session.Milliseconds()), int32(w.Session.Milliseconds())
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name = groupProtocol
	p.Metadata = (&kmsg.ConsumerMemberMetadata{Topics: []string{w.Topic}}).AppendTo(nil)
	req.Protocols = append(req.Protocols, p)
	got, err := w.ask(ctx, 2*w.Session+w.Patience, 5, req)
	if err != nil {
		return
	}
	joined := got.(*kmsg.JoinGroupResponse)
	if errors.Is(kerr.ErrorForCode(joined.ErrorCode), kerr.MemberIDRequired) {
		w.id = joined.MemberID
		return
	}
	if joined.ErrorCode != 0 {
		w.refused(joined.ErrorCode)
		return
	}
	w.id = joined.MemberID
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = w.Group, w.id, joined.Generation
	if joined.LeaderID == w.id {
		sync.GroupAssignment = w.assign(joined.Members)
	}
	if got, err = w.ask(ctx, w.Session+w.Patience, 3, sync); err != nil {
		return
	}
	synced := got.(*kmsg.SyncGroupResponse)
	if synced.ErrorCode != 0 {
		w.refused(synced.ErrorCode)
		return
	}
	var mine kmsg.ConsumerMemberAssignment
	if err := mine.ReadFrom(synced.MemberAssignment); err != nil {
		w.members.world.Broken("group %s: the assignment of member %s cannot be read: %v", w.Group, w.Name, err)
		return
	}
	w.begin(ctx, joined.Generation, mine)
}

// assign gives the partitions to the members in turn.
func (w *WireMember) assign(members []kmsg.JoinGroupResponseMember) (all []kmsg.SyncGroupRequestGroupAssignment) {
	slices.SortFunc(members, func(a, b kmsg.JoinGroupResponseMember) int {
		return slices.Compare([]byte(a.MemberID), []byte(b.MemberID))
	})
	for i, m := range members {
		of := kmsg.NewConsumerMemberAssignmentTopic()
		of.Topic = w.Topic
		for p := int32(i); p < w.Count; p += int32(len(members)) {
			of.Partitions = append(of.Partitions, p)
		}
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID = m.MemberID
		a.MemberAssignment = (&kmsg.ConsumerMemberAssignment{Topics: []kmsg.ConsumerMemberAssignmentTopic{of}}).AppendTo(nil)
		all = append(all, a)
	}
	return all
}

// begin reads where the partitions stand.
func (w *WireMember) begin(ctx context.Context, generation int32, mine kmsg.ConsumerMemberAssignment) {
	positions := map[int32]int64{}
	w.low = ""
	for _, t := range mine.Topics {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group = w.Group
		of := kmsg.NewOffsetFetchRequestTopic()
		of.Topic, of.Partitions = t.Topic, t.Partitions
		req.Topics = append(req.Topics, of)
		told := w.members.all()
		got, err := w.ask(ctx, w.Session, 5, req)
		if err != nil {
			return
		}
		fetched := got.(*kmsg.OffsetFetchResponse)
		if fetched.ErrorCode != 0 {
			w.refused(fetched.ErrorCode)
			return
		}
		for _, t := range fetched.Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 {
					w.refused(p.ErrorCode)
					return
				}
				if at := told[place{w.Group, p.Partition}]; max(p.Offset, 0) < at {
					w.low = fmt.Sprintf("group %s: %d was acknowledged for partition %d, a member of generation %d was told to begin at %d, and commits", w.Group, at, p.Partition, generation, p.Offset)
				}
				positions[p.Partition] = max(p.Offset, 0)
			}
		}
	}
	w.generation, w.positions = generation, positions
	w.members.mu.Lock()
	w.members.generations++
	w.members.mu.Unlock()
}

func (w *WireMember) heartbeat(ctx context.Context) {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = w.Group, w.id, w.generation
	if got, err := w.ask(ctx, w.Patience, 3, req); err == nil && got.(*kmsg.HeartbeatResponse).ErrorCode != 0 {
		w.refused(got.(*kmsg.HeartbeatResponse).ErrorCode)
	}
}

// leave, or commit and leave at once, as a consumer does that ends.
func (w *WireMember) leave(ctx context.Context) {
	if len(w.positions) > 0 && w.rng.IntN(3) > 0 {
		w.conn.start(w.further())
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = w.Group, w.id
	_, _ = w.ask(ctx, w.Patience, 2, req)
	w.id, w.generation = "", -1
}

// further goes on in every partition; the request says so.
func (w *WireMember) further() kmsg.Request {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.SetVersion(commitVersion)
	req.Group, req.MemberID, req.Generation = w.Group, w.id, w.generation
	of := kmsg.NewOffsetCommitRequestTopic()
	of.Topic = w.Topic
	for p := range w.Count {
		at, mine := w.positions[p]
		if !mine {
			continue
		}
		w.positions[p] = at + 1 + w.rng.Int64N(9)
		part := kmsg.NewOffsetCommitRequestTopicPartition()
		part.Partition, part.Offset = p, w.positions[p]
		of.Partitions = append(of.Partitions, part)
	}
	req.Topics = append(req.Topics, of)
	return req
}

// commit goes on and waits for the answer.
func (w *WireMember) commit(ctx context.Context) {
	if len(w.positions) == 0 {
		w.heartbeat(ctx)
		return
	}
	got, err := w.ask(ctx, w.Patience, commitVersion, w.further())
	if err != nil {
		w.id, w.generation = "", -1
		return
	}
	for _, t := range got.(*kmsg.OffsetCommitResponse).Topics {
		for _, p := range t.Partitions {
			switch err := kerr.ErrorForCode(p.ErrorCode); {
			case err == nil:
				if w.low != "" {
					w.members.world.Broken("%s", w.low)
				}
				w.members.acknowledged(place{w.Group, p.Partition}, w.positions[p.Partition])
			case errors.Is(err, kerr.CoordinatorNotAvailable), errors.Is(err, kerr.RequestTimedOut), errors.Is(err, kerr.UnknownServerError):
				w.id, w.generation = "", -1 // it may be stored yet
				w.drop()
				return
			case errors.Is(err, kerr.UnknownTopicOrPartition):
				w.members.world.Broken("group %s: a commit of partition %d: %v", w.Group, p.Partition, err)
			default:
				w.refused(p.ErrorCode)
				return
			}
		}
	}
}
