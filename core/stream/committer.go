package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mink-project/mink/core/internal/invariant"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
)

// earlyBytes is worth a PUT of its own when none is in flight.
const earlyBytes = 64 << 10

// scratchMax bounds the entries that are kept for the next bulk.
const scratchMax = 256 << 10

// runCommitter is the only goroutine that seals bulks and submits them, so the
// order of bulks is the order of slots; the WAL calls back in slot order, so it
// is the order of the cache and of acknowledgements too.
//
// When is the open bulk sealed?
//
//	it holds WALBatchBytes, or a drain waits for it           now
//	nothing is in flight and it holds 64 KiB                  max(first append, last ack) + WALIdleWait
//	otherwise    max(first append + WALIdleWait, last seal + WALBatchInterval)
//
// The wait after an acknowledgement lets the producers that it woke refill the
// bulk. Without it a producer whose requests in flight make less than
// WALBatchBytes is cut into a small PUT and a large one by turns, for good:
// one partition over a 30 ms store took 430 PUTs per GB instead of 270, and a
// fifth less went through.
//
// A lone write therefore waits WALIdleWait; under load the interval rules, and
// an empty bulk arms no timer at all.
func (e *Engine) runCommitter(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var lastSeal time.Time
	for {
		wait, any := e.sealDue(lastSeal)
		if any && wait <= 0 {
			// The bulk goes on filling while the window has no room.
			slot, err := e.wal.Next(ctx)
			if err == nil {
				lastSeal = time.Now()
				err = e.sealAndSubmit(ctx, slot)
			}
			if err != nil {
				if ctx.Err() == nil {
					e.fail(err)
				}
				return
			}
			continue
		}
		if any {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-e.committerWake:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// sealDue answers how long the open bulk still waits; any is false when it is
// empty.
func (e *Engine) sealDue(lastSeal time.Time) (wait time.Duration, any bool) {
	e.queue.Lock()
	idle, idleSince := e.queue.inflight == 0, e.queue.idleSince
	e.queue.Unlock()
	now := time.Now()
	e.app.Lock()
	defer e.app.Unlock()
	b := e.app.open
	if len(b.entries) == 0 || e.app.failed != nil {
		e.app.openedAt = time.Time{}
		return 0, false
	}
	if e.app.openedAt.IsZero() { // the first append does not read the clock; its wake-up does
		e.app.openedAt = now
	}
	if b.payload >= e.cfg.WALBatchBytes || e.app.draining || e.app.hurried == b.number {
		return 0, true
	}
	due := e.app.openedAt.Add(e.cfg.WALIdleWait)
	if idle && b.payload >= earlyBytes {
		if next := idleSince.Add(e.cfg.WALIdleWait); next.After(due) {
			due = next
		}
		return due.Sub(now), true
	}
	if next := lastSeal.Add(e.cfg.WALBatchInterval); next.After(due) {
		due = next
	}
	return due.Sub(now), true
}

// sealAndSubmit turns the open bulk into the slot, which has room.
func (e *Engine) sealAndSubmit(ctx context.Context, slot uint64) error {
	b, err := e.takeOpen()
	if err != nil {
		return err
	}
	used := b.seal()
	if cap(used) <= scratchMax {
		e.app.Lock()
		e.app.scratch = used
		e.app.Unlock()
	}
	e.evict()

	chunks, sum, err := b.build(e.header(plan.KindWAL, slot))
	if err == nil {
		// Small frames are copied into the chunks: with tiny records as much again,
		// for as long as the PUT takes.
		e.account(b.extra)
		_, err = e.wal.Submit(ctx, chunks, sum.CRC, func(slot uint64, err error) { e.committed(b, sum, err) })
	}
	if err != nil {
		e.settle(b, fmt.Errorf("submit slot %d: %w", slot, err))
	}
	return err
}

// takeOpen takes the open bulk out and puts an empty one in its place. From here
// on it counts as in flight.
func (e *Engine) takeOpen() (*bulk, error) {
	e.app.Lock()
	defer e.app.Unlock()
	if e.app.failed != nil {
		return nil, e.app.failed
	}
	b := e.app.open
	e.openBulk(e.app.scratch)
	e.app.scratch = nil
	e.app.openedAt = time.Time{}
	e.app.pinned += b.mem
	// In one step with leaving the open place: a drain must see it here or there.
	e.queue.Lock()
	e.queue.inflight++
	e.queue.cached += b.mem
	e.queue.Unlock()
	return b, nil
}

// openBulk needs e.app held.
func (e *Engine) openBulk(scratch []entry) {
	e.app.bulks++
	e.app.open = newBulk(e.app.bulks, scratch)
}

// account adds to what is held and not uploaded.
func (e *Engine) account(bytes int64) {
	e.app.Lock()
	e.app.pinned += bytes
	e.app.Unlock()
	e.queue.Lock()
	e.queue.cached += bytes
	e.queue.Unlock()
}

// header is that of a new object of this incarnation.
func (e *Engine) header(kind plan.ObjectKind, seq uint64) object.Header {
	h := object.Header{Kind: kind, WAL: e.deps.WAL, Seq: seq, Nonce: rand.Uint64(), CreatedMs: time.Now().UnixMilli()}
	if kind == plan.KindWAL {
		h.Window = e.wal.Window()
	}
	return h
}

// settle fails the engine, then the bulk: who sees the ticket's error finds the
// engine failed.
func (e *Engine) settle(b *bulk, err error) {
	e.fail(err)
	b.ticket.err = e.failure()
	close(b.ticket.done)
}

// committed is called in slot order by the WAL's one goroutine. The bulk is
// durable, and everything before it: first into the cache and visible, then
// acknowledged.
func (e *Engine) committed(b *bulk, sum object.Summary, err error) {
	if err != nil {
		e.settle(b, fmt.Errorf("write-ahead log: %w", err))
		return
	}
	e.account(-b.extra)
	seq := sum.Header.Seq
	b.seq, b.object = seq, sum.Object(0)
	for i := range b.runs {
		b.runs[i].stream.publish(segment{bulk: b, run: i})
	}
	e.queue.Lock()
	if n := len(e.queue.acked); n > 0 {
		invariant.Check(e.queue.acked[n-1].seq < seq, "slot %d acknowledged after %d", seq, e.queue.acked[n-1].seq)
	}
	e.queue.acked = append(e.queue.acked, b)
	e.queue.inflight--
	idle := e.queue.inflight == 0
	if idle {
		e.queue.idleSince = time.Now()
	}
	e.queue.Unlock()
	e.stats.bulks.Add(1)
	e.stats.bulkBytes.Add(sum.Size)
	close(b.ticket.done)
	e.ackedWake.signal()
	if idle {
		e.committerWake.signal() // 64 KiB may wait
	}
	if e.pressed() {
		e.hurryUpload()
	}
}

// pressed reports that uploads should not wait for their interval.
func (e *Engine) pressed() bool {
	e.app.Lock()
	defer e.app.Unlock()
	return e.app.pinned >= min(e.cfg.burstAt(), e.cfg.UploadBytes)
}

// evict drops uploaded bulks, oldest first, while the cache is over its limit.
func (e *Engine) evict() {
	for {
		var b *bulk
		e.queue.Lock()
		if len(e.queue.evictable) > 0 && e.queue.cached > e.cfg.LogCacheBytes-e.cfg.LogCacheBytes/8 {
			b = e.queue.evictable[0]
			e.queue.evictable[0] = nil
			e.queue.evictable = e.queue.evictable[1:]
			e.queue.cached -= b.mem
		}
		e.queue.Unlock()
		if b == nil {
			return
		}
		for i := range b.runs {
			b.runs[i].stream.evict(b)
		}
	}
}
