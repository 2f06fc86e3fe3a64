package tablet

import (
	"math"
	"time"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	// windowSize is how many batches of a writer are remembered in full: the
	// most that Kafka's clients keep in flight.
	windowSize = 5
	// WriterExpiry is how long after its last batch a writer is remembered, by
	// the commit timestamps in the log. It is part of the format: every fold of
	// the same log must forget the same writers.
	WriterExpiry = 7 * 24 * time.Hour
	expiryMs     = int64(WriterExpiry / time.Millisecond)
	// maxExpired bounds the expired writers that are known by name; part of the
	// format, as WriterExpiry.
	maxExpired = 4096
	// oldestAge is how far behind its window a retry may be, half the sequence
	// space: further back cannot be told from ahead.
	oldestAge = 1 << 30
)

// stored is one batch that a writer's window remembers.
type stored struct {
	base        mink.Offset
	commit      int64 // ms
	first, last int32 // sequences
	delta       int32 // offsets taken - 1
}

// writer is the window of one writer epoch. No pointers: the table is one slab
// that the garbage collector does not scan.
type writer struct {
	id     mink.WriterID
	commit int64 // ms, of its last batch
	before int64 // sequences accepted in this epoch before ring's oldest batch
	ring   [windowSize]stored
	prev   int32 // towards the writer idle longest; -1: none
	next   int32
	epoch  int16
	head   uint8 // place of the oldest batch
	n      uint8
}

func (w *writer) at(i int) *stored { return &w.ring[(int(w.head)+i)%windowSize] }

func (w *writer) push(s stored) {
	if w.n == windowSize {
		w.before += seqAfter(w.at(0).first, w.at(0).last) + 1
		w.ring[w.head] = s
		w.head = (w.head + 1) % windowSize
	} else {
		w.ring[(int(w.head)+int(w.n))%windowSize] = s
		w.n++
	}
	w.commit = s.commit
}

// seqAfter is how many steps b lies after a in the sequence space [0, 2^31).
func seqAfter(a, b int32) int64 { return (int64(b) - int64(a)) & math.MaxInt32 }

// nextSeq follows seq; it wraps to 0.
func nextSeq(seq int32) int32 { return int32((int64(seq) + 1) & math.MaxInt32) }

// expired is a writer that was forgotten.
type expired struct {
	id    mink.WriterID
	epoch int16
}

// writers holds the windows of a log, linked by idleness, and who expired.
type writers struct {
	slab    []writer
	free    []int32
	index   map[mink.WriterID]int32
	oldest  int32 // -1: empty
	newest  int32
	expired []expired // in the order they expired
	// floor: writers up to this id may have expired without being listed.
	// Ids are allocated in order, so young writers are above it.
	floor mink.WriterID
}

func newWriters() writers {
	return writers{index: map[mink.WriterID]int32{}, oldest: -1, newest: -1, floor: -1}
}

func (t *writers) len() int { return len(t.index) }

// verdict is what the window says about a batch.
type verdict struct {
	duplicate bool
	known     bool // which of the five it repeats; else it is older
	stored    stored
}

// check judges a batch that would commit at now. It changes nothing.
func (t *writers) check(h *record.Header, now int64) (verdict, error) {
	i, ok := t.index[h.WriterID]
	if ok && t.slab[i].commit >= now-expiryMs {
		return t.slab[i].check(h)
	}
	forgotten, known := ok || h.WriterID <= t.floor, int16(-1)
	if ok {
		known = t.slab[i].epoch
	} else {
		for _, e := range t.expired {
			if e.id == h.WriterID {
				forgotten, known = true, e.epoch
			}
		}
	}
	switch {
	case h.WriterEpoch < known:
		return verdict{}, &WriterFencedError{Writer: h.WriterID, Epoch: h.WriterEpoch, Known: known}
	case h.Sequence != 0 && !forgotten:
		return verdict{}, outOfOrder(h, 0)
	}
	return verdict{}, nil
}

func outOfOrder(h *record.Header, next int32) error {
	return &OutOfOrderError{Writer: h.WriterID, Epoch: h.WriterEpoch, First: h.Sequence, Last: h.LastSequence, Next: next}
}

func (w *writer) check(h *record.Header) (verdict, error) {
	switch {
	case h.WriterEpoch < w.epoch:
		return verdict{}, &WriterFencedError{Writer: h.WriterID, Epoch: h.WriterEpoch, Known: w.epoch}
	case h.WriterEpoch > w.epoch:
		if h.Sequence != 0 {
			return verdict{}, outOfOrder(h, 0)
		}
		return verdict{}, nil
	}
	for i := range int(w.n) {
		if s := w.at(i); s.first == h.Sequence && s.last == h.LastSequence {
			return verdict{duplicate: true, known: true, stored: *s}, nil
		}
	}
	next := nextSeq(w.at(int(w.n) - 1).last)
	if h.Sequence == next {
		return verdict{}, nil
	}
	// Older than the five, but not older than the first that was accepted: slow
	// storage makes real clients retry such batches.
	oldest := w.at(0)
	age := seqAfter(h.Sequence, oldest.first)
	length := seqAfter(h.Sequence, h.LastSequence) + 1
	if age > 0 && length <= age && age <= min(w.before, oldestAge) {
		return verdict{duplicate: true, stored: *oldest}, nil
	}
	return verdict{}, outOfOrder(h, next)
}

// apply records a batch that is in the log: the same step at append, at replay
// and in a fold.
func (t *writers) apply(h *record.Header) {
	t.expire(h.CommitTimestamp)
	if h.WriterID < 0 {
		return
	}
	i, ok := t.index[h.WriterID]
	if !ok {
		i = t.add(h.WriterID, h.WriterEpoch)
	} else {
		t.unlink(i)
		t.link(i)
	}
	w := &t.slab[i]
	if w.epoch != h.WriterEpoch {
		w.epoch, w.n, w.head, w.before = h.WriterEpoch, 0, 0, 0
	}
	w.push(stored{base: h.BaseOffset, commit: h.CommitTimestamp, first: h.Sequence, last: h.LastSequence, delta: h.LastOffsetDelta})
}

func (t *writers) add(id mink.WriterID, epoch int16) int32 {
	for k := range t.expired {
		if t.expired[k].id == id {
			t.expired = append(t.expired[:k], t.expired[k+1:]...)
			break
		}
	}
	var i int32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
		t.slab[i] = writer{}
	} else {
		i = int32(len(t.slab))
		t.slab = append(t.slab, writer{})
	}
	t.slab[i].id, t.slab[i].epoch = id, epoch
	t.index[id] = i
	t.link(i)
	return i
}

// link makes i the newest.
func (t *writers) link(i int32) {
	t.slab[i].prev, t.slab[i].next = t.newest, -1
	if t.newest >= 0 {
		t.slab[t.newest].next = i
	} else {
		t.oldest = i
	}
	t.newest = i
}

func (t *writers) unlink(i int32) {
	w := &t.slab[i]
	if w.prev >= 0 {
		t.slab[w.prev].next = w.next
	} else {
		t.oldest = w.next
	}
	if w.next >= 0 {
		t.slab[w.next].prev = w.prev
	} else {
		t.newest = w.prev
	}
}

// expire forgets the writers that were idle too long at now.
func (t *writers) expire(now int64) {
	for t.oldest >= 0 && t.slab[t.oldest].commit < now-expiryMs {
		i := t.oldest
		w := &t.slab[i]
		t.unlink(i)
		delete(t.index, w.id)
		t.free = append(t.free, i)
		t.expired = append(t.expired, expired{w.id, w.epoch})
		if len(t.expired) > maxExpired {
			t.floor = max(t.floor, t.expired[0].id)
			t.expired = t.expired[1:]
		}
	}
}
