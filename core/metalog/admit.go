package metalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

// Registration, lease taking and seals change rows beside the log, so the
// counter's dedup is not enough: a second attempt, or one that lands late, would
// mark or take again. They append under Expect instead: of all attempts on one
// head at most one commits, and once the head has moved past it without the
// entry, none can. And they are sent only when the state at that head accepts
// them: a row must not say what the state refused.

// onHead runs attempt against a view until it is decided. landed reports whether
// that view shows that an earlier attempt has committed; its error ends the
// matter too.
func (r *Replica) onHead(ctx context.Context, p *proposal, landed func(*view) (bool, error), attempt func(context.Context, *view) error) error {
	for retry := r.newBackoff(); ; {
		err := r.Sync(ctx)
		if err == nil {
			at := r.settledView()
			if ok, err := landed(at); ok || err != nil {
				return err
			}
			actx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
			err = attempt(actx, at)
			cancel()
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: metadata replica stops: %w", mink.ErrUnknownOutcome, ctx.Err())
		case err == nil || errors.Is(err, ErrHeadMoved):
			continue // look
		case !transient(err), p.state.Load() == unwatched:
			return err
		}
		d := retry.NextBackOff()
		r.logger.Warn("a metadata transaction is not decided, will retry", "in", d, "error", err)
		if err := pause(ctx, d); err != nil {
			return fmt.Errorf("%w: metadata replica stops: %w", mink.ErrUnknownOutcome, err)
		}
	}
}

func (r *Replica) register(ctx context.Context, p *proposal, req *clusterpb.RegisterNode) (mink.NodeEpoch, error) {
	node := mink.NodeID(req.Node)
	payload, err := r.encode(0, 0, []*clusterpb.Command{{Kind: &clusterpb.Command_RegisterNode{RegisterNode: req}}})
	if err != nil {
		return 0, err
	}
	var epoch mink.NodeEpoch
	// The state remembers every registration: also one that another process of
	// this id has sealed by now, which must not be followed by a second one.
	landed := func(at *view) (bool, error) {
		w, found := at.state.Registration(node, req.Nonce)
		if !found {
			return false, cluster.ResultError(at.state.CheckRegisterNode(req))
		}
		if w.Sealed {
			return true, fmt.Errorf("node %d epoch %d was sealed as soon as it registered (%s): %w", node, w.ID.Epoch, at.state.SealReason(w.ID.Epoch), mink.ErrFenced)
		}
		epoch = w.ID.Epoch
		return true, nil
	}
	err = r.onHead(ctx, p, landed, func(ctx context.Context, at *view) error {
		_, err := r.log.Append(ctx, Append{Payloads: [][]byte{payload}, Expect: &at.Position, Register: node})
		return err
	})
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.mu.self = identity{node: node, epoch: epoch}
	r.mu.Unlock()
	r.counter = 0
	return epoch, nil
}

func (r *Replica) takeLease(ctx context.Context, p *proposal, ttl time.Duration) (Lease, error) {
	node, epoch := r.Self()
	if epoch == 0 {
		return Lease{}, errNotRegistered
	}
	f := r.newFlight(epoch)
	defer r.setFlight(nil)
	err := r.onHead(ctx, p, f.landedOrSealed(node), func(ctx context.Context, at *view) error {
		_, _, err := r.log.TakeLease(ctx, TakeLease{
			Node: node, NodeEpoch: epoch, TTL: ttl, Expect: &at.Position,
			Payload: func(lease mink.LeaseEpoch) ([]byte, error) {
				return r.encode(f.epoch, f.counter, []*clusterpb.Command{{Kind: &clusterpb.Command_LeaseTaken{
					LeaseTaken: &clusterpb.LeaseTaken{Node: int32(node), Epoch: int64(epoch), Lease: int64(lease)},
				}}})
			},
		})
		return err
	})
	if err == nil {
		err = cluster.ResultError(f.results[0])
	}
	if err != nil {
		return Lease{}, err
	}
	return r.leaseRow(ctx, p, node, epoch)
}

// landedOrSealed is onHead's look for a batch of this flight.
func (f *flight) landedOrSealed(node mink.NodeID) func(*view) (bool, error) {
	return func(at *view) (bool, error) {
		if _, ok := f.verdict(); ok {
			return true, nil
		}
		return false, sealed(at.state, node, f.epoch)
	}
}

// sendSeals proposes a batch that seals epochs: their heartbeat rows are marked
// in the same transaction, which the lease guards.
func (r *Replica) sendSeals(ctx context.Context, p *proposal) error {
	node, epoch := r.Self()
	if epoch == 0 {
		return errNotRegistered
	}
	lease := Lease{Node: node, NodeEpoch: epoch}
	for _, c := range p.commands {
		lease.Epoch = max(lease.Epoch, mink.LeaseEpoch(c.GetSealNode().GetLease()))
	}
	var marks []mink.NodeEpoch // of the seals that will be accepted
	for _, c := range p.commands {
		s := c.GetSealNode()
		if s != nil && (s.Lease == 0 && s.Epoch == int64(epoch) || s.Lease != 0 && mink.LeaseEpoch(s.Lease) == lease.Epoch) {
			marks = append(marks, mink.NodeEpoch(s.Epoch))
		}
	}
	f := r.newFlight(epoch)
	defer r.setFlight(nil)
	payload, err := r.encode(f.epoch, f.counter, p.commands)
	if err != nil {
		return err
	}
	err = r.onHead(ctx, p, f.landedOrSealed(node), func(ctx context.Context, at *view) error {
		_, err := r.log.Append(ctx, Append{Payloads: [][]byte{payload}, Expect: &at.Position, Seal: marks, Lease: lease})
		return err
	})
	if err != nil {
		return err
	}
	p.results = f.results
	return refusedAsSealed(f.results)
}

// leaseRow reads the lease that was just taken.
func (r *Replica) leaseRow(ctx context.Context, p *proposal, node mink.NodeID, epoch mink.NodeEpoch) (Lease, error) {
	for retry := r.newBackoff(); ; {
		rctx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
		lease, _, err := r.log.ReadLease(rctx)
		cancel()
		switch {
		case err == nil && (lease.Node != node || lease.NodeEpoch != epoch):
			return Lease{}, fmt.Errorf("lease of node %d: %w", node, ErrLeaseLost)
		case err == nil || !transient(err) || p.state.Load() == unwatched:
			return lease, err
		}
		if err := pause(ctx, retry.NextBackOff()); err != nil {
			return Lease{}, fmt.Errorf("%w: metadata replica stops: %w", mink.ErrUnknownOutcome, err)
		}
	}
}
