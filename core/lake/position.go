package lake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/parquet"
	parquetfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/keyenc"
	"github.com/mink-project/mink/sdk/sink"
)

// wantBytes bounds the keys that are looked for at once: each look reads the key
// columns of the bucket's files.
const wantBytes = 32 << 20

// positionDeletes names rows by file and position, which it finds by reading the
// key columns of the files that may have the keys, newest first: the newest row of
// a key is the only one that is not deleted yet.
type positionDeletes struct {
	r         *round
	ctx       context.Context
	b         *bucketRound
	w         *parquetWriter
	enc       *keyenc.Encoder
	key       *arrow.Schema // of the key columns, in Iceberg's Arrow types
	ids       []int         // their field ids
	want      map[string]struct{}
	low, high string // of the keys that are wanted, which come in order
	bytes     int
	found     map[string][]int64 // by location
	every     bool               // all rows of a key, not the newest one alone
	buf       []byte
}

func (r *round) newPositionDeletes(ctx context.Context) (*positionDeletes, error) {
	if r.rows.version > 2 {
		return nil, fmt.Errorf("%w: the Iceberg table has format version %d, which has no position delete files; set lake_deletes = equality", sink.ErrUnimplemented, r.rows.version)
	}
	p := &positionDeletes{r: r, ctx: ctx, b: r.bucket, want: map[string]struct{}{}, found: map[string][]int64{}}
	var key schema.Schema
	var fields []arrow.Field
	for _, name := range r.t.spec.PrimaryKey {
		i := r.t.cols.mink.Index(name)
		c := r.t.cols.mink.Columns[i]
		c.Type = asIceberg(c.Type)
		key.Columns = append(key.Columns, c)
		p.ids = append(p.ids, int(c.ID))
		fields = append(fields, arrow.Field{Name: name, Type: r.rows.arrow.Field(i).Type})
	}
	p.key = arrow.NewSchema(fields, nil)
	enc, err := keyenc.New(&key, r.t.spec.PrimaryKey)
	if err != nil {
		return nil, err
	}
	p.enc = enc
	kind, err := newFileKind(iceberg.EntryContentPosDeletes, iceberg.PositionalDeleteSchema)
	if err != nil {
		return nil, err
	}
	kind.spec, kind.version = r.rows.spec, r.rows.version
	p.w = r.newFiles(ctx, kind, deletesSuffix)
	return p, nil
}

// asIceberg is the type of Mink's with the Arrow type that values have in the lake.
func asIceberg(t schema.Type) schema.Type {
	switch t.Kind {
	case schema.TinyInt, schema.SmallInt:
		t.Kind = schema.Int
	case schema.Time, schema.Timestamp, schema.TimestampLTZ:
		t.Precision = max(t.Precision, schema.LakeTimeDigits)
	}
	return t
}

func (p *positionDeletes) delete(keys arrow.RecordBatch) error {
	batch := array.NewRecordBatch(p.key, keys.Columns(), keys.NumRows())
	defer batch.Release()
	if err := p.enc.Bind(batch); err != nil {
		return err
	}
	p.r.pinned = true
	for i := range int(batch.NumRows()) {
		p.buf = p.enc.Append(p.buf[:0], i)
		if len(p.want) == 0 {
			p.low = string(p.buf)
		}
		p.high = string(p.buf)
		p.want[p.high] = struct{}{}
		p.bytes += len(p.buf) + entryBytes
	}
	if p.bytes >= wantBytes {
		return p.look()
	}
	return nil
}

// look finds the keys that are wanted.
func (p *positionDeletes) look() error {
	files, err := p.r.bucketFiles(p.ctx, p.b)
	if err != nil {
		return err
	}
	for _, f := range files {
		if len(p.want) == 0 {
			break
		}
		if err := p.scan(f); err != nil {
			return fmt.Errorf("find keys in %s: %w", f.location, err)
		}
	}
	p.want, p.bytes = map[string]struct{}{}, 0
	return nil
}

func (p *positionDeletes) scan(f lakeFile) error {
	var hits []string
	err := p.readKeys(f.location, func(meta *metadata.RowGroupMetaData, _ int64, first int) bool { return p.mayHave(meta, first) }, func(at int64, rows int) {
		for i := range rows {
			p.buf = p.enc.Append(p.buf[:0], i)
			if _, ok := p.want[string(p.buf)]; ok {
				p.found[f.location] = append(p.found[f.location], at+int64(i))
				hits = append(hits, string(p.buf))
			}
		}
	})
	for _, k := range hits {
		if !p.every {
			delete(p.want, k)
		}
	}
	return err
}

// readKeys binds the encoder to the keys of the row groups that take says, and calls visit
// with the position of the first of them and their number. take gets the position of a
// group's first row and the place of the key's first column.
func (p *positionDeletes) readKeys(location string, take func(meta *metadata.RowGroupMetaData, at int64, first int) bool, visit func(at int64, rows int)) (err error) {
	fs, err := p.r.tbl.FS(p.ctx)
	if err != nil {
		return err
	}
	in, err := fs.Open(location)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, in.Close()) }()
	pf, err := parquetfile.NewParquetReader(in, parquetfile.WithReadProps(parquet.NewReaderProperties(p.r.t.sink.cfg.Allocator)))
	if err != nil {
		return err
	}
	places := make([]int, len(p.ids))
	for i, id := range p.ids {
		if places[i] = slices.IndexFunc(leafIDs(pf), func(got int32) bool { return got == int32(id) }); places[i] < 0 {
			return fmt.Errorf("%w: the file has no column with field id %d", sink.ErrCorrupt, id)
		}
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: emitRows}, p.r.t.sink.cfg.Allocator)
	if err != nil {
		return err
	}
	sorted := slices.Sorted(slices.Values(places))
	order := make([]int, len(places)) // of the key's columns in the records
	for i, at := range places {
		order[i] = slices.Index(sorted, at)
	}
	for group, at := 0, int64(0); group < pf.NumRowGroups(); group++ {
		meta := pf.MetaData().RowGroup(group)
		if take(meta, at, places[0]) {
			records, err := fr.GetRecordReader(p.ctx, sorted, []int{group})
			if err != nil {
				return err
			}
			err = p.bindEach(at, records, order, visit)
			records.Release()
			if err != nil {
				return err
			}
		}
		at += meta.NumRows()
	}
	return nil
}

// mayHave compares the bounds of the key's first column in a row group with those
// of the keys that are wanted: files are sorted by key.
func (p *positionDeletes) mayHave(meta *metadata.RowGroupMetaData, column int) bool {
	chunk, err := meta.ColumnChunk(column)
	if err != nil {
		return true
	}
	stats, err := chunk.Statistics()
	if err != nil || stats == nil || !stats.HasMinMax() {
		return true
	}
	if b, ok := stats.(*metadata.ByteArrayStatistics); ok && len(b.Max()) == 0 {
		return true // left out for its length; only the other end is there
	}
	t := p.enc.Types()[0]
	low, okLow := boundKey(t, stats, false)
	high, okHigh := boundKey(t, stats, true)
	if !okLow || !okHigh {
		return true
	}
	end := keyenc.PrefixEnd(high) // keys may go on with other columns
	return string(low) <= p.high && (end == nil || string(end) > p.low)
}

// boundKey is the encoded key of a bound of the types that are often first in a
// key; of others nothing is known.
func boundKey(t schema.Type, stats metadata.TypedStatistics, upper bool) ([]byte, bool) {
	pick := func(low, high any) any {
		if upper {
			return high
		}
		return low
	}
	var v any
	switch s := stats.(type) {
	case *metadata.Int32Statistics:
		if v = pick(s.Min(), s.Max()); t.Kind == schema.Date {
			v = arrow.Date32(v.(int32))
		}
	case *metadata.Int64Statistics:
		if v = pick(s.Min(), s.Max()); t.Kind == schema.Timestamp || t.Kind == schema.TimestampLTZ {
			v = arrow.Timestamp(v.(int64))
		}
	case *metadata.ByteArrayStatistics:
		b := []byte(pick(s.Min(), s.Max()).(parquet.ByteArray))
		if v = b; t.Kind == schema.String || t.Kind == schema.Char {
			v = string(b)
		}
	}
	switch t.Kind {
	case schema.Int, schema.BigInt, schema.Date, schema.Timestamp, schema.TimestampLTZ, schema.String, schema.Char, schema.Bytes:
		key, err := keyenc.AppendValue(nil, t, v)
		return key, err == nil
	}
	return nil, false
}

func leafIDs(pf *parquetfile.Reader) []int32 {
	ids := make([]int32, pf.MetaData().Schema.NumColumns())
	for i := range ids {
		ids[i] = pf.MetaData().Schema.Column(i).SchemaNode().FieldID()
	}
	return ids
}

// bindEach looks at rows whose first has a position.
func (p *positionDeletes) bindEach(at int64, records pqarrow.RecordReader, order []int, visit func(at int64, rows int)) error {
	for records.Next() {
		rec := records.RecordBatch()
		batch, err := p.keyBatch(rec, order)
		if err != nil {
			return err
		}
		if err = p.enc.Bind(batch); err == nil {
			visit(at, int(batch.NumRows()))
		}
		batch.Release()
		if err != nil {
			return err
		}
		at += rec.NumRows()
		sink.Progress(p.ctx)
	}
	return records.Err()
}

// keyBatch has the key's columns under their present names and in Iceberg's types.
func (p *positionDeletes) keyBatch(rec arrow.RecordBatch, order []int) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, 0, len(order))
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, at := range order {
		c, want := rec.Column(at), p.key.Field(i).Type
		if arrow.TypeEqual(c.DataType(), want) {
			c.Retain()
		} else { // other writers have types of their own, such as large strings
			cast, err := compute.CastArray(compute.WithAllocator(p.ctx, p.r.t.sink.cfg.Allocator), c, compute.SafeCastOptions(want))
			if err != nil {
				return nil, fmt.Errorf("column %q: %w", p.key.Field(i).Name, err)
			}
			c = cast
		}
		columns = append(columns, c)
	}
	return array.NewRecordBatch(p.key, columns, rec.NumRows()), nil
}

// finish writes one file, ordered by location and position, as the format wants it.
func (p *positionDeletes) finish() ([]iceberg.DataFile, error) {
	if len(p.want) > 0 {
		if err := p.look(); err != nil {
			return nil, err
		}
	}
	locations := slices.Sorted(maps.Keys(p.found))
	if len(locations) == 1 {
		p.w.reference = &locations[0]
	}
	for _, location := range locations {
		positions := p.found[location]
		slices.Sort(positions)
		for part := range slices.Chunk(positions, emitRows) {
			if err := p.write(location, part); err != nil {
				return nil, err
			}
		}
	}
	err := p.w.finish()
	return p.w.done, err
}

func (p *positionDeletes) write(location string, positions []int64) error {
	paths, places := array.NewStringBuilder(p.w.mem), array.NewInt64Builder(p.w.mem)
	defer paths.Release()
	defer places.Release()
	for range positions {
		paths.Append(location)
	}
	places.AppendValues(positions, nil)
	columns := []arrow.Array{paths.NewArray(), places.NewArray()}
	batch := array.NewRecordBatch(p.w.arrow, columns, int64(len(positions)))
	defer batch.Release()
	for _, c := range columns {
		c.Release()
	}
	return p.w.Write(batch)
}

func (p *positionDeletes) abort() { p.w.abort() }

// lakeFile is a data file of the snapshot that a round is planned on.
type lakeFile struct {
	location  string
	sequence  int64
	spec      int32
	partition string // partitionText
}

// bucketFiles are the data files that may have rows of a bucket, newest first.
func (r *round) bucketFiles(ctx context.Context, b *bucketRound) ([]lakeFile, error) {
	if err := r.listFiles(ctx); err != nil {
		return nil, err
	}
	var files []lakeFile
	values := partitionText(b.values)
	for _, f := range r.lakeFiles {
		if ref, ok := BucketOf(f.location); ok && ref != b.ref && ref.Partition == b.ref.Partition {
			continue // of another partition the values decide: it may have been made again
		}
		if f.spec == int32(r.t.partitioning.ID()) && f.partition != values {
			continue
		}
		files = append(files, f)
	}
	slices.SortStableFunc(files, func(a, b lakeFile) int { return cmp.Compare(b.sequence, a.sequence) })
	return files, nil
}

// partitionText is equal for equal values of one partition spec.
func partitionText(values map[int]any) string {
	var out []byte
	for _, id := range slices.Sorted(maps.Keys(values)) {
		text := fmt.Sprint(values[id])
		out = fmt.Appendf(out, "%d:%d:%s,", id, len(text), text)
	}
	return string(out)
}

// listFiles reads the snapshot's manifests, once in a round.
func (r *round) listFiles(ctx context.Context) (err error) {
	if s := r.tbl.CurrentSnapshot(); !r.listed && s != nil {
		r.lakeFiles, err = dataFiles(ctx, r.tbl, s)
		r.listed = err == nil
	}
	return err
}

// dataFiles are those of a snapshot.
func dataFiles(ctx context.Context, tbl *table.Table, s *table.Snapshot) (files []lakeFile, err error) {
	for e, err := range liveEntries(ctx, tbl, s, iceberg.ManifestContentData) {
		if err != nil {
			return nil, err
		}
		f := e.DataFile()
		files = append(files, lakeFile{location: f.FilePath(), sequence: e.SequenceNum(), spec: f.SpecID(), partition: partitionText(f.Partition())})
	}
	return files, nil
}
