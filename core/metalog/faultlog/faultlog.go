// Package faultlog is a metadata log between its user and another one that
// loses answers, stalls and breaks connections, as a database on a bad network
// does. For tests and simulation.
package faultlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Op is a kind of call.
type Op string

// The calls that can be made to fail.
const (
	Append    Op = "append"
	TakeLease Op = "take lease"
	Read      Op = "read"
	Head      Op = "head"
	Heartbeat Op = "heartbeat"
)

// Fault is what happens to one call.
type Fault string

// The faults. Calls that only read know None, Refused and Stalled; others are
// Refused for them.
const (
	None         Fault = ""
	Refused      Fault = "refused"       // never sent: mink.ErrUnavailable
	LostResponse Fault = "lost response" // it happens, then mink.ErrUnknownOutcome
	Disconnected Fault = "disconnected"  // mid-transaction: it does not happen, mink.ErrUnknownOutcome
	Late         Fault = "late"          // mink.ErrUnknownOutcome now, it happens after Config.LateBy
	Stalled      Fault = "stalled"       // no answer until ctx ends; then as Late
)

// Config says what fails.
type Config struct {
	// Plan answers the fault for a call; called from many goroutines, one at a
	// time. nil: none.
	Plan func(Op) Fault
	// LateBy is how late a Late or Stalled call happens.
	LateBy time.Duration
}

// Random is a plan in which the share of calls that fail is rate (0..1), with
// the given faults equally likely. The same seed gives the same sequence.
func Random(seed uint64, rate float64, faults ...Fault) func(Op) Fault {
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(Op) Fault {
		if rng.Float64() >= rate {
			return None
		}
		return faults[rng.IntN(len(faults))]
	}
}

// Log is a metalog.Log that fails as planned. Close waits for late calls.
type Log struct {
	metalog.Log
	cfg  Config
	late sync.WaitGroup
	mu   struct {
		sync.Mutex
		counts map[Fault]int
	}
}

// New wraps a log; closing the wrapper closes it.
func New(inner metalog.Log, cfg Config) *Log {
	l := &Log{Log: inner, cfg: cfg}
	l.mu.counts = map[Fault]int{}
	return l
}

// Counts says how often each fault has happened.
func (l *Log) Counts() map[Fault]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[Fault]int{}
	for f, n := range l.mu.counts {
		out[f] = n
	}
	return out
}

func (l *Log) plan(op Op) Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := None
	if l.cfg.Plan != nil {
		f = l.cfg.Plan(op)
	}
	l.mu.counts[f]++
	return f
}

// write makes a call that changes something fail as planned.
func (l *Log) write(ctx context.Context, op Op, call func(context.Context) error) error {
	switch f := l.plan(op); f {
	case None:
		return call(ctx)
	case Refused:
		return fmt.Errorf("%s: injected refusal: %w", op, mink.ErrUnavailable)
	case LostResponse:
		if err := call(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%s: injected lost response: %w", op, mink.ErrUnknownOutcome)
	case Disconnected:
		return fmt.Errorf("%s: injected disconnect: %w", op, mink.ErrUnknownOutcome)
	case Late, Stalled:
		if f == Stalled {
			<-ctx.Done()
		}
		lctx := context.WithoutCancel(ctx)
		l.late.Go(func() {
			t := time.NewTimer(l.cfg.LateBy)
			defer t.Stop()
			<-t.C
			_ = call(lctx) // nobody is there to hear of it
		})
		return fmt.Errorf("%s: injected %s call: %w", op, f, mink.ErrUnknownOutcome)
	default:
		return fmt.Errorf("faultlog: unknown fault %q: %w", f, mink.ErrInvalid)
	}
}

func (l *Log) read(ctx context.Context, op Op, call func() error) error {
	switch f := l.plan(op); f {
	case None:
		return call()
	case Stalled:
		<-ctx.Done()
		return fmt.Errorf("%s: injected stall: %w", op, ctx.Err())
	default:
		return fmt.Errorf("%s: injected %s: %w", op, f, mink.ErrUnavailable)
	}
}

// Append implements metalog.Log.
func (l *Log) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	got := make(chan []metalog.Entry, 1)
	err := l.write(ctx, Append, func(ctx context.Context) error {
		entries, err := l.Log.Append(ctx, a)
		got <- entries
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-got, nil
}

// TakeLease implements metalog.Log.
func (l *Log) TakeLease(ctx context.Context, t metalog.TakeLease) (metalog.Lease, metalog.Entry, error) {
	type answer struct {
		lease metalog.Lease
		entry metalog.Entry
	}
	got := make(chan answer, 1)
	err := l.write(ctx, TakeLease, func(ctx context.Context) error {
		lease, entry, err := l.Log.TakeLease(ctx, t)
		got <- answer{lease, entry}
		return err
	})
	if err != nil {
		return metalog.Lease{}, metalog.Entry{}, err
	}
	a := <-got
	return a.lease, a.entry, nil
}

// Read implements metalog.Log.
func (l *Log) Read(ctx context.Context, after uint64, maxEntries, maxBytes int) (out []metalog.Entry, err error) {
	err = l.read(ctx, Read, func() (err error) {
		out, err = l.Log.Read(ctx, after, maxEntries, maxBytes)
		return err
	})
	return out, err
}

// Head implements metalog.Log.
func (l *Log) Head(ctx context.Context) (p metalog.Position, err error) {
	err = l.read(ctx, Head, func() (err error) {
		p, err = l.Log.Head(ctx)
		return err
	})
	return p, err
}

// Heartbeat implements metalog.Log.
func (l *Log) Heartbeat(ctx context.Context, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) (uint64, error) {
	got := make(chan uint64, 1)
	err := l.write(ctx, Heartbeat, func(ctx context.Context) error {
		head, err := l.Log.Heartbeat(ctx, node, epoch, applied)
		got <- head
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-got, nil
}

// Close implements metalog.Log.
func (l *Log) Close() error {
	l.late.Wait()
	return l.Log.Close()
}
