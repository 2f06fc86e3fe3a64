package metalog

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/sdk/mink"
)

var errNotRegistered = fmt.Errorf("this node is not registered yet: %w", mink.ErrUnavailable)

// proposal is one caller's request. state decides who owns its end: a caller
// that gives up while it is queued takes it out, later it only stops waiting.
type proposal struct {
	state    atomic.Int32
	commands []*clusterpb.Command
	bytes    int
	alone    func(ctx context.Context) error // a registration, lease, or seal: not batched

	done    chan struct{} // closed by finish; results and err are set before
	results []*clusterpb.Result
	err     error
}

const (
	queued int32 = iota
	taken
	abandoned // by its caller, before it was taken
	unwatched // by its caller, after it was taken
)

func (p *proposal) take() bool { return p.state.CompareAndSwap(queued, taken) }

func (p *proposal) finish(results []*clusterpb.Result, err error) {
	p.results, p.err = results, err
	close(p.done)
}

// Propose appends the commands in one batch with whatever else waits, and
// returns once this node has applied them: one result per command, in order. A
// result that is not OK is a refusal, the same on every node (see
// cluster.ResultError); err is then nil, except that a refusal because this
// node epoch is sealed is also answered as mink.ErrFenced.
//
// Other errors: mink.ErrUnavailable (certainly not applied),
// mink.ErrUnknownOutcome (ctx ended while the batch was under way: it may be
// applied later), mink.ErrTooLarge. Blocks while QueueMax proposals wait, and
// until Run is under way, as Register and TakeLease do.
func (r *Replica) Propose(ctx context.Context, commands ...*clusterpb.Command) ([]*clusterpb.Result, error) {
	p := &proposal{commands: commands, done: make(chan struct{})}
	guard := mink.LeaseEpoch(0)
	var seals []mink.NodeEpoch
	for _, c := range commands {
		p.bytes += proto.Size(c) + 8
		switch {
		case c.GetRegisterNode() != nil || c.GetLeaseTaken() != nil:
			return nil, fmt.Errorf("propose: use Register and TakeLease: %w", mink.ErrInvalid)
		case c.GetSealNode() != nil:
			seals = append(seals, mink.NodeEpoch(c.GetSealNode().Epoch))
			guard = max(guard, mink.LeaseEpoch(c.GetSealNode().Lease))
		}
	}
	if len(commands) == 0 {
		return nil, nil
	}
	if p.bytes > PayloadBytesMax-1024 {
		return nil, fmt.Errorf("propose %d commands of %d bytes, the limit is %d: %w", len(commands), p.bytes, PayloadBytesMax-1024, mink.ErrTooLarge)
	}
	if len(seals) > 0 {
		// Marks and lease check belong to this transaction only.
		p.alone = func(ctx context.Context) error { return r.sendGuarded(ctx, p, seals, guard) }
	}
	err := r.submit(ctx, p)
	select {
	case <-p.done:
		return p.results, err
	default: // still the proposer's
		return nil, err
	}
}

// Register admits this node and makes it the one this replica proposes as. The
// request's nonce must be fresh and not 0. Retried until it is decided or ctx
// ends; a retry admits no second epoch.
func (r *Replica) Register(ctx context.Context, req *clusterpb.RegisterNode) (mink.NodeEpoch, error) {
	if req.Node <= 0 || req.Nonce == 0 {
		return 0, fmt.Errorf("register node %d: node and nonce must be set: %w", req.Node, mink.ErrInvalid)
	}
	req = proto.CloneOf(req)
	var epoch mink.NodeEpoch
	p := &proposal{done: make(chan struct{})}
	p.alone = func(ctx context.Context) (err error) {
		epoch, err = r.register(ctx, p, req)
		return err
	}
	if err := r.submit(ctx, p); err != nil {
		return 0, fmt.Errorf("register node %d: %w", req.Node, err)
	}
	return epoch, nil
}

// TakeLease takes the coordinator lease for this node epoch and returns once
// this node has applied its LeaseTaken entry. *LeaseHeldError while another
// node's lease is unexpired.
func (r *Replica) TakeLease(ctx context.Context, ttl time.Duration) (Lease, error) {
	var lease Lease
	p := &proposal{done: make(chan struct{})}
	p.alone = func(ctx context.Context) (err error) {
		lease, err = r.takeLease(ctx, p, ttl)
		return err
	}
	if err := r.submit(ctx, p); err != nil {
		return Lease{}, err
	}
	return lease, nil
}

// submit queues the proposal and waits for its end.
func (r *Replica) submit(ctx context.Context, p *proposal) error {
	select {
	case r.queue <- p:
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return r.stopped()
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return r.leave(p, ctx.Err())
	case <-r.done:
		return r.leave(p, r.stopped())
	}
}

// leave ends the caller's wait, for the reason why.
func (r *Replica) leave(p *proposal, why error) error {
	if p.state.CompareAndSwap(queued, abandoned) {
		return why // never sent
	}
	p.state.CompareAndSwap(taken, unwatched)
	select {
	case <-p.done:
		return p.err
	default:
		return fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, why)
	}
}

// serveProposals is the proposer: one transaction in flight, in counter order.
func (r *Replica) serveProposals(ctx context.Context) error {
	var held *proposal // came out of the queue, did not fit the last batch
	for {
		p := held
		held = nil
		if p == nil {
			select {
			case p = <-r.queue:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !p.take() {
			continue
		}
		if p.alone != nil {
			p.finish(p.results, p.alone(ctx))
		} else {
			var batch []*proposal
			batch, held = r.gather(p)
			r.send(ctx, batch)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// gather adds what waits to the first proposal, within the batch's limits.
func (r *Replica) gather(first *proposal) (batch []*proposal, held *proposal) {
	batch = []*proposal{first}
	commands, bytes := len(first.commands), first.bytes
	for {
		select {
		case p := <-r.queue:
			commands += len(p.commands)
			bytes += p.bytes
			if p.alone != nil || commands > r.cfg.BatchCommandsMax || bytes > r.cfg.BatchBytesMax {
				return batch, p
			}
			if p.take() {
				batch = append(batch, p)
			}
		default:
			return batch, nil
		}
	}
}

// send proposes one batch and finishes its proposals.
func (r *Replica) send(ctx context.Context, batch []*proposal) {
	var commands []*clusterpb.Command
	for _, p := range batch {
		commands = append(commands, p.commands...)
	}
	unwatchedAll := func() bool {
		for _, p := range batch {
			if p.state.Load() != unwatched {
				return false
			}
		}
		return true
	}
	results, err := r.decide(ctx, commands, unwatchedAll, func(ctx context.Context, payload []byte) error {
		_, err := r.log.Append(ctx, Append{Payloads: [][]byte{payload}, AtLeast: r.Applied().Index})
		return err
	})
	if err == nil && len(results) != len(commands) {
		err = fmt.Errorf("%w: %d commands were answered with %d results", mink.ErrUnknownOutcome, len(commands), len(results))
	}
	for _, p := range batch {
		n := len(p.commands)
		if err != nil {
			p.finish(nil, err)
			continue
		}
		p.finish(results[:n:n], refusedAsSealed(results[:n]))
		results = results[n:]
	}
}

func refusedAsSealed(results []*clusterpb.Result) error {
	for _, res := range results {
		if res.Code == clusterpb.Code_FENCED {
			return cluster.ResultError(res)
		}
	}
	return nil
}

// sendGuarded proposes a batch that seals epochs: their heartbeat rows are
// marked in the same transaction, which the lease guards.
func (r *Replica) sendGuarded(ctx context.Context, p *proposal, seals []mink.NodeEpoch, lease mink.LeaseEpoch) error {
	give := func() bool { return p.state.Load() == unwatched }
	results, err := r.decide(ctx, p.commands, give, func(ctx context.Context, payload []byte) error {
		_, err := r.log.Append(ctx, Append{
			Payloads: [][]byte{payload}, AtLeast: r.Applied().Index, Seal: seals, Lease: lease,
		})
		return err
	})
	p.results = results
	if err == nil {
		err = refusedAsSealed(results)
	}
	return err
}

// decide carries one batch to its verdict: attempt appends the payload; after
// every failure the log is read to find out whether it landed after all. The
// same (epoch, counter) on every attempt makes the state count only one, and a
// larger counter later makes it refuse one that lands after it was given up.
// giveUp: nobody waits any more.
func (r *Replica) decide(ctx context.Context, commands []*clusterpb.Command, giveUp func() bool,
	attempt func(context.Context, []byte) error) ([]*clusterpb.Result, error) {
	_, epoch := r.Self()
	if epoch == 0 {
		return nil, errNotRegistered
	}
	f := r.newFlight(epoch)
	defer r.setFlight(nil)
	for retry := r.newBackoff(); ; {
		if err := r.sealed(epoch); err != nil {
			return nil, err
		}
		payload, err := r.encode(f, commands)
		if err != nil {
			return nil, err
		}
		actx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
		err = attempt(actx, payload)
		cancel()
		if results, ok := r.await(ctx, f, err); ok {
			return results, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: metadata replica stops: %w", mink.ErrUnknownOutcome, ctx.Err())
		case err != nil && (!transient(err) || giveUp()):
			return nil, err
		}
		d := retry.NextBackOff()
		r.logger.Warn("a metadata proposal is not decided, will retry", "epoch", epoch, "counter", f.counter, "in", d, "error", err)
		if r.reuseNothing {
			f = r.newFlight(epoch)
		}
		if err := pause(ctx, d); err != nil {
			return nil, fmt.Errorf("%w: metadata replica stops: %w", mink.ErrUnknownOutcome, err)
		}
	}
}

// newFlight takes the next counter. One that is given up is never used again.
func (r *Replica) newFlight(epoch mink.NodeEpoch) *flight {
	r.counter++
	f := &flight{epoch: epoch, counter: r.counter, landed: make(chan struct{})}
	r.setFlight(f)
	return f
}

// await answers the verdict, if there is one. After a successful attempt (err
// nil) it waits until the entry is applied; otherwise, and when that takes long,
// it reads the log up to its head. No verdict then: the entry is not there, or
// a snapshot skipped it and the epoch is sealed by now.
func (r *Replica) await(ctx context.Context, f *flight, err error) ([]*clusterpb.Result, bool) {
	for appended := err == nil; ; {
		if appended {
			r.wakeTail()
			t := time.NewTimer(r.cfg.PollInterval)
			select {
			case <-f.landed:
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
		read := false
		select {
		case <-f.landed:
			return f.results, true
		default:
			read = r.sync(ctx) == nil
		}
		select {
		case <-f.landed:
			return f.results, true
		default:
		}
		if read || !appended || ctx.Err() != nil {
			return nil, false
		}
	}
}

// sync applies the log up to a head read now.
func (r *Replica) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
	defer cancel()
	head, err := r.log.Head(ctx)
	if err != nil {
		return err
	}
	r.wakeTail()
	return r.WaitApplied(ctx, head.Index)
}

func (r *Replica) setFlight(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.flight = f
}

// sealed answers mink.ErrFenced once the view says that the epoch ended.
func (r *Replica) sealed(epoch mink.NodeEpoch) error {
	node, _ := r.Self()
	if n, ok := r.View().Node(node); !ok || n.Epoch != epoch || n.Sealed {
		return fmt.Errorf("node %d epoch %d is sealed: %w", node, epoch, mink.ErrFenced)
	}
	return nil
}

func (r *Replica) encode(f *flight, commands []*clusterpb.Command) ([]byte, error) {
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(&clusterpb.Batch{
		Epoch: int64(f.epoch), Counter: f.counter,
		FeatureLevel: r.cfg.FeatureLevel, WriterVersion: r.cfg.WriterVersion,
		Commands: commands,
	})
	if err != nil {
		return nil, fmt.Errorf("encode metadata batch: %w: %w", mink.ErrInvalid, err)
	}
	return payload, nil
}
