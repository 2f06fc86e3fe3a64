// Package loop runs a node's periodic work. One loop is one function at one
// interval; a failure is logged, counted and backed off, and never ends the
// loop. Its status is data, so that an operator sees what ran, when, and how it
// ended.
package loop

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// firstRetry is how long a loop waits after its first failure in a row; each
// further failure doubles it, up to the loop's interval.
const firstRetry = 250 * time.Millisecond

// ErrIdle is what a job answers that is another node's for now: no failure, and no run
// that did something.
var ErrIdle = errors.New("another node's work for now")

// Status is what a loop last did. Times are zero when it has not happened yet.
type Status struct {
	Name      string        `json:"name"`
	Interval  time.Duration `json:"interval_ns"`
	LastStart time.Time     `json:"last_start"`
	LastEnd   time.Time     `json:"last_end"`
	Next      time.Time     `json:"next"`
	Runs      uint64        `json:"runs"`
	Failures  uint64        `json:"failures"`
	Worked    uint64        `json:"worked"`               // runs that were not idle
	Idle      bool          `json:"idle,omitempty"`       // the last run answered ErrIdle
	LastError string        `json:"last_error,omitempty"` // "" when the last run succeeded
}

// Loop is one periodic job. Safe for concurrent use.
type Loop struct {
	name     string
	interval time.Duration
	run      func(context.Context) error
	logger   *slog.Logger
	kick     chan struct{}

	mu struct {
		sync.Mutex
		status Status
	}
}

// New makes a loop that has not started. Runs of one loop never overlap.
func New(name string, interval time.Duration, logger *slog.Logger, run func(context.Context) error) *Loop {
	l := &Loop{name: name, interval: interval, run: run, logger: logger, kick: make(chan struct{}, 1)}
	l.mu.status = Status{Name: name, Interval: interval}
	return l
}

// Trigger makes the loop run as soon as it can; triggers while one is waiting
// merge.
func (l *Loop) Trigger() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Status answers a copy of the loop's status.
func (l *Loop) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.status
}

// Run runs the job every interval until ctx is done; the first run comes one
// interval after the start, or at the first Trigger.
func (l *Loop) Run(ctx context.Context) error {
	wait := l.interval
	failures := 0
	timer := time.NewTimer(wait)
	defer timer.Stop()
	l.setNext(wait)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-l.kick:
		}
		if err := l.once(ctx); err != nil && ctx.Err() == nil {
			failures++
			wait = backoff(failures, l.interval)
			l.logger.Warn("loop failed", "loop", l.name, "error", err, "failures_in_a_row", failures, "retry_in", wait)
		} else {
			failures = 0
			wait = l.interval
		}
		timer.Reset(wait)
		l.setNext(wait)
	}
}

func (l *Loop) once(ctx context.Context) error {
	l.mu.Lock()
	l.mu.status.LastStart = time.Now()
	l.mu.Unlock()
	err := l.run(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.status.LastEnd = time.Now()
	l.mu.status.Runs++
	l.mu.status.LastError = ""
	if l.mu.status.Idle = errors.Is(err, ErrIdle); l.mu.status.Idle {
		return nil
	}
	l.mu.status.Worked++
	if err != nil {
		l.mu.status.Failures++
		l.mu.status.LastError = err.Error()
	}
	return err
}

func (l *Loop) setNext(wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.status.Next = time.Now().Add(wait)
}

// backoff doubles from firstRetry up to limit, less up to a fifth at random so
// that loops which failed together do not retry together.
func backoff(failures int, limit time.Duration) time.Duration {
	d := firstRetry
	for i := 1; i < failures && d < limit; i++ {
		d *= 2
	}
	d = min(d, limit)
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
