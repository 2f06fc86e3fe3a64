package object

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// bulkFrames is a bulk as the engine holds it: frames in append order, round
// robin over the streams, in one slab, and per stream the numbers of its frames.
func bulkFrames(streams, perStream, size int) (frames []Frame, of [][]int32) {
	slab := make([]byte, streams*perStream*size)
	for i := range slab {
		slab[i] = byte(i * 7)
	}
	of = make([][]int32, streams)
	for k := range streams * perStream {
		of[k%streams] = append(of[k%streams], int32(k))
		frames = append(frames, Frame{
			Start: mink.Offset(k / streams), Span: 1, Count: 1, LeaderEpoch: 3,
			MaxTimestamp: 1_790_000_000_000 + int64(k/1000), CommitTimestamp: 1_790_000_000_000 + int64(k/1000),
			Bytes: slab[k*size : (k+1)*size],
		})
	}
	return frames, of
}

func seal(b *testing.B, frames []Frame, of [][]int32) ([][]byte, Summary) {
	bl := NewBuilder(len(of))
	for s, numbers := range of {
		for _, n := range numbers {
			if err := bl.AddFrame(mink.StreamID(s+1), &frames[n]); err != nil {
				b.Fatal(err)
			}
		}
	}
	chunks, sum, err := bl.Finish(Header{Kind: plan.KindWAL, WAL: testWAL, Window: 8})
	if err != nil {
		b.Fatal(err)
	}
	return chunks, sum
}

// BenchmarkSeal: 200,000 records over 10,000 streams are to take under 30 ms.
func BenchmarkSeal(b *testing.B) {
	for _, c := range []struct{ streams, perStream, size int }{
		{10_000, 20, 50}, {10_000, 20, 1024}, {100, 40, 1024}, {1, 4, 1 << 20},
	} {
		b.Run(fmt.Sprintf("streams=%d/frames=%d/bytes=%d", c.streams, c.streams*c.perStream, c.size), func(b *testing.B) {
			frames, of := bulkFrames(c.streams, c.perStream, c.size)
			b.ReportAllocs()
			b.SetBytes(int64(len(frames) * c.size))
			var chunks [][]byte
			var sum Summary
			for b.Loop() {
				chunks, sum = seal(b, frames, of)
			}
			b.ReportMetric(float64(len(chunks)), "chunks")
			b.ReportMetric(float64(sum.IndexLen)/float64(len(sum.Index.Blocks)), "index-B/block")
			b.ReportMetric(float64(sum.Size)/float64(len(frames)*c.size), "size-ratio")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	frames, of := bulkFrames(100, 2000, 50)
	chunks, sum := seal(b, frames, of)
	whole := bytes.Join(chunks, nil)
	b.SetBytes(sum.Size)
	b.ReportAllocs()
	var into []Frame
	for b.Loop() {
		for _, i := range sum.Index.Blocks {
			var err error
			if into, err = AppendFrames(into[:0], i, whole[i.Pos:i.Pos+i.Len()]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(frames)), "ns/frame")
}

func BenchmarkParseIndex(b *testing.B) {
	frames, of := bulkFrames(10_000, 1, 50)
	chunks, sum := seal(b, frames, of)
	whole := bytes.Join(chunks, nil)
	index := whole[sum.IndexPos : sum.IndexPos+sum.IndexLen]
	b.SetBytes(sum.IndexLen)
	for b.Loop() {
		if _, err := ParseIndex(index); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCombine finds combineAbove: joining costs by the one bits of the length,
// reading again by the length.
func BenchmarkCombine(b *testing.B) {
	for _, n := range []int{1 << 10, 8 << 10, 16 << 10, 64 << 10, 512 << 10} {
		data := make([]byte, n)
		b.Run(fmt.Sprintf("read/%d", n), func(b *testing.B) {
			for b.Loop() {
				crcAdd(1, data)
			}
		})
		b.Run(fmt.Sprintf("combine/%d", n), func(b *testing.B) {
			for b.Loop() {
				combine(1, 2, uint64(n-1))
			}
		})
	}
}
