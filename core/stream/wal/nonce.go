package wal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
)

// NewNonce answers a random number for a registration, a probe or a recoverer's
// tombstones: what tells objects of one attempt from those of any other.
func NewNonce() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("random nonce: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
