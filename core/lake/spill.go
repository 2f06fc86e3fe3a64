package lake

import (
	"bufio"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/sdk/mink"
)

// runRows bounds the rows of a batch of a scratch file: one batch of each file is
// in memory while they are merged.
const runRows = 1 << 12

// run is folded changes in a scratch file, in the order of the keys, as Arrow IPC:
// the rows' columns, then the key, the first and the last kind of change.
type run struct {
	number int // later ones have later changes
	file   *os.File
	reader *ipc.Reader
	batch  arrow.RecordBatch // current; nil: at the end
	cols   int
	row    int // current
	head   change
}

// spill writes what is in memory to a scratch file.
func (f *fold) spill(ctx context.Context) error {
	if len(f.entries) == 0 {
		return nil
	}
	entries, rows, err := f.sorted()
	if err != nil {
		return err
	}
	defer rows.Release()
	file, err := os.CreateTemp(f.cfg.ScratchDir, "mink-lake-*")
	if err != nil {
		return fmt.Errorf("scratch file for the changes of a round: %w", err)
	}
	r := &run{number: len(f.runs), file: file, cols: f.arrow.NumFields()}
	f.runs = append(f.runs, r)
	_ = os.Remove(file.Name()) // it lives as long as it is open; where it cannot be removed yet, close does
	if err := f.writeRun(ctx, file, entries, rows); err != nil {
		return fmt.Errorf("write scratch file: %w", err)
	}
	return nil
}

func (f *fold) writeRun(ctx context.Context, file *os.File, entries []change, rows arrow.RecordBatch) error {
	fields := append(slices.Clone(f.arrow.Fields()),
		arrow.Field{Name: "key", Type: arrow.BinaryTypes.Binary}, arrow.Field{Name: "first", Type: arrow.PrimitiveTypes.Uint8}, arrow.Field{Name: "last", Type: arrow.PrimitiveTypes.Uint8})
	as := arrow.NewSchema(fields, nil)
	buffered := bufio.NewWriterSize(file, 1<<20)
	w := ipc.NewWriter(buffered, ipc.WithSchema(as), ipc.WithAllocator(f.cfg.Allocator))
	step := max(1, min(runRows, int(int64(len(entries))*(1<<20)/max(1, bytesOf(rows)))))
	for part := range slices.Chunk(entries, step) {
		if err := ctx.Err(); err != nil {
			return err
		}
		batch, err := f.runBatch(ctx, as, part, rows)
		if err != nil {
			return err
		}
		err = w.Write(batch)
		batch.Release()
		if err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), buffered.Flush())
}

func (f *fold) runBatch(ctx context.Context, as *arrow.Schema, entries []change, rows arrow.RecordBatch) (arrow.RecordBatch, error) {
	which := make([]int32, len(entries))
	keys := array.NewBinaryBuilder(f.cfg.Allocator, arrow.BinaryTypes.Binary)
	first, last := array.NewUint8Builder(f.cfg.Allocator), array.NewUint8Builder(f.cfg.Allocator)
	defer keys.Release()
	defer first.Release()
	defer last.Release()
	for i, e := range entries {
		which[i] = e.row
		keys.Append(e.key)
		first.Append(uint8(e.first))
		last.Append(uint8(e.last))
	}
	taken, err := f.take(ctx, f.arrow, rows.Columns(), which)
	if err != nil {
		return nil, err
	}
	defer taken.Release()
	extra := []arrow.Array{keys.NewArray(), first.NewArray(), last.NewArray()}
	defer func() {
		for _, a := range extra {
			a.Release()
		}
	}()
	return array.NewRecordBatch(as, slices.Concat(taken.Columns(), extra), int64(len(entries))), nil
}

// rewind opens a run for reading.
func (r *run) rewind(mem memory.Allocator) error {
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	reader, err := ipc.NewReader(bufio.NewReaderSize(r.file, 1<<18), ipc.WithAllocator(mem))
	if err != nil {
		return err
	}
	r.reader = reader
	return r.advanceBatch()
}

// advanceBatch goes to the next batch, or to the end.
func (r *run) advanceBatch() error {
	if r.batch != nil {
		r.batch.Release()
		r.batch = nil
	}
	if !r.reader.Next() {
		return r.reader.Err()
	}
	r.batch, r.row = r.reader.RecordBatch(), 0
	r.batch.Retain()
	r.look()
	return nil
}

// look reads the current row's change. The key is good until the batch is left.
func (r *run) look() {
	key := r.batch.Column(r.cols).(*array.Binary).Value(r.row)
	r.head = change{key: key, prefix: keyPrefix(key), row: int32(r.row),
		first: mink.Change(r.batch.Column(r.cols + 1).(*array.Uint8).Value(r.row)), last: mink.Change(r.batch.Column(r.cols + 2).(*array.Uint8).Value(r.row))}
}

func (r *run) close() {
	if r.batch != nil {
		r.batch.Release()
	}
	if r.reader != nil {
		r.reader.Release()
	}
	_ = r.file.Close()
	_ = os.Remove(r.file.Name())
	r.batch, r.reader = nil, nil
}

// runHeap has the run with the smallest key first, of equal ones the oldest.
type runHeap []*run

func (h runHeap) Len() int { return len(h) }
func (h runHeap) Less(i, j int) bool {
	if c := compareKeys(&h[i].head, &h[j].head); c != 0 {
		return c < 0
	}
	return h[i].number < h[j].number
}
func (h runHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)   { *h = append(*h, x.(*run)) }
func (h *runHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	*h = (*h)[:last]
	return r
}

// merger gathers changes whose rows are in the runs' current batches.
type merger struct {
	f       *fold
	out     output
	pending []change // batch is the number of the run, row the row in its batch
}

// merge gives the runs' changes to out.
func (f *fold) merge(ctx context.Context, out output) error {
	var h runHeap
	for _, r := range f.runs {
		if err := r.rewind(f.cfg.Allocator); err != nil {
			return fmt.Errorf("read scratch file: %w", err)
		}
		if r.batch != nil {
			h = append(h, r)
		}
	}
	heap.Init(&h)
	m := &merger{f: f, out: out}
	for len(h) > 0 {
		r := h[0]
		m.take(r)
		if r.row++; r.row < int(r.batch.NumRows()) {
			r.look()
			heap.Fix(&h, 0)
			continue
		}
		if err := m.flush(ctx, h[1:]); err != nil {
			return err
		}
		if err := r.advanceBatch(); err != nil {
			return fmt.Errorf("read scratch file: %w", err)
		}
		if r.batch == nil {
			heap.Pop(&h)
		} else {
			heap.Fix(&h, 0)
		}
	}
	return m.flush(ctx, nil)
}

// take adds the head of a run. A key's changes come one after the other, oldest
// first.
func (m *merger) take(r *run) {
	e := r.head
	e.batch = int32(r.number)
	if n := len(m.pending); n > 0 && compareKeys(&m.pending[n-1], &e) == 0 {
		e.first = m.pending[n-1].first
		m.pending[n-1] = e
		return
	}
	m.pending = append(m.pending, e)
}

// flush gives what is pending to out, before a run leaves its batch. A change that
// one of the others goes on with stays, without its row: theirs is newer.
func (m *merger) flush(ctx context.Context, others []*run) error {
	var goesOn []change
	if n := len(m.pending); n > 0 {
		last := m.pending[n-1]
		if slices.ContainsFunc(others, func(r *run) bool { return compareKeys(&r.head, &last) == 0 }) {
			last.key = slices.Clone(last.key)
			goesOn, m.pending = []change{last}, m.pending[:n-1]
		}
	}
	if len(m.pending) > 0 {
		if err := m.put(ctx); err != nil {
			return err
		}
	}
	m.pending = append(m.pending[:0], goesOn...)
	return nil
}

// put makes one batch of the rows that are pending: of each run a slice, since its
// rows are in order.
func (m *merger) put(ctx context.Context) error {
	low, high := map[int32]int32{}, map[int32]int32{}
	for _, e := range m.pending {
		if _, ok := low[e.batch]; !ok {
			low[e.batch] = e.row
		}
		high[e.batch] = e.row + 1
	}
	var parts []arrow.RecordBatch
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	starts, rows := map[int32]int32{}, int32(0)
	for number, r := range m.f.runs {
		n := int32(number)
		if high[n] == 0 {
			continue
		}
		slice := r.batch.NewSlice(int64(low[n]), int64(high[n]))
		parts = append(parts, array.NewRecordBatch(m.f.arrow, slice.Columns()[:r.cols], slice.NumRows()))
		slice.Release()
		starts[n] = rows - low[n]
		rows += high[n] - low[n]
	}
	all, err := concatenate(m.f.cfg, m.f.arrow, parts)
	if err != nil {
		return err
	}
	defer all.Release()
	for i, e := range m.pending {
		m.pending[i].row = e.row + starts[e.batch]
	}
	return m.f.put(ctx, m.pending, all, m.out)
}
