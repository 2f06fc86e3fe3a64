package tiering

import (
	"context"
	"errors"
	"fmt"

	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// drop removes a dropped table at its sink, and the second time records that.
func (t *Tiering) drop(ctx context.Context, d Dropped, s sink.Sink, lease mink.LeaseEpoch, again bool) error {
	if epoch, held := t.deps.Meta.Lease(); !held || epoch != lease {
		return ErrLeaseLost
	}
	if err := dropAt(ctx, d, s); err != nil {
		return fmt.Errorf("drop %s at sink %s: %w", d.Spec.FullName(), d.Target.Sink, err)
	}
	if !again && t.cfg.Settle > 0 && !t.faults.forgetFirst {
		return nil
	}
	if err := t.deps.Meta.ForgetDropped(ctx, d.Target, lease); err != nil && !errors.Is(err, mink.ErrNotExist) {
		return fmt.Errorf("record that %s is dropped at sink %s: %w", d.Spec.FullName(), d.Target.Sink, err)
	}
	return nil
}

// dropAt opens the table, which makes its place when there is none, and drops it.
func dropAt(ctx context.Context, d Dropped, s sink.Sink) error {
	table, err := s.Open(ctx, sink.OpenRequest{Table: d.Spec, Drop: true})
	switch {
	case errors.Is(err, sink.ErrAlreadyExists), errors.Is(err, sink.ErrNotExist):
		return nil // the place is another's: nothing there is of this table
	case err != nil:
		return err
	}
	_, err = table.Drop(ctx, sink.DropRequest{})
	return errors.Join(err, table.Close())
}
