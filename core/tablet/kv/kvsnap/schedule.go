package kvsnap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Store is the open store of a bucket.
type Store interface {
	comparable
	// Checkpoint copies the store to dir, which does not exist: offset is the first one
	// that is not in it, rows -1 when they are not counted.
	Checkpoint(ctx context.Context, dir string) (offset mink.Offset, rows int64, err error)
	// Flushed is the first offset that is not in the store.
	Flushed() mink.Offset
	// Appended is how many bytes of changelog came since it opened.
	Appended() int64
	// LogBytes is about how many bytes of log [from, to) has.
	LogBytes(ctx context.Context, from, to mink.Offset) (int64, error)
}

// Source is a primary-key bucket that this node leads.
type Source[S Store] struct {
	Bucket mink.BucketRef
	Stream mink.StreamID
	Epoch  mink.LeaderEpoch
	Open   bool
	Store  S // when Open
}

// SchedulerConfig says when snapshots are taken.
type SchedulerConfig struct {
	// Interval is how long a changed bucket goes without a snapshot; for each bucket
	// up to a fifth less, so that they do not come together. Default 10 m.
	Interval time.Duration
	// Bytes of changelog make a snapshot worth it before that. Default 64 MiB.
	Bytes int64
	// Retained is how many snapshots of a bucket are kept, 1 to kvplan.RetainMax.
	// Default 2: the one before is for when the newest is damaged.
	Retained int
	// Timeout bounds one snapshot; what it has uploaded by then is used by the next.
	// Default 30 m.
	Timeout time.Duration
	// RetryMin is the pause after a first failure, doubled with each up to Interval.
	// Default 5 s.
	RetryMin time.Duration
	// CheckInterval is how often the files of a bucket that has no new snapshot are looked
	// for, with one listing. What is missing makes a snapshot due. Default 1 h.
	CheckInterval time.Duration
	Transfer      Config
}

// DefaultScheduler is the configuration of a running node.
func DefaultScheduler() SchedulerConfig {
	return SchedulerConfig{Interval: 10 * time.Minute, Bytes: 64 << 20, Retained: 2, Timeout: 30 * time.Minute, RetryMin: 5 * time.Second, CheckInterval: time.Hour, Transfer: Default()}
}

// Validate names the first field that makes no sense.
func (c SchedulerConfig) Validate() error {
	switch {
	case c.Interval <= 0 || c.Bytes < 1 || c.Timeout <= 0 || c.RetryMin <= 0 || c.CheckInterval <= 0:
		return fmt.Errorf("KV snapshots: Interval, Bytes, Timeout, RetryMin and CheckInterval must be positive: %w", mink.ErrInvalid)
	case c.Retained < 1 || c.Retained > kvplan.RetainMax:
		return fmt.Errorf("KV snapshots: %d are retained, 1 to %d are possible: %w", c.Retained, kvplan.RetainMax, mink.ErrInvalid)
	}
	return c.Transfer.Validate()
}

// SchedulerDeps is what a Scheduler works on.
type SchedulerDeps[S Store] struct {
	Meta    Meta
	Objects objstore.Store
	Nonce   uint64                 // of the node's registration
	Sources func() []Source[S]     // the primary-key buckets led at the moment, open or not
	Dir     func() (string, error) // for checkpoints: on the stores' file system
	// Open opens a bucket's store: its snapshots lack files.
	Open   func(context.Context, mink.BucketRef) error
	Logger *slog.Logger
}

// Scheduler takes the snapshots of a node's buckets, those that are due, one upload at a
// time.
// What it knows of a bucket that it cannot rebuild from the view only makes it
// cheaper. Run has one caller; the rest is safe for concurrent use.
type Scheduler[S Store] struct {
	cfg  SchedulerConfig
	deps SchedulerDeps[S]

	mu      sync.Mutex
	buckets map[mink.StreamID]*progress[S]
}

// progress is what is known of a bucket under one leadership.
type progress[S Store] struct {
	epoch    mink.LeaderEpoch
	uploader *Uploader
	restored *Origin // for uploaders that are to come

	// Of the changes since snapshot `since`, of the store `store`:
	since   int64 // id of the newest snapshot; 0: none
	store   S
	counted bool
	base    int64     // bytes of log when the counting began
	began   int64     // Appended() then
	dirty   time.Time // since when it has changes; zero: it has none

	mend  bool      // retained snapshots lack files
	check time.Time // when they are looked for next

	hurry    bool      // the store is about to be closed
	failures int       // in a row
	retry    time.Time // not before
	stats    BucketStats
}

// BucketStats is what a bucket's snapshots are doing.
type BucketStats struct {
	Running       time.Time // since when one is made; zero: none is
	Taken         int64     // since this node leads the bucket
	UploadedFiles int64
	UploadedBytes int64
	LastError     string // of the last try; "": it succeeded
}

// NewScheduler makes a scheduler that has taken none.
func NewScheduler[S Store](cfg SchedulerConfig, deps SchedulerDeps[S]) *Scheduler[S] {
	return &Scheduler[S]{cfg: cfg, deps: deps, buckets: map[mink.StreamID]*progress[S]{}}
}

// Stats answers a bucket's figures.
func (s *Scheduler[S]) Stats(stream mink.StreamID) BucketStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.buckets[stream]; p != nil {
		return p.stats
	}
	return BucketStats{}
}

// Restored tells that the store of a leadership was made of a snapshot, or of the log
// because all were damaged: what RestoreNewest answered.
func (s *Scheduler[S]) Restored(stream mink.StreamID, epoch mink.LeaderEpoch, o Origin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of(stream, epoch)
	p.restored, p.uploader = &o, nil
}

// closeTries is how many tries at a snapshot a store is kept open for.
const closeTries = 3

// MayClose reports whether a store has nothing that a snapshot should have first. When
// it has, the next Run takes one; after closeTries that failed in a row the store may close
// all the same: the changes are in the log.
func (s *Scheduler[S]) MayClose(src Source[S]) bool {
	newest, _ := s.deps.Meta.View().KVBucket(src.Stream).Newest()
	if src.Store.Flushed() <= newest.Offset {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of(src.Stream, src.Epoch)
	if p.failures >= closeTries {
		return true
	}
	p.hurry = true
	return false
}

// of answers the leadership's progress. Under mu.
func (s *Scheduler[S]) of(stream mink.StreamID, epoch mink.LeaderEpoch) *progress[S] {
	p := s.buckets[stream]
	if p == nil || p.epoch != epoch {
		p = &progress[S]{epoch: epoch, check: time.Now().Add(Delay(s.cfg.CheckInterval, stream))}
		s.buckets[stream] = p
	}
	return p
}

// Delay is how long a changed bucket waits for its next snapshot: within (0, interval],
// at least four fifths of it. Which, is a bucket's own.
func Delay(interval time.Duration, stream mink.StreamID) time.Duration {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, stream)
	return interval - time.Duration(h.Sum64()%uint64(interval/5+1))
}

// Run takes a snapshot of every bucket that is due, the one with the most changes first.
// They are uploaded one after the other, which bounds memory and requests; their commits
// wait together, since each waits for the log's next upload, seconds later. One that
// fails is tried again later and stops no other.
func (s *Scheduler[S]) Run(ctx context.Context) error {
	sources := s.deps.Sources()
	s.prune(sources)
	var due []dueBucket[S]
	var errs []error
	for _, src := range sources {
		if err := s.lookForFiles(ctx, src); err != nil {
			errs = append(errs, err)
		}
		if !src.Open {
			continue
		}
		d, ok, err := s.look(ctx, src, time.Now())
		if err != nil {
			errs = append(errs, fmt.Errorf("changes of bucket %s: %w", src.Bucket, err))
		}
		if ok {
			due = append(due, d)
		}
	}
	slices.SortStableFunc(due, func(a, b dueBucket[S]) int { return cmp.Compare(b.bytes, a.bytes) })
	ended := make([]error, len(due))
	var commits sync.WaitGroup
	for i, d := range due {
		if ctx.Err() != nil {
			break
		}
		a := s.begin(d.source)
		if err := s.upload(ctx, a); err != nil {
			ended[i] = s.end(ctx, a, err)
			continue
		}
		commits.Go(func() { ended[i] = s.end(ctx, a, s.commit(ctx, a)) })
	}
	commits.Wait()
	return errors.Join(append(errs, ended...)...)
}

type dueBucket[S Store] struct {
	source Source[S]
	bytes  int64
}

// prune forgets the buckets that are led no more.
func (s *Scheduler[S]) prune(sources []Source[S]) {
	led := make(map[mink.StreamID]mink.LeaderEpoch, len(sources))
	for _, src := range sources {
		led[src.Stream] = src.Epoch
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.buckets {
		if epoch, ok := led[id]; !ok || epoch > p.epoch {
			delete(s.buckets, id)
		}
	}
}

// look reports whether a bucket is due.
func (s *Scheduler[S]) look(ctx context.Context, src Source[S], now time.Time) (dueBucket[S], bool, error) {
	newest, _ := s.deps.Meta.View().KVBucket(src.Stream).Newest()
	flushed, appended := src.Store.Flushed(), src.Store.Appended()
	s.mu.Lock()
	p := s.of(src.Stream, src.Epoch)
	if p.since != newest.ID || p.store != src.Store {
		p.since, p.store, p.counted = newest.ID, src.Store, false
	}
	if flushed <= newest.Offset {
		p.dirty, p.hurry = time.Time{}, false
		p.base, p.began, p.counted = 0, appended, true
		due := p.mend && !now.Before(p.retry)
		s.mu.Unlock()
		return dueBucket[S]{source: src}, due, nil
	}
	if p.dirty.IsZero() {
		p.dirty = now
	}
	count := !p.counted
	s.mu.Unlock()
	var err error
	if count { // once for a store and a snapshot: it reads indexes of objects
		var base int64
		base, err = src.Store.LogBytes(ctx, newest.Offset, flushed)
		s.mu.Lock()
		p.base, p.began, p.counted = base, appended, err == nil
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := dueBucket[S]{source: src}
	if p.counted {
		d.bytes = p.base + appended - p.began
	}
	due := p.hurry || p.mend || d.bytes >= s.cfg.Bytes || now.Sub(p.dirty) >= Delay(s.cfg.Interval, src.Stream)
	return d, due && !now.Before(p.retry), err
}

// lookForFiles lists the files of a bucket's retained snapshots when it is time to. What is
// missing makes a snapshot due, which uploads it anew; after as many as are retained none
// lacks it any more.
func (s *Scheduler[S]) lookForFiles(ctx context.Context, src Source[S]) error {
	now := time.Now()
	s.mu.Lock()
	p := s.of(src.Stream, src.Epoch)
	due, mend := !now.Before(p.check), p.mend
	if due {
		p.check = now.Add(Delay(s.cfg.CheckInterval, src.Stream))
	}
	s.mu.Unlock()
	retained := func() []kvplan.Snapshot { return s.deps.Meta.View().KVSnapshots(src.Stream) }
	if due && !mend && len(retained()) > 0 {
		there, err := filesThere(ctx, s.cfg.Transfer, s.deps.Objects, src.Bucket)
		if err != nil {
			return err
		}
		missing := there.missing(retained()) // as of now: a bucket that was dropped has none
		if mend = len(missing) > 0; mend {
			s.deps.Logger.Error("files of retained KV snapshots are not on the store: a new snapshot uploads them again", "bucket", src.Bucket.String(),
				"missing", len(missing), "first", kvplan.BucketFile{Bucket: src.Bucket, File: missing[0]}.Key())
		}
		s.mu.Lock()
		p.mend = mend
		s.mu.Unlock()
	}
	if !mend || src.Open {
		return nil
	}
	return s.deps.Open(ctx, src.Bucket)
}

// attempt is one try at a snapshot.
type attempt[S Store] struct {
	source   Source[S]
	progress *progress[S]
	began    time.Time
	result   Result
}

func (s *Scheduler[S]) begin(src Source[S]) *attempt[S] {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &attempt[S]{source: src, progress: s.of(src.Stream, src.Epoch), began: time.Now()}
	a.progress.stats.Running = a.began
	return a
}

// end notes what became of it.
func (s *Scheduler[S]) end(ctx context.Context, a *attempt[S], err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := a.progress
	p.stats.Running, p.stats.LastError = time.Time{}, ""
	p.stats.UploadedFiles += int64(a.result.Uploaded)
	p.stats.UploadedBytes += a.result.UploadedBytes
	p.hurry = false
	switch {
	case err == nil:
		p.failures, p.retry, p.dirty = 0, time.Time{}, time.Time{}
		if p.check = time.Now().Add(Delay(s.cfg.CheckInterval, a.source.Stream)); p.mend {
			p.mend, p.check = false, time.Now() // the snapshot before lacks them until it goes, too
		}
		p.stats.Taken++
		return nil
	case errors.Is(err, mink.ErrClosed), errors.Is(err, mink.ErrFenced), ctx.Err() != nil: // led elsewhere, or this node stops
		return nil
	case errors.Is(err, mink.ErrConflict), errors.Is(err, mink.ErrInvalid):
		p.uploader = nil // what it believes is not so
	}
	p.retry = time.Now().Add(min(s.cfg.RetryMin<<min(p.failures, 20), s.cfg.Interval))
	p.failures++
	p.stats.LastError = err.Error()
	return err
}

// upload makes a checkpoint and brings it to the store.
func (s *Scheduler[S]) upload(ctx context.Context, a *attempt[S]) error {
	ctx, cancel := context.WithDeadline(ctx, a.began.Add(s.cfg.Timeout))
	defer cancel()
	src := a.source
	u, err := s.uploader(src, a.progress)
	if err != nil {
		return err
	}
	parent, err := s.deps.Dir()
	if err != nil {
		return fmt.Errorf("KV snapshot of bucket %s: %w", src.Bucket, err)
	}
	dir := filepath.Join(parent, fmt.Sprintf("checkpoint-%d-%d", src.Stream, src.Epoch))
	if err := os.RemoveAll(dir); err != nil { // of a try that ended without a word
		return fmt.Errorf("KV snapshot of bucket %s: %w", src.Bucket, err)
	}
	offset, rows, err := src.Store.Checkpoint(ctx, dir)
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			s.deps.Logger.Error("a checkpoint was not removed", "bucket", src.Bucket.String(), "error", err)
		}
	}()
	if err != nil {
		return err
	}
	a.result, err = u.Upload(ctx, dir, offset, rows, s.deps.Meta.View().KVBucket(src.Stream))
	return err
}

// commit makes it count.
func (s *Scheduler[S]) commit(ctx context.Context, a *attempt[S]) error {
	ctx, cancel := context.WithDeadline(ctx, a.began.Add(s.cfg.Timeout))
	defer cancel()
	k := a.result.Snapshot
	id, err := Commit(ctx, s.deps.Meta, a.source.Stream, k, s.cfg.Retained)
	if err != nil {
		return err
	}
	s.deps.Logger.Info("KV snapshot taken", "bucket", a.source.Bucket.String(), "snapshot", id, "offset", k.Offset, "rows", k.Rows, "files", len(k.Files),
		"bytes", k.Bytes(), "uploaded_bytes", a.result.UploadedBytes, "took", time.Since(a.began).Round(time.Millisecond).String())
	return nil
}

func (s *Scheduler[S]) uploader(src Source[S], p *progress[S]) (*Uploader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.uploader == nil {
		u, err := NewUploader(s.cfg.Transfer, s.deps.Objects, src.Bucket, src.Epoch, s.deps.Nonce)
		if err != nil {
			return nil, err
		}
		if p.restored != nil {
			u.Restored(*p.restored)
		}
		p.uploader = u
	}
	return p.uploader, nil
}
