package jsonrow

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// longDecimal reads any decimal.
func longDecimal(text string, t *arrow.Decimal128Type) (decimal128.Num, error) {
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

// appendDecimal is a decimal with all digits of its scale.
func appendDecimal(dst []byte, n decimal128.Num, scale int32) []byte {
	var buf [44]byte
	digits := buf[:0]
	if v := int64(n.LowBits()); n.HighBits() == v>>63 {
		digits = strconv.AppendInt(digits, v, 10)
	} else {
		digits = n.BigInt().Append(digits, 10)
	}
	if digits[0] == '-' {
		dst, digits = append(dst, '-'), digits[1:]
	}
	if scale <= 0 {
		return append(dst, digits...)
	}
	point := len(digits) - int(scale)
	if point <= 0 {
		dst = append(dst, '0', '.')
		for ; point < 0; point++ {
			dst = append(dst, '0')
		}
		return append(dst, digits...)
	}
	dst = append(dst, digits[:point]...)
	return append(append(dst, '.'), digits[point:]...)
}
