package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func always() bool { return true }

func recoverConfig(store objstore.Store, from uint64) RecoverConfig {
	return RecoverConfig{Store: store, WAL: modelWAL, From: from, Window: 4, Nonce: 5, StillNeeded: always}
}

// putBulks puts bulks of one offset (the slot's number) into slots.
func putBulks(t testing.TB, s objstore.Store, slots ...uint64) {
	t.Helper()
	for _, n := range slots {
		put(t, s, key(n), bytes.Join(bulkChunks(t, modelWAL, n, 4, n, 1), nil))
	}
}

// kinds is what the log's slots hold: 'd' a bulk, 'T' a tombstone, '?' neither.
func kinds(t testing.TB, s objstore.Store) string {
	t.Helper()
	out := []byte{}
	for slot, err := range Slots(t.Context(), s, modelWAL, 0, maxSlot) {
		if err != nil {
			t.Fatal(err)
		}
		for uint64(len(out)) < slot.Seq {
			out = append(out, '.')
		}
		got, err := s.GetRange(t.Context(), objstore.GetRangeRequest{Key: slot.Key, Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		kind := byte('?')
		if object.IsTombstone(got.Data, modelWAL, slot.Seq) {
			kind = 'T'
		} else if h, _, err := object.Verify(got.Data); err == nil && h.Seq == slot.Seq {
			kind = 'd'
		}
		out = append(out, kind)
	}
	return string(out)
}

// checkLog checks that res is the log [from, end) of putBulks.
func checkLog(t testing.TB, res Result, from, end uint64) {
	t.Helper()
	if res.End != end || uint64(len(res.Objects)) != end-from || len(res.Items) != len(res.Objects) || res.Lost != nil || res.Gaps != nil {
		t.Fatalf("recovered %+v, want [%d, %d)", res, from, end)
	}
	for i, o := range res.Objects {
		slot := from + uint64(i)
		_, sum := buildBulk(t, modelWAL, slot, 4, slot, 1)
		if diff := cmp.Diff(sum.Object(0), o); diff != "" {
			t.Errorf("slot %d: %s", slot, diff)
		}
		if diff := cmp.Diff(sum.Items(), res.Items[i:i+1]); diff != "" {
			t.Errorf("slot %d: %s", slot, diff)
		}
	}
}

func TestRecover(t *testing.T) {
	for name, c := range map[string]struct {
		from   uint64
		bulks  []uint64
		stones []uint64
		end    uint64
		after  string
	}{
		"an empty log":                          {after: "T...T"},
		"nothing beyond the trim":               {from: 3, end: 3, after: "...T...T"},
		"a log":                                 {bulks: []uint64{0, 1, 2}, end: 3, after: "dddT...T"},
		"late slots behind a hole":              {bulks: []uint64{0, 1, 3, 4}, end: 2, after: "ddTdd.T"},
		"slots below the trim":                  {from: 2, bulks: []uint64{1, 2, 3}, end: 4, after: ".dddT...T"},
		"far tombstone of somebody else":        {bulks: []uint64{0}, stones: []uint64{5}, end: 1, after: "dT...T"},
		"everything done by somebody else":      {bulks: []uint64{0, 2}, stones: []uint64{1, 5}, end: 1, after: "dTd..T"},
		"a tombstone of a longer run":           {bulks: []uint64{0}, stones: []uint64{3}, end: 1, after: "dT.T.T"},
		"a gap filled after another's far one":  {bulks: []uint64{0, 1, 2, 3, 4}, stones: []uint64{5}, end: 5, after: "dddddT"},
		"all of the window behind the hole":     {bulks: []uint64{0, 2, 3, 4}, end: 1, after: "dTddd" + "T"},
		"keys that are no slots are overlooked": {bulks: []uint64{0}, end: 1, after: "dT...T"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := pages2()
			putBulks(t, mem, c.bulks...)
			for _, s := range c.stones {
				put(t, mem, key(s), object.Tombstone(modelWAL, s, 99))
			}
			if strings.HasPrefix(name, "keys") {
				put(t, mem, plan.WALPrefix(modelWAL)+"00000000000000000001.tmp", []byte("x"))
				put(t, mem, plan.WALPrefix(modelWAL)+"99999999999999999999", []byte("x"))
				put(t, mem, plan.WALPrefix(modelWAL)+"a", []byte("x"))
			}
			res, err := Recover(t.Context(), recoverConfig(mem, c.from))
			if err != nil {
				t.Fatal(err)
			}
			checkLog(t, res, c.from, c.end)
			if got := kinds(t, mem); got != c.after {
				t.Errorf("slots are %s, want %s", got, c.after)
			}
			again, err := Recover(t.Context(), recoverConfig(mem, c.from))
			if err != nil || !cmp.Equal(res, again) {
				t.Errorf("recovered again: %+v, %v", again, err)
			}
			if got := kinds(t, mem); got != c.after {
				t.Errorf("the second recovery left %s", got)
			}
		})
	}
}

// A writer that goes on while it is recovered is outrun at a multiple of the
// window.
func TestRecoverOutrunsItsWriter(t *testing.T) {
	mem := pages2()
	putBulks(t, mem, 0, 1)
	next := uint64(2)
	// Each time a tombstone is on its way, the writer fills that slot first.
	s := fault.New(mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: fault.Put, Match: func(c fault.Call) bool {
		for ; next < 14 && key(next) <= c.Key; next++ {
			putBulks(t, mem, next)
		}
		return true
	}, Do: fault.DelayBy(0)}}})
	res, err := Recover(t.Context(), recoverConfig(s, 0))
	if err != nil {
		t.Fatal(err)
	}
	checkLog(t, res, 0, next)
	// Bulks up to 13, then the end; 6 and 10 were the far tombstone's places.
	if got, want := kinds(t, mem), "ddddddddddddddT"; got != want {
		t.Errorf("slots are %s, want %s", got, want)
	}
}

func TestRecoverLargeBulks(t *testing.T) {
	mem := pages2()
	var want []plan.Item
	for slot, streams := range []int{40_000, 10, 1} { // the first has an index longer than what is read at once
		b := object.NewBuilder(streams)
		for s := range streams {
			f := object.Frame{Start: mink.Offset(slot), Span: 1, Count: 1, LeaderEpoch: 2, Bytes: make([]byte, 200_000/streams)}
			if err := b.AddFrame(mink.StreamID(s+1), &f); err != nil {
				t.Fatal(err)
			}
		}
		chunks, sum, err := b.Finish(object.Header{Kind: plan.KindWAL, WAL: modelWAL, Seq: uint64(slot), Window: 4})
		if err != nil {
			t.Fatal(err)
		}
		put(t, mem, key(uint64(slot)), bytes.Join(chunks, nil))
		want = append(want, sum.Items()...)
	}
	s := fault.New(mem, fault.Config{Shared: true})
	res, err := Recover(t.Context(), recoverConfig(s, 0))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, res.Items); diff != "" || res.End != 3 {
		t.Errorf("end %d; %s", res.End, diff)
	}
	if got := s.Stats().Gets; got != 3+2+2 {
		t.Errorf("%d gets, want three for the bulk with the long index and two for each of the others", got)
	}
}

// Damage stops a recovery before it writes anything; a person may accept it.
func TestCorruptSlots(t *testing.T) {
	other := modelWAL
	other.Nonce++
	own := func(slot uint64) []byte { return bytes.Join(bulkChunks(t, modelWAL, slot, 4, slot, 1), nil) }
	flipped := own(2)
	flipped[len(flipped)-60]++
	for name, inSlot2 := range map[string][]byte{
		"garbage":                   []byte(strings.Repeat("garbage ", 20)),
		"nothing":                   {},
		"less than a header":        []byte("x"),
		"half a bulk":               own(2)[:100],
		"a damaged index":           flipped,
		"another slot's bulk":       own(3),
		"another log's bulk":        bytes.Join(bulkChunks(t, other, 2, 4, 2, 1), nil),
		"another slot's tombstone":  object.Tombstone(modelWAL, 3, 1),
		"another log's tombstone":   object.Tombstone(other, 2, 1),
		"a tombstone and a byte":    append(object.Tombstone(modelWAL, 2, 1), 0),
		"a damaged tombstone":       append(object.Tombstone(modelWAL, 2, 1)[:63], 0),
		"a stream set":              wrongKind(t),
		"its bulk is missing (gap)": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := pages2()
				putBulks(t, mem, 0, 1, 3, 4, 5, 6)
				if inSlot2 != nil {
					put(t, mem, key(2), inSlot2)
				}
				before := kinds(t, mem)
				_, err := Recover(t.Context(), recoverConfig(mem, 0))
				var c *CorruptSlotError
				if !errors.As(err, &c) || !errors.Is(err, mink.ErrCorrupt) || c.Slot != 2 || c.WAL != modelWAL || c.Key != key(2) {
					t.Fatalf("recovered with %v", err)
				}
				if got := kinds(t, mem); got != before {
					t.Errorf("slots were %s, now %s", before, got)
				}
				cfg := recoverConfig(mem, 0)
				cfg.AcceptLost = []uint64{2}
				res, err := Recover(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				want := []StreamGap{{Stream: 1, Start: 2, End: 3}}
				if res.End != 7 || len(res.Objects) != 6 || len(res.Items) != 6 || !slices.Equal(res.Lost, []uint64{2}) || !slices.Equal(res.Gaps, want) {
					t.Errorf("accepted: %+v", res)
				}
				// A writer that is still about cannot fill what was given up.
				if got := kinds(t, mem); strings.Contains(got[:8], ".") {
					t.Errorf("slots are %s", got)
				}
			})
		})
	}
}

func wrongKind(t *testing.T) []byte {
	chunks, _, err := object.NewBuilder(0).Finish(object.Header{Kind: plan.KindStreamSet, WAL: modelWAL, Seq: 2})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(chunks, nil)
}

// What is accepted as lost and turns out to be readable is not lost.
func TestAcceptedSlotThatIsSound(t *testing.T) {
	mem := pages2()
	putBulks(t, mem, 0, 1, 2)
	cfg := recoverConfig(mem, 0)
	cfg.AcceptLost = []uint64{1}
	res, err := Recover(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	checkLog(t, res, 0, 3)
}

// The first loss of a log leaves a gap whose start only metadata knows.
func TestGapFromCommittedEnd(t *testing.T) {
	mem := pages2()
	put(t, mem, key(4), []byte("x"))
	putBulks(t, mem, 5)
	cfg := recoverConfig(mem, 4)
	cfg.AcceptLost = []uint64{4}
	res, err := Recover(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := []StreamGap{{Stream: 1, Start: FromCommittedEnd, End: 5}}; res.End != 6 || !slices.Equal(res.Gaps, want) || !slices.Equal(res.Lost, []uint64{4}) {
		t.Errorf("%+v", res)
	}
}

// A bulk that vanishes between the listing and its reading is damage.
func TestVanishingSlot(t *testing.T) {
	mem := pages2()
	putBulks(t, mem, 0, 1, 2)
	s := fault.New(mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: fault.Get, Prefix: key(1), Do: fault.FailBefore(objstore.ErrNotExist)}}})
	_, err := Recover(t.Context(), recoverConfig(s, 0))
	var c *CorruptSlotError
	if !errors.As(err, &c) || c.Slot != 1 {
		t.Errorf("recovered with %v", err)
	}
	// Accepted, and there after all when its tombstone is to be put.
	cfg := recoverConfig(s, 0)
	cfg.AcceptLost = []uint64{1}
	s.ClearRules()
	s.Inject(fault.Rule{Ops: fault.Get, Prefix: key(1), Times: 1, Do: fault.FailBefore(objstore.ErrNotExist)})
	res, err := Recover(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	checkLog(t, res, 0, 3)
}

// A bulk that somebody deleted is missed as long as the window behind it is full.
func TestMissingBulk(t *testing.T) {
	const n, window = 12, 4
	for gone := range uint64(n) {
		mem := pages2()
		putBulks(t, mem, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
		if _, err := mem.DeleteBatch(t.Context(), []string{key(gone)}); err != nil {
			t.Fatal(err)
		}
		res, err := Recover(t.Context(), recoverConfig(mem, 0))
		var c *CorruptSlotError
		switch {
		case gone+window <= n-1:
			if !errors.As(err, &c) || c.Slot != gone {
				t.Errorf("slot %d is gone: %v", gone, err)
			}
		case err != nil || res.End != gone:
			t.Errorf("slot %d was never acknowledged for all that is known: end %d, %v", gone, res.End, err)
		}
	}
}

// Damage on the way is read again; a store that fails is asked again.
func TestRecoverRetries(t *testing.T) {
	for name, rule := range map[string]fault.Rule{
		"flipped bits":           {Ops: fault.Get, Times: 2, Do: fault.FlipBit()},
		"short reads":            {Ops: fault.Get, Times: 4, Do: fault.ShortRead()},
		"unavailable":            {Probability: 0.5, Times: 10, Do: fault.FailBefore(objstore.ErrUnavailable)},
		"throttled":              {Times: 3, Do: fault.Throttle(time.Second)},
		"lost response":          {Ops: fault.Put, Times: 2, Do: fault.LoseResponse()},
		"lost request":           {Ops: fault.Put, Times: 2, Do: fault.LoseRequest()},
		"own conflict":           {Ops: fault.Put, Times: 2, Do: fault.OwnConflict()},
		"no answer":              {Times: 3, Do: fault.Hold()},
		"checksum fails in flow": {Ops: fault.Get, Times: 2, Do: fault.FailBefore(objstore.ErrCorrupt)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := pages2()
				putBulks(t, mem, 0, 1, 2)
				s := fault.New(mem, fault.Config{Shared: true, Seed: 3, Rules: []fault.Rule{rule}})
				res, err := Recover(t.Context(), recoverConfig(s, 0))
				if err != nil {
					t.Fatal(err)
				}
				checkLog(t, res, 0, 3)
				if s.Stats().Faults == 0 {
					t.Error("the fault did not happen")
				}
				s.DropAll()
			})
		})
	}
}

func TestRecoverStops(t *testing.T) {
	mem := pages2()
	putBulks(t, mem, 0)
	cfg := recoverConfig(mem, 0)
	cfg.StillNeeded = func() bool { return false }
	if _, err := Recover(t.Context(), cfg); !errors.Is(err, ErrRecovered) || kinds(t, mem) != "d" {
		t.Errorf("%v; slots %s", err, kinds(t, mem))
	}
	n := 0
	cfg.StillNeeded = func() bool { n++; return n < 2 }
	if _, err := Recover(t.Context(), cfg); !errors.Is(err, ErrRecovered) || kinds(t, mem) != "d....T" {
		t.Errorf("asked before each tombstone: %v; slots %s", err, kinds(t, mem))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Recover(ctx, recoverConfig(mem, 0)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s := fault.New(mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: fault.Put, Do: fault.FailBefore(objstore.ErrReadOnly)}}})
	if _, err := Recover(t.Context(), recoverConfig(s, 0)); !errors.Is(err, objstore.ErrReadOnly) {
		t.Error(err)
	}
	later := bytes.Join(bulkChunks(t, modelWAL, 1, 4, 1, 1), nil)
	later[6]++ // version
	binary.LittleEndian.PutUint32(later[60:], objstore.Checksum(later[:60]))
	put(t, mem, key(1), later)
	if _, err := Recover(t.Context(), recoverConfig(mem, 0)); !errors.Is(err, mink.ErrUnsupported) {
		t.Errorf("a bulk of a later version: %v", err)
	}
}

func TestRecoverRefusals(t *testing.T) {
	for name, change := range map[string]func(*RecoverConfig){
		"no window":         func(c *RecoverConfig) { c.Window = 0 },
		"nobody to ask":     func(c *RecoverConfig) { c.StillNeeded = nil },
		"negative pause":    func(c *RecoverConfig) { c.RetryMin = -1 },
		"a slot too far":    func(c *RecoverConfig) { c.From = maxSlot + 1 },
		"negative deadline": func(c *RecoverConfig) { c.AttemptTimeout = -1 },
	} {
		cfg := recoverConfig(pages2(), 0)
		change(&cfg)
		if _, err := Recover(t.Context(), cfg); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Recover(t.Context(), recoverConfig(overwriting{pages2()}, 0)); !errors.Is(err, mink.ErrUnsupported) {
		t.Error(err)
	}
}

// Case 6 of the design's failure list: a listing has pages.
func TestSlots(t *testing.T) {
	mem := memstore.New(memstore.Config{PageMax: 2})
	putBulks(t, mem, 0, 1, 2, 3, 4, 6, 9)
	put(t, mem, plan.WALPrefix(modelWAL)+"00000000000000000003x", nil)
	list := func(from, to uint64) string {
		var got []string
		for s, err := range Slots(t.Context(), mem, modelWAL, from, to) {
			if err != nil {
				t.Fatal(err)
			}
			if s.Key != key(s.Seq) || s.Size == 0 {
				t.Errorf("%+v", s)
			}
			got = append(got, fmt.Sprint(s.Seq))
		}
		return strings.Join(got, " ")
	}
	for want, r := range map[string][2]uint64{
		"0 1 2 3 4 6 9": {0, maxSlot}, "0 1 2": {0, 3}, "3 4 6": {3, 9}, "": {7, 9}, "9": {7, 10},
	} {
		if got := list(r[0], r[1]); got != want {
			t.Errorf("slots of %v are %q, want %q", r, got, want)
		}
	}
	s := fault.New(mem, fault.Config{Shared: true, Rules: []fault.Rule{{Ops: fault.List, Skip: 1, Do: fault.FailBefore(objstore.ErrUnavailable)}}})
	n, failed := 0, false
	for _, err := range Slots(t.Context(), s, modelWAL, 0, maxSlot) {
		if err != nil {
			failed = errors.Is(err, objstore.ErrUnavailable)
			break
		}
		n++
	}
	if n != 2 || !failed {
		t.Errorf("%d slots, then failed: %t", n, failed)
	}
}

func FuzzReadContent(f *testing.F) {
	f.Add(bytes.Join(bulkChunks(f, modelWAL, 7, 4, 7, 1), nil))
	f.Add(object.Tombstone(modelWAL, 7, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < object.HeaderLen {
			return
		}
		c, err := readContent(modelWAL, 7, int64(len(b)), func(offset, n int64) ([]byte, error) { return b[offset : offset+n], nil })
		if err != nil && !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported) {
			t.Fatalf("error without a class: %v", err)
		}
		if err == nil && c.kind == slotTombstone && !object.IsTombstone(b, modelWAL, 7) {
			t.Fatal("taken for a tombstone")
		}
	})
}
