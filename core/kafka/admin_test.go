package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

func configsIn(t testing.TB, r kmsg.Response) (*kmsg.DescribeConfigsResponseResource, map[string]kmsg.DescribeConfigsResponseResourceConfig) {
	t.Helper()
	res := &r.(*kmsg.DescribeConfigsResponse).Resources[0]
	m := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
	for _, c := range res.Configs {
		m[c.Name] = c
	}
	if len(m) != len(res.Configs) {
		t.Errorf("a config comes twice")
	}
	return res, m
}

// Case describe_configs (redpanda#978): every key that tools read, with source,
// synonyms, type and text.
func TestDescribeTopicConfigs(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	if err := firstAlter(t, b, alterConfigs(2, ofTopic, "t", "retention.ms=86400000", "max.message.bytes=2000000")); err != "" {
		t.Fatal(err)
	}
	type want struct {
		value  string
		kind   kmsg.ConfigType
		source kmsg.ConfigSource
		also   string // the synonyms
	}
	wanted := map[string]want{
		"cleanup.policy":                  {"delete", kmsg.ConfigTypeList, 5, "log.cleanup.policy=delete/5"},
		"retention.ms":                    {"86400000", kmsg.ConfigTypeLong, 1, "retention.ms=86400000/1 log.retention.ms=604800000/5"},
		"retention.bytes":                 {"-1", kmsg.ConfigTypeLong, 5, "log.retention.bytes=-1/5"},
		"segment.bytes":                   {"1073741824", kmsg.ConfigTypeInt, 5, "log.segment.bytes=1073741824/5"},
		"max.message.bytes":               {"2000000", kmsg.ConfigTypeInt, 1, "max.message.bytes=2000000/1 message.max.bytes=1048588/5"},
		"min.insync.replicas":             {"1", kmsg.ConfigTypeInt, 5, "min.insync.replicas=1/5"},
		"compression.type":                {"producer", kmsg.ConfigTypeString, 5, "compression.type=producer/5"},
		"message.timestamp.type":          {"CreateTime", kmsg.ConfigTypeString, 5, "log.message.timestamp.type=CreateTime/5"},
		"message.timestamp.before.max.ms": {"9223372036854775807", kmsg.ConfigTypeLong, 5, "log.message.timestamp.before.max.ms=9223372036854775807/5"},
		"message.timestamp.after.max.ms":  {"9223372036854775807", kmsg.ConfigTypeLong, 5, "log.message.timestamp.after.max.ms=9223372036854775807/5"},
		"delete.retention.ms":             {"86400000", kmsg.ConfigTypeLong, 5, "log.cleaner.delete.retention.ms=86400000/5"},
		"max.compaction.lag.ms":           {"9223372036854775807", kmsg.ConfigTypeLong, 5, "log.cleaner.max.compaction.lag.ms=9223372036854775807/5"},
		"unclean.leader.election.enable":  {"false", kmsg.ConfigTypeBoolean, 5, "unclean.leader.election.enable=false/5"},
		"remote.storage.enable":           {"false", kmsg.ConfigTypeBoolean, 5, "remote.storage.enable=false/5"},
		"min.cleanable.dirty.ratio":       {"0.5", kmsg.ConfigTypeDouble, 5, "log.cleaner.min.cleanable.ratio=0.5/5"},
	}
	for v := int16(1); v <= 4; v++ {
		res, got := configsIn(t, ask(t, b, describeConfigs(v, ofTopic, "t")))
		if res.ErrorCode != 0 || res.ResourceName != "t" || res.ResourceType != ofTopic {
			t.Fatalf("v%d: %+v", v, res)
		}
		for name, w := range wanted {
			c := got[name]
			var also []string
			for _, s := range c.ConfigSynonyms {
				also = append(also, fmt.Sprintf("%s=%s/%d", s.Name, *s.Value, s.Source))
			}
			if c.Value == nil || *c.Value != w.value || c.Source != w.source || c.ReadOnly || c.IsSensitive || strings.Join(also, " ") != w.also {
				t.Errorf("v%d %s: %+v, synonyms %v, want %+v", v, name, c, also, w)
			}
			if v >= 3 && (c.ConfigType != w.kind || c.Documentation == nil || *c.Documentation == "") {
				t.Errorf("v%d %s: type %d, want %d; documentation %v", v, name, c.ConfigType, w.kind, c.Documentation)
			}
		}
		mink := 0
		for name, c := range got {
			if len(c.ConfigSynonyms) == 0 || c.Value == nil {
				t.Errorf("v%d %s: value %v, synonyms %v", v, name, c.Value, c.ConfigSynonyms)
			}
			if strings.HasPrefix(name, "mink.") {
				mink++
			}
		}
		if mink == 0 {
			t.Errorf("v%d: no config of Mink's own", v)
		}
	}
	plain := describeConfigs(4, ofTopic, "t")
	plain.IncludeSynonyms, plain.IncludeDocumentation = false, false
	if _, got := configsIn(t, ask(t, b, plain)); got["retention.ms"].Documentation != nil || len(got["retention.ms"].ConfigSynonyms) != 0 {
		t.Errorf("not asked for: %+v", got["retention.ms"])
	}
	if _, got := configsIn(t, ask(t, b, describeConfigs(4, ofTopic, "t", "retention.ms", "nonsense"))); len(got) != 1 || got["retention.ms"].Value == nil {
		t.Errorf("two keys, one unknown: %v", got)
	}
}

// CreateTopics answers what DescribeConfigs answers.
func TestCreateTopicsConfigsAreDescribed(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	r := kmsg.NewPtrCreateTopicsRequest()
	r.Version = 7
	ct := kmsg.NewCreateTopicsRequestTopic()
	ct.Topic, ct.NumPartitions, ct.ReplicationFactor = "t", 1, 1
	ct.Configs = append(ct.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: "segment.ms", Value: kmsg.StringPtr("7")})
	r.Topics = append(r.Topics, ct)
	created := ask(t, b, r).(*kmsg.CreateTopicsResponse).Topics[0].Configs
	res, _ := configsIn(t, ask(t, b, describeConfigs(4, ofTopic, "t")))
	if len(created) != len(res.Configs) || len(created) == 0 {
		t.Fatalf("%d configs created, %d described", len(created), len(res.Configs))
	}
	for i, c := range created {
		if d := res.Configs[i]; c.Name != d.Name || *c.Value != *d.Value || c.Source != int8(d.Source) || c.ReadOnly != d.ReadOnly || c.IsSensitive != d.IsSensitive {
			t.Errorf("created %+v, described %+v", c, d)
		}
	}
}

func TestDescribeBrokerConfigs(t *testing.T) {
	b, _, _ := newTestBroker(t, func(c *Config) { c.DefaultPartitions = 7; c.LogDir = "file:///x" })
	res, got := configsIn(t, ask(t, b, describeConfigs(4, ofBroker, "1")))
	if res.ErrorCode != 0 {
		t.Fatalf("%d %v", res.ErrorCode, *res.ErrorMessage)
	}
	for name, want := range map[string]string{
		"broker.id": "1/4", "auto.create.topics.enable": "true/5", "num.partitions": "7/4", "default.replication.factor": "1/5",
		"message.max.bytes": "1048588/5", "log.retention.ms": "604800000/5", "log.retention.hours": "168/5", "log.retention.minutes": "10080/5",
		"log.retention.bytes": "-1/5", "log.cleanup.policy": "delete/5", "advertised.listeners": "PLAINTEXT://127.0.0.1:9092/4", "broker.rack": "r1/4",
		"log.dirs": "file:///x/4", "delete.topic.enable": "true/5", "min.insync.replicas": "1/5",
	} {
		c := got[name]
		if c.Value == nil || fmt.Sprintf("%s/%d", *c.Value, c.Source) != want || !c.ReadOnly || len(c.ConfigSynonyms) == 0 || *c.Documentation == "" {
			t.Errorf("%s: %+v, want %s", name, c, want)
		}
	}
	if _, there := got["inter.broker.protocol.version"]; there {
		t.Error("inter.broker.protocol.version makes tools believe in an old broker")
	}
	if !slices.IsSortedFunc(res.Configs, func(x, y kmsg.DescribeConfigsResponseResourceConfig) int { return strings.Compare(x.Name, y.Name) }) {
		t.Error("not in order")
	}
	for name, c := range map[string]struct {
		request *kmsg.DescribeConfigsRequest
		want    int16
	}{
		"another broker":  {describeConfigs(4, ofBroker, "2"), 42},
		"not a number":    {describeConfigs(4, ofBroker, "one"), 42},
		"odd number":      {describeConfigs(4, ofBroker, "01"), 42},
		"defaults of all": {describeConfigs(4, ofBroker, ""), 0},
		"logger":          {describeConfigs(4, kmsg.ConfigResourceTypeBrokerLogger, "1"), 42},
		"group":           {describeConfigs(4, kmsg.ConfigResourceTypeGroupConfig, "g"), 42},
		"missing topic":   {describeConfigs(4, ofTopic, "nope"), 3},
		"bad topic":       {describeConfigs(4, ofTopic, "a b"), 17},
	} {
		res, got := configsIn(t, ask(t, b, c.request))
		if res.ErrorCode != c.want || len(got) != 0 || (res.ErrorMessage == nil) != (c.want == 0) {
			t.Errorf("%s: error %d, want %d; %d configs", name, res.ErrorCode, c.want, len(got))
		}
	}
}

// firstAlter answers the first error of an alteration, "" for none.
func firstAlter(t testing.TB, b *broker, r kmsg.Request) string {
	t.Helper()
	var c int16
	var why *string
	switch resp := ask(t, b, r).(type) {
	case *kmsg.AlterConfigsResponse:
		c, why = resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage
	case *kmsg.IncrementalAlterConfigsResponse:
		c, why = resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage
	}
	if c == 0 && why == nil {
		return ""
	}
	return fmt.Sprintf("%d %s", c, *why)
}

func setConfigs(t testing.TB, n *fakeNode, topic string) string {
	t.Helper()
	tab, ok := n.View().TableByName("kafka", topic)
	if !ok {
		t.Fatal("no topic", topic)
	}
	var out []string
	for k, v := range tab.Descriptor.Options {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestAlterConfigsReplaces(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	for v := int16(0); v <= 2; v++ {
		if err := firstAlter(t, b, alterConfigs(v, ofTopic, "t", "retention.ms=5000", "segment.bytes=99", "mink.log_max_bytes=1GiB")); err != "" {
			t.Fatal(err)
		}
		if got := setConfigs(t, node, "t"); got != "log_max_bytes=1GiB log_ttl=5s segment.bytes=99" {
			t.Fatalf("v%d: %s", v, got)
		}
		if err := firstAlter(t, b, alterConfigs(v, ofTopic, "t", "max.message.bytes=1000")); err != "" {
			t.Fatal(err)
		}
		if got := setConfigs(t, node, "t"); got != "max.message.bytes=1000" {
			t.Errorf("v%d: what was not named is still set: %s", v, got)
		}
	}
	for request, want := range map[*kmsg.AlterConfigsRequest]string{
		alterConfigs(2, ofTopic, "t", "retnetion.ms=5"):                        "40 ",
		alterConfigs(2, ofTopic, "t", "retention.ms=soon"):                     "40 ",
		alterConfigs(2, ofTopic, "t", "cleanup.policy=compacted"):              "40 ",
		alterConfigs(2, ofTopic, "t", "retention.ms=5", "mink.log_ttl=6s"):     "40 ",
		alterConfigs(2, ofTopic, "t", "retention.ms"):                          "42 config \"retention.ms\" has no value",
		alterConfigs(2, ofTopic, "t", "segment.ms=5", "segment.ms=5"):          "42 config \"segment.ms\" is given twice",
		alterConfigs(2, ofTopic, "nope"):                                       "3 ",
		alterConfigs(2, ofTopic, "__x"):                                        "17 ",
		alterConfigs(2, ofBroker, "1", "num.partitions=2"):                     "42 broker configs are read-only",
		alterConfigs(2, ofBroker, "", "num.partitions=2"):                      "42 broker configs are read-only",
		alterConfigs(2, ofBroker, "9", "num.partitions=2"):                     "42 broker \"9\"",
		alterConfigs(2, kmsg.ConfigResourceTypeClientMetrics, "m", "x=1"):      "42 configs of resource type 16",
		alterConfigs(2, kmsg.ConfigResourceTypeBrokerLogger, "1", "root=INFO"): "42 configs of resource type 8",
	} {
		if got := firstAlter(t, b, request); !strings.HasPrefix(got, want) {
			t.Errorf("%+v: %q, want %q", request.Resources[0], got, want)
		}
	}
	if got := firstAlter(t, b, alterConfigs(2, ofTopic, "t", "retnetion.ms=5")); !strings.Contains(got, "retention.ms") {
		t.Errorf("the nearest name is not in %q", got)
	}
	only := alterConfigs(2, ofTopic, "t", "retention.ms=7000")
	only.ValidateOnly = true
	bad := alterConfigs(2, ofTopic, "t", "retention.ms=x")
	bad.ValidateOnly = true
	if ok, refused := firstAlter(t, b, only), firstAlter(t, b, bad); ok != "" || !strings.HasPrefix(refused, "40 ") {
		t.Errorf("validate only: %q and %q", ok, refused)
	}
	twice := alterConfigs(2, ofTopic, "t", "retention.ms=7000")
	twice.Resources = append(twice.Resources, twice.Resources[0])
	if got := firstAlter(t, b, twice); !strings.HasPrefix(got, "42 ") {
		t.Errorf("a resource twice: %q", got)
	}
	if got := setConfigs(t, node, "t"); got != "max.message.bytes=1000" {
		t.Errorf("something refused was done: %s", got)
	}
}

func TestIncrementalAlterConfigs(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	const list = "leader.replication.throttled.replicas"
	for _, c := range []struct {
		edits string
		err   string
		want  string // what is set afterwards
	}{
		{"set retention.ms=5000|set segment.ms=9", "", "log_ttl=5s segment.ms=9"},
		{"delete segment.ms", "", "log_ttl=5s"},
		{"delete segment.ms", "", "log_ttl=5s"},
		{"append " + list + "=0:1", "", list + "=0:1 log_ttl=5s"},
		{"append " + list + "=0:1,0:2", "", list + "=0:1,0:2 log_ttl=5s"},
		{"subtract " + list + "=0:1,0:7", "", list + "=0:2 log_ttl=5s"},
		{"append cleanup.policy=delete", "", "cleanup.policy=delete " + list + "=0:2 log_ttl=5s"},
		{"append cleanup.policy=compact", "", "cleanup.policy=delete,compact " + list + "=0:2 log_ttl=5s"},
		{"subtract cleanup.policy=delete", "", "cleanup.policy=compact " + list + "=0:2 log_ttl=5s"},
		{"delete cleanup.policy", "", list + "=0:2 log_ttl=5s"},
		{"append cleanup.policy=compact", "", "cleanup.policy=delete,compact " + list + "=0:2 log_ttl=5s"},
		{"set cleanup.policy=compact|set min.compaction.lag.ms=9|set max.compaction.lag.ms=8", "40 ", "cleanup.policy=delete,compact " + list + "=0:2 log_ttl=5s"},
		{"delete cleanup.policy|delete " + list, "", "log_ttl=5s"},
		{"append retention.ms=6", "40 config \"retention.ms\": append and subtract are for lists", "log_ttl=5s"},
		{"append nonsense=6", "40 ", "log_ttl=5s"},
		{"set nonsense=6", "40 ", "log_ttl=5s"},
		{"delete nonsense", "40 ", "log_ttl=5s"},
		{"wrong retention.ms=6", "40 config \"retention.ms\": operation 4", "log_ttl=5s"},
		{"set retention.ms", "42 ", "log_ttl=5s"},
		{"set retention.ms=6000|delete retention.ms", "42 ", "log_ttl=5s"},
		{"set retention.ms=6000|set segment.ms=x", "40 ", "log_ttl=5s"}, // all or none
		{"delete retention.ms", "", ""},
	} {
		for v := int16(0); v <= 1; v++ {
			got := firstAlter(t, b, editConfigsOf(v, ofTopic, "t", strings.Split(c.edits, "|")...))
			if (got == "") != (c.err == "") || !strings.HasPrefix(got, c.err) {
				t.Errorf("v%d %s: %q, want %q", v, c.edits, got, c.err)
			}
		}
		if got := setConfigs(t, node, "t"); got != c.want {
			t.Errorf("after %s: %s, want %s", c.edits, got, c.want)
		}
	}
	if got := firstAlter(t, b, editConfigsOf(1, ofBroker, "1", "set num.partitions=3")); !strings.Contains(got, "read-only") {
		t.Errorf("a broker config: %q", got)
	}
	only := editConfigsOf(1, ofTopic, "t", "set retention.ms=5000")
	only.ValidateOnly = true
	if got := firstAlter(t, b, only); got != "" || setConfigs(t, node, "t") != "" {
		t.Errorf("validate only: %q, set %q", got, setConfigs(t, node, "t"))
	}
}

func TestCreatePartitions(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	logs := node.topic("t", 2)
	appendTo(t, logs[1], batch("kept"))
	grow := func(r *kmsg.CreatePartitionsRequest) int16 {
		t.Helper()
		got := ask(t, b, r).(*kmsg.CreatePartitionsResponse).Topics[0]
		if (got.ErrorCode == 0) != (got.ErrorMessage == nil) {
			t.Errorf("error %d with message %v", got.ErrorCode, got.ErrorMessage)
		}
		return got.ErrorCode
	}
	only := createPartitions(3, "t", 9)
	only.ValidateOnly = true
	twice := createPartitions(3, "t", 9)
	twice.Topics = append(twice.Topics, twice.Topics[0])
	for _, c := range []struct {
		request *kmsg.CreatePartitionsRequest
		want    int16
		now     int
	}{
		{only, 0, 2},
		{createPartitions(0, "t", 3), 0, 3},
		{createPartitions(1, "t", 4), 0, 4},
		{createPartitions(3, "t", 4), 37, 4},
		{createPartitions(3, "t", 1), 37, 4},
		{createPartitions(3, "t", -1), 37, 4},
		{createPartitions(3, "t", 5000), 37, 4},
		{createPartitions(3, "t", 6, 1), 39, 4},
		{createPartitions(3, "t", 6, 1, 0), 39, 4},
		{createPartitions(3, "t", 6, 1, 2), 0, 6},
		{createPartitions(2, "nope", 6), 3, 6},
		{twice, 42, 6},
	} {
		if got := grow(c.request); got != c.want {
			t.Errorf("%+v: error %d, want %d", c.request.Topics[0], got, c.want)
		}
		m := ask(t, b, metadataFor(9, false, "t")).(*kmsg.MetadataResponse).Topics[0]
		if len(m.Partitions) != c.now {
			t.Fatalf("after %+v: %d partitions, want %d", c.request.Topics[0], len(m.Partitions), c.now)
		}
		for i, p := range m.Partitions {
			if p.Partition != int32(i) || p.Leader != 1 || p.ErrorCode != 0 {
				t.Errorf("partition %+v", p)
			}
		}
	}
	if p := produced(t, ask(t, b, produceTo(9, "t", map[int32][]byte{5: batch("new")}))); p.ErrorCode != 0 || p.BaseOffset != 0 {
		t.Errorf("the new partition: %+v", p)
	}
	if logs[1].HighWatermark() != 1 {
		t.Error("the old partition lost its record")
	}
}

func TestDescribeCluster(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.register(2, "two.example:9192")
	w, _ := node.View().Node(2)
	if res := node.apply(w.Epoch, &clusterpb.Command{Kind: &clusterpb.Command_SealNode{SealNode: &clusterpb.SealNode{Epoch: int64(w.Epoch), Reason: "test"}}}); res.Code != 0 {
		t.Fatal(res)
	}
	for v := int16(0); v <= 2; v++ {
		got := ask(t, b, describeCluster(v, endpointBrokers, false)).(*kmsg.DescribeClusterResponse)
		if got.ErrorCode != 0 || got.ClusterID != "mink" || got.ControllerID != 1 || len(got.Brokers) != 1 || got.ClusterAuthorizedOperations != clusterOperations {
			t.Errorf("v%d: %+v", v, got)
		}
		if n := got.Brokers[0]; n.NodeID != 1 || n.Host != "127.0.0.1" || n.Port != 9092 || *n.Rack != "r1" || n.IsFenced {
			t.Errorf("v%d: %+v", v, n)
		}
	}
	if got := ask(t, b, describeCluster(2, endpointBrokers, true)).(*kmsg.DescribeClusterResponse).Brokers; len(got) != 2 || !got[1].IsFenced || got[1].Host != "two.example" {
		t.Errorf("with fenced brokers: %+v", got)
	}
	for endpoint, want := range map[int8]int16{endpointControllers: 114, 9: 115} {
		if got := ask(t, b, describeCluster(1, endpoint, false)).(*kmsg.DescribeClusterResponse); got.ErrorCode != want || got.ErrorMessage == nil {
			t.Errorf("endpoint type %d: %+v", endpoint, got)
		}
	}
	silent := describeCluster(0, 1, false)
	silent.IncludeClusterAuthorizedOperations = false
	if got := ask(t, b, silent).(*kmsg.DescribeClusterResponse).ClusterAuthorizedOperations; got != -2147483648 {
		t.Errorf("operations that nobody asked for: %d", got)
	}
}

func TestMetadataAuthorizedOperations(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	node.topic("t", 1)
	for v := int16(8); v <= 13; v++ {
		for _, asked := range []bool{false, true} {
			r := metadataFor(v, false, "t", "missing")
			r.IncludeTopicAuthorizedOperations, r.IncludeClusterAuthorizedOperations = asked, asked
			got := ask(t, b, r).(*kmsg.MetadataResponse)
			want := []int32{-2147483648, -2147483648, -2147483648}
			if asked {
				want[0] = topicOperations
			}
			if asked && v <= 10 {
				want[2] = clusterOperations
			}
			if have := []int32{got.Topics[0].AuthorizedOperations, got.Topics[1].AuthorizedOperations, got.AuthorizedOperations}; !slices.Equal(have, want) {
				t.Errorf("v%d, asked %t: %v, want %v", v, asked, have, want)
			}
		}
	}
}

func TestDescribeLogDirs(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	logs := node.topic("t", 3)
	node.topic("other", 1)
	appendTo(t, logs[1], batch("a", "b"))
	size := int64(len(logs[1].mu.batches[0]))
	for v := int16(1); v <= 4; v++ {
		got := ask(t, b, describeLogDirs(v, "")).(*kmsg.DescribeLogDirsResponse)
		if got.ErrorCode != 0 || len(got.Dirs) != 1 || got.Dirs[0].Dir != "object-store" || len(got.Dirs[0].Topics) != 2 {
			t.Fatalf("v%d: %+v", v, got)
		}
		if v >= 4 && (got.Dirs[0].TotalBytes != -1 || got.Dirs[0].UsableBytes != -1) {
			t.Errorf("v%d: the store has %d of %d bytes", v, got.Dirs[0].UsableBytes, got.Dirs[0].TotalBytes)
		}
		for _, dt := range got.Dirs[0].Topics {
			for _, p := range dt.Partitions {
				want := int64(0)
				if dt.Topic == "t" && p.Partition == 1 {
					want = size
				}
				if p.Size != want || p.OffsetLag != 0 || p.IsFuture {
					t.Errorf("v%d %s: %+v, want %d bytes", v, dt.Topic, p, want)
				}
			}
		}
		some := ask(t, b, describeLogDirs(v, "t", 1, 9)).(*kmsg.DescribeLogDirsResponse).Dirs[0].Topics
		if len(some) != 1 || len(some[0].Partitions) != 1 || some[0].Partitions[0].Partition != 1 {
			t.Errorf("v%d: one partition: %+v", v, some)
		}
	}
	node.failLogs(&mink.NotLeaderError{Leader: 2})
	if got := ask(t, b, describeLogDirs(4, "")).(*kmsg.DescribeLogDirsResponse).Dirs[0].Topics; len(got) != 0 {
		t.Errorf("partitions of others: %+v", got)
	}
}

func TestDeleteRecordsAPI(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	logs := node.topic("t", 5)
	for _, l := range logs {
		appendTo(t, l, batch("a", "b", "c"))
		appendTo(t, l, batch("d"))
	}
	logs[4].trim(3)
	for v := int16(0); v <= 2; v++ {
		got := ask(t, b, deleteRecords(v, "t", 2, -1, 5, -2, 1, 0)).(*kmsg.DeleteRecordsResponse).Topics[0]
		for i, want := range []struct {
			code int16
			low  int64
		}{{0, 2}, {0, 4}, {1, -1}, {1, -1}, {0, 3}, {3, -1}} {
			if p := got.Partitions[i]; p.ErrorCode != want.code || p.LowWatermark != want.low || p.Partition != int32(i) {
				t.Errorf("v%d partition %d: %+v, want %+v", v, i, p, want)
			}
		}
	}
	if p := fetched(t, ask(t, b, fetchFrom(12, "t", [16]byte{}, 1)), 0); p.ErrorCode != 1 {
		t.Errorf("a deleted record: %+v", p)
	}
	if p := fetched(t, ask(t, b, fetchFrom(12, "t", [16]byte{}, 2)), 0); p.ErrorCode != 0 || p.LogStartOffset != 2 || len(p.RecordBatches) == 0 {
		t.Errorf("the first record that is kept: %+v", p)
	}
	if got := ask(t, b, deleteRecords(2, "nope", 0)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]; got.ErrorCode != 3 || got.LowWatermark != -1 {
		t.Errorf("missing topic: %+v", got)
	}
	for err, want := range map[error]int16{&mink.NotLeaderError{Leader: 2}: 6, mink.ErrUnavailable: 6} {
		node.failLogs(err)
		if got := ask(t, b, deleteRecords(2, "t", 0)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]; got.ErrorCode != want {
			t.Errorf("%v: error %d, want %d", err, got.ErrorCode, want)
		}
	}
}

// An admin client as programs use it.
func TestKadm(t *testing.T) {
	s := startServer(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	adm := kadm.NewClient(kgoClient(t, s.addr))
	if _, err := adm.CreateTopic(ctx, 2, 3, map[string]*string{"retention.ms": kadm.StringPtr("60000")}, "t"); err != nil {
		t.Fatal(err)
	}
	up, err := adm.CreatePartitions(ctx, 3, "t")
	if err != nil || up.Error() != nil {
		t.Fatal(err, up.Error())
	}
	if d, err := adm.ListTopics(ctx, "t"); err != nil || len(d["t"].Partitions) != 5 {
		t.Fatalf("%v, %v", d, err)
	}
	if bad, err := adm.UpdatePartitions(ctx, 3, "t"); err != nil || bad["t"].Err == nil {
		t.Errorf("fewer partitions: %v, %v", bad, err)
	}
	alter := func(validate bool, c ...kadm.AlterConfig) error {
		do := adm.AlterTopicConfigs
		if validate {
			do = adm.ValidateAlterTopicConfigs
		}
		r, err := do(ctx, c, "t")
		if err != nil {
			t.Fatal(err)
		}
		return r[0].Err
	}
	if err := alter(false, kadm.AlterConfig{Name: "segment.ms", Value: kadm.StringPtr("5")}, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "retention.ms"}); err != nil {
		t.Fatal(err)
	}
	if err := alter(true, kadm.AlterConfig{Name: "nonsense", Value: kadm.StringPtr("5")}); err == nil {
		t.Error("an unknown config is valid")
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for _, c := range configs[0].Configs {
		if c.Source == kmsg.ConfigSourceDynamicTopicConfig {
			set[c.Key] = c.MaybeValue()
		}
	}
	if len(configs[0].Configs) < 20 || len(set) != 1 || set["segment.ms"] != "5" {
		t.Errorf("%d configs, set: %v", len(configs[0].Configs), set)
	}
	brokers, err := adm.DescribeBrokerConfigs(ctx, 1)
	if err != nil || brokers[0].Err != nil || len(brokers[0].Configs) < 20 {
		t.Errorf("broker configs: %v, %v", brokers, err)
	}
	for i := range 5 {
		appendTo(t, topicLog(t, s.node, "t", i), batch("a", "b", "c"))
	}
	want := kadm.Offsets{}
	want.Add(kadm.Offset{Topic: "t", Partition: 0, At: 2})
	want.Add(kadm.Offset{Topic: "t", Partition: 1, At: -1})
	gone, err := adm.DeleteRecords(ctx, want)
	if err != nil || gone.Error() != nil {
		t.Fatal(err, gone.Error())
	}
	starts, err := adm.ListStartOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	for p, at := range map[int32]int64{0: 2, 1: 3, 2: 0} {
		if o, _ := starts.Lookup("t", p); o.Offset != at {
			t.Errorf("partition %d starts at %d, want %d", p, o.Offset, at)
		}
	}
	dirs, err := adm.DescribeAllLogDirs(ctx, nil)
	if err != nil || dirs[1].Error() != nil {
		t.Fatal(err, dirs[1].Error())
	}
	if p, ok := dirs[1]["object-store"].Topics.Lookup("t", 2); !ok || p.Size == 0 {
		t.Errorf("log dirs: %+v", dirs)
	}
	m, err := adm.BrokerMetadata(ctx)
	if err != nil || m.Controller != 1 || len(m.Brokers) != 1 || m.Cluster != "mink" {
		t.Errorf("brokers: %+v, %v", m, err)
	}
}
