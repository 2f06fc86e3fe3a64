package kafka

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/sdk/mink"
)

// Case apiversions_too_new: a version from the future is answered without
// reading its body, and the connection goes on.
func TestAPIVersionsTooNew(t *testing.T) {
	s := startServer(t, nil)
	bodies := map[string][]byte{
		"empty":  nil,
		"random": bytes.Repeat([]byte{0xff, 0x80, 7}, 50),
		"v5":     append([]byte("\x05test\x03v1\x0bclusterid1"), 0, 0, 0, 1, 0),
	}
	for name, body := range bodies {
		for _, version := range []int16{5, 6, 99, math.MaxInt16, -1} {
			c := dial(t, s.addr)
			frame := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
			frame = binary.BigEndian.AppendUint16(frame, uint16(keyAPIVersions))
			frame = binary.BigEndian.AppendUint16(frame, uint16(version))
			frame = binary.BigEndian.AppendUint32(frame, 4711)
			c.write(append(frame, body...))
			v0 := kmsg.NewPtrApiVersionsRequest()
			resp := c.receive(v0, 4711).(*kmsg.ApiVersionsResponse)
			if resp.ErrorCode != 35 {
				t.Fatalf("%s v%d: error %d, want 35", name, version, resp.ErrorCode)
			}
			checkAdvertised(t, resp)
			v4 := kmsg.NewPtrApiVersionsRequest()
			v4.Version, v4.ClientSoftwareName, v4.ClientSoftwareVersion = 4, "test", "1.0"
			if resp := c.call(v4).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 {
				t.Fatalf("v4 after v%d: error %d", version, resp.ErrorCode)
			}
		}
	}
}

// Cases produce_min_zero, apiversions_no_negative.
func checkAdvertised(t *testing.T, resp *kmsg.ApiVersionsResponse) {
	t.Helper()
	want := map[int16][2]int16{0: {0, 11}, 1: {4, 17}, 2: {1, 10}, 3: {0, 13}, 8: {2, 9}, 9: {1, 9}, 10: {0, 6}, 11: {0, 9}, 12: {0, 4}, 13: {0, 5}, 14: {0, 5},
		15: {0, 6}, 16: {0, 5}, 18: {0, 4}, 19: {2, 7}, 20: {1, 6}, 21: {0, 2}, 22: {0, 5}, 23: {2, 4},
		32: {1, 4}, 33: {0, 2}, 35: {1, 4}, 37: {0, 3}, 42: {0, 2}, 44: {0, 1}, 47: {0, 0}, 60: {0, 2}, 75: {0, 0}}
	if len(resp.ApiKeys) != len(want) {
		t.Errorf("%d keys advertised, want %d", len(resp.ApiKeys), len(want))
	}
	for _, k := range resp.ApiKeys {
		if want[k.ApiKey] != [2]int16{k.MinVersion, k.MaxVersion} {
			t.Errorf("key %d advertised as %d-%d, want %v", k.ApiKey, k.MinVersion, k.MaxVersion, want[k.ApiKey])
		}
	}
}

func TestAPIVersionsOdd(t *testing.T) {
	b, _, _ := newTestBroker(t, nil)
	for v := int16(0); v <= 4; v++ {
		r := kmsg.NewPtrApiVersionsRequest()
		r.Version, r.ClientSoftwareName, r.ClientSoftwareVersion = v, "lib-rd.kafka", "2.0.2"
		checkAdvertised(t, ask(t, b, r).(*kmsg.ApiVersionsResponse))
		r.ClientSoftwareName = "no spaces"
		want := int16(0)
		if v >= 3 {
			want = 42
		}
		if got := ask(t, b, r).(*kmsg.ApiVersionsResponse).ErrorCode; got != want {
			t.Errorf("v%d with a bad software name: error %d, want %d", v, got, want)
		}
	}
}

func TestVersionTableIsPrinted(t *testing.T) {
	var out strings.Builder
	if err := WriteVersions(&out); err != nil {
		t.Fatal(err)
	}
	for _, a := range APIs() {
		if !strings.Contains(out.String(), a.Name) {
			t.Errorf("%s is not in the printed table", a.Name)
		}
		r := kmsg.RequestForKey(a.Key)
		for v := a.Min; v <= a.Max; v++ {
			r.SetVersion(v)
			if r.IsFlexible() != (v >= a.Flexible) {
				t.Errorf("%s v%d: flexible is %v in the codec", a.Name, v, r.IsFlexible())
			}
		}
		if a.Name != kmsg.NameForKey(a.Key) && !strings.EqualFold(a.Name, kmsg.NameForKey(a.Key)) {
			t.Errorf("key %d is %s here and %s in the codec", a.Key, a.Name, kmsg.NameForKey(a.Key))
		}
	}
}

// Every served version of every API: the response decodes to the last byte.
func TestEveryVersionDecodesStrictly(t *testing.T) {
	for _, a := range APIs() {
		for v := a.Min; v <= a.Max; v++ {
			b, node, _ := newTestBroker(t, nil)
			node.topic("t", 3)
			if got := ask(t, b, produceTo(7, "t", map[int32][]byte{1: batch("a", "b")})); got.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode != 0 {
				t.Fatal("produce")
			}
			for _, r := range requestsFor(a.Key, v, node) {
				r.SetVersion(v)
				ask(t, b, r)
			}
		}
	}
}

func requestsFor(key, v int16, node *fakeNode) []kmsg.Request {
	id := node.topicID("t")
	switch key {
	case keyProduce:
		missing := produceTo(v, "missing", map[int32][]byte{0: batch("x")})
		bad := produceTo(v, "t", map[int32][]byte{0: []byte("junk"), 1: batch("x"), 9: batch("y")})
		return []kmsg.Request{produceTo(v, "t", map[int32][]byte{0: batch("x"), 2: batch("y")}), missing, bad}
	case keyFetch:
		r := fetchFrom(v, "t", id, 0, 0, 99)
		other := fetchFrom(v, "missing", [16]byte{9}, 0)
		session := fetchFrom(max(v, 7), "t", id, 0)
		session.SessionID, session.SessionEpoch = 5, 3
		return []kmsg.Request{r, other, session}
	case keyListOffsets:
		r := kmsg.NewPtrListOffsetsRequest()
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = "t"
		for i, ts := range []int64{-1, -2, -3, -4, -5, -6, 0, math.MaxInt64} {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = int32(i%4), ts
			topic.Partitions = append(topic.Partitions, p)
		}
		r.Topics = append(r.Topics, topic)
		return []kmsg.Request{r}
	case keyMetadata:
		all := kmsg.NewPtrMetadataRequest()
		named := kmsg.NewPtrMetadataRequest()
		for _, n := range []string{"t", "missing", "bad name"} {
			mt := kmsg.NewMetadataRequestTopic()
			mt.Topic = kmsg.StringPtr(n)
			named.Topics = append(named.Topics, mt)
		}
		if v >= 12 {
			for _, id := range [][16]byte{id, {8}} {
				mt := kmsg.NewMetadataRequestTopic()
				mt.TopicID = id
				named.Topics = append(named.Topics, mt)
			}
		}
		return []kmsg.Request{all, named}
	case keyAPIVersions:
		r := kmsg.NewPtrApiVersionsRequest()
		r.ClientSoftwareName, r.ClientSoftwareVersion = "a", "1"
		return []kmsg.Request{r}
	case keyCreateTopics:
		r := kmsg.NewPtrCreateTopicsRequest()
		for _, n := range []string{"new", "t", "bad name"} {
			ct := kmsg.NewCreateTopicsRequestTopic()
			ct.Topic, ct.NumPartitions, ct.ReplicationFactor = n, 2, 3
			r.Topics = append(r.Topics, ct)
		}
		return []kmsg.Request{r}
	case keyDeleteTopics:
		r := kmsg.NewPtrDeleteTopicsRequest()
		r.TopicNames = []string{"t", "missing"}
		for _, id := range [][16]byte{id, {7}} {
			dt := kmsg.NewDeleteTopicsRequestTopic()
			dt.TopicID = id
			r.Topics = append(r.Topics, dt)
		}
		if v < 6 {
			r.Topics = nil
		} else {
			r.TopicNames = nil
		}
		return []kmsg.Request{r}
	case keyInitProducerID:
		txn := kmsg.NewPtrInitProducerIDRequest()
		txn.TransactionalID = kmsg.StringPtr("tx")
		return []kmsg.Request{kmsg.NewPtrInitProducerIDRequest(), txn}
	case keyEpochEnd:
		r := kmsg.NewPtrOffsetForLeaderEpochRequest()
		topic := kmsg.NewOffsetForLeaderEpochRequestTopic()
		topic.Topic = "t"
		for i := range int32(4) {
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.LeaderEpoch = i, i
			topic.Partitions = append(topic.Partitions, p)
		}
		r.Topics = append(r.Topics, topic)
		return []kmsg.Request{r}
	}
	return append(adminRequests(key, v), groupRequestsFor(key, v)...)
}

// The fetch encoder against the codec, for random answers in every version.
func TestFetchEncoderEqualsCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := int16(rapid.IntRange(4, 17).Draw(t, "version"))
		a, want := drawFetchAnswer(t, version)
		out, parts := a.encode([]byte("head"), 4)
		flat := out
		if parts != nil {
			flat = nil
			for _, p := range parts {
				flat = append(flat, p...)
			}
		}
		if !bytes.Equal(flat[4:], want.AppendTo(nil)) {
			t.Fatalf("v%d:\n%x\nwant\n%x", version, flat[4:], want.AppendTo(nil))
		}
	})
}

func drawFetchAnswer(t *rapid.T, version int16) (*fetchAnswer, *kmsg.FetchResponse) {
	a := &fetchAnswer{version: version, code: code(rapid.SampledFrom([]int16{0, 0, 70}).Draw(t, "code"))}
	want := kmsg.NewPtrFetchResponse()
	want.Version, want.ErrorCode = version, int16(a.code)
	for range rapid.IntRange(0, 3).Draw(t, "topics") {
		rt, wt := kmsg.NewFetchRequestTopic(), kmsg.NewFetchResponseTopic()
		rt.Topic = rapid.StringN(0, 200, 200).Draw(t, "topic")
		copy(rt.TopicID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		wt.Topic, wt.TopicID = rt.Topic, rt.TopicID
		rt.Partitions = make([]kmsg.FetchRequestTopicPartition, rapid.IntRange(0, 4).Draw(t, "partitions"))
		for j := range rt.Partitions {
			rt.Partitions[j].Partition = rapid.Int32().Draw(t, "partition")
			p := fetchPart{req: &rt.Partitions[j], leader: -1, epoch: -1}
			p.code = code(rapid.Int16().Draw(t, "error"))
			p.hwm, p.start = mink.Offset(rapid.Int64().Draw(t, "hwm")), mink.Offset(rapid.Int64().Draw(t, "start"))
			wp := kmsg.NewFetchResponseTopicPartition()
			wp.RecordBatches = []byte{}
			for range rapid.IntRange(0, 4).Draw(t, "batches") {
				b := bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, rapid.IntRange(1, 2*copyBelow).Draw(t, "size"))
				p.batches, p.bytes = append(p.batches, b), p.bytes+len(b)
				wp.RecordBatches = append(wp.RecordBatches, b...)
			}
			if version >= 12 && rapid.Bool().Draw(t, "moved") {
				p.leader, p.epoch = mink.NodeID(rapid.Int32Range(0, 99).Draw(t, "leader")), mink.LeaderEpoch(rapid.Int32().Draw(t, "epoch"))
				wp.CurrentLeader.LeaderID, wp.CurrentLeader.LeaderEpoch = int32(p.leader), int32(p.epoch)
			}
			wp.Partition, wp.ErrorCode, wp.HighWatermark, wp.LastStableOffset = p.req.Partition, int16(p.code), int64(p.hwm), int64(p.hwm)
			wp.LogStartOffset, wp.AbortedTransactions = int64(p.start), []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
			a.parts, wt.Partitions = append(a.parts, p), append(wt.Partitions, wp)
		}
		a.topics, want.Topics = append(a.topics, rt), append(want.Topics, wt)
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "brokers") {
		e := endpoint{id: mink.NodeID(i), host: rapid.StringN(0, 200, 200).Draw(t, "host"), port: rapid.Int32().Draw(t, "port")}
		if rapid.Bool().Draw(t, "racked") {
			e.rack = kmsg.StringPtr(rapid.StringN(0, 20, 20).Draw(t, "rack"))
		}
		a.brokers = append(a.brokers, e)
		if version >= fetchNodes {
			n := kmsg.NewFetchResponseBroker()
			n.NodeID, n.Host, n.Port, n.Rack = int32(e.id), e.host, e.port, e.rack
			want.Brokers = append(want.Brokers, n)
		}
	}
	return a, want
}

// What is not served: error 35 in the response's schema, or a closed connection.
func TestUnservedRequests(t *testing.T) {
	s := startServer(t, nil)
	answered := map[string]kmsg.Request{}
	add := func(name string, r kmsg.Request, v int16) { r.SetVersion(v); answered[name] = r }
	add("fetch v18", kmsg.NewPtrFetchRequest(), 18)
	add("add offsets to a transaction", kmsg.NewPtrAddOffsetsToTxnRequest(), 3)
	add("sasl handshake", kmsg.NewPtrSASLHandshakeRequest(), 1)
	add("list reassignments", kmsg.NewPtrListPartitionReassignmentsRequest(), 0)
	for name, r := range answered {
		c := dial(t, s.addr)
		resp := c.call(r)
		if got := refusedCode(resp); got != 35 {
			t.Errorf("%s: error %d, want 35", name, got)
		}
		if got := c.call(kmsg.NewPtrApiVersionsRequest()).(*kmsg.ApiVersionsResponse).ErrorCode; got != 0 {
			t.Errorf("%s: the connection is not usable afterwards", name)
		}
	}
	old := kmsg.NewPtrCreateTopicsRequest()
	old.Version = 0
	byID := kmsg.NewPtrOffsetCommitRequest()
	byID.Version = 10
	for name, frame := range map[string][]byte{
		"create topics v0":   frameOf(old, 1),
		"offset commit v10":  frameOf(byID, 1),
		"unknown key":        {0, 0, 0, 10, 0x7f, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"negative key":       {0, 0, 0, 10, 0xff, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"negative version":   {0, 0, 0, 10, 0, 3, 0xff, 0xff, 0, 0, 0, 1, 0xff, 0xff},
		"length 0":           {0, 0, 0, 0},
		"negative length":    {0xff, 0xff, 0xff, 0xff},
		"TLS":                {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc},
		"HTTP":               []byte("GET / HTTP/1.1\r\n\r\n"),
		"big metadata frame": {0, 0x20, 0, 0, 0, 3, 0, 0},
		"cut client id":      {0, 0, 0, 10, 0, 3, 0, 0, 0, 0, 0, 1, 0x10, 0},
		"cut tags":           {0, 0, 0, 11, 0, 3, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 5},
		"cut body":           {0, 0, 0, 14, 0, 3, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 9},
	} {
		c := dial(t, s.addr)
		c.write(frame)
		t.Run(name, func(t *testing.T) { c.closed() })
	}
}

func refusedCode(r kmsg.Response) int16 {
	switch r := r.(type) {
	case *kmsg.FetchResponse:
		return r.ErrorCode
	case *kmsg.AddOffsetsToTxnResponse:
		return r.ErrorCode
	case *kmsg.SASLHandshakeResponse:
		return r.ErrorCode
	case *kmsg.ListPartitionReassignmentsResponse:
		return r.ErrorCode
	}
	return 0
}

// The log of a closed connection names who was on the other end.
func TestStrangersAreNamed(t *testing.T) {
	for want, bytes := range map[string]string{
		"TLS": "\x16\x03\x01\x02", "HTTP/2": "PRI * HTTP/2.0", "an HTTP client": "GET / HTTP/1.1", "": "\x7f\xff\xff\xff",
	} {
		if got := stranger([4]byte([]byte(bytes))); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", bytes, got, want)
		}
	}
}
