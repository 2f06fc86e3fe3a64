package tablet

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// fakeStream is a stream in memory: appends become durable when land is called.
type fakeStream struct {
	mu       sync.Mutex
	epoch    mink.LeaderEpoch
	frames   []stream.Frame
	tickets  []*fakeTicket
	start    mink.Offset
	hw       mink.Offset
	ckpt     []byte
	ckptAt   mink.Offset
	seeded   []byte
	cleaned  plan.Cleaned
	auto     bool // durable at once
	throttle bool
	changed  chan struct{}
}

type fakeTicket struct {
	done chan struct{}
	err  error
}

func (t *fakeTicket) Done() <-chan struct{} { return t.done }
func (t *fakeTicket) Err() error            { return t.err }

func newFake(auto bool) *fakeStream { return &fakeStream{auto: auto, changed: make(chan struct{})} }

func (s *fakeStream) end() mink.Offset {
	if n := len(s.frames); n > 0 {
		return s.frames[n-1].End()
	}
	return s.start
}

func (s *fakeStream) Append(r stream.AppendRequest) (Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.throttle {
		return nil, mink.ErrThrottled
	}
	if r.Start != s.end() {
		return nil, mink.ErrInvalid
	}
	s.frames = append(s.frames, stream.Frame{
		Start: r.Start, Span: r.Span, Count: r.Count, LeaderEpoch: s.epoch, MaxTimestamp: r.MaxTimestamp,
		CommitTimestamp: r.CommitTimestamp, Bytes: bytes.Join(r.Parts, nil),
	})
	t := &fakeTicket{done: make(chan struct{})}
	s.tickets = append(s.tickets, t)
	if s.auto {
		s.landLocked(1)
	}
	return t, nil
}

// land makes the next n appends durable.
func (s *fakeStream) land(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.landLocked(n)
}

func (s *fakeStream) landLocked(n int) {
	for _, t := range s.tickets[:n] {
		close(t.done)
	}
	s.tickets = s.tickets[n:]
	if len(s.frames) == len(s.tickets) {
		return
	}
	s.hw = s.frames[len(s.frames)-len(s.tickets)-1].End()
}

// crash loses what is not durable beyond the first keep pending appends, and
// answers the stream as the next leader opens it, with a checkpoint of its first
// ckpt frames (-1: none).
func (s *fakeStream) crash(t testing.TB, keep, ckpt int) *fakeStream {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.tickets {
		p.err = mink.ErrFenced
		close(p.done)
	}
	n := len(s.frames) - len(s.tickets) + keep
	next := newFake(s.auto)
	next.epoch, next.frames, next.start = s.epoch+1, slices.Clone(s.frames[:n]), s.start
	next.hw = next.end()
	if ckpt >= 0 {
		folded := min(ckpt, n)
		data, err := Folder{}.Fold(nil, framesOf(next.frames[:folded]))
		if err != nil {
			t.Fatal(err)
		}
		next.ckpt = data
		if folded > 0 {
			next.ckptAt = next.frames[folded-1].End()
		}
	}
	return next
}

func framesOf(fs []stream.Frame) iter.Seq2[stream.Frame, error] {
	return func(yield func(stream.Frame, error) bool) {
		for _, f := range fs {
			if !yield(f, nil) {
				return
			}
		}
	}
}

func (s *fakeStream) Read(_ context.Context, r stream.ReadRequest) (stream.ReadResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := stream.ReadResult{Next: r.From, Start: s.start, HighWatermark: s.hw}
	if r.From < s.start || r.From > s.hw {
		return res, &mink.OutOfRangeError{Asked: r.From, Start: s.start, End: s.hw}
	}
	for _, f := range s.frames {
		if f.End() <= r.From || f.Start >= s.hw {
			continue
		}
		if r.MaxBytes -= len(f.Bytes); r.MaxBytes < 0 && len(res.Frames) > 0 {
			break
		}
		res.Frames = append(res.Frames, f)
		res.Next = f.End()
	}
	return res, nil
}

func (s *fakeStream) get(p *mink.Offset) mink.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *p
}

func (s *fakeStream) Start() mink.Offset         { return s.get(&s.start) }
func (s *fakeStream) HighWatermark() mink.Offset { return s.get(&s.hw) }
func (s *fakeStream) LogEnd() mink.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end()
}
func (s *fakeStream) Changed() <-chan struct{} { return s.changed }
func (s *fakeStream) Checkpoint(context.Context) ([]byte, mink.Offset, error) {
	return s.ckpt, s.ckptAt, nil
}
func (s *fakeStream) SeedCheckpoint(data []byte, _ mink.Offset) { s.seeded = data }

func (s *fakeStream) OffsetForTimestamp(_ context.Context, ms int64, commit bool) (stream.Frame, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frames {
		ts := f.MaxTimestamp
		if commit {
			ts = f.CommitTimestamp
		}
		if f.End() > s.start && f.Start < s.hw && ts >= ms {
			return f, true, nil
		}
	}
	return stream.Frame{}, false, nil
}

func (s *fakeStream) Discard(ctx context.Context, to mink.Offset, _ int64) error {
	return s.Trim(ctx, to)
}

func (s *fakeStream) Trim(_ context.Context, to mink.Offset) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = max(s.start, min(to, s.hw))
	return nil
}

// clock is the tests' time.
type clock struct{ ms int64 }

const t0 = int64(1_700_000_000_000)

func (c *clock) now() time.Time { return time.UnixMilli(c.ms) }

func topicConfig(s *fakeStream, c *clock) Config {
	cfg := Default()
	cfg.Bucket = mink.BucketRef{Table: 1, Partition: 1}
	cfg.LeaderEpoch = s.epoch
	topic := schema.KafkaTopicSchema()
	topic.ID = 1
	cfg.Schemas = []*schema.Schema{&topic}
	cfg.Now = c.now
	return cfg
}

func openTopic(t testing.TB, s *fakeStream, c *clock) *Log {
	t.Helper()
	return openWith(t, s, topicConfig(s, c))
}

func openWith(t testing.TB, s *fakeStream, cfg Config) *Log {
	t.Helper()
	cfg.LeaderEpoch = s.epoch
	l, err := OpenLog(context.Background(), s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// readAll answers all batches that are visible.
func readAll(t testing.TB, l *Log) ReadResult {
	t.Helper()
	res, err := l.Read(context.Background(), ReadRequest{From: l.LogStart(), MaxBytes: math.MaxInt32})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// CleanLimit: all that is durable may be rewritten.
func (s *fakeStream) CleanLimit() (mink.Offset, plan.Cleaned, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hw, s.cleaned, nil
}

func (s *fakeStream) AskCheckpoint() {}

func (s *fakeStream) Scan(_ context.Context, from, to mink.Offset) iter.Seq2[stream.Frame, error] {
	s.mu.Lock()
	frames := slices.Clone(s.frames)
	s.mu.Unlock()
	return func(yield func(stream.Frame, error) bool) {
		for _, f := range frames {
			if f.End() > from && f.Start < to && !yield(f, nil) {
				return
			}
		}
	}
}

func (s *fakeStream) Rewrite(ctx context.Context, r stream.Rewrite) (plan.Cleaned, error) {
	left := plan.Cleaned{End: r.Upper}
	var out []stream.Frame
	for f, err := range r.Frames(s.Scan(ctx, s.Start(), r.Upper)) {
		if err != nil {
			return plan.Cleaned{}, err
		}
		f.Bytes = bytes.Clone(f.Bytes)
		if n := len(out); n > 0 && out[n-1].End() != f.Start {
			return plan.Cleaned{}, fmt.Errorf("frame [%d, %d) after %d", f.Start, f.End(), out[n-1].End())
		}
		out = append(out, f)
		left.Bytes += int64(len(f.Bytes))
	}
	left.DueMs = r.DueMs()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frames {
		if f.Start >= r.Upper {
			out = append(out, f)
		}
	}
	s.frames, s.cleaned = out, left
	return left, nil
}

func (s *fakeStream) Bytes(ctx context.Context, from, to mink.Offset) (n int64, err error) {
	for f := range s.Scan(ctx, from, to) {
		n += int64(len(f.Bytes))
	}
	return n, nil
}

func (s *fakeStream) OffsetForBytes(_ context.Context, n int64) (mink.Offset, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range slices.Backward(s.frames) {
		if n -= int64(len(f.Bytes)); n <= 0 {
			return max(f.Start, s.start), true, nil
		}
	}
	return 0, false, nil
}
