package stream

import (
	"sync"
	"time"
)

// horizon knows the oldest view that a read may still be using, from the views
// that were seen and when: a read uses a view for at most ReadTimeout.
type horizon struct {
	sync.Mutex
	index uint64
	seen  []sighting // by time; at most horizonSightings and one
}

// sighting: whoever takes a view after at gets this index or a later one.
type sighting struct {
	at    time.Time
	index uint64
}

// horizonSightings is how many sightings one ReadTimeout is resolved into.
const horizonSightings = 32

// ReadHorizon is a metadata index that every read under way has seen: none uses
// an older view. It trails the applied index by ReadTimeout, begins with the view
// that the engine was made on, and never falls. Every heartbeat carries it, so
// that objects are deleted only when no node reads them (Meta.ReadHorizon); the
// more often it is asked for, the closer it follows.
func (e *Engine) ReadHorizon() uint64 {
	index := e.deps.Meta.View().Index() // before the clock: an earlier time would claim too much
	now := time.Now()
	h := &e.horizon
	h.Lock()
	defer h.Unlock()
	if n := len(h.seen); n == 0 || now.Sub(h.seen[n-1].at) >= e.cfg.ReadTimeout/horizonSightings {
		h.seen = append(h.seen, sighting{now, index})
	}
	over := 0
	for over < len(h.seen) && now.Sub(h.seen[over].at) >= e.cfg.ReadTimeout {
		h.index = max(h.index, h.seen[over].index)
		over++
	}
	h.seen = append(h.seen[:0], h.seen[over:]...)
	return h.index
}
