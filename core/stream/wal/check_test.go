package wal

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestCheckSlot(t *testing.T) {
	ctx := context.Background()
	id := plan.WALID{Node: 1, Epoch: 3, Nonce: 9}
	b := object.NewBuilder(1)
	frame := object.Frame{Start: 0, Span: 2, Count: 2, LeaderEpoch: 1, Bytes: []byte("two records")}
	if err := b.AddFrame(5, &frame); err != nil {
		t.Fatal(err)
	}
	chunks, _, err := b.Finish(object.Header{Kind: plan.KindWAL, WAL: id, Seq: 4, Nonce: 1, Window: 3})
	if err != nil {
		t.Fatal(err)
	}
	var bulk []byte
	for _, c := range chunks {
		bulk = append(bulk, c...)
	}
	flipped := func(at int) []byte {
		out := append([]byte(nil), bulk...)
		out[(at+len(out))%len(out)] ^= 4
		return out
	}
	for name, c := range map[string]struct {
		data          []byte
		shallow, deep bool // sound
	}{
		"bulk":                       {bulk, true, true},
		"tombstone":                  {object.Tombstone(id, 4, 7), true, true},
		"tombstone of another slot":  {object.Tombstone(id, 5, 7), false, false},
		"half a header":              {bulk[:20], false, false},
		"cut short":                  {bulk[:len(bulk)-1], false, false},
		"flipped in the footer":      {flipped(-5), false, false},
		"flipped in the header":      {flipped(9), false, false},
		"flipped in a record":        {flipped(object.HeaderLen + object.BlockHeaderLen + 2), true, false},
		"garbage as long as a bulk":  {make([]byte, len(bulk)), false, false},
		"a tombstone with a byte on": {append(object.Tombstone(id, 4, 7), 0), false, false},
	} {
		store := memstore.New(memstore.Default())
		s := Slot{Seq: 4, Key: plan.Key(id, plan.KindWAL, 4), Size: int64(len(c.data))}
		if _, err := store.Put(ctx, objstore.PutRequest{Key: s.Key, Chunks: [][]byte{c.data}}); err != nil {
			t.Fatal(err)
		}
		for _, deep := range []bool{false, true} {
			want := c.shallow && !deep || c.deep && deep
			err := CheckSlot(ctx, store, id, s, deep)
			var bad *CorruptSlotError
			if want != (err == nil) || err != nil && (!errors.As(err, &bad) || !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), s.Key)) {
				t.Errorf("%s, deep %t: %v", name, deep, err)
			}
		}
		s.Key += "x"
		if err := CheckSlot(ctx, store, id, s, false); len(c.data) >= object.HeaderLen && !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("a slot that is gone: %v", err)
		}
	}
}

// A process that dies in its probe leaves an object; a later one removes it.
func TestProbeRemovesWhatEarlierOnesLeft(t *testing.T) {
	ctx := context.Background()
	now := time.Unix(1e9, 0)
	store := memstore.New(memstore.Config{Now: func() time.Time { return now }})
	put := func(key string) {
		if _, err := store.Put(ctx, objstore.PutRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	put("probe/1/0000000000000001")
	now = now.Add(2 * time.Hour)
	put("probe/1/0000000000000002") // another process is at it
	put("probe/2/0000000000000003") // another node's
	if err := Probe(ctx, store, 1, 4); err != nil {
		t.Fatal(err)
	}
	r, err := store.List(ctx, objstore.ListRequest{})
	if err != nil || len(r.Objects) != 2 || r.Objects[0].Key != "probe/1/0000000000000002" {
		t.Errorf("left: %+v %v", r.Objects, err)
	}
}
