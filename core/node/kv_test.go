package node_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/mink"
)

// pkTable makes a table (k INT PRIMARY KEY, v STRING, id BIGINT AUTO INCREMENT).
func pkTable(t *testing.T, p *sim.Process) (mink.TableID, mink.BucketRef) {
	t.Helper()
	ctx := context.Background()
	d := &schema.Descriptor{Database: "sim", Table: "pk", PrimaryKey: []string{"k"}}
	d.Schema.Columns = []schema.Column{
		{Name: "k", Type: schema.MustParseType("INT")}, {Name: "v", Type: schema.MustParseType("STRING")},
		{Name: "id", Type: schema.MustParseType("BIGINT"), AutoIncrement: true},
	}
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	var uuid [16]byte
	_, _ = rand.Read(uuid[:]) // never fails
	if err := p.Node().CreateDatabase(ctx, "sim", true); err != nil {
		t.Fatal(err)
	}
	r, err := p.Node().Propose(ctx, &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{
		CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: uuid[:]},
	}})
	if err != nil || r[0].Code != clusterpb.Code_OK {
		t.Fatal(r, err)
	}
	id := mink.TableID(r[0].Id)
	for part := range p.Node().View().Partitions(id) {
		return id, mink.BucketRef{Table: id, Partition: part.ID}
	}
	t.Fatal("no partition")
	return 0, mink.BucketRef{}
}

// mustKV waits for the bucket, and opens its store.
func mustKV(t *testing.T, p *sim.Process, ref mink.BucketRef) *kv.Tablet {
	t.Helper()
	for {
		s, err := p.Node().KV(context.Background(), ref)
		if err == nil {
			return s
		}
		if !errors.Is(err, mink.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func putRow(t *testing.T, s *kv.Tablet, k int32, v string) {
	t.Helper()
	pending, err := s.Put(context.Background(), rowPut(t, s, k, v))
	if err != nil {
		t.Fatal(err)
	}
	<-pending.Done()
	if _, err := pending.Result(); err != nil {
		t.Fatal(err)
	}
}

// look answers value and number of a key; "" when there is none.
func look(t *testing.T, s *kv.Tablet, k int32) (string, int64) {
	t.Helper()
	v, id, err := lookKey(context.Background(), s, k)
	if err != nil {
		t.Fatal(err)
	}
	return v, id
}

// A store opens when somebody asks for it, once for all who ask; it closes when nobody
// has asked for a while, keeps its directory, and opens again. After a crash the next
// leader has what was answered, and other numbers for the rows to come.
func TestStoreOpensOnFirstUseAndClosesWhenIdle(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "9-9"), 0o755); err != nil { // of a process before
		t.Fatal(err)
	}
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.KVDir, c.KVIdleClose = dir, time.Minute }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		w.Eventually(10*time.Second, "the log", func() bool { _, err := p.Node().Log(ref); return err == nil })
		if st := p.Node().Stats().Buckets[0]; st.KV != nil {
			t.Error("a store opened by itself")
		}
		var wg sync.WaitGroup
		stores := make([]*kv.Tablet, 8)
		for i := range stores {
			wg.Go(func() {
				var err error
				if stores[i], err = p.Node().KV(context.Background(), ref); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, s := range stores {
			if s != stores[0] {
				t.Fatal("two stores of one bucket")
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "9-9")); !errors.Is(err, os.ErrNotExist) {
			t.Error("what an earlier process left is still there:", err)
		}
		putRow(t, stores[0], 1, "a")
		putRow(t, stores[0], 2, "b")
		if v, id := look(t, stores[0], 2); v != "b" || id != 2 {
			t.Fatal(v, id)
		}
		log, err := p.Node().Log(ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 1, Count: 1, WriterID: mink.NoWriter}); !errors.Is(err, mink.ErrUnsupported) {
			t.Fatal("an append past the store:", err)
		}
		if _, err := p.Node().KV(context.Background(), mink.BucketRef{Table: 999}); !errors.Is(err, mink.ErrNotExist) {
			t.Fatal(err)
		}
		_, topic := p.Topic("t", 1, nil)
		if _, err := p.Node().KV(context.Background(), topic[0]); !errors.Is(err, mink.ErrInvalid) {
			t.Fatal(err)
		}

		closed := func() bool {
			for _, b := range p.Node().Stats().Buckets {
				if b.Bucket == ref {
					return b.KV == nil
				}
			}
			return false
		}
		view, err := stores[0].View() // in use, though nobody asks
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if closed() {
			t.Fatal("a store closed under a view")
		}
		view.Close()
		w.Eventually(3*time.Minute, "the idle store closes", closed)
		if _, _, err := stores[0].Lookup(context.Background(), nil, nil); !errors.Is(err, mink.ErrClosed) {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Fatal("a closed store's directory is not kept:", left)
		}
		s := mustKV(t, p, ref)
		if v, _ := look(t, s, 1); v != "a" {
			t.Fatal(v)
		}
		putRow(t, s, 3, "c")

		p.Crash()
		p = w.StartReady(1)
		s = mustKV(t, p, ref)
		for k, want := range []string{1: "a", 2: "b", 3: "c"} {
			if v, _ := look(t, s, int32(k)); v != want {
				t.Errorf("key %d: %q, want %q", k, v, want)
			}
		}
		_, before := look(t, s, 3)
		putRow(t, s, 4, "d")
		if _, id := look(t, s, 4); id <= before+1 { // what was leased before the crash is not used again
			t.Errorf("number %d after %d", id, before)
		}
		if n, err := s.Count(context.Background()); n != 4 || err != nil {
			t.Error(n, err)
		}
	})
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Error("directories of leaderships that have ended:", left)
	}
}

// A leadership that ends takes the store with it, before the log; the next one of the
// same node has a store of its own. A table's change reaches an open store.
func TestStoreFollowsLeadershipAndTable(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		id, ref := pkTable(t, p)
		s := mustKV(t, p, ref)
		putRow(t, s, 1, "a")
		_, err := p.Node().AlterTable(context.Background(), id, []schema.Change{
			{Op: schema.AddColumn, Column: &schema.Column{Name: "more", Type: schema.MustParseType("INT")}},
		}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Node().KV(context.Background(), ref); err != nil {
			t.Fatal(err)
		}
		if n := len(s.Schema().Columns); n != 4 {
			t.Fatalf("the store knows %d columns", n)
		}
		if err := p.Node().DropTable(context.Background(), id, false); err != nil {
			t.Fatal(err)
		}
		w.Eventually(10*time.Second, "the store closes", func() bool {
			_, _, err := s.Lookup(context.Background(), nil, nil)
			return errors.Is(err, mink.ErrClosed)
		})
	})
}

// The directory of a store that was closed for being idle goes with the leadership,
// too.
func TestKeptDirectoryGoesWithLeadership(t *testing.T) {
	dir := t.TempDir()
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.KVDir, c.KVIdleClose = dir, time.Minute }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		id, ref := pkTable(t, p)
		putRow(t, mustKV(t, p, ref), 1, "a")
		w.Eventually(3*time.Minute, "the idle store closes", func() bool { return p.Node().Stats().Buckets[0].KV == nil })
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Fatal("a closed store's directory is not kept:", left)
		}
		if err := p.Node().DropTable(context.Background(), id, false); err != nil {
			t.Fatal(err)
		}
		w.Eventually(10*time.Second, "the directory goes", func() bool { left, _ := os.ReadDir(dir); return len(left) == 0 })
	})
}

// A node that stands still while another takes its buckets over does not answer from its
// store: not what it has, once its lease is over, although it has not read why.
func TestReplacedNodeAnswersNoOldRows(t *testing.T) {
	sim.InBubble(t, sim.Quiet(2), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		old := mustKV(t, p, ref)
		putRow(t, old, 1, "old")
		q := w.StartReady(2)
		p.PauseMetadata()
		defer p.Resume()
		answered := 0
		var s *kv.Tablet
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			var err error
			if s, err = q.Node().KV(context.Background(), ref); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("nobody takes over:", err)
			}
			if v, _, err := lookKey(context.Background(), old, 1); err == nil && v == "old" {
				answered++
			}
		}
		if answered == 0 {
			t.Error("it stopped to answer before its lease was over")
		}
		putRow(t, s, 1, "new")
		for range 100 {
			if v, _, err := lookKey(context.Background(), old, 1); err == nil {
				t.Fatalf("the replaced node answers %q", v)
			}
			if v, err := old.View(); err == nil {
				v.Close()
				t.Fatal("the replaced node scans")
			}
			if n, err := old.Count(context.Background()); err == nil {
				t.Fatalf("the replaced node counts %d", n)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if v, _ := look(t, s, 1); v != "new" {
			t.Error(v)
		}
	})
}
