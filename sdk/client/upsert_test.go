package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/sdk/mink"
)

func itemWriter(t testing.TB, f *fake, change ...func(*UpsertConfig)) *TypedUpsertWriter[item] {
	t.Helper()
	cfg := DefaultUpsert()
	cfg.Allocator = checked(t)
	for _, c := range change {
		c(&cfg)
	}
	w, err := NewTypedUpsertWriter[item](t.Context(), f.client, "db.t", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// wait answers what waits for a write.
func wait(t *testing.T) func(*Append, error) {
	return func(a *Append, err error) {
		t.Helper()
		if err == nil {
			err = a.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Upserts and deletes of a key take effect in the order of the calls, though many
// are on their way, joined into few batches.
func TestUpsertsAndDeletesKeepTheirOrder(t *testing.T) {
	f := newFake(t, true)
	w := itemWriter(t, f)
	for i := range int64(200) {
		r := []string{"eu", "us"}[i%2]
		if _, err := w.UpsertRows(t.Context(), item{Region: r, ID: i / 4, N: ptr(i), Note: ptr("x")}); err != nil {
			t.Fatal(err)
		}
		if i%8 == 5 {
			if _, err := w.DeleteRows(t.Context(), item{Region: r, ID: i / 4}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range int64(50) {
		want = append(want, item{"eu", i, ptr(4*i + 2), ptr("x")}.String())
		want = append(want, item{"us", i, ptr(4*i + 3), ptr("x")}.String())
	}
	slices.Sort(want)
	if got := f.all(); !slices.Equal(got, want) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := f.count(stepPut); n > 200 {
		t.Errorf("%d batches for 225 calls: nothing was joined", n)
	}
}

// A delete through a typed writer names the partition: the key is removed there and
// nowhere else.
func TestTypedDeleteKeepsThePartition(t *testing.T) {
	f := newFake(t, true)
	w := itemWriter(t, f)
	wait(t)(w.UpsertRows(t.Context(), item{Region: "eu", ID: 1, N: ptr(int64(1))}, item{Region: "us", ID: 1, N: ptr(int64(2))}))
	wait(t)(w.DeleteRows(t.Context(), item{Region: "us", ID: 1}))
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := f.all(), []string{"eu/1 n=1 note=null"}; !slices.Equal(got, want) {
		t.Errorf("rows %v, want %v", got, want)
	}
}

// A partial update leaves the other columns as they are; a struct without them is one.
func TestPartialUpdates(t *testing.T) {
	f := newFake(t, false)
	w := itemWriter(t, f)
	wait(t)(w.UpsertRows(t.Context(), item{Region: "eu", ID: 1, N: ptr(int64(1)), Note: ptr("kept")}))
	some := itemWriter(t, f, func(c *UpsertConfig) { c.Columns = []string{"n", "id", "region"} })
	wait(t)(some.UpsertRows(t.Context(), item{Region: "eu", ID: 1, N: ptr(int64(2)), Note: ptr("lost")}, item{Region: "eu", ID: 2, Note: ptr("lost")}))
	type narrow struct {
		ID     int64  `mink:"id"`
		Region string `mink:"region"`
		Note   string `mink:"note"`
	}
	n, err := NewTypedUpsertWriter[narrow](t.Context(), f.client, "db.t", DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	wait(t)(n.UpsertRows(t.Context(), narrow{ID: 2, Region: "eu", Note: "new"}))
	for _, c := range []interface{ Close(context.Context) error }{w, some, n} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got, want := f.all(), []string{"eu/1 n=2 note=kept", "eu/2 n=null note=new"}; !slices.Equal(got, want) {
		t.Errorf("rows %v, want %v", got, want)
	}
}

// The stream breaks at any step, before and behind what it asks for: every batch is
// applied once, and every write ends.
func TestBrokenStreamsOfPuts(t *testing.T) {
	for seed := range uint64(10) {
		f := newFake(t, true)
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 1))
		f.setFault(func(step string) error {
			mu.Lock()
			defer mu.Unlock()
			if r.IntN(4) == 0 {
				return errAway
			}
			return nil
		})
		w := itemWriter(t, f, func(c *UpsertConfig) { c.BatchBytes = 200 })
		for i := range int64(100) {
			if _, err := w.UpsertRows(t.Context(), item{Region: []string{"eu", "us"}[i%2], ID: i % 10, N: ptr(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.all(); len(got) != 10 || !slices.Contains(got, "us/9 n=99 note=null") || !slices.Contains(got, "eu/0 n=90 note=null") {
			t.Errorf("seed %d: %v", seed, got)
		}
		puts := 0
		for _, b := range f.buckets {
			for _, l := range b.log {
				if l.kind != mink.ChangeUpdateBefore {
					puts++
				}
			}
		}
		if puts != 100 {
			t.Errorf("seed %d: %d rows were applied, 100 were written", seed, puts)
		}
	}
}

// The answer to a batch is lost and later ones are answered; it is sent again, and
// that is no error: the node knows it.
func TestALostAnswerIsAskedForAgain(t *testing.T) {
	f := newFake(t, false)
	var lost atomic.Bool
	f.setFault(func(step string) error {
		if step == stepPutDone && lost.CompareAndSwap(false, true) {
			return errAway
		}
		return nil
	})
	w := itemWriter(t, f, func(c *UpsertConfig) { c.BatchBytes = 1 })
	for i := range int64(8) {
		if _, err := w.UpsertRows(t.Context(), item{Region: "eu", ID: 4, N: ptr(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(t.Context()); err != nil || !lost.Load() {
		t.Fatal(err)
	}
	if got := f.all(); !slices.Equal(got, []string{"eu/4 n=7 note=null"}) {
		t.Errorf("rows %v", got)
	}
}

// Every write ends: when it fails for good, when the writer is closed, when no node
// answers, and with room for one row only.
func TestEveryUpsertEnds(t *testing.T) {
	f := newFake(t, false)
	f.setFault(func(step string) error {
		if step == stepPut {
			return status.Error(codes.InvalidArgument, "deletes are disabled")
		}
		return nil
	})
	w := itemWriter(t, f, func(c *UpsertConfig) { c.PendingBytesMax = 1 })
	for i := range int64(3) {
		a, err := w.DeleteRows(t.Context(), item{Region: "eu", ID: i})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Wait(t.Context()); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), "put into db.t: deletes are disabled") {
			t.Errorf("a refused delete: %v", err)
		}
	}
	if err := w.Flush(t.Context()); !errors.Is(err, mink.ErrInvalid) {
		t.Errorf("flush: %v", err)
	}
	f.setFault(func(step string) error { return errAway })
	a, err := w.UpsertRows(t.Context(), item{Region: "eu", ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	if err := a.Wait(t.Context()); !errors.Is(err, mink.ErrUnknownOutcome) || !errors.Is(err, mink.ErrClosed) {
		t.Errorf("a write that was on its way at the close: %v", err)
	}
	if _, err := w.UpsertRows(t.Context(), item{Region: "eu", ID: 1}); !errors.Is(err, mink.ErrClosed) {
		t.Errorf("a write behind the close: %v", err)
	}
}

// The bucket moves to another node under the writes.
func TestLeaderMovesUnderUpserts(t *testing.T) {
	f, g := newFake(t, false), newFake(t, false)
	g.mu.Lock()
	g.buckets = f.buckets // the store is shared, as objects are
	g.mu.Unlock()
	var moved atomic.Bool
	f.setFault(func(step string) error {
		if step == stepPut && moved.Load() {
			return errAway
		}
		return nil
	})
	w := itemWriter(t, f, func(c *UpsertConfig) { c.BatchBytes = 1 })
	for i := range int64(40) {
		if i == 20 {
			wait(t)(w.UpsertRows(t.Context(), item{Region: "eu", ID: 99}))
			moved.Store(true)
			f.mu.Lock()
			for p := range f.parts {
				for b := range f.parts[p].Buckets {
					f.parts[p].Buckets[b].Address = g.address
				}
			}
			f.mu.Unlock()
		}
		if _, err := w.UpsertRows(t.Context(), item{Region: "eu", ID: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(g.all()); n != 41 {
		t.Errorf("%d rows, want 41", n)
	}
	if g.count(stepPut) == 0 {
		t.Error("nothing was written to the new leader")
	}
}

func TestUpsertRefusals(t *testing.T) {
	f := newFake(t, true)
	open := func(columns ...string) error {
		cfg := DefaultUpsert()
		cfg.Columns = columns
		_, err := f.client.NewUpsertWriter(t.Context(), "db.t", cfg)
		return err
	}
	typed := func(err error) error { return err }
	_, missing := NewTypedUpsertWriter[struct {
		ID int64 `mink:"id"`
	}](t.Context(), f.client, "db.t", DefaultUpsert())
	_, misspelt := NewTypedUpsertWriter[struct {
		ID int64 `mink:"idd"`
	}](t.Context(), f.client, "db.t", DefaultUpsert())
	_, appends := f.client.NewWriter(t.Context(), "db.t", DefaultWriter())
	w := itemWriter(t, f)
	keys, err := Encode(w.Schema(), []item{{Region: "eu", ID: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Release()
	_, absent := w.Delete(t.Context(), leading(keys, 1))
	rows, err := Encode(nullable(w.Schema()), []struct {
		Region *string `mink:"region"`
		ID     *int64  `mink:"id"`
	}{{ID: ptr(int64(1))}})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	_, null := w.Upsert(t.Context(), rows)
	for want, err := range map[string]error{
		`columns: id, n leave out "region" of the primary key (region, id) of table db.t`: open("id", "n"),
		`columns: "n" stands twice`:                                                                             open("id", "region", "n", "n"),
		`table db.t has no "nn"`:                                                                                open("id", "region", "nn"),
		`columns: id leave out "region" of the primary key`:                                                     typed(missing),
		`is column "idd", which is not there; did you mean "id"?`:                                               typed(misspelt),
		`table db.t has a primary key: rows are upserted and deleted; use`:                                      appends,
		`delete from db.t: invalid batch: key column "id" occurs 0 times, want once: a delete names region, id`: absent,
		`put into db.t: invalid batch: column "region" is NOT NULL and has 1 null`:                              null,
	} {
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A batch takes rows of one kind of stream only, and the queue keeps its order across
// a change of it.
func TestStreamsEndWhereTheTargetChanges(t *testing.T) {
	f := newFake(t, false)
	w := itemWriter(t, f)
	other := *w.to
	for i := range int64(30) {
		to := w.to
		if i%3 == 2 {
			to = &other
		}
		rec, err := Encode(w.Schema(), []item{{Region: "eu", ID: 1, N: ptr(i)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.s.send(t.Context(), rec, to, false); err != nil {
			t.Fatal(err)
		}
		rec.Release()
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ns []int64
	for _, b := range f.buckets {
		for _, l := range b.log {
			if l.kind != mink.ChangeUpdateBefore {
				ns = append(ns, *l.row.N)
			}
		}
	}
	if len(ns) != 30 || !slices.IsSorted(ns) {
		t.Errorf("the rows were applied in the order %v", ns)
	}
	if n := f.count(stepWrite); n < 2 {
		t.Errorf("%d streams", n)
	}
}

func TestKindsOf(t *testing.T) {
	f := newFake(t, false)
	rec := func(n int) waiting { return waiting{rows: f.batchOf(nil, make([]item, n))} }
	del := func(n int) waiting { w := rec(n); w.deletes = true; return w }
	for _, c := range []struct {
		taken []waiting
		want  string
	}{
		{[]waiting{rec(1), rec(2)}, "false []"},
		{[]waiting{del(1), del(2)}, "true []"},
		{[]waiting{rec(1), del(2), rec(1)}, "false [3 4 4 3]"},
	} {
		deletes, changes := kindsOf(c.taken)
		if got := fmt.Sprintf("%t %d", deletes, changes); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// nullable is a schema with every column nullable.
func nullable(s *arrow.Schema) *arrow.Schema {
	fields := slices.Clone(s.Fields())
	for i := range fields {
		fields[i].Nullable = true
	}
	return arrow.NewSchema(fields, nil)
}
