package servertest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/mink-project/mink/core/internal/units"
	"github.com/mink-project/mink/core/server"
	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/core/tablet/kv/kvplan"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/objstore"
)

// What other systems got wrong when leaders failed and moved, over several nodes.

// appendRows begins appends of single rows first .. first+n-1 of db.t.
func appendRows(t *testing.T, w *client.Writer, first, n int64) []*client.Append {
	t.Helper()
	var out []*client.Append
	for id := first; id < first+n; id++ {
		rec := idRows(id, 1)
		a, err := w.Append(t.Context(), rec)
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

// complete waits until every append has an outcome, which is success.
func complete(t *testing.T, all ...*client.Append) {
	t.Helper()
	late := time.After(waitLong)
	for i, a := range all {
		select {
		case <-a.Done():
			if err := a.Wait(t.Context()); err != nil {
				t.Fatalf("append %d of %d: %v", i, len(all), err)
			}
		case <-late:
			t.Fatalf("append %d of %d has no outcome", i, len(all))
		}
	}
}

// round upserts keys 0 to 59 of db.k, each with the round's number.
func round(t *testing.T, w *client.TypedUpsertWriter[row], v int32) *client.Append {
	t.Helper()
	var put []row
	for id := range int64(60) {
		put = append(put, row{id, text(v), &v})
	}
	a, err := w.UpsertRows(t.Context(), put...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// walObjects counts the objects of write-ahead logs on the store.
func walObjects(t *testing.T, c *servertest.Cluster) int {
	t.Helper()
	n := 0
	for after := ""; ; {
		page, err := c.Store().List(t.Context(), objstore.ListRequest{StartAfter: after, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Objects {
			after = o.Key
			if strings.Contains(o.Key, "wal/") {
				n++
			}
		}
		if !page.More {
			return n
		}
	}
}

// Case 5: the leader dies between an append and its acknowledgement, with the batches on
// the store or without; the same writer goes on at the next leader: each batch once, in
// order, none refused as too old or out of order.
func TestCaseLeaderDiesBetweenAppendAndAck(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(map[bool]string{false: "not written", true: "written"}[written], func(t *testing.T) {
			c := servertest.Start(t, 3)
			cl := c.ClientWith(t, func(c *client.Config) { c.LookAfter = time.Second })
			b := table(t, cl, "t", 1)[0]
			keyed(t, cl, "")
			w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
			if err != nil {
				t.Fatal(err)
			}
			u, err := client.NewTypedUpsertWriter[row](t.Context(), cl, "db.k", client.DefaultUpsert())
			if err != nil {
				t.Fatal(err)
			}
			complete(t, append(appendRows(t, w, 0, 10), round(t, u, 1))...)
			victim := c.Leader(b)
			leader := at(t, c, victim)
			c.PauseStore(victim)
			on := append(appendRows(t, w, 10, 5), round(t, u, 2))
			taken(t, leader, b, 15)
			if written {
				var s api.Stats
				if err := leader.action(t.Context(), api.ActionNodeStats, struct{}{}, &s); err != nil {
					t.Fatal(err)
				}
				before, flying := walObjects(t, c), int(s.Figures["mink_wal_in_flight_objects"])
				c.Mute(victim)
				c.ResumeStore(victim)
				if !servertest.Wait(t.Context(), func() bool { return walObjects(t, c) >= before+max(flying, 1) }) {
					t.Fatal("the batches do not come to the store")
				}
			}
			c.Kill(victim)
			on = append(on, appendRows(t, w, 15, 20)...)
			complete(t, append(on, round(t, u, 3))...)
			c.Restart(victim)
			c.WaitServing(t)
			complete(t, append(appendRows(t, w, 35, 5), round(t, u, 4))...)
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := u.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := at(t, c, 1).get(t.Context(), logOf(b))
			if err != nil || !slices.Equal(got, upTo(40)) {
				t.Errorf("rows %v, %v", got, err)
			}
			changelogOf(t, cl)
		})
	}
}

// Case 6: the leader dies directly behind an acknowledgement, again and again: whoever
// leads next has every acknowledged row, and its log ends no earlier.
func TestCaseLeaderDiesBehindTheAck(t *testing.T) {
	c := servertest.Start(t, 3)
	cl := c.Client(t)
	b := table(t, cl, "t", 1)[0]
	keyed(t, cl, "")
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	u, err := client.NewTypedUpsertWriter[row](t.Context(), cl, "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	look, err := client.NewTypedLookuper[entry, row](t.Context(), cl, "db.k", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	for v := int32(1); v <= 4; v++ {
		complete(t, append(appendRows(t, w, int64(v-1)*20, 20), round(t, u, v))...)
		victim := c.Leader(b)
		c.Kill(victim)
		c.WaitServing(t)
		next := at(t, c, c.Leader(b))
		// It has to have heard that it leads, and to have opened the log.
		ctx := metadata.AppendToOutgoingContext(t.Context(), api.HeaderMinAppliedIndex, string(api.JSON(c.View().Index())))
		var o api.Offsets
		if !servertest.Wait(t.Context(), func() bool {
			err := next.action(ctx, api.ActionListOffsets, api.ListOffsets{Table: "db.t", At: "latest"}, &o)
			return err == nil && len(o.Offsets) == 1 && o.Offsets[0].Error == ""
		}) || o.Offsets[0].Offset < mink.Offset(v)*20 {
			t.Errorf("round %d: the log ends at %+v; %d rows were acknowledged", v, o.Offsets, v*20)
		}
		if got, err := next.get(ctx, logOf(b)); err != nil || !slices.Equal(got, upTo(int64(v)*20)) {
			t.Errorf("round %d: rows %v, %v; %d were acknowledged", v, got, err, v*20)
		}
		for id := range int64(60) {
			if r, ok, err := look.Find(t.Context(), entry{id}); err != nil || !ok || *r.B != v {
				t.Errorf("round %d: key %d is %s (%v), %v", v, id, r, ok, err)
			}
		}
		c.Restart(victim)
		c.WaitServing(t)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := u.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	changelogOf(t, cl)
}

// Case 8: leaders move while rows are being written, and where they were nobody listens
// any more: every append has an outcome, and each row is there once.
func TestCaseEveryAppendCompletesWhileLeadersMove(t *testing.T) {
	c := servertest.Start(t, 3, servertest.LeaseTTL(20*time.Second))
	cl := c.Client(t)
	buckets := table(t, cl, "t", 6)
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	written := make(chan []*client.Append)
	go func() {
		var all []*client.Append
		defer func() { written <- all }()
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for id := int64(0); ctx.Err() == nil; id++ {
			rec := idRows(id, 1)
			a, err := w.Append(t.Context(), rec)
			rec.Release()
			if err != nil {
				t.Error(err)
				return
			}
			all = append(all, a)
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
	}()
	for gone := 1; gone <= 3; gone++ {
		for _, b := range buckets {
			if c.Leader(b) == gone {
				release(t, c, b, gone%3+1)
			}
		}
		c.Stop(gone) // with what is on its way to it
		for _, b := range buckets {
			if from := c.Leader(b); from != 0 {
				to := 6 - gone - from // the third
				release(t, c, b, to)
			}
		}
		c.Restart(gone)
		c.WaitServing(t)
	}
	stop()
	all := <-written
	complete(t, all...)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(int64(len(all)))) {
		t.Errorf("%d rows are there, %d were acknowledged", len(got), len(all))
	}
}

// Case 21: a bucket moves, and its next leader is killed. The move does not touch the
// snapshot of the bucket's rows: it is still there when the third leader starts from it,
// although everything that nothing names is deleted at once.
func TestCaseAMoveKeepsTheSnapshot(t *testing.T) {
	c := servertest.Start(t, 3, servertest.Configure(func(_ int, c *server.Config) {
		c.KVSnapshotInterval, c.OrphanAge = units.Duration(time.Second), units.Duration(time.Second)
		c.CoordinatorTick, c.ObjectCleanupInterval = units.Duration(100*time.Millisecond), units.Duration(100*time.Millisecond)
		c.ObjectGrace = units.Duration(100 * time.Millisecond)
	}))
	cl := c.Client(t)
	keyed(t, cl, "")
	u, err := client.NewTypedUpsertWriter[row](t.Context(), cl, "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	complete(t, round(t, u, 1))
	if err := u.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	parts, err := cl.ListPartitions(t.Context(), "db.k")
	if err != nil {
		t.Fatal(err)
	}
	b := parts[0].Buckets[0].Bucket
	newest := func() (s kvplan.Snapshot) {
		id, _ := c.View().StreamOf(b)
		if all := c.View().KVSnapshots(id); len(all) > 0 {
			s = slices.MaxFunc(all, func(a, b kvplan.Snapshot) int { return int(a.ID - b.ID) })
		}
		return s
	}
	if !servertest.Wait(t.Context(), func() bool { return newest().ID > 0 && newest().Rows != 0 }) {
		t.Fatal("the bucket has no snapshot")
	}
	have := newest()
	intact := func(when string) {
		t.Helper()
		if now := newest(); now.ID < have.ID || len(now.Files) == 0 {
			t.Errorf("%s the bucket's snapshot is %+v, it was %+v", when, now, have)
		}
		r, err := cl.Check(t.Context(), true)
		if err != nil || !r.Clean {
			t.Errorf("%s: check: %+v, %v", when, r.Problems, err)
		}
	}
	intact("before the move")
	second := c.Leader(b)%3 + 1
	release(t, c, b, second)
	swept(t, c)
	intact("after the move")
	c.Kill(second)
	c.WaitServing(t)
	if third := c.Leader(b); third == second {
		t.Fatalf("bucket %s is led by node %d, which is dead", b, third)
	}
	if n, err := cl.Count(t.Context(), "db.k", nil); err != nil || n != 60 {
		t.Errorf("%d rows, %v, want 60", n, err)
	}
	swept(t, c)
	intact("after the kill")
	if got := newest(); got.ID == have.ID && got.Offset != have.Offset {
		t.Errorf("snapshot %d is of offset %d, it was %d", got.ID, got.Offset, have.Offset)
	}
	changelogOf(t, cl)
}

// swept waits until the node that does so has looked for everything that nothing names,
// and deleted it.
func swept(t *testing.T, c *servertest.Cluster) {
	t.Helper()
	var began map[string]int64
	var g *generic
	holder := 0
	if !servertest.Wait(t.Context(), func() bool {
		if id := c.LeaseHolder(); id != holder {
			holder, began, g = id, nil, at(t, c, id)
		}
		var s api.Stats
		if err := g.action(t.Context(), api.ActionNodeStats, struct{}{}, &s); err != nil {
			return false // it is dead, and the next one has not come
		}
		runs := map[string]int64{}
		for _, l := range s.Loops {
			if strings.HasPrefix(l.Name, "KV ") {
				runs[l.Name] = int64(l.Runs)
			}
		}
		if began == nil {
			began = runs
		}
		for name, n := range began {
			if runs[name] < n+2 {
				return false
			}
		}
		return len(runs) > 1
	}) {
		t.Fatalf("what nothing names is not looked for: %v", began)
	}
}
