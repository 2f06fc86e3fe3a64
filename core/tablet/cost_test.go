package tablet

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// Allocations per append do not depend on the number of records.
func TestAppendAllocations(t *testing.T) {
	for _, n := range []int{1, 1000} {
		l := openTopic(t, newFake(true), &clock{t0})
		l.s = devNull{l.s.(*fakeStream), new(mink.Offset)}
		batch := produced{pid: -1, epoch: -1, seq: -1, stamps: make([]int64, n), value: "v"}.bytes()
		a := arrowOf(t, topicRows(make([]int64, n)...))
		got := testing.AllocsPerRun(100, func() {
			binary.BigEndian.PutUint64(batch, 0)
			if _, err := l.AppendKafka(batch, KafkaAppend{}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.AppendArrow(a); err != nil {
				t.Fatal(err)
			}
		})
		if got > 4 {
			t.Errorf("%d records: %v allocations in two appends", n, got)
		}
	}
}

// devNull takes appends and keeps nothing.
type devNull struct {
	*fakeStream
	at *mink.Offset
}

func (d devNull) Append(r stream.AppendRequest) (Ticket, error) {
	*d.at = r.Start + mink.Offset(r.Span)
	return nullTicket, nil
}

func BenchmarkAppendKafka(b *testing.B) {
	for _, n := range []int{1, 100, 4000} {
		b.Run(fmt.Sprintf("%d records", n), func(b *testing.B) {
			l := openTopic(b, newFake(true), &clock{t0})
			l.s = devNull{l.s.(*fakeStream), new(mink.Offset)}
			batch := produced{pid: -1, epoch: -1, seq: -1, stamps: make([]int64, n), value: "a value of some forty bytes, as are many"}.bytes()
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			for b.Loop() {
				binary.BigEndian.PutUint64(batch, 0)
				if _, err := l.AppendKafka(batch, KafkaAppend{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendArrow(b *testing.B) {
	for _, n := range []int{1, 100, 4000} {
		b.Run(fmt.Sprintf("%d rows", n), func(b *testing.B) {
			l := openTopic(b, newFake(true), &clock{t0})
			l.s = devNull{l.s.(*fakeStream), new(mink.Offset)}
			a := arrowOf(b, topicRows(make([]int64, n)...))
			b.SetBytes(int64(len(a.Body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.AppendArrow(a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A thousand writers take turns.
func BenchmarkIdempotentAppend(b *testing.B) {
	l := openTopic(b, newFake(true), &clock{t0})
	l.s = devNull{l.s.(*fakeStream), new(mink.Offset)}
	batches := make([][]byte, 1000)
	for i := range batches {
		batches[i] = idem(int64(i), 0, 0, 1)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := batches[i%1000]
		binary.BigEndian.PutUint64(k, 0)
		binary.BigEndian.PutUint32(k[53:], uint32(i/1000))
		v := kafkabatch.View(k)
		binary.BigEndian.PutUint32(k[17:], v.Sum())
		if _, err := l.AppendKafka(k, KafkaAppend{}); err != nil {
			b.Fatal(err)
		}
	}
}
