package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
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

// readFlags is what `read` takes.
type readFlags struct {
	mode, from, format string
	follow, meta, text bool
	limit              int64
	bucket             int32
	partition, columns []string
}

func readCommand(a *app) *cobra.Command {
	f := readFlags{mode: "log", from: "earliest", format: "json", bucket: -1}
	cmd := &cobra.Command{
		Use: "read DB.TABLE", Short: "Read rows of a table's log",
		Long: `Reads rows in the order of each bucket's log, one bucket after the other; with
-f all buckets at once, for ever. Formats: json (one object a line), csv, table,
arrow (an IPC stream). BYTES are base64; --text shows them as text.`,
		Example: `  mink read db.events
  mink read db.events --from 2026-01-31T00:00:00Z --columns id,text --format csv
  mink read db.events -f --meta
  mink read kafka.words --columns value,timestamp --text`,
		Args: oneTable, ValidArgsFunction: a.completeTable,
		RunE: func(cmd *cobra.Command, args []string) error { return a.read(cmd.Context(), args[0], f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.mode, "mode", f.mode, "log; snapshot, union and lake are not supported yet")
	fl.StringVar(&f.from, "from", f.from, "earliest, latest, an offset, or a timestamp (RFC 3339, or 1700000000000ms)")
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on as rows come")
	fl.Int64VarP(&f.limit, "limit", "n", 0, "stop after so many rows")
	fl.Int32Var(&f.bucket, "bucket", f.bucket, "only this bucket")
	fl.StringSliceVar(&f.partition, "partition", nil, "only this partition, KEY=VALUE,...")
	fl.StringSliceVar(&f.columns, "columns", nil, "only these columns")
	fl.BoolVar(&f.meta, "meta", false, "add __bucket and __offset to each row")
	fl.BoolVar(&f.text, "text", false, "show BYTES as UTF-8 text")
	fl.StringVar(&f.format, "format", f.format, "json, csv, table or arrow")
	completeWords(cmd, "format", "json", "csv", "table", "arrow")
	completeWords(cmd, "mode", "log")
	completeWords(cmd, "from", "earliest", "latest")
	return cmd
}

func (a *app) read(ctx context.Context, name string, f readFlags) error {
	if f.mode != "log" {
		return fmt.Errorf("--mode %s: %w yet; see docs/limits.md", f.mode, mink.ErrUnsupported)
	}
	switch {
	case !slices.Contains([]string{"json", "csv", "table", "arrow"}, f.format):
		return usagef("--format %q: want json, csv, table or arrow", f.format)
	case f.format == "table" && f.follow:
		return usagef("--format table needs all rows to be wide enough for each: with --follow take json or csv")
	case f.limit < 0:
		return usagef("--limit %d: want 1 or more, or 0 for all", f.limit)
	case f.bucket < -1:
		return usagef("--bucket %d: want 0 or more", f.bucket)
	}
	if _, err := api.ParsePosition(f.from); err != nil {
		return usagef("--from: %w", err)
	}
	connect := func(context.Context) (*client.Client, error) { return a.client() }
	if f.follow {
		connect = a.patientClient
	}
	c, err := connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	r := client.ScanRequest{Table: name, Bucket: f.bucket, From: f.from, Columns: f.columns, Limit: f.limit}
	if len(f.partition) > 0 {
		if r.Partition, err = partitionValues(ctx, c, name, f.partition); err != nil {
			return err
		}
	}
	var batches iter.Seq2[client.Batch, error]
	if f.follow {
		batches = c.Tail(ctx, client.TailRequest{ScanRequest: r})
	} else {
		batches = c.Scan(ctx, r)
	}
	rows, err := a.printBatches(batches, f, func() (*arrow.Schema, error) { return schemaOfRead(ctx, c, name, f.columns) })
	if err == nil && rows == 0 && !f.follow {
		err = a.noteBeyondEnd(ctx, c, r)
	}
	return err
}

// noteBeyondEnd tells where the log ends when a read began past it.
func (a *app) noteBeyondEnd(ctx context.Context, c *client.Client, r client.ScanRequest) error {
	if r.From == "" || strings.Trim(r.From, "0123456789") != "" {
		return nil // no offset
	}
	from, err := strconv.ParseInt(r.From, 10, 64)
	if err != nil {
		return err
	}
	ends, err := c.ListOffsets(ctx, r.Table, r.Partition, "latest")
	if err != nil {
		return err
	}
	for _, e := range ends {
		if (r.Bucket < 0 || e.Bucket.Index == r.Bucket) && e.Error == "" && from > int64(e.Offset) {
			where := fmt.Sprintf("bucket %d", e.Bucket.Index)
			if len(e.Values) > 0 {
				where += " of partition " + strings.Join(e.Values, "/")
			}
			a.note("offset %d is beyond the end of %s: %s ends at offset %d", from, r.Table, where, e.Offset)
		}
	}
	return nil
}

// schemaOfRead is what the rows of a read look like.
func schemaOfRead(ctx context.Context, c *client.Client, name string, columns []string) (*arrow.Schema, error) {
	t, err := c.DescribeTable(ctx, name)
	if err != nil {
		return nil, err
	}
	d, err := schema.DecodeDescriptor(t.Descriptor)
	if err != nil {
		return nil, err
	}
	all := d.Schema.Arrow()
	if len(columns) == 0 {
		return all, nil
	}
	var fields []arrow.Field
	for _, name := range columns {
		found, _ := all.FieldsByName(name)
		fields = append(fields, found...)
	}
	return arrow.NewSchema(fields, nil), nil
}

// rowPrinter writes batches in one format.
type rowPrinter interface {
	print(arrow.RecordBatch) error
	close() error
}

// printBatches answers how many rows it printed. describe is asked for the
// columns when there is none, so that a header is there all the same.
func (a *app) printBatches(batches iter.Seq2[client.Batch, error], f readFlags, describe func() (*arrow.Schema, error)) (rows int64, err error) {
	var p rowPrinter
	for b, err := range batches {
		if err != nil {
			return rows, err
		}
		if b.Meta.Quarantined != "" {
			a.note("bucket %s: offsets %d..%d skipped: %s", b.Bucket, b.Meta.Base, b.Meta.Last, b.Meta.Quarantined)
		}
		if b.Record.NumRows() == 0 {
			continue
		}
		if f.limit > 0 && rows+b.Record.NumRows() > f.limit {
			b.Record = b.Record.NewSlice(0, f.limit-rows)
			defer b.Record.Release() // the last one
		}
		if err := a.printBatch(&p, b, f); err != nil {
			return rows, err
		}
		rows += b.Record.NumRows()
	}
	if p == nil && f.format != "json" {
		s, err := describe()
		if err != nil {
			return 0, err
		}
		b := array.NewRecordBuilder(defaultAllocator, s)
		defer b.Release()
		none := b.NewRecordBatch()
		defer none.Release()
		if err := a.printBatch(&p, client.Batch{Record: none}, f); err != nil {
			return 0, err
		}
	}
	if p == nil {
		return 0, nil
	}
	return rows, p.close()
}

// printBatch prints what one batch shows under the flags, and holds nothing of it.
func (a *app) printBatch(p *rowPrinter, b client.Batch, f readFlags) error {
	rec := b.Record
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

// withMeta adds the bucket and each row's offset.
func withMeta(b client.Batch, rec arrow.RecordBatch) arrow.RecordBatch {
	pool := defaultAllocator
	bucket, offset := array.NewInt32Builder(pool), array.NewInt64Builder(pool)
	defer bucket.Release()
	defer offset.Release()
	for i := range rec.NumRows() {
		bucket.Append(b.Bucket.Index)
		offset.Append(int64(b.Meta.Base) + i)
	}
	fields := append(slices.Clone(rec.Schema().Fields()),
		arrow.Field{Name: "__bucket", Type: arrow.PrimitiveTypes.Int32}, arrow.Field{Name: "__offset", Type: arrow.PrimitiveTypes.Int64})
	ba, oa := bucket.NewArray(), offset.NewArray()
	defer ba.Release()
	defer oa.Release()
	columns := append(slices.Clone(rec.Columns()), ba, oa)
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, rec.NumRows())
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
