package servertest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// A node that lags behind does not deny what another node has said: it waits.
func TestReadYourWritesOnANodeThatLags(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	cl := c.Client(t, 1, 2)
	if _, err := cl.DescribeCluster(t.Context()); err != nil { // at node 1, where it stays
		t.Fatal(err)
	}
	c.PauseMetadata(2)
	table(t, cl, "t", 1)
	ask := func(ctx context.Context) error {
		var out api.Table
		return at(t, c, 2).action(ctx, api.ActionDescribeTable, api.Named{Name: "db.t"}, &out)
	}
	if err := ask(t.Context()); !errors.Is(err, mink.ErrNotExist) {
		t.Fatalf("node 2 is to lag and answers %v", err)
	}
	index := string(api.JSON(c.View().Index()))
	with := metadata.AppendToOutgoingContext(t.Context(), api.HeaderMinAppliedIndex, index)
	soon, cancel := context.WithTimeout(with, 100*time.Millisecond)
	defer cancel()
	if err := ask(soon); err == nil || errors.Is(err, mink.ErrNotExist) {
		t.Errorf("with the index that node 1 told, node 2 answers %v; want it to wait", err)
	}
	// The client names the index by itself, at whichever node it is.
	c.Kill(1)
	soon, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := cl.DescribeTable(soon, "db.t"); err == nil || errors.Is(err, mink.ErrNotExist) {
		t.Errorf("the client hears %v of its own table; want it to wait", err)
	}
	c.ResumeMetadata(2)
	if err := ask(with); err != nil {
		t.Error(err)
	}
	if _, err := cl.DescribeTable(t.Context(), "db.t"); err != nil {
		t.Error(err)
	}
}

// A client that was told of one node knows the others from what it reads, and goes on
// when that one is gone;
// its writer loses and doubles nothing over kills, restarts and
// stops.
func TestTheClientOutlivesNodes(t *testing.T) {
	c := servertest.Start(t, 3, servertest.LeaseTTL(10*time.Second))
	cl := c.Client(t, 1)
	table(t, cl, "t", 6)
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	next := int64(0)
	write := func() {
		for range 10 {
			rec := idRows(next, 30)
			if _, err := w.Append(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
			rec.Release()
			next += 30
		}
	}
	write()
	c.Kill(1)
	write()
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.ListTables(t.Context(), "db"); err != nil { // its bootstrap list is dead
		t.Fatal(err)
	}
	c.Restart(1)
	c.WaitServing(t)
	write()
	c.Stop(2)
	write()
	c.WaitServing(t)
	c.Restart(2)
	c.WaitServing(t)
	write()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(next)) {
		t.Errorf("%d rows, %d were written", len(got), next)
	}
}
