package plan

import "github.com/mink-project/mink/sdk/mink"

// GroupWeight is how much a node is preferred as the coordinator of a consumer
// group: the one with the largest weight coordinates, the lowest id among equals
// (rendezvous hashing). A node that joins or leaves therefore moves only the
// groups that it takes or had, and one that restarts under its id gets its own
// back. The state machine decides by it: it never changes.
func GroupWeight(group string, node mink.NodeID) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(group) {
		h = (h ^ uint64(group[i])) * 1099511628211
	}
	return mix(h ^ mix(uint64(node)))
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
