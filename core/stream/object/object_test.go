package object

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew (only with a new format version)")

var testWAL = plan.WALID{Node: 7, Epoch: 4711, Nonce: 0xfeedfacecafebeef}

type run struct {
	stream mink.StreamID
	frames []Frame
}

type checkpoint struct {
	stream mink.StreamID
	end    mink.Offset
	data   []byte
}

// content is what an object is made of.
type content struct {
	header      Header
	runs        []run
	checkpoints []checkpoint
}

func (c content) build(t testing.TB) ([]byte, Summary) {
	t.Helper()
	b := NewBuilder(0)
	for _, r := range c.runs {
		if err := b.AddFrames(r.stream, r.frames...); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range c.checkpoints {
		if err := b.AddCheckpoint(p.stream, p.end, p.data); err != nil {
			t.Fatal(err)
		}
	}
	chunks, sum, err := b.Finish(c.header)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(chunks, nil), sum
}

// read decodes a whole object the way readers do: header, footer, index, then
// parts by position.
func read(b []byte) (content, error) {
	var c content
	h, x, err := Verify(b)
	if err != nil {
		return c, err
	}
	c.header = h
	for _, i := range x.Blocks {
		frames, err := DecodeBlock(i, b[i.Pos:i.Pos+i.Len()])
		if err != nil {
			return c, err
		}
		if k := len(c.runs) - 1; k >= 0 && c.runs[k].stream == i.Stream {
			c.runs[k].frames = append(c.runs[k].frames, frames...)
		} else {
			c.runs = append(c.runs, run{i.Stream, frames})
		}
	}
	for _, i := range x.Checkpoints {
		data, err := DecodeCheckpoint(i, b[i.Pos:i.Pos+int64(i.Len)])
		if err != nil {
			return c, err
		}
		c.checkpoints = append(c.checkpoints, checkpoint{i.Stream, i.End, data})
	}
	return c, nil
}

func drawContent(t *rapid.T) content {
	c := content{header: Header{
		Kind: plan.ObjectKind(rapid.IntRange(1, 3).Draw(t, "kind")), WAL: testWAL,
		Seq: rapid.Uint64().Draw(t, "seq"), Nonce: rapid.Uint64().Draw(t, "nonce"),
		Window: rapid.Uint16().Draw(t, "window"), CreatedMs: rapid.Int64().Draw(t, "created"),
	}}
	slab := bytes.Repeat([]byte("0123456789abcdef"), 80_000) // frames next to each other in memory
	at := 0
	var stream mink.StreamID
	for range rapid.IntRange(0, 5).Draw(t, "streams") {
		stream += mink.StreamID(rapid.Int64Range(1, 1<<40).Draw(t, "stream"))
		r := run{stream: stream}
		next, epoch := mink.Offset(0), mink.LeaderEpoch(0)
		for range rapid.IntRange(1, 8).Draw(t, "frames") {
			gap := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1<<34)).Draw(t, "gap")
			span := rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1<<31, 1<<40)).Draw(t, "span")
			n := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(copyBelow-1, 2000), rapid.IntRange(0, 150_000)).Draw(t, "bytes")
			if at+n > len(slab) {
				at = 0
			}
			if rapid.IntRange(0, 5).Draw(t, "turn") == 0 {
				epoch++
			}
			f := Frame{
				Start: next + mink.Offset(gap), Span: uint64(span), Count: rapid.Uint32().Draw(t, "count"), LeaderEpoch: epoch,
				MaxTimestamp: rapid.Int64().Draw(t, "max"), CommitTimestamp: rapid.Int64().Draw(t, "commit"),
				Bytes: slab[at : at+n],
			}
			at += n
			next = f.End()
			r.frames = append(r.frames, f)
		}
		c.runs = append(c.runs, r)
		if rapid.Bool().Draw(t, "checkpoint") {
			c.checkpoints = append(c.checkpoints, checkpoint{stream, next, rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "data")})
		}
	}
	return c
}

func TestObjectsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawContent(t)
		b := NewBuilder(rapid.IntRange(0, 3).Draw(t, "hint"))
		var taken [][]byte
		var sent []byte // a copy: what was taken must not change any more
		take := func() {
			if rapid.IntRange(0, 9).Draw(t, "take") > 0 {
				return
			}
			ready := b.Ready()
			part, err := b.Take(want.header)
			if err != nil || objstore.SizeOf(part) != ready || b.Ready() != 0 {
				t.Fatalf("took %d bytes, %d were ready, %d are: %v", objstore.SizeOf(part), ready, b.Ready(), err)
			}
			taken, sent = append(taken, part...), append(sent, bytes.Join(part, nil)...)
		}
		for _, r := range want.runs {
			for _, f := range r.frames {
				if err := b.AddFrame(r.stream, &f); err != nil {
					t.Fatal(err)
				}
				take()
			}
		}
		for _, p := range want.checkpoints {
			if err := b.AddCheckpoint(p.stream, p.end, p.data); err != nil {
				t.Fatal(err)
			}
			take()
		}
		blocks, checkpoints := b.Len(), b.CheckpointLen()
		rest, sum, err := b.Finish(want.header)
		if err != nil {
			t.Fatal(err)
		}
		chunks := append(taken, rest...)
		if !bytes.HasPrefix(bytes.Join(chunks, nil), sent) {
			t.Fatal("bytes changed after they were taken")
		}
		whole := bytes.Join(chunks, nil)
		if int64(len(whole)) != sum.Size || objstore.Checksum(whole) != sum.CRC || objstore.Checksum(chunks...) != sum.CRC {
			t.Fatalf("summary says %d bytes, crc %08x; are %d, %08x", sum.Size, sum.CRC, len(whole), objstore.Checksum(whole))
		}
		got, err := read(whole)
		if err != nil {
			t.Fatal(err)
		}
		same := cmp.Equal(want, got, cmp.AllowUnexported(content{}, run{}, checkpoint{}), cmp.Transformer("bytes", func(b []byte) string { return string(b) }))
		if !same {
			t.Fatalf("read back differs:\n%s", cmp.Diff(want, got, cmp.AllowUnexported(content{}, run{}, checkpoint{})))
		}
		index := whole[sum.IndexPos : sum.IndexPos+sum.IndexLen]
		x, err := ParseIndexOf(index, sum.IndexPos, sum.IndexCRC)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sum.Index, x, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("parsed index differs from the summary's:\n%s", diff)
		}
		var length int64
		for k, i := range x.Blocks {
			length += i.Len()
			if k > 0 && i.Stream == x.Blocks[k-1].Stream && i.Start < x.Blocks[k-1].End() {
				t.Fatalf("block %d overlaps", k)
			}
		}
		if blocks != length || checkpoints != x.Pos-HeaderLen-length {
			t.Fatalf("Len said %d bytes of blocks and %d of checkpoints, are %d in all, %d of blocks", blocks, checkpoints, x.Pos-HeaderLen, length)
		}
		checkItems(t, want, x.Items(plan.ObjectID{Epoch: 1, Kind: plan.KindWAL, Seq: 1}))
	})
}

// checkItems compares items with the frames they stand for.
func checkItems(t *rapid.T, c content, got []plan.Item) {
	var want []plan.Item
	for _, r := range c.runs {
		for k, f := range r.frames {
			n := len(want) - 1
			// Blocks are the grain: a gap inside one is not seen, so compare covers only.
			if k > 0 && want[n].LeaderEpoch == f.LeaderEpoch {
				want[n].End = f.End()
				continue
			}
			want = append(want, plan.Item{Stream: r.stream, LeaderEpoch: f.LeaderEpoch, Start: f.Start, End: f.End()})
		}
		for _, p := range c.checkpoints {
			if n := len(want) - 1; p.stream == r.stream && p.end == want[n].End {
				want[n].Checkpoint = true
			}
		}
	}
	var merged []plan.Item
	for _, it := range got {
		it.Object = plan.ObjectID{}
		if n := len(merged) - 1; n >= 0 && merged[n].Stream == it.Stream && merged[n].LeaderEpoch == it.LeaderEpoch {
			if it.Start <= merged[n].End {
				t.Fatalf("items %v and %v adjoin and were not merged", merged[n], it)
			}
			merged[n].End, merged[n].Checkpoint = it.End, it.Checkpoint
			continue
		}
		merged = append(merged, it)
	}
	if diff := cmp.Diff(want, merged); diff != "" {
		t.Fatalf("items differ:\n%s", diff)
	}
}

func sample() content {
	at := func(start mink.Offset, span uint64, epoch mink.LeaderEpoch, data string) Frame {
		return Frame{
			Start: start, Span: span, Count: uint32(min(span, 10)), LeaderEpoch: epoch,
			MaxTimestamp: 1_790_000_000_000 + int64(start), CommitTimestamp: 1_790_000_000_500 + int64(start), Bytes: []byte(data),
		}
	}
	return content{
		header: Header{Kind: plan.KindStreamSet, WAL: testWAL, Seq: 42, Nonce: 0x0123456789abcdef, CreatedMs: 1_790_000_001_000},
		runs: []run{
			{1, []Frame{at(0, 10, 1, "first"), at(10, 1, 1, "second"), at(11, 1, 2, "of a later leader")}},
			{5, []Frame{at(1<<40, 1<<33, 3, "sparse"), at(1<<41, 1, 3, "")}},
			{900_000, []Frame{at(77, 2, 9, string(bytes.Repeat([]byte("long "), 300)))}},
		},
		checkpoints: []checkpoint{{1, 12, []byte("writers")}, {900_000, 79, nil}},
	}
}

func TestGolden(t *testing.T) {
	set, _ := sample().build(t)
	bulk := sample()
	bulk.header = Header{Kind: plan.KindWAL, WAL: testWAL, Seq: 3, Nonce: 99, Window: 8, CreatedMs: 1_790_000_001_000}
	bulk.checkpoints = nil
	log, _ := bulk.build(t)
	for name, b := range map[string][]byte{
		"v1-streamset": set,
		"v1-wal":       log,
		"v1-tombstone": Tombstone(testWAL, 5, 0xdead),
	} {
		path := filepath.Join("testdata", name+".golden")
		if *rewrite {
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s: this program writes other bytes than version 1 is defined by", name)
		}
	}
	if _, err := read(set); err != nil {
		t.Error(err)
	}
}

// Every single damaged bit is noticed, and so is every cut.
func TestDamageIsNoticed(t *testing.T) {
	good, _ := sample().build(t)
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if _, err := read(bad); !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported) {
			t.Fatalf("byte %d damaged: %v", i, err)
		}
		if _, err := read(good[:i]); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	stone := Tombstone(testWAL, 5, 1)
	for i := range stone {
		bad := slices.Clone(stone)
		bad[i] ^= 1 << (i % 8)
		if IsTombstone(bad, testWAL, 5) {
			t.Fatalf("tombstone with byte %d damaged was taken for one", i)
		}
	}
}

func TestTombstoneIsExact(t *testing.T) {
	b := Tombstone(testWAL, 5, 1)
	other := testWAL
	other.Nonce++
	switch {
	case !IsTombstone(b, testWAL, 5):
		t.Error("a tombstone was not recognised")
	case IsTombstone(b, testWAL, 6), IsTombstone(b, other, 5):
		t.Error("taken for another slot's")
	case IsTombstone(append(slices.Clone(b), 0), testWAL, 5):
		t.Error("longer than 64 bytes")
	}
	odd := AppendHeader(nil, Header{Kind: plan.KindTombstone, WAL: testWAL, Seq: 5, Nonce: 1, Window: 3})
	if IsTombstone(odd, testWAL, 5) {
		t.Error("a header with more in it was taken for a tombstone")
	}
}

// A later version is told from garbage, once its checksum holds.
func TestLaterVersions(t *testing.T) {
	h := AppendHeader(nil, sample().header)
	h[6]++
	if _, err := ParseHeader(h); !errors.Is(err, mink.ErrCorrupt) {
		t.Error(err)
	}
	h = append(h[:60], 0, 0, 0, 0)
	putCRC(h[60:], crcOf(h[:60]))
	if _, err := ParseHeader(h); !errors.Is(err, mink.ErrUnsupported) {
		t.Error(err)
	}
	b, sum := sample().build(t)
	i := sum.Index.Blocks[0]
	block := slices.Clone(b[i.Pos : i.Pos+i.Len()])
	block[4] = 3 // codec
	putCRC(block[44:], crcAdd(crcOf(block[48:]), block[:44]))
	if _, err := DecodeBlock(i, block); !errors.Is(err, mink.ErrUnsupported) {
		t.Error(err)
	}
}

func putCRC(b []byte, crc uint32) {
	b[0], b[1], b[2], b[3] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
}

// A block that is sound but not the one that the index promises is refused.
func TestBlockOfAnotherPlace(t *testing.T) {
	b, sum := sample().build(t)
	i := sum.Index.Blocks[0]
	enc := b[i.Pos : i.Pos+i.Len()]
	for name, change := range map[string]func(*BlockInfo){
		"stream":           func(i *BlockInfo) { i.Stream++ },
		"start":            func(i *BlockInfo) { i.Start++ },
		"span":             func(i *BlockInfo) { i.Span++ },
		"count":            func(i *BlockInfo) { i.Count++ },
		"leader epoch":     func(i *BlockInfo) { i.LeaderEpoch++ },
		"max timestamp":    func(i *BlockInfo) { i.MaxTimestamp++ },
		"commit timestamp": func(i *BlockInfo) { i.CommitTimestamp-- },
		"raw length":       func(i *BlockInfo) { i.RawLen++ },
		"encoded length":   func(i *BlockInfo) { i.EncLen++ },
	} {
		wrong := i
		change(&wrong)
		if frames, err := DecodeBlock(wrong, enc); !errors.Is(err, mink.ErrCorrupt) || frames != nil {
			t.Errorf("%s differs: %v", name, err)
		}
	}
}

// Case 10 of the design's failure list: streams entered an object out of order.
func TestBuilderRefusesDisorder(t *testing.T) {
	frame := func(start mink.Offset, span uint64) *Frame {
		return &Frame{Start: start, Span: span, Bytes: []byte("x")}
	}
	for name, add := range map[string]func(b *Builder) error{
		"a lower stream":       func(b *Builder) error { return b.AddFrame(4, frame(20, 1)) },
		"a lower offset":       func(b *Builder) error { return b.AddFrame(5, frame(9, 1)) },
		"the same offset":      func(b *Builder) error { return b.AddFrame(5, frame(10, 1)) },
		"an overlap":           func(b *Builder) error { return b.AddFrame(5, frame(11, 1)) },
		"stream 0":             func(b *Builder) error { return b.AddFrame(0, frame(0, 1)) },
		"a negative offset":    func(b *Builder) error { return b.AddFrame(6, frame(-1, 1)) },
		"no offsets":           func(b *Builder) error { return b.AddFrame(6, frame(0, 0)) },
		"more than 63 bits":    func(b *Builder) error { return b.AddFrame(6, frame(5, math.MaxInt64)) },
		"a span of 64 bits":    func(b *Builder) error { return b.AddFrame(6, frame(5, math.MaxUint64)) },
		"a too long frame":     func(b *Builder) error { return b.AddFrame(6, &Frame{Span: 1, Bytes: make([]byte, MaxBody)}) },
		"a checkpoint twice":   func(b *Builder) error { return b.AddCheckpoint(2, 10, nil) },
		"a too long one":       func(b *Builder) error { return b.AddCheckpoint(3, 10, make([]byte, MaxBody+1)) },
		"a block out of order": func(b *Builder) error { return b.AddEncodedBlock(BlockInfo{Stream: 1, Start: 0, Span: 1}, nil) },
	} {
		b := NewBuilder(0)
		if err := errors.Join(b.AddFrame(5, frame(10, 2)), b.AddCheckpoint(2, 9, nil)); err != nil {
			t.Fatal(err)
		}
		first := add(b)
		if !errors.Is(first, mink.ErrInvalid) {
			t.Errorf("%s: %v", name, first)
		}
		if err := b.AddFrame(7, frame(0, 1)); err == nil || err.Error() != first.Error() {
			t.Errorf("%s: a failed builder went on: %v", name, err)
		}
		if _, _, err := b.Finish(sample().header); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: finished after the failure: %v", name, err)
		}
	}
	b := NewBuilder(0)
	if _, _, err := b.Finish(Header{Kind: plan.KindTombstone}); !errors.Is(err, mink.ErrInvalid) {
		t.Error("a tombstone with an index:", err)
	}
	b = NewBuilder(0)
	if _, _, err := b.Finish(sample().header); err != nil {
		t.Error("an empty object:", err)
	}
	if _, _, err := b.Finish(sample().header); !errors.Is(err, mink.ErrInvalid) {
		t.Error("finished twice:", err)
	}
}

func TestBlocksAreCut(t *testing.T) {
	b := NewBuilder(0)
	add := func(start mink.Offset, n int) {
		t.Helper()
		if err := b.AddFrame(1, &Frame{Start: start, Span: 1, Count: 1, Bytes: make([]byte, n)}); err != nil {
			t.Fatal(err)
		}
	}
	add(0, BlockTarget/2)
	add(1, BlockTarget/2)   // does not fit any more
	add(2, 3*BlockTarget+1) // its own
	add(3, 10)
	add(4, 10)
	_, sum, err := b.Finish(sample().header)
	if err != nil {
		t.Fatal(err)
	}
	var starts []mink.Offset
	for _, i := range sum.Index.Blocks {
		starts = append(starts, i.Start)
		if i.RawLen > BlockTarget && i.Count > 1 {
			t.Errorf("block at %d: %d bytes of %d records", i.Start, i.RawLen, i.Count)
		}
	}
	if want := []mink.Offset{0, 1, 2, 3}; !slices.Equal(starts, want) {
		t.Errorf("blocks start at %v, want %v", starts, want)
	}
}

// Large frames are referenced, and frames that adjoin in memory make one chunk.
func TestChunksReferenceSlabs(t *testing.T) {
	slab := make([]byte, 10*copyBelow)
	b := NewBuilder(0)
	for k := range 10 {
		f := &Frame{Start: mink.Offset(k), Span: 1, Count: 1, Bytes: slab[k*copyBelow : (k+1)*copyBelow]}
		if err := b.AddFrame(1, f); err != nil {
			t.Fatal(err)
		}
	}
	chunks, _, err := b.Finish(sample().header)
	if err != nil {
		t.Fatal(err)
	}
	if len(chunks) != 4 || &chunks[2][0] != &slab[0] || len(chunks[2]) != len(slab) {
		t.Errorf("%d chunks; want header, block header and table, the slab itself, index and footer", len(chunks))
	}
}

func TestPartsHaveOneHeader(t *testing.T) {
	b := NewBuilder(0)
	if err := b.AddFrame(1, &Frame{Span: 1, Bytes: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	h := sample().header
	if part, err := b.Take(h); err != nil || objstore.SizeOf(part) != HeaderLen {
		t.Fatalf("%d bytes are finished while the first block is open: %v", objstore.SizeOf(part), err)
	}
	h.Nonce++
	if _, _, err := b.Finish(h); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("an object with two headers: %v", err)
	}
}

func TestEncodedBlocksAreTakenOver(t *testing.T) {
	src, sum := sample().build(t)
	b := NewBuilder(0)
	for _, i := range sum.Index.Blocks {
		if err := b.AddEncodedBlock(i, src[i.Pos:i.Pos+i.Len()]); err != nil {
			t.Fatal(err)
		}
		if i.Stream == 5 { // frames and blocks mix
			f := &Frame{Start: 1 << 42, Span: 1, Count: 1, Bytes: []byte("more")}
			if err := b.AddFrame(5, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	chunks, _, err := b.Finish(sample().header)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(bytes.Join(chunks, nil))
	if err != nil {
		t.Fatal(err)
	}
	want := sample()
	want.checkpoints = nil
	want.runs[1].frames = append(want.runs[1].frames, Frame{Start: 1 << 42, Span: 1, Count: 1, Bytes: []byte("more")})
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(content{}, run{}, checkpoint{}), cmp.Comparer(bytes.Equal)); diff != "" {
		t.Error(diff)
	}
	b = NewBuilder(0)
	i := sum.Index.Blocks[0]
	bad := slices.Clone(src[i.Pos : i.Pos+i.Len()])
	bad[len(bad)-1]++
	if err := b.AddEncodedBlock(i, bad); !errors.Is(err, mink.ErrCorrupt) {
		t.Error("a damaged block was taken over:", err)
	}
}

func TestLookups(t *testing.T) {
	_, sum := sample().build(t)
	x := sum.Index
	if got := x.BlocksOf(1); len(got) != 2 || got[0].LeaderEpoch != 1 || got[1].LeaderEpoch != 2 {
		t.Errorf("blocks of stream 1: %+v", got)
	}
	for _, s := range []mink.StreamID{0, 2, 6, 1_000_000} {
		if got := x.BlocksOf(s); len(got) != 0 {
			t.Errorf("blocks of stream %d: %+v", s, got)
		}
	}
	for at, want := range map[mink.Offset]int{0: 2, 10: 2, 11: 1, 12: 0} {
		if got := x.BlocksFrom(1, at); len(got) != want {
			t.Errorf("%d blocks from %d, want %d", len(got), at, want)
		}
	}
	if c, ok := x.CheckpointOf(900_000); !ok || c.End != 79 {
		t.Errorf("checkpoint: %+v, %t", c, ok)
	}
	if _, ok := x.CheckpointOf(5); ok {
		t.Error("stream 5 has no checkpoint")
	}
}

func TestCombine(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := make([]byte, r.IntN(5000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		k := r.IntN(len(b) + 1)
		if got := combine(crcOf(b[:k]), crcOf(b[k:]), uint64(len(b)-k)); got != crcOf(b) {
			t.Fatalf("%d + %d bytes: %08x, want %08x", k, len(b)-k, got, crcOf(b))
		}
	}
}

func ExampleBuilder() {
	b := NewBuilder(0)
	_ = b.AddFrame(3, &Frame{Start: 0, Span: 2, Count: 2, Bytes: []byte("two records")}) // errors surface in Finish
	chunks, sum, err := b.Finish(Header{Kind: plan.KindWAL, WAL: plan.WALID{Node: 1, Epoch: 1}, Window: 8})
	fmt.Println(len(bytes.Join(chunks, nil)) == int(sum.Size), sum.Items()[0].End, err)
	// Output: true 2 <nil>
}
