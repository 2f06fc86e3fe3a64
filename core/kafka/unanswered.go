package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// heldGrowth is how many bytes of memory a waiting request takes per byte of its
// frame, at most: what it was decoded to and, of a fetch, the partitions at work.
const heldGrowth = 20

// unanswered bounds the memory of requests that wait for their answer, over all
// connections:
//
//	connection 1  [ allowance |   shared    ]
//	connection 2  [ allow..   |             ]      what a connection holds beyond its allowance
//	connection 3  [ allowance | shared ]           comes out of the one budget
//
// The allowance keeps clients with ordinary requests apart from those that fill
// the budget: these never wait. While somebody waits for the budget, the fetches
// of connections that hold a part of it answer at once with what they have, as at
// the end of their time; and when that is not enough within patience, the
// connection with the largest part is closed.
type unanswered struct {
	budget    *semaphore.Weighted
	max       int64
	allowance int64
	patience  time.Duration

	mu struct {
		sync.Mutex
		waiting int // requests that wait for the budget
		holders map[*holder]struct{}
	}
}

// holder is a connection's part. Guarded by unanswered.mu, except evict.
type holder struct {
	memory, shared int64
	hurry          chan struct{} // closed while others wait for what it holds
	hurried        bool
	evict          func(why error) // ends the connection; safe to call again
}

func newUnanswered(budget, allowance int64, patience time.Duration) *unanswered {
	u := &unanswered{budget: semaphore.NewWeighted(budget), max: budget, allowance: allowance, patience: patience}
	u.mu.holders = map[*holder]struct{}{}
	return u
}

var errEvicted = errors.New("its unanswered requests hold the most memory, and others wait for it")

// acquire counts a request of so much memory, and answers its part of the budget,
// for which it may wait. One goroutine per holder.
func (u *unanswered) acquire(ctx context.Context, h *holder, memory int64) (share int64, err error) {
	u.mu.Lock()
	share = min(max(h.memory+memory-max(u.allowance, h.memory), 0), u.max)
	u.mu.Unlock()
	if share > 0 && !u.budget.TryAcquire(share) {
		if err := u.wait(ctx, share); err != nil {
			return 0, err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	h.memory += memory
	h.shared += share
	if h.shared > 0 {
		u.mu.holders[h] = struct{}{}
	}
	u.hasten(h)
	return share, nil
}

func (u *unanswered) wait(ctx context.Context, share int64) error {
	u.crowd(+1)
	defer u.crowd(-1)
	for {
		waited, cancel := context.WithTimeout(ctx, u.patience)
		err := u.budget.Acquire(waited, share)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if h := u.largest(); h != nil {
			h.evict(errEvicted)
		}
	}
}

// crowd counts those that wait, and tells the holders when that begins and ends.
func (u *unanswered) crowd(delta int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.waiting += delta
	for h := range u.mu.holders {
		u.hasten(h)
	}
}

// hasten brings h.hurry to what it should be. Under mu.
func (u *unanswered) hasten(h *holder) {
	switch want := u.mu.waiting > 0 && h.shared > 0; {
	case want && !h.hurried:
		close(h.hurry)
		h.hurried = true
	case !want && h.hurried:
		h.hurry, h.hurried = make(chan struct{}), false
	}
}

func (u *unanswered) largest() *holder {
	u.mu.Lock()
	defer u.mu.Unlock()
	var most *holder
	for h := range u.mu.holders {
		if most == nil || h.shared > most.shared {
			most = h
		}
	}
	return most
}

// release gives back what acquire counted. The budget comes last: else the next one
// counts what it got of it before this one has let go.
func (u *unanswered) release(h *holder, memory, share int64) {
	if share > 0 {
		defer u.budget.Release(share)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	h.memory -= memory
	if h.shared -= share; h.shared == 0 {
		delete(u.mu.holders, h)
	}
	u.hasten(h)
}

// hurry is closed once others wait for what h holds: its requests should be
// answered.
func (u *unanswered) hurry(h *holder) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return h.hurry
}
