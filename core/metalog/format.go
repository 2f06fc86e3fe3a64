package metalog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"iter"

	"github.com/mink-project/mink/sdk/mink"
)

// A state snapshot is one byte stream of length-delimited records, cut into
// parts. A record may lie across parts.
//
//	part (version 1), big endian
//	 0  4  "MKSN"
//	 4  1  version, 1
//	 5  1  flags: bit 0 set on the last part
//	 6  2  zero
//	 8  4  number of the part, from 0
//	12  4  CRC32C of bytes 0..11 and of the body
//	16  n  body
//
//	stream: ( length uvarint | record )*
const (
	partMagic       = "MKSN"
	partVersion     = 1
	partHeaderBytes = 16
	partLast        = 1
	recordBytesMax  = 64 << 20 // bounds memory when a length is damaged
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CheckPart checks the size of a snapshot part: what a Log enforces.
func CheckPart(part []byte) error {
	if len(part) == 0 || len(part) > PartBytesMax {
		return fmt.Errorf("snapshot part of %d bytes, must be 1..%d: %w", len(part), PartBytesMax, mink.ErrInvalid)
	}
	return nil
}

// partWriter cuts records into parts. Each part it yields is a fresh buffer.
type partWriter struct {
	number uint32
	buf    []byte // header room + body so far
	yield  func([]byte) error
}

func newPartWriter(yield func([]byte) error) *partWriter {
	return &partWriter{buf: make([]byte, partHeaderBytes, 64<<10), yield: yield}
}

func (w *partWriter) record(rec []byte) error {
	if len(rec) > recordBytesMax {
		return fmt.Errorf("snapshot record of %d bytes, the limit is %d: %w", len(rec), recordBytesMax, mink.ErrTooLarge)
	}
	w.buf = binary.AppendUvarint(w.buf, uint64(len(rec)))
	w.buf = append(w.buf, rec...)
	for len(w.buf) > PartBytesMax {
		rest := w.buf[PartBytesMax:]
		if err := w.flush(w.buf[:PartBytesMax:PartBytesMax], 0); err != nil {
			return err
		}
		next := make([]byte, partHeaderBytes, PartBytesMax)
		next = append(next, rest...)
		w.buf = next
	}
	return nil
}

func (w *partWriter) close() error { return w.flush(w.buf, partLast) }

func (w *partWriter) flush(part []byte, flags byte) error {
	copy(part, partMagic)
	part[4], part[5], part[6], part[7] = partVersion, flags, 0, 0
	binary.BigEndian.PutUint32(part[8:], w.number)
	binary.BigEndian.PutUint32(part[12:], partCRC(part))
	w.number++
	return w.yield(part)
}

func partCRC(part []byte) uint32 {
	crc := crc32.Update(0, castagnoli, part[:12])
	return crc32.Update(crc, castagnoli, part[partHeaderBytes:])
}

// parsePart checks the part with the given number and answers its body.
func parsePart(part []byte, number uint32) (body []byte, last bool, err error) {
	bad := func(format string, args ...any) ([]byte, bool, error) {
		return nil, false, fmt.Errorf("snapshot part %d: %s: %w", number, fmt.Sprintf(format, args...), mink.ErrCorrupt)
	}
	if len(part) < partHeaderBytes || len(part) > PartBytesMax {
		return bad("%d bytes", len(part))
	}
	if string(part[:4]) != partMagic {
		return bad("starts with %x, not %q", part[:4], partMagic)
	}
	if part[4] != partVersion {
		return nil, false, fmt.Errorf("snapshot part %d has version %d, this binary reads %d: %w", number, part[4], partVersion, mink.ErrUnsupported)
	}
	if got := binary.BigEndian.Uint32(part[12:]); got != partCRC(part) {
		return bad("CRC32C is %08x, stored %08x", partCRC(part), got)
	}
	if got := binary.BigEndian.Uint32(part[8:]); got != number {
		return bad("is numbered %d", got)
	}
	if part[5]&^partLast != 0 || part[6] != 0 || part[7] != 0 {
		return bad("unknown flags %x", part[5:8])
	}
	return part[partHeaderBytes:], part[5]&partLast != 0, nil
}

// records yields the records of a snapshot's parts. A yielded record is valid
// until the next one. After an error nothing follows.
func records(parts iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		r := recordReader{}
		for part, err := range parts {
			if err == nil {
				err = r.add(part)
			}
			for err == nil {
				var rec []byte
				if rec, err = r.next(); rec == nil {
					break
				}
				if !yield(rec, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		if err := r.finish(); err != nil {
			yield(nil, err)
		}
	}
}

// recordReader reassembles records that lie across parts.
type recordReader struct {
	number uint32
	last   bool
	rest   []byte // not yet consumed
}

func (r *recordReader) add(part []byte) error {
	if r.last {
		return fmt.Errorf("snapshot part %d comes after the last one: %w", r.number, mink.ErrCorrupt)
	}
	body, last, err := parsePart(part, r.number)
	if err != nil {
		return err
	}
	r.number++
	r.last = last
	r.rest = append(append(make([]byte, 0, len(r.rest)+len(body)), r.rest...), body...)
	return nil
}

// next answers nil when the next record is not complete yet. An empty record
// is not nil.
func (r *recordReader) next() ([]byte, error) {
	size, n := binary.Uvarint(r.rest)
	switch {
	case n < 0 || n == 0 && len(r.rest) >= binary.MaxVarintLen64 || n > 0 && size > recordBytesMax:
		return nil, fmt.Errorf("snapshot part %d: record length is damaged: %w", r.number-1, mink.ErrCorrupt)
	case n == 0 || uint64(len(r.rest)-n) < size:
		return nil, nil
	}
	rec := r.rest[n : n+int(size) : n+int(size)]
	r.rest = r.rest[n+int(size):]
	return rec, nil
}

func (r *recordReader) finish() error {
	if !r.last || len(r.rest) > 0 {
		return fmt.Errorf("snapshot ends after part %d, %d bytes into a record, without its last part: %w: %w",
			int64(r.number)-1, len(r.rest), mink.ErrCorrupt, io.ErrUnexpectedEOF)
	}
	return nil
}
