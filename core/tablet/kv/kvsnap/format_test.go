package kvsnap

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

var golden = flag.Bool("golden", false, "write testdata/*.golden anew: only before a release of the format")

func goldenHead() head {
	return head{
		bucket: mink.BucketRef{Table: 300, Partition: 2, Index: 7}, offset: 1 << 40, rows: -1,
		tables: []tableFile{{"000004.sst", 1}, {"000009.sst", 2}, {"000011.sst", 1}},
		others: []otherFile{{"MANIFEST-000005", []byte("manifest")}, {"marker.manifest.000001.MANIFEST-000005", []byte{}}},
	}
}

func TestGoldenHead(t *testing.T) {
	const file = "testdata/head-v1.golden"
	if *golden {
		if err := os.WriteFile(file, goldenHead().encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h, err := decodeHead(data, 3)
	if err != nil || !reflect.DeepEqual(h, goldenHead()) {
		t.Fatalf("%+v, %v", h, err)
	}
	if !bytes.Equal(h.encode(), data) {
		t.Fatal("it is written in other bytes than before: raise headVersion")
	}
}

func sealed(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(b), objstore.Checksum(b))
}

func TestDecodeHeadRefuses(t *testing.T) {
	good := goldenHead().encode()
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := decodeHead(bad, 3); !errors.Is(err, mink.ErrCorrupt) && !errors.Is(err, mink.ErrUnsupported) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		if _, err := decodeHead(sealed(good[:i]), 3); err == nil && i != len(good)-4 {
			t.Errorf("cut at %d: accepted", i)
		}
	}
	if _, err := decodeHead(good, 2); !errors.Is(err, mink.ErrCorrupt) {
		t.Error("names a file that the snapshot has not:", err)
	}
	later := bytes.Clone(good[:len(good)-4])
	later[4] = 2
	if _, err := decodeHead(sealed(later), 3); !errors.Is(err, mink.ErrUnsupported) {
		t.Error(err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", `a\b`, "a\x00", string(make([]byte, nameMax+1))} {
		h := goldenHead()
		h.others[0].name = name
		if _, err := decodeHead(h.encode(), 3); !errors.Is(err, mink.ErrCorrupt) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	twice := goldenHead()
	twice.others[0].name = "000004.sst"
	if _, err := decodeHead(twice.encode(), 3); !errors.Is(err, mink.ErrCorrupt) {
		t.Error("a name twice:", err)
	}
}

func FuzzDecodeHead(f *testing.F) {
	f.Add(goldenHead().encode(), 3)
	f.Add([]byte("MKVS\x01"), 1)
	f.Fuzz(func(t *testing.T, data []byte, files int) {
		if h, err := decodeHead(sealed(data), files); err == nil {
			again, err := decodeHead(h.encode(), files)
			if err != nil || !reflect.DeepEqual(h, again) {
				t.Fatal(again, err)
			}
		}
	})
}

// The content id is a format: these are its values.
func TestContentIDs(t *testing.T) {
	for _, c := range []struct {
		n    int
		want string
	}{
		{0, "4abc6003755f1445a8ee44a9d737993a"}, {1, "b476a56f04e2a28116088415510a0521"}, {ChunkBytes, "23b56be2790d8972552aba3aba69bd27"}, {ChunkBytes + 1, "973a0c4cc23cdc1873208cecad25b50a"}, {3 * ChunkBytes, "8e9ea66e978861d40f39807790360aba"},
	} {
		data := content(5, c.n)
		id := contentOf(data)
		byFile, err := contentOfFile(t.Context(), bytes.NewReader(data), int64(len(data)))
		if err != nil || byFile != id {
			t.Fatal(err)
		}
		ranges := newDigests(int64(len(data)))
		for at := (len(data) - 1) / (2 * ChunkBytes) * 2 * ChunkBytes; at >= 0; at -= 2 * ChunkBytes { // the last first
			ranges.add(int64(at), data[at:min(at+2*ChunkBytes, len(data))])
		}
		if ranges.id() != id {
			t.Fatalf("%d bytes: the id depends on the order of the ranges", c.n)
		}
		if got := hex.EncodeToString(id[:]); got != c.want {
			t.Errorf("%d bytes: %s, want %s", c.n, got, c.want)
		}
	}
}
