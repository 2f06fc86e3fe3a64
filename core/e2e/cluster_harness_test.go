package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mink-project/mink/core/metalog/pgtest"
	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/client"
)

// leaseTTL of the clusters of these tests.
const leaseTTL = 3 * time.Second

// soon is how long something may take that must happen: this machine may be busy.
const soon = 3 * time.Minute

// trio is a cluster of real processes with one Postgres and one S3 server. Each
// node reaches each of its neighbours over a wire of its own:
//
//	node i --database[i]--> Postgres, metadata
//	node i --catalog[i]---> Postgres, catalog of the lake
//	node i --store[i]-----> S3 server
//	clients and nodes --flight[i]--> node i
type trio struct {
	t        *testing.T
	database *pgtest.Server
	store    *cloudtest.Server
	nodes    []*member
	children []int // processes that nodes started, as far as they were looked for
	ids      int   // the highest that freeID gave out
	clients  diary // what the clients say that they do

	freshness time.Duration // of the lake; 0: no table has one
	faults    string        // the file that arms fault points; "": the nodes have none
}

// member is one node of a trio.
type member struct {
	*node
	c                                  *trio
	place                              int // in trio.nodes, whatever the id of who is there
	id                                 int
	toDatabase, toCatalog, toStore, in *wire
	process                            atomic.Int64 // 0: none runs
	paused                             bool
	clock                              *wallClock // nil: the clock of the machine
	smallDisk                          bool       // its data directory has a small file system of its own
}

// newCluster makes n nodes; start starts them.
func newCluster(t *testing.T, n int, flags ...string) *trio {
	t.Helper()
	minkBinary(t)
	plugins := os.Getenv("MINK_TEST_PLUGINS")
	if plugins == "" {
		t.Skip("MINK_TEST_PLUGINS is not set: run make chaos-cluster, or scripts/e2e.sh cluster")
	}
	c := &trio{t: t, database: pgtest.Start(t), store: cloudtest.S3(t, "mink")}
	if os.Getenv("MINK_TEST_CLUSTER_LAKE") == "1" {
		c.freshness = 4 * time.Second
	}
	for i := range n {
		c.add(i, plugins, flags)
	}
	return c
}

func (c *trio) add(i int, plugins string, flags []string) {
	t := c.t
	m := &member{c: c, place: i, id: i + 1}
	m.toDatabase, m.toCatalog = newWire(t, c.database.Addr(), nil), newWire(t, c.database.Addr(), nil)
	m.toStore = newWire(t, strings.TrimPrefix(c.store.URL, "http://"), nil)
	n := &node{t: t, dir: t.TempDir(), stderr: &tail{}}
	n.flight, n.kafka, n.http = freeAddress(t), freeAddress(t), freeAddress(t)
	m.in = newWire(t, n.flight, c.processes)
	n.flags = append([]string{
		"--node-id", fmt.Sprint(m.id), "--advertise", m.in.address,
		"--meta-url", strings.Replace(c.database.URL(), c.database.Addr(), m.toDatabase.address, 1),
		"--lake-catalog-url", strings.Replace(c.database.URL(), c.database.Addr(), m.toCatalog.address, 1),
		"--lease-ttl", leaseTTL.String(), "--coordinator-tick", "500ms",
		// What usually takes minutes happens while a scenario runs.
		"--wal-batch-interval", "50ms", "--wal-upload-interval", "700ms", "--compaction-interval", "1s", "--object-grace", "2s",
		"--object-cleanup-interval", "1s", "--orphan-age", "5s", "--metadata-snapshot-interval", "2s", "--log-retention-interval", "1s",
		"--kv-snapshot-interval", "3s", "--topic-cleaning-interval", "1s", "--group-initial-rebalance-delay", "300ms",
	}, flags...)
	n.env = []string{
		"MINK_STORAGE_URI=s3://mink/cluster", "MINK_PLUGIN_DIR=" + plugins,
		fmt.Sprintf("MINK_STORAGE_OPTIONS=endpoint=http://%s,access_key_id=%s,secret_access_key=%s", m.toStore.address, cloudtest.AccessKeyID, cloudtest.SecretAccessKey),
	}
	m.node = n
	m.offTheClock()
	m.onASmallDisk()
	c.nodes = append(c.nodes, m)
	t.Cleanup(func() {
		m.resume()
		m.kill()
		if t.Failed() {
			t.Logf("log of node %d:\n%s", m.id, n.stderr)
		}
	})
}

// processes are the running nodes by process.
func (c *trio) processes() map[int]int {
	out := map[int]int{}
	for i, m := range c.nodes {
		if p := int(m.process.Load()); p != 0 {
			out[p] = i
		}
	}
	return out
}

// start starts all nodes and waits until they serve.
func (c *trio) start() {
	c.t.Helper()
	var ready []<-chan string
	for _, m := range c.nodes {
		ready = append(ready, m.launch())
	}
	for i, r := range ready {
		c.nodes[i].awaitReady(r)
	}
}

func (m *member) launch() <-chan string {
	m.t.Helper()
	ready := m.node.launch()
	m.process.Store(int64(m.cmd.Process.Pid))
	return ready
}

// kill is kill -9, after which no process of the node is left.
func (m *member) kill() {
	m.t.Helper()
	m.c.noteChildren()
	m.node.kill()
	m.process.Store(0)
}

func (m *member) runs() bool { return m.process.Load() != 0 }

func (m *member) awaitReady(ready <-chan string) {
	m.t.Helper()
	select {
	case _, ok := <-ready:
		if !ok {
			m.t.Fatalf("node %d ended before it was ready", m.id)
		}
	case <-time.After(soon):
		m.t.Fatalf("node %d was not ready within %s", m.id, soon)
	}
}

// restart starts a node that was killed, and waits until it serves.
func (m *member) restart() {
	m.t.Helper()
	m.awaitReady(m.launch())
}

// pause is SIGSTOP: the process stands still, its connections stay.
func (m *member) pause() {
	m.t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		m.t.Fatal(err)
	}
	m.paused = true
}

func (m *member) resume() {
	if m.paused {
		_ = m.cmd.Process.Signal(syscall.SIGCONT)
		m.paused = false
	}
}

// bootstrap is where clients find the cluster.
func (c *trio) bootstrap() (flight, kafka []string) {
	for _, m := range c.nodes {
		flight, kafka = append(flight, m.in.address), append(kafka, m.kafka)
	}
	return flight, kafka
}

func (c *trio) client() *client.Client {
	c.t.Helper()
	cfg := client.Default()
	cfg.Bootstrap, _ = c.bootstrap()
	cfg.RetryTimeout = 5 * time.Minute // a machine that is ten times slower
	cfg.Logger = slog.New(slog.NewTextHandler(&c.clients, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cl, err := client.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func (c *trio) franz(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	_, seeds := c.bootstrap()
	k, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.DialTimeout(3 * time.Second), kgo.ProduceRequestTimeout(5 * time.Second), kgo.RequestTimeoutOverhead(5 * time.Second),
		kgo.WithLogger(c.clients.franz()),
	}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(k.Close)
	return k
}

// mink runs the command line client.
func (c *trio) mink(args ...string) []byte {
	c.t.Helper()
	flight, _ := c.bootstrap()
	return run(c.t, nil, minkBinary(c.t), append([]string{"--bootstrap", strings.Join(flight, ",")}, args...)...)
}

// query asks the database itself, not over a wire.
func (c *trio) query(ask func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.database.URL())
	if err != nil {
		return err
	}
	return errors.Join(ask(ctx, conn), conn.Close(ctx))
}

// coordinator waits until a node that runs holds the lease, and answers it.
func (c *trio) coordinator() *member {
	c.t.Helper()
	var holder *member
	eventually(c.t, "a running node holds the coordinator lease", func() bool {
		var id int
		err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT CASE WHEN expires_ms > extract(epoch FROM clock_timestamp()) * 1000 THEN node ELSE 0 END FROM meta_lease`).Scan(&id)
		})
		if err != nil || id == 0 {
			return false
		}
		i := slices.IndexFunc(c.nodes, func(m *member) bool { return m.id == id })
		if i < 0 {
			return false // who was removed holds it for a moment more
		}
		holder = c.nodes[i]
		return holder.runs()
	})
	return holder
}

// others are the nodes but these.
func (c *trio) others(not ...*member) []*member {
	var out []*member
next:
	for _, m := range c.nodes {
		for _, n := range not {
			if m == n {
				continue next
			}
		}
		out = append(out, m)
	}
	return out
}

// registrations are the newest epoch and how many there were, by node id.
func (c *trio) registrations() map[int]int {
	c.t.Helper()
	out := map[int]int{}
	err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT node, count(*) FROM meta_node GROUP BY node`)
		if err != nil {
			return err
		}
		var id, n int
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { out[id] = n; return nil })
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// stop ends every node in order, all at once; each must exit 0.
func (c *trio) stop() {
	c.t.Helper()
	for _, m := range c.nodes {
		m.terminate()
	}
	for _, m := range c.nodes {
		m.awaitEnd()
	}
}

// terminate asks a node to stop.
func (m *member) terminate() {
	if m.runs() {
		m.c.noteChildren()
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
	}
}

// awaitEnd waits for a node that was asked to stop.
func (m *member) awaitEnd() {
	m.t.Helper()
	if !m.runs() {
		return
	}
	select {
	case err := <-m.exited:
		if err != nil {
			m.t.Errorf("orderly stop of node %d: %v", m.id, err)
		}
		m.cmd = nil
		m.process.Store(0)
	case <-time.After(soon):
		m.t.Fatalf("node %d did not stop within %s", m.id, soon)
	}
}

// noteChildren remembers the processes that the nodes have started.
func (c *trio) noteChildren() {
	nodes := c.processes()
	list, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range list {
		var pid, parent int
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may hold anything
		if _, err := fmt.Sscanf(rest, "%1s %d", new(string), &parent); err != nil {
			continue
		}
		if _, ok := nodes[parent]; ok {
			_, _ = fmt.Sscanf(path, "/proc/%d/stat", &pid)
			c.children = append(c.children, pid)
		}
	}
}

// nothingLeft fails the test for a process that outlives the node that started it.
func (c *trio) nothingLeft() {
	c.t.Helper()
	if len(c.children) == 0 {
		c.t.Error("no process of a plugin was ever seen")
	}
	for _, pid := range c.children {
		eventually(c.t, fmt.Sprintf("process %d of a plugin ends with its node", pid), func() bool { return ended(pid) })
	}
}
