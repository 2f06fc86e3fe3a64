package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/sdk/api"
)

// topicRow is a row as testdata/topic_rows.py reads and prints it.
type topicRow struct {
	Offset    int64        `json:"offset"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
	Timestamp *int64       `json:"timestamp"`

	Skipped []int64 `json:"skipped,omitempty"` // first and last offset of a range without rows
	Why     string  `json:"why,omitempty"`
}

func base64Of(b []byte) *string {
	if b == nil {
		return nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return &s
}

// rowOfRecord is a Kafka record as a row.
func rowOfRecord(r *kgo.Record) topicRow {
	ms := r.Timestamp.UnixMilli()
	row := topicRow{Offset: r.Offset, Key: base64Of(r.Key), Value: base64Of(r.Value), Timestamp: &ms, Headers: [][2]*string{}}
	for _, h := range r.Headers {
		row.Headers = append(row.Headers, [2]*string{&h.Key, base64Of(h.Value)})
	}
	return row
}

func show(rows ...topicRow) string {
	var b strings.Builder
	for _, r := range rows {
		j, _ := json.Marshal(r)
		b.Write(append(j, '\n'))
	}
	return b.String()
}

// garbage is a batch of three records whose checksum is right and whose gzip
// stream is none.
func garbage() []byte {
	b := make([]byte, 61, 200)
	b = append(b, bytes.Repeat([]byte("this is no gzip stream. "), 5)...)
	be := binary.BigEndian
	be.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2                               // magic
	be.PutUint16(b[21:], 1)                 // gzip
	be.PutUint32(b[23:], 2)                 // last offset delta
	be.PutUint64(b[27:], 1_700_000_000_000) // first timestamp
	be.PutUint64(b[35:], 1_700_000_000_002) // max timestamp
	be.PutUint64(b[43:], ^uint64(0))        // no producer
	be.PutUint16(b[51:], ^uint16(0))
	be.PutUint32(b[53:], ^uint32(0))
	be.PutUint32(b[57:], 3) // records
	be.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// produceRaw sends one batch as it is and answers its base offset.
func (n *node) produceRaw(topic string, batch []byte) int64 {
	n.t.Helper()
	k := n.franz()
	defer k.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, -1, 10_000
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = batch
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, k)
	if err != nil {
		n.t.Fatal(err)
	}
	p := resp.Topics[0].Partitions[0]
	if p.ErrorCode != 0 {
		n.t.Fatalf("produce to %s: error code %d", topic, p.ErrorCode)
	}
	return p.BaseOffset
}

// putRows writes rows through pyarrow and answers the offset of the first.
func (n *node) putRows(table, codec string, rows ...topicRow) int64 {
	n.t.Helper()
	out := n.python([]byte(show(rows...)), "topic_rows.py", "put", table, codec)
	var r api.PutResult
	if err := json.Unmarshal(bytes.TrimSpace(out), &r); err != nil {
		n.t.Fatalf("%s: %v", out, err)
	}
	if len(r.Buckets) != 1 || r.Rows != int64(len(rows)) || int64(r.Buckets[0].Last-r.Buckets[0].First)+1 != r.Rows {
		n.t.Fatalf("%d rows put, the answer is %s", len(rows), out)
	}
	return int64(r.Buckets[0].First)
}

// mixed is a topic that both protocols write.
type mixed struct {
	want []topicRow // what Flight wrote, at the offsets that it was told; timestamps as given
	bad  int64      // base of the batch that cannot be decoded

	began time.Time
	times map[int64]int64 // offset of a row without a time -> what Kafka showed first
}

const mixedTopic = "both"

// kcatRecords produces through kcat: headers, null keys and values, a codec.
func kcatRecords(n *node, codec string) {
	n.t.Helper()
	n.kcat([]byte("k=v\n"), "-P", "-t", mixedTopic, "-K=", "-z", codec, "-H", "a=1", "-H", "a=2", "-H", "empty=")
	n.kcat([]byte("=null key\nnull value=\n=\n"), "-P", "-t", mixedTopic, "-K=", "-Z", "-z", codec)
	n.kcat(bytes.Repeat([]byte("a line that compresses, "+codec+"\n"), 20), "-P", "-t", mixedTopic, "-z", codec)
}

// flightRecords writes through pyarrow: headers, nulls, empty values, a codec.
func (m *mixed) flightRecords(n *node, codec string) {
	n.t.Helper()
	h, empty, ms := "h", base64Of([]byte{}), int64(1_700_000_123_456)
	rows := []topicRow{
		{Key: base64Of([]byte("arrow key")), Value: base64Of([]byte("arrow " + codec)), Timestamp: &ms, Headers: [][2]*string{{&h, base64Of([]byte("x"))}, {&h, nil}}},
		{Key: nil, Value: base64Of([]byte("no key")), Timestamp: &ms, Headers: [][2]*string{}},
		{Key: base64Of([]byte("no value")), Value: nil, Timestamp: &ms},
		{Key: empty, Value: empty, Timestamp: nil},
	}
	first := n.putRows("kafka."+mixedTopic, codec, rows...)
	for i, r := range rows {
		r.Offset = first + int64(i)
		if r.Headers == nil {
			r.Headers = [][2]*string{}
		}
		m.want = append(m.want, r)
	}
}

// Kafka clients and Flight clients write one bucket in turns; each sees the
// other's rows at the same offsets with the same content. What cannot be
// decoded is passed on to Kafka, skipped for Flight, and counted.
func TestOneTableForBothProtocols(t *testing.T) {
	var of sync.Map // *node -> *mixed: the states run at once
	mixedOf := func(n *node) *mixed {
		m, _ := of.LoadOrStore(n, &mixed{began: time.Now().Truncate(time.Millisecond), times: map[int64]int64{}})
		return m.(*mixed)
	}
	inEveryWALState(t, story{
		prepare: func(n *node) { n.mink(nil, "topic", "create", mixedTopic) },
		first: func(n *node) {
			m := mixedOf(n)
			for _, codec := range []string{"none", "gzip", "snappy"} {
				kcatRecords(n, codec)
			}
			m.flightRecords(n, "none")
			m.flightRecords(n, "zstd")
		},
		second: func(n *node) {
			m := mixedOf(n)
			m.flightRecords(n, "lz4")
			m.bad = n.produceRaw(mixedTopic, garbage())
			for _, codec := range []string{"lz4", "zstd"} {
				kcatRecords(n, codec)
			}
			m.flightRecords(n, "none")
		},
		check: func(n *node, when string) { mixedOf(n).check(n, when) },
	})
}

func (m *mixed) check(n *node, when string) {
	n.t.Helper()
	end := int64(5*24 + 4*4 + 3)
	var kafka []topicRow
	for _, part := range [][2]int64{{0, m.bad}, {m.bad + 3, end}} {
		for _, r := range n.consume(mixedTopic, 0, part[0], part[1]) {
			kafka = append(kafka, rowOfRecord(r))
		}
	}
	var flight, skipped []topicRow
	for d := json.NewDecoder(bytes.NewReader(n.python(nil, "topic_rows.py", "read", "kafka."+mixedTopic))); d.More(); {
		var r topicRow
		if err := d.Decode(&r); err != nil {
			n.t.Fatal(err)
		}
		if r.Skipped != nil {
			skipped = append(skipped, r)
			continue
		}
		flight = append(flight, r)
	}
	if len(flight) != int(end)-3 || len(kafka) != len(flight) {
		n.t.Fatalf("%s: %d rows through Flight, %d records through Kafka, want %d", when, len(flight), len(kafka), end-3)
	}
	byOffset := map[int64]topicRow{}
	for i := range flight {
		if flight[i].Timestamp == nil { // a Kafka record has a time: that of the append, for ever
			flight[i].Timestamp = m.timeOf(n, when, kafka[i])
		}
		if !reflect.DeepEqual(flight[i], kafka[i]) {
			n.t.Fatalf("%s: Flight and Kafka differ:\n%s%s", when, show(flight[i]), show(kafka[i]))
		}
		byOffset[flight[i].Offset] = flight[i]
	}
	for _, w := range m.want {
		got := byOffset[w.Offset]
		if w.Timestamp == nil {
			got.Timestamp = nil
		}
		if !reflect.DeepEqual(got, w) {
			n.t.Fatalf("%s: pyarrow wrote and was given:\n%s%s", when, show(w), show(got))
		}
	}
	m.checkBad(n, when, skipped)
	m.checkKcat(n, when, byOffset, end)
}

// timeOf answers a record's time when it is one that the node may have given,
// and gave before.
func (m *mixed) timeOf(n *node, when string, r topicRow) *int64 {
	n.t.Helper()
	ms := *r.Timestamp
	if ms < m.began.UnixMilli() || ms > time.Now().UnixMilli() {
		n.t.Fatalf("%s: a row without a timestamp has %s for Kafka", when, time.UnixMilli(ms))
	}
	if first, ok := m.times[r.Offset]; ok && first != ms {
		n.t.Fatalf("%s: the time of the row at offset %d was %d, now it is %d", when, r.Offset, first, ms)
	}
	m.times[r.Offset] = ms
	return &ms
}

// checkBad: the bad batch is skipped once, named, and counted.
func (m *mixed) checkBad(n *node, when string, skipped []topicRow) {
	n.t.Helper()
	if len(skipped) != 1 || !reflect.DeepEqual(skipped[0].Skipped, []int64{m.bad, m.bad + 2}) || !strings.Contains(skipped[0].Why, "gzip") {
		n.t.Fatalf("%s: skipped %s, want [%d, %d] for its gzip", when, show(skipped...), m.bad, m.bad+2)
	}
	stats, err := n.client().Stats(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	if stats.Buckets[0].Quarantined != 1 || stats.Buckets[0].HighWatermark != 5*24+4*4+3 {
		n.t.Errorf("%s: stats %+v, want one quarantined batch", when, stats.Buckets[0])
	}
	if got := n.figure("mink_quarantined_batches"); got != 1 {
		n.t.Errorf("%s: metric mink_quarantined_batches is %v", when, got)
	}
	if _, errOut, err := n.tryMink(nil, "read", "kafka."+mixedTopic); err != nil || !strings.Contains(string(errOut), fmt.Sprintf("%d..%d", m.bad, m.bad+2)) {
		n.t.Errorf("%s: mink read does not say what it skipped: %v, %s", when, err, errOut)
	}
}

// checkKcat: librdkafka sees what franz-go saw.
func (m *mixed) checkKcat(n *node, when string, byOffset map[int64]topicRow, end int64) {
	n.t.Helper()
	for _, part := range [][2]int64{{0, m.bad}, {m.bad + 3, end}} {
		out := n.kcat(nil, "-C", "-t", mixedTopic, "-o", fmt.Sprint(part[0]), "-c", fmt.Sprint(part[1]-part[0]), "-q", "-X", "check.crcs=true", "-f", "%o %K %S %T\n")
		next := part[0]
		for line := range strings.Lines(string(out)) {
			r := byOffset[next]
			if want := fmt.Sprintf("%d %d %d %d\n", next, lengthOf(r.Key), lengthOf(r.Value), *r.Timestamp); line != want {
				n.t.Fatalf("%s: kcat shows %q, want %q", when, line, want)
			}
			next++
		}
		if next != part[1] {
			n.t.Fatalf("%s: kcat ends at offset %d, want %d", when, next, part[1])
		}
	}
}

// lengthOf is -1 for null, as kcat prints it.
func lengthOf(s *string) int {
	if s == nil {
		return -1
	}
	b, _ := base64.StdEncoding.DecodeString(*s)
	return len(b)
}
