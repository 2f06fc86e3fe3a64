package kvsnap

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// A snapshot's head, the first of its files:
//
//	+---------------------------+ 0
//	| magic "MKVS" | version 1  |
//	+---------------------------+ 5
//	| table, partition, bucket  |  uvarints: what it is of
//	| offset, rows              |  uvarint, varint (-1: not counted)
//	| n, n x (name, file)       |  table files: name, uvarint index into the snapshot's files, from 1
//	| n, n x (name, bytes)      |  the other files, whole
//	+---------------------------+ size - 4
//	| CRC-32C of all before     |  little endian
//	+---------------------------+
//
// Names and bytes stand behind their length, a uvarint. Two table files of the same
// content have one index.
const (
	headMagic   = "MKVS"
	headVersion = 1

	// HeadBytesMax bounds a head: both sides hold it in memory.
	HeadBytesMax = 64 << 20
	nameMax      = 255
)

// head is what a snapshot says of itself.
type head struct {
	bucket mink.BucketRef
	offset mink.Offset
	rows   int64
	tables []tableFile
	others []otherFile
}

type tableFile struct {
	name  string
	index int // of the snapshot's files, >= 1
}

type otherFile struct {
	name string
	data []byte
}

func (h head) encode() []byte {
	b := append([]byte(headMagic), headVersion)
	for _, v := range []uint64{uint64(h.bucket.Table), uint64(h.bucket.Partition), uint64(h.bucket.Index), uint64(h.offset)} {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.AppendVarint(b, h.rows)
	text := func(data string) { b = append(binary.AppendUvarint(b, uint64(len(data))), data...) }
	b = binary.AppendUvarint(b, uint64(len(h.tables)))
	for _, f := range h.tables {
		text(f.name)
		b = binary.AppendUvarint(b, uint64(f.index))
	}
	b = binary.AppendUvarint(b, uint64(len(h.others)))
	for _, f := range h.others {
		text(f.name)
		b = append(binary.AppendUvarint(b, uint64(len(f.data))), f.data...)
	}
	return binary.LittleEndian.AppendUint32(b, objstore.Checksum(b))
}

// decodeHead reads what encode writes, of a snapshot of so many files. The result
// aliases data. Errors: mink.ErrCorrupt; mink.ErrUnsupported for a later version.
func decodeHead(data []byte, files int) (head, error) {
	r := reader{b: data}
	switch {
	case len(data) < len(headMagic)+1+4 || string(data[:len(headMagic)]) != headMagic:
		return head{}, fmt.Errorf("%d bytes that are no head of a KV snapshot: %w", len(data), mink.ErrCorrupt)
	case data[len(headMagic)] > headVersion:
		return head{}, fmt.Errorf("head of a KV snapshot of version %d, this binary reads %d: upgrade this node: %w", data[len(headMagic)], headVersion, mink.ErrUnsupported)
	case data[len(headMagic)] != headVersion:
		return head{}, fmt.Errorf("head of a KV snapshot of version %d: %w", data[len(headMagic)], mink.ErrCorrupt)
	case binary.LittleEndian.Uint32(data[len(data)-4:]) != objstore.Checksum(data[:len(data)-4]):
		return head{}, fmt.Errorf("head of a KV snapshot: checksum mismatch: %w", mink.ErrCorrupt)
	}
	r.b = data[len(headMagic)+1 : len(data)-4]
	h := head{
		bucket: mink.BucketRef{Table: mink.TableID(r.uvarint()), Partition: mink.PartitionID(r.uvarint()), Index: int32(r.uvarint())},
		offset: mink.Offset(r.uvarint()), rows: r.varint(),
	}
	seen := map[string]bool{}
	for range r.count() {
		f := tableFile{name: r.name(seen), index: int(min(r.uvarint(), kvplan.FilesMax))}
		if f.index < 1 || f.index >= files {
			r.fail("table file %q is file %d of %d", f.name, f.index, files)
		}
		h.tables = append(h.tables, f)
	}
	for range r.count() {
		h.others = append(h.others, otherFile{name: r.name(seen), data: r.bytes()})
	}
	if len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	if r.err != nil {
		return head{}, fmt.Errorf("head of a KV snapshot: %w: %w", r.err, mink.ErrCorrupt)
	}
	return h, nil
}

// HeadOffset answers what the head of a snapshot says of itself, whole as it must be:
// whose it is and its offset; false when data is no head that this binary can read.
func HeadOffset(data []byte) (mink.BucketRef, mink.Offset, bool) {
	h, err := decodeHead(data, kvplan.FilesMax+1)
	return h.bucket, h.offset, err == nil
}

// HeadPrefix is what a head begins with, and no other file of a snapshot.
const HeadPrefix = headMagic

// reader takes fields off the front; after its first error it answers zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.b = nil
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("it is cut")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("it is cut")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count is how many entries follow; each takes two bytes or more.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)/2) {
		r.fail("%d entries in %d bytes", n, len(r.b))
		return 0
	}
	return int(n)
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail("%d bytes are promised, %d are left", n, len(r.b))
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

// name is a file's name, which must stay within the directory and be new.
func (r *reader) name(seen map[string]bool) string {
	name := string(r.bytes())
	if err := checkName(name); err != nil {
		r.fail("%w", err)
	} else if seen[name] {
		r.fail("file %q twice", name)
	}
	seen[name] = true
	return name
}

func checkName(name string) error {
	if name == "" || len(name) > nameMax || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") {
		return fmt.Errorf("file name %.40q", name)
	}
	return nil
}
