package tablet

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/sdk/mink"
)

// client is an idempotent producer as real ones are: up to five batches in
// flight, answers that get lost, retries of anything it has no answer for, in
// order, and stray late copies of anything it ever sent.
type client struct {
	pid   int64
	next  int32
	sent  []sent // all batches ever, in order
	acked int    // sent[:acked] have been answered
}

type sent struct {
	seq   int32
	n     int
	value string
}

const maxInFlight = 5

// TestWriterWindowModel: whatever is lost, repeated, or crashed, each batch of a
// correct client is stored exactly once and in order, its retry is never
// refused, and each answer names where it is stored.
func TestWriterWindowModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := &clock{t0}
		s := newFake(false)
		l := openTopic(t, s, c)
		clients := []*client{{pid: 1}, {pid: 2}, {pid: 3}}
		// Start one near the wrap: it expires first, then goes on from there.
		if rapid.Bool().Draw(rt, "near the wrap") {
			mustAppend(rt, l, idem(1, 0, 0, 1))
			s.land(1)
			c.ms += expiryMs + 1
			clients[0].next = 1<<31 - 1 - int32(rapid.IntRange(0, 30).Draw(rt, "before the wrap"))
		}
		stored := map[string]mink.Offset{}
		send := func(cl *client, i int) {
			b := cl.sent[i]
			p, err := l.AppendKafka(produced{pid: cl.pid, seq: b.seq, stamps: make([]int64, b.n), value: b.value}.bytes(), KafkaAppend{})
			if err != nil {
				rt.Fatalf("writer %d, batch %d (%+v), next %d: %v", cl.pid, i, b, cl.next, err)
			}
			if at, again := stored[b.value]; again && !p.res.Duplicate {
				rt.Fatalf("%q is stored at %d and again at %d", b.value, at, p.res.First)
			} else if again && p.res.First >= 0 && p.res.First != at {
				rt.Fatalf("%q is stored at %d, a duplicate is told %d", b.value, at, p.res.First)
			} else if !again && p.res.Duplicate {
				rt.Fatalf("%q is not stored, but is called a duplicate", b.value)
			}
			if !p.res.Duplicate {
				stored[b.value] = p.res.First
			}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			cl := rapid.SampledFrom(clients).Draw(rt, "client")
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0, 1, 2: // a new batch
				if len(cl.sent)-cl.acked >= maxInFlight {
					cl.acked++ // an answer came
				}
				b := sent{cl.next, rapid.IntRange(1, 4).Draw(rt, "records"), fmt.Sprintf("%d/%d", cl.pid, len(cl.sent))}
				cl.sent = append(cl.sent, b)
				cl.next = int32((int64(cl.next) + int64(b.n)) & (1<<31 - 1))
				send(cl, len(cl.sent)-1)
			case 3: // answers
				if len(cl.sent) > cl.acked {
					cl.acked += rapid.IntRange(1, len(cl.sent)-cl.acked).Draw(rt, "answers")
				}
			case 4: // a late copy of any old batch
				if len(cl.sent) > 0 {
					send(cl, rapid.IntRange(0, len(cl.sent)-1).Draw(rt, "old"))
				}
			case 5:
				if n := len(s.tickets); n > 0 {
					s.land(rapid.IntRange(1, n).Draw(rt, "durable"))
				}
			case 6: // crash: some of the pending survive; clients with unanswered batches send them again, in order
				keep := rapid.IntRange(0, len(s.tickets)).Draw(rt, "survive")
				n := len(s.frames) - len(s.tickets) + keep
				s = s.crash(t, keep, rapid.IntRange(-1, n).Draw(rt, "checkpoint"))
				l = openTopic(t, s, c)
				for v, at := range stored {
					if at >= s.hw {
						delete(stored, v)
					}
				}
				for _, cl := range clients {
					// What a client was answered for was durable, so it survived.
					for i := range cl.sent {
						if _, ok := stored[cl.sent[i].value]; !ok {
							cl.acked = min(cl.acked, i)
						}
					}
					for i := cl.acked; i < len(cl.sent); i++ {
						send(cl, i)
					}
				}
			}
			c.ms += rapid.Int64Range(0, 3_600_000).Draw(rt, "time")
		}
		s.land(len(s.tickets))
		checkOnceInOrder(rt, t, l, clients)
	})
}

func mustAppend(rt *rapid.T, l *Log, batch []byte) {
	if _, err := l.AppendKafka(batch, KafkaAppend{}); err != nil {
		rt.Fatal(err)
	}
}

func checkOnceInOrder(rt *rapid.T, t *testing.T, l *Log, clients []*client) {
	seen := map[mink.WriterID]int{}
	for _, b := range readAll(t, l).Batches {
		v := kafkabatch.View(b.Kafka())
		r := kafkabatch.NewReader(v, v.Records())
		var rec kafkabatch.Record
		if !r.Next(&rec) {
			rt.Fatal(r.Err())
		}
		if string(rec.Value) == "v" {
			continue // the one that expired
		}
		id := b.WriterID()
		if want := fmt.Sprintf("%d/%d", id, seen[id]); string(rec.Value) != want {
			rt.Fatalf("writer %d: %q stored where %q must be", id, rec.Value, want)
		}
		seen[id]++
	}
	for _, cl := range clients {
		if seen[mink.WriterID(cl.pid)] != len(cl.sent) {
			rt.Fatalf("writer %d sent %d batches, %d are stored", cl.pid, len(cl.sent), seen[mink.WriterID(cl.pid)])
		}
	}
}

// A batch from the future is never accepted and never called a duplicate,
// whatever the window has seen.
func TestAheadIsNeverSuccess(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newFake(true)
		l := openTopic(t, s, &clock{t0})
		next := int32(0)
		for range rapid.IntRange(1, 12).Draw(rt, "batches") {
			n := rapid.IntRange(1, 5).Draw(rt, "records")
			mustAppend(rt, l, idem(1, 0, next, n))
			next += int32(n)
		}
		ahead := next + 1 + rapid.Int32Range(0, 1<<31-2-next).Draw(rt, "ahead")
		if _, err := l.AppendKafka(idem(1, 0, ahead, 1), KafkaAppend{}); !errors.Is(err, mink.ErrOutOfOrder) {
			rt.Fatalf("sequence %d where %d comes next: %v", ahead, next, err)
		}
	})
}
