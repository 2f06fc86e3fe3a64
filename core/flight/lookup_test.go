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

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/core/tablet/kv"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// putSeen is a put that reached a store.
type putSeen struct{ put kv.Put }

type seeingKV struct {
	flight.KV
	seen *[]putSeen
}

func (s seeingKV) Put(ctx context.Context, p kv.Put) (flight.Pending, error) {
	done, err := s.KV.Put(ctx, p)
	if err == nil {
		p.Metadata, p.Body = nil, nil
		*s.seen = append(*s.seen, putSeen{p})
	}
	return done, err
}

// seeing notes the puts that were taken.
func seeing(to *[]putSeen) func(flight.KV) (flight.KV, error) {
	return func(store flight.KV) (flight.KV, error) { return seeingKV{store, to}, nil }
}

// brokenKV answers lookups and counts with an error, and then no more.
type brokenKV struct {
	flight.KV
	err *error
}

func (b brokenKV) Count(ctx context.Context) (int64, error) {
	if err := *b.err; err != nil {
		*b.err = nil
		return 0, err
	}
	return b.KV.Count(ctx)
}

// Keys of every type are written in JSON as rows are, and found; other keys of the
// same form are not.
func TestLookupByEveryType(t *testing.T) {
	for _, c := range []struct{ typ, value, other string }{
		{"BOOLEAN", `true`, `false`},
		{"TINYINT", `-128`, `"127"`},
		{"SMALLINT", `-32768`, `0`},
		{"INT", `2147483647`, `1e3`},
		{"BIGINT", `9223372036854775807`, `"9223372036854775806"`},
		{"FLOAT", `0.5`, `"NaN"`},
		{"DOUBLE", `"-Inf"`, `-0.25`},
		{"DECIMAL(38,10)", `"1234567890123456789012345678.0123456789"`, `0`},
		{"CHAR(3)", `"ab"`, `"abc"`},
		{"STRING", `"\u00e9\u0000x"`, `""`},
		{"BINARY(2)", `"AAE="`, `"AAI="`},
		{"BYTES", `"AP8B"`, `""`},
		{"DATE", `"2026-01-31"`, `"0001-01-01"`},
		{"TIME(3)", `"07:05:00.123"`, `"07:05"`},
		{"TIME(9)", `"23:59:59.999999999"`, `"00:00:00"`},
		{"TIMESTAMP(6)", `"2026-01-31T07:05:00.123456"`, `"2026-01-31"`},
		{"TIMESTAMP_LTZ(0)", `"2026-01-31T07:05:00+01:00"`, `"2026-01-31T07:05:00Z"`},
	} {
		t.Run(c.typ, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.table(`{"name":"k","type":"`+c.typ+`"},{"name":"v","type":"STRING"}`, `"primary_key":["k"],"bucket_count":3`)
			// A row with this key: what a lookup of it says is missing is put by the same text.
			rows := w.jsonRecord([]string{"k", "v"}, `{"k":`+c.value+`,"v":"here"}`)
			p := w.put(path("db", "t"), rows.Schema())
			p.send(rows, nil)
			mustResult[api.PutResult](p)
			p.finish()
			var l api.LookupRows
			if err := w.action(api.ActionLookup, `{"table":"db.t","keys":[{"k":`+c.other+`},{"k":`+c.value+`}]}`, &l); err != nil {
				t.Fatal(err)
			}
			if len(l.Rows) != 2 || string(l.Rows[0]) != "null" || !strings.Contains(string(l.Rows[1]), `"here"`) || !slices.Equal(l.Missing, []int{0}) {
				t.Errorf("lookup %s, %v", l.Rows, l.Missing)
			}
			// What a row says is its key finds it again.
			var row map[string]json.RawMessage
			if err := json.Unmarshal(l.Rows[1], &row); err != nil {
				t.Fatal(err)
			}
			var again api.LookupRows
			if err := w.action(api.ActionLookup, api.Lookup{Table: "db.t", Keys: []json.RawMessage{api.JSON(map[string]json.RawMessage{"k": row["k"]})}}, &again); err != nil || len(again.Missing) != 0 {
				t.Errorf("again: %s, %v", again.Rows, err)
			}
		})
	}
}

func TestLookupRefused(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.MessageBytesMax = 1 << 20 })
	w.table(itemColumns, itemKey)
	for _, c := range []struct{ action, body, reason, text string }{
		{api.ActionLookup, `{"table":"db.t","keys":[{"shop":"a"}]}`, api.ReasonInvalid, `"id"`},
		{api.ActionLookup, `{"table":"db.t","keys":[{"shop":"a","id":1},{"shop":"a","id":1.5}]}`, api.ReasonInvalid, `keys[1]`},
		{api.ActionLookup, `{"table":"db.t","keys":[{"shop":"a","id":1,"n":1}]}`, api.ReasonInvalid, `"n"`},
		{api.ActionLookup, `{"table":"db.t","keys":[{"shop":null,"id":1}]}`, api.ReasonInvalid, `"shop"`},
		{api.ActionLookup, `{"table":"db.t","keys":[7]}`, api.ReasonInvalid, `keys[0]`},
		{api.ActionLookup, `{"table":"db.t","keys":{"id":7}}`, api.ReasonInvalid, `keys`},
		{api.ActionLookup, `{"table":"db.t","keys":[],"columns":["prise"]}`, api.ReasonInvalid, `"price"`},
		{api.ActionLookup, `{"table":"db.t","keys":[` + strings.Repeat("{},", 10_000) + `{}]}`, api.ReasonTooLarge, "10001 keys"},
		{api.ActionLookup, `{"table":"db.u","keys":[]}`, api.ReasonNotExist, "db.u"},
		{api.ActionPrefixLookup, `{"table":"db.t","prefix":{"id":1}}`, api.ReasonInvalid, `"shop"`},
		{api.ActionPrefixLookup, `{"table":"db.t","prefix":{"shop":"a","n":1}}`, api.ReasonInvalid, `shop, id`},
		{api.ActionPrefixLookup, `{"table":"db.t","prefix":{"shop":"a"},"limit":1001}`, api.ReasonInvalid, "limit"},
		{api.ActionPrefixLookup, `{"table":"db.t","prefix":["a"]}`, api.ReasonInvalid, "object"},
		{api.ActionPrefixLookup, `{"table":"db.t"}`, api.ReasonInvalid, "object"},
		{api.ActionPrefixLookup, `{"table":"db.t","prefix":{"shop":1}}`, api.ReasonInvalid, `"shop"`},
		{api.ActionCount, `{"table":"db.t","partition":["x"]}`, api.ReasonInvalid, "partition"},
	} {
		t.Run(c.action+" "+c.body[:min(len(c.body), 60)], func(t *testing.T) {
			wantStatus(t, w.action(c.action, c.body, nil), c.reason, c.text)
		})
	}
	// Rows that do not fit into an answer.
	w.mustPutBy(path("db", "t"), []string{"shop", "id", "name"},
		`{"shop":"a","id":1,"name":"`+strings.Repeat("x", 600_000)+`"}`)
	w.mustPutBy(path("db", "t"), []string{"shop", "id", "name"},
		`{"shop":"a","id":2,"name":"`+strings.Repeat("y", 600_000)+`"}`)
	wantStatus(t, w.action(api.ActionLookup, `{"table":"db.t","keys":[{"shop":"a","id":1},{"shop":"a","id":2}]}`, nil), api.ReasonTooLarge, "fewer keys")
	var p api.PrefixRows
	if err := w.action(api.ActionPrefixLookup, `{"table":"db.t","prefix":{"shop":"a"}}`, &p); err != nil || len(p.Rows) != 1 || !p.More {
		t.Errorf("prefix: %d rows, more %v, %v", len(p.Rows), p.More, err)
	}
	w.dropTable()
	w.table(idName, "")
	for action, body := range map[string]string{api.ActionLookup: `{"table":"db.t","keys":[{"id":1}]}`, api.ActionPrefixLookup: `{"table":"db.t","prefix":{"id":1}}`, api.ActionCount: `{"table":"db.t"}`} {
		wantStatus(t, w.action(action, body, nil), api.ReasonInvalid, "log table")
	}
}

func TestPrefixLookup(t *testing.T) {
	w := newWorld(t)
	w.table(itemColumns, itemKey)
	var rows []string
	for i := range 30 {
		rows = append(rows, fmt.Sprintf(`{"shop":"a","id":%d}`, 29-i), fmt.Sprintf(`{"shop":"ab","id":%d}`, i))
	}
	w.mustPutBy(path("db", "t"), []string{"shop", "id"}, rows...)
	get := func(body string) api.PrefixRows {
		t.Helper()
		var p api.PrefixRows
		if err := w.action(api.ActionPrefixLookup, body, &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := get(`{"table":"db.t","prefix":{"shop":"a"},"columns":["id"]}`); len(p.Rows) != 30 || p.More || string(p.Rows[0]) != `{"id":0}` || string(p.Rows[29]) != `{"id":29}` {
		t.Errorf("prefix %s, %v", p.Rows, p.More)
	}
	if p := get(`{"table":"db.t","prefix":{"shop":"a"},"limit":7}`); len(p.Rows) != 7 || !p.More {
		t.Errorf("with limit %s, %v", p.Rows, p.More)
	}
	if p := get(`{"table":"db.t","prefix":{"shop":"a"},"limit":30}`); len(p.Rows) != 30 || p.More {
		t.Errorf("with a limit that is enough %s, %v", p.Rows, p.More)
	}
	if p := get(`{"table":"db.t","prefix":{"id":5,"shop":"ab"}}`); len(p.Rows) != 1 || p.More {
		t.Errorf("whole key %s, %v", p.Rows, p.More)
	}
	if p := get(`{"table":"db.t","prefix":{"shop":"nothing"}}`); len(p.Rows) != 0 || p.More {
		t.Errorf("no row %s, %v", p.Rows, p.More)
	}
}

// Snapshots, ranges and prefixes of one bucket come in the order of their keys, as of
// one moment, with the place where the changelog goes on.
func TestReadsByKey(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.ReadBytes = 100 })
	w.table(`{"name":"a","type":"INT"},{"name":"v","type":"STRING"},{"name":"b","type":"STRING"}`, `"primary_key":["a","b"],"bucket_count":1`)
	var rows []string
	for a := range 5 {
		for _, b := range []string{"x", "", "\u0001", "y"} {
			rows = append(rows, string(api.JSON(map[string]any{"a": a - 2, "b": b, "v": "v"})))
		}
	}
	w.mustPutBy(path("db", "t"), []string{"a", "b", "v"}, rows...)
	b := w.bucket(0)
	id := string(api.JSON(b))
	for _, c := range []struct{ ticket, want string }{
		{`{"snapshot":{"bucket":` + id + `,"columns":["a","b"],"limit":3}}`, "-2/ -2/\u0001 -2/x"},
		{`{"range":{"bucket":` + id + `,"from":{"a":1},"to":{"a":2}}}`, "1/ 1/\u0001 1/x 1/y"},
		{`{"range":{"bucket":` + id + `,"from":{"a":1,"b":"x"},"to":{"a":2,"b":"x"}}}`, "1/x 1/y 2/ 2/\u0001"},
		{`{"range":{"bucket":` + id + `,"to":{"a":-1},"limit":2}}`, "-2/ -2/\u0001"},
		{`{"range":{"bucket":` + id + `,"from":{"a":2,"b":"y"}}}`, "2/y"},
		{`{"range":{"bucket":` + id + `,"from":{"a":2},"to":{"a":1}}}`, ""},
		{`{"prefix":{"bucket":` + id + `,"key":{"a":0}}}`, "0/ 0/\u0001 0/x 0/y"},
		{`{"prefix":{"bucket":` + id + `,"key":{"a":0,"b":""}}}`, "0/"},
		{`{"prefix":{"bucket":` + id + `,"key":{"a":7}}}`, ""},
	} {
		got, md := w.readTicket([]byte(c.ticket))
		var keys []string
		for _, text := range got {
			var r struct {
				A int
				B string
			}
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, fmt.Sprintf("%d/%s", r.A, r.B))
		}
		if strings.Join(keys, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.ticket, strings.Join(keys, " "), c.want)
		}
		if md.LogOffset != 20 || md.SchemaID != 1 {
			t.Errorf("%s: metadata %+v", c.ticket, md)
		}
	}
	all, _ := w.readTicket(api.JSON(api.Ticket{Snapshot: &api.Snapshot{Bucket: b}}))
	if len(all) != 20 {
		t.Errorf("snapshot has %d rows", len(all))
	}
	for _, c := range []struct{ ticket, reason, text string }{
		{`{"range":{"bucket":` + id + `,"from":{"b":"x"}}}`, api.ReasonInvalid, "range: from"},
		{`{"range":{"bucket":` + id + `,"to":{"a":1,"v":"x"}}}`, api.ReasonInvalid, "range: to"},
		{`{"range":{"bucket":` + id + `,"to":{"a":"x"}}}`, api.ReasonInvalid, "range: to"},
		{`{"range":{"bucket":` + id + `,"to":null}}`, api.ReasonInvalid, "object"},
		{`{"prefix":{"bucket":` + id + `}}`, api.ReasonInvalid, "prefix: key"},
		{`{"prefix":{"bucket":` + id + `,"key":[1]}}`, api.ReasonInvalid, "prefix: key"},
		{`{"snapshot":{"bucket":` + id + `,"limit":-1}}`, api.ReasonInvalid, "limit"},
		{`{"snapshot":{"bucket":` + id + `,"columns":["w"]}}`, api.ReasonInvalid, `"w"`},
		{`{"snapshot":{"bucket":` + id + `},"scan":{"bucket":` + id + `}}`, api.ReasonInvalid, "has 2"},
		{`{"snapshot":{"bucket":{"table_id":99,"partition_id":1,"bucket":0}}}`, api.ReasonNotExist, "99"},
		{`{"snapshot":{}}`, api.ReasonNotExist, "0"},
	} {
		_, _, err := w.tryTicket([]byte(c.ticket))
		t.Run(c.ticket, func(t *testing.T) { wantStatus(t, err, c.reason, c.text) })
	}
}

// A reader keeps the schema it opened with while the table is altered, and a writer
// that does not know a new column leaves it alone.
func TestAlterUnderPrimaryKey(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"primary_key":["id"]`)
	w.mustPutBy(path("db", "t"), []string{"id", "name"}, `{"id":1,"name":"a"}`)
	if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage(`[{"op":"add_column","column":{"name":"n","type":"INT"}},{"op":"rename_column","name":"name","to":"title"}]`), 1); err != nil {
		t.Fatal(err)
	}
	wantRows(t, "after add", w.read(path("db", "t")), `{"id":1,"title":"a"}`)
	w.mustPutBy(cmd(api.Command{Table: "db.t", Columns: []string{"n"}}), []string{"id", "n"}, `{"id":1,"n":7}`)
	wantRows(t, "after a partial update", w.read(path("db", "t")), `{"id":1,"n":7,"title":"a"}`)
	// By a client of before, under its schema version.
	rec := w.recordOf([]string{"id", "title"}, `{"id":1,"title":"b"}`)
	as := arrow.NewSchema([]arrow.Field{rec.Schema().Field(0), {Name: "name", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	p := w.put(cmd(api.Command{Put: &api.Put{Bucket: w.bucket(0), SchemaID: 1, Columns: []string{"id", "name"}}}), as)
	p.send(array.NewRecordBatch(as, rec.Columns(), 1), nil)
	mustResult[api.AppendResult](p)
	p.finish()
	rec.Release()
	w.mustPutBy(path("db", "t"), []string{"id", "title"}, `{"id":1,"title":"c"}`)
	wantRows(t, "after puts without the new column", w.read(path("db", "t")), `{"id":1,"n":7,"title":"c"}`)

	// A stream of lookups that was open before goes on as it was.
	x := w.lookups(api.LookupStream{Table: "db.t"}, "id")
	x.send(1)
	if rows, _ := x.next(); len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
	if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage(`[{"op":"add_column","column":{"name":"m","type":"INT"}},{"op":"rename_column","name":"title","to":"x"}]`), 2); err != nil {
		t.Fatal(err)
	}
	x.send(1)
	if rows, _ := x.next(); len(rows) != 1 || rows[0] != `{"id":1,"n":7,"title":"c"}` {
		t.Errorf("rows %v", rows)
	}
	// Until it cannot.
	for i, change := range []string{`{"op":"modify_column","name":"n","type":"BIGINT"}`, `{"op":"drop_column","name":"n"}`} {
		x := w.lookups(api.LookupStream{Table: "db.t"}, "id")
		x.send(1)
		if rows, _ := x.next(); len(rows) != 1 {
			t.Errorf("rows %v", rows)
		}
		if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage("["+change+"]"), mink.SchemaID(3+i)); err != nil {
			t.Fatal(err)
		}
		x.send(1)
		_, err := x.try()
		wantStatus(t, err, api.ReasonUnavailable, "")
	}
}

// exchange is a stream of lookups.
type exchange struct {
	t      testing.TB
	schema *arrow.Schema
	stream aflight.FlightService_DoExchangeClient
	out    *aflight.Writer
	in     *aflight.Reader
}

// lookups opens a stream of lookups by BIGINT columns.
func (w *world) lookups(l api.LookupStream, columns ...string) *exchange {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	s, err := w.raw.DoExchange(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	x := &exchange{t: w.t, stream: s}
	var fields []arrow.Field
	for _, c := range columns {
		fields = append(fields, arrow.Field{Name: c, Type: arrow.PrimitiveTypes.Int64})
	}
	x.schema = arrow.NewSchema(fields, nil)
	x.out = aflight.NewRecordWriter(s, ipc.WithSchema(x.schema))
	x.out.SetFlightDescriptor(cmd(api.Exchange{Lookup: &l}))
	return x
}

func (x *exchange) send(keys ...int64) {
	x.t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, x.schema)
	defer b.Release()
	for i := range x.schema.NumFields() {
		b.Field(i).(*array.Int64Builder).AppendValues(keys, nil)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	if err := x.out.Write(rec); err != nil && !errors.Is(err, io.EOF) {
		x.t.Fatal(err)
	}
}

// try receives the answer of one batch, whose messages it counts in md.Keys.
func (x *exchange) try() (rows []string, err error) {
	rows, _, _, err = x.recv()
	return rows, err
}

func (x *exchange) recv() (rows []string, md api.LookupMetadata, messages int, err error) {
	x.t.Helper()
	for more := true; more; messages++ {
		rec, metadata, err := x.message()
		if err != nil {
			return rows, md, messages, err
		}
		md = api.LookupMetadata{}
		if err := json.Unmarshal(metadata, &md); err != nil {
			x.t.Fatal(err)
		}
		rows = append(rows, objectsOf(x.t, rec)...)
		more = md.More
	}
	return rows, md, messages, nil
}

// message is one message of an answer.
func (x *exchange) message() (rec arrow.RecordBatch, metadata []byte, err error) {
	x.t.Helper()
	if x.in == nil {
		if x.in, err = aflight.NewRecordReader(x.stream); err != nil {
			return nil, nil, err
		}
		x.t.Cleanup(x.in.Release)
	}
	if !x.in.Next() {
		return nil, nil, firstErr(x.in.Err(), io.EOF)
	}
	return x.in.RecordBatch(), x.in.LatestAppMetadata(), nil
}

func firstErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (x *exchange) next() ([]string, api.LookupMetadata) {
	x.t.Helper()
	rows, md, _, err := x.recv()
	if err != nil {
		x.t.Fatal(err)
	}
	return rows, md
}

// Batches of keys are sent ahead and answered in order, by the table and by a bucket.
func TestLookupStream(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"primary_key":["id"],"bucket_count":3`)
	var rows []string
	for i := range 300 {
		rows = append(rows, fmt.Sprintf(`{"id":%d,"name":"n%d"}`, 2*i, 2*i))
	}
	w.mustPutBy(path("db", "t"), []string{"id", "name"}, rows...)
	x := w.lookups(api.LookupStream{Table: "db.t"}, "id")
	for batch := range int64(5) {
		keys := make([]int64, 256)
		for i := range keys {
			keys[i] = (batch*31 + int64(i)*7) % 700 // odd ones, and those from 600 on, have no row
		}
		x.send(keys...)
	}
	x.send()
	for batch := range int64(5) {
		got, md := x.next()
		var want []string
		var missing []int32
		for i := range int64(256) {
			if k := (batch*31 + i*7) % 700; k%2 == 0 && k < 600 {
				want = append(want, fmt.Sprintf(`{"id":%d,"name":"n%d"}`, k, k))
			} else {
				missing = append(missing, int32(i))
			}
		}
		if md.Keys != 256 || !slices.Equal(md.Missing, missing) || !slices.Equal(got, want) {
			t.Fatalf("batch %d: %+v\n%v\nwant %v\n%v", batch, md, got, missing, want)
		}
	}
	if got, md := x.next(); len(got) != 0 || md.Keys != 0 || md.Missing != nil {
		t.Errorf("no keys: %v, %+v", got, md)
	}
	if err := x.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.try(); !errors.Is(err, io.EOF) {
		t.Errorf("end: %v", err)
	}

	// Of one bucket, some columns: what lies in another is missing here.
	found := 0
	for i := range int32(3) {
		b := w.bucket(i)
		x := w.lookups(api.LookupStream{Bucket: &b, Columns: []string{"name"}}, "id")
		x.send(0, 2, 4, 6, 8)
		got, md := x.next()
		found += len(got)
		if len(got)+len(md.Missing) != 5 || len(got) > 0 && strings.Contains(got[0], "id") {
			t.Errorf("bucket %d: %v, %+v", i, got, md)
		}
		_ = x.stream.CloseSend()
	}
	if found != 5 {
		t.Errorf("%d rows in all buckets", found)
	}
}

// Rows that do not fit into one message come in several, many keys in steps.
func TestLookupStreamInParts(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.MessageBytesMax = 1 << 20 })
	w.table(idName, `"primary_key":["id"],"bucket_count":2`)
	for i := range 3 {
		w.mustPutBy(path("db", "t"), []string{"id", "name"}, fmt.Sprintf(`{"id":%d,"name":"%s"}`, i, strings.Repeat("x", 600_000)))
	}
	x := w.lookups(api.LookupStream{Table: "db.t"}, "id")
	x.send(0, 9, 2, 1)
	rows, md, messages, err := x.recv()
	if err != nil || len(rows) != 3 || messages < 2 || md.Keys != 4 || !slices.Equal(md.Missing, []int32{1}) {
		t.Errorf("%d rows in %d messages, %+v, %v", len(rows), messages, md, err)
	}
	keys := make([]int64, 3000)
	for i := range keys {
		keys[i] = int64(i) + 10
	}
	keys[2999] = 0
	x.send(keys...)
	rows, md, messages, err = x.recv()
	if err != nil || len(rows) != 1 || messages != 3 || len(md.Missing) != 2999 || md.Missing[2998] != 2998 {
		t.Errorf("%d rows in %d messages, %d missing, %v", len(rows), messages, len(md.Missing), err)
	}
}

func TestLookupStreamRefused(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"day","type":"BIGINT"},{"name":"id","type":"BIGINT"},{"name":"x","type":"BIGINT"}`, `"primary_key":["day","id"],"partition_keys":["day"]`)
	b := mink.BucketRef{Table: 99, Partition: 1}
	for name, c := range map[string]struct {
		l            api.LookupStream
		columns      []string
		reason, text string
	}{
		"neither":       {api.LookupStream{}, []string{"id"}, api.ReasonInvalid, "either"},
		"both":          {api.LookupStream{Table: "db.t", Bucket: &b}, []string{"id"}, api.ReasonInvalid, "either"},
		"no table":      {api.LookupStream{Table: "db.x"}, []string{"id"}, api.ReasonNotExist, "db.x"},
		"no bucket":     {api.LookupStream{Bucket: &b}, []string{"id"}, api.ReasonNotExist, "99"},
		"columns":       {api.LookupStream{Table: "db.t", Columns: []string{"y"}}, []string{"id"}, api.ReasonInvalid, `"y"`},
		"part of a key": {api.LookupStream{Table: "db.t"}, []string{"id"}, api.ReasonInvalid, `"day"`},
		"more":          {api.LookupStream{Table: "db.t"}, []string{"day", "id", "x"}, api.ReasonInvalid, `"x" is not in the primary key`},
		"twice":         {api.LookupStream{Table: "db.t"}, []string{"day", "id", "id"}, api.ReasonInvalid, `"id"`},
	} {
		t.Run(name, func(t *testing.T) {
			x := w.lookups(c.l, c.columns...)
			x.send(1)
			_, err := x.try()
			wantStatus(t, err, c.reason, c.text)
		})
	}
	for _, body := range []string{`{}`, `{"scan":{"bucket":{"table_id":1,"partition_id":1,"bucket":0}},"lookup":{"table":"db.t"}}`, `{"snapshot":{}}`} {
		s, err := w.raw.DoExchange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&aflight.FlightData{FlightDescriptor: &aflight.FlightDescriptor{Type: aflight.DescriptorCMD, Cmd: []byte(body)}}); err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		wantStatus(t, err, api.ReasonInvalid, "")
	}
}

// A store that is closed between two calls is opened again; one that does not open is
// not waited for longer than a caller waits, or the node.
func TestStoresThatAreClosed(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.ThrottleWait = 1500 * time.Millisecond })
	w.table(itemColumns, itemKey)
	w.mustPutBy(path("db", "t"), []string{"shop", "id"}, `{"shop":"a","id":1}`)
	idle := fmt.Errorf("nobody used it: %w", mink.ErrClosed)
	w.backend.throughKV(func(store flight.KV) (flight.KV, error) { return brokenKV{store, &idle}, nil })
	if n := w.count(); n != 1 || idle != nil {
		t.Errorf("count %d, %v", n, idle)
	}
	// It never opens.
	hang := make(chan struct{})
	defer close(hang)
	w.backend.hangKV(hang)
	lookup := `{"table":"db.t","keys":[{"shop":"a","id":1}]}`
	wantStatus(t, w.action(api.ActionLookup, lookup, nil), api.ReasonUnavailable, "being opened")
	_, err := w.putBy(path("db", "t"), []string{"shop", "id"}, `{"shop":"a","id":1}`)
	wantStatus(t, err, api.ReasonUnavailable, "being opened")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s, err := w.raw.DoAction(ctx, &aflight.Action{Type: api.ActionLookup, Body: []byte(lookup)})
	if err == nil {
		_, err = s.Recv()
	}
	if err == nil || ctx.Err() == nil {
		t.Errorf("a call with a deadline: %v", err)
	}
	// Nobody leads it.
	w.backend.hangKV(nil)
	w.backend.fail(&mink.NotLeaderError{Bucket: w.bucket(0), Leader: 2, Address: "elsewhere:1", Epoch: 3})
	if md := wantStatus(t, w.action(api.ActionLookup, lookup, nil), api.ReasonNotLeader, "node 2"); md["address"] != "elsewhere:1" {
		t.Errorf("metadata %v", md)
	}
	w.backend.fail(nil)
}

// Every batch is released, whatever ends a call.
func TestNothingLeaks(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	back := flight.SetAllocator(mem)
	t.Cleanup(func() {
		mem.AssertSize(t, 0)
		back()
	})
	w := newWorld(t, func(c *flight.Config) { c.ReadBytes = 1000 })
	w.table(itemColumns, itemKey)
	var rows []string
	for i := range 200 {
		rows = append(rows, fmt.Sprintf(`{"shop":"s%d","id":%d,"name":"n","price":"1.00","n":1}`, i%7, i))
	}
	all := []string{"n", "shop", "id", "name", "price"}
	w.mustPutBy(path("db", "t"), all, rows...)
	w.mustPutBy(cmd(api.Command{Table: "db.t", Columns: []string{"n"}}), all, rows...)
	w.mustPutBy(cmd(api.Command{Table: "db.t", Delete: true, Columns: []string{"n"}}), []string{"shop", "id"}, `{"shop":"s0","id":0}`)
	if _, err := w.putBy(path("db", "t"), all, `{"shop":"a","name":"b"}`); err == nil {
		t.Error("a null key was taken")
	}
	if n := len(w.read(path("db", "t"))); n != 200 {
		t.Errorf("%d rows", n)
	}
	w.readTicket(api.JSON(api.Ticket{Prefix: &api.KeyPrefix{Bucket: w.bucket(0), Key: json.RawMessage(`{"shop":"s1"}`), Limit: 3}}))
	for _, body := range []string{
		`{"table":"db.t","keys":[{"shop":"s1","id":1},{"shop":"s2","id":2},{"shop":"s3","id":4}]}`, `{"table":"db.t","keys":[{"shop":"s1","id":1},{"shop":"s2"}]}`,
	} {
		_ = w.action(api.ActionLookup, body, nil)
	}
	_ = w.action(api.ActionPrefixLookup, `{"table":"db.t","prefix":{"shop":"s1"},"limit":2}`, nil)
	// A reader that goes away in the middle.
	ctx, cancel := context.WithCancel(t.Context())
	s, err := w.raw.DoGet(ctx, &aflight.Ticket{Ticket: api.JSON(api.Ticket{Snapshot: &api.Snapshot{Bucket: w.bucket(0)}})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
}
