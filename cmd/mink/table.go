package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func tableCommand(a *app) *cobra.Command {
	return group("table", "Create, list, describe, alter, count and drop tables",
		a.tableCreate(), a.tableList(), a.tableDescribe(), a.tableAlter(), a.tableDrop(), a.tableOffsets(), a.tableCount(), a.tableTier(), a.tableLakeSnapshot(), a.tableCompact(), a.tableExpire())
}

// tableFlags is what `table create` takes besides a descriptor file.
type tableFlags struct {
	columns, primaryKey, partitionBy, bucketKey []string
	aggregate                                   []string
	autoIncrement                               string
	buckets                                     int32
	options, properties, sinks                  []string
	logTTL, comment, file                       string
	ifNotExists                                 bool
}

func (a *app) tableCreate() *cobra.Command {
	var f tableFlags
	cmd := &cobra.Command{
		Use: "create DB.TABLE", Short: "Create a table", Args: oneTable,
		Long: `Creates a table in a database that exists (mink db create).

Types: BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(p,s) CHAR(n)
STRING BINARY(n) BYTES DATE TIME(p) TIMESTAMP(p) TIMESTAMP_LTZ(p) ARRAY<T>
MAP<K, V> ROW<name T, ...>. NOT NULL follows the type. docs/tables.md has the
types, the options and the JSON of --descriptor.`,
		Example: `  mink table create db.events -C "id BIGINT NOT NULL" -C "at TIMESTAMP(3)" -C "text STRING" --bucket-count 4
  mink table describe db.events --json | jq .descriptor | mink table create db.copy --descriptor -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, flag := range []string{"column", "primary-key", "aggregate", "auto-increment", "partition-by", "bucket-key", "bucket-count", "option", "sink", "property", "log-ttl", "comment"} {
				if f.file != "" && cmd.Flags().Changed(flag) {
					return usagef("--descriptor has all of the table: --%s cannot stand beside it", flag)
				}
			}
			d, err := a.descriptor(args[0], f)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			t, err := c.CreateTable(cmd.Context(), d, f.ifNotExists)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			return a.created("table", t.Name, f.ifNotExists)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.columns, "column", "C", nil, `column "NAME TYPE [NOT NULL]", repeated`)
	fl.StringSliceVar(&f.primaryKey, "primary-key", nil, "primary key columns")
	fl.StringArrayVar(&f.aggregate, "aggregate", nil, "COLUMN=FUNCTION of a table with the option merge_engine=aggregation, repeated: "+strings.Join(schema.AggregateFunctions(), ", "))
	fl.StringVar(&f.autoIncrement, "auto-increment", "", "INT or BIGINT column that a primary-key table numbers")
	fl.StringSliceVar(&f.partitionBy, "partition-by", nil, "partition columns")
	fl.StringSliceVar(&f.bucketKey, "bucket-key", nil, "columns that choose a row's bucket; none: batches take turns")
	fl.Int32Var(&f.buckets, "bucket-count", 1, "buckets of each partition, 1..4096")
	fl.StringArrayVar(&f.options, "option", nil, "table option KEY=VALUE, repeated")
	fl.StringArrayVar(&f.sinks, "sink", nil, sinkHelp)
	fl.StringArrayVar(&f.properties, "property", nil, "free property KEY=VALUE, repeated")
	fl.StringVar(&f.logTTL, "log-ttl", "", `how long rows are kept, such as 7d, or "forever"`)
	fl.StringVar(&f.comment, "comment", "", "free text")
	fl.StringVar(&f.file, "descriptor", "", "descriptor JSON file instead of the flags above, - for standard input")
	fl.BoolVar(&f.ifNotExists, "if-not-exists", false, "succeed when it exists")
	return cmd
}

const sinkHelp = "tier the table to a sink of the nodes' configuration, or to the lake: NAME, or NAME,SETTING=VALUE with freshness, retain, options.KEY and the like, repeated"

func splitName(name string) (database, table string, err error) {
	database, table, ok := strings.Cut(name, ".")
	if !ok || database == "" || table == "" {
		return "", "", usagef("table %q: want DATABASE.TABLE", name)
	}
	return database, table, nil
}

// descriptor makes the JSON that create_table takes.
func (a *app) descriptor(name string, f tableFlags) (json.RawMessage, error) {
	database, table, err := splitName(name)
	if err != nil {
		return nil, err
	}
	d := &schema.Descriptor{}
	if f.file != "" {
		b, err := a.readFile(f.file)
		if err != nil {
			return nil, err
		}
		if d, err = schema.DecodeDescriptor(b); err != nil {
			return nil, err
		}
		d.Schema.ID = 1 // that of an altered table is higher
	} else if err := f.fill(d); err != nil {
		return nil, err
	}
	d.Database, d.Table = database, table
	if d, err = d.Normalize(); err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if err := d.CheckCase(); err != nil {
		return nil, err
	}
	return d.Encode(), nil
}

func (f tableFlags) fill(d *schema.Descriptor) (err error) {
	for _, text := range f.columns {
		c, err := column(text)
		if err != nil {
			return err
		}
		d.Schema.Columns = append(d.Schema.Columns, c)
	}
	if err := aggregates(f.aggregate, func(name string) *schema.Column { return columnOf(d, name) }); err != nil {
		return err
	}
	if f.autoIncrement != "" {
		c := columnOf(d, f.autoIncrement)
		if c == nil {
			return usagef("--auto-increment %q: no --column has this name", f.autoIncrement)
		}
		c.AutoIncrement = true
	}
	d.PrimaryKey, d.PartitionKeys, d.BucketKeys = f.primaryKey, f.partitionBy, f.bucketKey
	d.BucketCount, d.Comment = f.buckets, f.comment
	if d.Options, err = pairs(f.options); err != nil {
		return err
	}
	sinks, err := sinkFlags(f.sinks)
	if err != nil {
		return err
	}
	maps.Copy(d.Options, sinks)
	if f.logTTL != "" {
		d.Options["log_ttl"] = f.logTTL
	}
	d.Properties, err = pairs(f.properties)
	return err
}

// columnOf finds a column of the descriptor, nil when there is none.
func columnOf(d *schema.Descriptor, name string) *schema.Column {
	if i := d.Schema.Index(name); i >= 0 {
		return &d.Schema.Columns[i]
	}
	return nil
}

// aggregates sets the functions "COLUMN=FUNCTION" of columns that find knows.
func aggregates(list []string, find func(string) *schema.Column) error {
	for _, text := range list {
		i := strings.LastIndexByte(text, '=')
		if i < 0 {
			return usagef("--aggregate %q: want COLUMN=FUNCTION", text)
		}
		c := find(text[:i])
		if c == nil {
			return usagef("--aggregate %q: the command adds no column %q", text, text[:i])
		}
		c.Aggregate = schema.AggregateFunction(text[i+1:])
	}
	return nil
}

// column reads "NAME TYPE [NOT NULL]"; a name with spaces stands in backquotes.
func column(text string) (schema.Column, error) {
	text = strings.TrimSpace(text)
	name, typ, ok := strings.Cut(text, " ")
	if rest, quoted := strings.CutPrefix(text, "`"); quoted {
		if name, typ, ok = strings.Cut(rest, "`"); !ok {
			return schema.Column{}, usagef("column %q: the name's backquote does not end", text)
		}
	}
	if !ok {
		return schema.Column{}, usagef(`column %q: want "NAME TYPE [NOT NULL]"`, text)
	}
	t, err := schema.ParseType(strings.TrimSpace(typ))
	if err != nil {
		return schema.Column{}, fmt.Errorf("column %q: %w", name, err)
	}
	return schema.Column{Name: name, Type: t}, nil
}

func topicDescriptor(database, topic string, partitions int32, configs map[string]string) (json.RawMessage, error) {
	d, err := schema.KafkaTopic(database, topic, partitions, configs)
	if err != nil {
		return nil, err
	}
	return d.Encode(), nil
}

func (a *app) tableList() *cobra.Command {
	return &cobra.Command{
		Use: "list [DATABASE]", Short: "List tables",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s wants at most one database", cmd.CommandPath())
			}
			return nil
		},
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			tables, err := c.ListTables(cmd.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(api.Tables{Tables: tables})
			}
			var rows [][]string
			for _, t := range tables {
				rows = append(rows, []string{t.Name, fmt.Sprint(t.ID), fmt.Sprint(t.Partitions), fmt.Sprint(t.Buckets), fmt.Sprint(t.SchemaID), timeOf(t.CreatedMs)})
			}
			a.printTable([]string{"table", "id", "partitions", "buckets", "schema", "created"}, rows)
			return nil
		}),
	}
}

func (a *app) tableDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe DB.TABLE", Short: "Describe a table", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: "Describes a table. The descriptor in the JSON answer is what `mink table create --descriptor` takes.",
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			t, err := c.DescribeTable(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			return a.printDescription(t)
		}),
	}
}

func (a *app) printDescription(t api.Table) error {
	d, err := schema.DecodeDescriptor(t.Descriptor)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "table %s, id %d, schema version %d, %s of %s, created %s\n",
		t.Name, t.ID, t.SchemaID, count(int64(t.Partitions), "partition"), count(int64(t.Buckets), "bucket"), timeOf(t.CreatedMs))
	if d.Comment != "" {
		fmt.Fprintln(a.out, d.Comment)
	}
	var rows [][]string
	for _, c := range d.Schema.Columns {
		var roles []string
		for _, r := range []struct {
			name string
			of   []string
		}{{"primary key", d.PrimaryKey}, {"partition", d.PartitionKeys}, {"bucket", d.BucketKeys}} {
			if slices.Contains(r.of, c.Name) {
				roles = append(roles, r.name)
			}
		}
		if c.AutoIncrement {
			roles = append(roles, "auto-increment")
		}
		if c.Aggregate != "" {
			roles = append(roles, string(c.Aggregate))
		}
		rows = append(rows, []string{fmt.Sprint(c.ID), c.Name, c.Type.String(), strings.Join(roles, ", "), c.Comment})
	}
	a.printTable([]string{"field", "column", "type", "role", "comment"}, rows)
	rows = nil
	for _, k := range sortedKeys(d.Options) {
		rows = append(rows, []string{k, d.Options[k]})
	}
	if len(rows) > 0 {
		a.printTable([]string{"option", "value"}, rows)
	}
	a.printSinks(t.Sinks)
	return nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (a *app) tableAlter() *cobra.Command {
	var add, aggregate, drop, rename, modify, set, reset, sinks, removeSinks []string
	var buckets int32
	cmd := &cobra.Command{
		Use: "alter DB.TABLE", Short: "Alter a table", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: `Changes a table's columns and options, all or nothing, in the order: add, drop,
rename, modify, set, reset, bucket count. Nothing is rewritten: rows that exist
are read under the new columns. Types can only be widened, new columns are
nullable. Buckets can be added to a table without bucket keys, such as a topic.`,
		Example: `  mink table alter db.events --add "score DOUBLE" --rename text=body
  mink table alter db.events --modify "n BIGINT" --set log_ttl=30d
  mink table alter db.events --sink warehouse,freshness=1m --remove-sink files
  mink table alter kafka.clicks --bucket-count 12`,
		RunE: func(cmd *cobra.Command, args []string) error {
			more, err := sinkFlags(sinks)
			if err != nil {
				return err
			}
			for _, name := range removeSinks {
				more[schema.SinkOption(name)] = "false"
			}
			for _, name := range sortedKeys(more) {
				set = append(set, name+"="+more[name])
			}
			changes, err := alterations(add, drop, rename, modify, set, reset, buckets)
			if err == nil {
				err = aggregates(aggregate, func(name string) *schema.Column { return added(changes, name) })
			}
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			t, err := c.AlterTable(cmd.Context(), args[0], schema.EncodeChanges(changes), 0)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			a.note("table %s altered, schema version %d", t.Name, t.SchemaID)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&add, "add", nil, `add a column "NAME TYPE", repeated`)
	f.StringArrayVar(&aggregate, "aggregate", nil, "COLUMN=FUNCTION of a column that is added, repeated")
	f.StringArrayVar(&drop, "drop", nil, "drop a column, repeated")
	f.StringArrayVar(&rename, "rename", nil, "rename a column OLD=NEW, repeated")
	f.StringArrayVar(&modify, "modify", nil, `widen a column's type "NAME TYPE", repeated`)
	f.StringArrayVar(&set, "set", nil, "set an option KEY=VALUE, repeated")
	f.StringArrayVar(&reset, "reset", nil, "reset an option to its default, repeated")
	f.StringArrayVar(&sinks, "sink", nil, sinkHelp)
	f.StringArrayVar(&removeSinks, "remove-sink", nil, "end tiering to a sink, repeated; what it has stays there")
	f.Int32Var(&buckets, "bucket-count", 0, "number of buckets of each partition, more than now")
	return cmd
}

// added finds a column that the changes add, nil when none does.
func added(changes []schema.Change, name string) *schema.Column {
	for _, c := range changes {
		if c.Op == schema.AddColumn && c.Column.Name == name {
			return c.Column
		}
	}
	return nil
}

func alterations(add, drop, rename, modify, set, reset []string, buckets int32) ([]schema.Change, error) {
	var out []schema.Change
	for _, text := range add {
		c, err := column(text)
		if err != nil {
			return nil, err
		}
		out = append(out, schema.Change{Op: schema.AddColumn, Column: &c})
	}
	for _, name := range drop {
		out = append(out, schema.Change{Op: schema.DropColumn, Name: name})
	}
	for _, p := range rename {
		from, to, ok := strings.Cut(p, "=")
		if !ok {
			return nil, usagef("--rename %q: want OLD=NEW", p)
		}
		out = append(out, schema.Change{Op: schema.RenameColumn, Name: from, To: to})
	}
	for _, text := range modify {
		c, err := column(text)
		if err != nil {
			return nil, err
		}
		out = append(out, schema.Change{Op: schema.ModifyColumn, Name: c.Name, Type: &c.Type})
	}
	if len(set) > 0 {
		options, err := pairs(set)
		if err != nil {
			return nil, err
		}
		out = append(out, schema.Change{Op: schema.SetOptions, Options: options})
	}
	if len(reset) > 0 {
		out = append(out, schema.Change{Op: schema.ResetOptions, Names: reset})
	}
	if buckets != 0 {
		out = append(out, schema.Change{Op: schema.SetBucketCount, BucketCount: buckets})
	}
	if len(out) == 0 {
		return nil, usagef("nothing to alter: see mink table alter --help")
	}
	return out, nil
}

func (a *app) tableDrop() *cobra.Command {
	ifExists := false
	cmd := &cobra.Command{
		Use: "drop DB.TABLE", Short: "Drop a table and its rows", Args: oneTable, ValidArgsFunction: a.completeTable,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.DropTable(cmd.Context(), args[0], ifExists); err != nil {
				return err
			}
			return a.dropped("table", args[0], ifExists)
		}),
	}
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "succeed when it does not exist")
	return cmd
}

func (a *app) tableOffsets() *cobra.Command {
	at := "latest"
	cmd := &cobra.Command{
		Use: "offsets DB.TABLE", Short: "Print an offset of every bucket", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: `Prints one offset of every bucket: the first that can be read, the one after the
last, or that of the first batch committed at a time or later.`,
		Example: "  mink table offsets db.events --at 2026-01-31T00:00:00Z",
		PreRunE: func(*cobra.Command, []string) error {
			if _, err := api.ParsePosition(at); err != nil {
				return usagef("--at: %w", err)
			}
			return nil
		},
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list, err := c.ListOffsets(cmd.Context(), args[0], nil, at)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(api.Offsets{Offsets: list})
			}
			var rows [][]string
			for _, o := range list {
				rows = append(rows, []string{strings.Join(o.Values, "/"), fmt.Sprint(o.Bucket.Index), o.Offset.String(), o.Error})
			}
			a.printTable([]string{"partition", "bucket", "offset", "error"}, rows)
			return nil
		}),
	}
	cmd.Flags().StringVar(&at, "at", at, "earliest, latest, or a timestamp (RFC 3339, or milliseconds as 1700000000000ms)")
	return cmd
}

// partitionArgs resolves DB.TABLE KEY=VALUE... to values in partition-key order.
func (a *app) partitionArgs(cmd *cobra.Command, args []string) (*client.Client, string, []string, error) {
	if len(args) > 0 {
		if _, _, err := splitName(args[0]); err != nil {
			return nil, "", nil, err
		}
	}
	if len(args) < 2 {
		return nil, "", nil, usagef("%s wants a table and KEY=VALUE for each partition key", cmd.CommandPath())
	}
	c, err := a.client()
	if err != nil {
		return nil, "", nil, err
	}
	values, err := partitionValues(cmd.Context(), c, args[0], args[1:])
	if err != nil {
		_ = c.Close()
		return nil, "", nil, err
	}
	return c, args[0], values, nil
}

func partitionValues(ctx context.Context, c *client.Client, name string, args []string) ([]string, error) {
	given, err := pairs(args)
	if err != nil {
		return nil, err
	}
	t, err := c.DescribeTable(ctx, name)
	if err != nil {
		return nil, err
	}
	d, err := schema.DecodeDescriptor(t.Descriptor)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, k := range d.PartitionKeys {
		v, ok := given[k]
		if !ok {
			return nil, usagef("partition key %q of %s has no value; want %s", k, name, strings.Join(d.PartitionKeys, "=... ")+"=...")
		}
		delete(given, k)
		values = append(values, v)
	}
	for k := range given {
		return nil, fmt.Errorf("%s has no partition key %q: %w", name, k, mink.ErrInvalid)
	}
	return values, nil
}

func (a *app) tableCount() *cobra.Command {
	var partition []string
	cmd := &cobra.Command{
		Use: "count DB.TABLE", Short: "Count the rows of a primary-key table", Args: oneTable, ValidArgsFunction: a.completeTable,
		Long: `Counts the rows of a primary-key table, one per key. A log table has offsets
instead: mink table offsets.`,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := descriptorOf(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if len(d.PrimaryKey) == 0 {
				return fmt.Errorf("%w count: table %s is a log table; mink table offsets %[2]s says where its buckets begin and end", mink.ErrInvalid, args[0])
			}
			var values []string
			if len(partition) > 0 {
				if values, err = partitionValues(cmd.Context(), c, args[0], partition); err != nil {
					return err
				}
			}
			n, err := c.Count(cmd.Context(), args[0], values)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]int64{"rows": n})
			}
			_, err = fmt.Fprintln(a.out, n)
			return err
		}),
	}
	cmd.Flags().StringSliceVar(&partition, "partition", nil, "only this partition, KEY=VALUE,...")
	return cmd
}
