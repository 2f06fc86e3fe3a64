package flight_test

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
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
	"github.com/mink-project/mink/sdk/mink"
)

func TestListAndInfo(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"bucket_count":3,"bucket_keys":["id"]`)
	p := w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 100), nil)
	res := mustResult[api.PutResult](p)
	if res.Rows != 100 || res.Batches != 1 || len(res.Buckets) != 3 {
		t.Errorf("put result %+v", res)
	}
	sum := int64(0)
	for _, b := range res.Buckets {
		sum += b.Rows
		if b.Error != "" || b.First != 0 || b.Last != mink.Offset(b.Rows-1) {
			t.Errorf("bucket result %+v", b)
		}
	}
	if sum != 100 {
		t.Errorf("buckets took %d rows", sum)
	}
	p.finish()

	l, err := w.raw.ListFlights(t.Context(), &aflight.Criteria{Expression: []byte("db")})
	if err != nil {
		t.Fatal(err)
	}
	info, err := l.Recv()
	if err != nil || !slices.Equal(info.FlightDescriptor.Path, []string{"db", "t"}) || info.TotalRecords != 100 || info.TotalBytes <= 0 {
		t.Errorf("listed %v, %v", info, err)
	}
	if _, err := l.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("one table is listed, then %v", err)
	}

	info, err = w.raw.GetFlightInfo(t.Context(), path("db", "t"))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := aflight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
	if err != nil || schema.NumFields() != 2 || schema.Field(0).Nullable || schema.Field(1).Name != "name" {
		t.Errorf("schema %v, %v", schema, err)
	}
	if info.TotalRecords != 100 || info.TotalBytes <= 0 || len(info.Endpoint) != 3 {
		t.Errorf("info %v", info)
	}
	// More rows do not change what a ticket reads, however often.
	p = w.put(path("db.t"), idNameSchema)
	p.send(idNames(100, 50), nil)
	mustResult[api.PutResult](p)
	p.finish()
	for range 2 {
		var all []int64
		for _, e := range info.Endpoint {
			if len(e.Location) != 1 || e.Location[0].Uri != "grpc://"+w.address {
				t.Errorf("location %v", e.Location)
			}
			s, err := w.raw.DoGet(t.Context(), e.Ticket)
			if err != nil {
				t.Fatal(err)
			}
			batches, err := w.readAll(s)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ids(batches)...)
		}
		slices.Sort(all)
		if !slices.Equal(all, seq(0, 100)) {
			t.Errorf("endpoints read %v", all)
		}
	}

	res2, err := w.raw.GetSchema(t.Context(), cmd(api.Command{Table: "db.t", Columns: []string{"name"}}))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := aflight.DeserializeSchema(res2.Schema, memory.DefaultAllocator); err != nil || s.NumFields() != 1 || s.Field(0).Name != "name" {
		t.Errorf("projected schema %v, %v", s, err)
	}
	info, err = w.raw.GetFlightInfo(t.Context(), cmd(api.Command{Table: "db.t", From: "latest"}))
	if err != nil || info.TotalRecords != 0 {
		t.Errorf("from latest: %v, %v", info, err)
	}
	info, err = w.raw.GetFlightInfo(t.Context(), cmd(api.Command{Table: "db.t", From: "2000-01-01T00:00:00Z"}))
	if err != nil || info.TotalRecords != 150 {
		t.Errorf("from long ago: %v, %v", info, err)
	}
}

func TestPutByNameAndPartition(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"day","type":"DATE NOT NULL"},{"name":"id","type":"BIGINT"},{"name":"note","type":"STRING"}`,
		`"partition_keys":["day"],"bucket_count":2,"bucket_keys":["id"]`)
	// Other order, one column left out.
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "day", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i := range 40 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.Date32Builder).Append(arrow.Date32(20000 + i%2))
	}
	p := w.put(path("db", "t"), schema)
	p.send(b.NewRecordBatch(), nil)
	if res := mustResult[api.PutResult](p); res.Rows != 40 || len(res.Buckets) != 4 {
		t.Errorf("result %+v", res)
	}
	p.finish()
	parts, err := w.client.ListPartitions(t.Context(), "db.t")
	if err != nil || len(parts) != 2 || parts[0].Values[0] != "2024-10-04" || parts[1].Values[0] != "2024-10-05" {
		t.Fatalf("partitions %v, %v", parts, err)
	}
	info, err := w.raw.GetFlightInfo(t.Context(), cmd(api.Command{Table: "db.t", Partition: []string{"2024-10-05"}, Columns: []string{"id", "note"}}))
	if err != nil || len(info.Endpoint) != 2 || info.TotalRecords != 20 {
		t.Fatalf("info %v, %v", info, err)
	}
	var all []int64
	for _, e := range info.Endpoint {
		s, err := w.raw.DoGet(t.Context(), e.Ticket)
		if err != nil {
			t.Fatal(err)
		}
		batches, err := w.readAll(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range batches {
			if g.rows.Column(1).NullN() != int(g.rows.NumRows()) {
				t.Errorf("the column that was left out is %v", g.rows.Column(1))
			}
		}
		all = append(all, ids(batches)...)
	}
	slices.Sort(all)
	for i, id := range all {
		if id != int64(2*i+1) {
			t.Errorf("ids of one day: %v", all)
			break
		}
	}
	// A null key is refused, and pyarrow sees it when it closes.
	b.Field(0).(*array.Int64Builder).Append(1)
	b.Field(1).AppendNull()
	p = w.put(path("db", "t"), schema)
	p.send(b.NewRecordBatch(), nil)
	_, err = result[api.PutResult](p)
	wantStatus(t, err, api.ReasonInvalid, "day")
}

// A client that reads no results is never stopped by them.
func TestPutWithoutReadingResults(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"bucket_count":4,"bucket_keys":["id"]`)
	p := w.put(path("db", "t"), idNameSchema)
	const batches = 3000
	for i := range batches {
		p.send(idNames(i*8, 8), nil)
	}
	if err := p.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var sum api.PutResult
	for {
		r, err := result[api.PutResult](p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		sum.Rows += r.Rows
		sum.Batches += r.Batches
	}
	if sum.Rows != batches*8 || sum.Batches != batches {
		t.Errorf("results say %+v", sum)
	}
}

// Batches beyond max.message.bytes are written in parts.
func TestPutSplitsLargeBatches(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"options":{"max.message.bytes":"4KiB"}`)
	p := w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 5000), nil)
	res := mustResult[api.PutResult](p)
	if res.Rows != 5000 || len(res.Buckets) != 1 || res.Buckets[0].First != 0 || res.Buckets[0].Last != 4999 {
		t.Errorf("result %+v", res)
	}
	p.finish()
	out := w.mustGet(api.Scan{Bucket: w.bucket(0)})
	if len(out) < 10 || !slices.Equal(ids(out), seq(0, 5000)) {
		t.Errorf("%d batches, ids %v", len(out), ids(out))
	}
	// The Go client splits its own.
	wr, err := w.client.NewWriter(t.Context(), "db.t", client.DefaultWriter())
	if err != nil {
		t.Fatal(err)
	}
	rec := idNames(5000, 3000)
	a, err := wr.Append(t.Context(), rec)
	rec.Release()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := wr.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := ids(w.mustGet(api.Scan{Bucket: w.bucket(0)})); !slices.Equal(got, seq(0, 8000)) {
		t.Errorf("%d ids after the client's write", len(got))
	}
}

func TestActionsAndErrors(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.table(idName, "")

	l, err := w.raw.ListActions(ctx, &aflight.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; err == nil; n++ {
		_, err = l.Recv()
	}
	if n-1 != 32 || !errors.Is(err, io.EOF) {
		t.Errorf("%d actions, then %v", n-1, err)
	}
	do := func(name, body string) (json.RawMessage, error) {
		s, err := w.raw.DoAction(ctx, &aflight.Action{Type: name, Body: []byte(body)})
		if err != nil {
			return nil, err
		}
		r, err := s.Recv()
		if err != nil {
			return nil, err
		}
		return r.Body, nil
	}
	for _, c := range []struct{ action, body, reason, text string }{
		{"creat_table", "", api.ReasonUnsupported, "create_table"},
		{"create_database", `{"nmae":"x"}`, api.ReasonInvalid, `"name"`},
		{"create_database", `{"Name":"x"}`, api.ReasonInvalid, `"name"`},
		{"create_database", `{"name":1}`, api.ReasonInvalid, `"name"`},
		{"create_database", `{"name":"x"} {}`, api.ReasonInvalid, "after"},
		{"create_database", `[]`, api.ReasonInvalid, "object"},
		{"create_database", `{"name":"db"}`, api.ReasonExists, "db"},
		{"describe_table", `{"name":"db.tt"}`, api.ReasonNotExist, `"db.t"`},
		{"describe_table", `{"name":"t"}`, api.ReasonInvalid, "database.table"},
		{"describe_table", `{"name":"x.t"}`, api.ReasonNotExist, "x"},
		{"alter_table", `{"table":"db.t","changes":[{"op":"drop_colum","name":"name"}]}`, api.ReasonInvalid, "drop_column"},
		{"list_offsets", `{"table":"db.t","at":"yesterday"}`, api.ReasonInvalid, `at: invalid position "yesterday": want "earliest"`},
		{"list_partitions", `{"name":"db.nope"}`, api.ReasonNotExist, "db.nope"},
		{"get_producer", `{"name":"nobody"}`, api.ReasonNotExist, "nobody"},
		{"commit_producer", `{"name":"p","offsets":[{"bucket":{"table":1}}]}`, api.ReasonInvalid, "table_id"},
	} {
		_, err := do(c.action, c.body)
		t.Run(c.action+" "+c.body, func(t *testing.T) { wantStatus(t, err, c.reason, c.text) })
	}

	// The catalog through the client.
	if dbs, err := w.client.ListDatabases(ctx); err != nil || len(dbs) != 1 || dbs[0].Tables != 1 {
		t.Errorf("databases %v, %v", dbs, err)
	}
	if tabs, err := w.client.ListTables(ctx, "db"); err != nil || len(tabs) != 1 || tabs[0].Name != "db.t" || tabs[0].Buckets != 1 {
		t.Errorf("tables %v, %v", tabs, err)
	}
	tab, err := w.client.AlterTable(ctx, "db.t", json.RawMessage(`[{"op":"add_column","column":{"name":"x","type":"INT"}}]`), 1)
	if err != nil || tab.SchemaID != 2 {
		t.Errorf("altered %+v, %v", tab, err)
	}
	if _, err := w.client.AlterTable(ctx, "db.t", json.RawMessage(`[{"op":"drop_column","name":"x"}]`), 1); !errors.Is(err, mink.ErrConflict) {
		t.Errorf("alter of another version: %v", err)
	}
	for w.node.View().Lease().Node == 0 {
		if err := w.node.WaitApplied(ctx, w.node.View().Index()+1); err != nil {
			t.Fatal(err)
		}
	}
	c, err := w.client.DescribeCluster(ctx)
	if err != nil || len(c.Nodes) != 1 || !c.Nodes[0].Live || c.Nodes[0].Buckets != 1 || c.Coordinator.ID != 1 || c.Tables != 1 || c.AppliedIndex == 0 {
		t.Errorf("cluster %+v, %v", c, err)
	}
	if h, err := w.client.Health(ctx); err != nil || !h.Ready || h.Node != 1 || h.Uptime <= 0 {
		t.Errorf("health %+v, %v", h, err)
	}
	if cfg, err := w.client.Config(ctx); err != nil || cfg["meta_url"] == "" {
		t.Errorf("config %v, %v", cfg, err)
	}
	if s, err := w.client.Stats(ctx); err != nil || s.Node != 1 || s.Figures["mink_node_ready"] != 1 {
		t.Errorf("stats %+v, %v", s, err)
	}
	if r, err := w.client.Check(ctx, true); err != nil || !r.Clean || r.Streams != 1 {
		t.Errorf("check %+v, %v", r, err)
	}
	p, err := w.client.CommitProducer(ctx, api.Producer{Name: "p", Position: []byte("at 7"), Offsets: []api.BucketOffset{{Bucket: w.bucket(0), Offset: 7}}})
	if err != nil || p.Version == 0 || p.CommittedMs == 0 {
		t.Errorf("commit %+v, %v", p, err)
	}
	if back, ok, err := w.client.GetProducer(ctx, "p"); err != nil || !ok || string(back.Position) != "at 7" || back.Version != p.Version || len(back.Offsets) != 1 || back.Offsets[0].Offset != 7 {
		t.Errorf("read back %+v, %v, %v", back, ok, err)
	}
	if _, err := w.client.CommitProducer(ctx, api.Producer{Name: "p", Version: p.Version + 1}); !errors.Is(err, mink.ErrConflict) {
		t.Errorf("commit over another version: %v", err)
	}
	a, err := w.client.InitWriter(ctx)
	if err != nil || a.WriterID < 1 {
		t.Errorf("writer %+v, %v", a, err)
	}
	if err := w.client.DropTable(ctx, "db.t", false); err != nil {
		t.Error(err)
	}
	if err := w.client.DropTable(ctx, "db.t", true); err != nil {
		t.Error(err)
	}
	if err := w.client.DropDatabase(ctx, "db", false, false); err != nil {
		t.Error(err)
	}
}

func TestDescriptorsRefused(t *testing.T) {
	w := newWorld(t)
	w.table(idName, "")
	raw := func(s string) *aflight.FlightDescriptor {
		return &aflight.FlightDescriptor{Type: aflight.DescriptorCMD, Cmd: []byte(s)}
	}
	for _, c := range []struct {
		d            *aflight.FlightDescriptor
		reason, text string
	}{
		{path("db"), api.ReasonInvalid, "database.table"},
		{path("a", "b", "c"), api.ReasonInvalid, "[database, table]"},
		{path("db", "nope"), api.ReasonNotExist, "nope"},
		{raw(`{"tabel":"db.t"}`), api.ReasonInvalid, `"table"`},
		{raw(`{"table":"db.t","mode":"snapshot"}`), api.ReasonInvalid, "log table"},
		{raw(`{"table":"db.t","mode":"union"}`), api.ReasonInvalid, `"lake"`},
		{raw(`{"table":"db.t","mode":"lake","from":"latest"}`), api.ReasonInvalid, "from"},
		{raw(`{"table":"db.t","mode":"lake","filter":"nope = 1"}`), api.ReasonInvalid, "nope"},
		{raw(`{"table":"db.t","delete":true}`), api.ReasonInvalid, "DoPut"},
		{raw(`{"append":{},"put":{}}`), api.ReasonInvalid, "alone"},
		{raw(`{"table":"db.t","mode":"x"}`), api.ReasonInvalid, "log"},
		{raw(`{"table":"db.t","filter":"id > 3"}`), api.ReasonUnsupported, "filter in mode log"},
		{raw(`{"table":"db.t","columns":["nam"]}`), api.ReasonInvalid, `"name"`},
		{raw(`{"table":"db.t","columns":["id","id"]}`), api.ReasonInvalid, "twice"},
		{raw(`{"table":"db.t","partition":["x"]}`), api.ReasonInvalid, "partition"},
		{raw(`{"table":"db.t","from":"soon"}`), api.ReasonInvalid, "soon"},
		{raw(`{"append":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"schema_id":1}}`), api.ReasonInvalid, "DoPut"},
		{raw(`{`), api.ReasonInvalid, "JSON"},
		{&aflight.FlightDescriptor{}, api.ReasonInvalid, "path"},
	} {
		_, err := w.raw.GetFlightInfo(t.Context(), c.d)
		t.Run(fmt.Sprint(c.d), func(t *testing.T) { wantStatus(t, err, c.reason, c.text) })
	}
	for _, c := range []struct{ ticket, reason, text string }{
		{`{}`, api.ReasonInvalid, "scan"},
		{`{"scan":{"bukcet":{}}}`, api.ReasonInvalid, `"bucket"`},
		{`{"union":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"lake_end":5,"until":3}}`, api.ReasonInvalid, "until"},
		{`{"union":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"lake_end":5,"until":1000000}}`, api.ReasonOutOfRange, "1000000"},
		{`{"lake":{"table_id":99,"snapshot":"1"}}`, api.ReasonNotExist, "99"},
		{`{"lake":{"table_id":1,"snapshot":"1"}}`, api.ReasonUnsupported, "no lake"},
		{`{"lake":{"table_id":1,"snapshot":"1","columns":["nope"]}}`, api.ReasonInvalid, "nope"},
		{`{"scan":{"bucket":{"table_id":99,"partition_id":1,"bucket":0}}}`, api.ReasonNotExist, "99"},
		{`{"scan":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"from":-1}}`, api.ReasonInvalid, "from"},
		{`{"scan":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"from":5}}`, api.ReasonOutOfRange, "5"},
		{`{"scan":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"min_bytes":5}}`, api.ReasonInvalid, "tail"},
		{`{"scan":{"bucket":{"table_id":1,"partition_id":1,"bucket":0},"columns":["x"]}}`, api.ReasonInvalid, "x"},
	} {
		s, err := w.raw.DoGet(t.Context(), &aflight.Ticket{Ticket: []byte(c.ticket)})
		if err == nil {
			_, err = s.Recv()
		}
		t.Run(c.ticket, func(t *testing.T) { wantStatus(t, err, c.reason, c.text) })
	}
}

// A bucket that is opening, or between two leaders, is waited for, and named
// when it does not come.
func TestPutWaitsForABucketThatOpens(t *testing.T) {
	const wait = 500 * time.Millisecond
	w := newWorld(t, func(c *flight.Config) { c.ThrottleWait = wait })
	w.table(idName, `"bucket_count":2,"bucket_keys":["id"]`)
	opening := fmt.Errorf("opening: %w", mink.ErrUnavailable)
	w.backend.fail(opening)
	p := w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 10), nil)
	time.Sleep(50 * time.Millisecond)
	w.backend.fail(nil)
	if r := mustResult[api.PutResult](p); r.Rows != 10 || len(r.Buckets) != 2 || r.Buckets[0].Error != "" || r.Buckets[1].Error != "" {
		t.Errorf("result %+v", r)
	}
	p.finish()

	w.backend.fail(opening)
	began := time.Now()
	p = w.put(path("db", "t"), idNameSchema)
	p.send(idNames(0, 10), nil)
	r, err := result[api.PutResult](p)
	if err == nil {
		if len(r.Buckets) != 2 || r.Buckets[0].Code != api.ReasonUnavailable || r.Buckets[1].First != -1 {
			t.Errorf("result %+v", r)
		}
		_, err = result[api.PutResult](p)
	}
	wantStatus(t, err, api.ReasonUnavailable, "opening")
	if took := time.Since(began); took < wait {
		t.Errorf("given up after %v, want %v", took, wait)
	}
	w.backend.fail(nil)
}
