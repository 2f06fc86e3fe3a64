package predicate

import (
	"encoding/hex"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/partition"
)

// value is the literal as a value of the type, exactly.
func (l *literal) value(t schema.Type) (any, error) {
	text, word := l.Number, strings.ToUpper(l.Word)
	switch {
	case word == "NULL":
		return nil, fmt.Errorf("nothing equals NULL: write IS NULL or IS NOT NULL")
	case word != "":
		if t.Kind != schema.Boolean {
			return nil, fmt.Errorf("%s is no value of the type", word)
		}
		return word == "TRUE", nil
	case l.Bytes != "":
		if t.Kind != schema.Binary && t.Kind != schema.Bytes {
			return nil, fmt.Errorf("bytes are no value of the type")
		}
		return parseBytes(l.Bytes[2:len(l.Bytes)-1], t)
	case l.Text != "":
		text = unquote(l.Text)
	}
	if err := l.checkType(t); err != nil {
		return nil, err
	}
	if l.Number != "" && !numeric(t) {
		return nil, fmt.Errorf("the number %.100s is no value of the type: write it as text, in '...'", text)
	}
	v, err := parseText(text, t)
	if err != nil {
		return nil, fmt.Errorf("%.100q: %w", text, err)
	}
	return v, nil
}

func numeric(t schema.Type) bool {
	switch t.Kind {
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt, schema.Float, schema.Double, schema.Decimal:
		return true
	}
	return false
}

// checkType compares the word before a text with the column's type.
func (l *literal) checkType(t schema.Type) error {
	ok := true
	switch word := strings.ToUpper(l.Type); word {
	case "":
	case "DATE":
		ok = t.Kind == schema.Date
	case "TIME":
		ok = t.Kind == schema.Time
	case "TIMESTAMP":
		ok = t.Kind == schema.Timestamp || t.Kind == schema.TimestampLTZ
	case "TIMESTAMP_LTZ":
		ok = t.Kind == schema.TimestampLTZ
	default:
		return fmt.Errorf("%.100q is no type of a literal: DATE, TIME and TIMESTAMP are; text stands in single quotes", l.Type)
	}
	if !ok {
		return fmt.Errorf("a literal of %s is no value of the type", strings.ToUpper(l.Type))
	}
	return nil
}

func parseText(text string, t schema.Type) (any, error) {
	switch t.Kind {
	case schema.Boolean:
		return partition.Parse(t, strings.ToLower(text))
	case schema.TinyInt, schema.SmallInt, schema.Int, schema.BigInt:
		return parseWhole(text, t)
	case schema.Float, schema.Double:
		return parseFloat(text, t)
	case schema.Decimal:
		return parseDecimal(text, t)
	case schema.Char, schema.String: // longer text than a CHAR holds compares as any other
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("it is not UTF-8")
		}
		return text, nil
	case schema.Binary, schema.Bytes:
		return parseBytes(text, t)
	case schema.Date:
		return partition.Parse(t, text)
	}
	return parseTimes(text, t)
}

func parseBytes(text string, t schema.Type) (any, error) {
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("want hexadecimal digits, two per byte")
	}
	if t.Kind == schema.Binary && len(b) != t.Length {
		return nil, fmt.Errorf("it has %d bytes, the type %d", len(b), t.Length)
	}
	return b, nil
}

func parseWhole(text string, t schema.Type) (any, error) {
	bits := map[schema.Kind]int{schema.TinyInt: 8, schema.SmallInt: 16, schema.Int: 32, schema.BigInt: 64}[t.Kind]
	n, err := strconv.ParseInt(text, 10, bits)
	if err != nil {
		return nil, fmt.Errorf("want a whole number of %d bits", bits)
	}
	switch bits {
	case 8:
		return int8(n), nil
	case 16:
		return int16(n), nil
	case 32:
		return int32(n), nil
	}
	return n, nil
}

// parseFloat takes the nearest number, as any text of a float is.
func parseFloat(text string, t schema.Type) (any, error) {
	bits := 64
	if t.Kind == schema.Float {
		bits = 32
	}
	if strings.ContainsAny(text, "_xXpP") {
		return nil, fmt.Errorf("want a number such as 1.5e3")
	}
	f, err := strconv.ParseFloat(text, bits)
	if err != nil {
		return nil, fmt.Errorf("want a number that the type can hold")
	}
	if bits == 32 {
		return float32(f), nil
	}
	return f, nil
}

func parseDecimal(text string, t schema.Type) (any, error) {
	if len(text) > 100 || strings.ContainsAny(text, "/_xXpPoObB") {
		return nil, fmt.Errorf("want a number such as 12.34")
	}
	if at := strings.IndexAny(text, "eE"); at >= 0 && len(text)-at > 4 { // would make a huge number
		return nil, fmt.Errorf("its exponent is too long")
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, fmt.Errorf("want a number such as 12.34")
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(t.Scale)), nil)))
	if !r.IsInt() {
		return nil, fmt.Errorf("it has more than %d digits after the point", t.Scale)
	}
	if len(new(big.Int).Abs(r.Num()).String()) > t.Precision {
		return nil, fmt.Errorf("it has more than %d digits before the point", t.Precision-t.Scale)
	}
	return decimal128.FromBigInt(r.Num()), nil
}

// parseTimes reads times and timestamps: the canonical text of a partition value, and
// what SQL and RFC 3339 have beside it: a space for the T, zeros at the end of a
// fraction, a zone for an instant.
func parseTimes(text string, t schema.Type) (any, error) {
	head, zone := text, ""
	if t.Kind == schema.TimestampLTZ {
		zone = "Z"
		if at := strings.LastIndexAny(text, "+-"); at > len("2006-01-02") {
			utc, err := time.Parse(time.RFC3339Nano, strings.Replace(text, " ", "T", 1))
			if err != nil {
				return nil, fmt.Errorf("want an instant such as 2024-01-31T07:05:00Z or 2024-01-31T09:05:00+02:00")
			}
			text = utc.UTC().Format("2006-01-02T15:04:05.999999999Z")
		}
		head = strings.TrimSuffix(text, "Z")
		if head == text {
			return nil, fmt.Errorf("an instant needs its zone: want one such as 2024-01-31T07:05:00Z")
		}
	}
	head = strings.Replace(head, " ", "T", 1)
	if clock, fraction, ok := strings.Cut(head, "."); ok {
		if fraction = strings.TrimRight(fraction, "0"); len(fraction) > digitsOf(t) {
			return nil, fmt.Errorf("it is finer than %s", t)
		}
		head = clock
		if fraction != "" {
			head += "." + fraction
		}
	}
	return partition.Parse(t, head+zone)
}

// digitsOf is how many digits after the second the type's Arrow unit holds.
func digitsOf(t schema.Type) int { return 3 * int(t.Unit()) }
