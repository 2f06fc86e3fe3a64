package kafkabatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/mink-project/mink/core/record"
)

// Limits bound what a compressed batch may expand to.
type Limits struct {
	// MaxBytes is the most that one batch may expand to. Default 128 MiB.
	MaxBytes int
	// MaxRatio is the most that it may expand by, counted above FreeBytes: runs
	// of equal records honestly reach ratios of many thousands. Default 1000.
	MaxRatio int
	// FreeBytes may always be reached, whatever the ratio. Default 16 MiB, the
	// largest record.
	FreeBytes int
}

// DefaultLimits are 128 MiB, 1000 and 16 MiB.
func DefaultLimits() Limits {
	return Limits{MaxBytes: 128 << 20, MaxRatio: 1000, FreeBytes: 16 << 20}
}

func (l Limits) of(compressed int) int {
	if compressed >= l.MaxBytes/max(l.MaxRatio, 1) {
		return l.MaxBytes
	}
	return min(l.MaxBytes, max(l.FreeBytes, compressed*l.MaxRatio))
}

// keepBytes is the most scratch memory that a Decoder keeps between batches.
const keepBytes = 4 << 20

// Decoder decompresses batches and keeps its codecs and buffer for the next
// one. What it answers is valid until its next call. Not for concurrent use.
type Decoder struct {
	limits Limits
	src    bytes.Reader
	buf    []byte
	gzip   *gzip.Reader
	lz4    *lz4.Reader
	zstd   *zstd.Decoder
}

// NewDecoder makes a decoder; codecs are built when first met.
func NewDecoder(l Limits) *Decoder { return &Decoder{limits: l} }

// Records answers the uncompressed records of v: a slice of v itself when it is
// not compressed. Errors are *record.BatchError.
func (d *Decoder) Records(v View) ([]byte, error) {
	src := v.Records()
	if v.Codec() == CodecNone {
		return src, nil
	}
	if cap(d.buf) > keepBytes {
		d.buf = nil
	}
	limit := d.limits.of(len(src))
	out, err := d.decompress(v.Codec(), src, limit)
	if err == nil {
		return out, nil
	}
	if errors.Is(err, errExpands) {
		return nil, record.Errorf(record.KindTooLarge, "%d %s bytes expand past %d bytes", len(src), v.Codec(), limit)
	}
	return nil, record.Errorf(record.KindInvalidRecord, "%s: %v", v.Codec(), err)
}

var errExpands = errors.New("expands past the limit")

func (d *Decoder) decompress(c Codec, src []byte, limit int) ([]byte, error) {
	switch c {
	case CodecGzip:
		return d.gunzip(src, limit)
	case CodecSnappy:
		return d.unsnappy(src, limit)
	case CodecLZ4:
		return d.unlz4(src, limit)
	case CodecZstd:
		return d.unzstd(src, limit)
	default:
		return nil, fmt.Errorf("unknown codec %d", c)
	}
}

// fill reads r to its end into d.buf after at, but not past limit bytes.
func (d *Decoder) fill(r io.Reader, limit int) error {
	for {
		if len(d.buf) == cap(d.buf) {
			if len(d.buf) > limit {
				return errExpands
			}
			grown := make([]byte, len(d.buf), min(max(2*cap(d.buf), 64<<10), limit+1))
			copy(grown, d.buf)
			d.buf = grown
		}
		n, err := r.Read(d.buf[len(d.buf):cap(d.buf)])
		d.buf = d.buf[:len(d.buf)+n]
		if len(d.buf) > limit {
			return errExpands
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// gunzip reads all members.
func (d *Decoder) gunzip(src []byte, limit int) ([]byte, error) {
	d.src.Reset(src)
	d.buf = d.buf[:0]
	var err error
	if d.gzip == nil {
		d.gzip, err = gzip.NewReader(&d.src)
	} else {
		err = d.gzip.Reset(&d.src)
	}
	if err != nil {
		d.gzip = nil
		return nil, err
	}
	err = d.fill(d.gzip, limit)
	return d.buf, err
}

// unlz4 reads all frames.
func (d *Decoder) unlz4(src []byte, limit int) ([]byte, error) {
	d.src.Reset(src)
	d.buf = d.buf[:0]
	if d.lz4 == nil {
		d.lz4 = lz4.NewReader(&d.src)
	}
	for {
		d.lz4.Reset(&d.src)
		before := d.src.Len()
		if err := d.fill(d.lz4, limit); err != nil {
			d.lz4 = nil // its state after an error is not worth trusting
			return nil, err
		}
		if d.src.Len() == 0 {
			return d.buf, nil
		}
		if d.src.Len() == before {
			return nil, errors.New("no frame where one must start")
		}
	}
}

// zstdMaxWindow bounds the history a frame may refer to; Kafka's clients use
// 8 MiB at most, level 22 of the zstd tool 128 MiB.
const zstdMaxWindow = 128 << 20

// unzstd reads all frames, with or without their content size. Not as a stream:
// that would allocate the window that a frame claims, 128 MiB for a batch of 42
// bytes, where this grows with what is decoded, and stops at MaxBytes.
func (d *Decoder) unzstd(src []byte, limit int) ([]byte, error) {
	if d.zstd == nil {
		var err error
		// Concurrency 1 decodes in the caller: no goroutine is left behind. The
		// memory limit is one for windows too, hence not below theirs.
		d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(zstdMaxWindow), zstd.WithDecoderMaxMemory(uint64(max(d.limits.MaxBytes, zstdMaxWindow))))
		if err != nil {
			return nil, err
		}
	}
	var h zstd.Header
	if err := h.Decode(src); err == nil && h.HasFCS && h.FrameContentSize > uint64(limit) {
		return nil, errExpands // before room is made for it
	}
	out, err := d.zstd.DecodeAll(src, d.buf[:0])
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) || len(out) > limit {
		return nil, errExpands
	}
	if err != nil {
		return nil, err
	}
	d.buf = out
	return out, nil
}

// xerial is the framing of the Java client: magic, two versions, then blocks of
// a big endian length and a raw snappy block.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeader = 16

// unsnappy reads one raw block or any number of xerial blocks.
func (d *Decoder) unsnappy(src []byte, limit int) ([]byte, error) {
	d.buf = d.buf[:0]
	if !bytes.HasPrefix(src, xerial) {
		return d.buf, d.appendSnappy(src, limit)
	}
	if len(src) < xerialHeader {
		return nil, io.ErrUnexpectedEOF
	}
	for src = src[xerialHeader:]; len(src) > 0; {
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := uint64(binary.BigEndian.Uint32(src))
		if src = src[4:]; n > uint64(len(src)) {
			return nil, io.ErrUnexpectedEOF
		}
		if err := d.appendSnappy(src[:n], limit); err != nil {
			return nil, err
		}
		src = src[n:]
	}
	return d.buf, nil
}

func (d *Decoder) appendSnappy(block []byte, limit int) error {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return err
	}
	if n > limit-len(d.buf) {
		return errExpands
	}
	// A snappy copy of 3 bytes makes at most 64: a longer claim is a lie, and
	// believing it would allocate for it.
	if n/64 > len(block) {
		return errors.New("length prefix does not fit the block")
	}
	at := len(d.buf)
	if cap(d.buf)-at < n {
		grown := make([]byte, at, max(at+n, min(2*cap(d.buf), limit)))
		copy(grown, d.buf)
		d.buf = grown
	}
	out, err := snappy.Decode(d.buf[at:at+n:at+n], block)
	if err != nil {
		return err
	}
	if len(out) != n {
		return errors.New("length prefix does not fit the block")
	}
	d.buf = d.buf[:at+n]
	if n > 0 && &out[0] != &d.buf[at] {
		copy(d.buf[at:], out)
	}
	return nil
}
