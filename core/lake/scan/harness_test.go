package scan_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/iceberg-go"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/lake/scan"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/sdk/mink"
)

// tb is what a testing.T and a rapid.T have.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// lake is one Iceberg table in a directory, with a catalog of one entry.
type lake struct {
	t     tb
	table *table.Table
	meta  table.Metadata
}

func (l *lake) LoadTable(context.Context, table.Identifier) (*table.Table, error) {
	return l.table, nil
}

func (l *lake) CommitTable(_ context.Context, _ table.Identifier, requirements []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	for _, r := range requirements {
		if err := r.Validate(l.meta); err != nil {
			return nil, "", err
		}
	}
	meta, err := table.UpdateTableMetadata(l.meta, updates, "")
	if err != nil {
		return nil, "", err
	}
	l.meta = meta
	return meta, "", nil
}

func (l *lake) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// newLake makes a table whose field ids are those of fields.
func newLake(t tb, dir string, version int, fields []iceberg.NestedField, spec ...iceberg.PartitionField) *lake {
	t.Helper()
	l := &lake{t: t}
	b, err := table.NewMetadataBuilder(version)
	l.must(err)
	l.must(b.SetLoc("file://" + dir))
	l.must(b.AddSchema(iceberg.NewSchema(0, fields...)))
	l.must(b.SetCurrentSchemaID(-1))
	sp := iceberg.NewPartitionSpecID(0, spec...)
	l.must(b.AddPartitionSpec(&sp, true))
	l.must(b.SetDefaultSpecID(-1))
	l.must(b.AddSortOrder(&table.UnsortedSortOrder))
	l.must(b.SetDefaultSortOrderID(-1))
	l.must(b.SetProperties(iceberg.Properties{table.WriteDeleteModeKey: table.WriteModeMergeOnRead}))
	l.meta, err = b.Build()
	l.must(err)
	l.reload()
	return l
}

func (l *lake) reload() {
	l.table = table.New(table.Identifier{"db", "t"}, l.meta, "", func(context.Context) (icebergio.IO, error) { return icebergio.LocalFS{}, nil }, l)
}

// do runs a transaction and answers the id of the snapshot that is current then.
func (l *lake) do(f func(ctx context.Context, tx *table.Transaction) error) int64 {
	l.t.Helper()
	tx := l.table.NewTransaction()
	l.must(f(context.Background(), tx))
	_, err := tx.Commit(context.Background())
	l.must(err)
	l.reload()
	if s := l.table.CurrentSnapshot(); s != nil {
		return s.SnapshotID
	}
	return 0
}

// toLake widens rows of Mink's types to those of the lake's columns with the same ids;
// others are null.
func toLake(t tb, s *schema.Schema, to *iceberg.Schema, rows []mergetest.Row) arrow.RecordBatch {
	t.Helper()
	as, err := table.SchemaToArrowSchema(to, nil, true, false)
	if err != nil {
		t.Fatal(err)
	}
	rec := mergetest.Batch(s, rows)
	defer rec.Release()
	var columns []arrow.Array
	for i, f := range to.Fields() {
		at := s.IndexByID(mink.FieldID(f.ID))
		if at < 0 {
			columns = append(columns, array.MakeArrayOfNull(compute.GetAllocator(context.Background()), as.Field(i).Type, len(rows)))
			continue
		}
		arr := rec.Column(at)
		if !arrow.TypeEqual(arr.DataType(), as.Field(i).Type) {
			if arr, err = compute.CastArray(context.Background(), arr, compute.SafeCastOptions(as.Field(i).Type)); err != nil {
				t.Fatalf("column %s: %v", f.Name, err)
			}
		}
		columns = append(columns, arr)
	}
	return array.NewRecordBatch(as, columns, int64(len(rows)))
}

func (l *lake) append(s *schema.Schema, rows []mergetest.Row) int64 {
	l.t.Helper()
	rec := toLake(l.t, s, l.table.Schema(), rows)
	defer rec.Release()
	return l.do(func(ctx context.Context, tx *table.Transaction) error {
		r, err := array.NewRecordReader(rec.Schema(), []arrow.RecordBatch{rec})
		if err != nil {
			return err
		}
		defer r.Release()
		return tx.Append(ctx, r, nil)
	})
}

// equalityDelete deletes the keys of rows of which only the columns ids are looked at.
func (l *lake) equalityDelete(s *schema.Schema, ids []int, rows []mergetest.Row) int64 {
	l.t.Helper()
	var fields []iceberg.NestedField
	for _, f := range l.table.Schema().Fields() {
		if slices.Contains(ids, f.ID) {
			fields = append(fields, f)
		}
	}
	rec := toLake(l.t, s, iceberg.NewSchema(0, fields...), rows)
	return l.do(func(ctx context.Context, tx *table.Transaction) error {
		return tx.CommitEqualityDeletes(ctx, ids, func(yield func(arrow.RecordBatch, error) bool) { yield(rec, nil) }, nil)
	})
}

// logLayout is the layout of a table without partitions whose files are all foreign.
func layoutOf(d *schema.Descriptor, partitions map[mink.PartitionID][]string, own map[string]mink.BucketRef) scan.Layout {
	return scan.Layout{
		Table: 7, Descriptor: d,
		Partitions: func(yield func(mink.PartitionID, []string) bool) {
			for _, id := range slices.Sorted(maps.Keys(partitions)) {
				if !yield(id, partitions[id]) {
					return
				}
			}
		},
		BucketOf: func(location string) (mink.BucketRef, bool) {
			for part, ref := range own {
				if strings.Contains(location, part) {
					return ref, true
				}
			}
			return mink.BucketRef{}, false
		},
	}
}

func openAt(t tb, l *lake, id int64, layout scan.Layout) *scan.Snapshot {
	t.Helper()
	s, err := scan.Open(l.table, id, layout)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func collect(batches iter.Seq2[arrow.RecordBatch, error]) (rows []mergetest.Row, err error) {
	for rec, err := range batches {
		if err != nil {
			return rows, err
		}
		rows = append(rows, mergetest.Rows(rec)...)
	}
	return rows, nil
}

// sorted puts rows into an order of their own.
func sorted(rows []mergetest.Row) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = fmt.Sprintf("%#v", []any(r))
	}
	slices.Sort(out)
	return out
}

func parse(t tb, text string) *predicate.Expr {
	t.Helper()
	if text == "" {
		return nil
	}
	e, err := predicate.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func schemaOf(columns ...string) *schema.Schema {
	s := &schema.Schema{ID: 1}
	for i, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		s.Columns = append(s.Columns, schema.Column{ID: mink.FieldID(i + 1), Name: name, Type: schema.MustParseType(typ)})
	}
	return s
}

// lakeField is a leaf column of the lake for one of Mink's.
func lakeField(c schema.Column) iceberg.NestedField {
	var t iceberg.Type
	switch k := c.Type; k.Kind {
	case schema.Boolean:
		t = iceberg.PrimitiveTypes.Bool
	case schema.TinyInt, schema.SmallInt, schema.Int:
		t = iceberg.PrimitiveTypes.Int32
	case schema.BigInt:
		t = iceberg.PrimitiveTypes.Int64
	case schema.Float:
		t = iceberg.PrimitiveTypes.Float32
	case schema.Double:
		t = iceberg.PrimitiveTypes.Float64
	case schema.Decimal:
		t = iceberg.DecimalTypeOf(k.Precision, k.Scale)
	case schema.Char, schema.String:
		t = iceberg.PrimitiveTypes.String
	case schema.Binary:
		t = iceberg.FixedTypeOf(k.Length)
	case schema.Bytes:
		t = iceberg.PrimitiveTypes.Binary
	case schema.Date:
		t = iceberg.PrimitiveTypes.Date
	case schema.Time:
		t = iceberg.PrimitiveTypes.Time
	case schema.Timestamp:
		if t = iceberg.PrimitiveTypes.Timestamp; k.Precision > 6 {
			t = iceberg.TimestampNsType{}
		}
	case schema.TimestampLTZ:
		if t = iceberg.PrimitiveTypes.TimestampTz; k.Precision > 6 {
			t = iceberg.TimestampTzNsType{}
		}
	}
	return iceberg.NestedField{ID: int(c.ID), Name: c.Name, Type: t, Required: c.Type.NotNull}
}

func lakeFields(s *schema.Schema) []iceberg.NestedField {
	var out []iceberg.NestedField
	for _, c := range s.Columns {
		out = append(out, lakeField(c))
	}
	return out
}

func tempDir(t *testing.T) func() string {
	n, dir := 0, t.TempDir()
	return func() string {
		n++
		return fmt.Sprintf("%s/%d", dir, n)
	}
}
