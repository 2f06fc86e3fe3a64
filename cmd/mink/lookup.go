package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// lookupFlags is what `lookup` takes.
type lookupFlags struct {
	printFlags
	columns []string
	prefix  bool
}

func lookupCommand(a *app) *cobra.Command {
	f := lookupFlags{printFlags: printFlags{format: "json"}}
	cmd := &cobra.Command{
		Use: "lookup DB.TABLE KEY...", Short: "Find rows of a primary-key table by their keys",
		Long: `Finds rows by their keys and prints them in the order of the keys; a key without a
row is noted on standard error, and is no failure. A key is its value, or of
several columns its values in the order of the primary key, or NAME=VALUE pairs,
separated by commas; quotes as in CSV. Values are written as in CSV: dates as
2026-01-31, BYTES in base64. -- goes before keys that begin with a minus.

With --prefix a key is the first columns of the primary key, and every row comes
that begins with it. The partition's columns may be named too, all or none.`,
		Example: `  mink lookup db.items 7
  mink lookup db.orders id=7,region=eu id=8,region=us
  mink lookup db.orders --prefix eu --format table
  mink lookup db.temperatures -- -40`,
		Args: tableFirst, ValidArgsFunction: a.completeTable,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if len(args) < 2 {
				return usagef("%s wants keys behind the table; mink read %s prints all rows", cmd.CommandPath(), args[0])
			}
			return a.lookup(cmd.Context(), args[0], args[1:], f)
		},
	}
	cmd.Flags().BoolVar(&f.prefix, "prefix", false, "keys are first columns: find every row that begins with them")
	cmd.Flags().StringSliceVar(&f.columns, "columns", nil, "only these columns")
	f.printFlags.add(cmd)
	return cmd
}

func (a *app) lookup(ctx context.Context, name string, keys []string, f lookupFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	d, err := descriptorOf(ctx, c, name)
	if err != nil {
		return err
	}
	if len(d.PrimaryKey) == 0 {
		return fmt.Errorf("%w lookup: table %s is a log table: it has no primary key; mink read %[2]s", mink.ErrInvalid, name)
	}
	parsed := make([]keyText, len(keys))
	for i, text := range keys {
		if parsed[i], err = parseKey(d.PrimaryKey, text); err != nil {
			return err
		}
	}
	pages := func(yield func(page, error) bool) {
		if f.prefix {
			lookupPrefixes(ctx, c, d, parsed, f, yield)
		} else {
			a.lookupKeys(ctx, c, d, keys, parsed, f, yield)
		}
	}
	_, err = a.printPages(pages, f.printFlags, emptyPage(d, f.columns, metaColumns{}))
	return err
}

func (a *app) lookupKeys(ctx context.Context, c *client.Client, d *schema.Descriptor, texts []string, keys []keyText, f lookupFlags, yield func(page, error) bool) {
	cfg := client.DefaultLookup()
	cfg.Columns = f.columns
	l, err := c.NewLookuper(ctx, d.Name(), cfg)
	if err != nil {
		yield(page{}, err)
		return
	}
	defer l.Close()
	rows := make([]arrow.RecordBatch, len(keys))
	defer func() {
		for _, r := range rows {
			if r != nil {
				r.Release()
			}
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(cfg.BatchKeys)
	for i, k := range keys {
		g.Go(func() error {
			values, err := k.whole(d)
			if err != nil {
				return fmt.Errorf("key %q: %w", texts[i], err)
			}
			rows[i], err = l.Get(gctx, values...)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		yield(page{}, err)
		return
	}
	for i, row := range rows {
		if row == nil {
			a.note("no row has the key %s", texts[i])
		} else if !yield(page{record: row}, nil) {
			return
		}
	}
}

func lookupPrefixes(ctx context.Context, c *client.Client, d *schema.Descriptor, keys []keyText, f lookupFlags, yield func(page, error) bool) {
	for _, k := range keys {
		r := client.SnapshotRequest{Table: d.Name(), Bucket: -1, Columns: f.columns}
		var err error
		if r.Partition, err = k.partition(d); err == nil {
			r.Prefix, err = k.first(d)
		}
		if err != nil {
			yield(page{}, err)
			return
		}
		for b, err := range c.ScanSnapshot(ctx, r) {
			if errors.Is(err, mink.ErrNotExist) && r.Partition != nil {
				break // nobody wrote to the partition yet
			}
			if !yield(page{record: b.Record}, err) || err != nil {
				return
			}
		}
	}
}

// keyText is a key's columns as text.
type keyText map[string]string

// parseKey reads a key of a command line: VALUE,... in the order of the columns, or
// NAME=VALUE,...; a key of one column is its text as it is.
func parseKey(columns []string, text string) (keyText, error) {
	k := keyText{}
	isNamed := func(field string) bool {
		name, _, ok := strings.Cut(field, "=")
		return ok && slices.Contains(columns, name)
	}
	if len(columns) == 1 {
		name := columns[0]
		if isNamed(text) {
			text = strings.TrimPrefix(text, name+"=")
		}
		k[name] = text
		return k, nil
	}
	fields, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, usagef("key %q: %w", text, err)
	}
	of := "the key is " + strings.Join(columns, ", ")
	if len(fields) > len(columns) {
		return nil, usagef("key %q has %d values, %s", text, len(fields), of)
	}
	named := slices.ContainsFunc(fields, isNamed)
	for i, field := range fields {
		name, value := columns[i], field
		if named {
			if !isNamed(field) {
				return nil, usagef("key %q: %q is no NAME=VALUE of a key column; %s", text, field, of)
			}
			name, value, _ = strings.Cut(field, "=")
		}
		if _, twice := k[name]; twice {
			return nil, usagef("key %q has %s twice", text, name)
		}
		k[name] = value
	}
	return k, nil
}

// whole is all values in the order of the primary key.
func (k keyText) whole(d *schema.Descriptor) ([]any, error) {
	values := make([]any, len(d.PrimaryKey))
	for i, name := range d.PrimaryKey {
		v, ok := k[name]
		if !ok {
			return nil, usagef("it has no %s, the primary key is %s; --prefix takes the first columns", name, strings.Join(d.PrimaryKey, ", "))
		}
		values[i] = client.Text(v)
	}
	return values, nil
}

// partition is the values of the partition's columns in their canonical text, nil when
// the key has none of them.
func (k keyText) partition(d *schema.Descriptor) ([]string, error) {
	var values []string
	for _, name := range d.PartitionKeys {
		if v, ok := k[name]; ok {
			values = append(values, v)
		}
	}
	if len(values) != 0 && len(values) != len(d.PartitionKeys) {
		return nil, usagef("a key names all of the partition's columns or none: %s", strings.Join(d.PartitionKeys, ", "))
	}
	return values, nil
}

// first is the values of the first columns of the key within a partition.
func (k keyText) first(d *schema.Descriptor) ([]any, error) {
	var values []any
	missing := ""
	for _, name := range d.PrimaryKey {
		if slices.Contains(d.PartitionKeys, name) {
			continue
		}
		v, ok := k[name]
		switch {
		case ok && missing != "":
			return nil, usagef("a prefix of the key has its first columns: %s without %s is none", name, missing)
		case ok:
			values = append(values, client.Text(v))
		default:
			missing = name
		}
	}
	return values, nil
}

// boundOf reads a flag's key within a partition, or its first columns; nil when it is
// not set.
func boundOf(d *schema.Descriptor, flag, text string) ([]any, error) {
	if text == "" {
		return nil, nil
	}
	var columns []string
	for _, name := range d.PrimaryKey {
		if !slices.Contains(d.PartitionKeys, name) {
			columns = append(columns, name)
		}
	}
	k, err := parseKey(columns, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	values, err := k.first(d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return values, nil
}
