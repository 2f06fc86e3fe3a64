package kv

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// memStream is a stream in memory: appends become durable when land is called.
type memStream struct {
	mu      sync.Mutex
	epoch   mink.LeaderEpoch
	frames  []stream.Frame
	tickets []*memTicket // of the last frames
	start   mink.Offset
	hw      mink.Offset
	auto    bool // durable at once
	refuse  error
	changed chan struct{}
	twice   int // how often the stream advances again right after Changed has answered
}

type memTicket struct {
	done chan struct{}
	err  error
}

func (t *memTicket) Done() <-chan struct{} { return t.done }
func (t *memTicket) Err() error            { return t.err }

func newStream(auto bool) *memStream { return &memStream{auto: auto, changed: make(chan struct{})} }

func (s *memStream) end() mink.Offset {
	if n := len(s.frames); n > 0 {
		return s.frames[n-1].End()
	}
	return s.start
}

func (s *memStream) Append(r stream.AppendRequest) (tablet.Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	if r.Start != s.end() {
		return nil, fmt.Errorf("append at %d of %d: %w", r.Start, s.end(), mink.ErrInvalid)
	}
	s.frames = append(s.frames, stream.Frame{
		Start: r.Start, Span: r.Span, Count: r.Count, LeaderEpoch: s.epoch, MaxTimestamp: r.MaxTimestamp,
		CommitTimestamp: r.CommitTimestamp, Bytes: bytes.Join(r.Parts, nil),
	})
	t := &memTicket{done: make(chan struct{})}
	s.tickets = append(s.tickets, t)
	if s.auto {
		s.landLocked(len(s.tickets))
	}
	return t, nil
}

// land makes the next n appends durable; -1: all.
func (s *memStream) land(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 {
		n = len(s.tickets)
	}
	s.landLocked(min(n, len(s.tickets)))
}

func (s *memStream) landLocked(n int) {
	if n == 0 {
		return
	}
	landed := s.tickets[:n]
	s.tickets = s.tickets[n:]
	s.hw = s.frames[len(s.frames)-len(s.tickets)-1].End()
	for _, t := range landed {
		close(t.done)
	}
	s.wakeLocked()
}

func (s *memStream) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// fence fails the appends that are on their way, which are lost, and later ones.
func (s *memStream) fence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = mink.ErrFenced
	s.frames = s.frames[: len(s.frames)-len(s.tickets) : len(s.frames)-len(s.tickets)]
	for _, t := range s.tickets {
		t.err = mink.ErrFenced
		close(t.done)
	}
	s.tickets = nil
}

// crash is the stream of the next leader, which has the first keep of the appends on
// their way.
func (s *memStream) crash(keep int) *memStream {
	s.mu.Lock()
	frames := slices.Clone(s.frames[:len(s.frames)-len(s.tickets)+min(keep, len(s.tickets))])
	s.mu.Unlock()
	s.fence()
	next := newStream(s.auto)
	next.epoch, next.frames, next.start = s.epoch+1, frames, s.start
	next.hw = next.end()
	return next
}

func (s *memStream) onTheWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tickets)
}

func (s *memStream) Read(_ context.Context, r stream.ReadRequest) (stream.ReadResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := stream.ReadResult{Next: r.From, Start: s.start, HighWatermark: s.hw}
	if r.From < s.start || r.From > s.hw {
		return res, &mink.OutOfRangeError{Asked: r.From, Start: s.start, End: s.hw}
	}
	for _, f := range s.frames {
		if f.End() <= r.From || f.Start >= s.hw {
			continue
		}
		if r.MaxBytes -= len(f.Bytes); r.MaxBytes < 0 && len(res.Frames) > 0 {
			break
		}
		res.Frames = append(res.Frames, f)
		res.Next = f.End()
	}
	return res, nil
}

func (s *memStream) get(p *mink.Offset) mink.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *p
}

func (s *memStream) Start() mink.Offset         { return s.get(&s.start) }
func (s *memStream) HighWatermark() mink.Offset { return s.get(&s.hw) }
func (s *memStream) LogEnd() mink.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end()
}

func (s *memStream) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.changed
	if s.twice > 0 {
		s.twice--
		s.wakeLocked()
	}
	return c
}

func (s *memStream) Discard(ctx context.Context, to mink.Offset, _ int64) error {
	return s.Trim(ctx, to)
}

func (s *memStream) Trim(_ context.Context, to mink.Offset) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = max(s.start, min(to, s.hw))
	s.wakeLocked()
	return nil
}

// lose is an accepted loss: the frames from i up to j are gone.
func (s *memStream) lose(i, j int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames = slices.Delete(s.frames, i, j)
}

func (s *memStream) Checkpoint(context.Context) ([]byte, mink.Offset, error) {
	return nil, s.start, nil
}
func (s *memStream) SeedCheckpoint([]byte, mink.Offset) {}
func (s *memStream) AskCheckpoint()                     {}

func (s *memStream) OffsetForTimestamp(context.Context, int64, bool) (stream.Frame, bool, error) {
	return stream.Frame{}, false, nil
}

func (s *memStream) CleanLimit() (mink.Offset, plan.Cleaned, error) { return 0, plan.Cleaned{}, nil }

func (s *memStream) Scan(context.Context, mink.Offset, mink.Offset) iter.Seq2[stream.Frame, error] {
	return func(func(stream.Frame, error) bool) {}
}

func (s *memStream) Rewrite(context.Context, stream.Rewrite) (plan.Cleaned, error) {
	return plan.Cleaned{}, mink.ErrUnsupported
}
func (s *memStream) Bytes(context.Context, mink.Offset, mink.Offset) (int64, error) { return 0, nil }
func (s *memStream) OffsetForBytes(context.Context, int64) (mink.Offset, bool, error) {
	return 0, false, nil
}

const t0 = int64(1_700_000_000_000)

// bed is a bucket under test: a stream, and what is open over it.
type bed struct {
	t      testing.TB
	sh     *Shared
	table  Table
	s      *memStream
	log    *tablet.Log
	kv     *Tablet
	cfg    Config
	dir    string // one directory per leadership
	nextID int64
}

func newBed(t testing.TB, d *schema.Descriptor, auto bool, change ...func(*Config)) *bed {
	t.Helper()
	b := makeBed(t, newShared(t), t.TempDir(), d, auto, change...)
	t.Cleanup(b.close)
	return b
}

// makeBed is newBed with memory of the caller's, who closes it.
func makeBed(t testing.TB, sh *Shared, dir string, d *schema.Descriptor, auto bool, change ...func(*Config)) *bed {
	t.Helper()
	schema1 := d.Schema.Clone()
	b := &bed{t: t, table: Table{d, []*schema.Schema{&schema1}}, s: newStream(auto), dir: dir, sh: sh}
	b.cfg = Default()
	b.cfg.Shared = b.sh
	b.cfg.LeaseMin = 3
	b.cfg.LeaseIDs = func(_ context.Context, n int64) (int64, int64, error) {
		b.nextID += n
		return b.nextID - n + 1, b.nextID, nil
	}
	for _, c := range change {
		c(&b.cfg)
	}
	b.open()
	return b
}

func (b *bed) openLog() {
	b.t.Helper()
	cfg := tablet.Default()
	cfg.Bucket, cfg.LeaderEpoch, cfg.PrimaryKey = bucket7, b.s.epoch, true
	cfg.Schemas = b.changelogSchemas()
	cfg.Now = func() time.Time { return time.UnixMilli(t0) }
	o, err := b.table.Descriptor.ParsedOptions()
	if err != nil {
		b.t.Fatal(err)
	}
	cfg.Options = o
	if b.log, err = tablet.OpenLog(context.Background(), b.s, cfg); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) changelogSchemas() (out []*schema.Schema) {
	for _, s := range b.table.Schemas {
		o, _ := b.table.Descriptor.ParsedOptions()
		out = append(out, tablet.ChangelogSchema(b.table.Descriptor, s, o.WALImage))
	}
	return out
}

func (b *bed) tryOpen() error {
	cfg := b.cfg
	cfg.Table = b.table
	cfg.Dir = filepath.Join(b.dir, fmt.Sprint(b.s.epoch))
	t, err := Open(context.Background(), b.log, cfg)
	if err == nil {
		b.kv = t
	}
	return err
}

func (b *bed) open() {
	b.t.Helper()
	b.openLog()
	if err := b.tryOpen(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) close() {
	b.t.Helper()
	if b.kv == nil {
		return
	}
	if err := b.kv.Close(); err != nil {
		b.t.Error(err)
	}
	b.kv = nil
	b.log.Close()
}

// reopen closes in order and opens with what the directory has.
func (b *bed) reopen() {
	b.t.Helper()
	b.close()
	b.open()
}

// crash goes on as the next leader, without a directory.
func (b *bed) crash(keep int) {
	b.t.Helper()
	next := b.s.crash(keep)
	b.close()
	b.s = next
	b.open()
}

// alter changes the table, for log and tablet.
func (b *bed) alter(changes ...schema.Change) error {
	d, err := b.table.Descriptor.Apply(changes)
	if err != nil {
		return err
	}
	table := Table{d, b.table.Schemas}
	if d.Schema.ID != b.table.Descriptor.Schema.ID {
		s := d.Schema.Clone()
		table.Schemas = append(slices.Clone(table.Schemas), &s)
	}
	b.table = table
	o, err := d.ParsedOptions()
	if err != nil {
		return err
	}
	if err := b.log.Reconfigure(tablet.Config{Schemas: b.changelogSchemas(), Options: o}); err != nil {
		return err
	}
	return b.kv.Reconfigure(table)
}

func (b *bed) current() *schema.Schema { return b.table.Schemas[len(b.table.Schemas)-1] }

var noWriter = Put{WriterID: mink.NoWriter}

// putOf makes a put of a model's writes, all of which have the same columns; the rows
// are those of a schema version.
func putOf(t fataler, s *schema.Schema, writes []mergetest.Write, p Put) Put {
	t.Helper()
	var err error
	if p.Columns, p.Changes, p.Metadata, p.Body, err = mergetest.Message(s, writes); err != nil {
		t.Fatal(err)
	}
	p.SchemaID, p.Count = s.ID, int32(len(writes))
	return p
}

// put hands rows over; columns nil: all.
func (b *bed) put(deletes bool, columns []int, rows ...mergetest.Row) *Pending {
	b.t.Helper()
	p, err := b.tryPut(deletes, columns, rows...)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bed) tryPut(deletes bool, columns []int, rows ...mergetest.Row) (*Pending, error) {
	b.t.Helper()
	writes := make([]mergetest.Write, len(rows))
	for i, r := range rows {
		writes[i] = mergetest.Write{Row: r, Columns: columns, Delete: deletes}
	}
	return b.kv.Put(context.Background(), putOf(b.t, b.current(), writes, noWriter))
}

func wait(t testing.TB, p *Pending) tablet.AppendResult {
	t.Helper()
	<-p.Done()
	res, err := p.Result()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func key(t fataler, d *schema.Descriptor, r mergetest.Row) []byte {
	t.Helper()
	k, err := mergetest.BucketKey(d, r)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rowsOf(rec arrow.RecordBatch) []mergetest.Row {
	defer rec.Release()
	return mergetest.Rows(rec)
}

// all is every row by a view.
func (b *bed) all() []mergetest.Row {
	b.t.Helper()
	v, err := b.kv.View()
	if err != nil {
		b.t.Fatal(err)
	}
	defer v.Close()
	return scan(b.t, v, nil, nil, 3)
}

func scan(t fataler, v *View, lo, hi []byte, rowsMax int) (rows []mergetest.Row) {
	t.Helper()
	for rec, err := range v.Scan(context.Background(), lo, hi, nil, rowsMax, 1<<20) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.NumRows() > int64(rowsMax) || rec.NumRows() == 0 {
			t.Fatalf("a batch of %d rows", rec.NumRows())
		}
		rows = append(rows, rowsOf(rec)...)
	}
	return rows
}

// changelog is what a reader of the log sees from an offset on, under the versions
// that the batches were written with, and where it ends.
func changelog(t fataler, log *tablet.Log, from mink.Offset) (changes []mergetest.Change, next mink.Offset) {
	t.Helper()
	res, err := log.Read(context.Background(), tablet.ReadRequest{From: from, MaxBytes: math.MaxInt32})
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range res.Batches {
		if _, err := record.ParseBatch(batch); err != nil {
			t.Fatal(err)
		}
		rec, skip, err := log.Rows(batch, nil)
		if err != nil || len(skip) > 0 {
			t.Fatal(err, skip)
		}
		for i, row := range rowsOf(rec) {
			changes = append(changes, mergetest.Change{Kind: mink.Change(batch.Changes()[i]), Row: row})
		}
	}
	return changes, res.Next
}

func sameRows(t fataler, what string, got, want []mergetest.Row) {
	t.Helper()
	if !mergetest.Equal(got, want) {
		t.Fatalf("%s: %v\nwant %v", what, got, want)
	}
}

func sameChanges(t fataler, what string, got, want []mergetest.Change) {
	t.Helper()
	if !mergetest.Equal(got, want) {
		t.Fatalf("%s: %v\nwant %v", what, got, want)
	}
}

// table describes a table: columns "name TYPE", the first keys of them the key.
func table(t testing.TB, keys int, options map[string]string, columns ...schema.Column) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "d", Table: "t", Options: options}
	d.Schema.Columns = columns
	for _, c := range columns[:keys] {
		d.PrimaryKey = append(d.PrimaryKey, c.Name)
	}
	n, err := d.Normalize()
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func column(name, typ string) schema.Column {
	return schema.Column{Name: name, Type: schema.MustParseType(typ)}
}

func aggregated(name, typ, function string) schema.Column {
	c := column(name, typ)
	c.Aggregate = schema.AggregateFunction(function)
	return c
}

// fataler is testing.TB or rapid.T.
type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}
