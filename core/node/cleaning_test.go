package node_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// A bucket whose cleaning fails has read all of it up to there: it is tried less and less
// often, its error shows meanwhile, others are cleaned as if nothing was, and it is
// cleaned when what was wrong is mended.
func TestAFailingCleaningIsTriedLessAndLess(t *testing.T) {
	const every = 5 * time.Second
	cfg := sim.Quiet(1)
	cfg.Node = func(c *node.Config) {
		c.TopicCleaningInterval = every
		c.Stream.CompactInterval = time.Hour // reads of the objects are the cleanings'
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		compact := map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
		_, broken := p.Topic("broken", 1, compact)
		_, good := p.Topic("good", 1, compact)
		write := func(ref mink.BucketRef) {
			t.Helper()
			log, err := p.Node().Log(ref)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				pending, err := log.AppendKafka(sim.KeyedBatch(mink.NoWriter, 0, sim.Pair{Key: "k", Value: []byte(fmt.Sprint(i, strings.Repeat("x", 5000)))}), tablet.KafkaAppend{})
				if err != nil {
					t.Fatal(err)
				}
				<-pending.Done()
			}
		}
		var reads atomic.Int64
		rule := p.Faults.Inject(fault.Rule{Ops: fault.Get, Do: fault.FailBefore(objstore.ErrUnavailable), Match: func(c fault.Call) bool {
			id, _ := p.Node().View().StreamOf(broken[0])
			s, _ := p.Node().View().Stream(id)
			for _, o := range s.Objects() {
				if obj, _ := p.Node().View().Object(o); obj.Key() == c.Key {
					reads.Add(1)
					return true
				}
			}
			return false
		}})
		write(broken[0])
		cleaned := func(ref mink.BucketRef) int64 {
			for _, b := range p.Node().Stats().Buckets {
				if b.Bucket == ref {
					return b.Clean.Removed
				}
			}
			return -1
		}
		w.Eventually(time.Minute, "a cleaning fails", func() bool { return reads.Load() > 0 })
		perTry := reads.Load()
		for range 20 { // meanwhile the other one goes on
			write(good[0])
			before := cleaned(good[0])
			w.Eventually(4*every, "the good bucket is cleaned", func() bool { return cleaned(good[0]) > before })
			if e := loops(p)["topic cleaning"].LastError; !strings.Contains(e, broken[0].String()) {
				t.Fatalf("the last run's error does not name the broken bucket: %q", e)
			}
		}
		time.Sleep(64 * every)
		if tries := reads.Load() / perTry; tries < 4 || tries > 12 { // after 1, 2, 4, ... intervals
			t.Errorf("%d tries in more than 64 intervals", tries)
		}
		rule.Remove()
		w.Eventually(130*every, "the broken bucket is cleaned after all", func() bool { return cleaned(broken[0]) > 0 })
		w.Eventually(4*every, "no error is left", func() bool { return loops(p)["topic cleaning"].LastError == "" })
	})
}
