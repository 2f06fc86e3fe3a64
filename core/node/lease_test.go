package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/sdk/mink"
)

// deafLog takes writes and heartbeats, and answers no read.
type deafLog struct {
	metalog.Log
	deaf *atomic.Bool
}

func (l deafLog) Read(ctx context.Context, after uint64, entries, bytes int) ([]metalog.Entry, error) {
	if l.deaf.Load() {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", mink.ErrUnavailable, ctx.Err())
	}
	return l.Log.Read(ctx, after, entries, bytes)
}

// A heartbeat that the database takes does not extend the lease of a node that does
// not hear what the others decided meanwhile: it may have been given to one of them
// (a consumer group) without this node being sealed.
func TestALeaseNeedsTheMetadataToBeApplied(t *testing.T) {
	var deaf atomic.Bool
	cfg := still(1)
	first := true
	cfg.Log = func(l metalog.Log) metalog.Log {
		if !first {
			return l
		}
		first = false
		return deafLog{l, &deaf}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		_, epoch := one.Node().Self()
		if got, err := one.Node().Lease(); err != nil || got != epoch {
			t.Fatalf("a node that runs: epoch %d, %v", got, err)
		}
		time.Sleep(3 * cfg.LeaseTTL)
		if _, err := one.Node().Lease(); err != nil {
			t.Fatalf("an idle node: %v", err)
		}
		deaf.Store(true)
		two := w.StartReady(2)
		w.Eventually(2*cfg.LeaseTTL, "the lease ends", func() bool {
			_, err := one.Node().Lease()
			return errors.Is(err, mink.ErrUnavailable)
		})
		if v, ok := two.Node().View().WAL(epoch); !ok || v.Sealed {
			t.Error("the node was sealed, which is another case")
		}
		deaf.Store(false)
		w.Eventually(2*cfg.LeaseTTL, "the lease lives again", func() bool {
			got, err := one.Node().Lease()
			return err == nil && got == epoch
		})
	})
}

// No lease while the database is away for longer than it, nor before the node has
// registered anew.
func TestALeaseEndsBySilence(t *testing.T) {
	sim.InBubble(t, still(1), func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		two := w.StartReady(2)
		_, epoch := one.Node().Self()
		one.PauseMetadata()
		w.Eventually(time.Minute, "its place is given away", func() bool {
			v, ok := two.Node().View().WAL(epoch)
			return ok && v.Sealed
		})
		if _, err := one.Node().Lease(); !errors.Is(err, mink.ErrUnavailable) {
			t.Errorf("sealed for silence, and its lease lives: %v", err)
		}
		one.Resume()
		w.Eventually(time.Minute, "it has a lease under a new epoch", func() bool {
			got, err := one.Node().Lease()
			return err == nil && got > epoch
		})
	})
}
