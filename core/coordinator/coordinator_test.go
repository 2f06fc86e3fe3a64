package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/internal/loop"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

func TestADatabaseRestartFencesNobody(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		one, two := w.StartReady(1), w.StartReady(2)
		w.Eventually(5*time.Second, "somebody coordinates", func() bool { return one.Coordinator().Leading() || two.Coordinator().Leading() })
		_, e1 := one.Node().Self()
		_, e2 := two.Node().Self()
		for i, away := range []time.Duration{2 * time.Second, 10 * time.Second, time.Minute, 2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute} {
			stall := w.StallMetadata
			if i >= 3 { // it still answers questions
				stall = w.StallMetadataWrites
			}
			stall(true)
			time.Sleep(away)
			stall(false)
			time.Sleep(30 * time.Second)
			_, now1 := one.Node().Self()
			_, now2 := two.Node().Self()
			if now1 != e1 || now2 != e2 {
				t.Fatalf("after %v without the database (%d) the epochs went from %d and %d to %d and %d", away, i, e1, e2, now1, now2)
			}
		}
	})
}

func TestTheLeaseIsHandedOver(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = 8 * time.Second
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		w.Eventually(time.Second, "node 1 coordinates", one.Coordinator().Leading)
		two, three := w.StartReady(2), w.StartReady(3)
		time.Sleep(30 * time.Second)
		if two.Coordinator().Leading() || three.Coordinator().Leading() || !one.Coordinator().Leading() {
			t.Error("a living holder lost its lease")
		}
		if err := one.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		leading := func() *sim.Process {
			for _, p := range w.Processes() {
				if p.Coordinator().Leading() {
					return p
				}
			}
			return nil
		}
		w.Eventually(2100*time.Millisecond, "the lease was given back", func() bool { return leading() != nil })
		holder := leading()
		holder.Crash()
		time.Sleep(5 * time.Second)
		if leading() != nil {
			t.Error("the lease of a dead holder was taken before it expired")
		}
		w.Eventually(6*time.Second, "the last one coordinates", func() bool { return leading() != nil })
		w.Eventually(20*time.Second, "it seals the dead", func() bool {
			n, _ := leading().Node().View().Node(holder.ID)
			return n.Sealed
		})
	})
}

// The buckets of a holder that stops in order do not wait for the others' next look at
// the lease.
func TestAStoppingHoldersBucketsAreLedAtOnce(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = 10 * time.Minute
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		w.Eventually(time.Second, "node 1 coordinates", one.Coordinator().Leading)
		two, three := w.StartReady(2), w.StartReady(3)
		_, refs := one.Topic("t", 6, nil)
		for _, left := range [][]*sim.Process{{two, three}, {three}} {
			time.Sleep(20 * time.Second) // all have asked for the lease, and ask again in minutes
			var holder *sim.Process
			for _, p := range w.Processes() {
				if p.Coordinator().Leading() {
					holder = p
				}
			}
			if holder == three {
				left = []*sim.Process{two}
			}
			if err := holder.Stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			w.Eventually(5*time.Second, "its buckets have leaders", func() bool {
				for _, ref := range refs {
					if !slices.ContainsFunc(left, func(p *sim.Process) bool { _, err := p.Node().Log(ref); return err == nil }) {
						return false
					}
				}
				return true
			})
		}
	})
}

// How often buckets are given leaders says nothing about how often heartbeats are
// looked at: a tick that is long beside the lease must not keep a dead node alive.
func TestASilentNodeIsSealedHoweverLongTheTickIs(t *testing.T) {
	for _, tick := range []time.Duration{5 * time.Second, time.Hour} {
		cfg := sim.Quiet(1)
		cfg.LeaseTTL = 8 * time.Second
		cfg.Coordinator = func(c *coordinator.Config) { c.Tick = tick }
		sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
			one := w.StartReady(1)
			w.Eventually(time.Second, "node 1 coordinates", one.Coordinator().Leading)
			two := w.StartReady(2)
			_, refs := two.Topic("t", 2, nil)
			_, epoch := two.Node().Self()
			two.Crash()
			w.Eventually(2*cfg.LeaseTTL, fmt.Sprintf("with a tick of %s, node 2 is sealed", tick), func() bool {
				l, ok := one.Node().View().WAL(epoch)
				return ok && l.Sealed
			})
			w.Eventually(2*cfg.LeaseTTL, fmt.Sprintf("with a tick of %s, its buckets have a leader", tick), func() bool {
				for _, ref := range refs {
					if _, err := one.Node().Log(ref); err != nil {
						return false
					}
				}
				return true
			})
		})
	}
}

// A WAL that is corrupt is a person's business; nothing else waits for it.
func TestACorruptLogStaysClosedUntilItsLossIsAccepted(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) {
		c.Stream.WALUploadInterval, c.Stream.CompactInterval = time.Hour, time.Hour
		c.RecoveryWait = 5 * time.Second
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		for i := range 4 {
			p.Append(refs[0], fmt.Sprint(i))
		}
		_, epoch := p.Node().Self()
		l, _ := p.Node().View().WAL(epoch)
		p.Crash()
		key := plan.Key(l.ID, plan.KindWAL, 2)
		r, err := w.Objects().GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		r.Data[len(r.Data)-9] ^= 1
		if _, err := w.Objects().Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{r.Data}}); err != nil {
			t.Fatal(err)
		}

		began := time.Now()
		p = w.StartReady(1)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("waited %v for a recovery that needs a person", took)
		}
		if ok, why := p.Node().Ready(); ok || !strings.Contains(why, "recovering") {
			t.Errorf("ready %t, %q", ok, why)
		}
		if _, err := p.Node().Log(refs[0]); !errors.Is(err, mink.ErrCorrupt) || !strings.Contains(err.Error(), "accept-loss") {
			t.Errorf("a bucket of the corrupt log: %v", err)
		}
		_, other := p.Topic("other", 1, nil)
		p.Append(other[0], "goes on")
		report, err := p.Node().Check(ctx, false)
		if err != nil || len(report.Problems) != 1 || report.Problems[0].Object != key {
			t.Errorf("check: %v %+v, want the slot %s named", err, report.Problems, key)
		}
		i := slices.IndexFunc(p.Coordinator().Loops(), func(l loop.Status) bool { return l.Name == "wal recovery" })
		if last := p.Coordinator().Loops()[i].LastError; !strings.Contains(last, key) {
			t.Errorf("the recovery's error %q does not name %s", last, key)
		}

		want := []api.DamagedLog{{Node: 1, Epoch: epoch, Slots: []api.DamagedSlot{{Slot: 2, Object: key, Losses: []api.Loss{
			{Bucket: refs[0], Table: "sim.t", Start: 2, End: 3, Exact: true},
		}}}}}
		ask := api.AcceptLoss{Node: 1, Epoch: epoch}
		look, err := p.Coordinator().AcceptLoss(ctx, api.AcceptLoss{})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range [][]api.DamagedLog{p.Coordinator().Damaged(), look.Logs} {
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.DamagedSlot{}, "Reason")); diff != "" {
				t.Error(diff)
			}
		}
		for what, wrong := range map[string]func(*api.AcceptLoss){
			"no slots":       func(*api.AcceptLoss) {},
			"another slot":   func(a *api.AcceptLoss) { a.Slots = []uint64{1} },
			"one too many":   func(a *api.AcceptLoss) { a.Slots = []uint64{2, 3} },
			"another node":   func(a *api.AcceptLoss) { a.Slots, a.Node = []uint64{2}, 2 },
			"no log":         func(a *api.AcceptLoss) { a.Slots, a.Node, a.Epoch = []uint64{2}, 0, 0 },
			"the living log": func(a *api.AcceptLoss) { a.Slots, a.Epoch = []uint64{2}, epoch+1 },
			"an unknown log": func(a *api.AcceptLoss) { a.Slots, a.Epoch = []uint64{2}, epoch+9 },
		} {
			a := ask
			a.Confirm = true
			wrong(&a)
			if r, err := p.Coordinator().AcceptLoss(ctx, a); err == nil || r.Accepted {
				t.Errorf("%s: %+v, %v", what, r, err)
			}
		}
		if lost := p.Node().View().LostSlots(epoch); len(lost) != 0 {
			t.Fatalf("accepted without being confirmed: %+v", lost)
		}
		ask.Slots, ask.Confirm = []uint64{2}, true
		if r, err := p.Coordinator().AcceptLoss(ctx, ask); err != nil || !r.Accepted {
			t.Fatalf("%+v, %v", r, err)
		}
		w.Eventually(3*time.Second, "the bucket opens", func() bool { ok, _ := p.Node().Ready(); return ok })
		p.Append(refs[0], "4")
		if _, values := p.Read(refs[0]); !slices.Equal(values, []string{"0", "1", "3", "4"}) {
			t.Errorf("the log holds %v", values)
		}
		if d := p.Coordinator().Damaged(); len(d) != 0 {
			t.Errorf("still damaged: %+v", d)
		}
		report, err = p.Node().Check(ctx, true)
		lost := []api.Loss{{Bucket: refs[0], Table: "sim.t", Start: 2, End: 3}}
		if err != nil || !report.Clean || !slices.Equal(report.AcceptedLosses, lost) {
			t.Errorf("check: %v %+v, want it clean, with the accepted loss", err, report)
		}
		ask.Confirm = false
		if _, err := p.Coordinator().AcceptLoss(ctx, ask); !errors.Is(err, mink.ErrConflict) {
			t.Errorf("of a recovered log: %v, want ErrConflict", err)
		}
	})
}

// The last records of a bucket are in the damaged slot: their offsets were given
// out, to consumers too, and are not given out again.
func TestLostOffsetsAreNeverGivenOutAgain(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"the object says how many": func(b []byte) []byte { b[len(b)-9] ^= 1; return b },
		"nothing says how many":    func(b []byte) []byte { return b[:len(b)/3] },
		"nothing is left of it":    func([]byte) []byte { return []byte("x") },
	} {
		cfg := sim.Quiet(1)
		cfg.Node = func(c *node.Config) {
			c.Stream.WALUploadInterval, c.Stream.CompactInterval = time.Hour, time.Hour
			c.RecoveryWait = 5 * time.Second
		}
		sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
			ctx := context.Background()
			p := w.StartReady(1)
			_, refs := p.Topic("t", 2, nil)
			p.Append(refs[0], "0", "1")
			p.Append(refs[0], "2", "3", "4")
			_, epoch := p.Node().Self()
			l, _ := p.Node().View().WAL(epoch)
			p.Crash()
			key := plan.Key(l.ID, plan.KindWAL, 1)
			r, err := w.Objects().GetRange(ctx, objstore.GetRangeRequest{Key: key, Length: -1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Objects().Put(ctx, objstore.PutRequest{Key: key, Chunks: [][]byte{damage(r.Data)}}); err != nil {
				t.Fatal(err)
			}
			p = w.StartReady(1)
			if _, err := p.Coordinator().AcceptLoss(ctx, api.AcceptLoss{Node: 1, Epoch: epoch, Slots: []uint64{1}, Confirm: true}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			w.Eventually(3*time.Second, "the buckets open", func() bool { ok, _ := p.Node().Ready(); return ok })
			exact := name == "the object says how many"
			if at := p.Append(refs[0], "5").First; at < 5 || exact && at != 5 {
				t.Errorf("%s: the next offset is %d, 0 to 4 were given out", name, at)
			}
			if at := p.Append(refs[1], "x").First; exact && at != 0 {
				t.Errorf("%s: the bucket beside it goes on at %d", name, at)
			}
			if _, values := p.Read(refs[0]); !slices.Equal(values, []string{"0", "1", "5"}) {
				t.Errorf("%s: the log holds %v", name, values)
			}
			p.Crash()
			p = w.StartReady(1)
			if _, values := p.Read(refs[0]); !slices.Equal(values, []string{"0", "1", "5"}) {
				t.Errorf("%s: after another restart the log holds %v", name, values)
			}
		})
	}
}

// One log whose store does not answer holds up neither the recovery of another
// nor the rest of the coordinator's work.
func TestAStuckRecoveryHoldsUpNothingElse(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		one, two, three := w.StartReady(1), w.StartReady(2), w.StartReady(3)
		w.Eventually(time.Second, "node 1 coordinates", one.Coordinator().Leading)
		_, refs := one.Topic("t", 6, nil)
		_, e2 := two.Node().Self()
		_, e3 := three.Node().Self()
		l2, _ := one.Node().View().WAL(e2)
		stuck := one.Faults.Inject(fault.Rule{Prefix: plan.WALPrefix(l2.ID), Do: fault.FailBefore(objstore.ErrUnavailable)})
		two.Crash()
		w.Eventually(time.Minute, "node 2 is sealed, and its recovery waits", func() bool {
			l, _ := one.Node().View().WAL(e2)
			return l.Sealed
		})
		three.Crash()
		recovered := func(e mink.NodeEpoch) bool {
			l, _ := one.Node().View().WAL(e)
			return l.Recovered
		}
		w.Eventually(10*time.Second, "node 3's log is recovered", func() bool { return recovered(e3) })
		w.Eventually(time.Second, "its buckets are led", func() bool {
			led := 0
			for _, ref := range refs {
				if _, err := one.Node().Log(ref); err == nil {
					led++
				}
			}
			return led == 4
		})
		if recovered(e2) {
			t.Error("node 2's log is recovered without its store")
		}
		stuck.Remove()
		w.Eventually(30*time.Second, "node 2's log is recovered", func() bool { return recovered(e2) })
	})
}

func days(ttl time.Duration) sim.Config {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = ttl
	cfg.Meta = func(c *metalog.Config) { c.PollInterval = ttl }
	cfg.Node = func(c *node.Config) {
		c.LogRetentionInterval = ttl
		c.Stream.WALUploadInterval, c.Stream.CompactInterval, c.Stream.CleanInterval, c.Stream.SweepInterval = ttl, ttl, ttl, ttl
	}
	return cfg
}

// What waits for the head to be deleted waits a second or two, not a lease.
func TestTheHeadIsHurriedByDeletions(t *testing.T) {
	sim.InBubble(t, days(10*time.Minute), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		covered := func() uint64 {
			at, err := p.Head().Covered(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		w.Eventually(time.Minute, "the lease is held", p.Coordinator().Leading)
		for i := range 5 { // at five places within the loop's own interval
			time.Sleep(7 * time.Second)
			if err := p.Node().CreateDatabase(ctx, fmt.Sprintf("db%d", i), false); err != nil {
				t.Fatal(err)
			}
			want := p.Node().View().Index()
			if covered() >= want {
				continue // the loop ran just now
			}
			time.Sleep(2500 * time.Millisecond)
			if at := covered(); at < want {
				t.Errorf("round %d: the store remembers %d, deletions wait for %d", i, at, want)
			}
		}
	})
}

func TestPartitionsAreKeptAutomatically(t *testing.T) {
	sim.InBubble(t, days(10*time.Minute), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		if err := p.Node().CreateDatabase(ctx, "db", true); err != nil {
			t.Fatal(err)
		}
		table, err := p.Node().CreateTable(ctx, &schema.Descriptor{
			Database: "db", Table: "by_hour", PartitionKeys: []string{"hour"}, BucketCount: 1,
			Schema: schema.Schema{Columns: []schema.Column{
				{Name: "hour", Type: schema.MustParseType("STRING NOT NULL")}, {Name: "n", Type: schema.MustParseType("INT")}}},
			Options: map[string]string{
				"auto_partition.key": "hour", "auto_partition.time_unit": "hour", "auto_partition.time_zone": "UTC",
				"auto_partition.num_precreate": "2", "auto_partition.num_retention": "3",
			},
		}, false)
		if err != nil {
			t.Fatal(err)
		}
		names := func() (out []string) {
			for q := range p.Node().View().Partitions(table.ID) {
				out = append(out, q.Values[0])
			}
			slices.Sort(out)
			return out
		}
		hours := func(from, n int) (out []string) {
			for h := range n {
				out = append(out, fmt.Sprintf("2000-01-01-%02d", from+h))
			}
			return out
		}
		// The bubble's clock begins at midnight UTC, 2000-01-01.
		w.Eventually(5*time.Minute, "this hour and those to come exist", func() bool { return slices.Contains(names(), "2000-01-01-00") })
		ahead := len(names())
		if !slices.Equal(names(), hours(0, ahead)) || ahead < 2 || ahead > 3 {
			t.Errorf("partitions at midnight: %v", names())
		}
		time.Sleep(2 * time.Hour)
		if want := hours(0, 2+ahead); !slices.Equal(names(), want) {
			t.Errorf("at two o'clock: %v, want %v", names(), want)
		}
		time.Sleep(6 * time.Hour)
		got := names()
		if len(got) == 0 || got[0] < "2000-01-01-04" || got[0] > "2000-01-01-06" || got[len(got)-1] != fmt.Sprintf("2000-01-01-%02d", 8+ahead-1) {
			t.Errorf("at eight o'clock: %v, want three hours back", got)
		}
	})
}

func TestProducerOffsetsExpire(t *testing.T) {
	cfg := days(time.Minute)
	cfg.Coordinator = func(c *coordinator.Config) { c.ProducerOffsetsTTL = time.Hour }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, refs := p.Topic("t", 1, nil)
		commit := func(name string) {
			t.Helper()
			_, err := p.Node().CommitProducer(context.Background(), &clusterpb.CommitProducerOffsets{
				Producer: name, Position: []byte("line 5"),
				Offsets: []*clusterpb.BucketOffset{{Table: int64(refs[0].Table), Partition: int64(refs[0].Partition), Offset: 3}},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		known := func(name string) bool { _, ok := p.Node().View().Producer(name); return ok }
		commit("idle")
		commit("busy")
		time.Sleep(59 * time.Minute)
		commit("busy")
		if got, _ := p.Node().View().Producer("idle"); string(got.Position) != "line 5" || len(got.Offsets) != 1 || got.Offsets[0].Offset != 3 {
			t.Errorf("a minute before its ttl: %+v", got)
		}
		time.Sleep(2 * time.Minute)
		if known("idle") || !known("busy") {
			t.Errorf("two minutes later: idle is known %t, busy %t", known("idle"), known("busy"))
		}
		// With nothing else in the log, its clock stands still; time goes on.
		time.Sleep(62 * time.Minute)
		if known("busy") {
			t.Error("the last producer never expires in a resting cluster")
		}
	})
}

// KIP-211: retention counts from when the group became empty, not from its commits.
func TestGroupOffsetsExpire(t *testing.T) {
	cfg := days(time.Minute)
	cfg.Coordinator = func(c *coordinator.Config) { c.GroupOffsetsRetention = time.Hour }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		_, refs := p.Topic("t", 2, nil)
		commit := func(group, protocol string, ref mink.BucketRef) {
			t.Helper()
			if err := p.Node().CommitGroupOffsets(ctx, cluster.GroupCommit{Group: group, ProtocolType: protocol, Occupied: protocol != "",
				Offsets: []cluster.GroupOffset{{Bucket: ref, Offset: 3, LeaderEpoch: -1}}}); err != nil {
				t.Fatal(err)
			}
		}
		empty := func(group string) {
			t.Helper()
			if err := p.Node().MarkGroup(ctx, group, "", false); err != nil {
				t.Fatal(err)
			}
		}
		known := func(group string, ref mink.BucketRef) bool {
			_, ok := p.Node().View().GroupOffset(group, ref)
			return ok
		}
		expect := func(when string, want map[string]bool) {
			t.Helper()
			for key, want := range want {
				group, bucket, _ := strings.Cut(key, "/")
				if got := known(group, refs[map[string]int{"0": 0, "1": 1}[bucket]]); got != want {
					t.Errorf("%s: the offset of %s is known %t, want %t", when, key, got, want)
				}
			}
		}
		for _, group := range []string{"busy", "left"} {
			commit(group, "consumer", refs[0])
		}
		commit("tool", "", refs[0])
		empty("left")
		time.Sleep(58 * time.Minute)
		commit("tool", "", refs[1])
		expect("before the hour", map[string]bool{"busy/0": true, "left/0": true, "tool/0": true, "tool/1": true})
		time.Sleep(4 * time.Minute)
		expect("after the hour", map[string]bool{"busy/0": true, "left/0": false, "tool/0": false, "tool/1": true})
		time.Sleep(3 * time.Hour)
		expect("three hours later", map[string]bool{"busy/0": true, "tool/1": false})

		// The moment of being empty is in the state image; a restart does not renew it.
		commit("crowd", "consumer", refs[0])
		empty("busy")
		for range 60 {
			if _, err := p.Node().CommitProducer(ctx, &clusterpb.CommitProducerOffsets{Producer: "p", Position: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		w.Eventually(10*time.Minute, "a state image", func() bool {
			have, err := w.Log().Snapshots(ctx)
			return err == nil && len(have) > 0 && have[0].Index+20 > p.Node().View().Index()
		})
		time.Sleep(20 * time.Minute)
		p.Crash()
		p = w.StartReady(1)
		expect("after a restart", map[string]bool{"busy/0": true, "crowd/0": true})
		time.Sleep(28 * time.Minute)
		expect("less than an hour after it was empty", map[string]bool{"busy/0": true, "crowd/0": true})
		time.Sleep(14 * time.Minute)
		// Members live in their coordinator's memory: with it they end.
		expect("an hour after it was empty", map[string]bool{"busy/0": false, "crowd/0": true})
		time.Sleep(20 * time.Minute)
		expect("an hour after the crash", map[string]bool{"crowd/0": false})
	})
}

func TestTheMetadataLogIsSnapshottedAndTruncated(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		p := w.StartReady(1)
		p.Topic("t", 1, nil)
		write := func(n int) {
			for range n {
				if _, err := p.Node().CommitProducer(ctx, &clusterpb.CommitProducerOffsets{Producer: "p", Position: []byte("x")}); err != nil {
					t.Fatal(err)
				}
			}
		}
		snapshots := func() int {
			have, err := w.Log().Snapshots(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return len(have)
		}
		time.Sleep(20 * time.Second)
		if n := snapshots(); n != 0 {
			t.Errorf("%d snapshots of a log that has hardly begun", n)
		}
		write(50)
		w.Eventually(6*time.Second, "the first snapshot", func() bool { return snapshots() == 1 })
		write(60)
		w.Eventually(6*time.Second, "the second", func() bool { return snapshots() == 2 })
		w.Eventually(6*time.Second, "the log is truncated", func() bool {
			_, err := w.Log().Read(ctx, 0, 1, 1)
			return errors.Is(err, metalog.ErrTruncated)
		})
		write(10)
		want := p.Node().View()
		p.Crash()
		p = w.StartReady(1) // begins with a snapshot
		if got, ok := p.Node().View().TableByName("sim", "t"); !ok || p.Node().View().Index() <= want.Index() {
			t.Errorf("after a restart the table is %+v, at index %d", got, p.Node().View().Index())
		}
	})
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	for _, f := range []func(*coordinator.Config){
		func(c *coordinator.Config) { c.LeaseTTL = time.Millisecond },
		func(c *coordinator.Config) { c.Tick = 0 },
		func(c *coordinator.Config) { c.WALWindow = 0 },
		func(c *coordinator.Config) { c.RecoveriesMax = 0 },
	} {
		c := coordinator.Default()
		f(&c)
		if err := c.Validate(); !errors.Is(err, mink.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := coordinator.Default().Validate(); err != nil {
		t.Error(err)
	}
}

// renewals of one process's lease fail once deaf is set; everything else works.
type deafLog struct {
	metalog.Log
	deaf *atomic.Bool
}

func (l deafLog) RenewLease(ctx context.Context, lease metalog.Lease, ttl time.Duration) (metalog.Lease, error) {
	if l.deaf.Load() {
		return metalog.Lease{}, fmt.Errorf("renewals fail: %w", mink.ErrUnavailable)
	}
	return l.Log.RenewLease(ctx, lease, ttl)
}

// A holder that cannot renew its lease steps down when it reads that another one
// took it.
func TestAReplacedHolderStepsDown(t *testing.T) {
	cfg := sim.Quiet(1)
	var deaf atomic.Bool
	first := true
	cfg.Log = func(l metalog.Log) metalog.Log {
		if !first {
			return l
		}
		first = false
		return deafLog{l, &deaf}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		w.Eventually(5*time.Second, "node 1 coordinates", one.Coordinator().Leading)
		two := w.StartReady(2)
		deaf.Store(true)
		w.Eventually(20*time.Second, "node 2 takes the lease", two.Coordinator().Leading)
		w.Eventually(time.Second, "node 1 has read it", func() bool { return one.Node().View().Lease().Node == 2 })
		if one.Coordinator().Leading() {
			t.Error("node 1 believes that it still holds the lease")
		}
		deaf.Store(false)
		two.Crash()
		w.Eventually(20*time.Second, "node 1 takes the lease again", one.Coordinator().Leading)
	})
}
