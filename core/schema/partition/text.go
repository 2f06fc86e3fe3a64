package partition

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
)

const (
	secondsPerDay = 24 * 60 * 60
	dateLayout    = "2006-01-02"
)

// Format is the canonical text of a value with the Go type of keyenc.AppendValue.
// Text over MaxValueBytes, a time of day outside the day, and a value of another
// type are errors.
func Format(t schema.Type, v any) (string, error) {
	if _, err := keyenc.AppendValue(nil, t, v); err != nil {
		return "", err
	}
	text, err := format(t, v)
	if err != nil {
		return "", err
	}
	return text, checkText(t, text)
}

func format(t schema.Type, v any) (string, error) {
	switch v := v.(type) {
	case bool:
		return strconv.FormatBool(v), nil
	case int8:
		return strconv.FormatInt(int64(v), 10), nil
	case int16:
		return strconv.FormatInt(int64(v), 10), nil
	case int32:
		return strconv.FormatInt(int64(v), 10), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float32:
		return formatFloat(float64(keyenc.CanonicalFloat32(v)), 32), nil
	case float64:
		return formatFloat(keyenc.CanonicalFloat64(v), 64), nil
	case string:
		if t.Kind == schema.Char && utf8.RuneCountInString(v) > t.Length {
			return "", fmt.Errorf("%w partition value: %d characters in %s", mink.ErrInvalid, utf8.RuneCountInString(v), t)
		}
		return v, nil
	case []byte:
		return hex.EncodeToString(v), nil
	case arrow.Date32:
		return formatDate(int64(v)), nil
	case arrow.Time32:
		return formatTimeOfDay(int64(v), t)
	case arrow.Time64:
		return formatTimeOfDay(int64(v), t)
	case arrow.Timestamp:
		per := perSecond(t.Unit())
		seconds := floorDiv(int64(v), per)
		days := floorDiv(seconds, secondsPerDay)
		clock := formatClock(seconds-days*secondsPerDay, int64(v)-seconds*per, per)
		text := formatDate(days) + "T" + clock
		if t.Kind == schema.TimestampLTZ {
			text += "Z"
		}
		return text, nil
	}
	return "", fmt.Errorf("%w partition value: %s cannot be a partition key", mink.ErrInvalid, t)
}

func formatFloat(v float64, bits int) string {
	switch {
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return strconv.FormatFloat(v, 'g', -1, bits) // NaN: "NaN"
}

// formatDate prints days since 1970-01-01 in the proleptic Gregorian calendar.
func formatDate(days int64) string {
	year, month, day := civil(days)
	switch {
	case year > 9999:
		return fmt.Sprintf("+%d-%02d-%02d", year, month, day)
	case year < 0:
		return fmt.Sprintf("-%04d-%02d-%02d", -year, month, day)
	}
	return fmt.Sprintf("%04d-%02d-%02d", year, month, day)
}

// civil is Howard Hinnant's civil_from_days: exact for every int32 of days and
// for all that seconds in an int64 reach, where package time wraps.
func civil(days int64) (year int64, month, day int) {
	days += 719468 // from 0000-03-01
	era := floorDiv(days, 146097)
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = int(doy - (153*mp+2)/5 + 1)
	month = int(mp) + 3
	year = yoe + era*400
	if month > 12 {
		month -= 12
		year++
	}
	return year, month, day
}

// daysOf is the inverse of civil.
func daysOf(year int64, month, day int) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := floorDiv(year, 400)
	yoe := year - era*400
	doy := int64((153*(month-3)+2)/5 + day - 1)
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}

func formatTimeOfDay(v int64, t schema.Type) (string, error) {
	per := perSecond(t.Unit())
	if v < 0 || v >= secondsPerDay*per {
		return "", fmt.Errorf("%w partition value: %d %s is not a time of day", mink.ErrInvalid, v, t.Unit())
	}
	return formatClock(v/per, v%per, per), nil
}

// formatClock prints seconds of the day and a fraction of 1/per seconds.
func formatClock(seconds, fraction, per int64) string {
	text := fmt.Sprintf("%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
	if fraction == 0 {
		return text
	}
	digits := strconv.FormatInt(per+fraction, 10)[1:] // with leading zeros
	return text + "." + strings.TrimRight(digits, "0")
}

func perSecond(u arrow.TimeUnit) int64 {
	return [...]int64{arrow.Second: 1, arrow.Millisecond: 1e3, arrow.Microsecond: 1e6, arrow.Nanosecond: 1e9}[u]
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Parse reads the canonical text of a value; other text that would mean a value
// ("07", "+7", "TRUE") is refused, with the canonical text in the error.
func Parse(t schema.Type, text string) (any, error) {
	if err := checkText(t, text); err != nil {
		return nil, err
	}
	v, err := parse(t, text)
	if err != nil {
		return nil, fmt.Errorf("%w partition value %q of %s: %w", mink.ErrInvalid, text, t, err)
	}
	canonical, err := Format(t, v)
	if err != nil {
		return nil, err
	}
	if canonical != text {
		return nil, fmt.Errorf("%w partition value %q of %s: write it %q", mink.ErrInvalid, text, t, canonical)
	}
	return v, nil
}

func parse(t schema.Type, text string) (any, error) {
	whole := func(bits int) (int64, error) {
		n, err := strconv.ParseInt(text, 10, bits)
		if err != nil {
			return 0, fmt.Errorf("want a whole number of %d bits", bits)
		}
		return n, nil
	}
	switch t.Kind {
	case schema.Boolean:
		if text != "true" && text != "false" {
			return nil, fmt.Errorf("want true or false")
		}
		return text == "true", nil
	case schema.TinyInt:
		n, err := whole(8)
		return int8(n), err
	case schema.SmallInt:
		n, err := whole(16)
		return int16(n), err
	case schema.Int:
		n, err := whole(32)
		return int32(n), err
	case schema.BigInt:
		return whole(64)
	case schema.Float:
		f, err := strconv.ParseFloat(text, 32)
		return float32(f), floatError(err)
	case schema.Double:
		f, err := strconv.ParseFloat(text, 64)
		return f, floatError(err)
	case schema.Char, schema.String:
		return text, nil
	case schema.Binary, schema.Bytes:
		b, err := hex.DecodeString(text)
		if err != nil || t.Kind == schema.Binary && len(b) != t.Length {
			return nil, fmt.Errorf("want hexadecimal digits, two per byte")
		}
		return b, nil
	case schema.Date:
		days, err := parseDate(text)
		if err != nil || days < math.MinInt32 || days > math.MaxInt32 {
			return nil, fmt.Errorf("want a date such as 2024-01-31")
		}
		return arrow.Date32(days), nil
	case schema.Time, schema.Timestamp, schema.TimestampLTZ:
		return parseTime(t, text)
	}
	return nil, fmt.Errorf("%s cannot be a partition key", t)
}

func floatError(err error) error {
	if err != nil {
		return fmt.Errorf("want a number that the type can hold")
	}
	return nil
}

func parseDate(text string) (int64, error) {
	head, tail := "", text
	if len(text) > 6 {
		head, tail = text[:len(text)-6], text[len(text)-6:] // year, -MM-DD
	}
	year, err := strconv.ParseInt(head, 10, 64)
	if err != nil || year > 1e12 || year < -1e12 {
		return 0, fmt.Errorf("no year")
	}
	// Any leap year: a 29th of February too many prints as another date and is
	// refused as not canonical.
	md, err := time.Parse(dateLayout, "2024"+tail)
	if err != nil {
		return 0, err
	}
	return daysOf(year, int(md.Month()), md.Day()), nil
}

func parseTime(t schema.Type, text string) (any, error) {
	per := perSecond(t.Unit())
	if t.Kind == schema.Time {
		seconds, fraction, err := parseClock(text, per)
		if err != nil {
			return nil, fmt.Errorf("want a time such as 07:05:00")
		}
		if t.Precision <= 3 {
			return arrow.Time32(seconds*per + fraction), nil
		}
		return arrow.Time64(seconds*per + fraction), nil
	}
	want := fmt.Errorf("want a timestamp such as 2024-01-31T07:05:00")
	if t.Kind == schema.TimestampLTZ {
		want = fmt.Errorf("want an instant such as 2024-01-31T07:05:00Z")
		if !strings.HasSuffix(text, "Z") {
			return nil, want
		}
		text = strings.TrimSuffix(text, "Z")
	}
	date, clock, ok := strings.Cut(text, "T")
	days, dateErr := parseDate(date)
	seconds, fraction, clockErr := parseClock(clock, per)
	if !ok || dateErr != nil || clockErr != nil {
		return nil, want
	}
	// Wraps for dates beyond the type: the value then prints as another text and
	// is refused as not canonical.
	return arrow.Timestamp((days*secondsPerDay+seconds)*per + fraction), nil
}

// parseClock reads HH:MM:SS with a fraction of as many digits as 1/per allows.
func parseClock(text string, per int64) (seconds, fraction int64, err error) {
	clock, digits, dot := strings.Cut(text, ".")
	c, err := time.Parse("15:04:05", clock)
	if err != nil {
		return 0, 0, err
	}
	if dot {
		scale := per
		for _, d := range []byte(digits) {
			if scale /= 10; scale == 0 || d < '0' || d > '9' {
				return 0, 0, fmt.Errorf("fraction %q", digits)
			}
			fraction += int64(d-'0') * scale
		}
	}
	return int64(c.Hour()*3600 + c.Minute()*60 + c.Second()), fraction, nil
}
