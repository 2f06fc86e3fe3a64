package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/sdk/objstore"
)

// own reports a Mink node that the suite starts.
func (b *broker) own() bool {
	return slices.Contains(b.command, "serve") || slices.Contains(b.command, "node")
}

// cold measures a consumer that reads what no cache holds: a node is filled,
// uploads, is killed and starts again; then its topic is read from the start,
// beside the same bytes read from the same store, eight GETs at a time. The
// produce p99 is that of a light load alone, then with such a reader beside it.
func (s *suite) cold(ctx context.Context) error {
	const partitions = 16
	fmt.Printf("## A cold consumer: %d MiB, %d partitions, n = %d, median (range)\n\n", s.fill>>20, partitions, s.n)
	header("broker", "MB/s", "8 GETs at a time, MB/s", "ratio", "produce p99 ms, alone", "with the reader", "ratio")
	for _, b := range s.brokers {
		if b.name != nodeName { // a directory's reads come from the page cache: no limit to compare with
			continue
		}
		var got, raw, ratio, alone, beside, slower []float64
		for range s.n {
			r, err := s.coldOnce(ctx, b, partitions)
			if err != nil {
				return fmt.Errorf("cold consumer, %s: %w", b.name, err)
			}
			got, raw, ratio = append(got, r.read), append(raw, r.raw), append(ratio, r.read/r.raw)
			alone, beside, slower = append(alone, r.alone), append(beside, r.beside), append(slower, r.beside/r.alone)
		}
		row(b.name, spread(got, "%.0f"), spread(raw, "%.0f"), spread(ratio, "%.2f"), spread(alone, "%.0f"), spread(beside, "%.0f"), spread(slower, "%.2f"))
	}
	fmt.Println()
	return nil
}

type coldResult struct{ read, raw, alone, beside float64 }

func (s *suite) coldOnce(ctx context.Context, b *broker, partitions int) (r coldResult, err error) {
	l := s.load
	l.partitions = partitions
	err = s.with(ctx, b, func(p *process) error {
		want, err := fillTopic(ctx, p, l, s.fill)
		if err != nil {
			return err
		}
		if !pause(ctx, settle) { // everything is uploaded
			return ctx.Err()
		}
		paced := l
		paced.rate, paced.duration = pacedRate, 10*time.Second
		without, err := produce(ctx, p, paced)
		if err != nil {
			return err
		}
		r.alone = percentile(without.Latencies, 0.99).Seconds() * 1e3
		p.kill()
		if r.raw, err = rawReads(ctx, p.data(), s.fill); err != nil {
			return err
		}
		if err := p.launch(ctx); err != nil {
			return err
		}
		began := time.Now()
		n, err := readAll(ctx, p.kafka, fillName, l, want)
		if err != nil {
			return err
		}
		r.read = float64(n) / 1e6 / time.Since(began).Seconds()
		p.kill()
		if err := p.launch(ctx); err != nil {
			return err
		}
		paced.topic = "bench-beside"
		with, err := besideReader(ctx, p, l, paced, want)
		if err != nil {
			return err
		}
		r.beside = percentile(with.Latencies, 0.99).Seconds() * 1e3
		return nil
	})
	return r, err
}

// besideReader measures the paced load while the topic is read again and again:
// cold at first, from the block cache as far as it holds it afterwards.
func besideReader(ctx context.Context, p *process, l, paced load, want int64) (*result, error) {
	reading, cancel := context.WithCancel(ctx)
	var reader sync.WaitGroup
	var failed error
	reader.Go(func() {
		for reading.Err() == nil && failed == nil {
			if _, err := readAll(reading, p.kafka, fillName, l, want); err != nil && reading.Err() == nil {
				failed = err
			}
		}
	})
	r, err := produce(ctx, p, paced)
	cancel()
	reader.Wait()
	return r, errors.Join(err, failed)
}

// rawReads reads about `fill` bytes of the store's objects, eight GETs of up to
// 8 MiB at a time, with the latency that the node's store has: MB/s.
func rawReads(ctx context.Context, dir string, fill int) (float64, error) {
	inner, err := dirstore.Open(ctx, dirstore.Config{Dir: objectsOf(dir)})
	if err != nil {
		return 0, err
	}
	store := fault.New(inner, fault.Config{Latency: fault.S3Like()})
	defer store.Close()
	var ranges []objstore.GetRangeRequest
	err = objstore.All(ctx, store, "data/", "", func(o objstore.ObjectInfo) bool {
		const most = 8 << 20
		for at := int64(0); at < o.Size; at += most {
			ranges = append(ranges, objstore.GetRangeRequest{Key: o.Key, Offset: at, Length: min(most, o.Size-at)})
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	var total atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	began := time.Now()
	for _, r := range ranges {
		g.Go(func() error {
			resp, err := store.GetRange(ctx, r)
			total.Add(int64(len(resp.Data)))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	if total.Load() < int64(fill)/2 {
		return 0, fmt.Errorf("the store's objects have %d bytes of %d: the node has not uploaded them", total.Load(), fill)
	}
	return float64(total.Load()) / 1e6 / time.Since(began).Seconds(), nil
}

// crash measures the longest time without an acknowledgement that a producer
// sees when the node is killed under load and started again at once.
func (s *suite) crash(ctx context.Context) error {
	fmt.Printf("## kill -9 under a light load, started again at once, n = %d, median (range)\n\n", s.n)
	header("broker", "longest time without an acknowledgement, s")
	for _, b := range s.brokers {
		if !b.own() {
			continue
		}
		var gaps []float64
		for range s.n {
			err := s.with(ctx, b, func(p *process) error {
				gap, err := crashGap(ctx, p, s.load)
				gaps = append(gaps, gap.Seconds())
				return err
			})
			if err != nil {
				return fmt.Errorf("kill -9, %s: %w", b.name, err)
			}
		}
		row(b.name, spread(gaps, "%.1f"))
	}
	fmt.Println()
	return nil
}

func crashGap(ctx context.Context, p *process, l load) (time.Duration, error) {
	const topic = "bench-crash"
	l.partitions, l.rate = 16, pacedRate
	if err := createTopic(ctx, p.kafka, topic, l.partitions); err != nil {
		return 0, err
	}
	client, err := newProducer(p.kafka, topic, l)
	if err != nil {
		return 0, err
	}
	defer client.cl.Close()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- client.until(sending, time.Minute, l) }()
	if !pause(ctx, 3*time.Second) {
		return 0, ctx.Err()
	}
	p.kill()
	killed := time.Now()
	if !pause(ctx, 50*time.Millisecond) { // answers under way arrive
		return 0, ctx.Err()
	}
	before := client.acked.Load()
	if err := p.launch(ctx); err != nil {
		return 0, err
	}
	for client.acked.Load() == before && time.Since(killed) < 40*time.Second {
		if !pause(ctx, 5*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
	gap := time.Since(killed)
	stop()
	if err := <-done; err != nil && !interrupted(err) {
		return 0, err
	}
	if client.acked.Load() == before {
		return 0, errors.New("nothing was acknowledged for 40 seconds after the crash")
	}
	return gap, nil
}
