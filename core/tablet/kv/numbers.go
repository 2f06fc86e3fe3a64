package kv

import (
	"context"
	"fmt"
	"sync"

	"github.com/mink-project/mink/sdk/mink"
)

// numbers are those of the auto-increment column that were leased and are not given
// out. They are given out by whoever has the turn; a put that fails gives back its
// own. What is left when the tablet closes is never used.
type numbers struct {
	mu     sync.Mutex
	ranges []numberRange
	used   []numberRange // by the put that has the turn
	left   int64
}

type numberRange struct{ next, last int64 }

// lack is how many are missing to n.
func (s *numbers) lack(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(n-s.left, 0)
}

// lease takes at least n from the metadata. Callers do not wait for one another: what
// is too many now is there for the next put.
func (s *numbers) lease(ctx context.Context, n int64, cfg *Config) error {
	if cfg.LeaseIDs == nil {
		return fmt.Errorf("lease of auto-increment numbers: %w here", mink.ErrUnsupported)
	}
	n = max(n, cfg.LeaseMin)
	first, last, err := cfg.LeaseIDs(ctx, n)
	if err != nil {
		return fmt.Errorf("lease of %d auto-increment numbers: %w", n, err)
	}
	if first < 1 || last < first {
		return fmt.Errorf("lease of %d auto-increment numbers: got %d to %d: %w", n, first, last, mink.ErrCorrupt)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranges = append(s.ranges, numberRange{first, last})
	s.left += last - first + 1
	return nil
}

// next is one number; lack has said that it is there.
func (s *numbers) next() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.ranges[0]
	n := r.next
	r.next++
	s.left--
	if u := len(s.used); u > 0 && s.used[u-1].last == n-1 {
		s.used[u-1].last = n
	} else {
		s.used = append(s.used, numberRange{n, n})
	}
	if r.next > r.last {
		s.ranges = s.ranges[1:]
	}
	return n
}

// undo gives back what was used since commit.
func (s *numbers) undo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.used) == 0 {
		return
	}
	for _, r := range s.used {
		s.left += r.last - r.next + 1
	}
	s.ranges = append(s.used, s.ranges...)
	s.used = nil
}

func (s *numbers) commit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = s.used[:0]
}
