package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

const (
	adviceNoCredentials = "no AWS credentials: set access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or give the machine a role"
	adviceClock         = "the clocks of this machine and of the service differ: set the time"
	adviceDenied        = "allow s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on its objects"
)

// condition is the error of a write that had one: what a refusal means depends on
// which.
type condition struct {
	error
	createOnly, ifMatch bool
}

func (c *condition) Unwrap() error { return c.error }

func conditional(err error, createOnly, ifMatch bool) error {
	return &condition{err, createOnly, ifMatch}
}

// codeError is a refusal of one key of a batch.
type codeError struct{ code, message string }

func (e *codeError) Error() string { return e.code + ": " + e.message }

// code is the service's error code, "" without one.
func code(err error) string {
	if e := new(codeError); errors.As(err, &e) {
		return e.code
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// invented says that the library made the code of the status, for want of an
// answer that S3 would give: the body is a proxy's, or there is none.
// Answers to a head have none.
func invented(err error, answer *smithyhttp.ResponseError) bool {
	var api smithy.APIError
	if answer == nil || answer.Response == nil || !errors.As(err, &api) {
		return false
	}
	if r := answer.Response.Request; r != nil && r.Method == http.MethodHead {
		return false
	}
	text := http.StatusText(answer.HTTPStatusCode())
	return api.ErrorMessage() == text && api.ErrorCode() == strings.ReplaceAll(text, " ", "")
}

// codes says what S3's error codes mean; what is not here goes by its status.
var codes = map[string]cloudstore.Fault{
	"NoSuchKey":          {Class: objstore.ErrNotExist},
	"NotFound":           {Class: objstore.ErrNotExist}, // the library's, for a head, which has no body
	"NoSuchUpload":       {Class: objstore.ErrNotExist},
	"PreconditionFailed": {Class: objstore.ErrConflict},
	"InvalidRange":       {Class: cloudstore.ErrRange},
	"NoSuchBucket":       {Class: objstore.ErrUnavailable, Advice: "the bucket does not exist: create it, or correct the URI"},

	"InvalidPart": {Class: objstore.ErrInvalid}, "InvalidPartOrder": {Class: objstore.ErrInvalid},
	"EntityTooSmall": {Class: objstore.ErrInvalid}, "EntityTooLarge": {Class: objstore.ErrInvalid}, "KeyTooLongError": {Class: objstore.ErrInvalid},
	"BadDigest": {Class: objstore.ErrCorrupt}, "XAmzContentSHA256Mismatch": {Class: objstore.ErrCorrupt}, "XAmzContentChecksumMismatch": {Class: objstore.ErrCorrupt},

	"InvalidAccessKeyId":    {Class: objstore.ErrUnauthorized, Advice: "the service does not know the access key: check access_key_id, and that it belongs to this endpoint"},
	"XAdminUserNotFound":    {Class: objstore.ErrUnauthorized, Advice: "the service does not know the access key: check access_key_id"}, // versitygw's
	"SignatureDoesNotMatch": {Class: objstore.ErrUnauthorized, Advice: "the secret key is not that of the access key: check secret_access_key"},
	"ExpiredToken":          {Class: objstore.ErrUnauthorized, Advice: "the session token has expired: renew it"},
	"InvalidToken":          {Class: objstore.ErrUnauthorized, Advice: "the session token is not valid for these credentials"},
	"RequestTimeTooSkewed":  {Class: objstore.ErrUnauthorized, Advice: adviceClock},
	"RequestExpired":        {Class: objstore.ErrUnauthorized, Advice: adviceClock},
	"AccessDenied":          {Class: objstore.ErrUnauthorized, Advice: adviceDenied},
	"InvalidObjectState":    {Class: objstore.ErrUnavailable, Advice: "the object is archived: restore it, and keep lifecycle rules that archive off this prefix"},

	"SlowDown": {Class: objstore.ErrThrottled}, "SlowDownRead": {Class: objstore.ErrThrottled}, "SlowDownWrite": {Class: objstore.ErrThrottled},
	"RequestLimitExceeded": {Class: objstore.ErrThrottled}, "ThrottlingException": {Class: objstore.ErrThrottled}, "Throttling": {Class: objstore.ErrThrottled},
	"TooManyRequests": {Class: objstore.ErrThrottled}, "BandwidthLimitExceeded": {Class: objstore.ErrThrottled},

	// S3 says of both that nothing was done.
	"RequestTimeout":                 {Class: objstore.ErrUnavailable},
	"ServiceUnavailable":             {Class: objstore.ErrThrottled},
	"ConditionalRequestConflict":     {Class: objstore.ErrUnavailable, Taken: true},
	"OperationAborted":               {Class: objstore.ErrUnavailable, Taken: true},
	"InternalError":                  {Class: objstore.ErrUnavailable, Unsure: true},
	"NotImplemented":                 {Class: objstore.ErrUnimplemented, Advice: "the endpoint does not have this operation: Mink needs conditional puts, ranges and multi-object deletes"},
	"QuotaExceeded":                  {Class: objstore.ErrNoSpace},
	"XMinioStorageFull":              {Class: objstore.ErrNoSpace},
	"XMinioAdminBucketQuotaExceeded": {Class: objstore.ErrNoSpace},
}

// Explain implements cloudstore.Service.
func (s *service) Explain(err error) cloudstore.Fault {
	fault, known := codes[code(err)]
	var answer *smithyhttp.ResponseError
	status := 0
	if errors.As(err, &answer) && answer.Response != nil {
		status = answer.HTTPStatusCode()
	}
	if known && invented(err, answer) {
		fault, known = cloudstore.Fault{}, false
	}
	switch {
	case wrongRegion(code(err), status):
		return cloudstore.Fault{Class: objstore.ErrInvalid, Advice: s.adviceRegion(answer)}
	case strings.HasPrefix(code(err), "KMS."):
		return cloudstore.Fault{Class: objstore.ErrUnauthorized, Advice: "the encryption key cannot be used: check sse_kms_key_id, and that the credentials may call kms:GenerateDataKey and kms:Decrypt"}
	case !known && strings.Contains(err.Error(), "get identity"): // of the library; it has no type
		return cloudstore.Fault{Class: objstore.ErrUnauthorized, Advice: adviceNoCredentials}
	case !known:
		fault = byStatus(status)
	}
	if errors.Is(fault.Class, objstore.ErrThrottled) && answer != nil {
		fault.RetryAfter = cloudstore.RetryAfter(answer.Response.Header)
	}
	if c := new(condition); errors.As(err, &c) {
		return c.explain(fault)
	}
	return fault
}

// explain says what a fault means for a write that had a condition.
func (c *condition) explain(f cloudstore.Fault) cloudstore.Fault {
	switch {
	case c.createOnly && errors.Is(f.Class, objstore.ErrConflict):
		return cloudstore.Fault{Class: objstore.ErrAlreadyExists}
	case c.ifMatch && (errors.Is(f.Class, objstore.ErrNotExist) || f.Taken):
		return cloudstore.Fault{Class: objstore.ErrConflict}
	}
	f.Taken = f.Taken && c.createOnly
	return f
}

func byStatus(status int) cloudstore.Fault {
	f := cloudstore.ByStatus(status)
	switch status {
	case http.StatusNotFound: // of something else than an object
		return cloudstore.Fault{Class: objstore.ErrInvalid, Advice: "the endpoint does not know what it was asked for: check that it is an S3 service, and its path"}
	case http.StatusUnauthorized, http.StatusForbidden:
		f.Advice = adviceDenied
	case http.StatusNotImplemented:
		f = codes["NotImplemented"]
	}
	return f
}

func wrongRegion(code string, status int) bool {
	switch code {
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return true
	}
	return status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect
}

func (s *service) adviceRegion(answer *smithyhttp.ResponseError) string {
	if answer != nil {
		if region := answer.Response.Header.Get("X-Amz-Bucket-Region"); region != "" {
			return fmt.Sprintf("the bucket is in region %s: set the option region", region)
		}
	}
	return "the bucket is in another region, or the endpoint expects another one: set the option region"
}
