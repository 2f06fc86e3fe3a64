// Package cloudstore is what the object-store plugins share: everything of the
// contract that does not depend on the service. A plugin gives a Service, one
// request a method, which classifies its errors; Store makes an objstore.Store of
// it:
//
//	objstore.Store calls -> Store   keys, ranges, pages, closing, retries, fate of writes
//	                        Service one request of the service's own library
//	                        Client  the HTTP client: silence bounded, requests seen leaving
//
// A conditional write and the completion of an upload are sent once. Everything
// else may be sent again after a failure that may pass.
package cloudstore

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/mink-project/mink/sdk/objstore"
)

// Service is one bucket of a cloud. Names are whole object names, prefix
// included. Every method makes one attempt with one request (Delete: one a
// name, where the service has no batches) and returns the library's error as it
// is; Explain says what it means. Safe for concurrent use.
type Service interface {
	Capabilities() objstore.Capabilities

	// Put writes an object. Condition says which; the checksum is always set.
	Put(ctx context.Context, req Write) (version string, err error)

	// Get opens n bytes from offset, n -1 for all that follow; offset 0 and n -1
	// is the whole object, also when it is empty. The service may answer fewer
	// bytes: Object.Size tells.
	Get(ctx context.Context, name string, offset, n int64) (Object, error)

	// Head answers what is known of an object, with its whole name as the key.
	Head(ctx context.Context, name string) (objstore.ObjectInfo, error)

	// List answers objects in byte order of their names.
	List(ctx context.Context, req Page) (objects []objstore.ObjectInfo, next string, err error)

	// Delete answers an error for each of the distinct names, nil for one that is
	// gone. Its own error means that nothing is known.
	Delete(ctx context.Context, names []string) ([]error, error)

	// Explain classifies an error of a method above.
	Explain(err error) Fault

	// Close frees connections. No call is in progress.
	Close() error
}

// Parts is a Service that has multipart uploads. The rules of Service hold.
type Parts interface {
	Start(ctx context.Context, name string) (objstore.UploadID, error)
	PutPart(ctx context.Context, id objstore.UploadID, number int, req Write) (tag string, err error)
	Complete(ctx context.Context, name string, id objstore.UploadID, parts []objstore.Part, createOnly bool) (version string, err error)
	Abort(ctx context.Context, name string, id objstore.UploadID) error
}

// Write is an object or a part to write.
type Write struct {
	Name       string
	Chunks     [][]byte
	Size       int64
	CRC32C     uint32
	CreateOnly bool
	IfMatch    string
}

// Body is a new reader over the chunks.
func (w Write) Body() *Chunks { return NewChunks(w.Chunks) }

// Object is an opened object. Body has no more than was asked for.
type Object struct {
	Body    io.ReadCloser
	Size    int64 // of the whole object
	Version string
	CRC32C  *uint32 // of the whole object, where the service says it
}

// Page asks for the names with Prefix that come after After (which Next, when it
// is set, replaces), at most Limit.
type Page struct {
	Prefix, After, Next string
	Limit               int
}

// Fault is what an error of a service means.
type Fault struct {
	// Class is a sentinel of the contract; nil: the service did not answer (a
	// transport error, or an answer that is not its own).
	Class error
	// Advice tells the user what to do, "" when the error says enough.
	Advice string
	// Unsure says that a write may have had its effect all the same.
	Unsure bool
	// Taken says that a create-only write was refused because of another one that
	// is still going on: whether the key is taken has to be looked up.
	Taken bool
	// RetryAfter is the pause that the service asked for.
	RetryAfter time.Duration
}

// ByStatus is what an HTTP status means by itself: for an answer without a code
// that is known to say more.
func ByStatus(status int) Fault {
	switch {
	case status < 300: // 0: no answer; 2xx: one that breaks off
		return Fault{}
	case status == http.StatusNotFound:
		return Fault{Class: objstore.ErrNotExist}
	case status == http.StatusPreconditionFailed:
		return Fault{Class: objstore.ErrConflict}
	case status == http.StatusConflict:
		return Fault{Class: objstore.ErrUnavailable, Taken: true}
	case status == http.StatusRequestedRangeNotSatisfiable:
		return Fault{Class: ErrRange}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Fault{Class: objstore.ErrUnauthorized}
	case status == http.StatusTooManyRequests:
		return Fault{Class: objstore.ErrThrottled}
	case status == http.StatusNotImplemented:
		return Fault{Class: objstore.ErrUnimplemented}
	case status == http.StatusInsufficientStorage:
		return Fault{Class: objstore.ErrNoSpace}
	case status == http.StatusRequestTimeout, status >= 500:
		// Of a proxy, perhaps, behind which the write goes on.
		return Fault{Class: objstore.ErrUnavailable, Unsure: true}
	}
	return Fault{Class: objstore.ErrInvalid}
}

// Version of the plugins; `make plugins` sets it to the repository's.
var Version = "unknown"
