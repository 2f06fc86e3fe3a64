package lake

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
)

// Limits of the Parquet files.
const (
	rowGroupBytes = 32 << 20  // encoded; a row group is in memory until it is full
	rowGroupRows  = 1 << 20   // at most
	sliceBytes    = 4 << 20   // of Arrow memory that is encoded at once
	statsBytes    = 1 << 10   // longer values are in no statistics; see unbounded
	targetBytes   = 128 << 20 // of a file
)

// fileKind is one kind of Parquet files of one bucket in one round.
type fileKind struct {
	content   iceberg.ManifestEntryContent
	schema    *iceberg.Schema // of the file
	arrow     *arrow.Schema   // the same, with field ids in the metadata
	spec      iceberg.PartitionSpec
	values    map[int]any // by partition field id
	equality  []int       // of equality deletes
	sortOrder int
	version   int // of the table's format
	props     *parquet.WriterProperties
	reference *string // the only file that position deletes name
}

// newFileKind prepares the properties of the writer.
func newFileKind(content iceberg.ManifestEntryContent, ice *iceberg.Schema) (fileKind, error) {
	as, err := table.SchemaToArrowSchema(ice, nil, true, false)
	if err != nil {
		return fileKind{}, fmt.Errorf("lake schema as Arrow: %w", err)
	}
	props, err := writerProperties(as)
	return fileKind{content: content, schema: ice, arrow: as, props: props}, err
}

// writerProperties: level 1 is where zstd pays, and dictionaries stay only where
// they make a column smaller.
func writerProperties(as *arrow.Schema) (*parquet.WriterProperties, error) {
	options := []parquet.WriterProperty{
		parquet.WithCompression(compress.Codecs.Zstd), parquet.WithCompressionLevel(1),
		parquet.WithDataPageVersion(parquet.DataPageV1), parquet.WithDictionaryDefault(true),
		parquet.WithMaxRowGroupLength(rowGroupRows), parquet.WithMaxStatsSize(statsBytes),
		parquet.WithStoreDecimalAsInteger(true), parquet.WithCreatedBy("mink"),
	}
	ps, err := pqarrow.ToParquet(as, parquet.NewWriterProperties(options...), pqarrow.DefaultWriterProps())
	if err != nil {
		return nil, fmt.Errorf("lake schema as Parquet: %w", err)
	}
	for i := range ps.NumColumns() {
		options = append(options, parquet.WithDictionaryCostFallbackPath(ps.Column(i).ColumnPath(), true))
	}
	return parquet.NewWriterProperties(options...), nil
}

// parquetWriter writes the files of one kind, one after the other, each up to about
// the target size. Not safe for concurrent use.
type parquetWriter struct {
	fileKind
	ctx    context.Context
	store  objstore.Store
	mem    memory.Allocator
	name   func() (key, location string) // of the next file
	target int64

	up       *upload
	w        *pqarrow.FileWriter
	location string
	done     []iceberg.DataFile
	rows     int64 // of the open file
}

// Write adds rows of the kind's Arrow schema.
func (w *parquetWriter) Write(batch arrow.RecordBatch) error {
	rows := batch.NumRows()
	if rows == 0 {
		return nil
	}
	step := max(1, rows*sliceBytes/max(sliceBytes, bytesOf(batch)))
	for start := int64(0); start < rows; start += step {
		if err := w.writeSlice(batch.NewSlice(start, min(rows, start+step))); err != nil {
			return err
		}
	}
	return nil
}

func (w *parquetWriter) writeSlice(batch arrow.RecordBatch) error {
	defer batch.Release()
	if err := w.ctx.Err(); err != nil {
		return err
	}
	sink.Progress(w.ctx)
	if w.w == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	if w.w.RowGroupTotalBytesWritten() >= rowGroupBytes {
		if err := w.w.NewBufferedRowGroupChecked(); err != nil {
			return fmt.Errorf("write %s: %w", w.location, err)
		}
	}
	if err := w.w.WriteBuffered(batch); err != nil {
		return fmt.Errorf("write %s: %w", w.location, err)
	}
	w.rows += batch.NumRows()
	if w.up.size+w.w.RowGroupTotalCompressedBytes() >= w.target {
		return w.finish()
	}
	return nil
}

func (w *parquetWriter) open() error {
	key, location := w.name()
	w.location, w.up, w.rows = location, newUpload(w.ctx, w.store, key), 0
	fw, err := pqarrow.NewFileWriter(w.arrow, w.up, w.props, pqarrow.NewArrowWriterProperties(pqarrow.WithAllocator(w.mem)))
	if err != nil {
		w.up.abort()
		return fmt.Errorf("write %s: %w", location, err)
	}
	w.w = fw
	return nil
}

// finish ends the open file, if there is one.
func (w *parquetWriter) finish() error {
	if w.w == nil {
		return nil
	}
	pw := w.w
	w.w = nil
	if err := pw.Close(); err != nil {
		w.up.abort()
		return fmt.Errorf("write %s: %w", w.location, err)
	}
	meta, err := pw.FileMetadata()
	if err != nil {
		w.up.abort()
		return fmt.Errorf("write %s: %w", w.location, err)
	}
	size := w.up.size
	if err := w.up.done(); err != nil {
		w.up.abort()
		return err
	}
	properties, err := w.unbounded(meta)
	if err != nil {
		return fmt.Errorf("statistics of %s: %w", w.location, err)
	}
	file, err := table.DataFileFromMetadata(table.DataFileArgs{
		Properties: properties,
		Schema:     w.schema, Spec: w.spec, Format: iceberg.ParquetFile, Metadata: meta, FilePath: w.location, FileSize: size, Content: w.content,
		PartitionValues: w.values, SortOrderID: w.sortOrder, EqualityFieldIDs: w.equality, FormatVersion: w.version, ReferencedDataFile: w.reference,
	})
	if err != nil {
		return fmt.Errorf("statistics of %s: %w", w.location, err)
	}
	w.done = append(w.done, file)
	return nil
}

// unbounded are the properties that keep the library from giving columns bounds that
// are not theirs: a row group whose least or greatest value is longer than statsBytes
// has no such end, and the library takes "" for it, or the ends of the other row groups.
// Readers would skip files that have what they look for.
func (w *parquetWriter) unbounded(meta *metadata.FileMetaData) (iceberg.Properties, error) {
	var props iceberg.Properties
	for g := range meta.NumRowGroups() {
		group := meta.RowGroup(g)
		for i := range group.NumColumns() {
			chunk, err := group.ColumnChunk(i)
			if err != nil {
				return nil, err
			}
			if chunk.Type() != parquet.Types.ByteArray {
				continue
			}
			st, err := chunk.Statistics()
			if err != nil {
				return nil, err
			}
			// One end alone is there as far as HasMinMax goes; the other is empty then. A
			// greatest value that is empty in earnest loses bounds that say nothing.
			if st != nil && st.HasMinMax() && len(st.EncodeMax()) > 0 || st != nil && st.NumValues() == 0 {
				continue
			}
			name, ok := w.schema.FindColumnName(int(meta.Schema.Column(i).SchemaNode().FieldID()))
			if !ok {
				return nil, fmt.Errorf("column %s has no field id of the lake's schema: %w", chunk.PathInSchema(), sink.ErrCorrupt)
			}
			if props == nil {
				props = iceberg.Properties{}
			}
			props[table.MetricsModeColumnConfPrefix+"."+name] = "counts"
		}
	}
	return props, nil
}

// abort drops the open file; finished ones stay for the round's cleanup.
func (w *parquetWriter) abort() {
	if w.w != nil {
		w.w, _ = nil, w.w.Close()
		w.up.abort()
	}
}

// bytesOf is about how much memory the rows of a batch take.
func bytesOf(batch arrow.RecordBatch) int64 {
	var n int64
	for _, c := range batch.Columns() {
		n += int64(c.Data().SizeInBytes())
	}
	return n
}
