package tablet

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/mink-project/mink/sdk/mink"
)

// keyHash stands for a record key: 128 bits of a keyed hash. Keys come from clients, and
// two keys with one hash would cost one of them its latest record: the secret, and the
// hash's strength, keep anybody from making such keys.
type keyHash struct{ hi, lo uint64 }

// keyMap maps keys to the last offset that has them. It takes a bounded memory: 24 bytes
// per slot, three slots of four in use at most. Not for concurrent use.
type keyMap struct {
	secret  [16]byte
	scratch []byte
	slots   []keySlot // a power of two
	used    int
	max     int // slots
}

type keySlot struct {
	key keyHash
	at  mink.Offset // plus 1; 0: free
}

const (
	keySlotBytes = 24
	keySlotsMin  = 1 << 10
)

// newKeyMap makes a map of at most so many bytes. While it grows, the old slots are there
// beside the new ones.
func newKeyMap(bytes int64) *keyMap {
	m := &keyMap{max: keySlotsMin}
	for int64(m.max)*2*keySlotBytes*3/2 <= bytes {
		m.max *= 2
	}
	_, _ = rand.Read(m.secret[:]) // it never fails
	m.slots = make([]keySlot, keySlotsMin)
	return m
}

func (m *keyMap) hash(key []byte) keyHash {
	m.scratch = append(append(m.scratch[:0], m.secret[:]...), key...)
	sum := sha256.Sum256(m.scratch)
	if cap(m.scratch) > 1<<20 {
		m.scratch = nil
	}
	return keyHash{binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])}
}

// slot finds the key's place or the free one that it would take.
func (m *keyMap) slot(k keyHash) *keySlot {
	mask := uint64(len(m.slots) - 1)
	for i := k.lo & mask; ; i = (i + 1) & mask {
		if s := &m.slots[i]; s.at == 0 || s.key == k {
			return s
		}
	}
}

// put notes that the key is at the offset, which is larger than all before; false: there
// is no room for another key.
func (m *keyMap) put(k keyHash, at mink.Offset) bool {
	s := m.slot(k)
	if s.at == 0 {
		if (m.used+1)*4 > len(m.slots)*3 {
			if len(m.slots) >= m.max {
				return false
			}
			m.grow()
			s = m.slot(k)
		}
		m.used++
	}
	*s = keySlot{k, at + 1}
	return true
}

// last answers the last offset that has the key.
func (m *keyMap) last(k keyHash) (mink.Offset, bool) {
	s := m.slot(k)
	return s.at - 1, s.at != 0
}

func (m *keyMap) grow() {
	old := m.slots
	m.slots = make([]keySlot, 2*len(old))
	for _, s := range old {
		if s.at != 0 {
			*m.slot(s.key) = s
		}
	}
}
