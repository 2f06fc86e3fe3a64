package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/sink"
)

// schemaBytesMax bounds a schema as Arrow IPC, and what a batch's has on top of
// its rows: 4096 columns with their metadata.
const schemaBytesMax = 4 << 20

func encodeSchema(s *arrow.Schema) ([]byte, error) {
	var b bytes.Buffer
	err := ipc.NewWriter(&b, ipc.WithSchema(s)).Close()
	if err == nil && b.Len() > schemaBytesMax {
		err = fmt.Errorf("%w: a schema of %d bytes as Arrow IPC, at most %d", sink.ErrInvalid, b.Len(), schemaBytesMax)
	}
	return b.Bytes(), err
}

func encodeBatch(rec arrow.RecordBatch) ([]byte, error) {
	var b bytes.Buffer
	w := ipc.NewWriter(&b, ipc.WithSchema(rec.Schema()))
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		return nil, fmt.Errorf("%w: a batch that cannot be written as Arrow IPC: %w", sink.ErrInvalid, err)
	}
	if b.Len() > sink.BatchBytesMax+schemaBytesMax {
		return nil, fmt.Errorf("%w: a batch of %d bytes as Arrow IPC, at most %d: write fewer rows at once", sink.ErrInvalid, b.Len(), sink.BatchBytesMax)
	}
	return b.Bytes(), nil
}

// budget is an allocator that refuses more than it has: what a few bytes of IPC
// claim to hold is not believed. It panics with errBudget, as allocators do.
type budget struct {
	memory.Allocator
	left int
}

var errBudget = errors.New("it claims more memory than a batch may take")

func (b *budget) Allocate(size int) []byte {
	if size < 0 || size > b.left {
		panic(errBudget)
	}
	b.left -= size
	return b.Allocator.Allocate(size)
}

func (b *budget) Reallocate(size int, old []byte) []byte {
	if grow := size - len(old); grow > b.left || size < 0 {
		panic(errBudget)
	} else {
		b.left -= max(0, grow)
	}
	return b.Allocator.Reallocate(size, old)
}

// decodeIPC reads a schema and at most one batch; the batch is the caller's, nil
// when there is none. The chunks are used up. What is checked: that messages are as
// long as they say, that buffers fit the budget, and that offsets lie within the
// data. Metadata whose own vectors lie about their lengths can still cost memory:
// Arrow's reader has no verifier. Hosts are trusted by their plugins, and only
// tests read batches of plugins.
func decodeIPC(chunks [][]byte) (schema *arrow.Schema, rec arrow.RecordBatch, err error) {
	if err := checkFraming(chunks); err != nil {
		return nil, nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			schema, rec, err = nil, nil, fmt.Errorf("%w: Arrow IPC: %v", sink.ErrInvalid, p)
		}
	}()
	alloc := &budget{Allocator: memory.DefaultAllocator, left: 2 * (sink.BatchBytesMax + schemaBytesMax)}
	reader, err := ipc.NewReader(&chunkReader{chunks: chunks}, ipc.WithAllocator(alloc))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: Arrow IPC: %w", sink.ErrInvalid, err)
	}
	defer reader.Release()
	schema = reader.Schema()
	if reader.Next() {
		rec = reader.RecordBatch()
		rec.Retain()
		if reader.Next() {
			err = errors.New("more than one batch")
		}
	}
	if err = errors.Join(err, reader.Err()); err == nil && rec != nil {
		err = checkArrays(rec)
	}
	if err != nil {
		if rec != nil {
			rec.Release()
		}
		return nil, nil, fmt.Errorf("%w: Arrow IPC: %w", sink.ErrInvalid, err)
	}
	return schema, rec, nil
}

// checkFraming looks at the lengths before the first two messages, the schema and
// the batch, which the reader allocates before it reads. The batch's body is all
// that follows.
func checkFraming(chunks [][]byte) error {
	r := &chunkReader{chunks: slices.Clone(chunks)}
	left := 0
	for _, c := range chunks {
		left += len(c)
	}
	for range 2 {
		var prefix [8]byte
		if n, err := io.ReadFull(r, prefix[:]); n == 0 {
			return nil
		} else if err != nil {
			return fmt.Errorf("%w: Arrow IPC: a message without a length", sink.ErrInvalid)
		}
		left -= len(prefix)
		marker, size := binary.LittleEndian.Uint32(prefix[:]), int64(binary.LittleEndian.Uint32(prefix[4:]))
		if marker != math.MaxUint32 || size > int64(left) || size > schemaBytesMax {
			return fmt.Errorf("%w: Arrow IPC: a message of %d bytes where %d are left", sink.ErrInvalid, size, left)
		}
		if _, err := io.CopyN(io.Discard, r, size); err != nil {
			return fmt.Errorf("%w: Arrow IPC: %w", sink.ErrInvalid, err)
		}
		left -= int(size)
	}
	return nil
}

// checkArrays looks at what the IPC reader does not: offsets within the data.
func checkArrays(rec arrow.RecordBatch) error {
	for i, c := range rec.Columns() {
		if err := checkArray(c); err != nil {
			return fmt.Errorf("column %q: %w", rec.ColumnName(i), err)
		}
	}
	return nil
}

func checkArray(a arrow.Array) error {
	if v, ok := a.(interface{ ValidateFull() error }); ok {
		if err := v.ValidateFull(); err != nil {
			return err
		}
	}
	switch a := a.(type) {
	case *array.Struct:
		for i := range a.NumField() {
			if err := checkArray(a.Field(i)); err != nil {
				return err
			}
		}
	case array.ListLike: // maps as well
		return checkArray(a.ListValues())
	}
	return nil
}

func decodeSchema(data []byte) (*arrow.Schema, error) {
	if len(data) > schemaBytesMax {
		return nil, fmt.Errorf("%w: a schema of %d bytes as Arrow IPC, at most %d", sink.ErrInvalid, len(data), schemaBytesMax)
	}
	schema, rec, err := decodeIPC([][]byte{data})
	if rec != nil {
		rec.Release()
		return nil, fmt.Errorf("%w: Arrow IPC: a batch where a schema is wanted", sink.ErrInvalid)
	}
	return schema, err
}

// chunkReader reads chunks as one text.
type chunkReader struct{ chunks [][]byte }

func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.chunks) > 0 && len(c.chunks[0]) == 0 {
		c.chunks = c.chunks[1:]
	}
	if len(c.chunks) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.chunks[0])
	c.chunks[0] = c.chunks[0][n:]
	return n, nil
}
