package servertest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// tablePut is a table-addressed DoPut of a generic client.
type tablePut struct {
	t      testing.TB
	stream flight.FlightService_DoPutClient
	out    *flight.Writer
	rows   int64 // acknowledged
	exact  bool  // nobody else writes: offsets follow each other
	end    chan error
}

func (g *generic) put(c api.Command, s *arrow.Schema) *tablePut {
	g.t.Helper()
	stream, err := g.DoPut(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	p := &tablePut{t: g.t, stream: stream, out: flight.NewRecordWriter(stream, ipc.WithSchema(s)), end: make(chan error, 1)}
	p.out.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(c)})
	go func() { p.end <- p.acks() }()
	return p
}

// acks reads results to the end, which each account for every row.
func (p *tablePut) acks() error {
	for {
		r, err := p.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return client.FromStatus("", err)
		}
		var res api.PutResult
		if err := json.Unmarshal(r.AppMetadata, &res); err != nil {
			return err
		}
		sum := int64(0)
		for _, b := range res.Buckets {
			if b.Error != "" {
				return errors.New(b.Error)
			}
			if p.exact && (b.First != mink.Offset(p.rows) || int64(b.Last-b.First)+1 != b.Rows) {
				return fmt.Errorf("%d rows behind %d others have offsets %d to %d", b.Rows, p.rows, b.First, b.Last)
			}
			sum += b.Rows
		}
		if sum != res.Rows {
			return errors.New("the buckets' rows are not all rows")
		}
		p.rows += res.Rows
	}
}

func (p *tablePut) write(rec arrow.RecordBatch) {
	p.t.Helper()
	defer rec.Release()
	if err := p.out.Write(rec); err != nil {
		p.t.Fatalf("write: %v, %v", err, <-p.end)
	}
}

func (p *tablePut) close() int64 {
	p.t.Helper()
	if err := p.out.Close(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.stream.CloseSend(); err != nil {
		p.t.Fatal(err)
	}
	select {
	case err := <-p.end:
		if err != nil {
			p.t.Fatal(err)
		}
	case <-time.After(waitLong):
		p.t.Fatal("the put does not end")
	}
	return p.rows
}

var idSchema = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

func idRows(first, n int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, idSchema)
	defer b.Release()
	for id := first; id < first+n; id++ {
		b.Field(0).(*array.Int64Builder).Append(id)
	}
	return b.NewRecordBatch()
}

// Every node takes rows of a table by its path, whoever leads their buckets: appends,
// upserts, partial updates and deletes.
func TestAnyNodeTakesRows(t *testing.T) {
	c := servertest.Start(t, 3, steady())
	cl := c.Client(t)
	table(t, cl, "t", 6)
	keyed(t, cl, "")
	for id := int64(1); id <= 3; id++ {
		g := at(t, c, int(id))
		p := g.put(api.Command{Table: "db.t"}, idSchema)
		for i := range int64(5) {
			p.write(idRows((id-1)*100+i*20, 20))
		}
		if n := p.close(); n != 100 {
			t.Errorf("node %d acknowledged %d rows of 100", id, n)
		}
		all := abc((id-1)*100, 100)
		p = g.put(api.Command{Table: "db.k"}, all.Schema())
		p.write(all)
		p.close()
		part := abc((id-1)*100, 50) // with other values of b, and a left alone
		b := array.NewInt32Builder(memory.DefaultAllocator)
		for range 50 {
			b.Append(-1)
		}
		partial := arrow.NewSchema([]arrow.Field{part.Schema().Field(0), part.Schema().Field(2)}, nil)
		p = g.put(api.Command{Table: "db.k", Columns: []string{"b"}}, partial)
		p.write(array.NewRecordBatch(partial, []arrow.Array{part.Column(0), b.NewArray()}, 50))
		p.close()
		p = g.put(api.Command{Table: "db.k", Delete: true}, idSchema)
		p.write(idRows((id-1)*100, 10))
		p.close()
		var found api.LookupRows
		look := api.Lookup{Table: "db.k", Keys: []json.RawMessage{
			json.RawMessage(`{"id":` + itoa((id-1)*100+5) + `}`),
			json.RawMessage(`{"id":` + itoa((id-1)*100+20) + `}`), json.RawMessage(`{"id":` + itoa((id-1)*100+70) + `}`),
		}, Columns: []string{"a", "b"}}
		if err := at(t, c, int(id%3+1)).action(t.Context(), api.ActionLookup, look, &found); err != nil {
			t.Fatal(err)
		}
		want := []string{"null", `{"a":"a` + itoa((id-1)*100+20) + `","b":-1}`, `{"a":"a` + itoa((id-1)*100+70) + `","b":` + itoa((id-1)*100+70) + `}`}
		for i, w := range want {
			if string(found.Rows[i]) != w {
				t.Errorf("rows written at node %d: %s, want %s", id, found.Rows[i], w)
			}
		}
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(300)) {
		t.Errorf("%d rows", len(got))
	}
}

func itoa(n int64) string { return string(api.JSON(n)) }

// A put by path goes on while the leaders of its rows are killed, restarted and
// stopped: each row is there once, and in the order in which they were sent.
func TestForwardedRowsOutliveTheirLeaders(t *testing.T) {
	c := servertest.Start(t, 3, servertest.LeaseTTL(10*time.Second))
	cl := c.Client(t)
	buckets := table(t, cl, "t", 6)
	p := at(t, c, 1).put(api.Command{Table: "db.t"}, idSchema)
	next := int64(0)
	write := func(batches int) {
		for range batches {
			p.write(idRows(next, 12))
			next += 12
		}
	}
	write(20)
	c.Kill(2)
	write(20) // some of it waits for the new leader
	c.WaitServing(t)
	c.Restart(2)
	c.WaitServing(t)
	write(20)
	c.Stop(3)
	write(20)
	c.Restart(3)
	c.WaitServing(t)
	write(20)
	if n := p.close(); n != next {
		t.Errorf("%d of %d rows are acknowledged", n, next)
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(next)) {
		t.Errorf("%d rows, %d were written", len(got), next)
	}
	for _, b := range buckets {
		got, err := at(t, c, 1).get(t.Context(), &flight.Ticket{Ticket: api.JSON(api.Ticket{Scan: &api.Scan{Bucket: b}})})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted(got) {
			t.Errorf("bucket %s has lost the order: %v", b, got)
		}
	}
}

// The leader wrote what it was sent and its acknowledgement is lost: sending it again
// writes nothing twice.
func TestForwardedRowsOfALostAcknowledgement(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	cl := c.Client(t)
	table(t, cl, "t", 2)
	p := at(t, c, 1).put(api.Command{Table: "db.t"}, idSchema)
	p.write(idRows(0, 10))
	c.PauseStore(2)
	for i := range int64(3) {
		p.write(idRows(10+i*10, 10))
	}
	second := at(t, c, 2)
	if !servertest.Wait(t.Context(), func() bool {
		var s api.Stats
		return second.action(t.Context(), api.ActionNodeStats, struct{}{}, &s) == nil && s.Figures["mink_wal_in_flight_objects"] > 0
	}) {
		t.Fatal("node 2 was sent nothing")
	}
	c.Disconnect(2)
	c.ResumeStore(2)
	if n := p.close(); n != 40 {
		t.Errorf("%d of 40 rows are acknowledged", n)
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(40)) {
		t.Errorf("rows %v", got)
	}
}

// Small batches that wait for their leader while five are on their way go on as one; each
// put hears of its own rows.
func TestForwardedRowsAreJoined(t *testing.T) {
	c := servertest.Start(t, 2, steady())
	b := table(t, c.Client(t), "t", 1)[0]
	to := c.Leader(b)
	leader, g := at(t, c, to), at(t, c, to%2+1)
	p := g.put(api.Command{Table: "db.t"}, idSchema)
	p.exact = true
	c.PauseStore(to)
	for id := range int64(5) {
		p.write(idRows(id, 1))
		taken(t, leader, b, mink.Offset(id+1))
	}
	for id := int64(5); id < 205; id += 2 {
		p.write(idRows(id, 2))
	}
	c.ResumeStore(to)
	if n := p.close(); n != 205 {
		t.Errorf("%d of 205 rows are acknowledged", n)
	}
	got, err := leader.get(t.Context(), logOf(b))
	if err != nil || !slices.Equal(got, upTo(205)) {
		t.Errorf("rows %v, %v", got, err)
	}
	s, err := leader.DoGet(t.Context(), logOf(b))
	if err != nil {
		t.Fatal(err)
	}
	batches := 0
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(m.AppMetadata) > 0 {
			batches++
		}
	}
	if batches >= 105 {
		t.Errorf("%d batches for 105: nothing was joined", batches)
	}
}
