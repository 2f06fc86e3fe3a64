// Package cache keeps what costs a request to the object store: parsed indexes
// and decoded blocks. Entries have a cost in bytes and are evicted by CLOCK;
// however many ask for an absent key at once, one of them loads it.
package cache

import (
	"context"
	"errors"
	"sync"
)

// Cache is a bounded map. Values must be immutable: all readers share them. Safe
// for concurrent use.
type Cache[K comparable, V any] struct {
	limit int64

	mu struct {
		sync.Mutex
		entries map[K]*entry[K, V]
		ring    []*entry[K, V]
		hand    int
		used    int64
		flights map[K]*Flight[K, V]
		hits    int64
		misses  int64
	}
}

type entry[K comparable, V any] struct {
	key   K
	value V
	cost  int64
	slot  int  // in ring
	ref   bool // used since the hand came by
}

// Flight is one load in progress.
type Flight[K comparable, V any] struct {
	cache *Cache[K, V]
	key   K
	done  chan struct{}
	value V
	err   error
}

// Stats is what a cache holds and how often it helped.
type Stats struct {
	Bytes, Entries int64
	Hits, Misses   int64 // a miss that joins another's load counts as a hit
}

// New makes a cache of at most limit bytes; 0 keeps nothing, but still lets one
// load serve all who wait.
func New[K comparable, V any](limit int64) *Cache[K, V] {
	c := &Cache[K, V]{limit: limit}
	c.mu.entries = map[K]*entry[K, V]{}
	c.mu.flights = map[K]*Flight[K, V]{}
	return c
}

// Get answers a cached value.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.get(key)
}

func (c *Cache[K, V]) get(key K) (V, bool) {
	if e, ok := c.mu.entries[key]; ok {
		e.ref = true
		c.mu.hits++
		return e.value, true
	}
	var zero V
	return zero, false
}

// Begin answers the cached value (cached), or the load of the key: the caller's
// own, which it must end with Done (mine), or another's to Wait for.
func (c *Cache[K, V]) Begin(key K) (value V, cached bool, f *Flight[K, V], mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value, cached = c.get(key); cached {
		return value, true, nil, false
	}
	if f = c.mu.flights[key]; f != nil {
		c.mu.hits++
		return value, false, f, false
	}
	c.mu.misses++
	f = &Flight[K, V]{cache: c, key: key, done: make(chan struct{})}
	c.mu.flights[key] = f
	return value, false, f, true
}

// Done ends a load. On a nil error the value is cached at its cost.
func (f *Flight[K, V]) Done(value V, cost int64, err error) {
	c := f.cache
	c.mu.Lock()
	f.value, f.err = value, err
	delete(c.mu.flights, f.key)
	if err == nil {
		c.put(f.key, value, cost)
	}
	c.mu.Unlock()
	close(f.done)
}

// Wait answers what the load brought. retry: the loader gave up for reasons of
// its own (its context); the caller should begin again.
func (f *Flight[K, V]) Wait(ctx context.Context) (value V, retry bool, err error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		return value, false, ctx.Err()
	}
	if errors.Is(f.err, context.Canceled) || errors.Is(f.err, context.DeadlineExceeded) {
		return value, ctx.Err() == nil, f.err
	}
	return f.value, false, f.err
}

// Load answers the value of the key, loading it if nobody else does.
func (c *Cache[K, V]) Load(ctx context.Context, key K, load func(context.Context) (V, int64, error)) (V, error) {
	for {
		value, cached, f, mine := c.Begin(key)
		if cached {
			return value, nil
		}
		if mine {
			v, cost, err := load(ctx)
			f.Done(v, cost, err)
			return v, err
		}
		v, retry, err := f.Wait(ctx)
		if !retry {
			return v, err
		}
	}
}

// put needs mu held. What is larger than half the cache is not kept: it
// would push out all that is useful.
func (c *Cache[K, V]) put(key K, value V, cost int64) {
	if e, ok := c.mu.entries[key]; ok {
		c.remove(e)
	}
	if cost > c.limit/2 {
		return
	}
	for c.mu.used+cost > c.limit {
		c.evictOne()
	}
	e := &entry[K, V]{key: key, value: value, cost: cost, slot: len(c.mu.ring)}
	c.mu.ring = append(c.mu.ring, e)
	c.mu.entries[key] = e
	c.mu.used += cost
}

func (c *Cache[K, V]) evictOne() {
	for {
		if c.mu.hand >= len(c.mu.ring) {
			c.mu.hand = 0
		}
		e := c.mu.ring[c.mu.hand]
		if !e.ref {
			c.remove(e)
			return
		}
		e.ref = false
		c.mu.hand++
	}
}

// remove fills the slot with the last entry: CLOCK order is approximate anyway.
func (c *Cache[K, V]) remove(e *entry[K, V]) {
	last := len(c.mu.ring) - 1
	c.mu.ring[e.slot] = c.mu.ring[last]
	c.mu.ring[e.slot].slot = e.slot
	c.mu.ring[last] = nil
	c.mu.ring = c.mu.ring[:last]
	delete(c.mu.entries, e.key)
	c.mu.used -= e.cost
}

// Drop forgets the keys for which the function answers true.
func (c *Cache[K, V]) Drop(match func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; i < len(c.mu.ring); {
		if match(c.mu.ring[i].key) {
			c.remove(c.mu.ring[i])
		} else {
			i++
		}
	}
}

// Stats is a snapshot.
func (c *Cache[K, V]) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{Bytes: c.mu.used, Entries: int64(len(c.mu.ring)), Hits: c.mu.hits, Misses: c.mu.misses}
}
