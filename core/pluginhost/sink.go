package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/plugin"
	"github.com/mink-project/mink/sdk/sink"
)

// OpenSink opens a sink in the plugin of that name, starting the plugin's process when
// it does not run. A plugin that cannot start is an error, and so is a configuration
// that it refuses (sink.ErrInvalid, sink.ErrUnimplemented). A target that does not
// answer now is none: the sink opens when it does, and until then its calls fail with
// that error. Closing the last sink of a plugin ends its process.
func (h *Host) OpenSink(ctx context.Context, name string, options map[string]string) (sink.Sink, error) {
	in, err := h.FindNamed(plugin.KindSink, name, options)
	if err != nil {
		return nil, err
	}
	sup, err := h.acquire(ctx, in)
	if err != nil {
		return nil, err
	}
	s := &tieringSink{sup: sup, options: options, released: func() error { return h.release(sup) }}
	if _, err := s.current(ctx); err != nil {
		if errors.Is(err, sink.ErrInvalid) || errors.Is(err, sink.ErrUnimplemented) || ctx.Err() != nil {
			return nil, errors.Join(err, h.release(sup))
		}
		sup.logger.Error("the sink cannot be opened; it is tried again with each round", "error", err)
	}
	return s, nil
}

// tieringSink is a sink.Sink in whatever process of its plugin serves now. Its handles
// are of one process: after its end every call on them fails with sink.ErrUnavailable,
// and the worker opens the table again. Nothing is repeated here: the worker knows what
// may be.
type tieringSink struct {
	sup      *supervisor
	options  map[string]string
	opening  singleflight.Group
	released func() error

	mu struct {
		sync.Mutex
		inner      sink.Sink // in the process of generation; nil before the first
		generation uint64
		described  *sink.Description // of the first process that opened it
		closed     bool
		calls      sync.WaitGroup
	}
}

// Describe answers what the plugin said when it first opened the sink; before that
// only the name is known.
func (s *tieringSink) Describe() sink.Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.described == nil {
		return sink.Description{Name: s.sup.in.Manifest.Name}
	}
	return *s.mu.described
}

// current answers the sink in the process that serves, opened there when it is new.
func (s *tieringSink) current(ctx context.Context) (sink.Sink, error) {
	p, generation, err := s.sup.serving(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	inner, have := s.mu.inner, s.mu.generation
	s.mu.Unlock()
	if inner != nil && have == generation {
		return inner, nil
	}
	// One opens for all who wait, and not on the context of any of them.
	opened := s.opening.DoChan(strconv.FormatUint(generation, 10), func() (any, error) { return s.reopen(p, generation) })
	select {
	case r := <-opened:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(sink.Sink), nil //nolint:forcetypeassert // reopen's
	case <-ctx.Done():
		return nil, fmt.Errorf("plugin %s: %w", s.sup.in.Manifest.Name, ctx.Err())
	}
}

func (s *tieringSink) reopen(p *host.Process, generation uint64) (sink.Sink, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.sup.cfg.StartTimeout)
	defer cancel()
	name := s.sup.in.Manifest.Name
	inner, err := p.OpenSink(ctx, s.options)
	if err != nil {
		if !errors.Is(err, sink.ErrInvalid) && !errors.Is(err, sink.ErrUnimplemented) && !errors.Is(err, sink.ErrUnauthorized) {
			err = fmt.Errorf("%w: %w", sink.ErrUnavailable, err)
		}
		return nil, fmt.Errorf("plugin %s: the sink cannot be opened: %w", name, err)
	}
	got := inner.Describe()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.described == nil {
		s.mu.described = &got
	}
	if was := *s.mu.described; got.Delivery != was.Delivery || got.Changes != was.Changes {
		_ = inner.Close() // the next call opens it again, perhaps in a better process
		return nil, fmt.Errorf("plugin %s: %w: its new process is another kind of sink than the one before (%+v, was %+v): start the node again", name, sink.ErrUnavailable, got, was)
	}
	if s.mu.inner == nil || generation > s.mu.generation { // a newer process may have been quicker
		s.mu.inner, s.mu.generation = inner, generation
	}
	return inner, nil
}

// begin counts a call; the caller calls end.
func (s *tieringSink) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return fmt.Errorf("plugin %s: %w: the sink is closed", s.sup.in.Manifest.Name, sink.ErrUnavailable)
	}
	s.mu.calls.Add(1)
	return nil
}

func (s *tieringSink) end() { s.mu.calls.Done() }

func (s *tieringSink) Open(ctx context.Context, req sink.OpenRequest) (sink.Table, error) {
	return sinkCall(s, opOpen, 0, func() (sink.Table, error) {
		inner, err := s.current(ctx)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", req.Table.FullName(), err)
		}
		t, err := inner.Open(ctx, req)
		if err != nil {
			return nil, err
		}
		return &tieringTable{sink: s, inner: t}, nil
	})
}

// Close waits for the calls in progress, closes the sink in the plugin, and ends the
// plugin's process when no other sink of it is open.
func (s *tieringSink) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	inner, generation := s.mu.inner, s.mu.generation
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() { s.mu.calls.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-time.After(closeWait):
		s.sup.logger.Warn("calls in progress did not end in time; the sink is closed all the same", "limit", closeWait)
	}
	s.sup.mu.Lock()
	same := s.sup.mu.process != nil && s.sup.mu.generation == generation
	s.sup.mu.Unlock()
	var err error
	if same && inner != nil {
		err = inner.Close()
	}
	return errors.Join(err, s.released())
}

// sinkCall runs one call and counts it. sent are the bytes that go to the plugin.
func sinkCall[T any](s *tieringSink, op operation, sent int64, f func() (T, error)) (T, error) {
	done := s.sup.meter.begin(op)
	if err := s.begin(); err != nil {
		var none T
		done(0, 0, err)
		return none, err
	}
	defer s.end()
	v, err := f()
	done(sent, 0, err)
	return v, err
}

// tieringTable is a handle in one process.
type tieringTable struct {
	sink  *tieringSink
	inner sink.Table
}

func (t *tieringTable) Recover(ctx context.Context, req sink.RecoverRequest) (sink.RecoverResponse, error) {
	return sinkCall(t.sink, opRecover, 0, func() (sink.RecoverResponse, error) { return t.inner.Recover(ctx, req) })
}

func (t *tieringTable) BeginRound(ctx context.Context, req sink.BeginRoundRequest) (sink.BeginRoundResponse, error) {
	return sinkCall(t.sink, opBegin, 0, func() (sink.BeginRoundResponse, error) { return t.inner.BeginRound(ctx, req) })
}

func (t *tieringTable) Write(ctx context.Context, req sink.WriteRequest) (sink.WriteResponse, error) {
	var size int64
	for _, c := range req.Batch.Columns() {
		size += int64(c.Data().SizeInBytes()) //nolint:gosec // of memory that is there
	}
	return sinkCall(t.sink, opWrite, size, func() (sink.WriteResponse, error) { return t.inner.Write(ctx, req) })
}

func (t *tieringTable) Prepare(ctx context.Context, req sink.PrepareRequest) (sink.PrepareResponse, error) {
	return sinkCall(t.sink, opPrepare, 0, func() (sink.PrepareResponse, error) { return t.inner.Prepare(ctx, req) })
}

func (t *tieringTable) Commit(ctx context.Context, req sink.CommitRequest) (sink.CommitResponse, error) {
	return sinkCall(t.sink, opCommit, 0, func() (sink.CommitResponse, error) { return t.inner.Commit(ctx, req) })
}

func (t *tieringTable) Abort(ctx context.Context, req sink.AbortRequest) (sink.AbortResponse, error) {
	return sinkCall(t.sink, opAbort, 0, func() (sink.AbortResponse, error) { return t.inner.Abort(ctx, req) })
}

func (t *tieringTable) SchemaChange(ctx context.Context, req sink.SchemaChangeRequest) (sink.SchemaChangeResponse, error) {
	return sinkCall(t.sink, opSchema, 0, func() (sink.SchemaChangeResponse, error) { return t.inner.SchemaChange(ctx, req) })
}

func (t *tieringTable) Drop(ctx context.Context, req sink.DropRequest) (sink.DropResponse, error) {
	return sinkCall(t.sink, opDrop, 0, func() (sink.DropResponse, error) { return t.inner.Drop(ctx, req) })
}

// Close gives the handle up; in a process that ended there is none.
func (t *tieringTable) Close() error {
	err := t.inner.Close()
	if errors.Is(err, sink.ErrUnavailable) {
		return nil
	}
	return err
}
