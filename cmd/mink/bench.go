package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// benchFlags is what `bench` takes.
type benchFlags struct {
	create                      bool
	rows                        int64
	batch, concurrency, payload int
	bucket                      int32
	duration                    time.Duration
	protocol, kafka, what       string
	keys                        int64
	pid                         int
}

// benchResult is what a run measured. Latencies are of one batch, from handing
// it over to its acknowledgement.
type benchResult struct {
	Protocol   string  `json:"protocol"`
	What       string  `json:"what"`
	Rows       int64   `json:"rows"`
	Bytes      int64   `json:"bytes"` // of payloads
	Errors     int64   `json:"errors"`
	Seconds    float64 `json:"seconds"`
	RowsPerS   float64 `json:"rows_per_second"`
	BytesPerS  float64 `json:"bytes_per_second"`
	P50ms      float64 `json:"p50_ms"`
	P95ms      float64 `json:"p95_ms"`
	P99ms      float64 `json:"p99_ms"`
	Maxms      float64 `json:"max_ms"`
	Found      int64   `json:"found,omitempty"`              // rows of lookups
	ServerCPU  float64 `json:"server_cpu_seconds,omitempty"` // of --server-pid, during the run
	FirstError string  `json:"first_error,omitempty"`
}

func benchCommand(a *app) *cobra.Command {
	f := benchFlags{rows: 1_000_000, batch: 500, concurrency: 4, payload: 100, bucket: 4, protocol: "flight", what: "append", keys: 1_000_000}
	cmd := &cobra.Command{
		Use: "bench DB.TABLE", Short: "Load through the same client paths as write and lookup",
		Long: `Appends rows (a number and a random payload) and prints rows/s, bytes/s, errors
and latency percentiles per batch. --what upsert puts rows of random keys into a
primary-key table, --what lookup looks random keys up; lookups of --batch 1 gather
in the client. --protocol kafka produces records to the topic of that table.
--server-pid adds what the node's process used of the processors (Linux).`,
		Example: `  mink bench bench.load --create
  mink bench bench.items --create --what upsert --keys 100000
  mink bench bench.items --what lookup --keys 100000 --batch 1 --concurrency 256
  mink bench kafka.load --create --protocol kafka --payload 1024 --duration 30s`,
		Args: oneTable, ValidArgsFunction: a.completeTable,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.batch < 1 || f.concurrency < 1 || f.payload < 1 || f.rows < 1 || f.keys < 1 {
				return usagef("--batch, --concurrency, --payload, --rows and --keys must be 1 or more")
			}
			if f.protocol == "kafka" && f.what != "append" {
				return usagef("--what %s is for --protocol flight", f.what)
			}
			if !slices.Contains([]string{"flight", "kafka"}, f.protocol) {
				return usagef("--protocol %q: want flight or kafka", f.protocol)
			}
			if !slices.Contains([]string{"append", "upsert", "lookup"}, f.what) {
				return usagef("--what %q: want append, upsert or lookup", f.what)
			}
			r, err := a.bench(cmd.Context(), args[0], f)
			if err != nil {
				return err
			}
			return a.printBench(r)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.create, "create", false, "create the table when it is missing")
	fl.Int32Var(&f.bucket, "bucket-count", f.bucket, "buckets of a created table")
	fl.Int64Var(&f.rows, "rows", f.rows, "rows in all; with --duration as many as fit")
	fl.IntVar(&f.batch, "batch", f.batch, "rows of one batch")
	fl.IntVar(&f.concurrency, "concurrency", f.concurrency, "writers at once")
	fl.IntVar(&f.payload, "payload", f.payload, "bytes of one row's payload")
	fl.DurationVar(&f.duration, "duration", 0, "stop after this time instead of after --rows")
	fl.StringVar(&f.protocol, "protocol", f.protocol, "flight or kafka")
	completeWords(cmd, "protocol", "flight", "kafka")
	fl.StringVar(&f.what, "what", f.what, "append, upsert or lookup")
	completeWords(cmd, "what", "append", "upsert", "lookup")
	fl.Int64Var(&f.keys, "keys", f.keys, "how many keys there are, of upserts and lookups")
	fl.IntVar(&f.pid, "server-pid", 0, "process of the node, to measure")
	fl.StringVar(&f.kafka, "kafka", "", "Kafka address; default what the node advertises")
	return cmd
}

// meter gathers a run's figures.
type meter struct {
	mu        sync.Mutex
	latencies []time.Duration
	rows      int64
	errors    int64
	first     error
	found     atomic.Int64
}

func (m *meter) done(rows int64, took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.errors++
		if m.first == nil {
			m.first = err
		}
		return
	}
	m.rows += rows
	m.latencies = append(m.latencies, took)
}

func (m *meter) result(f benchFlags, took time.Duration) benchResult {
	slices.Sort(m.latencies)
	at := func(q float64) float64 {
		if len(m.latencies) == 0 {
			return 0
		}
		return float64(m.latencies[min(len(m.latencies)-1, int(q*float64(len(m.latencies))))]) / 1e6
	}
	r := benchResult{
		Protocol: f.protocol, What: f.what, Found: m.found.Load(), Rows: m.rows, Bytes: m.rows * int64(f.payload), Errors: m.errors, Seconds: took.Seconds(),
		P50ms: at(0.5), P95ms: at(0.95), P99ms: at(0.99), Maxms: at(1),
	}
	r.RowsPerS, r.BytesPerS = float64(r.Rows)/r.Seconds, float64(r.Bytes)/r.Seconds
	if m.first != nil {
		r.FirstError = m.first.Error()
	}
	return r
}

func (a *app) bench(ctx context.Context, name string, f benchFlags) (benchResult, error) {
	c, err := a.patientClient(ctx)
	if err != nil {
		return benchResult{}, err
	}
	defer c.Close()
	if f.create {
		if err := a.benchTable(ctx, c, name, f); err != nil {
			return benchResult{}, err
		}
	}
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration+time.Minute)
		defer cancel()
	}
	m := &meter{}
	cpu, err := processCPU(f.pid)
	if err != nil {
		return benchResult{}, err
	}
	began := time.Now()
	switch f.protocol + " " + f.what {
	case "flight append":
		err = benchFlight(ctx, c, name, f, m)
	case "flight upsert":
		err = benchUpsert(ctx, c, name, f, m)
	case "flight lookup":
		err = benchLookup(ctx, c, name, f, m)
	case "kafka append":
		err = a.benchKafka(ctx, c, name, f, m)
	}
	if err != nil {
		return benchResult{}, err
	}
	r := m.result(f, time.Since(began))
	used, err := processCPU(f.pid)
	r.ServerCPU = (used - cpu).Seconds()
	return r, err
}

func (a *app) benchTable(ctx context.Context, c *client.Client, name string, f benchFlags) error {
	database, table, err := splitName(name)
	if err != nil {
		return err
	}
	if err := c.CreateDatabase(ctx, database, true); err != nil {
		return err
	}
	var d []byte
	if f.protocol == "kafka" {
		d, err = topicDescriptor(database, table, f.bucket, nil)
	} else {
		flags := tableFlags{columns: []string{"seq BIGINT NOT NULL", "payload BYTES"}, buckets: f.bucket}
		if f.what != "append" {
			flags.primaryKey = []string{"seq"}
		}
		d, err = a.descriptor(name, flags)
	}
	if err != nil {
		return err
	}
	_, err = c.CreateTable(ctx, d, true)
	return err
}

// claim is how many rows the next batch of any writer has, 0: none is to be
// sent. taken counts the rows of all.
func (f benchFlags) claim(taken *atomic.Int64, began time.Time) int64 {
	if f.duration > 0 {
		if time.Since(began) < f.duration {
			return int64(f.batch)
		}
		return 0
	}
	end := taken.Add(int64(f.batch))
	return max(0, int64(f.batch)-max(0, end-f.rows))
}

func benchFlight(ctx context.Context, c *client.Client, name string, f benchFlags, m *meter) error {
	w, err := c.NewWriter(ctx, name, client.DefaultWriter())
	if err != nil {
		return err
	}
	rec, err := benchBatch(w.Schema(), f)
	if err != nil {
		return err
	}
	defer rec.Release()
	return f.write(ctx, m, func(n int64) arrow.RecordBatch { return rec.NewSlice(0, n) }, w.Append, w.Close)
}

// write writes what batch makes, and closes; each of the goroutines goes on before its
// rows are acknowledged.
func (f benchFlags) write(ctx context.Context, m *meter, batch func(n int64) arrow.RecordBatch,
	write func(context.Context, arrow.RecordBatch) (*client.Append, error), end func(context.Context) error,
) error {
	err := f.each(func(n int64, waits *sync.WaitGroup) error {
		start := time.Now()
		rows := batch(n)
		p, err := write(ctx, rows)
		rows.Release()
		if err != nil {
			return err
		}
		waits.Go(func() {
			err := p.Wait(ctx)
			m.done(n, time.Since(start), err)
		})
		return nil
	})
	if closing := end(ctx); err == nil && m.first == nil {
		err = closing // failed writes are the result's
	}
	return err
}

func benchBatch(s *arrow.Schema, f benchFlags) (arrow.RecordBatch, error) {
	if s.NumFields() != 2 || s.Field(0).Type.ID() != arrow.INT64 || s.Field(1).Type.ID() != arrow.BINARY {
		return nil, fmt.Errorf("bench wants a table of (BIGINT, BYTES); --create makes one: %w", mink.ErrInvalid)
	}
	b := array.NewRecordBuilder(defaultAllocator, s)
	defer b.Release()
	r := rand.NewChaCha8([32]byte{1})
	p := make([]byte, f.payload)
	for i := range f.batch {
		_, _ = r.Read(p)
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.BinaryBuilder).Append(p)
	}
	return b.NewRecordBatch(), nil
}

func (a *app) benchKafka(ctx context.Context, c *client.Client, name string, f benchFlags, m *meter) error {
	_, topic, err := splitName(name)
	if err != nil {
		return err
	}
	address := f.kafka
	if address == "" {
		d, err := c.DescribeCluster(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(d.Nodes, func(n api.Node) bool { return n.Live && n.KafkaAddress != "" })
		if i < 0 {
			return fmt.Errorf("no live node has a Kafka address: %w", mink.ErrUnavailable)
		}
		address = d.Nodes[i].KafkaAddress
	}
	k, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchMaxBytes(1<<20),
		kgo.MaxBufferedRecords(f.batch*f.concurrency*8), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer k.Close()
	value := make([]byte, f.payload)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(value)
	began := time.Now()
	var taken atomic.Int64
	var g errgroup.Group
	for range f.concurrency {
		g.Go(func() error {
			for n := f.claim(&taken, began); n > 0 && ctx.Err() == nil; n = f.claim(&taken, began) {
				start := time.Now()
				for range n {
					k.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) { m.done(1, time.Since(start), err) })
				}
			}
			return nil
		})
	}
	return errors.Join(g.Wait(), k.Flush(ctx))
}

func (a *app) printBench(r benchResult) error {
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.out, "%s %s: %s rows in %.1f s: %s rows/s, %s/s\n", r.Protocol, r.What, humanize.Comma(r.Rows), r.Seconds,
			humanize.Comma(int64(r.RowsPerS)), humanize.IBytes(uint64(r.BytesPerS)))
		if r.What == "lookup" {
			fmt.Fprintf(a.out, "%s of them found\n", humanize.Comma(r.Found))
		}
		if r.ServerCPU > 0 {
			fmt.Fprintf(a.out, "node: %.2f CPU-s, %.0f %% of a processor, %.2f us a row\n", r.ServerCPU, 100*r.ServerCPU/r.Seconds, r.ServerCPU*1e6/float64(max(1, r.Rows)))
		}
		fmt.Fprintf(a.out, "latency of a batch: p50 %.1f ms, p95 %.1f ms, p99 %.1f ms, max %.1f ms\n", r.P50ms, r.P95ms, r.P99ms, r.Maxms)
	}
	if r.Errors > 0 {
		return fmt.Errorf("%d batches failed, the first: %s", r.Errors, r.FirstError)
	}
	return nil
}
