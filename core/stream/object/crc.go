package object

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func crcAdd(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// castagnoliPoly is the CRC32C polynomial, bit-reversed.
const castagnoliPoly = 0x82f63b78

// combineAbove is the length from which joining two checksums is cheaper than
// reading the bytes again (BenchmarkCombine).
const combineAbove = 16 << 10

// powers[k] is x^(8 * 2^k) modulo the polynomial, bit-reversed: what 2^k zero
// bytes do to a checksum.
var powers = func() (p [48]uint32) {
	x := uint32(1) << 23 // x^8
	for k := range p {
		p[k] = x
		x = multiply(x, x)
	}
	return p
}()

// multiply is the product of two bit-reversed polynomials modulo CRC32C's.
func multiply(a, b uint32) (p uint32) {
	for m := uint32(1) << 31; m != 0 && a != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
			a ^= m
		}
		b = b>>1 ^ castagnoliPoly&-(b&1)
	}
	return p
}

// combine is the checksum of A followed by B, from the checksums of both and
// B's length; the method of zlib's crc32_combine.
func combine(a, b uint32, lenB uint64) uint32 {
	for k := 0; lenB != 0; k++ {
		if lenB&1 != 0 {
			a = multiply(powers[k], a)
		}
		lenB >>= 1
	}
	return a ^ b
}
