package cloudtest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy stands between a store and its server, counts requests and spoils those
// that a Rule says. Signatures hold: the Host header goes through unchanged.
type Proxy struct {
	URL string

	target string
	client *http.Client
	server *httptest.Server

	mu    sync.Mutex
	rules []*Rule
	log   []Request
}

// Request is what the proxy notes of one.
type Request struct {
	Method, Path, Query string
	Header              http.Header
}

// Rule spoils the next Times requests that Match (nil: all) accepts.
type Rule struct {
	Match func(*http.Request) bool
	Times int
	Do    Action
}

// Action handles a request; forward sends it to the server and answers its
// response, whose body the action closes.
type Action func(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error))

// NewProxy starts a proxy before a server; it ends with the test.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	p := &Proxy{target: s.URL, client: &http.Client{
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	p.server = httptest.NewServer(p)
	p.URL = p.server.URL
	tb.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

// Down ends all connections and takes no new ones, as a server that is away; Up ends that.
func (p *Proxy) Down() {
	p.server.CloseClientConnections()
	_ = p.server.Listener.Close()
	time.Sleep(20 * time.Millisecond) // what was being accepted
	p.server.CloseClientConnections()
}

// Up listens again after Down, on the same address.
func (p *Proxy) Up(tb testing.TB) {
	tb.Helper()
	p.server.CloseClientConnections()
	p.server.Close()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", strings.TrimPrefix(p.URL, "http://"))
	if err != nil {
		tb.Fatal(err)
	}
	p.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: p}} //nolint:gosec // a test's
	p.server.Start()
}

// Spoil adds a rule.
func (p *Proxy) Spoil(r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &r)
}

// Take answers the requests since the last Take, and forgets them and all rules.
func (p *Proxy) Take() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log
	p.log, p.rules = nil, nil
	return log
}

func (p *Proxy) note(r *http.Request) Action {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone()})
	for _, rule := range p.rules {
		if rule.Times > 0 && (rule.Match == nil || rule.Match(r)) {
			rule.Times--
			return rule.Do
		}
	}
	return Pass
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.note(r)(w, r, func() (*http.Response, error) {
		out, err := http.NewRequestWithContext(r.Context(), r.Method, p.target+r.URL.RequestURI(), r.Body)
		if err != nil {
			return nil, err
		}
		out.Header, out.Host, out.ContentLength = r.Header, r.Host, r.ContentLength
		if r.ContentLength == 0 {
			out.Body = http.NoBody
		}
		return p.client.Do(out)
	})
}

// Pass answers as the server does.
func Pass(w http.ResponseWriter, _ *http.Request, forward func() (*http.Response, error)) {
	resp, err := forward()
	if err != nil {
		Reset(w, nil, nil)
		return
	}
	defer resp.Body.Close()
	copyHeader(w, resp)
	_, _ = io.Copy(w, resp.Body) // the client sees that it is short
}

func copyHeader(w http.ResponseWriter, resp *http.Response) {
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	if resp.ContentLength >= 0 && resp.Request.Method != http.MethodHead {
		w.Header().Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	w.WriteHeader(resp.StatusCode)
}

// Reset cuts the connection; the server never sees the request.
func Reset(w http.ResponseWriter, _ *http.Request, _ func() (*http.Response, error)) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset instead of an end
	}
	_ = conn.Close()
}

// LoseAnswer lets the server do it and cuts the connection instead of answering.
func LoseAnswer(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
	if resp, err := forward(); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	Reset(w, r, nil)
}

// CutBody reads half of the request's body, if it has one, and cuts.
func CutBody(w http.ResponseWriter, r *http.Request, _ func() (*http.Response, error)) {
	_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
	Reset(w, r, nil)
}

// CutAnswer sends the first half of the answer's body and cuts.
func CutAnswer(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
	resp, err := forward()
	if err != nil {
		Reset(w, r, nil)
		return
	}
	defer resp.Body.Close()
	copyHeader(w, resp)
	_, _ = io.CopyN(w, resp.Body, resp.ContentLength/2)
	_ = http.NewResponseController(w).Flush()
	Reset(w, r, nil)
}

// Silence takes the request and says nothing until the client goes away.
func Silence(_ http.ResponseWriter, r *http.Request, _ func() (*http.Response, error)) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// Slow is Pass after a pause.
func Slow(d time.Duration) Action {
	return func(w http.ResponseWriter, r *http.Request, forward func() (*http.Response, error)) {
		time.Sleep(d)
		Pass(w, r, forward)
	}
}

// Answer says this instead of the server. Headers are "Name: value".
func Answer(status int, body string, headers ...string) Action {
	return func(w http.ResponseWriter, r *http.Request, _ func() (*http.Response, error)) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Method matches requests by method.
func Method(method string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == method }
}

// CountMethod is how many of the requests have the method.
func CountMethod(requests []Request, method string) int {
	n := 0
	for _, r := range requests {
		if r.Method == method {
			n++
		}
	}
	return n
}
