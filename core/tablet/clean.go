package tablet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/record/kafkabatch"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Of each key of a compacted topic the latest record is kept. A cleaning goes over the
// bucket twice:
//
//	start          cleaned end                    upper           high watermark
//	|--- clean ----|----------- dirty ------------|---- as it is ----|
//	               1 map: key -> last offset
//	2 rewrite: records go that the map has a later offset of, and tombstones that are due
//
// Below the cleaned end a key is there once, so the dirty part alone has to be known;
// see docs/decisions/016-compacted-topics.md.

// CleanState is how far a bucket is clean, and whether a cleaning is due.
type CleanState struct {
	CleanedEnd mink.Offset // below it a key is there once
	Upper      mink.Offset // where a cleaning would end at most: = CleanedEnd when nothing is dirty
	CleanBytes int64       // about, as stored
	DirtyBytes int64       // in [CleanedEnd, Upper)
	DueMs      int64       // when the last of the kept tombstones may go; 0: there is none
	Due        CleanReason // "": not due
}

// CleanReason says why a cleaning is due.
type CleanReason string

// The reasons.
const (
	DirtyRatio   CleanReason = "min.cleanable.dirty.ratio is reached"
	LagReached   CleanReason = "max.compaction.lag.ms is reached"
	TombstoneDue CleanReason = "tombstones are past delete.retention.ms"
)

// CleanOptions is what a cleaning may use.
type CleanOptions struct {
	NowMs    int64 // the clock of lags and delete horizons
	MapBytes int64 // of the map of keys; one batch may need more
}

// CleanResult is what a cleaning did.
type CleanResult struct {
	Upper      mink.Offset // the cleaned end now
	Kept       int64       // records below it
	Removed    int64       // records
	Tombstones int64       // of Removed: those whose time had come
	Bytes      int64       // of batches left below Upper
	More       bool        // the map was full: the rest waits for another cleaning
}

// CleanStats are the cleanings of a tablet since it opened.
type CleanStats struct {
	Rounds, Removed int64
	CleanedEnd      mink.Offset
	LastError       string // of the last cleaning; "": it went well
}

// cleaning is what a Log remembers of its cleanings.
type cleaning struct {
	sync.Mutex
	turn    sync.Mutex // held by the one Clean at work
	of      dirtyKey   // what sizes are of
	sizes   dirtySizes
	oldest  int64       // commit time of the batch at oldestAt
	oldest0 mink.Offset // plus 1; 0: not known
	stats   CleanStats
}

type dirtyKey struct{ start, from, upper mink.Offset }

type dirtySizes struct{ clean, dirty int64 }

// CleanState looks at what was appended since the last cleaning; while nothing was, it
// reads nothing. Only for a compacted topic: otherwise the zero value. Errors as of Read.
func (l *Log) CleanState(ctx context.Context, nowMs int64) (CleanState, error) {
	o := &l.settings.Load().options
	if !o.Compact {
		return CleanState{}, nil
	}
	if err := l.usable(); err != nil {
		return CleanState{}, err
	}
	st, err := l.cleanState(ctx, o, nowMs)
	if err != nil {
		return CleanState{}, fmt.Errorf("look for what is to be cleaned in bucket %s: %w", l.cfg.Bucket, err)
	}
	return st, nil
}

func (l *Log) cleanState(ctx context.Context, o *schema.Options, nowMs int64) (CleanState, error) {
	limit, cleaned, err := l.s.CleanLimit()
	if err != nil {
		return CleanState{}, err
	}
	start := l.s.Start()
	from := max(cleaned.End, start)
	if limit < l.s.HighWatermark() {
		l.s.AskCheckpoint()
	}
	st := CleanState{CleanedEnd: from, Upper: max(limit, from), DueMs: cleaned.DueMs, CleanBytes: cleaned.Bytes}
	if lag := int64(o.MinCompactionLag / time.Millisecond); lag > 0 && st.Upper > from {
		f, ok, err := l.s.OffsetForTimestamp(ctx, nowMs-lag+1, true)
		if err != nil {
			return st, err
		}
		if ok {
			st.Upper = max(min(st.Upper, f.Start), from)
		}
	}
	if st.Upper > from {
		sizes, err := l.dirtySizes(ctx, dirtyKey{start, from, st.Upper}, cleaned)
		if err != nil {
			return st, err
		}
		st.CleanBytes, st.DirtyBytes = sizes.clean, sizes.dirty
	}
	st.Due, err = l.cleanDue(ctx, o, &st, nowMs)
	return st, err
}

// dirtySizes measures the two parts. The clean one is what the last cleaning left, unless
// its head was trimmed.
func (l *Log) dirtySizes(ctx context.Context, k dirtyKey, cleaned plan.Cleaned) (dirtySizes, error) {
	l.cleaning.Lock()
	of, known := l.cleaning.of, l.cleaning.sizes
	l.cleaning.Unlock()
	if of == k {
		return known, nil
	}
	s := dirtySizes{clean: cleaned.Bytes}
	var err error
	if k.start > 0 {
		if s.clean, err = l.s.Bytes(ctx, k.start, k.from); err != nil {
			return s, err
		}
	}
	if s.dirty, err = l.s.Bytes(ctx, k.from, k.upper); err != nil {
		return s, err
	}
	l.cleaning.Lock()
	l.cleaning.of, l.cleaning.sizes = k, s
	l.cleaning.Unlock()
	return s, nil
}

func (l *Log) cleanDue(ctx context.Context, o *schema.Options, st *CleanState, nowMs int64) (CleanReason, error) {
	if st.DirtyBytes > 0 && float64(st.DirtyBytes) >= o.MinDirtyRatio*float64(st.CleanBytes+st.DirtyBytes) {
		return DirtyRatio, nil
	}
	if st.DueMs > 0 && nowMs >= st.DueMs && st.CleanedEnd > l.s.Start() {
		return TombstoneDue, nil
	}
	if lag := int64(o.MaxCompactionLag / time.Millisecond); st.Upper > st.CleanedEnd && lag < nowMs {
		oldest, ok, err := l.oldestDirty(ctx, st.CleanedEnd, st.Upper)
		if err != nil || ok && oldest <= nowMs-lag {
			return LagReached, err
		}
	}
	return "", nil
}

// oldestDirty is the commit time of the first batch that no cleaning has looked at.
func (l *Log) oldestDirty(ctx context.Context, from, upper mink.Offset) (ms int64, ok bool, err error) {
	l.cleaning.Lock()
	at, ms := l.cleaning.oldest0-1, l.cleaning.oldest
	l.cleaning.Unlock()
	if at == from {
		return ms, true, nil
	}
	for f, err := range l.s.Scan(ctx, from, upper) {
		if err != nil {
			return 0, false, err
		}
		l.cleaning.Lock()
		l.cleaning.oldest0, l.cleaning.oldest = from+1, f.CommitTimestamp
		l.cleaning.Unlock()
		return f.CommitTimestamp, true, nil
	}
	return 0, false, nil
}

// Clean does one cleaning, due or not. Appends and reads go on meanwhile; one at a time.
// A batch that cannot be decoded stays as it is, is quarantined, and tombstones behind it
// stay too: an older record of their key may be in it.
//
// Errors: mink.ErrConflict when the bucket was merged, moved or trimmed whole meanwhile (try
// again later), and as of Read.
func (l *Log) Clean(ctx context.Context, co CleanOptions) (CleanResult, error) {
	if !l.cleaning.turn.TryLock() {
		return CleanResult{}, fmt.Errorf("clean bucket %s: a cleaning is under way: %w", l.cfg.Bucket, mink.ErrConflict)
	}
	defer l.cleaning.turn.Unlock()
	res, err := l.clean(ctx, co)
	if err != nil {
		err = fmt.Errorf("clean bucket %s: %w", l.cfg.Bucket, err)
	}
	l.cleaning.Lock()
	defer l.cleaning.Unlock()
	c := &l.cleaning.stats
	if c.LastError = ""; err != nil {
		c.LastError = err.Error()
		return res, err
	}
	if res.Upper > 0 {
		c.Rounds++
		c.Removed += res.Removed
	}
	return res, nil
}

// CleanStats answers the cleanings so far. CleanedEnd is what the metadata says: an
// earlier leader's cleaning counts.
func (l *Log) CleanStats() CleanStats {
	l.cleaning.Lock()
	s := l.cleaning.stats
	l.cleaning.Unlock()
	if _, cleaned, err := l.s.CleanLimit(); err == nil {
		s.CleanedEnd = cleaned.End
	}
	return s
}

func (l *Log) clean(ctx context.Context, co CleanOptions) (CleanResult, error) {
	o := &l.settings.Load().options
	if !o.Compact {
		return CleanResult{}, fmt.Errorf("%w: cleanup.policy is not compact", mink.ErrInvalid)
	}
	if err := l.usable(); err != nil {
		return CleanResult{}, err
	}
	st, err := l.cleanState(ctx, o, co.NowMs)
	if err != nil || st.Upper <= l.s.Start() {
		return CleanResult{}, err
	}
	p := &cleanPass{
		log: l, keys: newKeyMap(co.MapBytes), cleaner: kafkabatch.NewCleaner(kafkabatch.DefaultLimits()),
		nowMs: co.NowMs, horizon: co.NowMs + int64(o.DeleteRetention/time.Millisecond),
	}
	upper, err := p.mapKeys(ctx, st.CleanedEnd, st.Upper)
	if err != nil {
		return CleanResult{}, err
	}
	left, err := l.s.Rewrite(ctx, stream.Rewrite{Upper: upper, Frames: p.frames, DueMs: func() int64 { return p.due }})
	if err != nil {
		return CleanResult{}, err
	}
	p.res.Upper, p.res.Bytes, p.res.More = upper, left.Bytes, upper < st.Upper
	return p.res, nil
}

// kafkaOf answers a batch as Kafka's, as a consumer gets it.
func (l *Log) kafkaOf(b record.Batch) (kafkabatch.View, error) {
	if b.Encoding() == record.EncodingKafka {
		return kafkabatch.View(b.Kafka()), nil
	}
	lay, err := l.layoutOf(b)
	if err != nil {
		return nil, err
	}
	k, err := l.encodeKafka(b, lay)
	return kafkabatch.View(k), err
}

// undecodable tells a damaged batch from work that failed.
func undecodable(err error) bool {
	var bad *record.BatchError
	return errors.As(err, &bad)
}
