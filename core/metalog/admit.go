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

// Registration and lease taking change rows beside the log, so the counter's
// dedup is not enough: a second attempt would mark or take again. They append
// under Expect instead: of all attempts on one head at most one commits, and
// once the head has moved past it without the entry, none can.

// onHead runs attempt against the applied position until it is decided. landed
// reports whether the view shows that an earlier attempt has committed.
func (r *Replica) onHead(ctx context.Context, p *proposal, landed func() (bool, error), attempt func(context.Context, Position) error) error {
	for retry := r.newBackoff(); ; {
		err := r.sync(ctx)
		if err == nil {
			if ok, err := landed(); ok || err != nil {
				return err
			}
			actx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
			err = attempt(actx, r.Applied())
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
	f := &flight{nonce: req.Nonce, landed: make(chan struct{})}
	payload, err := r.encode(f, []*clusterpb.Command{{Kind: &clusterpb.Command_RegisterNode{RegisterNode: req}}})
	if err != nil {
		return 0, err
	}
	r.setFlight(f)
	defer r.setFlight(nil)
	var epoch mink.NodeEpoch
	landed := func() (bool, error) {
		if n, ok := r.View().Node(node); ok && n.Nonce == req.Nonce {
			if n.Sealed {
				return true, fmt.Errorf("node %d epoch %d, registered with this nonce, is sealed: %w", node, n.Epoch, mink.ErrFenced)
			}
			epoch = n.Epoch
			return true, nil
		}
		select {
		case <-f.landed: // applied, but refused
			return true, cluster.ResultError(f.results[0])
		default:
			return false, nil
		}
	}
	err = r.onHead(ctx, p, landed, func(ctx context.Context, at Position) error {
		_, err := r.log.Append(ctx, Append{Payloads: [][]byte{payload}, Expect: &at, Register: node})
		return err
	})
	if err != nil {
		return 0, err
	}
	if epoch == 0 {
		return 0, fmt.Errorf("another process has registered as node %d meanwhile: %w", node, mink.ErrFenced)
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
	landed := func() (bool, error) {
		select {
		case <-f.landed:
			return true, cluster.ResultError(f.results[0])
		default:
			return false, r.sealed(epoch)
		}
	}
	err := r.onHead(ctx, p, landed, func(ctx context.Context, at Position) error {
		_, _, err := r.log.TakeLease(ctx, TakeLease{
			Node: node, NodeEpoch: epoch, TTL: ttl, Expect: &at,
			Payload: func(lease mink.LeaseEpoch) ([]byte, error) {
				return r.encode(f, []*clusterpb.Command{{Kind: &clusterpb.Command_LeaseTaken{
					LeaseTaken: &clusterpb.LeaseTaken{Node: int32(node), Epoch: int64(epoch), Lease: int64(lease)},
				}}})
			},
		})
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	return r.leaseRow(ctx, p, node, epoch)
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
