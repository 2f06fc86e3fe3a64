// Package peers is how one node talks to another: a pool of Flight connections by
// the addresses that nodes advertise. A connection is made when it is first used,
// rests when it is idle, and is closed when no live node has its address any more.
//
// Calls to peers carry two headers: that they were sent on by a node, so that the
// peer answers for itself and never sends them on again, and the metadata index
// that the caller has applied, so that the peer knows at least as much.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// Config tunes a pool. Start from Default.
type Config struct {
	// MessageBytesMax bounds one message each way, as the listeners' does.
	MessageBytesMax int
	// IdleTimeout is how long an unused connection stays open. Default 5 m.
	IdleTimeout time.Duration
	// ConnectTimeout bounds one try to connect, ReconnectMax the pause between two.
	// Defaults 5 s and 1 s.
	ConnectTimeout, ReconnectMax time.Duration
	// ProbeInterval is how long a connection with calls on it may be silent before it
	// is probed, and ProbeTimeout how long the answer may take: what finds a peer that
	// hangs. Not below the listeners' 10 s. Defaults 10 s and 5 s.
	ProbeInterval, ProbeTimeout time.Duration
	// Dial connects to host:port, and resolves the host; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Default is a pool for nodes of the default configuration.
func Default() Config {
	return Config{
		MessageBytesMax: 64 << 20, IdleTimeout: 5 * time.Minute, ConnectTimeout: 5 * time.Second, ReconnectMax: time.Second,
		ProbeInterval: 10 * time.Second, ProbeTimeout: 5 * time.Second,
	}
}

// Pool holds the connections. Safe for concurrent use.
type Pool struct {
	cfg  Config
	view func() *cluster.State

	mu struct {
		sync.Mutex
		conns  map[string]link // by host:port
		closed bool
	}
}

// link is a connection with its Flight client. Closing the client itself would race
// with the calls on it (arrow-go clears a field); closing the connection ends them.
type link struct {
	flight.Client
	conn *grpc.ClientConn
}

func (l link) Close() error { return l.conn.Close() }

// New makes an empty pool. view is the metadata that this node has applied; it is
// called when the pool is used, not before.
func New(cfg Config, view func() *cluster.State) *Pool {
	p := &Pool{cfg: cfg, view: view}
	p.mu.conns = map[string]link{}
	return p
}

// Run closes the connections to nodes that leave the view, until ctx is done; then
// all of them. changed is closed when there is a view above the index.
func (p *Pool) Run(ctx context.Context, changed func(index uint64) <-chan struct{}) error {
	for {
		view := p.view()
		p.keep(view)
		select {
		case <-ctx.Done():
			return p.Close()
		case <-changed(view.Index()):
		}
	}
}

// keep closes what no live node listens on.
func (p *Pool) keep(view *cluster.State) {
	live := map[string]bool{}
	for _, n := range view.LiveNodes() {
		live[hostPort(n.FlightAddress)] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, conn := range p.mu.conns {
		if !live[address] {
			_ = conn.Close() // calls on it end as unavailable
			delete(p.mu.conns, address)
		}
	}
}

// Close ends every call and connection; later calls fail with mink.ErrClosed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.closed = true
	var errs []error
	for address, conn := range p.mu.conns {
		errs = append(errs, conn.Close())
		delete(p.mu.conns, address)
	}
	return errors.Join(errs...)
}

// Size is how many connections there are.
func (p *Pool) Size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.conns)
}

func hostPort(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		return rest
	}
	return address
}

// At answers the connection to a node. Calls on it want a context of Onward, and
// their errors go through Error.
func (p *Pool) At(n cluster.Node) (flight.Client, error) {
	address := hostPort(n.FlightAddress)
	if address == "" {
		return nil, fmt.Errorf("node %d advertises no Flight address: %w", n.ID, mink.ErrUnavailable)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, fmt.Errorf("this node is stopping: %w", mink.ErrClosed)
	}
	if conn, ok := p.mu.conns[address]; ok {
		return conn, nil
	}
	target, options := address, []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(p.cfg.IdleTimeout),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: p.cfg.ReconnectMax},
			MinConnectTimeout: p.cfg.ConnectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: p.cfg.ProbeInterval, Timeout: p.cfg.ProbeTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(p.cfg.MessageBytesMax+1<<20), grpc.MaxCallSendMsgSize(p.cfg.MessageBytesMax+1<<20)),
	}
	if p.cfg.Dial != nil {
		target = "passthrough:///" + address
		options = append(options, grpc.WithContextDialer(p.cfg.Dial))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to node %d at %s: %w", n.ID, address, err)
	}
	l := link{flight.NewClientFromConn(conn, nil), conn}
	p.mu.conns[address] = l
	return l, nil
}

// Onward is the context of a call to a peer.
func (p *Pool) Onward(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(
		api.HeaderForwarded, "1",
		api.HeaderMinAppliedIndex, strconv.FormatUint(p.view().Index(), 10),
	))
}

// Forwarded reports that an incoming call was sent on by a node, or wants to be
// answered by this one for another reason.
func Forwarded(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, api.HeaderForwarded)) > 0
}

// Error is the failure of a call to a peer; it wraps an error class of sdk/mink.
type Error struct {
	Node mink.NodeID
	// Applied is the metadata index that the peer had applied; 0 when it did not
	// answer. Whoever has applied it too knows why the peer refused.
	Applied uint64
	err     error
	said    *status.Status // the peer's own, when it has a reason of sdk/api
}

func (e *Error) Error() string { return fmt.Sprintf("node %d: %v", e.Node, e.err) }

// Unwrap answers the peer's error.
func (e *Error) Unwrap() error { return e.err }

// GRPCStatus is what the peer answered, with its reason and what that has to say
// beside the text: what a client is told whom the peer was asked for. nil: the call
// broke before it said why.
func (e *Error) GRPCStatus() *status.Status {
	if e.said == nil {
		return nil
	}
	p := e.said.Proto()
	p.Message = e.Error()
	return status.FromProto(p)
}

// reasoned is the status of a peer that said why; nil of any other error.
func reasoned(err error) *status.Status {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == api.ErrorDomain {
			return st
		}
	}
	return nil
}

// Stream is what Error needs of a call.
type Stream interface{ Trailer() metadata.MD }

// FromStatus makes an Error of a status that a call to a peer ended with; stream is
// nil when there was none. A nil err and io.EOF are passed on. A call that was cut
// off because its connection was closed is mink.ErrUnavailable: whether the caller
// itself gave up, its context says.
func FromStatus(n cluster.Node, stream Stream, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	e := &Error{Node: n.ID, err: client.FromStatus("", err), said: reasoned(err)}
	if errors.Is(e.err, context.Canceled) {
		e.err = fmt.Errorf("the call was cut off: %w", mink.ErrUnavailable)
	}
	if stream != nil {
		e.Applied = appliedOf(stream)
	}
	return e
}

// appliedOf is the metadata index that a peer had applied at the end of a call; 0: it
// does not say.
func appliedOf(ended Stream) (index uint64) {
	if v := ended.Trailer().Get(api.HeaderAppliedIndex); len(v) > 0 {
		index, _ = strconv.ParseUint(v[0], 10, 64) // 0 for what is no number
	}
	return index
}

// Action runs an action on a peer and decodes its one answer into out (nil:
// ignored). Errors are *Error, those of At, or mink.ErrUnknownOutcome for an answer
// that cannot be read.
func (p *Pool) Action(ctx context.Context, n cluster.Node, action string, body, out any) error {
	answered := false
	_, err := p.Each(ctx, n, action, api.JSON(body), func(answer []byte) error {
		answered = true
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(answer, out); err != nil {
			return fmt.Errorf("%s on node %d: the answer is not what this node expects: %w: %w", action, n.ID, mink.ErrUnknownOutcome, err)
		}
		return nil
	})
	if err == nil && !answered && out != nil {
		return fmt.Errorf("%s: node %d answered nothing: %w", action, n.ID, mink.ErrUnknownOutcome)
	}
	return err
}

// Look runs an action on a peer, however far the peer's metadata are, and answers its
// one body and the index that it has applied.
func (p *Pool) Look(ctx context.Context, n cluster.Node, action string, body []byte) (answer []byte, applied uint64, err error) {
	conn, err := p.At(n)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.Pairs(api.HeaderForwarded, "1")))
	defer cancel()
	s, err := conn.DoAction(ctx, &flight.Action{Type: action, Body: body})
	if err != nil {
		return nil, 0, FromStatus(n, nil, err)
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return answer, appliedOf(s), nil
		}
		if err != nil {
			return nil, 0, FromStatus(n, s, err)
		}
		answer = r.Body
	}
}

// Each runs an action on a peer and hands each of its answers to f, whose error
// ends the call. It answers the metadata index that the peer had applied at the end.
func (p *Pool) Each(ctx context.Context, n cluster.Node, action string, body []byte, f func(answer []byte) error) (applied uint64, err error) {
	conn, err := p.At(n)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(p.Onward(ctx))
	defer cancel()
	s, err := conn.DoAction(ctx, &flight.Action{Type: action, Body: body})
	if err != nil {
		return 0, FromStatus(n, nil, err)
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return appliedOf(s), nil
		}
		if err != nil {
			return 0, FromStatus(n, s, err)
		}
		if err := f(r.Body); err != nil {
			return 0, err
		}
	}
}
