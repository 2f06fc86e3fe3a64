package fault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/objstore/objstoretest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store {
		return fault.New(memstore.New(memstore.Default()), fault.Config{})
	})
}

func TestConformancePageOfTwo(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store {
		return fault.New(memstore.New(memstore.Default()), fault.Config{PageMax: 2})
	})
}

func newStore(cfg fault.Config) (*fault.Store, *memstore.Store) {
	inner := memstore.New(memstore.Default())
	return fault.New(inner, cfg), inner
}

func put(ctx context.Context, s objstore.Store, key, value string) error {
	_, err := s.Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{[]byte(value)}, CreateOnly: true})
	return err
}

func get(t *testing.T, s objstore.Store, key string) (string, bool) {
	t.Helper()
	r, err := s.GetRange(context.Background(), objstore.GetRangeRequest{Key: key, Length: -1})
	if errors.Is(err, objstore.ErrNotExist) {
		return "", false
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Data), true
}

func wantIs(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
}

func TestActionsOnAPut(t *testing.T) {
	for _, c := range []struct {
		name   string
		do     fault.Action
		want   error // nil: success
		landed bool
	}{
		{"nothing", fault.Action{}, nil, true},
		{"fail before", fault.FailBefore(objstore.ErrUnavailable), objstore.ErrUnavailable, false},
		{"fail after", fault.FailAfter(objstore.ErrUnavailable), objstore.ErrUnavailable, true},
		{"lost request", fault.LoseRequest(), objstore.ErrUnknownOutcome, false},
		{"lost response", fault.LoseResponse(), objstore.ErrUnknownOutcome, true},
		{"own conflict", fault.OwnConflict(), objstore.ErrAlreadyExists, true},
		{"throttle", fault.Throttle(time.Second), objstore.ErrThrottled, false},
		{"late", fault.Late(), objstore.ErrUnknownOutcome, false},
		{"short read", fault.ShortRead(), nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, inner := newStore(fault.Config{})
			rule := s.Inject(fault.Rule{Ops: fault.Put, Prefix: "k", Times: 1, Do: c.do})
			if err := put(t.Context(), s, "other", "x"); err != nil {
				t.Fatal(err)
			}
			err := put(t.Context(), s, "k", "v")
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if _, ok := get(t, inner, "k"); ok != c.landed {
				t.Fatalf("landed: %v, want %v", ok, c.landed)
			}
			if rule.Fired() != 1 {
				t.Fatalf("fired %d times", rule.Fired())
			}
			if err := put(t.Context(), s, "k2", "v"); err != nil {
				t.Fatalf("after Times were used up: %v", err)
			}
		})
	}
}

func TestLatePutAndDeleteLandWhenTheTestSays(t *testing.T) {
	s, inner := newStore(fault.Config{})
	s.Inject(fault.Rule{Ops: fault.Put, Times: 1, Do: fault.Late()})
	wantIs(t, put(t.Context(), s, "k", "zombie"), objstore.ErrUnknownOutcome)
	if _, ok := get(t, inner, "k"); ok {
		t.Fatal("landed early")
	}
	if err := put(t.Context(), s, "k", "tombstone"); err != nil {
		t.Fatal(err)
	}
	late := s.Pending()
	if len(late) != 1 || late[0].Call.Key != "k" {
		t.Fatalf("pending %v", late)
	}
	wantIs(t, late[0].Land(), objstore.ErrAlreadyExists)
	wantIs(t, late[0].Land(), objstore.ErrAlreadyExists)
	if v, _ := get(t, inner, "k"); v != "tombstone" {
		t.Fatalf("value %q", v)
	}

	s.Inject(fault.Rule{Ops: fault.Delete, Times: 1, Do: fault.Late()})
	_, err := s.DeleteBatch(t.Context(), []string{"k"})
	wantIs(t, err, objstore.ErrUnknownOutcome)
	if _, ok := get(t, inner, "k"); !ok {
		t.Fatal("deleted early")
	}
	s.LandAll()
	if _, ok := get(t, inner, "k"); ok {
		t.Fatal("still there")
	}
	if n := len(s.Pending()); n != 0 {
		t.Fatalf("%d pending", n)
	}
}

func TestLateLandsTheCallersMemory(t *testing.T) {
	s, inner := newStore(fault.Config{})
	s.Inject(fault.Rule{Do: fault.Late(), Times: 2})
	buf := []byte("mine")
	for _, crc := range []bool{true, false} {
		_, err := s.Put(t.Context(), objstore.PutRequest{Key: fmt.Sprint("k", crc), Chunks: [][]byte{buf}, CRC32C: objstore.Checksum(buf), HasCRC32C: crc})
		wantIs(t, err, objstore.ErrUnknownOutcome)
	}
	copy(buf, "else")
	wantIs(t, s.Pending()[0].Land(), objstore.ErrCorrupt)
	s.LandAll()
	if v, _ := get(t, inner, "kfalse"); v != "else" {
		t.Fatalf("landed %q: a caller that reuses its memory would not be found out", v)
	}
	if _, ok := get(t, inner, "ktrue"); ok {
		t.Fatal("landed in spite of its checksum")
	}
}

func TestPauseOutlivesTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inner := newStore(fault.Config{})
		release := s.Pause(fault.Put, "wal/1/")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		patient, impatient := make(chan error, 1), make(chan error, 1)
		go func() { impatient <- put(ctx, s, "wal/1/0", "a") }()
		go func() { patient <- put(t.Context(), s, "wal/1/1", "b") }()
		if _, err := s.WaitPending(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if err := put(t.Context(), s, "wal/2/0", "c"); err != nil {
			t.Fatal("another prefix:", err)
		}
		err := <-impatient
		wantIs(t, err, objstore.ErrUnknownOutcome)
		wantIs(t, err, context.DeadlineExceeded)
		release()
		if err := <-patient; err != nil {
			t.Fatal(err)
		}
		for _, k := range []string{"wal/1/0", "wal/1/1"} {
			if _, ok := get(t, inner, k); !ok {
				t.Fatalf("%s did not land", k)
			}
		}
		release()
		if err := put(t.Context(), s, "wal/1/2", "d"); err != nil {
			t.Fatal("after the release:", err)
		}
	})
}

func TestCloseFreesHeldCallersAndTheWriteStaysOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inner := newStore(fault.Config{Shared: true})
		s.Pause(fault.Put, "")
		got := make(chan error, 1)
		go func() { got <- put(t.Context(), s, "k", "v") }()
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wantIs(t, <-got, objstore.ErrUnknownOutcome)
		s.LandAll()
		if _, ok := get(t, inner, "k"); !ok {
			t.Fatal("did not land")
		}
	})
}

func TestDropAnswersUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inner := newStore(fault.Config{})
		s.Inject(fault.Rule{Do: fault.Hold(), Times: 1})
		got := make(chan error, 1)
		go func() { got <- put(t.Context(), s, "k", "v") }()
		synctest.Wait()
		s.DropAll()
		wantIs(t, <-got, objstore.ErrUnavailable)
		if _, ok := get(t, inner, "k"); ok {
			t.Fatal("landed")
		}
	})
}

func TestLateAfterLandsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inner := newStore(fault.Config{Rules: []fault.Rule{{Ops: fault.Put, Do: fault.LateAfter(time.Minute)}}})
		wantIs(t, put(t.Context(), s, "k", "v"), objstore.ErrUnknownOutcome)
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		if _, ok := get(t, inner, "k"); ok {
			t.Fatal("landed early")
		}
		s.WaitLate()
		if _, ok := get(t, inner, "k"); !ok {
			t.Fatal("did not land")
		}
	})
}

func TestReadsAreMangledOnce(t *testing.T) {
	s, inner := newStore(fault.Config{Seed: 7})
	value := bytes.Repeat([]byte("0123456789"), 100)
	if _, err := inner.Put(t.Context(), objstore.PutRequest{Key: "k", Chunks: [][]byte{value}}); err != nil {
		t.Fatal(err)
	}
	s.Inject(fault.Rule{Ops: fault.Get, Times: 1, Do: fault.FlipBit()})
	v, _ := get(t, s, "k")
	if n := bitsApart([]byte(v), value); n != 1 {
		t.Fatalf("%d bits differ", n)
	}
	s.Inject(fault.Rule{Ops: fault.Get, Times: 1, Do: fault.ShortRead()})
	if v, _ = get(t, s, "k"); len(v) >= len(value) {
		t.Fatalf("%d bytes", len(v))
	}
	if v, _ = get(t, s, "k"); v != string(value) {
		t.Fatal("the store itself was changed")
	}
	s.Inject(fault.Rule{Ops: fault.Put, Times: 1, Do: fault.FlipBit()})
	if _, err := s.Put(t.Context(), objstore.PutRequest{Key: "rot", Chunks: [][]byte{value}, HasCRC32C: true, CRC32C: objstore.Checksum(value)}); err != nil {
		t.Fatal(err)
	}
	v, _ = get(t, s, "rot")
	if n := bitsApart([]byte(v), value); n != 1 {
		t.Fatalf("%d stored bits differ", n)
	}
}

func bitsApart(a, b []byte) int {
	if len(a) != len(b) {
		return -1
	}
	n := 0
	for i := range a {
		for x := a[i] ^ b[i]; x != 0; x &= x - 1 {
			n++
		}
	}
	return n
}

func TestSkipTimesMatchRemove(t *testing.T) {
	s, _ := newStore(fault.Config{})
	rule := s.Inject(fault.Rule{
		Ops: fault.Head, Skip: 1, Times: 2,
		Match: func(c fault.Call) bool { return c.N != 3 },
		Do:    fault.FailBefore(objstore.ErrThrottled),
	})
	var got []int
	for i := 1; i <= 6; i++ {
		if _, err := s.Head(t.Context(), "k"); errors.Is(err, objstore.ErrThrottled) {
			got = append(got, i)
		}
	}
	if fmt.Sprint(got) != "[2 4]" {
		t.Fatalf("fired at calls %v", got)
	}
	rule.Remove()
	always := s.Inject(fault.Rule{Do: fault.FailBefore(objstore.ErrThrottled)})
	_, err := s.Head(t.Context(), "k")
	wantIs(t, err, objstore.ErrThrottled)
	always.Remove()
	_, err = s.Head(t.Context(), "k")
	wantIs(t, err, objstore.ErrNotExist)
}

func TestSeedDecidesWhateverTheOrder(t *testing.T) {
	outcome := func(seed uint64, reversed bool) string {
		s, _ := newStore(fault.Config{Seed: seed, Rules: fault.Chaos(0.08, 0)})
		var lines []string
		for i := range 100 {
			if reversed {
				i = 99 - i
			}
			err := put(context.Background(), s, fmt.Sprintf("k%02d", i), "v")
			lines = append(lines, fmt.Sprintf("%02d %v", i, err))
		}
		sort.Strings(lines)
		return fmt.Sprint(lines)
	}
	if outcome(1, false) != outcome(1, true) {
		t.Fatal("the order of the calls changed their fate")
	}
	if outcome(1, false) == outcome(2, false) {
		t.Fatal("the seed changes nothing")
	}
}

func TestLatencyFollowsItsDistribution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newStore(fault.Config{Seed: 1, Latency: fault.S3Like()})
		if c := s.Capabilities(); c.PutLatency != 30*time.Millisecond || c.Local {
			t.Fatalf("capabilities %+v", c)
		}
		var took []time.Duration
		for i := range 2000 {
			begin := time.Now()
			if err := put(t.Context(), s, fmt.Sprint(i), "v"); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(begin)) // virtual: exactly the drawn delay
		}
		sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
		p50, p99 := took[1000], took[1980]
		if p50 < 28*time.Millisecond || p50 > 32*time.Millisecond || p99 < 75*time.Millisecond || p99 > 110*time.Millisecond {
			t.Fatalf("p50 %v, p99 %v", p50, p99)
		}
	})
}

func TestContextEndsADelayedPutWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, inner := newStore(fault.Config{Latency: fault.Latency{Put: fault.Dist{Median: time.Second}, Get: fault.Dist{Median: time.Second}}})
		for _, c := range []struct {
			after  time.Duration
			landed bool
		}{{400 * time.Millisecond, false}, {600 * time.Millisecond, true}} {
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			err := put(ctx, s, c.after.String(), "v")
			cancel()
			wantIs(t, err, objstore.ErrUnknownOutcome)
			wantIs(t, err, context.DeadlineExceeded)
			if _, ok := get(t, inner, c.after.String()); ok != c.landed {
				t.Fatalf("after %v landed is %v", c.after, ok)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := s.Head(ctx, "k")
		wantIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, objstore.ErrUnknownOutcome) {
			t.Fatal("a read has no outcome to be unknown")
		}
	})
}

func TestStatsAndObserver(t *testing.T) {
	var seen []string
	s, _ := newStore(fault.Config{Observe: func(c fault.Call, err error) {
		seen = append(seen, fmt.Sprintf("%s %d %v", c.Op, c.Bytes, err == nil))
	}})
	_ = put(t.Context(), s, "a", "12345")
	_ = put(t.Context(), s, "a", "again")
	_, _ = get(t, s, "a")
	_, _ = s.Head(t.Context(), "a")
	_, _ = s.List(t.Context(), objstore.ListRequest{})
	_, _ = s.DeleteBatch(t.Context(), []string{"a", "b"})
	want := fault.Stats{Puts: 2, Gets: 1, Heads: 1, Lists: 1, Deletes: 1, DeletedKeys: 2, PutBytes: 5, GetBytes: 5}
	if got := s.Stats(); got != want {
		t.Fatalf("stats %+v, want %+v", got, want)
	}
	if got, want := fmt.Sprint(seen), "[put 5 true put 5 false get 5 true head 0 true list 0 true delete 0 true]"; got != want {
		t.Fatalf("observed %s, want %s", got, want)
	}
}
