package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// mayCreate reports whether answering r could create a topic.
func (b *broker) mayCreate(r *kmsg.MetadataRequest) bool {
	if !b.cfg.AutoCreateTopics || r.Version >= 4 && !r.AllowAutoTopicCreation {
		return false
	}
	v := b.backend.View()
	for i := range r.Topics {
		if n := r.Topics[i].Topic; n != nil && b.topicByName(v, *n) == nil {
			return true
		}
	}
	return false
}

func (b *broker) metadata(ctx context.Context, r *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	resp := kmsg.NewPtrMetadataResponse()
	all := r.Topics == nil || r.Version == 0 && len(r.Topics) == 0
	if !all && b.mayCreate(r) {
		if err := b.autoCreate(ctx, r); err != nil {
			return nil, err
		}
	}
	topics := b.lookup(ctx)
	v := topics.view
	live := endpoints(v)
	for _, e := range live {
		n := kmsg.NewMetadataResponseBroker()
		n.NodeID, n.Host, n.Port, n.Rack = int32(e.id), e.host, e.port, e.rack
		resp.Brokers = append(resp.Brokers, n)
	}
	resp.ClusterID = &b.cfg.ClusterID
	resp.ControllerID = int32(b.controller(v, live))
	if r.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = clusterOperations
	}
	if all {
		for t := range b.allTopics(v) {
			resp.Topics = append(resp.Topics, describe(v, t, live))
		}
	} else {
		resp.Topics = make([]kmsg.MetadataResponseTopic, 0, len(r.Topics))
		seen := make(map[topicKey]struct{}, len(r.Topics))
		for i := range r.Topics {
			if firstTime(seen, keyOf(&r.Topics[i])) {
				resp.Topics = append(resp.Topics, b.describeNamed(&topics, &r.Topics[i], live))
			}
		}
	}
	for i := range resp.Topics {
		if t := &resp.Topics[i]; r.IncludeTopicAuthorizedOperations && t.ErrorCode == 0 {
			t.AuthorizedOperations = topicOperations
		}
	}
	return resp, nil
}

// controller is a live node: every node can create topics, the coordinator is
// named so that admin clients agree.
func (b *broker) controller(v *cluster.State, live []endpoint) mink.NodeID {
	for _, e := range live {
		if e.id == v.Lease().Node {
			return e.id
		}
	}
	return b.backend.Self()
}

// topicKey is how a request names a topic: by its name, or else by its id.
type topicKey struct {
	name string
	id   [16]byte
}

func keyOf(t *kmsg.MetadataRequestTopic) topicKey {
	if t.Topic != nil {
		return topicKey{name: *t.Topic}
	}
	return topicKey{id: t.TopicID}
}

func (b *broker) describeNamed(topics *lookup, want *kmsg.MetadataRequestTopic, live []endpoint) kmsg.MetadataResponseTopic {
	missing := kmsg.NewMetadataResponseTopic()
	if want.Topic == nil {
		if t := topics.byID(want.TopicID, 0); t != nil {
			return describe(topics.view, t, live)
		}
		missing.TopicID = want.TopicID
		missing.ErrorCode = b.fail("Metadata", codeUnknownTopicID)
		return missing
	}
	if t := topics.byName(*want.Topic, 0); t != nil {
		return describe(topics.view, t, live)
	}
	c := codeUnknownTopicOrPartition
	if err := checkTopicName(*want.Topic); err != nil {
		c = err.code
	}
	missing.Topic = want.Topic
	missing.ErrorCode = b.fail("Metadata", c)
	return missing
}

// describe reports the leader as the only replica: durability is the object
// store's, whatever replication factor the topic was created with.
func describe(v *cluster.State, t *topic, live []endpoint) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID = &t.name, t.table.UUID
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(t.streams))
	ids := make([]int32, len(t.streams)) // each partition's slice of one
	for i, id := range t.streams {
		st, _ := v.Stream(id)
		leader, epoch := leaderOf(st, live)
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.LeaderEpoch = int32(i), int32(leader), int32(epoch)
		if leader < 0 {
			p.ErrorCode = int16(codeLeaderNotAvailable)
		} else {
			ids[i] = int32(leader)
			p.Replicas = ids[i : i+1 : i+1]
			p.ISR = p.Replicas
		}
		out.Partitions[i] = p
	}
	return out
}

// autoCreate creates the named topics that are missing. A topic that cannot be
// created is answered like any missing one; why goes to the log.
func (b *broker) autoCreate(ctx context.Context, r *kmsg.MetadataRequest) error {
	tctx, cancel := context.WithTimeout(ctx, b.cfg.QueryTimeout)
	defer cancel()
	v := b.backend.View()
	for i := range r.Topics {
		name := r.Topics[i].Topic
		if name == nil || b.topicByName(v, *name) != nil {
			continue
		}
		d, err := b.plannedTopic(*name, b.cfg.DefaultPartitions, nil)
		if err == nil {
			_, err = b.createTopic(tctx, d)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && err.code != codeTopicExists { // another client was first
			b.log.Warn("a topic that a client asked for was not created", "topic", *name, "error", err.why)
		}
		v = b.backend.View()
	}
	return nil
}

// waitReady waits until the buckets that this node leads can be used, so that
// the first Produce after the answer succeeds. Giving up is harmless: clients
// retry.
func (b *broker) waitReady(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.ReadyWait)
	defer cancel()
	for pause := time.Millisecond; !b.ready(name); pause = min(2*pause, 50*time.Millisecond) {
		if !wait(ctx, pause) {
			return
		}
	}
}

func (b *broker) ready(name string) bool {
	v := b.backend.View()
	t := b.topicByName(v, name)
	if t == nil {
		return false
	}
	for i, id := range t.streams {
		st, ok := v.Stream(id)
		if !ok || st.Owner.Node == 0 {
			return false
		}
		if st.Owner.Node != b.backend.Self() {
			continue
		}
		ref, _ := t.bucket(int32(i))
		if _, err := b.backend.Log(ref); errors.Is(err, mink.ErrUnavailable) {
			return false
		}
	}
	return true
}
