package lake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	parquetfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// replan puts a round's position deletes on a newer snapshot than they were planned on:
// another engine committed meanwhile. What is looked up again are the keys of the rows that
// they name, in the files that came since.
//
//	the file that a position names    then
//	is there still                    the position stays
//	is gone: it was compacted         its key is read from it, and looked for in the new files
//	new files in the partition        the keys of all positions are looked for in them
//
// A key that had no row in the planned snapshot is not looked for.
type replan struct {
	t    *lakeTable
	at   int64 // the snapshot that made is for
	made []iceberg.DataFile
}

// admits checks a commit before it is decided on: what is refused here leaves nothing behind
// that a later round would have to remove.
func (p *replan) admits(ctx context.Context, tbl *table.Table, req sink.CommitRequest) error {
	note, err := parseNote(req.Staged, req.Round)
	if err != nil || tbl.Metadata().TableUUID().String() != note.Table {
		return err // the claim says what is wrong
	}
	if err := p.t.fits(tbl, note); err != nil || !p.moved(tbl, note) {
		return err
	}
	files, _, err := p.t.readFiles(ctx, note, tbl.Metadata())
	if err == nil {
		_, err = p.onto(ctx, tbl, note, files)
	}
	return err
}

func (p *replan) moved(tbl *table.Table, note stagedNote) bool {
	current := tbl.CurrentSnapshot()
	return note.Pinned && note.Replaced == 0 && current != nil && current.SnapshotID != note.Planned
}

// onto answers the round's files as they are to be committed on the table's current snapshot.
func (p *replan) onto(ctx context.Context, tbl *table.Table, note stagedNote, files []iceberg.DataFile) ([]iceberg.DataFile, error) {
	if !p.moved(tbl, note) {
		return files, nil
	}
	current := tbl.CurrentSnapshot()
	if p.made != nil && p.at == current.SnapshotID {
		return p.made, nil
	}
	fail := func(err error) ([]iceberg.DataFile, error) {
		return nil, fmt.Errorf("position deletes were planned on snapshot %d, the current one is %d: %w", note.Planned, current.SnapshotID, err)
	}
	had := map[string]bool{}
	if note.Planned != 0 {
		planned := tbl.SnapshotByID(note.Planned)
		if planned == nil {
			return fail(fmt.Errorf("%w: the former was expired", sink.ErrConflict))
		}
		before, err := dataFiles(ctx, tbl, planned)
		if err != nil {
			return fail(err)
		}
		for _, f := range before {
			had[f.location] = true
		}
	}
	now, err := dataFiles(ctx, tbl, current)
	if err != nil {
		return fail(err)
	}
	has := make(map[string]bool, len(now))
	var added []lakeFile
	for _, f := range now {
		if has[f.location] = true; !had[f.location] {
			added = append(added, f)
		}
	}
	out := make([]iceberg.DataFile, 0, len(files))
	for _, f := range files {
		if f.ContentType() != iceberg.EntryContentPosDeletes {
			out = append(out, f)
			continue
		}
		again, err := p.file(ctx, tbl, note, f, has, added)
		if err != nil {
			return fail(fmt.Errorf("look for the rows of %s again: %w", f.FilePath(), err))
		}
		out = append(out, again...)
	}
	p.at, p.made = current.SnapshotID, out
	return out, nil
}

// file plans one file of position deletes anew.
func (p *replan) file(ctx context.Context, tbl *table.Table, note stagedNote, f iceberg.DataFile, has map[string]bool, added []lakeFile) ([]iceberg.DataFile, error) {
	ref, ok := BucketOf(f.FilePath())
	if !ok {
		return nil, fmt.Errorf("%w: its name is not of a bucket", sink.ErrCorrupt)
	}
	positions, err := p.positions(ctx, tbl, f.FilePath())
	if err != nil {
		return nil, err
	}
	r, err := p.t.newRound(sink.BeginRoundRequest{Round: note.Round}, tbl)
	if err != nil {
		return nil, err
	}
	r.lakeFiles, r.listed = added, true
	// The names are new ones at each try, whose outcome may be unknown.
	r.bucket = &bucketRound{ref: ref, values: f.Partition(), n: (1<<20 + rand.IntN(1<<20)) << 9}
	candidates, err := r.bucketFiles(ctx, r.bucket)
	if err != nil {
		return nil, err
	}
	gone := func(location string) bool { return !has[location] }
	if len(candidates) == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(positions)), gone) {
		return []iceberg.DataFile{f}, nil
	}
	d, err := r.newPositionDeletes(ctx)
	if err != nil {
		return nil, err
	}
	d.every = true
	for _, location := range slices.Sorted(maps.Keys(positions)) {
		if has[location] {
			d.found[location] = positions[location]
		}
		if len(candidates) == 0 {
			continue
		}
		if err := d.wantRows(location, positions[location]); err != nil {
			if errors.Is(err, objstore.ErrNotExist) {
				err = fmt.Errorf("%w: a file that was compacted is deleted already: %w", sink.ErrConflict, err)
			}
			d.abort()
			return nil, fmt.Errorf("keys in %s: %w", location, err)
		}
	}
	made, err := d.finish()
	if err != nil {
		d.abort()
	}
	return made, err
}

// wantRows looks for the keys of rows, which it reads.
func (p *positionDeletes) wantRows(location string, positions []int64) error {
	var keys []string
	size := 0
	err := p.readKeys(location, func(meta *metadata.RowGroupMetaData, at int64, _ int) bool {
		i, _ := slices.BinarySearch(positions, at)
		return i < len(positions) && positions[i] < at+meta.NumRows()
	}, func(at int64, rows int) {
		i, _ := slices.BinarySearch(positions, at)
		for ; i < len(positions) && positions[i] < at+int64(rows); i++ {
			p.buf = p.enc.Append(p.buf[:0], int(positions[i]-at))
			keys = append(keys, string(p.buf))
			size += len(p.buf) + entryBytes
		}
	})
	if err != nil {
		return err
	}
	slices.Sort(keys)
	for part := range slices.Chunk(keys, max(1, len(keys)*wantBytes/max(wantBytes, size))) {
		p.low, p.high = part[0], part[len(part)-1]
		for _, k := range part {
			p.want[k] = struct{}{}
		}
		if err := p.look(); err != nil {
			return err
		}
	}
	return nil
}

// positions reads a file of position deletes: by location, in order.
func (p *replan) positions(ctx context.Context, tbl *table.Table, location string) (out map[string][]int64, err error) {
	fs, err := tbl.FS(ctx)
	if err != nil {
		return nil, err
	}
	in, err := fs.Open(location)
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, in.Close()) }()
	mem := memory.DefaultAllocator
	pf, err := parquetfile.NewParquetReader(in, parquetfile.WithReadProps(parquet.NewReaderProperties(mem)))
	if err != nil {
		return nil, err
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: emitRows}, mem)
	if err != nil {
		return nil, err
	}
	records, err := fr.GetRecordReader(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	defer records.Release()
	out = map[string][]int64{}
	for records.Next() {
		if err := addPositions(out, records.RecordBatch()); err != nil {
			return nil, err
		}
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out, records.Err()
}

func addPositions(out map[string][]int64, rec arrow.RecordBatch) error {
	if rec.NumCols() != 2 {
		return fmt.Errorf("%w: position deletes of %d columns", sink.ErrCorrupt, rec.NumCols())
	}
	paths, okPaths := rec.Column(0).(*array.String)
	places, okPlaces := rec.Column(1).(*array.Int64)
	if !okPaths || !okPlaces {
		return fmt.Errorf("%w: position deletes of %s and %s", sink.ErrCorrupt, rec.Column(0).DataType(), rec.Column(1).DataType())
	}
	for i := range int(rec.NumRows()) {
		path := paths.Value(i)
		if _, ok := out[path]; !ok {
			path = string(append([]byte(nil), path...)) // the array's memory is the reader's
		}
		out[path] = append(out[path], places.Value(i))
	}
	return nil
}

// tidy deletes the delete files of a committed round that were planned and not committed.
func (p *replan) tidy(ctx context.Context, round sink.RoundID) {
	if p.made == nil {
		return
	}
	kept := map[string]bool{}
	for _, f := range p.made {
		kept[f.FilePath()] = true
	}
	var keys []string
	err := p.t.eachKey(ctx, p.t.dir+roundDir(round), func(key string) error {
		if strings.HasSuffix(key, deletesSuffix) && !kept[p.t.sink.w.Location(key)] {
			keys = append(keys, key)
		}
		return nil
	})
	if err == nil {
		err = p.t.delete(ctx, keys...)
	}
	if err != nil {
		p.t.sink.cfg.Logger.Warn("position deletes that were planned anew were not removed", "table", p.t.spec.FullName(), "round", round, "error", err)
	}
}
