package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/coordinator"
	"github.com/mink-project/mink/core/fault"
	"github.com/mink-project/mink/core/fault/gate"
	"github.com/mink-project/mink/core/fault/memnet"
	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/faultlog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/metalog/storehead"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/peers"
	"github.com/mink-project/mink/core/stream"
	"github.com/mink-project/mink/core/stream/plan"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// Config of a world. Start from Default, or Quiet for one without faults.
type Config struct {
	Seed    uint64
	Latency fault.Latency // of the store
	// Chaos is the probability of each fault of a store call; writes land up to
	// LateMax after their sender was told that nothing is known.
	Chaos   float64
	LateMax time.Duration
	// MetaFaults is the share of the metadata database's calls that fail.
	MetaFaults float64
	// NetChaos is the probability of each fault of a write on the network.
	NetChaos float64
	// Kafka makes the Kafka listener of a process; nil: it has none.
	Kafka   func(*Process, net.Listener) (Listener, error)
	PageMax int // of listings
	// Pace stretches the intervals of every loop: 1 does in seconds what a node does in
	// hours, 10 has the shipped lease, upload and tick.
	Pace     int
	LeaseTTL time.Duration
	// Node, Meta and Coordinator change the configuration of every process.
	Node        func(*node.Config)
	Meta        func(*metalog.Config)
	Coordinator func(*coordinator.Config)
	Flight      func(*flight.Config)
	// Store and Log stand between the processes and the world: mutations.
	Store func(objstore.Store) objstore.Store
	Log   func(metalog.Log) metalog.Log
	// Mover is how a leader moves a bucket; nil: node.ReleaseBucket. A mutation.
	Mover  func(ctx context.Context, leader *Process, bucket mink.BucketRef, to mink.NodeID) error
	Logger *slog.Logger
}

// Quiet is a world in which nothing fails, with the limits of a small one.
func Quiet(seed uint64) Config {
	return Config{
		Seed: seed, PageMax: 7, LeaseTTL: 3 * time.Second, Pace: 1, Logger: slog.New(slog.DiscardHandler),
		Latency: fault.S3Like(), LateMax: 8 * time.Second,
	}
}

// Default is a world in which everything fails now and then.
func Default(seed uint64) Config {
	c := Quiet(seed)
	c.Chaos, c.MetaFaults, c.NetChaos = 0.01, 0.03, 0.003
	return c
}

// World is what processes come and go in. All methods are for the test's
// goroutine, which must be in a synctest bubble.
type World struct {
	cfg     Config
	tb      testing.TB
	rng     *rand.Rand
	objects *memstore.Store
	log     *memlog.Log
	net     *memnet.Network
	landing sync.WaitGroup

	stalled stall // of the metadata database

	mu struct {
		sync.Mutex
		processes []*Process // that were started, also dead ones
		seeds     uint64
		broken    []string // invariants that did not hold
	}
}

// NewWorld makes an empty world. Close it before the bubble ends.
func NewWorld(tb testing.TB, cfg Config) *World {
	w := &World{cfg: cfg, tb: tb, rng: rand.New(rand.NewPCG(cfg.Seed, 0))}
	w.objects = memstore.New(memstore.Config{PageMax: 1000})
	w.log = memlog.New()
	w.net = memnet.New(memnet.Config{Seed: cfg.Seed, Latency: time.Millisecond, Chaos: cfg.NetChaos, LateMax: cfg.LeaseTTL})
	return w
}

// Objects is the object store, as it is.
func (w *World) Objects() *memstore.Store { return w.objects }

// Log is the metadata log, as it is.
func (w *World) Log() *memlog.Log { return w.log }

// Broken records that an invariant does not hold.
func (w *World) Broken(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.broken) < 20 {
		w.mu.broken = append(w.mu.broken, fmt.Sprintf(format, args...))
	}
}

// Violations are the invariants that did not hold so far.
func (w *World) Violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.broken)
}

// Forgive forgets the violations so far: the test has provoked them.
func (w *World) Forgive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.broken = nil
}

// Close crashes what still runs and waits until nothing is on its way.
func (w *World) Close() {
	for _, p := range w.Processes() {
		p.Crash()
	}
	w.mu.Lock()
	all := slices.Clone(w.mu.processes)
	w.mu.Unlock()
	for _, p := range all {
		<-p.done
	}
	w.landing.Wait()
	for _, p := range all {
		p.Faults.WaitLate()
		_ = p.Faults.Close() // shared: closes nothing
		_ = p.metaFaults.Close()
	}
}

// stall says which calls of the metadata database hang.
type stall struct {
	sync.Mutex
	reads, writes bool
}

// StallMetadata makes every call of the metadata database hang until the
// caller gives up, while on.
func (w *World) StallMetadata(on bool) { w.stall(on, on) }

// StallMetadataWrites is StallMetadata for calls that change something: the
// database's disk is full.
func (w *World) StallMetadataWrites(on bool) { w.stall(false, on) }

func (w *World) stall(reads, writes bool) {
	w.stalled.Lock()
	defer w.stalled.Unlock()
	w.stalled.reads, w.stalled.writes = reads, writes
}

func (s *stall) holds(write bool) bool {
	s.Lock()
	defer s.Unlock()
	return s.reads && !write || s.writes && write
}

func (w *World) seed() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.seeds++
	return w.cfg.Seed*1_000_003 + w.mu.seeds
}

// Process is one operating system process that runs a node.
type Process struct {
	ID     mink.NodeID
	Faults *fault.Store // its store, for more faults

	world      *World
	metaFaults *faultlog.Log
	gate       *gate.Gate // to the store
	meta       *gate.Gate // to the metadata database
	stop       context.CancelFunc
	crash      context.CancelFunc
	done       chan struct{} // closed when it is gone
	started    time.Time

	host      *memnet.Host
	listeners [2]net.Listener // Flight, Kafka
	flight    *flight.Server
	kafka     Listener // nil: none
	peers     *peers.Pool

	mu struct {
		sync.Mutex
		heal        []func()      // of its pause on the network
		lived       time.Duration // when it is gone
		node        *node.Node    // nil until it has read the metadata
		coordinator *coordinator.Coordinator
		replica     *metalog.Replica
		head        *storehead.Keeper
		err         error // how it ended
	}
}

// Start starts a process of a node; it returns at once.
func (w *World) Start(id mink.NodeID) *Process {
	seed := w.seed()
	p := &Process{ID: id, world: w, gate: gate.New(seed, w.cfg.LateMax, &w.landing), meta: gate.New(seed+1<<32, w.cfg.LateMax, &w.landing), done: make(chan struct{}), started: time.Now()}
	p.host = w.hostOf(id)
	if err := p.listen(); err != nil {
		w.Broken("node %d cannot listen: %v", id, err)
	}
	rules := []fault.Rule{{Ops: fault.Put, Probability: 0.01, Do: fault.DelayBy(w.cfg.LateMax / 4)}}
	if w.cfg.Chaos > 0 {
		rules = append(rules, fault.Chaos(w.cfg.Chaos, w.cfg.LateMax)...)
		for _, mangle := range []fault.Action{fault.ShortRead(), fault.FlipBit()} {
			rules = append(rules, fault.Rule{Ops: fault.Get, Probability: w.cfg.Chaos / 5, Do: mangle})
		}
	} else {
		rules = nil
	}
	p.Faults = fault.New(w.objects, fault.Config{Seed: seed, Latency: w.cfg.Latency, PageMax: w.cfg.PageMax, Rules: rules, Shared: true})
	p.metaFaults = faultlog.New(unclosed{w.log}, faultlog.Config{Plan: w.metaPlan(seed), LateBy: w.cfg.LateMax / 4})
	hard, crash := context.WithCancel(context.Background())
	soft, stop := context.WithCancel(hard)
	p.stop, p.crash = stop, crash
	w.mu.Lock()
	w.mu.processes = append(w.mu.processes, p)
	w.mu.Unlock()
	go func() {
		defer close(p.done)
		defer crash()
		err := p.run(hard, soft)
		if err != nil && soft.Err() == nil && p.Running() && !errors.Is(err, node.ErrReplaced) {
			w.Broken("the process of node %d ended by itself: %v", id, err)
		}
		p.mu.Lock()
		p.mu.err = err
		p.mu.Unlock()
		p.die()
	}()
	return p
}

// unclosed is a log that its users cannot close.
type unclosed struct{ metalog.Log }

func (unclosed) Close() error { return nil }

func (w *World) metaPlan(seed uint64) func(faultlog.Op) faultlog.Fault {
	random := faultlog.Random(seed, w.cfg.MetaFaults, faultlog.Refused, faultlog.LostResponse, faultlog.LostResponse, faultlog.Disconnected, faultlog.Late)
	return func(op faultlog.Op) faultlog.Fault {
		if w.stalled.holds(op.Writes()) {
			return faultlog.Stalled
		}
		return random(op)
	}
}

// run is what core/server does. hard ends at a crash, soft
// also when the process is asked to stop.
func (p *Process) run(hard, soft context.Context) error {
	store := objstore.Store(p.Faults)
	if wrap := p.world.cfg.Store; wrap != nil {
		store = wrap(store)
	}
	store = p.gate.Store(store)
	log := metalog.Log(p.metaFaults)
	if wrap := p.world.cfg.Log; wrap != nil {
		log = wrap(log)
	}
	log = p.meta.Log(log)
	if err := p.build(soft, store, log); err != nil {
		return err
	}
	inner, stopInner := context.WithCancel(hard)
	defer stopInner()
	middle, stopMiddle := context.WithCancel(inner)
	defer stopMiddle()
	outer, stopOuter := context.WithCancel(soft)
	defer stopOuter()
	var in, mid sync.WaitGroup
	var errs [5]error
	in.Go(func() {
		defer stopOuter()
		errs[0] = p.mu.replica.Run(inner)
	})
	mid.Go(func() {
		defer stopOuter()
		errs[1] = p.mu.node.Run(middle)
	})
	mid.Go(func() { errs[2] = p.mu.coordinator.Run(middle) })
	mid.Go(func() { errs[3] = p.peers.Run(middle, p.mu.replica.Changed) })
	errs[4] = p.serve(outer)
	<-outer.Done()
	stopMiddle()
	mid.Wait()
	last, cancel := context.WithTimeout(inner, time.Second)
	defer cancel()
	_ = p.mu.head.Keep(last) // whoever comes next does it
	stopInner()
	in.Wait()
	return errors.Join(errs[:]...)
}

func (p *Process) build(ctx context.Context, store objstore.Store, log metalog.Log) error {
	w := p.world
	logger := w.cfg.Logger.With("process", p.ID)
	mcfg := metalog.Default()
	pace := time.Duration(w.cfg.Pace)
	mcfg.PollInterval, mcfg.AppendTimeout = pace*time.Second, 2*time.Second
	if w.cfg.Meta != nil {
		w.cfg.Meta(&mcfg)
	}
	var replica *metalog.Replica
	var head *storehead.Keeper
	for {
		var err error
		replica, head, err = storehead.Open(ctx, storehead.Deps{Objects: store, WALStore: store, Log: log, Logger: logger}, mcfg, "")
		if err == nil {
			break
		}
		if ctx.Err() != nil || !passing(err) {
			return err
		}
		select { // as a supervisor starts a process again
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	ncfg := node.Default()
	ncfg.NodeID, ncfg.LeaseTTL, ncfg.LogRetentionInterval = p.ID, w.cfg.LeaseTTL, pace*2*time.Second
	ncfg.TopicCleaningInterval = pace * 2 * time.Second
	ncfg.FlightAddress, ncfg.KafkaAddress = p.FlightAddress(), p.KafkaAddress()
	ncfg.Stream = smallStream(store.Capabilities(), w.cfg.LeaseTTL, pace)
	if w.cfg.Node != nil {
		w.cfg.Node(&ncfg)
	}
	var c *coordinator.Coordinator
	n, err := node.New(ncfg, node.Deps{
		Meta: replica, Log: log, Head: head, Objects: store, WALStore: store,
		Registered: func() { c.Wake() },
		Stuck:      func(epoch mink.NodeEpoch) bool { return c.Stuck(epoch) },
		Logger:     logger,
	})
	if err != nil {
		return err
	}
	ccfg := coordinator.Default()
	ccfg.LeaseTTL, ccfg.Tick, ccfg.SnapshotInterval, ccfg.SnapshotEntries = w.cfg.LeaseTTL, w.cfg.LeaseTTL/6, pace*5*time.Second, 50
	ccfg.WALWindow, ccfg.CleanInterval, ccfg.SweepInterval = ncfg.Stream.WALWindow, ncfg.Stream.CleanInterval, ncfg.Stream.SweepInterval
	ccfg.MoveTimeout = w.cfg.LeaseTTL
	if w.cfg.Coordinator != nil {
		w.cfg.Coordinator(&ccfg)
	}
	if c, err = coordinator.New(ccfg, coordinator.Deps{Meta: replica, Log: log, Head: head, WALStore: store, Objects: store, Self: n.Self, Stopped: n.Look, Release: p.askRelease, Logger: logger}); err != nil {
		return err
	}
	p.mu.Lock()
	p.mu.node, p.mu.coordinator, p.mu.replica, p.mu.head = n, c, replica, head
	p.mu.Unlock()
	return p.openServers()
}

// passing errors end a start that its supervisor repeats.
func passing(err error) bool {
	return slices.ContainsFunc([]error{
		mink.ErrUnavailable, mink.ErrUnknownOutcome, context.DeadlineExceeded, metalog.ErrHeadMoved,
		objstore.ErrUnavailable, objstore.ErrThrottled, objstore.ErrUnknownOutcome, objstore.ErrConflict, objstore.ErrAlreadyExists,
	}, func(class error) bool { return errors.Is(err, class) })
}

// smallStream does in seconds what a node does in hours.
func smallStream(caps objstore.Capabilities, ttl, pace time.Duration) stream.Config {
	c := stream.Default(caps, 64<<20)
	c.WALWindow, c.WALGiveUpAfter = 3, 2*ttl
	c.WALBatchInterval = 20 * time.Millisecond
	c.WALUploadInterval, c.CompactInterval, c.CleanInterval, c.SweepInterval = pace*time.Second, pace*2*time.Second, pace*time.Second, pace*4*time.Second
	c.DestroyGrace, c.ReadTimeout, c.OrphanAge = pace*3*time.Second, pace*2*time.Second, pace*10*time.Second
	c.Compaction = plan.DefaultCompaction()
	c.Compaction.Inputs, c.Compaction.AgeMs, c.Compaction.Tiers, c.Compaction.ObjectBytes = 3, int64(pace)*8000, 3, 16<<10
	c.StreamObjectBytes, c.CompactPartBytes = 4<<10, 4<<10
	c.RetryMin, c.RetryMax, c.DrainTimeout = 50*time.Millisecond, time.Second, 2*time.Second
	return c
}

// Node is nil until the process has read the metadata.
func (p *Process) Node() *node.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.node
}

// Head keeps what the store remembers of the metadata; nil before the process is
// built.
func (p *Process) Head() *storehead.Keeper {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.head
}

// Coordinator is nil until the process has read the metadata.
func (p *Process) Coordinator() *coordinator.Coordinator {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.coordinator
}

// Crash kills the process now: nothing that it does afterwards is seen, though
// its requests may still be carried out. What is left of it ends by itself.
func (p *Process) Crash() {
	p.die()
	p.crash()
}

// CrashSilently is the end of its machine: no connection is reset, nobody hears of it.
func (p *Process) CrashSilently() {
	p.host.Vanish()
	p.Crash()
}

func (p *Process) die() {
	p.meta.Kill()
	p.gate.Kill()
	p.host.End()
	p.healed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lived == 0 {
		p.mu.lived = time.Since(p.started)
	}
}

// Lived is for how long the process was there, up to now.
func (p *Process) Lived() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lived > 0 {
		return p.mu.lived
	}
	return time.Since(p.started)
}

// Lived is for how long all processes were there, together.
func (w *World) Lived() (d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.mu.processes {
		d += p.Lived()
	}
	return d
}

// healed ends the pause of the network.
func (p *Process) healed() {
	p.mu.Lock()
	heal := p.mu.heal
	p.mu.heal = nil
	p.mu.Unlock()
	for _, f := range heal {
		f()
	}
}

// Pause makes the process stand still in every call of store and database; it reads and
// sends nothing.
func (p *Process) Pause() {
	p.gate.Pause()
	p.meta.Pause()
	p.healed()
	in, out := p.world.net.Cut(everybody, p.host.Is), p.world.net.Cut(p.host.Is, everybody)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.heal = append(p.mu.heal, in, out)
}

// PauseMetadata makes it stand still in every call of the database only.
func (p *Process) PauseMetadata() { p.meta.Pause() }

// Resume lets it go on.
func (p *Process) Resume() {
	p.gate.Resume()
	p.meta.Resume()
	p.healed()
}

// Paused reports that it stands still.
func (p *Process) Paused() bool { return p.gate.Paused() }

// Dead is closed by its crash or its end.
func (p *Process) Dead() <-chan struct{} { return p.gate.Dead() }

// Stop asks for an orderly end and waits for it.
func (p *Process) Stop() error {
	p.stop()
	return p.Wait()
}

// Wait waits until the process has ended and answers how.
func (p *Process) Wait() error {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.err
}

// Running reports that it has neither ended nor crashed.
func (p *Process) Running() bool {
	select {
	case <-p.gate.Dead():
		return false
	default:
		return true
	}
}

// Processes are those that run, paused ones too, oldest first.
func (w *World) Processes() []*Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.mu.processes), func(p *Process) bool { return !p.Running() })
}

// WaitReady waits until the process serves everything that its node leads.
func (p *Process) WaitReady(ctx context.Context) error {
	for p.Node() == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.gate.Dead():
			return gate.ErrDead
		case <-time.After(time.Millisecond):
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.gate.Dead():
		case <-ctx.Done():
		}
		cancel()
	}()
	return p.Node().WaitReady(ctx)
}
