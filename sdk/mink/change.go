package mink

import "fmt"

// Change is the kind of one record of a changelog.
type Change uint8

// The change kinds. The numbers are on disk and in the protocols.
const (
	ChangeAppend       Change = 0 // +A, of a log table
	ChangeInsert       Change = 1 // +I, a key that was not there
	ChangeUpdateBefore Change = 2 // -U, the row that an update replaces
	ChangeUpdateAfter  Change = 3 // +U, the row that it puts in its place
	ChangeDelete       Change = 4 // -D, the row that goes
)

var changeNames = [...]string{"+A", "+I", "-U", "+U", "-D"}

// String is the two-letter form, "+A".
func (c Change) String() string {
	if int(c) < len(changeNames) {
		return changeNames[c]
	}
	return fmt.Sprintf("change %d", uint8(c))
}
