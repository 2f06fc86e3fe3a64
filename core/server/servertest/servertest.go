// Package servertest runs whole nodes in one process: core/server with real
// listeners on loopback, over one metadata log and one object store in memory.
//
//	clients, other nodes --> port (fixed address) --> listeners of server.RunOn --> outward --> ports of others
//	                                                        |
//	                                    gate (dead, or standing still)
//	                                                        v
//	                                    one memlog, one memstore
//
// Nodes are named by their ids, 1 to n. A killed or paused node shares the
// process with the test: its goroutines live on, but no byte of it gets out, and none
// gets in.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/fault/gate"
	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/core/metalog/memlog"
	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/sink"
)

// waitMax bounds every wait of the harness: nothing in it takes long, unless it
// never comes.
const waitMax = 2 * time.Minute

// Cluster is a running cluster. Its methods are for one goroutine, but for View,
// Leader, Node and Client, which any may call.
type Cluster struct {
	t       testing.TB
	logger  *slog.Logger
	tune    []func(id int, c *server.Config)
	sinks   map[string]sink.Sink
	log     *memlog.Log
	store   *memstore.Store
	landing sync.WaitGroup // requests of nodes on their way
	dir     string
	view    *metalog.Replica
	nodes   []*Node
	ended   []*process // killed or stopped, perhaps not gone yet
}

// Node is how a node is reached; the addresses outlive restarts.
type Node struct {
	ID            mink.NodeID
	Flight, Kafka string // host:port, as advertised

	flight, kafka *port
	running       *process // nil while it is stopped or killed
}

// process is one run of a node.
type process struct {
	store, meta *gate.Gate
	outward     *outward
	stop        context.CancelFunc
	ready       chan server.Ready // holds one value once the node serves
	http        string            // set by whoever took it
	paused      bool
	done        chan struct{}
	err         error // after done
}

// Option changes how nodes start.
type Option func(*Cluster)

// Configure changes the configuration of every node at every start of it.
func Configure(f func(id int, c *server.Config)) Option {
	return func(c *Cluster) { c.tune = append(c.tune, f) }
}

// Sinks gives every node these sinks, which they share.
func Sinks(sinks map[string]sink.Sink) Option { return func(c *Cluster) { c.sinks = sinks } }

// LeaseTTL sets lease_ttl, 3 s without it. Tests that pause or delay a node
// without meaning its death want a long one.
func LeaseTTL(d time.Duration) Option {
	return Configure(func(_ int, c *server.Config) { c.LeaseTTL = units.Duration(d) })
}

// Start starts n nodes and waits until they serve. The cluster ends with the test,
// which fails when a node ended by itself or does not stop.
func Start(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	out := &output{t: t}
	c := &Cluster{
		t: t, dir: t.TempDir(), log: memlog.New(), store: memstore.New(memstore.Config{}),
		logger: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, o := range opts {
		o(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	replica, err := metalog.Open(ctx, c.log, metalog.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.view = replica
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := replica.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the observer of the metadata: %v", err)
		}
	}()
	t.Cleanup(func() {
		c.end()
		cancel()
		<-watched
		c.landing.Wait()
		_ = c.log.Close()
		_ = c.store.Close()
		out.close()
	})
	for id := 1; id <= n; id++ {
		c.nodes = append(c.nodes, c.newNode(id))
	}
	for id := range n {
		c.start(id + 1)
	}
	c.WaitServing(t)
	return c
}

func (c *Cluster) newNode(id int) *Node {
	c.t.Helper()
	n := &Node{ID: mink.NodeID(id)}
	var err error
	if n.flight, err = newPort(); err == nil {
		n.kafka, err = newPort()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	n.Flight, n.Kafka = n.flight.addr(), n.kafka.addr()
	return n
}

// Nodes is how many there are, whatever became of them.
func (c *Cluster) Nodes() int { return len(c.nodes) }

// Node answers a node by its id, 1 to n.
func (c *Cluster) Node(id int) *Node { return c.nodes[id-1] }

// Store is what all nodes share, without a gate before it.
func (c *Cluster) Store() *memstore.Store { return c.store }

// Log is the metadata log that all nodes share, without a gate before it.
func (c *Cluster) Log() *memlog.Log { return c.log }

// View is the metadata as the log has it by now, whatever the nodes have applied.
func (c *Cluster) View() *cluster.State {
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	head, err := c.log.Head(ctx)
	if err == nil {
		err = c.view.WaitApplied(ctx, head.Index)
	}
	if err != nil {
		c.t.Errorf("the observer of the metadata: %v", err)
	}
	return c.view.View()
}

// Leader is the id of the live node that leads a bucket; 0 while none does.
func (c *Cluster) Leader(bucket mink.BucketRef) int {
	view := c.View()
	id, ok := view.StreamOf(bucket)
	if !ok {
		return 0
	}
	s, ok := view.Stream(id)
	if !ok || view.Orphan(s) {
		return 0
	}
	return int(s.Owner.Node)
}

// LeaseHolder is the id of the node that took the coordinator lease last.
func (c *Cluster) LeaseHolder() int { return int(c.View().Lease().Node) }

// Client makes a client whose bootstrap list is the given nodes, all when none is
// given. It is closed with the test, if not before.
func (c *Cluster) Client(t testing.TB, ids ...int) *client.Client {
	t.Helper()
	return c.ClientWith(t, func(*client.Config) {}, ids...)
}

// ClientWith is Client with another configuration.
func (c *Cluster) ClientWith(t testing.TB, change func(*client.Config), ids ...int) *client.Client {
	t.Helper()
	cfg := client.Default()
	cfg.Bootstrap, cfg.RetryTimeout = nil, waitMax
	for _, n := range c.nodes {
		if len(ids) == 0 {
			cfg.Bootstrap = append(cfg.Bootstrap, n.Flight)
		}
	}
	for _, id := range ids {
		cfg.Bootstrap = append(cfg.Bootstrap, c.Node(id).Flight)
	}
	change(&cfg)
	cl, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func (c *Cluster) config(id int) server.Config {
	c.t.Helper()
	n, cfg := c.Node(id), server.DefaultConfig()
	var err error
	if cfg.DataDir, err = os.MkdirTemp(c.dir, fmt.Sprintf("node-%d-", id)); err != nil {
		c.t.Fatal(err)
	}
	cfg.NodeID = int32(id)
	cfg.Listen, cfg.KafkaListen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Advertise, cfg.KafkaAdvertise = n.Flight, n.Kafka
	cfg.LeaseTTL, cfg.CoordinatorTick = units.Duration(3*time.Second), units.Duration(250*time.Millisecond)
	cfg.GroupInitialRebalanceDelay = 0
	cfg.LogCacheBytes, cfg.BlockCacheBytes, cfg.KVCacheBytes = 64<<20, 32<<20, 16<<20
	for _, f := range c.tune {
		f(id, &cfg)
	}
	return cfg
}

// start runs a node; it returns at once.
func (c *Cluster) start(id int) {
	c.t.Helper()
	n := c.Node(id)
	if n.running != nil {
		c.t.Fatalf("node %d runs already", id)
	}
	cfg := c.config(id)
	ctx, stop := context.WithCancel(context.Background())
	p := &process{
		store: gate.New(uint64(id), 0, &c.landing), meta: gate.New(uint64(id), 0, &c.landing),
		outward: newOutward(), stop: stop, ready: make(chan server.Ready, 1), done: make(chan struct{}),
	}
	n.running = p
	if err := errors.Join(n.flight.starting(), n.kafka.starting()); err != nil {
		c.t.Fatal(err)
	}
	given := server.Given{Sinks: c.sinks, Objects: p.store.Store(c.store), Log: p.meta.Log(c.log), Dial: p.outward.dial}
	go func() {
		defer close(p.done)
		p.err = server.RunOn(ctx, cfg, given, c.logger.With("node", id), func(r server.Ready) { p.ready <- r })
	}()
}

// serving puts the ports before the listeners once the node serves; false while it
// does not.
func (c *Cluster) serving(n *Node) bool {
	p := n.running
	if p.http != "" {
		return true
	}
	select {
	case r := <-p.ready:
		p.http = r.HTTP
		n.flight.serve(r.Flight)
		n.kafka.serve(r.Kafka)
		return true
	case <-p.done:
		c.t.Fatalf("node %d ended by itself: %v", n.ID, p.err)
	default:
	}
	return false
}

// Stop stops a node in order, and waits until it is gone.
func (c *Cluster) Stop(id int) {
	c.t.Helper()
	n, p := c.Node(id), c.take(id)
	p.stop()
	c.wait(id, p)
	n.flight.cut()
	n.kafka.cut()
	if p.err != nil {
		c.t.Errorf("node %d stopped with: %v", id, p.err)
	}
}

// Kill ends a node between two instructions: its connections break, and nothing
// that it does afterwards reaches the store, the log or another node. Others see it
// silent.
func (c *Cluster) Kill(id int) {
	c.t.Helper()
	n, p := c.Node(id), c.take(id)
	p.store.Kill()
	p.meta.Kill()
	p.outward.cut()
	n.flight.cut()
	n.kafka.cut()
	p.stop()
}

// Restart starts a stopped or killed node under its old id and addresses; one that
// runs is killed first. It returns at once: WaitServing waits.
func (c *Cluster) Restart(id int) {
	c.t.Helper()
	if c.Node(id).running != nil {
		c.Kill(id)
	}
	c.start(id)
}

// Pause makes a node stand still: its calls of store, log and other nodes hang, its
// listeners take and answer nothing. Its clock goes on.
func (c *Cluster) Pause(id int) {
	n := c.Node(id)
	n.running.paused = true
	n.running.outward.hold()
	n.flight.hold()
	n.kafka.hold()
	n.running.store.Pause()
	n.running.meta.Pause()
}

// Resume lets a paused node go on.
func (c *Cluster) Resume(id int) {
	n := c.Node(id)
	n.running.paused = false
	n.running.meta.Resume()
	n.running.store.Resume()
	n.running.outward.release()
	n.flight.release()
	n.kafka.release()
}

// Mute makes a node's listeners take and answer nothing, until it is killed or resumed;
// what it was asked before it does.
func (c *Cluster) Mute(id int) {
	n := c.Node(id)
	n.flight.hold()
	n.kafka.hold()
}

// PauseStore makes every call of a node to the store hang until ResumeStore.
func (c *Cluster) PauseStore(id int) { c.Node(id).running.store.Pause() }

// ResumeStore is the end of PauseStore.
func (c *Cluster) ResumeStore(id int) { c.Node(id).running.store.Resume() }

// Disconnect breaks every connection to a node; new ones may be made at once. What
// the node was asked it does all the same.
func (c *Cluster) Disconnect(id int) {
	n := c.Node(id)
	n.flight.disconnect()
	n.kafka.disconnect()
}

// PauseMetadata makes a node's view of the metadata stand still, and every
// proposal of it; ResumeMetadata lets it catch up.
func (c *Cluster) PauseMetadata(id int) { c.Node(id).running.meta.Pause() }

// ResumeMetadata is the end of PauseMetadata.
func (c *Cluster) ResumeMetadata(id int) { c.Node(id).running.meta.Resume() }

func (c *Cluster) take(id int) *process {
	c.t.Helper()
	n := c.Node(id)
	p := n.running
	if p == nil {
		c.t.Fatalf("node %d does not run", id)
	}
	n.running = nil
	c.ended = append(c.ended, p)
	return p
}

// WaitServing waits until every node that runs and is not paused serves what it
// leads, and every bucket is led by one of them.
func (c *Cluster) WaitServing(t testing.TB) {
	t.Helper()
	missing := ""
	if !Wait(t.Context(), func() bool {
		missing = c.missing()
		return missing == ""
	}) {
		t.Fatalf("the cluster does not serve: %s", missing)
	}
}

// Wait asks every few milliseconds until ok; false when it takes minutes or ctx
// ends.
func Wait(ctx context.Context, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, waitMax)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

func (c *Cluster) missing() string {
	c.t.Helper()
	for _, n := range c.nodes {
		if n.running == nil || n.running.paused {
			continue
		}
		if !c.serving(n) {
			return fmt.Sprintf("node %d is not ready", n.ID)
		}
	}
	view := c.View()
	led := map[mink.NodeID]mink.NodeEpoch{}
	for _, v := range view.LiveNodes() {
		if n := c.Node(int(v.ID)); n.running != nil && !n.running.paused {
			led[v.ID] = v.Epoch
		}
	}
	for s := range view.Streams() {
		if led[s.Owner.Node] != s.Owner.NodeEpoch {
			return fmt.Sprintf("bucket %s is led by node %d, epoch %d, which does not serve", s.Bucket, s.Owner.Node, s.Owner.NodeEpoch)
		}
	}
	for _, n := range c.nodes {
		switch {
		case n.running == nil, n.running.paused:
		case led[n.ID] == 0:
			return fmt.Sprintf("node %d is not registered", n.ID)
		default:
			if why := notReady(n.running.http); why != "" {
				return fmt.Sprintf("node %d: %s", n.ID, why)
			}
		}
	}
	return ""
}

// notReady asks a node's HTTP port.
func notReady(address string) string {
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return err.Error()
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.Status
	}
	return ""
}

func (c *Cluster) wait(id int, p *process) {
	c.t.Helper()
	select {
	case <-p.done:
	case <-time.After(waitMax):
		c.t.Fatalf("node %d does not end", id)
	}
}

// end stops what still runs and waits for what was killed.
func (c *Cluster) end() {
	for _, n := range c.nodes {
		p := n.running
		if p == nil {
			continue
		}
		p.store.Resume()
		p.meta.Resume()
		p.outward.release()
		n.flight.release()
		n.kafka.release()
		p.stop()
		c.wait(int(n.ID), p)
		if p.err != nil && !errors.Is(p.err, node.ErrReplaced) {
			c.t.Errorf("node %d ended with: %v", n.ID, p.err)
		}
	}
	for _, p := range c.ended {
		c.wait(0, p)
	}
	for _, n := range c.nodes {
		n.flight.close()
		n.kafka.close()
	}
}

// output sends the nodes' logs to the test's, while it runs.
type output struct {
	mu     sync.Mutex
	t      testing.TB
	closed bool
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}
