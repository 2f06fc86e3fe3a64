package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// startTyped is a listener over a typed table "t" with one bucket.
func startTyped(t *testing.T, options map[string]string) (*testServer, *tablet.Log, *schema.Descriptor) {
	t.Helper()
	s := startServer(t, nil)
	d := &schema.Descriptor{Database: "kafka", Table: "t", Options: options, Schema: schema.Schema{Columns: []schema.Column{
		{Name: "id", Type: schema.MustParseType("BIGINT NOT NULL")}, {Name: "name", Type: schema.MustParseType("STRING")}}}}
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.node.CreateDatabase(t.Context(), "kafka"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.node.CreateTable(t.Context(), d, false); err != nil {
		t.Fatal(err)
	}
	cfg := tablet.Default()
	if cfg.Options, err = d.ParsedOptions(); err != nil {
		t.Fatal(err)
	}
	cfg.Schemas, cfg.LeaderEpoch = []*schema.Schema{&d.Schema}, 1
	log, err := tablet.OpenLog(t.Context(), &memStream{changed: make(chan struct{})}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.broker.backend = &tabletNode{s.node, log}
	return s, log, d
}

// franz-go produces JSON to a typed table and consumes the same bytes, and after
// them what was written as Arrow.
func TestTypedTopicWithFranzGo(t *testing.T) {
	s, log, d := startTyped(t, map[string]string{"kafka.value.format": "json"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := kgoClient(t, s.addr, kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart()}}))
	want := []string{`{"id": 1, "name": "a"}`, `{ "name":null,"id":2 }`, `{"id":3}`}
	for _, v := range want {
		if err := c.ProduceSync(ctx, kgo.KeyStringRecord("key", v)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ProduceSync(ctx, kgo.StringRecord(`{"id":"x"}`)).FirstErr(); !errors.Is(err, kerr.InvalidRecord) {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, d.Schema.Arrow())
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(4)
	b.Field(1).(*array.StringBuilder).Append("from \"Arrow\"")
	meta, body, err := arrowipc.Encode(b.NewRecordBatch())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 1, Metadata: meta, Body: body, Count: 1, WriterID: mink.NoWriter}); err != nil {
		t.Fatal(err)
	}
	want = append(want, `{"id":4,"name":"from \"Arrow\""}`)
	var got []string
	for len(got) < len(want) {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if isArrow := r.Offset == 3; r.Offset != int64(len(got)) || isArrow != (r.Key == nil) || r.Timestamp.IsZero() {
				t.Errorf("%+v", r)
			}
			got = append(got, string(r.Value))
		})
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
}

// KIP-467: the answer names exactly the bad records and why, in versions that can.
func TestTypedTopicNamesBadRecords(t *testing.T) {
	s, log, _ := startTyped(t, map[string]string{"kafka.value.format": "json"})
	c := dial(t, s.addr)
	values := []string{`{"id":1}`, `{}`, `{"id":2}`, `{"id":3,"nmae":"x"}`}
	for _, version := range []int16{7, 8, 11} {
		p := produced(t, c.call(produceTo(version, "t", map[int32][]byte{0: batch(values...)})))
		if p.ErrorCode != kerr.InvalidRecord.Code {
			t.Fatalf("version %d: %+v", version, p)
		}
		if version < 8 {
			continue
		}
		var got []string
		for _, e := range p.ErrorRecords {
			got = append(got, fmt.Sprint(e.RelativeOffset, " ", *e.ErrorMessage))
		}
		if len(got) != 2 || !strings.HasPrefix(got[0], `1 column "id" is NOT NULL`) || !strings.HasPrefix(got[1], `3 the table has no column "nmae"`) {
			t.Fatalf("version %d: %q", version, got)
		}
	}
	if log.LogEnd() != 0 {
		t.Fatal("something was stored")
	}
}

// Without the option a typed table is hidden, as before.
func TestTypedTableIsHidden(t *testing.T) {
	s, _, _ := startTyped(t, nil)
	p := produced(t, dial(t, s.addr).call(produceTo(9, "t", map[int32][]byte{0: batch(`{"id":1}`)})))
	if p.ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Fatalf("%+v", p)
	}
}

// AlterConfigs of a tool that knows only Kafka's configs: the topic stays one.
func TestAlterConfigsKeepsATypedTopic(t *testing.T) {
	s, _, _ := startTyped(t, map[string]string{"kafka.value.format": "json", "retention.ms": "5000"})
	c := dial(t, s.addr)
	got := func(config string) string {
		r := c.call(describeConfigs(4, ofTopic, "t", config)).(*kmsg.DescribeConfigsResponse).Resources[0]
		if r.ErrorCode != 0 || len(r.Configs) != 1 {
			t.Fatalf("%s: %+v", config, r)
		}
		return *r.Configs[0].Value
	}
	if r := c.call(alterConfigs(1, ofTopic, "t", "segment.ms=77")).(*kmsg.AlterConfigsResponse).Resources[0]; r.ErrorCode != 0 {
		t.Fatalf("%+v", r)
	}
	if got("segment.ms") != "77" || got("retention.ms") != "604800000" || got("mink.kafka.value.format") != "json" {
		t.Error("the configs were not replaced")
	}
	if r := c.call(alterConfigs(1, ofTopic, "t", "mink.kafka.value.format=raw")).(*kmsg.AlterConfigsResponse).Resources[0]; r.ErrorCode != 0 {
		t.Fatalf("by name: %+v", r)
	}
	if s.broker.topicByName(s.node.View(), "t") != nil {
		t.Error("who says raw does not get it")
	}
}

// What is refused leaves a line in the node's log that says by whom, where and
// why; a flood of refusals leaves few lines, which count the others.
func TestRefusedRecordsAreLogged(t *testing.T) {
	s, _, _ := startTyped(t, map[string]string{"kafka.value.format": "json"})
	var lines lockedBuffer
	s.broker.log, s.broker.refusals.Interval = slog.New(slog.NewJSONHandler(&lines, nil)), time.Second
	c := kgoClient(t, s.addr, kgo.ClientID("billing"), kgo.DefaultProduceTopic("t"), kgo.ProducerLinger(0), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	const sent = 50
	for range sent {
		if err := c.ProduceSync(t.Context(), kgo.StringRecord(`{"id":"x"}`)).FirstErr(); !errors.Is(err, kerr.InvalidRecord) {
			t.Fatal(err)
		}
	}
	time.Sleep(s.broker.refusals.Interval) // the next one has a line again
	if err := c.ProduceSync(t.Context(), kgo.StringRecord(`{"id":"x"}`)).FirstErr(); !errors.Is(err, kerr.InvalidRecord) {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSpace(lines.String()), "\n")
	total := 0
	for _, text := range all {
		var l struct {
			Level, Msg, Topic, Client, Error string
			Partition                        *int32
			Refused                          int `json:"refused_batches"`
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		if l.Level != "WARN" || l.Msg != "records refused" || l.Topic != "t" || l.Partition == nil || l.Client != "billing" || !strings.Contains(l.Error, "id") {
			t.Errorf("line %s", text)
		}
		total += l.Refused
	}
	if len(all) > 15 || total != sent+1 {
		t.Errorf("%d lines tell of %d refused batches, %d were", len(all), total, sent+1)
	}
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
