package plan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mink-project/mink/sdk/mink"
)

func TestPlace(t *testing.T) {
	if got := Place(6, 3, 4); !slices.Equal(got, []int{1, 2, 0, 1, 2, 0}) {
		t.Error(got)
	}
	if Place(3, 0, 0) != nil {
		t.Error("placed on no node")
	}
	if got := Place(2, 3, 1<<31-1); got[0] < 0 || got[0] > 2 {
		t.Error(got)
	}
}

func TestRelead(t *testing.T) {
	got := Relead([]mink.StreamID{7, 8, 9, 10}, []Load{{Node: 3, Buckets: 5}, {Node: 2, Buckets: 2}, {Node: 1, Buckets: 3}})
	want := []Lead{{7, 2}, {8, 1}, {9, 2}, {10, 1}}
	if !slices.Equal(got, want) {
		t.Error(got)
	}
	if Relead([]mink.StreamID{1}, nil) != nil {
		t.Error("led by no node")
	}
}

// The spread after Relead is the best one: no node that got an orphan leads
// more than one bucket more than any other.
func TestReleadIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loads := make([]Load, rapid.IntRange(1, 8).Draw(t, "nodes"))
		for i := range loads {
			loads[i] = Load{Node: mink.NodeID(i + 1), Buckets: rapid.IntRange(0, 20).Draw(t, "load")}
		}
		orphans := make([]mink.StreamID, rapid.IntRange(0, 60).Draw(t, "orphans"))
		after := map[mink.NodeID]int{}
		got := map[mink.NodeID]bool{}
		for _, l := range loads {
			after[l.Node] = l.Buckets
		}
		for _, l := range Relead(orphans, loads) {
			after[l.Node]++
			got[l.Node] = true
		}
		for n := range got {
			for m := range after {
				if after[n] > after[m]+1 {
					t.Fatalf("node %d leads %d, node %d only %d", n, after[n], m, after[m])
				}
			}
		}
	})
}

func TestRebalance(t *testing.T) {
	streams := func(n int, first mink.StreamID) (out []mink.StreamID) {
		for i := range n {
			out = append(out, first+mink.StreamID(i))
		}
		return out
	}
	// A node joined: it gets its share and not more.
	moves := Rebalance([]Led{{1, streams(60, 1)}, {2, streams(60, 100)}, {3, nil}})
	if len(moves) != 36 {
		t.Errorf("%d moves: to 90 %% of the mean of 40 are 36", len(moves))
	}
	if Rebalance([]Led{{1, streams(3, 1)}}) != nil || len(Rebalance([]Led{{1, streams(2, 1)}, {2, streams(1, 9)}})) != 0 {
		t.Error("moves that even nothing out")
	}
}

func TestRebalanceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		led := make([]Led, rapid.IntRange(0, 7).Draw(t, "nodes"))
		next := mink.StreamID(1)
		total := 0
		for i := range led {
			led[i].Node = mink.NodeID(i + 1)
			for range rapid.IntRange(0, 40).Draw(t, "n") {
				led[i].Streams = append(led[i].Streams, next)
				next++
				total++
			}
		}
		after := slices.Clone(led)
		moved := map[mink.StreamID]bool{}
		for _, m := range Rebalance(led) {
			from, to := &after[m.From-1], &after[m.To-1]
			at := slices.Index(from.Streams, m.Stream)
			if at < 0 || moved[m.Stream] {
				t.Fatalf("%+v moves what is not there, or twice", m)
			}
			moved[m.Stream] = true
			from.Streams = slices.Delete(slices.Clone(from.Streams), at, at+1)
			to.Streams = append(slices.Clone(to.Streams), m.Stream)
		}
		if again := Rebalance(after); len(again) != 0 {
			t.Fatalf("a second run moves again: %v", again)
		}
		for _, n := range after {
			count, nodes := len(n.Streams), len(after)
			if count*nodes >= total+nodes && count*10*nodes > total*11 || count*nodes+nodes <= total && count*10*nodes < total*9 {
				t.Fatalf("node %d still leads %d of %d buckets on %d nodes", n.Node, count, total, nodes)
			}
		}
	})
}
