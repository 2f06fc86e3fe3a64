package units

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "500ms": 500 * time.Millisecond, "10s": 10 * time.Second, "5m": 5 * time.Minute,
		"7d": 7 * day, "1d12h": 36 * time.Hour, " 2h ": 2 * time.Hour, "0.5d": 12 * time.Hour,
	} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "7", "-1s", "-1d", "1x", "NaNd", "1e300d", "200000d200000d", "106751d2400h"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestDurationReadsBackAsPrinted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(1000*day)).Draw(t, "d"))
		got, err := ParseDuration(FormatDuration(d))
		if err != nil || got != d {
			t.Fatalf("%v printed as %q reads as %v, %v", d, FormatDuration(d), got, err)
		}
	})
}

func TestSizeReadsBackAsPrinted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<50).Draw(t, "n")
		got, err := ParseSize(FormatSize(n))
		if err != nil || got != n {
			t.Fatalf("%d printed as %q reads as %v, %v", n, FormatSize(n), got, err)
		}
	})
	for _, in := range []string{"", "x", "-1", "1QiB", "99999999999999999999"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %v, want an error", in, got)
		}
	}
}
