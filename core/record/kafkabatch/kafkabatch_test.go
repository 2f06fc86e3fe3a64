package kafkabatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

// built is a batch under construction: kmsg writes it, so that the bytes come
// from an implementation other than the one under test.
type built struct {
	kmsg.RecordBatch
	recs []kmsg.Record
}

const t0 = int64(1_700_000_000_000)

func newBuilt(n int) *built {
	b := &built{}
	b.Magic = 2
	b.PartitionLeaderEpoch = -1
	b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, -1
	b.FirstTimestamp, b.MaxTimestamp = t0, t0
	b.NumRecords, b.LastOffsetDelta = int32(n), int32(n-1)
	for i := range n {
		r := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: int64(i), Key: []byte("key"), Value: bytes.Repeat([]byte{byte('a' + i%26)}, 40)}
		b.recs = append(b.recs, r)
		b.MaxTimestamp = t0 + int64(i)
	}
	return b
}

func (b *built) raw() []byte {
	var out []byte
	for _, r := range b.recs {
		r.Length = 0
		full := r.AppendTo(nil)
		_, n := binary.Varint(full)
		r.Length = int32(len(full) - n)
		out = r.AppendTo(out)
	}
	return out
}

func (b *built) bytes(records []byte) []byte {
	b.Records = records
	out := b.RecordBatch.AppendTo(nil)
	return fix(out)
}

// plain is the uncompressed batch.
func (b *built) plain() []byte { return b.bytes(b.raw()) }

func (b *built) compressed(c Codec) []byte {
	b.Attributes = b.Attributes&^attrCodec | int16(c)
	return b.bytes(compress(c, b.raw()))
}

// fix sets length and CRC.
func fix(b []byte) []byte {
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-lengthEnd))
	binary.BigEndian.PutUint32(b[posCRC:], View(b).Sum())
	return b
}

func compress(c Codec, raw []byte) []byte {
	var buf bytes.Buffer
	switch c {
	case CodecGzip:
		w := gzip.NewWriter(&buf)
		_, _ = w.Write(raw)
		_ = w.Close()
	case CodecSnappy:
		return snappy.Encode(nil, raw)
	case CodecLZ4:
		w := lz4.NewWriter(&buf)
		_, _ = w.Write(raw)
		_ = w.Close()
	case CodecZstd:
		w, _ := zstd.NewWriter(&buf)
		_, _ = w.Write(raw) // a stream: no content size in the frame
		_ = w.Close()
	default:
		return raw
	}
	return buf.Bytes()
}

func opts() *Options { return &Options{AllowZstd: true, NowMs: t0} }

func kindOf(err error) record.Kind {
	var be *record.BatchError
	if errors.As(err, &be) {
		return be.Kind
	}
	return 0
}

func TestHeaderAccepts(t *testing.T) {
	b := newBuilt(3)
	b.ProducerID, b.ProducerEpoch, b.FirstSequence = 7, 2, 2147483646
	batch := b.plain()
	h, err := Header(batch, opts(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := record.Header{Encoding: record.EncodingKafka, Attributes: record.AttrAppendOnly, LastOffsetDelta: 2, Count: 3,
		MaxTimestamp: t0 + 2, WriterID: 7, WriterEpoch: 2, Sequence: 2147483646, LastSequence: 0}
	if d := cmp.Diff(want, h); d != "" {
		t.Fatal(d)
	}
}

func TestHeaderRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		kind record.Kind
		opts func(*Options)
		make func(*built) []byte
	}{
		{"short", record.KindCorrupt, nil, func(b *built) []byte { return b.plain()[:60] }},
		{"old format", record.KindUnsupportedFormat, nil, func(b *built) []byte { b.Magic = 1; return b.plain() }},
		{"old format, short", record.KindUnsupportedFormat, nil, func(b *built) []byte { b.Magic = 0; return b.plain()[:34] }},
		{"magic 3", record.KindInvalidRecord, nil, func(b *built) []byte { b.Magic = 3; return b.plain() }},
		{"cut", record.KindCorrupt, nil, func(b *built) []byte { p := b.plain(); return p[:len(p)-1] }},
		{"length 48", record.KindCorrupt, nil, func(b *built) []byte { p := b.plain(); binary.BigEndian.PutUint32(p[8:], 48); return p }},
		{"length negative", record.KindCorrupt, nil, func(b *built) []byte { p := b.plain(); binary.BigEndian.PutUint32(p[8:], 1<<31); return p }},
		{"two batches", record.KindInvalidRecord, nil, func(b *built) []byte { p := b.plain(); return append(p, p...) }},
		{"crc", record.KindCorrupt, nil, func(b *built) []byte { p := b.plain(); p[70] ^= 1; return p }},
		{"base offset", record.KindInvalidRecord, nil, func(b *built) []byte { b.FirstOffset = 5; return b.plain() }},
		{"codec 5", record.KindCompression, nil, func(b *built) []byte { b.Attributes = 5; return b.plain() }},
		{"zstd before v7", record.KindCompression, func(o *Options) { o.AllowZstd = false }, func(b *built) []byte { return b.compressed(CodecZstd) }},
		{"control", record.KindInvalidRecord, nil, func(b *built) []byte { b.Attributes = attrControl; return b.plain() }},
		{"timestamp type", record.KindTimestamp, nil, func(b *built) []byte { b.Attributes = attrLogAppendTime; return b.plain() }},
		{"no records", record.KindInvalidRecord, nil, func(b *built) []byte { b.NumRecords, b.LastOffsetDelta = 0, -1; return b.bytes(nil) }},
		{"negative count", record.KindInvalidRecord, nil, func(b *built) []byte { b.NumRecords = -4; return b.plain() }},
		{"delta and count", record.KindInvalidRecord, nil, func(b *built) []byte { b.LastOffsetDelta++; return b.plain() }},
		{"count above", record.KindInvalidRecord, nil, func(b *built) []byte { b.NumRecords++; b.LastOffsetDelta++; return b.plain() }},
		{"count below", record.KindInvalidRecord, nil, func(b *built) []byte { b.NumRecords--; b.LastOffsetDelta--; return b.plain() }},
		{"count absurd", record.KindInvalidRecord, nil, func(b *built) []byte { b.NumRecords, b.LastOffsetDelta = 1<<30, 1<<30-1; return b.plain() }},
		{"producer without sequence", record.KindInvalidRecord, nil, func(b *built) []byte { b.ProducerID, b.ProducerEpoch = 1, 0; return b.plain() }},
		{"producer without epoch", record.KindInvalidRecord, nil, func(b *built) []byte { b.ProducerID, b.FirstSequence = 1, 0; return b.plain() }},
		{"producer -2", record.KindInvalidRecord, nil, func(b *built) []byte { b.ProducerID = -2; return b.plain() }},
		{"transaction without producer", record.KindInvalidRecord, func(o *Options) { o.Transactions = true }, func(b *built) []byte { b.Attributes = attrTransactional; return b.plain() }},
		{"transaction", record.KindUnsupported, nil, func(b *built) []byte {
			b.Attributes, b.ProducerID, b.ProducerEpoch, b.FirstSequence = attrTransactional, 1, 0, 0
			return b.plain()
		}},
		{"too large", record.KindTooLarge, func(o *Options) { o.MaxBytes = 100 }, (*built).plain},
		{"offset deltas", record.KindInvalidRecord, nil, func(b *built) []byte { b.recs[3].OffsetDelta = 9; return b.plain() }},
		{"trailing bytes", record.KindInvalidRecord, nil, func(b *built) []byte { return b.bytes(append(b.raw(), 0)) }},
		{"too old", record.KindTimestamp, func(o *Options) { o.NowMs, o.BeforeMaxMs = t0+5000, 1000 }, (*built).plain},
		{"future", record.KindTimestamp, func(o *Options) { o.NowMs, o.AfterMaxMs = t0-5000, 1000 }, (*built).plain},
		{"future, compressed", record.KindTimestamp, func(o *Options) { o.NowMs, o.AfterMaxMs = t0-5000, 1000 }, func(b *built) []byte { return b.compressed(CodecLZ4) }},
		{"max below base, compressed", record.KindTimestamp, nil, func(b *built) []byte { b.MaxTimestamp = t0 - 1; return b.compressed(CodecLZ4) }},
		{"deep: not gzip", record.KindInvalidRecord, func(o *Options) { o.Deep = true }, func(b *built) []byte { b.Attributes = 1; return b.plain() }},
		{"deep: count", record.KindInvalidRecord, func(o *Options) { o.Deep = true }, func(b *built) []byte { b.NumRecords--; b.LastOffsetDelta--; return b.compressed(CodecZstd) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := opts()
			if c.opts != nil {
				c.opts(o)
			}
			_, err := Header(c.make(newBuilt(10)), o, NewDecoder(DefaultLimits()))
			if kindOf(err) != c.kind {
				t.Fatalf("got %v, want %s", err, c.kind)
			}
		})
	}
}

// One batch of 100 with 10 null keys on a compacted topic: exactly those ten
// are named.
func TestHeaderNamesEveryBadRecord(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecSnappy} {
		b := newBuilt(100)
		var want []int32
		for i := 3; i < 100; i += 10 {
			b.recs[i].Key = nil
			want = append(want, int32(i))
		}
		o := opts()
		o.RequireKeys = true
		_, err := Header(b.compressed(codec), o, NewDecoder(DefaultLimits()))
		var be *record.BatchError
		if !errors.As(err, &be) || be.Kind != record.KindInvalidRecord || be.Record != 3 || !slices.Equal(be.Records, want) {
			t.Fatalf("%s: got %v", codec, err)
		}
	}
}

func TestHeaderCorrectsMaxTimestamp(t *testing.T) {
	b := newBuilt(5)
	b.MaxTimestamp = 0 // as some clients send it
	batch := b.plain()
	h, err := Header(batch, opts(), nil)
	if err != nil || h.MaxTimestamp != t0+4 {
		t.Fatal(h.MaxTimestamp, err)
	}
	if v := View(batch); v.MaxTimestamp() != t0+4 || v.CRC() != v.Sum() {
		t.Fatal("the stored batch still has the wrong max timestamp or CRC")
	}
}

func TestSetLogAppendTime(t *testing.T) {
	batch := newBuilt(3).plain()
	SetLogAppendTime(batch, t0+99)
	v := View(batch)
	if !v.LogAppendTime() || v.MaxTimestamp() != t0+99 || v.CRC() != v.Sum() {
		t.Fatalf("%v %d", v.LogAppendTime(), v.MaxTimestamp())
	}
	r := NewReader(v, v.Records())
	for rec := (Record{}); r.Next(&rec); {
		if rec.Timestamp != t0+99 {
			t.Fatalf("record %d keeps %d", rec.Delta, rec.Timestamp)
		}
	}
}

func xerialOf(raw []byte, block int) []byte {
	out := append(slices.Clone(xerial), 0, 0, 0, 1, 0, 0, 0, 1)
	for c := range slices.Chunk(raw, block) {
		enc := snappy.Encode(nil, c)
		out = binary.BigEndian.AppendUint32(out, uint32(len(enc)))
		out = append(out, enc...)
	}
	return out
}

func TestCodecs(t *testing.T) {
	raw := newBuilt(500).raw()
	half := len(raw) / 2
	sized, _ := zstd.NewWriter(nil)
	for name, c := range map[string]struct {
		codec Codec
		data  []byte
	}{
		"none":             {CodecNone, raw},
		"gzip":             {CodecGzip, compress(CodecGzip, raw)},
		"gzip two members": {CodecGzip, append(compress(CodecGzip, raw[:half]), compress(CodecGzip, raw[half:])...)},
		"snappy raw":       {CodecSnappy, compress(CodecSnappy, raw)},
		"snappy xerial":    {CodecSnappy, xerialOf(raw, 1000)},
		"lz4":              {CodecLZ4, compress(CodecLZ4, raw)},
		"lz4 two frames":   {CodecLZ4, append(compress(CodecLZ4, raw[:half]), compress(CodecLZ4, raw[half:])...)},
		"zstd no size":     {CodecZstd, compress(CodecZstd, raw)},
		"zstd sized":       {CodecZstd, sized.EncodeAll(raw, nil)},
		"zstd two frames":  {CodecZstd, append(compress(CodecZstd, raw[:half]), sized.EncodeAll(raw[half:], nil)...)},
	} {
		b := newBuilt(500)
		b.Attributes = int16(c.codec)
		d := NewDecoder(DefaultLimits())
		batch := b.bytes(c.data)
		for range 2 { // a decoder is used again
			got, err := d.Records(View(batch))
			if err != nil || !bytes.Equal(got, raw) {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
		}
		bad := b.bytes(c.data[:len(c.data)-3])
		if got, err := d.Records(View(bad)); err == nil && bytes.Equal(got, raw) {
			t.Fatalf("%s: a cut payload decodes", name)
		}
		if got, err := d.Records(View(batch)); err != nil || !bytes.Equal(got, raw) {
			t.Fatalf("%s: not usable after an error: %v", name, err)
		}
	}
	sized.Close()
}

func TestExpansionIsBounded(t *testing.T) {
	bomb := make([]byte, 1<<20)
	for _, codec := range []Codec{CodecGzip, CodecSnappy, CodecLZ4, CodecZstd} {
		b := newBuilt(1)
		b.Attributes = int16(codec)
		batch := b.bytes(compress(codec, bomb))
		for _, l := range []Limits{{MaxBytes: 1<<20 - 1, MaxRatio: 1 << 20}, {MaxBytes: 1 << 30, MaxRatio: 2, FreeBytes: 4096}} {
			if _, err := NewDecoder(l).Records(View(batch)); kindOf(err) != record.KindTooLarge {
				t.Fatalf("%s %v: %v", codec, l, err)
			}
		}
		if _, err := NewDecoder(Limits{MaxBytes: 1 << 20, MaxRatio: 1, FreeBytes: 1 << 20}).Records(View(batch)); err != nil {
			t.Fatalf("%s at the limit: %v", codec, err)
		}
	}
	liar := newBuilt(1)
	liar.Attributes = int16(CodecSnappy)
	if _, err := NewDecoder(DefaultLimits()).Records(View(liar.bytes([]byte{0x80, 0x80, 0x80, 0x07, 0, 'a'}))); err == nil {
		t.Fatal("a snappy length of 14 MiB in 6 bytes is believed")
	}
}

// A frame that claims a large window, or any codec with a large claim, costs
// memory for what it holds and not for what it says.
func TestClaimsAreNotBelieved(t *testing.T) {
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf, zstd.WithWindowSize(128<<20))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, _ = w.Write([]byte("hello"))
		_ = w.Flush() // a stream: the window is not cut down to the content
	}
	_ = w.Close()
	b := newBuilt(1)
	b.Attributes = int16(CodecZstd)
	v, d := View(b.bytes(buf.Bytes())), NewDecoder(DefaultLimits())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out, err := d.Records(v)
	runtime.ReadMemStats(&after)
	if err != nil || string(out) != "hellohello" {
		t.Fatal(out, err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
		t.Fatalf("%d bytes allocated for a batch of %d", n, len(v))
	}
}

var topicSchema = arrow.NewSchema([]arrow.Field{
	{Name: "key", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "headers", Type: arrow.ListOf(arrow.StructOf(
		arrow.Field{Name: "key", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true})), Nullable: true},
	{Name: "timestamp", Type: &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}, Nullable: true},
}, nil)

func columnsOf(t testing.TB, batch []byte) (arrow.RecordBatch, error) {
	t.Helper()
	c, err := NewColumns(memory.NewGoAllocator(), topicSchema)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if err := c.Append(View(batch), NewDecoder(DefaultLimits())); err != nil {
		if c.Rows() != 0 {
			t.Fatalf("a refused batch left %d rows", c.Rows())
		}
		return nil, err
	}
	return c.Take(), nil
}

func bytesOrNil(rt *rapid.T, name string) []byte {
	if rapid.IntRange(0, 3).Draw(rt, name+" null") == 0 {
		return nil
	}
	return rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, name)
}

func drawBatch(rt *rapid.T) *built {
	b := newBuilt(0)
	n := rapid.IntRange(1, 20).Draw(rt, "records")
	b.NumRecords, b.LastOffsetDelta, b.MaxTimestamp = int32(n), int32(n-1), 0
	for i := range n {
		r := kmsg.Record{OffsetDelta: int32(i), Key: bytesOrNil(rt, "key"), Value: bytesOrNil(rt, "value")}
		if i > 0 {
			r.TimestampDelta64 = rapid.Int64Range(-1_000_000, 1_000_000).Draw(rt, "ts")
		}
		for range rapid.IntRange(0, 3).Draw(rt, "headers") {
			r.Headers = append(r.Headers, kmsg.Header{Key: rapid.StringN(0, 8, -1).Draw(rt, "hkey"), Value: bytesOrNil(rt, "hvalue")})
		}
		b.MaxTimestamp = max(b.MaxTimestamp, t0+r.TimestampDelta64)
		b.recs = append(b.recs, r)
	}
	return b
}

// Kafka batch -> columns -> Kafka batch gives the same records, as kmsg reads them.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := drawBatch(rt)
		codec := Codec(rapid.IntRange(0, 4).Draw(rt, "codec"))
		batch := b.compressed(codec)
		o := opts()
		o.Deep = true
		h, err := Header(batch, o, NewDecoder(DefaultLimits()))
		if err != nil || h.MaxTimestamp != b.MaxTimestamp {
			rt.Fatalf("header: %+v, %v", h, err)
		}
		rows, err := columnsOf(t, batch)
		if err != nil {
			rt.Fatal(err)
		}
		defer rows.Release()
		out, err := Encode([]byte("prefix"), rows, Encoding{Base: 1000, LeaderEpoch: 3, LastOffsetDelta: b.LastOffsetDelta, CommitMs: 1})
		if err != nil {
			rt.Fatal(err)
		}
		var got kmsg.RecordBatch
		if err := got.ReadFrom(out[len("prefix"):]); err != nil {
			rt.Fatal(err)
		}
		v, err := Parse(out[len("prefix"):])
		if err != nil || v.CRC() != v.Sum() || got.FirstOffset != 1000 || got.PartitionLeaderEpoch != 3 || got.MaxTimestamp != b.MaxTimestamp {
			rt.Fatalf("encoded header %+v, %v", got, err)
		}
		if want := b.raw(); !bytes.Equal(got.Records, want) {
			rt.Fatalf("records differ:\n%x\n%x", got.Records, want)
		}
	})
}

func TestEncodeNulls(t *testing.T) {
	bld := array.NewRecordBuilder(memory.NewGoAllocator(), topicSchema)
	defer bld.Release()
	for range 2 {
		for i := range 4 {
			bld.Field(i).AppendNull()
		}
	}
	rows := bld.NewRecordBatch()
	defer rows.Release()
	out, err := Encode(nil, rows, Encoding{Base: 5, LastOffsetDelta: 3, CommitMs: t0, LogAppendTime: true})
	if err != nil {
		t.Fatal(err)
	}
	v, err := Parse(out)
	if err != nil || v.LastOffsetDelta() != 3 || v.Count() != 2 || !v.LogAppendTime() || v.MaxTimestamp() != t0 || v.CRC() != v.Sum() {
		t.Fatalf("%v %v", v, err)
	}
	r := NewReader(v, v.Records())
	n := 0
	for rec := (Record{}); r.Next(&rec); n++ {
		if rec.Key != nil || rec.Value != nil || rec.HeaderCount != 0 || rec.Timestamp != t0 {
			t.Fatalf("%+v", rec)
		}
	}
	if n != 2 || r.Err() != nil {
		t.Fatal(n, r.Err())
	}
	empty := rows.NewSlice(0, 0)
	defer empty.Release()
	out, err = Encode(nil, empty, Encoding{Base: 5})
	if v, perr := Parse(out); err != nil || perr != nil || v.Count() != 0 || v.LastOffsetDelta() != 0 {
		t.Fatal(err, perr)
	}
	if _, err := Encode(nil, rows, Encoding{}); !errors.Is(err, mink.ErrInvalid) {
		t.Fatalf("two rows in one offset: %v", err)
	}
}

// Encode reads sliced arrays by their offsets.
func TestEncodeSlice(t *testing.T) {
	b := newBuilt(10)
	for i := range b.recs {
		b.recs[i].Headers = []kmsg.Header{{Key: strings.Repeat("h", i), Value: []byte{byte(i)}}}
	}
	rows, err := columnsOf(t, b.plain())
	if err != nil {
		t.Fatal(err)
	}
	cut := rows.NewSlice(4, 7)
	out, err := Encode(nil, cut, Encoding{LastOffsetDelta: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(View(out), View(out).Records())
	for i, rec := 4, (Record{}); r.Next(&rec); i++ {
		hs := rec.Headers()
		k, v, ok := hs.Next()
		if !ok || len(k) != i || v[0] != byte(i) || rec.Timestamp != t0+int64(i) || !bytes.Equal(rec.Value, b.recs[i].Value) {
			t.Fatalf("row %d: %+v", i, rec)
		}
	}
}

func TestHeaderKeyThatIsNotUTF8(t *testing.T) {
	b := newBuilt(1)
	b.recs[0].Headers = []kmsg.Header{{Key: "a\xffb"}}
	rows, err := columnsOf(t, b.plain())
	if err != nil {
		t.Fatal(err)
	}
	keys := rows.Column(ColHeaders).(*array.List).ListValues().(*array.Struct).Field(0).(*array.String)
	if keys.Value(0) != "a\uFFFDb" {
		t.Fatalf("%q", keys.Value(0))
	}
}

func TestFindAndLatest(t *testing.T) {
	b := newBuilt(6)
	for i, d := range []int64{0, 50, 10, 50, 20, 30} {
		b.recs[i].TimestampDelta64 = d
	}
	b.MaxTimestamp = t0 + 50
	d := NewDecoder(DefaultLimits())
	for codec := CodecNone; codec <= CodecZstd; codec++ {
		v := View(b.compressed(codec))
		for _, c := range []struct {
			from int32
			ms   int64
			want int32 // -1: none
		}{{0, 0, 0}, {0, 1, 1}, {2, 11, 3}, {2, 5, 2}, {4, 25, 5}, {0, 51, -1}, {4, 31, -1}} {
			got, ts, ok, err := Find(v, d, c.from, t0+c.ms)
			if err != nil || ok != (c.want >= 0) || (ok && (got != c.want || ts < t0+c.ms)) {
				t.Fatalf("%s: %+v: %d %d %v %v", codec, c, got, ts, ok, err)
			}
		}
		if got, ts, ok, err := Latest(v, d, 0); got != 1 || ts != t0+50 || !ok || err != nil {
			t.Fatalf("latest %d %d %v %v", got, ts, ok, err)
		}
		if got, ts, ok, err := Latest(v, d, 4); got != 5 || ts != t0+30 || !ok || err != nil {
			t.Fatalf("latest from 4: %d %d %v %v", got, ts, ok, err)
		}
	}
}

// The ack path allocates nothing, however many records there are.
func TestHeaderAllocations(t *testing.T) {
	for _, n := range []int{1, 1000} {
		for _, codec := range []Codec{CodecNone, CodecLZ4} {
			batch, o := newBuilt(n).compressed(codec), opts()
			if got := testing.AllocsPerRun(50, func() {
				if _, err := Header(batch, o, nil); err != nil {
					t.Fatal(err)
				}
			}); got != 0 {
				t.Errorf("%d records, %s: %v allocations", n, codec, got)
			}
		}
	}
}
