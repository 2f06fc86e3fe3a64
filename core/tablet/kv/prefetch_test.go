package kv

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/tablet"
)

// early is a put that has read the store.
func early(t testing.TB, b *bed, rows ...Row) *prepared {
	t.Helper()
	writes := make([]mergetest.Write, len(rows))
	for i, r := range rows {
		writes[i].Row = r
	}
	p, err := b.kv.prepare(context.Background(), putOf(t, b.current(), writes, noWriter))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func finish(t testing.TB, p *prepared) tablet.AppendResult {
	t.Helper()
	pending, err := p.put(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return wait(t, pending)
}

// What a put has read of the store may be older than what was flushed since: that is
// found in the prewrite buffer, or is known to be there no more.
func TestReadBeforeTheTurn(t *testing.T) {
	d := table(t, 1, map[string]string{"merge_engine": "aggregation"}, column("k", "INT"), aggregated("n", "BIGINT", "sum"), column("pad", "STRING"))
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint("kept=", kept), func(t *testing.T) {
			b := newBed(t, d, true)
			wait(t, b.put(false, nil, Row{int32(1), int64(1), "a"}, Row{int32(2), int64(1), "a"}))
			slow := early(t, b, Row{int32(1), int64(100), "b"}, Row{int32(3), int64(100), "b"})
			// Rows that it has read, rows that it has not found.
			wait(t, b.put(false, nil, Row{int32(1), int64(20), "c"}, Row{int32(3), int64(7), "c"}))
			if kept {
				b.put(false, nil, Row{int32(2), int64(1), "a"}) // a turn sweeps
			}
			for n := int32(0); !kept && n*(1<<19) <= 2*heldBytesMax; n++ {
				wait(t, b.put(false, nil, Row{10 + n, int64(1), strings.Repeat("x", 1<<19)}))
			}
			b.kv.turn <- struct{}{}
			_, is := b.kv.before.get(slow.in.keys[:slow.in.rows[0].key])
			held := int64(0)
			b.kv.mu.Lock()
			for _, f := range b.kv.mu.landed {
				held += f.bytes
			}
			b.kv.mu.Unlock()
			b.kv.leaveTurn()
			if is != kept || held > heldBytesMax+2<<20 {
				t.Fatalf("the row is in the prewrite buffer: %t, want %t; %d bytes of flushed rows are held", is, kept, held)
			}
			finish(t, slow)
			changes, _ := changelog(t, b.log, b.log.LogEnd()-4)
			sameChanges(t, "changelog", changes, []change{
				ch(2, Row{int32(1), int64(21), "c"}), ch(3, Row{int32(1), int64(121), "b"}),
				ch(2, Row{int32(3), int64(7), "c"}), ch(3, Row{int32(3), int64(107), "b"}),
			})
		})
	}
}

// Nothing stays in the prewrite buffer for puts that are over, whatever became of them.
func TestPreparedPutsLetGo(t *testing.T) {
	b := simple(t, nil)
	before := early(t, b, Row{int32(1), "a", nil})
	late := early(t, b, Row{int32(1), "b", nil})
	gone := early(t, b, Row{int32(1), "c", nil})
	p := b.put(false, nil, Row{int32(1), "d", nil})
	b.s.land(-1)
	wait(t, p)
	before.drop()
	before.drop()
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(context.DeadlineExceeded)
	b.kv.turn <- struct{}{}
	if _, err := gone.put(ctx); err == nil {
		t.Fatal("put without a turn")
	}
	b.kv.sweep(heldBytesMax)
	n := len(b.kv.before.rows)
	b.kv.leaveTurn()
	if n != 1 {
		t.Fatal("a put that has read needs what was flushed since")
	}
	pending, err := late.put(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	b.s.land(-1)
	wait(t, pending)
	b.nothingHeld()
}

// nothingHeld checks that nothing is in the prewrite buffer although no put came after
// the last one. Every put has its outcome, and nobody else is at work.
func (b *bed) nothingHeld() {
	b.t.Helper()
	call := checkpointCall{b.dir, make(chan checkpointAnswer, 1)} // refused, by the flusher, which has tidied then
	b.kv.checkpoints <- call
	<-call.answer
	b.kv.turn <- struct{}{}
	rows := len(b.kv.before.rows)
	<-b.kv.turn
	b.kv.mu.Lock()
	defer b.kv.mu.Unlock()
	if rows+len(b.kv.mu.landed)+len(b.kv.mu.reads) > 0 {
		b.t.Fatal("still held:", rows, len(b.kv.mu.landed), len(b.kv.mu.reads))
	}
}

// What is flushed while somebody sweeps is swept as well, though no put follows.
func TestTidyLeavesNothing(t *testing.T) {
	b := newBed(t, sum(t), false)
	var many []Row
	for k := range int32(25_000) {
		many = append(many, Row{k, int64(1)})
	}
	for range 20 {
		slow := early(t, b, Row{int32(-1), int64(1)})
		large, small := b.put(false, nil, many...), b.put(false, nil, Row{int32(-2), int64(1)})
		b.s.land(1)
		wait(t, large) // it stays for slow
		var wg sync.WaitGroup
		swept := make(chan struct{})
		wg.Go(func() {
			defer close(swept)
			slow.drop() // sweeps it, which takes a while
		})
		for under := true; under && len(b.kv.turn) == 0; {
			select {
			case <-swept:
				under = false
			default:
				runtime.Gosched()
			}
		}
		b.s.land(-1)
		wait(t, small)
		wg.Wait()
		b.nothingHeld()
	}
}

// Puts of many callers to few keys, each of which finds the sum that the one before it
// left.
func TestConcurrentPutsSum(t *testing.T) {
	b := newBed(t, sum(t), true)
	const callers, puts, keys = 8, 60, 5
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range puts {
				var writes []mergetest.Write
				for k := range int32(keys) {
					writes = append(writes, mergetest.Write{Row: Row{k, int64(1)}})
				}
				r, err := b.kv.prepare(context.Background(), putOf(t, b.current(), writes, noWriter))
				if err != nil {
					t.Error(err)
					return
				}
				if (c+i)%7 == 0 {
					b.kv.turn <- struct{}{}
					b.kv.sweep(0)
					b.kv.leaveTurn()
				}
				p, err := r.put(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					<-p.Done()
				}
			}
		})
	}
	wg.Wait()
	wait(t, b.put(false, nil, Row{int32(99), int64(0)}))
	var want []Row
	for k := range int32(keys) {
		want = append(want, Row{k, int64(callers * puts)})
	}
	sameRows(t, "rows", b.all(), append(want, Row{int32(99), int64(0)}))
}

// Many rows at a time are what single gets answer, whatever lies in memory and in
// files, in any order of the keys, and when there are too many bytes.
func TestRowsRead(t *testing.T) {
	sh, dir := newShared(t), t.TempDir()
	t.Run("too many bytes", func(t *testing.T) {
		s, _ := mustOpen(t, sh, filepath.Join(dir, "large"))
		defer mustClose(t, s)
		var asked [][]byte
		for i := range byte(6) {
			asked = append(asked, []byte{i})
			if i == 1 {
				continue // no such key
			}
			if err := s.db.Set(rowKey(nil, asked[i]), bytes.Repeat([]byte{i}, readBytesMax/2), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		var r rowsRead
		if unread, gone := sameAsGets(t, s, &r, asked); unread != 2 || gone != 1 {
			t.Errorf("%d rows were not read, %d are not there", unread, gone)
		}
	})
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		s, _ := mustOpen(t, sh, filepath.Join(dir, fmt.Sprint(runs)))
		defer mustClose(t, s)
		keys := rapid.SliceOfN(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xff}), 0, 3), 1, 20)
		for range rapid.IntRange(1, 4).Draw(rt, "flushes") {
			for _, k := range keys.Draw(rt, "keys") {
				size := rapid.SampledFrom([]int{1, 2, 100, readBytesMax / 2}).Draw(rt, "size")
				var err error
				if key := rowKey(nil, k); rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
					err = s.db.Delete(key, pebble.NoSync)
				} else {
					err = s.db.Set(key, bytes.Repeat([]byte{byte(len(k))}, size), pebble.NoSync)
				}
				if err != nil {
					rt.Fatal(err)
				}
			}
			if rapid.Bool().Draw(rt, "flush") {
				if err := s.db.Flush(); err != nil {
					rt.Fatal(err)
				}
			}
		}
		var r rowsRead
		for range 2 { // the memory is used again
			sameAsGets(rt, s, &r, keys.Draw(rt, "asked"))
		}
	})
}

// sameAsGets reads the rows of the keys with r, and each with a get.
func sameAsGets(t rapid.TB, s *store, r *rowsRead, asked [][]byte) (unread, gone int) {
	r.begin(len(asked))
	for _, k := range asked {
		r.add(rowKey(nil, k))
	}
	if err := r.read(s.db); err != nil {
		t.Fatal(err)
	}
	bytesRead := 0
	for i, k := range asked {
		got, read := r.get(i)
		want, held, err := get(s.db, rowKey(nil, k))
		if err != nil {
			t.Fatal(err)
		}
		if !read {
			unread++
		} else if bytesRead += len(got); (got == nil) != (want == nil) || !bytes.Equal(got, want) {
			t.Fatalf("key %x: %d bytes, want %d", k, len(got), len(want))
		} else if want == nil {
			gone++
		}
		if held != nil {
			_ = held.Close()
		}
	}
	if len(r.values) > readBytesMax+readBytesMax/2 {
		t.Fatalf("%d bytes are kept", len(r.values))
	}
	if _, read := r.get(len(asked)); read {
		t.Fatal("a row that nobody asked for")
	}
	if n := len(r.values); n == 0 && bytesRead > 0 {
		t.Fatal("values of nowhere")
	}
	return unread, gone
}
