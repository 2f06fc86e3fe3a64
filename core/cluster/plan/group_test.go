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
		slot  GroupSlot
		node  mink.NodeID
		want  uint64
	}{
		{"orders", 294, 1, 0xea0c11499da69ecd}, {"orders", 294, 2, 0xccb0a4f7e2211abd}, {"g0", 914, 1, 0x45e89f18e922fd4c}, {"", 816, 1 << 30, 0x206ed9bd50293a2c},
	} {
		slot := SlotOfGroup(c.group)
		if got := GroupWeight(slot, c.node); got != c.want || slot != c.slot {
			t.Errorf("group %q is in slot %d, its weight with node %d is %#x", c.group, slot, c.node, got)
		}
	}
}

func TestANodeMovesOnlyItsOwnGroups(t *testing.T) {
	const groups, nodes = 30_000, 5
	best := func(group string, n int) (best mink.NodeID) {
		for id := mink.NodeID(1); int(id) <= n; id++ {
			if slot := SlotOfGroup(group); best == 0 || GroupWeight(slot, id) > GroupWeight(slot, best) {
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
