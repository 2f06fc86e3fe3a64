package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

func joinRequest(v int16, group, member string) *kmsg.JoinGroupRequest {
	r := kmsg.NewPtrJoinGroupRequest()
	r.Version, r.Group, r.MemberID, r.ProtocolType = v, group, member, "consumer"
	r.SessionTimeoutMillis, r.RebalanceTimeoutMillis = 10_000, 20_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", consumes("t")
	r.Protocols = append(r.Protocols, p)
	return r
}

// consumes is a consumer's metadata.
func consumes(topics ...string) []byte {
	m := kmsg.NewConsumerMemberMetadata()
	m.Version, m.Topics = 1, topics
	return m.AppendTo(nil)
}

func syncRequest(v int16, group, member string, generation int32, assignments map[string]string) *kmsg.SyncGroupRequest {
	r := kmsg.NewPtrSyncGroupRequest()
	r.Version, r.Group, r.MemberID, r.Generation = v, group, member, generation
	for id, a := range assignments {
		ra := kmsg.NewSyncGroupRequestGroupAssignment()
		ra.MemberID, ra.MemberAssignment = id, []byte(a)
		r.GroupAssignment = append(r.GroupAssignment, ra)
	}
	return r
}

func heartbeatRequest(v int16, group, member string, generation int32) *kmsg.HeartbeatRequest {
	r := kmsg.NewPtrHeartbeatRequest()
	r.Version, r.Group, r.MemberID, r.Generation = v, group, member, generation
	return r
}

func leaveRequest(v int16, group, member string) *kmsg.LeaveGroupRequest {
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Version, r.Group, r.MemberID = v, group, member
	if v >= leaveBatches {
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = member
		r.Members = append(r.Members, m)
	}
	return r
}

func commitRequest(v int16, group, member string, generation int32, topic string, offsets ...int64) *kmsg.OffsetCommitRequest {
	r := kmsg.NewPtrOffsetCommitRequest()
	r.Version, r.Group, r.MemberID, r.Generation = v, group, member, generation
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = topic
	for i, o := range offsets {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.Metadata = int32(i), o, kmsg.StringPtr("meta")
		if v >= 6 {
			p.LeaderEpoch = 7
		}
		t.Partitions = append(t.Partitions, p)
	}
	r.Topics = append(r.Topics, t)
	return r
}

// offsetsRequest asks for partitions of a topic; without partitions, for all that
// the group has.
func offsetsRequest(v int16, group, topic string, partitions ...int32) *kmsg.OffsetFetchRequest {
	r := kmsg.NewPtrOffsetFetchRequest()
	r.Version, r.Group = v, group
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	if len(partitions) > 0 {
		t := kmsg.NewOffsetFetchRequestTopic()
		t.Topic, t.Partitions = topic, partitions
		r.Topics = append(r.Topics, t)
		gt := kmsg.NewOffsetFetchRequestGroupTopic()
		gt.Topic, gt.Partitions = topic, partitions
		g.Topics = append(g.Topics, gt)
	}
	if v >= fetchGroups {
		r.Groups = append(r.Groups, g)
	}
	return r
}

// groupRequestsFor is requestsFor of the consumer groups' keys.
func groupRequestsFor(key, v int16) []kmsg.Request {
	switch key {
	case keyFindCoordinator:
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.CoordinatorKey, r.CoordinatorKeys = "g", []string{"g", "h"}
		txn := kmsg.NewPtrFindCoordinatorRequest()
		txn.CoordinatorKey, txn.CoordinatorKeys, txn.CoordinatorType = "x", []string{"x"}, 1
		return []kmsg.Request{r, txn}
	case keyJoinGroup:
		static := joinRequest(v, "s", "")
		static.InstanceID = kmsg.StringPtr("i")
		bad := joinRequest(v, "g", "")
		bad.SessionTimeoutMillis = 1
		return []kmsg.Request{joinRequest(v, "g", ""), static, joinRequest(v, "h", "ghost"), bad}
	case keySyncGroup:
		return []kmsg.Request{syncRequest(v, "g", "ghost", 1, map[string]string{"ghost": "x"})}
	case keyHeartbeat:
		return []kmsg.Request{heartbeatRequest(v, "g", "ghost", 1)}
	case keyLeaveGroup:
		return []kmsg.Request{leaveRequest(v, "g", "ghost")}
	case keyOffsetCommit:
		return []kmsg.Request{commitRequest(v, "g", "", -1, "t", 5, 6), commitRequest(v, "g", "ghost", 3, "t", 5), commitRequest(v, "g", "", -1, "missing", 5)}
	case keyOffsetFetch:
		return []kmsg.Request{offsetsRequest(v, "g", "t", 0, 1, 9), offsetsRequest(v, "nope", "missing", 0), offsetsRequest(v, "g", "")}
	case keyDescribeGroups:
		r := kmsg.NewPtrDescribeGroupsRequest()
		r.Groups = []string{"g", "", "nope"}
		return []kmsg.Request{r}
	case keyListGroups:
		r := kmsg.NewPtrListGroupsRequest()
		filtered := kmsg.NewPtrListGroupsRequest()
		filtered.StatesFilter, filtered.TypesFilter = []string{"stable"}, []string{"Classic"}
		return []kmsg.Request{r, filtered}
	case keyDeleteGroups:
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Groups = []string{"g", "nope"}
		return []kmsg.Request{r}
	case keyOffsetDelete:
		r := kmsg.NewPtrOffsetDeleteRequest()
		r.Group = "g"
		return []kmsg.Request{r}
	}
	return nil
}
