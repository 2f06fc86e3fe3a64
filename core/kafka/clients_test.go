package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/sdk/mink"
)

func kgoClient(t testing.TB, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// franz-go with its defaults (idempotent, acks=all) and each codec: what goes in
// comes out, headers, nulls and all, in order.
func TestFranzGo(t *testing.T) {
	s := startServer(t, func(c *Config) { c.DefaultPartitions = 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	number := map[string]kafkabatch.Codec{"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
	for name, codec := range codecs {
		topic := "kgo." + name
		producer := kgoClient(t, s.addr, kgo.ProducerBatchCompression(codec), kgo.AllowAutoTopicCreation(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		const records = 2000
		for i := range records {
			r := &kgo.Record{Topic: topic, Partition: int32(i % 2), Key: []byte("same key"), Value: []byte(strings.Repeat(fmt.Sprint(i, " "), 20))}
			switch i % 5 {
			case 1:
				r.Key = nil
			case 2:
				r.Value = nil
			case 3:
				r.Key, r.Value = []byte{}, []byte{}
			case 4:
				r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte(fmt.Sprint(i))}, {Key: "", Value: nil}}
			}
			producer.Produce(ctx, r, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("%s: produce: %v", name, err)
				}
			})
		}
		if err := producer.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		start := kgo.NewOffset().AtStart()
		consumer := kgoClient(t, s.addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start, 1: start}}))
		next := []int{0, 1}
		for got := 0; got < records; {
			fetches := consumer.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				i := next[r.Partition]
				checkRecord(t, r, i)
				next[r.Partition], got = i+2, got+1
			})
		}
		checkStored(t, topicLog(t, s.node, topic, 0), number[name])
	}
}

// checkStored: batches are stored as the client compressed them (it leaves
// small ones alone), and each carries its producer.
func checkStored(t *testing.T, log *fakeLog, codec kafkabatch.Codec) {
	t.Helper()
	found := 0
	for _, b := range log.mu.batches {
		v, err := kafkabatch.Parse(b.Kafka())
		if err != nil || v.Codec() != codec && v.Codec() != kafkabatch.CodecNone {
			t.Errorf("a batch is stored with codec %v, want %v (%v)", v.Codec(), codec, err)
		}
		if v.ProducerID() < 1000 {
			t.Errorf("not idempotent: producer id %d", v.ProducerID())
		}
		if v.Codec() == codec {
			found++
		}
	}
	if found == 0 {
		t.Errorf("no batch is stored with codec %v", codec)
	}
}

func checkRecord(t *testing.T, r *kgo.Record, i int) {
	t.Helper()
	value := []byte(strings.Repeat(fmt.Sprint(i, " "), 20))
	key := []byte("same key")
	headers := 0
	switch i % 5 {
	case 1:
		key = nil
	case 2:
		value = nil
	case 3:
		key, value = []byte{}, []byte{}
	case 4:
		headers = 2
	}
	if r.Offset != int64(i/2) || !bytes.Equal(r.Value, value) || !bytes.Equal(r.Key, key) || (r.Value == nil) != (value == nil) || (r.Key == nil) != (key == nil) || len(r.Headers) != headers {
		t.Fatalf("record %d: %d %q=%q %v", i, r.Offset, r.Key, r.Value, r.Headers)
	}
	if headers > 0 && string(r.Headers[0].Value) != fmt.Sprint(i) {
		t.Fatalf("record %d: headers %v", i, r.Headers)
	}
}

func topicLog(t testing.TB, n *fakeNode, topic string, partition int) *fakeLog {
	t.Helper()
	b := &broker{cfg: testConfig(), backend: n}
	found := b.topicByName(n.View(), topic)
	if found == nil {
		t.Fatalf("no topic %s", topic)
	}
	ref, _ := found.bucket(int32(partition))
	l, err := n.Log(ref)
	if err != nil {
		t.Fatal(err)
	}
	return l.(*fakeLog)
}

// Overload and a moved leader are retried by the client, without loss or
// repetition.
func TestFranzGoRetries(t *testing.T) {
	s := startServer(t, func(c *Config) { c.ThrottleTime, c.HoldTime = 20*time.Millisecond, 0 })
	log := s.node.topic("t", 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cl := kgoClient(t, s.addr, kgo.DefaultProduceTopic("t"), kgo.MetadataMinAge(10*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
	flaky := []error{}
	for i := range 60 {
		switch i % 20 {
		case 5:
			flaky = append(flaky, mink.ErrThrottled)
		case 15:
			flaky = append(flaky, mink.ErrClosed)
		}
		if len(flaky) > 0 {
			err := flaky[0]
			flaky = flaky[1:]
			log.set(func(l *fakeLog) { l.mu.refuse = err })
			go func() {
				<-time.After(30 * time.Millisecond)
				log.set(func(l *fakeLog) { l.mu.refuse = nil })
			}()
		}
		if err := cl.ProduceSync(ctx, &kgo.Record{Value: []byte(fmt.Sprint(i))}).FirstErr(); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if got := log.HighWatermark(); got != 60 {
		t.Errorf("%d records stored, want 60", got)
	}
}

func TestFranzGoTransactionsFail(t *testing.T) {
	s := startServer(t, nil)
	s.node.topic("t", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tx := kgoClient(t, s.addr, kgo.TransactionalID("x"), kgo.DefaultProduceTopic("t"))
	if err := tx.BeginTransaction(); err != nil {
		return
	}
	if err := tx.ProduceSync(ctx, kgo.StringRecord("v")).FirstErr(); !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		t.Errorf("transactional produce: %v", err)
	}
}

// kcat runs librdkafka 2.0.2 and answers its standard output.
func kcat(t *testing.T, addr, stdin string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("kcat is not installed (apt-get install kcat): librdkafka was not tried")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{"-b", addr}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("kcat %v: %v\n%s%s", args, err, out.String(), errs.String())
	}
	if strings.Contains(errs.String(), "not compressing") {
		t.Errorf("kcat %v does not compress:\n%s", args, errs.String())
	}
	return out.String()
}

// Cases produce_min_zero and kcat's part of nine_client_matrix.
func TestKcat(t *testing.T) {
	s := startServer(t, nil)
	var in strings.Builder
	for i := range 500 {
		fmt.Fprintf(&in, "k%d:value %d %s\n", i, i, strings.Repeat("abc", i%50))
	}
	codecs := []string{"none", "gzip", "snappy", "lz4", "zstd"}
	for i, codec := range codecs {
		topic := "kcat-" + codec
		kcat(t, s.addr, in.String(), "-P", "-t", topic, "-K:", "-z", codec, "-d", "msg", "-X", "enable.idempotence=true")
		got := kcat(t, s.addr, "", "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K:", "-X", "check.crcs=true")
		if got != in.String() {
			t.Errorf("%s: %d bytes came back, %d went in", codec, len(got), in.Len())
		}
		log := topicLog(t, s.node, topic, 0)
		if v, err := kafkabatch.Parse(log.mu.batches[0].Kafka()); err != nil || v.Codec() != kafkabatch.Codec(i) {
			t.Errorf("%s: stored with codec %v (%v)", codec, v.Codec(), err)
		}
	}
	if got := kcat(t, s.addr, "", "-L"); !strings.Contains(got, "topic \"kcat-lz4\" with 1 partitions") || !strings.Contains(got, s.addr) {
		t.Errorf("kcat -L:\n%s", got)
	}
	if got := kcat(t, s.addr, "", "-Q", "-t", "kcat-gzip:0:-1"); !strings.Contains(got, "offset 500") {
		t.Errorf("kcat -Q: %s", got)
	}
	kcat(t, s.addr, "fire and forget\n", "-P", "-t", "acks0", "-X", "acks=0")
	if got := kcat(t, s.addr, "", "-C", "-t", "acks0", "-p", "0", "-o", "beginning", "-e", "-q"); got != "fire and forget\n" {
		t.Errorf("acks=0: %q", got)
	}
}
