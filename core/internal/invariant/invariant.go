// Package invariant states what must hold. A broken invariant is a programmer
// error: carrying on would spread damage, so the process stops.
package invariant

import "fmt"

// Check panics with the formatted message unless ok. Use it for conditions that
// no input can break; bad input is an error, never a panic.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
