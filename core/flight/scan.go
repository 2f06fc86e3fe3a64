package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// DoGet reads one bucket: its log up to Until or the high watermark of now, or its
// rows; or rows of a lake snapshot.
func (s *service) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	var ticket api.Ticket
	if err := wire.Decode("ticket", t.GetTicket(), &ticket); err != nil {
		return err
	}
	if n := members(ticket); n != 1 {
		return fmt.Errorf(`%w: ticket: it has %d of scan, snapshot, range, prefix, union and lake, want one: {"scan":{"bucket":{...},"from":0}}`, mink.ErrInvalid, n)
	}
	if ticket.Scan != nil && (ticket.Scan.MinBytes != 0 || ticket.Scan.MaxWaitMs != 0) {
		return fmt.Errorf("%w: ticket: min_bytes and max_wait_ms belong to a tail (DoExchange)", mink.ErrInvalid)
	}
	ctx, sent := stream.Context(), false
	send := func(m *flight.FlightData) error {
		sent = true
		return stream.Send(m)
	}
	if ticket.Lake != nil {
		return s.readLake(ctx, ticket.Lake, send)
	}
	var partly error // why a read that had begun ended
	err := s.atLeader(ctx, func() error {
		var err error
		switch {
		case ticket.Scan != nil:
			err = s.scan(ctx, ticket.Scan, send)
		case ticket.Union != nil:
			err = s.readUnion(ctx, ticket.Union, send)
		default:
			err = s.readRows(ctx, &ticket, send)
		}
		if sent {
			partly, err = err, nil
		}
		return err
	}, func(onward context.Context, n cluster.Node) (bool, error) {
		return s.relayGet(onward, n, t, stream.Send)
	})
	return firstOf(err, partly)
}

// members counts the members of a body that are there.
func members(body any) (n int) {
	v := reflect.ValueOf(body)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			n++
		}
	}
	return n
}

func (s *service) scan(ctx context.Context, scan *api.Scan, send func(*flight.FlightData) error) error {
	r, err := s.openReader(scan, send)
	if err != nil {
		return err
	}
	r.until = min(r.until, r.log.HighWatermark())
	if err := r.begin(); err != nil {
		return err
	}
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

// DoExchange is a tail or a stream of lookups, as its descriptor says.
func (s *service) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	ctx := stream.Context()
	in := s.receive(ctx, stream.Recv)
	m, err := s.first(ctx, in)
	if err != nil {
		return err
	}
	const want = `its descriptor is a command {"scan":{...}} for a tail or {"lookup":{...}}`
	if m.FlightDescriptor.GetType() != flight.DescriptorCMD {
		return fmt.Errorf("%w: exchange: %s", mink.ErrInvalid, want)
	}
	var x api.Exchange
	if err := wire.Decode("exchange", m.FlightDescriptor.GetCmd(), &x); err != nil {
		return err
	}
	switch {
	case members(x) != 1:
		return fmt.Errorf("%w: exchange: %s", mink.ErrInvalid, want)
	}
	if ref := x.Bucket(); ref != nil {
		if n, ok := s.leaderElsewhere(ctx, s.leads(*ref)); ok {
			return s.relayExchange(ctx, n, m, in, stream.Send)
		}
	}
	if x.Lookup != nil {
		return s.lookups(ctx, x.Lookup, m, in, stream.Send)
	}
	return s.tail(ctx, x.Scan, in, stream.Send)
}

// tail is a scan that goes on. The client sends the descriptor and then nothing; its
// half-close ends the tail in order.
func (s *service) tail(ctx context.Context, scan *api.Scan, in <-chan received, send func(*flight.FlightData) error) error {
	r, err := s.openReader(scan, send)
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
