package stream

import (
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Config of an engine. Default fits the WAL's store; the zero value is invalid.
type Config struct {
	// WALIdleWait is how long an idle engine waits for company before it seals a
	// bulk. 5 ms in a cloud, 0.5 ms on a local directory.
	WALIdleWait time.Duration
	// WALBatchInterval is the least time between two bulks under load: it bounds
	// the PUTs per second, which are the bill. 200 ms in a cloud, less where PUTs are
	// quick, 5 ms on a local directory.
	WALBatchInterval time.Duration
	// WALBatchBytes seals a bulk at once when it holds so many. 4 MiB.
	WALBatchBytes int64
	// WALBulkBytesMax refuses appends (mink.ErrThrottled) to a bulk that cannot be
	// sealed because the WAL's window is full. 32 MiB, at most an eighth of
	// LogCacheBytes.
	WALBulkBytesMax int64
	// WALWindow is the most unacknowledged bulks. 8; recovery relies on it.
	WALWindow int
	// WALGiveUpAfter ends the epoch when a bulk is unacknowledged for so long:
	// 2 x the lease's TTL. 60 s.
	WALGiveUpAfter time.Duration

	// RecordBytesMax is the longest frame. 16 MiB.
	RecordBytesMax int64

	// LogCacheBytes bounds the tail kept in memory. Appends are refused at 95 % of
	// it, uploads burst at 70 %, one stream holds at most 25 % not yet uploaded.
	// A quarter of the memory limit, at most 1 GiB.
	LogCacheBytes int64
	// BlockCacheBytes bounds decoded blocks of cold reads. An eighth of the memory
	// limit, at most 512 MiB.
	BlockCacheBytes int64
	// IndexCacheBytes bounds parsed object indexes. 64 MiB.
	IndexCacheBytes int64
	// ReadaheadMin and ReadaheadMax bound how far a sequential cold reader fetches
	// ahead; it doubles from one to the other. 512 KiB, 8 MiB.
	ReadaheadMin, ReadaheadMax int64
	// ReadaheadBudget bounds the bytes that all readers fetch ahead at a time. 64 MiB.
	ReadaheadBudget int64

	// WALUploadInterval is how often acknowledged bulks become stream objects. 10 s.
	WALUploadInterval time.Duration
	// UploadBytes starts an upload early. 192 MiB, at most 70 % of LogCacheBytes.
	UploadBytes int64
	// StreamObjectBytes gives a stream an object of its own in an upload. 16 MiB.
	StreamObjectBytes int64

	// CompactInterval is how often a merge is looked for. 1 min.
	CompactInterval time.Duration
	// Compaction says what is merged.
	Compaction plan.CompactionPolicy
	// CompactReadBytes is the buffer of one merge input. 1 MiB.
	CompactReadBytes int64
	// CompactPartBytes is how much of a merge's output is in memory at a time, where
	// the store takes objects in parts: larger parts are fewer requests. 32 MiB.
	CompactPartBytes int64

	// CleanInterval is how often destroyed objects are looked at. 30 s.
	CleanInterval time.Duration
	// DestroyGrace is the least time between an object's destruction and its
	// deletion. 5 min.
	DestroyGrace time.Duration
	// ReadTimeout is the longest that a read may use a view that it took. 2 min.
	ReadTimeout time.Duration
	// SweepInterval is how often the prefixes of ended epochs are listed. 1 h.
	SweepInterval time.Duration
	// OrphanAge is the least age, by the store's clock, of an orphan that is
	// deleted. 1 h.
	OrphanAge time.Duration

	// RetryMin and RetryMax bound the pause before a failed background job is
	// tried again; it doubles, with jitter. 100 ms, 10 s.
	RetryMin, RetryMax time.Duration
	// DrainTimeout bounds what Run does after its context ended: acknowledge what
	// was admitted, upload it. 20 s.
	DrainTimeout time.Duration
}

// Default fits the WAL's store and a memory limit in bytes (0: 4 GiB).
func Default(wal objstore.Capabilities, memory int64) Config {
	if memory <= 0 {
		memory = 4 << 30
	}
	c := Config{
		WALIdleWait: 5 * time.Millisecond, WALBatchInterval: 200 * time.Millisecond,
		WALBatchBytes: 4 << 20, WALBulkBytesMax: 32 << 20, WALWindow: 8, WALGiveUpAfter: time.Minute,
		RecordBytesMax: 16 << 20,
		LogCacheBytes:  min(max(memory/4, 32<<20), 1<<30), BlockCacheBytes: min(memory/8, 512<<20), IndexCacheBytes: min(memory/16, 64<<20),
		ReadaheadMin: 512 << 10, ReadaheadMax: 8 << 20, ReadaheadBudget: 64 << 20,
		WALUploadInterval: 10 * time.Second, UploadBytes: 192 << 20, StreamObjectBytes: 16 << 20,
		CompactInterval: time.Minute, Compaction: plan.DefaultCompaction(), CompactReadBytes: 1 << 20, CompactPartBytes: 32 << 20,
		CleanInterval: 30 * time.Second, DestroyGrace: 5 * time.Minute, ReadTimeout: 2 * time.Minute,
		SweepInterval: time.Hour, OrphanAge: time.Hour,
		RetryMin: 100 * time.Millisecond, RetryMax: 10 * time.Second, DrainTimeout: 20 * time.Second,
	}
	switch {
	case wal.Local:
		c.WALIdleWait, c.WALBatchInterval = 500*time.Microsecond, 5*time.Millisecond
	case wal.PutLatency > 0:
		c.WALBatchInterval = min(max(4*wal.PutLatency, 20*time.Millisecond), 200*time.Millisecond)
	}
	c.UploadBytes = min(c.UploadBytes, c.LogCacheBytes*7/10)
	// A bulk takes its memory once more while it is sealed.
	c.WALBulkBytesMax = max(min(c.WALBulkBytesMax, c.LogCacheBytes/8), c.WALBatchBytes)
	return c
}

// Validate names the first field that cannot work.
func (c Config) Validate() error {
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"WALIdleWait", c.WALIdleWait >= 0}, {"WALBatchInterval", c.WALBatchInterval >= 0},
		{"WALBatchBytes", c.WALBatchBytes > 0}, {"WALBulkBytesMax", c.WALBulkBytesMax >= c.WALBatchBytes},
		{"WALWindow", c.WALWindow >= 1 && c.WALWindow <= 1024}, {"WALGiveUpAfter", c.WALGiveUpAfter > 0},
		{"RecordBytesMax", c.RecordBytesMax > 0 && c.RecordBytesMax <= object.MaxBody/2},
		{"LogCacheBytes", c.throttleAt() >= c.RecordBytesMax+slabMax}, // or the longest frame never fits
		{"BlockCacheBytes", c.BlockCacheBytes >= 0}, {"IndexCacheBytes", c.IndexCacheBytes >= 0},
		{"ReadaheadMin", c.ReadaheadMin > 0}, {"ReadaheadMax", c.ReadaheadMax >= c.ReadaheadMin}, {"ReadaheadBudget", c.ReadaheadBudget >= 0},
		{"WALUploadInterval", c.WALUploadInterval > 0}, {"UploadBytes", c.UploadBytes > 0}, {"StreamObjectBytes", c.StreamObjectBytes > 0},
		{"CompactInterval", c.CompactInterval > 0}, {"CompactReadBytes", c.CompactReadBytes > 0}, {"CompactPartBytes", c.CompactPartBytes > 0},
		{"Compaction", c.Compaction.Inputs >= 2 && c.Compaction.Tiers >= 2 && c.Compaction.InputsMax >= c.Compaction.Inputs && c.Compaction.BytesMax > 0 && c.Compaction.ObjectBytes > 0 && c.Compaction.StreamBytes > 0},
		{"CleanInterval", c.CleanInterval > 0}, {"DestroyGrace", c.DestroyGrace >= 0}, {"ReadTimeout", c.ReadTimeout > 0},
		{"SweepInterval", c.SweepInterval > 0}, {"OrphanAge", c.OrphanAge >= 0},
		{"RetryMin", c.RetryMin > 0}, {"RetryMax", c.RetryMax >= c.RetryMin}, {"DrainTimeout", c.DrainTimeout >= 0},
	} {
		if !f.ok {
			return fmt.Errorf("stream config: %s is out of range in %+v: %w", f.name, c, mink.ErrInvalid)
		}
	}
	return nil
}

// throttleAt, burstAt and streamMax are the marks of back-pressure, bytes.
func (c Config) throttleAt() int64 { return c.LogCacheBytes * 95 / 100 }
func (c Config) burstAt() int64    { return c.LogCacheBytes * 70 / 100 }
func (c Config) streamMax() int64  { return c.LogCacheBytes / 4 }

var errNoDeps = errors.New("a store, a WAL store and a Meta are needed")
