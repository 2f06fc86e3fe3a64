package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// silence watches a stream to a bucket's leader. While an answer is awaited that does
// not come for LookAfter, other nodes are asked who leads the bucket, and again as
// often; once it is another one the stream ends with a NotLeaderError. A leader that
// stands still costs its lease by that, not the time until a ping notices.
//
//	expect --> LookAfter --> who leads? --> the same: wait on
//	  ^                          `--------> another: the stream ends
//	heard
//
// Safe for concurrent use.
type silence struct {
	v      *tableView
	led    api.Bucket // when the stream began
	ctx    context.Context
	cancel context.CancelCauseFunc
	tail   bool // silence is nothing special: looks become rarer

	looks sync.WaitGroup
	mu    struct {
		sync.Mutex
		timer   *time.Timer
		after   time.Duration
		waiting bool
		ended   bool
	}
}

// tailLookMax is how many times LookAfter the looks of a tail come to lie apart.
const tailLookMax = 8

// watch begins to watch a stream to the leader that v knows; the stream runs in the
// context that it answers.
func (v *tableView) watch(ctx context.Context, led api.Bucket, tail bool) (context.Context, *silence) {
	s := &silence{v: v, led: led, tail: tail}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s.ctx, s
}

// expect says that an answer is awaited.
func (s *silence) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.waiting || s.mu.ended {
		return
	}
	s.mu.waiting, s.mu.after = true, s.v.c.cfg.LookAfter
	if s.mu.timer == nil {
		s.mu.timer = time.AfterFunc(s.mu.after, s.look)
	} else {
		s.mu.timer.Reset(s.mu.after)
	}
}

// heard says that it came.
func (s *silence) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked()
}

func (s *silence) stopLocked() {
	s.mu.waiting = false
	if s.mu.timer != nil {
		s.mu.timer.Stop()
	}
}

func (s *silence) look() {
	s.mu.Lock()
	if !s.mu.waiting {
		s.mu.Unlock()
		return
	}
	s.looks.Add(1)
	s.mu.Unlock()
	defer s.looks.Done()
	err := s.v.refreshShared(s.ctx)
	now := s.v.bucket(s.led.Bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.mu.waiting:
	case err == nil && now.Address != "" && now.LeaderEpoch != s.led.LeaderEpoch:
		s.stopLocked()
		s.cancel(fmt.Errorf("%s does not answer: %w", s.led.Address,
			&mink.NotLeaderError{Bucket: now.Bucket, Leader: now.Leader, Address: now.Address, Epoch: now.LeaderEpoch}))
	default:
		if s.tail {
			s.mu.after = min(2*s.mu.after, tailLookMax*s.v.c.cfg.LookAfter)
		}
		s.mu.timer.Reset(s.mu.after)
	}
}

// end ends the watch and the stream's context.
func (s *silence) end() {
	s.mu.Lock()
	s.mu.ended = true
	s.stopLocked()
	s.mu.Unlock()
	s.cancel(context.Canceled)
	s.looks.Wait()
}

// why is what the stream ended with: err, unless that came of the end of the watch. It
// is called once, at the stream's end.
func (s *silence) why(err error) error {
	if err != nil && retriable(err) {
		s.v.c.failedAt(s.led.Address)
	}
	if cause := context.Cause(s.ctx); err != nil && cause != nil && retriable(cause) {
		return cause
	}
	return err
}
