package flight

import "github.com/apache/arrow-go/v18/arrow/memory"

// SetAllocator replaces the allocator of rows and answers how to put it back.
func SetAllocator(mem memory.Allocator) (back func()) {
	old := allocator
	allocator = mem
	return func() { allocator = old }
}
