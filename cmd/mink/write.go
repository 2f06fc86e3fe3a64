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

	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func writeCommand(a *app) *cobra.Command {
	format, batchRows := "json", 4096
	cmd := &cobra.Command{
		Use: "write DB.TABLE [FILE...]", Short: "Append rows from files or standard input",
		Args: tableFirst, ValidArgsFunction: a.completeTable,
		Long: `Appends rows and returns when all of them are durable. Formats:

  json     one object a line; BYTES as base64, 64-bit numbers as they are
  csv      with a header line; an empty field is null, or "" in a NOT NULL text
           column; ARRAY, MAP and ROW as JSON
  arrow    an IPC stream
  parquet  files only, not standard input

Columns are matched by name, in any order; one that is not there is null, one
that the table does not have is refused. Rows before a bad one may have been
written: the command says after how many rows it stopped.`,
		Example: `  mink write db.events <events.jsonl
  mink write db.events --format csv january.csv february.csv`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"json", "csv", "arrow", "parquet"}, format) {
				return usagef("--format %q: want json, csv, arrow or parquet", format)
			}
			if batchRows < 1 {
				return usagef("--batch-rows must be 1 or more")
			}
			files := args[1:]
			if len(files) == 0 {
				files = []string{"-"}
			}
			n, err := a.write(cmd.Context(), args[0], files, format, batchRows)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]int64{"rows": n})
			}
			a.note("%s durable in %s", count(n, "row"), args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", format, "json, csv, arrow or parquet")
	cmd.Flags().IntVar(&batchRows, "batch-rows", batchRows, "rows of one batch, except for arrow")
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

func (a *app) write(ctx context.Context, table string, files []string, format string, batchRows int) (rows int64, err error) {
	c, err := a.patientClient(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	w, err := c.NewWriter(ctx, table, client.DefaultWriter())
	if err != nil {
		return 0, err
	}
	for _, name := range files {
		n, err := a.writeFile(ctx, w, name, format, batchRows)
		rows += n
		if err != nil {
			closing, cancel := context.WithCancel(ctx)
			cancel()
			_ = w.Close(closing)
			if name == "-" {
				name = "standard input"
			}
			return rows, fmt.Errorf("%s: %w", name, err)
		}
	}
	return rows, w.Close(ctx)
}

// rowReader reads batches; like array.RecordReader, with an end.
type rowReader interface {
	Next() bool
	RecordBatch() arrow.RecordBatch
	Err() error
	Release()
}

func (a *app) writeFile(ctx context.Context, w *client.Writer, name, format string, batchRows int) (rows int64, err error) {
	in := a.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return 0, withoutPath(err)
		}
		defer f.Close()
		in = f
	}
	r, err := openRows(ctx, in, format, w.Schema(), batchRows)
	if err != nil {
		return 0, err
	}
	defer r.Release()
	for r.Next() {
		rec := r.RecordBatch()
		if _, err := w.Append(ctx, rec); err != nil {
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
