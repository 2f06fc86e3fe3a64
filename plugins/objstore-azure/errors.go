package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/objstore"
)

const (
	adviceNoCredentials = "no Azure credentials: set connection_string, account_key or sas_token, or give the machine a managed identity"
	adviceRole          = "grant the role Storage Blob Data Contributor on the container to this identity"
	adviceContainer     = "the container does not exist: create it, or correct the URI"
)

// answered is an error of the service in one line; the library's has ten.
type answered struct {
	err *azcore.ResponseError
}

func (a *answered) Error() string {
	request := ""
	if r := a.err.RawResponse; r != nil && r.Request != nil {
		request = fmt.Sprintf(", request %s, %s", r.Header.Get("X-Ms-Request-Id"), r.Request.URL.Host)
	}
	return fmt.Sprintf("%d %s%s", a.err.StatusCode, a.err.ErrorCode, request)
}

func (a *answered) Unwrap() error { return a.err }

func brief(err error) error {
	var answer *azcore.ResponseError
	if errors.As(err, &answer) {
		return &answered{answer}
	}
	return err
}

// condition is the error of a write that may have had a condition: what a refusal
// means depends on which.
type condition struct {
	error
	createOnly, ifMatch bool
}

func (c *condition) Unwrap() error { return c.error }

func conditional(err error, createOnly, ifMatch bool) error {
	return &condition{brief(err), createOnly, ifMatch}
}

// codes says what the service's error codes mean; what is not here goes by its
// status.
var codes = map[bloberror.Code]cloudstore.Fault{
	bloberror.BlobNotFound:             {Class: objstore.ErrNotExist},
	bloberror.BlobAlreadyExists:        {Class: objstore.ErrConflict},
	bloberror.ConditionNotMet:          {Class: objstore.ErrConflict},
	bloberror.InvalidRange:             {Class: cloudstore.ErrRange},
	bloberror.ContainerNotFound:        {Class: objstore.ErrUnavailable, Advice: adviceContainer},
	bloberror.ContainerBeingDeleted:    {Class: objstore.ErrUnavailable, Advice: "the container is being deleted"},
	bloberror.ContainerDisabled:        {Class: objstore.ErrUnavailable, Advice: "the container is disabled"},
	bloberror.AccountBeingCreated:      {Class: objstore.ErrUnavailable, Advice: "the account is being created"},
	bloberror.BlobArchived:             {Class: objstore.ErrUnavailable, Advice: "the object is archived: rehydrate it, and keep lifecycle rules that archive off this prefix"},
	bloberror.BlobBeingRehydrated:      {Class: objstore.ErrUnavailable, Advice: "the object is being rehydrated"},
	bloberror.LeaseIDMissing:           {Class: objstore.ErrUnavailable, Advice: "somebody holds a lease on the object: break it"},
	bloberror.BlobImmutableDueToPolicy: {Class: objstore.ErrReadOnly, Advice: "an immutability policy forbids it: take the container out of the policy"},

	// Blocks that are gone, because another upload of the key was committed.
	bloberror.InvalidBlockList: {Class: objstore.ErrInvalid, Taken: true},

	bloberror.MD5Mismatch:   {Class: objstore.ErrCorrupt},
	bloberror.CRC64Mismatch: {Class: objstore.ErrCorrupt},

	bloberror.AuthenticationFailed:            {Class: objstore.ErrUnauthorized, Advice: "the service refuses the signature: check account_key or sas_token, when it expires, and this machine's clock"},
	bloberror.InvalidAuthenticationInfo:       {Class: objstore.ErrUnauthorized, Advice: "the service does not take these credentials: check them, and this machine's clock"},
	bloberror.NoAuthenticationInformation:     {Class: objstore.ErrUnauthorized, Advice: adviceNoCredentials},
	bloberror.AuthorizationPermissionMismatch: {Class: objstore.ErrUnauthorized, Advice: adviceRole + ", or a signature with the permissions racwdl"},
	bloberror.AuthorizationFailure:            {Class: objstore.ErrUnauthorized, Advice: "the account's firewall or the signature's limits refuse this machine: allow its network, and check account_key or sas_token"},
	bloberror.AuthorizationProtocolMismatch:   {Class: objstore.ErrUnauthorized, Advice: "the account takes https only"},
	bloberror.AccountIsDisabled:               {Class: objstore.ErrUnauthorized, Advice: "the account is disabled"},
	"KeyBasedAuthenticationNotPermitted":      {Class: objstore.ErrUnauthorized, Advice: "the account takes no shared keys: use a Microsoft Entra credential"},

	bloberror.ServerBusy:        {Class: objstore.ErrThrottled},
	bloberror.OperationTimedOut: {Class: objstore.ErrUnavailable, Unsure: true},
	bloberror.InternalError:     {Class: objstore.ErrUnavailable, Unsure: true},
}

// Explain implements cloudstore.Service.
func (s *service) Explain(err error) cloudstore.Fault {
	f := explain(err)
	c := new(condition)
	if !errors.As(err, &c) {
		return f
	}
	switch {
	case c.createOnly && errors.Is(f.Class, objstore.ErrConflict):
		return cloudstore.Fault{Class: objstore.ErrAlreadyExists}
	case c.ifMatch && errors.Is(f.Class, objstore.ErrNotExist):
		return cloudstore.Fault{Class: objstore.ErrConflict}
	}
	f.Taken = f.Taken && c.createOnly
	return f
}

func explain(err error) cloudstore.Fault {
	var answer *azcore.ResponseError
	var refused *azidentity.AuthenticationFailedError
	var none interface{ NonRetriable() } // azidentity's for credentials that are not there
	switch {
	case errors.Is(err, errNoUpload):
		return cloudstore.Fault{Class: objstore.ErrNotExist}
	case errors.Is(err, errBadPart):
		return cloudstore.Fault{Class: objstore.ErrInvalid}
	case errors.As(err, &refused):
		if r := refused.RawResponse; r != nil && r.StatusCode < 500 && r.StatusCode != http.StatusTooManyRequests {
			return cloudstore.Fault{Class: objstore.ErrUnauthorized, Advice: "Microsoft Entra refuses these credentials"}
		}
		return cloudstore.Fault{Class: objstore.ErrUnavailable, Advice: "the service that gives out tokens for these credentials failed"}
	case errors.As(err, &answer):
		f, known := codes[bloberror.Code(answer.ErrorCode)]
		if !known {
			f = byStatus(answer.StatusCode)
		}
		if answer.RawResponse != nil {
			f.RetryAfter = cloudstore.RetryAfter(answer.RawResponse.Header)
		}
		return f
	case errors.As(err, &none):
		return cloudstore.Fault{Class: objstore.ErrUnauthorized, Advice: adviceNoCredentials}
	}
	return cloudstore.Fault{}
}

func byStatus(status int) cloudstore.Fault {
	f := cloudstore.ByStatus(status)
	if errors.Is(f.Class, objstore.ErrUnauthorized) {
		f.Advice = adviceRole
	}
	return f
}
