package tablet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// keyed is one batch; "k=v" is a record, "k" a tombstone, "=v" a record without a key.
func keyed(records ...string) []byte {
	b := kmsg.RecordBatch{Magic: 2, LastOffsetDelta: int32(len(records) - 1), FirstTimestamp: t0, MaxTimestamp: t0, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(records))}
	for i, r := range records {
		k, v, hasValue := strings.Cut(r, "=")
		rec := kmsg.Record{OffsetDelta: int32(i)}
		if k != "" {
			rec.Key = []byte(k)
		}
		if hasValue {
			rec.Value = []byte(v)
		}
		body := rec.AppendTo(nil)
		rec.Length = int32(len(body) - 1)
		b.Records = rec.AppendTo(b.Records)
	}
	return sealed(b)
}

func compacted(o schema.Options) schema.Options {
	o.Compact, o.MaxCompactionLag = true, 1<<62
	return o
}

// openCompacted is a log whose appends are durable at once.
func openCompacted(t testing.TB, c *clock, o schema.Options) (*fakeStream, *Log) {
	s := newFake(true)
	cfg := topicConfig(s, c)
	cfg.Options = compacted(o)
	return s, openWith(t, s, cfg)
}

func mustClean(t testing.TB, l *Log, ms int64) CleanResult {
	t.Helper()
	res, err := l.Clean(context.Background(), CleanOptions{NowMs: ms, MapBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// contents is "offset:key=value" of all records, and "[from,to]" for batches of none.
func contents(t testing.TB, l *Log) string {
	t.Helper()
	var out []string
	for _, b := range readAll(t, l).Batches {
		if b.Count() == 0 {
			out = append(out, fmt.Sprintf("[%d,%d]", b.BaseOffset(), b.LastOffset()))
			continue
		}
		v := kafkabatch.View(b.Kafka())
		r := kafkabatch.NewReader(v, v.Records())
		for rec := (kafkabatch.Record{}); r.Next(&rec); {
			text := fmt.Sprintf("%d:%s", b.BaseOffset()+mink.Offset(rec.Delta), rec.Key)
			if rec.Value != nil {
				text += "=" + string(rec.Value)
			}
			out = append(out, text)
		}
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(out, " ")
}

func produce(t testing.TB, l *Log, records ...string) {
	t.Helper()
	if _, err := l.AppendKafka(keyed(records...), KafkaAppend{}); err != nil {
		t.Fatal(err)
	}
}

func TestCleaningKeepsTheLatestOfEachKey(t *testing.T) {
	s, l := openCompacted(t, &clock{t0}, schema.Options{DeleteRetention: time.Hour})
	produce(t, l, "a=1", "b=1", "a=2")
	produce(t, l, "b=2", "b=3")
	produce(t, l, "b=4")
	produce(t, l, "c=1", "a=3")
	if res := mustClean(t, l, t0); res.Kept != 3 || res.Removed != 5 || res.Upper != 8 || res.More {
		t.Fatalf("%+v", res)
	}
	if got := contents(t, l); got != "[0,4] 5:b=4 6:c=1 7:a=3" {
		t.Fatal(got)
	}
	// A tombstone stays for delete.retention.ms from the cleaning that meets it.
	produce(t, l, "b", "d=1")
	mustClean(t, l, t0+5)
	if got := contents(t, l); got != "[0,5] 6:c=1 7:a=3 8:b 9:d=1" {
		t.Fatal(got)
	}
	due := t0 + 5 + time.Hour.Milliseconds()
	if st, err := l.CleanState(t.Context(), due-1); err != nil || st.Due != "" || st.DueMs != due {
		t.Fatalf("%+v, %v", st, err)
	}
	if st, err := l.CleanState(t.Context(), due); err != nil || st.Due != TombstoneDue {
		t.Fatalf("%+v, %v", st, err)
	}
	if res := mustClean(t, l, due-1); res.Tombstones != 0 {
		t.Fatalf("%+v", res)
	}
	if res := mustClean(t, l, due); res.Tombstones != 1 || s.cleaned.DueMs != 0 {
		t.Fatalf("%+v, %+v", res, s.cleaned)
	}
	if got := contents(t, l); got != "[0,5] 6:c=1 7:a=3 9:d=1" {
		t.Fatal(got)
	}
	if st := l.Stats().Clean; st.Rounds != 4 || st.Removed != 7 || st.CleanedEnd != 10 || st.LastError != "" {
		t.Fatalf("%+v", st)
	}
}

func TestCleaningIsDue(t *testing.T) {
	c := &clock{t0}
	_, l := openCompacted(t, c, schema.Options{MinDirtyRatio: 0.5, DeleteRetention: time.Hour})
	due := func(want CleanReason) CleanState {
		t.Helper()
		st, err := l.CleanState(t.Context(), c.ms)
		if err != nil || st.Due != want {
			t.Fatalf("%+v, %v, want %q", st, err, want)
		}
		return st
	}
	due("") // empty
	for i := range 10 {
		produce(t, l, fmt.Sprintf("k%d=v", i))
	}
	if st := due(DirtyRatio); st.CleanedEnd != 0 || st.Upper != 10 || st.DirtyBytes == 0 || st.CleanBytes != 0 {
		t.Fatalf("%+v", st)
	}
	mustClean(t, l, c.ms)
	due("")
	for range 9 { // 9 of 19 equal batches
		produce(t, l, "k0=v")
	}
	due("")
	produce(t, l, "k0=v")
	due(DirtyRatio)
	mustClean(t, l, c.ms)

	cfg := topicConfig(newFake(true), c)
	cfg.Options = compacted(schema.Options{MinDirtyRatio: 1, MaxCompactionLag: 1 << 62})
	cfg.Options.MaxCompactionLag = time.Minute
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	produce(t, l, "k1=w")
	c.ms += time.Minute.Milliseconds() - 1
	due("")
	c.ms++
	due(LagReached)

	cfg.Options.MinCompactionLag, cfg.Options.MaxCompactionLag = time.Minute, 1<<62
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	produce(t, l, "k2=w") // younger than the lag: neither counted nor cleaned
	if st := due(""); st.Upper != 21 {
		t.Fatalf("%+v", st)
	}
	if res := mustClean(t, l, c.ms); res.Upper != 21 {
		t.Fatalf("%+v", res)
	}
	c.ms += time.Minute.Milliseconds()
	if st := due(""); st.Upper != 22 {
		t.Fatalf("%+v", st)
	}
	cfg.Options.Compact = false
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	due("")
	if _, err := l.Clean(t.Context(), CleanOptions{NowMs: c.ms}); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
}

// counted counts the reads of a stream.
type counted struct {
	*fakeStream
	reads int
}

func (s *counted) Bytes(ctx context.Context, from, to mink.Offset) (int64, error) {
	s.reads++
	return s.fakeStream.Bytes(ctx, from, to)
}

func (s *counted) Scan(ctx context.Context, from, to mink.Offset) iter.Seq2[stream.Frame, error] {
	s.reads++
	return s.fakeStream.Scan(ctx, from, to)
}

// A bucket that nothing was appended to costs nothing.
func TestLookingForDirtIsQuiet(t *testing.T) {
	c := &clock{t0}
	s := &counted{fakeStream: newFake(true)}
	cfg := topicConfig(s.fakeStream, c)
	cfg.Options = compacted(schema.Options{MinDirtyRatio: 0.9, MaxCompactionLag: time.Hour})
	cfg.Options.MaxCompactionLag = time.Hour
	l, err := OpenLog(t.Context(), s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	produce(t, l, "a=1")
	mustClean(t, l, t0)
	look := func() int {
		t.Helper()
		s.reads = 0
		for range 100 {
			if st, err := l.CleanState(t.Context(), t0); err != nil || st.Due != "" {
				t.Fatalf("%+v, %v", st, err)
			}
		}
		return s.reads
	}
	if n := look(); n != 0 {
		t.Errorf("%d reads of a clean bucket", n)
	}
	produce(t, l, "b=1")
	if n := look(); n > 2 {
		t.Errorf("%d reads after one append", n)
	}
	if n := look(); n != 0 {
		t.Errorf("%d reads of a bucket that is as dirty as before", n)
	}
}

// What the map has no room for waits for the next cleaning, and each step is clean.
func TestCleaningInSteps(t *testing.T) {
	_, l := openCompacted(t, &clock{t0}, schema.Options{})
	want := map[string]string{}
	for round := range 3 {
		for i := range 100 {
			var batch []string
			for k := range 20 {
				key, value := fmt.Sprintf("key-%d", i*20+k), fmt.Sprint(round)
				batch = append(batch, key+"="+value)
				want[key] = value
			}
			produce(t, l, batch...)
		}
	}
	steps, removed, last := 0, int64(0), mink.Offset(0)
	for more := true; more; steps++ {
		res, err := l.Clean(t.Context(), CleanOptions{NowMs: t0, MapBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		if res.Upper <= last {
			t.Fatalf("step %d ends at %d, the one before at %d", steps, res.Upper, last)
		}
		removed, last, more = removed+res.Removed, res.Upper, res.More
	}
	if steps < 5 || removed != 4000 || last != 6000 {
		t.Fatalf("%d steps removed %d up to %d", steps, removed, last)
	}
	got := contents(t, l)
	for key, value := range want {
		if strings.Count(got+" ", ":"+key+"=") != 1 || !strings.Contains(got+" ", ":"+key+"="+value+" ") {
			t.Fatalf("%s=%s is not there once", key, value)
		}
	}
}

// One batch of more keys than the map has room for is cleaned all the same.
func TestBatchLargerThanTheMap(t *testing.T) {
	_, l := openCompacted(t, &clock{t0}, schema.Options{})
	var batch []string
	for k := range 3000 {
		batch = append(batch, fmt.Sprintf("key-%d=%s", k, strings.Repeat("v", k%3)))
	}
	produce(t, l, batch...)
	produce(t, l, batch...)
	for more := true; more; {
		res, err := l.Clean(t.Context(), CleanOptions{NowMs: t0, MapBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		more = res.More
	}
	if got := contents(t, l); !strings.HasPrefix(got, "[0,2999] 3000:key-0") || strings.Count(got, ":") != 3000 {
		t.Fatalf("%.100s", got)
	}
}

// A batch that nobody here can read stays; an older record of some key may be in it, so
// tombstones behind it stay for ever, those before it do not. What was produced without a
// key before the topic was compacted goes.
func TestCleaningPassesOverUnreadableBatches(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	cfg := topicConfig(s, c)
	l := openWith(t, s, cfg)
	produce(t, l, "=1", "a")
	bad := keyed("b=1")
	bad[22] |= byte(kafkabatch.CodecZstd) // its records are none
	if _, err := l.AppendKafka(sealAgain(bad), KafkaAppend{AllowZstd: true}); err != nil {
		t.Fatal(err)
	}
	produce(t, l, "b", "c=1", "c=2")
	cfg.Options = compacted(schema.Options{})
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	mustClean(t, l, t0)
	mustClean(t, l, t0+1) // delete.retention.ms is 0
	var got []string
	for _, b := range readAll(t, l).Batches {
		got = append(got, fmt.Sprintf("%d+%d:%d", b.BaseOffset(), b.LastOffset()-b.BaseOffset(), b.Count()))
	}
	if want := []string{"0+1:0", "2+0:1", "3+2:2"}; !slices.Equal(got, want) {
		t.Fatalf("batches %v, want %v", got, want)
	}
	if s.cleaned.DueMs != 0 {
		t.Fatalf("%+v: the tombstone would be waited for in vain", s.cleaned)
	}
	if n := l.Stats().Quarantined; n != 1 {
		t.Fatalf("%d batches quarantined", n)
	}
}

func sealAgain(b []byte) []byte {
	var r kmsg.RecordBatch
	if err := r.ReadFrom(b); err != nil {
		panic(err)
	}
	return sealed(r)
}

func TestCompactedTopicsNeedKeys(t *testing.T) {
	_, l := openCompacted(t, &clock{t0}, schema.Options{})
	var bad *record.BatchError
	_, err := l.AppendKafka(keyed("a=1", "=2", "b=3", "=4"), KafkaAppend{})
	if !errors.As(err, &bad) || bad.Kind != record.KindInvalidRecord || !slices.Equal(bad.Records, []int32{1, 3}) {
		t.Fatalf("%v", err)
	}
	rows := topicRows(t0, t0+1)
	if p, err := l.AppendArrow(arrowOf(t, rows)); err != nil || p.res.First != 0 {
		t.Fatal(err)
	}
	cols := rows.Columns()
	none := array.NewBuilder(memory.NewGoAllocator(), rows.Schema().Field(0).Type)
	none.AppendNulls(2)
	cols[0] = none.NewArray()
	if _, err := l.AppendArrow(arrowOf(t, array.NewRecordBatch(rows.Schema(), cols, 2))); !errors.As(err, &bad) || bad.Kind != record.KindInvalidRecord {
		t.Fatalf("%v", err)
	}
	if l.LogEnd() != 2 {
		t.Fatal("something was appended")
	}
}

// Rows of a cleaned batch keep their places; those that are gone are told.
func TestRowsOfCleanedBatches(t *testing.T) {
	_, l := openCompacted(t, &clock{t0}, schema.Options{})
	produce(t, l, "a=1", "b=1", "c=1", "d=1", "e=1")
	produce(t, l, "a=2", "c=2", "e=2")
	mustClean(t, l, t0)
	b := readAll(t, l).Batches[0]
	rows, skip, err := l.Rows(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	want := []Quarantined{{First: 0, Last: 0, Encoding: record.EncodingKafka}, {First: 2, Last: 2, Encoding: record.EncodingKafka}, {First: 4, Last: 4, Encoding: record.EncodingKafka}}
	keys := rows.Column(0).(*array.Binary)
	if !slices.Equal(skip, want) || keys.Len() != 4 || string(keys.Value(1)) != "b" || string(keys.Value(3)) != "d" {
		t.Fatalf("%d rows, %v", keys.Len(), skip)
	}
	if _, err := l.Message(b, nil); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatalf("a message of rows with gaps: %v", err)
	}
	if n := l.Stats().Quarantined; n != 0 {
		t.Fatalf("%d batches quarantined", n)
	}
}

func TestRetentionOfCompactedTopics(t *testing.T) {
	c := &clock{t0}
	s, l := openCompacted(t, c, schema.Options{LogTTL: time.Minute, LogMaxBytes: 1, CompactOnly: true})
	for range 10 {
		produce(t, l, "a=1")
	}
	size := int64(len(s.frames[0].Bytes))
	c.ms += time.Hour.Milliseconds()
	if at, err := l.RetentionPoint(t.Context(), c.ms); at != 0 || err != nil {
		t.Fatalf("compact only: %d, %v", at, err)
	}
	cfg := topicConfig(s, c)
	cfg.Options = compacted(schema.Options{LogTTL: time.Minute})
	reconfigure := func() {
		t.Helper()
		if err := l.Reconfigure(cfg); err != nil {
			t.Fatal(err)
		}
	}
	reconfigure()
	if at, err := l.RetentionPoint(t.Context(), c.ms); at != 10 || err != nil {
		t.Fatalf("compact and delete, by time: %d, %v", at, err)
	}
	cfg.Options = compacted(schema.Options{LogMaxBytes: 3 * size})
	reconfigure()
	if at, err := l.RetentionPoint(t.Context(), c.ms); at != 7 || err != nil {
		t.Fatalf("compact and delete, by size: %d, %v", at, err)
	}
	mustClean(t, l, c.ms) // one record of a hundred bytes is left: nothing goes, whatever was appended
	if at, err := l.RetentionPoint(t.Context(), c.ms); at != 0 || err != nil {
		t.Fatalf("after a cleaning: %d, %v", at, err)
	}
	if n := l.KeptBytes(); n > 4*size {
		t.Fatalf("%d bytes are said to be kept", n)
	}
}

// Producers, lookups, readers, merges, trims and cleanings at once.
func TestCleaningBesideEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newCleanModel(t, 99)
		n := m.node
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		loop := func(every time.Duration, f func() error) {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := f(); err != nil && !errors.Is(err, mink.ErrConflict) && !errors.Is(err, context.Canceled) {
						t.Error(err)
						return
					}
					time.Sleep(every)
				}
			})
		}
		cleanings := 0
		loop(300*time.Millisecond, func() error {
			_, err := n.log.Clean(context.Background(), CleanOptions{NowMs: time.Now().UnixMilli(), MapBytes: 1})
			if err == nil {
				cleanings++
			}
			return err
		})
		loop(700*time.Millisecond, func() error { return n.engine.UploadNow(context.Background()) })
		loop(900*time.Millisecond, func() error { return n.engine.CompactNow(context.Background()) })
		loop(3*time.Second, func() error { return n.log.Trim(ctx, n.log.LogStart()+3) })
		loop(time.Second, func() error {
			_, _, err := n.log.MaxTimestamp(ctx)
			return err
		})
		loop(time.Second, func() error {
			_, err := n.log.CleanState(ctx, time.Now().UnixMilli())
			return err
		})
		for range 2 { // consumers that begin anew again and again
			loop(200*time.Millisecond, func() error {
				for at := n.log.LogStart(); at < n.log.HighWatermark(); {
					res, err := n.log.Read(ctx, ReadRequest{From: at, MaxBytes: 4 << 10})
					if errors.Is(err, mink.ErrOutOfRange) {
						return nil
					}
					if err != nil {
						return err
					}
					for _, b := range res.Batches {
						if b.BaseOffset() > at || b.NextOffset() <= at {
							return fmt.Errorf("batch [%d, %d) where %d was expected", b.BaseOffset(), b.NextOffset(), at)
						}
						at = b.NextOffset()
					}
				}
				return nil
			})
		}
		for range 400 {
			m.append()
			time.Sleep(30 * time.Millisecond)
		}
		cancel()
		wg.Wait()
		m.check()
		m.checkFold()
		if cleanings < 10 {
			t.Errorf("%d cleanings", cleanings)
		}
		n.cancel()
		<-n.done
	})
}

// A producer's retry of a batch whose records are gone is a duplicate with the offsets of
// then, here and at the next leader.
func TestRetriesOfCleanedBatches(t *testing.T) {
	c := &clock{t0}
	s, l := openCompacted(t, c, schema.Options{})
	first := idem(7, 0, 0, 3)
	for seq := range int32(4) {
		mustAppendTo(t, l, idem(7, 0, 3*seq, 3))
	}
	mustClean(t, l, t0)
	if got := contents(t, l); got != "[0,8] 11:k=v" {
		t.Fatal(got)
	}
	retry := func(l *Log) {
		t.Helper()
		p, err := l.AppendKafka(slices.Clone(first), KafkaAppend{})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := p.Result(); err != nil || !res.Duplicate || res.First != 0 || res.Last != 2 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	retry(l)
	// The next leader has the checkpoint of before, and never looks at what was cleaned.
	s.mu.Lock()
	s.ckpt, s.ckptAt = encodeCheckpoint(l.mu.st), s.hw
	s.mu.Unlock()
	cfg := topicConfig(s, c)
	cfg.Options = compacted(schema.Options{})
	next := openWith(t, s, cfg)
	retry(next)
	mustAppendTo(t, next, idem(7, 0, 12, 1))
	if got := contents(t, next); got != "[0,8] 11:k=v 12:k=v" {
		t.Fatal(got)
	}
}

func mustAppendTo(t testing.TB, l *Log, batch []byte) {
	t.Helper()
	if _, err := l.AppendKafka(batch, KafkaAppend{}); err != nil {
		t.Fatal(err)
	}
}
