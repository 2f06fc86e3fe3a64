package icebergrest

import (
	"context"
	"errors"
	"net/http"

	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
)

// failure is an error with the status and type that the specification has for it.
type failure struct {
	status int
	kind   string
	text   string
}

func (f *failure) Error() string { return f.text }

// absent is catalog.ErrNotExist of a thing that the specification has a type for.
type absent struct {
	kind string
	err  error
}

func (a *absent) Error() string { return a.err.Error() }
func (a *absent) Unwrap() error { return a.err }

// of gives an error the type of what it is about, should that be absent.
func of(kind string, err error) error {
	if errors.Is(err, catalog.ErrNotExist) {
		return &absent{kind, err}
	}
	return err
}

const (
	noSuchNamespace = "NoSuchNamespaceException"
	noSuchTable     = "NoSuchTableException"
	noSuchView      = "NoSuchViewException"
)

// classes is what the first error that fits means to a client. A commit whose outcome
// is not known must be 500, 502 or 504: clients then leave its files alone. 503 says
// that nothing happened.
var classes = []struct {
	err    error
	status int
	kind   string
}{
	{catalog.ErrUnknownOutcome, http.StatusInternalServerError, "CommitStateUnknownException"},
	{lake.ErrGuarded, http.StatusBadRequest, "BadRequestException"},
	{catalog.ErrConflict, http.StatusConflict, "CommitFailedException"},
	{catalog.ErrAlreadyExists, http.StatusConflict, "AlreadyExistsException"},
	{catalog.ErrNotEmpty, http.StatusConflict, "NamespaceNotEmptyException"},
	{catalog.ErrUnimplemented, http.StatusNotAcceptable, "UnsupportedOperationException"},
	{catalog.ErrInvalid, http.StatusBadRequest, "BadRequestException"},
	{catalog.ErrCorrupt, http.StatusInternalServerError, "InternalServerException"},
	{catalog.ErrThrottled, http.StatusServiceUnavailable, "SlowDownException"},
	{catalog.ErrUnavailable, http.StatusServiceUnavailable, "ServiceUnavailableException"},
	{context.Canceled, http.StatusServiceUnavailable, "ServiceUnavailableException"},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, "ServiceUnavailableException"},
}

func (s *Server) failed(r *http.Request, err error) answer {
	f := describe(err)
	if f.status >= 500 {
		s.logger.Warn("lake catalog request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	return answer{status: f.status, body: map[string]any{"error": map[string]any{"message": f.text, "type": f.kind, "code": f.status}}}
}

func describe(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if a, ok := errors.AsType[*absent](err); ok && !errors.Is(err, catalog.ErrUnknownOutcome) {
		return &failure{http.StatusNotFound, a.kind, err.Error()}
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return &failure{c.status, c.kind, err.Error()}
		}
	}
	return &failure{http.StatusInternalServerError, "InternalServerException", err.Error()}
}
