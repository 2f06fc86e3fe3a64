package cluster

import (
	"cmp"
	"iter"

	"github.com/tidwall/btree"
)

// pmap is an ordered map inside a State. Writers copy the handle once per batch
// (own), which shares all nodes with the older states; what they change is
// copied node by node. Readers of older handles are never disturbed: a lookup
// reads nodes only, and no node reachable from an older handle is written.
type pmap[K interface {
	cmp.Ordered
	~int32 | ~int64 | ~string
}, V any] struct {
	m     *btree.Map[K, V]
	fresh bool // m was copied by the batch being applied
}

func newPmap[K interface {
	cmp.Ordered
	~int32 | ~int64 | ~string
}, V any]() pmap[K, V] {
	return pmap[K, V]{m: btree.NewMap[K, V](0)}
}

func (p *pmap[K, V]) own() {
	if !p.fresh {
		p.m, p.fresh = p.m.Copy(), true
	}
}

func (p *pmap[K, V]) get(k K) (V, bool) { return p.m.Get(k) }

func (p *pmap[K, V]) len() int { return p.m.Len() }

func (p *pmap[K, V]) set(k K, v V) {
	p.own()
	p.m.Set(k, v)
}

func (p *pmap[K, V]) del(k K) {
	if _, ok := p.m.Get(k); ok {
		p.own()
		p.m.Delete(k)
	}
}

// all iterates in key order over the map as it is now.
func (p *pmap[K, V]) all() iter.Seq2[K, V] {
	m := p.m
	return func(yield func(K, V) bool) { m.Scan(yield) }
}

// from iterates in key order from the first key >= k.
func (p *pmap[K, V]) from(k K) iter.Seq2[K, V] {
	m := p.m
	return func(yield func(K, V) bool) { m.Ascend(k, yield) }
}

// pset is pmap for items that hold their own key.
type pset[T any] struct {
	t     *btree.BTreeG[T]
	fresh bool
}

func newPset[T any](less func(a, b T) bool) pset[T] {
	return pset[T]{t: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (p *pset[T]) own() {
	if !p.fresh {
		p.t, p.fresh = p.t.Copy(), true
	}
}

func (p *pset[T]) get(key T) (T, bool) { return p.t.Get(key) }

func (p *pset[T]) len() int { return p.t.Len() }

func (p *pset[T]) set(item T) {
	p.own()
	p.t.Set(item)
}

func (p *pset[T]) del(key T) {
	if _, ok := p.t.Get(key); ok {
		p.own()
		p.t.Delete(key)
	}
}

func (p *pset[T]) all() iter.Seq[T] {
	t := p.t
	return func(yield func(T) bool) { t.Scan(yield) }
}

func (p *pset[T]) from(key T) iter.Seq[T] {
	t := p.t
	return func(yield func(T) bool) { t.Ascend(key, yield) }
}

func first[T any](seq iter.Seq[T]) (v T, found bool) {
	seq(func(x T) bool {
		v, found = x, true
		return false
	})
	return v, found
}
