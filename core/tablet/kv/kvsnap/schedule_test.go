package kvsnap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Case 18 of real systems: a jitter that came out as 0 switched a bucket's snapshots
// off for ever.
func TestDelayIsNeverNothing(t *testing.T) {
	check := func(interval time.Duration, stream mink.StreamID) {
		if d := Delay(interval, stream); d <= 0 || d > interval || d < interval-interval/5-1 {
			t.Fatalf("interval %v, stream %d: %v", interval, stream, d)
		}
	}
	different := map[time.Duration]bool{}
	for stream := range mink.StreamID(10_000) {
		for _, interval := range []time.Duration{1, 2, 4, 5, 6, time.Millisecond, time.Second, 10 * time.Minute, 1<<63 - 1} {
			check(interval, stream)
		}
		different[Delay(10*time.Minute, stream)] = true
	}
	if len(different) < 9000 {
		t.Errorf("%d delays for 10,000 buckets", len(different))
	}
	rapid.Check(t, func(r *rapid.T) {
		check(time.Duration(rapid.Int64Range(1, 1<<62).Draw(r, "interval")), mink.StreamID(rapid.Int64().Draw(r, "stream")))
	})
}

// testStore is a store that is a list of files.
type testStore struct {
	flushed  mink.Offset
	appended int64
	sizes    []int64 // of the log, by offset
	fail     error
	taken    []mink.Offset
	asked    int
}

func (s *testStore) Checkpoint(_ context.Context, dir string) (mink.Offset, int64, error) {
	if s.fail != nil {
		return 0, 0, s.fail
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, 0, err
	}
	s.taken = append(s.taken, s.flushed)
	return s.flushed, 1, errors.Join(
		os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.sst", s.flushed)), content(uint64(s.flushed), 20), 0o600),
		os.WriteFile(filepath.Join(dir, "OPTIONS"), nil, 0o600))
}

func (s *testStore) Flushed() mink.Offset { return s.flushed }
func (s *testStore) Appended() int64      { return s.appended }
func (s *testStore) LogBytes(_ context.Context, from, to mink.Offset) (n int64, err error) {
	s.asked++
	for _, size := range s.sizes[from:to] {
		n += size
	}
	return n, nil
}

// put is n bytes of changes, committed to the log.
func (s *testStore) put(t *testing.T, m *fakeMeta, n int64) {
	s.flushed++
	s.appended += n
	s.sizes = append(s.sizes, n)
	m.append(t, s.flushed)
}

type schedule struct {
	*Scheduler[*testStore]
	t       *testing.T
	m       *fakeMeta
	store   *testStore
	faults  *fault.Store
	open    bool
	dir     string
	lastErr error
}

func newSchedule(t *testing.T, cfg SchedulerConfig) *schedule {
	s := &schedule{t: t, m: newMeta(t), store: &testStore{}, open: true, dir: t.TempDir()}
	s.faults = fault.New(memstore.New(memstore.Config{PageMax: 2}), fault.Config{})
	s.Scheduler = NewScheduler(cfg, SchedulerDeps[*testStore]{
		Meta: s.m, Objects: s.faults, Nonce: 5, Dir: func() (string, error) { return s.dir, nil }, Logger: slog.New(slog.DiscardHandler),
		Sources: func() []Source[*testStore] { return []Source[*testStore]{s.source()} },
	})
	return s
}

func (s *schedule) source() Source[*testStore] {
	st, _ := s.m.View().Stream(1)
	return Source[*testStore]{Bucket: testBucket, Stream: 1, Epoch: st.Owner.LeaderEpoch, Open: s.open, Store: s.store}
}

// pass looks every second for so long.
func (s *schedule) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second)
		s.lastErr = s.Run(s.t.Context())
	}
	if left, _ := os.ReadDir(s.dir); len(left) != 0 {
		s.t.Fatalf("a checkpoint was left behind: %v", left)
	}
}

func (s *schedule) want(n int) {
	s.t.Helper()
	if got := committed(s); got != n || s.Stats(1).Taken != int64(n) {
		s.t.Fatalf("%d snapshots, %d were expected: %+v, %v", got, n, s.Stats(1), s.lastErr)
	}
}

func TestSnapshotsWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(t, DefaultScheduler())
		s.pass(20 * time.Minute)
		s.want(0) // nothing has changed
		s.store.put(t, s.m, 10)
		s.pass(Delay(10*time.Minute, 1) - 2*time.Second)
		s.want(0)
		s.pass(4 * time.Second)
		s.want(1)
		s.pass(time.Hour)
		s.want(1)
		s.store.put(t, s.m, 64<<20-1)
		s.pass(time.Minute)
		s.want(1)
		s.store.put(t, s.m, 1)
		s.pass(2 * time.Second)
		s.want(2)
		for range 100 {
			s.store.put(t, s.m, 1<<20)
			s.pass(time.Second)
		}
		s.want(3)
		if n := len(s.m.View().KVSnapshots(1)); n != 2 {
			t.Fatalf("%d are retained", n)
		}
		sound(t, s.m, s.faults)
		if s.store.asked > 8 {
			t.Errorf("the log's size was asked for %d times", s.store.asked)
		}
		// Closed: nothing can be taken. Opened again behind much replay: at once.
		s.open = false
		s.store.put(t, s.m, 100<<20)
		s.pass(time.Hour)
		s.want(3)
		_ = s.faults.Close()
	})
}

// Somebody deletes files of the snapshots of a bucket that does not change: its leader
// notices, opens the store if it is closed, and makes all retained snapshots whole.
func TestMissingFilesAreUploadedAgain(t *testing.T) {
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprint("closed ", closed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSchedule(t, DefaultScheduler())
				opens := 0
				s.deps.Open = func(_ context.Context, bucket mink.BucketRef) error {
					if bucket == testBucket {
						s.open = true
						opens++
					}
					return nil
				}
				for range 2 {
					s.store.put(t, s.m, 64<<20)
					s.pass(2 * time.Second)
				}
				s.want(2)
				newest, _ := s.m.View().KVBucket(1).Newest()
				remove := func(f kvplan.File) {
					if r, err := s.faults.DeleteBatch(t.Context(), []string{kvplan.BucketFile{Bucket: testBucket, File: f}.Key()}); err != nil || r.Errors[0] != nil {
						t.Fatal(r, err)
					}
				}
				s.open = !closed
				s.pass(3 * time.Hour)
				s.want(2) // nothing is missing, and nothing is opened
				if opens != 0 {
					t.Fatal("opened for nothing")
				}
				remove(newest.Files[1])
				s.faults.Inject(fault.Rule{Ops: fault.List, Times: 9, Do: fault.FailBefore(objstore.ErrUnavailable)})
				s.pass(3 * time.Hour)
				s.want(4)
				sound(t, s.m, s.faults)
				if closed != (opens > 0) {
					t.Fatal("opens:", opens)
				}
				if now, _ := s.m.View().KVBucket(1).Newest(); now.Offset != newest.Offset {
					t.Fatalf("%+v", now)
				}
				remove(s.m.View().KVSnapshots(1)[0].Head()) // of the older one
				s.pass(3 * time.Hour)
				sound(t, s.m, s.faults)
				_ = s.faults.Close()
			})
		})
	}
}

// What was replayed when the store opened counts.
func TestReplayedChangesAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(t, DefaultScheduler())
		s.store.put(t, s.m, 65<<20)
		s.store.appended = 0
		s.pass(2 * time.Second)
		s.want(1)
		_ = s.faults.Close()
	})
}

func TestFailuresBackOffAndShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(t, DefaultScheduler())
		s.store.put(t, s.m, 65<<20)
		s.faults.Inject(fault.Rule{Ops: fault.Put, Do: fault.FailBefore(objstore.ErrNoSpace)})
		s.pass(10 * time.Minute)
		n := len(s.store.taken)
		if n < 5 || n > 9 { // 5 s, 10 s, 20 s, ...
			t.Fatalf("%d tries in ten minutes", n)
		}
		if e := s.Stats(1).LastError; !strings.Contains(e, "full") || !strings.Contains(e, testBucket.String()) {
			t.Fatal(e)
		}
		s.faults.ClearRules()
		s.pass(10 * time.Minute)
		s.want(1)
		if s.Stats(1).LastError != "" {
			t.Fatal(s.Stats(1))
		}
		sound(t, s.m, s.faults)

		// A commit whose answer is lost is no snapshot more, and none less.
		s.store.put(t, s.m, 65<<20)
		s.m.loseNext(errors.New("connection reset"))
		s.pass(2 * time.Second)
		if s.Stats(1).LastError == "" || s.m.View().KVBucket(1).LastID != 2 {
			t.Fatal(s.Stats(1))
		}
		s.store.put(t, s.m, 65<<20)
		s.pass(time.Minute)
		if s.m.View().KVBucket(1).LastID != 3 || s.Stats(1).LastError != "" {
			t.Fatal(s.Stats(1))
		}
		sound(t, s.m, s.faults)
		_ = s.faults.Close()
	})
}

// busyStore is written to without a pause: a checkpoint of it is always ahead of what the
// log has uploaded.
type busyStore struct{ testStore }

func (s *busyStore) Checkpoint(ctx context.Context, dir string) (mink.Offset, int64, error) {
	s.flushed++
	return s.testStore.Checkpoint(ctx, dir)
}

// The log is uploaded every few seconds. One upload is enough for all that are due:
// one upload each would leave a node with hundreds of busy buckets behind for ever.
func TestCommitsWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const buckets = 5
		m, objects, dir := newMetaOf(t, buckets), fault.New(memstore.New(memstore.Config{}), fault.Config{}), t.TempDir()
		defer objects.Close()
		var sources []Source[*busyStore]
		for i := range buckets {
			ref := testBucket
			ref.Index = int32(i)
			sources = append(sources, Source[*busyStore]{Bucket: ref, Stream: mink.StreamID(i + 1), Epoch: 1, Open: true, Store: &busyStore{testStore{flushed: 1, sizes: []int64{65 << 20}}}})
		}
		s := NewScheduler(DefaultScheduler(), SchedulerDeps[*busyStore]{
			Meta: m, Objects: objects, Nonce: 5, Dir: func() (string, error) { return dir, nil }, Logger: slog.New(slog.DiscardHandler),
			Sources: func() []Source[*busyStore] { return sources },
		})
		done := make(chan error)
		go func() { done <- s.Run(t.Context()) }()
		synctest.Wait()
		for _, src := range sources {
			if s.Stats(src.Stream).Running.IsZero() || len(src.Store.taken) != 1 {
				t.Errorf("bucket %s waits for another one's commit", src.Bucket)
			}
		}
		for range buckets { // the rest, if the test has failed
			for _, src := range sources {
				m.appendTo(t, src.Stream, src.Store.flushed)
			}
			synctest.Wait()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for _, src := range sources {
			if n := len(m.View().KVSnapshots(src.Stream)); n != 1 || s.Stats(src.Stream).Taken != 1 {
				t.Errorf("bucket %s has %d snapshots, %+v", src.Bucket, n, s.Stats(src.Stream))
			}
		}
	})
}

// A leadership that ends takes what is known of it along; its store's errors are
// nobody's concern.
func TestLeadershipsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(t, DefaultScheduler())
		s.store.put(t, s.m, 65<<20)
		s.pass(2 * time.Second)
		s.want(1)
		s.store.put(t, s.m, 65<<20)
		s.store.fail = mink.ErrClosed
		s.pass(2 * time.Second)
		if s.lastErr != nil || s.Stats(1).LastError != "" {
			t.Fatal(s.lastErr)
		}
		s.store.fail = nil
		s.m.failOver(t)
		s.pass(5 * time.Second)
		if s.Stats(1).Taken != 1 || s.m.View().KVBucket(1).Epoch != 2 {
			t.Fatalf("%+v", s.Stats(1))
		}
		sound(t, s.m, s.faults)
		_ = s.faults.Close()
	})
}

// A store with changes gets a snapshot before it closes, or at least the try.
func TestMayClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(t, DefaultScheduler())
		if !s.MayClose(s.source()) {
			t.Fatal("it has no changes")
		}
		s.store.put(t, s.m, 1)
		if s.MayClose(s.source()) {
			t.Fatal("it has changes")
		}
		s.pass(2 * time.Second)
		s.want(1)
		if !s.MayClose(s.source()) {
			t.Fatal("its changes are in a snapshot")
		}
		s.store.put(t, s.m, 1)
		s.faults.Inject(fault.Rule{Ops: fault.Put, Times: 2, Do: fault.FailBefore(objstore.ErrNoSpace)})
		for range 2 {
			if s.MayClose(s.source()) {
				t.Fatal("it has changes again")
			}
			s.pass(6 * time.Second)
		}
		if s.MayClose(s.source()) {
			t.Fatal("a try that failed was the last")
		}
		s.pass(20 * time.Second)
		s.want(2)
		s.store.put(t, s.m, 1)
		s.faults.Inject(fault.Rule{Ops: fault.Put, Do: fault.FailBefore(objstore.ErrNoSpace)})
		for range closeTries {
			if s.MayClose(s.source()) {
				t.Fatal("it has changes once more")
			}
			s.pass(time.Minute)
		}
		if !s.MayClose(s.source()) {
			t.Fatal("a store that is full keeps it open")
		}
		_ = s.faults.Close()
	})
}

func TestSchedulerConfig(t *testing.T) {
	for name, change := range map[string]func(*SchedulerConfig){
		"interval": func(c *SchedulerConfig) { c.Interval = 0 }, "bytes": func(c *SchedulerConfig) { c.Bytes = 0 },
		"none retained": func(c *SchedulerConfig) { c.Retained = 0 }, "too many": func(c *SchedulerConfig) { c.Retained = 11 },
		"transfer": func(c *SchedulerConfig) { c.Transfer.Requests = 0 },
	} {
		c := DefaultScheduler()
		change(&c)
		if err := c.Validate(); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := DefaultScheduler().Validate(); err != nil {
		t.Error(err)
	}
}

func committed(s *schedule) int {
	if b := s.m.View().KVBucket(1); b != nil {
		return int(b.LastID)
	}
	return 0
}
