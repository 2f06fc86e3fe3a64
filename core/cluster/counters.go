package cluster

import "sort"

// counters is a set of numbers as sorted [first, past the last) pairs in a row.
// A node numbers its uploads 1, 2, ... and names nearly all of them, not quite
// in order, so that the set stays a handful of pairs.
type counters []uint64

// find answers where n belongs: the set has it when the position is odd.
func (c counters) find(n uint64) int {
	return sort.Search(len(c), func(i int) bool { return c[i] > n })
}

func (c counters) has(n uint64) bool { return c.find(n)%2 == 1 }

// with is the set and n, which it does not have yet.
func (c counters) with(n uint64) counters {
	at := c.find(n)
	out := append(make(counters, 0, len(c)+2), c[:at]...)
	rest := c[at:]
	if at > 0 && c[at-1] == n {
		out = out[:at-1]
	} else {
		out = append(out, n)
	}
	if len(rest) > 0 && rest[0] == n+1 {
		rest = rest[1:]
	} else {
		out = append(out, n+1)
	}
	return append(out, rest...)
}

// valid: pairs, rising, not touching.
func (c counters) valid() bool {
	for i := 1; i < len(c); i++ {
		if c[i-1] >= c[i] {
			return false
		}
	}
	return len(c)%2 == 0 && (len(c) == 0 || c[0] > 0)
}
