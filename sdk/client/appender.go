package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/cenkalti/backoff/v5"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// waiting is rows of one bucket that have no sequence yet.
type waiting struct {
	rows    arrow.RecordBatch
	bytes   int64
	to      *target
	deletes bool // every row is a delete
	of      *Append
	since   time.Time
}

// sequenced is one batch with its sequence: its content never changes again,
// so that a batch that is sent twice is recognised.
type sequenced struct {
	sequence int32
	rows     arrow.RecordBatch
	to       *target
	deletes  bool   // every row is one
	changes  []byte // kind of each row, when some are deletes
	of       []*Append
	since    time.Time // when its first rows came
}

// appender sends one bucket's batches: at most InFlightMax on their way, in
// order, on one stream at a time; after a broken stream everything that was not
// acknowledged is sent again, in order, under its old sequence. A batch for another
// target than the stream's waits until all before it are acknowledged: then the
// stream ends and the next one begins.
//
//	queue (no sequence) -> unacked (sequenced, sent or to be sent again) -> acknowledged
type appender struct {
	w    *sender
	ref  mink.BucketRef
	kick chan struct{}

	mu struct {
		sync.Mutex
		queue []waiting
	}
	// Below: used by run only.
	unacked []*sequenced
	acked   time.Time // when the last acknowledgement came
	next    int32
	writer  api.Writer // WriterID 0: take a fresh one before the next batch
}

func newAppender(w *sender, ref mink.BucketRef) *appender {
	return &appender{w: w, ref: ref, kick: make(chan struct{}, 1), writer: w.writer}
}

// push takes over rows.
func (p *appender) push(q waiting) {
	p.mu.Lock()
	p.mu.queue = append(p.mu.queue, q)
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run sends until ctx is done; then whatever is left fails.
func (p *appender) run(ctx context.Context) {
	defer func() {
		p.failAll(fmt.Errorf("%w: %w", context.Cause(ctx), mink.ErrUnknownOutcome))
	}()
	pauses := p.w.table.c.backOff()
	for ctx.Err() == nil {
		if len(p.unacked) == 0 && !p.queued() {
			select {
			case <-ctx.Done():
				return
			case <-p.kick:
			}
			continue
		}
		progress, err := p.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if progress {
			pauses.Reset()
		}
		if err == nil {
			continue
		}
		p.afterFailure(ctx, pauses, err)
	}
}

// afterFailure gives up what cannot succeed any more, else pauses before the
// next session.
func (p *appender) afterFailure(ctx context.Context, pauses *backoff.ExponentialBackOff, err error) {
	limit := p.w.table.c.cfg.RetryTimeout
	expired := p.waits() > limit
	if !retriable(err) || expired {
		switch {
		case errors.Is(err, mink.ErrNotExist):
			p.w.table.forget(p.ref.Partition)
		case expired && len(p.unacked) > 0:
			err = fmt.Errorf("%w: gave up after %s: %w", mink.ErrUnknownOutcome, limit, err)
		case expired: // nothing was sent
			err = fmt.Errorf("gave up after %s: %w", limit, err)
		}
		p.failAll(err)
		return
	}
	p.w.table.c.logger.Debug("append is tried again", "bucket", p.ref.String(), "error", err)
	if err := p.w.table.lookAgain(ctx, pauses); err != nil {
		p.failAll(err)
	}
}

// waits is for how long the oldest rows have waited without any acknowledgement.
func (p *appender) waits() time.Duration {
	var oldest time.Time
	p.mu.Lock()
	switch {
	case len(p.unacked) > 0:
		oldest = p.unacked[0].since
	case len(p.mu.queue) > 0:
		oldest = p.mu.queue[0].since
	default:
		oldest = time.Now()
	}
	p.mu.Unlock()
	if p.acked.After(oldest) {
		oldest = p.acked
	}
	return time.Since(oldest)
}

func (p *appender) queued() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.queue) > 0
}

// failAll fails everything. What the node knows of the writer's sequence in this
// bucket is unknown afterwards, so that later batches need a fresh writer id.
func (p *appender) failAll(err error) {
	p.mu.Lock()
	queue := p.mu.queue
	p.mu.queue = nil
	p.mu.Unlock()
	for _, s := range p.unacked {
		s.rows.Release()
		for _, a := range s.of {
			p.w.finish(a, err)
		}
	}
	p.unacked = nil
	p.writer, p.next = api.Writer{}, 0
	for _, q := range queue {
		q.rows.Release()
		p.w.finish(q.of, err)
	}
}

// nextTarget is the target of the batch that is to be sent next, nil: there is none.
func (p *appender) nextTarget() *target {
	if len(p.unacked) > 0 {
		return p.unacked[0].to
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.queue) == 0 {
		return nil
	}
	return p.mu.queue[0].to
}

// sequence takes rows of one target off the queue into one batch of about BatchBytes.
func (p *appender) sequence() (*sequenced, error) {
	p.mu.Lock()
	n, size := 0, int64(0)
	limit := min(p.w.cfg.BatchBytes, p.w.table.limit)
	for n < len(p.mu.queue) && (n == 0 || p.mu.queue[n].to == p.mu.queue[0].to && size+p.mu.queue[n].bytes <= limit) {
		size += p.mu.queue[n].bytes
		n++
	}
	taken := slices.Clone(p.mu.queue[:n])
	p.mu.queue = slices.Delete(p.mu.queue, 0, n)
	p.mu.Unlock()
	if n == 0 {
		return nil, nil
	}
	recs := make([]arrow.RecordBatch, n)
	of := make([]*Append, n)
	for i, q := range taken {
		recs[i], of[i] = q.rows, q.of
	}
	to := taken[0].to
	rows, err := join(p.w.cfg.Allocator, to.arrow, recs)
	for _, q := range taken {
		q.rows.Release()
	}
	if err != nil {
		for _, a := range of {
			p.w.finish(a, err)
		}
		return nil, err
	}
	s := &sequenced{sequence: p.next, rows: rows, to: to, of: of, since: taken[0].since}
	s.deletes, s.changes = kindsOf(taken)
	if p.next++; p.next < 0 { // after 2^31-1 comes 0
		p.next = 0
	}
	return s, nil
}

// kindsOf tells deletes from upserts: whether all rows are deletes, and when only
// some are, which.
func kindsOf(taken []waiting) (deletes bool, changes []byte) {
	var rows, deleted int64
	for _, q := range taken {
		rows += q.rows.NumRows()
		if q.deletes {
			deleted += q.rows.NumRows()
		}
	}
	if deleted == 0 || deleted == rows {
		return deleted == rows, nil
	}
	changes = make([]byte, 0, rows)
	for _, q := range taken {
		change := mink.ChangeUpdateAfter
		if q.deletes {
			change = mink.ChangeDelete
		}
		changes = append(changes, bytes.Repeat([]byte{byte(change)}, int(q.rows.NumRows()))...)
	}
	return false, changes
}

// session runs one DoPut stream until it breaks (error), or another target is next
// (nil).
func (p *appender) session(ctx context.Context) (progress bool, err error) {
	led := p.w.table.bucket(p.ref)
	if led.Address == "" {
		return false, fmt.Errorf("%s: bucket %d has no known leader: %w", p.what(), p.ref.Index, mink.ErrUnavailable)
	}
	conn, err := p.w.table.c.at(led.Address)
	if err != nil {
		return false, err
	}
	if p.writer.WriterID == 0 {
		if p.writer, err = p.w.table.c.InitWriter(ctx); err != nil {
			return false, err
		}
	}
	ctx, silence := p.w.table.watch(ctx, led, false)
	defer silence.end()
	defer func() { err = silence.why(err) }()
	silence.expect() // a stream is opened for rows
	put, err := conn.DoPut(ctx)
	if err != nil {
		return false, p.wrap(err)
	}
	to := p.nextTarget()
	out := flight.NewRecordWriter(put, ipc.WithSchema(to.arrow), ipc.WithAllocator(p.w.cfg.Allocator))
	defer out.Close()
	out.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(to.command(p.ref, p.writer))})

	acks := make(chan api.AppendResult)
	broken := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		broken <- p.receiveAcks(ctx, put, acks)
	}()
	defer wg.Wait()
	defer silence.end()
	return p.pump(ctx, to, out, silence, acks, broken)
}

// pump keeps the stream filled and takes acknowledgements.
func (p *appender) pump(ctx context.Context, to *target, out *flight.Writer, silence *silence, acks <-chan api.AppendResult, broken <-chan error) (progress bool, err error) {
	sent := 0 // of unacked, on this stream
	ended := false
	for {
		for !ended && sent < p.w.cfg.InFlightMax {
			if sent == len(p.unacked) {
				s, err := p.sequence()
				if err != nil {
					return progress, err
				}
				if s == nil {
					break
				}
				p.unacked = append(p.unacked, s)
			}
			s := p.unacked[sent]
			if s.to != to {
				if sent == 0 {
					return true, nil
				}
				break
			}
			silence.expect()
			err := out.WriteWithAppMetadata(s.rows, api.JSON(to.metadata(s)))
			switch {
			case errors.Is(err, io.EOF): // the node ended the stream: broken will say why, behind the last acks
				ended = true
			case err != nil:
				return progress, p.wrap(err)
			default:
				sent++
			}
		}
		select {
		case <-ctx.Done():
			return progress, ctx.Err()
		case <-p.kick:
		case <-acks:
			if sent == 0 {
				return progress, fmt.Errorf("%s: the node acknowledged a batch that was not sent: %w", p.what(), mink.ErrCorrupt)
			}
			s := p.unacked[0]
			p.unacked = slices.Delete(p.unacked, 0, 1)
			sent--
			if silence.heard(); sent > 0 {
				silence.expect()
			}
			progress, p.acked = true, time.Now()
			s.rows.Release()
			for _, a := range s.of {
				p.w.finish(a, nil)
			}
		case err := <-broken:
			return progress, err
		}
	}
}

func (p *appender) wrap(err error) error { return FromStatus(p.what(), err) }

// what is done, for errors.
func (p *appender) what() string { return p.w.verb + " " + p.w.table.name }

// receiveAcks hands on each acknowledgement; it answers why the stream ended.
func (p *appender) receiveAcks(ctx context.Context, put flight.FlightService_DoPutClient, acks chan<- api.AppendResult) error {
	for {
		r, err := put.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: the node ended the stream: %w", p.what(), mink.ErrUnavailable)
		}
		if err != nil {
			return p.wrap(err)
		}
		var a api.AppendResult
		if err := decode("append", r.AppMetadata, &a); err != nil {
			return err
		}
		select {
		case acks <- a:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
