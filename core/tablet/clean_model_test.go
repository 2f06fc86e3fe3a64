package tablet

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/stream/streamtest"
	"github.com/mink-project/mink/core/stream/wal"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

var cleanSeeds = flag.Int("clean-seeds", 40, "schedules of the cleaning model")

// deleteRetention of the model's topic.
const deleteRetention = time.Hour

// modelRecord is one record that was acknowledged.
type modelRecord struct {
	key, value string
	tombstone  bool
	ts         int64
}

// cleanModel is one bucket of a compacted topic on a real engine: a store and a metadata
// log in memory that fail now and then, a node that dies and comes back, and beside it
// everything that was ever acknowledged.
type cleanModel struct {
	t    *testing.T
	r    *rand.Rand
	mem  *memstore.Store
	meta *streamtest.Meta
	node *modelNode

	records map[mink.Offset]modelRecord
	latest  map[string]mink.Offset
	met     map[mink.Offset]int64 // tombstones: when a cleaning first met them, ms
	seq     int32
	serial  int

	slow slowConsumer

	rounds, removed, conflicts, interrupted, crashes int
}

// slowConsumer reads a piece now and then and keeps the latest value of each key.
type slowConsumer struct {
	next   mink.Offset
	values map[string]string
}

type modelNode struct {
	id     plan.WALID
	engine *stream.Engine
	store  *fault.Store
	meta   *faultyMeta
	log    *Log
	stream *stream.Stream
	cancel context.CancelFunc
	done   chan error
}

// faultyMeta is a node's way to the metadata log.
type faultyMeta struct {
	*streamtest.Meta
	calls, stopAt int // from the call stopAt on nothing works; 0: all do
	lost          bool
}

func (m *faultyMeta) RewriteStream(ctx context.Context, c plan.RewriteStream) error {
	m.calls++
	if m.stopAt > 0 && m.calls >= m.stopAt && !m.lost {
		return mink.ErrUnavailable
	}
	if err := m.Meta.RewriteStream(ctx, c); err != nil || m.stopAt == 0 {
		return err
	}
	return mink.ErrUnknownOutcome
}

func newCleanModel(t *testing.T, seed uint64) *cleanModel {
	m := &cleanModel{
		t: t, r: rand.New(rand.NewPCG(seed, 16)), mem: memstore.New(memstore.Config{}), meta: streamtest.NewMeta(),
		records: map[mink.Offset]modelRecord{}, latest: map[string]mink.Offset{}, met: map[mink.Offset]int64{},
		slow: slowConsumer{values: map[string]string{}},
	}
	m.start()
	return m
}

func (m *cleanModel) start() {
	n := &modelNode{id: m.meta.Register(1), store: fault.New(m.mem, fault.Config{}), meta: &faultyMeta{Meta: m.meta}, done: make(chan error, 1)}
	cfg := stream.Default(m.mem.Capabilities(), 1<<30)
	cfg.LogCacheBytes, cfg.RecordBytesMax, cfg.BlockCacheBytes = 2<<20, 64<<10, 1<<20
	cfg.CompactPartBytes = 4 << 10
	cfg.RetryMin, cfg.RetryMax = time.Millisecond, 10*time.Millisecond
	var err error
	n.engine, err = stream.New(cfg, stream.Deps{Objects: n.store, WALStore: n.store, WAL: n.id, Meta: n.meta, Folder: Folder{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		m.t.Fatal(err)
	}
	m.meta.Follow(n.id.Epoch, n.engine.ReadHorizon)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go func() { n.done <- n.engine.Run(ctx) }()
	m.node = n
	m.open()
}

func (m *cleanModel) open() {
	n := m.node
	epoch := m.meta.Lead(1, n.id)
	var err error
	if n.stream, err = n.engine.Open(context.Background(), 1, epoch); err != nil {
		m.t.Fatal(err)
	}
	cfg := Default()
	cfg.Bucket, cfg.LeaderEpoch = mink.BucketRef{Table: 1, Partition: 1}, epoch
	topic := schema.KafkaTopicSchema()
	topic.ID = 1
	cfg.Schemas = []*schema.Schema{&topic}
	cfg.Options = schema.Options{Compact: true, CompactOnly: true, DeleteRetention: deleteRetention, MaxCompactionLag: 1 << 62, MinDirtyRatio: 0.5}
	if n.log, err = OpenLog(context.Background(), OnStream(n.stream), cfg); err != nil {
		m.t.Fatal(err)
	}
}

// crash ends the node at once and recovers its log.
func (m *cleanModel) crash() {
	m.crashes++
	n := m.node
	n.meta.stopAt = 1
	n.store.Inject(fault.Rule{Do: fault.FailBefore(objstore.ErrUnavailable)})
	n.log.Close()
	n.cancel()
	<-n.done
	m.meta.Seal(n.id.Epoch)
	state, _ := m.meta.View().WAL(n.id.Epoch)
	res, err := wal.Recover(context.Background(), wal.RecoverConfig{Store: m.mem, WAL: n.id, From: state.Trim, Window: 8, Nonce: m.r.Uint64(), StillNeeded: func() bool { return true }})
	if err != nil {
		m.t.Fatal(err)
	}
	if err := m.meta.Recover(plan.RecoverWAL{WAL: n.id, End: res.End, Objects: res.Objects, Items: res.Items}); err != nil {
		m.t.Fatal(err)
	}
	m.start()
}

var modelCodecs = []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}

func (m *cleanModel) newRecord() modelRecord {
	m.serial++
	r := modelRecord{key: fmt.Sprintf("key-%d", m.r.IntN(12)), ts: time.Now().UnixMilli() + m.r.Int64N(2000) - 1000}
	if m.r.IntN(4) == 0 {
		r.tombstone = true
	} else {
		r.value = fmt.Sprintf("%d-%0*d", m.serial, 1+m.r.IntN(200), m.serial)
	}
	return r
}

// append produces one batch, by Kafka or by Flight, and notes it.
func (m *cleanModel) append() {
	list := make([]modelRecord, 1+m.r.IntN(8))
	for i := range list {
		list[i] = m.newRecord()
	}
	var p *Pending
	var err error
	if m.r.IntN(5) == 0 {
		p, err = m.node.log.AppendArrow(arrowOf(m.t, modelRows(list)))
	} else {
		p, err = m.node.log.AppendKafka(m.kafka(list), KafkaAppend{AllowZstd: true})
	}
	if err != nil {
		m.t.Fatal(err)
	}
	<-p.Done()
	res, err := p.Result()
	if err != nil {
		m.t.Fatal(err)
	}
	for i, r := range list {
		at := res.First + mink.Offset(i)
		m.records[at], m.latest[r.key] = r, at
	}
}

func (m *cleanModel) kafka(list []modelRecord) []byte {
	b := kmsg.RecordBatch{Magic: 2, LastOffsetDelta: int32(len(list) - 1), FirstTimestamp: list[0].ts, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(list))}
	if m.r.IntN(2) == 0 {
		b.ProducerID, b.ProducerEpoch, b.FirstSequence = 5, 0, m.seq
		m.seq += int32(len(list))
	}
	var raw []byte
	for i, r := range list {
		b.MaxTimestamp = max(b.MaxTimestamp, r.ts)
		k := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: r.ts - b.FirstTimestamp, Key: []byte(r.key), Value: []byte(r.value), Headers: []kmsg.Header{{Key: "h", Value: []byte(r.key)}}}
		if r.tombstone {
			k.Value = nil
		}
		body := k.AppendTo(nil)
		k.Length = int32(len(body) - 1)
		raw = k.AppendTo(raw)
	}
	c, err := kgo.DefaultCompressor(modelCodecs[m.r.IntN(len(modelCodecs))])
	if err != nil {
		m.t.Fatal(err)
	}
	if b.Records = raw; c != nil { // nil: no compression
		out, codec := c.Compress(new(bytes.Buffer), raw)
		b.Records, b.Attributes = bytes.Clone(out), int16(codec)
	}
	return sealed(b)
}

func modelRows(list []modelRecord) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), topicArrow())
	for _, r := range list {
		b.Field(0).(*array.BinaryBuilder).Append([]byte(r.key))
		if r.tombstone {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.BinaryBuilder).Append([]byte(r.value))
		}
		h := b.Field(2).(*array.ListBuilder)
		h.Append(true)
		st := h.ValueBuilder().(*array.StructBuilder)
		st.Append(true)
		st.FieldBuilder(0).(*array.StringBuilder).Append("h")
		st.FieldBuilder(1).(*array.BinaryBuilder).Append([]byte(r.key))
		b.Field(3).(*array.TimestampBuilder).Append(arrow.Timestamp(r.ts))
	}
	return b.NewRecordBatch()
}

// clean does one cleaning, with a store or a metadata log that stops somewhere in it.
func (m *cleanModel) clean(interrupt bool) {
	n := m.node
	if interrupt {
		m.interrupted++
		switch at := m.r.IntN(12); m.r.IntN(4) {
		case 0:
			n.meta.calls, n.meta.stopAt, n.meta.lost = 0, 1, m.r.IntN(2) == 0
		case 1:
			n.store.Inject(fault.Rule{Skip: at, Do: fault.FailAfter(objstore.ErrUnknownOutcome)})
		default:
			n.store.Inject(fault.Rule{Skip: at, Do: fault.FailBefore(objstore.ErrUnavailable)})
		}
	}
	now := time.Now().UnixMilli()
	limit, _, err := n.stream.CleanLimit()
	if err != nil {
		m.t.Fatal(err)
	}
	res, err := n.log.Clean(context.Background(), CleanOptions{NowMs: now, MapBytes: 1})
	if interrupt {
		n.store.ClearRules()
		n.meta.stopAt, n.meta.lost = 0, false
	}
	_, cleaned, verr := n.stream.CleanLimit()
	if verr != nil {
		m.t.Fatal(verr)
	}
	switch {
	case errors.Is(err, mink.ErrConflict):
		m.conflicts++
		return
	case err != nil && !interrupt:
		m.t.Fatal(err)
	case err != nil && !errors.Is(err, mink.ErrUnknownOutcome):
		return
	}
	if err == nil {
		m.rounds++
		m.removed += int(res.Removed)
		if res.Upper > 0 && (res.Upper != limit || res.Upper != cleaned.End) {
			m.t.Fatalf("cleaned up to %d, the metadata says %+v, limit %d", res.Upper, cleaned, limit)
		}
	}
	for at, r := range m.records { // of an unknown outcome perhaps too early: then the check below is weaker
		if _, known := m.met[at]; r.tombstone && !known && at < cleaned.End {
			m.met[at] = now
		}
	}
	if err == nil {
		m.check()
		m.checkClean(cleaned.End)
	}
}

// read yields what a consumer at `from` gets, batch by batch, checking what every client
// relies on: batches follow one another without holes, records rise within their batch.
func (m *cleanModel) read(from mink.Offset, batches int, f func(mink.Offset, kafkabatch.Record)) (next mink.Offset) {
	m.t.Helper()
	res, err := m.node.log.Read(context.Background(), ReadRequest{From: from, MaxBytes: 1 << 20})
	if err != nil {
		m.t.Fatal(err)
	}
	next = from
	for i, b := range res.Batches {
		if i == batches {
			break
		}
		k, err := m.node.log.KafkaBatch(b)
		if err != nil {
			m.t.Fatal(err)
		}
		v, err := kafkabatch.Parse(k)
		if err != nil || v.Sum() != v.CRC() {
			m.t.Fatalf("batch at %d: %v", b.BaseOffset(), err)
		}
		base, last := v.BaseOffset(), v.BaseOffset()+mink.Offset(v.LastOffsetDelta())
		if base > next || last < next || base < next && i > 0 {
			m.t.Fatalf("batch [%d, %d] where %d was expected", base, last, next)
		}
		for _, o := range []mink.Offset{base, last} {
			if e := m.node.log.EpochAt(o); e != v.LeaderEpoch() || e != b.LeaderEpoch() {
				m.t.Fatalf("batch [%d, %d] of leader epoch %d, offset %d was appended under %d", base, last, v.LeaderEpoch(), o, e)
			}
		}
		at := base - 1
		err = kafkabatch.NewCleaner(kafkabatch.DefaultLimits()).Each(v, func(rec *kafkabatch.Record) {
			o := base + mink.Offset(rec.Delta)
			if o <= at || o > last {
				m.t.Fatalf("record at %d behind %d in batch [%d, %d]", o, at, base, last)
			}
			if at = o; o >= from {
				f(o, *rec)
			}
		})
		if err != nil {
			m.t.Fatalf("batch [%d, %d]: %v", base, last, err)
		}
		next = last + 1
	}
	return next
}

// check compares what is there with what was acknowledged: each record that is there is
// as it was sent; what may not be gone is there.
func (m *cleanModel) check() {
	m.t.Helper()
	n := m.node
	there := map[mink.Offset]bool{}
	start, hw := n.log.LogStart(), n.log.HighWatermark()
	for at := start; at < hw; {
		next := m.read(at, 1<<30, func(o mink.Offset, rec kafkabatch.Record) {
			want, ok := m.records[o]
			if !ok || want.key != string(rec.Key) || want.tombstone != (rec.Value == nil) || want.value != string(rec.Value) || want.ts != rec.Timestamp {
				m.t.Fatalf("record at %d: key %q, value %.20q, time %d; sent was %+v", o, rec.Key, rec.Value, rec.Timestamp, want)
			}
			h := rec.Headers()
			if k, v, _ := h.Next(); string(k) != "h" || string(v) != want.key {
				m.t.Fatalf("record at %d: header %q = %q", o, k, v)
			}
			there[o] = true
		})
		if next <= at {
			m.t.Fatalf("a read at %d, below %d, brought nothing", at, hw)
		}
		at = next
	}
	_, cleaned, err := n.stream.CleanLimit()
	if err != nil {
		m.t.Fatal(err)
	}
	now := time.Now().UnixMilli()
	for o, r := range m.records {
		met, wasMet := m.met[o]
		mayGo := r.tombstone && wasMet && now >= met+deleteRetention.Milliseconds()
		switch {
		case there[o] || o < start:
		case o >= cleaned.End:
			m.t.Fatalf("record at %d is gone, cleaned end %d", o, cleaned.End)
		case m.latest[r.key] == o && !mayGo:
			m.t.Fatalf("the latest record of %s, at %d, is gone: %+v, met by a cleaning %v at %d, now %d", r.key, o, r, wasMet, met, now)
		}
	}
	m.checkTimes(there)
}

// checkClean: in the store each key is there once below the cleaned end. (The log cache
// may go on serving what was there before.)
func (m *cleanModel) checkClean(end mink.Offset) {
	m.t.Helper()
	seen := map[string]mink.Offset{}
	for f, err := range m.node.stream.Scan(context.Background(), m.node.log.LogStart(), end) {
		if err != nil {
			m.t.Fatal(err)
		}
		b, err := viewFrame(&f)
		if err != nil {
			m.t.Fatal(err)
		}
		v, err := m.node.log.kafkaOf(b)
		if err != nil {
			m.t.Fatal(err)
		}
		if b.Count() == 0 {
			continue
		}
		err = kafkabatch.NewCleaner(kafkabatch.DefaultLimits()).Each(v, func(rec *kafkabatch.Record) {
			o := b.BaseOffset() + mink.Offset(rec.Delta)
			if before, twice := seen[string(rec.Key)]; twice {
				m.t.Fatalf("%s is at %d and at %d, both cleaned, up to %d", rec.Key, before, o, end)
			}
			seen[string(rec.Key)] = o
		})
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// checkTimes: lookups by time find records that are there.
func (m *cleanModel) checkTimes(there map[mink.Offset]bool) {
	m.t.Helper()
	var best mink.Offset = -1
	for o := range there {
		if o >= m.node.log.LogStart() && (best < 0 || m.records[o].ts > m.records[best].ts || m.records[o].ts == m.records[best].ts && o < best) {
			best = o
		}
	}
	res, ok, err := m.node.log.MaxTimestamp(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	if ok && !there[res.Offset] && m.served(res.Offset) && best >= 0 && res.Timestamp >= m.records[best].ts {
		return
	}
	if ok != (best >= 0) || ok && (res.Timestamp != m.records[best].ts || !there[res.Offset]) {
		m.t.Fatalf("largest timestamp: %+v %v, want %d of the record at %d", res, ok, m.records[best].ts, best)
	}
	if best < 0 {
		return
	}
	ms := m.records[best].ts - m.r.Int64N(5000)
	var want mink.Offset = -1
	for o := range there {
		if o >= m.node.log.LogStart() && m.records[o].ts >= ms && (want < 0 || o < want) {
			want = o
		}
	}
	if res, ok, err := m.node.log.OffsetForTimestamp(context.Background(), ms, ByRecord); err != nil || !ok || res.Offset != want && !(res.Offset < want && m.served(res.Offset)) {
		m.t.Fatalf("first record at or after %d: %+v, %v, %v; want the one at %d", ms, res, ok, err, want)
	}
}

// served: a read at the offset brings its record, from the log cache, though a reader
// that came over a joined batch in the store would not meet it.
func (m *cleanModel) served(at mink.Offset) (yes bool) {
	m.read(at, 1, func(o mink.Offset, _ kafkabatch.Record) { yes = yes || o == at })
	return yes
}

// consume lets the slow consumer read some batches, all of them before its tombstones may go.
func (m *cleanModel) consume(all bool) {
	s := &m.slow
	if start := m.node.log.LogStart(); s.next < start { // trimmed: it begins anew, as after auto.offset.reset
		s.next, s.values = start, map[string]string{}
	}
	for s.next < m.node.log.HighWatermark() {
		s.next = m.read(s.next, 1+m.r.IntN(3), func(_ mink.Offset, rec kafkabatch.Record) {
			if rec.Value == nil {
				delete(s.values, string(rec.Key))
			} else {
				s.values[string(rec.Key)] = string(rec.Value)
			}
		})
		if !all {
			return
		}
	}
}

// fold is what a consumer from the log start ends up with.
func (m *cleanModel) checkFold() {
	m.t.Helper()
	m.consume(true)
	got := map[string]string{}
	for at := m.node.log.LogStart(); at < m.node.log.HighWatermark(); {
		at = m.read(at, 1<<30, func(_ mink.Offset, rec kafkabatch.Record) {
			if rec.Value == nil {
				delete(got, string(rec.Key))
			} else {
				got[string(rec.Key)] = string(rec.Value)
			}
		})
	}
	want := map[string]string{}
	for key, o := range m.latest {
		if r := m.records[o]; o >= m.node.log.LogStart() && !r.tombstone {
			want[key] = r.value
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		m.t.Fatalf("a consumer from the start has %v, the latest values are %v", got, want)
	}
	for key, v := range want {
		if m.slow.values[key] != v {
			m.t.Fatalf("the slow consumer has %s = %q, the latest is %q", key, m.slow.values[key], v)
		}
	}
	for key := range m.slow.values {
		if o := m.latest[key]; m.records[o].tombstone {
			m.t.Fatalf("the slow consumer has %s, which was deleted at %d", key, o)
		}
	}
}

func (m *cleanModel) step() {
	ctx := context.Background()
	n := m.node
	switch x := m.r.IntN(100); {
	case x < 45:
		m.append()
	case x < 60:
		if err := n.engine.UploadNow(ctx); err != nil {
			m.t.Fatal(err)
		}
	case x < 72:
		m.clean(m.r.IntN(3) == 0)
	case x < 76:
		if err := n.engine.CompactNow(ctx); err != nil && !errors.Is(err, mink.ErrConflict) {
			m.t.Fatal(err)
		}
	case x < 79:
		if err := n.log.Trim(ctx, n.log.LogStart()+mink.Offset(m.r.IntN(15))); err != nil {
			m.t.Fatal(err)
		}
	case x < 82:
		m.crash()
	case x < 85: // led anew by the same node
		if err := n.engine.UploadNow(ctx); err != nil {
			m.t.Fatal(err)
		}
		n.log.Close()
		n.stream.Close()
		m.open()
	case x < 93:
		m.consume(false)
	case x < 97:
		time.Sleep(time.Duration(m.r.IntN(40)) * time.Minute)
	default:
		m.consume(true) // who lags by more than delete.retention.ms may miss a tombstone
		time.Sleep(deleteRetention)
	}
	if time.Now().Second()%3 == 0 {
		m.consume(true)
	}
}

func runCleanModel(t *testing.T, seed uint64) (m *cleanModel) {
	synctest.Test(t, func(t *testing.T) {
		m = newCleanModel(t, seed)
		defer func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
			m.node.store.ClearRules()
			m.node.cancel()
			<-m.node.done
		}()
		for range 120 {
			m.step()
		}
		m.check()
		m.checkFold()
		if err := m.node.engine.UploadNow(context.Background()); err != nil {
			t.Fatal(err)
		}
		m.clean(false)
		if err := m.node.engine.UploadNow(context.Background()); err != nil { // a checkpoint, if a recovery's tail lacked one
			t.Fatal(err)
		}
		m.clean(false)
		m.crash()
		m.check()
		_, cleaned, err := m.node.stream.CleanLimit()
		if err != nil || cleaned.End != m.node.log.HighWatermark() {
			t.Fatalf("cleaned %+v, %v, the log ends at %d", cleaned, err, m.node.log.HighWatermark())
		}
		m.checkClean(cleaned.End)
		m.checkFold()
		if err := m.meta.State().Validate(); err != nil {
			t.Fatal(err)
		}
	})
	return m
}

// Whatever is appended, cleaned, interrupted, trimmed, merged and lost in between: the
// latest record of each key is there, and nothing else is missing that should not be.
func TestCleaningModel(t *testing.T) {
	var rounds, removed, conflicts, interrupted, crashes int
	for seed := range *cleanSeeds {
		m := runCleanModel(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		rounds, removed, conflicts, interrupted, crashes = rounds+m.rounds, removed+m.removed, conflicts+m.conflicts, interrupted+m.interrupted, crashes+m.crashes
	}
	t.Logf("%d cleanings removed %d records, %d were overtaken, %d interrupted; %d crashes", rounds, removed, conflicts, interrupted, crashes)
	if n := *cleanSeeds; rounds < 5*n || removed < 50*n || interrupted < n || crashes < n {
		t.Fatal("the schedules hardly do anything")
	}
}
