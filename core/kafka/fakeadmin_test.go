package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

func (n *fakeNode) AlterTable(_ context.Context, id mink.TableID, changes []schema.Change) (*cluster.Table, error) {
	res := n.apply(n.nodeEpoch(), &clusterpb.Command{Kind: &clusterpb.Command_AlterTable{
		AlterTable: &clusterpb.AlterTable{Table: int64(id), Changes: schema.EncodeChanges(changes)}}})
	if err := cluster.ResultError(res); err != nil {
		return nil, err
	}
	t, ok := n.View().Table(id)
	if !ok {
		return nil, mink.ErrNotExist
	}
	return t, nil
}

func (n *fakeNode) DeleteRecords(_ context.Context, ref mink.BucketRef, to mink.Offset) (mink.Offset, error) {
	l, err := n.Log(ref)
	if err != nil {
		return 0, err
	}
	log := l.(*fakeLog)
	if hw := log.HighWatermark(); to < 0 || to > hw {
		return 0, fmt.Errorf("delete: %w", &mink.OutOfRangeError{Asked: to, End: hw})
	}
	if to > log.LogStart() {
		log.trim(to)
	}
	return log.LogStart(), nil
}

func (l *fakeLog) KeptBytes() (size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.mu.batches {
		size += int64(len(b))
	}
	return size
}

// readOnly, for the fuzzer, refuses what would change the catalog.
func (readOnly) AlterTable(context.Context, mink.TableID, []schema.Change) (*cluster.Table, error) {
	return nil, mink.ErrUnsupported
}

func (readOnly) DeleteRecords(context.Context, mink.BucketRef, mink.Offset) (mink.Offset, error) {
	return 0, mink.ErrUnsupported
}

func describeConfigs(version int16, kind kmsg.ConfigResourceType, name string, keys ...string) *kmsg.DescribeConfigsRequest {
	r := kmsg.NewPtrDescribeConfigsRequest()
	r.Version, r.IncludeSynonyms, r.IncludeDocumentation = version, true, true
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = kind, name, keys
	r.Resources = append(r.Resources, res)
	return r
}

// alterConfigs takes "name=value", or "name" for null.
func alterConfigs(version int16, kind kmsg.ConfigResourceType, name string, configs ...string) *kmsg.AlterConfigsRequest {
	r := kmsg.NewPtrAlterConfigsRequest()
	r.Version = version
	res := kmsg.NewAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kind, name
	for _, text := range configs {
		c := kmsg.NewAlterConfigsRequestResourceConfig()
		c.Name, c.Value = pair(text)
		res.Configs = append(res.Configs, c)
	}
	r.Resources = append(r.Resources, res)
	return r
}

// editConfigsOf takes "set name=value", "delete name", "append ...", "subtract ...".
func editConfigsOf(version int16, kind kmsg.ConfigResourceType, name string, edits ...string) *kmsg.IncrementalAlterConfigsRequest {
	r := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r.Version = version
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kind, name
	for _, text := range edits {
		var verb, rest string
		_, _ = fmt.Sscanf(text, "%s %s", &verb, &rest)
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = pair(rest)
		c.Op = map[string]kmsg.IncrementalAlterConfigOp{"set": 0, "delete": 1, "append": 2, "subtract": 3, "wrong": 4}[verb]
		res.Configs = append(res.Configs, c)
	}
	r.Resources = append(r.Resources, res)
	return r
}

func pair(text string) (name string, value *string) {
	for i := range len(text) {
		if text[i] == '=' {
			v := text[i+1:]
			return text[:i], &v
		}
	}
	return text, nil
}

func createPartitions(version int16, topic string, count int32, assigned ...int) *kmsg.CreatePartitionsRequest {
	r := kmsg.NewPtrCreatePartitionsRequest()
	r.Version = version
	t := kmsg.NewCreatePartitionsRequestTopic()
	t.Topic, t.Count = topic, count
	for _, n := range assigned {
		t.Assignment = append(t.Assignment, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: make([]int32, n)})
	}
	r.Topics = append(r.Topics, t)
	return r
}

// deleteRecords asks for partitions 0.. of a topic.
func deleteRecords(version int16, topic string, offsets ...int64) *kmsg.DeleteRecordsRequest {
	r := kmsg.NewPtrDeleteRecordsRequest()
	r.Version = version
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic = topic
	for i, o := range offsets {
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Partition, p.Offset = int32(i), o
		t.Partitions = append(t.Partitions, p)
	}
	r.Topics = append(r.Topics, t)
	return r
}

func describeLogDirs(version int16, topic string, partitions ...int32) *kmsg.DescribeLogDirsRequest {
	r := kmsg.NewPtrDescribeLogDirsRequest()
	r.Version = version
	if topic != "" {
		t := kmsg.NewDescribeLogDirsRequestTopic()
		t.Topic, t.Partitions = topic, partitions
		r.Topics = append(r.Topics, t)
	}
	return r
}

func describeCluster(version int16, endpoint int8, fenced bool) *kmsg.DescribeClusterRequest {
	r := kmsg.NewPtrDescribeClusterRequest()
	r.Version, r.EndpointType, r.IncludeFencedBrokers, r.IncludeClusterAuthorizedOperations = version, endpoint, fenced, true
	return r
}

const (
	ofTopic  = kmsg.ConfigResourceTypeTopic
	ofBroker = kmsg.ConfigResourceTypeBroker
)

// adminRequests is requestsFor for admin APIs.
func adminRequests(key, v int16) []kmsg.Request {
	switch key {
	case keyDeleteRecords:
		return []kmsg.Request{deleteRecords(v, "t", 0, -1, 99, 5), deleteRecords(v, "missing", 1)}
	case keyDescribeConfigs:
		return []kmsg.Request{describeConfigs(v, ofTopic, "t"), describeConfigs(v, ofTopic, "missing"), describeConfigs(v, ofBroker, "1"),
			describeConfigs(v, ofBroker, ""), describeConfigs(v, 8, "1"), describeConfigs(v, ofTopic, "t", "retention.ms", "nonsense")}
	case keyAlterConfigs:
		return []kmsg.Request{alterConfigs(v, ofTopic, "t", "retention.ms=5"), alterConfigs(v, ofTopic, "t", "x=5", "y"), alterConfigs(v, ofBroker, "1", "num.partitions=3")}
	case keyDescribeLogDirs:
		return []kmsg.Request{describeLogDirs(v, ""), describeLogDirs(v, "t", 1, 7), describeLogDirs(v, "missing", 0)}
	case keyCreatePartitions:
		return []kmsg.Request{createPartitions(v, "t", 5), createPartitions(v, "t", 1), createPartitions(v, "missing", 4, 1)}
	case keyIncrementalAlterConfigs:
		return []kmsg.Request{editConfigsOf(v, ofTopic, "t", "set retention.ms=5", "delete retention.bytes"), editConfigsOf(v, ofTopic, "t", "append cleanup.policy=x"),
			editConfigsOf(v, ofBroker, "", "set num.partitions=3")}
	case keyDescribeCluster:
		return []kmsg.Request{describeCluster(v, 1, true), describeCluster(v, 2, false), describeCluster(v, 3, false)}
	case keyTopicPartitions:
		return []kmsg.Request{topicPartitions(2, "", 0), topicPartitions(9, "t", 1, "t", "missing"), topicPartitions(9, "t", -1, "t")}
	}
	return nil
}
