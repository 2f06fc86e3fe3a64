package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// opener stands in for the stream engine: it says how each bucket opens.
type opener struct {
	mu    sync.Mutex
	tries map[mink.BucketRef]int
	open  func(ref mink.BucketRef, try int) error
	logs  map[mink.BucketRef]*tablet.Log
}

func (o *opener) openTablet(_ context.Context, e *bucket, of tabletTable) (*stream.Stream, *tablet.Log, error) {
	o.mu.Lock()
	o.tries[e.ref]++
	try := o.tries[e.ref]
	o.mu.Unlock()
	time.Sleep(time.Millisecond) // one try at a time is seen by run
	if err := o.open(e.ref, try); err != nil {
		return nil, nil, err
	}
	log := &tablet.Log{}
	if err := log.Reconfigure(tablet.Config{Schemas: of.table.Schemas}); err != nil {
		return nil, nil, err
	}
	log.Close() // all that is asked of it is what it was configured with
	o.mu.Lock()
	o.logs[e.ref] = log
	o.mu.Unlock()
	return nil, log, nil
}

// bucketsOf runs the buckets of a registered node in a bubble.
func bucketsOf(t *testing.T, opens int, open func(mink.BucketRef, int) error, test func(t *testing.T, n *Node, b *buckets, o *opener)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log, logger, store := memlog.New(), slog.New(slog.DiscardHandler), memstore.New(memstore.Config{})
		replica, err := metalog.Open(ctx, log, metalog.Default(), logger)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Default()
		cfg.OpensMax, cfg.ReadyTimeout, cfg.Stream = opens, time.Millisecond, stream.Default(store.Capabilities(), 64<<20)
		n, err := New(cfg, Deps{Meta: replica, Log: log, Objects: store, WALStore: store, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { _ = replica.Run(ctx) })
		epoch, err := replica.Register(ctx, &clusterpb.RegisterNode{Node: 1, Nonce: 7, FeatureLevel: 1, Version: "t"})
		if err != nil {
			t.Fatal(err)
		}
		o := &opener{tries: map[mink.BucketRef]int{}, logs: map[mink.BucketRef]*tablet.Log{}, open: open}
		b := newBuckets(&incarnation{node: n, epoch: epoch})
		b.open = o.openTablet
		running.Go(func() { _ = b.run(ctx) })
		test(t, n, b, o)
		cancel()
		running.Wait()
	})
}

// table makes a topic with so many buckets and answers their refs.
func table(t *testing.T, n *Node, name string, buckets int32) []mink.BucketRef {
	t.Helper()
	d, err := schema.KafkaTopic("d", name, buckets, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.CreateDatabase(t.Context(), "d", true); err != nil {
		t.Fatal(err)
	}
	made, err := n.CreateTable(t.Context(), d, false)
	if err != nil {
		t.Fatal(err)
	}
	var refs []mink.BucketRef
	for p := range n.View().Partitions(made.ID) {
		for i := range p.Streams {
			refs = append(refs, mink.BucketRef{Table: made.ID, Partition: p.ID, Index: int32(i)})
		}
	}
	return refs
}

func (b *buckets) stepsSoFar() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.steps
}

func TestOpeningBucketsTakesStepsInProportion(t *testing.T) {
	const n = 2000
	for name, c := range map[string]struct {
		open func(mink.BucketRef, int) error
		want int // tries of each bucket
	}{
		"all open": {func(mink.BucketRef, int) error { return nil }, 1},
		"all fail once": {func(_ mink.BucketRef, try int) error {
			if try == 1 {
				return mink.ErrUnavailable
			}
			return nil
		}, 2},
		"all are corrupt": {func(mink.BucketRef, int) error { return mink.ErrCorrupt }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bucketsOf(t, 16, c.open, func(t *testing.T, nd *Node, b *buckets, o *opener) {
				before := b.stepsSoFar()
				refs := table(t, nd, "t", n)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				for _, ref := range refs {
					if o.tries[ref] != c.want {
						t.Fatalf("bucket %s was tried %d times, want %d", ref, o.tries[ref], c.want)
					}
				}
				// One walk of the view; a look per try at the top of the heap, and one per retry.
				if steps := b.stepsSoFar() - before; steps > 6*n {
					t.Errorf("%d buckets took %d steps", n, steps)
				}
				if missing := b.missing(); missing != "" {
					t.Errorf("missing: %s", missing)
				}
			})
		})
	}
}

// Buckets whose opening takes for ever hold up the others only when all workers
// have one.
func TestSlowOpeningsHoldUpNothing(t *testing.T) {
	var release chan struct{}
	slow := map[int32]bool{0: true, 1: true, 2: true}
	var first mink.TableID
	bucketsOf(t, 4, func(ref mink.BucketRef, _ int) error {
		if slow[ref.Index] && ref.Table == first {
			<-release
		}
		return nil
	}, func(t *testing.T, n *Node, b *buckets, o *opener) {
		release = make(chan struct{})
		first = 1
		refs := table(t, n, "slow", 3)
		if refs[0].Table != first {
			t.Fatalf("the first table has id %d", refs[0].Table)
		}
		others := table(t, n, "t", 2)
		time.Sleep(time.Second)
		synctest.Wait()
		for _, ref := range others {
			if o.tries[ref] != 1 {
				t.Errorf("bucket %s waits behind others' openings", ref)
			}
		}
		if missing := b.missing(); missing != "3 of 5 buckets are opening" {
			t.Errorf("missing: %q", missing)
		}
		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		if missing := b.missing(); missing != "" {
			t.Errorf("missing: %q", missing)
		}
	})
}

// A table that is altered while its bucket opens, and one that is dropped.
func TestTablesChangeWhileBucketsOpen(t *testing.T) {
	bucketsOf(t, 4, func(ref mink.BucketRef, _ int) error {
		time.Sleep(10 * time.Second)
		return nil
	}, func(t *testing.T, n *Node, b *buckets, o *opener) {
		ctx := t.Context()
		altered, dropped := table(t, n, "altered", 1)[0], table(t, n, "dropped", 1)[0]
		time.Sleep(time.Second)
		_, err := n.AlterTable(ctx, altered.Table, []schema.Change{{
			Op: schema.AddColumn, Column: &schema.Column{Name: "more", Type: schema.MustParseType("INT")},
		}}, 0)
		if err == nil {
			err = n.DropTable(ctx, dropped.Table, false)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		// A schema that it does not know is Unavailable; the log is closed.
		_, err = o.logs[altered].AppendArrow(tablet.ArrowAppend{SchemaID: 2, WriterID: 1})
		if !errors.Is(err, mink.ErrClosed) {
			t.Errorf("the altered table's tablet does not know its new schema: %v", err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.mu.led) != 1 || b.mu.waiting != 0 {
			t.Errorf("%d buckets are led, %d open; want one, open", len(b.mu.led), b.mu.waiting)
		}
	})
}

// Who was told of a change may rely on it in the next request, also while the
// loop that follows the metadata has not come to it.
func TestATabletIsAsNewAsTheViewItWasAskedUnder(t *testing.T) {
	bucketsOf(t, 4, func(mink.BucketRef, int) error { return nil }, func(t *testing.T, n *Node, b *buckets, o *opener) {
		ref := table(t, n, "t", 1)[0]
		time.Sleep(time.Second)
		synctest.Wait()
		behind := newBuckets(b.inc) // nobody runs it: it never comes to a view by itself
		behind.open = o.openTablet
		behind.follow(n.View())
		var workers sync.WaitGroup
		behind.hire(t.Context(), &workers)
		workers.Wait()
		b.inc.buckets = behind
		n.setCurrent(b.inc)
		alter := func(name string) {
			t.Helper()
			_, err := n.AlterTable(t.Context(), ref.Table, []schema.Change{{
				Op: schema.AddColumn, Column: &schema.Column{Name: name, Type: schema.MustParseType("INT")},
			}}, 0)
			if err != nil {
				t.Fatal(err)
			}
		}
		knows := func(log *tablet.Log, id mink.SchemaID) bool { // an unknown one is Unavailable; the log is closed
			_, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: id, WriterID: 1})
			return errors.Is(err, mink.ErrClosed)
		}
		log, err := n.Log(ref)
		if err != nil || !knows(log, 1) || knows(log, 2) {
			t.Fatalf("before: %v", err)
		}
		alter("a")
		if !knows(log, 2) {
			t.Error("a tablet that was handed out does not know the schema when the alteration is answered")
		}
		older := n.View()
		alter("b")
		if log, err = n.Log(ref); err != nil || !knows(log, 3) {
			t.Errorf("the tablet does not know the schema of the view that it was asked under: %v", err)
		}
		id, _ := older.StreamOf(ref)
		s, _ := older.Stream(id)
		if log, err = behind.tablet(older, id, s.Owner.LeaderEpoch); err != nil || !knows(log, 3) {
			t.Errorf("an older view takes a schema away: %v", err)
		}
	})
}

// A tablet that could not be told of its table's change is not handed out as if it had been,
// and is told again when somebody asks for it.
func TestAChangeThatDoesNotReachATabletIsTriedAgain(t *testing.T) {
	bucketsOf(t, 4, func(mink.BucketRef, int) error { return nil }, func(t *testing.T, n *Node, b *buckets, o *opener) {
		fails := true
		b.set = func(log *tablet.Log, cfg tablet.Config) error {
			if fails {
				return mink.ErrCorrupt
			}
			return log.Reconfigure(cfg)
		}
		ref := table(t, n, "t", 1)[0]
		time.Sleep(time.Second)
		synctest.Wait()
		b.inc.buckets = b
		n.setCurrent(b.inc)
		if _, err := n.Log(ref); err != nil {
			t.Fatal(err)
		}
		_, err := n.AlterTable(t.Context(), ref.Table, []schema.Change{{
			Op: schema.AddColumn, Column: &schema.Column{Name: "a", Type: schema.MustParseType("INT")},
		}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := n.Log(ref); !errors.Is(err, mink.ErrUnavailable) || !errors.Is(err, mink.ErrCorrupt) {
				t.Fatalf("a tablet under its table's old columns: %v", err)
			}
		}
		fails = false
		log, err := n.Log(ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 2, WriterID: 1}); !errors.Is(err, mink.ErrClosed) {
			t.Errorf("the tablet does not know the new columns: %v", err)
		}
	})
}

// What opening a bucket met with says when to ask again, and nothing else: a client that
// was told of an offset that is gone would begin somewhere else, or give the topic up.
func TestAFailedOpeningIsUnavailable(t *testing.T) {
	classes := []error{mink.ErrNotExist, mink.ErrOutOfRange, mink.ErrThrottled, mink.ErrInvalid, mink.ErrFenced, mink.ErrOutOfOrder, mink.ErrUnavailable}
	bucketsOf(t, 4, func(ref mink.BucketRef, _ int) error {
		return fmt.Errorf("replay: %w", classes[ref.Index])
	}, func(t *testing.T, n *Node, b *buckets, _ *opener) {
		refs := table(t, n, "t", int32(len(classes)))
		time.Sleep(time.Second)
		for i, ref := range refs {
			view := n.View()
			id, _ := view.StreamOf(ref)
			s, _ := view.Stream(id)
			_, err := b.tablet(view, id, s.Owner.LeaderEpoch)
			if !errors.Is(err, mink.ErrUnavailable) || !strings.Contains(err.Error(), classes[i].Error()) {
				t.Errorf("opening failed with %v, and the log with %v", classes[i], err)
			}
			for _, class := range classes {
				if !errors.Is(class, mink.ErrUnavailable) && errors.Is(err, class) {
					t.Errorf("opening failed with %v, and the log with one of %v", classes[i], class)
				}
			}
		}
	})
}

func TestMissingNamesAFailedBucket(t *testing.T) {
	bucketsOf(t, 4, func(ref mink.BucketRef, _ int) error {
		if ref.Index == 1 {
			return fmt.Errorf("the store is away: %w", mink.ErrUnavailable)
		}
		return nil
	}, func(t *testing.T, n *Node, b *buckets, _ *opener) {
		refs := table(t, n, "t", 3)
		time.Sleep(time.Second)
		want := fmt.Sprintf("bucket %s: opening failed and is tried again: the store is away: %v", refs[1], mink.ErrUnavailable)
		if missing := b.missing(); missing != want {
			t.Errorf("missing: %q, want %q", missing, want)
		}
	})
}
