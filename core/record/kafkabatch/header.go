package kafkabatch

import (
	"math"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

// Options are what a topic and a request allow.
type Options struct {
	MaxBytes      int   // bytes of the whole batch; 0: no limit
	Deep          bool  // decompress and walk compressed batches too
	RequireKeys   bool  // compacted topic: every record has a key; walks all batches
	AllowZstd     bool  // Produce >= 7
	NowMs         int64 // the server's clock, for the two limits below
	BeforeMaxMs   int64 // how far in the past a record's timestamp may be; 0: any
	AfterMaxMs    int64 // how far in the future; 0: any
	LogAppendTime bool  // the topic sets timestamps itself: the records' are not looked at
	Transactions  bool  // accept the transactional bit
	// Value looks at each record's value, nil for null; an error is the record's.
	// It makes all batches be walked.
	Value func(delta int32, value []byte) error
}

// Header checks a produced batch (the rules of Kafka's LogValidator for one v2
// batch) and answers the Mink header for it, server fields zero. The cost is one
// CRC pass, and for uncompressed batches one framing walk.
//
// It changes the batch in one case, as Kafka does: when the walk proves the max
// timestamp wrong, that and the CRC are corrected. d may be nil unless o asks
// for a look inside compressed batches. Errors are *record.BatchError.
func Header(batch []byte, o *Options, d *Decoder) (record.Header, error) {
	if o.MaxBytes > 0 && len(batch) > o.MaxBytes {
		return record.Header{}, record.Errorf(record.KindTooLarge, "%d bytes, the limit is %d (max.message.bytes)", len(batch), o.MaxBytes)
	}
	v, err := Parse(batch)
	if err != nil {
		return record.Header{}, err
	}
	if got, want := v.Sum(), v.CRC(); got != want {
		return record.Header{}, record.Errorf(record.KindCorrupt, "crc is %08x, the batch says %08x", got, want)
	}
	if err := checkHeader(v, o); err != nil {
		return record.Header{}, err
	}
	maxTS := v.MaxTimestamp()
	if v.Codec() == CodecNone || o.Deep || o.RequireKeys || o.Value != nil {
		if maxTS, err = walk(v, o, d); err != nil {
			return record.Header{}, err
		}
		if maxTS != v.MaxTimestamp() {
			setMaxTimestamp(batch, maxTS)
		}
	} else if err := checkTimes(v, o); err != nil {
		return record.Header{}, err
	}
	return header(v, maxTS), nil
}

func header(v View, maxTS int64) record.Header {
	h := record.Header{
		Encoding:        record.EncodingKafka,
		Attributes:      record.AttrAppendOnly,
		LastOffsetDelta: v.LastOffsetDelta(),
		Count:           v.Count(),
		MaxTimestamp:    maxTS,
		WriterID:        mink.NoWriter,
		WriterEpoch:     -1,
		Sequence:        record.NoSequence,
		LastSequence:    record.NoSequence,
	}
	if v.ProducerID() >= 0 {
		h.WriterID, h.WriterEpoch, h.Sequence = v.ProducerID(), v.ProducerEpoch(), v.BaseSequence()
		h.LastSequence = int32((int64(h.Sequence) + int64(h.Count) - 1) & math.MaxInt32)
	}
	if v.Transactional() {
		h.Attributes |= record.AttrTransactional
	}
	return h
}

func checkHeader(v View, o *Options) error {
	switch c := v.Codec(); {
	case c > CodecZstd:
		return record.Errorf(record.KindCompression, "unknown codec %d", c)
	case c == CodecZstd && !o.AllowZstd:
		return record.Errorf(record.KindCompression, "zstd needs Produce version 7 or newer")
	}
	switch {
	case v.BaseOffset() != 0:
		return record.Errorf(record.KindInvalidRecord, "base offset %d, a producer sends 0", v.BaseOffset())
	case v.Control():
		return record.Errorf(record.KindInvalidRecord, "clients may not write control batches")
	case v.attrs()&attrDeleteHorizon != 0:
		return record.Errorf(record.KindInvalidRecord, "clients may not set a delete horizon")
	case v.LogAppendTime():
		return record.Errorf(record.KindTimestamp, "clients may not set the log-append-time bit")
	case v.Count() <= 0 || v.LastOffsetDelta() != v.Count()-1:
		return record.Errorf(record.KindInvalidRecord, "%d records with last offset delta %d", v.Count(), v.LastOffsetDelta())
	case v.ProducerID() < -1:
		return record.Errorf(record.KindInvalidRecord, "producer id %d", v.ProducerID())
	case v.ProducerID() >= 0 && (v.BaseSequence() < 0 || v.ProducerEpoch() < 0):
		return record.Errorf(record.KindInvalidRecord, "producer %d with sequence %d and epoch %d", v.ProducerID(), v.BaseSequence(), v.ProducerEpoch())
	case v.Transactional() && v.ProducerID() < 0:
		return record.Errorf(record.KindInvalidRecord, "a transactional batch without a producer id")
	case v.Transactional() && !o.Transactions:
		return record.Errorf(record.KindUnsupported, "transactional batches are not built yet")
	}
	return nil
}

// noTimestamp is Kafka's "none".
const noTimestamp = -1

func (o *Options) timeAllowed(ms int64) bool {
	if o.LogAppendTime {
		return true
	}
	return (o.AfterMaxMs <= 0 || ms <= o.NowMs+o.AfterMaxMs) &&
		(o.BeforeMaxMs <= 0 || ms == noTimestamp || ms >= o.NowMs-o.BeforeMaxMs)
}

// checkTimes looks at the header of a compressed batch: the first record's
// timestamp is the base, no record's is above the max.
func checkTimes(v View, o *Options) error {
	if o.LogAppendTime {
		return nil
	}
	base, top := v.BaseTimestamp(), v.MaxTimestamp()
	switch {
	case base < noTimestamp || top < base:
		return record.Errorf(record.KindTimestamp, "base timestamp %d, max timestamp %d", base, top)
	case !o.timeAllowed(base) || !o.timeAllowed(top):
		return record.Errorf(record.KindTimestamp, "timestamps %d to %d are outside what the topic allows at %d", base, top, o.NowMs)
	}
	return nil
}

// walk checks every record and answers the largest timestamp. Bad keys, timestamps
// and values are collected, so that a client learns of them at once.
func walk(v View, o *Options, d *Decoder) (int64, error) {
	records := v.Records()
	if v.Codec() != CodecNone {
		var err error
		if records, err = d.Records(v); err != nil {
			return 0, err
		}
	}
	var bad *record.BatchError
	top := int64(noTimestamp)
	r := NewReader(v, records)
	for rec := (Record{}); r.Next(&rec); {
		if kind, why := badRecord(&rec, o); kind != 0 {
			if bad = addBad(bad, kind, rec.Delta, why); len(bad.Records) == record.RecordsMax {
				return 0, bad // the rest is not looked at
			}
		}
		top = max(top, rec.Timestamp)
	}
	if err := r.Err(); err != nil {
		return 0, err
	}
	if bad != nil {
		return 0, bad
	}
	return top, nil
}

// badRecord says what is wrong with one record, 0: nothing.
func badRecord(rec *Record, o *Options) (record.Kind, string) {
	switch {
	case o.RequireKeys && rec.Key == nil:
		return record.KindInvalidRecord, "a compacted topic needs a key in every record"
	case rec.Timestamp < noTimestamp && !o.LogAppendTime, !o.timeAllowed(rec.Timestamp):
		return record.KindTimestamp, "its timestamp is outside what the topic allows"
	case o.Value != nil:
		if err := o.Value(rec.Delta, rec.Value); err != nil {
			return record.KindInvalidRecord, err.Error()
		}
	}
	return 0, ""
}

// addBad collects the records of one kind, the first bad one's.
func addBad(bad *record.BatchError, kind record.Kind, delta int32, why string) *record.BatchError {
	if bad == nil {
		bad = record.RecordErrorf(kind, int(delta), "%s", why)
	}
	if bad.Kind == kind {
		bad.Records = append(bad.Records, delta)
		if len(bad.Whys) < record.WhysMax {
			bad.Whys = append(bad.Whys, why)
		}
	}
	return bad
}
