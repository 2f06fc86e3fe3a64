package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/sdk/mink"
)

// Leader is the process that serves the bucket; nil: none does, or none that answers.
func (w *World) Leader(ref mink.BucketRef) *Process {
	for _, p := range w.Processes() {
		if n := p.Node(); n != nil && !p.Paused() {
			if _, err := n.Log(ref); err == nil {
				return p
			}
		}
	}
	return nil
}

// MustLead waits until some process serves the bucket.
func (w *World) MustLead(ref mink.BucketRef) (p *Process) {
	w.tb.Helper()
	w.Eventually(time.Minute, fmt.Sprintf("bucket %s has a leader that serves it", ref), func() bool {
		p = w.Leader(ref)
		return p != nil
	})
	return p
}

// Move asks the bucket's leader for a planned move, and waits until the new one serves.
func (w *World) Move(ref mink.BucketRef, to *Process) {
	w.tb.Helper()
	from := w.MustLead(ref)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.move(ctx, from, ref, to.ID); err != nil {
		w.tb.Fatal(err)
	}
	w.Eventually(time.Minute, fmt.Sprintf("node %d serves bucket %s", to.ID, ref), func() bool {
		_, err := to.Node().Log(ref)
		return err == nil
	})
}

// move is a request to a process that has read the metadata.
func (w *World) move(ctx context.Context, leader *Process, ref mink.BucketRef, to mink.NodeID) error {
	if w.cfg.Mover != nil {
		return w.cfg.Mover(ctx, leader, ref, to)
	}
	return leader.Node().ReleaseBucket(ctx, ref, to)
}

// askPatience is how long a process that was asked for a move is at it, whoever waits.
const askPatience = 20 * time.Second

// askRelease is one process's request to another one. A dead one answers nothing, a paused
// one begins when it goes on, and an answer is lost now and then.
func (w *World) askRelease(ctx context.Context, leader cluster.Node, ref mink.BucketRef, to mink.NodeID) error {
	var asked *Process
	for _, p := range w.Processes() {
		if n := p.Node(); n != nil {
			if id, epoch := n.Self(); id == leader.ID && epoch == leader.Epoch {
				asked = p
			}
		}
	}
	answer := make(chan error, 1)
	if asked != nil {
		w.landing.Go(func() {
			if _, err := asked.gate.Thaw(); err != nil {
				return
			}
			patience, cancel := context.WithTimeout(context.Background(), askPatience)
			defer cancel()
			err := w.move(patience, asked, ref, to)
			if asked.Running() && !w.chance(5*w.cfg.Chaos) {
				answer <- err
			}
		})
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("node %d does not answer: %w: %w", leader.ID, mink.ErrUnavailable, ctx.Err())
	}
}

// chance is true with a probability, for what happens beside the test's goroutine.
func (w *World) chance(probability float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.asides++
	return rand.New(rand.NewPCG(w.cfg.Seed, w.mu.asides)).Float64() < probability
}
