package merge

import (
	"encoding/binary"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// uint128 is an unsigned number of 128 bits.
type uint128 struct{ hi, lo uint64 }

func (x uint128) less(y uint128) bool { return x.hi < y.hi || x.hi == y.hi && x.lo < y.lo }

// pow10 is 10^n, n 0..38.
func pow10(n int) uint128 {
	p := decimal128.GetScaleMultiplier(n)
	return uint128{uint64(p.HighBits()), p.LowBits()}
}

// decimal is the unscaled value of a DECIMAL, by sign and size: the sum of two values
// of 38 digits does not fit 128 bits with a sign.
type decimal struct {
	negative bool
	abs      uint128
}

// decimalOf reads a field: 128 bits, little endian, two's complement.
func decimalOf(field []byte) decimal {
	d := decimal{abs: uint128{binary.LittleEndian.Uint64(field[8:]), binary.LittleEndian.Uint64(field)}}
	if d.negative = d.abs.hi>>63 != 0; d.negative {
		d.abs = negate(d.abs)
	}
	return d
}

func negate(x uint128) uint128 {
	lo, borrow := bits.Sub64(0, x.lo, 0)
	hi, _ := bits.Sub64(0, x.hi, borrow)
	return uint128{hi, lo}
}

func (d decimal) put(field []byte) {
	v := d.abs
	if d.negative {
		v = negate(v)
	}
	binary.LittleEndian.PutUint64(field, v.lo)
	binary.LittleEndian.PutUint64(field[8:], v.hi)
}

// text is for errors.
func (d decimal) text(scale int) string {
	var field [16]byte
	d.put(field[:])
	return decimal128.New(int64(binary.LittleEndian.Uint64(field[8:])), binary.LittleEndian.Uint64(field[:])).ToString(int32(scale))
}

// add is the sum; false: it does not fit 128 bits.
func (d decimal) add(e decimal) (decimal, bool) {
	if d.negative == e.negative {
		lo, carry := bits.Add64(d.abs.lo, e.abs.lo, 0)
		hi, over := bits.Add64(d.abs.hi, e.abs.hi, carry)
		return decimal{d.negative, uint128{hi, lo}}, over == 0
	}
	if d.abs.less(e.abs) {
		d, e = e, d
	}
	lo, borrow := bits.Sub64(d.abs.lo, e.abs.lo, 0)
	hi, _ := bits.Sub64(d.abs.hi, e.abs.hi, borrow)
	return decimal{d.negative && hi|lo != 0, uint128{hi, lo}}, true
}

// multiply is the product of two values of a scale, at that scale: the product of the
// unscaled values / 10^scale, a half rounded away from zero. false: it does not fit.
func (d decimal) multiply(e decimal, scale int) (decimal, bool) {
	p := multiply128(d.abs, e.abs)
	if scale > 0 {
		half := pow10(scale)
		half = uint128{half.hi >> 1, half.lo>>1 | half.hi<<63}
		var carry uint64
		p[0], carry = bits.Add64(p[0], half.lo, 0)
		p[1], carry = bits.Add64(p[1], half.hi, carry)
		p[2], carry = bits.Add64(p[2], 0, carry)
		p[3] += carry
		// 10^19 is the largest power in 64 bits; the floor of floors is the floor.
		for n := scale; n > 0; n -= 19 {
			divide(&p, pow10(min(n, 19)).lo)
		}
	}
	abs := uint128{p[1], p[0]}
	return decimal{d.negative != e.negative && abs.hi|abs.lo != 0, abs}, p[2]|p[3] == 0
}

// multiply128 is the product in 256 bits, lowest word first.
func multiply128(x, y uint128) (p [4]uint64) {
	var hi, carry uint64
	hi, p[0] = bits.Mul64(x.lo, y.lo)
	p[1] = hi
	for _, m := range [2][2]uint64{{x.lo, y.hi}, {x.hi, y.lo}} {
		hi, lo := bits.Mul64(m[0], m[1])
		p[1], carry = bits.Add64(p[1], lo, 0)
		p[2], carry = bits.Add64(p[2], hi, carry)
		p[3] += carry
	}
	hi, lo := bits.Mul64(x.hi, y.hi)
	p[2], carry = bits.Add64(p[2], lo, 0)
	p[3] += hi + carry
	return p
}

// divide is p / by, rounded down.
func divide(p *[4]uint64, by uint64) {
	rest := uint64(0)
	for i := 3; i >= 0; i-- {
		p[i], rest = bits.Div64(rest, p[i], by)
	}
}
