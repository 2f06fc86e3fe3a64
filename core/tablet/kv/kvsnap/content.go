package kvsnap

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
)

// ChunkBytes is the size of the chunks of which a content id is made, the last one
// is what is left. It is part of the format.
const ChunkBytes = 4 << 20

// digests are a file's chunks, hashed one by one, in any order: ranges of a file
// arrive in any order, and are gone when they are written.
type digests struct {
	size   int64
	chunks [][sha256.Size]byte
}

func newDigests(size int64) *digests {
	return &digests{size: size, chunks: make([][sha256.Size]byte, (size+ChunkBytes-1)/ChunkBytes)}
}

// add takes the bytes at offset, a multiple of ChunkBytes. Calls for different
// ranges may run at once.
func (d *digests) add(offset int64, data []byte) {
	for at := offset / ChunkBytes; len(data) > 0; at++ {
		n := min(len(data), ChunkBytes)
		d.chunks[at] = sha256.Sum256(data[:n])
		data = data[n:]
	}
}

// id is the file's content id: the first 16 bytes of
//
//	SHA-256("mink kv file 1" | size, 8 bytes little endian | SHA-256 of each chunk)
func (d *digests) id() kvplan.ContentID {
	h := sha256.New()
	_, _ = io.WriteString(h, "mink kv file 1")
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(d.size)))
	for i := range d.chunks {
		_, _ = h.Write(d.chunks[i][:])
	}
	return kvplan.ContentID(h.Sum(nil))
}

// contentOf is the content id of bytes in memory.
func contentOf(data []byte) kvplan.ContentID {
	d := newDigests(int64(len(data)))
	d.add(0, data)
	return d.id()
}

// contentOfFile reads the first size bytes of a file.
func contentOfFile(ctx context.Context, r io.ReaderAt, size int64) (kvplan.ContentID, error) {
	d := newDigests(size)
	buf := make([]byte, min(size, ChunkBytes))
	for at := int64(0); at < size; at += ChunkBytes {
		if err := ctx.Err(); err != nil {
			return kvplan.ContentID{}, err
		}
		part := buf[:min(ChunkBytes, size-at)]
		if _, err := r.ReadAt(part, at); err != nil {
			return kvplan.ContentID{}, err
		}
		d.add(at, part)
	}
	return d.id(), nil
}
