package fault

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// Pending is a call that Hold, Late or Pause keeps.
type Pending struct {
	Call Call

	store *Store
	by    *Injection
	run   func() error

	ended atomic.Bool
	err   error         // the inner store's, once done is closed
	done  chan struct{} // closed when it landed or was dropped

	leave     sync.Once
	abandoned chan struct{} // closed when the caller shall not wait any longer
}

func (s *Store) hold(ctx context.Context, p *plan, run func(context.Context) error) *Pending {
	// The request is on its way: the end of its caller's context no longer stops it.
	ctx = context.WithoutCancel(ctx)
	h := &Pending{
		Call:      p.call,
		store:     s,
		by:        p.by,
		run:       func() error { return run(ctx) },
		done:      make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.pending = append(s.mu.pending, h)
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
	return h
}

func (h *Pending) wait(ctx context.Context) error {
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		return gaveUp(h.Call, ctx.Err())
	case <-h.abandoned:
		return gaveUp(h.Call, fmt.Errorf("%w: %w", objstore.ErrUnavailable, errClosed))
	}
}

func (h *Pending) abandon() { h.leave.Do(func() { close(h.abandoned) }) }

// Land does the operation now, in this goroutine, hands the result to the caller
// if it still waits, and answers the inner store's error. Again: the same answer.
func (h *Pending) Land() error {
	h.end(h.run)
	return h.err
}

// Drop makes the call never land; a caller that still waits gets
// ErrUnavailable.
func (h *Pending) Drop() {
	h.end(func() error { return injected(h.Call, objstore.ErrUnavailable) })
}

func (h *Pending) end(how func() error) {
	if h.ended.CompareAndSwap(false, true) { // no sync.Once: how may block
		h.err = how()
		h.store.forget(h)
		close(h.done)
	}
	<-h.done
}

func (s *Store) forget(h *Pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.pending = slices.DeleteFunc(s.mu.pending, func(p *Pending) bool { return p == h })
}

// landLate lands h after d; 0 leaves it to the test.
func (s *Store) landLate(h *Pending, d time.Duration) {
	if d <= 0 {
		return
	}
	s.late.Add(1)
	time.AfterFunc(d, func() {
		defer s.late.Done()
		_ = h.Land() // nobody waits for it any more
	})
}

// WaitLate waits until every LateAfter so far has landed.
func (s *Store) WaitLate() { s.late.Wait() }

// Pending are the calls held now, oldest first.
func (s *Store) Pending() []*Pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.pending)
}

// WaitPending waits until at least n calls are held.
func (s *Store) WaitPending(ctx context.Context, n int) ([]*Pending, error) {
	for {
		s.mu.Lock()
		held, changed := slices.Clone(s.mu.pending), s.mu.changed
		s.mu.Unlock()
		if len(held) >= n {
			return held, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %d held calls, %d are: %w", n, len(held), ctx.Err())
		}
	}
}

// LandAll lands every held call, oldest first.
func (s *Store) LandAll() {
	for _, h := range s.Pending() {
		_ = h.Land() // the caller, if any, gets the error
	}
}

// DropAll drops every held call.
func (s *Store) DropAll() {
	for _, h := range s.Pending() {
		h.Drop()
	}
}

// Pause holds every call of ops under the prefix (as Hold does) until release,
// which lands them, oldest first, and lets later ones pass. A second release does
// nothing.
func (s *Store) Pause(ops Op, prefix string) (release func()) {
	in := s.Inject(Rule{Ops: ops, Prefix: prefix, Do: Hold()})
	return func() {
		in.Remove()
		for _, h := range s.Pending() {
			if h.by == in {
				_ = h.Land() // the caller, if any, gets the error
			}
		}
	}
}
