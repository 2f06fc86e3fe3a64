// Package plan decides which node leads which bucket: placement of new
// buckets, new leaders for orphans, and the moves that even out a cluster. Pure
// and deterministic: the state machine and a dry run call the same functions.
package plan

import (
	"cmp"
	"slices"

	"github.com/mink-project/mink/sdk/mink"
)

// Place answers, for each of the buckets of a new partition, the position of its
// leader among `live` nodes: bucket i to (i + start) mod live. Nil when no node
// is live. start rotates from one partition to the next, so that many small
// tables spread too.
func Place(buckets, live, start int) []int {
	if live <= 0 {
		return nil
	}
	out := make([]int, buckets)
	for i := range out {
		out[i] = (i + start%live) % live
	}
	return out
}

// Load is how many buckets a live node leads.
type Load struct {
	Node    mink.NodeID
	Buckets int
}

// Lead gives one stream to one node.
type Lead struct {
	Stream mink.StreamID
	Node   mink.NodeID
}

// Relead gives each orphan to the node that leads the fewest buckets by then,
// the lowest id among equals. loads lists every live node once. Nil when no node
// is live.
func Relead(orphans []mink.StreamID, loads []Load) []Lead {
	if len(loads) == 0 {
		return nil
	}
	h := newHeap(loads)
	out := make([]Lead, len(orphans))
	for i, s := range orphans {
		out[i] = Lead{Stream: s, Node: h.least().Node}
		h.add(1)
	}
	return out
}

// Move asks a bucket's leader to release it to another node.
type Move struct {
	Stream   mink.StreamID
	From, To mink.NodeID
}

// Rebalance plans moves from the nodes above 110 % of the mean number of buckets
// to those below 90 %, never further than needed to leave those bounds, so that
// running it again plans nothing. led lists every live node once with the
// streams that it leads; the first ones listed move first.
func Rebalance(led []Led) []Move {
	if len(led) < 2 {
		return nil
	}
	total := 0
	for _, n := range led {
		total += len(n.Streams)
	}
	// In whole buckets: a count is high above ceil(1.1 mean), low below
	// floor(0.9 mean). Comparing count*10*n with total*11 keeps it exact.
	n := len(led)
	high := func(count int) bool { return count*10*n > total*11 && count*n >= total+n }
	low := func(count int) bool { return count*10*n < total*9 && count*n+n <= total }

	from := slices.Clone(led)
	slices.SortStableFunc(from, func(a, b Led) int {
		return cmp.Or(cmp.Compare(len(b.Streams), len(a.Streams)), cmp.Compare(a.Node, b.Node))
	})
	counts := make([]int, n)
	next := make([]int, n)
	for i := range from {
		counts[i] = len(from[i].Streams)
	}
	var moves []Move
	for {
		hi, lo := extremes(counts)
		if counts[hi]-counts[lo] < 2 || !high(counts[hi]) && !low(counts[lo]) {
			return moves
		}
		moves = append(moves, Move{Stream: from[hi].Streams[next[hi]], From: from[hi].Node, To: from[lo].Node})
		next[hi]++
		counts[hi]--
		counts[lo]++
	}
}

// Led is a live node with the streams that it leads.
type Led struct {
	Node    mink.NodeID
	Streams []mink.StreamID
}

// extremes answers the positions of the largest and the smallest count, the
// first ones among equals.
func extremes(counts []int) (hi, lo int) {
	for i, c := range counts {
		if c > counts[hi] {
			hi = i
		}
		if c < counts[lo] {
			lo = i
		}
	}
	return hi, lo
}

// heap keeps the least loaded node on top.
type heap struct{ loads []Load }

func newHeap(loads []Load) *heap {
	h := &heap{loads: slices.Clone(loads)}
	slices.SortFunc(h.loads, compareLoad) // a sorted slice is a heap
	return h
}

func compareLoad(a, b Load) int {
	return cmp.Or(cmp.Compare(a.Buckets, b.Buckets), cmp.Compare(a.Node, b.Node))
}

func (h *heap) least() Load { return h.loads[0] }

// add raises the top's load and lets it sink.
func (h *heap) add(buckets int) {
	h.loads[0].Buckets += buckets
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(h.loads) {
			return
		}
		if child+1 < len(h.loads) && compareLoad(h.loads[child+1], h.loads[child]) < 0 {
			child++
		}
		if compareLoad(h.loads[i], h.loads[child]) <= 0 {
			return
		}
		h.loads[i], h.loads[child] = h.loads[child], h.loads[i]
		i = child
	}
}
