// Package units reads and prints the durations and sizes of configuration
// files, options and flags: "500ms", "10s", "5m", "7d"; "64MiB", "1GiB", "512".
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

const day = 24 * time.Hour

// Duration is a time.Duration that also knows days. "0" is zero.
type Duration time.Duration

// ParseDuration reads Go's duration syntax plus units "d" of 24 hours and "w" of
// 7 days, which stand before the others: "7d", "1d12h", "2w". Negative durations
// are refused.
func ParseDuration(s string) (time.Duration, error) {
	fail := func() (time.Duration, error) {
		return 0, fmt.Errorf("duration %.50q: want a number and a unit, such as 500ms, 10s, 5m, 36h or 7d", s)
	}
	text := strings.TrimSpace(s)
	if text == "0" {
		return 0, nil
	}
	var total time.Duration
	for _, unit := range []struct {
		name byte
		size time.Duration
	}{{'w', 7 * day}, {'d', day}} {
		i := strings.IndexByte(text, unit.name)
		if i < 0 {
			continue
		}
		n, err := strconv.ParseFloat(text[:i], 64)
		if err != nil || !(n >= 0 && n <= float64((math.MaxInt64-total)/unit.size)) { // NaN is neither
			return fail()
		}
		total, text = total+time.Duration(n*float64(unit.size)), text[i+1:]
		if text == "" {
			return total, nil
		}
	}
	rest, err := time.ParseDuration(text)
	if err != nil || rest < 0 || total+rest < 0 {
		return fail()
	}
	return total + rest, nil
}

// FormatDuration prints whole days as "7d", anything else as Go does, without
// zero parts: "1h30m".
func FormatDuration(d time.Duration) string {
	if d > 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// UnmarshalText reads ParseDuration's syntax.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText prints as FormatDuration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(FormatDuration(time.Duration(d))), nil }

func (d Duration) String() string { return FormatDuration(time.Duration(d)) }

// Size is a number of bytes.
type Size int64

// ParseSize reads "64MiB", "10 MB" (powers of ten), "512".
func ParseSize(s string) (int64, error) {
	text := strings.TrimSpace(s)
	n, err := strconv.ParseUint(text, 10, 64) // exact, where ParseBytes goes through a float
	if err != nil {
		n, err = humanize.ParseBytes(text)
	}
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("size %.50q: want a number and a unit, such as 512, 64KiB, 10MiB or 1GiB", s)
	}
	return int64(n), nil
}

// FormatSize prints the largest binary unit that divides n, so that it reads
// back as the same number.
func FormatSize(n int64) string {
	names := []string{"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(names)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + names[i]
}

// UnmarshalText reads ParseSize's syntax.
func (z *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	*z = Size(v)
	return err
}

// MarshalText prints as FormatSize.
func (z Size) MarshalText() ([]byte, error) { return []byte(FormatSize(int64(z))), nil }

func (z Size) String() string { return FormatSize(int64(z)) }
