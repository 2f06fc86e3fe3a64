// Package objstore is the contract of an object store: what Mink asks of S3,
// GCS, Azure, a local directory or memory. Implementations live in the node
// (core/builtin) or out of process as plugins; all pass objstoretest.
//
// Keys are slash-separated UTF-8 paths relative to the store's prefix; see
// ValidateKey. "a" and "a/b" are two unrelated keys, as are "a" and "A". An object
// is immutable bytes: it is written whole, read whole or by range, and deleted.
//
// Stores are strongly consistent: what one call acknowledged, every later Get,
// Head and List shows, whoever asks. What a call has shown survives a crash.
//
// A call that its context ended returns an error that wraps the context's; a
// write that may have landed by then wraps ErrUnknownOutcome as well. A call whose
// context was over before it began has no effect.
package objstore

import (
	"context"
	"errors"
	"time"
)

// The error sentinels of the contract. They are the whole set: a store maps
// whatever its service answers to one of them and wraps it with the key.
var (
	ErrNotExist       = errors.New("object does not exist")
	ErrAlreadyExists  = errors.New("object already exists") // create-only Put lost: S3/GCS 412, Azure 409
	ErrConflict       = errors.New("conflict")              // compare-and-swap lost
	ErrInvalid        = errors.New("invalid request")
	ErrUnauthorized   = errors.New("not authorized")
	ErrThrottled      = errors.New("throttled")
	ErrUnavailable    = errors.New("store unavailable")
	ErrUnknownOutcome = errors.New("unknown outcome") // a write that may or may not have landed
	ErrCorrupt        = errors.New("corrupt object")  // checksum mismatch
	ErrNoSpace        = errors.New("store is full")
	ErrReadOnly       = errors.New("store is read-only")
	ErrUnimplemented  = errors.New("not implemented")
)

// Capabilities is what a store can do, as data.
type Capabilities struct {
	CreateOnlyPut  bool          // Put with CreateOnly is atomic: exactly one writer of a key wins
	CompareAndSwap bool          // Put with IfMatch is atomic
	ListPageMax    int           // most keys a List answers, > 0
	PutSizeMax     int64         // largest object a single Put takes, bytes
	PartSizeMin    int64         // multipart: smallest part but the last, bytes; 0: no multipart
	PartSizeMax    int64         // multipart: largest part, bytes
	PutLatency     time.Duration // typical small Put: the engine sizes its batching window by it
	Local          bool          // same machine: no per-request price
}

// Buffer is memory to build an object in. A store that hands bytes to another
// process may lend shared memory; the default is the heap.
type Buffer interface {
	Bytes() []byte // length as asked of Alloc
	Release()      // no use of Bytes afterwards; idempotent
}

// Store is safe for concurrent use. Every method honours its context.
type Store interface {
	Capabilities() Capabilities

	// Alloc gives a buffer of n bytes whose content is undefined. Chunks of a
	// Put may lie in such buffers or anywhere else; lying in one is cheaper for
	// stores that lend shared memory. HeapAlloc is the default.
	Alloc(n int) Buffer

	// Put writes one object from chunks, in order; no chunks make an empty object.
	// Without CreateOnly and IfMatch it replaces what was there, at once: a reader
	// sees the old object or the new one, whole. The store does not keep or
	// change the chunks after it returned nil; after an error an attempt may
	// still be reading them, so the caller must not reuse their memory.
	// With CreateOnly: ErrAlreadyExists when the key was taken, by anyone,
	// possibly by an earlier attempt of the same caller. A store never retries a
	// create-only Put by itself. ErrUnknownOutcome: the write may have landed, or
	// may yet land.
	Put(ctx context.Context, req PutRequest) (PutResponse, error)

	// GetRange reads [Offset, Offset+Length), exactly: a range that ends past
	// the object is ErrInvalid. Length -1 reads to the end. The bytes are the
	// caller's; the store keeps no reference to them.
	GetRange(ctx context.Context, req GetRangeRequest) (GetRangeResponse, error)

	// Head answers size and modification time, or ErrNotExist.
	Head(ctx context.Context, key string) (ObjectInfo, error)

	// List answers keys with the prefix in byte order, after StartAfter
	// (exclusive), at most Limit (0: the store's page; a larger Limit is cut to
	// it). More says that there may be others; the caller goes on from the last
	// key. A page with More is never empty. All goes through the pages.
	List(ctx context.Context, req ListRequest) (ListResponse, error)

	// DeleteBatch deletes up to DeleteMax keys; absent ones count as deleted. The error of each
	// key stands at its index in Errors; the method's own error means that
	// nothing is known of any.
	DeleteBatch(ctx context.Context, keys []string) (DeleteResponse, error)

	// Close waits for the calls in progress and frees what the store holds. Calls
	// after it fail with ErrUnavailable; closing twice is allowed.
	Close() error
}

// PutRequest says what to write.
type PutRequest struct {
	Key        string
	Chunks     [][]byte
	CreateOnly bool
	IfMatch    string // version of the object to replace; "" means no condition; needs CompareAndSwap
	CRC32C     uint32 // Castagnoli, of all chunks; checked by the store where it can
	HasCRC32C  bool
}

// DeleteMax is the most keys that one DeleteBatch takes (S3's limit).
const DeleteMax = 1000

// PutResponse carries the version for a later IfMatch, "" where unsupported.
type PutResponse struct{ Version string }

// GetRangeRequest says what to read.
type GetRangeRequest struct {
	Key    string
	Offset int64
	Length int64 // -1: to the end
	// Into is optional: read into this memory when it has the capacity. Once the call
	// has returned, whatever it returned but the context's error, nothing writes there.
	Into []byte
	// Filled is optional. While a store reads into Into it may tell, by calls one after
	// the other from within GetRange, how many bytes at its start are there and stay as
	// they are. Fewer than it told before: those from there on are read anew. It is news
	// for the impatient: the answer counts, and a store may tell nothing.
	Filled func(n int64)
}

// GetRangeResponse is the bytes and the whole object's size.
type GetRangeResponse struct {
	Data    []byte
	Size    int64
	Version string
}

// ObjectInfo describes one object.
type ObjectInfo struct {
	Key      string
	Size     int64
	Modified time.Time // by the store's clock
	Version  string
}

// ListRequest says which keys.
type ListRequest struct {
	Prefix     string
	StartAfter string
	Limit      int
}

// ListResponse is one page.
type ListResponse struct {
	Objects []ObjectInfo
	More    bool
}

// DeleteResponse has one error slot per key, nil for deleted.
type DeleteResponse struct{ Errors []error }

type heapBuffer []byte

func (b heapBuffer) Bytes() []byte { return b }
func (b heapBuffer) Release()      {}

// HeapAlloc is the Alloc of stores that lend nothing.
func HeapAlloc(n int) Buffer { return heapBuffer(make([]byte, n)) }
