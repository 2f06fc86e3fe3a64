package object

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// Frame is one append: an opaque record batch that takes Span offsets from
// Start. Bytes is immutable and stays valid as long as it is referenced.
type Frame struct {
	Start           mink.Offset
	Span            uint64 // offsets taken, >= 1; may exceed Count (sparse after compaction)
	Count           uint32 // records
	LeaderEpoch     mink.LeaderEpoch
	MaxTimestamp    int64 // largest record timestamp, ms
	CommitTimestamp int64 // when appended, ms; never falls within a stream
	Bytes           []byte
}

// End is the offset after the frame's last.
func (f Frame) End() mink.Offset { return f.Start + mink.Offset(f.Span) }

// BlockInfo says where a block is and what it holds, so that an index is enough
// to find what to read.
type BlockInfo struct {
	Stream          mink.StreamID
	LeaderEpoch     mink.LeaderEpoch // of every frame in it
	Start           mink.Offset      // of the first frame
	Span            uint64           // to the end of the last frame; gaps between frames included
	Count           uint32           // records
	Pos             int64            // of the block header in the object
	RawLen, EncLen  uint32           // of the body (frame table and frames), decoded and stored
	MaxTimestamp    int64            // largest of its frames'
	CommitTimestamp int64            // of the last frame
}

// End is the offset after the block's last frame.
func (i BlockInfo) End() mink.Offset { return i.Start + mink.Offset(i.Span) }

// Len is how many bytes the block takes in the object, from Pos.
func (i BlockInfo) Len() int64 { return BlockHeaderLen + int64(i.EncLen) }

// A block:
//
//	 0  magic "MKB" and version u8
//	 4  codec u8             0: stored as is; others are reserved
//	 5  reserved 3           zero
//	 8  stream u64
//	16  start u64            of the first frame
//	24  leader epoch u32     of all frames
//	28  frames u32
//	32  table length u32
//	36  raw length u32       table and frames
//	40  encoded length u32   the same after the codec: what is stored
//	44  crc32c u32           of the stored body, then bytes 0..43: so that the body's own
//	                         checksum can be reused for the whole object's
//	48  frame table          per frame: uvarint gap since the end of the one before,
//	                         uvarint span, uvarint count, uvarint length in bytes,
//	                         zigzag commit timestamp - the one before's (0 at first),
//	                         zigzag max timestamp - commit timestamp
//	    frames               back to back
const (
	codecNone = 0
	// minEntry is the least bytes of a frame table entry: it bounds what a frame
	// count can make a decoder allocate.
	minEntry = 6
	maxEntry = 2*binary.MaxVarintLen64 + 2*binary.MaxVarintLen32 + 2*binary.MaxVarintLen64
)

var (
	blockMagic      = [4]byte{'M', 'K', 'B', Version}
	checkpointMagic = [4]byte{'M', 'K', 'C', Version}
)

// appendBlockHeader leaves the checksum to the caller.
func appendBlockHeader(dst []byte, i *BlockInfo, frames, tableLen uint32) []byte {
	le := binary.LittleEndian
	dst = append(dst, blockMagic[:]...)
	dst = append(dst, codecNone, 0, 0, 0)
	dst = le.AppendUint64(dst, uint64(i.Stream))
	dst = le.AppendUint64(dst, uint64(i.Start))
	dst = le.AppendUint32(dst, uint32(i.LeaderEpoch))
	dst = le.AppendUint32(dst, frames)
	dst = le.AppendUint32(dst, tableLen)
	dst = le.AppendUint32(dst, i.RawLen)
	dst = le.AppendUint32(dst, i.EncLen)
	return le.AppendUint32(dst, 0)
}

// checkMagic tells a later version from garbage. Call it after the checksum: a
// flipped bit is no version.
func checkMagic(what string, b []byte, want [4]byte) error {
	if [3]byte(b[:3]) != [3]byte(want[:3]) {
		return corrupt("%s: magic % x", what, b[:4])
	}
	if b[3] != want[3] {
		return unsupported("%s format version %d (this program reads %d)", what, b[3], Version)
	}
	return nil
}

// verifyBlock checks that b is the block that info describes, byte for byte, and
// returns its frame count and table length.
func verifyBlock(info BlockInfo, b []byte) (frames, tableLen uint32, err error) {
	if int64(len(b)) != info.Len() {
		return 0, 0, corrupt("block %d@%d: %d bytes, the index says %d", info.Stream, info.Start, len(b), info.Len())
	}
	le := binary.LittleEndian
	if got, want := crcAdd(crcOf(b[BlockHeaderLen:]), b[:44]), le.Uint32(b[44:]); got != want {
		return 0, 0, corrupt("block %d@%d: crc32c %08x, stored %08x", info.Stream, info.Start, got, want)
	}
	if err := checkMagic("block", b, blockMagic); err != nil {
		return 0, 0, err
	}
	if b[4] != codecNone {
		return 0, 0, unsupported("block codec %d", b[4])
	}
	if b[5]|b[6]|b[7] != 0 {
		return 0, 0, corrupt("block %d@%d: reserved bytes are not zero", info.Stream, info.Start)
	}
	same := mink.StreamID(le.Uint64(b[8:])) == info.Stream &&
		mink.Offset(le.Uint64(b[16:])) == info.Start &&
		mink.LeaderEpoch(le.Uint32(b[24:])) == info.LeaderEpoch &&
		le.Uint32(b[36:]) == info.RawLen && le.Uint32(b[40:]) == info.EncLen
	if !same {
		return 0, 0, corrupt("block %d@%d: found block %d@%d of another index entry there",
			info.Stream, info.Start, int64(le.Uint64(b[8:])), int64(le.Uint64(b[16:])))
	}
	frames, tableLen = le.Uint32(b[28:]), le.Uint32(b[32:])
	if info.RawLen != info.EncLen || tableLen > info.RawLen || frames == 0 || uint64(frames)*minEntry > uint64(tableLen) {
		return 0, 0, corrupt("block %d@%d: impossible lengths (%d frames, table %d, body %d)",
			info.Stream, info.Start, frames, tableLen, info.RawLen)
	}
	return frames, tableLen, nil
}

// DecodeBlock checks b, the bytes [info.Pos, info.Pos+info.Len()) of an object,
// and returns its frames; their Bytes alias b.
func DecodeBlock(info BlockInfo, b []byte) ([]Frame, error) {
	frames, err := AppendFrames(nil, info, b)
	if err != nil {
		return nil, err
	}
	return frames, nil
}

// AppendFrames is DecodeBlock that appends to dst. On an error it answers what dst
// held.
func AppendFrames(dst []Frame, info BlockInfo, b []byte) ([]Frame, error) {
	n, tableLen, err := verifyBlock(info, b)
	if err != nil {
		return dst, err
	}
	table, body := b[BlockHeaderLen:BlockHeaderLen+tableLen], b[BlockHeaderLen+tableLen:]
	dst = slices.Grow(dst, int(n))
	out := dst
	r := reader{b: table}
	next, commit := uint64(info.Start), int64(0)
	var count uint64
	maxTs := int64(math.MinInt64)
	for k := range n {
		gap, span, records, length := r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
		commit += r.varint()
		top := commit + r.varint()
		start := next + gap
		next = start + span
		// start and next stay below 2^63: each step is checked before the next adds.
		if r.bad || gap > math.MaxInt64 || start > math.MaxInt64 || span == 0 || span > math.MaxInt64 || next > math.MaxInt64 ||
			records > math.MaxUint32 || length > uint64(len(body)) || (k == 0 && gap != 0) {
			return dst, corrupt("block %d@%d: frame table entry %d of %d", info.Stream, info.Start, k, n)
		}
		out = append(out, Frame{
			Start: mink.Offset(start), Span: span, Count: uint32(records), LeaderEpoch: info.LeaderEpoch,
			MaxTimestamp: top, CommitTimestamp: commit, Bytes: body[:length:length],
		})
		body = body[length:]
		count += records
		maxTs = max(maxTs, top)
	}
	switch {
	case len(r.b) != 0 || len(body) != 0:
		return dst, corrupt("block %d@%d: %d bytes of table and %d of body left over", info.Stream, info.Start, len(r.b), len(body))
	case next != uint64(info.End()) || count != uint64(info.Count) || maxTs != info.MaxTimestamp || commit != info.CommitTimestamp:
		return dst, corrupt("block %d@%d: frames disagree with the index entry", info.Stream, info.Start)
	}
	return out, nil
}

// CheckpointInfo says where a stream's checkpoint is.
type CheckpointInfo struct {
	Stream mink.StreamID
	End    mink.Offset // the checkpoint is the state after [.., End)
	Pos    int64       // of the checkpoint's header in the object
	Len    uint32      // bytes in the object from Pos, header included
}

// A checkpoint:
//
//	 0  magic "MKC" and version u8
//	 4  length u32      of the data
//	 8  stream u64
//	16  end u64
//	24  reserved u32    zero
//	28  crc32c u32      of bytes 0..27 and the data
//	32  data
func appendCheckpointHeader(dst []byte, stream mink.StreamID, end mink.Offset, data []byte) []byte {
	at := len(dst)
	le := binary.LittleEndian
	dst = append(dst, checkpointMagic[:]...)
	dst = le.AppendUint32(dst, uint32(len(data)))
	dst = le.AppendUint64(dst, uint64(stream))
	dst = le.AppendUint64(dst, uint64(end))
	dst = le.AppendUint32(dst, 0)
	return le.AppendUint32(dst, crcAdd(crcOf(dst[at:]), data))
}

// DecodeCheckpoint checks b, the bytes [info.Pos, info.Pos+info.Len) of an
// object, and returns the checkpoint's data, which aliases b.
func DecodeCheckpoint(info CheckpointInfo, b []byte) ([]byte, error) {
	if len(b) != int(info.Len) || len(b) < CheckpointHeaderLen {
		return nil, corrupt("checkpoint of stream %d: %d bytes, the index says %d", info.Stream, len(b), info.Len)
	}
	le := binary.LittleEndian
	data := b[CheckpointHeaderLen:]
	if got, want := crcAdd(crcOf(b[:28]), data), le.Uint32(b[28:]); got != want {
		return nil, corrupt("checkpoint of stream %d: crc32c %08x, stored %08x", info.Stream, got, want)
	}
	if err := checkMagic("checkpoint", b, checkpointMagic); err != nil {
		return nil, err
	}
	if le.Uint32(b[4:]) != uint32(len(data)) || mink.StreamID(le.Uint64(b[8:])) != info.Stream ||
		mink.Offset(le.Uint64(b[16:])) != info.End || le.Uint32(b[24:]) != 0 {
		return nil, corrupt("checkpoint of stream %d: found one of stream %d there", info.Stream, int64(le.Uint64(b[8:])))
	}
	return data, nil
}

// reader takes varints off a slice and remembers whether one was malformed.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 { // most are one byte
		v := r.b[0]
		r.b = r.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}
