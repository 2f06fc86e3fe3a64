package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Writer appends bulks to the log of this process. Next and Submit belong to one
// goroutine at a time; the other methods are safe for concurrent use.
type Writer struct {
	cfg    Config
	store  objstore.Store
	id     plan.WALID
	logger *slog.Logger

	room    chan struct{} // one token per free slot of the window
	work    chan *bulk    // never more in it than the window: sends do not block
	landed  chan outcome  // as well
	closing chan struct{} // closed by Close
	ended   chan struct{} // closed with the first failure or the end of Run

	mu struct {
		sync.Mutex
		ledger  *ledger
		waiting map[uint64]func(slot uint64, err error) // done of unacknowledged slots
		held    bool                                    // Next took a token that Submit will use
		closed  bool
		running bool
	}
	ran    chan struct{} // closed when Run has returned
	jitter float64       // of pauses; tests set 0
}

type bulk struct {
	attempt
	req      objstore.PutRequest
	deadline time.Time
}

type outcome struct {
	slot uint64
	err  error
}

// NewWriter makes the writer of a log that nobody has written to: slot 0 is
// next. It refuses a store without create-only Put (mink.ErrUnsupported): there
// the log could not be fenced.
func NewWriter(cfg Config, store objstore.Store, id plan.WALID, logger *slog.Logger) (*Writer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := needCreateOnly(store); err != nil {
		return nil, err
	}
	w := &Writer{
		cfg: cfg, store: store, id: id, logger: logger.With("wal", id.String()),
		room:    make(chan struct{}, cfg.Window),
		work:    make(chan *bulk, cfg.Window),
		landed:  make(chan outcome, cfg.Window),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
		ran:     make(chan struct{}),
		jitter:  backoff.DefaultRandomizationFactor,
	}
	for range cfg.Window {
		w.room <- struct{}{}
	}
	w.mu.ledger = newLedger(cfg.Window)
	w.mu.waiting = make(map[uint64]func(uint64, error), cfg.Window)
	return w, nil
}

func needCreateOnly(store objstore.Store) error {
	if !store.Capabilities().CreateOnlyPut {
		return fmt.Errorf("wal: %w: the object store has no create-only put, without which a log cannot be fenced: use another store for it", mink.ErrUnsupported)
	}
	return nil
}

// WAL is the log that is written.
func (w *Writer) WAL() plan.WALID { return w.id }

// Window is the configured window: it goes into the header of every bulk.
func (w *Writer) Window() uint16 { return uint16(w.cfg.Window) }

// InFlight is how many slots are submitted and not yet acknowledged.
func (w *Writer) InFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(w.mu.ledger.outstanding())
}

// Next waits until the window has room and answers the slot that the next Submit
// takes, so that a bulk can be built as late as possible. After a failure or
// Close it returns that error.
func (w *Writer) Next(ctx context.Context) (slot uint64, err error) {
	w.mu.Lock()
	held := w.mu.held
	w.mu.Unlock()
	if !held {
		select {
		case <-w.ended:
			return 0, w.Err()
		case <-w.closing:
			return 0, w.closedError()
		case <-ctx.Done():
			return 0, fmt.Errorf("wal %s: wait for room: %w", w.id, context.Cause(ctx))
		case <-w.room:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.held = true
	if err := w.refusal(); err != nil {
		return 0, err
	}
	return w.mu.ledger.next, nil
}

// refusal needs the lock.
func (w *Writer) refusal() error {
	if err := w.mu.ledger.err; err != nil {
		return err
	}
	if w.mu.closed {
		return w.closedError()
	}
	return nil
}

func (w *Writer) closedError() error { return fmt.Errorf("wal %s: %w", w.id, mink.ErrClosed) }

// Err is the failure that ended the log (mink.ErrFenced, mink.ErrUnavailable,
// mink.ErrClosed), nil while it is alive.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.ledger.err
}

// Submit puts one finished bulk into the next slot, waiting for room first. The
// chunks begin with the bulk's header, which must name this log, this slot and
// the window; crc is the CRC32C of all of them. From here on their memory must
// never change, whatever happens: an attempt that was given up may still be
// reading it.
//
// Done is called exactly once, in slot order, by Run's goroutine: with nil when
// this slot and all before it are in the store, otherwise with the error that
// ended the log. Then whether the bulk is in the log is for its recovery to say.
// Done must not block and must not call Next, Submit or Close. When Submit itself
// returns an error, nothing was submitted and done is never called.
func (w *Writer) Submit(ctx context.Context, chunks [][]byte, crc uint32, done func(slot uint64, err error)) (slot uint64, err error) {
	next, err := w.Next(ctx)
	if err != nil {
		return 0, err
	}
	b, err := w.newBulk(next, chunks, crc)
	if err != nil {
		return 0, err
	}
	if err := w.enter(done); err != nil {
		return 0, err
	}
	w.work <- b // has room: every bulk in it holds one of the window's tokens
	return next, nil
}

func (w *Writer) enter(done func(uint64, error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refusal(); err != nil {
		return err
	}
	w.mu.waiting[w.mu.ledger.submit()] = done
	w.mu.held = false
	return nil
}

func (w *Writer) newBulk(slot uint64, chunks [][]byte, crc uint32) (*bulk, error) {
	if len(chunks) == 0 {
		return nil, fmt.Errorf("wal %s slot %d: %w: no bytes", w.id, slot, mink.ErrInvalid)
	}
	h, err := object.ParseHeader(chunks[0])
	if err != nil {
		return nil, fmt.Errorf("wal %s slot %d: %w: chunks do not begin with a header: %w", w.id, slot, mink.ErrInvalid, err)
	}
	if h.Kind != plan.KindWAL || h.WAL != w.id || h.Seq != slot || h.Window != w.Window() {
		return nil, fmt.Errorf("wal %s slot %d, window %d: %w: the header is of wal %s, slot %d, window %d, kind %d",
			w.id, slot, w.cfg.Window, mink.ErrInvalid, h.WAL, h.Seq, h.Window, h.Kind)
	}
	return &bulk{
		attempt: attempt{wal: w.id, slot: slot, header: chunks[0][:object.HeaderLen], size: objstore.SizeOf(chunks)},
		req: objstore.PutRequest{
			Key: plan.Key(w.id, plan.KindWAL, slot), Chunks: chunks,
			CreateOnly: true, CRC32C: crc, HasCRC32C: true,
		},
		deadline: time.Now().Add(w.cfg.GiveUpAfter),
	}, nil
}

// Run writes what is submitted, until the log fails (that error), Close was
// called and everything is acknowledged (nil), or ctx ends (its cause; what was
// not acknowledged fails with mink.ErrClosed). It may be called once.
func (w *Writer) Run(ctx context.Context) error {
	w.mu.Lock()
	refuse := w.mu.running || w.mu.closed
	if !refuse { // or Close would wait for a Run that never was
		w.mu.running = true
	}
	w.mu.Unlock()
	if refuse {
		return fmt.Errorf("wal %s: run twice or after close: %w", w.id, mink.ErrInvalid)
	}
	defer close(w.ran)
	working, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for range w.cfg.Window {
		workers.Go(func() { w.carryAll(working) })
	}
	err := w.commit(ctx)
	stop()
	workers.Wait()
	return err
}

// commit is the one goroutine that acknowledges.
func (w *Writer) commit(ctx context.Context) error {
	closing := w.closing
	for {
		select {
		case <-ctx.Done():
			_ = w.end(fmt.Errorf("wal %s: %w: %w", w.id, mink.ErrClosed, context.Cause(ctx)))
			return context.Cause(ctx)
		case <-closing:
			closing = nil
		case o := <-w.landed:
			if o.err != nil {
				if ctx.Err() != nil {
					continue // the end of ctx is the reason
				}
				w.logger.Error("write-ahead log ended", "slot", o.slot, "error", o.err)
				return w.end(o.err)
			}
			w.acknowledge(o.slot)
		}
		if closing == nil && w.InFlight() == 0 {
			_ = w.end(w.closedError())
			return nil
		}
	}
}

func (w *Writer) acknowledge(slot uint64) {
	w.mu.Lock()
	from := w.mu.ledger.acked
	to := w.mu.ledger.land(slot)
	done := make([]func(uint64, error), 0, to-from)
	for s := from; s < to; s++ {
		done = append(done, w.mu.waiting[s])
		delete(w.mu.waiting, s)
	}
	w.mu.Unlock()
	for k, f := range done {
		f(from+uint64(k), nil)
		w.room <- struct{}{}
	}
}

// end fails the log and everything unacknowledged, in slot order.
func (w *Writer) end(err error) error {
	w.mu.Lock()
	l := w.mu.ledger
	already := l.err != nil
	err = l.fail(err)
	from, to := l.acked, l.next
	w.mu.Unlock()
	if already {
		return err
	}
	close(w.ended)
	for s := from; s < to; s++ {
		w.mu.Lock()
		f := w.mu.waiting[s]
		delete(w.mu.waiting, s)
		w.mu.Unlock()
		f(s, err)
	}
	return err
}

// Close takes no more bulks, waits until those submitted are acknowledged or the
// log fails, and for Run to return.
func (w *Writer) Close() {
	w.mu.Lock()
	first, running := !w.mu.closed, w.mu.running
	w.mu.closed = true
	w.mu.Unlock()
	if first {
		close(w.closing)
	}
	if !running {
		if first {
			_ = w.end(w.closedError())
		}
		return
	}
	<-w.ran
}

// carryAll is one of Window workers.
func (w *Writer) carryAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-w.work:
			w.landed <- outcome{slot: b.slot, err: w.carry(ctx, b)}
		}
	}
}

// carry brings one bulk into its slot.
func (w *Writer) carry(ctx context.Context, b *bulk) error {
	ctx, cancel := context.WithDeadline(ctx, b.deadline)
	defer cancel()
	pause := newPause(w.cfg.RetryMin, w.cfg.RetryMax, w.jitter)
	for next := stepPut; ; {
		switch next {
		case stepPut:
			next = b.afterPut(w.put(ctx, b))
		case stepLook:
			next = b.afterLook(w.look(ctx, b))
		case stepLanded:
			return nil
		case stepFailed:
			return b.err
		}
		if b.pause {
			w.logger.Debug("write-ahead log retries", "slot", b.slot, "error", b.last)
			if !sleep(ctx, pause.after(b.last)) {
				return fmt.Errorf("wal %s slot %d: %w: not written within %s: %w", w.id, b.slot, mink.ErrUnavailable, w.cfg.GiveUpAfter, b.last)
			}
		}
	}
}

func (w *Writer) put(ctx context.Context, b *bulk) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.AttemptTimeout)
	defer cancel()
	_, err := w.store.Put(ctx, b.req)
	return err
}

func (w *Writer) look(ctx context.Context, b *bulk) (objstore.GetRangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.AttemptTimeout)
	defer cancel()
	return w.store.GetRange(ctx, objstore.GetRangeRequest{Key: b.req.Key, Length: object.HeaderLen})
}

// pause is the wait between attempts.
type pause struct{ b backoff.ExponentialBackOff }

func newPause(least, most time.Duration, jitter float64) *pause {
	p := &pause{backoff.ExponentialBackOff{
		InitialInterval: least, MaxInterval: most,
		Multiplier: 2, RandomizationFactor: jitter,
	}}
	p.b.Reset()
	return p
}

// after is how long to wait after err: longer than usual when the store says so.
func (p *pause) after(err error) time.Duration {
	d := p.b.NextBackOff()
	var throttled *objstore.ThrottledError
	if errors.As(err, &throttled) {
		d = max(d, throttled.RetryAfter)
	}
	return d
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
