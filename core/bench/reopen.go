package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"

	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// reopen measures how long a primary-key bucket is away when its leader starts without
// a working copy: a node is filled, started again (the snapshot alone), written to
// and started once more (the snapshot and the changelog behind it). Beside them, of the
// same run, the bytes of the same snapshot copied from file to file.
type reopen struct {
	bytes, replay int64 // values of rows in the snapshot, and behind it
	rowBytes      int
	dir           string
	cfg           server.Config
}

const reopenTable = "bench.rows"

func reopenCommand(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench reopen", flag.ContinueOnError)
	mib := flags.Int64("mib", 1024, "MiB of rows in the snapshot")
	replay := flags.Int64("replay-mib", 64, "MiB of rows behind it")
	record := flags.Int("record", 1024, "bytes of a row's value")
	scratch := flags.String("scratch", "", "directory on the disk to be measured; empty: the system's temporary one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *mib < 1 || *replay < 1 || *record < 16 {
		return errors.New("bench reopen: -mib and -replay-mib must be 1 or more, -record 16 or more")
	}
	r := &reopen{bytes: *mib << 20, replay: *replay << 20, rowBytes: *record}
	if r.dir, err = os.MkdirTemp(*scratch, "mink-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	r.cfg = server.DefaultConfig()
	r.cfg.DataDir, r.cfg.Listen, r.cfg.KafkaListen, r.cfg.HTTPListen = filepath.Join(r.dir, "data"), "127.0.0.1:0", "off", "off"
	r.cfg.KVSnapshotsRetained = 1
	return r.run(ctx)
}

func (r *reopen) run(ctx context.Context) error {
	var snapshot api.KVSnapshotStats
	fill := r.cfg
	fill.KVSnapshotInterval = units.Duration(5 * time.Second)
	err := r.node(ctx, fill, func(c *client.Client) error {
		if err := c.CreateDatabase(ctx, "bench", true); err != nil {
			return err
		}
		if _, err := c.CreateTable(ctx, json.RawMessage(`{"database":"bench","table":"rows","schema":{"columns":[{"name":"k","type":"BIGINT"},{"name":"v","type":"BYTES"}]},"primary_key":["k"],"bucket_count":1}`), false); err != nil {
			return err
		}
		began := time.Now()
		if err := r.write(ctx, c, 0, r.bytes); err != nil {
			return err
		}
		fmt.Printf("filled %d MiB in %.0f s\n", r.bytes>>20, time.Since(began).Seconds())
		return r.snapshotted(ctx, c, &snapshot)
	})
	if err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	still := r.cfg // no further snapshot
	still.KVSnapshotInterval, still.KVSnapshotBytes, still.KVIdleClose = units.Duration(24*time.Hour), 1<<50, units.Duration(24*time.Hour)
	var alone, behind opened
	err = r.node(ctx, still, func(c *client.Client) (err error) {
		if alone, err = r.open(ctx, c); err != nil {
			return err
		}
		return r.write(ctx, c, alone.rows, r.replay)
	})
	if err != nil {
		return fmt.Errorf("first start: %w", err)
	}
	err = r.node(ctx, still, func(c *client.Client) (err error) {
		behind, err = r.open(ctx, c)
		return err
	})
	if err != nil {
		return fmt.Errorf("second start: %w", err)
	}
	if lack := (r.bytes + r.replay) / int64(r.rowBytes); behind.rows != lack || alone.rows != r.bytes/int64(r.rowBytes) {
		return fmt.Errorf("%d rows and then %d came back, %d in the end were written", alone.rows, behind.rows, lack)
	}
	copied, took, cpu, err := r.copyFiles(filepath.Join(r.cfg.DataDir, "objects", "kv"))
	if err != nil {
		return fmt.Errorf("copy the snapshot's files: %w", err)
	}
	mb := float64(snapshot.Bytes) / 1e6
	fmt.Printf("\n## Reopening a primary-key bucket: a snapshot of %.0f MB in %d files, %d rows; load %.1f\n\n", mb, snapshot.Files, snapshot.Rows, loadAverage())
	header("what", "seconds", "MB/s", "of the copy", "CPU-s")
	raw := float64(copied) / 1e6 / took.Seconds()
	line := func(what string, n float64, took, cpu time.Duration) {
		row(what, fmt.Sprintf("%.2f", took.Seconds()), fmt.Sprintf("%.0f", n/took.Seconds()), fmt.Sprintf("%.2f", n/took.Seconds()/raw), fmt.Sprintf("%.2f", cpu.Seconds()))
	}
	line("the snapshot's files, copied from file to file", float64(copied)/1e6, took, cpu)
	line("the snapshot alone: from the first lookup to its answer", mb, alone.took, alone.cpu)
	line(fmt.Sprintf("the snapshot and %d MiB of changelog behind it", r.replay>>20), mb+float64(r.replay)/1e6, behind.took, behind.cpu)
	if more := behind.took - alone.took; more > 0 {
		line("of that the replay, by the difference", float64(r.replay)/1e6, more, max(behind.cpu-alone.cpu, 0))
	}
	return nil
}

// node runs a node of this process while f does.
func (r *reopen) node(ctx context.Context, cfg server.Config, f func(*client.Client) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	started, ended := make(chan server.Ready, 1), make(chan error, 1)
	go func() {
		ended <- server.Run(ctx, cfg, slog.New(slog.DiscardHandler), func(s server.Ready) { started <- s })
	}()
	var at server.Ready
	select {
	case at = <-started:
	case err := <-ended:
		return fmt.Errorf("the node ended: %w", err)
	}
	ccfg := client.Default()
	ccfg.Bootstrap, ccfg.RetryWait, ccfg.RetryWaitMax = []string{at.Flight}, 2*time.Millisecond, 10*time.Millisecond
	ccfg.RetryTimeout = time.Hour
	c, err := client.New(ccfg)
	if err == nil {
		err = errors.Join(f(c), c.Close())
	}
	stop()
	return errors.Join(err, <-ended)
}

// write upserts rows of keys from first on.
func (r *reopen) write(ctx context.Context, c *client.Client, first, size int64) error {
	w, err := c.NewUpsertWriter(ctx, reopenTable, client.DefaultUpsert())
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, w.Schema())
	defer b.Release()
	random := rand.NewChaCha8([32]byte{byte(first), byte(first >> 8), byte(first >> 16)})
	value := make([]byte, r.rowBytes)
	const batch = 256
	for k, last := first, first+size/int64(r.rowBytes); k < last; {
		for range min(batch, last-k) {
			_, _ = random.Read(value)
			b.Field(0).(*array.Int64Builder).Append(k)
			b.Field(1).(*array.BinaryBuilder).Append(value)
			k++
		}
		rows := b.NewRecordBatch()
		_, err := w.Upsert(ctx, rows)
		rows.Release()
		if err != nil {
			return errors.Join(err, w.Close(ctx))
		}
	}
	return w.Close(ctx)
}

// snapshotted waits until everything is in a snapshot.
func (r *reopen) snapshotted(ctx context.Context, c *client.Client, into *api.KVSnapshotStats) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := c.Stats(ctx)
		if err != nil {
			return err
		}
		for _, b := range s.Buckets {
			if k := b.KVSnapshot; k != nil && k.Offset == b.HighWatermark && k.RunningMs == 0 {
				*into = *k
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// opened is what a store that had to be opened took.
type opened struct {
	took, cpu time.Duration // cpu: of the whole process
	rows      int64
}

func (r *reopen) open(ctx context.Context, c *client.Client) (o opened, err error) {
	l, err := c.NewLookuper(ctx, reopenTable, client.DefaultLookup())
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	began, cpu := time.Now(), processCPU()
	row, err := l.Get(ctx, 7)
	if err != nil {
		return o, err
	}
	o.took, o.cpu = time.Since(began), processCPU()-cpu
	row.Release()
	o.rows, err = c.Count(ctx, reopenTable, nil)
	return o, err
}

// copyFiles copies every file below dir into fresh ones.
func (r *reopen) copyFiles(dir string) (bytes int64, took, cpu time.Duration, err error) {
	to := filepath.Join(r.dir, "copy")
	if err := os.Mkdir(to, 0o700); err != nil {
		return 0, 0, 0, err
	}
	buf := make([]byte, 1<<20)
	began, before, n := time.Now(), processCPU(), 0
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create(filepath.Join(to, fmt.Sprint(n)))
		if err != nil {
			return err
		}
		n++
		// Not *os.File's ReadFrom: a store's GET is bytes in memory, not a copy by the kernel.
		m, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, buf)
		bytes += m
		return errors.Join(err, out.Close())
	})
	return bytes, time.Since(began), processCPU() - before, err
}

func processCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
