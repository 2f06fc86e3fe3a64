package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/mink-project/mink/sdk/catalog"
)

// statusAuthTimeout is of the specification: the token has expired.
const statusAuthTimeout = 419

// problem is the specification's error.
type problem struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    int    `json:"code"`
}

// problemOf reads it; false when who answered was no catalog, such as a proxy.
func problemOf(answer []byte) (problem, bool) {
	var body struct {
		Error *problem `json:"error"`
	}
	if json.Unmarshal(answer, &body) != nil || body.Error == nil || body.Error.Type == "" {
		return problem{Message: fmt.Sprintf("%.200q", answer)}, false
	}
	return *body.Error, true
}

// expired says whether a 403 is about credentials that ended: AWS answers so.
func expired(answer []byte) bool {
	return strings.Contains(string(answer), "ExpiredToken") || strings.Contains(string(answer), "security token included in the request is expired")
}

// failed is the contract's error for an answer that is none of success.
func failed(in call, resp *http.Response, answer []byte) error {
	p, known := problemOf(answer)
	class := classOf(in, resp, p, known)
	return fmt.Errorf("%w: the catalog answers %d %s: %.500s", class, resp.StatusCode, p.Type, p.Message)
}

func classOf(in call, resp *http.Response, p problem, known bool) error {
	switch status := resp.StatusCode; status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if p.Type == "NamespaceNotEmptyException" {
			return catalog.ErrNotEmpty
		}
		return catalog.ErrInvalid
	case http.StatusUnauthorized, http.StatusForbidden, statusAuthTimeout:
		return catalog.ErrUnauthorized
	case http.StatusNotFound:
		// That a table is absent makes Mink create it: only the catalog may say so.
		if known {
			return catalog.ErrNotExist
		}
		return fmt.Errorf("%w: the address may be wrong (options uri and prefix)", catalog.ErrUnavailable)
	case http.StatusNotAcceptable, http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return catalog.ErrUnimplemented
	case http.StatusConflict:
		switch {
		case p.Type == "NamespaceNotEmptyException":
			return catalog.ErrNotEmpty
		case in.commit:
			return catalog.ErrConflict
		}
		return catalog.ErrAlreadyExists
	case http.StatusTooManyRequests:
		return throttled(resp.Header)
	case http.StatusServiceUnavailable:
		// From the catalog it means that nothing was done; a proxy answers so when the
		// catalog's answer was lost, too.
		if known || !in.writes {
			return catalog.ErrUnavailable
		}
	}
	switch {
	case in.writes && resp.StatusCode >= 500:
		return fmt.Errorf("%w: %w", catalog.ErrUnknownOutcome, catalog.ErrUnavailable)
	case resp.StatusCode >= 500 || resp.StatusCode/100 == 3:
		return catalog.ErrUnavailable
	}
	return catalog.ErrInvalid
}
