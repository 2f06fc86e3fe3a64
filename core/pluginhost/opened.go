package pluginhost

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/objstore"
)

// closeWait bounds how long Close waits for the calls in progress.
const closeWait = 30 * time.Second

// opened is what a plugin has open for the node, such as a store, in whatever process of
// the plugin serves now.
type opened[T io.Closer] struct {
	sup  *supervisor
	what string // for messages: "store"
	open func(ctx context.Context, p *host.Process) (T, error)
	// fits says why one that was opened anew cannot take the first one's place; set
	// after the first was opened.
	fits     func(again T) error
	opening  singleflight.Group
	released func() error

	mu struct {
		sync.Mutex
		inner      T // in the process of generation
		generation uint64
		closed     bool
		calls      int
		idle       chan struct{} // closed when the last call ends after Close; nil before Close
	}
}

// first opens it for the first time.
func (o *opened[T]) first(ctx context.Context) (T, error) {
	var none T
	p, generation, err := o.sup.serving(ctx)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.sup.cfg.StartTimeout)
	defer cancel()
	inner, err := o.open(ctx, p)
	if err != nil {
		return none, fmt.Errorf("plugin %s: %w", o.sup.in.Manifest.Name, err)
	}
	o.mu.inner, o.mu.generation = inner, generation
	return inner, nil
}

// begin answers it in the process that serves, opened there when it is new. The caller
// calls end when the error is nil.
func (o *opened[T]) begin(ctx context.Context) (T, error) {
	o.mu.Lock()
	if o.mu.closed {
		o.mu.Unlock()
		var none T
		return none, fmt.Errorf("plugin %s: %w: the %s is closed", o.sup.in.Manifest.Name, objstore.ErrUnavailable, o.what)
	}
	o.mu.calls++
	o.mu.Unlock()
	inner, err := o.current(ctx)
	if err != nil {
		o.end()
	}
	return inner, err
}

func (o *opened[T]) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.calls--
	if o.mu.calls == 0 && o.mu.idle != nil {
		close(o.mu.idle)
	}
}

func (o *opened[T]) current(ctx context.Context) (T, error) {
	var none T
	p, generation, err := o.sup.serving(ctx)
	if err != nil {
		return none, err
	}
	o.mu.Lock()
	inner, have := o.mu.inner, o.mu.generation
	o.mu.Unlock()
	if have == generation {
		return inner, nil
	}
	// One opens for all who wait, and not on the context of any of them.
	again := o.opening.DoChan(strconv.FormatUint(generation, 10), func() (any, error) { return o.reopen(p, generation) })
	select {
	case r := <-again:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(T), nil //nolint:forcetypeassert // reopen's
	case <-ctx.Done():
		return none, fmt.Errorf("plugin %s: %w", o.sup.in.Manifest.Name, ctx.Err())
	}
}

// reopen opens it in a new process. Whatever the reason why that fails, the caller's own
// request is not at fault: it is unavailable.
func (o *opened[T]) reopen(p *host.Process, generation uint64) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(context.Background(), o.sup.cfg.StartTimeout)
	defer cancel()
	inner, err := o.open(ctx, p)
	if err != nil {
		o.sup.logger.Error("the "+o.what+" cannot be opened in the plugin's new process; it is tried again", "error", err)
		return none, fmt.Errorf("plugin %s: %w: its new process cannot open the %s: %v", o.sup.in.Manifest.Name, objstore.ErrUnavailable, o.what, err) //nolint:errorlint // see above
	}
	if err := o.fits(inner); err != nil {
		_ = inner.Close()                                                                                                        // the next call opens it again, perhaps in a better process
		return none, fmt.Errorf("plugin %s: %w: %v: start the node again", o.sup.in.Manifest.Name, objstore.ErrUnavailable, err) //nolint:errorlint // as above
	}
	o.mu.Lock()
	if generation > o.mu.generation { // a newer process may have been quicker
		o.mu.inner, o.mu.generation = inner, generation
	}
	o.mu.Unlock()
	return inner, nil
}

// Close waits for the calls in progress, closes it in the plugin, and ends the plugin's
// process when nothing else of it is open.
func (o *opened[T]) Close() error {
	o.mu.Lock()
	if o.mu.closed {
		o.mu.Unlock()
		return nil
	}
	o.mu.closed = true
	o.mu.idle = make(chan struct{})
	if o.mu.calls == 0 {
		close(o.mu.idle)
	}
	idle, inner, generation := o.mu.idle, o.mu.inner, o.mu.generation
	o.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(closeWait):
		o.sup.logger.Warn("calls in progress did not end in time; the "+o.what+" is closed all the same", "limit", closeWait)
	}
	o.sup.mu.Lock()
	same := o.sup.mu.process != nil && o.sup.mu.generation == generation
	o.sup.mu.Unlock()
	var err error
	if same {
		err = inner.Close()
	}
	if rerr := o.released(); err == nil {
		err = rerr
	}
	return err
}
