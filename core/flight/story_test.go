package flight_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// tailFrom opens a tail of db.t's bucket 0; the schema has come when it returns.
func (w *world) tailFrom(s api.Scan) (*aflight.Reader, aflight.FlightService_DoExchangeClient) {
	w.t.Helper()
	s.Bucket = w.bucket(0)
	x, err := w.raw.DoExchange(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := x.Send(&aflight.FlightData{FlightDescriptor: cmd(api.Ticket{Scan: &s})}); err != nil {
		w.t.Fatal(err)
	}
	r, err := aflight.NewRecordReader(x)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(r.Release)
	return r, x
}

// An open tail keeps its schema while the table changes; where that cannot be,
// it says so and a new one goes on.
func TestTailOverAlter(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"n","type":"INT"},{"name":"name","type":"STRING"}`, "")
	r, _ := w.tailFrom(api.Scan{})
	alter := func(changes string) {
		t.Helper()
		if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage(changes), 0); err != nil {
			t.Fatal(err)
		}
	}
	n := arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int32, Nullable: true}
	more := arrow.Field{Name: "more", Type: arrow.BinaryTypes.String, Nullable: true}
	write := func(version mink.SchemaID, fields ...arrow.Field) {
		t.Helper()
		s := arrow.NewSchema(fields, nil)
		b := array.NewRecordBuilder(memory.DefaultAllocator, s)
		defer b.Release()
		for i := range fields {
			b.Field(i).AppendNull()
		}
		p := w.appendTo(version, 0, s)
		p.send(b.NewRecordBatch(), nil)
		mustResult[api.AppendResult](p)
		p.finish()
	}
	alter(`[{"op":"add_column","column":{"name":"more","type":"STRING"}},{"op":"drop_column","name":"name"}]`)
	write(2, n, more)
	if !r.Next() || r.RecordBatch().NumCols() != 2 || r.RecordBatch().Schema().Field(1).Name != "name" || r.RecordBatch().Column(1).NullN() != 1 {
		t.Fatalf("after add and drop: %v, %v", r.RecordBatch(), r.Err())
	}
	if md := w.metadata(r.LatestAppMetadata()); md.SchemaID != 2 || md.Next != 1 {
		t.Errorf("metadata %+v", md)
	}
	alter(`[{"op":"modify_column","name":"n","type":"BIGINT"}]`)
	write(3, arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, more)
	if r.Next() {
		t.Error("a BIGINT batch in an INT tail")
	}
	wantStatus(t, r.Err(), api.ReasonUnavailable, "altered")
	again, _ := w.tailFrom(api.Scan{From: 1})
	if !again.Next() || again.RecordBatch().Schema().Field(0).Type.ID() != arrow.INT64 {
		t.Errorf("opened anew: %v, %v", again.RecordBatch(), again.Err())
	}
}

// A limit and an end stop a tail.
func TestTailEnds(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	p := w.appendTo(1, 0, idNameSchema)
	p.send(idNames(0, 10), nil)
	mustResult[api.AppendResult](p)
	p.finish()
	until := mink.Offset(7)
	for _, s := range []api.Scan{{Limit: 7}, {Until: &until}} {
		r, _ := w.tailFrom(s)
		if !r.Next() || r.RecordBatch().NumRows() != 7 || r.Next() {
			t.Errorf("%+v: %v, %v", s, r.RecordBatch(), r.Err())
		}
	}
}

// A stopping node acknowledges what it has appended, takes nothing more, and
// tells the client to come back.
func TestStopAcknowledgesAppends(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	g := &gate{appended: make(chan struct{}, 10), open: make(chan struct{})}
	w.backend.through(func(l flight.Log) flight.Log { c := *g; c.Log = l; return &c })
	ref := w.bucket(0)
	p := w.appendTo(1, 0, idNameSchema)
	p.send(idNames(0, 10), nil)
	p.send(idNames(10, 10), nil)
	<-g.appended
	<-g.appended
	tail, _ := w.tailFrom(api.Scan{From: w.log(ref).HighWatermark()})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	for tail.Next() { // ends when the stop has begun
	}
	wantStatus(t, tail.Err(), api.ReasonUnavailable, "stopping")
	close(g.open)
	for i := range 2 {
		if r := mustResult[api.AppendResult](p); r.First != mink.Offset(10*i) {
			t.Errorf("result %+v", r)
		}
	}
	_, err := result[api.AppendResult](p)
	wantStatus(t, err, api.ReasonUnavailable, "stopping")
	<-stopped
	if hw := w.log(ref).HighWatermark(); hw != 20 {
		t.Errorf("high watermark %d", hw)
	}
}

// A writer that reads nothing bounds what the node holds for it, and a client
// that goes away frees its call.
func TestInFlightIsBounded(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.InFlightMax = 3 })
	w.table(idName, "")
	g := &gate{appended: make(chan struct{}, 100), open: make(chan struct{})}
	w.backend.through(func(l flight.Log) flight.Log { c := *g; c.Log = l; return &c })
	p := w.appendTo(1, 0, idNameSchema)
	for i := range 10 {
		p.send(idNames(i, 1), nil)
	}
	for range 3 {
		<-g.appended
	}
	select {
	case <-g.appended:
		t.Error("a fourth batch was appended before the first was acknowledged")
	default:
	}
	close(g.open)
	for i := range 10 {
		if r := mustResult[api.AppendResult](p); r.First != mink.Offset(i) {
			t.Errorf("result %+v", r)
		}
	}
	p.finish()
	if got := ids(w.mustGet(api.Scan{Bucket: w.bucket(0)})); !slices.Equal(got, seq(0, 10)) {
		t.Errorf("stored %v", got)
	}
}
