package tablet

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/snappy"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

func topicArrow() *arrow.Schema {
	s := schema.KafkaTopicSchema()
	return s.Arrow()
}

// topicRows are rows of the four columns; stamp -1 is null.
func topicRows(stamps ...int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), topicArrow())
	for i, ts := range stamps {
		b.Field(0).(*array.BinaryBuilder).Append([]byte{byte(i)})
		if i%2 == 1 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.BinaryBuilder).Append([]byte("value"))
		}
		h := b.Field(2).(*array.ListBuilder)
		h.Append(true)
		st := h.ValueBuilder().(*array.StructBuilder)
		st.Append(true)
		st.FieldBuilder(0).(*array.StringBuilder).Append("h")
		st.FieldBuilder(1).AppendNull()
		if ts < 0 {
			b.Field(3).AppendNull()
		} else {
			b.Field(3).(*array.TimestampBuilder).Append(arrow.Timestamp(ts))
		}
	}
	return b.NewRecordBatch()
}

func arrowOf(t testing.TB, rows arrow.RecordBatch) ArrowAppend {
	t.Helper()
	meta, body, err := arrowipc.Encode(rows)
	if err != nil {
		t.Fatal(err)
	}
	return ArrowAppend{SchemaID: 1, Metadata: meta, Body: body, Count: int32(rows.NumRows()), WriterID: mink.NoWriter}
}

func appendOK(t testing.TB) func(*Pending, error) AppendResult {
	return func(p *Pending, err error) AppendResult {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p.res
	}
}

func TestCommitTimestampsNeverFall(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	l := openTopic(t, s, c)
	ok := appendOK(t)
	ok(l.AppendKafka(plain(1), KafkaAppend{}))
	c.ms -= 5000
	if r := ok(l.AppendKafka(plain(1), KafkaAppend{})); r.CommitTimestamp != t0 {
		t.Fatal(r)
	}
	l = openTopic(t, s.crash(t, 0, 1), c) // a leader whose clock is behind
	if r := ok(l.AppendKafka(plain(1), KafkaAppend{})); r.CommitTimestamp != t0 {
		t.Fatal(r)
	}
}

func TestLogAppendTime(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	cfg := topicConfig(s, c)
	cfg.Options.TimestampType = schema.LogAppendTime
	l := openWith(t, s, cfg)
	ok := appendOK(t)
	if r := ok(l.AppendKafka(plain(5, 6), KafkaAppend{})); !r.LogAppendTime || r.CommitTimestamp != t0 {
		t.Fatal(r)
	}
	ok(l.AppendArrow(arrowOf(t, topicRows(7, 8))))
	for _, b := range readAll(t, l).Batches {
		if _, err := record.ParseBatch(b); err != nil {
			t.Fatal(err)
		}
		k, err := l.KafkaBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		v := kafkabatch.View(k)
		if !v.LogAppendTime() || v.MaxTimestamp() != t0 || v.CRC() != v.Sum() || b.MaxTimestamp() != t0 {
			t.Fatalf("%d %v", v.MaxTimestamp(), v.LogAppendTime())
		}
	}
	res, found, err := l.OffsetForTimestamp(t.Context(), t0, ByRecord)
	if err != nil || !found || res.Offset != 0 || res.Timestamp != t0 {
		t.Fatal(res, found, err)
	}
}

func compressed(stamps ...int64) []byte {
	b := plain(stamps...)
	var k kmsg.RecordBatch
	if err := k.ReadFrom(b); err != nil {
		panic(err)
	}
	k.Attributes, k.Records = 2, snappy.Encode(nil, k.Records)
	return sealed(k)
}

func TestTimestampLookup(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	l := openTopic(t, s, c)
	ok := appendOK(t)
	ok(l.AppendKafka(plain(t0, t0+50, t0+20), KafkaAppend{}))         // 0..2
	c.ms = t0 + 100                                                   //
	ok(l.AppendKafka(compressed(t0+10, t0+60, t0+70), KafkaAppend{})) // 3..5
	c.ms = t0 + 200                                                   //
	ok(l.AppendArrow(arrowOf(t, topicRows(t0+30, t0+80, t0+65))))     // 6..8
	check := func(kind TimestampKind, ms int64, want mink.Offset) {
		t.Helper()
		res, found, err := l.OffsetForTimestamp(t.Context(), t0+ms, kind)
		if err != nil || found != (want >= 0) || found && (res.Offset != want || res.Timestamp < t0+ms) {
			t.Fatalf("%d at +%d: %+v %v %v, want %d", kind, ms, res, found, err, want)
		}
	}
	latest := func(want mink.Offset, ms int64) {
		t.Helper()
		res, found, err := l.MaxTimestamp(t.Context())
		if err != nil || found != (want >= 0) || found && (res.Offset != want || res.Timestamp != t0+ms) {
			t.Fatalf("latest: %+v %v %v, want %d", res, found, err, want)
		}
	}
	for _, w := range []struct {
		ms   int64
		want mink.Offset
	}{{-5, 0}, {0, 0}, {1, 1}, {50, 1}, {51, 4}, {61, 5}, {70, 5}, {71, 7}, {80, 7}, {81, -1}} {
		check(ByRecord, w.ms, w.want)
	}
	for _, w := range []struct {
		ms   int64
		want mink.Offset
	}{{0, 0}, {1, 3}, {100, 3}, {101, 6}, {201, -1}} {
		check(ByCommit, w.ms, w.want)
	}
	latest(7, 80)
	// Trimmed inside a batch: what lies below is not found any more.
	if err := l.Trim(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	check(ByRecord, 0, 2)
	check(ByRecord, 21, 4)
	check(ByCommit, 0, 2)
	if err := l.Trim(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	check(ByRecord, 66, -1)
	latest(8, 65)
	ok(l.AppendKafka(plain(t0+66, t0+64), KafkaAppend{}))
	latest(9, 66)
	check(ByRecord, 66, 9)
	if err := l.Trim(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	latest(-1, 0)
}

// The largest timestamp counts durable records only.
func TestMaxTimestampIsDurable(t *testing.T) {
	s := newFake(false)
	l := openTopic(t, s, &clock{t0})
	ok := appendOK(t)
	for i := range int64(5) {
		ok(l.AppendKafka(plain(t0+i), KafkaAppend{}))
	}
	for landed := range int64(5) {
		res, found, err := l.MaxTimestamp(t.Context())
		if err != nil || found != (landed > 0) || found && res.Timestamp != t0+landed-1 {
			t.Fatal(landed, res, found, err)
		}
		s.land(1)
	}
}

func TestEpochs(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	s.epoch = 1
	ok := appendOK(t)
	l := openTopic(t, s, c)
	for range 10 {
		ok(l.AppendKafka(plain(t0), KafkaAppend{}))
	}
	s = s.crash(t, 0, 5) // epoch 2 appends nothing
	openTopic(t, s, c)
	s = s.crash(t, 0, 5)
	l = openTopic(t, s, c)
	if e := l.EpochAt(10); e != 3 {
		t.Fatal("epoch at the end is", e)
	}
	for range 10 {
		ok(l.AppendKafka(plain(t0), KafkaAppend{}))
	}
	for _, w := range []struct{ ask, epoch, end int }{{0, 0, 0}, {1, 1, 10}, {2, 1, 10}, {3, 3, 20}, {4, -1, -1}} {
		e, end := l.EpochEnd(mink.LeaderEpoch(w.ask))
		if int(e) != w.epoch || int(end) != w.end {
			t.Fatalf("epoch %d: (%d, %d), want (%d, %d)", w.ask, e, end, w.epoch, w.end)
		}
	}
	if l.EpochAt(0) != 1 || l.EpochAt(9) != 1 || l.EpochAt(10) != 3 || l.EpochAt(20) != 3 {
		t.Fatal("EpochAt")
	}
	cfg := topicConfig(s, c)
	cfg.LeaderEpoch = 2
	if _, err := OpenLog(t.Context(), s, cfg); !errors.Is(err, mink.ErrFenced) {
		t.Fatalf("opened under an older epoch than the log's: %v", err)
	}
}

func TestRetentionPoint(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	cfg := topicConfig(s, c)
	cfg.Options.LogTTL = time.Hour
	l := openWith(t, s, cfg)
	ok := appendOK(t)
	for range 10 {
		ok(l.AppendKafka(plain(1, 2), KafkaAppend{}))
		c.ms += 10 * 60 * 1000
	}
	at := func(now int64, want mink.Offset) {
		t.Helper()
		if got, err := l.RetentionPoint(t.Context(), now); err != nil || got != want {
			t.Fatalf("%d, %v, want %d", got, err, want)
		}
	}
	at(t0+3600_000, 0)
	at(t0+3600_001, 2)
	at(t0+3600_000*2+600_001, 16)
	at(t0+100*3600_000, 20)
	cfg.Options.LogTTL = 0
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	at(t0+100*3600_000, 0)
}

func TestRetentionBySize(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	cfg.Options.LogMaxBytes = 20 << 20
	l := openWith(t, s, cfg)
	big := produced{pid: -1, epoch: -1, seq: -1, stamps: []int64{1}, value: string(make([]byte, 1<<19))}.bytes()
	for range 100 {
		appendOK(t)(l.AppendKafka(bytes.Clone(big), KafkaAppend{}))
	}
	got, err := l.RetentionPoint(t.Context(), t0)
	if err != nil {
		t.Fatal(err)
	}
	kept := int64(0)
	for _, f := range s.frames[got:] {
		kept += int64(len(f.Bytes))
	}
	if kept < 20<<20 || kept > 25<<20 {
		t.Fatalf("keeps %d bytes of %d from offset %d", kept, l.Stats().LogBytes, got)
	}
	if size := l.KeptBytes(); size != l.Stats().LogBytes {
		t.Errorf("%d bytes are kept before a trim, there are %d", size, l.Stats().LogBytes)
	}
	if err := l.Trim(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if size := l.KeptBytes(); size < kept || size > kept+kept/8+1<<20 {
		t.Errorf("%d bytes are kept, there are %d", size, kept)
	}
	if err := l.Trim(t.Context(), l.HighWatermark()); err != nil || l.KeptBytes() != 0 {
		t.Errorf("%d bytes are kept of nothing, %v", l.KeptBytes(), err)
	}
}

// The ladder keeps few rungs and errs by at most an eighth plus a step.
func TestLadder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var l ladder
		var sizes []int64
		n := rapid.IntRange(1, 3000).Draw(rt, "batches")
		size := rapid.Int64Range(100, 16<<20).Draw(rt, "size")
		for i := range n {
			z := size - int64(i)%100
			l.add(mink.Offset(i), z)
			sizes = append(sizes, z)
		}
		if len(l.rungs) > 400 {
			rt.Fatalf("%d rungs for %d bytes", len(l.rungs), l.total)
		}
		from := rapid.IntRange(0, n-1).Draw(rt, "from")
		rest := int64(0)
		for _, z := range sizes[from:] {
			rest += z
		}
		if got := l.from(mink.Offset(from)); got < rest || got > rest+rest/8+2*rungStep+2*size {
			rt.Fatalf("%d bytes from batch %d on, there are %d", got, from, rest)
		}
		ask := rapid.Int64Range(1, l.total+1).Draw(rt, "keep")
		at, ok := l.keep(ask)
		if !ok {
			if ask <= l.total {
				rt.Fatalf("the log holds %d, cannot keep %d", l.total, ask)
			}
			return
		}
		kept := int64(0)
		for _, z := range sizes[at:] {
			kept += z
		}
		if slack := ask/8 + 2*rungStep + 2*size; kept < ask || kept > ask+slack {
			rt.Fatalf("keeps %d where %d were asked", kept, ask)
		}
	})
}

func TestArrowAppendRefuses(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	cfg.Options.MaxMessageBytes = 4096
	l := openWith(t, s, cfg)
	good := arrowOf(t, topicRows(t0, t0))
	for name, c := range map[string]struct {
		want error
		do   func(*ArrowAppend)
	}{
		"schema 0":        {mink.ErrInvalid, func(a *ArrowAppend) { a.SchemaID = 0 }},
		"schema to come":  {mink.ErrUnavailable, func(a *ArrowAppend) { a.SchemaID = 2 }},
		"count":           {mink.ErrInvalid, func(a *ArrowAppend) { a.Count = 3 }},
		"count 0":         {mink.ErrInvalid, func(a *ArrowAppend) { a.Count = 0 }},
		"negative count":  {mink.ErrInvalid, func(a *ArrowAppend) { a.Count = -1 }},
		"writer":          {mink.ErrInvalid, func(a *ArrowAppend) { a.WriterID, a.Sequence = 3, -1 }},
		"changes short":   {mink.ErrInvalid, func(a *ArrowAppend) { a.Changes = []byte{0} }},
		"a delete":        {mink.ErrUnsupported, func(a *ArrowAppend) { a.Changes = []byte{0, 4} }},
		"too large":       {mink.ErrTooLarge, func(a *ArrowAppend) { a.Body = make([]byte, 8192) }},
		"body cut":        {mink.ErrInvalid, func(a *ArrowAppend) { a.Body = a.Body[:8] }},
		"a row too few":   {mink.ErrInvalid, func(a *ArrowAppend) { *a = arrowOf(t, topicRows(t0)); a.Count = 2 }},
		"other columns":   {mink.ErrInvalid, func(a *ArrowAppend) { a.Metadata, a.Body = otherRows(t) }},
		"no flatbuffer":   {mink.ErrInvalid, func(a *ArrowAppend) { a.Metadata = nil }},
		"sequence absurd": {mink.ErrOutOfOrder, func(a *ArrowAppend) { a.WriterID, a.Sequence = 3, math.MaxInt32 }},
	} {
		a := good
		c.do(&a)
		if _, err := l.AppendArrow(a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if l.LogEnd() != 0 {
		t.Fatal("something was appended")
	}
	appendOK(t)(l.AppendArrow(good))
	l.Close()
	if _, err := l.AppendArrow(good); !errors.Is(err, mink.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := l.Read(t.Context(), ReadRequest{}); !errors.Is(err, mink.ErrClosed) {
		t.Fatal(err)
	}
}

var typed = schema.Schema{ID: 1, Columns: []schema.Column{{ID: 1, Name: "id", Type: schema.Type{Kind: schema.BigInt, NotNull: true}}}}

func typedRows(n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), typed.Arrow())
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
	}
	return b.NewRecordBatch()
}

func otherRows(t *testing.T) (meta, body []byte) {
	a := arrowOf(t, typedRows(2))
	return a.Metadata, a.Body
}

// A typed table: no Kafka, commit times stand for record times, and writes that
// change nothing advance writer and offset (tables.md case 1).
func TestTypedTable(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	cfg := topicConfig(s, c)
	cfg.Schemas = []*schema.Schema{&typed}
	l := openWith(t, s, cfg)
	if _, err := l.AppendKafka(plain(t0), KafkaAppend{}); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatal(err)
	}
	a := arrowOf(t, typedRows(3))
	a.WriterID, a.Sequence = 5, 0
	nothing := ArrowAppend{SchemaID: 1, WriterID: 5, Sequence: 1}
	last := a
	last.Sequence = 2
	for i, want := range []string{"0-2", "3-3", "4-6"} {
		if got := outcome(l.AppendArrow([]ArrowAppend{a, nothing, last}[i])); got != want {
			t.Fatalf("%d: %s, want %s", i, got, want)
		}
	}
	l = openWith(t, s.crash(t, 0, 2), cfg)
	if got := outcome(l.AppendArrow(nothing)); got != "dup 3-3" {
		t.Fatal(got)
	}
	res := readAll(t, l)
	if res.Next != 7 || len(res.Batches) != 3 {
		t.Fatal(res)
	}
	rows, _, err := l.Rows(res.Batches[1], nil)
	if err != nil || rows.NumRows() != 0 || rows.NumCols() != 1 {
		t.Fatal(rows, err)
	}
	if _, err := l.KafkaBatch(res.Batches[0]); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatal(err)
	}
	if res, found, err := l.OffsetForTimestamp(t.Context(), t0, ByRecord); err != nil || !found || res.Offset != 0 {
		t.Fatal(res, found, err)
	}
	if err := l.Trim(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if res, found, err := l.OffsetForTimestamp(t.Context(), t0, ByRecord); err != nil || !found || res.Offset != 4 {
		t.Fatalf("the record-less offset is not a record: %v %v %v", res, found, err)
	}
}

func TestReconfigure(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	cfg.Schemas = []*schema.Schema{&typed}
	l := openWith(t, s, cfg)
	wider := schema.Schema{ID: 2, Columns: append(typed.Columns[:1:1], schema.Column{ID: 2, Name: "note", Type: schema.Type{Kind: schema.String}})}
	a := arrowOf(t, typedRows(1))
	a.SchemaID = 2
	if _, err := l.AppendArrow(a); !errors.Is(err, mink.ErrUnavailable) {
		t.Fatal(err)
	}
	cfg.Schemas = append(cfg.Schemas, &wider)
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AppendArrow(a); !errors.Is(err, mink.ErrInvalid) {
		t.Fatalf("one column where the schema has two: %v", err)
	}
	a.SchemaID = 1
	appendOK(t)(l.AppendArrow(a))
}

// A closed partition takes no more rows, from the moment that Reconfigure answers
// on, and when it is opened again; what it has is read.
func TestClosedPartitionRefusesAppends(t *testing.T) {
	s := newFake(true)
	cfg := topicConfig(s, &clock{t0})
	l := openWith(t, s, cfg)
	appendOK(t)(l.AppendKafka(compressed(1, 2), KafkaAppend{AllowZstd: true}))
	cfg.Closed = true
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	refuses := func(l *Log) {
		t.Helper()
		if _, err := l.AppendKafka(compressed(3), KafkaAppend{AllowZstd: true}); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "closed") {
			t.Errorf("append to a closed partition: %v", err)
		}
		if _, err := l.AppendArrow(arrowOf(t, topicRows(3))); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("append to a closed partition: %v", err)
		}
		if res := readAll(t, l); len(res.Batches) != 1 || l.LogEnd() != 2 {
			t.Errorf("%d batches up to %d, want what was there", len(res.Batches), l.LogEnd())
		}
	}
	refuses(l)
	l.Close()
	refuses(openWith(t, s, cfg))
	cfg.Closed = false
	appendOK(t)(openWith(t, s, cfg).AppendKafka(compressed(3), KafkaAppend{AllowZstd: true}))
}

func TestOpenRefusesCorruption(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	l := openTopic(t, s, c)
	for range 3 {
		appendOK(t)(l.AppendKafka(plain(t0), KafkaAppend{}))
	}
	for name, spoil := range map[string]func(*fakeStream){
		"frame":      func(s *fakeStream) { s.frames[2].Bytes = bytes.Clone(s.frames[2].Bytes[:20]) },
		"offset":     func(s *fakeStream) { s.frames[2].Bytes = s.frames[1].Bytes },
		"checkpoint": func(s *fakeStream) { s.ckpt[8] ^= 1 },
		"other end":  func(s *fakeStream) { s.ckptAt = 1 },
	} {
		next := s.crash(t, 0, 2)
		spoil(next)
		cfg := topicConfig(next, c)
		if _, err := OpenLog(context.Background(), next, cfg); !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var _ stream.Folder = Folder{}
}

var nullTicket = &fakeTicket{done: closed}

func (d devNull) HighWatermark() mink.Offset { return *d.at }
