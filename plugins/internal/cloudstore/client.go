package cloudstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"
)

// idleConns are kept open.
const idleConns = 64

// Client is the HTTP client of one service. Unlike the defaults of the libraries
// it bounds silence, not the length of a call: a large object may take its time,
// a connection on which nothing moves may not. It never sends a write again once
// a byte of it has left, and it notes for Store when one has.
type Client struct {
	top  http.RoundTripper
	base *http.Transport
}

// NewClient makes a client; wrap (may be nil) puts authentication around the
// transport.
func NewClient(limits Limits, wrap func(http.RoundTripper) (http.RoundTripper, error)) (*Client, error) {
	limits = limits.orDefault()
	dialer := &net.Dialer{Timeout: limits.ConnectTimeout, KeepAlive: 15 * time.Second}
	base := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &stallConn{Conn: conn, limit: limits.StallTimeout}, nil
		},
		// HTTP/1.1 only: parallel large bodies do better on connections of their
		// own, and a request's fate depends on its own connection.
		Protocols:           http1(),
		MaxIdleConns:        idleConns,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     limits.StallTimeout / 2,
		TLSHandshakeTimeout: limits.ConnectTimeout,
		// For large bodies the AWS library asks first: a refusal that comes while a
		// body is sent may be lost with the connection.
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
	var top http.RoundTripper = seen{base}
	if wrap != nil {
		wrapped, err := wrap(top)
		if err != nil {
			base.CloseIdleConnections()
			return nil, err
		}
		top = wrapped
	}
	return &Client{top: top, base: base}, nil
}

// Do sends one request. Redirects are not followed: no store redirects a
// well-addressed request, and a write would be sent twice. Errors do not show the
// URL, which may have a signature in it.
func (c *Client) Do(req *http.Request) (*http.Response, error) { return c.top.RoundTrip(req) }

// HTTP is the client for libraries that want one of the standard library.
func (c *Client) HTTP() *http.Client {
	return &http.Client{
		Transport:     c.top,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close drops idle connections.
func (c *Client) Close() { c.base.CloseIdleConnections() }

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// stallConn fails reads and writes that make no progress for limit, and counts
// writes.
type stallConn struct {
	net.Conn
	limit time.Duration

	mu struct {
		sync.Mutex
		writes int  // begun
		sealed bool // no more
	}
}

func (c *stallConn) Read(p []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write moves the reader's deadline too: the wait for an answer begins with the
// last byte of the request, not when the connection fell idle.
func (c *stallConn) Write(p []byte) (int, error) {
	if err := c.Conn.SetDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.mu.writes++
	sealed := c.mu.sealed
	c.mu.Unlock()
	if sealed {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *stallConn) writes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.writes
}

// seal says whether a write has begun since there were n; if none has, none will.
func (c *stallConn) seal(n int) (written bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.sealed = c.mu.writes == n
	return !c.mu.sealed
}

type flightKey struct{}

// flight follows the requests of one attempt.
type flight struct {
	mu     sync.Mutex
	conn   *stallConn // the last one that took a request
	before int        // its writes until then
	sent   bool
	dead   bool // a connection was dead when it was taken
}

// watch follows the requests that are made with the returned context.
func watch(ctx context.Context) (context.Context, *flight) {
	f := new(flight)
	return context.WithValue(ctx, flightKey{}, f), f
}

// apart takes the requests of a context out of its flight, which is made for one
// at a time.
func apart(ctx context.Context) context.Context {
	return context.WithValue(ctx, flightKey{}, (*flight)(nil))
}

// Sent says whether a byte of a request may have left. It is asked when the
// attempt has failed; after false, none will leave.
func (f *flight) Sent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settle()
	return f.sent
}

// MetDead says, after Sent said no, that the attempt failed for a kept connection
// that had ended meanwhile: another attempt costs nothing.
func (f *flight) MetDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead && !f.sent
}

// settle needs the lock.
func (f *flight) settle() {
	if f.conn != nil && f.conn.seal(f.before) {
		f.sent = true
	} else if f.conn != nil {
		f.dead = true
	}
	f.conn = nil
}

// take is told which connection a request is given to.
func (f *flight) take(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settle()
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(*stallConn); ok {
		f.conn, f.before = c, c.writes()
	} else {
		f.sent = true // not ours: suppose the worst
	}
}

type seen struct{ base http.RoundTripper }

func (s seen) RoundTrip(req *http.Request) (*http.Response, error) {
	f, _ := req.Context().Value(flightKey{}).(*flight)
	if f != nil {
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { f.take(info.Conn) }}))
	}
	resp, err := s.base.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Host, err)
	}
	if f != nil {
		f.answered()
	}
	return resp, nil
}

// answered lets go of the connection, which may serve other requests from now on.
func (f *flight) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn, f.sent = nil, true
}

// RetryAfter reads the header of the name, in seconds or as a date; 0 without it.
func RetryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}
