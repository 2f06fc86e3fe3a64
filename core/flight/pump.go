package flight

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
)

// unit is one batch of a DoPut on its way.
type unit interface {
	// append hands over what was not yet. errLater: call it again in a moment; not
	// when it was told that this is the last time.
	append(ctx context.Context, last bool) error
	// drop gives up what append has not handed over.
	drop()
	// pending is closed when there may be news; nil: the outcome is known.
	pending() <-chan struct{}
	// answer acknowledges; an error ends the stream.
	answer() error
}

// errLater: what an append needs is not there at the moment.
var errLater = errors.New("later")

// throttlePause is how long an append waits before it is tried again.
const throttlePause = 20 * time.Millisecond

// pump moves a stream's batches: in order, some at a time, each answered once it
// is durable. After a failure what was appended before is answered still.
//
//	in -> prepare -> append (waits while the engine is overloaded or a bucket opens) -> queue -> answer
type pump struct {
	service *service
	in      <-chan received
	prepare func(context.Context, *flight.FlightData) (unit, error) // nil unit: nothing to do

	queue  []unit
	held   unit // prepared, waits to be appended
	since  time.Time
	retry  *time.Timer
	closed bool // no further batch is taken
	failed error
}

func (p *pump) run(ctx context.Context) error {
	p.retry = time.NewTimer(time.Hour)
	defer p.retry.Stop()
	defer p.drop()
	stopping := p.service.stopping
	for {
		for len(p.queue) > 0 && p.queue[0].pending() == nil {
			if err := p.queue[0].answer(); err != nil {
				return err
			}
			p.queue[0] = nil
			p.queue = p.queue[1:]
		}
		if p.closed && p.held == nil && len(p.queue) == 0 {
			return p.failed
		}
		var front <-chan struct{}
		if len(p.queue) > 0 {
			front = p.queue[0].pending()
		}
		select {
		case m := <-p.input():
			p.take(ctx, m)
		case <-front:
		case <-p.retry.C:
			p.append(ctx)
		case <-stopping:
			stopping = nil
			p.end(errStopping)
			p.drop() // was not appended
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// input is where to take the next batch from; nil: not now.
func (p *pump) input() <-chan received {
	if p.closed || p.held != nil || len(p.queue) >= p.service.cfg.InFlightMax {
		return nil
	}
	return p.in
}

func (p *pump) take(ctx context.Context, m received) {
	if m.err != nil {
		if errors.Is(m.err, io.EOF) {
			m.err = nil
		}
		p.end(m.err)
		return
	}
	u, err := p.prepare(ctx, m.data)
	if err != nil {
		p.end(err)
		return
	}
	if u != nil {
		p.held, p.since = u, time.Now()
		p.append(ctx)
	}
}

// append tries the held batch.
func (p *pump) append(ctx context.Context) {
	if p.held == nil {
		return
	}
	err := p.held.append(ctx, time.Since(p.since) >= p.service.cfg.ThrottleWait)
	switch {
	case err == nil:
		p.queue = append(p.queue, p.held)
		p.held = nil
	case errors.Is(err, errLater):
		p.retry.Reset(throttlePause)
	default:
		p.drop()
		p.end(err)
	}
}

func (p *pump) drop() {
	if p.held != nil {
		p.held.drop()
		p.held = nil
	}
}

func (p *pump) end(err error) {
	if !p.closed {
		p.closed, p.failed = true, err
	}
}
