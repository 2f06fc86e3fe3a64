package wal

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// mixed is a bulk with offsets [from, to) of streams 1, 2, ...; none where to is 0.
func mixed(t testing.TB, slot uint64, ranges ...[2]mink.Offset) []byte {
	t.Helper()
	b := object.NewBuilder(len(ranges))
	for i, r := range ranges {
		if r[1] == 0 {
			continue
		}
		n := uint64(r[1] - r[0])
		f := object.Frame{Start: r[0], Span: n, Count: uint32(n), LeaderEpoch: 1, Bytes: bytes.Repeat([]byte{byte(slot)}, 100)}
		if err := b.AddFrame(mink.StreamID(i+1), &f); err != nil {
			t.Fatal(err)
		}
	}
	chunks, _, err := b.Finish(object.Header{Kind: plan.KindWAL, WAL: modelWAL, Seq: slot, Window: 4, Nonce: slot})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(chunks, nil)
}

func TestSurvey(t *testing.T) {
	type ranges = [2]mink.Offset
	bulks := [][]byte{
		mixed(t, 0, ranges{0, 2}, ranges{0, 1}),
		mixed(t, 1, ranges{2, 5}, ranges{1, 2}, ranges{0, 4}),
		mixed(t, 2, ranges{5, 6}),
		mixed(t, 3, ranges{6, 7}),
		mixed(t, 4, ranges{7, 8}),
		mixed(t, 5, ranges{8, 9}),
	}
	badIndex := func(b []byte) []byte { b = bytes.Clone(b); b[len(b)-60] ^= 1; return b }
	badFooter := func(b []byte) []byte { b = bytes.Clone(b); b[len(b)-2] ^= 1; return b }
	badHeader := func(b []byte) []byte { b = bytes.Clone(b); b[20] ^= 1; return b }
	cut := func(b []byte) []byte { return b[:object.Salvage(b).Blocks[1].Pos+20] } // in stream 2's block
	gone := func([]byte) []byte { return nil }
	all := []Loss{{1, 2, 5, true}, {2, 1, 2, true}, {3, 0, 4, true}}
	for name, c := range map[string]struct {
		damage map[int]func([]byte) []byte
		ends   [3]mink.Offset // committed
		slots  int            // of bulks; 0: all
		accept []StreamGap    // of slot 1
		want   map[uint64][]Loss
	}{
		"nothing":                 {},
		"a damaged index":         {damage: map[int]func([]byte) []byte{1: badIndex}, want: map[uint64][]Loss{1: all}},
		"a damaged footer":        {damage: map[int]func([]byte) []byte{1: badFooter}, want: map[uint64][]Loss{1: all}},
		"a damaged header":        {damage: map[int]func([]byte) []byte{1: badHeader}, want: map[uint64][]Loss{1: all}},
		"the last of the log":     {damage: map[int]func([]byte) []byte{1: badIndex}, slots: 2, want: map[uint64][]Loss{1: all}},
		"a part is committed":     {damage: map[int]func([]byte) []byte{1: badIndex}, ends: [3]mink.Offset{3, 2, 0}, want: map[uint64][]Loss{1: {{1, 3, 5, true}, {3, 0, 4, true}}}},
		"later ones are too":      {damage: map[int]func([]byte) []byte{1: gone}, ends: [3]mink.Offset{7, 0, 0}, want: map[uint64][]Loss{1: {{2, 1, 1 + UnknownTail, false}, {3, 0, UnknownTail, false}}}},
		"an object is missing":    {damage: map[int]func([]byte) []byte{1: gone}, want: map[uint64][]Loss{1: {{1, 2, 5, true}, {2, 1, 1 + UnknownTail, false}, {3, 0, UnknownTail, false}}}},
		"an object is cut short":  {damage: map[int]func([]byte) []byte{1: cut}, slots: 2, want: map[uint64][]Loss{1: {{1, 2, 2 + 3 + UnknownTail, false}, {2, 1, 1 + UnknownTail, false}, {3, 0, UnknownTail, false}}}},
		"of another slot":         {damage: map[int]func([]byte) []byte{1: func([]byte) []byte { return bulks[3] }}, want: map[uint64][]Loss{1: {{1, 2, 5, true}, {2, 1, 1 + UnknownTail, false}, {3, 0, UnknownTail, false}}}},
		"two in a row":            {damage: map[int]func([]byte) []byte{1: badIndex, 2: badIndex}, want: map[uint64][]Loss{1: {{1, 2, 6, true}, {2, 1, 2, true}, {3, 0, 4, true}}, 2: nil}},
		"the last two":            {damage: map[int]func([]byte) []byte{1: badIndex, 2: badIndex}, slots: 3, want: map[uint64][]Loss{1: all, 2: {{1, 5, 6, true}}}},
		"two apart":               {damage: map[int]func([]byte) []byte{1: badIndex, 4: badIndex}, want: map[uint64][]Loss{1: all, 4: {{1, 7, 8, true}}}},
		"one is accepted already": {damage: map[int]func([]byte) []byte{1: badIndex, 4: badIndex}, accept: []StreamGap{{1, 2, 5}, {2, 1, 2}, {3, 0, 4}}, want: map[uint64][]Loss{4: {{1, 7, 8, true}}}},
	} {
		t.Run(name, func(t *testing.T) {
			mem := pages2()
			n := len(bulks)
			if c.slots > 0 {
				n = c.slots
			}
			for i, b := range bulks[:n] {
				if f := c.damage[i]; f != nil {
					b = f(b)
				}
				if b != nil {
					put(t, mem, key(uint64(i)), b)
				}
			}
			before := kinds(t, mem)
			streams := func(yield func(plan.Stream) bool) {
				for i, end := range c.ends {
					if !yield(plan.Stream{ID: mink.StreamID(i + 1), End: end, Owner: plan.Owner{Node: 1, NodeEpoch: 2, LeaderEpoch: 1}}) {
						return
					}
				}
			}
			cfg := recoverConfig(mem, 0)
			if c.accept != nil {
				cfg.AcceptLost = []uint64{1}
			}
			got, err := Survey(t.Context(), cfg, streams, c.accept)
			if err != nil {
				t.Fatal(err)
			}
			losses := map[uint64][]Loss{}
			var slots []uint64
			for _, s := range got.Slots {
				losses[s.Slot], slots = s.Losses, append(slots, s.Slot)
				if s.Key != key(s.Slot) || s.Why == "" {
					t.Errorf("%+v", s)
				}
			}
			if c.want == nil {
				c.want = map[uint64][]Loss{}
			}
			if diff := cmp.Diff(c.want, losses); diff != "" {
				t.Error(diff)
			}
			if after := kinds(t, mem); after != before {
				t.Errorf("a survey changed the slots from %s to %s", before, after)
			}
			cfg.AcceptLost = append(cfg.AcceptLost, slots...)
			if _, err := Recover(t.Context(), cfg); err != nil {
				t.Errorf("recovery without the slots %v: %v", slots, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Survey(ctx, recoverConfig(pages2(), 0), func(func(plan.Stream) bool) {}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled survey: %v", err)
	}
}

// Salvage answers what the index says, whatever became of the index, and never
// more than lies before the first damage.
func FuzzSalvage(f *testing.F) {
	whole := mixed(f, 1, [2]mink.Offset{2, 5}, [2]mink.Offset{1, 2}, [2]mink.Offset{0, 4})
	f.Add(whole, 0, byte(0))
	f.Add(whole, 70, byte(1))
	f.Add(whole, len(whole)-50, byte(3))
	f.Add(whole[:300], 0, byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at int, flip byte) {
		if at >= 0 && at < len(b) {
			b = bytes.Clone(b)
			b[at] ^= flip
		}
		got := object.Salvage(b)
		prev := object.BlockInfo{Pos: object.HeaderLen, Stream: 0}
		for i, x := range got.Blocks {
			if x.Stream < prev.Stream || x.Stream == prev.Stream && x.Start < prev.End() || i > 0 && x.Pos != prev.Pos+prev.Len() {
				t.Fatalf("%+v follows %+v", x, prev)
			}
			if _, err := object.DecodeBlock(x, b[x.Pos:x.Pos+x.Len()]); err != nil {
				t.Fatal(err)
			}
			prev = x
		}
		if _, x, err := object.Verify(b); err == nil && (!got.Complete || !slices.Equal(got.Blocks, x.Blocks)) {
			t.Fatalf("salvaged %+v of a sound object with %+v", got, x.Blocks)
		}
	})
}
