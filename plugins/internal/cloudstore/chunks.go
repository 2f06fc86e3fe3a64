package cloudstore

import (
	"errors"
	"io"

	"github.com/mink-project/mink/sdk/objstore"
)

// Chunks reads chunks as one stream that can be read again: the AWS library signs
// a body before it sends it. Not safe for concurrent use.
type Chunks struct {
	chunks [][]byte
	size   int64
	index  int // of the chunk to read
	offset int // in it
	at     int64
}

// NewChunks makes a reader that stands at the beginning.
func NewChunks(chunks [][]byte) *Chunks {
	return &Chunks{chunks: chunks, size: objstore.SizeOf(chunks)}
}

// Len is the number of unread bytes.
func (c *Chunks) Len() int { return int(c.size - c.at) }

// Read implements io.Reader.
func (c *Chunks) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && c.index < len(c.chunks) {
		m := copy(p[n:], c.chunks[c.index][c.offset:])
		n += m
		c.advance(m)
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements io.WriterTo: no copy on the way.
func (c *Chunks) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for c.index < len(c.chunks) {
		n, err := w.Write(c.chunks[c.index][c.offset:])
		total += int64(n)
		c.advance(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (c *Chunks) advance(n int) {
	c.at += int64(n)
	c.offset += n
	for c.index < len(c.chunks) && c.offset == len(c.chunks[c.index]) {
		c.index, c.offset = c.index+1, 0
	}
}

// Seek implements io.Seeker.
func (c *Chunks) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.at
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 || offset > c.size {
		return 0, errors.New("seek outside of the object")
	}
	c.index, c.offset, c.at = 0, 0, 0
	c.advance(0)
	for rest := offset; rest > 0; rest = offset - c.at {
		c.advance(int(min(rest, int64(len(c.chunks[c.index])-c.offset))))
	}
	return offset, nil
}

// Close implements io.Closer.
func (c *Chunks) Close() error { return nil }
