package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// printFlags is how rows are shown.
type printFlags struct {
	format     string
	meta, text bool
	limit      int64
}

// page is rows to print, with what --meta says of each.
type page struct {
	record  arrow.RecordBatch
	skipped string // what was left out before it, for a person
	meta    func(row int) metaRow
	columns metaColumns // which of a metaRow's there are
}

// metaRow is what is known of a row beside its columns.
type metaRow struct {
	change    mink.Change
	bucket    int32
	offset    int64
	timestamp int64 // ms since 1970
}

// metaColumns says which columns --meta adds, besides __bucket.
type metaColumns struct{ change, offset, timestamp, logOffset bool }

var (
	logMeta       = metaColumns{offset: true, timestamp: true}
	changelogMeta = metaColumns{change: true, offset: true, timestamp: true}
	rowMeta       = metaColumns{logOffset: true}
)

// logPages makes pages of batches of a log.
func logPages(batches iter.Seq2[client.Batch, error], columns metaColumns) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		for b, err := range batches {
			p := page{record: b.Record, columns: columns, meta: func(row int) metaRow {
				return metaRow{b.Change(row), b.Bucket.Index, int64(b.Meta.Base) + int64(row), b.Meta.CommitTimestamp}
			}}
			if b.Meta.Quarantined != "" {
				p.skipped = skipped(b)
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// rowPages makes pages of the rows of a primary-key table.
func rowPages(batches iter.Seq2[client.SnapshotBatch, error]) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		for b, err := range batches {
			if !yield(page{record: b.Record, columns: rowMeta, meta: func(int) metaRow {
				return metaRow{bucket: b.Bucket.Index, offset: int64(b.LogOffset)}
			}}, err) {
				return
			}
		}
	}
}

// copyPages makes pages of rows and of the changes behind them.
func copyPages(batches iter.Seq2[client.BootstrapBatch, error]) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		for b, err := range batches {
			p := page{record: b.Record, columns: changelogMeta, meta: func(row int) metaRow {
				m := metaRow{change: b.Changes[row], bucket: b.Bucket.Index, offset: -1}
				if b.Following {
					m.offset, m.timestamp = int64(b.Offsets[row]), b.Meta.CommitTimestamp
				}
				return m
			}}
			if b.Meta.Quarantined != "" {
				p.skipped = skipped(client.Batch{Bucket: b.Bucket, Meta: b.Meta})
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

func skipped(b client.Batch) string {
	return fmt.Sprintf("bucket %s: offsets %d..%d skipped: %s", b.Bucket, b.Meta.Base, b.Meta.Last, b.Meta.Quarantined)
}

// emptyPage has the columns of a read without rows.
func emptyPage(d *schema.Descriptor, columns []string, meta metaColumns) page {
	s := d.Schema.Arrow()
	if len(columns) > 0 {
		var fields []arrow.Field
		for _, name := range columns {
			found, _ := s.FieldsByName(name)
			fields = append(fields, found...)
		}
		s = arrow.NewSchema(fields, nil)
	}
	b := array.NewRecordBuilder(defaultAllocator, s)
	defer b.Release()
	return page{record: b.NewRecordBatch(), columns: meta}
}

// printPages answers how many rows it printed. empty stands in for them when there is
// none, so that a header is there all the same.
func (a *app) printPages(pages iter.Seq2[page, error], f printFlags, empty page) (rows int64, err error) {
	defer empty.record.Release()
	var p rowPrinter
	for b, err := range pages {
		if err != nil {
			return rows, err
		}
		if b.skipped != "" {
			a.note("%s", b.skipped)
		}
		if b.record.NumRows() == 0 {
			continue
		}
		if f.limit > 0 && rows+b.record.NumRows() > f.limit {
			b.record = b.record.NewSlice(0, f.limit-rows)
			defer b.record.Release() // the last one
		}
		if err := a.printPage(&p, b, f); err != nil {
			return rows, err
		}
		if rows += b.record.NumRows(); rows == f.limit {
			break
		}
	}
	if p == nil && f.format != "json" {
		if err := a.printPage(&p, empty, f); err != nil {
			return 0, err
		}
	}
	if p == nil {
		return 0, nil
	}
	return rows, p.close()
}

// printPage prints what a page shows under the flags, and holds nothing of it.
func (a *app) printPage(p *rowPrinter, b page, f printFlags) error {
	rec := b.record
	if f.text {
		rec = asText(rec)
		defer rec.Release()
	}
	if f.meta {
		rec = withMeta(b, rec)
		defer rec.Release()
	}
	if *p == nil {
		*p = a.printer(f.format, rec.Schema())
	}
	return (*p).print(rec)
}

// withMeta adds the columns of --meta behind the rows'.
func withMeta(b page, rec arrow.RecordBatch) arrow.RecordBatch {
	type column struct {
		field  arrow.Field
		append func(array.Builder, metaRow)
	}
	number := func(name string, of func(metaRow) int64, none int64) column {
		return column{arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64, Nullable: true}, func(b array.Builder, m metaRow) {
			if v := of(m); v != none {
				b.(*array.Int64Builder).Append(v)
			} else {
				b.AppendNull()
			}
		}}
	}
	offset := func(m metaRow) int64 { return m.offset }
	var add []column
	if b.columns.change {
		add = append(add, column{arrow.Field{Name: api.ColumnChange, Type: arrow.BinaryTypes.String}, func(b array.Builder, m metaRow) {
			b.(*array.StringBuilder).Append(m.change.String())
		}})
	}
	add = append(add, column{arrow.Field{Name: "__bucket", Type: arrow.PrimitiveTypes.Int32}, func(b array.Builder, m metaRow) {
		b.(*array.Int32Builder).Append(m.bucket)
	}})
	if b.columns.offset {
		add = append(add, number(api.ColumnOffset, offset, -1))
	}
	if b.columns.logOffset {
		add = append(add, number("__log_offset", offset, -1))
	}
	if b.columns.timestamp {
		add = append(add, column{arrow.Field{Name: api.ColumnTimestamp, Type: arrow.FixedWidthTypes.Timestamp_ms, Nullable: true}, func(b array.Builder, m metaRow) {
			if m.timestamp != 0 {
				b.(*array.TimestampBuilder).Append(arrow.Timestamp(m.timestamp))
			} else {
				b.AppendNull()
			}
		}})
	}
	fields, columns := slices.Clone(rec.Schema().Fields()), slices.Clone(rec.Columns())
	for _, c := range add {
		builder := array.NewBuilder(defaultAllocator, c.field.Type)
		for row := range int(rec.NumRows()) {
			c.append(builder, b.meta(row))
		}
		made := builder.NewArray()
		defer made.Release()
		builder.Release()
		fields, columns = append(fields, c.field), append(columns, made)
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, rec.NumRows())
}

// add makes the flags that every command has which prints rows.
func (f *printFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.text, "text", false, "show BYTES as UTF-8 text")
	cmd.Flags().StringVar(&f.format, "format", f.format, "json, csv, table or arrow")
	completeWords(cmd, "format", "json", "csv", "table", "arrow")
}

func (f *printFlags) check() error {
	if !slices.Contains([]string{"json", "csv", "table", "arrow"}, f.format) {
		return usagef("--format %q: want json, csv, table or arrow", f.format)
	}
	return nil
}

// rowPrinter writes batches in one format.
type rowPrinter interface {
	print(arrow.RecordBatch) error
	close() error
}

func (a *app) printer(format string, schema *arrow.Schema) rowPrinter {
	switch format {
	case "csv":
		return &csvPrinter{w: csv.NewWriter(a.out)}
	case "arrow":
		return &arrowPrinter{ipc.NewWriter(a.out, ipc.WithSchema(schema))}
	case "table":
		return &tablePrinter{app: a}
	default:
		return jsonPrinter{a.out}
	}
}

type jsonPrinter struct{ out io.Writer }

func (p jsonPrinter) print(rec arrow.RecordBatch) error {
	var text []byte
	fields := rec.Schema().Fields()
	for row := range int(rec.NumRows()) {
		text = append(jsonrow.AppendObject(text, fields, rec.Columns(), row), '\n')
		if len(text) > 1<<16 || row == int(rec.NumRows())-1 {
			if _, err := p.out.Write(text); err != nil {
				return err
			}
			text = text[:0]
		}
	}
	return nil
}

func (p jsonPrinter) close() error { return nil }

// csvPrinter writes what write --format csv reads. Arrow's CSV writer panics on
// TIME and ROW.
type csvPrinter struct {
	w      *csv.Writer
	header bool
}

func (p *csvPrinter) print(rec arrow.RecordBatch) error {
	record := make([]string, rec.NumCols())
	if !p.header {
		p.header = true
		for i, f := range rec.Schema().Fields() {
			record[i] = f.Name
		}
		if err := p.w.Write(record); err != nil {
			return err
		}
	}
	for row := range int(rec.NumRows()) {
		for i, c := range rec.Columns() {
			record[i] = csvCell(c, row)
		}
		if err := p.w.Write(record); err != nil {
			return err
		}
	}
	return p.close()
}

func (p *csvPrinter) close() error {
	p.w.Flush()
	return p.w.Error()
}

func csvCell(c arrow.Array, row int) string {
	if c.IsNull(row) {
		return ""
	}
	if s, ok := c.(*array.String); ok {
		return s.Value(row)
	}
	return jsonText(c, row)
}

// jsonText is a value as JSON has it, without the quotes of a string.
func jsonText(c arrow.Array, row int) string {
	b := jsonrow.AppendValue(nil, c, row)
	var s string
	if json.Unmarshal(b, &s) == nil {
		return s
	}
	return string(b)
}

type arrowPrinter struct{ w *ipc.Writer }

func (p *arrowPrinter) print(rec arrow.RecordBatch) error { return p.w.Write(rec) }
func (p *arrowPrinter) close() error                      { return p.w.Close() }

// tablePrinter gathers everything: column widths need it.
type tablePrinter struct {
	app    *app
	header []string
	rows   [][]string
}

func (p *tablePrinter) print(rec arrow.RecordBatch) error {
	if p.header == nil {
		for _, f := range rec.Schema().Fields() {
			p.header = append(p.header, f.Name)
		}
	}
	for row := range int(rec.NumRows()) {
		cells := make([]string, rec.NumCols())
		for i, c := range rec.Columns() {
			cells[i] = cell(c, row)
		}
		p.rows = append(p.rows, cells)
	}
	return nil
}

func (p *tablePrinter) close() error {
	p.app.printTable(p.header, p.rows)
	return nil
}

func cell(c arrow.Array, row int) string {
	if c.IsNull(row) {
		return "NULL"
	}
	switch c := c.(type) {
	case *array.String:
		return c.Value(row)
	case *array.Binary: // what most topics hold is text
		if v := c.Value(row); printable(v) {
			return string(v)
		}
	}
	return jsonText(c, row)
}

func printable(b []byte) bool {
	return utf8.Valid(b) && bytes.IndexFunc(b, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
