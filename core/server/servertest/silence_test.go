package servertest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/client"
)

// withoutPings is a client that no ping tells of a node that stands still.
func withoutPings(c *client.Config) { c.PingAfter = time.Hour }

// A leader that stands still costs a client its lease, not the time until a ping or the
// end of the connection: writers, lookups and tails find who leads by then, while the
// old leader still holds their calls; so do calls that any node answers, of which the one
// that stands still was the last to answer.
func TestALeaderThatStandsStillIsLeft(t *testing.T) {
	c := servertest.Start(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), waitLong)
	defer cancel()
	setup := c.Client(t)
	buckets := table(t, setup, "t", 3)
	keyed(t, setup, "")
	still := c.Leader(buckets[0])
	cl := c.ClientWith(t, withoutPings, still, still%3+1)
	w, err := cl.NewWriter(ctx, "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	u, err := cl.NewUpsertWriter(ctx, "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	l, err := cl.NewLookuper(ctx, "db.k", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tailing, stop := context.WithCancel(ctx)
	tailed := make(chan int64)
	ended := make(chan error, 1)
	go func() {
		defer close(tailed)
		for b, err := range cl.Tail(tailing, client.TailRequest{ScanRequest: client.ScanRequest{Table: "db.t", Bucket: -1}}) {
			if err != nil {
				ended <- err
				return
			}
			for _, id := range b.Record.Column(0).(*array.Int64).Int64Values() {
				select {
				case tailed <- id:
				case <-tailing.Done():
				}
			}
		}
		ended <- nil
	}()
	var seen []int64
	round := func(first int64) {
		t.Helper()
		rec, keys := idRows(first, 60), abc(first, 60)
		defer rec.Release()
		defer keys.Release()
		a, err := w.Append(ctx, rec)
		if err != nil {
			t.Fatal(err)
		}
		b, err := u.Upsert(ctx, keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*client.Append{a, b} {
			if err := p.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		found, err := l.Lookup(ctx, keys)
		if err != nil {
			t.Fatal(err)
		}
		if found.Rows.NumRows() != 60 {
			t.Errorf("of keys %d to %d, which were acknowledged, %v are not found", first, first+59, found.Missing)
		}
		found.Rows.Release()
		if _, err := cl.ListTables(ctx, "db"); err != nil {
			t.Fatal(err)
		}
		for int64(len(seen)) < first+60 {
			select {
			case id := <-tailed:
				seen = append(seen, id)
			case <-ctx.Done():
				t.Fatalf("the tail has %d rows of %d", len(seen), first+60)
			}
		}
	}
	round(0)
	c.Pause(still)
	round(60)
	round(120)
	if n := c.Leader(buckets[0]); n == still {
		t.Errorf("bucket 0 is led by node %d, which stands still", n)
	}
	c.Resume(still)
	c.WaitServing(t)
	round(180)
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := u.Close(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	for id := range tailed {
		seen = append(seen, id)
	}
	if err := <-ended; err != nil {
		t.Errorf("the tail ended with %v", err)
	}
	if slices.Sort(seen); !slices.Equal(seen, upTo(240)) {
		t.Errorf("the tail has %d rows: %v", len(seen), seen)
	}
	if got := scanned(t, setup); !slices.Equal(got, upTo(240)) {
		t.Errorf("%d rows: %v", len(got), got)
	}
}

// A node that does not hear of the metadata any more, and thinks that it leads, says so to
// whoever asks; a client whose calls it refuses asks another node who leads.
func TestANodeOfYesterdayIsNotAskedAgain(t *testing.T) {
	c := servertest.Start(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), waitLong)
	defer cancel()
	setup := c.Client(t)
	keyed(t, setup, "")
	parts, err := setup.ListPartitions(ctx, "db.k")
	if err != nil {
		t.Fatal(err)
	}
	yesterday := c.Leader(parts[0].Buckets[0].Bucket)
	before, _ := c.View().Node(c.Node(yesterday).ID)
	cl := c.ClientWith(t, withoutPings, yesterday, yesterday%3+1)
	u, err := client.NewTypedUpsertWriter[row](ctx, cl, "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	l, err := client.NewTypedLookuper[entry, row](ctx, cl, "db.k", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	round := func(v int32) {
		t.Helper()
		var put []row
		var keys []entry
		for id := range int64(60) {
			put, keys = append(put, row{id, text(v), &v}), append(keys, entry{id})
		}
		if _, err := u.UpsertRows(ctx, put...); err != nil {
			t.Fatal(err)
		}
		if err := u.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		got, _, err := l.FindAll(ctx, keys...)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range got {
			if r.String() != put[i].String() {
				t.Errorf("round %d: lookup finds %s, acknowledged was %s", v, r, put[i])
			}
		}
	}
	round(1)
	c.PauseMetadata(yesterday)
	if !servertest.Wait(ctx, func() bool {
		w, ok := c.View().WAL(before.Epoch)
		return ok && w.Sealed
	}) {
		t.Fatal("the node that does not hear of the metadata is not replaced")
	}
	for v := int32(2); v < 5; v++ {
		round(v)
	}
	c.ResumeMetadata(yesterday)
	c.WaitServing(t)
	round(5)
	if err := u.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
