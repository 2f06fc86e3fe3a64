package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/object"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// still is a world in which nothing is uploaded, merged or deleted by itself.
func still(seed uint64) sim.Config {
	cfg := sim.Quiet(seed)
	cfg.Node = func(c *node.Config) {
		c.Stream.WALUploadInterval, c.Stream.CompactInterval = time.Hour, time.Hour
		c.Stream.CleanInterval, c.Stream.SweepInterval = time.Hour, time.Hour
	}
	return cfg
}

// change replaces the bytes of a stored object.
func change(t *testing.T, w *sim.World, key string, f func([]byte) []byte) (old []byte) {
	t.Helper()
	ctx := context.Background()
	r, err := w.Objects().GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	old = slices.Clone(r.Data)
	put(t, w, key, f(r.Data))
	return old
}

func put(t *testing.T, w *sim.World, key string, data []byte) {
	t.Helper()
	if _, err := w.Objects().Put(context.Background(), objstore.PutRequest{Key: key, Chunks: [][]byte{data}}); err != nil {
		t.Fatal(err)
	}
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[(at+len(b))%len(b)] ^= 0x10
		return b
	}
}

func checked(t *testing.T, p *sim.Process, deep bool) api.CheckReport {
	t.Helper()
	r, err := p.Node().Check(context.Background(), deep)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// onlyProblem expects exactly one kind of problem that names the object.
func onlyProblem(t *testing.T, r api.CheckReport, kind, key string) {
	t.Helper()
	if r.Clean || len(r.Problems) == 0 {
		t.Errorf("clean, want a problem of kind %q", kind)
	}
	for _, p := range r.Problems {
		if p.Kind != kind || p.Object != key || !strings.Contains(p.Text, key) {
			t.Errorf("problem %+v, want kind %q of %s", p, kind, key)
		}
	}
}

func TestCheckFindsWhatIsWrongWithObjects(t *testing.T) {
	sim.InBubble(t, still(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 2, nil)
		for range 5 {
			p.Append(refs[0], "a", "b")
			p.Append(refs[1], "c")
		}
		if r := checked(t, p, true); !r.Clean {
			t.Errorf("before the upload: %+v", r)
		}
		if err := p.Node().Engine().UploadNow(context.Background()); err != nil {
			t.Fatal(err)
		}
		r := checked(t, p, true)
		if !r.Clean || r.Streams != 2 || r.Objects != 1 || r.Records != 15 || r.Bytes == 0 {
			t.Errorf("after the upload: %+v", r)
		}
		var o plan.Object
		for o = range p.Node().View().Objects() {
		}
		key := o.Key()

		old := change(t, w, key, flip(int(o.IndexPos)+3))
		onlyProblem(t, checked(t, p, false), "corrupt", key)
		put(t, w, key, old)

		change(t, w, key, flip(object.HeaderLen+40))
		if r := checked(t, p, false); !r.Clean {
			t.Errorf("a check that is not deep reads no blocks: %+v", r)
		}
		onlyProblem(t, checked(t, p, true), "corrupt", key)
		put(t, w, key, old)

		change(t, w, key, func(b []byte) []byte { return append(b, 0) })
		onlyProblem(t, checked(t, p, false), "size", key)
		change(t, w, key, func(b []byte) []byte { return b[:100] })
		onlyProblem(t, checked(t, p, false), "size", key)

		if _, err := w.Objects().DeleteBatch(context.Background(), []string{key}); err != nil {
			t.Fatal(err)
		}
		onlyProblem(t, checked(t, p, false), "missing", key)
		put(t, w, key, old)
		if r := checked(t, p, true); !r.Clean {
			t.Errorf("all is as it was: %+v", r)
		}
	})
}

func TestCheckFindsADamagedLogSlot(t *testing.T) {
	sim.InBubble(t, still(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		for range 3 {
			p.Append(refs[0], "a")
		}
		_, epoch := p.Node().Self()
		l, _ := p.Node().View().WAL(epoch)
		key := plan.Key(l.ID, plan.KindWAL, 1)
		old := change(t, w, key, flip(-10)) // the footer
		onlyProblem(t, checked(t, p, false), "corrupt", key)
		put(t, w, key, old)
		change(t, w, key, flip(object.HeaderLen+30)) // a record
		onlyProblem(t, checked(t, p, true), "corrupt", key)
		put(t, w, key, old)
		if r := checked(t, p, true); !r.Clean {
			t.Errorf("all is as it was: %+v", r)
		}
	})
}

// Metadata that promises more than an object holds.
func TestCheckFindsAGap(t *testing.T) {
	sim.InBubble(t, still(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		id, _ := p.Node().View().StreamOf(refs[0])
		_, epoch := p.Node().Self()
		l, _ := p.Node().View().WAL(epoch)
		b := object.NewBuilder(1)
		frame := object.Frame{Start: 0, Span: 5, Count: 5, LeaderEpoch: 1, Bytes: []byte("five records")}
		if err := b.AddFrame(id, &frame); err != nil {
			t.Fatal(err)
		}
		chunks, sum, err := b.Finish(object.Header{Kind: plan.KindStreamSet, WAL: l.ID, Seq: 900, Nonce: 7, CreatedMs: time.Now().UnixMilli()})
		if err != nil {
			t.Fatal(err)
		}
		o := sum.Object(0)
		put(t, w, o.Key(), slices.Concat(chunks...))
		items := sum.Items()
		items[0].End = 8
		results, err := p.Node().Propose(context.Background(), cluster.CommitObjectsCommand(plan.CommitObjects{WAL: l.ID, Seq: 1, Objects: []plan.Object{o}, Items: items}))
		if err != nil || cluster.ResultError(results[0]) != nil {
			t.Fatal(err, results)
		}
		onlyProblem(t, checked(t, p, false), "gap", o.Key())
	})
}

// What an epoch left behind long ago falls to the sweep only when the epoch is recovered.
func TestCheckWaitsForTheSweepOfARecoveredEpoch(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, epoch := p.Node().Self()
		l, _ := p.Node().View().WAL(epoch)
		data := plan.Key(l.ID, plan.KindStreamSet, 77)
		put(t, w, data, []byte("an upload that failed"))
		time.Sleep(time.Minute) // three times as old as an orphan may be
		p.Crash()
		p = w.StartReady(1)
		p.Faults.Inject(fault.Rule{Ops: fault.Delete, Do: fault.FailBefore(objstore.ErrUnavailable)})
		time.Sleep(10 * time.Second) // the node reports orphans from now on
		if now, _ := p.Node().View().WAL(epoch); !now.Recovered {
			t.Fatal("the first epoch is not recovered")
		}
		if r := checked(t, p, false); !r.Clean {
			t.Errorf("old objects of an epoch that was just recovered are the sweep's: %+v", r)
		}
		time.Sleep(15 * time.Second)
		if r := checked(t, p, false); !slices.ContainsFunc(r.Problems, func(q api.Problem) bool { return q.Object == data }) {
			t.Errorf("nothing swept it, and it is no problem: %+v", r)
		}
	})
}

func TestCheckFindsOrphans(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, epoch := p.Node().Self()
		l, _ := p.Node().View().WAL(epoch)
		p.Crash()
		p = w.StartReady(1)
		w.Eventually(10*time.Second, "the first epoch is recovered", func() bool {
			now, _ := p.Node().View().WAL(epoch)
			return now.Recovered
		})
		data := plan.Key(l.ID, plan.KindStreamSet, 77)
		put(t, w, data, []byte("nobody names this"))
		if r := checked(t, p, false); !r.Clean {
			t.Errorf("a young orphan is the sweep's: %+v", r)
		}
		p.Faults.Inject(fault.Rule{Ops: fault.Delete, Do: fault.FailBefore(objstore.ErrUnavailable)})
		time.Sleep(30 * time.Second) // the sweep cannot delete; the orphan is older than twice its age
		r := checked(t, p, false)
		var found []string
		for _, q := range r.Problems {
			if q.Kind != "orphan" {
				t.Errorf("problem %+v, want orphans", q)
			}
			found = append(found, q.Object)
		}
		if !slices.Contains(found, data) {
			t.Errorf("orphans %v, want %s among them", found, data)
		}
		now, _ := p.Node().View().WAL(epoch)
		if tomb := plan.Key(l.ID, plan.KindTombstone, now.End); slices.Contains(found, tomb) {
			t.Errorf("the tombstone %s is no orphan", tomb)
		}
	})
}

func TestACorruptBucketLeavesTheOthersOpen(t *testing.T) {
	sim.InBubble(t, still(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, bad := p.Topic("bad", 1, nil)
		_, good := p.Topic("good", 1, nil)
		// An object of its own for each.
		for i := range 3 {
			p.Append(bad[0], fmt.Sprint("bad", i))
		}
		if err := p.Node().Engine().UploadNow(ctx); err != nil {
			t.Fatal(err)
		}
		var key string
		var o plan.Object
		for o = range p.Node().View().Objects() {
			key = o.Key()
		}
		p.Append(good[0], "good")
		if err := p.Node().Engine().UploadNow(ctx); err != nil {
			t.Fatal(err)
		}
		p.Crash()
		old := change(t, w, key, flip(int(o.IndexPos)+3))

		p = w.StartReady(1) // does not wait for what only a person mends
		if ok, why := p.Node().Ready(); ok || !strings.Contains(why, "corrupt") || !strings.Contains(why, key) {
			t.Errorf("ready %t, because %q; want the corrupt object's name", ok, why)
		}
		if _, err := p.Node().Log(bad[0]); !isCorrupt(err) {
			t.Errorf("the corrupt bucket: %v", err)
		}
		p.Append(good[0], "more")
		if _, values := p.Read(good[0]); !slices.Equal(values, []string{"good", "more"}) {
			t.Errorf("the good bucket holds %v", values)
		}
		stats := p.Node().Stats()
		if i := slices.IndexFunc(stats.Buckets, func(b node.BucketStats) bool { return b.Bucket == bad[0] }); i < 0 || stats.Buckets[i].Error == "" {
			t.Errorf("the figures do not show the error: %+v", stats.Buckets)
		}
		put(t, w, key, old) // somebody restores it
		w.Eventually(2*time.Minute, "the restored bucket opens", func() bool { ok, _ := p.Node().Ready(); return ok })
		if _, values := p.Read(bad[0]); len(values) != 3 {
			t.Errorf("the restored bucket holds %v", values)
		}
	})
}

func isCorrupt(err error) bool {
	return err != nil && strings.Contains(err.Error(), mink.ErrCorrupt.Error())
}
