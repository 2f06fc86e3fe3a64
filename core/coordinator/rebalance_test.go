package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// led counts the buckets by leader, as a node sees it.
func led(p *sim.Process) map[mink.NodeID]int {
	out := map[mink.NodeID]int{}
	for s := range p.Node().View().Streams() {
		out[s.Owner.Node]++
	}
	return out
}

func counts(p *sim.Process) string {
	l := led(p)
	return fmt.Sprint(l[1], "/", l[2], "/", l[3])
}

// Two nodes join one that leads everything; a second run has nothing to do.
func TestRebalance(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		one := w.StartReady(1)
		_, refs := one.Topic("t", 12, nil)
		for i, ref := range refs {
			one.Append(ref, fmt.Sprint("before", i))
		}
		two, three := w.StartReady(2), w.StartReady(3)
		w.Eventually(time.Minute, "node 1 knows them", func() bool { return len(one.Node().View().LiveNodes()) == 3 })
		if _, err := two.Coordinator().Rebalance(ctx, false, nil); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("rebalance on a node without the lease: %v", err)
		}

		index := one.Node().View().Index()
		dry, err := one.Coordinator().Rebalance(ctx, true, func(api.MoveProgress) { t.Error("a dry run moves") })
		if err != nil || len(dry.Moves) != 8 || dry.Count(api.MovePlanned) != 8 || !dry.DryRun {
			t.Fatalf("dry run: %+v, %v", dry, err)
		}
		want := []api.NodeLoad{{Node: 1, Before: 12, After: 4}, {Node: 2, After: 4}, {Node: 3, After: 4}}
		if !slices.Equal(dry.Nodes, want) || one.Node().View().Index() != index || counts(one) != "12/0/0" {
			t.Errorf("dry run: %+v, index %d then %d, leaders %s", dry.Nodes, index, one.Node().View().Index(), counts(one))
		}

		var ended []int
		report, err := one.Coordinator().Rebalance(ctx, false, func(p api.MoveProgress) {
			ended = append(ended, p.Ended)
			if p.Total != 8 || p.Move.Outcome != api.MoveMoved || p.Move.Table != "sim.t" {
				t.Errorf("progress %+v", p)
			}
		})
		if err != nil || report.Count(api.MoveMoved) != 8 || !slices.Equal(report.Nodes, want) || !slices.Equal(ended, []int{1, 2, 3, 4, 5, 6, 7, 8}) {
			t.Fatalf("rebalance: %+v, %v, progress %v", report, err, ended)
		}
		for i, m := range report.Moves {
			if d := dry.Moves[i]; m.Bucket != d.Bucket || m.From != d.From || m.To != d.To {
				t.Errorf("move %d is %+v, the dry run said %+v", i, m, d)
			}
		}
		again, err := one.Coordinator().Rebalance(ctx, false, nil)
		if err != nil || len(again.Moves) != 0 {
			t.Errorf("a second run moves: %+v, %v", again, err)
		}
		for i, ref := range refs {
			leader := w.MustLead(ref)
			leader.Append(ref, "after")
			if _, values := leader.Read(ref); !slices.Equal(values, []string{fmt.Sprint("before", i), "after"}) {
				t.Errorf("bucket %s holds %v", ref, values)
			}
		}
		for _, p := range []*sim.Process{one, two, three} {
			w.Eventually(time.Minute, "all see it", func() bool { return counts(p) == "4/4/4" })
		}
	})
}

// Three nodes, twelve buckets: 4/4/4, the next table starts one node later, and so does
// a partition that a first write makes. Nothing of it needs a rebalance.
func TestPlacement(t *testing.T) {
	sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		one, two := w.StartReady(1), w.StartReady(2)
		w.StartReady(3)
		for _, p := range []*sim.Process{one, two} {
			w.Eventually(time.Minute, "it knows the others", func() bool { return len(p.Node().View().LiveNodes()) == 3 })
		}
		leaders := func(refs []mink.BucketRef) (out []mink.NodeID) {
			for _, ref := range refs {
				out = append(out, w.MustLead(ref).ID)
			}
			return out
		}
		next := func(leaders []mink.NodeID) (out []mink.NodeID) {
			for _, l := range leaders {
				out = append(out, l%3+1)
			}
			return out
		}
		_, refs := one.Topic("a", 12, nil)
		first := leaders(refs)
		if counts(one) != "4/4/4" || !slices.Equal(next(first[:11]), first[1:]) {
			t.Errorf("the first table's buckets are led by %v", first)
		}
		_, refs = two.Topic("b", 12, nil)
		second := leaders(refs)
		if !slices.Equal(second, next(first)) {
			t.Errorf("the second table's buckets are led by %v, the first one's by %v", second, first)
		}
		d := &schema.Descriptor{Database: "sim", Table: "by_day", PartitionKeys: []string{"day"}, BucketCount: 3, Schema: schema.Schema{Columns: []schema.Column{
			{Name: "day", Type: schema.MustParseType("STRING NOT NULL")}, {Name: "n", Type: schema.MustParseType("INT")}}}}
		table, err := one.Node().CreateTable(ctx, d, false)
		if err != nil {
			t.Fatal(err)
		}
		before := second[:3]
		for i, p := range []*sim.Process{one, two, one} { // whichever node the first write reaches
			w.Eventually(time.Minute, "it knows the table", func() bool { _, ok := p.Node().View().Table(table.ID); return ok })
			part, err := p.Node().EnsurePartition(ctx, table.ID, []string{fmt.Sprint("day", i)})
			if err != nil {
				t.Fatal(err)
			}
			var refs []mink.BucketRef
			for k := range part.Streams {
				refs = append(refs, mink.BucketRef{Table: table.ID, Partition: part.ID, Index: int32(k)})
			}
			now := leaders(refs)
			if !slices.Equal(now, next(before)) {
				t.Errorf("partition %d's buckets are led by %v, those before by %v", i, now, before)
			}
			before = now
		}
		for _, p := range w.Processes() {
			if c := p.Coordinator(); c.Leading() {
				if r, err := c.Rebalance(ctx, true, nil); err != nil || len(r.Moves) != 0 {
					t.Errorf("a rebalance would move %v, %v", r.Moves, err)
				}
			}
		}
	})
}

// A leader that is paused costs one time-out, a dead one, whose port is closed, a few tries;
// neither costs another leader's moves.
func TestRebalancePassesOverALeaderThatDoesNotAnswer(t *testing.T) {
	for how, failed := range map[string]string{"paused": api.MoveUnanswered, "dead": api.MoveRefused} {
		cfg := sim.Quiet(1)
		cfg.LeaseTTL = time.Minute // nobody is sealed meanwhile
		cfg.Coordinator = func(c *coordinator.Config) { c.MoveTimeout, c.MovesMax = 5*time.Second, 3 }
		sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
			ctx := context.Background()
			one, two := w.StartReady(1), w.StartReady(2)
			w.Eventually(time.Minute, "node 1 knows node 2", func() bool { return len(one.Node().View().LiveNodes()) == 2 })
			one.Topic("t", 30, nil)
			w.StartReady(3)
			w.Eventually(time.Minute, "node 1 knows node 3", func() bool { return len(one.Node().View().LiveNodes()) == 3 })
			if how == "paused" {
				two.Pause()
			} else {
				two.Crash()
			}
			began := time.Now()
			r, err := one.Coordinator().Rebalance(ctx, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range r.Moves {
				want := []string{api.MoveMoved}
				if m.From == 2 {
					want = []string{failed, api.MoveSkipped}
				}
				if !slices.Contains(want, m.Outcome) || (m.Outcome != api.MoveMoved) != (m.Reason != "") {
					t.Errorf("%s: %+v", how, m)
				}
			}
			if r.Count(failed) == 0 || r.Count(api.MoveMoved) == 0 {
				t.Errorf("%s: %+v", how, r)
			}
			if took := time.Since(began); took > 8*time.Second { // of virtual time
				t.Errorf("%s: it took %v of a time-out of 5s", how, took)
			}
			if how == "dead" {
				w.StartReady(2)
			} else {
				two.Resume()
			}
			w.Eventually(5*time.Minute, "the buckets are even in the end", func() bool {
				r, err := one.Coordinator().Rebalance(ctx, false, nil)
				return err == nil && r.Count(api.MoveMoved) == len(r.Moves) && len(one.Node().View().LiveNodes()) == 3
			})
			if again, err := one.Coordinator().Rebalance(ctx, false, nil); err != nil || len(again.Moves) != 0 {
				t.Errorf("%s: a last run moves: %+v, %v", how, again, err)
			}
		})
	}
}

// leadless keeps buckets without a leader as long as it holds.
type leadless struct {
	metalog.Log
	holds *atomic.Bool
}

func (l leadless) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	for _, payload := range a.Payloads {
		var b clusterpb.Batch
		if err := proto.Unmarshal(payload, &b); err != nil {
			return nil, err
		}
		if l.holds.Load() && slices.ContainsFunc(b.Commands, func(c *clusterpb.Command) bool { return c.GetLeadBuckets() != nil }) {
			return nil, fmt.Errorf("held up: %w", mink.ErrUnavailable)
		}
	}
	return l.Log.Append(ctx, a)
}

// Buckets without a leader come first, and count for the plan of the others.
func TestRebalanceLeadsOrphansFirst(t *testing.T) {
	var holds atomic.Bool
	cfg := sim.Quiet(1)
	cfg.Log = func(l metalog.Log) metalog.Log { return leadless{l, &holds} }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		ctx := context.Background()
		one, two := w.StartReady(1), w.StartReady(2)
		w.Eventually(time.Minute, "node 1 knows node 2", func() bool { return len(one.Node().View().LiveNodes()) == 2 })
		_, refs := one.Topic("t", 12, nil)
		for _, ref := range refs {
			w.MustLead(ref).Append(ref, "a")
		}
		holds.Store(true)
		if err := two.Stop(); err != nil {
			t.Fatal(err)
		}
		w.StartReady(3)
		w.Eventually(time.Minute, "the stopped node's buckets have no leader", func() bool {
			n := 0
			for range one.Node().View().Orphans() {
				n++
			}
			return n == 6 && len(one.Node().View().LiveNodes()) == 2
		})
		dry, err := one.Coordinator().Rebalance(ctx, true, nil)
		if err != nil || len(dry.Moves) != 6 || dry.Count(api.MovePlanned) != 6 {
			t.Fatalf("dry run: %+v, %v", dry, err)
		}
		for _, m := range dry.Moves {
			if m.From != 0 || m.To != 3 { // the least loaded
				t.Errorf("dry run: %+v", m)
			}
		}
		holds.Store(false)
		r, err := one.Coordinator().Rebalance(ctx, false, nil)
		if err != nil || r.Count(api.MoveMoved) != len(r.Moves) || counts(one) != "6/0/6" {
			t.Errorf("rebalance: %+v, %v, leaders %s", r, err, counts(one))
		}
		for _, ref := range refs {
			w.MustLead(ref).Append(ref, "b")
		}
	})
}

// Only one at a time; one whose caller leaves begins no further move.
func TestRebalanceIsOneAndEndsWithItsCaller(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.LeaseTTL = time.Minute
	cfg.Node = func(c *node.Config) { c.Stream.WALGiveUpAfter = time.Hour }
	cfg.Coordinator = func(c *coordinator.Config) { c.MovesMax, c.MoveTimeout = 1, time.Hour }
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		_, refs := one.Topic("t", 6, nil)
		w.StartReady(2)
		w.Eventually(time.Minute, "node 1 knows node 2", func() bool { return len(one.Node().View().LiveNodes()) == 2 })
		one.Append(refs[0], "a")
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		moved := 0
		ended := make(chan api.RebalanceReport, 1)
		go func() {
			r, err := one.Coordinator().Rebalance(ctx, false, func(api.MoveProgress) {
				moved++
				if _, err := one.Coordinator().Rebalance(ctx, false, nil); !errors.Is(err, mink.ErrConflict) {
					t.Errorf("a second rebalance: %v", err)
				}
				leave()
			})
			if err != nil {
				t.Errorf("a rebalance that was broken off: %v", err)
			}
			ended <- r
		}()
		r := <-ended
		if len(r.Moves) != 3 || r.Count(api.MoveMoved) != 1 || r.Count(api.MoveSkipped) != 2 || moved != 3 {
			t.Errorf("%+v, %d moves were reported", r, moved)
		}
		rest, err := one.Coordinator().Rebalance(context.Background(), false, nil)
		if err != nil || rest.Count(api.MoveMoved) != 2 || counts(one) != "3/3/0" {
			t.Errorf("the rest: %+v, %v, leaders %s", rest, err, counts(one))
		}
	})
}
