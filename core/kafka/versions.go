package kafka

import (
	"fmt"
	"io"
	"strings"
)

// The API keys that are served.
const (
	keyProduce         int16 = 0
	keyFetch           int16 = 1
	keyListOffsets     int16 = 2
	keyMetadata        int16 = 3
	keyFindCoordinator int16 = 10
	keyAPIVersions     int16 = 18
	keyCreateTopics    int16 = 19
	keyDeleteTopics    int16 = 20
	keyInitProducerID  int16 = 22
	keyEpochEnd        int16 = 23
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
	{keyFindCoordinator, "FindCoordinator", 0, 6, 3, "advertised because librdkafka needs it for lz4; answers a fatal error: consumer groups and transactions are not supported yet"},
	{keyAPIVersions, "ApiVersions", 0, 4, 3, "a newer version gets UNSUPPORTED_VERSION and this table"},
	{keyCreateTopics, "CreateTopics", 2, 7, 5, "any replication factor is accepted; durability is the object store's"},
	{keyDeleteTopics, "DeleteTopics", 1, 6, 4, ""},
	{keyInitProducerID, "InitProducerId", 0, 5, 2, "idempotent producers; a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
	{keyEpochEnd, "OffsetForLeaderEpoch", 2, 4, 4, ""},
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
