package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/sim"
)

// realNode is a node in a simulated world as a Backend: real metadata, engine,
// store and tablets.
type realNode struct {
	Backend
	*sim.Process
}

func onProcess(p *sim.Process) realNode { return realNode{OnNode(func() Node { return p.Node() }), p} }

// inNode runs f with a broker over a real node in virtual time. start gives one
// over the node's next process.
func inNode(t *testing.T, f func(t *testing.T, b *broker, restart func() *broker)) {
	t.Helper()
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		var brokers []*broker
		start := func() *broker {
			stopping := make(chan struct{})
			b := newBroker(testConfig(), onProcess(w.StartReady(1)), noMetrics{}, testLogger(t), stopping)
			brokers = append(brokers, b)
			return b
		}
		defer func() {
			for _, b := range brokers {
				b.wait()
			}
		}()
		b := start()
		f(t, b, func() *broker {
			brokers[len(brokers)-1].backend.(realNode).Crash()
			return start()
		})
	})
}

func createTopic(t testing.TB, b *broker, name string, partitions int32, configs ...string) {
	t.Helper()
	r := kmsg.NewPtrCreateTopicsRequest()
	r.Version = 7
	ct := kmsg.NewCreateTopicsRequestTopic()
	ct.Topic, ct.NumPartitions, ct.ReplicationFactor = name, partitions, 1
	for _, text := range configs {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = pair(text)
		ct.Configs = append(ct.Configs, c)
	}
	r.Topics = append(r.Topics, ct)
	if got := ask(t, b, r).(*kmsg.CreateTopicsResponse).Topics[0]; got.ErrorCode != 0 {
		t.Fatalf("create %s: %d %s", name, got.ErrorCode, *got.ErrorMessage)
	}
}

func mustProduce(t testing.TB, b *broker, topic string, partition int32, records []byte) *kmsg.ProduceResponseTopicPartition {
	t.Helper()
	p := produced(t, ask(t, b, produceTo(9, topic, map[int32][]byte{partition: records})))
	if p.ErrorCode != 0 {
		t.Fatalf("produce to %s/%d: %+v", topic, partition, p)
	}
	return p
}

func listOffset(t testing.TB, b *broker, topic string, partition int32, at int64) *kmsg.ListOffsetsResponseTopicPartition {
	t.Helper()
	r := kmsg.NewPtrListOffsetsRequest()
	r.Version = 10
	lt := kmsg.NewListOffsetsRequestTopic()
	lt.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, at, -1
	lt.Partitions = append(lt.Partitions, p)
	r.Topics = append(r.Topics, lt)
	return &ask(t, b, r).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
}

func epochEnd(t testing.TB, b *broker, topic string, current, epoch int32) (c int16, of int32, end int64) {
	t.Helper()
	r := kmsg.NewPtrOffsetForLeaderEpochRequest()
	r.Version = 4
	et := kmsg.NewOffsetForLeaderEpochRequestTopic()
	et.Topic = topic
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.CurrentLeaderEpoch, p.LeaderEpoch = current, epoch
	et.Partitions = append(et.Partitions, p)
	r.Topics = append(r.Topics, et)
	got := ask(t, b, r).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
	return got.ErrorCode, got.LeaderEpoch, got.EndOffset
}

// Case epoch_history, with restarts instead of moves: each leadership is an
// epoch, and every later one knows where the earlier ones ended, also when it
// wrote nothing itself, and when the records are gone.
func TestEpochHistory(t *testing.T) {
	inNode(t, func(t *testing.T, b *broker, restart func() *broker) {
		createTopic(t, b, "t", 1)
		createTopic(t, b, "empty", 1)
		ten := func() {
			for i := range 5 {
				mustProduce(t, b, "t", 0, batch(fmt.Sprint(i), "x"))
			}
		}
		check := func(when string, want map[int32][2]int64) {
			t.Helper()
			for epoch, w := range want {
				if c, of, end := epochEnd(t, b, "t", -1, epoch); c != 0 || int64(of) != w[0] || end != w[1] {
					t.Errorf("%s: epoch %d: error %d, (%d, %d), want %v", when, epoch, c, of, end, w)
				}
			}
		}
		ten()
		check("first leadership", map[int32][2]int64{1: {1, 10}, 2: {-1, -1}, -1: {-1, -1}})
		b = restart()
		check("nothing written yet", map[int32][2]int64{1: {1, 10}, 2: {2, 10}, 3: {-1, -1}})
		ten()
		check("second leadership", map[int32][2]int64{0: {0, 0}, 1: {1, 10}, 2: {2, 20}, 3: {-1, -1}})
		if o := listOffset(t, b, "t", 0, askEarliest); o.Offset != 0 || o.LeaderEpoch != 1 {
			t.Errorf("earliest: %+v", o)
		}
		if o := listOffset(t, b, "t", 0, askLatest); o.Offset != 20 || o.LeaderEpoch != 2 {
			t.Errorf("latest: %+v", o)
		}
		if o := listOffset(t, b, "empty", 0, askEarliest); o.Offset != 0 || o.LeaderEpoch != -1 {
			t.Errorf("earliest of an empty partition: %+v", o)
		}
		for current, want := range map[int32]int16{1: 74, 2: 0, 3: 75} {
			if c, _, _ := epochEnd(t, b, "t", current, 1); c != want {
				t.Errorf("a client that knows epoch %d: error %d, want %d", current, c, want)
			}
		}
		b = restart()
		b = restart() // epoch 3 wrote nothing
		ten()
		after := map[int32][2]int64{1: {1, 10}, 2: {2, 20}, 3: {2, 20}, 4: {4, 30}, 5: {-1, -1}}
		check("an epoch without records", after)
		if got := ask(t, b, deleteRecords(2, "t", 15)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]; got.ErrorCode != 0 || got.LowWatermark != 15 {
			t.Fatalf("delete records: %+v", got)
		}
		check("after a trim", after)
		if o := listOffset(t, b, "t", 0, askEarliest); o.Offset != 15 || o.LeaderEpoch != 2 {
			t.Errorf("earliest after a trim: %+v", o)
		}
		b = restart()
		after[4], after[5] = [2]int64{4, 30}, [2]int64{5, 30}
		check("after a trim and a restart", after)
	})
}

// compressedBatch is batchOf with a codec. Timestamps are given per record.
func compressedBatch(t testing.TB, codec kafkabatch.Codec, stamps ...int64) []byte {
	t.Helper()
	rb := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: int16(codec), LastOffsetDelta: int32(len(stamps) - 1), FirstTimestamp: stamps[0], MaxTimestamp: stamps[0],
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(stamps)),
	}
	var raw []byte
	for i, ts := range stamps {
		rec := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: ts - stamps[0], Value: []byte(fmt.Sprint("value ", i))}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1)
		raw = rec.AppendTo(raw)
		rb.MaxTimestamp = max(rb.MaxTimestamp, ts)
	}
	rb.Records = compressed(t, codec, raw)
	out := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-12))
	fixCRC(out)
	return out
}

// Timestamps are found inside batches of every codec: the record's offset, not
// the batch's, above the log start only, and none when there is none. The same
// through restarts and deletions (redpanda#25769, #18112).
func TestListOffsetsInsideBatches(t *testing.T) {
	const t0 = int64(1_700_000_000_000)
	names := []string{"none", "gzip", "snappy", "lz4", "zstd"}
	inNode(t, func(t *testing.T, b *broker, restart func() *broker) {
		for codec, name := range names {
			createTopic(t, b, name, 2)
			// Offsets 0..9; the largest time is in the middle of the second batch.
			mustProduce(t, b, name, 0, compressedBatch(t, kafkabatch.Codec(codec), t0, t0+10, t0+5, t0+20))
			mustProduce(t, b, name, 0, compressedBatch(t, kafkabatch.Codec(codec), t0+30, t0+90, t0+40))
			mustProduce(t, b, name, 0, compressedBatch(t, kafkabatch.Codec(codec), t0+50, t0+60, t0+60))
		}
		check := func(when string, want map[int64][2]int64) {
			t.Helper()
			for _, name := range names {
				for at, w := range want {
					if o := listOffset(t, b, name, 0, at); o.ErrorCode != 0 || o.Offset != w[0] || o.Timestamp != w[1] {
						t.Errorf("%s, %s, at %d: error %d, offset %d of t0%+d, want %d of t0%+d", when, name, at-min(t0, max(at, 0)), o.ErrorCode, o.Offset, o.Timestamp-t0, w[0], w[1]-t0)
					}
				}
			}
		}
		all := map[int64][2]int64{
			0: {0, t0}, t0: {0, t0}, t0 + 1: {1, t0 + 10}, t0 + 11: {3, t0 + 20}, t0 + 21: {4, t0 + 30}, t0 + 31: {5, t0 + 90},
			t0 + 90: {5, t0 + 90}, t0 + 91: {-1, -1}, askMaxTimestamp: {5, t0 + 90},
		}
		check("written", all)
		b = restart()
		check("after a restart", all)
		for _, name := range names {
			if o := listOffset(t, b, name, 1, t0); o.Offset != -1 || o.Timestamp != -1 || o.ErrorCode != 0 {
				t.Errorf("an empty partition: %+v", o)
			}
			if o := listOffset(t, b, name, 1, askMaxTimestamp); o.Offset != -1 || o.Timestamp != -1 {
				t.Errorf("an empty partition: %+v", o)
			}
			if got := ask(t, b, deleteRecords(2, name, 6)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]; got.LowWatermark != 6 {
				t.Fatalf("delete records: %+v", got)
			}
		}
		rest := map[int64][2]int64{
			0: {6, t0 + 40}, t0 + 31: {6, t0 + 40}, t0 + 41: {7, t0 + 50}, t0 + 51: {8, t0 + 60}, t0 + 61: {-1, -1},
			askMaxTimestamp: {8, t0 + 60},
		}
		check("the first six deleted", rest)
		b = restart()
		check("deleted, after a restart", rest)
		for _, name := range names {
			if o := listOffset(t, b, name, 0, askEarliest); o.Offset != 6 {
				t.Errorf("%s: earliest %+v", name, o)
			}
			if got := ask(t, b, deleteRecords(2, name, -1)).(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]; got.LowWatermark != 10 {
				t.Fatalf("delete all: %+v", got)
			}
		}
		check("all deleted", map[int64][2]int64{0: {-1, -1}, t0 + 60: {-1, -1}, askMaxTimestamp: {-1, -1}, askLatest: {10, -1}, askEarliest: {10, -1}})
	})
}

// message.timestamp.type=LogAppendTime: bit 3 and the largest timestamp are the
// append's, the CRC is right, all records take that time, the Produce response
// and ListOffsets say it, compressed or not.
func TestLogAppendTime(t *testing.T) {
	inNode(t, func(t *testing.T, b *broker, restart func() *broker) {
		for codec, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
			createTopic(t, b, name, 1, "message.timestamp.type=LogAppendTime")
			mustProduce(t, b, name, 0, compressedBatch(t, kafkabatch.Codec(codec), 5000, 9000, 7000))
			time.Sleep(time.Minute)
			before := time.Now().UnixMilli()
			p := mustProduce(t, b, name, 0, compressedBatch(t, kafkabatch.Codec(codec), 5000, 9000, 7000))
			at := p.LogAppendTime
			if at < before || at > time.Now().UnixMilli() || p.BaseOffset != 3 {
				t.Fatalf("%s: %+v, sent at %d", name, p, before)
			}
			got := fetched(t, ask(t, b, fetchFrom(12, name, [16]byte{}, 3)), 0)
			var rb kmsg.RecordBatch
			if err := rb.ReadFrom(got.RecordBatches); err != nil {
				t.Fatal(err)
			}
			if rb.Attributes != int16(codec)|8 || rb.MaxTimestamp != at || rb.FirstTimestamp != 5000 || rb.FirstOffset != 3 {
				t.Errorf("%s: %+v", name, rb)
			}
			again := append([]byte(nil), got.RecordBatches...)
			if fixCRC(again); string(again) != string(got.RecordBatches) {
				t.Errorf("%s: wrong CRC", name)
			}
			for ask, want := range map[int64]int64{at: 3, at - 1: 3, at + 1: -1, askMaxTimestamp: 3} {
				if o := listOffset(t, b, name, 0, ask); o.Offset != want || want >= 0 && o.Timestamp != at {
					t.Errorf("%s: at t%+d: %+v, want offset %d", name, ask-at, o, want)
				}
			}
		}
		createTopic(t, b, "create", 1)
		if p := mustProduce(t, b, "create", 0, batch("a")); p.LogAppendTime != -1 {
			t.Errorf("CreateTime: %+v", p)
		}
		// The type changes under an open bucket, and back.
		for _, name := range []string{"LogAppendTime", "CreateTime"} {
			if err := firstAlter(t, b, editConfigsOf(1, ofTopic, "create", "set message.timestamp.type="+name)); err != "" {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the bucket follows the view
			if p := mustProduce(t, b, "create", 0, batch("a")); (p.LogAppendTime != -1) != (name == "LogAppendTime") {
				t.Errorf("%s: %+v", name, p)
			}
		}
	})
}

// max.message.bytes is of a batch, exact to the byte, and can change.
func TestMaxMessageBytes(t *testing.T) {
	inNode(t, func(t *testing.T, b *broker, restart func() *broker) {
		createTopic(t, b, "t", 1)
		exact := batch(string(make([]byte, 2000)))
		limit := func(n int) {
			if err := firstAlter(t, b, editConfigsOf(1, ofTopic, "t", fmt.Sprint("set max.message.bytes=", n))); err != "" {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		send := func() int16 {
			return produced(t, ask(t, b, produceTo(9, "t", map[int32][]byte{0: append([]byte(nil), exact...)}))).ErrorCode
		}
		limit(len(exact))
		if c := send(); c != 0 {
			t.Errorf("as large as allowed: error %d", c)
		}
		limit(len(exact) - 1)
		if c := send(); c != 10 {
			t.Errorf("one byte more than allowed: error %d, want 10", c)
		}
		b = restart()
		if c := send(); c != 10 {
			t.Errorf("after a restart: error %d, want 10", c)
		}
		if o := listOffset(t, b, "t", 0, askLatest); o.Offset != 1 {
			t.Errorf("%d records, want 1", o.Offset)
		}
	})
}

// Added partitions take records at once and survive.
func TestCreatePartitionsOnNode(t *testing.T) {
	inNode(t, func(t *testing.T, b *broker, restart func() *broker) {
		createTopic(t, b, "t", 1)
		mustProduce(t, b, "t", 0, batch("old"))
		if got := ask(t, b, createPartitions(3, "t", 3)).(*kmsg.CreatePartitionsResponse).Topics[0]; got.ErrorCode != 0 {
			t.Fatalf("%+v", got)
		}
		for i := int32(1); i < 3; i++ {
			mustProduce(t, b, "t", i, batch("new", "new"))
		}
		b = restart()
		for i, want := range []int64{1, 2, 2} {
			if o := listOffset(t, b, "t", int32(i), askLatest); o.Offset != want {
				t.Errorf("partition %d has %d records, want %d", i, o.Offset, want)
			}
		}
		dirs := ask(t, b, describeLogDirs(4, "t", 0, 1, 2)).(*kmsg.DescribeLogDirsResponse).Dirs[0].Topics[0].Partitions
		if len(dirs) != 3 || dirs[0].Size <= 0 || dirs[1].Size <= dirs[0].Size {
			t.Errorf("log dirs: %+v", dirs)
		}
		ask(t, b, deleteRecords(2, "t", -1))
		if p := ask(t, b, describeLogDirs(4, "t", 0)).(*kmsg.DescribeLogDirsResponse).Dirs[0].Topics[0].Partitions[0]; p.Size != 0 {
			t.Errorf("%d bytes after all records were deleted", p.Size)
		}
	})
}

// compressed is the records as a client compresses them.
func compressed(t testing.TB, codec kafkabatch.Codec, raw []byte) []byte {
	t.Helper()
	if codec == kafkabatch.CodecNone {
		return raw
	}
	kinds := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	c, err := kgo.DefaultCompressor(kinds[codec])
	if err != nil {
		t.Fatal(err)
	}
	out, used := c.Compress(new(bytes.Buffer), raw)
	if kafkabatch.Codec(used) != codec {
		t.Fatalf("compressed with codec %d, want %d", used, codec)
	}
	return out
}
