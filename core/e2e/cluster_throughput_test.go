package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What limits a node of TestClusterFiguresThroughput, and nothing else does: its own way
// to the store.
const (
	linkBytes   = 5 << 20               // a second, in each direction
	linkLatency = 30 * time.Millisecond // of a request, before its first byte arrives
)

// How much clusters of 1, 2 and 3 nodes take together, each node's way to the store being
// as slow as any other's: whether nodes share what each has, or get into each other's way.
//
//	12 producers, one a partition --Kafka--> 1, 2 or 3 nodes --5 MiB/s, 30 ms each--> S3 server
//
// Clusters of each size take turns, each fresh, so that what else the machine does hits
// all sizes alike. Records do not compress.
func TestClusterFiguresThroughput(t *testing.T) {
	wantFigures(t)
	const sizes, rounds = 3, 3
	var got [sizes + 1][]throughput
	for round := range rounds {
		for k := range sizes {
			n := (round+k)%sizes + 1 // each size comes first, second and last once
			t.Run(fmt.Sprintf("round %d, %d nodes", round+1, n), func(t *testing.T) {
				p := measureThroughput(t, n)
				got[n] = append(got[n], p)
				t.Logf("%d nodes: %.2f MB/s of records, %.0f %% of the ways to the store; load average %s", n, p.records/1e6, 100*p.link/float64(n*linkBytes), loadAverage())
			})
			if t.Failed() {
				return
			}
		}
	}
	w := table.NewWriter()
	w.AppendHeader(table.Row{"nodes", "MB/s, records", "of one node", "MB/s to the store", "of what may pass", "bytes stored / produced"})
	for n := 1; n <= sizes; n++ {
		of := func(value func(round int, p throughput) float64) (all []float64) {
			for round, p := range got[n] {
				all = append(all, value(round, p))
			}
			return all
		}
		w.AppendRow(table.Row{
			n,
			ranged(of(func(_ int, p throughput) float64 { return p.records / 1e6 })),
			ranged(of(func(round int, p throughput) float64 { return p.records / got[1][round].records })),
			ranged(of(func(_ int, p throughput) float64 { return p.link / 1e6 })),
			ranged(of(func(_ int, p throughput) float64 { return p.link / float64(n*linkBytes) })),
			ranged(of(func(_ int, p throughput) float64 { return p.link / p.records })),
		})
	}
	t.Logf("medians of %d rounds (range); a node's way to the store lets %.2f MB/s through and takes %s longer\n%s", rounds, linkBytes/1e6, linkLatency, w.RenderMarkdown())
}

// throughput is bytes per second: values of acknowledged records, and what went to the
// store for them.
type throughput struct{ records, link float64 }

func measureThroughput(t *testing.T, nodes int) throughput {
	const (
		partitions = 12 // 12, 6 and 4 on a node
		value      = 1 << 10
		buffered   = 1 << 20 // of a partition: more than a node's way to the store takes in the time of an answer
		warm       = 25 * time.Second
		measured   = time.Minute // several uploads long
	)
	// With the tests' short lease a log slot that takes 6 s would end the node's epoch.
	c := newCluster(t, nodes, append([]string{"--lease-ttl", "30s"}, quiet...)...)
	c.start()
	c.mink("topic", "create", "load", "--partitions", fmt.Sprint(partitions))
	for _, m := range c.nodes {
		m.toStore.slow(linkLatency)
		m.toStore.throttle(linkBytes)
	}
	noise := make([]byte, 1<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(noise) // never fails
	var acknowledged atomic.Int64
	for p := range int32(partitions) {
		k := c.franz(
			kgo.MaxBufferedBytes(buffered), kgo.MaxBufferedRecords(buffered/value), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0),
			kgo.ProduceRequestTimeout(time.Minute), kgo.RequestTimeoutOverhead(time.Minute),
		)
		values := rand.New(rand.NewPCG(1, uint64(p)))
		go func() {
			for t.Context().Err() == nil { // Produce waits while the buffer is full
				at := values.IntN(len(noise) - value)
				k.Produce(t.Context(), &kgo.Record{Topic: "load", Partition: p, Value: noise[at : at+value]}, func(r *kgo.Record, err error) {
					switch {
					case err == nil:
						acknowledged.Add(int64(len(r.Value)))
					case t.Context().Err() == nil && !errors.Is(err, kgo.ErrClientClosed):
						t.Errorf("partition %d: %v", p, err)
					}
				})
			}
		}()
	}
	stored := func() (sum int64) {
		for _, m := range c.nodes {
			sum += m.toStore.carried[way(true)].Load()
		}
		return sum
	}
	pause(t.Context(), warm)
	began, records, link := time.Now(), acknowledged.Load(), stored()
	pause(t.Context(), measured)
	took := time.Since(began).Seconds()
	for id, n := range c.registrations() {
		if n != 1 {
			t.Errorf("node %d has registered %d times: this is not the figure of a cluster at work", id, n)
		}
	}
	return throughput{float64(acknowledged.Load()-records) / took, float64(stored()-link) / took}
}

// ranged is a median and its range.
func ranged(values []float64) string {
	slices.Sort(values)
	return fmt.Sprintf("%.2f (%.2f..%.2f)", values[len(values)/2], values[0], values[len(values)-1])
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
