package tablet

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
)

// Ticket is a pending append of the stream engine (*stream.Ticket).
type Ticket interface {
	Done() <-chan struct{} // closed once the outcome is known
	Err() error            // after Done: nil means durable and visible
}

// Stream is what a tablet needs of its stream. OnStream wraps *stream.Stream.
type Stream interface {
	Append(stream.AppendRequest) (Ticket, error)
	Read(context.Context, stream.ReadRequest) (stream.ReadResult, error)
	Start() mink.Offset
	HighWatermark() mink.Offset
	LogEnd() mink.Offset
	Changed() <-chan struct{}
	Checkpoint(context.Context) (data []byte, at mink.Offset, err error)
	SeedCheckpoint(data []byte, at mink.Offset)
	OffsetForTimestamp(ctx context.Context, ms int64, commit bool) (stream.Frame, bool, error)
	Trim(context.Context, mink.Offset) error
	Discard(ctx context.Context, to mink.Offset, giveUpMs int64) error
	CleanLimit() (mink.Offset, plan.Cleaned, error)
	AskCheckpoint()
	Scan(ctx context.Context, from, to mink.Offset) iter.Seq2[stream.Frame, error]
	Rewrite(context.Context, stream.Rewrite) (plan.Cleaned, error)
	Bytes(ctx context.Context, from, to mink.Offset) (int64, error)
	OffsetForBytes(ctx context.Context, bytes int64) (mink.Offset, bool, error)
}

type engineStream struct{ *stream.Stream }

func (s engineStream) Append(r stream.AppendRequest) (Ticket, error) {
	t, err := s.Stream.Append(r)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OnStream makes a Stream of the engine's.
func OnStream(s *stream.Stream) Stream { return engineStream{s} }

// settings is what Reconfigure replaces.
type settings struct {
	layouts []*layout // by schema id - 1
	options schema.Options
	closed  bool // refuses appends
}

// isTopic reports that Kafka clients see the table: batches of lay are records.
func (s *settings) isTopic(lay *layout) bool { return lay.topic || s.options.KafkaJSON }

func (s *settings) current() mink.SchemaID { return mink.SchemaID(len(s.layouts)) }

func (s *settings) layout(id mink.SchemaID) (*layout, bool) {
	if id < 1 || int(id) > len(s.layouts) {
		return nil, false
	}
	return s.layouts[id-1], true
}

// Log is a log tablet: one leadership of one bucket. Safe for concurrent use.
type Log struct {
	s        Stream
	cfg      Config
	codecs   *Codecs
	settings atomic.Pointer[settings]
	openedAt mink.Offset
	counts   counters
	closed   atomic.Bool // set under mu, so that no append passes it
	visible  visibility

	mu struct {
		sync.Mutex
		st      *state
		flights []flight // appends that were not durable when last looked at, by offset
		writing bool     // there is a Changelog
		hdr     [record.HeaderSize]byte
		parts   [8][]byte
	}
	latest     latestScan
	cleaning   cleaning
	quarantine quarantine
}

// flight is an append that is not known to be durable.
type flight struct {
	end    mink.Offset
	ticket Ticket
}

// OpenLog makes a log tablet over a stream that was opened under
// cfg.LeaderEpoch. It reads the last checkpoint and the frames behind it, so
// that writer windows, epochs and times are exactly those of the leader before.
// The caller keeps the stream and closes it after the tablet. Errors:
// mink.ErrCorrupt (the tablet must stay closed), what the stream answers.
func OpenLog(ctx context.Context, s Stream, cfg Config) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open log %s: %w", cfg.Bucket, err)
	}
	l := &Log{s: s, cfg: cfg, codecs: cfg.Codecs}
	if l.codecs == nil {
		l.codecs = &Codecs{}
	}
	l.visible.bound.Store(math.MaxInt64)
	if err := l.Reconfigure(cfg); err != nil {
		return nil, err
	}
	st, err := l.replay(ctx)
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", cfg.Bucket, err)
	}
	if n := len(st.epochs); n > 0 && st.epochs[n-1].epoch > cfg.LeaderEpoch {
		return nil, fmt.Errorf("open log %s under epoch %d: the log has epoch %d: %w", cfg.Bucket, cfg.LeaderEpoch, st.epochs[n-1].epoch, mink.ErrFenced)
	}
	l.mu.st, l.openedAt = st, st.end
	s.SeedCheckpoint(encodeCheckpoint(st), st.end)
	return l, nil
}

func (l *Log) replay(ctx context.Context) (*state, error) {
	data, at, err := l.s.Checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	st := newState(at)
	if len(data) > 0 {
		if st, err = decodeCheckpoint(data); err != nil {
			return nil, err
		}
		if st.end > at {
			return nil, fmt.Errorf("checkpoint for offset %d was kept for %d: %w", st.end, at, mink.ErrCorrupt)
		}
		st.end = at // past it only by an allowed gap
	}
	end := l.s.LogEnd()
	for from := at; from < end; {
		res, err := l.s.Read(ctx, stream.ReadRequest{From: from, MaxBytes: l.cfg.ReplayBytes})
		if err != nil {
			return nil, err
		}
		if res.Next <= from {
			return nil, fmt.Errorf("replay stands at offset %d of %d: %w", from, end, mink.ErrUnavailable)
		}
		for i := range res.Frames {
			f := &res.Frames[i]
			if f.End() <= at {
				continue
			}
			if err := st.applyFrame(f); err != nil {
				return nil, err
			}
		}
		from = res.Next
	}
	st.end = end
	return st, nil
}

// Reconfigure takes over cfg's schema versions and options after the table was
// altered, and whether its partition is closed; the rest of cfg is not looked at.
// Known versions do not change. Appends under a version that is not here yet
// answer mink.ErrUnavailable. After Closed no append passes: the log's end is its
// last one.
func (l *Log) Reconfigure(cfg Config) error {
	next := &settings{options: cfg.Options, closed: cfg.Closed}
	if old := l.settings.Load(); old != nil {
		next.layouts = slices.Clone(old.layouts)
	}
	for _, s := range cfg.Schemas[min(len(next.layouts), len(cfg.Schemas)):] {
		lay, err := newLayout(s)
		if err != nil {
			return fmt.Errorf("bucket %s: %w", l.cfg.Bucket, err)
		}
		next.layouts = append(next.layouts, lay)
	}
	l.mu.Lock() // no append is halfway
	defer l.mu.Unlock()
	l.settings.Store(next)
	return nil
}

// ReadRequest asks for whole batches from the one that holds From.
type ReadRequest struct {
	From     mink.Offset
	MaxBytes int  // soft: the first batch is returned whatever its size
	Cached   bool // mink.ErrNotCached instead of touching the store
}

// ReadResult is a run of batches below the high watermark. Next is where to go
// on; it may lie past the last batch (a gap).
type ReadResult struct {
	Batches       []record.Batch
	Next          mink.Offset
	LogStart      mink.Offset
	HighWatermark mink.Offset
}

// Read answers batches from the one that holds r.From; none at the high
// watermark. Batches are shared and immutable, and may begin below From.
// Errors: *mink.OutOfRangeError, mink.ErrNotCached, mink.ErrCorrupt,
// mink.ErrUnavailable, mink.ErrClosed, mink.ErrFenced.
func (l *Log) Read(ctx context.Context, r ReadRequest) (ReadResult, error) {
	if err := l.usable(); err != nil {
		return ReadResult{}, err
	}
	res, err := l.s.Read(ctx, stream.ReadRequest{From: r.From, MaxBytes: r.MaxBytes, Cached: r.Cached})
	if err == nil {
		err = l.visible.cut(r.From, &res)
	}
	out := ReadResult{Next: res.Next, LogStart: res.Start, HighWatermark: res.HighWatermark}
	if err != nil {
		return out, fmt.Errorf("read bucket %s at %d: %w", l.cfg.Bucket, r.From, err)
	}
	if len(res.Frames) > 0 {
		out.Batches = make([]record.Batch, len(res.Frames))
	}
	for i := range res.Frames {
		if out.Batches[i], err = viewFrame(&res.Frames[i]); err != nil {
			return ReadResult{}, fmt.Errorf("read bucket %s: %w", l.cfg.Bucket, err)
		}
	}
	return out, nil
}

func (l *Log) usable() error {
	if l.closed.Load() {
		return fmt.Errorf("bucket %s: %w", l.cfg.Bucket, mink.ErrClosed)
	}
	return nil
}

// Bucket names the bucket.
func (l *Log) Bucket() mink.BucketRef { return l.cfg.Bucket }

// LogStart is the first offset that is kept.
func (l *Log) LogStart() mink.Offset { return l.s.Start() }

// HighWatermark is the end of what is durable and readable. Of a primary-key
// bucket it is also the end of what can be looked up.
func (l *Log) HighWatermark() mink.Offset { return l.visible.of(l.s.HighWatermark()) }

// LogEnd is the next offset to be assigned.
func (l *Log) LogEnd() mink.Offset { return l.s.LogEnd() }

// LeaderEpoch is the epoch this log was opened under.
func (l *Log) LeaderEpoch() mink.LeaderEpoch { return l.cfg.LeaderEpoch }

// Changed is closed at the next advance of the high watermark, at a trim and
// when the stream closes.
func (l *Log) Changed() <-chan struct{} {
	if c := l.visible.changed(); c != nil {
		return c
	}
	return l.s.Changed()
}

// EpochEnd answers Kafka's OffsetForLeaderEpoch: the largest epoch <= epoch
// under which this log was led, and the offset where it ended. The current
// epoch ends at the high watermark. (-1, -1) for an epoch newer than this log's.
// For one older than all that is known: that epoch and the first known start.
func (l *Log) EpochEnd(epoch mink.LeaderEpoch) (mink.LeaderEpoch, mink.Offset) {
	if epoch > l.cfg.LeaderEpoch || epoch < 0 {
		return -1, -1
	}
	hw := l.HighWatermark()
	if epoch == l.cfg.LeaderEpoch {
		return epoch, hw
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Below this epoch the log ended where it was opened, at the latest.
	known, at, ok := l.mu.st.epochEnd(epoch, l.openedAt)
	if !ok {
		return epoch, at
	}
	return known, at
}

// EpochAt answers the leader epoch under which an offset was appended; for the
// log's end the current one; -1 when that is not known any more.
func (l *Log) EpochAt(at mink.Offset) mink.LeaderEpoch {
	if at >= l.openedAt {
		return l.cfg.LeaderEpoch
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.st.epochAt(at)
}

// Trim raises the log's start, as far as the metadata lets it.
func (l *Log) Trim(ctx context.Context, to mink.Offset) error {
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.s.Trim(ctx, to); err != nil {
		return fmt.Errorf("trim bucket %s to %d: %w", l.cfg.Bucket, to, err)
	}
	return nil
}

// Discard is Trim that does not wait for sinks which took nothing since giveUpMs, ms
// of the metadata clock: they will lack what it lets go of.
func (l *Log) Discard(ctx context.Context, to mink.Offset, giveUpMs int64) error {
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.s.Discard(ctx, to, giveUpMs); err != nil {
		return fmt.Errorf("trim bucket %s to %d: %w", l.cfg.Bucket, to, err)
	}
	return nil
}

// OlderThan is the offset behind the batches that were committed before a time, ms.
func (l *Log) OlderThan(ctx context.Context, ms int64) (mink.Offset, error) {
	f, ok, err := l.s.OffsetForTimestamp(ctx, ms, true)
	switch {
	case err != nil:
		return 0, fmt.Errorf("records of bucket %s before %d: %w", l.cfg.Bucket, ms, err)
	case ok:
		return f.Start, nil
	}
	return l.HighWatermark(), nil
}

// RetentionPoint is the offset below which retention lets go at nowMs: batches
// that were committed longer than log_ttl ago, and those that the newest
// log_max_bytes do without (up to an eighth more is kept; of a compacted topic, what is
// not uploaded yet). It only proposes; Trim acts. A topic that is only compacted keeps
// everything.
func (l *Log) RetentionPoint(ctx context.Context, nowMs int64) (mink.Offset, error) {
	o := l.settings.Load().options
	point, hw := l.s.Start(), l.HighWatermark()
	if o.CompactOnly {
		return point, nil
	}
	if o.LogTTL > 0 && hw > point {
		old, err := l.OlderThan(ctx, nowMs-int64(o.LogTTL/time.Millisecond))
		if err != nil {
			return point, fmt.Errorf("retention: %w", err)
		}
		point = max(point, min(old, hw))
	}
	if o.LogMaxBytes > 0 && o.Compact { // the ladder counts what was appended, not what is left
		at, ok, err := l.s.OffsetForBytes(ctx, o.LogMaxBytes)
		if err != nil {
			return point, fmt.Errorf("retention of bucket %s: %w", l.cfg.Bucket, err)
		}
		if ok {
			point = max(point, at)
		}
	} else if o.LogMaxBytes > 0 {
		l.mu.Lock()
		at, ok := l.mu.st.sizes.keep(o.LogMaxBytes)
		l.mu.Unlock()
		if ok {
			point = max(point, min(at, hw))
		}
	}
	return point, nil
}

// KeptBytes is about how many bytes the kept log has: up to an eighth or 1 MiB,
// whatever is more, too many, and what was trimmed of a part that was cleaned. What the
// store adds is not in it.
func (l *Log) KeptBytes() int64 {
	start, cleaned := l.s.Start(), int64(0)
	if _, c, err := l.s.CleanLimit(); err == nil && c.End > start {
		start, cleaned = c.End, c.Bytes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if start >= l.mu.st.end {
		return cleaned
	}
	return cleaned + l.mu.st.sizes.from(start)
}

// Close refuses further calls; what was appended completes. It does not close
// the stream, which is the caller's.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed.Store(true)
}
