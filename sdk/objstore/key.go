package objstore

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// KeyMax is the longest key, in bytes: S3, GCS and Azure take 1,024 and the
// store's own prefix needs room too.
const KeyMax = 900

// ValidateKey refuses, with ErrInvalid, keys that some store could not hold or
// could confuse with another: 1..KeyMax bytes of UTF-8; segments between slashes
// are neither empty nor "." nor ".."; no control characters, no U+FFFE or U+FFFF
// (a list in XML cannot carry them), no backslash (Azure reads it as a slash).
func ValidateKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: empty key", ErrInvalid)
	}
	if len(key) > KeyMax {
		return fmt.Errorf("%w: key %.40q... has %d bytes, the limit is %d", ErrInvalid, key, len(key), KeyMax)
	}
	if !utf8.ValidString(key) {
		return fmt.Errorf("%w: key %q is not UTF-8", ErrInvalid, key)
	}
	for _, r := range key {
		if r < 0x20 || r == 0x7f || r == '\\' || r == 0xfffe || r == 0xffff {
			return fmt.Errorf("%w: key %q has the character %U, which not every store can hold", ErrInvalid, key, r)
		}
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return fmt.Errorf("%w: key %q has the segment %q", ErrInvalid, key, segment)
		}
	}
	return nil
}
