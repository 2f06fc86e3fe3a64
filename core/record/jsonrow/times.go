package jsonrow

import (
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Times are read here and not by Arrow, which takes bare numbers for ticks, one
// digit for an hour, and cuts some fractions that the type has no digits for.

// number reads exactly n digits.
func number(b []byte, n int) (v int64, rest []byte, ok bool) {
	if len(b) < n {
		return 0, b, false
	}
	for _, c := range b[:n] {
		if c < '0' || c > '9' {
			return 0, b, false
		}
		v = 10*v + int64(c-'0')
	}
	return v, b[n:], true
}

// after reads a separator and two digits below limit.
func after(b []byte, separator byte, limit int64) (v int64, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != separator {
		return 0, b, false
	}
	v, rest, ok = number(b[1:], 2)
	return v, rest, ok && v < limit
}

// parseDate reads YYYY-MM-DD and answers days since 1970.
func parseDate(b []byte) (days int64, rest []byte, ok bool) {
	year, rest, ok := number(b, 4)
	if !ok {
		return 0, rest, false
	}
	month, rest, ok := after(rest, '-', 13)
	if !ok {
		return 0, rest, false
	}
	day, rest, ok := after(rest, '-', 32)
	if !ok || month == 0 || day == 0 {
		return 0, rest, false
	}
	t := time.Date(int(year), time.Month(month), int(day), 0, 0, 0, 0, time.UTC)
	return t.Unix() / 86400, rest, t.Day() == int(day) && t.Unix()%86400 == 0
}

// ticks is how many of a unit a second has, and how many digits that is.
func ticks(u arrow.TimeUnit) (perSecond int64, digits int) {
	return tens[3*int(u)], 3 * int(u)
}

// parseClock reads HH:MM[:SS[.fraction]], or with short also HH, and answers
// seconds and ticks of the unit.
func parseClock(b []byte, u arrow.TimeUnit, short bool) (seconds, fraction int64, rest []byte, ok bool) {
	hour, rest, ok := number(b, 2)
	if !ok || hour > 23 {
		return 0, 0, rest, false
	}
	if short && (len(rest) == 0 || rest[0] != ':') {
		return hour * 3600, 0, rest, true
	}
	minute, rest, ok := after(rest, ':', 60)
	if !ok {
		return 0, 0, rest, false
	}
	seconds = hour*3600 + minute*60
	if len(rest) == 0 || rest[0] != ':' {
		return seconds, 0, rest, true
	}
	second, rest, ok := after(rest, ':', 60)
	if !ok {
		return 0, 0, rest, false
	}
	fraction, rest, ok = parseFraction(rest, u)
	return seconds + second, fraction, rest, ok
}

// parseFraction reads .digits; those beyond the unit's must be zeros.
func parseFraction(b []byte, u arrow.TimeUnit) (fraction int64, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '.' {
		return 0, b, true
	}
	_, digits := ticks(u)
	n := 0
	for b = b[1:]; n < len(b) && b[n]-'0' <= 9; n++ {
		switch {
		case n < digits:
			fraction = 10*fraction + int64(b[n]-'0')
		case b[n] != '0' || n >= 9:
			return 0, b, false
		}
	}
	if n == 0 {
		return 0, b, false
	}
	return fraction * tens[max(digits-n, 0)], b[n:], true
}

// parseTime reads a time of the day.
func parseTime(b []byte, u arrow.TimeUnit) (int64, bool) {
	seconds, fraction, rest, ok := parseClock(b, u, false)
	per, _ := ticks(u)
	return seconds*per + fraction, ok && len(rest) == 0
}

// parseTimestamp reads a date and a time of the day, with a zone exactly when the
// type has one.
func parseTimestamp(b []byte, t *arrow.TimestampType) (int64, bool) {
	days, rest, ok := parseDate(b)
	if !ok {
		return 0, false
	}
	seconds, fraction := days*86400, int64(0)
	if len(rest) > 0 {
		if rest[0] != 'T' && rest[0] != ' ' {
			return 0, false
		}
		var clock int64
		if clock, fraction, rest, ok = parseClock(rest[1:], t.Unit, true); !ok {
			return 0, false
		}
		seconds += clock
	}
	if t.TimeZone != "" {
		if len(b) <= 10 {
			return 0, false
		}
		var offset int64
		if offset, rest, ok = parseZone(rest); !ok {
			return 0, false
		}
		seconds -= offset
	}
	if len(rest) > 0 {
		return 0, false
	}
	per, _ := ticks(t.Unit)
	return join(seconds, fraction, per)
}

// join is seconds and a fraction as ticks; not ok beyond the range.
func join(seconds, fraction, per int64) (int64, bool) {
	if seconds < 0 && fraction > 0 { // -1 s + 0.3 s is -0.7 s
		seconds, fraction = seconds+1, fraction-per
	}
	v := seconds * per
	sum := v + fraction
	return sum, v/per == seconds && (sum < v) == (fraction < 0)
}

// parseZone reads Z or ±HH[[:]MM[[:]SS]] and answers seconds east of Greenwich.
func parseZone(b []byte) (seconds int64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, b, false
	}
	sign := int64(1)
	switch b[0] {
	case 'Z':
		return 0, b[1:], true
	case '-':
		sign = -1
	case '+':
	default:
		return 0, b, false
	}
	hour, rest, ok := number(b[1:], 2)
	if !ok || hour > 23 {
		return 0, rest, false
	}
	seconds = hour * 3600
	colon := len(rest) > 0 && rest[0] == ':'
	for unit := int64(60); unit > 0 && len(rest) > 0; unit /= 60 {
		if colon {
			if rest[0] != ':' {
				return 0, rest, false
			}
			rest = rest[1:]
		}
		var v int64
		if v, rest, ok = number(rest, 2); !ok || v > 59 {
			return 0, rest, false
		}
		seconds += v * unit
	}
	return sign * seconds, rest, true
}
