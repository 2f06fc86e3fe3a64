package kv

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// SharedConfig is what the stores of a node share. Start from DefaultShared.
type SharedConfig struct {
	// CacheBytes bounds the blocks of all stores in memory together with their
	// memtables, which take their room from it. Default 256 MiB.
	CacheBytes int64
	// MemtableBytes is what one store gathers before it writes a file; a store that
	// takes no writes holds a sixteenth of it. Default 4 MiB.
	MemtableBytes int64
	// OpenFiles bounds the table files that all stores keep open. Default 2000.
	OpenFiles int
	// CompactionsMax bounds the compactions of all stores at a time. Default 2.
	CompactionsMax int
	// PendingBytesMax bounds the rows of all tablets that wait for the log. Default
	// 256 MiB.
	PendingBytesMax int64
	// Inflation bounds the compressed puts that are unpacked at a time; nil: one of
	// these stores alone, as tablet.DefaultInflation.
	Inflation *tablet.Inflation
	// OpensMax bounds the stores that open at a time: restore, or read the log. One that
	// waits for the log does not count. Default 16.
	OpensMax int
	Logger   *slog.Logger
}

// DefaultShared is the configuration for a node of about 1 GiB for its
// primary-key tables.
func DefaultShared() SharedConfig {
	return SharedConfig{
		CacheBytes: 256 << 20, MemtableBytes: 4 << 20, OpenFiles: 2000, CompactionsMax: 2, PendingBytesMax: 256 << 20,
		OpensMax: 16, Logger: slog.New(slog.DiscardHandler),
	}
}

// Validate names the first field that makes no sense.
func (c *SharedConfig) Validate() error {
	switch {
	case c.CacheBytes < 1<<20, c.MemtableBytes < 64<<10, c.MemtableBytes > 1<<30:
		return fmt.Errorf("kv: %w: CacheBytes is %d (1 MiB or more), MemtableBytes %d (64 KiB to 1 GiB)", mink.ErrInvalid, c.CacheBytes, c.MemtableBytes)
	case c.OpenFiles < 16, c.CompactionsMax < 1, c.PendingBytesMax < 1, c.OpensMax < 1, c.Logger == nil:
		return fmt.Errorf("kv: %w: OpenFiles must be 16 or more, CompactionsMax, PendingBytesMax and OpensMax 1 or more, Logger set", mink.ErrInvalid)
	}
	return nil
}

// Shared is the memory, the open files and the compactions that the stores of a
// node share. Safe for concurrent use.
type Shared struct {
	cfg     SharedConfig
	fs      vfs.FS // below the stores; tests have others
	cache   *pebble.Cache
	files   *pebble.FileCache
	compact *compactions
	pending budget
	inflate *tablet.Inflation
	opens   opens
	codecs  codecs
}

// opens bounds the stores that open at a time.
type opens chan struct{}

// opening is one store's part of it; it may begin and end again and again.
type opening struct {
	of opens
	is bool
}

func (o *opening) begin(ctx context.Context) error {
	select {
	case o.of <- struct{}{}:
		o.is = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o *opening) end() {
	if o.is {
		o.is = false
		<-o.of
	}
}

// codecs pools what checks and decodes messages.
type codecs struct{ check, arrow sync.Pool }

func (c *codecs) checker() *arrowipc.Checker {
	if k, ok := c.check.Get().(*arrowipc.Checker); ok {
		return k
	}
	return arrowipc.NewChecker(arrowipc.DefaultMaxBytes)
}

func (c *codecs) decoder() *arrowipc.Decoder {
	if d, ok := c.arrow.Get().(*arrowipc.Decoder); ok {
		return d
	}
	return arrowipc.NewDecoder(arrowipc.DefaultMaxBytes)
}

var allocator = memory.DefaultAllocator

// fileCacheShards is how many locks the open files are spread over.
const fileCacheShards = 8

// NewShared makes it. Close it after the last tablet.
func NewShared(cfg SharedConfig) (*Shared, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Shared{
		cfg:     cfg,
		fs:      vfs.Default,
		cache:   pebble.NewCache(cfg.CacheBytes),
		files:   pebble.NewFileCache(fileCacheShards, cfg.OpenFiles),
		compact: newCompactions(cfg.CompactionsMax),
		opens:   make(opens, cfg.OpensMax),
	}
	s.pending.max = cfg.PendingBytesMax
	if s.inflate = cfg.Inflation; s.inflate == nil {
		s.inflate = tablet.DefaultInflation()
	}
	return s, nil
}

// Close frees what is shared and waits for its goroutine.
func (s *Shared) Close() {
	s.compact.close()
	s.files.Unref()
	s.cache.Unref()
}

// SharedStats are figures of all stores.
type SharedStats struct {
	CacheBytes, CacheBytesMax int64 // blocks and memtables
	CacheHits, CacheMisses    int64
	Compactions               int   // running
	PendingBytes              int64 // of rows that wait for the log
}

// Stats answers a snapshot.
func (s *Shared) Stats() SharedStats {
	m := s.cache.Metrics()
	return SharedStats{
		CacheBytes: m.Size, CacheBytesMax: s.cache.MaxSize(), CacheHits: m.Hits, CacheMisses: m.Misses,
		Compactions: s.compact.count(), PendingBytes: s.pending.taken(),
	}
}

// budget is a number of bytes that may be taken at a time.
type budget struct {
	max int64
	mu  sync.Mutex
	now int64
}

// take takes n bytes if they are there, or if nothing else is taken.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now > 0 && b.now+n > b.max {
		return false
	}
	b.now += n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now -= n
}

func (b *budget) taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}
