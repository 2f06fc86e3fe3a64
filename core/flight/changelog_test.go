package flight_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	aflight "github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/flight"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// kindsOf checks that every batch has a kind per row, and writes them all with column
// 0 behind: "+I1 -U1".
func kindsOf(t *testing.T, batches []got) string {
	t.Helper()
	var out []string
	next := mink.Offset(-1)
	for _, b := range batches {
		if next >= 0 && b.meta.Base != next {
			t.Errorf("a batch begins at %d, want %d", b.meta.Base, next)
		}
		next = b.meta.Next
		if len(b.meta.Changes) != int(b.rows.NumRows()) {
			t.Fatalf("%d changes for %d rows: %+v", len(b.meta.Changes), b.rows.NumRows(), b.meta)
		}
		for i, c := range b.meta.Changes {
			out = append(out, mink.Change(c).String()+b.rows.Column(0).ValueStr(i))
		}
	}
	return strings.Join(out, " ")
}

// changes writes a changelog: two inserts, an update with a delete and an insert, a
// put that changes nothing.
func (w *world) changes(columns []string) {
	w.t.Helper()
	d := path("db", "t")
	w.mustPutBy(d, columns, `{"id":1,"name":"a"}`, `{"id":2,"name":"b"}`)
	w.mustPutBy(d, columns, `{"id":1,"name":"c"}`, `{"id":3,"name":"d"}`)
	w.mustPutBy(cmd(api.Command{Table: "db.t", Delete: true}), []string{"id"}, `{"id":2}`, `{"id":77}`)
}

// Scans of a changelog say what each row is, however they are cut.
func TestChangelogScan(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"primary_key":["id"]`)
	w.changes([]string{"id", "name"})
	const all = "+I1 +I2 -U1 +U1 +I3 -D2"
	b := w.bucket(0)
	if got := kindsOf(t, w.mustGet(api.Scan{Bucket: b})); got != all {
		t.Errorf("scan %s, want %s", got, all)
	}
	each := strings.Split(all, " ")
	for from := range 7 {
		for until := from; until <= 6; until++ {
			u := mink.Offset(until)
			if got := kindsOf(t, w.mustGet(api.Scan{Bucket: b, From: mink.Offset(from), Until: &u})); got != strings.Join(each[from:until], " ") {
				t.Errorf("scan of %d..%d: %s", from, until, got)
			}
			if got := kindsOf(t, w.mustGet(api.Scan{Bucket: b, From: mink.Offset(from), Limit: int64(until - from + 1)})); got != strings.Join(each[from:min(until+1, 6)], " ") {
				t.Errorf("scan from %d, limit %d: %s", from, until-from+1, got)
			}
		}
	}
	// A projection keeps the kinds, of whole batches as of parts.
	out := w.mustGet(api.Scan{Bucket: b, Columns: []string{"name"}})
	if got := kindsOf(t, out); got != "+Ia +Ib -Ua +Uc +Id -Db" {
		t.Errorf("projected %s", got)
	}
	if out[0].rows.NumCols() != 1 {
		t.Errorf("%v", out[0].rows.Schema())
	}
	if got := kindsOf(t, w.mustGet(api.Scan{Bucket: b, Columns: []string{"name", "id"}, From: 3})); got != "+Uc +Id -Db" {
		t.Errorf("projected, from 3: %s", got)
	}
	// And a reader that opened before the table was altered, and one after.
	before, _ := w.tailFrom(api.Scan{})
	if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage(`[{"op":"add_column","column":{"name":"n","type":"INT"}}]`), 1); err != nil {
		t.Fatal(err)
	}
	w.mustPutBy(path("db", "t"), []string{"id", "n"}, `{"id":3,"n":1}`)
	if got := kindsOf(t, w.mustGet(api.Scan{Bucket: b})); got != all+" -U3 +U3" {
		t.Errorf("after alter %s", got)
	}
	var seen []got
	for n := mink.Offset(0); n < 8; {
		if !before.Next() {
			t.Fatal(before.Err())
		}
		before.RecordBatch().Retain()
		seen = append(seen, got{w.metadata(before.LatestAppMetadata()), before.RecordBatch()})
		n = seen[len(seen)-1].meta.Next
	}
	if got := kindsOf(t, seen); got != all+" -U3 +U3" || seen[0].rows.NumCols() != 2 {
		t.Errorf("tail of before %s, %v", got, seen[0].rows.Schema())
	}
	// Positions by time and end are those of the changelog.
	offsets, err := w.client.ListOffsets(t.Context(), "db.t", nil, "latest")
	if err != nil || len(offsets) != 1 || offsets[0].Offset != 8 {
		t.Errorf("latest %v, %v", offsets, err)
	}
}

// For clients that see no app_metadata the kinds are a column.
func TestChangelogWithMeta(t *testing.T) {
	w := newWorld(t, func(c *flight.Config) { c.MessageBytesMax = 1 << 20 })
	w.table(idName, `"primary_key":["id"]`)
	w.changes([]string{"id", "name"})
	big := strings.Repeat("x", 600_000)
	w.mustPutBy(path("db", "t"), []string{"id", "name"}, `{"id":5,"name":"`+big+`"}`)
	w.mustPutBy(path("db", "t"), []string{"id", "name"}, `{"id":6,"name":"`+big+`"}`)
	w.mustPutBy(path("db", "t"), []string{"id", "name"}, `{"id":5,"name":"`+big[1:]+`"}`) // two rows in one batch, which go into two messages
	read := func(c api.Command) (out []string) {
		t.Helper()
		d := cmd(c)
		info, err := w.raw.GetFlightInfo(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		said, err := aflight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		s, err := w.raw.DoGet(t.Context(), info.Endpoint[0].Ticket)
		if err != nil {
			t.Fatal(err)
		}
		batches, err := w.readAll(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			if !b.rows.Schema().Equal(said) {
				t.Errorf("schema %v, the info says %v", b.rows.Schema(), said)
			}
			n := int(b.rows.NumCols())
			change, offset, at := b.rows.Column(n-3).(*array.String), b.rows.Column(n-2).(*array.Int64), b.rows.Column(n-1).(*array.Timestamp)
			for i := range int(b.rows.NumRows()) {
				if int64(at.Value(i)) != b.meta.CommitTimestamp {
					t.Errorf("timestamp %d, want %d", at.Value(i), b.meta.CommitTimestamp)
				}
				out = append(out, fmt.Sprintf("%s%s@%d", change.Value(i), b.rows.Column(0).ValueStr(i), offset.Value(i)))
			}
		}
		return out
	}
	want := []string{"+I1@0", "+I2@1", "-U1@2", "+U1@3", "+I3@4", "-D2@5", "+I5@6", "+I6@7", "-U5@8", "+U5@9"}
	if got := read(api.Command{Table: "db.t", Mode: api.ModeLog, Meta: true}); !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if got := read(api.Command{Table: "db.t", Mode: api.ModeLog, Meta: true, Columns: []string{"id"}, From: "4"}); !slices.Equal(got, want[4:]) {
		t.Errorf("read %v, want %v", got, want[4:])
	}
	if _, err := w.client.AlterTable(t.Context(), "db.t", json.RawMessage(`[{"op":"add_column","column":{"name":"n","type":"INT"}}]`), 1); err != nil {
		t.Fatal(err)
	}
	if out := w.mustGet(api.Scan{Bucket: w.bucket(0), From: 8}); len(out) != 2 || kindsOf(t, out) != "-U5 +U5" { // remapped, in two messages
		t.Errorf("%d messages: %s", len(out), kindsOf(t, out))
	}
	_, err := w.raw.GetFlightInfo(t.Context(), cmd(api.Command{Table: "db.t", Meta: true}))
	wantStatus(t, err, api.ReasonInvalid, `"mode":"log"`)
	w.dropTable()
	w.table(idName, "")
	w.mustPutBy(path("db", "t"), []string{"id", "name"}, `{"id":1}`, `{"id":2}`)
	if got := read(api.Command{Table: "db.t", Meta: true}); !slices.Equal(got, []string{"+A1@0", "+A2@1"}) {
		t.Errorf("log table: %v", got)
	}
}

// With image wal a deleted row has its key alone: the schema lets the rest be null.
func TestChangelogOfImageWAL(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"id","type":"BIGINT"},{"name":"name","type":"STRING NOT NULL"},{"name":"n","type":"INT"}`, `"primary_key":["id"],"options":{"changelog_image":"wal"}`)
	w.changes([]string{"id", "name", "n"})
	const all = "+U1 +U2 +U1 +U3 -D2"
	batches := w.mustGet(api.Scan{Bucket: w.bucket(0)})
	if got := kindsOf(t, batches); got != all {
		t.Errorf("scan %s, want %s", got, all)
	}
	last := batches[len(batches)-1].rows
	if last.Schema().Field(0).Nullable || !last.Schema().Field(1).Nullable || last.Column(1).NullN() != 1 {
		t.Errorf("deletes: %v", last)
	}
	if got := kindsOf(t, w.mustGet(api.Scan{Bucket: w.bucket(0), Columns: []string{"id"}, From: 3})); got != "+U3 -D2" {
		t.Errorf("projected %s", got)
	}
	for _, c := range []struct {
		c        api.Command
		nullable bool
	}{{api.Command{Table: "db.t"}, false}, {api.Command{Table: "db.t", Mode: api.ModeLog}, true}} {
		res, err := w.raw.GetSchema(t.Context(), cmd(c.c))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := aflight.DeserializeSchema(res.Schema, memory.DefaultAllocator); err != nil || s.Field(1).Nullable != c.nullable {
			t.Errorf("%+v: %v, %v", c.c, s, err)
		}
	}
	if n := w.count(); n != 2 {
		t.Errorf("count %d", n)
	}
}

// A snapshot and the changelog from its offset make the table of any later time,
// while others write.
func TestSnapshotThenTail(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"primary_key":["id"]`)
	const rounds, keys = 40, 25
	var writer sync.WaitGroup
	p := w.put(path("db", "t"), idNameSchema)
	half := make(chan struct{})
	writer.Go(func() {
		for round := range rounds {
			b := array.NewRecordBuilder(memory.DefaultAllocator, idNameSchema)
			for k := range keys {
				b.Field(0).(*array.Int64Builder).Append(int64(k * (round%3 + 1)))
				b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("%d of %d", k, round))
			}
			p.send(b.NewRecordBatch(), nil)
			b.Release()
			if round == rounds/2 {
				close(half)
			}
		}
		_ = p.stream.CloseSend()
	})
	<-half
	rows, md := w.readTicket(api.JSON(api.Ticket{Snapshot: &api.Snapshot{Bucket: w.bucket(0)}}))
	writer.Wait()
	for {
		if _, err := p.stream.Recv(); err != nil {
			break
		}
	}
	state := map[int64]string{}
	for _, text := range rows {
		var r struct {
			ID   int64
			Name string
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		state[r.ID] = r.Name
	}
	changes := 0
	for _, b := range w.mustGet(api.Scan{Bucket: w.bucket(0), From: md.LogOffset}) {
		id, name := b.rows.Column(0).(*array.Int64), b.rows.Column(1).(*array.String)
		for i, c := range b.meta.Changes {
			changes++
			was, known := state[id.Value(i)]
			switch mink.Change(c) {
			case mink.ChangeInsert:
				if known {
					t.Errorf("key %d is inserted, and was there", id.Value(i))
				}
				state[id.Value(i)] = name.Value(i)
			case mink.ChangeUpdateBefore:
				if was != name.Value(i) {
					t.Errorf("key %d was %q, not %q", id.Value(i), was, name.Value(i))
				}
			case mink.ChangeUpdateAfter:
				state[id.Value(i)] = name.Value(i)
			default:
				t.Errorf("change %s", mink.Change(c))
			}
		}
	}
	var want []string
	for id, name := range state {
		want = append(want, fmt.Sprintf(`{"id":%d,"name":"%s"}`, id, name))
	}
	slices.Sort(want)
	wantRows(t, fmt.Sprintf("snapshot at %d and %d changes", md.LogOffset, changes), w.read(path("db", "t")), want...)
}

// What merge engines and delete behaviours refuse names the row, and nothing of the
// batch is applied.
func TestRefusedRowsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		rest    string
		command api.Command
		columns []string
		text    []string
	}{
		"delete disabled":  {`"options":{"delete_behavior":"disable"}`, api.Command{Delete: true}, []string{"id"}, []string{"row 0", "delete"}},
		"auto increment":   {``, api.Command{}, []string{"id", "num"}, []string{"num"}},
		"partial of first": {`"options":{"merge_engine":"first_row"}`, api.Command{Columns: []string{"name"}}, []string{"id", "name"}, []string{"first_row"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			rest := `"primary_key":["id"]`
			if c.rest != "" {
				rest += "," + c.rest
			}
			w.table(idName+`,{"name":"x","type":"INT"},{"name":"num","type":"BIGINT NOT NULL","auto_increment":true}`, rest)
			c.command.Table = "db.t"
			_, err := w.putBy(cmd(c.command), c.columns, `{"id":1,"num":5}`)
			for _, text := range c.text {
				wantStatus(t, err, api.ReasonInvalid, text)
			}
			if n := w.count(); n != 0 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

// Merge engines that know whole rows only get whole rows from a client that leaves a
// nullable column out.
func TestPutByPathOfWholeRows(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"id","type":"BIGINT"},{"name":"v","type":"INT"},{"name":"name","type":"STRING"},{"name":"num","type":"BIGINT","auto_increment":true}`, `"primary_key":["id"],"options":{"merge_engine":"versioned:v"}`)
	w.mustPutBy(path("db", "t"), []string{"id", "v", "name"}, `{"id":1,"v":5,"name":"a"}`)
	w.mustPutBy(path("db", "t"), []string{"id", "v"}, `{"id":1,"v":4}`)
	wantRows(t, "an older version", w.read(cmd(api.Command{Table: "db.t", Columns: []string{"id", "name", "v"}})), `{"id":1,"name":"a","v":5}`)
	w.mustPutBy(path("db", "t"), []string{"id", "v"}, `{"id":1,"v":6}`)
	wantRows(t, "a newer version", w.read(cmd(api.Command{Table: "db.t", Columns: []string{"id", "name", "v"}})), `{"id":1,"v":6}`)
	var l api.LookupRows
	if err := w.action(api.ActionLookup, `{"table":"db.t","keys":[{"id":1}]}`, &l); err != nil || !strings.Contains(string(l.Rows[0]), `"num":1`) {
		t.Errorf("%s, %v", l.Rows, err)
	}
}
