//go:build race

package cluster

// The race detector makes single-goroutine simulations ten times slower and
// finds nothing in them.
const raceEnabled = true
