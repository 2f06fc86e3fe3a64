package units

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "500ms": 500 * time.Millisecond, "10s": 10 * time.Second, "5m": 5 * time.Minute,
		"7d": 7 * day, "1d12h": 36 * time.Hour, " 2h ": 2 * time.Hour, "0.5d": 12 * time.Hour, "2w": 14 * day, "1w1d1h": 8*day + time.Hour,
		"0s": 0, "1m5ms": time.Minute + 5*time.Millisecond, "15250w": 15250 * 7 * day,
	} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "7", "-1s", "-1d", "1x", "NaNd", "1e300d", "200000d200000d", "106751d2400h", "15251w", "1d1w", "m", "5 m", "5M", "5mm", "999999999d", "99999999999999999999s"} {
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
		n := rapid.Int64Range(0, 1<<52).Draw(t, "n") << rapid.IntRange(0, 10).Draw(t, "shift")
		got, err := ParseSize(FormatSize(n))
		if err != nil || got != n {
			t.Fatalf("%d printed as %q reads as %v, %v", n, FormatSize(n), got, err)
		}
	})
	for text, want := range map[string]int64{
		"0": 0, "1048588": 1048588, "512KiB": 512 << 10, "64MiB": 64 << 20, "1GiB": 1 << 30, "10kB": 10000, "10 MB": 10_000_000,
		"9223372036854775807": 1<<63 - 1, "9007199254740993": 9007199254740993,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %v, %v; want %d", text, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "1QiB", "99999999999999999999", "MiB", "9223372036854775808", "1e30", "99EiB", "NaN"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %v, want an error", in, got)
		}
	}
}
