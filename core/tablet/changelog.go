package tablet

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// Changelog is the one writer of a primary-key bucket's log. It judges a batch and
// appends it in two steps, because what is appended is made in between; nobody else
// appends meanwhile. It also says how far readers see. Call Judge and Append from
// one goroutine at a time; Show and Close from any.
type Changelog struct{ log *Log }

// Changelog makes the log's writer; there is one at a time. Readers see no further
// than the log's end of now, until Show. Errors: mink.ErrInvalid when the log is no
// changelog or when appends are on their way, mink.ErrExists, mink.ErrClosed.
func (l *Log) Changelog() (*Changelog, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.s.LogEnd()
	switch {
	case !l.cfg.PrimaryKey:
		return nil, fmt.Errorf("changelog of bucket %s: %w: the table has no primary key", l.cfg.Bucket, mink.ErrInvalid)
	case l.closed.Load():
		return nil, fmt.Errorf("changelog of bucket %s: %w", l.cfg.Bucket, mink.ErrClosed)
	case l.mu.writing:
		return nil, fmt.Errorf("changelog of bucket %s: its writer %w", l.cfg.Bucket, mink.ErrExists)
	case l.s.HighWatermark() != end:
		return nil, fmt.Errorf("changelog of bucket %s: %w: appends up to %d are on their way", l.cfg.Bucket, mink.ErrInvalid, end)
	}
	l.mu.writing = true
	l.visible.show(end)
	return &Changelog{l}, nil
}

// Close ends the writer and takes the bound off what readers see: who asks for a
// key next opens a store, which then has all that is durable.
func (c *Changelog) Close() {
	l := c.log
	l.mu.Lock()
	l.mu.writing = false
	l.mu.Unlock()
	l.visible.show(math.MaxInt64)
}

// Show lets readers see up to an offset; it is never lowered.
func (c *Changelog) Show(to mink.Offset) { c.log.visible.show(to) }

// Wake wakes those who wait for Log.Changed: the stream was trimmed or has closed.
func (c *Changelog) Wake() { c.log.visible.wake() }

// StreamChanged is closed at the next advance of the stream's high watermark, at a
// trim and when the stream closes.
func (c *Changelog) StreamChanged() <-chan struct{} { return c.log.s.Changed() }

// Sender is the idempotent writer of a batch. ID is mink.NoWriter for none.
type Sender struct {
	ID       mink.WriterID
	Epoch    int16
	Sequence int32 // of this batch; counts batches from 0
}

func (w Sender) check() error {
	if w.ID < mink.NoWriter || w.ID >= 0 && (w.Epoch < 0 || w.Sequence < 0) {
		return fmt.Errorf("%w: writer %d with epoch %d and sequence %d", mink.ErrInvalid, w.ID, w.Epoch, w.Sequence)
	}
	return nil
}

func (w Sender) header() record.Header {
	h := record.Header{
		Encoding: record.EncodingArrow, WriterID: mink.NoWriter, WriterEpoch: -1,
		Sequence: record.NoSequence, LastSequence: record.NoSequence,
	}
	if w.ID >= 0 {
		h.WriterID, h.WriterEpoch, h.Sequence, h.LastSequence = w.ID, w.Epoch, w.Sequence, w.Sequence
	}
	return h
}

// Judge says what the writer's window says about a batch: nil, it comes next; a
// result, it is a duplicate of that append, which may not be durable yet. When its
// place is not remembered any more (First is -1), after tells an offset below which
// it lies: when that is visible, so is the append. Errors: *OutOfOrderError,
// *WriterFencedError, mink.ErrInvalid (the partition is closed), mink.ErrClosed.
func (c *Changelog) Judge(w Sender) (duplicate *AppendResult, after mink.Offset, err error) {
	l := c.log
	if err := w.check(); err != nil {
		return nil, 0, fmt.Errorf("append to bucket %s: %w", l.cfg.Bucket, err)
	}
	h := w.header()
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := l.judge(&h)
	if err != nil || !v.duplicate {
		return nil, 0, err
	}
	l.counts.duplicates.Add(1)
	res := l.repeat(&v, false).res
	res.LogStart = l.s.Start()
	return &res, v.stored.base + mink.Offset(v.stored.delta) + 1, nil
}

// ChangelogBatch is one batch of changes. Changes has one record.Change per row, and
// is nil and Metadata and Body empty in a batch without rows, which only advances
// its writer. Metadata and Body are the halves of one Arrow message of the schema
// version, well formed, and are not kept.
type ChangelogBatch struct {
	SchemaID       mink.SchemaID
	Metadata, Body []byte
	Changes        []byte
	Sender         Sender
}

// Append appends a batch that Judge has just let pass. Errors: mink.ErrThrottled,
// mink.ErrTooLarge (over what a stream takes), mink.ErrFenced, mink.ErrClosed,
// mink.ErrInvalid; nothing was appended then.
func (c *Changelog) Append(b *ChangelogBatch) (*Pending, error) {
	l := c.log
	h := b.Sender.header()
	h.SchemaID, h.Count = b.SchemaID, int32(len(b.Changes))
	e := entry{header: h}
	if h.Count == 0 {
		e.header.Attributes = record.AttrWriterStateOnly
		e.header.MaxTimestamp = -1
	} else {
		e.header.LastOffsetDelta, e.header.ChangesLen, e.header.MetadataLen = h.Count-1, h.Count, uint32(len(b.Metadata))
		e.metadata, e.body, e.changes = b.Metadata, b.Body, b.Changes
		e.commitTime = true
		e.sum = record.BodySum(e.changes, record.Padding(len(e.changes)), e.metadata, record.Padding(len(e.metadata)), e.body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := l.judge(&e.header)
	switch {
	case err != nil:
		return nil, err
	case v.duplicate:
		return nil, fmt.Errorf("append to bucket %s: %w: writer %d, sequence %d was not judged first", l.cfg.Bucket, mink.ErrInvalid, b.Sender.ID, b.Sender.Sequence)
	}
	return l.place(&e)
}

// visibility bounds what readers of a primary-key bucket see.
type visibility struct {
	bound atomic.Int64 // math.MaxInt64: none

	mu struct {
		sync.Mutex
		changed chan struct{} // nil: nobody waits
	}
}

func (v *visibility) of(hw mink.Offset) mink.Offset { return min(hw, mink.Offset(v.bound.Load())) }

// changed is closed at the next show; nil while there is no bound.
func (v *visibility) changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bound.Load() == math.MaxInt64 {
		return nil
	}
	if v.mu.changed == nil {
		v.mu.changed = make(chan struct{})
	}
	return v.mu.changed
}

func (v *visibility) show(to mink.Offset) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if was := v.bound.Load(); was == math.MaxInt64 || int64(to) > was {
		v.bound.Store(int64(to))
		v.wakeLocked()
	}
}

func (v *visibility) wake() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wakeLocked()
}

func (v *visibility) wakeLocked() {
	if v.mu.changed != nil {
		close(v.mu.changed)
		v.mu.changed = nil
	}
}

// cut takes off what is not visible.
func (v *visibility) cut(from mink.Offset, r *stream.ReadResult) error {
	hw := v.of(r.HighWatermark)
	if hw == r.HighWatermark {
		return nil
	}
	r.HighWatermark, r.Next = hw, min(r.Next, hw)
	for n := len(r.Frames); n > 0 && r.Frames[n-1].Start >= hw; n-- {
		r.Frames = r.Frames[:n-1]
	}
	if from > hw {
		r.Next = from
		return &mink.OutOfRangeError{Asked: from, Start: r.Start, End: hw}
	}
	return nil
}

// ChangelogSchema is the schema of the changelog's rows of a version: s, with every
// column nullable that is not of the primary key when the changelog has the key
// alone of a deleted row.
func ChangelogSchema(d *schema.Descriptor, s *schema.Schema, keyOnlyDeletes bool) *schema.Schema {
	if !keyOnlyDeletes {
		return s
	}
	key := map[mink.FieldID]bool{}
	for _, name := range d.PrimaryKey {
		if c, ok := d.Schema.Column(name); ok {
			key[c.ID] = true
		}
	}
	c := s.Clone()
	for i := range c.Columns {
		if !key[c.Columns[i].ID] {
			c.Columns[i].Type.NotNull = false
		}
	}
	return &c
}
