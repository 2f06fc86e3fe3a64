package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// Figures of a cluster of real processes, printed, not asserted:
//
//	MINK_TEST_FIGURES=1 RUN='^TestClusterFigures' make chaos-cluster

func wantFigures(t *testing.T) {
	t.Helper()
	if os.Getenv("MINK_TEST_FIGURES") == "" {
		t.Skip("figures are taken with MINK_TEST_FIGURES=1")
	}
}

// quiet are the intervals of a node outside of tests: what else goes on is not measured.
var quiet = []string{
	"--wal-batch-interval", "200ms", "--wal-upload-interval", "10s", "--compaction-interval", "1m", "--object-grace", "5m", "--object-cleanup-interval", "30s",
	"--orphan-age", "1h", "--metadata-snapshot-interval", "30s", "--log-retention-interval", "5m", "--kv-snapshot-interval", "10m", "--topic-cleaning-interval", "1m",
}

func sorted(d []time.Duration) string {
	slices.Sort(d)
	var out []string
	for _, v := range d {
		out = append(out, fmt.Sprintf("%.2f", v.Seconds()))
	}
	return strings.Join(out, ", ") + " s"
}

// From the SIGKILL of a node that leads 1,000 log buckets to every bucket serving at
// another node, less the lease, which is how long it may be silent.
func TestClusterFiguresFailover(t *testing.T) {
	wantFigures(t)
	const tables, buckets, times = 3, 1000, 3
	c := newCluster(t, 3, quiet...)
	c.start()
	cl := c.client()
	c.mink("db", "create", "big")
	for i := range tables {
		table := fmt.Sprintf("big.t%d", i)
		c.mink("table", "create", table, "--bucket-key", "part", "--bucket-count", fmt.Sprint(buckets), "-C", "part INT NOT NULL", "-C", "seq BIGINT NOT NULL", "-C", "text STRING")
	}
	write := func() {
		for i := range tables {
			w, err := cl.NewWriter(t.Context(), fmt.Sprintf("big.t%d", i), client.DefaultWriter())
			if err != nil {
				t.Fatal(err)
			}
			for part := range int32(2 * buckets) {
				rec := numbered(w.Schema(), part, 0, 1)
				if _, err := w.Append(t.Context(), rec); err != nil {
					t.Fatal(err)
				}
				rec.Release()
			}
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var took, led []time.Duration
	for range times {
		c.even()
		write()
		m := c.others(c.coordinator())[0]
		n := c.led(cl, m)
		m.kill()
		at := time.Now()
		for c.led(cl, m) > 0 {
			pause(t.Context(), 5*time.Millisecond)
		}
		led = append(led, time.Since(at)-leaseTTL)
		for _, other := range c.others(m) {
			for !other.ready() {
				pause(t.Context(), 5*time.Millisecond)
			}
		}
		took = append(took, time.Since(at)-leaseTTL)
		t.Logf("node %d led %d buckets: led by others %.2f s, all serving %.2f s after the lease", m.id, n, led[len(led)-1].Seconds(), took[len(took)-1].Seconds())
		m.restart()
	}
	t.Logf("%d log buckets of a killed node: led by others after %s, serving after %s (beyond the lease of %s)", buckets, sorted(led), sorted(took), leaseTTL)
	c.stop()
}

// led counts the buckets of all tables that a node leads.
func (c *trio) led(cl *client.Client, m *member) (n int) {
	c.t.Helper()
	tables, err := cl.ListTables(c.t.Context(), "big")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, table := range tables {
		partitions, err := cl.ListPartitions(c.t.Context(), table.Name)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, p := range partitions {
			for _, b := range p.Buckets {
				if b.Address == m.in.address || b.Address == "grpc://"+m.in.address || b.Address == "" {
					n++
				}
			}
		}
	}
	return n
}

// ready reports whether every bucket that a node leads is open.
func (m *member) ready() bool {
	req, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, "http://"+m.http+"/readyz", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// even runs rebalances until there is nothing to move.
func (c *trio) even() (moves []api.Move) {
	c.t.Helper()
	l := &load{c: c, t: c.t}
	for deadline := time.Now().Add(soon); ; {
		r, ok := l.tryRebalance()
		moves = append(moves, r.Moves...)
		if ok && len(r.Moves) == 0 {
			return moves
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the buckets are not even within %s: %+v", soon, r)
		}
	}
}

// How long a writer goes without an acknowledgement while buckets move under load, and
// how long a move takes, for logs and for primary-key buckets.
func TestClusterFiguresMoves(t *testing.T) {
	wantFigures(t)
	const times = 3
	c := newCluster(t, 3, quiet...)
	c.start()
	l := startLoad(c)
	l.goesOn("before")
	took := map[string][]time.Duration{}
	gaps := map[string][]time.Duration{}
	note := func(what string) {
		for kind, writers := range l.kinds() {
			var worst time.Duration
			for _, p := range writers {
				gap, _ := p.longest()
				worst = max(worst, gap)
			}
			gaps[what+" "+kind] = append(gaps[what+" "+kind], worst)
		}
	}
	reset := func() {
		for _, p := range l.pulses() {
			p.reset()
		}
	}
	for range times {
		reset()
		l.wait(3 * time.Second)
		note("without moves,")
		m := l.leader(rand.New(rand.NewPCG(1, 2)))
		m.terminate()
		m.awaitEnd()
		l.goesOn("without a node")
		m.restart()
		l.goesOn("with it")
		reset()
		for _, move := range c.even() {
			if move.Outcome == api.MoveMoved && move.From != 0 {
				kind := "log bucket"
				if move.Table == busyStock {
					kind = "primary-key bucket"
				}
				took[kind] = append(took[kind], time.Duration(move.TookMs*float64(time.Millisecond)))
			}
		}
		l.goesOn("after the moves")
		note("moves,")
	}
	for kind, d := range took {
		t.Logf("%d planned moves of a %s under load took %s", len(d), kind, sorted(d))
	}
	for what, d := range gaps {
		t.Logf("longest time without an acknowledgement, %s: %s", what, sorted(d))
	}
	t.Logf("%d rows, each once", l.settle())
}

// kinds are the writers by what they write to.
func (l *load) kinds() map[string][]*pulse {
	out := map[string][]*pulse{}
	for _, list := range l.kafka {
		for _, s := range list {
			out["Kafka partition"] = append(out["Kafka partition"], &s.pulse)
		}
	}
	for _, s := range l.rows {
		out["log bucket by Flight"] = append(out["log bucket by Flight"], &s.pulse)
	}
	for _, k := range l.stock {
		out["primary-key bucket, put and lookup"] = append(out["primary-key bucket, put and lookup"], &k.pulse)
	}
	return out
}
