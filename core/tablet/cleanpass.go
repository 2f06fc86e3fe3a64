package tablet

import (
	"context"
	"fmt"
	"iter"
	"math"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/mink"
)

// cleanPass is one cleaning's way over the bucket.
type cleanPass struct {
	log     *Log
	keys    *keyMap
	cleaner *kafkabatch.Cleaner
	nowMs   int64
	horizon int64 // of tombstones that are met for the first time
	opaque  bool  // a batch was passed that hides its keys
	due     int64 // the largest horizon of the tombstones that are left
	res     CleanResult
}

// mapKeys notes the last offset of each key in [from, upper) and answers where it came
// to: the frame that the map has no room for is left to the next cleaning. The first one
// is taken whole, or the bucket would never be cleaned.
func (p *cleanPass) mapKeys(ctx context.Context, from, upper mink.Offset) (mink.Offset, error) {
	first := true
	for f, err := range p.log.s.Scan(ctx, from, upper) {
		if err != nil {
			return 0, err
		}
		fits, err := p.mapFrame(&f, first)
		if err != nil {
			return 0, err
		}
		if !fits {
			return f.Start, nil
		}
		first = false
	}
	return upper, nil
}

func (p *cleanPass) mapFrame(f *stream.Frame, grow bool) (fits bool, err error) {
	b, err := viewFrame(f)
	if err != nil {
		return false, err
	}
	if b.Count() == 0 || p.log.hidesKeys(b) {
		return true, nil
	}
	fits = true
	v, err := p.log.kafkaOf(b)
	if err == nil {
		err = p.cleaner.Each(v, func(rec *kafkabatch.Record) {
			if rec.Key == nil || !fits {
				return
			}
			k, at := p.keys.hash(rec.Key), b.BaseOffset()+mink.Offset(rec.Delta)
			if fits = p.keys.put(k, at); !fits && grow {
				p.keys.max *= 2
				fits = p.keys.put(k, at)
			}
		})
	}
	if err != nil && undecodable(err) {
		p.log.poisoned(b, err)
		return true, nil
	}
	return fits, err
}

// hidesKeys: the records of a transaction may yet be taken back, a control batch has
// none, and rows of a time when the table had other columns than a topic's have no key
// to go by.
func (l *Log) hidesKeys(b record.Batch) bool {
	if b.Attributes()&(record.AttrTransactional|record.AttrControl) != 0 {
		return true
	}
	lay, err := l.layoutOf(b)
	return b.Encoding() == record.EncodingArrow && err == nil && !lay.topic
}

// frames makes the new frames. Neighbours without records become one.
func (p *cleanPass) frames(old iter.Seq2[stream.Frame, error]) iter.Seq2[stream.Frame, error] {
	return func(yield func(stream.Frame, error) bool) {
		var held *stream.Frame // of no records
		for f, err := range old {
			if err != nil {
				yield(stream.Frame{}, err)
				return
			}
			out, err := p.frame(&f)
			if err != nil {
				yield(stream.Frame{}, err)
				return
			}
			if held != nil && out.Count == 0 && joins(held, &out) {
				held.Span += out.Span
				held.CommitTimestamp = out.CommitTimestamp
				continue
			}
			if held != nil && !yield(emptyFrame(held), nil) {
				return
			}
			if held = nil; out.Count == 0 {
				held = &out
			} else if !yield(out, nil) {
				return
			}
		}
		if held != nil {
			yield(emptyFrame(held), nil)
		}
	}
}

// joins: two runs of offsets fit into one batch.
func joins(a, b *stream.Frame) bool {
	return a.End() == b.Start && a.LeaderEpoch == b.LeaderEpoch && a.Span+b.Span < math.MaxInt32
}

// frame answers f without the records that go: f itself when none does; one without
// records has no bytes that count.
func (p *cleanPass) frame(f *stream.Frame) (stream.Frame, error) {
	b, err := viewFrame(f)
	if err != nil {
		return stream.Frame{}, err
	}
	if b.Count() == 0 {
		return *f, nil
	}
	if b.Attributes()&record.AttrUncleanable != 0 || p.log.hidesKeys(b) {
		return p.whole(f, b), nil
	}
	done, tombstones := kafkabatch.Cleaned{}, int64(0)
	v, err := p.log.kafkaOf(b)
	clean := func(horizon int64) {
		tombstones = 0
		done, err = p.cleaner.Clean(v, func(rec *kafkabatch.Record) bool {
			stays, expired := p.keep(v, b.BaseOffset(), rec)
			if expired {
				tombstones++
			}
			return stays
		}, horizon)
	}
	if err == nil {
		clean(p.horizon)
	}
	if err == nil && len(done.Batch) > cleanFrameMax { // with times from the horizon on it is longer
		clean(-1)
	}
	if err != nil && undecodable(err) {
		p.log.poisoned(b, err)
		return p.whole(f, b), nil
	}
	if err != nil {
		return stream.Frame{}, fmt.Errorf("batch at %d: %w", b.BaseOffset(), err)
	}
	if len(done.Batch) > cleanFrameMax { // its codec did worse than the client's
		marked := *f
		marked.Bytes = b.WithAttributes(record.AttrUncleanable)
		return p.whole(&marked, b), nil
	}
	p.res.Kept += int64(done.Count)
	p.res.Removed += int64(b.Count() - done.Count)
	p.res.Tombstones += tombstones
	if done.Tombstones && !p.opaque {
		p.due = max(p.due, done.DueMs)
	}
	if done.Batch == nil {
		return *f, nil
	}
	return sealCleaned(f, b, &done), nil
}

// whole passes a batch on as it is. What is superseded in it stays, so tombstones behind
// it stay too. Later cleanings must do the same, as their maps do not have what superseded
// it: they see why by the batch itself.
func (p *cleanPass) whole(f *stream.Frame, b record.Batch) stream.Frame {
	p.opaque = true
	p.res.Kept += int64(b.Count())
	return *f
}

// cleanFrameMax is more than any batch that clients may send.
const cleanFrameMax = 16<<20 - record.HeaderSize

// keep says whether a record stays, or goes as a tombstone whose time has come.
func (p *cleanPass) keep(v kafkabatch.View, base mink.Offset, rec *kafkabatch.Record) (stays, expired bool) {
	if rec.Key == nil {
		return false, false
	}
	if last, ok := p.keys.last(p.keys.hash(rec.Key)); ok && last > base+mink.Offset(rec.Delta) {
		return false, false
	}
	if rec.Value != nil || p.opaque {
		return true, false
	}
	at, known := v.DeleteHorizon()
	gone := known && at <= p.nowMs
	return !gone, gone
}

// sealCleaned is f with what is left of its batch, in Kafka's encoding.
func sealCleaned(f *stream.Frame, b record.Batch, done *kafkabatch.Cleaned) stream.Frame {
	h := b.Header()
	h.Encoding, h.MetadataLen, h.ChangesLen = record.EncodingKafka, 0, 0
	h.Count, h.MaxTimestamp = done.Count, done.MaxTimestamp
	out := *f
	out.Count, out.MaxTimestamp = uint32(done.Count), done.MaxTimestamp
	if done.Count > 0 { // else emptyFrame writes it
		out.Bytes = sealedBatch(&h, done.Batch)
	}
	return out
}

// emptyFrame writes a frame without records for the offsets of f.
func emptyFrame(f *stream.Frame) stream.Frame {
	h := record.Header{
		BaseOffset: f.Start, LeaderEpoch: f.LeaderEpoch, CommitTimestamp: f.CommitTimestamp,
		Encoding: record.EncodingKafka, Attributes: record.AttrAppendOnly, LastOffsetDelta: int32(f.Span - 1),
		MaxTimestamp: -1, WriterID: mink.NoWriter, WriterEpoch: -1, Sequence: record.NoSequence, LastSequence: record.NoSequence,
	}
	if b, err := record.ViewBatch(f.Bytes); err == nil {
		h.SchemaID = b.SchemaID()
	}
	out := *f
	out.Count, out.MaxTimestamp = 0, -1
	out.Bytes = sealedBatch(&h, kafkabatch.EmptyBatch(f.Start, h.LastOffsetDelta, f.LeaderEpoch))
	return out
}

// sealedBatch is the batch with its Mink header.
func sealedBatch(h *record.Header, kafka []byte) []byte {
	out := make([]byte, record.HeaderSize, record.HeaderSize+len(kafka))
	out = append(out, kafka...)
	hdr, body := out[:record.HeaderSize], out[record.HeaderSize:]
	record.PutHeader(hdr, h, len(body))
	record.Seal(hdr, record.KafkaBodySum(body))
	record.SetServerFields(hdr, body, h.BaseOffset, h.CommitTimestamp, h.LeaderEpoch)
	return out
}
