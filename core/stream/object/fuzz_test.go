package object

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
)

// wantClass fails on an error of no known class.
func wantClass(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported) {
		t.Fatalf("error without a class: %v", err)
	}
}

// resum makes checksums right, so that the fuzzer gets past them.
func resum(b []byte, at int, crc uint32) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], crc)
	return b
}

func FuzzHeader(f *testing.F) {
	f.Add(AppendHeader(nil, sample().header))
	f.Add(Tombstone(testWAL, 1<<63, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := ParseHeader(b)
		wantClass(t, err)
		if len(b) < HeaderLen {
			return
		}
		b = resum(b, 60, crcOf(b[:60]))
		h, err := ParseHeader(b)
		wantClass(t, err)
		if err == nil && !bytes.Equal(AppendHeader(nil, h), b[:HeaderLen]) {
			t.Fatalf("%+v encodes to other bytes", h)
		}
	})
}

func FuzzFooter(f *testing.F) {
	b, sum := sample().build(f)
	f.Add(b[len(b)-FooterLen:], sum.Size)
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		_, err := ParseFooter(b, size)
		wantClass(t, err)
		if len(b) < FooterLen {
			return
		}
		b = b[:FooterLen]
		b = resum(b, 36, crcOf(b[:36]))
		got, err := ParseFooter(b, size)
		wantClass(t, err)
		if err != nil {
			return
		}
		if !bytes.Equal(AppendFooter(nil, got), b) {
			t.Fatalf("%+v encodes to other bytes", got)
		}
		if got.IndexPos < HeaderLen || got.IndexPos+got.IndexLen+FooterLen != size || got.IndexLen > MaxIndexLen {
			t.Fatalf("%+v does not fit %d bytes", got, size)
		}
	})
}

func FuzzIndex(f *testing.F) {
	b, sum := sample().build(f)
	f.Add(b[sum.IndexPos : sum.IndexPos+sum.IndexLen])
	huge := binary.AppendUvarint(append([]byte{}, indexMagic[:]...), 1<<40) // blocks
	f.Add(append(huge, 0, 64, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := ParseIndex(b)
		wantClass(t, err)
		if len(b) < indexMinLen {
			return
		}
		b = resum(b, len(b)-4, crcOf(b[:len(b)-4]))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		x, err := ParseIndex(b)
		runtime.ReadMemStats(&after)
		wantClass(t, err)
		if got := after.TotalAlloc - before.TotalAlloc; got > uint64(64*len(b)+64<<10) {
			t.Fatalf("%d bytes allocated for %d", got, len(b))
		}
		if err != nil {
			return
		}
		// Varints may be longer than need be: the second encoding is the canonical one.
		again, err := ParseIndex(appendIndex(nil, x))
		if err != nil {
			t.Fatalf("%+v does not read back: %v", x, err)
		}
		if len(again.Blocks) != len(x.Blocks) || len(again.Checkpoints) != len(x.Checkpoints) {
			t.Fatal("reads back differently")
		}
		pos := int64(HeaderLen)
		for k, i := range x.Blocks {
			if i != again.Blocks[k] {
				t.Fatalf("block %d reads back differently", k)
			}
			if i.Pos != pos || i.End() <= i.Start || i.Start < 0 || k > 0 && (i.Stream < x.Blocks[k-1].Stream ||
				i.Stream == x.Blocks[k-1].Stream && i.Start < x.Blocks[k-1].End()) {
				t.Fatalf("block %d is out of order: %+v", k, i)
			}
			pos += i.Len()
		}
		x.Items(sum.Object(0).ID)
	})
}

func FuzzBlock(f *testing.F) {
	b, sum := sample().build(f)
	for _, i := range sum.Index.Blocks {
		f.Add(b[i.Pos:i.Pos+i.Len()], i.Span, i.Count, i.MaxTimestamp, i.CommitTimestamp)
	}
	f.Fuzz(func(t *testing.T, b []byte, span uint64, count uint32, maxTs, commitTs int64) {
		if len(b) < BlockHeaderLen {
			_, err := DecodeBlock(BlockInfo{}, b)
			wantClass(t, err)
			return
		}
		b = bytes.Clone(b)
		le := binary.LittleEndian
		n := uint32(len(b) - BlockHeaderLen)
		le.PutUint32(b[36:], n)
		le.PutUint32(b[40:], n)
		le.PutUint32(b[44:], crcAdd(crcOf(b[BlockHeaderLen:]), b[:44]))
		info := BlockInfo{
			Stream: mink.StreamID(le.Uint64(b[8:])), Start: mink.Offset(le.Uint64(b[16:]) >> 1), LeaderEpoch: mink.LeaderEpoch(le.Uint32(b[24:])),
			Span: span >> 1, Count: count, RawLen: n, EncLen: n, MaxTimestamp: maxTs, CommitTimestamp: commitTs,
		}
		frames, err := DecodeBlock(info, b)
		wantClass(t, err)
		if err != nil {
			return
		}
		next := info.Start
		for _, fr := range frames {
			if fr.Start < next || fr.End() <= fr.Start {
				t.Fatalf("frame %+v after offset %d", fr, next)
			}
			next = fr.End()
		}
		if next != info.End() {
			t.Fatalf("frames end at %d, the block at %d", next, info.End())
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte("state"), int64(3), int64(9), -1)
	f.Fuzz(func(t *testing.T, data []byte, stream, end int64, flip int) {
		b := append(appendCheckpointHeader(nil, mink.StreamID(stream), mink.Offset(end), data), data...)
		info := CheckpointInfo{Stream: mink.StreamID(stream), End: mink.Offset(end), Len: uint32(len(b))}
		if flip >= 0 {
			b[flip/8%len(b)] ^= 1 << (flip % 8)
		}
		got, err := DecodeCheckpoint(info, b)
		wantClass(t, err)
		if flip >= 0 && err == nil {
			t.Fatalf("bit %d flipped and not noticed", flip)
		}
		if flip < 0 && (err != nil || !bytes.Equal(got, data)) {
			t.Fatalf("reads back as %q: %v", got, err)
		}
	})
}

// FuzzVerify is for whole objects: what a store may hand us.
func FuzzVerify(f *testing.F) {
	b, _ := sample().build(f)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, err := Verify(b)
		wantClass(t, err)
	})
}
