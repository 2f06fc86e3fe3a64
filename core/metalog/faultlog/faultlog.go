// Package faultlog is a metadata log between its user and another one that
// loses answers, stalls and breaks connections, as a database on a bad network
// does. For tests and simulation.
package faultlog

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Op is a kind of call.
type Op string

// The calls that can be made to fail: all of metalog.Log but Changed and Close.
const (
	Append        Op = "append"
	TakeLease     Op = "take lease"
	RenewLease    Op = "renew lease"
	ReleaseLease  Op = "release lease"
	Heartbeat     Op = "heartbeat"
	WriteSnapshot Op = "write snapshot"
	Truncate      Op = "truncate"

	Read         Op = "read"
	Head         Op = "head"
	ReadLease    Op = "read lease"
	Heartbeats   Op = "list heartbeats"
	Snapshots    Op = "list snapshots"
	ReadSnapshot Op = "read snapshot"
)

// Writes reports whether the call changes something.
func (o Op) Writes() bool {
	switch o {
	case Read, Head, ReadLease, Heartbeats, Snapshots, ReadSnapshot:
		return false
	}
	return true
}

// Fault is what happens to one call.
type Fault string

// The faults. Calls that only read know None, Refused and Stalled, ReadSnapshot
// also Disconnected: after its first part; others are Refused for them.
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
	if err := l.readFault(ctx, op, l.plan(op)); err != nil {
		return err
	}
	return call()
}

func (l *Log) readFault(ctx context.Context, op Op, f Fault) error {
	switch f {
	case None:
		return nil
	case Stalled:
		<-ctx.Done()
		return fmt.Errorf("%s: injected stall: %w", op, ctx.Err())
	default:
		return fmt.Errorf("%s: injected %s: %w", op, f, mink.ErrUnavailable)
	}
}

// answered makes a call that changes something and answers with a value fail as
// planned. The value goes through a channel: a late call has nobody to take it.
func answered[T any](ctx context.Context, l *Log, op Op, call func(context.Context) (T, error)) (v T, err error) {
	got := make(chan T, 1)
	err = l.write(ctx, op, func(ctx context.Context) error {
		v, err := call(ctx)
		got <- v
		return err
	})
	if err != nil {
		return v, err
	}
	return <-got, nil
}

// Append implements metalog.Log.
func (l *Log) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	return answered(ctx, l, Append, func(ctx context.Context) ([]metalog.Entry, error) { return l.Log.Append(ctx, a) })
}

// TakeLease implements metalog.Log.
func (l *Log) TakeLease(ctx context.Context, t metalog.TakeLease) (metalog.Lease, metalog.Entry, error) {
	type answer struct {
		lease metalog.Lease
		entry metalog.Entry
	}
	a, err := answered(ctx, l, TakeLease, func(ctx context.Context) (answer, error) {
		lease, entry, err := l.Log.TakeLease(ctx, t)
		return answer{lease, entry}, err
	})
	return a.lease, a.entry, err
}

// RenewLease implements metalog.Log.
func (l *Log) RenewLease(ctx context.Context, lease metalog.Lease, ttl time.Duration) (metalog.Lease, error) {
	return answered(ctx, l, RenewLease, func(ctx context.Context) (metalog.Lease, error) { return l.Log.RenewLease(ctx, lease, ttl) })
}

// ReleaseLease implements metalog.Log.
func (l *Log) ReleaseLease(ctx context.Context, lease metalog.Lease) error {
	return l.write(ctx, ReleaseLease, func(ctx context.Context) error { return l.Log.ReleaseLease(ctx, lease) })
}

// Heartbeat implements metalog.Log.
func (l *Log) Heartbeat(ctx context.Context, node mink.NodeID, epoch mink.NodeEpoch, applied uint64) (uint64, error) {
	return answered(ctx, l, Heartbeat, func(ctx context.Context) (uint64, error) { return l.Log.Heartbeat(ctx, node, epoch, applied) })
}

// WriteSnapshot implements metalog.Log. The parts of a late one are made late.
func (l *Log) WriteSnapshot(ctx context.Context, s metalog.SnapshotWrite) error {
	return l.write(ctx, WriteSnapshot, func(ctx context.Context) error { return l.Log.WriteSnapshot(ctx, s) })
}

// Truncate implements metalog.Log.
func (l *Log) Truncate(ctx context.Context, through uint64, lease metalog.Lease) error {
	return l.write(ctx, Truncate, func(ctx context.Context) error { return l.Log.Truncate(ctx, through, lease) })
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

// ReadLease implements metalog.Log.
func (l *Log) ReadLease(ctx context.Context) (lease metalog.Lease, live bool, err error) {
	err = l.read(ctx, ReadLease, func() (err error) {
		lease, live, err = l.Log.ReadLease(ctx)
		return err
	})
	return lease, live, err
}

// Heartbeats implements metalog.Log.
func (l *Log) Heartbeats(ctx context.Context) (rows []metalog.HeartbeatRow, err error) {
	err = l.read(ctx, Heartbeats, func() (err error) {
		rows, err = l.Log.Heartbeats(ctx)
		return err
	})
	return rows, err
}

// Snapshots implements metalog.Log.
func (l *Log) Snapshots(ctx context.Context) (infos []metalog.SnapshotInfo, err error) {
	err = l.read(ctx, Snapshots, func() (err error) {
		infos, err = l.Log.Snapshots(ctx)
		return err
	})
	return infos, err
}

// ReadSnapshot implements metalog.Log.
func (l *Log) ReadSnapshot(ctx context.Context, index uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f := l.plan(ReadSnapshot)
		if f != Disconnected {
			if err := l.readFault(ctx, ReadSnapshot, f); err != nil {
				yield(nil, err)
				return
			}
		}
		for part, err := range l.Log.ReadSnapshot(ctx, index) {
			if !yield(part, err) || err != nil {
				return
			}
			if f == Disconnected {
				yield(nil, l.readFault(ctx, ReadSnapshot, f))
				return
			}
		}
	}
}

// Close implements metalog.Log.
func (l *Log) Close() error {
	l.late.Wait()
	return l.Log.Close()
}
