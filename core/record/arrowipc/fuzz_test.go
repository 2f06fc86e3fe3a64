package arrowipc

import (
	"bytes"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record"
)

// readAll touches every value.
func readAll(rows arrow.RecordBatch) int {
	n := 0
	for _, c := range rows.Columns() {
		for i := range c.Len() {
			n += len(c.ValueStr(i))
		}
	}
	return n
}

// Whatever Check accepts is readable in full, here and in arrow-go, and can be
// projected.
func FuzzCheck(f *testing.F) {
	for _, opts := range compressions {
		fo := newForge(f, opts...)
		meta, body := fo.bytes()
		f.Add(meta, body)
		theirs, body, err := Encode(smallRows(), opts...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(theirs, body)
	}
	l := layoutOf(f, small).WithTimestamp(0)
	f.Fuzz(func(t *testing.T, meta, body []byte) { acceptedIsReadable(t, l, meta, body) })
}

// acceptedIsReadable reports whether Check accepts the message, and fails when
// it does and somebody cannot read it.
func acceptedIsReadable(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, l *Layout, meta, body []byte) bool {
	if _, err := NewChecker(1<<20).Check(l, meta, body); err != nil {
		var be *record.BatchError
		if !errors.As(err, &be) {
			t.Fatalf("not a BatchError: %v", err)
		}
		return false
	}
	rows, err := NewDecoder(1<<20).Decode(l, meta, body, nil)
	if err != nil {
		t.Fatalf("accepted, but %v", err)
	}
	readAll(rows)
	theirs, err := oracle(small, meta, body)
	if err != nil {
		t.Fatalf("accepted, but arrow-go says %v", err)
	}
	readAll(theirs)
	if !array.RecordEqual(rows, theirs) {
		t.Fatal("arrow-go reads other rows")
	}
	cut, err := Project(l, meta, body, []int{3, 1})
	if err != nil {
		t.Fatal(err)
	}
	sub, err := oracle(arrow.NewSchema([]arrow.Field{small.Field(3), small.Field(1)}, nil), cut.Metadata, bytes.Join(cut.Body, nil))
	if err != nil {
		t.Fatal(err)
	}
	if !array.Equal(sub.Column(0), rows.Column(3)) || !array.Equal(sub.Column(1), rows.Column(1)) {
		t.Fatal("the projection reads other rows")
	}
	return true
}

// The same claim for messages that are broken on purpose in a few places, which
// get further than random bytes.
func TestAcceptedIsReadable(t *testing.T) {
	l := layoutOf(t, small).WithTimestamp(0)
	var tried, accepted int
	rapid.Check(t, func(rt *rapid.T) {
		name := draw(rt, rapid.SampledFrom([]string{"plain", "lz4", "zstd"}))
		for range 5 {
			f := newForge(t, compressions[name]...)
			for range draw(rt, rapid.IntRange(1, 3)) {
				breakSomething(rt, f)
			}
			meta, body := f.bytes()
			tried++
			if acceptedIsReadable(rt, l, meta, body) {
				accepted++
			}
		}
	})
	if accepted < tried/100 || accepted > tried*9/10 {
		t.Fatalf("%d of %d accepted: the mutations test nothing", accepted, tried)
	}
}

func breakSomething(rt *rapid.T, f *forge) {
	near := func(v int64) int64 { return v + draw(rt, rapid.SampledFrom([]int64{-8, -1, 1, 8, 64})) }
	switch draw(rt, rapid.IntRange(0, 4)) {
	case 0:
		i := draw(rt, rapid.IntRange(0, len(f.m.nodes)/16-1))
		length, nulls := f.m.node(i)
		if draw(rt, rapid.Bool()) {
			f.setNode(i, near(length), nulls)
		} else {
			f.setNode(i, length, near(nulls))
		}
	case 1:
		i := draw(rt, rapid.IntRange(0, len(f.m.buffers)/16-1))
		off, length := f.m.buffer(i)
		if draw(rt, rapid.Bool()) {
			f.setBuffer(i, near(off), length)
		} else {
			f.setBuffer(i, off, near(length))
		}
	case 2:
		f.m.rows = near(f.m.rows)
	default:
		at := draw(rt, rapid.IntRange(0, len(f.body)-1))
		f.body[at] ^= 1 << draw(rt, rapid.IntRange(0, 7))
	}
}

// Decode without a check must not panic either, whatever it answers.
func FuzzDecode(f *testing.F) {
	for _, opts := range compressions {
		fo := newForge(f, opts...)
		meta, body := fo.bytes()
		f.Add(meta, body)
	}
	l := layoutOf(f, small)
	f.Fuzz(func(t *testing.T, meta, body []byte) {
		if rows, err := NewDecoder(1<<20).Decode(l, meta, body, nil); err == nil {
			rows.Release()
		}
	})
}

func benchRows() arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.NewGoAllocator(), small)
	for i := range 20000 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append("some text of a usual length")
		st := b.Field(2).(*array.StructBuilder)
		st.Append(true)
		st.FieldBuilder(0).(*array.Int32Builder).Append(int32(i))
		li := b.Field(3).(*array.ListBuilder)
		li.Append(true)
		li.ValueBuilder().(*array.Int32Builder).Append(int32(i))
	}
	return b.NewRecordBatch()
}

func BenchmarkCheck(b *testing.B) {
	l, c := layoutOf(b, small), NewChecker(DefaultMaxBytes)
	for _, name := range []string{"plain", "lz4", "zstd"} {
		meta, body, err := Encode(benchRows(), compressions[name]...)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Check(l, meta, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkProject(b *testing.B) {
	l := layoutOf(b, small)
	meta, body, err := Encode(benchRows())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Project(l, meta, body, []int{1}); err != nil {
			b.Fatal(err)
		}
	}
}
