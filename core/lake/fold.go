package lake

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// fold makes one change of each key out of a bucket's changes in a round, in the
// order of the keys: what the key was first met with says whether rows of it may
// be in the lake, what it was last met with is what remains.
//
//	first            last           the round writes
//	+I               +I, +U         the row
//	+I               -D             nothing
//	+U, -D           +I, +U         a delete of the key, the row
//	+U, -D           -D             a delete of the key
//
// Changes beyond SinkConfig.SortBytes go to scratch files, folded and sorted, and
// are merged at the end. Not safe for concurrent use.
type fold struct {
	cfg     SinkConfig
	enc     *keyenc.Encoder
	arrow   *arrow.Schema // of the rows
	key     *arrow.Schema // of the key columns in them
	keys    []int         // where those are
	batches []arrow.RecordBatch
	entries []change
	arena   []byte // of keys; full ones are kept alive by their keys
	bytes   int64
	runs    []*run
}

// change is one change, or what remains of several.
type change struct {
	key         []byte
	prefix      uint64 // of the key, big endian: decides most comparisons
	batch, row  int32  // its row
	first, last mink.Change
}

// entryBytes is about what a change takes besides its row and key.
const entryBytes = 56

// emitRows is how many rows are put together at once.
const emitRows = 1 << 15

func newFold(cfg SinkConfig, s *schema.Schema, primaryKey []string, as *arrow.Schema) (*fold, error) {
	enc, err := keyenc.New(s, primaryKey)
	if err != nil {
		return nil, err
	}
	f := &fold{cfg: cfg, enc: enc, arrow: as}
	fields := make([]arrow.Field, 0, len(primaryKey))
	for _, name := range primaryKey {
		i := s.Index(name)
		f.keys, fields = append(f.keys, i), append(fields, as.Field(i))
	}
	f.key = arrow.NewSchema(fields, nil)
	return f, nil
}

// add takes changes: from has the keys, rows the same rows as they are written.
func (f *fold) add(ctx context.Context, from, rows arrow.RecordBatch, changes []mink.Change) error {
	if err := f.enc.Bind(from); err != nil {
		return err
	}
	rows.Retain()
	at := int32(len(f.batches))
	f.batches = append(f.batches, rows)
	f.bytes += bytesOf(rows)
	for i, c := range changes {
		if c == mink.ChangeUpdateBefore {
			continue // says nothing that the other half does not, and the round may end between them
		}
		if cap(f.arena)-len(f.arena) < 64 {
			f.arena = make([]byte, 0, 1<<16)
		}
		start := len(f.arena)
		f.arena = f.enc.Append(f.arena, i) // may move to a larger one
		key := f.arena[start:len(f.arena):len(f.arena)]
		f.entries = append(f.entries, change{key: key, prefix: keyPrefix(key), batch: at, row: int32(i), first: c, last: c})
		f.bytes += int64(len(key)) + entryBytes
	}
	if f.bytes >= f.cfg.SortBytes {
		return f.spill(ctx)
	}
	return nil
}

func keyPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

func compareKeys(a, b *change) int {
	if a.prefix != b.prefix {
		return cmp.Compare(a.prefix, b.prefix)
	}
	return bytes.Compare(a.key, b.key)
}

// sorted folds what is in memory and answers it with all its rows as one batch,
// which the caller releases. The entries' rows are of that batch.
func (f *fold) sorted() ([]change, arrow.RecordBatch, error) {
	slices.SortFunc(f.entries, func(a, b change) int {
		return cmp.Or(compareKeys(&a, &b), cmp.Compare(a.batch, b.batch), cmp.Compare(a.row, b.row))
	})
	starts := make([]int32, len(f.batches))
	for i := 1; i < len(f.batches); i++ {
		starts[i] = starts[i-1] + int32(f.batches[i-1].NumRows())
	}
	out := f.entries[:0]
	for _, e := range f.entries {
		e.row += starts[e.batch]
		if n := len(out); n > 0 && compareKeys(&out[n-1], &e) == 0 {
			e.first = out[n-1].first
			out[n-1] = e
			continue
		}
		out = append(out, e)
	}
	rows, err := concatenate(f.cfg, f.arrow, f.batches)
	for _, b := range f.batches {
		b.Release()
	}
	f.batches, f.entries, f.arena, f.bytes = nil, nil, nil, 0
	return out, rows, err
}

func concatenate(cfg SinkConfig, as *arrow.Schema, batches []arrow.RecordBatch) (arrow.RecordBatch, error) {
	if len(batches) == 1 {
		batches[0].Retain()
		return batches[0], nil
	}
	columns := make([]arrow.Array, 0, as.NumFields())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	var rows int64
	for _, b := range batches {
		rows += b.NumRows()
	}
	parts := make([]arrow.Array, len(batches))
	for i := range as.NumFields() {
		for j, b := range batches {
			parts[j] = b.Column(i)
		}
		c, err := array.Concatenate(parts, cfg.Allocator)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", as.Field(i).Name, err)
		}
		columns = append(columns, c)
	}
	return array.NewRecordBatch(as, columns, rows), nil
}

// output takes what the fold makes, in the order of the keys.
type output interface {
	// row gets rows that the round writes.
	row(rows arrow.RecordBatch) error
	// delete gets the key columns of rows whose keys are to be deleted.
	delete(keys arrow.RecordBatch) error
}

// emit gives everything to out; afterwards the fold is empty.
func (f *fold) emit(ctx context.Context, out output) error {
	defer f.close()
	if len(f.runs) > 0 {
		if err := f.spill(ctx); err != nil {
			return err
		}
		return f.merge(ctx, out)
	}
	if len(f.batches) == 0 {
		return nil
	}
	entries, rows, err := f.sorted()
	if err != nil {
		return err
	}
	defer rows.Release()
	for part := range slices.Chunk(entries, emitRows) {
		if err := f.put(ctx, part, rows, out); err != nil {
			return err
		}
	}
	return nil
}

// put gives folded changes to out, whose rows are in one batch.
func (f *fold) put(ctx context.Context, entries []change, rows arrow.RecordBatch, out output) error {
	sink.Progress(ctx)
	var live, dead []int32
	for _, e := range entries {
		if e.first != mink.ChangeInsert {
			dead = append(dead, e.row)
		}
		if e.last == mink.ChangeInsert || e.last == mink.ChangeUpdateAfter {
			live = append(live, e.row)
		}
	}
	if len(dead) > 0 {
		columns := make([]arrow.Array, 0, len(f.keys))
		for _, i := range f.keys {
			columns = append(columns, rows.Column(i))
		}
		batch, err := f.take(ctx, f.key, columns, dead)
		if err != nil {
			return err
		}
		err = out.delete(batch)
		batch.Release()
		if err != nil {
			return err
		}
	}
	if len(live) == 0 {
		return nil
	}
	batch, err := f.take(ctx, f.arrow, rows.Columns(), live)
	if err != nil {
		return err
	}
	defer batch.Release()
	return out.row(batch)
}

// take answers some rows of columns, which the caller releases.
func (f *fold) take(ctx context.Context, as *arrow.Schema, from []arrow.Array, which []int32) (arrow.RecordBatch, error) {
	b := array.NewInt32Builder(f.cfg.Allocator)
	defer b.Release()
	b.AppendValues(which, nil)
	indices := b.NewInt32Array()
	defer indices.Release()
	ctx = compute.WithAllocator(ctx, f.cfg.Allocator)
	columns := make([]arrow.Array, 0, len(from))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, c := range from {
		taken, err := compute.TakeArrayOpts(ctx, c, indices, compute.TakeOptions{BoundsCheck: false})
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", as.Field(i).Name, err)
		}
		columns = append(columns, taken)
	}
	return array.NewRecordBatch(as, columns, int64(len(which))), nil
}

// close frees memory and scratch files.
func (f *fold) close() {
	for _, b := range f.batches {
		b.Release()
	}
	for _, r := range f.runs {
		r.close()
	}
	f.batches, f.entries, f.runs, f.arena, f.bytes = nil, nil, nil, nil, 0
}
