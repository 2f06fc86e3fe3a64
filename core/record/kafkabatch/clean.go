package kafkabatch

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mink-project/mink/sdk/mink"
)

// Cleaned is what Cleaner.Clean made of a batch.
type Cleaned struct {
	Batch        []byte // nil: it stays as it is. Valid until the Cleaner's next call
	Count        int32  // records that are left
	MaxTimestamp int64  // of them, ms; -1: none is left
	Tombstones   bool   // some of them are tombstones
	DueMs        int64  // if so: when they may go
}

// Cleaner takes records out of batches and writes what is left in the batch's own codec.
// It keeps its codecs and buffers for the next one. Not for concurrent use.
type Cleaner struct {
	decoder *Decoder
	comp    compressor
	records []byte
	out     []byte
	kept    []Record
}

// NewCleaner makes a cleaner that decodes within the limits.
func NewCleaner(l Limits) *Cleaner { return &Cleaner{decoder: NewDecoder(l)} }

// Each calls f with every record of v. Errors are *record.BatchError.
func (c *Cleaner) Each(v View, f func(*Record)) error {
	records, err := c.decoder.Records(v)
	if err != nil {
		return err
	}
	r := NewReader(v, records)
	for rec := (Record{}); r.Next(&rec); {
		f(&rec)
	}
	return r.Err()
}

// Clean leaves the records that keep wants. Tombstones among them may go at dueMs, if
// the batch does not say already when. The batch keeps its offsets, times, producer
// and codec; without records it is a header. Errors are *record.BatchError (it cannot
// be read), or of a codec.
func (c *Cleaner) Clean(v View, keep func(*Record) bool, dueMs int64) (Cleaned, error) {
	res := Cleaned{MaxTimestamp: noTimestamp}
	c.kept = c.kept[:0]
	err := c.Each(v, func(rec *Record) {
		if !keep(rec) {
			return
		}
		c.kept = append(c.kept, *rec)
		res.MaxTimestamp = max(res.MaxTimestamp, rec.Timestamp)
		res.Tombstones = res.Tombstones || rec.Value == nil
	})
	if err != nil {
		return Cleaned{}, err
	}
	res.Count = int32(len(c.kept))
	horizon, known := v.DeleteHorizon()
	if res.Tombstones && !known {
		horizon = dueMs
	}
	if res.Tombstones {
		res.DueMs = horizon
	}
	switch {
	case res.Count == v.Count() && (known || !res.Tombstones):
	case res.Count == 0:
		res.Batch = EmptyBatch(v.BaseOffset(), v.LastOffsetDelta(), v.LeaderEpoch())
	default:
		err = c.write(v, &res, horizon, known || res.Tombstones)
	}
	clear(c.kept) // they refer to the batch
	return res, err
}

// write builds the new batch. Records are copied as they are, unless the horizon takes
// the place of the base timestamp that they count from.
func (c *Cleaner) write(v View, res *Cleaned, horizon int64, marked bool) error {
	c.records = c.records[:0]
	_, known := v.DeleteHorizon()
	for i := range c.kept {
		rec := &c.kept[i]
		if !marked || known {
			c.records = append(c.records, rec.raw...)
			continue
		}
		ts := v.BaseTimestamp() + rec.tsDelta - horizon
		size := 1 + varintLen(ts) + varintLen(int64(rec.Delta)) + len(rec.tail)
		c.records = binary.AppendVarint(c.records, int64(size))
		c.records = append(c.records, rec.attrs)
		c.records = binary.AppendVarint(c.records, ts)
		c.records = binary.AppendVarint(c.records, int64(rec.Delta))
		c.records = append(c.records, rec.tail...)
	}
	c.out = append(c.out[:0], v[:HeaderSize]...)
	b, err := c.comp.append(c.out, v.Codec(), c.records)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Codec(), err)
	}
	c.out = b
	if len(b) > math.MaxInt32 {
		return fmt.Errorf("clean kafka batch: %w: %d bytes", mink.ErrTooLarge, len(b))
	}
	be := binary.BigEndian
	be.PutUint32(b[posLength:], uint32(len(b)-lengthEnd))
	if marked {
		be.PutUint16(b[posAttrs:], v.attrs()|attrDeleteHorizon)
		be.PutUint64(b[posBaseTS:], uint64(horizon))
	}
	be.PutUint32(b[posCount:], uint32(res.Count))
	setMaxTimestamp(b, res.MaxTimestamp)
	res.Batch = b
	if cap(c.records) > keepBytes {
		c.records = nil
	}
	if cap(c.out) > keepBytes {
		c.out = nil
	}
	return nil
}

// EmptyBatch is a batch without records for lastDelta + 1 offsets from base on: what is
// left of batches of which no record is. Consumers go on behind it.
func EmptyBatch(base mink.Offset, lastDelta int32, epoch mink.LeaderEpoch) []byte {
	b, err := EncodeValues(nil, 0, nil, Encoding{Base: base, LeaderEpoch: epoch, LastOffsetDelta: lastDelta})
	if err != nil {
		panic(err) // neither records nor a length that could be wrong
	}
	return b
}
