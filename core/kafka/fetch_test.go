package kafka

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

func appendTo(t testing.TB, l *fakeLog, b []byte) {
	t.Helper()
	if _, err := l.AppendKafka(b, tablet.KafkaAppend{AllowZstd: true}); err != nil {
		t.Fatal(err)
	}
}

func fetched(t testing.TB, r kmsg.Response, partition int) *kmsg.FetchResponseTopicPartition {
	t.Helper()
	return &r.(*kmsg.FetchResponse).Topics[0].Partitions[partition]
}

// Cases fetch_strict_decode_all_versions, fetch_empty_not_null.
func TestFetchAllVersions(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	logs := node.topic("t", 3)
	appendTo(t, logs[0], batch("a", "b"))
	appendTo(t, logs[0], batch(string(make([]byte, 3*copyBelow))))
	for v := int16(4); v <= 17; v++ {
		r := fetchFrom(v, "t", node.topicID("t"), 0, 0, 5)
		resp := ask(t, b, r).(*kmsg.FetchResponse)
		if resp.SessionID != 0 || resp.ErrorCode != 0 || len(resp.Topics[0].Partitions) != 3 {
			t.Fatalf("v%d: %+v", v, resp)
		}
		full, empty, bad := fetched(t, resp, 0), fetched(t, resp, 1), fetched(t, resp, 2)
		if full.ErrorCode != 0 || full.HighWatermark != 3 || full.LastStableOffset != 3 || full.LogStartOffset != 0 && v >= 5 {
			t.Errorf("v%d: %+v", v, full)
		}
		want := append(append([]byte(nil), logs[0].mu.batches[0].Kafka()...), logs[0].mu.batches[1].Kafka()...)
		if string(full.RecordBatches) != string(want) {
			t.Errorf("v%d: %d record bytes, want %d", v, len(full.RecordBatches), len(want))
		}
		if empty.ErrorCode != 0 || empty.RecordBatches == nil || len(empty.RecordBatches) != 0 || empty.HighWatermark != 0 {
			t.Errorf("v%d: at the end: %+v", v, empty)
		}
		if bad.ErrorCode != 1 || bad.HighWatermark != -1 || bad.RecordBatches == nil {
			t.Errorf("v%d: out of range: %+v", v, bad)
		}
		for i, p := range resp.Topics[0].Partitions {
			if v >= 11 && p.PreferredReadReplica != -1 || p.AbortedTransactions == nil || len(p.AbortedTransactions) > 0 {
				t.Errorf("v%d partition %d: preferred replica %d, aborted %v", v, i, p.PreferredReadReplica, p.AbortedTransactions)
			}
		}
	}
	if p := fetched(t, ask(t, b, fetchFrom(12, "missing", [16]byte{}, 0)), 0); p.ErrorCode != 3 {
		t.Errorf("missing topic: %d", p.ErrorCode)
	}
	if p := fetched(t, ask(t, b, fetchFrom(13, "", [16]byte{1, 2}, 0)), 0); p.ErrorCode != 100 {
		t.Errorf("missing topic id: %d", p.ErrorCode)
	}
	session := fetchFrom(12, "t", [16]byte{}, 0)
	session.SessionID, session.SessionEpoch = 3, 1
	if got := ask(t, b, session).(*kmsg.FetchResponse).ErrorCode; got != 70 {
		t.Errorf("a session that was never given out: %d", got)
	}
}

func TestFetchLeaderEpochs(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 1)[0]
	log.epoch = 5
	for client, want := range map[int32]int16{-1: 0, 5: 0, 4: 74, 6: 75} {
		r := fetchFrom(17, "t", node.topicID("t"), 0)
		r.MinBytes = 0
		r.Topics[0].Partitions[0].CurrentLeaderEpoch = client
		resp := ask(t, b, r).(*kmsg.FetchResponse)
		p := fetched(t, resp, 0)
		if p.ErrorCode != want {
			t.Errorf("client epoch %d: error %d, want %d", client, p.ErrorCode, want)
		}
		if named := p.CurrentLeader.LeaderEpoch == 5 && len(resp.Brokers) == 1; named != (want == 74) {
			t.Errorf("client epoch %d: leader %+v at %+v", client, p.CurrentLeader, resp.Brokers)
		}
	}
}

// Case fetch_maxwait, in virtual time: exact to the nanosecond.
func TestFetchMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, node, _ := newTestBroker(t, nil)
		logs := node.topic("t", 2)
		took := func(r *kmsg.FetchRequest) (time.Duration, *kmsg.FetchResponse) {
			start := time.Now()
			resp := ask(t, b, r).(*kmsg.FetchResponse)
			return time.Since(start), resp
		}
		r := fetchFrom(12, "t", [16]byte{}, 0, 0)
		if d, resp := took(r); d != 500*time.Millisecond || fetched(t, resp, 0).ErrorCode != 0 {
			t.Errorf("at the log end: answered after %v, %+v", d, fetched(t, resp, 0))
		}
		r.MaxWaitMillis = 0
		if d, _ := took(r); d != 0 {
			t.Errorf("MaxWait 0: %v", d)
		}
		r.MaxWaitMillis, r.MinBytes = 500, 0
		if d, _ := took(r); d != 0 {
			t.Errorf("MinBytes 0: %v", d)
		}
		// An append on the second partition wakes it.
		r.MinBytes = 1
		go func() {
			time.Sleep(123 * time.Millisecond)
			appendTo(t, logs[1], batch("a"))
		}()
		if d, resp := took(r); d != 123*time.Millisecond || len(fetched(t, resp, 1).RecordBatches) == 0 || fetched(t, resp, 1).HighWatermark != 1 {
			t.Errorf("woken after %v: %+v", d, fetched(t, resp, 1))
		}
		// MinBytes are counted over the partitions, and over several appends.
		size := len(batch("a"))
		r = fetchFrom(12, "t", [16]byte{}, 0, 0)
		r.MinBytes = int32(3 * size)
		go func() {
			time.Sleep(100 * time.Millisecond)
			appendTo(t, logs[0], batch("b"))
			time.Sleep(100 * time.Millisecond)
			appendTo(t, logs[0], batch("c"))
		}()
		if d, resp := took(r); d != 200*time.Millisecond || len(fetched(t, resp, 0).RecordBatches) != 2*size || len(fetched(t, resp, 1).RecordBatches) != size {
			t.Errorf("MinBytes: answered after %v: %d and %d bytes", d, len(fetched(t, resp, 0).RecordBatches), len(fetched(t, resp, 1).RecordBatches))
		}
		r.MinBytes = 1 << 20
		if d, resp := took(r); d != 500*time.Millisecond || len(fetched(t, resp, 0).RecordBatches) != 2*size {
			t.Errorf("MinBytes not met: %v", d)
		}
		// Losing the bucket ends the wait with an error.
		r = fetchFrom(12, "t", [16]byte{}, 2, 1)
		go func() {
			time.Sleep(50 * time.Millisecond)
			logs[0].close()
		}()
		if d, resp := took(r); d != 50*time.Millisecond || fetched(t, resp, 0).ErrorCode != 6 {
			t.Errorf("closed log: %v, error %d", d, fetched(t, resp, 0).ErrorCode)
		}
		// Any error answers at once, whatever else is asked.
		r = fetchFrom(12, "t", [16]byte{}, 0, 77)
		r.MinBytes = 1 << 20
		if d, resp := took(r); d != 0 || fetched(t, resp, 1).ErrorCode != 1 {
			t.Errorf("error: %v, %+v", d, fetched(t, resp, 1))
		}
		b.wait()
	})
}

// Case fetch_maxwait, pipelined: ten fetches with MaxBytes 1 each get the record.
func TestFetchPipelined(t *testing.T) {
	s := startServer(t, nil)
	appendTo(t, s.node.topic("t", 1)[0], batch("a"))
	c := dial(t, s.addr)
	r := fetchFrom(12, "t", [16]byte{}, 0)
	r.MaxBytes, r.MaxWaitMillis = 1, 3_600_000
	for i := range int32(10) {
		c.write(frameOf(r, i))
	}
	for i := range int32(10) {
		if p := fetched(t, c.receive(r, i), 0); len(p.RecordBatches) != len(batch("a")) {
			t.Fatalf("%d: %+v", i, p)
		}
	}
}

// Case fetch_slow_store: an empty success at MaxWait; the read goes on and the
// next fetch has it.
func TestFetchSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, node, _ := newTestBroker(t, nil)
		log := node.topic("t", 1)[0]
		appendTo(t, log, batch("a"))
		log.set(func(l *fakeLog) { l.mu.cold, l.mu.delay = true, 2*time.Second })
		r := fetchFrom(12, "t", [16]byte{}, 0)
		start := time.Now()
		for i := 1; ; i++ {
			p := fetched(t, ask(t, b, r), 0)
			if p.ErrorCode != 0 || p.HighWatermark != 1 {
				t.Fatalf("fetch %d: %+v", i, p)
			}
			if at := time.Since(start); len(p.RecordBatches) > 0 {
				if at != 2*time.Second {
					t.Errorf("the record came after %v, the store needs 2 s", at)
				}
				break
			} else if at != time.Duration(i)*500*time.Millisecond {
				t.Fatalf("fetch %d was answered at %v", i, at)
			}
		}
		if n := log.coldReads(); n != 1 {
			t.Errorf("%d reads from the store, want 1", n)
		}
		// A store that is down is not an error either; a corrupt object is.
		log.set(func(l *fakeLog) { l.mu.coldErr = mink.ErrUnavailable; l.mu.delay = 0 })
		at := time.Now()
		if p := fetched(t, ask(t, b, r), 0); p.ErrorCode != 0 || time.Since(at) != 500*time.Millisecond {
			t.Errorf("store down: %+v after %v", p, time.Since(at))
		}
		log.set(func(l *fakeLog) { l.mu.coldErr = mink.ErrCorrupt })
		if p := fetched(t, ask(t, b, r), 0); p.ErrorCode != 56 {
			t.Errorf("corrupt object: error %d, want 56", p.ErrorCode)
		}
		// A finished read that nobody comes back for is let go.
		log.set(func(l *fakeLog) { l.mu.coldErr = nil; l.mu.delay = time.Second })
		ask(t, b, r)
		time.Sleep(b.cfg.ColdKeep + 2*time.Second)
		synctest.Wait()
		if n := len(b.cold.mu.reads); n != 0 {
			t.Errorf("%d reads are still kept", n)
		}
		b.wait()
	})
}

// More cold partitions than reads may run: all are served in the end, and the
// bound holds.
func TestColdReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, node, _ := newTestBroker(t, func(c *Config) { c.ColdReadsMax = 3 })
		const n = 10
		offsets := make([]int64, n)
		size := 0
		for _, l := range node.topic("t", n) {
			appendTo(t, l, batch("a"))
			size = len(batch("a"))
			l.set(func(l *fakeLog) { l.mu.cold, l.mu.delay = true, 100*time.Millisecond })
		}
		r := fetchFrom(12, "t", [16]byte{}, offsets...)
		r.MinBytes, r.MaxWaitMillis = int32(n*size), 10_000
		start := time.Now()
		resp := ask(t, b, r)
		for i := range n {
			if got := len(fetched(t, resp, i).RecordBatches); got != size {
				t.Errorf("partition %d: %d bytes", i, got)
			}
		}
		if took := time.Since(start); took != 400*time.Millisecond {
			t.Errorf("10 reads of 100 ms, 3 at once: took %v", took)
		}
		b.wait()
	})
}

// Cases fetch_one_batch_min, fetch_total_cap.
// A finished read leaves its bytes in the block cache, too. A fetch that comes back
// finds them there; the read must not stay, or those of two batches take all the
// room and a consumer waits for ColdKeep at every third.
func TestColdReadsLeaveRoom(t *testing.T) {
	for _, claimed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, node, _ := newTestBroker(t, func(c *Config) { c.ColdReadsMax = 2 })
			log := node.topic("t", 1)[0]
			const n = 9
			for range n {
				appendTo(t, log, batch("a"))
			}
			log.set(func(l *fakeLog) { l.mu.cold, l.mu.warms, l.mu.delay = true, true, 600*time.Millisecond })
			start := time.Now()
			for at := int64(0); at < n; {
				r := fetchFrom(12, "t", [16]byte{}, at)
				r.MaxBytes = 1 // one batch
				p := fetched(t, ask(t, b, r), 0)
				if p.ErrorCode != 0 {
					t.Fatalf("fetch from %d: error %d", at, p.ErrorCode)
				}
				switch {
				case len(p.RecordBatches) > 0:
					at++
				case claimed:
					time.Sleep(200 * time.Millisecond) // the read ends, then the client comes back
				default:
					time.Sleep(200 * time.Millisecond) // and this client does not: the next one reads on
					at++
				}
			}
			if took := time.Since(start); took > n*time.Second {
				t.Errorf("%d cold batches took %v", n, took)
			}
			if claimed && len(b.cold.mu.reads) != 0 {
				t.Errorf("%d finished reads were not claimed", len(b.cold.mu.reads))
			}
			b.cold.close()
			b.wait()
		})
	}
}

func TestFetchLimits(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	logs := node.topic("t", 3)
	big := batch(string(make([]byte, 900_000)))
	for _, l := range logs {
		appendTo(t, l, big)
		appendTo(t, l, big)
	}
	r := fetchFrom(12, "t", [16]byte{}, 0, 0, 0)
	r.MaxBytes = 1024
	for i := range r.Topics[0].Partitions {
		r.Topics[0].Partitions[i].PartitionMaxBytes = 1024
	}
	resp := ask(t, b, r)
	for i, want := range []int{len(big), 0, 0} {
		p := fetched(t, resp, i)
		if len(p.RecordBatches) != want || p.HighWatermark != 2 {
			t.Errorf("partition %d: %d bytes, want %d; high watermark %d", i, len(p.RecordBatches), want, p.HighWatermark)
		}
	}
	// A partition whose first batch is too big does not hide the others.
	small := batch("x")
	appendTo(t, node.topic("small", 1)[0], small)
	both := fetchFrom(12, "small", [16]byte{}, 0)
	both.Topics = append(both.Topics, r.Topics[0], both.Topics[0])
	got := ask(t, b, both).(*kmsg.FetchResponse)
	if len(got.Topics[0].Partitions[0].RecordBatches) != len(small) || len(got.Topics[1].Partitions[0].RecordBatches) != 0 || len(got.Topics[2].Partitions[0].RecordBatches) != len(small) {
		t.Error("a batch above its partition's limit was sent behind others, or hid them")
	}

	const parts, limit = 200, 10 << 20
	offsets := make([]int64, parts)
	for _, l := range node.topic("wide", parts) {
		appendTo(t, l, big)
	}
	wide := fetchFrom(12, "wide", [16]byte{}, offsets...)
	wide.MaxBytes = limit
	total := 0
	for i, p := range ask(t, b, wide).(*kmsg.FetchResponse).Topics[0].Partitions {
		total += len(p.RecordBatches)
		if p.ErrorCode != 0 || p.HighWatermark != 1 {
			t.Fatalf("partition %d: %+v", i, p)
		}
	}
	if total > limit || total < limit-len(big) {
		t.Errorf("%d record bytes, the limit is %d", total, limit)
	}
	wide.MaxBytes = 1 << 30
	total = 0
	for _, p := range ask(t, b, wide).(*kmsg.FetchResponse).Topics[0].Partitions {
		total += len(p.RecordBatches)
	}
	if total > b.cfg.FetchBytesMax {
		t.Errorf("%d record bytes, above the server's limit %d", total, b.cfg.FetchBytesMax)
	}
}

// A fetch from the middle of a batch gets the whole batch; one in a gap gets an
// empty batch that moves it over.
func TestFetchMiddleAndGap(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 1)[0]
	appendTo(t, log, batch("a", "b", "c"))
	p := fetched(t, ask(t, b, fetchFrom(12, "t", [16]byte{}, 1)), 0)
	if string(p.RecordBatches) != string(log.mu.batches[0].Kafka()) {
		t.Errorf("middle: %d bytes", len(p.RecordBatches))
	}
	log.set(func(l *fakeLog) { l.mu.end, l.mu.hwm = 10, 10 }) // [3, 10) holds nothing
	p = fetched(t, ask(t, b, fetchFrom(12, "t", [16]byte{}, 3)), 0)
	var rb kmsg.RecordBatch
	if err := rb.ReadFrom(p.RecordBatches); err != nil {
		t.Fatal(err)
	}
	if rb.FirstOffset != 3 || rb.LastOffsetDelta != 6 || rb.NumRecords != 0 || p.HighWatermark != 10 {
		t.Errorf("gap: %+v", rb)
	}
	again := append([]byte(nil), p.RecordBatches...)
	if fixCRC(again); string(again) != string(p.RecordBatches) {
		t.Error("gap: wrong CRC")
	}
	log.trim(5)
	if p := fetched(t, ask(t, b, fetchFrom(12, "t", [16]byte{}, 3)), 0); p.ErrorCode != 1 {
		t.Errorf("below the log start: error %d", p.ErrorCode)
	}
}

// What a cleaning has left without records does not make an answer by itself: there are
// clients that would ask for it again and again.
func TestFetchGoesOnBehindBatchesWithoutRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, node, _ := newTestBroker(t, nil)
		log := node.topic("t", 1)[0]
		appendTo(t, log, batch("a", "b", "c", "d", "e"))
		appendTo(t, log, batch("f"))
		log.set(func(l *fakeLog) {
			none := kafkabatch.EmptyBatch(0, 4, l.epoch)
			h := record.Header{LastOffsetDelta: 4, Encoding: record.EncodingKafka, LeaderEpoch: l.epoch, MaxTimestamp: -1}
			hdr := make([]byte, record.HeaderSize)
			record.PutHeader(hdr, &h, len(none))
			view, err := record.ViewBatch(append(hdr, none...))
			if err != nil {
				t.Fatal(err)
			}
			l.mu.batches[0], l.mu.warm = view, 5
			l.mu.cold, l.mu.delay = true, 100*time.Millisecond
		})
		for _, bytesMax := range []int32{1 << 20, 100} { // room for all; for less than a record
			r := fetchFrom(12, "t", [16]byte{}, 0)
			r.MaxBytes, r.Topics[0].Partitions[0].PartitionMaxBytes = bytesMax, bytesMax
			start := time.Now()
			p := fetched(t, ask(t, b, r), 0)
			if want := kafkabatch.HeaderSize + len(batch("f")); len(p.RecordBatches) != want || time.Since(start) != 100*time.Millisecond {
				t.Errorf("at most %d bytes: %d after %v, want %d", bytesMax, len(p.RecordBatches), time.Since(start), want)
			}
		}
		// With nothing behind them they are all there is, at the end of the wait.
		log.set(func(l *fakeLog) { l.mu.batches, l.mu.end, l.mu.hwm = l.mu.batches[:1], 5, 5 })
		start := time.Now()
		if p := fetched(t, ask(t, b, fetchFrom(12, "t", [16]byte{}, 0)), 0); len(p.RecordBatches) != kafkabatch.HeaderSize || time.Since(start) != 500*time.Millisecond {
			t.Errorf("at the end: %d bytes after %v", len(p.RecordBatches), time.Since(start))
		}
		b.wait()
	})
}

// A client that leaves ends its fetch.
func TestFetchEndsWithItsClient(t *testing.T) {
	s := startServer(t, nil)
	s.node.topic("t", 1)
	c := dial(t, s.addr)
	r := fetchFrom(12, "t", [16]byte{}, 0)
	r.MaxWaitMillis = 3_600_000
	c.send(r)
	conns := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.mu.conns)
	}
	until(t, "connected", func() bool { return conns() == 1 })
	_ = c.nc.Close()
	until(t, "the connection is gone", func() bool { return conns() == 0 })
}

func TestListOffsets(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 2)[0]
	log.epoch = 4
	ts := int64(1_700_000_000_000)
	appendTo(t, log, batchOf{values: []string{"a", "b", "c"}, ts: ts, pid: -1, epoch: -1, sequence: -1}.bytes())
	appendTo(t, log, batchOf{values: []string{"d"}, ts: ts - 50, pid: -1, epoch: -1, sequence: -1}.bytes())
	look := func(version int16, partition int32, at int64, epoch int32) string {
		r := kmsg.NewPtrListOffsetsRequest()
		r.Version = version
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = "t"
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, at, epoch
		topic.Partitions = append(topic.Partitions, p)
		r.Topics = append(r.Topics, topic)
		o := ask(t, b, r).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
		return fmt.Sprintf("e%d o%d t%d l%d", o.ErrorCode, o.Offset, o.Timestamp-min(o.Timestamp, ts), o.LeaderEpoch)
	}
	none := "e0 o-1 t0 l-1"
	for _, c := range []struct {
		version   int16
		partition int32
		at        int64
		epoch     int32
		want      string
	}{
		{10, 0, -1, -1, "e0 o4 t0 l4"},
		{10, 0, -1, 4, "e0 o4 t0 l4"},
		{10, 0, -2, -1, "e0 o0 t0 l4"},
		{10, 0, -3, -1, "e0 o2 t2 l4"},
		{10, 0, -4, -1, "e0 o0 t0 l4"},
		{10, 0, -5, -1, none},
		{10, 0, -6, -1, "e35 o-1 t0 l-1"},
		{6, 0, -3, -1, "e35 o-1 t0 l-1"},
		{7, 0, -4, -1, "e35 o-1 t0 l-1"},
		{8, 0, -5, -1, "e35 o-1 t0 l-1"},
		{10, 0, ts + 1, -1, "e0 o1 t1 l4"},
		{10, 0, ts + 9, -1, none},
		{10, 1, -1, -1, "e0 o0 t0 l1"},
		{10, 1, -2, -1, none[:3] + "o0 t0 l-1"},
		{10, 1, -3, -1, none},
		{10, 9, -1, -1, "e3 o-1 t0 l-1"},
		{4, 0, -1, 3, "e74 o-1 t0 l-1"},
		{4, 0, -1, 5, "e75 o-1 t0 l-1"},
	} {
		if got := look(c.version, c.partition, c.at, c.epoch); got != c.want {
			t.Errorf("v%d partition %d at %d epoch %d: %q, want %q", c.version, c.partition, c.at, c.epoch, got, c.want)
		}
	}
}

func TestEpochEnds(t *testing.T) {
	b, node, _ := newTestBroker(t, nil)
	log := node.topic("t", 1)[0]
	appendTo(t, log, batch("a", "b"))
	for asked, want := range map[int32][2]int64{1: {1, 2}, 2: {-1, -1}} {
		r := kmsg.NewPtrOffsetForLeaderEpochRequest()
		r.Version = 4
		topic := kmsg.NewOffsetForLeaderEpochRequestTopic()
		topic.Topic = "t"
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.LeaderEpoch = asked
		topic.Partitions = append(topic.Partitions, p)
		r.Topics = append(r.Topics, topic)
		got := ask(t, b, r).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
		if got.ErrorCode != 0 || int64(got.LeaderEpoch) != want[0] || got.EndOffset != want[1] {
			t.Errorf("epoch %d: %+v", asked, got)
		}
	}
}
