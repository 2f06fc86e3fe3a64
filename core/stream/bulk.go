package stream

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	slabMin = 4 << 10 // a lone small write should not pin more
	slabMax = 1 << 20
)

// entry locates one frame in its bulk's slabs. It holds no pointer: two million
// of them cost the garbage collector nothing.
type entry struct {
	start        mink.Offset
	span         uint64
	maxTs, comTs int64
	slab, pos    uint32
	length       uint32
	count        uint32
	next         uint32 // of the same run, while the bulk is open; noEntry: last
}

const (
	noEntry   = ^uint32(0)
	entrySize = int64(unsafe.Sizeof(entry{}))
	runSize   = int64(unsafe.Sizeof(run{})) + int64(unsafe.Sizeof(segment{}))
)

// run is what one stream has in a bulk. Once the bulk is sealed, its entries are
// entries[first : first+n], in offset order.
type run struct {
	stream     *Stream
	id         mink.StreamID
	epoch      mink.LeaderEpoch
	start, end mink.Offset
	head, tail uint32 // while open
	first, n   uint32 // once sealed
	bytes      int64  // of frames and entries: what the stream pins
	frameBytes int64
	lastComTs  int64 // commit timestamp of the last frame
	maxTs      int64 // largest record timestamp
}

// bulk gathers appends and is then one WAL object. While it is open the
// engine's append mutex guards it; once sealed its slabs, entries and runs never
// change and are shared with log cache, WAL and upload. The garbage collector
// frees it.
type bulk struct {
	slabs   [][]byte // slabs[i][:len] is filled
	fill    int      // slab that small frames go to; -1: none
	grow    int      // size of the next one
	entries []entry
	runs    []run
	payload int64 // frame bytes
	mem     int64 // accounted: slabs, entries, runs
	ticket  *Ticket

	number uint64      // in this engine, from 1: while open, streams know their run by it
	seq    uint64      // slot, once acknowledged
	object plan.Object // once acknowledged
	extra  int64       // memory that the write-ahead log's chunks take beside mem, while in flight
}

// Ticket is the fate that all appends of one bulk share.
type Ticket struct {
	done chan struct{}
	err  error
}

// Done is closed when the append's outcome is known.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Err is valid once Done is closed. nil: durable, and visible to readers. An
// error wraps mink.ErrFenced or mink.ErrClosed: the record may or may not come
// back after recovery.
func (t *Ticket) Err() error { return t.err }

func newBulk(number uint64, scratch []entry) *bulk {
	return &bulk{number: number, fill: -1, grow: slabMin, entries: scratch[:0], ticket: &Ticket{done: make(chan struct{})}}
}

// room is how much memory a frame of n bytes would make the bulk take.
func (b *bulk) room(n int) int64 {
	if i := b.fill; i >= 0 && cap(b.slabs[i])-len(b.slabs[i]) >= n {
		return 0
	}
	if n > slabMax/4 {
		return int64(n)
	}
	return int64(max(b.grow, n))
}

// place copies the parts behind each other and answers where.
func (b *bulk) place(parts [][]byte, n int) (slab, pos uint32) {
	i := b.fill
	if i < 0 || cap(b.slabs[i])-len(b.slabs[i]) < n {
		size, own := max(b.grow, n), n > slabMax/4
		if own { // the small ones go on filling theirs
			size = n
		} else {
			b.grow = min(b.grow*2, slabMax)
			b.fill = len(b.slabs)
		}
		i = len(b.slabs)
		b.slabs = append(b.slabs, make([]byte, 0, size))
		b.mem += int64(size)
	}
	s := b.slabs[i]
	pos = uint32(len(s))
	for _, p := range parts {
		s = append(s, p...)
	}
	b.slabs[i] = s
	return uint32(i), pos
}

// add places one frame of run r.
func (b *bulk) add(r int, req *AppendRequest, n int) {
	slab, pos := b.place(req.Parts, n)
	k := uint32(len(b.entries))
	b.entries = append(b.entries, entry{
		start: req.Start, span: req.Span, maxTs: req.MaxTimestamp, comTs: req.CommitTimestamp,
		slab: slab, pos: pos, length: uint32(n), count: req.Count, next: noEntry,
	})
	x := &b.runs[r]
	if x.n == 0 {
		x.head, x.maxTs = k, req.MaxTimestamp
	} else {
		b.entries[x.tail].next = k
		x.maxTs = max(x.maxTs, req.MaxTimestamp)
	}
	x.tail, x.n = k, x.n+1
	x.end = req.Start + mink.Offset(req.Span)
	x.bytes += int64(n) + entrySize
	x.frameBytes += int64(n)
	x.lastComTs = req.CommitTimestamp
	b.payload += int64(n)
	b.mem += entrySize
}

// seal sorts the runs by (stream, offset) and lays each one's entries side by
// side. The scratch array that the open bulk filled is returned for the next.
func (b *bulk) seal() (scratch []entry) {
	slices.SortFunc(b.runs, func(x, y run) int {
		if c := cmp.Compare(x.id, y.id); c != 0 {
			return c
		}
		return cmp.Compare(x.start, y.start)
	})
	sorted := make([]entry, 0, len(b.entries))
	for i := range b.runs {
		r := &b.runs[i]
		r.first = uint32(len(sorted))
		for k := r.head; k != noEntry; k = b.entries[k].next {
			sorted = append(sorted, b.entries[k])
		}
	}
	scratch, b.entries = b.entries, sorted
	return scratch
}

// frame is the k-th entry of a sealed bulk.
func (b *bulk) frame(k uint32, epoch mink.LeaderEpoch) Frame {
	e := &b.entries[k]
	return Frame{
		Start: e.start, Span: e.span, Count: e.count, LeaderEpoch: epoch, MaxTimestamp: e.maxTs, CommitTimestamp: e.comTs,
		Bytes: b.slabs[e.slab][e.pos : e.pos+e.length : e.pos+e.length],
	}
}

// build writes the sealed bulk in object format; the chunks refer to the slabs.
func (b *bulk) build(h object.Header) ([][]byte, object.Summary, error) {
	o := object.NewBuilder(len(b.runs))
	for i := range b.runs {
		r := &b.runs[i]
		for k := r.first; k < r.first+r.n; k++ {
			f := b.frame(k, r.epoch)
			// With its neighbours' room behind it, the builder can join adjoining
			// frames to one chunk.
			e := &b.entries[k]
			f.Bytes = b.slabs[e.slab][e.pos : e.pos+e.length]
			if err := o.AddFrame(r.id, &f); err != nil {
				return nil, object.Summary{}, err
			}
		}
	}
	chunks, sum, err := o.Finish(h)
	b.extra = sum.Size - o.Referred()
	return chunks, sum, err
}
