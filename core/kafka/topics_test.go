package kafka

import (
	"context"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/schema"
)

func metadataFor(version int16, create bool, names ...string) *kmsg.MetadataRequest {
	r := kmsg.NewPtrMetadataRequest()
	r.Version, r.AllowAutoTopicCreation = version, create
	for _, n := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(n)
		r.Topics = append(r.Topics, t)
	}
	return r
}

// Case autocreate_immediate: created in the same answer with a leader, and
// usable at once; not when the client or the server says no, and never by
// Produce, Fetch or ListOffsets.
func TestAutoCreate(t *testing.T) {
	s := startServer(t, func(c *Config) { c.DefaultPartitions = 3 })
	c := dial(t, s.addr)
	no := metadataFor(4, false, "new")
	if got := c.call(no).(*kmsg.MetadataResponse).Topics[0]; got.ErrorCode != 3 {
		t.Fatalf("not allowed: %+v", got)
	}
	for _, r := range []kmsg.Request{produceTo(9, "new", map[int32][]byte{0: batch("a")}), fetchFrom(12, "new", [16]byte{}, 0)} {
		c.call(r)
	}
	if _, ok := s.node.View().TableByName("kafka", "new"); ok {
		t.Fatal("created though nobody allowed it")
	}
	yes, p := metadataFor(4, true, "new"), produceTo(9, "new", map[int32][]byte{2: batch("a")})
	c.write(append(frameOf(yes, 1), frameOf(p, 2)...))
	m := c.receive(yes, 1).(*kmsg.MetadataResponse)
	if got := m.Topics[0]; got.ErrorCode != 0 || len(got.Partitions) != 3 || got.Partitions[2].Leader != 1 || got.Partitions[2].ErrorCode != 0 {
		t.Fatalf("created: %+v", got)
	}
	if len(m.Brokers) != 1 || m.Brokers[0].NodeID != 1 || m.ControllerID != 1 {
		t.Fatalf("brokers %+v, controller %d", m.Brokers, m.ControllerID)
	}
	if got := produced(t, c.receive(p, 2)); got.ErrorCode != 0 {
		t.Fatalf("produce in the same write: %+v", got)
	}
	// Versions before 4 always allow.
	if got := c.call(metadataFor(1, false, "older")).(*kmsg.MetadataResponse).Topics[0]; got.ErrorCode != 0 {
		t.Fatalf("v1: %+v", got)
	}
	for name, want := range map[string]int16{"__internal": 17, "bad name": 17, "": 17, strings.Repeat("x", 250): 17, "ol_der.x": 0} {
		if got := c.call(metadataFor(4, true, name)).(*kmsg.MetadataResponse).Topics[0]; got.ErrorCode != want {
			t.Errorf("%q: %d, want %d", name, got.ErrorCode, want)
		}
	}
	off, node, _ := newTestBroker(t, func(c *Config) { c.AutoCreateTopics = false })
	if got := ask(t, off, metadataFor(4, true, "new")).(*kmsg.MetadataResponse).Topics[0]; got.ErrorCode != 3 {
		t.Errorf("server flag off: %+v", got)
	}
	if _, ok := node.View().TableByName("kafka", "new"); ok {
		t.Error("created though the server flag is off")
	}
}

func table(t testing.TB, n *fakeNode, db, name string, typed bool) {
	t.Helper()
	d := &schema.Descriptor{Database: db, Table: name, Schema: schema.KafkaTopicSchema(), BucketCount: 1}
	if typed {
		d.Schema = schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}}}
	}
	d, err := d.Normalize()
	if err == nil {
		err = n.CreateDatabase(context.Background(), db)
	}
	if err == nil {
		_, err = n.CreateTable(context.Background(), d, false)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Names: kafka.<topic> first, then db.table; typed tables are hidden.
func TestTopicNames(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	table(t, node, "kafka", "plain", false)
	table(t, node, "kafka", "typed", true)
	table(t, node, "kafka", "shop.orders", false)
	table(t, node, "shop", "orders", false) // shadowed by the one above
	table(t, node, "shop", "visits.web", false)
	table(t, node, "shop", "typed", true)
	var all []string
	for _, topic := range ask(t, b, metadataFor(9, false)).(*kmsg.MetadataResponse).Topics {
		all = append(all, *topic.Topic)
	}
	if got, want := strings.Join(all, " "), "plain shop.orders shop.visits.web"; got != want {
		t.Errorf("all topics: %s, want %s", got, want)
	}
	for name, want := range map[string]int16{"plain": 0, "typed": 3, "shop.orders": 0, "shop.visits.web": 0, "shop.typed": 3, "kafka.plain": 3} {
		if got := ask(t, b, metadataFor(9, false, name)).(*kmsg.MetadataResponse).Topics[0].ErrorCode; got != want {
			t.Errorf("%s: error %d, want %d", name, got, want)
		}
	}
	none := kmsg.NewPtrMetadataRequest()
	none.Version, none.Topics = 9, []kmsg.MetadataRequestTopic{}
	if got := ask(t, b, none).(*kmsg.MetadataResponse).Topics; len(got) != 0 {
		t.Errorf("an empty list means none: %d topics", len(got))
	}
	none.Version = 0
	if got := ask(t, b, none).(*kmsg.MetadataResponse).Topics; len(got) != 3 {
		t.Errorf("in v0 an empty list means all: %d topics", len(got))
	}
}

func TestCreateAndDeleteTopics(t *testing.T) {
	b, node, _ := newTestBroker(t, func(c *Config) { c.DefaultPartitions = 4 })
	node.topic("old_topic", 1)
	table(t, node, "shop", "orders", false)
	type want struct {
		code       int16
		partitions int32
	}
	create := func(name string, partitions int32, factor int16, change func(*kmsg.CreateTopicsRequest)) (want, *kmsg.CreateTopicsResponseTopic) {
		r := kmsg.NewPtrCreateTopicsRequest()
		r.Version = 7
		ct := kmsg.NewCreateTopicsRequestTopic()
		ct.Topic, ct.NumPartitions, ct.ReplicationFactor = name, partitions, factor
		r.Topics = append(r.Topics, ct)
		if change != nil {
			change(r)
		}
		got := ask(t, b, r).(*kmsg.CreateTopicsResponse).Topics[0]
		if (got.ErrorCode == 0) != (got.ErrorMessage == nil) {
			t.Errorf("%s: error %d with message %v", name, got.ErrorCode, got.ErrorMessage)
		}
		return want{got.ErrorCode, got.NumPartitions}, &got
	}
	config := func(name, value string) func(*kmsg.CreateTopicsRequest) {
		return func(r *kmsg.CreateTopicsRequest) {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = name, &value
			r.Topics[0].Configs = append(r.Topics[0].Configs, c)
		}
	}
	assign := func(parts ...int32) func(*kmsg.CreateTopicsRequest) {
		return func(r *kmsg.CreateTopicsRequest) {
			for _, p := range parts {
				a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
				a.Partition, a.Replicas = p, []int32{1, 2}
				r.Topics[0].ReplicaAssignment = append(r.Topics[0].ReplicaAssignment, a)
			}
		}
	}
	for _, c := range []struct {
		name       string
		partitions int32
		factor     int16
		change     func(*kmsg.CreateTopicsRequest)
		want       want
	}{
		{"a", 2, 3, nil, want{0, 2}},
		{"a", 2, 3, nil, want{36, -1}},
		{"b", -1, -1, nil, want{0, 4}},
		{"c", 0, 1, nil, want{37, -1}},
		{"c", 5000, 1, nil, want{37, -1}},
		{"c", 1, 0, nil, want{38, -1}},
		{"c", 1, 1, config("nonsense", "1"), want{40, -1}},
		{"c", 1, 1, config("retention.ms", "soon"), want{40, -1}},
		{"c", 1, 1, config("cleanup.policy", "compacted"), want{40, -1}},
		{"compacted", 1, 1, config("cleanup.policy", "compact"), want{0, 1}},
		{"c", 1, 1, config("retention.ms", "1000"), want{0, 1}},
		{"d", -1, -1, assign(1, 0), want{0, 2}},
		{"e", -1, -1, assign(0, 2), want{39, -1}},
		{"e", 1, 1, assign(0), want{42, -1}},
		{"e", 1, 1, func(r *kmsg.CreateTopicsRequest) { r.Topics = append(r.Topics, r.Topics[0]) }, want{42, -1}},
		{"e", 1, 1, func(r *kmsg.CreateTopicsRequest) { r.ValidateOnly = true }, want{0, 1}},
		{"__e", 1, 1, nil, want{17, -1}},
		{"old.topic", 1, 1, nil, want{17, -1}},
		{"shop.orders", 1, 1, nil, want{36, -1}},
		{"shop.other", 1, 1, nil, want{17, -1}},
	} {
		if got, full := create(c.name, c.partitions, c.factor, c.change); got != c.want {
			t.Errorf("create %+v: %+v, want %+v", c, got, full)
		}
	}
	if _, ok := node.View().TableByName("kafka", "e"); ok {
		t.Error("ValidateOnly created a topic")
	}
	_, full := create("f", 1, 1, config("retention.ms", "86400000"))
	found := map[string]string{}
	for _, c := range full.Configs {
		found[c.Name] = *c.Value
		if (c.Source == int8(kmsg.ConfigSourceDynamicTopicConfig)) != (c.Name == "retention.ms") {
			t.Errorf("config %s has source %d", c.Name, c.Source)
		}
	}
	if found["retention.ms"] != "86400000" || found["cleanup.policy"] != "delete" || found["max.message.bytes"] != "1048588" {
		t.Errorf("configs: %v", found)
	}
	if full.TopicID != node.topicID("f") {
		t.Error("wrong topic id")
	}

	id := node.topicID("a")
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.Version = 6
	del.Topics = append(del.Topics, kmsg.DeleteTopicsRequestTopic{TopicID: id}, kmsg.DeleteTopicsRequestTopic{TopicID: id},
		kmsg.DeleteTopicsRequestTopic{Topic: kmsg.StringPtr("b")}, kmsg.DeleteTopicsRequestTopic{Topic: kmsg.StringPtr("nope")},
		kmsg.DeleteTopicsRequestTopic{Topic: kmsg.StringPtr("c"), TopicID: id})
	var codes []int16
	for _, out := range ask(t, b, del).(*kmsg.DeleteTopicsResponse).Topics {
		codes = append(codes, out.ErrorCode)
	}
	if want := []int16{0, 100, 0, 3, 42}; !equal(codes, want) {
		t.Errorf("delete: %v, want %v", codes, want)
	}
	if got, _ := create("a", 1, 1, nil); got.code != 0 || node.topicID("a") == id {
		t.Errorf("create again: %+v, with the old id: %v", got, node.topicID("a") == id)
	}
}

func equal(a, b []int16) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestInitProducerID(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	seen := map[int64]bool{}
	for v := int16(0); v <= 5; v++ {
		r := kmsg.NewPtrInitProducerIDRequest()
		r.Version = v
		got := ask(t, b, r).(*kmsg.InitProducerIDResponse)
		if got.ErrorCode != 0 || got.ProducerEpoch != 0 || seen[got.ProducerID] {
			t.Errorf("v%d: %+v", v, got)
		}
		seen[got.ProducerID] = true
		r.TransactionalID = kmsg.StringPtr("tx")
		if got := ask(t, b, r).(*kmsg.InitProducerIDResponse); got.ErrorCode != 53 || got.ProducerID != -1 {
			t.Errorf("transactional v%d: %+v", v, got)
		}
	}
}

// Transactions do not exist: their requests are not advertised, and what clients
// ask first gets a code that every client takes for final.
func TestTransactionsAreFatal(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	for key := int16(24); key <= 28; key++ {
		if _, ok := findAPI(key); ok {
			t.Errorf("%s is advertised", kmsg.NameForKey(key))
		}
	}
	for v := int16(1); v <= 6; v++ {
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.Version, r.CoordinatorType, r.CoordinatorKey, r.CoordinatorKeys = v, coordinatorTransaction, "tx", []string{"tx"}
		got := ask(t, b, r).(*kmsg.FindCoordinatorResponse)
		c := got.ErrorCode
		if v >= 4 {
			c = got.Coordinators[0].ErrorCode
		}
		if c != 53 {
			t.Errorf("FindCoordinator v%d: error %d, want 53", v, c)
		}
	}
}
