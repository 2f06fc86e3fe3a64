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
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/spf13/cobra"

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
	if !slices.Contains([]string{"json", "csv", "table", "arrow"}, f.format) {
		return usagef("--format %q: want json, csv, table or arrow", f.format)
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
	return a.printBatches(batches, f)
}

// rowPrinter writes batches in one format.
type rowPrinter interface {
	print(arrow.RecordBatch) error
	close() error
}

func (a *app) printBatches(batches iter.Seq2[client.Batch, error], f readFlags) error {
	var p rowPrinter
	left := f.limit
	for b, err := range batches {
		if err != nil {
			return err
		}
		if b.Meta.Quarantined != "" {
			a.note("bucket %s: offsets %d..%d skipped: %s", b.Bucket, b.Meta.Base, b.Meta.Last, b.Meta.Quarantined)
		}
		rec := b.Record
		if rec.NumRows() == 0 {
			continue
		}
		if f.limit > 0 && rec.NumRows() > left {
			rec = rec.NewSlice(0, left)
			defer rec.Release()
		}
		left -= rec.NumRows()
		if f.text {
			rec = asText(rec)
			defer rec.Release()
		}
		if f.meta {
			rec = withMeta(b, rec)
			defer rec.Release()
		}
		if p == nil {
			p = a.printer(f.format, rec.Schema())
		}
		if err := p.print(rec); err != nil {
			return err
		}
	}
	if p == nil {
		return nil
	}
	return p.close()
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
	var text bytes.Buffer
	fields := rec.Schema().Fields()
	for row := range int(rec.NumRows()) {
		if err := appendObject(&text, fields, rec.Columns(), row); err != nil {
			return err
		}
		text.WriteByte('\n')
		if text.Len() > 1<<16 || row == int(rec.NumRows())-1 {
			if _, err := p.out.Write(text.Bytes()); err != nil {
				return err
			}
			text.Reset()
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
	var b bytes.Buffer
	if err := appendJSON(&b, c, row); err != nil {
		return c.ValueStr(row)
	}
	var s string
	if json.Unmarshal(b.Bytes(), &s) == nil {
		return s
	}
	return b.String()
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
