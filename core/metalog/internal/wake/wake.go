// Package wake tells waiters that an index has grown.
package wake

import "sync"

// Signal is a growing index that can be waited for. The zero value stands at 0.
type Signal struct {
	mu struct {
		sync.Mutex
		index uint64
		next  chan struct{} // closed at the next advance; nil: nobody asked
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Advance raises the index; lower ones are ignored.
func (s *Signal) Advance(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index <= s.mu.index {
		return
	}
	s.mu.index = index
	if s.mu.next != nil {
		close(s.mu.next)
		s.mu.next = nil
	}
}

// Poke wakes all waiters without an advance: they look for themselves.
func (s *Signal) Poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.next != nil {
		close(s.mu.next)
		s.mu.next = nil
	}
}

// Changed is closed once the index is above the given one, or at a Poke.
func (s *Signal) Changed(index uint64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.index > index {
		return closed
	}
	if s.mu.next == nil {
		s.mu.next = make(chan struct{})
	}
	return s.mu.next
}
