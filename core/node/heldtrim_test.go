package node_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/sdk/mink"
)

// What holds a trim back is said, and what would let go of it: the snapshot that is
// missing, the oldest one, nothing when the trim has happened.
func TestHeldTrimSaysWhy(t *testing.T) {
	sim.InBubble(t, snapshotWorld(), func(t *testing.T, w *sim.World) {
		p := w.StartReady(1)
		_, ref := pkTable(t, p)
		s := mustKV(t, p, ref)
		held := func() *node.HeldTrim {
			for _, b := range p.Node().Stats().Buckets {
				if b.Bucket == ref {
					return b.HeldTrim
				}
			}
			t.Fatal("the bucket has no figures")
			return nil
		}
		put := func(from, to int32) mink.Offset {
			for k := from; k < to; k++ {
				putRow(t, s, k, "row")
			}
			return s.VisibleHighWatermark()
		}
		trim := func(to mink.Offset) {
			if err := s.Log().Trim(context.Background(), to); err != nil {
				t.Fatal(err)
			}
		}
		if h := held(); h != nil {
			t.Fatalf("nothing was asked for: %+v", h)
		}
		end := put(0, 20)
		trim(end)
		if h := held(); h == nil || h.By != node.HeldByKVSnapshot || h.Want != end || h.At != 0 || !strings.Contains(h.Why, "no KV snapshot") {
			t.Fatalf("without a snapshot: %+v", h)
		}
		one := snapshotted(t, w, p, ref)
		end = put(20, 30)
		two := snapshotted(t, w, p, ref)
		trim(end)
		h := held()
		if h == nil || h.By != node.HeldByKVSnapshot || h.Want != end || h.At != one.Offset || !strings.Contains(h.Why, "KV snapshot 1, the oldest of 2") {
			t.Fatalf("two snapshots, at %d and %d: %+v", one.Offset, two.Offset, h)
		}
		put(30, 31)
		snapshotted(t, w, p, ref)
		w.Eventually(5*time.Minute, "the trim", func() bool {
			trim(end) // as retention asks again and again
			return s.Log().LogStart() == two.Offset && two.Offset == end
		})
		if h := held(); h != nil {
			t.Fatalf("it has happened: %+v", h)
		}
	})
}
