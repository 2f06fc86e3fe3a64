package lake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	parquetfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// CheckRequest is a lake table, and what the metadata log knows of it.
type CheckRequest struct {
	ID         catalog.Identifier
	Table      mink.TableID
	Schema     *schema.Schema // the newest columns
	PrimaryKey []string
	// Round, Snapshot and Ends were recorded last; "": no round was. Ends are of buckets that
	// a round has moved, Committed where their logs end.
	Round           sink.RoundID
	Snapshot        string
	Ends, Committed map[mink.BucketRef]mink.Offset
	// Readable are the snapshots that clients of Mink may read.
	Readable []string
	// Deep reads the footer of every Parquet file and compares its rows with the manifest's.
	Deep bool
	// Grace is the age from which files that nothing names are listed: younger ones may be of a
	// round, or another engine's commit, that is under way.
	Grace time.Duration
}

// CheckReport is what was found of one table. Files and Bytes are of all snapshots that
// the table names, Rows of data files of the current one.
type CheckReport struct {
	Snapshots          int
	Files, Bytes, Rows int64
	Problems           []CheckProblem
	// Orphans are keys that nothing names, at most orphansMax of OrphanFiles.
	Orphans                  []string
	OrphanFiles, OrphanBytes int64
}

// CheckProblem is one finding; Text says what to do.
type CheckProblem struct {
	Kind   string // missing, size, corrupt, lake_offsets, lake_schema, lake_table
	Object string // its key, "" when it is of the table
	Text   string
}

const (
	checkTries      = 3
	checksAtOnce    = 16
	lakeProblemsMax = 100
	orphansMax      = 100
)

// Check compares a lake table with what is recorded of it and with the store: every file that
// its snapshots name is there with its size, the columns have Mink's field ids, offsets are
// those recorded or later. A table that changes meanwhile is looked at again. An error says
// that store or catalog could not be asked.
func (w *Warehouse) Check(ctx context.Context, req CheckRequest) (CheckReport, error) {
	w = w.forgetful()
	for try := 1; ; try++ {
		k := &checking{w: w, req: req, fs: w.files.With(ctx), named: map[string]bool{}}
		if err := k.run(ctx); err != nil {
			return CheckReport{}, fmt.Errorf("check lake table %s: %w", req.ID, err)
		}
		if len(k.out.Problems) == 0 || try == checkTries {
			return k.out, nil
		}
		if now, err := w.Load(ctx, req.ID); err != nil || now.MetadataLocation() == k.at {
			return k.out, nil //nolint:nilerr // what was found stands
		}
	}
}

// forgetful is the warehouse with nothing in memory yet: what is looked at is on the store.
func (w *Warehouse) forgetful() *Warehouse {
	again := *w
	again.files, again.parsed = NewFiles(w.files.store, w.files.root), newCache[table.Metadata](checkCache)
	again.files.cached = newCache[[]byte](checkCache)
	return &again
}

// checkCache is what a check remembers of metadata, in bytes.
const checkCache = 16 << 20

// checking is one look at a table.
type checking struct {
	w   *Warehouse
	req CheckRequest
	fs  *BoundFiles
	at  string // the metadata file that was looked at

	named map[string]bool // keys; by one goroutine
	files []checkFile     // to be looked at

	mu  sync.Mutex // of out, while files are looked at
	out CheckReport
}

// checkFile is a file that a manifest names.
type checkFile struct {
	key, location string
	size, rows    int64
	parquet       bool
}

func (k *checking) problem(kind, object, format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.out.Problems) < lakeProblemsMax {
		k.out.Problems = append(k.out.Problems, CheckProblem{kind, object, fmt.Sprintf("lake table %s: ", k.req.ID) + fmt.Sprintf(format, args...)})
	}
}

func (k *checking) run(ctx context.Context) error {
	tbl, err := k.w.Load(ctx, k.req.ID)
	switch {
	case errors.Is(err, mink.ErrNotExist), errors.Is(err, sink.ErrNotExist):
		if k.req.Round != "" {
			k.problem("missing", "", "round %s is recorded, and the catalog has no such table: restore the catalog's database, or raise the table option %s to begin it anew", k.req.Round, schema.OptionLakeGeneration)
		}
		return nil
	case errors.Is(err, catalog.ErrCorrupt):
		k.problem("corrupt", "", "%v: restore the file from a backup of the store, or raise the table option %s to begin it anew", err, schema.OptionLakeGeneration)
		return nil
	case err != nil:
		return err
	}
	if id := tbl.Properties()[keyTableID]; id != strconv.FormatInt(int64(k.req.Table), 10) {
		k.problem("lake_table", "", "the catalog's table of this name, at %s, is of table %q and not of %d: drop or rename it there", tbl.Location(), id, k.req.Table)
		return nil
	}
	k.at = tbl.MetadataLocation()
	k.columns(tbl)
	if err := k.offsets(ctx, tbl); err != nil {
		return err
	}
	if err := k.snapshots(ctx, tbl); err != nil {
		return err
	}
	return k.orphans(ctx, tbl)
}

// columns compares field ids, names and types, when the lake has the newest version.
func (k *checking) columns(tbl *table.Table) {
	version, err := strconv.ParseInt(tbl.Properties()[keySchemaID], 10, 32)
	switch {
	case err != nil:
		k.problem("lake_schema", "", "property %s is %q, want the version of Mink's schema: set it again, to %d when the columns are those of the table", keySchemaID, tbl.Properties()[keySchemaID], k.req.Schema.ID)
		return
	case mink.SchemaID(version) > k.req.Schema.ID:
		k.problem("lake_schema", "", "its columns are those of schema version %d, and the table's newest is %d: the metadata are older than the lake; raise the table option %s once they are whole", version, k.req.Schema.ID, schema.OptionLakeGeneration)
		return
	case mink.SchemaID(version) < k.req.Schema.ID:
		return // it follows with the next round
	}
	want, err := IcebergSchema(k.req.Schema, k.req.PrimaryKey)
	if err == nil {
		err = k.fields(want, tbl.Schema())
	}
	if err != nil {
		k.problem("lake_schema", "", "%v", err)
	}
}

func (k *checking) fields(want, have *iceberg.Schema) error {
	flat, err := want.FlatFields()
	if err != nil {
		return err
	}
	for f := range flat {
		g, ok := have.FindFieldByID(f.ID)
		_, leaf := f.Type.(iceberg.PrimitiveType)
		switch {
		case !ok:
			k.problem("lake_schema", "", "it has no field %d, which is column %q: another engine changed the columns; raise the table option %s to begin it anew", f.ID, f.Name, schema.OptionLakeGeneration)
		case g.Name != f.Name || leaf && !g.Type.Equals(f.Type):
			k.problem("lake_schema", "", "field %d is %q, %s, and the table's column is %q, %s: another engine changed it; change it back there", f.ID, g.Name, g.Type, f.Name, f.Type)
		}
	}
	return nil
}

// offsets compares how far the lake says that it is with what is recorded.
func (k *checking) offsets(ctx context.Context, tbl *table.Table) error {
	for _, id := range k.req.Readable {
		if n, err := strconv.ParseInt(id, 10, 64); err == nil && tbl.SnapshotByID(n) == nil {
			what := "another engine expired it; reads that were planned on it fail, plan them anew"
			if id == k.req.Snapshot {
				what = "another engine expired it or rolled the table back; reads use the current one, and tiering says whether it can go on"
			}
			k.problem("lake_offsets", "", "it does not have snapshot %s any more, which the metadata have recorded: %s", id, what)
		}
	}
	last, err := currentOffsets(ctx, tbl)
	if err != nil {
		if away(ctx, err) {
			return err
		}
		k.problem("lake_offsets", "", "%v", err)
		return nil
	}
	if last.Round == "" && k.req.Round != "" {
		k.problem("lake_offsets", "", "round %s is recorded, and no snapshot has a round of Mink's: roll the table back to snapshot %s, or raise the table option %s to begin it anew", k.req.Round, k.req.Snapshot, schema.OptionLakeGeneration)
		return nil
	}
	for b, end := range k.req.Ends {
		got, named := last.Ends[b]
		switch {
		case !named, got < end:
			k.problem("lake_offsets", "", "it has bucket %s up to offset %d (round %s), %d is recorded (round %s): roll the table forward to snapshot %s or a later one, or raise the table option %s to begin it anew",
				b, got, last.Round, end, k.req.Round, k.req.Snapshot, schema.OptionLakeGeneration)
		case last.Round == k.req.Round && got != end:
			k.problem("lake_offsets", "", "round %s ends bucket %s at offset %d there and at %d in the metadata: please report it, and raise the table option %s to begin it anew", last.Round, b, got, end, schema.OptionLakeGeneration)
		}
	}
	for b, end := range k.req.Committed {
		if got := last.Ends[b]; got > end {
			k.problem("lake_offsets", "", "it has bucket %s up to offset %d, and the log ends at %d: the metadata were restored from an older backup; raise the table option %s to begin it anew", b, got, end, schema.OptionLakeGeneration)
		}
	}
	return nil
}

// away: the store or the catalog did not answer.
func away(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrThrottled) || errors.Is(err, objstore.ErrUnauthorized)
}

// name notes that a file is named, and answers its key; ok is false when it was named before,
// or is outside of the warehouse, where nobody can look.
func (k *checking) name(location string) (key string, ok bool) {
	key, err := k.w.Key(location)
	if err != nil || k.named[key] {
		return "", false
	}
	k.named[key] = true
	return key, true
}

// snapshots walks the files of every snapshot, those of the current one first.
func (k *checking) snapshots(ctx context.Context, tbl *table.Table) error {
	meta := tbl.Metadata()
	for f := range meta.PreviousFiles() { // they need not be there any more
		k.name(f.MetadataFile)
	}
	for f := range meta.Statistics() {
		k.name(f.StatisticsPath)
	}
	for f := range meta.PartitionStatistics() {
		k.name(f.StatisticsPath)
	}
	if key, ok := k.name(k.at); ok {
		k.files = append(k.files, checkFile{key: key, location: k.at, size: -1})
	}
	all := slices.Clone(meta.Snapshots())
	k.out.Snapshots = len(all)
	current := meta.CurrentSnapshot()
	if current != nil {
		slices.SortStableFunc(all, func(a, b table.Snapshot) int {
			return compareBool(b.SnapshotID == current.SnapshotID, a.SnapshotID == current.SnapshotID)
		})
	}
	for i := range all {
		if all[i].Summary != nil {
			if side := all[i].Summary.Properties[keyOffsetsFile]; side != "" {
				if key, ok := k.name(side); ok {
					k.files = append(k.files, checkFile{key: key, location: side, size: -1})
				}
			}
		}
		if err := k.snapshot(ctx, &all[i], current != nil && all[i].SnapshotID == current.SnapshotID); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(checksAtOnce)
	for _, f := range k.files {
		g.Go(func() error { return k.look(gctx, f) })
	}
	return g.Wait()
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// snapshot reads what a snapshot names. A list or manifest that cannot be read is a
// problem, once, and what it would have named is not looked for.
func (k *checking) snapshot(ctx context.Context, s *table.Snapshot, current bool) (err error) {
	defer recovered(&err)
	fail := func(location string, err error) error {
		if away(ctx, err) {
			return err
		}
		key, _ := k.w.Key(location)
		k.files = slices.DeleteFunc(k.files, func(f checkFile) bool { return f.location == location }) // it is said here
		if errors.Is(err, fs.ErrNotExist) {
			k.problem("missing", key, "%s, which snapshot %d names, is not on the store: %s", location, s.SnapshotID, remedy(current))
			return nil
		}
		k.problem("corrupt", key, "%s, which snapshot %d names: %v: %s", location, s.SnapshotID, err, remedy(current))
		return nil
	}
	if s.ManifestList != "" {
		if key, ok := k.name(s.ManifestList); ok {
			k.files = append(k.files, checkFile{key: key, location: s.ManifestList, size: -1})
		}
	}
	manifests, err := s.Manifests(k.fs)
	if err != nil {
		return fail(s.ManifestList, err)
	}
	for _, m := range manifests {
		key, ok := k.name(m.FilePath())
		if !ok {
			continue
		}
		k.files = append(k.files, checkFile{key: key, location: m.FilePath(), size: m.Length()})
		if err := k.manifest(m, current); err != nil {
			if err := fail(m.FilePath(), err); err != nil {
				return err
			}
		}
	}
	return nil
}

func remedy(current bool) string {
	if current {
		return "restore it from a backup of the store, roll the table back to a snapshot that is whole, or raise the table option " + schema.OptionLakeGeneration + " to begin it anew"
	}
	return "readers of that older snapshot fail; expire it, or restore the file from a backup of the store"
}

func (k *checking) manifest(m iceberg.ManifestFile, current bool) error {
	for e, err := range m.Entries(k.fs, true) {
		if err != nil {
			return err
		}
		f := e.DataFile()
		if current && f.ContentType() == iceberg.EntryContentData {
			k.out.Rows += f.Count()
		}
		if key, ok := k.name(f.FilePath()); ok {
			k.files = append(k.files, checkFile{key: key, location: f.FilePath(), size: f.FileSizeBytes(), rows: f.Count(), parquet: f.FileFormat() == iceberg.ParquetFile})
		}
	}
	return nil
}

// look looks at one file on the store.
func (k *checking) look(ctx context.Context, f checkFile) error {
	files := k.w.files.With(ctx)
	info, err := files.Stat(f.location)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.problem("missing", f.key, "%s is not on the store: rows or deletes are lost to every reader unless it is restored from a backup; the table option %s begins the table anew", f.location, schema.OptionLakeGeneration)
		return nil
	case err != nil:
		return err
	}
	k.mu.Lock()
	k.out.Files++
	k.out.Bytes += info.Size()
	k.mu.Unlock()
	if f.size >= 0 && info.Size() != f.size {
		k.problem("size", f.key, "%s has %d bytes, its manifest says %d: restore it from a backup of the store", f.location, info.Size(), f.size)
		return nil
	}
	if !k.req.Deep || !f.parquet {
		return nil
	}
	rows, err := parquetRows(files, f.location)
	switch {
	case err != nil && away(ctx, err):
		return err
	case err != nil:
		k.problem("corrupt", f.key, "%s: its footer cannot be read: %v: restore it from a backup of the store", f.location, err)
	case rows != f.rows:
		k.problem("corrupt", f.key, "%s has %d rows, its manifest says %d: restore it from a backup of the store", f.location, rows, f.rows)
	}
	return nil
}

func parquetRows(files *BoundFiles, location string) (rows int64, err error) {
	defer recovered(&err)
	in, err := files.Open(location)
	if err != nil {
		return 0, err
	}
	r, err := parquetfile.NewParquetReader(in)
	if err != nil {
		return 0, errors.Join(err, in.Close())
	}
	return r.NumRows(), r.Close()
}

// orphans lists what lies below the table's directory and is named by nothing: what killed
// processes left, and manifests of snapshots that were expired.
func (k *checking) orphans(ctx context.Context, tbl *table.Table) error {
	dir, err := k.w.Key(tbl.Location())
	if err != nil {
		return nil //nolint:nilerr // it is elsewhere
	}
	dir = strings.TrimSuffix(dir, "/") + "/"
	staged := dir + stagedDir // notes on rounds: the next round removes them
	return objstore.All(ctx, k.w.Store(), dir, "", func(o objstore.ObjectInfo) bool {
		if k.named[o.Key] || strings.HasPrefix(o.Key, staged) || time.Since(o.Modified) < k.req.Grace {
			return true
		}
		k.out.OrphanFiles++
		k.out.OrphanBytes += o.Size
		if len(k.out.Orphans) < orphansMax {
			k.out.Orphans = append(k.out.Orphans, o.Key)
		}
		return true
	})
}
