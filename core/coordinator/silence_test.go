package coordinator

import (
	"testing"
	"time"

	"github.com/mink-project/mink/core/cluster"
	"github.com/mink-project/mink/core/cluster/clusterpb"
	"github.com/mink-project/mink/core/metalog"
	"github.com/mink-project/mink/sdk/mink"
)

// A look at one node's heartbeat row: when, how old it is, and how far the node
// has applied; age < 0: the database does not answer.
type look struct {
	at, age time.Duration
	applied uint64
}

func TestSilenceIsAFullTTLOfUnbrokenWatching(t *testing.T) {
	const ttl = 30 * time.Second
	s := time.Second
	steady := func(from, to time.Duration, age func(time.Duration) time.Duration) (out []look) {
		for at := from; at <= to; at += 5 * s {
			out = append(out, look{at: at, age: age(at)})
		}
		return out
	}
	growing := func(at time.Duration) time.Duration { return at + 4*s }
	for name, c := range map[string]struct {
		looks []look
		dead  time.Duration // when it is found dead; 0: never
	}{
		"silent from the first look on":      {steady(5*s, 60*s, growing), 35 * s},
		"silent for long before the first":   {steady(5*s, 60*s, func(at time.Duration) time.Duration { return at + time.Hour }), 35 * s},
		"beats every 7.5 s":                  {steady(5*s, 300*s, func(at time.Duration) time.Duration { return at % (7500 * time.Millisecond) }), 0},
		"beats just before each look":        {steady(5*s, 300*s, func(time.Duration) time.Duration { return 0 }), 0},
		"one beat in the middle":             {steady(5*s, 100*s, func(at time.Duration) time.Duration { return max(at-22*s, 0) }), 55 * s},
		"the database is away, then answers": {append(append(steady(5*s, 20*s, growing), look{at: 25 * s, age: -1}), steady(60*s, 85*s, growing)...), 0},
		"a look that took long, unnoticed":   {append(steady(5*s, 20*s, growing), steady(60*s, 85*s, growing)...), 0},
		"and then silent all the same":       {append(steady(5*s, 20*s, growing), steady(60*s, 120*s, growing)...), 90 * s},
		"old rows that are applied further":  {append(steady(5*s, 30*s, growing), look{at: 35 * s, age: 39 * s, applied: 9}), 0},
	} {
		var watch silence
		began := time.Unix(1e9, 0)
		found := time.Duration(0)
		for _, l := range c.looks {
			if l.age < 0 {
				watch.reset()
				continue
			}
			row := metalog.HeartbeatRow{Node: 2, Epoch: 7, Applied: l.applied, AgeMs: l.age.Milliseconds()}
			if dead := watch.observe([]metalog.HeartbeatRow{row}, began.Add(l.at), every(ttl)); len(dead) > 0 && found == 0 {
				found = l.at
			}
		}
		if found != c.dead {
			t.Errorf("%s: dead at %v, want %v (0: never)", name, found, c.dead)
		}
	}
}

func TestMarkedRowsAreNotWatched(t *testing.T) {
	var watch silence
	row := metalog.HeartbeatRow{Node: 2, Epoch: 7, Marked: true}
	for at := range 100 {
		row.AgeMs = int64(at) * 1000
		if dead := watch.observe([]metalog.HeartbeatRow{row}, time.Unix(int64(at), 0), every(10*time.Second)); len(dead) > 0 {
			t.Fatalf("a sealed epoch was found dead at %d s", at)
		}
	}
}

func TestTheClockIsTheMetadatasOwn(t *testing.T) {
	var c clock
	empty := cluster.NewState()
	if now := c.nowMs(empty); now != 0 {
		t.Errorf("before the first entry it is %d", now)
	}
}

// every is one lease for all.
func every(ttl time.Duration) func(mink.NodeEpoch) (time.Duration, bool) {
	return func(mink.NodeEpoch) (time.Duration, bool) { return ttl, true }
}

// A node that answers reads for a longer lease than the coordinator's may do so: until then
// it is not taken for dead. One with a shorter lease is given the coordinator's, at whose
// pace it is looked at; one that the view does not know is not judged.
func TestTheLongerLeaseCounts(t *testing.T) {
	state := cluster.NewState()
	epochs := map[string]mink.NodeEpoch{}
	for i, n := range []struct {
		name string
		ms   int64
	}{{"longer", 60_000}, {"shorter", 1000}, {"unsaid", 0}} {
		next, results, err := state.Apply(state.Index()+1, 1000, &clusterpb.Batch{Commands: []*clusterpb.Command{{Kind: &clusterpb.Command_RegisterNode{
			RegisterNode: &clusterpb.RegisterNode{Node: int32(i + 1), Nonce: 7, FeatureLevel: 1, LeaseTtlMs: n.ms}}}}})
		if err != nil || results[0].GetCode() != clusterpb.Code_OK {
			t.Fatal(err, results)
		}
		state = next
		epochs[n.name] = mink.NodeEpoch(results[0].GetId())
	}
	epochs["unknown"] = 999
	c := &Coordinator{cfg: Config{LeaseTTL: 10 * time.Second}}
	leases := c.leases(state)
	dead := map[mink.NodeEpoch]time.Duration{}
	var watch silence
	for at := time.Duration(0); at <= 2*time.Minute; at += 2500 * time.Millisecond {
		var rows []metalog.HeartbeatRow
		for _, e := range epochs {
			rows = append(rows, metalog.HeartbeatRow{Epoch: e, AgeMs: at.Milliseconds()})
		}
		for _, r := range watch.observe(rows, time.Unix(1e9, 0).Add(at), func(e mink.NodeEpoch) (time.Duration, bool) { ttl, ok := leases[e]; return ttl, ok }) {
			if dead[r.Epoch] == 0 {
				dead[r.Epoch] = at
			}
		}
	}
	for name, want := range map[string]time.Duration{"longer": 60 * time.Second, "shorter": 10 * time.Second, "unsaid": 10 * time.Second, "unknown": 0} {
		if got := dead[epochs[name]]; got != want {
			t.Errorf("a node with a lease that is %s is dead after %s, want %s (0: never)", name, got, want)
		}
	}
}
