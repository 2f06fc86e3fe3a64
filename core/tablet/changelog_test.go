package tablet

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

func changelogConfig(s *fakeStream, c *clock) Config {
	cfg := topicConfig(s, c)
	cfg.PrimaryKey = true
	return cfg
}

func mustChangelog(t testing.TB, l *Log) *Changelog {
	t.Helper()
	c, err := l.Changelog()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// changes is a batch of rows of the kinds.
func changes(t testing.TB, w Sender, kinds ...byte) *ChangelogBatch {
	t.Helper()
	a := arrowOf(t, topicRows(make([]int64, len(kinds))...))
	return &ChangelogBatch{SchemaID: 1, Metadata: a.Metadata, Body: a.Body, Changes: kinds, Sender: w}
}

var nobody = Sender{ID: mink.NoWriter}

// What is appended is what is read: kinds, bytes, the CRC of all of it.
func TestChangelogBatch(t *testing.T) {
	s := newFake(true)
	l := openWith(t, s, changelogConfig(s, &clock{t0}))
	c := mustChangelog(t, l)
	b := changes(t, Sender{7, 1, 0}, 2, 3, 4)
	p, err := c.Append(b)
	if err != nil || p.res.First != 0 || p.res.Last != 2 {
		t.Fatal(p, err)
	}
	c.Show(3)
	got := readAll(t, l).Batches
	if len(got) != 1 {
		t.Fatal(len(got))
	}
	r, err := record.ParseBatch(got[0])
	if err != nil {
		t.Fatal(err)
	}
	meta, body := r.Arrow()
	if h := r.Header(); !bytes.Equal(r.Changes(), b.Changes) || !bytes.Equal(meta, b.Metadata) || !bytes.Equal(body, b.Body) ||
		h.Attributes != 0 || h.Count != 3 || h.MaxTimestamp != t0 || h.WriterID != 7 || h.Sequence != 0 {
		t.Fatalf("%+v %v", h, r.Changes())
	}
	rows, skip, err := l.Rows(r, nil)
	if err != nil || len(skip) != 0 || rows.NumRows() != 3 {
		t.Fatal(rows, skip, err)
	}
	rows.Release()
}

// The log of a primary-key table has one writer, and takes nothing else.
func TestChangelogIsTheOnlyWay(t *testing.T) {
	s := newFake(false)
	l := openWith(t, s, changelogConfig(s, &clock{t0}))
	if _, err := l.AppendArrow(arrowOf(t, topicRows(1))); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatal(err)
	}
	if _, err := l.AppendKafka(idem(1, 0, 0, 1), KafkaAppend{}); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatal(err)
	}
	c := mustChangelog(t, l)
	if _, err := l.Changelog(); !errors.Is(err, mink.ErrExists) {
		t.Fatal(err)
	}
	if _, err := c.Append(changes(t, nobody, 3)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := l.Changelog(); !errors.Is(err, mink.ErrInvalid) { // one append is on its way
		t.Fatal(err)
	}
	s.land(1)
	mustChangelog(t, l)
	plain := newFake(true)
	if _, err := openTopic(t, plain, &clock{t0}).Changelog(); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
}

// Judge alone changes nothing; a duplicate is told from the next batch, and one that
// was not judged is not appended twice.
func TestChangelogJudges(t *testing.T) {
	s := newFake(false)
	cfg := changelogConfig(s, &clock{t0})
	l := openWith(t, s, cfg)
	c := mustChangelog(t, l)
	for seq := range int32(7) {
		w := Sender{7, 0, seq}
		for range 2 {
			if dup, _, err := c.Judge(w); dup != nil || err != nil {
				t.Fatal(dup, err)
			}
		}
		kinds := []byte{1, 1}
		if seq == 6 {
			kinds = nil // a put that changed nothing
		}
		b := &ChangelogBatch{Sender: w}
		if kinds != nil {
			b = changes(t, w, kinds...)
		}
		if _, err := c.Append(b); err != nil {
			t.Fatal(err)
		}
	}
	if end := l.LogEnd(); end != 13 {
		t.Fatal(end)
	}
	dup, after, err := c.Judge(Sender{7, 0, 5})
	if err != nil || dup == nil || dup.First != 10 || dup.Last != 11 || !dup.Duplicate || after != 12 {
		t.Fatal(dup, after, err)
	}
	dup, after, err = c.Judge(Sender{7, 0, 0})
	if err != nil || dup == nil || dup.First != -1 || after != 6 { // of the five, the oldest is sequence 2
		t.Fatal(dup, after, err)
	}
	if _, _, err := c.Judge(Sender{7, 0, 8}); !errors.Is(err, mink.ErrOutOfOrder) {
		t.Fatal(err)
	}
	if _, err := c.Append(changes(t, Sender{7, 0, 5}, 1)); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
	if _, _, err := c.Judge(Sender{-5, 0, 0}); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
	cfg.Closed = true
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Judge(Sender{7, 0, 7}); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
	if dup, _, err := c.Judge(Sender{7, 0, 5}); dup == nil || err != nil {
		t.Fatal(dup, err)
	}
}

// Readers see what was shown, and are told of it; without a writer they see all.
func TestVisibleHighWatermark(t *testing.T) {
	s := newFake(true)
	l := openWith(t, s, changelogConfig(s, &clock{t0}))
	before := l.Changed()
	c := mustChangelog(t, l)
	ctx := context.Background()
	for range 4 {
		if _, err := c.Append(changes(t, nobody, 3, 3)); err != nil {
			t.Fatal(err)
		}
	}
	see := func(hw mink.Offset, batches int) {
		t.Helper()
		r := readAll(t, l)
		if l.HighWatermark() != hw || r.HighWatermark != hw || r.Next != hw || len(r.Batches) != batches {
			t.Fatalf("high watermark %d, read %d batches up to %d, %d; want %d, %d", l.HighWatermark(), len(r.Batches), r.Next, r.HighWatermark, batches, hw)
		}
	}
	see(0, 0)
	if _, ok, err := l.OffsetForTimestamp(ctx, t0, ByCommit); ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, ok, err := l.MaxTimestamp(ctx); ok || err != nil {
		t.Fatal(ok, err)
	}
	var out *mink.OutOfRangeError
	if _, err := l.Read(ctx, ReadRequest{From: 2, MaxBytes: 1}); !errors.As(err, &out) || out.End != 0 {
		t.Fatal(err)
	}
	changed := l.Changed()
	if changed == before {
		t.Fatal("a reader waits for the stream")
	}
	c.Show(4)
	<-changed
	see(4, 2)
	c.Show(2) // never lowered
	see(4, 2)
	if r, ok, err := l.MaxTimestamp(ctx); !ok || err != nil || r.Offset >= 4 {
		t.Fatal(r, ok, err)
	}
	changed = l.Changed()
	c.Wake()
	<-changed
	changed = l.Changed()
	c.Close()
	<-changed
	see(8, 4)
}

// What is durable and not to be seen yet does not hide the largest timestamp of what is.
func TestVisibleMaxTimestamp(t *testing.T) {
	s, now := newFake(true), &clock{t0}
	l := openWith(t, s, changelogConfig(s, now))
	c := mustChangelog(t, l)
	for range 3 {
		a := arrowOf(t, topicRows(now.ms))
		if _, err := c.Append(&ChangelogBatch{SchemaID: 1, Metadata: a.Metadata, Body: a.Body, Changes: []byte{3}, Sender: nobody}); err != nil {
			t.Fatal(err)
		}
		now.ms++
	}
	for seen := mink.Offset(1); seen <= 3; seen++ {
		c.Show(seen)
		r, ok, err := l.MaxTimestamp(context.Background())
		if want := (TimestampResult{Offset: seen - 1, Timestamp: t0 + int64(seen) - 1, LeaderEpoch: r.LeaderEpoch}); !ok || err != nil || r != want {
			t.Fatal(r, ok, err)
		}
	}
}

func TestChangelogSchema(t *testing.T) {
	d := &schema.Descriptor{Database: "d", Table: "t", PrimaryKey: []string{"k2"}}
	d.Schema = schema.Schema{ID: 2, Columns: []schema.Column{
		{ID: 1, Name: "k2", Type: schema.MustParseType("INT NOT NULL")}, {ID: 2, Name: "v", Type: schema.MustParseType("INT NOT NULL")},
	}}
	old := d.Schema.Clone()
	old.ID, old.Columns[0].Name = 1, "k"
	if s := ChangelogSchema(d, &old, false); s != &old {
		t.Fatal("not the same")
	}
	s := ChangelogSchema(d, &old, true)
	if !s.Columns[0].Type.NotNull || s.Columns[1].Type.NotNull || !old.Columns[1].Type.NotNull || s.ID != 1 {
		t.Fatalf("%+v", s)
	}
}
