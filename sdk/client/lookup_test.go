package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/sdk/mink"
)

type itemKey struct {
	Region string `mink:"region"`
	ID     int64  `mink:"id"`
}

func itemLookuper(t *testing.T, f *fake, change ...func(*LookupConfig)) *TypedLookuper[itemKey, item] {
	t.Helper()
	cfg := DefaultLookup()
	cfg.Allocator = checked(t)
	for _, c := range change {
		c(&cfg)
	}
	l, err := NewTypedLookuper[itemKey, item](t.Context(), f.client, "db.t", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// fill writes items 0 .. n-1 of one region.
func (f *fake) fill(region string, n int64) {
	f.t.Helper()
	w := itemWriter(f.t, f)
	for i := range n {
		if _, err := w.UpsertRows(f.t.Context(), item{Region: region, ID: i, N: ptr(i), Note: ptr(fmt.Sprint("note ", i))}); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := w.Close(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// Rows come in the order of the keys, whatever buckets and partitions they are in,
// and what is not there is told: a key, and a partition that nobody ever wrote to.
func TestLookupOfManyKeys(t *testing.T) {
	f := newFake(t, true)
	f.fill("eu", 20)
	f.fill("us", 20)
	l := itemLookuper(t, f, func(c *LookupConfig) { c.BatchKeys = 4 })
	var keys []itemKey
	for i := range int64(40) {
		keys = append(keys, itemKey{[]string{"us", "eu", "moon"}[i%3], 30 - i})
	}
	rows, found, err := l.FindAll(t.Context(), keys...)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		want := k.Region != "moon" && k.ID >= 0 && k.ID < 20
		if found[i] != want || want && (rows[i].Region != k.Region || *rows[i].N != k.ID || *rows[i].Note != fmt.Sprint("note ", k.ID)) {
			t.Errorf("key %v: found %v, %v", k, found[i], rows[i])
		}
	}
	if len(f.parts) != 2 {
		t.Errorf("a lookup made a partition: %v", f.parts)
	}
	if i := slices.IndexFunc(f.asked, func(n int64) bool { return n > 4 }); i >= 0 {
		t.Errorf("a request of %d keys, at most 4 are wanted", f.asked[i])
	}
	// A partition that another client makes is seen.
	f.fill("moon", 1)
	if _, ok, err := l.Find(t.Context(), itemKey{"moon", 0}); err != nil || !ok {
		t.Errorf("a row of a partition that was made meanwhile: %v, %v", ok, err)
	}
}

func TestGet(t *testing.T) {
	f := newFake(t, true)
	f.fill("eu", 3)
	cfg := DefaultLookup()
	cfg.Columns = []string{"note", "id"}
	l, err := f.client.NewLookuper(t.Context(), "db.t", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, id := range []any{2, int64(2), uint8(2), Text("2")} {
		rec, err := l.Get(t.Context(), "eu", id)
		if err != nil || rec == nil || rec.NumCols() != 2 || rec.Column(0).(*array.String).Value(0) != "note 2" || rec.Column(1).(*array.Int64).Value(0) != 2 {
			t.Errorf("id %v (%T): %v, %v", id, id, rec, err)
		}
	}
	if rec, err := l.Get(t.Context(), "eu", 99); rec != nil || err != nil {
		t.Errorf("a key that is not there: %v, %v", rec, err)
	}
	for want, key := range map[string][]any{
		`key: 1 values, the primary key of table db.t is region, id`:                                                         {"eu"},
		`key column "id": invalid type: column "id" is BIGINT NOT NULL, which the key of type string cannot hold; use int64`: {"eu", "2"},
		`column "id" is null`: {"eu", nil},
		`cannot read "two"`:   {"eu", Text("two")},
		`of type bool cannot`: {true, 1},
		`does not fit`:        {"eu", uint64(1 << 63)},
	} {
		if _, err := l.Get(t.Context(), key...); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("key %v: got %v, want %s", key, err, want)
		}
	}
}

// A lone lookup goes at once; while its request is on its way, all others gather into
// the next.
func TestLookupsGatherUnderLoad(t *testing.T) {
	f := newFake(t, false)
	f.fill("eu", 300)
	hold, held := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	f.setFault(func(step string) error {
		if step == stepLookup && first.CompareAndSwap(false, true) {
			close(held)
			<-hold
		}
		return nil
	})
	l := itemLookuper(t, f)
	var wg sync.WaitGroup
	ask := func(id int64) {
		wg.Go(func() {
			if row, ok, err := l.Find(t.Context(), itemKey{"eu", id}); err != nil || !ok || row.ID != id {
				t.Errorf("id %d: %v, %v, %v", id, row, ok, err)
			}
		})
	}
	ids := sameBucket(t, l, 300)
	ask(ids[0])
	<-held
	for _, id := range ids[1:] {
		ask(id)
	}
	for l.waiting() < len(ids)-1 { // until they are all in the queue
		runtime.Gosched()
	}
	close(hold)
	wg.Wait()
	if want := []int64{1, int64(len(ids) - 1)}; !slices.Equal(f.asked, want) {
		t.Errorf("requests of %v keys, want %v", f.asked, want)
	}
}

// sameBucket lists the ids up to n that are in the bucket of the first.
func sameBucket(t *testing.T, l *TypedLookuper[itemKey, item], n int64) (out []int64) {
	t.Helper()
	all := make([]itemKey, n)
	for i := range all {
		all[i] = itemKey{"eu", int64(i)}
	}
	rec, err := encodeAll(l.key, l.cfg.Allocator, l.KeySchema(), all)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	parts, err := l.table.router.Split(l.cfg.Allocator, rec, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range parts {
		if i == 0 {
			out = slices.Clone(p.Rows.Column(1).(*array.Int64).Int64Values())
		}
		p.Rows.Release()
	}
	return out
}

// waiting counts the lookups that have no request yet.
func (l *Lookuper) waiting() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.mu.lanes {
		p.mu.Lock()
		n += len(p.mu.queue)
		p.mu.Unlock()
	}
	return n
}

// The stream breaks before and behind the answer: lookups are asked again, and answer
// right.
func TestBrokenStreamsOfLookups(t *testing.T) {
	for seed := range uint64(5) {
		f := newFake(t, true)
		f.fill("eu", 10)
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 2))
		f.setFault(func(string) error {
			mu.Lock()
			defer mu.Unlock()
			if r.IntN(3) == 0 {
				return errAway
			}
			return nil
		})
		l := itemLookuper(t, f)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for id := range int64(15) {
					row, ok, err := l.Find(t.Context(), itemKey{"eu", id})
					if err != nil || ok != (id < 10) || ok && *row.N != id {
						t.Errorf("seed %d, id %d: %v, %v, %v", seed, id, row, ok, err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// Every lookup ends, with room for one key only: no leader, a cancelled context, a
// closed lookuper, an error that stays.
func TestEveryLookupEnds(t *testing.T) {
	f := newFake(t, true, func(c *Config) { c.RetryTimeout = 20 * time.Millisecond })
	f.fill("eu", 1)
	one := func(c *LookupConfig) { c.PendingMax = 1 }
	l := itemLookuper(t, f, one)
	f.setFault(func(step string) error { return errAway })
	for range 2 {
		if _, _, err := l.Find(t.Context(), itemKey{"eu", 1}); !errors.Is(err, mink.ErrUnavailable) || !strings.Contains(err.Error(), "gave up after") {
			t.Errorf("a lookup without a node: %v", err)
		}
	}
	f.setFault(func(step string) error {
		if step == stepLookup {
			return status.Error(codes.InvalidArgument, "no such column")
		}
		return nil
	})
	if _, _, err := l.Find(t.Context(), itemKey{"eu", 1}); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "lookup in db.t: no such column") {
		t.Errorf("a refused lookup: %v", err)
	}
	hold := make(chan struct{})
	entered := make(chan struct{}, 10)
	f.setFault(func(step string) error {
		if step == stepLookup {
			entered <- struct{}{}
			<-hold
		}
		return nil
	})
	defer close(hold)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, _, err := l.Find(ctx, itemKey{"eu", 0})
		ended <- err
	}()
	<-entered
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled lookup: %v", err)
	}
	go func() { // goes into the queue: the request before is still held
		_, _, err := l.Find(t.Context(), itemKey{"eu", 0})
		ended <- err
	}()
	for l.waiting() == 0 {
		runtime.Gosched()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, mink.ErrClosed) {
		t.Errorf("a lookup at the close: %v", err)
	}
	if _, _, err := l.Find(t.Context(), itemKey{"eu", 0}); !errors.Is(err, mink.ErrClosed) {
		t.Errorf("a lookup behind the close: %v", err)
	}
}

// A partition is dropped under a lookuper: its keys have no rows then.
func TestLookupInADroppedPartition(t *testing.T) {
	f := newFake(t, true)
	f.fill("eu", 1)
	l := itemLookuper(t, f)
	if _, ok, err := l.Find(t.Context(), itemKey{"eu", 0}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	f.mu.Lock()
	f.parts, f.buckets = nil, map[mink.BucketRef]*fakeBucket{}
	f.mu.Unlock()
	for range 2 {
		if _, ok, err := l.Find(t.Context(), itemKey{"eu", 0}); ok || err != nil {
			t.Errorf("found %v, %v", ok, err)
		}
	}
}
