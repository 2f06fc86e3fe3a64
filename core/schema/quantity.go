package schema

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mink-project/mink/sdk/mink"
)

type durationUnit struct {
	name string
	size time.Duration
}

// Longest first, and "ms" before "m", so that the first match is the right one.
var durationUnits = []durationUnit{
	{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour},
	{"ms", time.Millisecond}, {"m", time.Minute}, {"s", time.Second},
}

// ParseDuration reads "500ms", "10s", "5m", "7d", "1h30m": whole numbers with
// units w, d (24 h), h, m, s, ms, one or more. No sign, no fraction.
func ParseDuration(text string) (time.Duration, error) {
	fail := func(why string) (time.Duration, error) {
		return 0, fmt.Errorf("%w duration %.50q: %s; write it like 500ms, 10s, 5m, 12h or 7d", mink.ErrInvalid, text, why)
	}
	var total time.Duration
	rest := text
	for first := true; first || rest != ""; first = false {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil {
			return fail("expected a number")
		}
		unit := durationUnit{}
		for _, u := range durationUnits {
			if strings.HasPrefix(rest[digits:], u.name) {
				unit = u
				break
			}
		}
		if unit.size == 0 {
			return fail("expected a unit")
		}
		rest = rest[digits+len(unit.name):]
		if n > int64(math.MaxInt64-total)/int64(unit.size) {
			return fail("too long")
		}
		total += time.Duration(n) * unit.size
	}
	return total, nil
}

// FormatDuration prints a whole number of milliseconds so that ParseDuration
// reads it back: in the largest unit that divides it. Less than 1 ms is cut.
func FormatDuration(d time.Duration) string {
	best := durationUnit{"ms", time.Millisecond}
	for _, u := range durationUnits {
		if u.name != "w" && d != 0 && d%u.size == 0 && u.size > best.size {
			best = u
		}
	}
	return strconv.FormatInt(int64(d/best.size), 10) + best.name
}

// ParseSize reads bytes: "64MiB", "1GiB", "10kB", "1048588".
func ParseSize(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 64) // exact, where ParseBytes goes through a float
	if err != nil {
		n, err = humanize.ParseBytes(text)
	}
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%w size %.50q: write it like 1048576, 512KiB, 64MiB or 1GiB", mink.ErrInvalid, text)
	}
	return int64(n), nil
}

// FormatSize prints bytes exactly, in the largest binary unit that divides them.
func FormatSize(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + units[i]
}
