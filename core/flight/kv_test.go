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

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/node"
	"github.com/mink-project/mink/core/record/jsonrow"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// itemColumns is a table of two key columns and three others.
const itemColumns = `{"name":"shop","type":"STRING"},{"name":"id","type":"BIGINT"},{"name":"name","type":"STRING"},{"name":"price","type":"DECIMAL(10,2)"},{"name":"n","type":"INT"}`

const itemKey = `"primary_key":["shop","id"],"bucket_keys":["shop"],"bucket_count":4`

// recordOf makes rows of some of db.t's columns, in the order named, of JSON objects.
func (w *world) recordOf(columns []string, objects ...string) arrow.RecordBatch {
	w.t.Helper()
	tab, err := w.client.DescribeTable(w.t.Context(), "db.t")
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := schema.DecodeDescriptor(tab.Descriptor)
	if err != nil {
		w.t.Fatal(err)
	}
	s := schema.Schema{}
	for _, name := range columns {
		c, ok := d.Schema.Column(name)
		if !ok {
			w.t.Fatalf("no column %q", name)
		}
		c.Type.NotNull = false
		s.Columns = append(s.Columns, c)
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s.Arrow(), strings.NewReader("["+strings.Join(objects, ",")+"]"))
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// jsonRecord makes rows of JSON objects in Mink's form.
func (w *world) jsonRecord(columns []string, objects ...string) arrow.RecordBatch {
	w.t.Helper()
	empty := w.recordOf(columns)
	r := jsonrow.New(empty.Schema()).NewReader()
	b := array.NewRecordBuilder(memory.DefaultAllocator, empty.Schema())
	defer b.Release()
	for _, o := range objects {
		if err := r.Append(b, []byte(o)); err != nil {
			w.t.Fatal(err)
		}
	}
	return b.NewRecordBatch()
}

// putBy writes one batch by a descriptor and answers the result.
func (w *world) putBy(d *aflight.FlightDescriptor, columns []string, objects ...string) (api.PutResult, error) {
	w.t.Helper()
	rec := w.recordOf(columns, objects...)
	p := w.put(d, rec.Schema())
	p.send(rec, nil)
	r, err := result[api.PutResult](p)
	if err != nil {
		return r, err
	}
	if err := p.stream.CloseSend(); err != nil {
		w.t.Fatal(err)
	}
	for err == nil {
		_, err = p.stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return r, err
}

func (w *world) mustPutBy(d *aflight.FlightDescriptor, columns []string, objects ...string) {
	w.t.Helper()
	r, err := w.putBy(d, columns, objects...)
	if err != nil || r.Rows != int64(len(objects)) {
		w.t.Fatalf("put: %+v, %v", r, err)
	}
}

// read reads all endpoints of a descriptor, and answers the rows as JSON objects in
// the order of their text.
func (w *world) read(d *aflight.FlightDescriptor) []string {
	w.t.Helper()
	info, err := w.raw.GetFlightInfo(w.t.Context(), d)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range info.Endpoint {
		rows, _ := w.readTicket(e.Ticket.Ticket)
		out = append(out, rows...)
	}
	slices.Sort(out)
	return out
}

// readTicket answers a DoGet's rows and its last app_metadata.
func (w *world) readTicket(ticket []byte) (rows []string, md api.SnapshotMetadata) {
	w.t.Helper()
	rows, md, err := w.tryTicket(ticket)
	if err != nil {
		w.t.Fatalf("%s: %v", ticket, err)
	}
	return rows, md
}

func (w *world) tryTicket(ticket []byte) (rows []string, md api.SnapshotMetadata, err error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	s, err := w.raw.DoGet(ctx, &aflight.Ticket{Ticket: ticket})
	if err != nil {
		return nil, md, err
	}
	r, err := aflight.NewRecordReader(s)
	if err != nil {
		return nil, md, err
	}
	defer r.Release()
	for r.Next() {
		rows = append(rows, objectsOf(w.t, r.RecordBatch())...)
		md = api.SnapshotMetadata{LogOffset: -1}
		if err := json.Unmarshal(r.LatestAppMetadata(), &md); err != nil {
			w.t.Fatalf("app_metadata %q: %v", r.LatestAppMetadata(), err)
		}
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return rows, md, err
	}
	return rows, md, nil
}

// objectsOf writes rows as JSON objects without nulls.
func objectsOf(t testing.TB, rec arrow.RecordBatch) []string {
	t.Helper()
	text, err := rec.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	out := make([]string, len(rows))
	for i, r := range rows {
		for k, v := range r {
			if v == nil {
				delete(r, k)
			}
		}
		out[i] = string(api.JSON(r))
	}
	return out
}

func (w *world) action(name string, body any, into any) error {
	w.t.Helper()
	raw, ok := body.(string)
	if !ok {
		raw = string(api.JSON(body))
	}
	s, err := w.raw.DoAction(w.t.Context(), &aflight.Action{Type: name, Body: []byte(raw)})
	if err != nil {
		return err
	}
	r, err := s.Recv()
	if err != nil {
		return err
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(r.Body, into)
}

func (w *world) count() int64 {
	w.t.Helper()
	var c api.Counts
	if err := w.action(api.ActionCount, api.CountRequest{Table: "db.t"}, &c); err != nil {
		w.t.Fatal(err)
	}
	return c.Rows
}

func wantRows(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: rows\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A client that knows nothing of Mink puts, puts again, deletes and reads rows back.
func TestPutByPathUpserts(t *testing.T) {
	w := newWorld(t)
	w.table(itemColumns, itemKey)
	all := []string{"shop", "id", "name", "price", "n"}
	byPath := path("db", "t")
	w.mustPutBy(byPath, all,
		`{"shop":"a","id":1,"name":"tea","price":"1.50","n":1}`,
		`{"shop":"b","id":1,"name":"milk","price":"2.00","n":2}`,
		`{"shop":"c","id":1,"name":"bread","price":"3.00","n":3}`)
	// A later put of the same keys replaces; of two in one batch the later one counts.
	w.mustPutBy(byPath, []string{"n", "price", "name", "id", "shop"},
		`{"shop":"a","id":1,"name":"green tea","price":"1.75","n":1}`,
		`{"shop":"a","id":1,"name":"black tea","price":"1.80","n":1}`)
	wantRows(t, "after upserts", w.read(byPath),
		`{"id":1,"n":1,"name":"black tea","price":"1.8","shop":"a"}`,
		`{"id":1,"n":2,"name":"milk","price":"2","shop":"b"}`,
		`{"id":1,"n":3,"name":"bread","price":"3","shop":"c"}`)
	// Columns that are not sent keep their values, and are null in a new row.
	w.mustPutBy(byPath, []string{"id", "shop", "n"}, `{"shop":"a","id":1,"n":10}`, `{"shop":"d","id":1,"n":4}`)
	// So do columns that are sent and are no targets.
	w.mustPutBy(cmd(api.Command{Table: "db.t", Columns: []string{"price"}}), all,
		`{"shop":"b","id":1,"name":"no","price":"2.50","n":99}`, `{"shop":"e","id":1,"name":"no","price":"5.00","n":99}`)
	wantRows(t, "after partial updates", w.read(byPath),
		`{"id":1,"n":10,"name":"black tea","price":"1.8","shop":"a"}`,
		`{"id":1,"n":2,"name":"milk","price":"2.5","shop":"b"}`,
		`{"id":1,"n":3,"name":"bread","price":"3","shop":"c"}`,
		`{"id":1,"n":4,"shop":"d"}`,
		`{"id":1,"price":"5","shop":"e"}`)
	// Deletes by key, with the key's columns or all; an absent key is none.
	del := cmd(api.Command{Table: "db.t", Delete: true})
	w.mustPutBy(del, []string{"id", "shop"}, `{"shop":"d","id":1}`, `{"shop":"nowhere","id":1}`)
	w.mustPutBy(del, all, `{"shop":"e","id":1,"name":"whatever"}`)
	wantRows(t, "after deletes", w.read(cmd(api.Command{Table: "db.t", Columns: []string{"n", "shop"}})),
		`{"n":10,"shop":"a"}`, `{"n":2,"shop":"b"}`, `{"n":3,"shop":"c"}`)
	if n := w.count(); n != 3 {
		t.Errorf("count %d", n)
	}

	info, err := w.raw.GetFlightInfo(t.Context(), byPath)
	if err != nil || len(info.Endpoint) != 4 || info.TotalRecords != -1 {
		t.Errorf("info %v, %v", info, err)
	}
	for _, e := range info.Endpoint {
		var ticket api.Ticket
		var at api.BucketOffset
		if json.Unmarshal(e.Ticket.Ticket, &ticket) != nil || json.Unmarshal(e.AppMetadata, &at) != nil || ticket.Snapshot == nil || at.Bucket != ticket.Snapshot.Bucket || at.Offset != -1 {
			t.Errorf("endpoint %s, %s", e.Ticket.Ticket, e.AppMetadata)
		}
	}
	info, err = w.raw.GetFlightInfo(t.Context(), cmd(api.Command{Table: "db.t", Mode: api.ModeLog}))
	if err != nil || len(info.Endpoint) != 4 || !strings.HasPrefix(string(info.Endpoint[0].Ticket.Ticket), `{"scan":`) {
		t.Errorf("info of the log %v, %v", info, err)
	}
}

// A delete of some columns sets those to null.
func TestPartialDelete(t *testing.T) {
	w := newWorld(t)
	w.table(itemColumns, itemKey)
	var puts []putSeen
	w.backend.throughKV(seeing(&puts))
	_, err := w.putBy(cmd(api.Command{Table: "db.t", Columns: []string{"n"}, Delete: true}), []string{"shop", "id"}, `{"shop":"a","id":1}`)
	if err != nil {
		t.Fatal(err)
	}
	if len(puts) != 1 || fmt.Sprint(puts[0].put.Columns) != "[1 2 5]" || !slices.Equal(puts[0].put.Changes, []byte{4}) {
		t.Errorf("puts %+v", puts)
	}
}

// A batch whose changes are too many for the changelog is put in parts.
func TestPutInParts(t *testing.T) {
	w := newWorldOn(t, func(c *node.Config) { c.KV.PutBytesMax = 2000 })
	w.table(itemColumns, itemKey)
	var puts []putSeen
	w.backend.throughKV(seeing(&puts))
	var rows []string
	for i := range 100 {
		rows = append(rows, fmt.Sprintf(`{"shop":"a","id":%d,"n":%d}`, i, i))
	}
	for range 2 { // the second time each row has two changes
		w.mustPutBy(path("db", "t"), []string{"shop", "id", "n"}, rows...)
	}
	if n := w.count(); n != 100 || len(puts) < 6 {
		t.Errorf("%d rows in %d puts", n, len(puts))
	}
	// One row that is too large is too large.
	_, err := w.putBy(path("db", "t"), []string{"shop", "id", "name"}, `{"shop":"a","id":1,"name":"`+strings.Repeat("x", 3000)+`"}`)
	wantStatus(t, err, api.ReasonTooLarge, "2000")
}

// What a put's columns cannot be is said before a row is taken.
func TestPutColumnsRefused(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"id","type":"BIGINT"},{"name":"must","type":"INT NOT NULL"},{"name":"may","type":"INT"},{"name":"num","type":"BIGINT NOT NULL","auto_increment":true}`,
		`"primary_key":["id"],"bucket_count":2`)
	b := w.bucket(0)
	own := func(columns ...string) *api.Put { return &api.Put{Bucket: b, SchemaID: 1, Columns: columns} }
	for name, c := range map[string]struct {
		d            *aflight.FlightDescriptor
		columns      []string
		reason, text string
	}{
		"no key":               {path("db", "t"), []string{"must"}, api.ReasonInvalid, `"id", which is in the primary key`},
		"no NOT NULL":          {path("db", "t"), []string{"id", "may"}, api.ReasonInvalid, `"must" is NOT NULL and absent`},
		"NOT NULL no target":   {cmd(api.Command{Table: "db.t", Columns: []string{"may"}}), []string{"id", "must", "may"}, api.ReasonInvalid, `"must"`},
		"named, not sent":      {cmd(api.Command{Table: "db.t", Columns: []string{"must", "may"}}), []string{"id", "must"}, api.ReasonInvalid, `"may" is named in columns`},
		"unknown":              {cmd(api.Command{Table: "db.t", Columns: []string{"mst"}}), []string{"id"}, api.ReasonInvalid, `"must"`},
		"twice":                {cmd(api.Command{Table: "db.t", Columns: []string{"may", "may"}}), []string{"id"}, api.ReasonInvalid, "twice"},
		"NOT NULL deleted":     {cmd(api.Command{Table: "db.t", Columns: []string{"must"}, Delete: true}), []string{"id"}, api.ReasonInvalid, `"must" is NOT NULL`},
		"delete without key":   {cmd(api.Command{Table: "db.t", Delete: true}), []string{"may"}, api.ReasonInvalid, `"id"`},
		"meta":                 {cmd(api.Command{Table: "db.t", Meta: true}), []string{"id"}, api.ReasonInvalid, "put"},
		"append":               {cmd(api.Command{Append: &api.Append{Bucket: b, SchemaID: 1}}), []string{"id"}, api.ReasonInvalid, `{"put":...}`},
		"put and table":        {cmd(api.Command{Table: "db.t", Put: own()}), []string{"id"}, api.ReasonInvalid, "alone"},
		"native without key":   {cmd(api.Command{Put: own("must")}), []string{"must"}, api.ReasonInvalid, `"id" is in the primary key`},
		"native, other order":  {cmd(api.Command{Put: own("id", "must")}), []string{"must", "id"}, api.ReasonInvalid, "order"},
		"native, not all":      {cmd(api.Command{Put: own()}), []string{"id", "must", "may"}, api.ReasonInvalid, "num"},
		"native, unknown":      {cmd(api.Command{Put: own("id", "x")}), []string{"id"}, api.ReasonInvalid, `"x"`},
		"native, no version":   {cmd(api.Command{Put: &api.Put{Bucket: b}}), []string{"id"}, api.ReasonInvalid, "schema_id"},
		"native, later":        {cmd(api.Command{Put: &api.Put{Bucket: b, SchemaID: 9}}), []string{"id"}, api.ReasonUnavailable, "schema 9"},
		"native, upsert of id": {cmd(api.Command{Put: own("id")}), []string{"id"}, api.ReasonInvalid, `"must", which is NOT NULL`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.putBy(c.d, c.columns, `{"id":1}`)
			wantStatus(t, err, c.reason, c.text)
		})
	}
	// The auto-increment column may be left out, or null.
	w.mustPutBy(path("db", "t"), []string{"id", "must"}, `{"id":1,"must":1}`)
	w.mustPutBy(path("db", "t"), []string{"id", "must", "may", "num"}, `{"id":2,"must":1}`)
	// A null in a key names the row.
	_, err := w.putBy(path("db", "t"), []string{"id", "must"}, `{"id":3,"must":1}`, `{"must":1}`)
	wantStatus(t, err, api.ReasonInvalid, "column id")
	_, err = w.putBy(path("db", "t"), []string{"id", "must"}, `{"id":3,"must":1}`, `{"id":4}`)
	wantStatus(t, err, api.ReasonInvalid, "column must")
	// Log tables take no deletes and no columns.
	w.dropTable()
	w.table(idName, "")
	_, err = w.putBy(cmd(api.Command{Table: "db.t", Delete: true}), []string{"id"}, `{"id":1}`)
	wantStatus(t, err, api.ReasonInvalid, "log table")
	_, err = w.putBy(cmd(api.Command{Put: &api.Put{Bucket: w.bucket(0), SchemaID: 1}}), []string{"id", "name"}, `{"id":1}`)
	wantStatus(t, err, api.ReasonInvalid, "log table")
}

func (w *world) dropTable() {
	w.t.Helper()
	if err := w.client.DropTable(w.t.Context(), "db.t", false); err != nil {
		w.t.Fatal(err)
	}
}

// native opens a put into bucket 0 of db.t.
func (w *world) native(writer mink.WriterID, columns ...string) *put {
	w.t.Helper()
	names := columns
	if names == nil {
		names = []string{"id", "name"}
	}
	rec := w.recordOf(names)
	return w.put(cmd(api.Command{Put: &api.Put{Bucket: w.bucket(0), SchemaID: 1, Columns: columns, WriterID: writer}}), rec.Schema())
}

// One writer's upserts and deletes are applied once each, in order: of absent keys,
// sent again after a lost response, of both kinds in one batch.
func TestNativePuts(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"primary_key":["id"]`)
	writer, err := w.client.InitWriter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"id", "name"}
	sends := func(p *put, metadata any, columns []string, objects ...string) api.AppendResult {
		t.Helper()
		p.send(w.recordOf(columns, objects...), metadata)
		return mustResult[api.AppendResult](p)
	}
	p := w.native(writer.WriterID)
	if r := sends(p, api.PutMetadata{Sequence: 0}, both, `{"id":1,"name":"a"}`, `{"id":2,"name":"b"}`); r.First != 0 || r.Last != 1 || r.Duplicated {
		t.Errorf("put: %+v", r)
	}
	if r := sends(p, api.PutMetadata{Sequence: 1, Delete: true}, both, `{"id":77}`); r.Duplicated { // absent
		t.Errorf("delete of an absent key: %+v", r)
	}
	sends(p, api.PutMetadata{Sequence: 2, Changes: []byte{3, 4, 0}}, both, `{"id":3,"name":"c"}`, `{"id":1}`, `{"id":4,"name":"d"}`)
	p.finish()
	for seq := int32(3); seq < 10; seq++ {
		p = w.native(writer.WriterID, "id")
		sends(p, api.PutMetadata{Sequence: seq, Delete: true}, []string{"id"}, fmt.Sprintf(`{"id":%d}`, 100+seq))
		p.finish()
	}
	// The answers were lost: all of it again.
	p = w.native(writer.WriterID)
	if r := sends(p, api.PutMetadata{Sequence: 0}, both, `{"id":1,"name":"a"}`, `{"id":2,"name":"b"}`); !r.Duplicated {
		t.Errorf("again: %+v", r)
	}
	// A batch without rows only advances the writer.
	if r := sends(p, api.PutMetadata{Sequence: 10}, both); r.Duplicated {
		t.Errorf("without rows: %+v", r)
	}
	p.finish()
	wantRows(t, "after all", w.read(path("db", "t")), `{"id":2,"name":"b"}`, `{"id":3,"name":"c"}`, `{"id":4,"name":"d"}`)
}

// What a batch's app_metadata cannot be.
func TestPutMetadataRefused(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"primary_key":["id"],"bucket_count":3`)
	for name, c := range map[string]struct {
		writer mink.WriterID
		md     string
		text   string
	}{
		"no sequence":      {5, "", `{"sequence":...}`},
		"negative":         {5, `{"sequence":-1}`, "sequence is -1"},
		"too few changes":  {0, `{"sequence":0,"changes":"Aw=="}`, "1 bytes for 2 rows"},
		"too many changes": {0, `{"sequence":0,"changes":"AwMD"}`, "3 bytes for 2 rows"},
		"none":             {0, `{"sequence":0,"changes":""}`, "0 bytes for 2 rows"},
		"an update before": {0, `{"sequence":0,"changes":"AwI="}`, "row 1 is 2"},
		"both":             {0, `{"sequence":0,"delete":true,"changes":"BAQ="}`, "both"},
		"not base64":       {0, `{"changes":"!"}`, "app_metadata"},
		"unknown":          {0, `{"change":"AwM="}`, `"changes"`},
		"no JSON":          {0, `delete`, "JSON"},
		"another bucket":   {0, "", "belongs to bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.native(c.writer)
			rec := w.recordOf([]string{"id", "name"}, `{"id":1}`, `{"id":2}`)
			defer rec.Release()
			if err := p.out.WriteWithAppMetadata(rec, []byte(c.md)); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			_, err := result[api.AppendResult](p)
			wantStatus(t, err, api.ReasonInvalid, c.text)
		})
	}
	if n := w.count(); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// Rows of a partitioned table find their partition, which the first one creates, and
// so do deletes of keys alone. Native puts are held to theirs.
func TestPutPartitions(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"day","type":"DATE"},{"name":"id","type":"BIGINT"},{"name":"name","type":"STRING"}`, `"primary_key":["id","day"],"partition_keys":["day"],"bucket_count":2`)
	w.mustPutBy(path("db", "t"), []string{"id", "name", "day"}, `{"id":1,"day":"2026-01-01","name":"a"}`, `{"id":1,"day":"2026-01-02","name":"b"}`, `{"id":2,"day":"2026-01-02","name":"c"}`)
	w.mustPutBy(cmd(api.Command{Table: "db.t", Delete: true}), []string{"id", "day"}, `{"id":1,"day":"2026-01-02"}`)
	wantRows(t, "rows", w.read(path("db", "t")), `{"day":"2026-01-01","id":1,"name":"a"}`, `{"day":"2026-01-02","id":2,"name":"c"}`)
	wantRows(t, "one partition", w.read(cmd(api.Command{Table: "db.t", Partition: []string{"2026-01-01"}})), `{"day":"2026-01-01","id":1,"name":"a"}`)

	parts, err := w.client.ListPartitions(t.Context(), "db.t")
	if err != nil || len(parts) != 2 {
		t.Fatal(parts, err)
	}
	for i, b := range parts[0].Buckets {
		rec := w.recordOf([]string{"day", "id", "name"}, `{"id":1,"day":"2026-01-02","name":"x"}`)
		p := w.put(cmd(api.Command{Put: &api.Put{Bucket: b.Bucket, SchemaID: 1}}), rec.Schema())
		p.send(rec, nil)
		_, err := result[api.AppendResult](p)
		wantStatus(t, err, api.ReasonInvalid, "row 0 belongs to")
		if i == 1 && err == nil {
			t.Error("taken")
		}
	}
	var c api.Counts
	if err := w.action(api.ActionCount, api.CountRequest{Table: "db.t", Partition: []string{"2026-01-02"}}, &c); err != nil || c.Rows != 1 || len(c.Buckets) != 2 || c.Buckets[0].Values[0] != "2026-01-02" {
		t.Errorf("count %+v, %v", c, err)
	}
	// Keys in a partition that was never written have no row, and make none.
	var l api.LookupRows
	if err := w.action(api.ActionLookup, `{"table":"db.t","keys":[{"id":2,"day":"2026-01-02"},{"id":1,"day":"2030-01-01"}],"columns":["name"]}`, &l); err != nil {
		t.Fatal(err)
	}
	if len(l.Rows) != 2 || string(l.Rows[0]) != `{"name":"c"}` || string(l.Rows[1]) != "null" || !slices.Equal(l.Missing, []int{1}) {
		t.Errorf("lookup %s, %v", l.Rows, l.Missing)
	}
	if parts, err := w.client.ListPartitions(t.Context(), "db.t"); err != nil || len(parts) != 2 {
		t.Errorf("partitions %v, %v", parts, err)
	}
}
