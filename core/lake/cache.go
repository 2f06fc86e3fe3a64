package lake

import (
	"container/list"
	"sync"
)

// cache keeps what was used last, up to a number of bytes. Values never change.
type cache[V any] struct {
	mu    sync.Mutex
	most  int64
	bytes int64
	order *list.List // of *cached[V], the one used last in front
	items map[string]*list.Element
}

type cached[V any] struct {
	key   string
	value V
	bytes int64
}

func newCache[V any](most int64) *cache[V] {
	return &cache[V]{most: most, order: list.New(), items: map[string]*list.Element{}}
}

func (c *cache[V]) get(key string) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[key]
	if !ok {
		return v, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached[V]).value, true
}

// put keeps the value unless it would take more than a quarter of the cache.
func (c *cache[V]) put(key string, value V, bytes int64) {
	bytes += int64(len(key)) + 100
	if bytes > c.most/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		c.remove(e)
	}
	c.items[key] = c.order.PushFront(&cached[V]{key, value, bytes})
	c.bytes += bytes
	for c.bytes > c.most {
		c.remove(c.order.Back())
	}
}

func (c *cache[V]) drop(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		c.remove(e)
	}
}

func (c *cache[V]) remove(e *list.Element) {
	item := c.order.Remove(e).(*cached[V])
	delete(c.items, item.key)
	c.bytes -= item.bytes
}
