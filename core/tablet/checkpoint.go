package tablet

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/mink-project/mink/sdk/mink"
)

// A checkpoint, version 1; all numbers are zigzag varints unless said:
//
//	4 magic "MKLT" | 1 version
//	end, last commit timestamp
//	count, epochs: epoch (delta), start (delta)
//	count, peaks (0 or 1): timestamp, base offset
//	total bytes, count, rungs: offset (delta), bytes before (delta)
//	floor, count, expired writers: id, epoch
//	count, writers, idle longest first: id, epoch, sequences before, count 1..5,
//	  batches oldest first: base offset (delta to the one before), offset delta,
//	  commit timestamp (delta), first sequence, last sequence
//	4 crc32c of all before, little endian
//
// Deltas start at 0. A reader of another version refuses it.
const (
	checkpointMagic   = "MKLT"
	checkpointVersion = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type packer struct{ b []byte }

func (p *packer) put(vs ...int64) {
	for _, v := range vs {
		p.b = binary.AppendVarint(p.b, v)
	}
}

// encodeCheckpoint writes s. The same state gives the same bytes.
func encodeCheckpoint(s *state) []byte {
	p := &packer{b: append([]byte(checkpointMagic), checkpointVersion)}
	p.put(int64(s.end), s.lastCommit)
	p.put(int64(len(s.epochs)))
	last := epochStart{}
	for _, e := range s.epochs {
		p.put(int64(e.epoch-last.epoch), int64(e.start-last.start))
		last = e
	}
	if n := len(s.peaks); n == 0 {
		p.put(0)
	} else {
		p.put(1, s.peaks[n-1].ts, int64(s.peaks[n-1].at))
	}
	p.put(s.sizes.total, int64(len(s.sizes.rungs)))
	step := rung{}
	for _, r := range s.sizes.rungs {
		p.put(int64(r.at-step.at), r.before-step.before)
		step = r
	}
	w := &s.writers
	p.put(int64(w.floor), int64(len(w.expired)))
	for _, e := range w.expired {
		p.put(int64(e.id), int64(e.epoch))
	}
	p.put(int64(w.len()))
	for i := w.oldest; i >= 0; i = w.slab[i].next {
		p.writer(&w.slab[i])
	}
	return binary.LittleEndian.AppendUint32(p.b, crc32.Checksum(p.b, castagnoli))
}

func (p *packer) writer(w *writer) {
	p.put(int64(w.id), int64(w.epoch), w.before, int64(w.n))
	prev := stored{}
	for i := range int(w.n) {
		s := w.at(i)
		p.put(int64(s.base-prev.base), int64(s.delta), s.commit-prev.commit, int64(s.first), int64(s.last))
		prev = *s
	}
}

// unpacker reads varints; after one that does not fit it answers zeros and bad
// stays set.
type unpacker struct {
	b   []byte
	bad bool
}

func (u *unpacker) get() int64 {
	v, n := binary.Varint(u.b)
	if n <= 0 {
		u.bad, u.b = true, nil
		return 0
	}
	u.b = u.b[n:]
	return v
}

// in reads a number of [lo, hi].
func (u *unpacker) in(lo, hi int64) int64 {
	v := u.get()
	if v < lo || v > hi {
		u.bad = true
		return lo
	}
	return v
}

// count reads how many items of at least size bytes follow: never more than
// there is room for, so that a damaged count cannot allocate.
func (u *unpacker) count(size int) int { return int(u.in(0, int64(len(u.b)/size))) }

func (u *unpacker) offset(base mink.Offset) mink.Offset {
	v := int64(base) + u.get()
	if v < 0 || v > math.MaxInt64-math.MaxUint32 {
		u.bad = true
		return 0
	}
	return mink.Offset(v)
}

// decodeCheckpoint reads what encodeCheckpoint wrote. Errors wrap mink.ErrCorrupt
// (or mink.ErrUnsupported for a later version).
func decodeCheckpoint(b []byte) (*state, error) {
	const head = len(checkpointMagic) + 1
	if len(b) < head+4 || string(b[:len(checkpointMagic)]) != checkpointMagic {
		return nil, fmt.Errorf("tablet checkpoint of %d bytes: no magic: %w", len(b), mink.ErrCorrupt)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("tablet checkpoint: crc is %08x, stored %08x: %w", got, sum, mink.ErrCorrupt)
	}
	if v := b[len(checkpointMagic)]; v != checkpointVersion {
		return nil, fmt.Errorf("tablet checkpoint: version %d, this node reads %d: %w", v, checkpointVersion, mink.ErrUnsupported)
	}
	u := &unpacker{b: body[head:]}
	s := newState(u.offset(0))
	s.lastCommit = u.get()
	last := epochStart{}
	for range u.count(2) {
		last.epoch += mink.LeaderEpoch(u.in(math.MinInt32, math.MaxInt32))
		last.start = u.offset(last.start)
		s.epochs = append(s.epochs, last)
	}
	for range u.in(0, 1) {
		s.peaks = append(s.peaks, peak{u.get(), u.offset(0)})
	}
	s.sizes.total = u.in(0, math.MaxInt64)
	step := rung{}
	for range u.count(2) {
		step.at = u.offset(step.at)
		step.before += u.in(0, s.sizes.total-step.before)
		s.sizes.rungs = append(s.sizes.rungs, step)
	}
	u.writers(&s.writers)
	if u.bad || len(u.b) != 0 {
		return nil, fmt.Errorf("tablet checkpoint: content does not fit its form: %w", mink.ErrCorrupt)
	}
	return s, nil
}

func (u *unpacker) writers(t *writers) {
	t.floor = mink.WriterID(u.in(-1, math.MaxInt64))
	for range u.count(2) {
		t.expired = append(t.expired, expired{mink.WriterID(u.in(0, math.MaxInt64)), int16(u.in(0, math.MaxInt16))})
	}
	for range u.count(9) {
		id, epoch := mink.WriterID(u.in(0, math.MaxInt64)), int16(u.in(0, math.MaxInt16))
		if _, twice := t.index[id]; twice {
			u.bad = true
		}
		if u.bad {
			return
		}
		w := &t.slab[t.add(id, epoch)]
		w.before = u.in(0, math.MaxInt64>>1)
		prev := stored{}
		for range u.in(1, windowSize) {
			prev.base = u.offset(prev.base)
			prev.delta = int32(u.in(0, math.MaxInt32-1))
			prev.commit += u.get()
			prev.first, prev.last = int32(u.in(0, math.MaxInt32)), int32(u.in(0, math.MaxInt32))
			w.ring[w.n] = prev
			w.n++
		}
		w.commit = prev.commit
	}
}
