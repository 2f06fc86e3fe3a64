package servertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/mink-project/mink/core/server/servertest"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

// generic is a Flight client that knows nothing of Mink, at one node.
type generic struct {
	t testing.TB
	flight.Client
}

func at(t testing.TB, c *servertest.Cluster, id int) *generic {
	t.Helper()
	f, err := flight.NewClientWithMiddleware(c.Node(id).Flight, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return &generic{t, f}
}

func (g *generic) action(ctx context.Context, name string, body, out any) error {
	g.t.Helper()
	s, err := g.DoAction(ctx, &flight.Action{Type: name, Body: api.JSON(body)})
	if err != nil {
		return client.FromStatus("", err)
	}
	r, err := s.Recv()
	if err != nil {
		return client.FromStatus("", err)
	}
	return json.Unmarshal(r.Body, out)
}

// get reads a ticket's rows at this node.
func (g *generic) get(ctx context.Context, t *flight.Ticket) (out []int64, err error) {
	g.t.Helper()
	s, err := g.DoGet(ctx, t)
	if err != nil {
		return nil, client.FromStatus("", err)
	}
	r, err := flight.NewRecordReader(s)
	if err != nil {
		return nil, client.FromStatus("", err)
	}
	defer r.Release()
	for r.Next() {
		out = append(out, r.RecordBatch().Column(0).(*array.Int64).Int64Values()...)
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return out, client.FromStatus("", err)
	}
	return out, nil
}

// readAll reads a path as a client does that ignores locations.
func (g *generic) readAll(path ...string) []int64 {
	g.t.Helper()
	ctx := g.t.Context()
	info, err := g.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: path})
	if err != nil {
		g.t.Fatal(err)
	}
	out := []int64{}
	for _, e := range info.Endpoint {
		rows, err := g.get(ctx, e.Ticket)
		if err != nil {
			g.t.Fatal(err)
		}
		out = append(out, rows...)
	}
	slices.Sort(out)
	if info.TotalRecords >= 0 && info.TotalRecords != int64(len(out)) {
		g.t.Errorf("%d rows were announced, %d came", info.TotalRecords, len(out))
	}
	return out
}

func upTo(n int64) []int64 {
	out := []int64{}
	for i := range n {
		out = append(out, i)
	}
	return out
}

func scanned(t *testing.T, c *client.Client) []int64 {
	t.Helper()
	out := []int64{}
	for b, err := range c.Scan(t.Context(), client.ScanRequest{Table: "db.t", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b.Record.Column(0).(*array.Int64).Int64Values()...)
	}
	slices.Sort(out)
	return out
}

// steady is for tests in which no node may be taken for dead, however slow the machine.
func steady() servertest.Option { return servertest.LeaseTTL(waitLong) }

// Every node answers for every bucket of a log table, whoever leads it.
func TestAnyNodeReadsALog(t *testing.T) {
	c := servertest.Start(t, 3, steady())
	cl := c.Client(t)
	buckets := table(t, cl, "t", 6)
	w, err := cl.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	rows(t, w, 0, 200)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scanned(t, cl); !slices.Equal(got, upTo(200)) {
		t.Errorf("scan: %v", got)
	}
	for id := 1; id <= 3; id++ {
		g := at(t, c, id)
		if got := g.readAll("db", "t"); !slices.Equal(got, upTo(200)) {
			t.Errorf("node %d: %v", id, got)
		}
		var o api.Offsets
		if err := g.action(t.Context(), api.ActionListOffsets, api.ListOffsets{Table: "db.t", At: "latest"}, &o); err != nil {
			t.Fatal(err)
		}
		total := mink.Offset(0)
		for _, b := range o.Offsets {
			if b.Error != "" {
				t.Errorf("node %d: bucket %s: %s", id, b.Bucket, b.Error)
			}
			total += b.Offset
		}
		if total != 200 || len(o.Offsets) != 6 {
			t.Errorf("node %d: offsets %+v", id, o.Offsets)
		}
		for _, b := range buckets {
			g.tail(b, o.Offsets[b.Index].Offset)
		}
	}
	// A client that routes hears of the leader instead.
	elsewhere := at(t, c, c.Leader(buckets[0])%3+1)
	ctx := metadata.AppendToOutgoingContext(t.Context(), api.HeaderForwarded, "1")
	_, err = elsewhere.get(ctx, &flight.Ticket{Ticket: api.JSON(api.Ticket{Scan: &api.Scan{Bucket: buckets[0]}})})
	var moved *mink.NotLeaderError
	if !errors.As(err, &moved) || moved.Address != c.Node(c.Leader(buckets[0])).Flight {
		t.Errorf("error %v, want the leader's address", err)
	}
}

// tail follows a bucket from its start to until, at this node.
func (g *generic) tail(b mink.BucketRef, until mink.Offset) {
	g.t.Helper()
	x, err := g.DoExchange(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	d := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Exchange{Scan: &api.Scan{Bucket: b}})}
	if err := x.Send(&flight.FlightData{FlightDescriptor: d}); err != nil {
		g.t.Fatal(err)
	}
	for next := mink.Offset(0); next < until; {
		m, err := x.Recv()
		if err != nil {
			g.t.Fatalf("tail %s: %v", b, err)
		}
		if len(m.AppMetadata) > 0 {
			var md api.BatchMetadata
			if err := json.Unmarshal(m.AppMetadata, &md); err != nil {
				g.t.Fatal(err)
			}
			next = md.Next
		}
	}
	if err := x.CloseSend(); err != nil {
		g.t.Fatal(err)
	}
	if _, err := x.Recv(); !errors.Is(err, io.EOF) {
		g.t.Errorf("tail %s ended with %v", b, err)
	}
}

func keyed(t *testing.T, c *client.Client, rest string) {
	t.Helper()
	if err := c.CreateDatabase(t.Context(), "db", true); err != nil {
		t.Fatal(err)
	}
	d := fmt.Sprintf(`{"database":"db","table":"k","schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"},{"name":"a","type":"STRING"},{"name":"b","type":"INT"}]},"primary_key":["id"],"bucket_count":6%s}`, rest)
	if _, err := c.CreateTable(t.Context(), json.RawMessage(d), false); err != nil {
		t.Fatal(err)
	}
}

// abc makes rows first .. first+n-1 of db.k.
func abc(first, n int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "a", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "b", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	}, nil))
	defer b.Release()
	for i := first; i < first+n; i++ {
		b.Field(0).(*array.Int64Builder).Append(i)
		b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("a%d", i))
		b.Field(2).(*array.Int32Builder).Append(int32(i))
	}
	return b.NewRecordBatch()
}

// Every node looks up, counts and reads every bucket of a primary-key table.
func TestAnyNodeReadsAKeyedTable(t *testing.T) {
	c := servertest.Start(t, 3, steady())
	cl := c.Client(t)
	keyed(t, cl, "")
	w, err := cl.NewUpsertWriter(t.Context(), "db.k", client.DefaultUpsert())
	if err != nil {
		t.Fatal(err)
	}
	rec := abc(0, 100)
	defer rec.Release()
	if _, err := w.Upsert(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id := 1; id <= 3; id++ {
		g := at(t, c, id)
		if got := g.readAll("db", "k"); !slices.Equal(got, upTo(100)) {
			t.Errorf("node %d: %v", id, got)
		}
		var n api.Counts
		if err := g.action(t.Context(), api.ActionCount, api.CountRequest{Table: "db.k"}, &n); err != nil || n.Rows != 100 || len(n.Buckets) != 6 {
			t.Errorf("node %d: count %+v, %v", id, n, err)
		}
		var found api.LookupRows
		look := api.Lookup{Table: "db.k", Columns: []string{"a"}}
		for i := range 110 {
			look.Keys = append(look.Keys, json.RawMessage(fmt.Sprintf(`{"id":%d}`, i)))
		}
		if err := g.action(t.Context(), api.ActionLookup, look, &found); err != nil {
			t.Fatal(err)
		}
		if string(found.Rows[42]) != `{"a":"a42"}` || len(found.Missing) != 10 || found.Missing[0] != 100 {
			t.Errorf("node %d: row 42 %s, missing %v", id, found.Rows[42], found.Missing)
		}
		for key := range 6 {
			var some api.PrefixRows
			if err := g.action(t.Context(), api.ActionPrefixLookup, api.PrefixLookup{Table: "db.k", Prefix: json.RawMessage(fmt.Sprintf(`{"id":%d}`, key))}, &some); err != nil || len(some.Rows) != 1 {
				t.Errorf("node %d: prefix %d: %s, %v", id, key, some.Rows, err)
			}
		}
		g.lookups()
	}
}

// lookups asks for keys 0 to 99 on one stream, three times.
func (g *generic) lookups() {
	g.t.Helper()
	x, err := g.DoExchange(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	all := abc(0, 100)
	defer all.Release()
	keys := array.NewRecordBatch(arrow.NewSchema(all.Schema().Fields()[:1], nil), all.Columns()[:1], all.NumRows())
	defer keys.Release()
	w := flight.NewRecordWriter(x, ipc.WithSchema(keys.Schema()))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: api.JSON(api.Exchange{Lookup: &api.LookupStream{Table: "db.k"}})})
	for range 3 {
		if err := w.Write(keys); err != nil {
			g.t.Fatal(err)
		}
	}
	r, err := flight.NewRecordReader(x)
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Release()
	for range 3 {
		if !r.Next() {
			g.t.Fatalf("lookups: %v", r.Err())
		}
		if got := r.RecordBatch().Column(0).(*array.Int64).Int64Values(); !slices.Equal(got, upTo(100)) {
			g.t.Errorf("lookups: %v", got)
		}
	}
	if err := w.Close(); err != nil {
		g.t.Fatal(err)
	}
	if err := x.CloseSend(); err != nil {
		g.t.Fatal(err)
	}
	if r.Next() || r.Err() != nil && !errors.Is(r.Err(), io.EOF) {
		g.t.Errorf("lookups ended with %v", r.Err())
	}
}
