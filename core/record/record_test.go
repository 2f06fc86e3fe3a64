package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mink-project/mink/sdk/mink"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var arrowHeader = Header{
	BaseOffset: 1<<40 + 5, LeaderEpoch: 7, CommitTimestamp: 1_700_000_000_123,
	Encoding: EncodingArrow, SchemaID: 3, LastOffsetDelta: 2, Count: 3, ChangesLen: 3,
	MaxTimestamp: 1_700_000_000_100, WriterID: 42, WriterEpoch: 1, Sequence: 9, LastSequence: 9, MetadataLen: 5,
}

// arrowBatch puts a batch together as the tablet does.
func arrowBatch(h Header, changes, meta, body []byte) []byte {
	parts := [][]byte{changes, Padding(len(changes)), meta, Padding(len(meta)), body}
	rest := bytes.Join(parts, nil)
	hdr := make([]byte, HeaderSize)
	PutHeader(hdr, &h, len(rest))
	Seal(hdr, BodySum(parts...))
	SetServerFields(hdr, nil, h.BaseOffset, h.CommitTimestamp, h.LeaderEpoch)
	return append(hdr, rest...)
}

// kafkaBatch is a minimal framed payload; its records are nobody's business here.
func kafkaBatch(records string) []byte {
	k := make([]byte, kafkaHeaderSize, kafkaHeaderSize+len(records))
	k = append(k, records...)
	binary.BigEndian.PutUint32(k[kafkaPosLength:], uint32(len(k)-kafkaPosEpoch))
	k[kafkaPosMagic] = 2
	binary.BigEndian.PutUint32(k[kafkaPosCRC:], BodySum(k[kafkaPosBody:]))
	return k
}

func wrapKafka(h Header, k []byte) []byte {
	hdr := make([]byte, HeaderSize)
	PutHeader(hdr, &h, len(k))
	Seal(hdr, KafkaBodySum(k))
	SetServerFields(hdr, k, h.BaseOffset, h.CommitTimestamp, h.LeaderEpoch)
	return append(hdr, k...)
}

var kafkaHeader = Header{
	BaseOffset: 77, LeaderEpoch: 2, CommitTimestamp: 1_700_000_000_123, Encoding: EncodingKafka, Attributes: AttrAppendOnly,
	LastOffsetDelta: 9, Count: 10, MaxTimestamp: -1, WriterID: mink.NoWriter, WriterEpoch: -1, Sequence: NoSequence, LastSequence: NoSequence,
}

func TestFormat(t *testing.T) {
	changes, meta, body := []byte{1, 2, 3}, []byte("meta!"), []byte("body bytes, any number")
	a := arrowBatch(arrowHeader, changes, meta, body)
	b, err := ParseBatch(a)
	if err != nil {
		t.Fatal(err)
	}
	gotMeta, gotBody := b.Arrow()
	if d := cmp.Diff(arrowHeader, b.Header()); d != "" || !bytes.Equal(b.Changes(), changes) || !bytes.Equal(gotMeta, meta) || !bytes.Equal(gotBody, body) {
		t.Fatalf("%s %q %q %q", d, b.Changes(), gotMeta, gotBody)
	}
	if b.NextOffset() != arrowHeader.BaseOffset+3 {
		t.Fatal(b.NextOffset())
	}
	k := wrapKafka(kafkaHeader, kafkaBatch("records"))
	kb, err := ParseBatch(k)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(kafkaHeader, kb.Header()); d != "" || !strings.HasSuffix(string(kb.Kafka()), "records") {
		t.Fatal(d)
	}
	if base, epoch := binary.BigEndian.Uint64(kb.Kafka()), binary.BigEndian.Uint32(kb.Kafka()[12:]); base != 77 || epoch != 2 {
		t.Fatalf("kafka payload not patched: %d %d", base, epoch)
	}
	golden(t, "arrow.v1.hex", a)
	golden(t, "kafka.v1.hex", k)
}

func TestMoreAttributes(t *testing.T) {
	for name, raw := range map[string][]byte{
		"arrow": arrowBatch(arrowHeader, []byte{1, 2, 3}, []byte("meta!"), []byte("body")),
		"kafka": wrapKafka(kafkaHeader, kafkaBatch("records")),
	} {
		before := bytes.Clone(raw)
		old, err := ParseBatch(raw)
		if err != nil {
			t.Fatal(err)
		}
		b, err := ParseBatch(old.WithAttributes(AttrUncleanable))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := old.Header()
		want.Attributes |= AttrUncleanable
		if d := cmp.Diff(want, b.Header()); d != "" || !bytes.Equal(b[HeaderSize:], before[HeaderSize:]) || !bytes.Equal(raw, before) {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// golden compares with a committed file: bytes on object stores must stay readable.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	text := hex.Dump(got)
	if *rewrite {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text); d != "" {
		t.Fatalf("%s: the format changed:\n%s", name, d)
	}
}

// Every bit that is not a server field is under a CRC.
func TestEveryBitCounts(t *testing.T) {
	server := func(i int) bool { return i < posLength || (i >= posEpoch && i < posCRC) }
	kafkaServer := func(i int) bool {
		i -= HeaderSize
		return i >= 0 && (i < kafkaPosLength || (i >= kafkaPosEpoch && i < kafkaPosMagic))
	}
	for name, b := range map[string][]byte{
		"arrow": arrowBatch(arrowHeader, []byte{0, 0, 4}, []byte("meta!"), []byte("body")),
		"kafka": wrapKafka(kafkaHeader, kafkaBatch("records")),
	} {
		for i := range b {
			if server(i) || (name == "kafka" && kafkaServer(i)) {
				continue
			}
			for bit := range 8 {
				b[i] ^= 1 << bit
				if _, err := ParseBatch(b); !errors.Is(err, mink.ErrCorrupt) {
					t.Fatalf("%s: byte %d bit %d: %v", name, i, bit, err)
				}
				b[i] ^= 1 << bit
			}
		}
		for n := range b {
			if _, err := ParseBatch(b[:n]); !errors.Is(err, mink.ErrCorrupt) {
				t.Fatalf("%s: cut to %d: %v", name, n, err)
			}
		}
	}
}

func TestViewAllocatesNothing(t *testing.T) {
	b := arrowBatch(arrowHeader, []byte{1, 2, 3}, []byte("meta!"), []byte("body"))
	var sum int
	if n := testing.AllocsPerRun(100, func() {
		v, err := ParseBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		meta, body := v.Arrow()
		h := v.Header()
		sum += len(meta) + len(body) + len(v.Changes()) + int(h.Count)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestBatchErrorClasses(t *testing.T) {
	for kind, class := range map[Kind]error{
		KindCorrupt: mink.ErrInvalid, KindTooLarge: mink.ErrTooLarge, KindUnsupported: mink.ErrUnsupported,
		KindUnsupportedFormat: mink.ErrUnsupported, KindTimestamp: mink.ErrInvalid,
	} {
		if err := error(Errorf(kind, "why")); !errors.Is(err, class) || !strings.Contains(err.Error(), "why") {
			t.Errorf("%v is not %v", err, class)
		}
	}
}

func FuzzParseBatch(f *testing.F) {
	f.Add(arrowBatch(arrowHeader, []byte{1, 2, 3}, []byte("meta!"), []byte("body")))
	f.Add(wrapKafka(kafkaHeader, kafkaBatch("records")))
	f.Fuzz(func(t *testing.T, in []byte) {
		_, _ = ParseBatch(in)
		v, err := ViewBatch(in)
		if err != nil {
			if !errors.Is(err, mink.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		h := v.Header()
		if h.NextOffset() != v.NextOffset() || h.NextOffset() <= h.BaseOffset || int(h.Count) > int(h.LastOffsetDelta)+1 {
			t.Fatalf("offsets %+v", h)
		}
		switch h.Encoding {
		case EncodingArrow:
			meta, body := v.Arrow()
			if len(meta)+len(body) > len(in) {
				t.Fatal("payload larger than the batch")
			}
		case EncodingKafka:
			if len(v.Kafka()) < kafkaHeaderSize {
				t.Fatal("kafka payload too short")
			}
		}
		if c := v.Changes(); len(c) != 0 && len(c) != int(h.Count) {
			t.Fatal("change vector")
		}
	})
}

func BenchmarkParseBatch(b *testing.B) {
	k := wrapKafka(kafkaHeader, kafkaBatch(strings.Repeat("x", 1<<20)))
	b.SetBytes(int64(len(k)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseBatch(k); err != nil {
			b.Fatal(err)
		}
	}
}
