package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// printTable writes rows under a header, aligned, without borders.
func (a *app) printTable(header []string, rows [][]string) {
	t := table.NewWriter()
	t.SetOutputMirror(a.out)
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatDefault // column names as they are
	t.SetStyle(style)
	h := make(table.Row, len(header))
	for i, c := range header {
		h[i] = c
	}
	t.AppendHeader(h)
	for _, r := range rows {
		row := make(table.Row, len(r))
		for i, c := range r {
			row[i] = c
		}
		t.AppendRow(row)
	}
	t.Render()
}

func timeOf(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format(time.RFC3339)
}

func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s wants %s, got %s; see %s --help", cmd.CommandPath(), what, count(int64(len(args)), "argument"), cmd.CommandPath())
		}
		return nil
	}
}

// oneTable wants exactly one DATABASE.TABLE.
func oneTable(cmd *cobra.Command, args []string) error {
	if err := exactArgs(1, "one DATABASE.TABLE")(cmd, args); err != nil {
		return err
	}
	_, _, err := splitName(args[0])
	return err
}

func dbCommand(a *app) *cobra.Command {
	ifNotExists, ifExists, cascade := false, false, false
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a database", Args: exactArgs(1, "a name"),
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.CreateDatabase(cmd.Context(), args[0], ifNotExists); err != nil {
				return err
			}
			return a.created("database", args[0], ifNotExists)
		}),
	}
	create.Flags().BoolVar(&ifNotExists, "if-not-exists", false, "succeed when it exists")
	list := &cobra.Command{
		Use: "list", Short: "List databases", Args: noArgs,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			dbs, err := c.ListDatabases(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(api.Databases{Databases: dbs})
			}
			var rows [][]string
			for _, d := range dbs {
				rows = append(rows, []string{d.Name, fmt.Sprint(d.Tables), timeOf(d.CreatedMs)})
			}
			a.printTable([]string{"database", "tables", "created"}, rows)
			return nil
		}),
	}
	drop := &cobra.Command{
		Use: "drop NAME", Short: "Drop a database", Args: exactArgs(1, "a name"),
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if err := c.DropDatabase(cmd.Context(), args[0], ifExists, cascade); err != nil {
				return err
			}
			return a.dropped("database", args[0], ifExists)
		}),
	}
	drop.Flags().BoolVar(&ifExists, "if-exists", false, "succeed when it does not exist")
	drop.Flags().BoolVar(&cascade, "cascade", false, "drop its tables too")
	return group("db", "Create, list and drop databases", create, list, drop)
}

func partitionCommand(a *app) *cobra.Command {
	ifNotExists, ifExists := false, false
	create := &cobra.Command{
		Use: "create DB.TABLE KEY=VALUE...", Short: "Create a partition", ValidArgsFunction: a.completeTable,
		Example: "  mink partition create db.events day=2026-01-31",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, values, err := a.partitionArgs(cmd, args)
			if err != nil {
				return err
			}
			defer c.Close()
			p, err := c.CreatePartition(cmd.Context(), name, values, ifNotExists)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(p)
			}
			return a.created("partition", strings.Join(values, "/"), ifNotExists)
		},
	}
	create.Flags().BoolVar(&ifNotExists, "if-not-exists", false, "succeed when it exists")
	list := &cobra.Command{
		Use: "list DB.TABLE", Short: "List partitions", Args: oneTable, ValidArgsFunction: a.completeTable,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			parts, err := c.ListPartitions(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(api.Partitions{Partitions: parts})
			}
			var rows [][]string
			for _, p := range parts {
				state := "open"
				if p.Closed {
					state = "closed"
				}
				rows = append(rows, []string{fmt.Sprint(p.ID), strings.Join(p.Values, "/"), fmt.Sprint(len(p.Buckets)), state, timeOf(p.CreatedMs)})
			}
			a.printTable([]string{"id", "values", "buckets", "state", "created"}, rows)
			return nil
		}),
	}
	drop := &cobra.Command{
		Use: "drop DB.TABLE KEY=VALUE...", Short: "Drop a partition and its rows", ValidArgsFunction: a.completeTable,
		Example: "  mink partition drop db.events day=2026-01-31",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, values, err := a.partitionArgs(cmd, args)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.DropPartition(cmd.Context(), name, values, ifExists); err != nil {
				return err
			}
			return a.dropped("partition", strings.Join(values, "/"), ifExists)
		},
	}
	drop.Flags().BoolVar(&ifExists, "if-exists", false, "succeed when it does not exist")
	return group("partition", "Create, list and drop partitions of a table", create, list, drop)
}

func topicCommand(a *app) *cobra.Command {
	cmd := group("topic", "Create, list, describe and delete Kafka topics")
	cmd.Long = `Creates, lists, describes and deletes Kafka topics. A topic is a table: mink table
alter kafka.TOPIC changes its configuration (--set) and adds partitions (--bucket-count).`
	database := "kafka"
	cmd.PersistentFlags().StringVar(&database, "database", database, "database of the node's topics (kafka_database)")
	partitions := int32(1)
	var configs []string
	ifNotExists, ifExists := false, false
	create := &cobra.Command{
		Use: "create TOPIC", Short: "Create a topic", Args: exactArgs(1, "a topic"),
		Example: "  mink topic create clicks --partitions 4 --config retention.ms=86400000",
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			options, err := pairs(configs)
			if err != nil {
				return err
			}
			d, err := topicDescriptor(database, args[0], partitions, options)
			if err != nil {
				return err
			}
			if err := c.CreateDatabase(cmd.Context(), database, true); err != nil {
				return err
			}
			t, err := c.CreateTable(cmd.Context(), d, ifNotExists)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			return a.created("topic", args[0], ifNotExists)
		}),
	}
	create.Flags().Int32Var(&partitions, "partitions", 1, "partitions, 1..4096")
	create.Flags().StringArrayVar(&configs, "config", nil, "topic configuration KEY=VALUE, repeated")
	create.Flags().BoolVar(&ifNotExists, "if-not-exists", false, "succeed when it exists")
	list := &cobra.Command{
		Use: "list", Short: "List topics", Args: noArgs,
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			tables, err := c.ListTables(cmd.Context(), database)
			if err != nil {
				return err
			}
			tables = slices.DeleteFunc(tables, func(t api.Table) bool { // typed tables are hidden from Kafka
				d, err := schema.DecodeDescriptor(t.Descriptor)
				return err == nil && !d.IsKafkaTopic()
			})
			if a.json {
				return a.printJSON(api.Tables{Tables: tables})
			}
			var rows [][]string
			for _, t := range tables {
				rows = append(rows, []string{strings.TrimPrefix(t.Name, database+"."), fmt.Sprint(t.Buckets), t.UUID, timeOf(t.CreatedMs)})
			}
			a.printTable([]string{"topic", "partitions", "id", "created"}, rows)
			return nil
		}),
	}
	describe := &cobra.Command{
		Use: "describe TOPIC", Short: "Describe a topic: its partitions, leaders, offsets and configuration", Args: exactArgs(1, "a topic"),
		Long: "Describes a topic. Of its configuration it shows what has an effect or was set; --json has all of it.",
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return a.describeTopic(cmd.Context(), c, database+"."+args[0])
		}),
	}
	drop := &cobra.Command{
		Use: "delete TOPIC", Short: "Delete a topic and its records", Args: exactArgs(1, "a topic"),
		RunE: a.connected(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name := database + "." + args[0]
			if _, err := topicTable(cmd.Context(), c, name); err != nil && !errors.Is(err, mink.ErrNotExist) {
				return err
			}
			if err := c.DropTable(cmd.Context(), name, ifExists); err != nil {
				return err
			}
			return a.dropped("topic", args[0], ifExists)
		}),
	}
	drop.Flags().BoolVar(&ifExists, "if-exists", false, "succeed when it does not exist")
	cmd.AddCommand(create, list, describe, drop)
	return cmd
}

// topicTable describes a table that Kafka clients see as a topic. Any other is
// refused: what deletes topics must not drop a table that is none.
func topicTable(ctx context.Context, c *client.Client, name string) (*schema.Descriptor, error) {
	t, err := c.DescribeTable(ctx, name)
	if err != nil {
		return nil, err
	}
	d, err := schema.DecodeDescriptor(t.Descriptor)
	if err != nil {
		return nil, err
	}
	if !d.IsKafkaTopic() {
		return nil, fmt.Errorf("table %s is not a topic, Kafka clients do not see it: use mink table, or see typed topics in docs/kafka.md", name)
	}
	return d, nil
}

// describeTopic prints each bucket's leader and offsets, and the configuration.
func (a *app) describeTopic(ctx context.Context, c *client.Client, name string) error {
	d, err := topicTable(ctx, c, name)
	if err != nil {
		return err
	}
	configs, err := d.KafkaConfigs()
	if err != nil {
		return err
	}
	parts, err := c.ListPartitions(ctx, name)
	if err != nil {
		return err
	}
	first, err := c.ListOffsets(ctx, name, nil, "earliest")
	if err != nil {
		return err
	}
	last, err := c.ListOffsets(ctx, name, nil, "latest")
	if err != nil {
		return err
	}
	if a.json {
		values := map[string]string{}
		for _, k := range configs {
			values[k.Name] = k.Value
		}
		return a.printJSON(map[string]any{"table": name, "partitions": parts, "earliest": first, "latest": last, "configs": values})
	}
	cluster, err := c.DescribeCluster(ctx)
	if err != nil {
		return err
	}
	kafka := map[mink.NodeID]string{}
	for _, n := range cluster.Nodes {
		kafka[n.ID] = n.KafkaAddress
	}
	var rows [][]string
	for _, p := range parts {
		for _, b := range p.Buckets {
			rows = append(rows, []string{
				fmt.Sprint(b.Bucket.Index), fmt.Sprint(b.Leader), dash(kafka[b.Leader]), fmt.Sprint(b.LeaderEpoch),
				offsetOf(first, b), offsetOf(last, b),
			})
		}
	}
	a.printTable([]string{"partition", "leader", "kafka address", "epoch", "earliest", "latest"}, rows)
	rows = nil
	for _, k := range configs {
		switch {
		case k.Set:
			rows = append(rows, []string{k.Name, k.Value, "the topic"})
		case !k.Informative && !strings.HasPrefix(k.Name, "mink.auto_partition."): // a topic has no partition columns
			rows = append(rows, []string{k.Name, k.Value, "default"})
		}
	}
	a.printTable([]string{"config", "value", "set by"}, rows)
	return nil
}

func offsetOf(list []api.BucketOffset, b api.Bucket) string {
	i := slices.IndexFunc(list, func(o api.BucketOffset) bool { return o.Bucket == b.Bucket })
	if i < 0 {
		return "-"
	}
	if list[i].Error != "" {
		return list[i].Error
	}
	return list[i].Offset.String()
}

// pairs reads KEY=VALUE arguments.
func pairs(list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, p := range list {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usagef("%q: want KEY=VALUE", p)
		}
		m[k] = v
	}
	return m, nil
}

// readFile reads a file, or standard input for "-".
func (a *app) readFile(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(a.in)
	}
	return os.ReadFile(path)
}
