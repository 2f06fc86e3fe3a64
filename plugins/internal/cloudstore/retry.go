package cloudstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// call is one call of the contract on its way to the service.
type call struct {
	op, key string
	write   bool // a failure without an answer leaves its fate unknown
	once    bool // conditional: it leaves this machine once
}

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second
)

// run makes the attempts of a call. The error of the last one comes back as the
// contract wants it; a fate that an earlier attempt left unknown stays unknown,
// unless a later one succeeded.
func (s *Store) run(ctx context.Context, c call, attempt func(context.Context) error) error {
	pause := backoffMin
	unsure, dead := false, 0
	for i := 1; ; i++ {
		watched, flight := watch(ctx)
		err := attempt(watched)
		if err == nil {
			return nil
		}
		sent := flight.Sent()
		fault, err := s.judge(ctx, c, err, sent)
		unsure = unsure || fault.Unsure
		if unsure && !errors.Is(err, objstore.ErrUnknownOutcome) {
			err = objstore.UnknownOutcome(c.op, c.key, err)
		}
		passing := errors.Is(err, objstore.ErrThrottled) || errors.Is(err, objstore.ErrUnavailable) || fault.Unsure
		if !passing || c.once && sent || ctx.Err() != nil {
			return err
		}
		if flight.MetDead() && dead < s.attempts {
			dead++
			i--
			continue
		}
		wait := max(pause/2+rand.N(pause/2), fault.RetryAfter)
		pause = min(2*pause, backoffMax)
		if i >= s.attempts || wait > backoffMax { // the caller decides about longer ones
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// judge gives an attempt's error the contract's class.
func (s *Store) judge(ctx context.Context, c call, err error, sent bool) (Fault, error) {
	if own := new(classified); errors.As(err, &own) {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return Fault{Class: own.class}, fmt.Errorf("%s %q: %w", c.op, c.key, err)
	}
	fault := s.service.Explain(err)
	answered := fault.Class != nil
	if !answered {
		fault.Unsure = c.write && sent
		fault.Class = objstore.ErrUnavailable
	}
	fault.Unsure = fault.Unsure && c.write
	if fault.Advice != "" {
		err = fmt.Errorf("%s: %w", fault.Advice, err)
	}
	if !answered && ctx.Err() != nil {
		// The library may have hidden whose fault it was.
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
		if !fault.Unsure {
			return fault, fmt.Errorf("%s %q: %w", c.op, c.key, err)
		}
	}
	switch {
	case fault.Unsure:
		return fault, objstore.UnknownOutcome(c.op, c.key, err)
	case fault.Taken:
		return fault, fmt.Errorf("%s %q: %w: %w: %w", c.op, c.key, fault.Class, errTaken, err)
	case errors.Is(fault.Class, objstore.ErrThrottled):
		return fault, fmt.Errorf("%s %q: %w: %w", c.op, c.key, &objstore.ThrottledError{RetryAfter: fault.RetryAfter}, err)
	}
	return fault, fmt.Errorf("%s %q: %w: %w", c.op, c.key, fault.Class, err)
}

// errTaken marks a Fault that is Taken.
var errTaken = errors.New("another write of this key is going on, and nothing was written by this one")

// classified is an error that Store itself found in an attempt.
type classified struct {
	class error
	text  string
}

func (c *classified) Error() string { return c.text }
func (c *classified) Unwrap() error { return c.class }

func classify(class error, format string, args ...any) error {
	return &classified{class, fmt.Errorf(format+": %w", append(args, class)...).Error()}
}
