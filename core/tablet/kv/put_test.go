package kv

import (
	"context"
	"errors"
	"testing"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/sdk/mink"
)

type (
	Row    = mergetest.Row
	change = mergetest.Change
)

func ch(kind mink.Change, row Row) change { return change{Kind: kind, Row: row} }

func simple(t testing.TB, options map[string]string) *bed {
	return newBed(t, table(t, 1, options, column("k", "INT"), column("v", "STRING"), column("n", "BIGINT")), false)
}

// A put is seen nowhere before it is durable; then in the store and in the changelog
// at once. The next put merges with it before that.
func TestPutPipelines(t *testing.T) {
	b := simple(t, nil)
	p1 := b.put(false, nil, Row{int32(1), "a", int64(1)}, Row{int32(2), "b", nil})
	p2 := b.put(false, []int{0, 2}, Row{int32(1), nil, int64(5)})
	p3 := b.put(true, []int{0}, Row{int32(2), nil, nil})
	if got := b.all(); len(got) != 0 {
		t.Fatalf("rows before they are durable: %v", got)
	}
	b.s.land(1)
	if r := wait(t, p1); r.First != 0 || r.Last != 1 {
		t.Fatalf("%+v", r)
	}
	sameRows(t, "after the first", b.all(), []Row{{int32(1), "a", int64(1)}, {int32(2), "b", nil}})
	changes, next := changelog(t, b.log, 0)
	if next != 2 || b.kv.VisibleHighWatermark() != 2 || b.log.HighWatermark() != 2 || b.s.HighWatermark() != 2 {
		t.Fatal(next, b.kv.VisibleHighWatermark())
	}
	sameChanges(t, "changelog", changes, []change{ch(mink.ChangeInsert, Row{int32(1), "a", int64(1)}), ch(mink.ChangeInsert, Row{int32(2), "b", nil})})
	select {
	case <-p2.Done():
		t.Fatal("answered before it is durable")
	case <-p3.Done():
		t.Fatal("answered before it is durable")
	default:
	}
	b.s.land(-1)
	wait(t, p3)
	wait(t, p2)
	sameRows(t, "in the end", b.all(), []Row{{int32(1), "a", int64(5)}})
	changes, _ = changelog(t, b.log, 2)
	sameChanges(t, "changelog", changes, []change{
		ch(mink.ChangeUpdateBefore, Row{int32(1), "a", int64(1)}), ch(mink.ChangeUpdateAfter, Row{int32(1), "a", int64(5)}),
		ch(mink.ChangeDelete, Row{int32(2), "b", nil}),
	})
	if n, err := b.kv.Count(context.Background()); n != 1 || err != nil {
		t.Fatal(n, err)
	}

	// What is durable and not in the store yet is not to be seen in the changelog.
	end := b.log.LogEnd()
	p := b.put(false, nil, Row{int32(3), "c", nil})
	b.kv.mu.Lock() // the flusher waits
	b.s.land(-1)
	_, next = changelog(t, b.log, end)
	hw := b.log.HighWatermark()
	b.kv.mu.Unlock()
	if next != end || hw != end || b.s.HighWatermark() == end {
		t.Fatalf("a reader sees up to %d, %d; the store has what is below %d", next, hw, end)
	}
	wait(t, p)
}

// A batch of which one row is bad changes nothing, also not what later puts find.
func TestPutIsWholeOrNot(t *testing.T) {
	b := newBed(t, table(t, 1, map[string]string{"merge_engine": "aggregation"}, column("k", "INT"), aggregated("n", "TINYINT", "sum")), true)
	wait(t, b.put(false, nil, Row{int32(1), int8(100)}))
	_, err := b.tryPut(false, nil, Row{int32(2), int8(1)}, Row{int32(1), int8(7)}, Row{int32(1), int8(100)})
	if !errors.Is(err, mink.ErrInvalid) && !errors.Is(err, mink.ErrOutOfRange) {
		t.Fatal(err)
	}
	t.Log(err)
	wait(t, b.put(false, nil, Row{int32(1), int8(20)}))
	sameRows(t, "rows", b.all(), []Row{{int32(1), int8(120)}})
}
