package tablet

import (
	"fmt"
	"iter"
	"slices"
	"sort"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// maxEpochs bounds the leader epoch history; the oldest are forgotten. Part of
// the format.
const maxEpochs = 4096

// epochStart says that an epoch's first batch is at start.
type epochStart struct {
	epoch mink.LeaderEpoch
	start mink.Offset
}

// peak is a batch whose largest timestamp is above all before it.
type peak struct {
	ts int64
	at mink.Offset // base offset
}

// state is what a log remembers beside its records: a pure function of its
// frames. Not safe for concurrent use.
type state struct {
	end        mink.Offset
	lastCommit int64 // ms; 0: no frame yet
	epochs     []epochStart
	// peaks: the last is the largest of all; those before it are kept until it
	// is durable (settle). Empty: no records.
	peaks   []peak
	sizes   ladder
	writers writers
}

func newState(end mink.Offset) *state { return &state{end: end, writers: newWriters()} }

// apply adds one batch of size bytes to the state. Batches come in log order;
// gaps are allowed.
func (s *state) apply(h *record.Header, size int) {
	if n := len(s.epochs); n == 0 || s.epochs[n-1].epoch < h.LeaderEpoch {
		s.epochs = append(s.epochs, epochStart{h.LeaderEpoch, h.BaseOffset})
		if n == maxEpochs {
			s.epochs = s.epochs[1:]
		}
	}
	if n := len(s.peaks); h.Count > 0 && (n == 0 || h.MaxTimestamp > s.peaks[n-1].ts) {
		s.peaks = append(s.peaks, peak{h.MaxTimestamp, h.BaseOffset})
	}
	s.sizes.add(h.BaseOffset, int64(size))
	s.lastCommit = max(s.lastCommit, h.CommitTimestamp)
	s.end = h.NextOffset()
	s.writers.apply(h)
}

// settle forgets the peaks below a later one that is below the high watermark.
func (s *state) settle(hw mink.Offset) {
	for len(s.peaks) > 1 && s.peaks[1].at < hw {
		s.peaks = s.peaks[1:]
	}
}

// applyFrame reads one frame of the log.
func (s *state) applyFrame(f *stream.Frame) error {
	b, err := viewFrame(f)
	if err != nil {
		return err
	}
	if f.Start < s.end {
		return fmt.Errorf("frame at %d is below the state's end %d: %w", f.Start, s.end, mink.ErrCorrupt)
	}
	h := b.Header()
	s.apply(&h, len(f.Bytes))
	s.settle(s.end)
	return nil
}

func viewFrame(f *stream.Frame) (record.Batch, error) {
	b, err := record.ViewBatch(f.Bytes)
	if err != nil {
		return nil, fmt.Errorf("frame at offset %d: %w", f.Start, err)
	}
	if b.BaseOffset() != f.Start || b.NextOffset() != f.End() {
		return nil, fmt.Errorf("frame [%d, %d) holds a batch [%d, %d): %w", f.Start, f.End(), b.BaseOffset(), b.NextOffset(), mink.ErrCorrupt)
	}
	return b, nil
}

// epochEnd answers the largest known epoch <= epoch and where it ended; the
// current one ends at end. ok is false when all known ones are larger: then
// start is where the log's first known epoch began.
func (s *state) epochEnd(epoch mink.LeaderEpoch, end mink.Offset) (known mink.LeaderEpoch, at mink.Offset, ok bool) {
	i := sort.Search(len(s.epochs), func(i int) bool { return s.epochs[i].epoch > epoch })
	if i < len(s.epochs) {
		end = s.epochs[i].start
	}
	if i == 0 {
		return 0, end, false
	}
	return s.epochs[i-1].epoch, end, true
}

// epochAt answers the epoch under which offset at was appended, -1: unknown.
func (s *state) epochAt(at mink.Offset) mink.LeaderEpoch {
	i := sort.Search(len(s.epochs), func(i int) bool { return s.epochs[i].start > at })
	if i == 0 {
		return -1
	}
	return s.epochs[i-1].epoch
}

// ladder remembers how many bytes the log holds from some of its offsets on:
// finely near the end, coarsely far from it, so that a few hundred rungs do for
// any log. It serves retention by size.
type ladder struct {
	total int64
	rungs []rung // ascending; the last may be below the end by less than rungStep
}

type rung struct {
	at     mink.Offset
	before int64 // bytes of the log below at
}

const (
	rungStep  = 1 << 20 // bytes between rungs near the end
	rungError = 8       // a rung's neighbours are at most 1/8 of its distance to the end apart
)

// add counts a batch that starts at at. A rung goes when its neighbours alone
// are close enough, seen from the end: the error is 1/8 of what is kept.
func (l *ladder) add(at mink.Offset, size int64) {
	if n := len(l.rungs); n == 0 || l.total-l.rungs[n-1].before >= rungStep {
		kept := l.rungs[:0]
		for i, r := range l.rungs {
			if k := len(kept); k > 0 && i+1 < len(l.rungs) {
				next := l.rungs[i+1].before
				if next-kept[k-1].before <= (l.total-next)/rungError {
					continue
				}
			}
			kept = append(kept, r)
		}
		kept = append(kept, rung{at, l.total})
		l.rungs = kept
	}
	l.total += size
}

// keep answers the largest remembered offset from which on the log still holds
// at least bytes; false when the whole log holds less.
func (l *ladder) keep(bytes int64) (mink.Offset, bool) {
	i := sort.Search(len(l.rungs), func(i int) bool { return l.total-l.rungs[i].before < bytes })
	if i == 0 {
		return 0, false
	}
	return l.rungs[i-1].at, true
}

// from answers about how many bytes the log holds from an offset on: those from
// the rung at or below it.
func (l *ladder) from(at mink.Offset) int64 {
	i := sort.Search(len(l.rungs), func(i int) bool { return l.rungs[i].at > at })
	if i == 0 {
		return l.total
	}
	return l.total - l.rungs[i-1].before
}

// Folder computes checkpoints of log tablets: a pure function of the log, the
// same on every node. It implements stream.Folder.
type Folder struct{}

var _ stream.Folder = Folder{}

// Fold continues the checkpoint prev (nil: the log's beginning) over frames.
// Errors wrap mink.ErrCorrupt, or are the iterator's.
func (Folder) Fold(prev []byte, frames iter.Seq2[stream.Frame, error]) ([]byte, error) {
	s := newState(0)
	if len(prev) > 0 {
		var err error
		if s, err = decodeCheckpoint(prev); err != nil {
			return nil, fmt.Errorf("fold checkpoint: %w", err)
		}
	}
	for f, err := range frames {
		if err != nil {
			return nil, err
		}
		if err := s.applyFrame(&f); err != nil {
			return nil, fmt.Errorf("fold checkpoint: %w", err)
		}
	}
	return encodeCheckpoint(s), nil
}

// durablePeak answers the batch with the largest timestamp below hw.
func (s *state) durablePeak(hw mink.Offset) (peak, bool) {
	for _, p := range slices.Backward(s.peaks) {
		if p.at < hw {
			return p, true
		}
	}
	return peak{}, false
}
