package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/sdk/mink"
)

func TestScanSnapshot(t *testing.T) {
	f := newFake(t, true)
	f.fill("eu", 10)
	f.fill("us", 5)
	read := func(r SnapshotRequest) (ids []int64, err error) {
		r.Table = "db.t"
		for b, err := range f.client.ScanSnapshot(t.Context(), r) {
			if err != nil {
				return ids, err
			}
			if want := mink.Offset(len(f.buckets[b.Bucket].log)); b.LogOffset != want {
				t.Errorf("bucket %v: log offset %d, want %d", b.Bucket, b.LogOffset, want)
			}
			at := b.Record.Schema().FieldIndices("id")[0]
			ids = append(ids, b.Record.Column(at).(*array.Int64).Int64Values()...)
		}
		return ids, nil
	}
	for i, c := range []struct {
		r    SnapshotRequest
		want []int64
	}{
		{SnapshotRequest{Bucket: -1, Partition: []string{"us"}}, []int64{0, 1, 2, 3, 4}},
		{SnapshotRequest{Bucket: -1, Partition: []string{"eu"}, From: []any{3}, To: []any{Text("6")}}, []int64{3, 4, 5}},
		{SnapshotRequest{Bucket: -1, Partition: []string{"eu"}, From: []any{8}}, []int64{8, 9}},
		{SnapshotRequest{Bucket: -1, Prefix: []any{4}}, []int64{4, 4}},
		{SnapshotRequest{Bucket: -1, Prefix: []any{4}, Partition: []string{"us"}, Columns: []string{"note", "id"}}, []int64{4}},
	} {
		got, err := read(c.r)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("case %d: %v, %v, want %v", i, got, err, c.want)
		}
	}
	if got, err := read(SnapshotRequest{Bucket: -1, Limit: 7}); err != nil || len(got) != 7 {
		t.Errorf("limit 7: %v, %v", got, err)
	}
	snapshots := f.count(stepSnapshot)
	if _, err := read(SnapshotRequest{Bucket: -1, Prefix: []any{4}}); err != nil || f.count(stepSnapshot) != snapshots+2 {
		t.Errorf("a prefix of the bucket key was asked for in %d buckets of 2 partitions", f.count(stepSnapshot)-snapshots)
	}
	for want, r := range map[string]SnapshotRequest{
		`Prefix stands beside From or To`:                {Prefix: []any{1}, To: []any{2}},
		`key: 2 values for the columns id`:               {Prefix: []any{1, 2}},
		`bucket 2 does not exist`:                        {Bucket: 2},
		`partition mars of table db.t does not exist`:    {Bucket: -1, Partition: []string{"mars"}},
		`table db.t has no "nots"; did you mean "note"?`: {Columns: []string{"nots"}},
	} {
		if _, err := read(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	// A stream that breaks is asked for again before its first batch, and is an error
	// behind it.
	n := 0
	f.setFault(func(step string) error {
		if n++; step == stepSnapshot && n%2 == 1 {
			return errAway
		}
		return nil
	})
	if _, err := read(SnapshotRequest{Bucket: 1, Partition: []string{"eu"}}); !errors.Is(err, mink.ErrUnavailable) || !strings.Contains(err.Error(), "broke within a bucket") {
		t.Errorf("a broken snapshot: %v", err)
	}
}

// replica applies what a Bootstrap hands out, strictly: an insert of what is there and
// an update or delete of what is not there is an error.
type replica struct {
	rows      map[mink.BucketRef]map[int64]string
	positions map[mink.BucketRef]BootstrapPosition
}

func (r *replica) apply(b BootstrapBatch) error {
	rows := r.rows[b.Bucket]
	if rows == nil {
		rows = map[int64]string{}
		r.rows[b.Bucket] = rows
	}
	for i, it := range itemsOf(b.Record) {
		old, exists := rows[it.ID]
		switch b.Changes[i] {
		case mink.ChangeInsert:
			if exists {
				return fmt.Errorf("insert of %v, which is there as %s", it, old)
			}
			rows[it.ID] = it.String()
		case mink.ChangeUpdateBefore:
			if old != it.String() {
				return fmt.Errorf("update of %v, which is there as %q", it, old)
			}
		case mink.ChangeUpdateAfter:
			if !exists {
				return fmt.Errorf("update to %v, which is not there", it)
			}
			rows[it.ID] = it.String()
		case mink.ChangeDelete:
			if old != it.String() {
				return fmt.Errorf("delete of %v, which is there as %q", it, old)
			}
			delete(rows, it.ID)
		}
	}
	text, err := json.Marshal(b.Position) // as it would be stored
	if err != nil {
		return err
	}
	var p BootstrapPosition
	err = json.Unmarshal(text, &p)
	r.positions[b.Bucket] = p
	return err
}

func (r *replica) all() []string {
	var out []string
	for _, rows := range r.rows {
		out = slices.AppendSeq(out, maps.Values(rows))
	}
	slices.Sort(out)
	return out
}

// A table is copied and followed while it changes, while streams break anywhere and
// while the copying process is started again at any batch: at the end it holds the
// same rows, and every change came once and fitted.
func TestBootstrapLosesAndRepeatsNothing(t *testing.T) {
	const steps = 150
	for seed := range uint64(20) {
		f := newFake(t, seed%2 == 0)
		r := rand.New(rand.NewPCG(seed, 3))
		var mu sync.Mutex
		step := 0
		change := func() { // some writes at any moment
			id := r.Int64N(40)
			ref := mink.BucketRef{Table: 7, Partition: 1, Index: int32(id % 2)}
			f.mu.Lock()
			defer f.mu.Unlock()
			b := f.buckets[ref]
			old, exists := b.rows[id]
			it := item{Region: "eu", ID: id, N: ptr(int64(step))}
			switch {
			case exists && r.IntN(3) == 0:
				delete(b.rows, id)
				b.log = append(b.log, logged{mink.ChangeDelete, old})
			case exists:
				b.log = append(b.log, logged{mink.ChangeUpdateBefore, old}, logged{mink.ChangeUpdateAfter, it})
				b.rows[id] = it
			default:
				b.log = append(b.log, logged{mink.ChangeInsert, it})
				b.rows[id] = it
			}
			close(f.changed)
			f.changed = make(chan struct{})
		}
		f.partition(map[bool][]string{true: {"eu"}}[seed%2 == 0])
		for range 60 {
			change()
		}
		f.setFault(func(s string) error {
			mu.Lock()
			defer mu.Unlock()
			if s != stepSnapshot && s != stepLog {
				return nil
			}
			if step++; step < steps {
				for range r.IntN(3) {
					change()
				}
			}
			if r.IntN(4) == 0 {
				return errAway
			}
			return nil
		})
		columns := [][]string{nil, {"note", "n", "id", "region"}}[seed/2%2]
		rep := &replica{rows: map[mink.BucketRef]map[int64]string{}, positions: map[mink.BucketRef]BootstrapPosition{}}
		done := false
		for !done {
			ctx, cancel := context.WithCancel(t.Context())
			request := BootstrapRequest{Table: "db.t", Bucket: -1, Columns: columns, Resume: slices.Collect(maps.Values(rep.positions))}
			for b, err := range f.client.Bootstrap(ctx, request) {
				if err == nil {
					err = rep.apply(b)
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				mu.Lock()
				restart := r.IntN(8) == 0
				if step++; step < steps {
					change() // so that there is always news
				}
				f.mu.Lock()
				done = step >= steps
				for ref, b := range f.buckets {
					p, ok := rep.positions[ref]
					done = done && ok && p.Following && p.Next == mink.Offset(len(b.log))
				}
				f.mu.Unlock()
				mu.Unlock()
				if restart || done {
					break
				}
			}
			cancel()
		}
		if got, want := rep.all(), f.all(); !slices.Equal(got, want) {
			t.Errorf("seed %d: the copy has %q, the table %q", seed, got, want)
		}
	}
}

// The key's columns need not be among those that are asked for.
func TestBootstrapOfSomeColumns(t *testing.T) {
	f := newFake(t, false)
	f.fill("eu", 7)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var notes []string
	for b, err := range f.client.Bootstrap(ctx, BootstrapRequest{Table: "db.t", Bucket: -1, Columns: []string{"note"}}) {
		if err != nil {
			t.Fatal(err)
		}
		if b.Record.NumCols() != 1 {
			t.Fatalf("columns %v", b.Record.Schema())
		}
		for i := range int(b.Record.NumRows()) {
			notes = append(notes, b.Record.Column(0).(*array.String).Value(i))
		}
		if len(notes) == 7 {
			break
		}
	}
	slices.Sort(notes)
	if notes[0] != "note 0" || notes[6] != "note 6" {
		t.Errorf("notes %v", notes)
	}
}

// Partitions that are made while a table is copied and followed are copied and followed
// as well, also when streams and lists fail and the copy is resumed from its positions.
func TestBootstrapFollowsLaterPartitions(t *testing.T) {
	const partitions = 6
	for seed := range uint64(10) {
		f := newFake(t, true, func(c *Config) { c.DiscoverInterval = time.Millisecond })
		r := rand.New(rand.NewPCG(seed, 4))
		var mu sync.Mutex
		f.setFault(func(s string) error {
			mu.Lock()
			defer mu.Unlock()
			if (s == stepSnapshot || s == stepLog || s == stepList) && r.IntN(5) == 0 {
				return errAway
			}
			return nil
		})
		made := 0
		grow := func() { // another partition, with rows and changes of them
			mu.Lock()
			defer mu.Unlock()
			if made == partitions {
				return
			}
			made++
			region := fmt.Sprint("r", made)
			p := f.partition([]string{region})
			f.mu.Lock()
			defer f.mu.Unlock()
			for id := range 5 + r.Int64N(5) {
				b, it := f.buckets[p.Buckets[id%2].Bucket], item{Region: region, ID: id, N: ptr(id)}
				b.log = append(b.log, logged{mink.ChangeInsert, it})
				if b.rows[id] = it; r.IntN(2) == 0 {
					b.log = append(b.log, logged{mink.ChangeDelete, it})
					delete(b.rows, id)
				}
			}
			close(f.changed)
			f.changed = make(chan struct{})
		}
		rep := &replica{rows: map[mink.BucketRef]map[int64]string{}, positions: map[mink.BucketRef]BootstrapPosition{}}
		if seed%2 == 0 {
			grow()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		for done := false; !done; {
			var first sync.WaitGroup
			first.Go(grow) // perhaps before it begins, perhaps after
			turn, stop := context.WithCancel(ctx)
			for b, err := range f.client.Bootstrap(turn, BootstrapRequest{Table: "db.t", Bucket: -1, Resume: slices.Collect(maps.Values(rep.positions))}) {
				if err == nil {
					err = rep.apply(b)
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if want := fmt.Sprint("r", b.Bucket.Partition); !slices.Equal(b.Partition, []string{want}) {
					t.Fatalf("seed %d: partition %v, want %s", seed, b.Partition, want)
				}
				grow()
				mu.Lock()
				f.mu.Lock()
				done = made == partitions
				for ref, b := range f.buckets {
					p, ok := rep.positions[ref]
					done = done && ok && p.Following && p.Next == mink.Offset(len(b.log))
				}
				f.mu.Unlock()
				again := r.IntN(15) == 0
				mu.Unlock()
				if done || again {
					break
				}
			}
			stop()
			first.Wait()
		}
		cancel()
		if got, want := rep.all(), f.all(); !slices.Equal(got, want) {
			t.Errorf("seed %d: the copy has %q, the table %q", seed, got, want)
		}
	}
}
