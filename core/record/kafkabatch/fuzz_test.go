package kafkabatch

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func FuzzProduce(f *testing.F) {
	for codec := CodecNone; codec <= CodecZstd; codec++ {
		b := newBuilt(3)
		b.recs[1].Headers = []kmsg.Header{{Key: "h", Value: []byte("v")}, {Key: "n"}}
		b.recs[2].Key = nil
		f.Add(b.compressed(codec), false)
		f.Add(b.compressed(codec), true)
	}
	b := newBuilt(3)
	b.Attributes = int16(CodecSnappy)
	f.Add(b.bytes(xerialOf(b.raw(), 50)), true)
	limits := Limits{MaxBytes: 1 << 20, MaxRatio: 100, FreeBytes: 1 << 16}
	f.Fuzz(func(t *testing.T, in []byte, deep bool) {
		if len(in) >= HeaderSize {
			fix(in) // let the fuzzer past the checksum
		}
		o := opts()
		o.Deep = deep
		d := NewDecoder(limits)
		h, err := Header(in, o, d)
		if err != nil {
			if kindOf(err) == 0 {
				t.Fatalf("not a BatchError: %v", err)
			}
			return
		}
		v := View(in)
		if v.CRC() != v.Sum() {
			t.Fatal("accepted with a wrong CRC")
		}
		rows, err := columnsOf(t, in)
		if err != nil {
			if v.Codec() == CodecNone || deep {
				t.Fatalf("accepted, but not readable: %v", err)
			}
			return
		}
		defer rows.Release()
		if rows.NumRows() != int64(h.Count) {
			t.Fatalf("%d rows of %d records", rows.NumRows(), h.Count)
		}
		out, err := Encode(nil, rows, Encoding{LastOffsetDelta: h.LastOffsetDelta})
		if err != nil {
			t.Fatal(err)
		}
		again, err := columnsOf(t, out)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Release()
		if !array.RecordEqual(rows, again) {
			t.Fatal("columns -> kafka -> columns differs")
		}
	})
}

func benchBatch(codec Codec) []byte {
	b := newBuilt(4000)
	for i := range b.recs {
		b.recs[i].Value = bytes.Repeat([]byte("abcdefghijklmnop"), 15)
	}
	return b.compressed(codec)
}

func BenchmarkHeader(b *testing.B) {
	for _, codec := range []Codec{CodecNone, CodecLZ4} {
		b.Run(codec.String(), func(b *testing.B) {
			batch, o := benchBatch(codec), opts()
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Header(batch, o, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkColumns(b *testing.B) {
	batch := benchBatch(CodecNone)
	c, err := NewColumns(memory.NewGoAllocator(), topicSchema)
	if err != nil {
		b.Fatal(err)
	}
	d := NewDecoder(DefaultLimits())
	b.SetBytes(int64(len(batch)))
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Append(View(batch), d); err != nil {
			b.Fatal(err)
		}
		c.Take().Release()
	}
}

func BenchmarkEncode(b *testing.B) {
	rows, err := columnsOf(b, benchBatch(CodecNone))
	if err != nil {
		b.Fatal(err)
	}
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		if out, err = Encode(out[:0], rows, Encoding{LastOffsetDelta: 3999}); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(out)))
}
