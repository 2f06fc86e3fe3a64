package wire

import (
	"fmt"
	"os"
	"sync"

	pb "github.com/mink-project/mink/sdk/internal/pluginpb/v1"
	"github.com/mink-project/mink/sdk/objstore"
)

// SharedEnv tells a plugin that it inherits the shared memory; its value is the
// size in bytes. SharedFD is the descriptor.
const (
	SharedEnv = "MINK_PLUGIN_SHARED_MEMORY"
	SharedFD  = 3
)

// Below sharedFrom an object goes with its message: the copy costs nothing then.
const (
	sharedFrom  = 64 << 10
	slotSize    = 8 << 20 // the largest object that a span takes
	slotCount   = 8
	sharedBytes = slotSize * slotCount
)

// Shared is the host's side of the memory that it shares with one plugin process:
// slots, each for one call at a time.
//
// The rule that keeps foreign bytes out of objects: a plugin touches a slot only
// before it answers the call, so that a slot is used again after an answer. The
// slot of a call that ended without one (a deadline, a broken connection) may be
// read or written late: it is lost until the process ends, with which all of the
// memory goes. When no slot is free, bytes go as messages.
type Shared struct {
	file *os.File // for the child to inherit
	mem  []byte

	mu struct {
		sync.Mutex
		free   []int
		users  int // slots taken and not given back or lost
		lost   int
		closed bool
	}
}

// NewShared makes the memory; nil where the system has none of the kind, or gives
// none.
func NewShared() *Shared {
	f, mem, err := createShared(sharedBytes)
	if err != nil {
		return nil
	}
	s := &Shared{file: f, mem: mem}
	for i := range slotCount {
		s.mu.free = append(s.mu.free, i)
	}
	return s
}

// File is the descriptor for the child, to stand at SharedFD.
func (s *Shared) File() *os.File { return s.file }

// Env is the variable for the child.
func (s *Shared) Env() string { return fmt.Sprintf("%s=%d", SharedEnv, len(s.mem)) }

// Lost counts the slots that are not used again.
func (s *Shared) Lost() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.lost
}

// Close gives the memory back when the last call that uses it is over. Call it
// when the process has ended.
func (s *Shared) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.mu.closed = true
	s.unmapIfIdle()
	s.mu.Unlock()
	_ = s.file.Close()
}

// unmapIfIdle runs under the lock.
func (s *Shared) unmapIfIdle() {
	if s.mu.closed && s.mu.users == 0 && s.mem != nil {
		unmapShared(s.mem)
		s.mem = nil
	}
}

// slot is one call's piece of the memory.
type slot struct {
	of    *Shared
	index int
	mem   []byte
}

// take answers a free slot for n bytes, or nil: then bytes go as messages.
func (s *Shared) take(n int64) *slot {
	if s == nil || n < sharedFrom || n > slotSize {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || len(s.mu.free) == 0 {
		return nil
	}
	i := s.mu.free[len(s.mu.free)-1]
	s.mu.free = s.mu.free[:len(s.mu.free)-1]
	s.mu.users++
	return &slot{of: s, index: i, mem: s.mem[i*slotSize : (i+1)*slotSize : (i+1)*slotSize]}
}

func (s *slot) span(n int64) *pb.Span {
	return &pb.Span{Offset: uint64(s.index) * slotSize, Length: uint64(n)} //nolint:gosec // 0..slotSize
}

// done ends the call's use of the slot. answered: the plugin's answer came, whatever
// it says. On a nil slot it does nothing.
func (s *slot) done(answered bool) {
	if s == nil {
		return
	}
	sh := s.of
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.users--
	if answered {
		sh.mu.free = append(sh.mu.free, s.index)
	} else {
		sh.mu.lost++
	}
	sh.unmapIfIdle()
}

// fill copies the chunks into the slot.
func (s *slot) fill(chunks [][]byte) {
	n := 0
	for _, c := range chunks {
		n += copy(s.mem[n:], c)
	}
}

// Region is the plugin's side: the memory as the host made it; nil for none.
type Region []byte

// at answers the memory of a span.
func (r Region) at(s *pb.Span) ([]byte, error) {
	size := uint64(len(r))
	if s.GetLength() > size || s.GetOffset() > size-s.GetLength() {
		return nil, fmt.Errorf("%w: span [%d, +%d) of a shared memory of %d bytes", objstore.ErrInvalid, s.GetOffset(), s.GetLength(), size)
	}
	end := s.GetOffset() + s.GetLength()
	return r[s.GetOffset():end:end], nil
}
