package sim

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/fault/memnet"
	"github.com/mink-project/mink/core/kafka"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/sdk/api"
)

// step is one thing that is done to a cluster: to p when it concerns one process.
type step struct {
	name string
	do   func(r *run, p *Process)
}

// steps are drawn like cards: each once before any comes again, so that no run of a few
// minutes misses one.
var steps = []step{
	{"process: crash", func(r *run, p *Process) {
		p.Crash()
		r.later(r.delay(), func() { r.Start(p.ID) })
	}},
	{"process: crash and instant restart", func(r *run, p *Process) {
		p.Crash()
		r.Start(p.ID)
	}},
	{"process: end of its machine", func(r *run, p *Process) { // nothing is reset
		p.CrashSilently()
		r.later(r.delay(), func() { r.Start(p.ID) })
	}},
	{"process: end of the coordinator", func(r *run, _ *Process) {
		for _, p := range r.Processes() {
			if c := p.Coordinator(); c != nil && c.Leading() {
				p.Crash()
				r.later(2*r.delay(), func() { r.Start(p.ID) })
				return
			}
		}
		r.skip("process: end of the coordinator")
	}},
	{"process: paused, its successor beside it", func(r *run, p *Process) { // a zombie
		p.Pause()
		delay := r.delay()
		r.later(delay, func() { r.Start(p.ID) })
		r.later(delay+r.upTo(5*r.cfg.LeaseTTL), p.Resume)
	}},
	{"process: paused", func(r *run, p *Process) { // perhaps long enough to be sealed
		p.Pause()
		r.later(r.upTo(3*r.cfg.LeaseTTL), p.Resume)
	}},
	{"process: orderly stop", func(r *run, p *Process) {
		r.later(0, func() {
			if err := p.Stop(); err != nil && p.Running() {
				r.Broken("node %d does not stop in order: %v", p.ID, err)
			}
			r.Start(p.ID)
		})
	}},
	{"process: replaced while cut off from the database", func(r *run, p *Process) { // it writes on
		p.PauseMetadata()
		delay := r.delay()
		r.later(delay, func() { r.Start(p.ID) })
		r.later(delay+r.upTo(3*r.cfg.LeaseTTL), p.Resume)
	}},
	{"metadata log: one process cut off", func(r *run, p *Process) {
		p.PauseMetadata()
		r.later(r.upTo(2*r.cfg.LeaseTTL), p.Resume)
	}},
	{"metadata log: down", func(r *run, _ *Process) {
		r.StallMetadata(true)
		r.later(2*r.delay(), func() { r.StallMetadata(false) })
	}},
	{"metadata log: takes no writes", func(r *run, _ *Process) {
		r.StallMetadataWrites(true)
		r.later(2*r.delay(), func() { r.StallMetadata(false) })
	}},
	{"store: down", func(r *run, p *Process) { r.later(3*r.delay(), p.Faults.Pause(fault.AnyOp, "")) }},
	{"store: takes no writes", func(r *run, p *Process) { r.later(3*r.delay(), p.Faults.Pause(fault.Writes, "")) }},
	{"store: answers no reads", func(r *run, p *Process) { r.later(3*r.delay(), p.Faults.Pause(fault.Get, "")) }},
	{"store: overloaded", func(r *run, p *Process) {
		in := p.Faults.Inject(fault.Rule{Probability: 0.7, Do: fault.Throttle(100 * time.Millisecond)})
		r.later(2*r.delay(), in.Remove)
	}},
	{"network: process cut off", func(r *run, p *Process) {
		r.later(r.upTo(2*r.cfg.LeaseTTL), r.net.Cut(everybody, p.host.Is), r.net.Cut(p.host.Is, everybody))
	}},
	{"network: process cut off from peers", func(r *run, p *Process) {
		r.later(r.upTo(2*r.cfg.LeaseTTL), r.net.Cut(isNode, p.host.Is), r.net.Cut(p.host.Is, isNode))
	}},
	{"network: nothing to the process arrives", func(r *run, p *Process) {
		r.later(r.upTo(2*r.cfg.LeaseTTL), r.net.Cut(everybody, p.host.Is))
	}},
	{"network: nothing from the process arrives", func(r *run, p *Process) {
		r.later(r.upTo(2*r.cfg.LeaseTTL), r.net.Cut(p.host.Is, everybody))
	}},
	{"network: no answers to clients", func(r *run, p *Process) {
		r.later(r.delay(), r.net.Cut(isNode, isClient))
	}},
	{"network: halves", func(r *run, _ *Process) {
		left := r.nodes[r.rng.IntN(len(r.nodes))]
		one := func(h *memnet.Host) bool {
			for _, p := range r.Processes() {
				if p.host == h {
					return p.ID == left
				}
			}
			return false
		}
		other := func(h *memnet.Host) bool { return isNode(h) && !one(h) }
		r.later(r.upTo(2*r.cfg.LeaseTTL), r.net.Cut(one, other), r.net.Cut(other, one))
	}},
	{"network: connections broken", func(_ *run, p *Process) { p.host.Break() }},
	{"network: slow", func(r *run, p *Process) {
		r.later(2*r.delay(), r.net.Delay(everybody, p.host.Is, time.Second), r.net.Delay(p.host.Is, everybody, r.upTo(2*time.Second)))
	}},
	{"work: create table", func(r *run, _ *Process) {
		r.createTable(1+r.rng.Int32N(2), [](map[string]string){nil, {"log_ttl": r.seconds(25)}}[r.rng.IntN(2)])
	}},
	{"work: drop table", func(r *run, _ *Process) { r.dropTable() }},
	{"work: alter table", func(r *run, _ *Process) { r.alterTable() }},
	{"work: create partition", func(r *run, _ *Process) { r.createPartition() }},
	{"work: drop partition", func(r *run, _ *Process) { r.dropPartition() }},
	{"work: rebalance", func(r *run, _ *Process) { r.rebalance() }},
}

// skip says that a step was drawn and could not be done.
func (r *run) skip(name string) { r.done[name]-- }

// breakSomething is one step of the chaos.
func (r *run) breakSomething() {
	procs := r.Processes()
	if len(procs) == 0 {
		return
	}
	if len(r.deck) == 0 {
		r.deck = r.rng.Perm(len(steps))
	}
	s := steps[r.deck[0]]
	r.deck = r.deck[1:]
	p := procs[r.rng.IntN(len(procs))]
	r.cfg.Logger.Info("chaos", "step", s.name, "node", p.ID)
	r.done[s.name]++
	s.do(r, p)
}

func (r *run) upTo(d time.Duration) time.Duration {
	return time.Duration(r.rng.Int64N(int64(d) + 1))
}

func (r *run) delay() time.Duration { return r.upTo(time.Duration(r.cfg.Pace) * 2 * time.Second) }

// seconds is a table option's n seconds, at this pace.
func (r *run) seconds(n int) string { return fmt.Sprintf("%ds", n*r.cfg.Pace) }

// moveBucket asks some bucket's leader, over the network, for a planned move; whoever asks
// may lose patience long before it ends.
func (r *run) moveBucket() {
	refs := append(r.model.Buckets(), r.rows.Buckets()...)
	ref, to := refs[r.rng.IntN(len(refs))], r.nodes[r.rng.IntN(len(r.nodes))]
	patience := r.upTo(5 * time.Second)
	view := r.truth.State()
	id, ok := view.StreamOf(ref)
	if !ok {
		return
	}
	s, _ := view.Stream(id)
	leader, ok := view.Node(s.Owner.Node)
	if !ok {
		return
	}
	r.later(0, func() {
		ctx, cancel := context.WithTimeout(r.ctx, patience)
		defer cancel()
		_ = r.operator.Action(ctx, leader, api.ActionReleaseBucket, api.ReleaseBucket{Bucket: ref, To: to}, nil) // refused, late, or done: the truth says which
	})
}

// rebalance asks any process, which asks whoever coordinates.
func (r *run) rebalance() {
	r.later(0, func() {
		h := r.net.Host("client-rebalance")
		defer h.End()
		c, err := r.NewClient(h)
		if err != nil {
			return
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(r.ctx, 15*time.Second)
		defer cancel()
		_, _ = c.Rebalance(ctx, false, nil) // it may lose its lease meanwhile, or its life
	})
}

func (r *run) later(d time.Duration, f ...func()) {
	r.clients.Go(func() {
		time.Sleep(d)
		for _, f := range f {
			f()
		}
	})
}

// tally is how often each fault happened, by piece and kind.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tally) add(counts map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	for k, n := range counts {
		t.counts[k] += n
	}
}

// faults are those of the run so far.
func (r *run) faults() map[string]int {
	out := maps.Clone(r.done)
	for f, n := range r.net.Counts() {
		out["network: "+string(f)] += n
	}
	r.mu.Lock()
	procs := slices.Clone(r.mu.processes)
	r.mu.Unlock()
	for _, p := range procs {
		for kind, n := range p.Faults.Counts() {
			out["store: "+kind] += n
		}
		for kind, n := range p.metaFaults.Counts() {
			if kind != faultlog.None {
				out["metadata log: "+string(kind)] += n
			}
		}
	}
	return out
}

// kinds are the faults that a set of runs must have seen, each.
func kinds() (out []string) {
	for _, s := range steps {
		out = append(out, s.name)
	}
	for _, f := range append(memnet.ByChance, memnet.Refused, memnet.Reset, memnet.Vanished, memnet.HeldBack, memnet.Unanswered, memnet.Broken, memnet.Slow) {
		out = append(out, "network: "+string(f))
	}
	for _, f := range []faultlog.Fault{faultlog.Refused, faultlog.LostResponse, faultlog.Disconnected, faultlog.Late, faultlog.Stalled} {
		out = append(out, "metadata log: "+string(f))
	}
	for _, a := range []string{"lost request", "lost response", "conflict with its own retry", "late write", "throttled", "unavailable", "delay", "no answer", "short read", "flipped bit"} {
		out = append(out, "store: "+a)
	}
	return out
}

// kafkaOn is a process's Kafka listener.
func kafkaOn(p *Process, l net.Listener) (Listener, error) {
	cfg := kafka.Default()
	cfg.Database, cfg.DrainTimeout, cfg.AutoCreateTopics = "sim", 2*time.Second, false
	s, err := kafka.New(cfg, kafka.OnNode(func() kafka.Node { return p.Node() }), nil, p.world.cfg.Logger.With("process", p.ID))
	if err != nil {
		return nil, err
	}
	s.OpenOn(l)
	return s, nil
}

// newOperator is what a person's commands go through.
func (r *run) newOperator() {
	cfg := peers.Default()
	r.operatorHost = r.net.Host("client-operator")
	cfg.Dial = r.operatorHost.Dial
	r.operator = peers.New(cfg, r.truth.State)
}
