package objstore

import (
	"context"
	"fmt"
)

// PartNumberMax is the highest part number (S3's limit); the lowest is 1.
const PartNumberMax = 10000

// UploadID names one multipart upload of one key; opaque, never empty.
type UploadID string

// Multiparter is a companion of Store: objects that are written in parts, for
// what is too large for memory or for one Put. Get it with Multipart: a wrapper
// may have the methods though what it wraps has not. Nothing of an
// upload is visible before it completes. Uploads that were neither completed nor
// aborted may outlive the process and cost money: the store's own lifecycle rules
// or its next Open remove them. Safe for concurrent use, as Store is.
type Multiparter interface {
	// StartUpload begins an upload of key. It does not look whether the key is taken.
	StartUpload(ctx context.Context, key string) (UploadID, error)

	// PutPart writes one part; writing a number again replaces it. Parts may come
	// in any order and at once. Sizes: at least PartSizeMin but for the last
	// part, at most PartSizeMax. The rules of Put for chunks hold.
	PutPart(ctx context.Context, req PutPartRequest) (Part, error)

	// CompleteUpload publishes the concatenation of the parts as one object, with
	// Put's rules for CreateOnly and Put's errors. After ErrAlreadyExists the
	// upload may still be aborted; after ErrUnknownOutcome, look at the key first.
	CompleteUpload(ctx context.Context, req CompleteUploadRequest) (PutResponse, error)

	// AbortUpload drops an upload and its parts; an absent one counts as dropped.
	AbortUpload(ctx context.Context, key string, id UploadID) error
}

// Multipart gives the store's multipart side, if it has one.
func Multipart(s Store) (Multiparter, bool) {
	m, ok := s.(Multiparter)
	if !ok || s.Capabilities().PartSizeMin <= 0 {
		return nil, false
	}
	return m, true
}

// PutPartRequest says what to write as which part.
type PutPartRequest struct {
	Key       string
	Upload    UploadID
	Number    int // 1..PartNumberMax; order of the parts in the object
	Chunks    [][]byte
	CRC32C    uint32 // Castagnoli, of all chunks
	HasCRC32C bool
}

// Part is the receipt of a part; CompleteUpload wants them back unchanged.
type Part struct {
	Number int
	Size   int64
	Tag    string // the store's own, opaque
}

// CompleteUploadRequest names the parts in ascending order of their numbers,
// which need not be dense.
type CompleteUploadRequest struct {
	Key        string
	Upload     UploadID
	Parts      []Part
	CreateOnly bool
}

// Validate checks key, number, and checksum, as PutRequest.Validate does.
func (r PutPartRequest) Validate() error {
	if err := ValidateKey(r.Key); err != nil {
		return err
	}
	if r.Number < 1 || r.Number > PartNumberMax {
		return fmt.Errorf("%w: part number %d of %q, must be 1..%d", ErrInvalid, r.Number, r.Key, PartNumberMax)
	}
	if r.HasCRC32C {
		return verify(r.Chunks, r.CRC32C, r.Key)
	}
	return nil
}

// Validate checks key, order of the parts, and the smallest part size.
func (r CompleteUploadRequest) Validate(partSizeMin int64) error {
	if err := ValidateKey(r.Key); err != nil {
		return err
	}
	if len(r.Parts) == 0 {
		return fmt.Errorf("%w: upload of %q has no parts", ErrInvalid, r.Key)
	}
	last := 0
	for i, p := range r.Parts {
		if p.Number <= last || p.Number > PartNumberMax {
			return fmt.Errorf("%w: part %d of %q after part %d", ErrInvalid, p.Number, r.Key, last)
		}
		if i < len(r.Parts)-1 && p.Size < partSizeMin {
			return fmt.Errorf("%w: part %d of %q has %d bytes, the least is %d", ErrInvalid, p.Number, r.Key, p.Size, partSizeMin)
		}
		last = p.Number
	}
	return nil
}
