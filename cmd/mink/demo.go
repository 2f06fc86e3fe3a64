package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/client"
)

//go:embed demodata/seattle-weather.csv
var weatherCSV []byte

const (
	demoTable = "demo.weather"
	demoKeyed = "demo.latest"
	demoTopic = "weather-lines"
)

func demoCommand(a *app) *cobra.Command {
	d := &demo{app: a}
	var passed []server.Key // settings that go on to the node
	cmd := &cobra.Command{
		Use: "demo", Short: "Do the main job on a throw-away node, and show it",
		Long: `Starts a node of its own on free ports, writes real rows through Arrow Flight
into a typed table and a primary-key table, and through Kafka into a topic, kills
the node with SIGKILL, starts it again, and reads everything back. Then JSON through
Kafka becomes an Iceberg table, which Mink and, if there is one, another engine are asked
about: DuckDB or PyIceberg of --python. Its data stays in a
temporary directory for you to look at. With --storage-uri its objects go to a
plugin's store, below a prefix that is best empty.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.dir == "" {
				t, err := os.MkdirTemp("", "mink-demo-")
				if err != nil {
					return err
				}
				d.dir = t
			}
			signal.Ignore(syscall.SIGPIPE) // mink demo | head must not leave its node behind
			defer d.kill()
			for _, k := range passed {
				v := cmd.Flag(k.Flag).Value.String()
				if v == "" {
					continue
				}
				d.env = append(d.env, k.Env+"="+v)
				if k.Name == "storage_options" {
					v = "..."
				}
				d.shown = append(d.shown, "--"+k.Flag, v)
			}
			d.objects = cmd.Flag("storage-uri").Value.String()
			d.pythonGiven = cmd.Flags().Changed("python")
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&d.dir, "dir", "", "data directory; default a new temporary one")
	cmd.Flags().StringVar(&d.python, "python", "python3", "interpreter that has duckdb with its extensions avro and iceberg, or pyiceberg")
	for _, k := range server.Keys() {
		if slices.Contains([]string{"storage_uri", "storage_options", "plugin_dir"}, k.Name) {
			passed = append(passed, k)
			cmd.Flags().String(k.Flag, "", k.Doc)
		}
	}
	return cmd
}

// demo is one run: a node process and what it was told.
type demo struct {
	app           *app
	dir           string
	env           []string // settings that go on to the node; options may be secret: no arguments
	shown         []string // the same as flags, options left out
	objects       string   // the URI of the store, "": below dir
	flight, kafka string
	python        string
	pythonGiven   bool
	process       *exec.Cmd
	log           bytes.Buffer
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.app.out, format+"\n", args...) }

func (d *demo) run(ctx context.Context) error {
	var err error
	if d.flight, err = freePort(ctx); err != nil {
		return err
	}
	if d.kafka, err = freePort(ctx); err != nil {
		return err
	}
	if d.objects == "" {
		d.say("1. A node on embedded defaults: SQLite and a directory, %s", d.dir)
	} else {
		d.say("1. A node with its metadata in SQLite, %s, and its objects in %s", d.dir, d.objects)
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	d.say("   Flight on %s, Kafka on %s", d.flight, d.kafka)

	rows, err := d.writeTable(ctx)
	if err != nil {
		return err
	}
	d.say("\n2. %d rows of Seattle's weather are durable in the typed table %s, written through Arrow Flight", rows, demoTable)
	if err := d.upsert(ctx); err != nil {
		return err
	}
	d.say("   and upserted into %s, which keeps the latest day of each kind of weather", demoKeyed)
	lines, err := d.produce(ctx)
	if err != nil {
		return err
	}
	d.say("3. The same file's %d lines are durable in the topic %s, produced through Kafka (idempotent, zstd)", len(lines), demoTopic)

	d.kill()
	d.say("\n4. The node is killed: kill -9")
	began := time.Now()
	if err := d.start(ctx); err != nil {
		return err
	}
	d.say("   and started again: serving after %s", time.Since(began).Round(time.Millisecond))

	if err := d.readBack(ctx, rows, lines); err != nil {
		return err
	}
	if err := d.throughTheLake(ctx); err != nil {
		return err
	}
	d.say("\nLook further:")
	d.say("   %s serve --data-dir %s %s       # the same node, on the usual ports", os.Args[0], d.dir, strings.Join(d.shown, " "))
	d.say("   %s read %s --format table -n 10", os.Args[0], demoTable)
	d.say("   kcat -b 127.0.0.1:9092 -C -t %s -o beginning -e | head", demoTopic)
	d.say("   %s cluster stats; %[1]s fsck --deep", os.Args[0])
	d.say("   %s table lake-snapshot %s; %[1]s read %[2]s --mode union --filter \"weather = 'snow'\"", os.Args[0], demoLakeTable)
	if d.objects == "" {
		d.say("   find %s -type f", filepath.Join(d.dir, "objects"))
	}
	return nil
}

// readBack reads both through both protocols and compares.
func (d *demo) readBack(ctx context.Context, rows int64, lines []string) error {
	c, err := d.client()
	if err != nil {
		return err
	}
	defer c.Close()
	d.say("\n5. The first rows of %s, read through Arrow Flight:", demoTable)
	f := readFlags{printFlags: printFlags{format: "table", limit: 5}, bucket: -1}
	if err := d.show(ctx, c, demoTable, f); err != nil {
		return err
	}
	var read int64
	for b, err := range c.Scan(ctx, client.ScanRequest{Table: demoTable, Bucket: -1}) {
		if err != nil {
			return err
		}
		read += b.Record.NumRows()
	}
	if read != rows {
		return fmt.Errorf("%s has %d rows after the restart, %d were acknowledged", demoTable, read, rows)
	}
	d.say("   all %d rows are there", read)

	got, err := d.consume(ctx, len(lines))
	if err != nil {
		return err
	}
	for i, l := range lines {
		if got[i] != l {
			return fmt.Errorf("line %d of %s is %q after the restart, %q was acknowledged", i, demoTopic, got[i], l)
		}
	}
	d.say("\n6. The topic %s, consumed through Kafka: all %d lines equal, byte for byte; the last is", demoTopic, len(got))
	d.say("   %s", got[len(got)-1])
	d.say("\n7. The same topic as a table of four columns, read through Arrow Flight:")
	f.limit = 3
	f.columns = []string{"timestamp", "value"}
	if err := d.show(ctx, c, "kafka."+demoTopic, f); err != nil {
		return err
	}
	return d.readKeyed(ctx, c)
}

// readKeyed looks a row up and shows what its table went through.
func (d *demo) readKeyed(ctx context.Context, c *client.Client) error {
	desc, err := descriptorOf(ctx, c, demoKeyed)
	if err != nil {
		return err
	}
	n, err := c.Count(ctx, demoKeyed, nil)
	if err != nil {
		return err
	}
	d.say("\n8. The primary-key table %s has %d rows, one for each kind of weather. The latest day of snow, looked up:", demoKeyed, n)
	l, err := c.NewLookuper(ctx, demoKeyed, client.DefaultLookup())
	if err != nil {
		return err
	}
	defer l.Close()
	row, err := l.Get(ctx, "snow")
	if err != nil {
		return err
	}
	if row == nil {
		return fmt.Errorf("%s has no row for snow", demoKeyed)
	}
	defer row.Release()
	rows := func(yield func(page, error) bool) { yield(page{record: row}, nil) }
	f := printFlags{format: "table"}
	if _, err := d.app.printPages(rows, f, emptyPage(desc, nil, metaColumns{})); err != nil {
		return err
	}
	d.say("   The end of its changelog, which says what every upsert did:")
	ends, err := c.ListOffsets(ctx, demoKeyed, nil, "latest")
	if err != nil {
		return err
	}
	f.meta = true
	columns := []string{"weather", "date", "temp_max"}
	last := c.Scan(ctx, client.ScanRequest{Table: demoKeyed, Bucket: -1, Columns: columns, From: fmt.Sprint(max(0, ends[0].Offset-4))})
	_, err = d.app.printPages(logPages(last, changelogMeta), f, emptyPage(desc, columns, changelogMeta))
	return err
}

// show prints the first rows of a table.
func (d *demo) show(ctx context.Context, c *client.Client, table string, f readFlags) error {
	desc, err := descriptorOf(ctx, c, table)
	if err != nil {
		return err
	}
	rows := c.Scan(ctx, client.ScanRequest{Table: table, Bucket: f.bucket, From: f.from, Columns: f.columns, Limit: f.limit})
	_, err = d.app.printPages(logPages(rows, logMeta), f.printFlags, emptyPage(desc, f.columns, logMeta))
	return err
}

func (d *demo) client() (*client.Client, error) {
	cfg := client.Default()
	cfg.Bootstrap = []string{d.flight}
	return client.New(cfg)
}

func (d *demo) writeTable(ctx context.Context) (int64, error) {
	return d.writeCSV(ctx, demoTable, nil)
}

// upsert writes the same rows into a table with a primary key.
func (d *demo) upsert(ctx context.Context) error {
	_, err := d.writeCSV(ctx, demoKeyed, []string{"weather"})
	return err
}

// writeCSV creates a table and writes the weather into it.
func (d *demo) writeCSV(ctx context.Context, table string, primaryKey []string) (int64, error) {
	c, err := d.client()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	desc, err := d.app.descriptor(table, tableFlags{buckets: 1, primaryKey: primaryKey, columns: []string{
		"date DATE NOT NULL", "precipitation DOUBLE", "temp_max DOUBLE", "temp_min DOUBLE", "wind DOUBLE", "weather STRING",
	}})
	if err != nil {
		return 0, err
	}
	if err := c.CreateDatabase(ctx, "demo", true); err != nil {
		return 0, err
	}
	if _, err := c.CreateTable(ctx, desc, true); err != nil {
		return 0, err
	}
	w, err := openWriter(ctx, c, table, writeFlags{})
	if err != nil {
		return 0, err
	}
	in, err := openRows(ctx, bytes.NewReader(weatherCSV), "csv", w.schema, 500)
	if err != nil {
		return 0, err
	}
	defer in.Release()
	var rows int64
	for in.Next() {
		if _, err := w.write(ctx, in.RecordBatch()); err != nil {
			return 0, err
		}
		rows += in.RecordBatch().NumRows()
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return rows, w.close(ctx)
}

func (d *demo) produce(ctx context.Context) ([]string, error) {
	k, err := kgo.NewClient(kgo.SeedBrokers(d.kafka), kgo.DefaultProduceTopic(demoTopic), kgo.AllowAutoTopicCreation(),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer k.Close()
	var lines []string
	var records []*kgo.Record
	for l := range strings.Lines(string(weatherCSV)) {
		l = strings.TrimRight(l, "\r\n")
		lines = append(lines, l)
		records = append(records, &kgo.Record{Value: []byte(l)})
	}
	return lines, k.ProduceSync(ctx, records...).FirstErr()
}

func (d *demo) consume(ctx context.Context, n int) ([]string, error) {
	k, err := kgo.NewClient(kgo.SeedBrokers(d.kafka), kgo.ConsumeTopics(demoTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var got []string
	for len(got) < n {
		fetches := k.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("consume %s: %d of %d lines came: %w", demoTopic, len(got), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	if len(got) > n {
		return nil, fmt.Errorf("%s has %d lines, %d were produced", demoTopic, len(got), n)
	}
	return got, nil
}

// start runs this very binary as a node and waits until it is ready.
func (d *demo) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.log.Reset()
	args := []string{"serve", "--data-dir", d.dir, "--listen", d.flight, "--kafka-listen", d.kafka, "--http-listen", "off", "--log-format", "text"}
	d.process = exec.CommandContext(ctx, self, args...)
	d.process.Env = append(os.Environ(), d.env...)
	d.process.Stderr = &d.log
	out, err := d.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.process.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = d.process.Wait()
		return fmt.Errorf("the node did not start:\n%s", d.log.String())
	}
	return nil
}

// kill is kill -9.
func (d *demo) kill() {
	if d.process == nil {
		return
	}
	_ = d.process.Process.Kill()
	_ = d.process.Wait()
	d.process = nil
}

func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
