package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/sdk/api"
)

// cleanedEnd is where the cleaning of the topic's only partition ended.
func (n *node) cleanedEnd(topic string) int64 {
	n.t.Helper()
	var s api.Stats
	if err := json.Unmarshal(n.mink(nil, "cluster", "stats", "--node", "1", "--json"), &s); err != nil {
		n.t.Fatal(err)
	}
	for _, b := range s.Buckets {
		if b.Table == "kafka."+topic {
			if b.CleanError != "" {
				n.t.Logf("%s: %s", topic, b.CleanError)
			}
			return int64(b.CleanedEnd)
		}
	}
	return -1
}

// TestCompactedTopic: real clients write keys over and over, in every codec and with
// tombstones; the node cleans meanwhile and is killed; what franz-go and kcat read from
// the beginning is the latest value of each key, at the offsets where they were sent.
func TestCompactedTopic(t *testing.T) {
	n := newNode(t, "--topic-cleaning-interval", "200ms", "--wal-upload-interval", "200ms", "--compaction-interval", "500ms")
	n.start()
	n.mink(nil, "topic", "create", "c", "--partitions", "1", "--config", "cleanup.policy=compact",
		"--config", "min.cleanable.dirty.ratio=0.1", "--config", "delete.retention.ms=1000")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	type value struct {
		offset int64
		text   string
	}
	latest := map[string]value{}
	sent := int64(0)
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	round := func(i int) {
		t.Helper()
		cl := n.franz(kgo.ProducerBatchCompression(codecs[i%len(codecs)]), kgo.DefaultProduceTopic("c"), kgo.ProducerLinger(5*time.Millisecond))
		defer cl.Close()
		var records []*kgo.Record
		for k := range 400 {
			r := &kgo.Record{Key: fmt.Appendf(nil, "key-%d", (k*7+i)%60), Value: fmt.Appendf(nil, "%d/%d", i, k)}
			if k%13 == 5 {
				r.Value = nil
			}
			records = append(records, r)
		}
		if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Value == nil {
				delete(latest, string(r.Key))
			} else {
				latest[string(r.Key)] = value{r.Offset, string(r.Value)}
			}
			sent = max(sent, r.Offset+1)
		}
	}
	cleaned := func() {
		t.Helper()
		eventually(t, fmt.Sprintf("c is cleaned up to %d", sent), func() bool { return n.cleanedEnd("c") == sent })
	}
	for i := range 5 {
		round(i)
		if i%2 == 0 {
			cleaned()
		}
	}
	n.kill()
	n.start()
	round(5)
	cleaned()
	time.Sleep(1100 * time.Millisecond) // delete.retention.ms
	n.kcat([]byte("key-3:by kcat\n"), "-P", "-t", "c", "-K:", "-z", "lz4")
	latest["key-3"] = value{sent, "by kcat"}
	sent++
	cleaned()
	check := func(who string, offsets []int64, keys, values []string) {
		t.Helper()
		got, at := map[string]value{}, int64(-1)
		for i := range offsets {
			if offsets[i] <= at {
				t.Fatalf("%s: offset %d after %d", who, offsets[i], at)
			}
			at = offsets[i]
			got[keys[i]] = value{at, values[i]}
		}
		if !maps.Equal(got, latest) {
			t.Fatalf("%s: got %v, want %v", who, got, latest)
		}
		if len(offsets) != len(latest) {
			t.Fatalf("%s: %d records for %d keys", who, len(offsets), len(latest))
		}
	}
	cl := n.franz(kgo.ConsumeTopics("c"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.ConsumerGroup("g"), kgo.DisableAutoCommit())
	var offsets []int64
	var keys, values []string
	for len(offsets) == 0 || offsets[len(offsets)-1] < sent-1 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			offsets, keys, values = append(offsets, r.Offset), append(keys, string(r.Key)), append(values, string(r.Value))
		})
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	cl.Close()
	check("franz-go", offsets, keys, values)
	n.stop() // now from the store alone
	n.start()

	kcat := func(from string) (offsets []int64, keys, values []string) {
		t.Helper()
		out := n.kcat(nil, "-C", "-t", "c", "-o", from, "-e", "-q", "-X", "check.crcs=true", "-f", "%o %k %s\n")
		for line := range strings.Lines(string(out)) {
			f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
			at, err := strconv.ParseInt(f[0], 10, 64)
			if err != nil {
				t.Fatal(line, err)
			}
			offsets, keys, values = append(offsets, at), append(keys, f[1]), append(values, f[2])
		}
		return offsets, keys, values
	}
	offsets, keys, values = kcat("beginning")
	check("kcat", offsets, keys, values)
	// From within what is gone a consumer goes on at the next record that is left.
	if some, _, _ := kcat("1"); len(some) != len(offsets) || some[0] != offsets[0] || offsets[0] < 2 {
		t.Fatalf("from offset 1: %v, from the beginning: %v", some, offsets)
	}
	// Rows of the table, the last ones and some from the middle.
	rows := func(args ...string) (keys, values []string) {
		t.Helper()
		out := n.mink(nil, append([]string{"read", "kafka.c", "--format", "json", "--text", "--columns", "key,value"}, args...)...)
		for line := range strings.Lines(string(out)) {
			var row struct{ Key, Value string }
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatal(line, err)
			}
			keys, values = append(keys, row.Key), append(values, row.Value)
		}
		return keys, values
	}
	if k, v := rows(); !slices.Equal(k, keys) || !slices.Equal(v, values) {
		t.Fatalf("mink read has %v %v, kcat %v %v", k, v, keys, values)
	}
	if k, v := rows("--from", fmt.Sprint(offsets[10]+1), "--limit", "7"); !slices.Equal(k, keys[11:18]) || !slices.Equal(v, values[11:18]) {
		t.Fatalf("mink read from %d has %v %v, kcat %v %v", offsets[10]+1, k, v, keys[11:18], values[11:18])
	}
	if out, errOut, err := n.tryMink(nil, "fsck", "--deep"); err != nil {
		t.Fatalf("fsck: %v, %s%s", err, out, errOut)
	}
}

// TestCompactedTopicAcrossKills: the node cleans all the time and is killed at any moment,
// a dozen times; nothing that was acknowledged as the latest of its key is ever gone, and
// the store has what the metadata say.
func TestCompactedTopicAcrossKills(t *testing.T) {
	n := newNode(t, "--topic-cleaning-interval", "100ms", "--wal-upload-interval", "50ms", "--compaction-interval", "200ms")
	n.start()
	n.mink(nil, "topic", "create", "k", "--partitions", "1", "--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cl := n.franz(kgo.DefaultProduceTopic("k"), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	defer cl.Close()
	latest := map[string]string{}
	serial := 0
	for kill := range 12 {
		until := time.Now().Add(time.Duration(200+kill*37%300) * time.Millisecond)
		for time.Now().Before(until) || serial%100 != 0 {
			serial++
			r := &kgo.Record{Key: fmt.Appendf(nil, "key-%d", serial*serial%97), Value: fmt.Appendf(nil, "%d", serial)}
			if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			latest[string(r.Key)] = string(r.Value)
		}
		n.kill()
		n.start()
		if kill%4 != 3 {
			continue
		}
		got := map[string]string{}
		for _, r := range n.consume("k", 0, 0, int64(serial)) {
			got[string(r.Key)] = string(r.Value)
		}
		if !maps.Equal(got, latest) {
			t.Fatalf("after %d kills: got %v, want %v", kill+1, got, latest)
		}
	}
	eventually(t, fmt.Sprintf("k is cleaned up to %d", serial), func() bool { return n.cleanedEnd("k") == int64(serial) })
	n.stop()
	n.start()
	if records := n.consume("k", 0, 0, int64(serial)); len(records) != len(latest) {
		t.Fatalf("%d records for %d keys", len(records), len(latest))
	}
	n.fsck()
}
