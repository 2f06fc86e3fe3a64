package stream_test

import (
	"flag"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/sdk/objstore"
)

var ackFigures = flag.Bool("ack-figures", false, "print the acknowledgement's latency beside the PUT's, for make bench")

// TestAckFigures prints p50 and p99 of the acknowledgement beside those of the
// store's PUT, from at least 5,000 PUTs, in virtual time: what the schedule makes
// of a store's latency, whatever this machine. Writes that come one by one pay
// WALIdleWait and their PUT; under a steady load the batch interval, which bounds
// the bill, comes on top.
func TestAckFigures(t *testing.T) {
	if !*ackFigures {
		t.Skip("a measurement: -ack-figures")
	}
	for _, m := range []struct {
		name    string
		latency fault.Latency
	}{
		{"30 ms store", fault.S3Like()},
		{"S3-standard-like", fault.S3StandardLike()},
		{"S3-express-like", fault.S3ExpressLike()},
		{"100 ms store", fault.Latency{Put: fault.Dist{Median: 100 * time.Millisecond, P99: 300 * time.Millisecond}}},
	} {
		caps := objstore.Capabilities{PutLatency: m.latency.Put.Median}
		interval := stream.Default(caps, 1<<30).WALBatchInterval
		const puts = 5200
		for _, l := range []struct {
			name  string
			every time.Duration
			n     int
		}{
			{"lone writes", 5 * m.latency.Put.P99, puts},
			{"a write per 5 ms", 5 * time.Millisecond, int(puts * interval / (5 * time.Millisecond))},
		} {
			synctest.Test(t, func(t *testing.T) { ackFigure(t, m.name, l.name, m.latency, caps, l.every, l.n) })
		}
	}
}

func ackFigure(t *testing.T, store, load string, latency fault.Latency, caps objstore.Capabilities, every time.Duration, n int) {
	w := newWorld(t)
	w.cfg = stream.Default(caps, 4<<30)
	w.latency = latency
	node := w.start(1)
	s := node.open(1)
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	for range n {
		at, tk := time.Now(), w.append(s, 1, 200)
		wg.Go(func() {
			<-tk.Done()
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(at))
		})
		time.Sleep(every)
	}
	wg.Wait()
	slices.Sort(took)
	put := latency.Put.P99 // the bulks are small: what a MiB adds does not count
	p99 := took[len(took)*99/100]
	t.Logf("%-17s %-17s ack p50 %6.1f ms, p99 %6.1f ms = %.2f x PUT p99 (%.0f ms), interval %s, %d puts",
		store, load, took[len(took)/2].Seconds()*1e3, p99.Seconds()*1e3, float64(p99)/float64(put), put.Seconds()*1e3, w.cfg.WALBatchInterval, node.Stats().Bulks)
	if err := node.stop(); err != nil {
		t.Fatal(err)
	}
}
