package servertest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/metadata"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// followed reads a path as a client does that follows locations, each ticket at the node
// that its endpoint names, which is to answer for itself.
func (g *generic) followed(c *servertest.Cluster, path ...string) (rows []int64, leaders []int) {
	g.t.Helper()
	info, err := g.GetFlightInfo(g.t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: path})
	if err != nil {
		g.t.Fatal(err)
	}
	itself := metadata.AppendToOutgoingContext(g.t.Context(), api.HeaderForwarded, "1")
	for i, e := range info.Endpoint {
		if len(e.Location) != 1 {
			g.t.Fatalf("endpoint %d has locations %v", i, e.Location)
		}
		leader := 0
		for id := 1; id <= c.Nodes(); id++ {
			if _, host, _ := strings.Cut(e.Location[0].Uri, "://"); host == c.Node(id).Flight {
				leader = id
			}
		}
		if leader == 0 {
			g.t.Fatalf("endpoint %d is at %s, which is no node", i, e.Location[0].Uri)
		}
		got, err := at(g.t, c, leader).get(itself, e.Ticket)
		if err != nil {
			g.t.Errorf("endpoint %d at node %d: %v", i, leader, err)
		}
		rows, leaders = append(rows, got...), append(leaders, leader)
	}
	slices.Sort(rows)
	return rows, leaders
}

// Endpoints name the leaders of now, whichever node is asked: before and after moves,
// and when a leader was killed.
func TestEndpointsNameTheLeaders(t *testing.T) {
	c := servertest.Start(t, 3)
	cl := c.Client(t)
	buckets := table(t, cl, "t", 6)
	keyed(t, cl, "")
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	rows(t, w, 0, 60)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	u, err := cl.NewUpsertWriter(t.Context(), "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	rec := abc(0, 60)
	defer rec.Release()
	if _, err := u.Upsert(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if err := u.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func(when string, nodes ...int) {
		t.Helper()
		var want []int
		for _, b := range buckets {
			want = append(want, c.Leader(b))
		}
		for _, id := range nodes {
			g := at(t, c, id)
			if !servertest.Wait(t.Context(), func() bool { // it hears of the moves by and by
				var h api.Health
				ctx := metadata.AppendToOutgoingContext(t.Context(), api.HeaderMinAppliedIndex, string(api.JSON(c.View().Index())))
				return g.action(ctx, api.ActionHealth, struct{}{}, &h) == nil
			}) {
				t.Fatalf("%s: node %d lags", when, id)
			}
			got, leaders := g.followed(c, "db", "t")
			if !slices.Equal(got, upTo(60)) || !slices.Equal(leaders, want) {
				t.Errorf("%s: node %d names leaders %v, want %v, with rows %v", when, id, leaders, want, got)
			}
			if got, _ := g.followed(c, "db", "k"); !slices.Equal(got, upTo(60)) {
				t.Errorf("%s: through node %d: rows %v of the keyed table", when, id, got)
			}
		}
	}
	check("at first", 1, 2, 3)
	for _, b := range buckets[:3] {
		release(t, c, b, c.Leader(b)%3+1)
	}
	check("after moves", 1, 2, 3)
	c.Kill(2)
	c.WaitServing(t)
	check("without node 2", 1, 3)
}

// A leader whose bucket is not open yet says that it is to be asked again, not that
// another one leads; who asks through another node waits and is answered.
func TestUnavailableWhileABucketOpens(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	cl := c.Client(t)
	b := table(t, cl, "t", 1)[0]
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	rows(t, w, 0, 20)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	from := c.Leader(b)
	to := from%2 + 1
	c.PauseStore(to)
	release(t, c, b, to)
	next := at(t, c, to)
	itself := metadata.AppendToOutgoingContext(t.Context(), api.HeaderForwarded, "1", api.HeaderMinAppliedIndex, string(api.JSON(c.View().Index())))
	for range 3 {
		ctx, cancel := context.WithTimeout(itself, time.Minute)
		_, err := next.get(ctx, logOf(b))
		cancel()
		var moved *mink.NotLeaderError
		if !errors.Is(err, mink.ErrUnavailable) || errors.As(err, &moved) {
			t.Fatalf("the leader that cannot read its bucket answers %v, want unavailable", err)
		}
	}
	answered := make(chan error, 1)
	var got []int64
	go func() {
		var err error
		got, err = at(t, c, from).get(t.Context(), logOf(b))
		answered <- err
	}()
	c.ResumeStore(to)
	if err := <-answered; err != nil || !slices.Equal(got, upTo(20)) {
		t.Errorf("through node %d: rows %v, %v", from, got, err)
	}
}
