package lake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/parquet"
	parquetfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// keyCompaction is in the summary of a snapshot that a compaction made, for people. The
// snapshot's round has no rows.
const keyCompaction = "mink.compaction"

var _ sink.Maintainer = (*lakeTable)(nil)

// PlanCompaction reads the catalog, and of the manifests what is not in memory.
func (t *lakeTable) PlanCompaction(ctx context.Context, req sink.CompactRequest) (sink.Compaction, error) {
	tbl, err := t.load(ctx)
	if err != nil {
		return sink.Compaction{}, t.fail("plan a compaction of", "", err)
	}
	c, err := t.planCompaction(ctx, tbl, req)
	if err != nil {
		return sink.Compaction{}, t.fail("plan a compaction of", "", err)
	}
	return c.summary(), nil
}

// Compact writes the open round's files.
func (t *lakeTable) Compact(ctx context.Context, req sink.CompactRequest) (sink.Compaction, error) {
	if t.round == nil || t.round.bucket != nil || len(t.round.done) > 0 {
		return sink.Compaction{}, t.fail("compact", "", fmt.Errorf("%w: a compaction is a round of its own", sink.ErrInvalid))
	}
	r := t.round
	done, err := r.compact(ctx, req)
	if err != nil {
		t.leave()
		return sink.Compaction{}, t.fail("compact in", r.req.Round, err)
	}
	return done, nil
}

func (r *round) compact(ctx context.Context, req sink.CompactRequest) (sink.Compaction, error) {
	if req.Progress == nil {
		req.Progress = func() {}
	}
	c, err := r.t.planCompaction(ctx, r.tbl, req)
	if err != nil {
		return sink.Compaction{}, err
	}
	done := c.summary()
	if done.Empty() {
		return done, nil
	}
	// The table's own schema: columns that another engine added keep their values.
	kind, err := newFileKind(iceberg.EntryContentData, r.tbl.Schema())
	if err != nil {
		return done, err
	}
	kind.spec, kind.version = r.rows.spec, r.rows.version
	names := map[mink.BucketRef]int{}
	for _, g := range c.groups {
		name := r.namer(g, names)
		if err := r.rewrite(ctx, g, kind, name, req.Progress); err != nil {
			return done, fmt.Errorf("bucket %s: %w", g.ref, err)
		}
		if err := r.mergePositions(ctx, g, name, req.Progress); err != nil {
			return done, fmt.Errorf("bucket %s: %w", g.ref, err)
		}
		for _, task := range g.rewrite {
			r.replaced = append(r.replaced, task.File.FilePath())
		}
	}
	for _, f := range slices.Concat(c.dead, c.replaced) {
		r.replaced = append(r.replaced, f.FilePath())
	}
	for _, f := range r.files {
		done.NewBytes += f.FileSizeBytes()
	}
	done.NewFiles = len(r.files)
	return done, nil
}

// namer gives files names of their bucket; those of no known bucket get names that
// BucketOf takes for nobody's.
func (r *round) namer(g *compactGroup, names map[mink.BucketRef]int) func(suffix string) func() (key, location string) {
	return func(suffix string) func() (string, string) {
		return func() (string, string) {
			n := names[g.ref]
			names[g.ref]++
			key := r.t.dir + fileName(r.req.Round, g.ref, n, suffix)
			if !g.own {
				key = fmt.Sprintf("%s%sother-%d%s", r.t.dir, roundDir(r.req.Round), n, suffix)
			}
			return key, r.t.sink.w.Location(key)
		}
	}
}

func (r *round) writer(ctx context.Context, kind fileKind, name func() (string, string)) *parquetWriter {
	return &parquetWriter{fileKind: kind, ctx: ctx, store: r.t.store, mem: r.t.sink.cfg.Allocator, target: r.t.sink.cfg.FileBytes, name: name}
}

// rewrite writes the live rows of a group's files: those of a primary-key bucket in the
// order of their keys, others as they come.
func (r *round) rewrite(ctx context.Context, g *compactGroup, kind fileKind, name func(string) func() (string, string), progress func()) error {
	if len(g.rewrite) == 0 {
		return nil
	}
	kind.values = g.values
	sorted := len(r.t.spec.PrimaryKey) > 0 && g.own
	if sorted {
		kind.sortOrder = r.rows.sortOrder
	}
	w := r.writer(ctx, kind, name(dataSuffix))
	write := func(batch arrow.RecordBatch) error { progress(); return w.Write(batch) }
	var err error
	if sorted {
		err = r.sortRows(ctx, g, kind.arrow, write)
	} else {
		err = r.liveRows(ctx, g.rewrite, kind.arrow, write)
	}
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		w.abort()
		return err
	}
	r.files = append(r.files, w.done...)
	return nil
}

// liveRows reads files with their deletes, one after the other, by the library.
func (r *round) liveRows(ctx context.Context, tasks []table.FileScanTask, as *arrow.Schema, use func(arrow.RecordBatch) error) error {
	scan := r.tbl.Scan(table.WithScanPlanningMode(table.ScanPlanningLocal), table.WithMaxConcurrency(1), table.WithArrowBatchSize(emitRows/4))
	_, batches, err := scan.ReadTasks(ctx, tasks)
	if err != nil {
		return err
	}
	for rec, err := range batches {
		if err != nil {
			return err
		}
		batch, err := r.conform(ctx, rec, as)
		rec.Release()
		if err == nil {
			err = use(batch)
			batch.Release()
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// conform gives a batch the Arrow types that files are written with: readers of files of
// other writers keep theirs, such as large strings.
func (r *round) conform(ctx context.Context, rec arrow.RecordBatch, as *arrow.Schema) (arrow.RecordBatch, error) {
	if int(rec.NumCols()) != as.NumFields() {
		return nil, fmt.Errorf("%w: a batch of %d columns of a table of %d", sink.ErrCorrupt, rec.NumCols(), as.NumFields())
	}
	columns := make([]arrow.Array, 0, as.NumFields())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, f := range as.Fields() {
		c := rec.Column(i)
		if name := rec.ColumnName(i); name != f.Name {
			return nil, fmt.Errorf("%w: column %d of a batch is %q, want %q", sink.ErrCorrupt, i, name, f.Name)
		}
		if arrow.TypeEqual(c.DataType(), f.Type) {
			c.Retain()
		} else {
			cast, err := compute.CastArray(compute.WithAllocator(ctx, r.t.sink.cfg.Allocator), c, compute.SafeCastOptions(f.Type))
			if err != nil {
				return nil, fmt.Errorf("column %q: %w", f.Name, err)
			}
			c = cast
		}
		columns = append(columns, c)
	}
	return array.NewRecordBatch(as, columns, rec.NumRows()), nil
}

// sortRows merges the files of a primary-key bucket by key, beyond the memory of a sort
// through scratch files. A key has one live row: when it has two, nothing is written,
// for one of them would be lost.
func (r *round) sortRows(ctx context.Context, g *compactGroup, as *arrow.Schema, write func(arrow.RecordBatch) error) error {
	columns := schema.Schema{}
	for _, f := range as.Fields() {
		c := schema.Column{Name: f.Name, Type: schema.Type{Kind: schema.Int}} // of no matter, but for keys
		if i := r.t.cols.mink.Index(f.Name); i >= 0 {
			c = r.t.cols.mink.Columns[i]
			c.Type = asIceberg(c.Type)
		}
		columns.Columns = append(columns.Columns, c)
	}
	f, err := newFold(r.t.sink.cfg, &columns, r.t.spec.PrimaryKey, as)
	if err != nil {
		return err
	}
	var in, out int64
	var inserts []mink.Change
	err = r.liveRows(ctx, g.rewrite, as, func(batch arrow.RecordBatch) error {
		n := int(batch.NumRows())
		for len(inserts) < n {
			inserts = append(inserts, mink.ChangeInsert)
		}
		in += int64(n)
		return f.add(ctx, batch, batch, inserts[:n])
	})
	if err != nil {
		f.close()
		return err
	}
	if err := f.emit(ctx, sortedOutput(func(batch arrow.RecordBatch) error { out += batch.NumRows(); return write(batch) })); err != nil {
		return err
	}
	if in != out {
		return fmt.Errorf("%w: %d rows of %d have a key that another one has too: another engine wrote them, or a delete is lost; delete them there", sink.ErrCorrupt, in-out, in)
	}
	return nil
}

// sortedOutput takes rows of a fold that has no deletes.
type sortedOutput func(arrow.RecordBatch) error

func (o sortedOutput) row(rows arrow.RecordBatch) error { return o(rows) }

func (o sortedOutput) delete(arrow.RecordBatch) error {
	return fmt.Errorf("%w: a delete among the live rows of files", sink.ErrCorrupt)
}

// mergePositions writes, for each file whose position deletes are merged, one file of them.
func (r *round) mergePositions(ctx context.Context, g *compactGroup, name func(string) func() (string, string), progress func()) error {
	if len(g.merge) == 0 {
		return nil
	}
	found := map[string][]int64{}
	seen := map[string]bool{}
	for _, t := range g.merge {
		found[t.File.FilePath()] = nil
	}
	for _, t := range g.merge {
		for _, d := range t.DeleteFiles {
			if seen[d.FilePath()] {
				continue
			}
			seen[d.FilePath()] = true
			if err := r.readPositions(ctx, d.FilePath(), found); err != nil {
				return fmt.Errorf("read %s: %w", d.FilePath(), err)
			}
			progress()
		}
	}
	kind, err := newFileKind(iceberg.EntryContentPosDeletes, iceberg.PositionalDeleteSchema)
	if err != nil {
		return err
	}
	kind.spec, kind.version, kind.values = r.rows.spec, r.rows.version, g.values
	p := &positionDeletes{r: r, ctx: ctx, w: r.writer(ctx, kind, name(deletesSuffix))}
	for _, location := range slices.Sorted(maps.Keys(found)) {
		positions := found[location]
		if len(positions) == 0 {
			continue
		}
		slices.Sort(positions)
		p.w.reference = &location
		for part := range slices.Chunk(slices.Compact(positions), emitRows) {
			if err := p.write(location, part); err != nil {
				p.abort()
				return err
			}
		}
		if err := p.w.finish(); err != nil {
			return err
		}
	}
	r.files = append(r.files, p.w.done...)
	return nil
}

// readPositions adds the positions of a delete file to those of the files that are asked for.
func (r *round) readPositions(ctx context.Context, location string, found map[string][]int64) (err error) {
	fs, err := r.tbl.FS(ctx)
	if err != nil {
		return err
	}
	in, err := fs.Open(location)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, in.Close()) }()
	pf, err := parquetfile.NewParquetReader(in, parquetfile.WithReadProps(parquet.NewReaderProperties(r.t.sink.cfg.Allocator)))
	if err != nil {
		return err
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: emitRows}, r.t.sink.cfg.Allocator)
	if err != nil {
		return err
	}
	records, err := fr.GetRecordReader(ctx, nil, nil)
	if err != nil {
		return err
	}
	defer records.Release()
	for records.Next() {
		rec := records.RecordBatch()
		paths, okPaths := rec.Column(0).(*array.String)
		places, okPlaces := rec.Column(1).(*array.Int64)
		if !okPaths || !okPlaces {
			return fmt.Errorf("%w: its columns are %s", sink.ErrCorrupt, rec.Schema())
		}
		for i := range int(rec.NumRows()) {
			if list, ok := found[paths.Value(i)]; ok {
				found[paths.Value(i)] = append(list, places.Value(i)) //nolint:gocritic // the same list
			}
		}
	}
	return records.Err()
}

// stageCompaction makes the snapshot of a round that replaces files. They are found in the
// current snapshot, which is the one that the round was planned on.
func (t *lakeTable) stageCompaction(ctx context.Context, tx *table.Transaction, tbl *table.Table, props iceberg.Properties, files []iceberg.DataFile, replaced []string) error {
	old, err := liveFiles(ctx, tbl, replaced)
	if err != nil {
		return err
	}
	summary := maps.Clone(props)
	summary[keyCompaction] = "true"
	rewrite := tx.NewRewrite(summary)
	merges := false
	for _, f := range files {
		rewrite.AddFile(f)
		merges = merges || f.ContentType() == iceberg.EntryContentPosDeletes
	}
	var dead []iceberg.DataFile
	for _, f := range old {
		// Files of deletes that are added must say what they take the place of.
		if f.ContentType() == iceberg.EntryContentData || merges && f.ContentType() == iceberg.EntryContentPosDeletes {
			rewrite.DeleteFile(f)
		} else {
			dead = append(dead, f)
		}
	}
	if err := rewrite.ApplyResult(table.CompactionGroupResult{SafePosDeletes: dead}).Commit(ctx); err != nil {
		return err
	}
	if _, had := tbl.Properties()[table.DefaultNameMappingKey]; had { // the library sets one, which renames would make wrong
		return nil
	}
	if staged, err := tx.StagedTable(); err != nil || staged.Properties()[table.DefaultNameMappingKey] == "" {
		return err
	}
	return tx.RemoveProperties([]string{table.DefaultNameMappingKey})
}

// liveFiles finds files of the current snapshot by location.
func liveFiles(ctx context.Context, tbl *table.Table, locations []string) ([]iceberg.DataFile, error) {
	want := make(map[string]bool, len(locations))
	for _, l := range locations {
		want[l] = true
	}
	s := tbl.CurrentSnapshot()
	if s == nil {
		return nil, fmt.Errorf("%w: the table has no snapshot", sink.ErrConflict)
	}
	var files []iceberg.DataFile
	for e, err := range liveEntries(ctx, tbl, s) {
		if err != nil {
			return nil, err
		}
		if f := e.DataFile(); want[f.FilePath()] {
			delete(want, f.FilePath())
			files = append(files, f)
		}
	}
	for l := range want {
		return nil, fmt.Errorf("%w: snapshot %d has not the file %s, which was to be replaced", sink.ErrConflict, s.SnapshotID, path.Base(l))
	}
	return files, nil
}
