package kafka

import (
	"iter"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// topic is a table as Kafka sees it: its one partition's buckets are the
// topic's partitions.
type topic struct {
	name    string
	table   *cluster.Table
	part    mink.PartitionID
	streams []mink.StreamID
}

// bucket names partition p; false when the topic has no such partition.
func (t *topic) bucket(p int32) (mink.BucketRef, bool) {
	if p < 0 || int(p) >= len(t.streams) {
		return mink.BucketRef{}, false
	}
	return mink.BucketRef{Table: t.table.ID, Partition: t.part, Index: p}, true
}

// topicCache remembers which tables are topics: a table value is immutable, so
// its pointer is its version.
type topicCache struct {
	mu struct {
		sync.RWMutex
		known map[mink.TableID]topicness
	}
}

type topicness struct {
	table   *cluster.Table
	isTopic bool
}

// topicCacheMax bounds what dropped tables leave behind.
const topicCacheMax = 1 << 18

func (c *topicCache) isTopic(t *cluster.Table) bool {
	c.mu.RLock()
	k, ok := c.mu.known[t.ID]
	c.mu.RUnlock()
	if ok && k.table == t {
		return k.isTopic
	}
	k = topicness{t, t.Descriptor.IsKafkaTopic()}
	c.mu.Lock()
	if c.mu.known == nil || len(c.mu.known) >= topicCacheMax {
		c.mu.known = make(map[mink.TableID]topicness)
	}
	c.mu.known[t.ID] = k
	c.mu.Unlock()
	return k.isTopic
}

// asTopic is the table as a topic, nil when it is hidden from Kafka.
func (b *broker) asTopic(v *cluster.State, t *cluster.Table, name string) *topic {
	if !b.topics.isTopic(t) {
		return nil
	}
	for p := range v.Partitions(t.ID) {
		return &topic{name: name, table: t, part: p.ID, streams: p.Streams}
	}
	return nil
}

// topicByName resolves <database>.<name> first, then name as db.table; nil: no
// such topic.
func (b *broker) topicByName(v *cluster.State, name string) *topic {
	if t, ok := v.TableByName(b.cfg.Database, name); ok {
		if found := b.asTopic(v, t, name); found != nil {
			return found
		}
	}
	for db, table := range splits(name) {
		if t, ok := v.TableByName(db, table); ok && db != b.cfg.Database {
			if found := b.asTopic(v, t, name); found != nil {
				return found
			}
		}
	}
	return nil
}

// splits yields every reading of a name as database.table.
func splits(name string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i := range len(name) {
			if name[i] == '.' && !yield(name[:i], name[i+1:]) {
				return
			}
		}
	}
}

// topicByID finds a topic by its id; nil: no such topic.
func (b *broker) topicByID(v *cluster.State, id [16]byte) *topic {
	t, ok := v.TableByUUID(id)
	if !ok {
		return nil
	}
	return b.asTopic(v, t, b.topicName(t))
}

func (b *broker) topicName(t *cluster.Table) string {
	if t.Descriptor.Database == b.cfg.Database {
		return t.Descriptor.Table
	}
	return t.Descriptor.Database + "." + t.Descriptor.Table
}

// allTopics are the visible topics; one whose name another one shadows is left out.
func (b *broker) allTopics(v *cluster.State) iter.Seq[*topic] {
	return func(yield func(*topic) bool) {
		for t := range v.AllTables() {
			found := b.asTopic(v, t, b.topicName(t))
			if found == nil {
				continue
			}
			if first := b.topicByName(v, found.name); first == nil || first.table != t {
				continue
			}
			if !yield(found) {
				return
			}
		}
	}
}

// checkTopicName applies Kafka's rules, and ours: names that begin with two
// underscores are reserved.
func checkTopicName(name string) *topicError {
	switch {
	case name == "":
		return topicErrorf(codeInvalidTopic, "the topic name is empty")
	case name == "." || name == "..":
		return topicErrorf(codeInvalidTopic, "topic name %q is not allowed", name)
	case len(name) > schema.MaxNameLength:
		return topicErrorf(codeInvalidTopic, "a topic name of %d characters is longer than %d", len(name), schema.MaxNameLength)
	case strings.HasPrefix(name, "__"):
		return topicErrorf(codeInvalidTopic, "topic names that begin with \"__\" are reserved")
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return topicErrorf(codeInvalidTopic, "topic name %q has %q: letters, digits, '.', '_' and '-' are allowed", name, r)
		}
	}
	return nil
}

// checkNewTopic refuses a name that would mean two things: it exists, it reads
// as a table of another database, or it differs from an existing topic only in
// '.' and '_', which metric names cannot tell apart.
func (b *broker) checkNewTopic(v *cluster.State, name string) *topicError {
	if err := checkTopicName(name); err != nil {
		return err
	}
	if b.topicByName(v, name) != nil {
		return topicErrorf(codeTopicExists, "topic %q already exists", name)
	}
	if _, ok := v.TableByName(b.cfg.Database, name); ok {
		return topicErrorf(codeTopicExists, "table %s.%s exists and is not a topic", b.cfg.Database, name)
	}
	for db, table := range splits(name) {
		if _, ok := v.Database(db); ok && table != "" {
			return topicErrorf(codeInvalidTopic, "topic name %q could also mean table %q of database %q", name, table, db)
		}
	}
	if !strings.ContainsAny(name, "._") {
		return nil
	}
	flat := strings.ReplaceAll(name, ".", "_")
	for t := range v.Tables(b.cfg.Database) {
		if other := t.Descriptor.Table; strings.ReplaceAll(other, ".", "_") == flat {
			return topicErrorf(codeInvalidTopic, "topic name %q collides with %q: '.' and '_' are the same in metric names", name, other)
		}
	}
	return nil
}

// endpoint is a node that Kafka clients can reach.
type endpoint struct {
	id   mink.NodeID
	host string
	port int32
	rack *string
}

func endpointOf(n cluster.Node) (endpoint, bool) {
	host, port, err := net.SplitHostPort(n.KafkaAddress)
	if err != nil || n.Sealed {
		return endpoint{}, false
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return endpoint{}, false
	}
	e := endpoint{id: n.ID, host: host, port: int32(p)}
	if n.Rack != "" {
		e.rack = &n.Rack
	}
	return e, true
}

func endpoints(v *cluster.State) []endpoint {
	var all []endpoint
	for _, n := range v.LiveNodes() {
		if e, ok := endpointOf(n); ok {
			all = append(all, e)
		}
	}
	return all
}

// leaderOf names who serves the stream. When its owner is gone, a live node is
// named all the same, the same one every time: some clients give up for good on
// a partition without a leader, but retry after "not leader". -1: no node at all.
func leaderOf(st plan.Stream, live []endpoint) (mink.NodeID, mink.LeaderEpoch) {
	for _, e := range live {
		if e.id == st.Owner.Node {
			return e.id, st.Owner.LeaderEpoch
		}
	}
	if len(live) == 0 {
		return -1, st.Owner.LeaderEpoch
	}
	return live[int(st.ID)%len(live)].id, st.Owner.LeaderEpoch
}
