package plan

import "github.com/mink-project/mink/sdk/mink"

// GroupSlots is how many slots the consumer groups are in. What decides about slots, not about
// groups, takes a bounded number of steps. It never changes.
const GroupSlots = 1024

// GroupSlot is one of them, from 0 on.
type GroupSlot int

// SlotOfGroup is the slot that a consumer group is in, for ever.
func SlotOfGroup(group string) GroupSlot {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(group) {
		h = (h ^ uint64(group[i])) * 1099511628211
	}
	return GroupSlot(mix(h) % GroupSlots)
}

// GroupWeight is how much a node is preferred as the coordinator of a slot's consumer
// groups: the one with the largest weight coordinates, the lowest id among equals
// (rendezvous hashing). A node that joins or leaves therefore moves only the
// slots that it takes or had, and one that restarts under its id gets its own
// back. The state machine decides by it: it never changes.
func GroupWeight(slot GroupSlot, node mink.NodeID) uint64 {
	return mix(mix(uint64(slot)) ^ mix(uint64(node)+1<<32))
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
