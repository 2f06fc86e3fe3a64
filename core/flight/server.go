package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// Server serves Flight clients. New, then Open, then Run.
type Server struct {
	cfg     Config
	backend Backend
	metrics Metrics
	log     *slog.Logger
	service *service

	listener net.Listener
	rpc      *grpc.Server
}

// unionsMax is how many union reads of primary-key buckets run at a time: each may hold
// Config.UnionKeyBytes.
const unionsMax = 16

// service is the Flight service itself.
type service struct {
	flight.BaseFlightServer
	cfg     Config
	backend Backend
	metrics Metrics
	log     *slog.Logger
	actions []action
	peers   *peers.Pool // nil: nothing is sent on
	lanes   *forwards   // of puts; nil without peers
	inflate *tablet.Inflation
	calls   relays // of clients, to peers

	lake      func() *scan.Opener // nil: this node has no lake
	unions    chan struct{}       // a place for each union read that holds keys in memory
	turn      atomic.Uint32       // of tables whose batches take turns among buckets
	receivers sync.WaitGroup      // goroutines that read a call's messages
	stopping  chan struct{}       // closed: answer what was read, then end
	stopOnce  sync.Once
}

// Option adds to a server.
type Option func(*service)

// WithPeers lets the server ask other nodes for what this one does not lead; without
// it such calls are answered NotLeader. The pool's owner closes it after Run.
func WithPeers(p *peers.Pool) Option {
	return func(s *service) { s.peers, s.lanes = p, newForwards(s) }
}

// New checks the configuration and does nothing else. metrics may be nil.
func New(cfg Config, backend Backend, metrics Metrics, logger *slog.Logger, options ...Option) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if metrics == nil {
		metrics = noMetrics{}
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	sv := &service{cfg: cfg, backend: backend, metrics: metrics, log: logger, stopping: make(chan struct{}), inflate: cfg.Inflation, unions: make(chan struct{}, unionsMax)}
	if sv.inflate == nil {
		sv.inflate = tablet.DefaultInflation()
	}
	sv.actions = sv.actionTable()
	for _, o := range options {
		o(sv)
	}
	s := &Server{cfg: cfg, backend: backend, metrics: metrics, log: logger, service: sv}
	s.rpc = grpc.NewServer(
		// Beyond the limit for batches there is room to say so; see checkSize.
		grpc.MaxRecvMsgSize(cfg.MessageBytesMax+1<<20),
		grpc.MaxConcurrentStreams(cfg.StreamsMax),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(sv.unaryCall),
		grpc.StreamInterceptor(sv.streamCall),
	)
	flight.RegisterFlightServiceServer(s.rpc, sv)
	return s, nil
}

// Open binds the listen address.
func (s *Server) Open(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for flight clients on %s: %w", s.cfg.Listen, err)
	}
	s.listener = l
	return nil
}

// OpenOn is Open with a listener of the caller's, which the server closes as its own.
func (s *Server) OpenOn(l net.Listener) { s.listener = l }

// Addr is the bound address, after Open.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx is done, then takes no new call, acknowledges appends
// that it has read, ends tails, lets scans end within Config.DrainTimeout, and
// returns when every goroutine is gone. It returns early only when the listener
// breaks.
func (s *Server) Run(ctx context.Context) error {
	if s.listener == nil {
		return fmt.Errorf("flight listener was not opened: %w", mink.ErrClosed)
	}
	served := make(chan error, 1)
	go func() { served <- s.rpc.Serve(s.listener) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served = nil
	}
	s.service.stop()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.rpc.GracefulStop()
	}()
	t := time.NewTimer(s.cfg.DrainTimeout)
	defer t.Stop()
	select {
	case <-drained:
	case <-t.C:
		s.log.Warn("flight calls are cut off: they did not end within the drain timeout", "timeout", s.cfg.DrainTimeout)
		s.rpc.Stop()
		<-drained
	}
	if served != nil {
		<-served //nolint:errcheck // nil, or the error of a listener that we closed
	}
	s.service.receivers.Wait()
	if s.service.lanes != nil {
		s.service.lanes.close()
	}
	if err != nil {
		return fmt.Errorf("serve flight clients: %w", err)
	}
	return nil
}

// Close frees the address of a server that was opened and never run; after Run
// there is nothing left to do.
func (s *Server) Close() error {
	if s.listener == nil {
		return nil
	}
	s.rpc.Stop()
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the flight listener: %w", err)
	}
	return nil
}

func (s *service) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

var errStopping = fmt.Errorf("this node is stopping: %w", mink.ErrUnavailable)

// received is one message of a client, or how its side of the stream ended:
// io.EOF when it was done.
type received struct {
	data *flight.FlightData
	err  error
}

// receive reads a call's messages ahead by one, so that a handler can wait for
// several things. It ends with the call.
func (s *service) receive(ctx context.Context, recv func() (*flight.FlightData, error)) <-chan received {
	out := make(chan received)
	s.receivers.Add(1)
	go func() {
		defer s.receivers.Done()
		for {
			m, err := recv()
			select {
			case out <- received{m, err}:
				if err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// first waits for a call's first message.
func (s *service) first(ctx context.Context, in <-chan received) (*flight.FlightData, error) {
	select {
	case m := <-in:
		if errors.Is(m.err, io.EOF) {
			return nil, fmt.Errorf("%w: the stream ended before its first message, which carries the descriptor", mink.ErrInvalid)
		}
		if m.err == nil && m.data.FlightDescriptor == nil {
			return nil, fmt.Errorf("%w: the first message carries no descriptor", mink.ErrInvalid)
		}
		return m.data, m.err
	case <-s.stopping:
		return nil, errStopping
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
