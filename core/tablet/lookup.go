package tablet

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// TimestampKind chooses the timestamps of a lookup.
type TimestampKind uint8

// The kinds of timestamp lookup.
const (
	ByCommit TimestampKind = iota // first offset committed at or after
	ByRecord                      // first record whose own timestamp is at or after (Kafka)
)

// TimestampResult is a found record.
type TimestampResult struct {
	Offset      mink.Offset
	Timestamp   int64 // ms
	LeaderEpoch mink.LeaderEpoch
}

// scanBytes is how much of the log a search reads at once.
const scanBytes = 1 << 20

// OffsetForTimestamp finds the first offset at or after ms that is kept and
// durable; false: there is none. ByRecord looks inside the batch, compressed or
// not; a batch that cannot be decoded is quarantined and passed over.
func (l *Log) OffsetForTimestamp(ctx context.Context, ms int64, kind TimestampKind) (TimestampResult, bool, error) {
	if err := l.usable(); err != nil {
		return TimestampResult{}, false, err
	}
	fail := func(err error) (TimestampResult, bool, error) {
		return TimestampResult{}, false, fmt.Errorf("timestamp %d in bucket %s: %w", ms, l.cfg.Bucket, err)
	}
	start := l.s.Start()
	f, ok, err := l.s.OffsetForTimestamp(ctx, ms, kind == ByCommit)
	if err != nil {
		return fail(err)
	}
	if !ok || f.Start >= l.HighWatermark() {
		return TimestampResult{}, false, nil
	}
	if kind == ByCommit {
		return TimestampResult{max(f.Start, start), f.CommitTimestamp, f.LeaderEpoch}, true, nil
	}
	res, ok, err := l.findRecord(&f, start, ms)
	if err != nil {
		return fail(err)
	}
	if ok {
		return res, true, nil
	}
	// The record lies below the start, or the batch's header claimed a later
	// timestamp than its records have: the next batches decide.
	err = l.scan(ctx, f.End(), func(f *stream.Frame) (bool, error) {
		if f.MaxTimestamp >= ms {
			res, ok, err = l.findRecord(f, start, ms)
		}
		return ok, err
	})
	if err != nil {
		return fail(err)
	}
	return res, ok, nil
}

// scan reads frames from an offset to the high watermark until stop answers true.
func (l *Log) scan(ctx context.Context, from mink.Offset, stop func(*stream.Frame) (bool, error)) error {
	for {
		res, err := l.s.Read(ctx, stream.ReadRequest{From: from, MaxBytes: scanBytes})
		if err != nil {
			return err
		}
		if res.Next <= from {
			return nil
		}
		for i := range res.Frames {
			if res.Frames[i].Start >= l.HighWatermark() {
				return nil
			}
			if done, err := stop(&res.Frames[i]); done || err != nil {
				return err
			}
		}
		from = res.Next
	}
}

// findRecord looks in one batch for the first record at or above start with a
// timestamp of at least ms.
func (l *Log) findRecord(f *stream.Frame, start mink.Offset, ms int64) (TimestampResult, bool, error) {
	return l.inBatch(f, start, func(v kafkabatch.View, d *kafkabatch.Decoder, from int32) (int32, int64, bool, error) {
		return kafkabatch.Find(v, d, from, ms)
	}, func(ts int64, _ int64, _ bool) bool { return ts >= ms }, false)
}

// latestRecord looks for the record at or above start with the largest timestamp.
func (l *Log) latestRecord(f *stream.Frame, start mink.Offset) (TimestampResult, bool, error) {
	return l.inBatch(f, start, kafkabatch.Latest, func(ts, best int64, any bool) bool { return !any || ts > best }, true)
}

// inBatch runs one search in either encoding. better judges an Arrow row's
// timestamp against the best so far; all says to go on after the first hit.
func (l *Log) inBatch(f *stream.Frame, start mink.Offset,
	kafka func(kafkabatch.View, *kafkabatch.Decoder, int32) (int32, int64, bool, error),
	better func(ts, best int64, any bool) bool, all bool,
) (TimestampResult, bool, error) {
	b, err := viewFrame(f)
	if err != nil || b.Count() == 0 || b.NextOffset() <= start {
		return TimestampResult{}, false, err
	}
	from := int32(max(start-b.BaseOffset(), 0))
	var delta int32
	var ts int64
	var ok bool
	if b.Encoding() == record.EncodingKafka {
		err = l.codecs.withKafka(func(d *kafkabatch.Decoder) error {
			var err error
			delta, ts, ok, err = kafka(kafkabatch.View(b.Kafka()), d, from)
			return err
		})
	} else {
		err = l.timesOf(b, func(i int32, t int64) bool {
			if i >= from && better(t, ts, ok) {
				delta, ts, ok = i, t, true
				return all
			}
			return true
		})
	}
	if err != nil {
		l.poisoned(b, err)
		return TimestampResult{}, false, nil
	}
	return TimestampResult{b.BaseOffset() + mink.Offset(delta), ts, b.LeaderEpoch()}, ok, nil
}

// timesOf yields each row's timestamp of an arrow batch, until yield is false.
func (l *Log) timesOf(b record.Batch, yield func(i int32, ts int64) bool) error {
	lay, ok := l.settings.Load().layout(b.SchemaID())
	if !ok || !lay.topic || b.Attributes()&record.AttrLogAppendTime != 0 {
		// Rows without a time of their own: the batch's.
		for i := range b.Count() {
			if !yield(i, b.MaxTimestamp()) {
				break
			}
		}
		return nil
	}
	return l.codecs.withArrow(func(d *arrowipc.Decoder) error {
		meta, body := b.Arrow()
		rows, err := d.Decode(lay.Layout, meta, body, []int{kafkabatch.ColTimestamp})
		if err != nil {
			return err
		}
		defer rows.Release()
		col := rows.Column(0).(*array.Timestamp)
		for i := range col.Len() {
			ts := b.CommitTimestamp()
			if col.IsValid(i) {
				ts = int64(col.Value(i))
			}
			if !yield(int32(i), ts) {
				break
			}
		}
		return nil
	})
}

// latestScan remembers what a search through the kept log found, for when the
// batch with the largest timestamp of all was trimmed.
type latestScan struct {
	sync.Mutex
	upTo mink.Offset
	best TimestampResult
	any  bool
	of   plan.Cleaned // before the search; a later cleaning may have taken the record
}

// MaxTimestamp finds the kept and durable record with the largest timestamp, the
// first of them; false: there is no record. Usually one batch is read; when the
// one that had the largest timestamp is trimmed, the kept log is read once.
func (l *Log) MaxTimestamp(ctx context.Context) (TimestampResult, bool, error) {
	if err := l.usable(); err != nil {
		return TimestampResult{}, false, err
	}
	start, hw := l.s.Start(), l.HighWatermark()
	l.mu.Lock()
	p, ok := l.mu.st.durablePeak(hw)
	l.mu.Unlock()
	if !ok || hw <= start {
		return TimestampResult{}, false, nil
	}
	if p.at >= start {
		res, ok, err := l.latestAt(ctx, p.at, start)
		if err != nil {
			return res, false, err
		}
		if ok && res.Timestamp == p.ts { // else trimmed, or its header claims too much
			return res, true, nil
		}
	}
	return l.latestKept(ctx, start)
}

func (l *Log) latestAt(ctx context.Context, at, start mink.Offset) (TimestampResult, bool, error) {
	res, err := l.s.Read(ctx, stream.ReadRequest{From: at, MaxBytes: 1})
	if err != nil || len(res.Frames) == 0 {
		if err != nil {
			err = fmt.Errorf("largest timestamp of bucket %s: %w", l.cfg.Bucket, err)
		}
		return TimestampResult{}, false, err
	}
	return l.latestRecord(&res.Frames[0], start)
}

func (l *Log) latestKept(ctx context.Context, start mink.Offset) (TimestampResult, bool, error) {
	_, cleaned, err := l.s.CleanLimit()
	if err != nil {
		return TimestampResult{}, false, fmt.Errorf("largest timestamp of bucket %s: %w", l.cfg.Bucket, err)
	}
	l.latest.Lock()
	known := latestScan{upTo: l.latest.upTo, best: l.latest.best, any: l.latest.any, of: l.latest.of}
	l.latest.Unlock()
	if !known.any || known.best.Offset < start || known.of != cleaned {
		known.upTo, known.any = start, false
	}
	err = l.scan(ctx, max(known.upTo, start), func(f *stream.Frame) (bool, error) {
		known.upTo = f.End()
		if known.any && f.MaxTimestamp <= known.best.Timestamp {
			return false, nil
		}
		res, ok, err := l.latestRecord(f, start)
		if ok && (!known.any || res.Timestamp > known.best.Timestamp) {
			known.best, known.any = res, true
		}
		return false, err
	})
	if err != nil {
		return TimestampResult{}, false, fmt.Errorf("largest timestamp of bucket %s: %w", l.cfg.Bucket, err)
	}
	l.latest.Lock()
	l.latest.upTo, l.latest.best, l.latest.any, l.latest.of = known.upTo, known.best, known.any, cleaned
	l.latest.Unlock()
	return known.best, known.any, nil
}
