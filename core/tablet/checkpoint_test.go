package tablet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mink-project/mink/core/record"
	"github.com/mink-project/mink/sdk/mink"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// sample is a state with everything in it.
func sample() *state {
	s := newState(0)
	at, now := mink.Offset(0), t0
	add := func(w mink.WriterID, epoch int16, seq, n int32, lead mink.LeaderEpoch) {
		s.apply(&record.Header{
			BaseOffset: at, LeaderEpoch: lead, CommitTimestamp: now, LastOffsetDelta: n - 1, Count: n,
			MaxTimestamp: now - 3, WriterID: w, WriterEpoch: epoch, Sequence: seq, LastSequence: seq + n - 1,
		}, 700_000)
		at += mink.Offset(n)
	}
	add(3, 1, 0, 2, 1)
	now += expiryMs + 1
	for i := range int32(8) {
		add(10, 0, 2*i, 2, 2)
		now += 10
	}
	add(mink.NoWriter, -1, -1, 5, 4)
	add(11, 32767, 0, 1, 4)
	s.settle(at)
	return s
}

func TestCheckpointGolden(t *testing.T) {
	const path = "testdata/checkpoint.v1.hex"
	b := encodeCheckpoint(sample())
	if *rewrite {
		if err := os.WriteFile(path, []byte(hex.Dump(b)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), hex.Dump(b)); d != "" {
		t.Fatalf("the format changed: raise its version\n%s", d)
	}
	s, err := decodeCheckpoint(b)
	if err != nil {
		t.Fatal(err)
	}
	if again := encodeCheckpoint(s); !bytes.Equal(again, b) {
		t.Fatal("decode and encode gives other bytes")
	}
	if len(s.writers.expired) != 1 || s.writers.len() != 2 || len(s.epochs) != 3 || s.end != 24 {
		t.Fatalf("%+v", s)
	}
}

func TestCheckpointRefusesDamage(t *testing.T) {
	b := encodeCheckpoint(sample())
	for i := range b {
		b[i] ^= 0x10
		if _, err := decodeCheckpoint(b); !errors.Is(err, mink.ErrCorrupt) {
			t.Fatalf("byte %d: %v", i, err)
		}
		b[i] ^= 0x10
	}
	b[4] = 2
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
	if _, err := decodeCheckpoint(b); !errors.Is(err, mink.ErrUnsupported) {
		t.Fatalf("version 2: %v", err)
	}
}

// Writers that expire are forgotten, but for a bounded list.
func TestWriterMemoryIsBounded(t *testing.T) {
	s := newState(0)
	for i := range 20_000 {
		s.apply(&record.Header{BaseOffset: mink.Offset(i), CommitTimestamp: t0 + int64(i)*expiryMs/100, WriterID: mink.WriterID(i)}, 100)
		s.settle(s.end)
	}
	w := &s.writers
	if w.len() > 102 || len(w.slab) > 103 || len(w.expired) != maxExpired || w.floor != mink.WriterID(20_000-w.len()-maxExpired-1) {
		t.Fatalf("%d writers, %d slots, %d expired, floor %d", w.len(), len(w.slab), len(w.expired), w.floor)
	}
	// Who fell off the list may still go on; who never wrote starts at 0.
	h := record.Header{WriterID: 5, Sequence: 9, LastSequence: 9}
	if _, err := w.check(&h, s.lastCommit); err != nil {
		t.Fatal(err)
	}
	h.WriterID = 1 << 40
	if _, err := w.check(&h, s.lastCommit); !errors.Is(err, mink.ErrOutOfOrder) {
		t.Fatal(err)
	}
	if n := len(encodeCheckpoint(s)); n > 32<<10 {
		t.Fatalf("a checkpoint of %d bytes", n)
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add(encodeCheckpoint(newState(0)))
	f.Add(encodeCheckpoint(sample()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 9 { // let the fuzzer past the checksum
			binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		}
		s, err := decodeCheckpoint(b)
		if err != nil {
			return
		}
		// Whatever was read can be written, read again, and gone on from.
		again := encodeCheckpoint(s)
		if s, err = decodeCheckpoint(again); err != nil {
			t.Fatal(err)
		}
		h := record.Header{BaseOffset: s.end, CommitTimestamp: s.lastCommit, WriterID: 1}
		_, _ = s.writers.check(&h, s.lastCommit)
		s.apply(&h, 1000)
		s.settle(s.end)
		s.sizes.keep(100)
	})
}
