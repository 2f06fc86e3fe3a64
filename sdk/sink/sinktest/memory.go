package sinktest

import "github.com/apache/arrow-go/v18/arrow/memory"

// scribbler is an allocator that overwrites what is freed: a sink that keeps a
// batch without Retain shows wrong rows.
type scribbler struct{ memory.Allocator }

func newScribbler() *scribbler { return &scribbler{memory.NewGoAllocator()} }

func (s *scribbler) Free(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
	s.Allocator.Free(b)
}

func (s *scribbler) Reallocate(size int, b []byte) []byte {
	next := s.Allocate(size)
	copy(next, b)
	s.Free(b)
	return next
}
