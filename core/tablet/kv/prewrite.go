package kv

import (
	"unsafe"

	"github.com/mink-project/mink/sdk/mink"
)

// prewrite is the newest row of each key that is on its way to the store: what the
// next put merges with. Whoever has the turn uses it, nobody else; reads never do.
//
// Its entries point into flights. Those of a flight that was flushed say what the
// store says; who read the store before that flush must find them here, or learn by
// dropped that they are gone (prefetch.go).
type prewrite struct {
	rows    map[string]place
	undo    []undo
	peak    int         // of rows, since the map was made
	dropped mink.Offset // changes below it may be here no more
}

// keepRows is the largest map that is kept when it is empty: maps do not shrink. Undos
// as well.
const keepRows = 8192

// place is a row in a flight.
type place struct {
	of *flight
	at int // in of.rows.ops
}

type undo struct {
	key string
	was place // of == nil: there was none
}

// get answers the row of a key: ok is false when no put on its way has the key; the
// value is nil when it was deleted.
func (p *prewrite) get(key []byte) (value []byte, ok bool) {
	e, ok := p.rows[string(key)]
	if !ok {
		return nil, false
	}
	return e.of.rows.value(e.at), true
}

// add takes in the newest row of f; back takes it out again until done.
func (p *prewrite) add(f *flight) {
	at := len(f.rows.ops) - 1
	key := text(f.rows.key(at))
	if p.rows == nil {
		p.rows = map[string]place{}
	}
	was := p.rows[key]
	p.undo = append(p.undo, undo{key, was})
	if was.of != nil {
		delete(p.rows, key) // the map keeps the key it has: it must not keep the older flight
	}
	p.rows[key] = place{f, at}
	p.peak = max(p.peak, len(p.rows))
}

// done ends a put, and lets go of the rows that it replaced.
func (p *prewrite) done() {
	clear(p.undo)
	if p.undo = p.undo[:0]; cap(p.undo) > keepRows {
		p.undo = nil
	}
}

// back takes out what was added since done.
func (p *prewrite) back() {
	for i := len(p.undo) - 1; i >= 0; i-- {
		u := p.undo[i]
		delete(p.rows, u.key)
		if u.was.of != nil {
			p.rows[text(u.was.of.rows.key(u.was.at))] = u.was
		}
	}
	p.done()
}

// drop takes out the rows of a flight that no later one has.
func (p *prewrite) drop(f *flight) {
	p.dropped = max(p.dropped, f.end)
	for i := range f.rows.ops {
		if key := text(f.rows.key(i)); p.rows[key] == (place{f, i}) {
			delete(p.rows, key)
		}
	}
	if len(p.rows) == 0 && p.peak > keepRows {
		p.rows, p.peak = nil, 0
	}
}

// text is b as a string, without a copy: b does not change any more.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
