package tablet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/mink"
)

// story runs a script of idempotent appends and compares what each answered.
//
//	append PID EPOCH SEQ N   -> "first-last", "dup first-last", "dup ?", with
//	                            "pending" in front until durable; or the error
//	land N | hold | idle DURATION | crash KEEP CKPT | trim OFFSET
func story(t *testing.T, script string) {
	t.Helper()
	c := &clock{t0}
	s := newFake(true)
	l := openTopic(t, s, c)
	for i, line := range strings.Split(strings.TrimSpace(script), "\n") {
		cmd, want, _ := strings.Cut(strings.TrimSpace(line), " -> ")
		got := ""
		var a [4]int64
		switch verb, rest, _ := strings.Cut(cmd, " "); verb {
		case "append":
			if n, err := fmt.Sscan(rest, &a[0], &a[1], &a[2], &a[3]); n != 4 {
				t.Fatal(line, err)
			}
			got = outcome(l.AppendKafka(idem(a[0], int16(a[1]), int32(a[2]), int(a[3])), KafkaAppend{}))
		case "land":
			_, _ = fmt.Sscan(rest, &a[0])
			s.land(int(a[0]))
		case "hold":
			s.auto = false
		case "idle":
			d, err := time.ParseDuration(rest)
			if err != nil {
				t.Fatal(err)
			}
			c.ms += d.Milliseconds()
		case "crash":
			_, _ = fmt.Sscan(rest, &a[0], &a[1])
			s = s.crash(t, int(a[0]), int(a[1]))
			s.auto = true
			l = openTopic(t, s, c)
		case "trim":
			_, _ = fmt.Sscan(rest, &a[0])
			if err := l.Trim(t.Context(), mink.Offset(a[0])); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("line %d: %s", i, line)
		}
		if got != want {
			t.Fatalf("line %d: %s\n got: %s", i+1, line, got)
		}
	}
}

func outcome(p *Pending, err error) string {
	var ooo *OutOfOrderError
	switch {
	case errors.As(err, &ooo):
		return fmt.Sprintf("out of order, next %d", ooo.Next)
	case errors.Is(err, mink.ErrFenced):
		return "fenced"
	case err != nil:
		return err.Error()
	}
	select {
	case <-p.Done():
	default:
		return "pending " + text(p.res)
	}
	res, err := p.Result()
	if err != nil {
		return err.Error()
	}
	return text(res)
}

func text(r AppendResult) string {
	out := fmt.Sprintf("%d-%d", r.First, r.Last)
	if r.First < 0 {
		out = "?"
	}
	if r.Duplicate {
		out = "dup " + out
	}
	return out
}

func TestIdempotence(t *testing.T) {
	for name, script := range map[string]string{
		// kafka.md case 10: five pipelined, then one again.
		"pipeline of five and a resend": `
			append 7 0 0 1 -> 0-0
			append 7 0 1 1 -> 1-1
			append 7 0 2 1 -> 2-2
			append 7 0 3 1 -> 3-3
			append 7 0 4 1 -> 4-4
			append 7 0 2 1 -> dup 2-2
			append 7 0 5 1 -> 5-5`,
		// kafka.md case 12: the second of the pipeline reaches a new owner first.
		"new owner gets the second request first": `
			append 7 0 5 1 -> out of order, next 0
			append 7 0 0 5 -> 0-4
			append 7 0 5 1 -> 5-5`,
		// kafka.md case 13: idle past the expiry, any sequence goes on; trimming alone forgets nothing.
		"idle writer goes on": `
			append 7 0 0 7 -> 0-6
			idle 169h
			append 7 0 7 1 -> 7-7
			append 7 0 7 1 -> dup 7-7`,
		"idle writer goes on after a crash": `
			append 7 0 0 7 -> 0-6
			idle 169h
			append 8 0 0 1 -> 7-7
			crash 0 2
			append 7 0 7 1 -> 8-8
			append 9 0 3 1 -> out of order, next 0`,
		// tables.md case 3: the log's times decide, not the clock of the one who opens it.
		"clock of the next leader is behind": `
			append 7 0 0 7 -> 0-6
			idle 169h
			append 8 0 0 1 -> 7-7
			idle -169h
			crash 0 1
			append 9 0 0 1 -> 8-8
			append 7 0 7 1 -> 9-9`,
		"clock of the next leader is ahead": `
			append 7 0 0 7 -> 0-6
			idle 169h
			crash 0 1
			append 7 0 9 1 -> 7-7
			crash 0 0
			append 7 0 10 1 -> 8-8
			append 7 0 8 1 -> out of order, next 11`,
		"idle just below the expiry": `
			append 7 0 0 7 -> 0-6
			idle 168h
			append 7 0 8 1 -> out of order, next 7
			append 7 0 7 1 -> 7-7`,
		"trimmed, not forgotten": `
			append 7 0 0 7 -> 0-6
			append 7 0 7 1 -> 7-7
			trim 8
			crash 0 2
			append 7 0 9 1 -> out of order, next 8
			append 7 0 7 1 -> dup 7-7
			append 7 0 8 1 -> 8-8`,
		// tables.md case 2: a retry older than the last five.
		"retry older than the window": `
			append 7 0 0 10 -> 0-9
			append 7 0 10 1 -> 10-10
			append 7 0 11 1 -> 11-11
			append 7 0 12 1 -> 12-12
			append 7 0 13 1 -> 13-13
			append 7 0 14 1 -> 14-14
			append 7 0 15 1 -> 15-15
			append 7 0 0 10 -> dup ?
			append 7 0 10 1 -> dup ?
			append 7 0 11 1 -> dup 11-11
			append 7 0 9 3 -> out of order, next 16
			append 7 0 11 2 -> out of order, next 16
			append 7 0 17 1 -> out of order, next 16
			append 7 0 16 1 -> 16-16`,
		// tables.md: below the first accepted sequence is never success.
		"below the first accepted": `
			append 7 0 0 1 -> 0-0
			idle 200h
			append 7 0 100 1 -> 1-1
			append 7 0 99 1 -> out of order, next 101
			append 7 0 101 1 -> 2-2
			append 7 0 102 1 -> 3-3
			append 7 0 103 1 -> 4-4
			append 7 0 104 1 -> 5-5
			append 7 0 105 1 -> 6-6
			append 7 0 100 1 -> dup ?
			append 7 0 99 1 -> out of order, next 106`,
		// tables.md case 5: the old leader was ahead of what the client saw.
		"crash between append and answer": `
			append 7 0 0 1 -> 0-0
			hold
			append 7 0 1 1 -> pending 1-1
			append 7 0 2 1 -> pending 2-2
			append 7 0 3 1 -> pending 3-3
			crash 2 -1
			append 7 0 1 1 -> dup 1-1
			append 7 0 2 1 -> dup 2-2
			append 7 0 3 1 -> 3-3
			append 7 0 4 1 -> 4-4`,
		"crash that lost the pipeline": `
			hold
			append 7 0 0 1 -> pending 0-0
			append 7 0 1 1 -> pending 1-1
			crash 0 0
			append 7 0 1 1 -> out of order, next 0
			append 7 0 0 1 -> 0-0
			append 7 0 1 1 -> 1-1`,
		"sequence wraps": `
			append 7 0 0 1 -> 0-0
			idle 200h
			append 7 0 2147483646 1 -> 1-1
			append 7 0 2147483647 3 -> 2-4
			append 7 0 2147483647 3 -> dup 2-4
			append 7 0 2147483646 1 -> dup 1-1
			append 7 0 0 1 -> out of order, next 2
			append 7 0 2 1 -> 5-5
			append 7 0 3 1 -> 6-6
			append 7 0 4 1 -> 7-7
			append 7 0 5 1 -> 8-8
			append 7 0 6 1 -> 9-9
			append 7 0 2147483647 3 -> dup ?
			append 7 0 2147483646 1 -> dup ?
			append 7 0 2147483645 1 -> out of order, next 7`,
		"epochs": `
			append 7 3 0 1 -> 0-0
			append 7 3 1 1 -> 1-1
			append 7 2 2 1 -> fenced
			append 7 4 2 1 -> out of order, next 0
			append 7 4 0 1 -> 2-2
			append 7 3 2 1 -> fenced
			append 7 4 1 1 -> 3-3
			idle 200h
			append 7 3 0 1 -> fenced
			append 8 0 0 1 -> 4-4
			append 7 3 0 1 -> fenced
			append 7 4 9 1 -> 5-5`,
	} {
		t.Run(name, func(t *testing.T) { story(t, script) })
	}
}

// A duplicate of a batch in flight is answered when that is durable; one older
// than the window when the window's oldest is.
func TestDuplicateWaitsForTheFirst(t *testing.T) {
	s := newFake(false)
	l := openTopic(t, s, &clock{t0})
	must := func(p *Pending, err error) *Pending {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for seq := range int32(7) {
		must(l.AppendKafka(idem(1, 0, seq, 1), KafkaAppend{}))
	}
	inWindow := must(l.AppendKafka(idem(1, 0, 4, 1), KafkaAppend{}))
	older := must(l.AppendKafka(idem(1, 0, 0, 1), KafkaAppend{}))
	done := func(p *Pending) bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	}
	s.land(2)
	if done(inWindow) || done(older) {
		t.Fatal("answered before its first append is durable")
	}
	s.land(1)
	if !done(older) || done(inWindow) {
		t.Fatal("the older one waits for the window's oldest, no more, no less")
	}
	s.land(2)
	if res, err := inWindow.Result(); !done(inWindow) || err != nil || res.First != 4 || !res.Duplicate {
		t.Fatal(res, err)
	}
	if p := must(l.AppendKafka(idem(1, 0, 4, 1), KafkaAppend{})); !done(p) {
		t.Fatal("durable already")
	}
	// A failed first append fails its duplicate.
	p := must(l.AppendKafka(idem(1, 0, 6, 1), KafkaAppend{}))
	s.crash(t, 0, 0)
	if _, err := p.Result(); !errors.Is(err, mink.ErrFenced) {
		t.Fatal(err)
	}
}

// A refused append leaves no trace: the same sequence is accepted afterwards.
func TestThrottledAppendLeavesNoTrace(t *testing.T) {
	s := newFake(true)
	l := openTopic(t, s, &clock{t0})
	s.throttle = true
	if _, err := l.AppendKafka(idem(1, 0, 0, 3), KafkaAppend{}); !errors.Is(err, mink.ErrThrottled) {
		t.Fatal(err)
	}
	s.throttle = false
	if got := outcome(l.AppendKafka(idem(1, 0, 0, 3), KafkaAppend{})); got != "0-2" {
		t.Fatal(got)
	}
}

// Folding frame by frame, in any cuts, and replaying at open give one checkpoint.
func TestFoldIsOneFunctionOfTheLog(t *testing.T) {
	c := &clock{t0}
	s := newFake(true)
	l := openTopic(t, s, c)
	for i := range 300 {
		c.ms += int64(i) * 20 * 60 * 1000 // idle times that expire some
		pid := int64(i % 37)
		h := l.mu.st.writers
		seq := int32(0)
		if k, ok := h.index[mink.WriterID(pid)]; ok && h.slab[k].commit >= c.ms-expiryMs {
			seq = nextSeq(h.slab[k].at(int(h.slab[k].n) - 1).last)
		}
		if got := outcome(l.AppendKafka(idem(pid, 0, seq, 1+i%3), KafkaAppend{})); strings.Contains(got, "out") {
			t.Fatal(got)
		}
	}
	l.mu.st.settle(s.hw)
	whole := encodeCheckpoint(l.mu.st)
	for _, cut := range []int{0, 1, 150, 299, 300} {
		a, err := Folder{}.Fold(nil, framesOf(s.frames[:cut]))
		if err != nil {
			t.Fatal(err)
		}
		b, err := Folder{}.Fold(a, framesOf(s.frames[cut:]))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(b, whole) {
			t.Fatalf("cut at %d: another checkpoint than the appends made", cut)
		}
		next := s.crash(t, 0, cut)
		openTopic(t, next, c)
		if !slices.Equal(next.seeded, whole) {
			t.Fatalf("cut at %d: the replay gives another checkpoint", cut)
		}
	}
	if n := len(l.mu.st.writers.expired); n == 0 {
		t.Fatal("no writer expired: the test tests too little")
	}
}
