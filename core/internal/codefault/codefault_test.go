package codefault

import (
	"fmt"
	"testing"
)

// Each text chooses as many faults as were asked for, and none is left out for good.
func TestTurnsReachEveryFault(t *testing.T) {
	for _, c := range []struct{ n, part, want int }{{1, 1, 1}, {7, 1, 1}, {7, 3, 3}, {7, 9, 7}} {
		had := make([]int, c.n)
		for k := range 200 {
			chosen := 0
			for i := range c.n {
				if due(i, c.n, c.part, fmt.Sprint("commit ", k)) {
					chosen++
					had[i]++
				}
			}
			if chosen != c.want {
				t.Fatalf("%d of %d are due, want %d", chosen, c.n, c.want)
			}
		}
		for i, times := range had {
			if times == 0 {
				t.Errorf("fault %d of %d had no turn among 200", i, c.n)
			}
		}
	}
}
