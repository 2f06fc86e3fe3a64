package kv

import (
	"fmt"
	"math"
	"sort"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// flight is a put between its append and its flush.
type flight struct {
	end    mink.Offset // of its changelog batch
	ticket *tablet.Pending
	rows   writes
	delta  int64 // of the row count
	blind  bool  // nobody counts any more
	bytes  int64 // taken from the budgets
	done   chan struct{}
	err    error // after done
}

// writes are the final rows of one put, in its order. Their keys and values lie in
// two buffers; that of the keys does not change any more.
type writes struct {
	keys, values []byte
	ops          []op
}

// op is one row; its value begins where the one before it ends.
type op struct {
	keyFrom, keyTo int32
	valueTo        int32
	gone           bool
}

func (w *writes) key(i int) []byte {
	o := &w.ops[i]
	return w.keys[o.keyFrom:o.keyTo:o.keyTo]
}

// value is nil of a deleted row.
func (w *writes) value(i int) []byte {
	o, from := &w.ops[i], int32(0)
	if o.gone {
		return nil
	}
	if i > 0 {
		from = w.ops[i-1].valueTo
	}
	return w.values[from:o.valueTo:o.valueTo]
}

func (w *writes) bytes() int64 {
	return int64(cap(w.keys)+cap(w.values)) + opBytes*int64(len(w.ops))
}

// opBytes is what a row takes beside its key and its value: its op, its place in the
// prewrite buffer.
const opBytes = 16 + 48

// Pending is a put on its way. Several may be open at once.
type Pending struct {
	t   *Tablet
	f   *flight // nil: everything before it was flushed
	res tablet.AppendResult
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done is closed once the outcome is known.
func (p *Pending) Done() <-chan struct{} {
	if p.f == nil {
		return closed
	}
	return p.f.done
}

// Result is valid after Done; a nil error means durable, in the changelog and to be
// looked up. First and Last are the changelog's offsets. A put that changed nothing
// and has no writer takes none: Last is First - 1.
//
// An error says that the outcome is not known here (mink.ErrUnknownOutcome): the
// tablet has ended; an idempotent writer sends the same batch again.
func (p *Pending) Result() (tablet.AppendResult, error) {
	res := p.res
	res.LogStart = p.t.log.LogStart()
	if p.f != nil && p.f.err != nil {
		return res, p.f.err
	}
	return res, nil
}

// enqueue hands an appended flight to the flusher.
func (t *Tablet) enqueue(f *flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.stopped {
		t.unknown(f)
		return
	}
	t.mu.queue = append(t.mu.queue, f)
	if len(t.mu.queue) == 1 {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// unknown answers a flight that will not be flushed. Under mu.
func (t *Tablet) unknown(f *flight) {
	why := t.mu.failed
	if why == nil {
		why = mink.ErrClosed
	}
	f.err = fmt.Errorf("put to bucket %s at %d: %w: %w", t.bucket, f.end, mink.ErrUnknownOutcome, why)
	t.release(f)
	close(f.done)
}

func (t *Tablet) release(f *flight) {
	t.pending.Add(-f.bytes)
	t.cfg.Shared.pending.give(f.bytes)
}

// waitFor is the flight that must be flushed before everything below an offset is
// visible; nil when it is. It needs the turn.
func (t *Tablet) waitFor(below mink.Offset) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.meta.Load().flushed >= below {
		return nil
	}
	q := t.mu.queue
	if i := sort.Search(len(q), func(i int) bool { return q[i].end >= below }); i < len(q) {
		return q[i]
	}
	lost := &flight{end: below, done: make(chan struct{})} // the flusher has ended
	t.unknown(lost)
	return lost
}

// run is the flusher: it takes the flights in the log's order, each when it is
// durable, into the store, and answers them.
func (t *Tablet) run() {
	defer close(t.flusher)
	streamChanged := t.changes.StreamChanged()
	start := t.log.LogStart()
	for {
		select {
		case <-t.stop: // before all else: nothing is flushed after what failed
			t.end()
			return
		default:
		}
		var durable <-chan struct{}
		if f := t.head(); f != nil {
			durable = f.ticket.Done()
		}
		select {
		case <-t.stop:
		case <-t.wake:
		case <-durable:
			if err := t.flush(); err != nil {
				t.fail(err)
			}
		case c := <-t.checkpoints:
			cp, err := t.store.checkpoint(c.dir)
			c.answer <- checkpointAnswer{cp, err}
		case <-streamChanged:
			// Readers wait for flushes; of trims and the stream's end they are told here.
			next := t.changes.StreamChanged()
			if at := t.log.LogStart(); at != start {
				start = at
				t.changes.Wake()
			}
			if next == streamChanged { // for good: it has closed
				t.changes.Wake()
				next = nil
			}
			streamChanged = next
		}
	}
}

func (t *Tablet) head() *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.queue) == 0 {
		return nil
	}
	return t.mu.queue[0]
}

// durable is the run of durable flights at the head of the queue, as many as fit one batch.
func (t *Tablet) durable() (run []*flight, size int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.mu.queue {
		n := len(f.rows.keys) + len(f.rows.values) + 16*len(f.rows.ops)
		if len(run) > 0 && size+n > t.cfg.FlushBytes {
			break
		}
		select {
		case <-f.ticket.Done():
		default:
			return run, size, nil
		}
		if _, err := f.ticket.Result(); err != nil {
			return run, size, err
		}
		run, size = append(run, f), size+n
	}
	return run, size, nil
}

// flush takes durable flights into the store. An error says that the tablet cannot go
// on; flights before the one that failed are flushed and answered.
func (t *Tablet) flush() error {
	run, size, failed := t.durable()
	if len(run) == 0 {
		return failed
	}
	b := t.store.newBatch(size)
	m := *t.meta.Load()
	for _, f := range run {
		if err := f.rows.into(b); err != nil {
			return storeError(err)
		}
		m.flushed = f.end
		switch {
		case f.blind:
			m.rows = -1
		case m.rows >= 0:
			m.rows += f.delta
		}
	}
	if err := t.store.commit(b, m); err != nil {
		return fmt.Errorf("flush to the store of bucket %s: %w", t.bucket, err)
	}
	t.meta.Store(&m)
	t.changes.Show(m.flushed)
	t.mu.Lock()
	t.mu.queue = append(t.mu.queue[:0], t.mu.queue[len(run):]...)
	clear(t.mu.queue[len(t.mu.queue):cap(t.mu.queue)])
	t.mu.landed = append(t.mu.landed, run...)
	t.mu.Unlock()
	for _, f := range run {
		t.release(f)
		close(f.done)
	}
	t.Touch()
	t.tidy()
	return failed
}

func (w *writes) into(b batch) error {
	for i := range w.ops {
		var err error
		if v := w.value(i); v == nil {
			err = b.delete(w.key(i))
		} else {
			err = b.set(w.key(i), v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end flushes what is durable when the tablet was closed in order, and answers the
// rest.
func (t *Tablet) end() {
	for t.Err() == nil {
		was := t.head()
		if was == nil {
			break
		}
		if err := t.flush(); err != nil {
			t.fail(err)
		}
		if t.head() == was {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.stopped = true
	for _, f := range t.mu.queue {
		t.unknown(f)
	}
	t.mu.queue, t.mu.landed = nil, nil
	if t.mu.failed != nil { // what is durable is seen: who looks a key up gets an error, or what the next tablet has
		t.changes.Show(math.MaxInt64)
	}
}
