package object

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	// copyBelow is the frame length under which a frame's bytes are copied next to
	// their neighbours: below it a chunk of its own costs more than the copy.
	copyBelow = 512
	// The builder's own memory grows by pieces, each twice as large as the one before:
	// most objects are log slots of a few hundred bytes.
	arenaMin, arenaMax = 1 << 10, 256 << 10
)

// Summary is what metadata and a Put need to know of a finished object.
type Summary struct {
	Header     Header
	Size       int64
	IndexPos   int64
	IndexLen   int64
	IndexCRC   uint32 // as the index carries it
	CRC        uint32 // CRC32C of the whole object
	Streams    int    // with at least one block
	Frames     int64
	FrameBytes int64
	Index      *Index
}

// Object is the object's entry in metadata.
func (s *Summary) Object(tier uint8) plan.Object {
	h := s.Header
	return plan.Object{
		ID:  plan.ObjectID{Epoch: h.WAL.Epoch, Kind: h.Kind, Seq: h.Seq},
		WAL: h.WAL, Size: s.Size,
		IndexPos: s.IndexPos, IndexLen: s.IndexLen, IndexCRC: s.IndexCRC,
		Tier: tier, CreatedMs: h.CreatedMs,
	}
}

// Items is what a command says of the object: Index.Items.
func (s *Summary) Items() []plan.Item {
	return s.Index.Items(plan.ObjectID{Epoch: s.Header.WAL.Epoch, Kind: s.Header.Kind, Seq: s.Header.Seq})
}

// Builder makes one object. Frames come in strictly increasing (stream, offset)
// order; checkpoints in stream order, before or between frames as one likes.
// Frames of 512 bytes and more and checkpoints are referenced, not copied: their
// memory must never change again.
//
// The first failed call fails the builder: every later one, and Finish, return
// its error (mink.ErrInvalid: the order or a value is impossible).
type Builder struct {
	err    error
	chunks [][]byte // not taken yet; [0] is the header's
	head   []byte   // once taken
	taken  int64    // [0, taken) of the object was handed out
	arena  []byte   // where the builder's own bytes go; never reallocated, only replaced
	pos    int64    // where the next block begins
	crc    uint32   // of bytes [HeaderLen, pos)
	index  Index
	sum    Summary

	stream mink.StreamID // of the last frame
	next   mink.Offset   // its end

	// The open block; frames == 0: none.
	info    BlockInfo
	frames  uint32
	slot    int // place of its header and table in chunks
	payload int // bytes of its frames
	table   []byte
	copied  bool // the last chunk ends where the arena ends

	referred int64 // bytes of frames that the chunks refer to

	checkpoints     [][]byte // header, data, header, data, ...
	checkpointBytes int64
}

// NewBuilder returns an empty builder for about so many blocks (0: unknown).
func NewBuilder(blocks int) *Builder {
	b := &Builder{chunks: make([][]byte, 1, 2*blocks+8), pos: HeaderLen}
	if blocks > 0 {
		b.index.Blocks = make([]BlockInfo, 0, blocks)
	}
	return b
}

func (b *Builder) fail(format string, args ...any) error {
	if b.err == nil {
		b.err = fmt.Errorf("build object: %w: %s", mink.ErrInvalid, fmt.Sprintf(format, args...))
	}
	return b.err
}

// Len is how many bytes of blocks are in the object so far, the open one
// included.
func (b *Builder) Len() int64 {
	n := b.pos - HeaderLen
	if b.frames > 0 {
		n += int64(BlockHeaderLen + len(b.table) + b.payload)
	}
	return n
}

// Blocks is how many blocks are closed so far: what the index grows with.
func (b *Builder) Blocks() int { return len(b.index.Blocks) }

// CheckpointLen is how many bytes of checkpoints will follow the blocks.
func (b *Builder) CheckpointLen() int64 { return b.checkpointBytes }

// Ready is how many bytes Take would hand out.
func (b *Builder) Ready() int64 { return b.pos - b.taken }

// Take hands out the object as far as it is finished, for one that is written in
// parts: the header and the blocks that are closed, less what was taken before.
// All that is taken and then Finish's chunks are the object. Every call, and
// Finish, must be given the same header.
func (b *Builder) Take(h Header) ([][]byte, error) {
	if err := b.begin(h); err != nil {
		return nil, err
	}
	end := len(b.chunks)
	if b.frames > 0 {
		end = b.slot
	}
	out := b.handOut(b.chunks[:end:end])
	b.chunks = append(make([][]byte, 1, len(b.chunks)-end+8), b.chunks[end:]...)
	if b.frames > 0 {
		b.slot = 1
	}
	b.taken = b.pos
	return out, nil
}

// begin makes the header's bytes, or checks that they are the ones that were
// taken.
func (b *Builder) begin(h Header) error {
	if b.err != nil {
		return b.err
	}
	if h.Kind < plan.KindWAL || h.Kind > plan.KindStream {
		return b.fail("object kind %d", h.Kind)
	}
	head := AppendHeader(make([]byte, 0, HeaderLen), h)
	if b.head != nil && !bytes.Equal(head, b.head) {
		return b.fail("another header than the one that was taken")
	}
	b.head = head
	return nil
}

// handOut puts the header into its place, or leaves that out once it is taken.
func (b *Builder) handOut(chunks [][]byte) [][]byte {
	if b.taken > 0 {
		return chunks[1:]
	}
	chunks[0] = b.head
	return chunks
}

// Referred is how many bytes of the frames the object's chunks share with their
// owner; all others are its own memory.
func (b *Builder) Referred() int64 { return b.referred }

// AddFrames adds frames of one stream.
func (b *Builder) AddFrames(stream mink.StreamID, frames ...Frame) error {
	for k := range frames {
		if err := b.AddFrame(stream, &frames[k]); err != nil {
			return err
		}
	}
	return b.err
}

// AddFrame adds one frame; f itself is not kept, its Bytes are.
func (b *Builder) AddFrame(stream mink.StreamID, f *Frame) error {
	if b.err != nil {
		return b.err
	}
	if err := b.admit(stream, f.Start, f.Span); err != nil {
		return err
	}
	n := len(f.Bytes)
	if n > MaxBody-maxEntry {
		return b.fail("frame %d@%d has %d bytes, the limit is %d", stream, f.Start, n, MaxBody-maxEntry)
	}
	if b.frames > 0 && (stream != b.info.Stream || f.LeaderEpoch != b.info.LeaderEpoch ||
		len(b.table)+b.payload+n+maxEntry > BlockTarget || uint64(b.info.Count)+uint64(f.Count) > math.MaxUint32) {
		b.closeBlock()
	}
	gap, commit := uint64(0), int64(0)
	if b.frames == 0 {
		b.info = BlockInfo{Stream: stream, LeaderEpoch: f.LeaderEpoch, Start: f.Start, Pos: b.pos, MaxTimestamp: f.MaxTimestamp}
		b.slot = len(b.chunks)
		b.chunks = append(b.chunks, nil)
	} else {
		gap, commit = uint64(f.Start-b.next), b.info.CommitTimestamp
	}
	t := binary.AppendUvarint(b.table, gap)
	t = binary.AppendUvarint(t, f.Span)
	t = binary.AppendUvarint(t, uint64(f.Count))
	t = binary.AppendUvarint(t, uint64(n))
	t = zigzag(t, f.CommitTimestamp-commit)
	b.table = zigzag(t, f.MaxTimestamp-f.CommitTimestamp)
	b.addBytes(f.Bytes)
	b.frames++
	b.payload += n
	b.info.Count += f.Count
	b.info.CommitTimestamp = f.CommitTimestamp
	b.info.MaxTimestamp = max(b.info.MaxTimestamp, f.MaxTimestamp)
	b.stream, b.next = stream, f.End()
	return nil
}

// admit checks that [start, start+span) of the stream may come next.
func (b *Builder) admit(stream mink.StreamID, start mink.Offset, span uint64) error {
	switch {
	case stream < 1 || start < 0 || span == 0 || span > math.MaxInt64 || uint64(start)+span > math.MaxInt64:
		return b.fail("stream %d, offset %d, span %d", stream, start, span)
	case stream < b.stream || stream == b.stream && start < b.next:
		return b.fail("stream %d offset %d comes after stream %d offset %d", stream, start, b.stream, b.next)
	}
	return nil
}

// addBytes appends to the chunks: small pieces by copy, others by reference, and
// a piece that directly follows the last one in memory by making that longer.
func (b *Builder) addBytes(p []byte) {
	n, last := len(p), len(b.chunks)-1
	if n == 0 {
		return
	}
	if n < copyBelow {
		at := len(b.arena)
		if b.room(n) {
			at, b.copied = 0, false
		}
		b.arena = append(b.arena, p...)
		if b.copied && last > b.slot {
			b.chunks[last] = b.chunks[last][:len(b.chunks[last])+n]
			return
		}
		b.chunks = append(b.chunks, b.arena[at:])
		b.copied = true
		return
	}
	b.copied = false
	b.referred += int64(n)
	if last > b.slot {
		prev := b.chunks[last]
		if c := len(prev); cap(prev) >= c+n && &prev[:c+1][c] == &p[0] {
			b.chunks[last] = prev[:c+n]
			return
		}
	}
	b.chunks = append(b.chunks, p)
}

// room makes room for n bytes in the arena, and reports that it is another one.
func (b *Builder) room(n int) bool {
	if cap(b.arena)-len(b.arena) >= n {
		return false
	}
	b.arena = make([]byte, 0, max(n, arenaMin, min(2*cap(b.arena), arenaMax)))
	return true
}

func (b *Builder) closeBlock() {
	if b.frames == 0 {
		return
	}
	body := len(b.table) + b.payload
	b.info.Span = uint64(b.next - b.info.Start)
	b.info.RawLen, b.info.EncLen = uint32(body), uint32(body)
	n := BlockHeaderLen + len(b.table)
	b.room(n)
	at := len(b.arena)
	b.arena = appendBlockHeader(b.arena, &b.info, b.frames, uint32(len(b.table)))
	b.arena = append(b.arena, b.table...)
	head := b.arena[at:]
	b.chunks[b.slot] = head
	crc := crcOf(b.table)
	for _, c := range b.chunks[b.slot+1:] {
		crc = crcAdd(crc, c)
	}
	binary.LittleEndian.PutUint32(head[44:], crcAdd(crc, head[:44]))
	b.crc = crcAdd(b.crc, head[:BlockHeaderLen])
	if body < combineAbove {
		b.crc = crcAdd(b.crc, b.table)
		for _, c := range b.chunks[b.slot+1:] {
			b.crc = crcAdd(b.crc, c)
		}
	} else {
		b.crc = combine(b.crc, crc, uint64(body))
	}
	b.enter()
	b.sum.Frames += int64(b.frames)
	b.sum.FrameBytes += int64(b.payload)
	b.table, b.frames, b.payload, b.copied = b.table[:0], 0, 0, false
}

// enter puts b.info, a whole block, into the index.
func (b *Builder) enter() {
	if k := len(b.index.Blocks); k == 0 || b.index.Blocks[k-1].Stream != b.info.Stream {
		b.sum.Streams++
	}
	b.index.Blocks = append(b.index.Blocks, b.info)
	b.pos += b.info.Len()
}

// AddEncodedBlock adds a block of another object as it is, after checking it
// against info (whose Pos does not matter): what compaction does with blocks that
// are large enough already. The builder keeps enc. A block that fails its checks
// is an error of DecodeBlock's kind and fails the builder.
func (b *Builder) AddEncodedBlock(info BlockInfo, enc []byte) error {
	if b.err != nil {
		return b.err
	}
	if err := b.admit(info.Stream, info.Start, info.Span); err != nil {
		return err
	}
	frames, tableLen, err := verifyBlock(info, enc)
	if err != nil {
		b.err = fmt.Errorf("build object: %w", err)
		return b.err
	}
	b.closeBlock()
	b.info = info
	b.info.Pos = b.pos
	b.chunks = append(b.chunks, enc)
	b.crc = crcAdd(b.crc, enc)
	b.enter()
	b.sum.Frames += int64(frames)
	b.sum.FrameBytes += int64(info.EncLen) - int64(tableLen)
	b.stream, b.next = info.Stream, info.End()
	return nil
}

// AddCheckpoint adds the state of stream after everything below end. Streams
// come in increasing order, each once. The builder keeps data.
func (b *Builder) AddCheckpoint(stream mink.StreamID, end mink.Offset, data []byte) error {
	if b.err != nil {
		return b.err
	}
	last := mink.StreamID(0)
	if k := len(b.index.Checkpoints); k > 0 {
		last = b.index.Checkpoints[k-1].Stream
	}
	switch {
	case stream <= last || end < 0:
		return b.fail("checkpoint of stream %d at %d comes after one of stream %d", stream, end, last)
	case len(data) > MaxBody:
		return b.fail("checkpoint of stream %d has %d bytes, the limit is %d", stream, len(data), MaxBody)
	}
	head := appendCheckpointHeader(make([]byte, 0, CheckpointHeaderLen), stream, end, data)
	b.checkpoints = append(b.checkpoints, head)
	if len(data) > 0 {
		b.checkpoints = append(b.checkpoints, data)
	}
	b.checkpointBytes += int64(len(head) + len(data))
	b.index.Checkpoints = append(b.index.Checkpoints, CheckpointInfo{Stream: stream, End: end, Len: uint32(CheckpointHeaderLen + len(data))})
	return nil
}

// Finish completes the object under header h: the concatenation of chunks is the
// object (what Take has not handed out of it), and chunks[0] begins with its 64
// header bytes. The builder cannot be used again; chunks and summary are
// immutable from here on.
func (b *Builder) Finish(h Header) (chunks [][]byte, sum Summary, err error) {
	if err := b.begin(h); err != nil {
		return nil, Summary{}, err
	}
	b.closeBlock()
	head, pos, crc := b.head, b.pos, b.crc
	for k := range b.index.Checkpoints {
		b.index.Checkpoints[k].Pos = pos
		pos += int64(b.index.Checkpoints[k].Len)
	}
	for _, c := range b.checkpoints {
		crc = crcAdd(crc, c)
	}
	b.index.Pos = pos
	tail := appendIndex(make([]byte, 0, indexMinLen+2*binary.MaxVarintLen64+24*len(b.index.Blocks)+12*len(b.index.Checkpoints)+FooterLen), &b.index)
	indexLen := len(tail)
	if indexLen > MaxIndexLen {
		return nil, Summary{}, b.fail("index of %d bytes, the limit is %d: make smaller objects", indexLen, MaxIndexLen)
	}
	indexCRC := IndexCRC(tail)
	tail = AppendFooter(tail, Footer{
		IndexPos: pos, IndexLen: int64(indexLen), IndexCRC: indexCRC, HeaderCRC: HeaderCRC(head),
		Blocks: uint32(len(b.index.Blocks)), Streams: uint32(b.sum.Streams), Checkpoints: uint32(len(b.index.Checkpoints)),
	})
	crc = crcAdd(crc, tail)
	size := pos + int64(len(tail))
	chunks = append(append(b.handOut(b.chunks), b.checkpoints...), tail)

	sum = b.sum
	sum.Header, sum.Size, sum.Index = h, size, &b.index
	sum.IndexPos, sum.IndexLen, sum.IndexCRC = pos, int64(indexLen), indexCRC
	sum.CRC = combine(crcOf(head), crc, uint64(size-HeaderLen))
	b.err = fmt.Errorf("build object: %w: finished already", mink.ErrInvalid)
	return chunks, sum, nil
}
