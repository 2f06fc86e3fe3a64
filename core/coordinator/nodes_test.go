package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/sim"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

func nodesOf(p *sim.Process) (ids []mink.NodeID) {
	for n := range p.Node().View().Nodes() {
		ids = append(ids, n.ID)
	}
	return ids
}

// A node is removed once it has ended, whatever it left behind; what it acknowledged
// stays, and it may come back.
func TestRemoveNode(t *testing.T) {
	for name, end := range map[string]func(*sim.Process) error{
		"stopped": (*sim.Process).Stop,
		"killed":  func(p *sim.Process) error { p.Crash(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			sim.InBubble(t, sim.Quiet(1), func(t *testing.T, w *sim.World) {
				ctx := context.Background()
				one, two := w.StartReady(1), w.StartReady(2)
				w.Eventually(time.Minute, "node 1 knows node 2", func() bool { return len(one.Node().View().LiveNodes()) == 2 })
				remove := func(id mink.NodeID) (api.RemovedNode, error) {
					return one.Coordinator().RemoveNode(ctx, api.RemoveNode{Node: id})
				}
				_, refs := one.Topic("t", 4, nil)
				for _, ref := range refs {
					w.MustLead(ref).Append(ref, "before")
				}
				if _, err := two.Coordinator().RemoveNode(ctx, api.RemoveNode{Node: 1}); !errors.Is(err, mink.ErrUnavailable) {
					t.Errorf("asked of a node without the lease: %v", err)
				}
				for _, id := range []mink.NodeID{1, 2} {
					if _, err := remove(id); !errors.Is(err, mink.ErrConflict) || !strings.Contains(err.Error(), "alive") {
						t.Errorf("removal of living node %d: %v", id, err)
					}
				}
				if _, err := remove(7); !errors.Is(err, mink.ErrNotExist) {
					t.Errorf("removal of an id that never was: %v", err)
				}
				_, epoch := two.Node().Self()
				if err := end(two); err != nil {
					t.Fatal(err)
				}
				w.Eventually(time.Minute, "node 2 is sealed", func() bool {
					n, _ := one.Node().View().Node(2)
					return n.Sealed
				})
				got, err := remove(2) // at once: the recovery is waited for
				if want := (api.RemovedNode{Node: 2, Epoch: epoch, Removed: true}); err != nil || got != want {
					t.Fatalf("removal: %+v, %v; want %+v", got, err, want)
				}
				if ids := nodesOf(one); !slices.Equal(ids, []mink.NodeID{1}) {
					t.Errorf("nodes %v after the removal", ids)
				}
				if _, err := remove(2); !errors.Is(err, mink.ErrNotExist) {
					t.Errorf("a second removal: %v", err)
				}
				got, err = one.Coordinator().RemoveNode(ctx, api.RemoveNode{Node: 2, IfExists: true})
				if err != nil || got.Removed {
					t.Errorf("a second removal that need not find it: %+v, %v", got, err)
				}
				two = w.StartReady(2)
				w.Eventually(time.Minute, "it is back", func() bool { return len(one.Node().View().LiveNodes()) == 2 })
				for _, ref := range refs {
					if _, values := w.MustLead(ref).Read(ref); !slices.Equal(values, []string{"before"}) {
						t.Errorf("bucket %s holds %v", ref, values)
					}
				}
				if _, now := two.Node().Self(); now <= epoch {
					t.Errorf("it came back as epoch %d, was %d", now, epoch)
				}
			})
		})
	}
}

// beforeRemoval calls f before an entry with a RemoveNode is appended, and loses the
// answer when f says so.
type beforeRemoval struct {
	metalog.Log
	f func() (lost bool)
}

func (l beforeRemoval) Append(ctx context.Context, a metalog.Append) ([]metalog.Entry, error) {
	lost := false
	for _, payload := range a.Payloads {
		var b clusterpb.Batch
		if proto.Unmarshal(payload, &b) != nil {
			continue
		}
		for _, c := range b.GetCommands() {
			if c.GetRemoveNode() != nil {
				lost = l.f()
			}
		}
	}
	out, err := l.Log.Append(ctx, a)
	if lost && err == nil {
		return nil, mink.ErrUnknownOutcome
	}
	return out, err
}

// The node comes back between the look and the command: its new registration stays.
func TestRemovalLosesAgainstTheNodesReturn(t *testing.T) {
	cfg := sim.Quiet(1)
	var hold, goOn chan struct{} // of the bubble
	var holding atomic.Bool
	cfg.Log = func(l metalog.Log) metalog.Log {
		return beforeRemoval{l, func() bool {
			if holding.Load() {
				hold <- struct{}{}
				<-goOn
			}
			return false
		}}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		hold, goOn = make(chan struct{}, 10), make(chan struct{})
		one, two := w.StartReady(1), w.StartReady(2)
		if err := two.Stop(); err != nil {
			t.Fatal(err)
		}
		w.Eventually(time.Minute, "node 2 is sealed", func() bool {
			n, _ := one.Node().View().Node(2)
			return n.Sealed
		})
		holding.Store(true)
		answer := make(chan error)
		go func() {
			_, err := one.Coordinator().RemoveNode(context.Background(), api.RemoveNode{Node: 2})
			answer <- err
		}()
		<-hold
		two = w.Start(2) // not ready: node 1, whose proposal is held, leads nothing of it
		w.Eventually(time.Minute, "it is registered", func() bool {
			if two.Node() == nil {
				return false
			}
			_, epoch := two.Node().Self()
			return epoch != 0
		})
		holding.Store(false)
		close(goOn)
		if err := <-answer; !errors.Is(err, mink.ErrConflict) || !strings.Contains(err.Error(), "registered anew") {
			t.Errorf("the removal: %v", err)
		}
		if n, ok := one.Node().View().Node(2); !ok || n.Sealed {
			t.Errorf("the node that came back is %+v (%t)", n, ok)
		}
	})
}

// The database does it and the answer is lost: it is done once, and said so.
func TestRemovalWithALostAnswer(t *testing.T) {
	cfg := sim.Quiet(1)
	lose := atomic.Int32{}
	cfg.Log = func(l metalog.Log) metalog.Log {
		return beforeRemoval{l, func() bool { return lose.Add(1) <= 2 }}
	}
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one, two := w.StartReady(1), w.StartReady(2)
		if err := two.Stop(); err != nil {
			t.Fatal(err)
		}
		w.Eventually(time.Minute, "node 2 is sealed", func() bool {
			n, _ := one.Node().View().Node(2)
			return n.Sealed
		})
		got, err := one.Coordinator().RemoveNode(context.Background(), api.RemoveNode{Node: 2})
		if err != nil || !got.Removed || lose.Load() < 1 {
			t.Errorf("removal: %+v, %v after %d appends", got, err, lose.Load())
		}
		if ids := nodesOf(one); !slices.Equal(ids, []mink.NodeID{1}) {
			t.Errorf("nodes %v", ids)
		}
	})
}

// Ids that are used once do not gather; how long a node has been gone outlives the
// lease holder.
func TestNodesThatEndedLongAgoAreRemoved(t *testing.T) {
	cfg := sim.Quiet(1)
	cfg.Coordinator = func(c *coordinator.Config) { c.NodeRetention = time.Hour }
	cfg.Node = func(c *node.Config) { c.Stream.WALUploadInterval = 10 * time.Minute } // fewer steps of the simulated hour
	sim.InBubble(t, cfg, func(t *testing.T, w *sim.World) {
		one := w.StartReady(1)
		for id := mink.NodeID(10); id < 15; id++ {
			p := w.StartReady(id)
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Minute)
		if ids := nodesOf(one); len(ids) != 6 {
			t.Errorf("nodes %v after half of the retention", ids)
		}
		one.Crash()
		two := w.StartReady(2)
		time.Sleep(31 * time.Minute)
		w.Eventually(time.Minute, "they are gone", func() bool { return len(nodesOf(two)) == 2 })
		if n, ok := two.Node().View().Node(1); !ok || !n.Sealed {
			t.Errorf("node 1, gone for half of the retention, is %+v (%t)", n, ok)
		}
		if err := two.Node().View().Check(); err != nil {
			t.Error(err)
		}
	})
}
