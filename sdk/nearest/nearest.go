// Package nearest finds the known name that somebody who typed another one
// meant: an option, a column, a command. Only a name that is close is worth
// saying.
package nearest

import "strings"

// maxLength bounds what one comparison costs: the product of the lengths.
const maxLength = 200

// Close answers the known name nearest to a mistyped one; false when none is
// close: more than a third of the letters would have to change, and it is not
// the beginning of one. Case does not count. Of equally near ones the first.
func Close(name string, known []string) (string, bool) {
	if name == "" || len(name) > maxLength {
		return "", false
	}
	at, least := -1, max(1, len(name)/3)+1
	for i, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k), least); d < least {
			at, least = i, d
		}
	}
	if at >= 0 {
		return known[at], true
	}
	for _, k := range known {
		if len(name) >= 3 && len(k) > len(name) && strings.EqualFold(k[:len(name)], name) {
			return k, true
		}
	}
	return "", false
}

// Of answers the known name nearest to a mistyped one, however far it is; ""
// only when nothing is known.
func Of(name string, known []string) string {
	name = strings.ToLower(name[:min(len(name), maxLength)])
	best, least := "", len(name)+maxLength+1
	for _, k := range known {
		if d := distance(name, strings.ToLower(k), least); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is how many bytes to insert, drop, replace, or swap with their
// neighbour between two words; limit or more once it is known to reach limit.
func distance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d = 1 + min(d, last[j+1], row[j])
				if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
					d = min(d, before[j-1]+1)
				}
			}
			row[j+1] = d
		}
	}
	return row[len(b)]
}
