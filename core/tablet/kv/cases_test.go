package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

func pending(p *Pending) bool {
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}

func sum(t testing.TB) *schema.Descriptor {
	return table(t, 1, map[string]string{"merge_engine": "aggregation"}, column("k", "INT"), aggregated("n", "BIGINT", "sum"))
}

// by is a put of a writer.
func by(t testing.TB, b *bed, sequence int32, rows ...Row) Put {
	t.Helper()
	var writes []mergetest.Write
	for _, r := range rows {
		writes = append(writes, mergetest.Write{Row: r})
	}
	return putOf(t, b.current(), writes, Put{WriterID: 9, Sequence: sequence})
}

// When the log is fenced the tablet is finished: who waits learns that the outcome is
// not known, nothing behind the failed batch is flushed, later calls say why.
func TestFencedLogEndsTheTablet(t *testing.T) {
	b := newBed(t, sum(t), false)
	p1 := b.put(false, nil, Row{int32(1), int64(1)})
	p2 := b.put(false, nil, Row{int32(1), int64(2)})
	p3 := b.put(false, nil, Row{int32(2), int64(3)})
	b.s.land(1)
	wait(t, p1)
	b.s.fence()
	for _, p := range []*Pending{p2, p3} {
		<-p.Done()
		if _, err := p.Result(); !errors.Is(err, mink.ErrUnknownOutcome) || !errors.Is(err, mink.ErrFenced) {
			t.Fatal(err)
		}
	}
	if _, err := b.tryPut(false, nil, Row{int32(3), int64(3)}); !errors.Is(err, mink.ErrFenced) {
		t.Fatal(err)
	}
	if _, _, err := b.kv.Lookup(context.Background(), nil, nil); !errors.Is(err, mink.ErrFenced) {
		t.Fatal(err)
	}
	if got := *b.kv.meta.Load(); got != (meta{flushed: 1, rows: 1}) {
		t.Fatalf("flushed %+v", got)
	}
	if left := b.kv.Stats().Pending; left != 0 || b.sh.Stats().PendingBytes != 0 {
		t.Fatal("bytes are still taken:", left)
	}
	b.crash(0)
	sameRows(t, "the next leader", b.all(), []Row{{int32(1), int64(1)}})
}

// A batch that is sent again is merged once, and answered when the first is flushed.
func TestSentAgain(t *testing.T) {
	b := newBed(t, sum(t), false)
	first := by(t, b, 0, Row{int32(1), int64(5)})
	put := func(p Put) *Pending {
		t.Helper()
		got, err := b.kv.Put(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	p1, again := put(first), put(first)
	if b.s.onTheWay() != 1 || !pending(again) {
		t.Fatal("appended twice, or answered before it is durable")
	}
	b.s.land(-1)
	wait(t, p1)
	if r := wait(t, again); !r.Duplicate || r.First != 0 || r.Last != 0 {
		t.Fatalf("%+v", r)
	}
	for seq := range int32(6) {
		put(by(t, b, seq+1, Row{int32(1), int64(1)}))
	}
	if r := put(first); !r.res.Duplicate || r.res.First != -1 || !pending(r) { // older than the window remembers
		t.Fatalf("%+v", r.res)
	}
	if _, err := b.kv.Put(context.Background(), by(t, b, 9, Row{int32(1), int64(1)})); !errors.Is(err, mink.ErrOutOfOrder) {
		t.Fatal(err)
	}
	b.crash(6)
	if r := wait(t, put(first)); !r.Duplicate {
		t.Fatalf("%+v", r)
	}
	sameRows(t, "rows", b.all(), []Row{{int32(1), int64(11)}})
}

// A put that changes nothing waits for what it found; with a writer it has a place in
// the log, without rows, that readers get past.
func TestPutsThatChangeNothing(t *testing.T) {
	b := simple(t, nil)
	p1 := b.put(false, nil, Row{int32(1), "a", nil})
	p2 := b.put(false, []int{0}, Row{int32(1), nil, nil}) // there is such a row
	p3, err := b.kv.Put(context.Background(), func() Put {
		p := by(t, b, 0, Row{int32(7), nil, nil})
		p.Changes = []byte{byte(mink.ChangeDelete)}
		return p
	}())
	if err != nil {
		t.Fatal(err)
	}
	if end := b.log.LogEnd(); end != 2 || !pending(p2) || !pending(p3) {
		t.Fatal(end, pending(p2), pending(p3))
	}
	b.s.land(1)
	wait(t, p1)
	if r := wait(t, p2); r.First != 1 || r.Last != 0 {
		t.Fatalf("%+v", r)
	}
	if !pending(p3) {
		t.Fatal("answered before its place is durable")
	}
	b.s.land(1)
	if r := wait(t, p3); r.First != 1 || r.Last != 1 {
		t.Fatalf("%+v", r)
	}
	changes, next := changelog(t, b.log, 0)
	if len(changes) != 1 || next != 2 {
		t.Fatal(changes, next)
	}
	if p := b.put(true, []int{0}, Row{int32(9), nil, nil}); pending(p) {
		t.Fatal("everything before it is flushed")
	}
}

// Each write of a batch sees the one before it.
func TestOneKeyOften(t *testing.T) {
	b := newBed(t, sum(t), true)
	wait(t, b.put(false, nil, Row{int32(1), int64(1)}, Row{int32(1), int64(2)}, Row{int32(1), int64(4)}))
	changes, _ := changelog(t, b.log, 0)
	sameChanges(t, "changelog", changes, []change{
		ch(mink.ChangeInsert, Row{int32(1), int64(1)}),
		ch(mink.ChangeUpdateBefore, Row{int32(1), int64(1)}), ch(mink.ChangeUpdateAfter, Row{int32(1), int64(3)}),
		ch(mink.ChangeUpdateBefore, Row{int32(1), int64(3)}), ch(mink.ChangeUpdateAfter, Row{int32(1), int64(7)}),
	})
	if n, _ := b.kv.Count(context.Background()); n != 1 {
		t.Fatal(n)
	}
}

// What was sent is what is stored when the changelog says the same.
func TestSentBytesAreKept(t *testing.T) {
	stored := func(b *bed, offset mink.Offset) []byte {
		res, err := b.log.Read(context.Background(), tablet.ReadRequest{From: offset, MaxBytes: 1})
		if err != nil || len(res.Batches) == 0 {
			t.Fatal(res, err)
		}
		meta, body := res.Batches[0].Arrow()
		return append(bytes.Clone(meta), body...)
	}
	for image, want := range map[string][2]bool{"full": {true, false}, "wal": {true, true}} {
		b := newBed(t, table(t, 1, map[string]string{"changelog_image": image}, column("k", "INT"), column("v", "STRING")), true)
		rows := []Row{{int32(1), "a"}, {int32(2), "b"}}
		for i, keeps := range want { // new rows, then the same again
			p := putOf(t, b.current(), []mergetest.Write{{Row: rows[0]}, {Row: rows[1]}}, noWriter)
			at := b.log.LogEnd()
			pend, err := b.kv.Put(context.Background(), p)
			if err != nil {
				t.Fatal(err)
			}
			wait(t, pend)
			if got := bytes.Equal(stored(b, at), append(bytes.Clone(p.Metadata), p.Body...)); got != keeps {
				t.Errorf("%s image, put %d: kept is %t", image, i, got)
			}
		}
		sameRows(t, image, b.all(), rows)
	}
}

// Too much on its way is refused, for a while.
func TestPutsAreThrottled(t *testing.T) {
	b := newBed(t, sum(t), false, func(c *Config) { c.PendingBytesMax = 4 << 10 })
	n := 0
	var last *Pending
	for ; n < 1000; n++ {
		p, err := b.tryPut(false, nil, Row{int32(n), int64(1)})
		if errors.Is(err, mink.ErrThrottled) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = p
	}
	if n < 3 || n > 100 {
		t.Fatalf("%d puts were taken", n)
	}
	b.s.land(-1)
	wait(t, last)
	wait2 := b.put(false, nil, Row{int32(n), int64(1)})
	b.s.land(-1)
	wait(t, wait2)
	if got, _ := b.kv.Count(context.Background()); got != int64(n+1) {
		t.Fatal(got, n)
	}
	b.s.mu.Lock()
	b.s.refuse = mink.ErrThrottled
	b.s.mu.Unlock()
	if _, err := b.tryPut(false, nil, Row{int32(0), int64(1)}); !errors.Is(err, mink.ErrThrottled) {
		t.Fatal(err)
	}
	b.s.mu.Lock()
	b.s.refuse = nil
	b.s.mu.Unlock()
	p := b.put(false, nil, Row{int32(0), int64(1)})
	b.s.land(-1)
	wait(t, p)
	if rows := b.all(); !mergetest.Equal(rows[0], Row{int32(0), int64(2)}) { // what was refused is not in the buffer
		t.Fatal(rows[0])
	}
}

// A reopened store counts right where the log has a hole, and what a hole took is not
// made up.
func TestReplayOverAnAcceptedLoss(t *testing.T) {
	b := simple(t, nil)
	for i := range 4 {
		b.put(false, nil, Row{int32(i), "a", nil}, Row{int32(10 + i), "a", nil})
	}
	b.put(true, []int{0}, Row{int32(1), nil, nil}, Row{int32(2), nil, nil})
	b.s.land(-1)
	next := b.s.crash(0)
	next.lose(1, 3)
	b.close()
	b.s = next
	b.open()
	sameRows(t, "rows", b.all(), []Row{{int32(0), "a", nil}, {int32(3), "a", nil}, {int32(10), "a", nil}, {int32(13), "a", nil}})
	if n, err := b.kv.Count(context.Background()); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	wait2 := b.put(true, []int{0}, Row{int32(0), nil, nil})
	b.s.land(-1)
	wait(t, wait2)
	if n, _ := b.kv.Count(context.Background()); n != 3 {
		t.Fatal(n)
	}
}

// A store that the log cannot bring to its end is refused: the changes between are
// gone, or it has changes that the log has not.
func TestStoreAndLogDoNotFit(t *testing.T) {
	b := simple(t, nil)
	b.cfg.Restore = nil
	for i := range 4 {
		b.put(false, nil, Row{int32(i), "a", nil})
	}
	b.s.land(-1)
	wait(t, b.put(true, []int{0}, Row{int32(9), nil, nil}))
	dir := filepath.Join(b.dir, "cp")
	if _, err := b.kv.Checkpoint(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	// The one that there is.
	restore := func(_ context.Context, to string, refused error) (mink.Offset, bool, error) {
		if refused != nil {
			return 0, false, refused
		}
		return 4, true, copyDir(dir, to)
	}

	short := b.s.crash(0)
	short.frames, short.hw = short.frames[:2], 2
	b.close()
	b.s = short
	b.openLog()
	b.cfg.Restore = restore
	if err := b.tryOpen(); !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), "older snapshot") {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(b.dir, fmt.Sprint(short.epoch))); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("what is of no use was left:", err)
	}
	b.cfg.Restore = func(context.Context, string, error) (mink.Offset, bool, error) { return 0, false, nil }
	if err := b.tryOpen(); err != nil { // from the log alone
		t.Fatal(err)
	}
	if n, _ := b.kv.Count(context.Background()); n != 2 {
		t.Fatal(n)
	}
	b.close()

	trimmed := b.s.crash(0)
	if err := trimmed.Trim(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	b.s = trimmed
	b.openLog()
	if err := b.tryOpen(); !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), "newer snapshot") {
		t.Fatal(err)
	}
	b.cfg.Restore = func(ctx context.Context, to string, refused error) (mink.Offset, bool, error) {
		_, ok, err := restore(ctx, to, refused)
		return 3, ok, err // not the snapshot's
	}
	if err := b.tryOpen(); !errors.Is(err, mink.ErrCorrupt) {
		t.Fatal(err)
	}
}

// Damaged rows are never served: the tablet ends, and the next one is built anew.
func TestDamagedStore(t *testing.T) {
	b := newBed(t, table(t, 1, nil, column("k", "INT"), column("v", "STRING")), true)
	for i := range 200 {
		wait(t, b.put(false, nil, Row{int32(i), strings.Repeat("value", 100)}))
	}
	bad := b.kv.store.newBatch(0)
	if err := bad.set(rowKey(nil, key(t, b.table.Descriptor, Row{int32(7), nil})), []byte{1, 1, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if err := b.kv.store.commit(bad, *b.kv.meta.Load()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.kv.Lookup(context.Background(), [][]byte{key(t, b.table.Descriptor, Row{int32(7), nil})}, nil); !errors.Is(err, mink.ErrCorrupt) {
		t.Fatal(err)
	}
	if _, err := b.tryPut(false, nil, Row{int32(8), "x"}); !errors.Is(err, mink.ErrCorrupt) {
		t.Fatal(err)
	}
	if !errors.Is(b.kv.Err(), mink.ErrCorrupt) {
		t.Fatal(b.kv.Err())
	}
	b.crash(0)
	if n, _ := b.kv.Count(context.Background()); n != 200 {
		t.Fatal(n)
	}
}

// A view and the changelog from its offset on are the table, however busy it is.
func TestViewThenChangelog(t *testing.T) {
	b := newBed(t, sum(t), true)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				p, err := b.kv.Put(context.Background(), putOf(b.t, b.current(), []mergetest.Write{{Row: Row{int32(i % 17), int64(w + 1)}}, {Row: Row{int32(i % 5), int64(1)}}}, noWriter))
				if errors.Is(err, mink.ErrThrottled) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				<-p.Done()
			}
		})
	}
	type base struct {
		at   mink.Offset
		rows []Row
	}
	var views []base
	for range 20 {
		v, err := b.kv.View()
		if err != nil {
			t.Fatal(err)
		}
		views = append(views, base{v.Offset(), scan(t, v, nil, nil, 4)})
		if hw := b.log.HighWatermark(); hw < v.Offset() {
			t.Errorf("a view up to %d, readers see up to %d", v.Offset(), hw)
		}
		v.Close()
	}
	close(stop)
	wg.Wait()
	want := b.all()
	for _, v := range views {
		got := map[any]Row{}
		for _, r := range v.rows {
			got[r[0]] = r
		}
		changes, _ := changelog(t, b.log, v.at)
		for _, c := range changes {
			switch was, there := got[c.Row[0]]; {
			case c.Kind == mink.ChangeUpdateAfter:
				got[c.Row[0]] = c.Row
			case c.Kind == mink.ChangeInsert && there, c.Kind == mink.ChangeUpdateBefore && !mergetest.Equal(was, c.Row):
				t.Fatalf("from the view at %d: %v, where %v is", v.at, c, was)
			case c.Kind == mink.ChangeInsert:
				got[c.Row[0]] = c.Row
			}
		}
		if len(got) != len(want) {
			t.Fatal(len(got), len(want))
		}
		for _, r := range want {
			if !mergetest.Equal(got[r[0]], r) {
				t.Fatalf("from the view at %d: %v, want %v", v.at, got[r[0]], r)
			}
		}
	}
}

// A closed tablet answers what is durable, and tells the others that nobody knows.
func TestCloseAnswers(t *testing.T) {
	b := newBed(t, sum(t), false)
	p1 := b.put(false, nil, Row{int32(1), int64(1)})
	p2 := b.put(false, nil, Row{int32(2), int64(1)})
	v, err := b.kv.View()
	if err != nil {
		t.Fatal(err)
	}
	b.s.land(1)
	if err := b.kv.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, p1)
	<-p2.Done()
	if _, err := p2.Result(); !errors.Is(err, mink.ErrUnknownOutcome) || !errors.Is(err, mink.ErrClosed) {
		t.Fatal(err)
	}
	for _, err := range v.Scan(context.Background(), nil, nil, nil, math.MaxInt32, 1<<20) {
		if !errors.Is(err, mink.ErrClosed) {
			t.Fatal(err)
		}
	}
	v.Close()
	if _, err := b.kv.View(); !errors.Is(err, mink.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := b.kv.Checkpoint(context.Background(), filepath.Join(b.dir, "x")); !errors.Is(err, mink.ErrClosed) {
		t.Fatal(err)
	}
	if b.log.HighWatermark() != 1 {
		t.Fatal(b.log.HighWatermark())
	}
	b.s.land(-1) // what was on its way
	b.kv = nil
	if err := b.tryOpen(); err != nil {
		t.Fatal(err)
	}
	sameRows(t, "after it", b.all(), []Row{{int32(1), int64(1)}, {int32(2), int64(1)}})
}
