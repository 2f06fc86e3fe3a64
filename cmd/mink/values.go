package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// parseDecimal reads a decimal exactly. Arrow's readers cut or round digits
// that the scale has no place for.
func parseDecimal(text string, t *arrow.Decimal128Type) (decimal128.Num, error) {
	bad := func(format string, args ...any) (decimal128.Num, error) {
		return decimal128.Num{}, fmt.Errorf(format, args...)
	}
	if len(text) > 100 || strings.ContainsAny(text, "/_xXpPoObB") {
		return bad("want a number such as 12.34")
	}
	// A long exponent would make a huge number.
	if at := strings.IndexAny(text, "eE"); at >= 0 && len(text)-at > 4 {
		return bad("its exponent is too long")
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return bad("want a number such as 12.34")
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(t.Scale)), nil)))
	if !r.IsInt() {
		return bad("it has more than %d digits after the point", t.Scale)
	}
	if len(new(big.Int).Abs(r.Num()).String()) > int(t.Precision) {
		return bad("it has more than %d digits before the point", t.Precision-t.Scale)
	}
	return decimal128.FromBigInt(r.Num()), nil
}

// decimalText is a decimal with all digits of its scale.
func decimalText(n decimal128.Num, scale int32) string {
	digits, sign := n.BigInt().String(), ""
	if strings.HasPrefix(digits, "-") {
		digits, sign = digits[1:], "-"
	}
	if scale <= 0 {
		return sign + digits
	}
	if missing := int(scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(scale)
	return sign + digits[:point] + "." + digits[point:]
}

// appendJSON writes one value as JSON: columns and fields in the table's order,
// which Arrow's writer sorts, and every digit of a decimal.
func appendJSON(to *bytes.Buffer, c arrow.Array, row int) error {
	if c.IsNull(row) {
		to.WriteString("null")
		return nil
	}
	switch c := c.(type) {
	case *array.Decimal128:
		return appendPlain(to, decimalText(c.Value(row), c.DataType().(*arrow.Decimal128Type).Scale))
	case *array.Struct:
		fields := c.DataType().(*arrow.StructType).Fields()
		columns := make([]arrow.Array, len(fields))
		for i := range fields {
			columns[i] = c.Field(i)
		}
		return appendObject(to, fields, columns, row)
	case array.ListLike: // a MAP too: its elements are objects of key and value
		start, end := c.ValueOffsets(row)
		to.WriteByte('[')
		for i := start; i < end; i++ {
			if i > start {
				to.WriteByte(',')
			}
			if err := appendJSON(to, c.ListValues(), int(i)); err != nil {
				return err
			}
		}
		to.WriteByte(']')
		return nil
	}
	return appendPlain(to, c.GetOneForMarshal(row))
}

func appendObject(to *bytes.Buffer, fields []arrow.Field, columns []arrow.Array, row int) error {
	for i, c := range columns {
		to.WriteByte("{,"[min(i, 1)])
		if err := appendPlain(to, fields[i].Name); err != nil {
			return err
		}
		to.WriteByte(':')
		if err := appendJSON(to, c, row); err != nil {
			return fmt.Errorf("column %q: %w", fields[i].Name, err)
		}
	}
	if len(columns) == 0 {
		to.WriteByte('{')
	}
	to.WriteByte('}')
	return nil
}

func appendPlain(to *bytes.Buffer, v any) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	to.Truncate(to.Len() - 1) // Encode's newline
	return nil
}
