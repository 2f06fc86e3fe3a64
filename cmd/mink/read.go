package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// readFlags is what `read` takes.
type readFlags struct {
	printFlags
	mode, from         string
	follow             bool
	bucket             int32
	partition, columns []string
	fromKey, toKey     string
	filter             string
}

func readCommand(a *app) *cobra.Command {
	f := readFlags{printFlags: printFlags{format: "json"}, bucket: -1}
	cmd := &cobra.Command{
		Use: "read DB.TABLE", Short: "Read the rows of a table, or its log",
		Long: `Reads, one bucket after the other, in one of four modes:

  log       what was appended, in the order of each bucket's log; of a
            primary-key table its changelog. Usual for a log table.
  snapshot  the rows of a primary-key table, one per key, in the order of the
            keys in each bucket. Usual for a primary-key table.
  union     of a table with the option lake: the rows of the lake, and those
            that are only in the log yet. Of a primary-key table one per key.
  lake      the rows of the lake alone.

--filter takes a condition, in all modes but log: comparisons, IN, BETWEEN, IS NULL,
AND, OR, NOT, and literals such as 12.5, 'text', DATE '2024-01-31', TRUE, X'00ff'.

With -f it goes on for ever, all buckets at once; in snapshot mode the rows come
first, then every change since (--meta is on then and tells them apart).

--meta adds __bucket, and in log mode __offset, __timestamp and, of a changelog,
__change: +I insert, -U and +U the row before and after an update, -D delete. In
the other modes it adds __log_offset, where the log goes on from the rows.

Formats: json (one object a line), csv, table, arrow (an IPC stream). BYTES are
base64; --text shows them as text.`,
		Example: `  mink read db.events
  mink read db.events --from 2026-01-31T00:00:00Z --columns id,text --format csv
  mink read db.events -f --meta
  mink read db.items --from-key 100 --to-key 200
  mink read db.items --mode log --meta
  mink read db.items --mode union --filter "price > 10 AND day = DATE '2024-01-31'"
  mink read kafka.words --columns value,timestamp --text`,
		Args: oneTable, ValidArgsFunction: a.completeTable,
		RunE: func(cmd *cobra.Command, args []string) error { return a.read(cmd.Context(), args[0], f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.mode, "mode", "", "log, snapshot, union or lake; default by the kind of table")
	fl.StringVar(&f.filter, "filter", "", "only rows for which this is true, in modes snapshot, union and lake: \"id > 5 AND name IS NOT NULL\"")
	fl.StringVar(&f.from, "from", "", "log mode: earliest (default), latest, an offset, or a timestamp (RFC 3339, or 1700000000000ms)")
	fl.StringVar(&f.fromKey, "from-key", "", "snapshot mode: only keys from this one on; a key as mink lookup takes it, or its first columns")
	fl.StringVar(&f.toKey, "to-key", "", "snapshot mode: only keys below this one")
	fl.BoolVarP(&f.follow, "follow", "f", false, "go on as rows come")
	fl.Int64VarP(&f.limit, "limit", "n", 0, "stop after so many rows")
	fl.Int32Var(&f.bucket, "bucket", f.bucket, "only this bucket")
	fl.StringSliceVar(&f.partition, "partition", nil, "only this partition, KEY=VALUE,...")
	fl.StringSliceVar(&f.columns, "columns", nil, "only these columns")
	f.printFlags.add(cmd)
	fl.BoolVar(&f.meta, "meta", false, "add columns that say where each row is from")
	completeWords(cmd, "mode", readModes...)
	completeWords(cmd, "from", "earliest", "latest")
	return cmd
}

var readModes = []string{"log", "snapshot", "union", "lake"}

// ofLake reports a mode that reads the lake.
func (f *readFlags) ofLake() bool { return f.mode == "union" || f.mode == "lake" }

// check refuses what cannot be before a node is asked.
func (f *readFlags) check() error {
	if err := f.printFlags.check(); err != nil {
		return err
	}
	switch {
	case f.mode != "" && !slices.Contains(readModes, f.mode):
		return usagef("--mode %q: want one of %s", f.mode, strings.Join(readModes, ", "))
	case f.ofLake() && f.follow:
		return usagef("--follow is for --mode log and snapshot")
	case f.filter != "" && (f.mode == "log" || f.follow):
		return usagef("--filter is for reads that end in modes snapshot, union and lake")
	case f.filter != "" && f.fromKey+f.toKey != "":
		return usagef("--filter stands without --from-key and --to-key: say the bounds in it")
	case f.format == "table" && f.follow:
		return usagef("--format table needs all rows to be wide enough for each: with --follow take json or csv")
	case f.limit < 0:
		return usagef("--limit %d: want 1 or more, or 0 for all", f.limit)
	case f.bucket < -1:
		return usagef("--bucket %d: want 0 or more", f.bucket)
	case f.fromKey+f.toKey != "" && f.follow:
		return usagef("--from-key and --to-key are for a read that ends: not with --follow")
	case f.fromKey+f.toKey != "" && f.mode != "" && f.mode != "snapshot":
		return usagef("--from-key and --to-key are for --mode snapshot, whose rows are in the order of their keys")
	case f.from != "" && f.mode != "" && f.mode != "log":
		return usagef("--from is for --mode log; other modes read rows as of now")
	}
	if _, err := api.ParsePosition(f.from); err != nil {
		return usagef("--from: %w", err)
	}
	return nil
}

// setMode chooses the mode that is usual for the table, and refuses what it cannot do.
func (f *readFlags) setMode(d *schema.Descriptor) error {
	switch {
	case len(d.PrimaryKey) > 0 && f.mode == "" && f.from != "":
		return usagef("--from is for a log: with a primary-key table say --mode log for its changelog")
	case len(d.PrimaryKey) > 0 && f.mode == "":
		f.mode = "snapshot"
	case f.ofLake():
	case len(d.PrimaryKey) == 0 && (f.mode == "snapshot" || f.fromKey+f.toKey != ""):
		return fmt.Errorf("%w read: table %s is a log table: it has no keys, only --mode log", mink.ErrInvalid, d.Name())
	case f.mode == "":
		f.mode = "log"
	}
	if f.mode == "log" && f.filter != "" {
		return usagef("--filter is for modes snapshot, union and lake; table %s is a log table", d.Name())
	}
	return nil
}

func (a *app) read(ctx context.Context, name string, f readFlags) error {
	if err := f.check(); err != nil {
		return err
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
	d, err := descriptorOf(ctx, c, name)
	if err != nil {
		return err
	}
	if err := f.setMode(d); err != nil {
		return err
	}
	var partition []string
	if len(f.partition) > 0 {
		if partition, err = partitionValues(ctx, c, name, f.partition); err != nil {
			return err
		}
	}
	if f.ofLake() {
		r := client.UnionRequest{Table: name, Partition: partition, Bucket: f.bucket, Columns: f.columns, Filter: f.filter, Limit: f.limit, LakeOnly: f.mode == "lake"}
		_, err := a.printPages(rowPages(c.ScanUnion(ctx, r)), f.printFlags, emptyPage(d, f.columns, rowMeta))
		return err
	}
	if f.mode == "snapshot" {
		pages, err := rowsOf(ctx, c, d, partition, &f)
		if err != nil {
			return err
		}
		_, err = a.printPages(pages, f.printFlags, emptyPage(d, f.columns, rowMeta))
		return err
	}
	r := client.ScanRequest{Table: name, Partition: partition, Bucket: f.bucket, From: f.from, Columns: f.columns, Limit: f.limit}
	batches := c.Scan(ctx, r)
	if f.follow {
		batches = c.Tail(ctx, client.TailRequest{ScanRequest: r})
	}
	meta := logMeta
	if len(d.PrimaryKey) > 0 {
		meta = changelogMeta
	}
	rows, err := a.printPages(logPages(batches, meta), f.printFlags, emptyPage(d, f.columns, meta))
	if err == nil && rows == 0 && !f.follow {
		err = a.noteBeyondEnd(ctx, c, r)
	}
	return err
}

// rowsOf reads the rows of a primary-key table, and with follow the changes since.
func rowsOf(ctx context.Context, c *client.Client, d *schema.Descriptor, partition []string, f *readFlags) (iter.Seq2[page, error], error) {
	if f.follow {
		f.meta = true
		return copyPages(c.Bootstrap(ctx, client.BootstrapRequest{Table: d.Name(), Partition: partition, Bucket: f.bucket, Columns: f.columns})), nil
	}
	r := client.SnapshotRequest{Table: d.Name(), Partition: partition, Bucket: f.bucket, Columns: f.columns, Filter: f.filter, Limit: f.limit}
	var err error
	if r.From, err = boundOf(d, "--from-key", f.fromKey); err != nil {
		return nil, err
	}
	if r.To, err = boundOf(d, "--to-key", f.toKey); err != nil {
		return nil, err
	}
	return rowPages(c.ScanSnapshot(ctx, r)), nil
}

// descriptorOf is a table's definition.
func descriptorOf(ctx context.Context, c *client.Client, name string) (*schema.Descriptor, error) {
	t, err := c.DescribeTable(ctx, name)
	if err != nil {
		return nil, err
	}
	return schema.DecodeDescriptor(t.Descriptor)
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
