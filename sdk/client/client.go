// Package client is the Go client of Mink, over Arrow Flight.
//
//	c, err := client.New(client.Default())
//	w, err := c.NewWriter(ctx, "db.events", client.DefaultWriter())
//	f, err := w.Append(ctx, batch)      // arrow.RecordBatch
//	err = f.Wait(ctx)                   // durable
//	for b, err := range c.Scan(ctx, client.ScanRequest{Table: "db.events"}) { ... }
//
// Appends are idempotent and ride out restarts of nodes: a batch is written
// once, in order, however often it had to be sent. Errors wrap the classes of
// sdk/mink.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// Client talks to a cluster. Safe for concurrent use.
type Client struct {
	cfg    Config
	logger *slog.Logger
	seen   atomic.Uint64 // newest metadata index that a node told

	mu struct {
		sync.Mutex
		conns   map[string]link // by host:port
		learned []string        // addresses of nodes beside the bootstrap list
		last    string          // address that answered last; "": none yet
		closed  bool
	}
}

// New makes a client; it connects when it is used.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, logger: cfg.Logger}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	for _, b := range cfg.Bootstrap {
		if _, err := hostPort(b); err != nil {
			return nil, err
		}
	}
	c.mu.conns = map[string]link{}
	return c, nil
}

// link is a connection with its Flight client. Closing the client itself would race
// with the calls on it (arrow-go clears a field); closing the connection ends them.
type link struct {
	flight.Client
	conn *grpc.ClientConn
}

func (l link) Close() error { return l.conn.Close() }

// Close closes the connections. Writers are closed on their own, before.
func (c *Client) Close() error {
	c.mu.Lock()
	conns := c.mu.conns
	c.mu.conns = map[string]link{}
	c.mu.closed = true
	c.mu.Unlock()
	var errs []error
	for _, conn := range conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// hostPort reads "grpc://host:port" or "host:port".
func hostPort(address string) (string, error) {
	if !strings.Contains(address, "://") {
		return address, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("address %q: want grpc://host:port: %w", address, mink.ErrInvalid)
	}
	if u.Scheme != "grpc" && u.Scheme != "grpc+tcp" {
		return "", fmt.Errorf("address %q: scheme %q is not supported; use grpc://host:port: %w", address, u.Scheme, mink.ErrUnsupported)
	}
	return u.Host, nil
}

// at answers the connection to one node.
func (c *Client) at(address string) (flight.Client, error) {
	host, err := hostPort(address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, fmt.Errorf("client: %w", mink.ErrClosed)
	}
	if conn, ok := c.mu.conns[host]; ok {
		return conn, nil
	}
	target, options := host, []grpc.DialOption(nil)
	if c.cfg.Dial != nil {
		target, options = "passthrough:///"+host, append(options, grpc.WithContextDialer(c.cfg.Dial))
	}
	conn, err := grpc.NewClient(target, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// gRPC's own default waits up to two minutes between tries to connect: a node
		// that was away for one would be found again only when RetryTimeout is over.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: c.cfg.RetryWait, Multiplier: 2, Jitter: 0.2, MaxDelay: c.cfg.RetryWaitMax},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithChainStreamInterceptor(c.streamHeaders),
		// A node that stands still, or that the network cut off, closes no connection:
		// a stream to it would wait for ever. Nodes take a ping every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.cfg.PingAfter, Timeout: c.cfg.PingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.cfg.MessageBytesMax), grpc.MaxCallSendMsgSize(c.cfg.MessageBytesMax)),
	)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", host, err)
	}
	l := link{flight.NewClientFromConn(conn, nil), conn}
	c.mu.conns[host] = l
	return l, nil
}

// nodes lists the addresses of nodes in the order in which they are to be asked; turn
// counts the attempts, so that a retry asks another one first.
func (c *Client) nodes(turn int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Concat(c.cfg.Bootstrap, c.mu.learned)
	first := (max(slices.Index(all, c.mu.last), 0) + turn) % len(all)
	return slices.Concat(all[first:], all[:first])
}

func (c *Client) answeredBy(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.last = address
}

// failedAt lets another node be asked first than one that failed as a leader: what it
// says of the leaders may be as old as what it thinks of itself.
func (c *Client) failedAt(address string) {
	host, _ := hostPort(address) // it was connected to
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Concat(c.cfg.Bootstrap, c.mu.learned)
	first := max(slices.Index(all, c.mu.last), 0)
	for i := range all {
		next := all[(first+i)%len(all)]
		if h, _ := hostPort(next); h != host {
			c.mu.last = next
			return
		}
	}
}

// do runs one action on some node, again while nodes are away, and decodes its
// answer into out (nil: ignored).
func (c *Client) do(ctx context.Context, action string, body, out any) error {
	return c.retry(ctx, func(turn int) error {
		address := c.nodes(turn)[0]
		answer, err := c.actionAt(ctx, address, action, body)
		if err != nil {
			return err
		}
		c.answeredBy(address)
		return decodeAnswer(action, answer, out)
	})
}

// ask is do, for actions that may be done twice: while a node is silent the next is
// asked beside it.
func (c *Client) ask(ctx context.Context, action string, body, out any) error {
	return c.retry(ctx, func(turn int) error {
		answer, err := c.firstAnswer(ctx, c.nodes(turn), action, body)
		if err != nil {
			return err
		}
		return decodeAnswer(action, answer, out)
	})
}

// firstAnswer asks one node after the other, each LookAfter behind the one before,
// until one answers or all that were asked have failed.
func (c *Client) firstAnswer(ctx context.Context, nodes []string, action string, body any) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	type answer struct {
		of   string
		body []byte
		err  error
	}
	answers := make(chan answer, len(nodes))
	asked, failed := 0, 0
	next := func() {
		address := nodes[asked]
		asked++
		asking.Go(func() {
			body, err := c.actionAt(ctx, address, action, body)
			answers <- answer{address, body, err}
		})
	}
	next()
	silent := time.NewTimer(c.cfg.LookAfter)
	defer silent.Stop()
	for {
		select {
		case a := <-answers:
			if a.err == nil {
				c.answeredBy(a.of)
				return a.body, nil
			}
			if failed++; failed == asked || !retriable(a.err) {
				return nil, a.err
			}
		case <-silent.C:
			if asked < len(nodes) {
				next()
				silent.Reset(c.cfg.LookAfter)
			}
		}
	}
}

// actionAt runs one action on one node and answers the body, nil when there is none.
func (c *Client) actionAt(ctx context.Context, address, action string, body any) ([]byte, error) {
	conn, err := c.at(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.DoAction(ctx, &flight.Action{Type: action, Body: api.JSON(body)})
	if err != nil {
		return nil, FromStatus(action, err)
	}
	r, err := s.Recv()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, FromStatus(action, err)
	}
	return r.Body, nil
}

func decodeAnswer(action string, answer []byte, out any) error {
	switch {
	case out == nil:
		return nil
	case answer == nil:
		return fmt.Errorf("%s: the node answered nothing: %w", action, mink.ErrUnknownOutcome)
	}
	return decode(action, answer, out)
}

// eachAt runs one action that answers many bodies.
func (c *Client) eachAt(ctx context.Context, conn flight.Client, action string, body any, each func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.DoAction(ctx, &flight.Action{Type: action, Body: api.JSON(body)})
	if err != nil {
		return FromStatus(action, err)
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return FromStatus(action, err)
		}
		if err := each(r.Body); err != nil {
			return err
		}
	}
}

// retry runs try until it succeeds, fails for good, or RetryTimeout is over.
func (c *Client) retry(ctx context.Context, try func(turn int) error) error {
	turn := 0
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := try(turn)
		turn++
		if err != nil && !retriable(err) {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(c.backOff()), backoff.WithMaxElapsedTime(c.cfg.RetryTimeout))
	if p := (*backoff.PermanentError)(nil); errors.As(err, &p) {
		err = p.Unwrap()
	}
	return err
}

func (c *Client) backOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = c.cfg.RetryWait, c.cfg.RetryWaitMax, 2
	return b
}
