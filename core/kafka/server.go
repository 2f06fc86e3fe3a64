package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mink-project/mink/sdk/mink"
)

// Server accepts Kafka clients. New, then Open, then Run.
type Server struct {
	cfg     Config
	broker  *broker
	metrics Metrics
	log     *slog.Logger

	listener   net.Listener
	buffers    buffers
	receive    *semaphore.Weighted // bytes of large frames
	decode     *semaphore.Weighted // bytes that decoders of larger requests may allocate
	stopping   chan struct{}       // closed: read no more, answer what was read
	unanswered *unanswered
	wg         sync.WaitGroup // every connection

	mu struct {
		sync.Mutex
		conns   map[*conn]struct{}
		stopped bool
	}
}

// New checks the configuration and does nothing else. metrics may be nil.
func New(cfg Config, backend Backend, metrics Metrics, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = noMetrics{}
	}
	s := &Server{
		cfg: cfg, metrics: metrics, log: log,
		receive:    semaphore.NewWeighted(cfg.ReceiveBytesMax),
		decode:     semaphore.NewWeighted(cfg.DecodeBytesMax),
		stopping:   make(chan struct{}),
		unanswered: newUnanswered(cfg.UnansweredBytesMax, cfg.UnansweredAllowance, cfg.UnansweredPatience),
	}
	s.broker = newBroker(cfg, backend, metrics, log, s.stopping)
	s.mu.conns = make(map[*conn]struct{})
	return s, nil
}

// Open binds the listen address. Close it again by Run with a done context.
func (s *Server) Open(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for kafka clients on %s: %w", s.cfg.Listen, err)
	}
	s.listener = l
	return nil
}

// OpenOn is Open with a listener of the caller's, which the server closes as its own.
func (s *Server) OpenOn(l net.Listener) { s.listener = l }

// Addr is the bound address, after Open.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx is done, then reads no further request, answers those it
// has read within Config.DrainTimeout, and returns when every goroutine is
// gone. It returns early only when the listener breaks.
func (s *Server) Run(ctx context.Context) error {
	if s.listener == nil {
		return fmt.Errorf("kafka listener was not opened: %w", mink.ErrClosed)
	}
	// Connections outlive ctx by the drain; base ends them for good.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	grouped := make(chan struct{})
	go func() { defer close(grouped); s.broker.groups.run(base) }()
	accepted := make(chan error, 1)
	go func() { accepted <- s.accept(ctx, base) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-accepted:
		accepted = nil
	}
	s.stop()
	if cerr := s.listener.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		s.log.Warn("close the kafka listener", "error", cerr)
	}
	if accepted != nil {
		if aerr := <-accepted; aerr != nil {
			s.log.Warn("the kafka listener broke while it stopped", "error", aerr)
		}
	}
	hard := time.AfterFunc(s.cfg.DrainTimeout, func() { s.abort(cancel) })
	defer hard.Stop()
	s.wg.Wait()
	cancel()
	<-grouped
	s.broker.wait()
	return err
}

// stop tells readers to read no more and waiting fetches to answer.
func (s *Server) stop() {
	s.mu.Lock()
	if !s.mu.stopped {
		s.mu.stopped = true
		close(s.stopping)
	}
	conns := s.openConns()
	s.mu.Unlock()
	for _, c := range conns {
		c.interruptRead()
	}
}

func (s *Server) abort(cancel context.CancelFunc) {
	cancel()
	s.mu.Lock()
	conns := s.openConns()
	s.mu.Unlock()
	for _, c := range conns {
		c.log.Warn("connection closed: its requests were not answered within the drain timeout", "timeout", s.cfg.DrainTimeout)
		c.closeSocket()
	}
}

// openConns is called with s.mu held.
func (s *Server) openConns() []*conn {
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

// accept hands connections out until the listener closes. Running out of file
// descriptors is waited out.
func (s *Server) accept(ctx, base context.Context) error {
	pause := time.Duration(0)
	for {
		nc, err := s.listener.Accept()
		if err == nil {
			pause = 0
			s.admit(base, nc)
			continue
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // closed on purpose
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept kafka clients: %w", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.log.Warn("accept a kafka client, trying again", "error", err, "pause", pause)
		wait(ctx, pause)
	}
}

func (s *Server) admit(base context.Context, nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	refused := ""
	switch {
	case s.mu.stopped:
		refused = "the listener is stopping"
	case len(s.mu.conns) >= s.cfg.ConnectionsMax:
		refused = "too many connections"
	default:
		s.mu.conns[c] = struct{}{}
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if refused != "" {
		c.log.Warn("connection closed: "+refused, "connections_max", s.cfg.ConnectionsMax)
		c.closeSocket()
		return
	}
	s.metrics.Connections(1)
	go func() {
		defer s.wg.Done()
		c.serve(base)
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.mu.Unlock()
		s.metrics.Connections(-1)
	}()
}

// wait pauses; false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
