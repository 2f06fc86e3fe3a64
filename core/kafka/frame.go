package kafka

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A request on the wire, big endian:
//
//	length i32 | key i16 | version i16 | correlation i32 | client id i16+bytes | [tags] | body
//	           |<------------------------------- length ------------------------------------>|
//
// [tags] is there when the version is flexible. ApiVersions in a version that we
// do not know is answered from the first 8 bytes alone.
const headerFixed = 8

type header struct {
	key, version int16
	correlation  int32
	clientID     []byte // aliases the frame
	flexible     bool
}

var errShort = errors.New("request is shorter than its header says")

// parseFixed reads the part of the header that every version has.
func parseFixed(frame []byte) (header, error) {
	if len(frame) < headerFixed {
		return header{}, fmt.Errorf("a frame of %d bytes has no room for a request header", len(frame))
	}
	return header{
		key:         int16(binary.BigEndian.Uint16(frame)),
		version:     int16(binary.BigEndian.Uint16(frame[2:])),
		correlation: int32(binary.BigEndian.Uint32(frame[4:])),
	}, nil
}

// parseRest reads client id and tags and returns the body. h.flexible is set by
// the caller.
func (h *header) parseRest(frame []byte) (body []byte, err error) {
	b := frame[headerFixed:]
	if len(b) < 2 {
		return nil, errShort
	}
	n := int(int16(binary.BigEndian.Uint16(b)))
	b = b[2:]
	if n > len(b) {
		return nil, errShort
	}
	if n > 0 {
		h.clientID, b = b[:n], b[n:]
	}
	if !h.flexible {
		return b, nil
	}
	return skipTags(b)
}

func skipTags(b []byte) ([]byte, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, errShort
	}
	b = b[n:]
	for ; count > 0; count-- {
		_, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errShort
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, errShort
		}
		b = b[n+int(size):]
	}
	return b, nil
}

// isFlexible answers for keys outside the table too; unknown keys are not.
func isFlexible(key, version int16) bool {
	if a, ok := findAPI(key); ok {
		return version >= a.Flexible
	}
	r := kmsg.RequestForKey(key)
	if r == nil {
		return false
	}
	r.SetVersion(version)
	return r.IsFlexible()
}

// buffers lends byte slices by size class, so that a connection's next frame
// reuses the memory of an earlier one of any connection.
type buffers struct {
	class [maxClass - minClass + 1]sync.Pool
}

const (
	minClass = 12 // 4 KiB
	maxClass = 24 // 16 MiB; larger frames are not kept
)

func (p *buffers) get(n int) []byte {
	c := max(bits.Len(uint(max(n, 1)-1)), minClass)
	if c > maxClass {
		return make([]byte, n)
	}
	if b, ok := p.class[c-minClass].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	return make([]byte, n, 1<<c)
}

// put takes back what get lent. The caller holds no reference into b any more.
func (p *buffers) put(b []byte) {
	c := bits.Len(uint(cap(b))) - 1
	if c < minClass || c > maxClass || cap(b) != 1<<c {
		return
	}
	b = b[:0]
	p.class[c-minClass].Put(&b)
}

// firstRead bounds what a length alone makes us allocate: the rest follows once
// that much has come.
const firstRead = 1 << 20

// readFrame reads size bytes. admit is asked before more than firstRead bytes are taken.
func (p *buffers) readFrame(r *bufio.Reader, size int, admit func() error) ([]byte, error) {
	if size <= firstRead {
		b := p.get(size)
		_, err := io.ReadFull(r, b)
		if err != nil {
			p.put(b)
			return nil, err
		}
		return b, nil
	}
	head := p.get(firstRead)
	defer p.put(head)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	if err := admit(); err != nil {
		return nil, err
	}
	b := p.get(size)
	copy(b, head)
	if _, err := io.ReadFull(r, b[firstRead:]); err != nil {
		p.put(b)
		return nil, err
	}
	return b, nil
}
