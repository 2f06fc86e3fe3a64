package sim

import (
	"context"
	"fmt"
	"time"

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
