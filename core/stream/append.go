package stream

import (
	"fmt"
	"math"

	"github.com/mink-project/mink/sdk/mink"
)

// Append copies one frame into the open bulk and answers the bulk's ticket. It
// never waits for I/O, allocates nothing per record and wakes nobody but the
// committer, at most three times per bulk.
//
// Errors: mink.ErrInvalid (Start is not the log end, impossible span),
// mink.ErrTooLarge, mink.ErrThrottled (retry later: the log cache is full of
// records that are not uploaded yet), mink.ErrFenced, mink.ErrClosed. An error
// means that nothing was admitted.
func (s *Stream) Append(req AppendRequest) (*Ticket, error) {
	n := 0
	for _, p := range req.Parts {
		n += len(p)
	}
	e := s.engine
	if int64(n) > e.cfg.RecordBytesMax {
		return nil, fmt.Errorf("append to stream %d: frame of %d bytes, the limit is %d: %w", s.id, n, e.cfg.RecordBytesMax, mink.ErrTooLarge)
	}
	if req.Span == 0 || req.Start < 0 || req.Span > math.MaxInt64-uint64(req.Start) {
		return nil, fmt.Errorf("append to stream %d at %d: span %d: %w", s.id, req.Start, req.Span, mink.ErrInvalid)
	}
	e.app.Lock()
	b := e.app.open
	if err := e.admit(s, b, &req, int64(n)); err != nil {
		e.app.Unlock()
		return nil, err
	}
	if s.app.bulk != b.number {
		s.app.bulk, s.app.run = b.number, len(b.runs)
		b.runs = append(b.runs, run{stream: s, id: s.id, epoch: s.epoch, start: req.Start})
		b.mem += runSize
		s.app.pinned += runSize
		b.runs[s.app.run].bytes = runSize
	}
	before, first := b.payload, len(b.entries) == 0
	b.add(s.app.run, &req, n)
	s.app.pinned += int64(n) + entrySize
	s.logEnd.Store(int64(req.Start) + int64(req.Span))
	crossed := func(mark int64) bool { return before < mark && b.payload >= mark }
	wake := first || crossed(earlyBytes) || crossed(e.cfg.WALBatchBytes)
	t := b.ticket
	e.app.Unlock()
	if wake {
		e.committerWake.signal()
	}
	return t, nil
}

// inBulk is what the stream has in the open bulk, bytes; it needs engine.app held.
func (s *Stream) inBulk(b *bulk) int64 {
	if s.app.bulk != b.number {
		return 0
	}
	return b.runs[s.app.run].frameBytes
}

// admit needs e.app held.
func (e *Engine) admit(s *Stream, b *bulk, req *AppendRequest, n int64) error {
	switch {
	case e.app.failed != nil:
		return fmt.Errorf("append to stream %d: %w", s.id, e.app.failed)
	case s.app.drains:
		return fmt.Errorf("append to stream %d: another node is about to lead it: %w: %w", s.id, mink.ErrUnavailable, mink.ErrClosed)
	case s.app.closed:
		return fmt.Errorf("append to stream %d: %w", s.id, mink.ErrClosed)
	case e.app.draining:
		return fmt.Errorf("append to stream %d: the engine stops: %w", s.id, mink.ErrClosed)
	case int64(req.Start) != s.logEnd.Load():
		return fmt.Errorf("append to stream %d at %d: the log ends at %d: %w", s.id, req.Start, s.logEnd.Load(), mink.ErrInvalid)
	case b.payload > 0 && (b.payload+n > e.cfg.WALBulkBytesMax || s.inBulk(b)+n > e.cfg.WALBulkBytesMax/4*3):
		// A hot stream leaves a quarter to the others.
		return fmt.Errorf("append to stream %d: the write-ahead log is behind: %w", s.id, mink.ErrThrottled)
	}
	if pinned := e.app.pinned + b.mem; pinned+b.room(int(n))+entrySize+runSize > e.cfg.throttleAt() {
		e.hurryUpload()
		return fmt.Errorf("append to stream %d: %d bytes wait for upload: %w", s.id, pinned, mink.ErrThrottled)
	}
	if s.app.pinned > 0 && s.app.pinned+n+entrySize+runSize > e.cfg.streamMax() {
		e.hurryUpload()
		return fmt.Errorf("append to stream %d: %d bytes of it wait for upload: %w", s.id, s.app.pinned, mink.ErrThrottled)
	}
	return nil
}
