package flight_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/evolve"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// fakeKV is a store in memory that merges as the last write does. Its offsets count
// rows: it has no log.
type fakeKV struct {
	table func() *cluster.Table

	mu      sync.Mutex
	rows    map[string]fakeRow
	next    mink.Offset
	writers map[mink.WriterID]map[int32]tablet.AppendResult
	bytes   int // largest batch; 0: any
}

// fakeRow is one row under a schema version, all columns.
type fakeRow struct {
	version mink.SchemaID
	rec     arrow.RecordBatch
}

func newFakeKV(table func() *cluster.Table) *fakeKV {
	return &fakeKV{table: table, rows: map[string]fakeRow{}, writers: map[mink.WriterID]map[int32]tablet.AppendResult{}}
}

type fakePending struct{ res tablet.AppendResult }

func (fakePending) Done() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
func (p fakePending) Result() (tablet.AppendResult, error) { return p.res, nil }

func (f *fakeKV) storeKey(t *cluster.Table, rec arrow.RecordBatch) (*keyenc.Encoder, error) {
	names := slices.DeleteFunc(slices.Clone(t.Descriptor.PrimaryKey), func(n string) bool { return slices.Contains(t.Descriptor.PartitionKeys, n) })
	e, err := keyenc.New(t.Schemas[len(t.Schemas)-1], names)
	if err == nil {
		err = e.Bind(rec)
	}
	return e, err
}

// Put implements flight.KV.
func (f *fakeKV) Put(_ context.Context, p flight.KVPut) (flight.Pending, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seen, ok := f.writers[p.WriterID][p.Sequence]; ok && p.WriterID >= 0 {
		seen.Duplicate = true
		return fakePending{seen}, nil
	}
	if f.bytes > 0 && len(p.Metadata)+len(p.Body) > f.bytes {
		return nil, fmt.Errorf("put of %d bytes: %w", len(p.Metadata)+len(p.Body), mink.ErrTooLarge)
	}
	changed, err := f.merge(&p)
	if err != nil {
		return nil, err
	}
	res := tablet.AppendResult{First: -1, Last: -1}
	if changed > 0 {
		res = tablet.AppendResult{First: f.next, Last: f.next + mink.Offset(changed) - 1, CommitTimestamp: 1}
		f.next += mink.Offset(changed)
	}
	if p.WriterID >= 0 {
		if f.writers[p.WriterID] == nil {
			f.writers[p.WriterID] = map[int32]tablet.AppendResult{}
		}
		f.writers[p.WriterID][p.Sequence] = res
	}
	return fakePending{res}, nil
}

func (f *fakeKV) merge(p *flight.KVPut) (changed int, err error) {
	if p.Count == 0 {
		return 0, nil
	}
	t := f.table()
	version, now := t.Schemas[p.SchemaID-1], t.Schemas[len(t.Schemas)-1]
	sent := &schema.Schema{ID: version.ID}
	for _, c := range version.Columns {
		if p.Columns == nil {
			sent.Columns = append(sent.Columns, c)
		}
	}
	for _, id := range p.Columns {
		sent.Columns = append(sent.Columns, version.Columns[version.IndexByID(id)])
	}
	for i := range sent.Columns {
		c := &sent.Columns[i]
		c.Type.NotNull = slices.Contains(t.Descriptor.PrimaryKey, c.Name)
	}
	layout, err := arrowipc.NewLayout(sent.Arrow())
	if err != nil {
		return 0, err
	}
	if _, err := arrowipc.NewChecker(arrowipc.DefaultMaxBytes).Check(layout, p.Metadata, p.Body); err != nil {
		return 0, err
	}
	rec, err := arrowipc.NewDecoder(arrowipc.DefaultMaxBytes).Decode(layout, slices.Clone(p.Metadata), slices.Clone(p.Body), nil)
	if err != nil {
		return 0, err
	}
	defer rec.Release()
	enc, err := f.storeKey(t, rec)
	if err != nil {
		return 0, err
	}
	partial := len(sent.Columns) > len(t.Descriptor.PrimaryKey) && len(sent.Columns) < len(version.Columns)
	for i := range int(rec.NumRows()) {
		key := string(enc.Append(nil, i))
		old, exists := f.rows[key]
		if p.Changes != nil && mink.Change(p.Changes[i]) == mink.ChangeDelete && !partial {
			if exists {
				old.rec.Release()
				delete(f.rows, key)
				changed++
			}
			continue
		}
		row, err := f.row(t, now, sent, rec, i, old, exists)
		if err != nil {
			return 0, err
		}
		if exists {
			old.rec.Release()
			changed++
		}
		changed++
		f.rows[key] = fakeRow{now.ID, row}
	}
	return changed, nil
}

// row merges a row into the old one.
func (f *fakeKV) row(t *cluster.Table, version, sent *schema.Schema, rec arrow.RecordBatch, i int, old fakeRow, exists bool) (arrow.RecordBatch, error) {
	was := old.rec
	if exists {
		var err error
		if was, err = evolve.Remap(memory.DefaultAllocator, old.rec, t.Schemas[old.version-1], version); err != nil {
			return nil, err
		}
		defer was.Release()
	}
	as := version.Arrow()
	columns := make([]arrow.Array, len(version.Columns))
	for k, c := range version.Columns {
		switch at := sent.IndexByID(c.ID); {
		case at >= 0:
			columns[k] = array.NewSlice(rec.Column(at), int64(i), int64(i)+1)
		case exists:
			columns[k] = was.Column(k)
			columns[k].Retain()
		default:
			columns[k] = array.MakeArrayOfNull(memory.DefaultAllocator, as.Field(k).Type, 1)
		}
	}
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	return array.NewRecordBatch(as, columns, 1), nil
}

// gather puts rows together under the newest schema version.
func (f *fakeKV) gather(rows []fakeRow, columns []mink.FieldID) (arrow.RecordBatch, error) {
	t := f.table()
	now := t.Schemas[len(t.Schemas)-1]
	target := &schema.Schema{ID: now.ID}
	for _, id := range columns {
		at := now.IndexByID(id)
		if at < 0 {
			return nil, fmt.Errorf("column %d is gone: %w", id, mink.ErrUnavailable)
		}
		target.Columns = append(target.Columns, now.Columns[at])
	}
	as := target.Arrow()
	if len(rows) == 0 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, as)
		defer b.Release()
		return b.NewRecordBatch(), nil
	}
	chunks := make([][]arrow.Array, len(target.Columns))
	var remapped []arrow.RecordBatch
	defer func() {
		for _, r := range remapped {
			r.Release()
		}
	}()
	for _, r := range rows {
		rec, err := evolve.Remap(memory.DefaultAllocator, r.rec, t.Schemas[r.version-1], target)
		if err != nil {
			return nil, err
		}
		remapped = append(remapped, rec)
		for i := range chunks {
			chunks[i] = append(chunks[i], rec.Column(i))
		}
	}
	out := make([]arrow.Array, len(chunks))
	for i := range chunks {
		var err error
		if out[i], err = array.Concatenate(chunks[i], memory.DefaultAllocator); err != nil {
			return nil, err
		}
		defer out[i].Release()
	}
	return array.NewRecordBatch(as, out, int64(len(rows))), nil
}

// Lookup implements flight.KV.
func (f *fakeKV) Lookup(_ context.Context, keys [][]byte, columns []mink.FieldID) (arrow.RecordBatch, []bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := make([]bool, len(keys))
	var rows []fakeRow
	for i, k := range keys {
		r, ok := f.rows[string(k)]
		if found[i] = ok; ok {
			rows = append(rows, r)
		}
	}
	rec, err := f.gather(rows, columns)
	return rec, found, err
}

// Count implements flight.KV.
func (f *fakeKV) Count(context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.rows)), nil
}

// View implements flight.KV.
func (f *fakeKV) View() (flight.KVView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := &fakeView{of: f, rows: maps.Clone(f.rows), at: f.next}
	for _, r := range v.rows {
		r.rec.Retain()
	}
	return v, nil
}

type fakeView struct {
	of   *fakeKV
	rows map[string]fakeRow
	at   mink.Offset
}

func (v *fakeView) Offset() mink.Offset { return v.at }

func (v *fakeView) Scan(_ context.Context, lo, hi []byte, columns []mink.FieldID, rowsMax, _ int) iter.Seq2[arrow.RecordBatch, error] {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(v.rows)), func(k string) bool {
		return k < string(lo) || hi != nil && k >= string(hi)
	})
	return func(yield func(arrow.RecordBatch, error) bool) {
		for chunk := range slices.Chunk(keys, rowsMax) {
			var rows []fakeRow
			for _, k := range chunk {
				rows = append(rows, v.rows[k])
			}
			rec, err := v.of.gather(rows, columns)
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

func (v *fakeView) Close() {
	for _, r := range v.rows {
		r.rec.Release()
	}
	v.rows = nil
}
