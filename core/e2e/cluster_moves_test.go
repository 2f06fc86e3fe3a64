package e2e

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mink-project/mink/sdk/api"
)

// rebalance makes a node that leads nothing, and evens out the buckets while answers are
// lost between clients, nodes, Postgres and the store: what was asked has happened, and
// who asked does not know.
func (l *load) rebalance(rng *rand.Rand) {
	l.t.Helper()
	m := l.any(rng)
	m.kill()
	l.goesOn("while a node is away")
	m.restart()
	l.lose(loses)
	for range 2 + rng.IntN(3) {
		r, ok := l.tryRebalance()
		if ok && len(r.Moves) == 0 {
			break
		}
	}
	l.lose(passes)
	for deadline := time.Now().Add(soon); ; {
		r, ok := l.tryRebalance()
		if ok && len(r.Moves) == 0 {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("the buckets are not even within %s: %+v", soon, r)
		}
	}
}

// lose sets what happens to answers everywhere.
func (l *load) lose(what trouble) {
	for _, m := range l.c.nodes {
		m.toDatabase.set(-1, what)
		m.toStore.set(-1, what)
		m.in.set(-1, what)
		l.wireFromPeers(m, what)
	}
}

// tryRebalance is mink cluster rebalance; false: it did not end well.
func (l *load) tryRebalance() (r api.RebalanceReport, ok bool) {
	l.t.Helper()
	flight, _ := l.c.bootstrap()
	out, errOut, err := try(l.t, nil, minkBinary(l.t), "--bootstrap", strings.Join(flight, ","), "--json", "cluster", "rebalance")
	if err != nil {
		l.t.Logf("rebalance: %v: %s", err, errOut)
	}
	if e := json.Unmarshal(out, &r); e != nil && err == nil {
		l.t.Errorf("rebalance answers %q: %v", out, e)
	}
	return r, err == nil
}

// replaceNode ends a node for good, makes the cluster forget it, and starts one with
// nothing on its disk at its place: under the same id, or under one that was never there.
func (l *load) replaceNode(rng *rand.Rand) {
	l.t.Helper()
	m := l.any(rng)
	if rng.IntN(2) == 0 {
		m.kill()
	} else {
		m.terminate()
		m.awaitEnd()
	}
	l.removed(m)
	if rng.IntN(2) == 0 {
		l.goesOn("with a node less")
	}
	if err := m.wipe(); err != nil {
		l.t.Fatal(err)
	}
	if rng.IntN(2) == 0 {
		m.rename(l.c.freeID())
	}
	m.restart()
	l.joined(m)
}

// removed runs mink cluster remove-node until the cluster no longer names the node; it
// is refused while the node is not known to have ended.
func (l *load) removed(m *member) {
	l.t.Helper()
	flight, _ := l.c.bootstrap()
	id := strconv.Itoa(m.id)
	eventually(l.t, "node "+id+" can be removed", func() bool {
		_, errOut, err := try(l.t, nil, minkBinary(l.t), "--bootstrap", strings.Join(flight, ","), "cluster", "remove-node", id, "--if-exists")
		if err != nil && !strings.Contains(string(errOut), "it is alive") && !strings.Contains(string(errOut), "not recovered yet") {
			l.t.Logf("remove-node %s: %v: %s", id, err, errOut)
		}
		return err == nil
	})
	if now := l.nodes(); slices.Contains(now, m.id) {
		l.t.Errorf("node %d was removed, and the cluster names %v", m.id, now)
	}
}

// joined waits until the coordinator gave a new node buckets, as its operator would.
func (l *load) joined(m *member) {
	l.t.Helper()
	if now := l.nodes(); !slices.Contains(now, m.id) {
		l.t.Errorf("node %d has joined, and the cluster names %v", m.id, now)
	}
	l.c.even()
}

// nodes are the ids that the cluster names.
func (l *load) nodes() (ids []int) {
	l.t.Helper()
	var d api.Cluster
	if err := json.Unmarshal(l.c.mink("--json", "cluster", "describe"), &d); err != nil {
		l.t.Fatal(err)
	}
	for _, n := range d.Nodes {
		ids = append(ids, int(n.ID))
	}
	return ids
}

// freeID is a node id that was never there.
func (c *trio) freeID() int {
	c.ids = max(c.ids, len(c.nodes)) + 1
	return c.ids
}

// rename gives the node of a place another id; it must not run.
func (m *member) rename(id int) {
	i := slices.Index(m.flags, "--node-id")
	m.flags[i+1] = strconv.Itoa(id)
	m.id = id
}

// wipe empties the data directory, which may be a file system of its own.
func (m *member) wipe() error {
	dir := filepath.Join(m.dir, "data")
	list, err := os.ReadDir(dir)
	for _, e := range list {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
