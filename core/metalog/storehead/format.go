// Package storehead keeps the metadata log's head on the object store, so that
// each side can tell that the other is the wrong one.
//
//	metadata database                       object store
//	state: incarnation I                    meta/head: incarnation I, index, hash
//	log:   ... index (hash) ... head
//
// What it promises: a process that Open lets through works on a database that
// holds every entry which the store remembers, and on the stores that belong to
// it. A database that went back (an older backup, a failover that lost commits), a
// new database under old objects, and a second node with a store of its own are
// refused, each with what to do.
//
// The lease holder moves the head on (Keeper.Keep), and nothing is deleted on
// account of an entry above it (Keeper.Covered): what a database from before that
// entry still names is still there.
package storehead

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// Key of the object, on every store of a cluster.
const Key = "meta/head"

// Head is what the object says.
type Head struct {
	// Incarnation of the metadata that the store belongs to; not 0.
	Incarnation uint64
	// Replaces is, while Pending, the incarnation of the metadata that is about to
	// take this one; 0: it has none yet.
	Replaces uint64
	// Pending: the metadata may not have taken the incarnation yet.
	Pending bool
	// Lost, while Pending: the metadata may lack their newest entries, and take the
	// incarnation with what the stores show of those (Deps.FindLost).
	Lost bool
	// OwnWAL: the cluster's write-ahead objects are on another store than this one.
	OwnWAL bool
	// The log has this entry. Zero on a store of write-ahead objects only.
	metalog.Position
}

// The object, big endian:
//
//	 0  4  "MKMH"
//	 4  1  version, 1
//	 5  1  flags: bit 0 pending, bit 1 write-ahead log on a store of its own,
//	       bit 2 the pending metadata lack entries
//	 6  2  zero
//	 8  8  incarnation
//	16  8  replaces
//	24  8  index
//	32 32  hash
//	64  4  CRC32C of bytes 0..63
const (
	magic       = "MKMH"
	version     = 1
	flagPending = 1
	flagOwnWAL  = 2
	flagLost    = 4
	headBytes   = 68
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode makes the object's bytes.
func (h Head) Encode() []byte {
	b := make([]byte, headBytes)
	copy(b, magic)
	b[4] = version
	if h.Pending {
		b[5] |= flagPending
	}
	if h.OwnWAL {
		b[5] |= flagOwnWAL
	}
	if h.Lost {
		b[5] |= flagLost
	}
	binary.BigEndian.PutUint64(b[8:], h.Incarnation)
	binary.BigEndian.PutUint64(b[16:], h.Replaces)
	binary.BigEndian.PutUint64(b[24:], h.Index)
	copy(b[32:], h.Hash[:])
	binary.BigEndian.PutUint32(b[64:], crc32.Checksum(b[:64], castagnoli))
	return b
}

// Decode reads what Encode made. Errors: mink.ErrCorrupt, mink.ErrUnsupported
// (written by a newer version).
func Decode(b []byte) (Head, error) {
	bad := func(format string, args ...any) (Head, error) {
		return Head{}, fmt.Errorf("%s: %s: %w", Key, fmt.Sprintf(format, args...), mink.ErrCorrupt)
	}
	switch {
	case len(b) < 5 || string(b[:4]) != magic:
		return bad("%d bytes that do not start with %q", len(b), magic)
	case b[4] != version:
		return Head{}, fmt.Errorf("%s has version %d, this binary reads %d: start a newer mink: %w", Key, b[4], version, mink.ErrUnsupported)
	case len(b) != headBytes:
		return bad("%d bytes, want %d", len(b), headBytes)
	case binary.BigEndian.Uint32(b[64:]) != crc32.Checksum(b[:64], castagnoli):
		return bad("its checksum does not match")
	case b[5]&^(flagPending|flagOwnWAL|flagLost) != 0 || b[6] != 0 || b[7] != 0:
		return bad("unknown flags %x", b[5:8])
	}
	h := Head{
		Incarnation: binary.BigEndian.Uint64(b[8:]), Replaces: binary.BigEndian.Uint64(b[16:]), Pending: b[5]&flagPending != 0, OwnWAL: b[5]&flagOwnWAL != 0, Lost: b[5]&flagLost != 0,
		Position: metalog.Position{Index: binary.BigEndian.Uint64(b[24:]), Hash: metalog.Hash(b[32:64])},
	}
	if h.Incarnation == 0 || !h.Pending && (h.Replaces != 0 || h.Lost) {
		return bad("incarnation %x replaces %x, pending %t, lost %t", h.Incarnation, h.Replaces, h.Pending, h.Lost)
	}
	return h, nil
}
