package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// scanOf reads a ticket, of DoGet or as the descriptor of a tail.
func scanOf(body []byte) (*api.Scan, error) {
	var t api.Ticket
	if err := decodeBody("ticket", body, &t); err != nil {
		return nil, err
	}
	if t.Scan == nil {
		return nil, fmt.Errorf(`%w: ticket: want {"scan":{"bucket":{...},"from":0}}`, mink.ErrInvalid)
	}
	if t.Scan.Meta {
		return nil, fmt.Errorf("ticket: meta: %w", mink.ErrUnsupported)
	}
	return t.Scan, nil
}

// DoGet scans one bucket up to Until or the high watermark of now.
func (s *service) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	scan, err := scanOf(t.GetTicket())
	if err != nil {
		return err
	}
	if scan.MinBytes != 0 || scan.MaxWaitMs != 0 {
		return fmt.Errorf("%w: ticket: min_bytes and max_wait_ms belong to a tail (DoExchange)", mink.ErrInvalid)
	}
	r, err := s.openReader(scan, stream.Send)
	if err != nil {
		return err
	}
	r.until = min(r.until, r.log.HighWatermark())
	if err := r.begin(); err != nil {
		return err
	}
	ctx := stream.Context()
	for !r.done() {
		at := r.next
		res, err := r.log.Read(ctx, tablet.ReadRequest{From: at, MaxBytes: s.cfg.ReadBytes})
		if err != nil {
			return s.leaderError(r.bucket, err)
		}
		if err := r.result(ctx, &res); err != nil {
			return err
		}
		if r.next == at && !r.done() {
			return fmt.Errorf("scan bucket %s stands at offset %d of %d: %w", r.bucket, at, r.until, mink.ErrUnavailable)
		}
	}
	return nil
}

// tailWait is how long a tail with min_bytes gathers when it names no
// max_wait_ms.
const tailWait = 500 * time.Millisecond

// gatherBytesMax bounds min_bytes: what a tail holds in memory.
const gatherBytesMax = 16 << 20

// DoExchange is a tail: a scan that goes on. The client sends the descriptor and
// then nothing; its half-close ends the tail in order.
func (s *service) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	ctx := stream.Context()
	in := s.receive(ctx, stream.Recv)
	m, err := s.first(ctx, in)
	if err != nil {
		return err
	}
	if m.FlightDescriptor.GetType() != flight.DescriptorCMD {
		return fmt.Errorf(`%w: an exchange is a tail: its descriptor is a command {"scan":{...}}`, mink.ErrInvalid)
	}
	scan, err := scanOf(m.FlightDescriptor.GetCmd())
	if err != nil {
		return err
	}
	r, err := s.openReader(scan, stream.Send)
	if err != nil {
		return err
	}
	if err := r.begin(); err != nil {
		return err
	}
	t := &tail{reader: r, in: in, minBytes: min(scan.MinBytes, gatherBytesMax), wait: tailWait}
	if scan.MaxWaitMs > 0 {
		t.wait = min(time.Duration(min(scan.MaxWaitMs, 1<<31))*time.Millisecond, s.cfg.TailWaitMax)
	}
	return t.run(ctx)
}

// tail follows one bucket.
type tail struct {
	*reader
	in       <-chan received
	minBytes int64
	wait     time.Duration
}

// errDone: the client ended the tail.
var errDone = errors.New("the client is done")

func (t *tail) run(ctx context.Context) error {
	for !t.done() {
		res, err := t.gather(ctx)
		if errors.Is(err, errDone) {
			return nil
		}
		if err != nil {
			return t.service.leaderError(t.bucket, err)
		}
		if err := t.result(ctx, &res); err != nil {
			return err
		}
	}
	return nil
}

// gather reads what is there: at least minBytes, or whatever came in the wait;
// it does not return before something came. Behind the end of the log nothing is
// waited for: a read may stop short of minBytes at a batch that does not fit.
func (t *tail) gather(ctx context.Context) (tablet.ReadResult, error) {
	var late <-chan time.Time // runs from the first bytes on
	for {
		changed := t.log.Changed() // before the read, so that nothing is missed
		res, err := t.log.Read(ctx, tablet.ReadRequest{From: t.next, MaxBytes: max(t.service.cfg.ReadBytes, int(t.minBytes))})
		if err != nil {
			return res, err
		}
		some := res.Next > t.next
		if some && (bytesOf(&res) >= t.minBytes || res.Next < res.HighWatermark) {
			return res, t.interrupted(ctx)
		}
		if some && late == nil {
			timer := time.NewTimer(t.wait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-changed:
		case <-late:
			return res, nil
		case m := <-t.in:
			if err := ended(m); err != nil {
				return res, err
			}
		case <-t.service.stopping:
			return res, errStopping
		case <-ctx.Done():
			return res, ctx.Err()
		}
	}
}

// interrupted looks whether the client or this node wants to end, without
// waiting: a reader that never catches up ends too.
func (t *tail) interrupted(ctx context.Context) error {
	select {
	case m := <-t.in:
		return ended(m)
	case <-t.service.stopping:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	default:
		return nil
	}
}

// ended is how a message of the client's side ends a tail; messages after the
// first have no meaning and are passed over.
func ended(m received) error {
	if errors.Is(m.err, io.EOF) {
		return errDone
	}
	return m.err
}

func bytesOf(res *tablet.ReadResult) int64 {
	n := int64(0)
	for _, b := range res.Batches {
		n += int64(len(b))
	}
	return n
}
