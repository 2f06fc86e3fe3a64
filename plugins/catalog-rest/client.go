package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/catalog"
)

// answerMax bounds an answer: the metadata of a table.
const answerMax = 64 << 20

// client makes the requests. Of each call one request leaves; a second one only after
// the catalog refused the first for its token.
type client struct {
	cfg  config
	http *cloudstore.Client
	auth auth

	mu struct {
		sync.Mutex
		ready *settled // what /v1/config said; nil: it has not answered yet
	}
	closed atomic.Bool
}

// settled is what the catalog's configuration makes of ours.
type settled struct {
	base      string // of all paths but /v1/config
	separator string // between the levels of a namespace
}

// open makes a catalog. One that does not answer now is asked again by the first call: a
// node must start without its lake.
func open(ctx context.Context, options map[string]string) (catalog.Catalog, error) {
	cfg, err := readConfig(options)
	if err != nil {
		return nil, err
	}
	h, err := cloudstore.NewClient(cfg.limits, nil)
	if err != nil {
		return nil, err
	}
	c := &client{cfg: cfg, http: h, auth: openAuth{}}
	switch {
	case cfg.token != "":
		c.auth = bearerAuth{cfg.token}
	case cfg.secret != "":
		c.auth = newOAuth2(cfg, h.HTTP())
	case cfg.sigv4:
		if c.auth, err = newSigV4(ctx, cfg, h.HTTP()); err != nil {
			h.Close()
			return nil, err
		}
	}
	if _, err := c.settle(ctx); errors.Is(err, catalog.ErrUnavailable) || errors.Is(err, catalog.ErrThrottled) {
		slog.Warn("the catalog does not answer and is asked again when it is needed", "error", err)
	} else if err != nil {
		h.Close()
		return nil, err
	}
	return &restCatalog{c}, nil
}

// Close implements catalog.Catalog.
func (c *client) Close() error {
	c.closed.Store(true)
	c.http.Close()
	return nil
}

// settle asks for the catalog's configuration until it has it.
func (c *client) settle(ctx context.Context) (*settled, error) {
	c.mu.Lock()
	ready := c.mu.ready
	c.mu.Unlock()
	if ready != nil {
		return ready, nil
	}
	at := c.cfg.uri.JoinPath("v1", "config").String()
	if c.cfg.warehouse != "" {
		at += "?warehouse=" + url.QueryEscape(c.cfg.warehouse)
	}
	var got struct{ Defaults, Overrides map[string]string }
	if err := c.do(ctx, call{method: http.MethodGet, url: at, out: &got}); err != nil {
		if errors.Is(err, catalog.ErrNotExist) {
			err = fmt.Errorf("%w: the catalog has no warehouse %q: %v", catalog.ErrInvalid, c.cfg.warehouse, err) //nolint:errorlint // the option is wrong
		}
		return nil, fmt.Errorf("configuration of the catalog: %w", err)
	}
	value := func(name, ours string) string { // the specification's order
		if v, ok := got.Overrides[name]; ok {
			return v
		}
		if ours != "" {
			return ours
		}
		return got.Defaults[name]
	}
	base, err := url.Parse(value("uri", c.cfg.uri.String()))
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != c.cfg.uri.Scheme {
		return nil, fmt.Errorf("%w: the catalog sends its clients to another URL, %.200q, which cannot be used", catalog.ErrInvalid, value("uri", ""))
	}
	ready = &settled{base: strings.TrimSuffix(strings.TrimRight(base.String(), "/"), "/v1") + "/v1", separator: "%1F"}
	if prefix := strings.Trim(value("prefix", c.cfg.prefix), "/"); prefix != "" {
		for part := range strings.SplitSeq(prefix, "/") {
			ready.base += "/" + url.PathEscape(part)
		}
	}
	if s := value("namespace-separator", ""); s != "" {
		ready.separator = s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ready = ready
	return ready, nil
}

// call is one request.
type call struct {
	method string
	url    string // absolute; or
	query  string
	header http.Header
	in     any // nil: no body
	out    any // nil: the answer is not read
	writes bool
	commit bool // 409 is a conflict
}

// namespace is a part of a path, with its levels in one.
func (s *settled) namespace(levels []string) string {
	escaped := make([]string, len(levels))
	for i, l := range levels {
		escaped[i] = url.PathEscape(l)
	}
	return strings.Join(escaped, s.separator)
}

// ask makes a call at a path below the catalog's base; part makes the path of it.
func (c *client) ask(ctx context.Context, op string, in call, part func(*settled) []string) error {
	if c.closed.Load() {
		return fmt.Errorf("%s: %w: the catalog is closed", op, catalog.ErrUnavailable)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	ready, err := c.settle(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	in.url = strings.Join(append([]string{ready.base}, part(ready)...), "/") + in.query
	if err := c.do(ctx, in); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// do makes the call, a second time when its token was refused and there is a new one.
func (c *client) do(ctx context.Context, in call) error {
	var body []byte
	if in.in != nil {
		var err error
		if body, err = json.Marshal(in.in); err != nil {
			return fmt.Errorf("%w: %w", catalog.ErrInvalid, err)
		}
	}
	again, err := c.once(ctx, in, body)
	if again {
		_, err = c.once(ctx, in, body)
	}
	return err
}

func (c *client) once(ctx context.Context, in call, body []byte) (again bool, _ error) {
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := http.NewRequestWithContext(traced, in.method, in.url, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("%w: %w", catalog.ErrInvalid, err)
	}
	for name, values := range in.header {
		req.Header[name] = slices.Clone(values)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "mink/"+cloudstore.Version)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	with, err := c.auth.authorize(ctx, req, body) // with its own requests, before this one
	if err != nil {
		return false, err
	}
	resp, err := c.http.HTTP().Do(req)
	if err != nil {
		return false, broken(ctx, in, sent.Load(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerMax+1))
	switch {
	case err == nil && len(answer) > answerMax:
		err = fmt.Errorf("its answer has more than %d bytes", answerMax)
		fallthrough
	case err != nil:
		return false, broken(ctx, in, true, err)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == statusAuthTimeout || resp.StatusCode == http.StatusForbidden && expired(answer):
		return c.auth.refused(with), failed(in, resp, answer)
	case resp.StatusCode/100 != 2:
		return false, failed(in, resp, answer)
	case in.out == nil:
		return false, nil
	}
	if err := json.Unmarshal(answer, in.out); err != nil {
		err = fmt.Errorf("%w: the catalog's answer is not what the specification says: %w", catalog.ErrUnavailable, err)
		if in.writes {
			err = fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, err)
		}
		return false, err
	}
	return false, nil
}

// broken is a request that got no answer.
func broken(ctx context.Context, in call, sent bool, err error) error {
	if urlErr := (*url.Error)(nil); errors.As(err, &urlErr) {
		err = urlErr.Err // without the URL
	}
	class := catalog.ErrUnavailable
	if ctx.Err() != nil {
		class = ctx.Err()
	}
	if in.writes && sent {
		return fmt.Errorf("%w: %w: the catalog did not answer: %v", catalog.ErrUnknownOutcome, class, err) //nolint:errorlint // its class is said
	}
	return fmt.Errorf("%w: the catalog did not answer: %v", class, err) //nolint:errorlint // as above
}

func retryAfter(h http.Header) time.Duration { return cloudstore.RetryAfter(h) }
