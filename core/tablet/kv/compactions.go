package kv

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// compactions bounds how many compactions run at a time in all stores of a node.
// Each store has a seat, which is its pebble.CompactionScheduler.
//
// A store that is refused waits until a compaction ends anywhere. Permissions that
// come late are given by one goroutine, because stores ask and report with their
// own locks held. Lock order: a store's, then mu.
type compactions struct {
	max  int
	poke chan struct{}
	stop chan struct{}
	done chan struct{}

	mu struct {
		sync.Mutex
		running int
		waiting []*seat // in the order of their turns
		calling *seat   // whose store the goroutine is in
		called  sync.Cond
	}
}

func newCompactions(most int) *compactions {
	c := &compactions{max: most, poke: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	c.mu.called.L = &c.mu
	go c.grant()
	return c
}

func (c *compactions) close() {
	close(c.stop)
	<-c.done
}

func (c *compactions) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.running
}

func (c *compactions) wake() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// grant gives the permissions that were refused before, store by store.
func (c *compactions) grant() {
	defer close(c.done)
	for {
		select {
		case <-c.stop:
			return
		case <-c.poke:
		}
		for c.grantOne() {
		}
	}
}

// grantOne offers one permission to the store that has waited longest; false when
// there is none to give or nobody to take it.
func (c *compactions) grantOne() bool {
	c.mu.Lock()
	if c.mu.running >= c.max || len(c.mu.waiting) == 0 {
		c.mu.Unlock()
		return false
	}
	s := c.mu.waiting[0]
	c.mu.waiting = c.mu.waiting[1:]
	s.waiting = false
	if s.running >= s.db.GetAllowedWithoutPermission() {
		c.mu.Unlock() // it asks again when one of its own has ended
		return true
	}
	c.mu.calling = s
	c.mu.running++
	s.running++
	c.mu.Unlock()

	more, _ := s.db.GetWaitingCompaction()
	taken := more && s.db.Schedule(s)

	c.mu.Lock()
	defer c.mu.Unlock()
	if !taken {
		c.mu.running--
		s.running--
	} else if !s.gone {
		s.wait() // it may have another one
	}
	c.mu.calling = nil
	c.mu.called.Broadcast()
	return true
}

// seat is one store's part.
type seat struct {
	c  *compactions
	db pebble.DBForCompaction // set before any other call

	// Guarded by compactions.mu.
	running int
	waiting bool
	gone    bool
}

var (
	_ pebble.CompactionScheduler   = (*seat)(nil)
	_ pebble.CompactionGrantHandle = (*seat)(nil)
)

// wait puts the seat at the end of the line. Under mu.
func (s *seat) wait() {
	if !s.waiting {
		s.waiting = true
		s.c.mu.waiting = append(s.c.mu.waiting, s)
	}
}

// Register implements pebble.CompactionScheduler.
func (s *seat) Register(_ int, db pebble.DBForCompaction) { s.db = db }

// Unregister implements pebble.CompactionScheduler: no call into the store is under
// way afterwards.
func (s *seat) Unregister() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.gone = true
	for i, w := range c.mu.waiting {
		if w == s {
			c.mu.waiting = append(c.mu.waiting[:i:i], c.mu.waiting[i+1:]...)
			break
		}
	}
	for c.mu.calling == s {
		c.mu.called.Wait()
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (s *seat) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.gone:
		return false, nil
	case c.mu.running >= c.max || s.running >= s.db.GetAllowedWithoutPermission():
		s.wait()
		return false, nil
	}
	c.mu.running++
	s.running++
	return true, s
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (s *seat) UpdateGetAllowedWithoutPermission() { s.c.wake() }

// Started implements pebble.CompactionGrantHandle.
func (s *seat) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (s *seat) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (s *seat) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle.
func (s *seat) Done() {
	c := s.c
	c.mu.Lock()
	c.mu.running--
	s.running--
	if !s.gone {
		s.wait() // one that its own limit held back was dropped from the line
	}
	c.mu.Unlock()
	c.wake()
}
