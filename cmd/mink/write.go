package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// writeFlags is what `write` takes.
type writeFlags struct {
	format    string
	batchRows int
	deletes   bool
	columns   []string
}

func writeCommand(a *app) *cobra.Command {
	f := writeFlags{format: "json", batchRows: 4096}
	cmd := &cobra.Command{
		Use: "write DB.TABLE [FILE...]", Short: "Append, upsert or delete rows from files or standard input",
		Args: tableFirst, ValidArgsFunction: a.completeTable,
		Long: `Appends rows to a log table, or upserts them into a primary-key table, and returns
when all of them are durable. Formats:

  json     one object a line; BYTES as base64, 64-bit numbers as they are
  csv      with a header line; an empty field is null, or "" in a NOT NULL text
           column; ARRAY, MAP and ROW as JSON
  arrow    an IPC stream
  parquet  files only, not standard input

Columns are matched by name, in any order; one that is not there is null, one
that the table does not have is refused. Rows before a bad one may have been
written: the command says after how many rows it stopped.

A row replaces the one with its primary key. With --columns only those columns
are set; the others keep their values. With --delete the rows with these keys are
removed: the key's columns suffice, others are passed over; with --columns too,
those columns are set to null, and a row goes when no other column is left.`,
		Example: `  mink write db.events <events.jsonl
  mink write db.events --format csv january.csv february.csv
  echo '{"id": 7, "price": 12}' | mink write db.items --columns price
  echo '{"id": 7}' | mink write db.items --delete`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"json", "csv", "arrow", "parquet"}, f.format) {
				return usagef("--format %q: want json, csv, arrow or parquet", f.format)
			}
			if f.batchRows < 1 {
				return usagef("--batch-rows must be 1 or more")
			}
			files := args[1:]
			if len(files) == 0 {
				files = []string{"-"}
			}
			n, err := a.write(cmd.Context(), args[0], files, f)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]int64{"rows": n})
			}
			what := "row"
			if f.deletes {
				what = "delete"
			}
			a.note("%s durable in %s", count(n, what), args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&f.format, "format", f.format, "json, csv, arrow or parquet")
	cmd.Flags().IntVar(&f.batchRows, "batch-rows", f.batchRows, "rows of one batch, except for arrow")
	cmd.Flags().BoolVar(&f.deletes, "delete", false, "delete the rows with these keys")
	cmd.Flags().StringSliceVar(&f.columns, "columns", nil, "set only these columns beside the key's")
	completeWords(cmd, "format", "json", "csv", "arrow", "parquet")
	return cmd
}

// withoutPath is a file's error for a caller that names the file.
func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// tableFirst wants DATABASE.TABLE and perhaps more.
func tableFirst(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("%s wants DATABASE.TABLE; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	_, _, err := splitName(args[0])
	return err
}

// rowWriter is where rows of files go: a writer of either kind of table.
type rowWriter struct {
	schema *arrow.Schema // of rows in files
	write  func(context.Context, arrow.RecordBatch) (*client.Append, error)
	close  func(context.Context) error
}

func openWriter(ctx context.Context, c *client.Client, table string, f writeFlags) (rowWriter, error) {
	d, err := descriptorOf(ctx, c, table)
	if err != nil {
		return rowWriter{}, err
	}
	if len(d.PrimaryKey) == 0 {
		if f.deletes || len(f.columns) > 0 {
			return rowWriter{}, fmt.Errorf("%w write: table %s is a log table: rows are appended, --delete and --columns are for tables with a primary key", mink.ErrInvalid, table)
		}
		w, err := c.NewWriter(ctx, table, client.DefaultWriter())
		if err != nil {
			return rowWriter{}, err
		}
		return rowWriter{w.Schema(), w.Append, w.Close}, nil
	}
	cfg := client.DefaultUpsert()
	if len(f.columns) > 0 {
		cfg.Columns = f.columns
		for _, k := range d.PrimaryKey {
			if !slices.Contains(cfg.Columns, k) {
				cfg.Columns = append(cfg.Columns, k)
			}
		}
	}
	w, err := c.NewUpsertWriter(ctx, table, cfg)
	if err != nil {
		return rowWriter{}, err
	}
	if f.deletes {
		return rowWriter{keysAlone(d), w.Delete, w.Close}, nil
	}
	return rowWriter{w.Schema(), w.Upsert, w.Close}, nil
}

// keysAlone is the table's columns, of which only the key's must be there.
func keysAlone(d *schema.Descriptor) *arrow.Schema {
	s := d.Schema.Clone()
	for i, c := range s.Columns {
		s.Columns[i].Type.NotNull = slices.Contains(d.PrimaryKey, c.Name)
	}
	return s.Arrow()
}

func (a *app) write(ctx context.Context, table string, files []string, f writeFlags) (rows int64, err error) {
	c, err := a.patientClient(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	w, err := openWriter(ctx, c, table, f)
	if err != nil {
		return 0, err
	}
	for _, name := range files {
		n, err := a.writeFile(ctx, w, name, f)
		rows += n
		if err != nil {
			closing, cancel := context.WithCancel(ctx)
			cancel()
			_ = w.close(closing)
			if name == "-" {
				name = "standard input"
			}
			return rows, fmt.Errorf("%s: %w", name, err)
		}
	}
	return rows, w.close(ctx)
}

// rowReader reads batches; like array.RecordReader, with an end.
type rowReader interface {
	Next() bool
	RecordBatch() arrow.RecordBatch
	Err() error
	Release()
}

func (a *app) writeFile(ctx context.Context, w rowWriter, name string, f writeFlags) (rows int64, err error) {
	in := a.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return 0, withoutPath(err)
		}
		defer file.Close()
		in = file
	}
	r, err := openRows(ctx, in, f.format, w.schema, f.batchRows)
	if err != nil {
		return 0, err
	}
	defer r.Release()
	for r.Next() {
		rec := r.RecordBatch()
		if _, err := w.write(ctx, rec); err != nil {
			return rows, fmt.Errorf("after %d rows: %w", rows, err)
		}
		rows += rec.NumRows()
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return rows, fmt.Errorf("after %d rows: %w", rows, err)
	}
	return rows, nil
}

func openRows(ctx context.Context, in io.Reader, format string, schema *arrow.Schema, batchRows int) (rowReader, error) {
	switch format {
	case "json":
		return newJSONRows(in, schema, batchRows), nil
	case "csv":
		return newCSVRows(in, schema, batchRows)
	case "arrow":
		return ipc.NewReader(in, ipc.WithAllocator(memory.DefaultAllocator))
	default:
		return openParquet(ctx, in, batchRows)
	}
}

func openParquet(ctx context.Context, in io.Reader, batchRows int) (rowReader, error) {
	f, ok := in.(*os.File)
	if !ok {
		return nil, fmt.Errorf("parquet wants a file: %w", mink.ErrInvalid)
	}
	pf, err := file.NewParquetReader(f)
	if err != nil {
		return nil, err
	}
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: int64(batchRows)}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	rr, err := r.GetRecordReader(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	return rr, nil
}

var defaultAllocator = memory.DefaultAllocator
