package kafka

import (
	"fmt"
	"io"
	"strings"
)

// The API keys that are served.
const (
	keyProduce                 int16 = 0
	keyFetch                   int16 = 1
	keyListOffsets             int16 = 2
	keyMetadata                int16 = 3
	keyOffsetCommit            int16 = 8
	keyOffsetFetch             int16 = 9
	keyFindCoordinator         int16 = 10
	keyJoinGroup               int16 = 11
	keyHeartbeat               int16 = 12
	keyLeaveGroup              int16 = 13
	keySyncGroup               int16 = 14
	keyDescribeGroups          int16 = 15
	keyListGroups              int16 = 16
	keyAPIVersions             int16 = 18
	keyCreateTopics            int16 = 19
	keyDeleteTopics            int16 = 20
	keyDeleteRecords           int16 = 21
	keyInitProducerID          int16 = 22
	keyEpochEnd                int16 = 23
	keyDescribeConfigs         int16 = 32
	keyAlterConfigs            int16 = 33
	keyDescribeLogDirs         int16 = 35
	keyCreatePartitions        int16 = 37
	keyDeleteGroups            int16 = 42
	keyIncrementalAlterConfigs int16 = 44
	keyOffsetDelete            int16 = 47
	keyDescribeCluster         int16 = 60
	keyTopicPartitions         int16 = 75
)

// API is one row of the version table.
type API struct {
	Key      int16
	Name     string
	Min, Max int16 // advertised, both ends included
	Flexible int16 // first version with compact fields and tagged sections
	Note     string
}

// Served is the whole promise of the listener: ApiVersions answers it, requests
// outside of it are refused, and the manual prints it. Some minimums are lower
// than what is served, because clients derive features from them.
var served = [...]API{
	{keyProduce, "Produce", 0, 11, 9, "0 to 2 are advertised (librdkafka before 2.11.1 stops compressing otherwise) and refused with UNSUPPORTED_VERSION; no transactions"},
	{keyFetch, "Fetch", 4, 17, 12, "without fetch sessions: every answer has session id 0"},
	{keyListOffsets, "ListOffsets", 1, 10, 6, "latest -1, earliest -2, largest timestamp -3, local start -4 (same as earliest), tiered -5 (none)"},
	{keyMetadata, "Metadata", 0, 13, 9, "the only request that creates topics by itself"},
	{keyOffsetCommit, "OffsetCommit", 2, 9, 8, "retention is the cluster's, not the request's; not by topic id (10)"},
	{keyOffsetFetch, "OffsetFetch", 1, 9, 6, "an unknown group has no offsets (-1), which is no error; not by topic id (10)"},
	{keyFindCoordinator, "FindCoordinator", 0, 6, 3, "consumer groups; transactions and share groups get a fatal error"},
	{keyJoinGroup, "JoinGroup", 0, 9, 6, "any protocol type; static members; waits until the group is complete"},
	{keyHeartbeat, "Heartbeat", 0, 4, 4, ""},
	{keyLeaveGroup, "LeaveGroup", 0, 5, 4, ""},
	{keySyncGroup, "SyncGroup", 0, 5, 4, ""},
	{keyDescribeGroups, "DescribeGroups", 0, 6, 5, "authorized operations are not known"},
	{keyListGroups, "ListGroups", 0, 5, 3, "the groups that this node coordinates"},
	{keyAPIVersions, "ApiVersions", 0, 4, 3, "a newer version gets UNSUPPORTED_VERSION and this table"},
	{keyCreateTopics, "CreateTopics", 2, 7, 5, "any replication factor is accepted; durability is the object store's"},
	{keyDeleteTopics, "DeleteTopics", 1, 6, 4, ""},
	{keyDeleteRecords, "DeleteRecords", 0, 2, 2, "offset -1 is the high watermark; answered when it is durable"},
	{keyInitProducerID, "InitProducerId", 0, 5, 2, "idempotent producers; a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
	{keyEpochEnd, "OffsetForLeaderEpoch", 2, 4, 4, ""},
	{keyDescribeConfigs, "DescribeConfigs", 1, 4, 4, "topics and brokers"},
	{keyAlterConfigs, "AlterConfigs", 0, 2, 2, "topics; replaces: a config that is not named goes back to its default, except mink.kafka.value.format. Broker configs are read-only"},
	{keyDescribeLogDirs, "DescribeLogDirs", 1, 4, 2, "one directory, the object store; sizes are within an eighth or 1 MiB, the store's own size is unknown (-1)"},
	{keyCreatePartitions, "CreatePartitions", 0, 3, 2, "leaders are chosen here, an assignment only counts"},
	{keyDeleteGroups, "DeleteGroups", 0, 2, 2, "groups without members"},
	{keyIncrementalAlterConfigs, "IncrementalAlterConfigs", 0, 1, 1, "topics; set, delete, and append and subtract for lists. Broker configs are read-only"},
	{keyOffsetDelete, "OffsetDelete", 0, 0, 1, "topics that no member subscribes to"},
	{keyDescribeCluster, "DescribeCluster", 0, 2, 0, "brokers; no controllers of their own"},
	{keyTopicPartitions, "DescribeTopicPartitions", 0, 0, 0, "Metadata in pages of at most 2000 partitions; the leader is the only replica"},
}

// APIs is a copy of the version table, by key.
func APIs() []API { return append([]API(nil), served[:]...) }

func findAPI(key int16) (*API, bool) {
	for i := range served {
		if served[i].Key == key {
			return &served[i], true
		}
	}
	return nil, false
}

func (a *API) serves(version int16) bool { return version >= a.Min && version <= a.Max }

// WriteVersions prints the version table as Markdown, for the manual.
func WriteVersions(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| key | API | versions | note |\n| --- | --- | --- | --- |\n")
	for _, a := range served {
		fmt.Fprintf(&b, "| %d | %s | %d-%d | %s |\n", a.Key, a.Name, a.Min, a.Max, a.Note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
