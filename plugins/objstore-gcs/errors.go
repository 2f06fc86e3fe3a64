package main

import (
	"errors"
	"net/http"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

const (
	adviceNoCredentials = "no Google credentials: set credentials_file or GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login, or give the machine a service account"
	adviceNoBucket      = "the bucket does not exist: create it, or correct the URI"
	adviceDenied        = "grant roles/storage.objectUser on the bucket to the account of these credentials"
)

// errBadPart is for a part that was never written.
var errBadPart = errors.New("no such part")

// condition is the error of a write that may have had a condition: what a refusal
// means depends on which.
type condition struct {
	error
	createOnly, ifMatch bool
	lost                bool // known without asking
}

func (c *condition) Unwrap() error { return c.error }

// noBucket says that a 404 is about the bucket: they all have the same reason.
func noBucket(err error) bool {
	return errors.Is(err, storage.ErrBucketNotExist) || strings.Contains(strings.ToLower(err.Error()), "bucket does not exist")
}

// Explain implements cloudstore.Service.
func (s *service) Explain(err error) cloudstore.Fault {
	c := new(condition)
	hasCondition := errors.As(err, &c)
	f := explain(err)
	switch {
	case hasCondition && c.lost:
		return cloudstore.Fault{Class: objstore.ErrConflict}
	case hasCondition && c.createOnly && errors.Is(f.Class, objstore.ErrConflict):
		return cloudstore.Fault{Class: objstore.ErrAlreadyExists}
	case hasCondition && c.ifMatch && (f.Taken || errors.Is(f.Class, objstore.ErrNotExist)):
		return cloudstore.Fault{Class: objstore.ErrConflict}
	}
	return f
}

func explain(err error) cloudstore.Fault {
	var answer *googleapi.Error
	var identity *auth.Error
	switch {
	case errors.Is(err, errNoUpload):
		return cloudstore.Fault{Class: objstore.ErrNotExist}
	case errors.Is(err, errBadPart):
		return cloudstore.Fault{Class: objstore.ErrInvalid}
	case errors.As(err, &answer):
		return byStatus(answer, noBucket(err))
	case noBucket(err):
		return cloudstore.Fault{Class: objstore.ErrUnavailable, Advice: adviceNoBucket}
	case errors.Is(err, storage.ErrObjectNotExist):
		return cloudstore.Fault{Class: objstore.ErrNotExist}
	case errors.As(err, &identity):
		return byIdentity(identity)
	case strings.Contains(err.Error(), "storage: bad CRC"): // of the library; it has no type
		return cloudstore.Fault{Class: objstore.ErrCorrupt}
	}
	return cloudstore.Fault{}
}

// byIdentity judges a refusal to give us a token: of the credentials, unless the
// identity service is the one in trouble.
func byIdentity(err *auth.Error) cloudstore.Fault {
	if err.Response == nil || err.Response.StatusCode >= 500 || err.Response.StatusCode == http.StatusTooManyRequests {
		return cloudstore.Fault{Class: objstore.ErrUnavailable, Advice: "the service that gives out tokens for these credentials failed"}
	}
	return cloudstore.Fault{Class: objstore.ErrUnauthorized, Advice: "Google refuses these credentials: check that the account and its key exist and are enabled"}
}

func byStatus(answer *googleapi.Error, bucket bool) cloudstore.Fault {
	reason := ""
	if len(answer.Errors) > 0 {
		reason = answer.Errors[0].Reason
	}
	f := cloudstore.ByStatus(answer.Code)
	switch status := answer.Code; {
	case status == http.StatusNotFound && bucket:
		f = cloudstore.Fault{Class: objstore.ErrUnavailable, Advice: adviceNoBucket}
	case reason == "rateLimitExceeded", reason == "userRateLimitExceeded":
		f = cloudstore.Fault{Class: objstore.ErrThrottled}
	case status == http.StatusUnauthorized:
		f.Advice = adviceNoCredentials
	case status == http.StatusForbidden:
		f.Advice = adviceDenied
	case status == http.StatusBadRequest && reason == "invalid" && strings.Contains(answer.Message, "CRC32C"):
		f = cloudstore.Fault{Class: objstore.ErrCorrupt}
	}
	f.RetryAfter = cloudstore.RetryAfter(answer.Header)
	return f
}
