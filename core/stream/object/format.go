// Package object is the one byte format of everything that Mink stores: bulks
// of a write-ahead log, stream-set objects (many streams), stream objects (one
// stream) and the tombstones that close a dead log.
//
//	+--------------+ 0
//	| header  64 B |  who wrote it, which slot, crc
//	+--------------+ 64
//	| block        |  48 B header, frame table, frames; sorted by (stream, offset)
//	| ...          |
//	+--------------+
//	| checkpoint   |  32 B header, opaque bytes; sorted by stream; none in a bulk
//	| ...          |
//	+--------------+ index position, in footer and metadata
//	| index        |  where each block and checkpoint is; delta varints, crc
//	+--------------+
//	| footer  48 B |  where the index is, crc
//	+--------------+ size
//
// A tombstone is a header alone: exactly 64 bytes.
//
// All fixed integers are little endian, all checksums CRC32C (Castagnoli), all
// offsets and spans 64 bits wide, so that sparse streams cannot overflow.
// Everything is covered by a checksum, except that blocks are only checked when
// they are read. Decoders never panic and allocate no more than a small
// multiple of their input. What fails a check is mink.ErrCorrupt; what is well
// formed but of a later version is mink.ErrUnsupported.
//
// The package does no I/O and keeps no state: safe for concurrent use, except
// that one Builder belongs to one goroutine.
package object

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Sizes of the fixed parts, bytes.
const (
	HeaderLen           = 64
	FooterLen           = 48
	BlockHeaderLen      = 48
	CheckpointHeaderLen = 32
)

const (
	// Version is what Builder writes and the newest that is read.
	Version = 1
	// BlockTarget is where blocks are cut: frames are added while the body stays
	// within it; a single larger frame is a block of its own.
	BlockTarget = 512 << 10
	// MaxBody is the longest body of a block or checkpoint: a record of 16 MiB
	// and more than enough around it.
	MaxBody = 64 << 20
	// MaxIndexLen bounds what a reader fetches on a footer's word: an index of
	// some three million blocks.
	MaxIndexLen = 64 << 20
)

// Header begins every object.
//
//	 0  magic "MINKOB"
//	 6  version u8
//	 7  kind u8              plan.ObjectKind
//	 8  node u32
//	12  window u16           of a bulk's writer; 0 otherwise
//	14  reserved u16         zero
//	16  node epoch u64
//	24  wal nonce u64        the registration's
//	32  seq u64              slot of the log, or object counter
//	40  nonce u64            random per object: "is this the one that I wrote?"
//	48  created u64          ms, the writer's clock
//	56  reserved u32         zero
//	60  crc32c u32           of bytes 0..59
type Header struct {
	Kind   plan.ObjectKind
	WAL    plan.WALID
	Seq    uint64
	Nonce  uint64
	Window uint16 // KindWAL: most unacknowledged slots its writer allows
	// CreatedMs is the writer's clock. What is safe never depends on it; when a merge
	// is due does.
	CreatedMs int64
}

var headerMagic = [6]byte{'M', 'I', 'N', 'K', 'O', 'B'}

// AppendHeader appends the 64 bytes of h to dst.
func AppendHeader(dst []byte, h Header) []byte {
	at := len(dst)
	dst = append(dst, headerMagic[:]...)
	dst = append(dst, Version, byte(h.Kind))
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(h.WAL.Node))
	dst = le.AppendUint16(dst, h.Window)
	dst = le.AppendUint16(dst, 0)
	dst = le.AppendUint64(dst, uint64(h.WAL.Epoch))
	dst = le.AppendUint64(dst, h.WAL.Nonce)
	dst = le.AppendUint64(dst, h.Seq)
	dst = le.AppendUint64(dst, h.Nonce)
	dst = le.AppendUint64(dst, uint64(h.CreatedMs))
	dst = le.AppendUint32(dst, 0)
	return le.AppendUint32(dst, crcOf(dst[at:]))
}

// ParseHeader reads the first 64 bytes of an object. Bytes after them are
// ignored.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, corrupt("header: %d bytes, need %d", len(b), HeaderLen)
	}
	b = b[:HeaderLen]
	if !bytes.Equal(b[:6], headerMagic[:]) {
		return Header{}, corrupt("header: magic % x is not a Mink object's", b[:6])
	}
	le := binary.LittleEndian
	if got, want := crcOf(b[:60]), le.Uint32(b[60:]); got != want {
		return Header{}, corrupt("header: crc32c %08x, stored %08x", got, want)
	}
	if b[6] != Version {
		return Header{}, unsupported("object format version %d (this program reads %d)", b[6], Version)
	}
	h := Header{
		Kind: plan.ObjectKind(b[7]),
		WAL: plan.WALID{
			Node:  mink.NodeID(le.Uint32(b[8:])),
			Epoch: mink.NodeEpoch(le.Uint64(b[16:])),
			Nonce: le.Uint64(b[24:]),
		},
		Window:    le.Uint16(b[12:]),
		Seq:       le.Uint64(b[32:]),
		Nonce:     le.Uint64(b[40:]),
		CreatedMs: int64(le.Uint64(b[48:])),
	}
	if h.Kind < plan.KindWAL || h.Kind > plan.KindTombstone {
		return Header{}, corrupt("header: unknown kind %d", h.Kind)
	}
	if le.Uint16(b[14:]) != 0 || le.Uint32(b[56:]) != 0 {
		return Header{}, corrupt("header: reserved bytes are not zero")
	}
	return h, nil
}

// Tombstone is the whole object that closes slot seq of a dead log. Nonce tells
// recoverers apart; any of their tombstones is as good as another.
func Tombstone(wal plan.WALID, seq uint64, nonce uint64) []byte {
	return AppendHeader(make([]byte, 0, HeaderLen), Header{Kind: plan.KindTombstone, WAL: wal, Seq: seq, Nonce: nonce})
}

// IsTombstone reports whether b, a whole object, is exactly a tombstone of this
// slot of this log.
func IsTombstone(b []byte, wal plan.WALID, seq uint64) bool {
	if len(b) != HeaderLen {
		return false
	}
	h, err := ParseHeader(b)
	return err == nil && h == Header{Kind: plan.KindTombstone, WAL: wal, Seq: seq, Nonce: h.Nonce}
}

// Footer ends every object but tombstones.
//
//	 0  index position u64
//	 8  index length u64
//	16  blocks u32
//	20  streams u32          with at least one block
//	24  checkpoints u32
//	28  index crc32c u32     as in the index's trailer and in metadata
//	32  header crc32c u32    ties the end to the beginning
//	36  crc32c u32           of bytes 0..35
//	40  magic "MINKEND" and version u8
type Footer struct {
	IndexPos, IndexLen           int64
	Blocks, Streams, Checkpoints uint32
	IndexCRC                     uint32
	HeaderCRC                    uint32
}

var footerMagic = [7]byte{'M', 'I', 'N', 'K', 'E', 'N', 'D'}

// AppendFooter appends the 48 bytes of f to dst.
func AppendFooter(dst []byte, f Footer) []byte {
	at := len(dst)
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(f.IndexPos))
	dst = le.AppendUint64(dst, uint64(f.IndexLen))
	dst = le.AppendUint32(dst, f.Blocks)
	dst = le.AppendUint32(dst, f.Streams)
	dst = le.AppendUint32(dst, f.Checkpoints)
	dst = le.AppendUint32(dst, f.IndexCRC)
	dst = le.AppendUint32(dst, f.HeaderCRC)
	dst = le.AppendUint32(dst, crcOf(dst[at:]))
	dst = append(dst, footerMagic[:]...)
	return append(dst, Version)
}

// ParseFooter reads the last 48 bytes of an object of the given size. The index
// that it names lies between header and footer and ends where the footer
// begins; its length is at most MaxIndexLen.
func ParseFooter(b []byte, size int64) (Footer, error) {
	if len(b) < FooterLen {
		return Footer{}, corrupt("footer: %d bytes, need %d", len(b), FooterLen)
	}
	b = b[len(b)-FooterLen:]
	le := binary.LittleEndian
	if !bytes.Equal(b[40:47], footerMagic[:]) {
		return Footer{}, corrupt("footer: magic % x is not a Mink object's", b[40:47])
	}
	if got, want := crcOf(b[:36]), le.Uint32(b[36:]); got != want {
		return Footer{}, corrupt("footer: crc32c %08x, stored %08x", got, want)
	}
	if b[47] != Version {
		return Footer{}, unsupported("object format version %d (this program reads %d)", b[47], Version)
	}
	pos, n := le.Uint64(b), le.Uint64(b[8:])
	if n < indexMinLen || n > MaxIndexLen || pos < HeaderLen || pos > math.MaxInt64-MaxIndexLen-FooterLen {
		return Footer{}, corrupt("footer: index at %d, %d bytes, is impossible", pos, n)
	}
	if int64(pos+n)+FooterLen != size {
		return Footer{}, corrupt("footer: index at %d, %d bytes, does not fit an object of %d bytes", pos, n, size)
	}
	return Footer{
		IndexPos: int64(pos), IndexLen: int64(n),
		Blocks: le.Uint32(b[16:]), Streams: le.Uint32(b[20:]), Checkpoints: le.Uint32(b[24:]),
		IndexCRC: le.Uint32(b[28:]), HeaderCRC: le.Uint32(b[32:]),
	}, nil
}

// HeaderCRC is the checksum that the 64 header bytes carry, for comparison with
// Footer.HeaderCRC.
func HeaderCRC(header []byte) uint32 { return binary.LittleEndian.Uint32(header[60:64]) }

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", mink.ErrCorrupt, fmt.Sprintf(format, args...))
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", mink.ErrUnsupported, fmt.Sprintf(format, args...))
}
