package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fault does something to a cluster under load and mends it again; the cluster needs
// not have got over it when it returns.
type fault struct {
	name string
	run  func(l *load, rng *rand.Rand)
}

// faults are those that a cluster of three can have at any time, see possible.
var faults = []fault{
	{"SIGKILL of a leader", (*load).killLeader},
	{"SIGKILL of the coordinator", (*load).killCoordinator},
	{"SIGKILL of the coordinator and a leader", (*load).killBoth},
	{"SIGKILL and instant restart", (*load).killAndStart},
	{"SIGSTOP of a leader beyond its lease", (*load).stopLeader},
	{"SIGSTOP of the coordinator beyond its lease", (*load).stopCoordinator},
	{"restart of Postgres", (*load).restartDatabase},
	{"restart of the S3 server", (*load).restartStore},
	{"5 s of added store latency", (*load).slowStore},
	{"a node cut off from Postgres", (*load).cutFromDatabase},
	{"a node cut off from the store", (*load).cutFromStore},
	{"a node cut off from its peers", (*load).cutFromPeers},
	{"rolling restart", (*load).rollingRestart},
	{"orderly stop of a node", (*load).stopNode},
	{"two processes with one id", (*load).twinNode},
	{"removal of a node, another joins", (*load).replaceNode},
	{"a wall clock an hour off", (*load).clockOff},
	{"a small full disk", (*load).fullDisk},
	{"rebalance while answers are lost", (*load).rebalance},
}

// possible are the faults that this machine can make.
func (l *load) possible() []fault {
	m := l.c.nodes[0]
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return f.name == "a wall clock an hour off" && m.clock == nil || f.name == "a small full disk" && !m.smallDisk
	})
}

// alone runs one fault on a cluster of its own, and then everything is checked.
func alone(t *testing.T, name string, flags ...string) {
	t.Helper()
	c := newCluster(t, 3, flags...)
	c.start()
	l := startLoad(c)
	l.goesOn("before")
	can := l.possible()
	i := slices.IndexFunc(can, func(f fault) bool { return f.name == name })
	if i < 0 {
		t.Skipf("this machine cannot make the fault %q: it needs root, or bin/mink-clock of make chaos-cluster", name)
	}
	for seed := range uint64(2) { // the draws of these two differ in all that a fault draws
		l.during(fmt.Sprintf("%s (seed %d)", name, seed), func() { can[i].run(l, rand.New(rand.NewPCG(seed, 2))) })
	}
	t.Logf("%d rows, each once", l.settle())
}

func TestClusterLeaderKilled(t *testing.T)      { alone(t, "SIGKILL of a leader") }
func TestClusterCoordinatorKilled(t *testing.T) { alone(t, "SIGKILL of the coordinator") }
func TestClusterTwoOfThreeKilled(t *testing.T)  { alone(t, "SIGKILL of the coordinator and a leader") }
func TestClusterKilledAndStarted(t *testing.T)  { alone(t, "SIGKILL and instant restart") }
func TestClusterLeaderPaused(t *testing.T)      { alone(t, "SIGSTOP of a leader beyond its lease") }
func TestClusterCoordinatorPaused(t *testing.T) {
	alone(t, "SIGSTOP of the coordinator beyond its lease")
}
func TestClusterObjectServerRestart(t *testing.T) { alone(t, "restart of the S3 server") }
func TestClusterSlowStore(t *testing.T)           { alone(t, "5 s of added store latency") }
func TestClusterCutFromPostgres(t *testing.T)     { cutOff(t, "Postgres", (*load).wireDatabase) }
func TestClusterCutFromStore(t *testing.T)        { cutOff(t, "the store", (*load).wireStore) }
func TestClusterCutFromPeers(t *testing.T)        { cutOff(t, "its peers", (*load).wirePeers) }
func TestClusterUnheardByPeers(t *testing.T) {
	cutOff(t, "its peers, one way (it asks none)", (*load).wireToPeers)
}
func TestClusterUnreachedByPeers(t *testing.T) {
	cutOff(t, "its peers, one way (none asks it)", (*load).wireFromPeers)
}
func TestClusterRollingRestart(t *testing.T)        { alone(t, "rolling restart") }
func TestClusterOrderlyStop(t *testing.T)           { alone(t, "orderly stop of a node") }
func TestClusterTwoProcessesWithOneID(t *testing.T) { alone(t, "two processes with one id") }
func TestClusterNodeRemoved(t *testing.T)           { alone(t, "removal of a node, another joins") }
func TestClusterWallClockOff(t *testing.T)          { alone(t, "a wall clock an hour off") }
func TestClusterFullDisk(t *testing.T)              { alone(t, "a small full disk") }
func TestClusterRebalance(t *testing.T)             { alone(t, "rebalance while answers are lost") }

// between is a random time.
func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rng.Int64N(int64(high-low)))
}

// wait lets the load run on.
func (l *load) wait(d time.Duration) { pause(l.t.Context(), d) }

// leader is a node that does not hold the lease; every node leads buckets.
func (l *load) leader(rng *rand.Rand) *member {
	rest := l.c.others(l.c.coordinator())
	return rest[rng.IntN(len(rest))]
}

func (l *load) any(rng *rand.Rand) *member { return l.c.nodes[rng.IntN(len(l.c.nodes))] }

func (l *load) killLeader(rng *rand.Rand) {
	m := l.leader(rng)
	m.kill()
	l.goesOn("while a leader is away")
	m.restart()
}

func (l *load) killCoordinator(rng *rand.Rand) {
	m := l.c.coordinator()
	m.kill()
	l.goesOn("while the coordinator is away")
	m.restart()
}

func (l *load) killBoth(rng *rand.Rand) {
	first, second := l.c.coordinator(), l.leader(rng)
	first.kill()
	second.kill()
	if rng.IntN(2) == 0 {
		l.goesOn("with one node of three")
	}
	ready := first.launch()
	second.restart()
	first.awaitReady(ready)
}

func (l *load) killAndStart(rng *rand.Rand) {
	m := l.any(rng)
	for range 1 + rng.IntN(3) {
		m.kill()
		m.restart()
		l.wait(between(rng, 0, 300*time.Millisecond))
	}
}

// standStill lets a process stand still until others have its buckets, or somewhat longer
// than its lease.
func (l *load) standStill(m *member, rng *rand.Rand) {
	m.pause()
	defer m.resume()
	if rng.IntN(2) == 0 {
		l.wait(between(rng, leaseTTL*5/4, 3*leaseTTL))
		return
	}
	l.goesOn("while a node stands still")
}

func (l *load) stopLeader(rng *rand.Rand)      { l.standStill(l.leader(rng), rng) }
func (l *load) stopCoordinator(rng *rand.Rand) { l.standStill(l.c.coordinator(), rng) }

func (l *load) restartDatabase(rng *rand.Rand) {
	l.t.Helper()
	if err := l.c.database.Down([]string{"INT", "QUIT"}[rng.IntN(2)]); err != nil {
		l.t.Fatal(err)
	}
	l.wait(between(rng, 0, 2*leaseTTL))
	if err := l.c.database.Up(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
}

func (l *load) restartStore(rng *rand.Rand) {
	l.t.Helper()
	l.c.store.Kill()
	l.wait(between(rng, 0, leaseTTL))
	if err := l.c.store.Start(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *load) slowStore(rng *rand.Rand) {
	for _, m := range l.c.nodes {
		m.toStore.slow(5 * time.Second)
	}
	l.wait(between(rng, 5*time.Second, 20*time.Second))
	for _, m := range l.c.nodes {
		m.toStore.slow(0)
	}
}

// cut makes trouble between a node and what it depends on, for less than a lease or for
// some leases.
func (l *load) cut(rng *rand.Rand, wire func(*load, *member, trouble)) {
	m := l.any(rng)
	wire(l, m, []trouble{holds, cuts, mutes}[rng.IntN(3)])
	if rng.IntN(2) == 0 {
		l.wait(between(rng, 0, leaseTTL))
	} else {
		l.wait(between(rng, leaseTTL, 4*leaseTTL))
	}
	wire(l, m, passes)
}

func (l *load) cutFromDatabase(rng *rand.Rand) { l.cut(rng, (*load).wireDatabase) }
func (l *load) cutFromStore(rng *rand.Rand)    { l.cut(rng, (*load).wireStore) }
func (l *load) cutFromPeers(rng *rand.Rand) {
	l.cut(rng, []func(*load, *member, trouble){(*load).wirePeers, (*load).wireFromPeers, (*load).wireToPeers}[rng.IntN(3)])
}

func (l *load) wireDatabase(m *member, what trouble) {
	m.toDatabase.set(-1, what)
	m.toCatalog.set(-1, what)
}
func (l *load) wireStore(m *member, what trouble) { m.toStore.set(-1, what) }

func (l *load) wirePeers(m *member, what trouble) {
	l.wireFromPeers(m, what)
	l.wireToPeers(m, what)
}

// wireFromPeers is the way on which peers ask a node; it still asks them.
func (l *load) wireFromPeers(m *member, what trouble) {
	for _, peer := range l.c.others(m) {
		m.in.set(peer.place, what)
	}
}

// wireToPeers is the way on which a node asks its peers; they still ask it.
func (l *load) wireToPeers(m *member, what trouble) {
	for _, peer := range l.c.others(m) {
		peer.in.set(m.place, what)
	}
}

// cutOff cuts a leader and the coordinator off for several leases, in both ways: the
// others serve meanwhile, and it comes back by itself.
func cutOff(t *testing.T, from string, wire func(*load, *member, trouble)) {
	t.Helper()
	c := newCluster(t, 3)
	c.start()
	l := startLoad(c)
	l.goesOn("before")
	rng := rand.New(rand.NewPCG(1, 2))
	for how, what := range map[string]trouble{"packets dropped": holds, "answers dropped": mutes, "connections reset": cuts} {
		for who, m := range map[string]*member{"a leader": l.leader(rng), "the coordinator": c.coordinator()} {
			l.during(fmt.Sprintf("%s cut off from %s, %s", who, from, how), func() {
				wire(l, m, what)
				l.wait(2 * leaseTTL)
				l.goesOn("while " + who + " is cut off from " + from)
				wire(l, m, passes)
			})
		}
	}
	t.Logf("%d rows, each once", l.settle())
}

func (l *load) rollingRestart(*rand.Rand) {
	for _, m := range l.c.nodes {
		m.terminate()
		m.awaitEnd()
		m.restart()
	}
}

func (l *load) stopNode(rng *rand.Rand) {
	m := l.any(rng)
	m.terminate()
	m.awaitEnd()
	l.goesOn("without a node that stopped")
	m.restart()
}

// twinNode starts another process under a running node's id: the older one ends and
// says why. Then the first place is taken again.
func (l *load) twinNode(rng *rand.Rand) {
	l.t.Helper()
	m := l.any(rng)
	twin := &node{t: l.t, dir: l.t.TempDir(), stderr: &tail{}, env: m.env}
	twin.flight, twin.kafka, twin.http = freeAddress(l.t), freeAddress(l.t), freeAddress(l.t)
	for i := 0; i < len(m.flags); i++ {
		if m.flags[i] == "--advertise" {
			i++
			continue
		}
		twin.flags = append(twin.flags, m.flags[i])
	}
	defer twin.kill()
	l.c.noteChildren()
	ready := twin.launch()
	select {
	case err := <-m.exited:
		if err == nil || !strings.Contains(m.stderr.String(), "another process registered with this node's id") {
			l.t.Errorf("a process whose id was taken ended with %v:\n%s", err, m.stderr)
		}
		m.cmd = nil
		m.process.Store(0)
	case <-time.After(soon):
		l.t.Fatalf("node %d goes on although another process has its id", m.id)
	}
	select {
	case <-ready:
	case <-time.After(soon):
		l.t.Fatalf("the second process of node %d is not ready:\n%s", m.id, twin.stderr)
	}
	l.goesOn("with another process of a node's id")
	_ = twin.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-twin.exited:
		if err != nil {
			l.t.Errorf("orderly stop of the second process: %v\n%s", err, twin.stderr)
		}
		twin.cmd = nil
	case <-time.After(soon):
		l.t.Fatalf("the second process of node %d did not stop", m.id)
	}
	m.restart()
}

// A restart of Postgres seals nobody: a database that was away says nothing of the nodes.
func TestClusterPostgresRestart(t *testing.T) {
	// A lease that a busy machine does not let run out while the database is there.
	const lease = 10 * time.Second
	c := newCluster(t, 3, "--lease-ttl", lease.String())
	c.start()
	l := startLoad(c)
	l.goesOn("before")
	registered := c.registrations()
	for _, signal := range []string{"INT", "QUIT"} {
		l.during("restart of Postgres ("+signal+"), away for longer than a lease", func() {
			if err := c.database.Down(signal); err != nil {
				t.Fatal(err)
			}
			l.wait(lease + lease/4)
			if err := c.database.Up(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
		l.wait(lease + lease/2) // a silence counted wrongly would be over
	}
	if now := c.registrations(); fmt.Sprint(now) != fmt.Sprint(registered) {
		t.Errorf("registrations by node: %v before, %v after the restarts: the cluster fenced itself", registered, now)
	}
	t.Logf("%d rows, each once", l.settle())
}
