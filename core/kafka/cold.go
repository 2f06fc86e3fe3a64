package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// coldReads are the reads that had to go to the object store. They outlive the
// fetch that started them: that one answers at its MaxWait, and the client's
// next fetch of the same offset finds the read running or finished. Without
// that, a store slower than MaxWait would make no progress at all.
//
// A read belongs to one goroutine from start until it is claimed by a fetch,
// makes room for another one, or ColdKeep passes; ColdReadsMax bounds all of them
// together, and what they hold. The block cache has what was read, too: a fetch
// that comes back must look here first, or finished reads nobody claims take all
// the room and every consumer of cold data waits for ColdKeep.
type coldReads struct {
	ctx    context.Context
	cancel context.CancelFunc
	max    int
	keep   time.Duration
	log    *slog.Logger
	wg     sync.WaitGroup
	kept   atomic.Int32 // len(mu.reads)

	mu struct {
		sync.Mutex
		closed bool
		reads  map[coldKey]*coldRead
		ends   int           // reads that ended so far
		freed  chan struct{} // closed and replaced when a read leaves the map
	}
}

// coldKey names a read: batches below the high watermark never change, whoever
// leads the bucket.
type coldKey struct {
	bucket mink.BucketRef
	from   mink.Offset
}

type coldRead struct {
	key     coldKey
	done    chan struct{} // closed when res and err are there
	claimed chan struct{} // closed when somebody took them, or they made room
	end     int           // which one it was to end, from 1; 0: it runs. Under mu
	res     tablet.ReadResult
	err     error
}

func newColdReads(cfg Config, log *slog.Logger) *coldReads {
	c := &coldReads{max: cfg.ColdReadsMax, keep: cfg.ColdKeep, log: log}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.reads = make(map[coldKey]*coldRead)
	c.mu.freed = make(chan struct{})
	return c
}

// close ends all reads and waits for them.
func (c *coldReads) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
}

// start joins or starts the read. When there is no room it answers nil and a
// channel that closes once trying again makes sense.
func (c *coldReads) start(log Log, key coldKey, maxBytes int) (*coldRead, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.mu.reads[key]; ok {
		return r, nil
	}
	if c.mu.closed || len(c.mu.reads) >= c.max && !c.makeRoom() {
		return nil, c.mu.freed
	}
	r := &coldRead{key: key, done: make(chan struct{}), claimed: make(chan struct{})}
	c.mu.reads[key] = r
	c.kept.Store(int32(len(c.mu.reads)))
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		c.run(r, log, maxBytes)
	}()
	return r, nil
}

func (c *coldReads) run(r *coldRead, log Log, maxBytes int) {
	r.res, r.err = log.Read(c.ctx, tablet.ReadRequest{From: r.key.from, MaxBytes: maxBytes})
	if r.err != nil && !errors.Is(r.err, context.Canceled) {
		c.log.Warn("read from the object store for a Kafka fetch failed", "bucket", r.key.bucket, "offset", r.key.from, "error", r.err)
	}
	c.mu.Lock()
	c.mu.ends++
	r.end = c.mu.ends
	c.mu.Unlock()
	close(r.done)
	t := time.NewTimer(c.keep)
	defer t.Stop()
	select {
	case <-r.claimed:
	case <-t.C:
		c.remove(r)
	case <-c.ctx.Done():
		c.remove(r)
	}
}

// makeRoom lets the read go that has waited longest for its fetch: the block
// cache still has most of what it read. With mu held.
func (c *coldReads) makeRoom() bool {
	var oldest *coldRead
	for _, r := range c.mu.reads {
		if r.end > 0 && (oldest == nil || r.end < oldest.end) {
			oldest = r
		}
	}
	if oldest == nil {
		return false
	}
	c.forget(oldest)
	close(oldest.claimed)
	return true
}

// finished is the read of the key when it has ended, else nil.
func (c *coldReads) finished(key coldKey) *coldRead {
	if c.kept.Load() == 0 { // the usual case takes no lock
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.mu.reads[key]; r != nil && r.end > 0 {
		return r
	}
	return nil
}

// claim takes a finished read; later fetches of its offset start anew.
func (c *coldReads) claim(r *coldRead) (tablet.ReadResult, error) {
	if c.remove(r) {
		close(r.claimed)
	}
	return r.res, r.err
}

// remove reports whether r was still there.
func (c *coldReads) remove(r *coldRead) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.reads[r.key] != r {
		return false
	}
	c.forget(r)
	return true
}

// forget takes r out of the map. With mu held.
func (c *coldReads) forget(r *coldRead) {
	delete(c.mu.reads, r.key)
	c.kept.Store(int32(len(c.mu.reads)))
	close(c.mu.freed)
	c.mu.freed = make(chan struct{})
}
