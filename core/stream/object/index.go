package object

import (
	"encoding/binary"
	"math"
	"sort"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Index says where everything in an object is. Blocks are sorted by (stream,
// start) and do not overlap; Checkpoints are sorted by stream, at most one each.
// An Index is immutable once parsed or built.
type Index struct {
	Blocks      []BlockInfo
	Checkpoints []CheckpointInfo
	Pos         int64 // where the index itself begins: the end of all the above
}

// An index:
//
//	magic "MKI" and version u8
//	uvarint blocks, uvarint checkpoints, uvarint index position
//	per block: uvarint stream - the one before's (0 at first)
//	           zigzag  leader epoch - the one before's
//	           uvarint start - end of the one before (of another stream: start)
//	           uvarint span, uvarint count, uvarint encoded length
//	           zigzag  raw length - encoded length
//	           zigzag  commit timestamp - the one before's
//	           zigzag  max timestamp - commit timestamp
//	per checkpoint: uvarint stream - the one before's, uvarint end, uvarint length
//	crc32c u32 of all bytes before it; metadata keeps the same number as IndexCRC
//
// Positions are not stored: everything lies back to back from byte 64 on.
const (
	minBlockEntry      = 9
	minCheckpointEntry = 3
	indexMinLen        = 4 + 3 + 4
)

var indexMagic = [4]byte{'M', 'K', 'I', Version}

func zigzag(dst []byte, v int64) []byte {
	return binary.AppendUvarint(dst, uint64(v)<<1^uint64(v>>63))
}

// appendIndex appends the encoded index, trailer included.
func appendIndex(dst []byte, x *Index) []byte {
	at := len(dst)
	dst = append(dst, indexMagic[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(x.Blocks)))
	dst = binary.AppendUvarint(dst, uint64(len(x.Checkpoints)))
	dst = binary.AppendUvarint(dst, uint64(x.Pos))
	var prev BlockInfo
	for k := range x.Blocks {
		b := &x.Blocks[k]
		var from mink.Offset
		if b.Stream == prev.Stream {
			from = prev.End()
		}
		dst = binary.AppendUvarint(dst, uint64(b.Stream-prev.Stream))
		dst = zigzag(dst, int64(b.LeaderEpoch)-int64(prev.LeaderEpoch))
		dst = binary.AppendUvarint(dst, uint64(b.Start-from))
		dst = binary.AppendUvarint(dst, b.Span)
		dst = binary.AppendUvarint(dst, uint64(b.Count))
		dst = binary.AppendUvarint(dst, uint64(b.EncLen))
		dst = zigzag(dst, int64(b.RawLen)-int64(b.EncLen))
		dst = zigzag(dst, b.CommitTimestamp-prev.CommitTimestamp)
		dst = zigzag(dst, b.MaxTimestamp-b.CommitTimestamp)
		prev = *b
	}
	var stream mink.StreamID
	for _, c := range x.Checkpoints {
		dst = binary.AppendUvarint(dst, uint64(c.Stream-stream))
		dst = binary.AppendUvarint(dst, uint64(c.End))
		dst = binary.AppendUvarint(dst, uint64(c.Len))
		stream = c.Stream
	}
	return binary.LittleEndian.AppendUint32(dst, crcOf(dst[at:]))
}

// IndexCRC is the checksum that an encoded index carries: what metadata keeps.
// 0 when b is too short to be one.
func IndexCRC(b []byte) uint32 {
	if len(b) < indexMinLen {
		return 0
	}
	return binary.LittleEndian.Uint32(b[len(b)-4:])
}

// ParseIndexOf is ParseIndex for an object that metadata or a footer describes:
// the index must also be the one that was promised.
func ParseIndexOf(b []byte, pos int64, crc uint32) (*Index, error) {
	if got := IndexCRC(b); got != crc {
		return nil, corrupt("index: carries crc32c %08x, expected %08x", got, crc)
	}
	x, err := ParseIndex(b)
	if err != nil {
		return nil, err
	}
	if x.Pos != pos {
		return nil, corrupt("index: says it begins at %d, was found at %d", x.Pos, pos)
	}
	return x, nil
}

// ParseIndex reads a whole encoded index.
func ParseIndex(b []byte) (*Index, error) {
	if len(b) < indexMinLen {
		return nil, corrupt("index: %d bytes", len(b))
	}
	body := b[:len(b)-4]
	if got, want := crcOf(body), IndexCRC(b); got != want {
		return nil, corrupt("index: crc32c %08x, stored %08x", got, want)
	}
	if err := checkMagic("index", b, indexMagic); err != nil {
		return nil, err
	}
	r := reader{b: body[4:]}
	blocks, checkpoints, pos := r.uvarint(), r.uvarint(), r.uvarint()
	left := uint64(len(r.b))
	if r.bad || blocks > left/minBlockEntry || checkpoints > left/minCheckpointEntry || pos > math.MaxInt64 {
		return nil, corrupt("index: %d blocks and %d checkpoints in %d bytes", blocks, checkpoints, len(b))
	}
	x := &Index{Pos: int64(pos)}
	end, err := x.parseBlocks(&r, int(blocks))
	if err != nil {
		return nil, err
	}
	if end, err = x.parseCheckpoints(&r, int(checkpoints), end); err != nil {
		return nil, err
	}
	if len(r.b) != 0 || end != x.Pos {
		return nil, corrupt("index: its parts end at %d, it begins at %d, %d bytes left over", end, x.Pos, len(r.b))
	}
	return x, nil
}

func (x *Index) parseBlocks(r *reader, n int) (pos int64, err error) {
	pos = HeaderLen
	if n == 0 {
		return pos, nil
	}
	x.Blocks = make([]BlockInfo, n)
	var prev BlockInfo
	for k := range x.Blocks {
		stream := uint64(prev.Stream) + r.uvarint()
		epoch := int64(prev.LeaderEpoch) + r.varint()
		start, span, count, enc := r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
		raw := int64(enc) + r.varint()
		commit := prev.CommitTimestamp + r.varint()
		top := commit + r.varint()
		if start <= math.MaxInt64 && stream == uint64(prev.Stream) {
			start += uint64(prev.End())
		}
		if r.bad || stream == 0 || stream > math.MaxInt64 || epoch != int64(int32(epoch)) ||
			start > math.MaxInt64 || span == 0 || span > math.MaxInt64 || start+span > math.MaxInt64 ||
			count > math.MaxUint32 || enc > MaxBody || raw < 0 || raw > MaxBody {
			return 0, corrupt("index: block %d of %d", k, n)
		}
		x.Blocks[k] = BlockInfo{
			Stream: mink.StreamID(stream), LeaderEpoch: mink.LeaderEpoch(epoch),
			Start: mink.Offset(start), Span: span, Count: uint32(count),
			Pos: pos, RawLen: uint32(raw), EncLen: uint32(enc),
			MaxTimestamp: top, CommitTimestamp: commit,
		}
		prev = x.Blocks[k]
		pos += prev.Len()
	}
	return pos, nil
}

func (x *Index) parseCheckpoints(r *reader, n int, pos int64) (int64, error) {
	if n == 0 {
		return pos, nil
	}
	x.Checkpoints = make([]CheckpointInfo, n)
	var prev uint64
	for k := range x.Checkpoints {
		delta, end, length := r.uvarint(), r.uvarint(), r.uvarint()
		stream := prev + delta
		if r.bad || delta == 0 || stream > math.MaxInt64 || stream < prev || end > math.MaxInt64 ||
			length < CheckpointHeaderLen || length > CheckpointHeaderLen+MaxBody {
			return 0, corrupt("index: checkpoint %d of %d", k, n)
		}
		x.Checkpoints[k] = CheckpointInfo{Stream: mink.StreamID(stream), End: mink.Offset(end), Pos: pos, Len: uint32(length)}
		prev = stream
		pos += int64(length)
	}
	return pos, nil
}

// BlocksOf is the blocks of one stream, in order; empty when it has none. It
// aliases the index.
func (x *Index) BlocksOf(stream mink.StreamID) []BlockInfo {
	b := x.Blocks
	lo := sort.Search(len(b), func(k int) bool { return b[k].Stream >= stream })
	n := sort.Search(len(b)-lo, func(k int) bool { return b[lo+k].Stream > stream })
	return b[lo : lo+n : lo+n]
}

// BlocksFrom is the blocks of one stream that end after offset at, in order: the
// first of them holds it unless it lies in a gap. It aliases the index.
func (x *Index) BlocksFrom(stream mink.StreamID, at mink.Offset) []BlockInfo {
	b := x.BlocksOf(stream)
	return b[sort.Search(len(b), func(k int) bool { return b[k].End() > at }):]
}

// CheckpointOf is where a stream's checkpoint is.
func (x *Index) CheckpointOf(stream mink.StreamID) (CheckpointInfo, bool) {
	c := x.Checkpoints
	k := sort.Search(len(c), func(k int) bool { return c[k].Stream >= stream })
	if k == len(c) || c[k].Stream != stream {
		return CheckpointInfo{}, false
	}
	return c[k], true
}

// Items is what a command says of this object: one item per run of adjoining
// offsets of a stream under one leader epoch, in (stream, offset) order. An item
// that ends at the stream's checkpoint is marked.
func (x *Index) Items(id plan.ObjectID) []plan.Item {
	var items []plan.Item
	c := x.Checkpoints
	for k := range x.Blocks {
		b := &x.Blocks[k]
		if n := len(items) - 1; n >= 0 && items[n].Stream == b.Stream && items[n].End == b.Start && items[n].LeaderEpoch == b.LeaderEpoch {
			items[n].End = b.End()
		} else {
			items = append(items, plan.Item{Stream: b.Stream, LeaderEpoch: b.LeaderEpoch, Object: id, Start: b.Start, End: b.End()})
		}
		if last := k+1 == len(x.Blocks) || x.Blocks[k+1].Stream != b.Stream; last {
			for len(c) > 0 && c[0].Stream < b.Stream {
				c = c[1:]
			}
			item := &items[len(items)-1]
			item.Checkpoint = len(c) > 0 && c[0].Stream == b.Stream && c[0].End == item.End
		}
	}
	return items
}
