package kv

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
)

// Rows that are small in the store and large in Arrow do not get past the bound of a
// lookup.
func TestLookupIsBounded(t *testing.T) {
	d := table(t, 1, nil, column("k", "INT"), column("v", "BINARY(65535)"))
	b := newBed(t, d, true, func(c *Config) { c.LookupBytesMax = 1 << 20 })
	wait(t, b.put(false, nil, Row{int32(1), nil}))
	keys := slices.Repeat([][]byte{key(t, d, Row{int32(1), nil})}, 17)
	if _, _, err := b.kv.Lookup(context.Background(), keys, nil); !errors.Is(err, mink.ErrTooLarge) {
		t.Fatal(err)
	}
	rows, found, err := b.kv.Lookup(context.Background(), keys[:15], nil)
	if err != nil || len(found) != 15 || rows.NumRows() != 15 {
		t.Fatal(rows, found, err)
	}
	rows.Release()
}

// A large put leaves nothing behind once it is flushed.
func TestLargePutLeavesNothing(t *testing.T) {
	b := simple(t, nil)
	var rows []Row
	for k := range int32(2 * keepRows) {
		rows = append(rows, Row{k % 100, "a", nil})
	}
	p := b.put(false, nil, rows...)
	last := b.put(false, nil, rows[:200]...)
	b.s.land(-1)
	wait(t, p)
	wait(t, last)
	b.kv.turn <- struct{}{}
	b.kv.sweep(heldBytesMax)
	defer func() { <-b.kv.turn }()
	w := &b.kv.before
	if len(w.rows) != 0 || cap(w.undo) > keepRows {
		t.Fatal(len(w.rows), cap(w.undo))
	}
	for _, u := range w.undo[:cap(w.undo)] {
		if u != (undo{}) {
			t.Fatal("rows that were flushed are kept for an undo")
		}
	}
	if n := b.sh.pending.taken(); n != 0 || b.kv.pending.Load() != 0 {
		t.Fatal(n, b.kv.pending.Load())
	}
}
