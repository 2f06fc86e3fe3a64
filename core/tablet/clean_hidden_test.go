package tablet

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// gzipped is keyed with its records compressed after spoil has changed them.
func gzipped(t *testing.T, spoil func(records []byte), records ...string) []byte {
	t.Helper()
	var b kmsg.RecordBatch
	if err := b.ReadFrom(keyed(records...)); err != nil {
		t.Fatal(err)
	}
	spoil(b.Records)
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b.Records); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	b.Records, b.Attributes = buf.Bytes(), b.Attributes|int16(kafkabatch.CodecGzip)
	return sealed(b)
}

// Nobody can read a record of a batch whose later records are damaged: it supersedes
// nothing.
func TestADamagedBatchSupersedesNothing(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	l := openWith(t, s, cfg)
	produce(t, l, "a=1", "b=1", "b=2")
	bad := gzipped(t, func(r []byte) { r[len(r)-1] = 9 }, "a=2", "c=1") // the last one's header count
	if _, err := l.AppendKafka(bad, KafkaAppend{}); err != nil {
		t.Fatal(err)
	}
	cfg.Options = compacted(schema.Options{})
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if res := mustClean(t, l, t0); res.Removed != 1 || res.Kept != 4 {
		t.Fatalf("%+v", res)
	}
	var keys []string
	v := kafkabatch.View(readAll(t, l).Batches[0].Kafka())
	r := kafkabatch.NewReader(v, v.Records())
	for rec := (kafkabatch.Record{}); r.Next(&rec); {
		keys = append(keys, string(rec.Key)+"="+string(rec.Value))
	}
	if len(keys) != 2 || keys[0] != "a=1" || keys[1] != "b=2" {
		t.Fatalf("%v are left", keys)
	}
}

// A table may have had other columns before it was compacted: rows of then have no key
// that a cleaning could go by, so they stay, and hold back tombstones behind them.
func TestRowsOfAnotherSchemaStay(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	wide := schema.KafkaTopicSchema()
	wide.ID = 2
	wide.Columns = append(wide.Columns, schema.Column{ID: 90, Name: "more", Type: schema.MustParseType("INT")})
	again := schema.KafkaTopicSchema()
	again.ID = 3
	cfg.Schemas = append(cfg.Schemas, &wide, &again)
	l := openWith(t, s, cfg)
	rows := topicRows(t0, t0+1)
	more := array.NewInt32Builder(memory.NewGoAllocator())
	more.AppendValues([]int32{1, 2}, nil)
	rows = array.NewRecordBatch(wide.Arrow(), append(append([]arrow.Array{}, rows.Columns()...), more.NewArray()), 2)
	a := arrowOf(t, rows)
	a.SchemaID = 2
	appendOK(t)(l.AppendArrow(a))
	produce(t, l, "b=1", "b")
	cfg.Options = compacted(schema.Options{})
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	mustClean(t, l, t0)
	if res := mustClean(t, l, t0+1); res.Kept != 3 || res.Removed != 0 { // delete.retention.ms is 0
		t.Fatalf("%+v", res)
	}
	kept, skip, err := l.Rows(readAll(t, l).Batches[0], nil)
	if err != nil || len(skip) > 0 || kept.NumRows() != 2 {
		t.Fatalf("%v, %v, %v", kept, skip, err)
	}
	kept.Release()
	if st := l.Stats(); st.Quarantined != 0 {
		t.Fatalf("%+v are quarantined", st.Quarantine)
	}
	var bad *record.BatchError
	if _, err := l.AppendArrow(a); !errors.As(err, &bad) || l.LogEnd() != 4 {
		t.Fatalf("rows of the schema without a key are taken into a compacted topic: %v", err)
	}
	if a.SchemaID = 3; mink.SchemaID(len(cfg.Schemas)) != a.SchemaID {
		t.Fatal("the last schema is a topic's")
	}
}

// The delete horizon makes records longer. A batch that would become too long by that is
// cleaned all the same, or what is superseded in it would outlive its tombstone.
func TestABatchThatItsHorizonMakesTooLong(t *testing.T) {
	_, l := openCompacted(t, &clock{t0}, schema.Options{DeleteRetention: time.Hour})
	many := make([]string, 372_000) // tombstones of 45 bytes
	for i := range many {
		many[i] = fmt.Sprintf("%036d", i)
	}
	batch := keyed(many...)
	if n := len(batch); n > cleanFrameMax || n < cleanFrameMax-len(many) {
		t.Fatalf("%d bytes", n)
	}
	if _, err := l.AppendKafka(batch, KafkaAppend{}); err != nil {
		t.Fatal(err)
	}
	produce(t, l, many[7]+"=later", many[8])
	if res := mustClean(t, l, t0); res.Removed != 2 || res.Kept != int64(len(many)) {
		t.Fatalf("%+v", res)
	}
	if st, err := l.CleanState(t.Context(), t0); err != nil || st.DueMs != t0+time.Hour.Milliseconds() { // of the last tombstone
		t.Fatalf("%+v, %v", st, err)
	}
}

// A client's codec may have done better than ours can: what is left of its batch is longer
// than a batch may be, and it stays whole. A later cleaning that could write it, more of it
// being superseded by then, does not know what the earlier one knew to be superseded.
func TestABatchThatOurCodecMakesTooLong(t *testing.T) {
	_, l := openCompacted(t, &clock{t0}, schema.Options{DeleteRetention: time.Hour})
	wide := make([]byte, cleanFrameMax*9/16) // twice the same: half as long to who looks back that far
	_, _ = rand.NewChaCha8([32]byte{}).Read(wide)
	if _, err := l.AppendKafka(farZstd(t, "k=old", "a="+string(wide), "b="+string(wide)), KafkaAppend{AllowZstd: true}); err != nil {
		t.Fatal(err)
	}
	produce(t, l, "k")
	if res := mustClean(t, l, t0); res.Removed != 0 || res.Kept != 4 {
		t.Fatalf("%+v", res)
	}
	produce(t, l, "a=new")
	for round := range int64(4) { // long after the tombstone's time
		mustClean(t, l, t0+round*2*time.Hour.Milliseconds())
	}
	is := map[string]string{}
	d := kafkabatch.NewDecoder(kafkabatch.DefaultLimits())
	for _, b := range readAll(t, l).Batches {
		if _, err := record.ParseBatch(b); err != nil {
			t.Fatal(err)
		}
		v := kafkabatch.View(b.Kafka())
		records, err := d.Records(v)
		if err != nil {
			t.Fatal(err)
		}
		r := kafkabatch.NewReader(v, records)
		for rec := (kafkabatch.Record{}); r.Next(&rec); {
			if is[string(rec.Key)] = string(rec.Value); rec.Value == nil {
				delete(is, string(rec.Key))
			}
		}
	}
	if old, back := is["k"]; back {
		t.Errorf("the deleted key is back as %q", old)
	}
	if is["a"] != "new" || is["b"] != string(wide) {
		t.Errorf("a has %d bytes, b %d", len(is["a"]), len(is["b"]))
	}
}

// farZstd is keyed with its records compressed by a client that looks back 32 MiB.
func farZstd(t *testing.T, records ...string) []byte {
	t.Helper()
	var b kmsg.RecordBatch
	if err := b.ReadFrom(keyed(records...)); err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(nil, zstd.WithWindowSize(32<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	b.Records, b.Attributes = w.EncodeAll(b.Records, nil), b.Attributes|int16(kafkabatch.CodecZstd)
	return sealed(b)
}
