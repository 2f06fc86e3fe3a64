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
// applied later; or, with mink.ErrFenced, this node learned of its seal from a
// snapshot that does not say whether the batch came before), mink.ErrTooLarge. Blocks while QueueMax proposals wait, and
// until Run is under way, as Register and TakeLease do.
func (r *Replica) Propose(ctx context.Context, commands ...*clusterpb.Command) ([]*clusterpb.Result, error) {
	p := &proposal{commands: commands, done: make(chan struct{})}
	for _, c := range commands {
		p.bytes += proto.Size(c) + 8
		switch {
		case c.GetRegisterNode() != nil || c.GetLeaseTaken() != nil:
			return nil, fmt.Errorf("propose: use Register and TakeLease: %w", mink.ErrInvalid)
		case c.GetSealNode() != nil:
			p.alone = func(ctx context.Context) error { return r.sendSeals(ctx, p) }
		}
	}
	if len(commands) == 0 {
		return nil, nil
	}
	if p.bytes > PayloadBytesMax-1024 {
		return nil, fmt.Errorf("propose %d commands of %d bytes, the limit is %d: %w", len(commands), p.bytes, PayloadBytesMax-1024, mink.ErrTooLarge)
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
	results, err := r.decide(ctx, commands, unwatchedAll)
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

// decide carries one batch to its verdict: it is appended; after every failure
// the log is read to find out whether it landed after all. The same (epoch,
// counter) on every attempt makes the state count only one, and a larger counter
// later makes it refuse one that lands after it was given up. giveUp: nobody
// waits any more.
func (r *Replica) decide(ctx context.Context, commands []*clusterpb.Command, giveUp func() bool) ([]*clusterpb.Result, error) {
	node, epoch := r.Self()
	if epoch == 0 {
		return nil, errNotRegistered
	}
	f := r.newFlight(epoch)
	defer r.setFlight(nil)
	for retry := r.newBackoff(); ; {
		at := r.settledView()
		if results, ok := f.verdict(); ok {
			return results, nil
		}
		if err := sealed(at.state, node, epoch); err != nil {
			if r.reloads.Load() != f.reloads { // the entry may be among those skipped
				err = fmt.Errorf("%w: %w", mink.ErrUnknownOutcome, err)
			}
			return nil, err
		}
		payload, err := r.encode(f.epoch, f.counter, commands)
		if err != nil {
			return nil, err
		}
		actx, cancel := context.WithTimeout(ctx, r.cfg.AppendTimeout)
		_, err = r.log.Append(actx, Append{Payloads: [][]byte{payload}, AtLeast: r.Applied().Index})
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
	f := &flight{epoch: epoch, counter: r.counter, reloads: r.reloads.Load(), landed: make(chan struct{})}
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
		if results, ok := f.verdict(); ok {
			return results, true
		}
		read := r.Sync(ctx) == nil
		if results, ok := f.verdict(); ok {
			return results, true
		}
		if read || !appended || ctx.Err() != nil {
			return nil, false
		}
	}
}

// Sync returns once View stands at or above the log's head of the call.
// mink.ErrUnavailable: the database does not say.
func (r *Replica) Sync(ctx context.Context) error {
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

// sealed answers mink.ErrFenced when the state says that the epoch ended.
func sealed(state *cluster.State, node mink.NodeID, epoch mink.NodeEpoch) error {
	if n, ok := state.Node(node); !ok || n.Epoch != epoch || n.Sealed {
		return fmt.Errorf("node %d epoch %d is sealed: %w", node, epoch, mink.ErrFenced)
	}
	return nil
}

// encode makes a batch; epoch 0: of a node that is not registered.
func (r *Replica) encode(epoch mink.NodeEpoch, counter uint64, commands []*clusterpb.Command) ([]byte, error) {
	return EncodeBatch(r.cfg, &clusterpb.Batch{Epoch: int64(epoch), Counter: counter, Commands: commands})
}

// EncodeBatch stamps a batch with the binary that writes it.
func EncodeBatch(cfg Config, b *clusterpb.Batch) ([]byte, error) {
	b.FeatureLevel, b.WriterVersion = cfg.FeatureLevel, cfg.WriterVersion
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode metadata batch: %w: %w", mink.ErrInvalid, err)
	}
	return payload, nil
}
