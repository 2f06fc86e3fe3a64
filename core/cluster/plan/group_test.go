package plan

import (
	"fmt"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
)

// The state machine decides by these weights: other ones would make replicas of
// two versions disagree.
func TestGroupWeightsNeverChange(t *testing.T) {
	for _, c := range []struct {
		group string
		node  mink.NodeID
		want  uint64
	}{
		{"orders", 1, 0xd05150bafc812c8f}, {"orders", 2, 0x24aa394eada8b4c}, {"g0", 1, 0x93732b4a636093ad}, {"g0", 2, 0x709a52418e53752b},
	} {
		if got := GroupWeight(c.group, c.node); got != c.want {
			t.Errorf("weight of %q and node %d is %#x, was %#x", c.group, c.node, got, c.want)
		}
	}
}

func TestANodeMovesOnlyItsOwnGroups(t *testing.T) {
	const groups, nodes = 3000, 5
	best := func(group string, n int) (best mink.NodeID) {
		for id := mink.NodeID(1); int(id) <= n; id++ {
			if best == 0 || GroupWeight(group, id) > GroupWeight(group, best) {
				best = id
			}
		}
		return best
	}
	count := map[mink.NodeID]int{}
	for i := range groups {
		group := fmt.Sprint("group-", i)
		with, without := best(group, nodes), best(group, nodes-1)
		if with != without && with != nodes {
			t.Fatalf("%s moves from node %d to %d when node %d joins", group, without, with, nodes)
		}
		count[with]++
	}
	for id, n := range count {
		if n < groups/nodes*8/10 || n > groups/nodes*12/10 {
			t.Errorf("node %d coordinates %d of %d groups", id, n, groups)
		}
	}
}
