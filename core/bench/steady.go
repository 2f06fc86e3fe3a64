package main

import (
	"context"
	"fmt"
	"net"
	"time"
)

func dial(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

// pacedRate is a load that no broker has trouble with, bytes/s.
const pacedRate = 5 << 20

// paced measures what a node does under a light load: how long a Produce
// request takes beside its PUTs, and whether PUTs follow the time or the number
// of partitions. The requests of few seconds have few PUTs: a p99 of less than
// 5,000 of them is marked; the engine's own benchmark has enough, in virtual time.
func (s *suite) paced(ctx context.Context) error {
	fmt.Printf("## A light load: %d MB/s of %d-byte records\n\n", pacedRate>>20, s.load.record)
	header("broker", "partitions", "request p50 ms", "p99 ms", "PUT p50 ms", "p99 ms", "PUTs/s", "PUTs", "broker CPU-s/GB")
	for _, k := range []int{1, 16, 1000} {
		for _, b := range s.brokers {
			if !b.own() {
				continue
			}
			l := s.load
			l.partitions, l.rate, l.duration = k, pacedRate, max(10*time.Second, 3*s.load.duration)
			var r *result
			var at map[string]float64
			err := s.with(ctx, b, func(p *process) (err error) {
				if r, err = produce(ctx, p, l); err == nil {
					at, err = p.figures(ctx)
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("paced, %s, %d partitions: %w", b.name, k, err)
			}
			putMs := func(name string) string {
				v := at[name]
				if v == 0 {
					return "-"
				}
				return fmt.Sprintf("%.1f", v*1e3)
			}
			puts := fmt.Sprintf("%.0f", r.Puts)
			if r.Puts < 5000 {
				puts += " (few)"
			}
			row(b.name, fmt.Sprint(k), ms(r.Latencies, 0.5), ms(r.Latencies, 0.99), putMs("bench_store_put_p50_seconds"),
				putMs("bench_store_put_p99_seconds"), fmt.Sprintf("%.1f", r.Puts/r.Seconds), puts, fmt.Sprintf("%.2f", r.cpuPerGB()))
		}
	}
	fmt.Println()
	return nil
}

func ms(d []time.Duration, q float64) string {
	return fmt.Sprintf("%.1f", percentile(d, q).Seconds()*1e3)
}

// settle is how long a node has after its last append before it counts as idle:
// two upload intervals.
const settle = 22 * time.Second

// watchIdle measures a node that has data and no clients.
func (s *suite) watchIdle(ctx context.Context) error {
	fmt.Printf("## An idle node, 16 partitions with data, %s watched\n\n", s.idle)
	header("broker", "PUTs", "CPU of one core")
	for _, b := range s.brokers {
		if !b.own() {
			continue
		}
		l := s.load
		l.partitions = 16
		err := s.with(ctx, b, func(p *process) error {
			if _, err := produce(ctx, p, l); err != nil {
				return err
			}
			if !pause(ctx, settle) {
				return ctx.Err()
			}
			w, err := openWindow(ctx, p)
			if err != nil {
				return err
			}
			if !pause(ctx, s.idle) {
				return ctx.Err()
			}
			r, err := w.close(ctx, 0, 0)
			if err != nil {
				return err
			}
			row(b.name, fmt.Sprintf("%.0f", r.Puts), fmt.Sprintf("%.2f %%", 100*r.CPU/r.Seconds))
			return nil
		})
		if err != nil {
			return fmt.Errorf("idle, %s: %w", b.name, err)
		}
	}
	fmt.Println()
	return nil
}
