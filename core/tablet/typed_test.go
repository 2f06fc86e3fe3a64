package tablet

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/snappy"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// columnsOf is a schema of "name TYPE" columns.
func columnsOf(t testing.TB, id mink.SchemaID, columns ...string) *schema.Schema {
	t.Helper()
	d := &schema.Descriptor{Database: "d", Table: "t", Schema: schema.Schema{ID: id}}
	for _, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		parsed, err := schema.ParseType(typ)
		if err != nil {
			t.Fatal(err)
		}
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: name, Type: parsed})
	}
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return &n.Schema
}

func jsonConfig(t testing.TB, s *fakeStream, c *clock, options map[string]string, schemas ...*schema.Schema) Config {
	t.Helper()
	cfg := topicConfig(s, c)
	cfg.Schemas = schemas
	all := map[string]string{"kafka.value.format": "json"}
	for k, v := range options {
		all[k] = v
	}
	var err error
	if cfg.Options, err = schema.ParseOptions(all); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// valuesOf is a produced batch of values, "" for a null one.
func valuesOf(codec kafkabatch.Codec, values ...string) []byte {
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(values) - 1), FirstTimestamp: t0, MaxTimestamp: t0,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(values)), Attributes: int16(codec),
	}
	for i, v := range values {
		r := kmsg.Record{OffsetDelta: int32(i), Key: []byte("k"), Value: []byte(v), Headers: []kmsg.Header{{Key: "h"}}}
		if v == "" {
			r.Value = nil
		}
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		b.Records = r.AppendTo(b.Records)
	}
	if codec == kafkabatch.CodecSnappy {
		b.Records = snappy.Encode(nil, b.Records)
	}
	return sealed(b)
}

// kafkaValues are the values of a batch as a consumer gets it.
func kafkaValues(t testing.TB, k []byte) (values []string, v kafkabatch.View) {
	t.Helper()
	v, err := kafkabatch.Parse(k)
	if err != nil || v.CRC() != v.Sum() {
		t.Fatal(v, err)
	}
	records, err := kafkabatch.NewDecoder(kafkabatch.DefaultLimits()).Records(v)
	if err != nil {
		t.Fatal(err)
	}
	r := kafkabatch.NewReader(v, records)
	for rec := (kafkabatch.Record{}); r.Next(&rec); {
		values = append(values, string(rec.Value))
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return values, v
}

func jsonOf(rows arrow.RecordBatch) []string {
	var out []string
	for i := range int(rows.NumRows()) {
		out = append(out, string(jsonrow.AppendObject(nil, rows.Schema().Fields(), rows.Columns(), i)))
	}
	return out
}

var everyColumn = []string{
	"id BIGINT NOT NULL", "b BOOLEAN", "i8 TINYINT", "i16 SMALLINT", "i32 INT", "f FLOAT", "d DOUBLE", "dec DECIMAL(38,10)", "ch CHAR(3)", "s STRING",
	"bin BINARY(3)", "by BYTES", "day DATE", "t0 TIME(0)", "t3 TIME(3)", "t6 TIME(6)", "t9 TIME(9)", "ts0 TIMESTAMP(0)", "ts3 TIMESTAMP(3)", "ts6 TIMESTAMP(6)",
	"ts9 TIMESTAMP(9)", "tz TIMESTAMP_LTZ(6)", "l ARRAY<BIGINT>", "m MAP<STRING, INT>", "r ROW<x INT NOT NULL, l ARRAY<ROW<k STRING>>>",
}

var everyValue = []string{
	`{"id":-9223372036854775808,"b":true,"i8":-128,"i16":32767,"i32":-2147483648,"f":0.1,"d":1e+300,"dec":"-1234567890123456789012345678.0000000001",` +
		`"ch":"äöü","s":"a\"\\\n😀","bin":"AAEC","by":"/w==","day":"1969-12-31","t0":"23:59:59","t3":"00:00:00.001","t6":"12:34:56.789012",` +
		`"t9":"00:00:00.000000001","ts0":"0001-01-01T00:00:00","ts3":"9999-12-31T23:59:59.999","ts6":"1969-12-31T23:59:59.999999",` +
		`"ts9":"1677-09-21T00:12:43.145224192","tz":"2024-02-29T12:00:00.5Z","l":[1,null,9007199254740993],"m":[{"key":"k","value":1}],` +
		`"r":{"x":1,"l":[{"k":null},null]}}`,
	`{"id":9007199254740993,"b":null,"i8":null,"i16":null,"i32":null,"f":null,"d":null,"dec":null,"ch":null,"s":null,"bin":null,"by":null,"day":null,` +
		`"t0":null,"t3":null,"t6":null,"t9":null,"ts0":null,"ts3":null,"ts6":null,"ts9":null,"tz":null,"l":null,"m":null,"r":null}`,
}

// Kafka in, Arrow out; that Arrow in again, Kafka out: the same values of every
// type, and the produced bytes as they came.
func TestTypedTopicBothWays(t *testing.T) {
	l := openWith(t, newFake(true), jsonConfig(t, newFake(true), &clock{t0 + 1000}, nil, columnsOf(t, 1, everyColumn...)))
	ok := appendOK(t)
	sent := valuesOf(kafkabatch.CodecSnappy, everyValue...)
	ok(l.AppendKafka(bytes.Clone(sent), KafkaAppend{}))
	first := readAll(t, l).Batches[0]
	rows, skip, err := l.Rows(first, nil)
	if err != nil || len(skip) > 0 || !slices.Equal(jsonOf(rows), everyValue) {
		t.Fatal(rows, skip, err)
	}
	k, err := l.KafkaBatch(first)
	if err != nil || !bytes.Equal(k[16:], sent[16:]) { // but for offset and epoch
		t.Fatal("the bytes changed", err)
	}
	if res := ok(l.AppendArrow(arrowOf(t, rows))); res.First != 2 || res.Last != 3 {
		t.Fatal(res)
	}
	second := readAll(t, l).Batches[1]
	if k, err = l.KafkaBatch(second); err != nil {
		t.Fatal(err)
	}
	values, v := kafkaValues(t, k)
	if !slices.Equal(values, everyValue) || v.BaseOffset() != 2 || v.LastOffsetDelta() != 1 || v.MaxTimestamp() != t0+1000 || v.BaseTimestamp() != t0+1000 {
		t.Fatalf("%s\n%d %d %d", values, v.BaseOffset(), v.LastOffsetDelta(), v.MaxTimestamp())
	}
	if res, found, err := l.OffsetForTimestamp(t.Context(), t0+1000, ByRecord); err != nil || !found || res.Offset != 2 {
		t.Fatal(res, found, err)
	}
	cut, err := l.Message(first, []int{9, 0})
	if err != nil || cut.BodyLen == 0 {
		t.Fatal(err)
	}
	again, _, err := l.Rows(second, nil)
	if err != nil || !array.RecordEqual(again, rows) {
		t.Fatal(err)
	}
}

// Exactly the records that are no rows are named, each with its reason, and
// nothing of their batch is stored.
func TestTypedTopicRefuses(t *testing.T) {
	l := openWith(t, newFake(true), jsonConfig(t, newFake(true), &clock{t0}, nil, columnsOf(t, 1, "id BIGINT NOT NULL", "d DECIMAL(4,2)")))
	for _, codec := range []kafkabatch.Codec{kafkabatch.CodecNone, kafkabatch.CodecSnappy} {
		_, err := l.AppendKafka(valuesOf(codec, `{"id":1}`, `{"id":"x"}`, `{"id":2,"d":"1.5"}`, "", `{"id":3,"d":1.234}`, `{"id":4}`, `{"id":5,"no":1}`, `{}`), KafkaAppend{})
		var bad *record.BatchError
		if !errors.As(err, &bad) || bad.Kind != record.KindInvalidRecord || !slices.Equal(bad.Records, []int32{1, 3, 4, 6, 7}) || bad.Record != 1 || len(bad.Whys) != 5 {
			t.Fatal(err)
		}
		for i, want := range []string{"whole number", "tombstone", "2 digits", `no column "no"`, `"id" is NOT NULL`} {
			if !strings.Contains(bad.Whys[i], want) {
				t.Errorf("%d: %s, want %s", i, bad.Whys[i], want)
			}
		}
	}
	many := slices.Repeat([]string{"[]"}, 1000)
	var bad *record.BatchError
	if _, err := l.AppendKafka(valuesOf(0, many...), KafkaAppend{}); !errors.As(err, &bad) || len(bad.Records) != 1000 || len(bad.Whys) != record.WhysMax {
		t.Fatal(err)
	}
	many = slices.Repeat([]string{"[]"}, record.RecordsMax+7)
	if _, err := l.AppendKafka(valuesOf(0, many...), KafkaAppend{}); !errors.As(err, &bad) || len(bad.Records) != record.RecordsMax {
		t.Fatal(err)
	}
	if st := l.Stats(); l.LogEnd() != 0 || st.Refused != 4 || st.Quarantined != 0 {
		t.Fatal(l.LogEnd(), st)
	}
}

// With kafka.bad.records = quarantine they are stored, given to Kafka, counted,
// and named to those who read rows; the others keep their offsets.
func TestTypedTopicQuarantine(t *testing.T) {
	s := newFake(true)
	cfg := jsonConfig(t, s, &clock{t0}, map[string]string{"kafka.bad.records": "quarantine"}, columnsOf(t, 1, "id BIGINT NOT NULL", "s STRING NOT NULL"))
	l := openWith(t, s, cfg)
	values := []string{`{"id":1,"s":"a"}`, `{"id":"x"}`, `nonsense`, `{"id":2,"s":"b"}`, "", `{"id":3,"s":"c"}`}
	ok := appendOK(t)
	ok(l.AppendKafka(valuesOf(0, values[0]), KafkaAppend{}))
	ok(l.AppendKafka(valuesOf(kafkabatch.CodecSnappy, values...), KafkaAppend{}))
	for range 2 {
		st := l.Stats()
		if st.Quarantined != 2 || st.Quarantine[0].First != 2 || st.Quarantine[0].Last != 3 || st.Quarantine[1].First != 5 || !strings.Contains(st.Quarantine[0].Why, "whole number") {
			t.Fatal(st)
		}
		batch := readAll(t, l).Batches[1]
		for _, columns := range [][]int{nil, {1, 0}} {
			rows, skip, err := l.Rows(batch, columns)
			if err != nil || rows.NumRows() != 6 || len(skip) != 2 || skip[0] != st.Quarantine[0] || skip[1] != st.Quarantine[1] {
				t.Fatal(rows, skip, err)
			}
			ids := rows.Column(rows.Schema().FieldIndices("id")[0]).(*array.Int64)
			if ids.Value(0) != 1 || ids.Value(3) != 2 || ids.Value(5) != 3 {
				t.Fatal(ids)
			}
		}
		if _, err := l.Message(batch, nil); !errors.Is(err, mink.ErrUnsupported) {
			t.Fatal(err)
		}
		k, err := l.KafkaBatch(batch)
		if got, _ := kafkaValues(t, k); err != nil || !slices.Equal(got, values) {
			t.Fatal(got, err)
		}
		l = openWith(t, s.crash(t, 0, -1), cfg) // a new leader finds the same when rows are read
		for _, b := range readAll(t, l).Batches {
			if _, _, err := l.Rows(b, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Every other record is bad, more than have a reason of their own: the same ranges
// when produced and when read.
func TestTypedTopicManyGaps(t *testing.T) {
	l := openWith(t, newFake(true), jsonConfig(t, newFake(true), &clock{t0}, map[string]string{"kafka.bad.records": "quarantine"}, columnsOf(t, 1, "id BIGINT NOT NULL")))
	appendOK(t)(l.AppendKafka(valuesOf(0, slices.Repeat([]string{`{"id":1}`, `{"id":"x"}`}, 200)...), KafkaAppend{}))
	produced := l.Stats()
	rows, skip, err := l.Rows(readAll(t, l).Batches[0], nil)
	if err != nil || rows.NumRows() != 400 || len(skip) != 200 || !slices.Equal(skip, produced.Quarantine) || l.Stats().Quarantined != 200 {
		t.Fatal(len(skip), produced.Quarantined, err)
	}
	if !strings.Contains(skip[99].Why, "whole number") || skip[100].Why != errMore.Error() {
		t.Fatal(skip[99], skip[100])
	}
}

// A batch keeps the schema version that it was produced under.
func TestTypedTopicSchemaChanges(t *testing.T) {
	s := newFake(true)
	v1, v2 := columnsOf(t, 1, "id BIGINT NOT NULL", "old STRING"), columnsOf(t, 2, "id BIGINT NOT NULL", "name STRING")
	cfg := jsonConfig(t, s, &clock{t0}, nil, v1)
	l := openWith(t, s, cfg)
	ok := appendOK(t)
	ok(l.AppendKafka(valuesOf(0, `{"id":1,"old":"x"}`), KafkaAppend{}))
	one := columnRow(t, v1, 2)
	ok(l.AppendArrow(arrowOf(t, one)))
	cfg.Schemas = append(cfg.Schemas, v2)
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AppendKafka(valuesOf(0, `{"id":1,"old":"x"}`), KafkaAppend{}); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
	ok(l.AppendKafka(valuesOf(0, `{"id":3,"name":"y"}`), KafkaAppend{}))
	var rows, values []string
	for _, b := range readAll(t, l).Batches {
		r, _, err := l.Rows(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, jsonOf(r)...)
		k, err := l.KafkaBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := kafkaValues(t, k)
		values = append(values, got...)
	}
	want := []string{`{"id":1,"old":"x"}`, `{"id":2,"old":null}`, `{"id":3,"name":"y"}`}
	if !slices.Equal(rows, want) || !slices.Equal(values, want) {
		t.Fatalf("%s\n%s", rows, values)
	}
	// Without the option the table is no topic any more; its rows stay.
	cfg.Options, _ = schema.ParseOptions(nil)
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AppendKafka(valuesOf(0, `{"id":3}`), KafkaAppend{}); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatal(err)
	}
	if r, _, err := l.Rows(readAll(t, l).Batches[0], nil); err != nil || jsonOf(r)[0] != want[0] {
		t.Fatal(err)
	}
}

// columnRow is a row with id and nulls.
func columnRow(t testing.TB, s *schema.Schema, id int64) arrow.RecordBatch {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	defer b.Release()
	for i, c := range b.Fields() {
		if i == 0 {
			c.(*array.Int64Builder).Append(id)
		} else {
			c.AppendNull()
		}
	}
	return b.NewRecordBatch()
}

// A little Arrow that is a lot of JSON is refused; what was written before the
// option was set is skipped for Kafka and counted.
func TestTypedTopicBoundsJSON(t *testing.T) {
	s := newFake(true)
	name := strings.Repeat("n", 200)
	cfg := jsonConfig(t, s, &clock{t0}, map[string]string{"max.message.bytes": "10MiB"}, columnsOf(t, 1, "id BIGINT NOT NULL", name+" ARRAY<ROW<"+name+" BOOLEAN>>"))
	raw := cfg
	raw.Options, _ = schema.ParseOptions(nil)
	l := openWith(t, s, raw)
	b := array.NewRecordBuilder(memory.DefaultAllocator, cfg.Schemas[0].Arrow())
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(1)
	list := b.Field(1).(*array.ListBuilder)
	list.Append(true)
	items := list.ValueBuilder().(*array.StructBuilder)
	for range 400_000 {
		items.Append(true)
		items.FieldBuilder(0).AppendNull()
	}
	big := arrowOf(t, b.NewRecordBatch())
	appendOK(t)(l.AppendArrow(big))
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	k, err := l.KafkaBatch(readAll(t, l).Batches[0])
	if err != nil {
		t.Fatal(err)
	}
	if values, v := kafkaValues(t, k); len(values) != 0 || v.LastOffsetDelta() != 0 || l.Stats().Quarantined != 1 {
		t.Fatal(values, v)
	}
	if _, err := l.AppendArrow(big); !errors.Is(err, mink.ErrTooLarge) || !strings.Contains(err.Error(), "64 MiB as JSON") {
		t.Fatal(err)
	}
}

func BenchmarkTypedAppend(b *testing.B) {
	cfg := jsonConfig(b, newFake(true), &clock{t0}, nil, columnsOf(b, 1, "user BIGINT", "url STRING", "price DECIMAL(10,2)", "at TIMESTAMP_LTZ(3)"))
	values := slices.Repeat([]string{`{"user":123456789,"url":"https://example.org/some/page?x=1","price":"12.30","at":"2026-01-31T07:05:00.123Z"}`}, 1000)
	batch := valuesOf(0, values...)
	for _, format := range []string{"json", "none"} {
		b.Run(fmt.Sprint("check ", format), func(b *testing.B) {
			l := openWith(b, newFake(true), cfg)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			lay := l.settings.Load().layouts[0]
			r := lay.json.reader()
			opts := kafkabatch.Options{}
			if format == "json" {
				opts.Value = func(_ int32, v []byte) error { return checkValue(r, v, new(badRecords)) }
			}
			for b.Loop() {
				if _, err := kafkabatch.Header(batch, &opts, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("rows", func(b *testing.B) {
		l := openWith(b, newFake(true), cfg)
		appendOK(b)(l.AppendKafka(bytes.Clone(batch), KafkaAppend{}))
		stored := readAll(b, l).Batches[0]
		b.SetBytes(int64(len(batch)))
		b.ReportAllocs()
		for b.Loop() {
			rows, _, err := l.Rows(stored, nil)
			if err != nil {
				b.Fatal(err)
			}
			rows.Release()
		}
	})
}

// A few hundred kB of empty objects would be gigabytes of rows: they are refused
// before anybody reads them, bad records and nested rows included.
func TestSmallJSONOfHugeRowsIsRefused(t *testing.T) {
	wide := make([]string, 1000)
	for i := range wide {
		wide[i] = fmt.Sprintf("c%d DECIMAL(30,2)", i)
	}
	nested := "l ARRAY<ROW<" + strings.ReplaceAll(strings.Join(wide, ", "), " DECIMAL(30,2)", " BINARY(100)") + ">>"
	for _, c := range []struct {
		name    string
		columns []string
		values  []string
	}{
		{"empty objects", wide, slices.Repeat([]string{"{}"}, 20_000)},
		{"bad records", wide, slices.Repeat([]string{"no object"}, 20_000)},
		{"tombstones", wide, slices.Repeat([]string{""}, 20_000)},
		{"wide fixed bytes", []string{"a BINARY(60000)"}, slices.Repeat([]string{"{}"}, 5_000)},
		{"rows in a list", []string{nested}, []string{`{"l":[` + strings.Repeat("{},", 5_000) + "null]}"}},
		{"rows in a list that is bad at its end", []string{nested}, []string{`{"l":[` + strings.Repeat("{},", 5_000) + "7]}"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := jsonConfig(t, newFake(true), &clock{t0 + 1000}, map[string]string{"kafka.bad.records": "quarantine"}, columnsOf(t, 1, c.columns...))
			l := openWith(t, newFake(true), cfg)
			_, err := l.AppendKafka(valuesOf(kafkabatch.CodecSnappy, c.values...), KafkaAppend{})
			var bad *record.BatchError
			if !errors.As(err, &bad) || bad.Kind != record.KindTooLarge {
				t.Errorf("got error %v", err)
			}
			if few := c.values[:len(c.values)/100]; len(few) > 0 {
				appendOK(t)(l.AppendKafka(valuesOf(kafkabatch.CodecSnappy, few...), KafkaAppend{}))
			}
		})
	}
}
