package e2e

import (
	"encoding/json"
	"math/rand/v2"
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
