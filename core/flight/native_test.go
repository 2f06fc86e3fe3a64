package flight_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/flight/wire"
	"github.com/mink-project/mink/core/record/arrowipc"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// wantStatus checks the class of a status and that its text names what is wrong.
func wantStatus(t *testing.T, err error, reason, text string) map[string]string {
	t.Helper()
	st, ok := status.FromError(err)
	if !ok || err == nil {
		t.Fatalf("%v is not a status", err)
	}
	var info *errdetails.ErrorInfo
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			info = i
		}
	}
	if info == nil || info.Domain != api.ErrorDomain || info.Reason != reason || !strings.Contains(st.Message(), text) {
		t.Errorf("status %v with %v, want reason %s and a text with %q", st, info, reason, text)
		return nil
	}
	return info.Metadata
}

func (w *world) appendTo(schemaID mink.SchemaID, writer mink.WriterID, s *arrow.Schema, opts ...ipc.Option) *put {
	w.t.Helper()
	return w.put(cmd(api.Command{Append: &api.Append{Bucket: w.bucket(0), SchemaID: schemaID, WriterID: writer}}), s, opts...)
}

func seqOf(n int32) api.AppendMetadata { return api.AppendMetadata{Sequence: n} }

// payload answers header and body as an IPC writer with these options makes them.
func payload(t *testing.T, rec arrow.RecordBatch, opts ...ipc.Option) (header, body []byte) {
	t.Helper()
	header, body, err := arrowipc.Encode(rec, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return header, body
}

// Bytes are stored and sent back as they came, compressed ones too.
func TestBytesAreForwarded(t *testing.T) {
	for name, opts := range map[string][]ipc.Option{"plain": nil, "lz4": {ipc.WithLZ4()}, "zstd": {ipc.WithZstd()}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.table(idName, "")
			p := w.appendTo(1, 0, idNameSchema, opts...)
			rec := idNames(0, 1000)
			rec.Retain()
			defer rec.Release()
			header, body := payload(t, rec, opts...)
			p.send(rec, nil)
			if r := mustResult[api.AppendResult](p); r.First != 0 || r.Last != 999 || r.CommitTimestamp == 0 || r.Duplicated {
				t.Errorf("result %+v", r)
			}
			p.finish()

			s, err := w.raw.DoGet(t.Context(), &aflight.Ticket{Ticket: api.JSON(api.Ticket{Scan: &api.Scan{Bucket: w.bucket(0)}})})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil { // the schema
				t.Fatal(err)
			}
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(m.DataHeader, header) || !slices.Equal(m.DataBody, body) {
				t.Errorf("%d + %d bytes came back, %d + %d were sent", len(m.DataHeader), len(m.DataBody), len(header), len(body))
			}
			md := w.metadata(m.AppMetadata)
			if md.Base != 0 || md.Last != 999 || md.Next != 1000 || md.SchemaID != 1 || md.HighWatermark != 1000 || md.CommitTimestamp == 0 {
				t.Errorf("metadata %+v", md)
			}
			// A projection and a cut are right as well.
			out := w.mustGet(api.Scan{Bucket: w.bucket(0), From: 10, Columns: []string{"name", "id"}, Limit: 7})
			if len(out) != 1 || out[0].rows.NumRows() != 7 || out[0].meta.Base != 10 || out[0].meta.Next != 17 || out[0].rows.Column(1).(*array.Int64).Value(0) != 10 {
				t.Errorf("cut %v", out)
			}
			until := mink.Offset(20)
			out = w.mustGet(api.Scan{Bucket: w.bucket(0), From: 18, Until: &until, Columns: []string{"id"}})
			if !slices.Equal(ids(out), seq(18, 2)) || out[0].meta.Next != 20 || out[0].meta.Last != 19 {
				t.Errorf("range %v", out)
			}
			out = w.mustGet(api.Scan{Bucket: w.bucket(0), Columns: []string{"name"}})
			if len(out) != 1 || out[0].rows.NumCols() != 1 || out[0].rows.Column(0).(*array.String).Value(999-1) != "name-998" {
				t.Errorf("projection %v", out)
			}
		})
	}
}

// gate holds appends back until it is opened: their outcomes come late, in any
// order the test chooses.
type gate struct {
	flight.Log
	appended chan struct{} // one value per append
	open     chan struct{} // closed: outcomes come out
}

type gated struct {
	flight.Pending
	open <-chan struct{}
	done chan struct{}
}

func (g *gate) AppendArrow(a tablet.ArrowAppend) (flight.Pending, error) {
	p, err := g.Log.AppendArrow(a)
	if err != nil {
		return nil, err
	}
	g.appended <- struct{}{}
	out := &gated{p, g.open, make(chan struct{})}
	go func() {
		<-g.open
		<-p.Done()
		close(out.done)
	}()
	return out, nil
}

func (g *gated) Done() <-chan struct{} { return g.done }

func TestPipelineAndRetry(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	g := &gate{appended: make(chan struct{}, 100), open: make(chan struct{})}
	w.backend.through(func(l flight.Log) flight.Log { c := *g; c.Log = l; return &c })
	wr, err := w.client.InitWriter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := w.appendTo(1, wr.WriterID, idNameSchema)
	for i := range 5 {
		p.send(idNames(i*10, 10), seqOf(int32(i)))
	}
	for range 5 { // all are appended before any is acknowledged
		<-g.appended
	}
	close(g.open)
	for i := range 5 {
		if r := mustResult[api.AppendResult](p); r.First != mink.Offset(10*i) || r.Last != mink.Offset(10*i+9) || r.Duplicated {
			t.Errorf("result %d is %+v", i, r)
		}
	}
	p.finish()
	// The same again, after a broken stream: nothing is written twice.
	p = w.appendTo(1, wr.WriterID, idNameSchema)
	p.send(idNames(30, 10), seqOf(3))
	p.send(idNames(40, 10), seqOf(4))
	p.send(idNames(50, 10), seqOf(5))
	for i, dup := range []bool{true, true, false} {
		if r := mustResult[api.AppendResult](p); r.Duplicated != dup || r.First != mink.Offset(30+10*i) {
			t.Errorf("retry %d is %+v", i, r)
		}
	}
	// A gap in the sequence fails; what came before is acknowledged.
	p.send(idNames(60, 1), seqOf(6))
	p.send(idNames(99, 1), seqOf(9))
	if r := mustResult[api.AppendResult](p); r.First != 60 {
		t.Errorf("before the gap: %+v", r)
	}
	_, err = result[api.AppendResult](p)
	if md := wantStatus(t, err, api.ReasonOutOfOrder, "9"); md["next_sequence"] != "7" {
		t.Errorf("detail %v", md)
	}
	if got := ids(w.mustGet(api.Scan{Bucket: w.bucket(0)})); !slices.Equal(got, seq(0, 61)) {
		t.Errorf("stored %v", got)
	}
}

// busy refuses the first appends for load.
type busy struct {
	flight.Log
	left *int
}

func (b busy) AppendArrow(a tablet.ArrowAppend) (flight.Pending, error) {
	if *b.left > 0 {
		*b.left--
		return nil, fmt.Errorf("the engine is full: %w", mink.ErrThrottled)
	}
	return b.Log.AppendArrow(a)
}

func TestAppendWaitsForAnOverloadedEngine(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"bucket_count":2,"bucket_keys":["id"]`)
	left := 3
	w.backend.through(func(l flight.Log) flight.Log { return busy{l, &left} })
	p := w.appendTo(1, 0, idNameSchema)
	p.send(idNames(0, 10), nil)
	if r := mustResult[api.AppendResult](p); r.Last != 9 {
		t.Errorf("result %+v", r)
	}
	p.finish()
	left = 3
	p = w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 10), nil)
	if r := mustResult[api.PutResult](p); r.Rows != 10 || len(r.Buckets) != 2 || r.Buckets[0].Error != "" {
		t.Errorf("result %+v", r)
	}
	p.finish()
}

func TestAppendRefused(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.MessageBytesMax = 1 << 20; c.ThrottleWait = 0 })
	w.table(idName, `"options":{"max.message.bytes":"64MiB"}`)
	wrong := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int32}, {Name: "name", Type: arrow.BinaryTypes.String}}, nil)
	one := func(p *put, rec arrow.RecordBatch, md any) error {
		p.send(rec, md)
		_, err := result[api.AppendResult](p)
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, wrong)
	defer b.Release()
	b.Field(0).AppendNull()
	b.Field(1).AppendNull()
	bad := b.NewRecordBatch()
	bad.Retain()
	wantStatus(t, one(w.appendTo(1, 0, wrong), bad, nil), api.ReasonInvalid, `"id"`)
	wantStatus(t, one(w.put(path("db", "t"), wrong), bad, nil), api.ReasonInvalid, `"id"`)
	wantStatus(t, one(w.appendTo(7, 0, idNameSchema), idNames(0, 1), nil), api.ReasonUnavailable, "schema 7")
	wantStatus(t, one(w.appendTo(0, 0, idNameSchema), idNames(0, 1), nil), api.ReasonInvalid, "schema_id")
	wantStatus(t, one(w.appendTo(1, 5, idNameSchema), idNames(0, 1), nil), api.ReasonInvalid, "sequence")
	wantStatus(t, one(w.appendTo(1, 5, idNameSchema), idNames(0, 1), map[string]int{"seq": 1}), api.ReasonInvalid, `"seq"; did you mean "sequence"?`)
	wantStatus(t, one(w.appendTo(1, 5, idNameSchema), idNames(0, 1), seqOf(-1)), api.ReasonInvalid, "sequence")
	wantStatus(t, one(w.appendTo(1, 0, idNameSchema), idNames(0, 60000), nil), api.ReasonTooLarge, "message_bytes_max")
	wantStatus(t, one(w.put(cmd(api.Command{Table: "db.t", From: "latest"}), idNameSchema), idNames(0, 1), nil), api.ReasonInvalid, "put")
	ref := w.bucket(0)
	ref.Index = 9
	wantStatus(t, one(w.put(cmd(api.Command{Append: &api.Append{Bucket: ref, SchemaID: 1}}), idNameSchema), idNames(0, 1), nil), api.ReasonNotExist, "9")

	// A null in a NOT NULL column, from a client that calls it nullable.
	loose := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, idNameSchema.Field(1)}, nil)
	nb := array.NewRecordBuilder(memory.DefaultAllocator, loose)
	defer nb.Release()
	nb.Field(0).AppendNull()
	nb.Field(1).AppendNull()
	null := nb.NewRecordBatch()
	null.Retain()
	wantStatus(t, one(w.appendTo(1, 0, loose), null, nil), api.ReasonInvalid, "id")
	wantStatus(t, one(w.put(path("db", "t"), loose), null, nil), api.ReasonInvalid, "id")

	left := 1
	w.backend.through(func(l flight.Log) flight.Log { return busy{l, &left} })
	wantStatus(t, one(w.appendTo(1, 0, idNameSchema), idNames(0, 1), nil), api.ReasonThrottled, "full")
	w.backend.through(nil)
	w.backend.fail(&mink.NotLeaderError{Bucket: w.bucket(0), Leader: 7, Address: "h:1", Epoch: 3})
	md := wantStatus(t, one(w.appendTo(1, 0, idNameSchema), idNames(0, 1), nil), api.ReasonNotLeader, "node 7")
	if md["address"] != "h:1" || md["leader"] != "7" || md["leader_epoch"] != "3" {
		t.Errorf("detail %v", md)
	}
	// Table-addressed: the bucket's result says it, and so does the end.
	p := w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 3), nil)
	r, err := result[api.PutResult](p)
	if err == nil {
		if len(r.Buckets) != 1 || r.Buckets[0].Code != api.ReasonNotLeader || r.Buckets[0].First != -1 {
			t.Errorf("result %+v", r)
		}
		_, err = result[api.PutResult](p)
	}
	wantStatus(t, err, api.ReasonNotLeader, "node 7")
	w.backend.fail(nil)
	if hw := w.log(w.bucket(0)).HighWatermark(); hw != 0 {
		t.Errorf("refused batches left %d rows", hw)
	}
}

// Damaged messages are errors of their stream, nothing else.
func TestHostileArrow(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	rec := idNames(0, 100)
	defer rec.Release()
	header, body := payload(t, rec)
	schemaHeader := wire.SchemaMessage(idNameSchema)
	try := func(d *aflight.FlightDescriptor, first, second []byte, body []byte) error {
		s, err := w.raw.DoPut(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*aflight.FlightData{{FlightDescriptor: d, DataHeader: first}, {DataHeader: second, DataBody: body}} {
			if err := s.Send(m); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		_ = s.CloseSend()
		for err = nil; err == nil; {
			_, err = s.Recv()
		}
		return err
	}
	native := cmd(api.Command{Append: &api.Append{Bucket: w.bucket(0), SchemaID: 1}})
	for _, d := range []*aflight.FlightDescriptor{native, path("db", "t")} {
		for n := range schemaHeader {
			damaged := slices.Clone(schemaHeader)
			damaged[n] ^= 0xff
			if err := try(d, damaged, header, body); status.Code(err) == 13 { // Internal
				t.Fatalf("schema byte %d: %v", n, err)
			}
		}
		for n := 0; n < len(header); n += 3 {
			damaged := slices.Clone(header)
			damaged[n] ^= 0xff
			if err := try(d, schemaHeader, damaged, body); status.Code(err) == 13 {
				t.Fatalf("header byte %d: %v", n, err)
			}
		}
		wantStatus(t, try(d, schemaHeader, header, body[:len(body)/2]), api.ReasonInvalid, "")
		wantStatus(t, try(d, header, header, body), api.ReasonInvalid, "schema message")
		wantStatus(t, try(d, schemaHeader, schemaHeader, nil), api.ReasonInvalid, "")
	}
	wantStatus(t, try(nil, schemaHeader, header, body), api.ReasonInvalid, "descriptor")

	// A descriptor and nothing after it.
	for _, d := range []*aflight.FlightDescriptor{native, path("db", "t")} {
		p, err := w.raw.DoPut(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Send(&aflight.FlightData{FlightDescriptor: d}); err != nil {
			t.Fatal(err)
		}
		_ = p.CloseSend()
		_, err = p.Recv()
		wantStatus(t, err, api.ReasonInvalid, "schema")
	}
}

func TestSchemaEvolution(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	p := w.appendTo(1, 0, idNameSchema)
	p.send(idNames(0, 10), nil)
	mustResult[api.AppendResult](p)
	alter := func(changes string) {
		t.Helper()
		if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage(changes), 0); err != nil {
			t.Fatal(err)
		}
	}
	alter(`[{"op":"rename_column","name":"name","to":"label"},{"op":"add_column","column":{"name":"extra","type":"INT"}}]`)
	// The stream keeps its schema.
	p.send(idNames(10, 10), nil)
	mustResult[api.AppendResult](p)
	p.finish()
	next := arrow.NewSchema([]arrow.Field{idNameSchema.Field(0), {Name: "label", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "extra", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, next)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(20)
	b.Field(1).(*array.StringBuilder).Append("new")
	b.Field(2).(*array.Int32Builder).Append(5)
	p = w.appendTo(2, 0, next)
	p.send(b.NewRecordBatch(), nil)
	mustResult[api.AppendResult](p)
	p.finish()

	out := w.mustGet(api.Scan{Bucket: w.bucket(0)})
	if len(out) != 3 || !slices.Equal(ids(out), seq(0, 21)) || out[0].meta.SchemaID != 1 || out[2].meta.SchemaID != 2 {
		t.Fatalf("scan %v", out)
	}
	if s := out[0].rows.Schema(); s.Field(1).Name != "label" || s.NumFields() != 3 {
		t.Errorf("schema %v", s)
	}
	if old := out[1].rows; old.Column(1).(*array.String).Value(1) != "name-11" || old.Column(2).NullN() != 10 {
		t.Errorf("old rows %v", old)
	}
	if fresh := out[2].rows; fresh.Column(1).(*array.String).Value(0) != "new" || fresh.Column(2).(*array.Int32).Value(0) != 5 {
		t.Errorf("new rows %v", fresh)
	}
	// Only a column that old batches lack; only one that they have.
	out = w.mustGet(api.Scan{Bucket: w.bucket(0), Columns: []string{"extra"}})
	if len(out) != 3 || out[0].rows.NumRows() != 10 || out[0].rows.Column(0).NullN() != 10 {
		t.Errorf("added column %v", out)
	}
	if out = w.mustGet(api.Scan{Bucket: w.bucket(0), Columns: []string{"id"}}); !slices.Equal(ids(out), seq(0, 21)) {
		t.Errorf("ids %v", out)
	}
	_, err := w.get(api.Scan{Bucket: w.bucket(0), Raw: true})
	wantStatus(t, err, api.ReasonInvalid, "raw")
	if out = w.mustGet(api.Scan{Bucket: w.bucket(0), From: 20, Raw: true}); len(out) != 1 {
		t.Errorf("raw %v", out)
	}
}

// A Kafka topic's table: batches of both encodings at the same offsets, a poison
// batch skipped and reported, record-less offsets passed.
func TestKafkaBatches(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	if err := w.client.CreateDatabase(ctx, "db", true); err != nil {
		t.Fatal(err)
	}
	d, err := schema.KafkaTopic("db", "t", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CreateTable(ctx, d.Encode(), false); err != nil {
		t.Fatal(err)
	}
	log := w.log(w.bucket(0))
	produce := func(batch []byte) {
		t.Helper()
		p, err := log.AppendKafka(batch, tablet.KafkaAppend{AllowZstd: true})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if _, err := p.Result(); err != nil {
			t.Fatal(err)
		}
	}
	produce(kafkaBatch(t, 0, "k0", "v0", "k1", "v1", "k2", "v2"))
	produce(poisonBatch(t, 4))
	// A writer that only moves on.
	pend, err := log.AppendArrow(tablet.ArrowAppend{SchemaID: 1, WriterID: 77, Sequence: 0})
	if err != nil {
		t.Fatal(err)
	}
	<-pend.Done()
	produce(kafkaBatch(t, 0, "k8", "v8"))

	for _, columns := range [][]string{nil, {"value", "key"}} {
		out := w.mustGet(api.Scan{Bucket: w.bucket(0), Columns: columns})
		var keys []string
		quarantined := 0
		next := mink.Offset(0)
		for _, g := range out {
			if g.meta.Base != next || g.meta.Next != g.meta.Last+1 {
				t.Errorf("metadata %+v after %d", g.meta, next)
			}
			next = g.meta.Next
			if g.meta.Quarantined != "" {
				quarantined++
				if g.rows.NumRows() != 0 || g.meta.Base != 3 || g.meta.Last != 6 {
					t.Errorf("quarantined %+v with %d rows", g.meta, g.rows.NumRows())
				}
			}
			col := g.rows.Column(g.rows.Schema().FieldIndices("key")[0]).(*array.Binary)
			for i := range col.Len() {
				keys = append(keys, col.ValueString(i))
			}
		}
		if quarantined != 1 || !slices.Equal(keys, []string{"k0", "k1", "k2", "k8"}) || next != log.HighWatermark() {
			t.Errorf("columns %v: keys %v, %d quarantined, next %d of %d", columns, keys, quarantined, next, log.HighWatermark())
		}
	}
	// Cut inside a Kafka batch, and begin at what cannot be read.
	out := w.mustGet(api.Scan{Bucket: w.bucket(0), From: 1, Limit: 1})
	if len(out) != 1 || out[0].rows.NumRows() != 1 || out[0].rows.Column(0).(*array.Binary).ValueString(0) != "k1" || out[0].meta.Next != 2 {
		t.Errorf("cut %v", out)
	}
	out = w.mustGet(api.Scan{Bucket: w.bucket(0), From: 5})
	if len(out) < 2 || out[0].meta.Base != 5 || out[0].meta.Quarantined == "" {
		t.Errorf("from inside the poison: %v", out)
	}
	if n := log.Stats().Quarantined; n != 1 {
		t.Errorf("%d batches counted as quarantined", n)
	}
}

func TestTail(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	x, err := w.raw.DoExchange(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Send(&aflight.FlightData{FlightDescriptor: cmd(api.Ticket{Scan: &api.Scan{Bucket: w.bucket(0), Columns: []string{"id"}}})}); err != nil {
		t.Fatal(err)
	}
	r, err := aflight.NewRecordReader(x) // the schema comes before any row
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	p := w.appendTo(1, 0, idNameSchema)
	for i := range 3 {
		p.send(idNames(i*10, 10), nil)
		mustResult[api.AppendResult](p)
		if !r.Next() {
			t.Fatal(r.Err())
		}
		md := w.metadata(r.LatestAppMetadata())
		if r.RecordBatch().Column(0).(*array.Int64).Value(0) != int64(10*i) || md.Next != mink.Offset(10*i+10) {
			t.Errorf("tail batch %d: %v, %+v", i, r.RecordBatch(), md)
		}
	}
	p.finish()
	if err := x.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if r.Next() || r.Err() != nil && !errors.Is(r.Err(), io.EOF) {
		t.Errorf("after the half-close: %v", r.Err())
	}

	// min_bytes gathers; the wait ends it.
	x, err = w.raw.DoExchange(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Send(&aflight.FlightData{FlightDescriptor: cmd(api.Ticket{Scan: &api.Scan{Bucket: w.bucket(0), From: 25, MinBytes: 1 << 20, MaxWaitMs: 50}})}); err != nil {
		t.Fatal(err)
	}
	out, err := aflight.NewRecordReader(x)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Release()
	if !out.Next() || out.RecordBatch().NumRows() != 5 {
		t.Errorf("gathered %v, %v", out.RecordBatch(), out.Err())
	}
	// The node stops: the tail ends with "retry".
	w.stop()
	if out.Next() {
		t.Error("rows after the stop")
	}
	wantStatus(t, out.Err(), api.ReasonUnavailable, "stopping")
}

func TestReadYourWritesHeaders(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.AppliedWait = 50 * time.Millisecond })
	w.table(idName, "")
	var header, trailer metadata.MD
	now := w.node.View().Index()
	call := func(min string) error {
		header, trailer = nil, nil
		ctx := metadata.AppendToOutgoingContext(t.Context(), api.HeaderMinAppliedIndex, min)
		_, err := w.raw.GetSchema(ctx, path("db", "t"), grpcHeader(&header)...)
		return err
	}
	if err := call(fmt.Sprint(now)); err != nil || len(header.Get(api.HeaderAppliedIndex)) != 1 {
		t.Errorf("%v, header %v", err, header)
	}
	wantStatus(t, call(fmt.Sprint(now+1000)), api.ReasonUnavailable, "applied")
	wantStatus(t, call("x"), api.ReasonInvalid, api.HeaderMinAppliedIndex)
	_ = trailer
	s, err := w.raw.DoAction(t.Context(), &aflight.Action{Type: api.ActionCreateDatabase, Body: []byte(`{"name":"d2"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	h, err := s.Header()
	if err != nil || len(h.Get(api.HeaderAppliedIndex)) != 1 || h.Get(api.HeaderAppliedIndex)[0] < fmt.Sprint(now+1) {
		t.Errorf("the action's header says %v after %d, %v", h, now, err)
	}
}
