package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func loops(p *sim.Process) map[string]loop.Status {
	out := map[string]loop.Status{}
	st := p.Node().Stats()
	for _, l := range slices.Concat(st.Loops, p.Coordinator().Loops(), st.Engine.Loops) {
		out[l.Name] = l
	}
	return out
}

func TestEveryLoopFiresAtItsIntervalAndSurvivesFailures(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, map[string]string{"log_ttl": "10s"})
		const d = 60 * time.Second
		watch := func() (before, after map[string]loop.Status) {
			before = loops(p)
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				_, _ = p.TryAppend(refs[0], "x")
			}
			return before, loops(p)
		}
		before, after := watch()
		for _, name := range []string{"heartbeat", "log retention", "lease", "silent nodes", "coordinator tick", "wal recovery", "metadata snapshot", "metadata head", "wal upload", "compaction", "object deletion", "orphan sweep", "KV file deletion", "KV orphan sweep"} {
			l := after[name]
			if l.Interval == 0 {
				t.Errorf("there is no loop %q", name)
				continue
			}
			// A run takes time, and wake-ups add runs: within a factor of two. Uploads
			// wait to delete their log slots and hurry the head, once a second at most.
			most := uint64(2*d/l.Interval) + 2
			if name == "metadata head" {
				most = uint64(d/time.Second) + 2
			}
			if ran, want := l.Runs-before[name].Runs, uint64(d/l.Interval); ran < want/2 || ran > most {
				t.Errorf("%s ran %d times in %v, its interval is %v", name, ran, d, l.Interval)
			}
			if l.Failures != 0 {
				t.Errorf("%s failed in a world without faults: %s", name, l.LastError)
			}
		}

		// Nothing of the store but its log works: loops fail and go on.
		dead := p.Faults.Inject(fault.Rule{Prefix: "data/", Do: fault.FailBefore(objstore.ErrUnavailable)})
		_, after = watch()
		if l := after["wal upload"]; l.Failures < 3 || l.LastError == "" {
			t.Errorf("uploads to a dead store: %+v", l)
		}
		dead.Remove()
		before, after = watch()
		for name, l := range after {
			if l.LastError != "" || l.Runs == before[name].Runs {
				t.Errorf("%s does not run again: %+v", name, l)
			}
		}
	})
}

func TestHeartbeatsGoOutEveryQuarterOfALease(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = 8 * time.Second
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		w.StartReady(1)
		oldest := int64(0)
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			rows, err := w.Log().Heartbeats(context.Background())
			if err != nil || len(rows) != 1 {
				t.Fatal(rows, err)
			}
			oldest = max(oldest, rows[0].AgeMs)
		}
		if oldest < 1800 || oldest > 2100 {
			t.Errorf("the oldest heartbeat was %d ms old, want about 2000", oldest)
		}
	})
}

func TestRetentionReachesOpenTabletsAndSurvivesABrokenOne(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.LogRetentionInterval = 5 * time.Second }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		ttl := map[string]string{"log_ttl": "20s"}
		_, broken := p.Topic("broken", 1, ttl)
		_, good := p.Topic("good", 1, ttl)
		_, kept := p.Topic("kept", 1, nil)
		for i := range 10 {
			for _, ref := range []mink.BucketRef{broken[0], good[0], kept[0]} {
				p.Append(ref, fmt.Sprint(i), strings.Repeat("x", 5000)) // objects of their own
			}
		}
		time.Sleep(3 * time.Second) // uploaded
		p.Crash()
		p = w.StartReady(1) // nothing is in the log cache
		id, _ := p.Node().View().StreamOf(broken[0])
		s, _ := p.Node().View().Stream(id)
		mine := map[string]bool{}
		for _, o := range s.Objects() {
			obj, _ := p.Node().View().Object(o)
			mine[obj.Key()] = true
		}
		rule := p.Faults.Inject(fault.Rule{Ops: fault.Get, Do: fault.FailBefore(objstore.ErrUnavailable), Match: func(c fault.Call) bool { return mine[c.Key] }})
		start := func(ref mink.BucketRef) mink.Offset {
			log, err := p.Node().Log(ref)
			if err != nil {
				t.Fatal(err)
			}
			return log.LogStart()
		}
		w.Eventually(40*time.Second, "the good bucket is trimmed, as its readers see it", func() bool { return start(good[0]) == 20 })
		if at := start(kept[0]); at != 0 {
			t.Errorf("a table without a ttl was trimmed to %d", at)
		}
		rule.Remove()
		w.Eventually(30*time.Second, "the broken bucket is trimmed after all", func() bool { return start(broken[0]) == 20 })
		p.Append(good[0], "after")
		if first, values := p.Read(good[0]); first != 20 || len(values) != 1 {
			t.Errorf("the trimmed log holds %v from %d", values, first)
		}
		before := p.Node().View().Index()
		time.Sleep(18 * time.Second) // with nothing to trim, nothing is proposed
		if now := p.Node().View().Index(); now > before+12 {
			t.Errorf("%d metadata entries in 18 s of rest", now-before)
		}
	})
}

func TestObjectsOfADroppedTableGo(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		table, refs := p.Topic("t", 2, nil)
		for range 20 {
			p.Append(refs[0], strings.Repeat("x", 1000))
			p.Append(refs[1], "y")
		}
		time.Sleep(3 * time.Second)
		if err := p.Node().DropTable(context.Background(), table.ID, false); err != nil {
			t.Fatal(err)
		}
		if n := stored(t, w, "data/"); n == 0 {
			t.Fatal("nothing was uploaded")
		}
		time.Sleep(2 * time.Second)
		if n := stored(t, w, "data/"); n == 0 {
			t.Error("objects went before their grace of 3 s was over")
		}
		w.Eventually(20*time.Second, "all objects are gone", func() bool { return stored(t, w, "data/")+stored(t, w, "wal/") == 0 })
		w.Eventually(5*time.Second, "the metadata forgets them", func() bool {
			for range p.Node().View().Destroyed() {
				return false
			}
			return true
		})
	})
}

// Objects go though no life of the node is as long as a read may take.
func TestObjectsGoThoughTheNodeRestarts(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) { c.Stream.ReadTimeout = 30 * time.Second }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		table, refs := p.Topic("t", 1, nil)
		p.Append(refs[0], strings.Repeat("x", 1000))
		time.Sleep(3 * time.Second)
		if err := p.Node().DropTable(context.Background(), table.ID, false); err != nil {
			t.Fatal(err)
		}
		if n := stored(t, w, "data/"); n == 0 {
			t.Fatal("nothing was uploaded")
		}
		for range 4 {
			time.Sleep(10 * time.Second)
			p.Crash()
			p = w.StartReady(1)
		}
		if n := stored(t, w, "data/"); n != 0 {
			t.Errorf("%d objects of the dropped table are left", n)
		}
	})
}

func stored(t *testing.T, w *sim.World, prefix string) int {
	t.Helper()
	r, err := w.Objects().List(context.Background(), objstore.ListRequest{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return len(r.Objects)
}

// slow is a world for days: everything happens now and then.
func slow(seed uint64, ttl time.Duration) sim.Config {
	cfg := sim.Quiet(seed)
	cfg.LeaseTTL = ttl
	cfg.Meta = func(c *metalog.Config) { c.PollInterval = ttl }
	cfg.Node = func(c *node.Config) {
		c.LogRetentionInterval = ttl
		c.Stream.WALUploadInterval, c.Stream.CompactInterval, c.Stream.CleanInterval, c.Stream.SweepInterval = ttl, ttl, ttl, ttl
		c.Stream.Compaction = plan.DefaultCompaction()
	}
	cfg.Coordinator = func(c *coordinator.Config) { c.Tick, c.SnapshotInterval = ttl/6, ttl }
	return cfg
}

func TestIdleWritersAreForgotten(t *testing.T) {
	sim.InBubble(t, slow(1, time.Hour), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		log, err := p.Node().Log(refs[0])
		if err != nil {
			t.Fatal(err)
		}
		write := func(writer mink.WriterID, seq int32) {
			t.Helper()
			pending, err := log.AppendKafka(sim.KafkaBatch(writer, seq, "x"), tablet.KafkaAppend{})
			if err != nil {
				t.Fatal(err)
			}
			<-pending.Done()
			if _, err := pending.Result(); err != nil {
				t.Fatal(err)
			}
		}
		write(1, 0)
		time.Sleep(tablet.WriterExpiry - time.Hour)
		write(2, 0)
		if n := log.Stats().Writers; n != 2 {
			t.Errorf("%d writers are known an hour before the first expires, want 2", n)
		}
		time.Sleep(2 * time.Hour)
		write(2, 1)
		if n := log.Stats().Writers; n != 1 {
			t.Errorf("%d writers are known, want the one that is not idle", n)
		}
	})
}
