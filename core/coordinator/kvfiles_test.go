package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// kvTable makes a primary-key table of one bucket.
func kvTable(t *testing.T, p *sim.Process, name string) (*cluster.Table, mink.BucketRef, mink.StreamID) {
	t.Helper()
	ctx := context.Background()
	if err := p.Node().CreateDatabase(ctx, "kv", true); err != nil {
		t.Fatal(err)
	}
	d, err := (&schema.Descriptor{Database: "kv", Table: name, BucketCount: 1, PrimaryKey: []string{"a"}, Schema: schema.Schema{Columns: []schema.Column{{Name: "a", Type: schema.MustParseType("INT")}}}}).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	propose(t, p, &clusterpb.Command{Kind: &clusterpb.Command_CreateTable{CreateTable: &clusterpb.CreateTable{Descriptor_: d.Encode(), Uuid: []byte("0123456789abcdef")}}})
	table, _ := p.Node().View().TableByName("kv", name)
	for part := range p.Node().View().Partitions(table.ID) {
		return table, mink.BucketRef{Table: table.ID, Partition: part.ID}, part.Streams[0]
	}
	t.Fatal("no partition")
	return nil, mink.BucketRef{}, 0
}

func nonceOf(p *sim.Process) uint64 {
	n, _ := p.Node().View().Node(p.ID)
	return n.Nonce
}

func putFile(t *testing.T, store objstore.Store, f kvplan.BucketFile) kvplan.BucketFile {
	t.Helper()
	if _, err := store.Put(context.Background(), objstore.PutRequest{Key: f.Key(), Chunks: [][]byte{{1}}, CreateOnly: true}); err != nil {
		t.Fatal(err)
	}
	return f
}

func propose(t *testing.T, p *sim.Process, c *clusterpb.Command) {
	t.Helper()
	results, err := p.Node().Propose(context.Background(), c)
	if err == nil {
		err = cluster.ResultError(results[0])
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Files that pruning or a drop destroyed are deleted after the grace, when no node
// reads an older view, and forgotten; a store that does not delete is asked again.
func TestDestroyedKVFilesAreDeletedInTime(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.PageMax = 2
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		w.Eventually(5*time.Second, "it coordinates", p.Coordinator().Leading)
		table, ref, id := kvTable(t, p, "t")
		st, _ := p.Node().View().Stream(id)
		var files []kvplan.BucketFile
		for n := uint64(1); n <= 7; n++ {
			files = append(files, putFile(t, w.Objects(), kvplan.BucketFile{Bucket: ref, File: kvplan.File{Epoch: st.Owner.LeaderEpoch, Number: n, Nonce: nonceOf(p), Size: 1}}))
		}
		there := func() (out []uint64) {
			_ = objstore.All(context.Background(), w.Objects(), kvplan.Prefix, "", func(o objstore.ObjectInfo) bool {
				f, _ := kvplan.ParseKey(o.Key)
				out = append(out, f.Number)
				return true
			})
			return out
		}
		for _, s := range [][]kvplan.File{{files[0].File, files[1].File, files[2].File}, {files[3].File, files[1].File}} {
			propose(t, p, cluster.CommitKVSnapshotCommand(id, kvplan.Snapshot{Epoch: st.Owner.LeaderEpoch, Files: s}, 1))
		}
		time.Sleep(5*time.Minute - 5*time.Second)
		if got := there(); len(got) != 7 {
			t.Fatalf("before the grace was over %v were left", got)
		}
		broken := p.Faults.Inject(fault.Rule{Ops: fault.Delete, Prefix: kvplan.Prefix, Do: fault.FailBefore(objstore.ErrUnavailable)})
		time.Sleep(2 * time.Minute)
		if got := there(); len(got) != 7 || len(slices.Collect(p.Node().View().DestroyedKV())) != 2 {
			t.Fatalf("while the store deletes nothing %v are left", got)
		}
		broken.Remove()
		w.Eventually(2*time.Minute, "they are forgotten", func() bool { return len(slices.Collect(p.Node().View().DestroyedKV())) == 0 })
		if got := there(); !slices.Equal(got, []uint64{2, 4, 5, 6, 7}) {
			t.Fatalf("%v are left", got)
		}
		// Another node that is still at an older view holds the deletion up.
		slow := w.StartReady(2)
		slow.PauseMetadata()
		if err := p.Node().DropTable(context.Background(), table.ID, false); err != nil {
			t.Fatal(err)
		}
		slow.Crash()
		w.Eventually(15*time.Minute, "the dropped table's files are forgotten", func() bool { return len(slices.Collect(p.Node().View().DestroyedKV())) == 0 })
		w.Eventually(3*time.Hour, "what it was uploading is swept", func() bool { return len(there()) == 0 })
	})
}

// The sweep takes what no commit ever named, of leaderships that are over, once it is
// old; nothing of the current one, nothing that is named, nothing of another time
// line.
func TestKVOrphansAreSwept(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.PageMax = 2
	cfg.Coordinator = func(c *coordinator.Config) { c.SweepInterval = 5 * time.Minute }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref, id := kvTable(t, p, "t")
		st, _ := p.Node().View().Stream(id)
		first, nonce := st.Owner.LeaderEpoch, nonceOf(p)
		file := func(epoch mink.LeaderEpoch, number, nonce uint64) kvplan.BucketFile {
			return putFile(t, w.Objects(), kvplan.BucketFile{Bucket: ref, File: kvplan.File{Epoch: epoch, Number: number, Nonce: nonce, Size: 1}})
		}
		named := file(first, 1, nonce)
		propose(t, p, cluster.CommitKVSnapshotCommand(id, kvplan.Snapshot{Epoch: first, Files: []kvplan.File{named.File}}, 1))
		orphans := []kvplan.BucketFile{file(first, 2, nonce), file(first, 3, nonce), file(first, 4, nonce)}
		foreign := file(first, 5, nonce+1)
		stranger := kvplan.Prefix + "something/else"
		if _, err := w.Objects().Put(context.Background(), objstore.PutRequest{Key: stranger, Chunks: [][]byte{{1}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Hour)
		exists := func(keys ...string) (n int) {
			for _, k := range keys {
				if _, err := w.Objects().Head(context.Background(), k); err == nil {
					n++
				}
			}
			return n
		}
		if exists(orphans[0].Key(), orphans[1].Key(), orphans[2].Key()) != 3 {
			t.Fatal("files of a leadership that goes on were swept")
		}
		p.Crash()
		p = w.StartReady(1)
		w.Eventually(20*time.Second, "the bucket has a new leader", func() bool {
			st, _ := p.Node().View().Stream(id)
			return st.Owner.LeaderEpoch > first
		})
		now, _ := p.Node().View().Stream(id)
		young := file(first, 6, nonce) // a late PUT of the former leader
		current := file(now.Owner.LeaderEpoch, 1, nonceOf(p))
		time.Sleep(50 * time.Minute)
		if exists(young.Key()) != 1 {
			t.Fatal("it was swept before its age")
		}
		time.Sleep(3 * time.Hour)
		if n := exists(orphans[0].Key(), orphans[1].Key(), orphans[2].Key(), young.Key()); n != 0 {
			t.Errorf("%d of 4 orphans are left", n)
		}
		if exists(named.Key(), current.Key(), foreign.Key(), stranger) != 4 {
			t.Error("something was swept that is none of the sweep's business")
		}
	})
}

// A store on which no sweep gets further than one page is swept all the same.
func TestKVSweepGoesOnWhereItStopped(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.PageMax = 2
	cfg.Coordinator = func(c *coordinator.Config) { c.SweepInterval = 5 * time.Minute }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref, id := kvTable(t, p, "t")
		st, _ := p.Node().View().Stream(id)
		first, nonce := st.Owner.LeaderEpoch, nonceOf(p)
		file := func(content byte, nonce uint64) kvplan.BucketFile {
			f := kvplan.File{Epoch: first, Number: uint64(content) + 1, Nonce: nonce, Size: 1, Content: kvplan.ContentID{content}}
			return putFile(t, w.Objects(), kvplan.BucketFile{Bucket: ref, File: f})
		}
		for i := range byte(7) {
			file(i, nonce+1) // not the sweep's
		}
		last := file(7, nonce)
		p.Crash()
		p = w.StartReady(1)
		lists := 0
		p.Faults.Inject(fault.Rule{Ops: fault.List, Match: func(c fault.Call) bool {
			if c.Key == kvplan.Prefix {
				lists++
			}
			return c.Key == kvplan.Prefix && lists%2 == 0
		}, Do: fault.FailBefore(objstore.ErrUnavailable)})
		w.Eventually(4*time.Hour, "the last page is swept", func() bool {
			_, err := w.Objects().Head(context.Background(), last.Key())
			return errors.Is(err, objstore.ErrNotExist)
		})
	})
}
