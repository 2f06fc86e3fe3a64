package servertest_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// A node that is cut off from the metadata, and whose place others have taken, names no
// leaders: it would name itself for as long as that lasts. A client that knows this node
// only from before finds the others and goes on.
func TestANodeCutOffFromTheMetadataNamesNoLeaders(t *testing.T) {
	c := servertest.Start(t, 3)
	setup := c.Client(t)
	buckets := table(t, setup, "t", 3)
	cut := c.Leader(buckets[0])
	cl := c.Client(t, cut)
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	next := int64(0)
	write := func() error {
		rec := idRows(next, 30)
		defer rec.Release()
		a, err := w.Append(t.Context(), rec)
		if err != nil {
			return err
		}
		next += 30
		return a.Wait(t.Context())
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	c.PauseMetadata(cut)
	for c.Leader(buckets[0]) == cut || c.Leader(buckets[0]) == 0 {
		if err := write(); err != nil {
			t.Fatalf("node %d is cut off: %v", cut, err)
		}
	}
	if err := write(); err != nil {
		t.Fatalf("others have the place of node %d: %v", cut, err)
	}
	g := at(t, c, cut)
	var list error
	if !servertest.Wait(t.Context(), func() bool {
		var out api.Partitions
		list = g.action(t.Context(), api.ActionListPartitions, api.Named{Name: "db.t"}, &out)
		return errors.Is(list, mink.ErrUnavailable)
	}) {
		t.Errorf("node %d is cut off and lists partitions: %v", cut, list)
	}
	_, err = g.GetFlightInfo(context.Background(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"db", "t"}})
	if err = client.FromStatus("", err); !errors.Is(err, mink.ErrUnavailable) {
		t.Errorf("node %d is cut off and answers endpoints: %v", cut, err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	c.ResumeMetadata(cut)
	c.WaitServing(t)
	if got := scanned(t, setup); !slices.Equal(got, upTo(next)) {
		t.Errorf("%d rows, want %d, each once", len(got), next)
	}
}
