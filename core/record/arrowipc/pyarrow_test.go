package arrowipc

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// What pyarrow writes (testdata/write_pyarrow.py: sliced, empty, all null, compressed,
// with custom metadata) is accepted and reads as arrow-go reads it.
func TestPyarrow(t *testing.T) {
	for _, codec := range []string{"none", "lz4", "zstd"} {
		raw, err := os.ReadFile("testdata/pyarrow-" + codec + ".stream")
		if err != nil {
			t.Fatal(err)
		}
		want, err := ipc.NewReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		l := layoutOf(t, want.Schema()).WithTimestamp(tsColumn)
		_, _, rest := nextMessage(t, raw) // the schema
		c, d := NewChecker(DefaultMaxBytes), NewDecoder(DefaultMaxBytes)
		n := 0
		for ; want.Next(); n++ {
			var meta, body []byte
			meta, body, rest = nextMessage(t, rest)
			if _, err := c.Check(l, meta, body); err != nil {
				t.Fatalf("%s, batch %d: %v", codec, n, err)
			}
			got, err := d.Decode(l, meta, body, nil)
			if err != nil || !array.RecordEqual(got, want.RecordBatch()) {
				t.Fatalf("%s, batch %d reads otherwise: %v", codec, n, err)
			}
		}
		if n != 7 || want.Err() != nil {
			t.Fatal(n, want.Err())
		}
	}
}

// nextMessage takes one encapsulated message off a stream.
func nextMessage(t *testing.T, b []byte) (meta, body, rest []byte) {
	t.Helper()
	n := binary.LittleEndian.Uint32(b[4:]) // after the continuation marker
	meta, rest = b[8:8+n], b[8+n:]
	f := &flat{b: meta}
	bodyLen := int64(0)
	if p := f.field(f.table(f.indirect(0)), 3, 8); p != 0 {
		bodyLen = f.i64(p)
	}
	if f.bad {
		t.Fatal("the stream's flatbuffer is not read")
	}
	return meta, rest[:bodyLen], rest[bodyLen:]
}
