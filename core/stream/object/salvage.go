package object

import (
	"encoding/binary"
	"slices"
	"sort"

	"github.com/mink-project/mink/sdk/mink"
)

// Salvaged is what the blocks of a damaged object say by themselves, without its
// header, index and footer.
type Salvaged struct {
	// Blocks are the sound ones from the object's beginning on, as in an index.
	Blocks []BlockInfo
	// Complete: they are all. Otherwise what follows the last one is not known; as
	// blocks are sorted by stream, all of the streams before the last one's are.
	Complete bool
}

// Salvage walks the blocks of a whole object from its beginning to the first
// that is not sound or out of order. It does not look for blocks behind that one:
// the bytes of a record might look like one.
func Salvage(b []byte) Salvaged {
	var out Salvaged
	prev := BlockInfo{}
	for at := HeaderLen; at < len(b); {
		if endsBlocks(b, at) {
			out.Complete = true
			break
		}
		i, ok := salvageBlock(b[at:])
		if !ok || i.Stream < prev.Stream || i.Stream == prev.Stream && i.Start < prev.End() {
			break
		}
		i.Pos = int64(at)
		out.Blocks = append(out.Blocks, i)
		prev = i
		at += int(i.Len())
	}
	return out
}

// endsBlocks reports that the index begins at b[at], or a checkpoint, which only
// other checkpoints and the index follow.
func endsBlocks(b []byte, at int) bool {
	rest := b[at:]
	if len(rest) >= 4 && ([4]byte(rest[:4]) == indexMagic || [4]byte(rest[:4]) == checkpointMagic) {
		return true
	}
	f, err := ParseFooter(b, int64(len(b)))
	return err == nil && f.IndexPos == int64(at)
}

// salvageBlock makes an index entry of the block at the beginning of b.
func salvageBlock(b []byte) (BlockInfo, bool) {
	if len(b) < BlockHeaderLen {
		return BlockInfo{}, false
	}
	le := binary.LittleEndian
	i := BlockInfo{
		Stream: mink.StreamID(le.Uint64(b[8:])), Start: mink.Offset(le.Uint64(b[16:])),
		LeaderEpoch: mink.LeaderEpoch(le.Uint32(b[24:])), RawLen: le.Uint32(b[36:]), EncLen: le.Uint32(b[40:]),
	}
	if i.Stream < 1 || i.Start < 0 || i.EncLen > MaxBody || i.Len() > int64(len(b)) {
		return BlockInfo{}, false
	}
	b = b[:i.Len()]
	n, tableLen, err := verifyBlock(i, b)
	if err != nil {
		return BlockInfo{}, false
	}
	r := reader{b: b[BlockHeaderLen : BlockHeaderLen+tableLen]}
	commit := int64(0)
	var count uint64
	for k := range n {
		gap, span, records, _ := r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
		commit += r.varint()
		top := commit + r.varint()
		if gap|span > 1<<62 { // not to overflow the sum: AppendFrames says what is wrong
			return BlockInfo{}, false
		}
		i.Span += gap + span
		count += records
		if i.Span > 1<<62 {
			return BlockInfo{}, false
		}
		if k == 0 || top > i.MaxTimestamp {
			i.MaxTimestamp = top
		}
	}
	i.Count, i.CommitTimestamp = uint32(min(count, 1<<32-1)), commit
	if _, err := AppendFrames(nil, i, b); err != nil {
		return BlockInfo{}, false
	}
	return i, true
}

// Ends answers where a stream's sound blocks under a leader epoch end, and
// whether all of them are known; ok is false when it has none.
func (s Salvaged) Ends(stream mink.StreamID, epoch mink.LeaderEpoch) (end mink.Offset, known, ok bool) {
	k := sort.Search(len(s.Blocks), func(k int) bool { return s.Blocks[k].Stream > stream })
	known = s.Complete || k < len(s.Blocks)
	for _, b := range slices.Backward(s.Blocks[:k]) {
		if b.Stream != stream {
			break
		}
		if b.LeaderEpoch == epoch {
			return b.End(), known, true
		}
	}
	return 0, known, false
}
