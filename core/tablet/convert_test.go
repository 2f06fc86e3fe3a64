package tablet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
)

// One table for both protocols: Kafka batches and Arrow batches in one bucket,
// read as either at the same offsets.
func TestBothEncodingsInOneLog(t *testing.T) {
	c := &clock{t0 + 1000}
	l := openTopic(t, newFake(true), c)
	ok := appendOK(t)
	ok(l.AppendKafka(plain(t0, t0+1, t0+2), KafkaAppend{}))
	ok(l.AppendArrow(arrowOf(t, topicRows(t0+5, -1, t0+7))))
	ok(l.AppendKafka(plain(t0+9), KafkaAppend{}))
	want := []int64{t0, t0 + 1, t0 + 2, t0 + 5, t0 + 1000, t0 + 7, t0 + 9}
	var asRows, asKafka []int64
	for _, b := range readAll(t, l).Batches {
		rows, _, err := l.Rows(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		ts := rows.Column(3).(*array.Timestamp)
		for i := range ts.Len() {
			v := int64(ts.Value(i))
			if ts.IsNull(i) {
				v = b.CommitTimestamp() // as Kafka readers see it
			}
			asRows = append(asRows, v)
		}
		k, err := l.KafkaBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		v, err := kafkabatch.Parse(k)
		if err != nil || v.BaseOffset() != b.BaseOffset() || v.CRC() != v.Sum() {
			t.Fatal(v, err)
		}
		r := kafkabatch.NewReader(v, v.Records())
		for rec := (kafkabatch.Record{}); r.Next(&rec); {
			if int(v.BaseOffset())+int(rec.Delta) != len(asKafka) {
				t.Fatalf("record at offset %d is number %d", int(v.BaseOffset())+int(rec.Delta), len(asKafka))
			}
			asKafka = append(asKafka, rec.Timestamp)
		}
		if _, err := record.ParseBatch(b); err != nil {
			t.Fatalf("a stored batch fails its own checks: %v", err)
		}
	}
	if fmt.Sprint(asRows) != fmt.Sprint(want) || fmt.Sprint(asKafka) != fmt.Sprint(want) {
		t.Fatalf("rows  %v\nkafka %v\nwant  %v", asRows, asKafka, want)
	}
}

func TestMessageAndProjection(t *testing.T) {
	l := openTopic(t, newFake(true), &clock{t0})
	ok := appendOK(t)
	sent := arrowOf(t, topicRows(t0, t0+1))
	ok(l.AppendArrow(sent))
	ok(l.AppendKafka(plain(t0, t0+1), KafkaAppend{}))
	for i, b := range readAll(t, l).Batches {
		whole, err := l.Message(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body := bytes.Join(whole.Body, nil); i == 0 && (!bytes.Equal(whole.Metadata, sent.Metadata) || !bytes.Equal(body, sent.Body)) {
			t.Fatal("an unprojected read does not forward the stored bytes")
		}
		for _, columns := range [][]int{{}, {3}, {1, 0}} {
			cut, err := l.Message(b, columns)
			if err != nil {
				t.Fatal(err)
			}
			rows, _, err := l.Rows(b, columns)
			if err != nil || int(rows.NumCols()) != len(columns) || rows.NumRows() != 2 {
				t.Fatal(rows, err)
			}
			lay, err := arrowipc.NewLayout(rows.Schema())
			if err != nil {
				t.Fatal(err)
			}
			got, err := arrowipc.NewDecoder(1<<20).Decode(lay, cut.Metadata, bytes.Join(cut.Body, nil), nil)
			if err != nil || !array.RecordEqual(got, rows) {
				t.Fatalf("columns %v: %v", columns, err)
			}
		}
		if _, _, err := l.Rows(b, []int{4}); err == nil {
			t.Fatal("column 4 of 4")
		}
	}
}

// ListOffsets looks past a batch whose header claims a later time than its
// records have, and past one that cannot be read, which is quarantined.
func TestPoisonBatch(t *testing.T) {
	s := newFake(true)
	l := openTopic(t, s, &clock{t0 + 1000})
	ok := appendOK(t)
	liar := compressed(t0+1, t0+2)
	binary.BigEndian.PutUint64(liar[35:], uint64(t0+500))
	var k kmsg.RecordBatch
	_ = k.ReadFrom(liar)
	ok(l.AppendKafka(sealed(k), KafkaAppend{})) // 0, 1
	k.Records = []byte("this is not snappy")
	ok(l.AppendKafka(sealed(k), KafkaAppend{})) // 2, 3
	ok(l.AppendKafka(plain(t0+300), KafkaAppend{}))
	res, found, err := l.OffsetForTimestamp(t.Context(), t0+300, ByRecord)
	if err != nil || !found || res.Offset != 4 {
		t.Fatal(res, found, err)
	}
	if res, found, err := l.MaxTimestamp(t.Context()); err != nil || !found || res.Offset != 4 {
		t.Fatal(res, found, err)
	}
	rows := 0
	for _, b := range readAll(t, l).Batches {
		r, _, err := l.Rows(b, nil)
		var bad *QuarantineError
		if errors.As(err, &bad) {
			if bad.First != 2 || bad.Last != 3 || bad.Why == "" {
				t.Fatal(bad)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rows += int(r.NumRows())
	}
	st := l.Stats()
	if rows != 3 || st.Quarantined != 1 || len(st.Quarantine) != 1 || st.Quarantine[0].First != 2 {
		t.Fatal(rows, st)
	}
}

// An Arrow batch that passed no check (from an older version, say) does not
// wedge Kafka consumers: they get an empty batch over its offsets.
func TestPoisonArrowBatch(t *testing.T) {
	s := newFake(true)
	l := openTopic(t, s, &clock{t0})
	appendOK(t)(l.AppendArrow(arrowOf(t, topicRows(t0, t0+1))))
	b := readAll(t, l).Batches[0]
	meta, _ := b.Arrow()
	clear(meta)
	k, err := l.KafkaBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := kafkabatch.Parse(k); err != nil || v.Count() != 0 || v.LastOffsetDelta() != 1 || l.Stats().Quarantined != 1 {
		t.Fatal(v, err)
	}
}

// A record-less batch in a topic moves Kafka consumers over its offset.
func TestWriterStateOnlyInTopic(t *testing.T) {
	l := openTopic(t, newFake(true), &clock{t0})
	appendOK(t)(l.AppendArrow(ArrowAppend{SchemaID: 1, WriterID: 5}))
	b := readAll(t, l).Batches[0]
	k, err := l.KafkaBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := kafkabatch.Parse(k); err != nil || v.Count() != 0 || v.LastOffsetDelta() != 0 || v.BaseOffset() != 0 {
		t.Fatal(v, err)
	}
	if _, found, err := l.MaxTimestamp(t.Context()); found || err != nil {
		t.Fatal("a record-less batch has no largest timestamp", err)
	}
}

// With kafka.validate=deep the poison is refused at the door, from the moment
// the option is set.
func TestDeepKafka(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	l := openWith(t, s, cfg)
	good := compressed(t0, t0+1)
	var k kmsg.RecordBatch
	if err := k.ReadFrom(good); err != nil {
		t.Fatal(err)
	}
	k.Records = []byte("this is not snappy")
	appendOK(t)(l.AppendKafka(sealed(k), KafkaAppend{}))
	var err error
	if cfg.Options, err = schema.ParseOptions(map[string]string{"kafka.validate": "deep"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	var bad *record.BatchError
	if _, err := l.AppendKafka(sealed(k), KafkaAppend{}); !errors.As(err, &bad) || bad.Kind != record.KindInvalidRecord {
		t.Fatal(err)
	}
	appendOK(t)(l.AppendKafka(good, KafkaAppend{}))
}
