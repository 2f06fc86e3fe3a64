package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
)

// How long a bucket takes no append during a planned move, under load: figures, in
// virtual time over a store like S3 (30 ms PUT, 15 ms GET), without network and processor.
// Printed, not asserted.
//
//	go test ./core/node -run UnavailabilityOfMoves -v
func TestUnavailabilityOfMoves(t *testing.T) {
	const buckets, moves = 12, 120
	cfg := sim.Quiet(1)
	cfg.Meta = func(c *metalog.Config) { c.PollInterval = 10 * time.Millisecond } // stands for the database's notifications
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one, two, refs := pair(w, buckets)
		nodes := []*sim.Process{one, two}
		ctx, stop := context.WithCancel(context.Background())
		var clients sync.WaitGroup
		var mu sync.Mutex
		var gaps, waits []time.Duration // of the moves: appends refused; between two acknowledgements
		appends := 0
		for i, ref := range refs {
			clients.Go(func() { // a client that finds the leader, asks again after 5 ms, and waits for no acknowledgement
				var refused time.Time
				var acks sync.WaitGroup
				last := time.Now()
				for n := 0; ctx.Err() == nil; n++ {
					pending, err := anyAppend(nodes, ref, fmt.Sprint(i, ".", n))
					mu.Lock()
					switch {
					case err == nil:
						appends++
						if !refused.IsZero() {
							gaps = append(gaps, time.Since(refused))
							refused = time.Time{}
						}
						acks.Go(func() {
							<-pending.Done()
							mu.Lock()
							defer mu.Unlock()
							waits = append(waits, time.Since(last))
							last = time.Now()
						})
					case refused.IsZero():
						refused = time.Now()
					}
					mu.Unlock()
					time.Sleep(5 * time.Millisecond)
				}
				acks.Wait()
			})
		}
		time.Sleep(5 * time.Second)
		for i := range moves {
			w.Move(refs[i%buckets], nodes[(i/buckets+1)%2])
			time.Sleep(100 * time.Millisecond)
		}
		stop()
		clients.Wait()
		if len(gaps) != moves {
			t.Errorf("%d gaps of %d moves", len(gaps), moves)
		}
		slices.Sort(gaps)
		slices.Sort(waits)
		at := func(d []time.Duration, q float64) time.Duration {
			return d[int(q*float64(len(d)-1))].Round(time.Millisecond)
		}
		t.Logf("%d moves, %d appends to %d buckets: no append is taken for p50 %s, p99 %s, at most %s; longest time between two acknowledgements of a bucket %s (p50 %s)",
			moves, appends, buckets, at(gaps, 0.5), at(gaps, 0.99), at(gaps, 1), at(waits, 1), at(waits, 0.5))
	})
}

// anyAppend appends at whichever node takes it.
func anyAppend(nodes []*sim.Process, ref mink.BucketRef, value string) (*tablet.Pending, error) {
	var errs []error
	for _, p := range nodes {
		log, err := p.Node().Log(ref)
		if err == nil {
			var pending *tablet.Pending
			if pending, err = log.AppendKafka(sim.KafkaBatch(mink.NoWriter, -1, value), tablet.KafkaAppend{}); err == nil {
				return pending, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
