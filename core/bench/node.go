package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/kafka"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/sqllog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/ops"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/objstore"
)

// slowStore is a directory store that takes as long as a cloud's, and remembers
// how long its Puts took. The directory should lie on a memory file system: then
// a Put costs the node what sending its bytes over a socket would, and no disk.
type slowStore struct {
	*fault.Store
	inner *meteredStore
	mu    sync.Mutex
	puts  []time.Duration
}

func (s *slowStore) Put(ctx context.Context, r objstore.PutRequest) (objstore.PutResponse, error) {
	began := time.Now()
	resp, err := s.Store.Put(ctx, r)
	s.mu.Lock()
	s.puts = append(s.puts, time.Since(began))
	s.mu.Unlock()
	return resp, err
}

// meteredStore measures the processor time that a store takes for its Puts: a
// node on a cloud's store does not pay for the store's memory.
type meteredStore struct {
	objstore.Store
	cpu atomic.Int64 // ns
}

func (s *meteredStore) Put(ctx context.Context, r objstore.PutRequest) (objstore.PutResponse, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCPU()
	resp, err := s.Store.Put(ctx, r)
	s.cpu.Add(int64(threadCPU() - before))
	return resp, err
}

func threadCPU() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// figures count the calls so far.
func (s *slowStore) figures() []ops.Figure {
	s.mu.Lock()
	d := slices.Clone(s.puts)
	s.mu.Unlock()
	st := s.Stats()
	return []ops.Figure{
		{Name: "bench_store_puts_total", Help: "Puts, parts included.", Counter: true, Value: float64(st.Puts + st.Parts + st.Uploads)},
		{Name: "bench_store_cpu_seconds", Help: "Processor time inside the simulated store.", Counter: true, Value: time.Duration(s.inner.cpu.Load()).Seconds()},
		{Name: "bench_store_gets_total", Help: "Reads.", Counter: true, Value: float64(st.Gets + st.Heads)},
		{Name: "bench_store_put_p50_seconds", Help: "Median of all Puts.", Value: percentile(d, 0.5).Seconds()},
		{Name: "bench_store_put_p99_seconds", Help: "99th percentile of all Puts.", Value: percentile(d, 0.99).Seconds()},
	}
}

// runNode is a Mink node without the Flight listener, over a store with latency:
// the same parts as `mink serve` puts together, whose configuration has no place
// for a store that exists for benchmarks only.
func runNode(ctx context.Context, dir, kafkaListen string, latency fault.Latency, logger *slog.Logger) error {
	inner, err := dirstore.Open(ctx, dirstore.Config{Dir: objectsOf(dir)})
	if err != nil {
		return err
	}
	metered := &meteredStore{Store: inner}
	store := &slowStore{Store: fault.New(metered, fault.Config{Latency: latency}), inner: metered}
	log, err := sqllog.Open(ctx, "sqlite:"+filepath.Join(dir, "meta.db"), sqllog.Default(), logger)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	err = serveNode(ctx, store, log, kafkaListen, logger)
	return errors.Join(err, log.Close(), store.Close())
}

// objectsOf is where such a node keeps its objects.
func objectsOf(dir string) string { return filepath.Join(dir, "objects") }

func serveNode(ctx context.Context, store *slowStore, log metalog.Log, kafkaListen string, logger *slog.Logger) error {
	replica, head, err := storehead.Open(ctx, storehead.Deps{Objects: store, WALStore: store, Log: log, Logger: logger}, metalog.Default(), "")
	if err != nil {
		return err
	}
	var n *node.Node
	web := ops.New(logger, func() (bool, string) { return n.Ready() }, func() []ops.Figure {
		e := n.Stats().Engine
		return append(store.figures(),
			ops.Figure{Name: "mink_wal_objects_total", Help: "See core/server.", Counter: true, Value: float64(e.Bulks)},
			ops.Figure{Name: "mink_stream_objects_total", Help: "See core/server.", Counter: true, Value: float64(e.Puts)})
	})
	kcfg := kafka.Default()
	kcfg.Listen = kafkaListen
	listener, err := kafka.New(kcfg, kafka.OnNode(func() kafka.Node { return n }), web.Kafka(), logger)
	if err != nil {
		return err
	}
	if err := listener.Open(ctx); err != nil {
		return err
	}
	http, err := listen(ctx)
	if err != nil {
		return err
	}
	defer http.Close()
	ncfg, ccfg := node.Default(), coordinator.Default()
	ncfg.KafkaAddress = listener.Addr().String()
	ncfg.Stream = stream.Default(store.Capabilities(), 0)
	var c *coordinator.Coordinator
	n, err = node.New(ncfg, node.Deps{Meta: replica, Log: log, Head: head, Objects: store, WALStore: store, Registered: func() { c.Wake() }, Logger: logger})
	if err != nil {
		return err
	}
	c, err = coordinator.New(ccfg, coordinator.Deps{Meta: replica, Log: log, Head: head, WALStore: store, Objects: store, Self: n.Self, Logger: logger})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return replica.Run(ctx) })
	g.Go(func() error { return n.Run(ctx) })
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return web.Serve(ctx, http) })
	g.Go(func() error {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
		ready(listener.Addr().String(), http.Addr().String())
		return listener.Run(ctx)
	})
	return g.Wait()
}
