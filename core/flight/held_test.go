package flight_test

import (
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/sdk/client"
)

// Case 9 of real systems: rows that were returned pointed into memory that the next
// poll took. Rows that a reader retains stay what they were while it reads on, lists
// among them: of a scan, of the rows of a table, of a lookup.
func TestHeldRowsStayWhatTheyWere(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"id","type":"BIGINT"},{"name":"tags","type":"ARRAY<STRING>"},{"name":"n","type":"ARRAY<INT>"}`, `"primary_key":["id"],"bucket_count":1`)
	columns := []string{"id", "tags", "n"}
	const batches, rows = 20, 30
	for b := range batches {
		var objects []string
		for k := range rows {
			id := b*rows + k
			objects = append(objects, fmt.Sprintf(`{"id":%d,"tags":["a%d","b%d",null],"n":[%d,%d]}`, id, id, id*id, id, -id))
		}
		w.mustPutBy(path("db", "t"), columns, objects...)
	}
	type held struct {
		rec  arrow.RecordBatch
		text string
	}
	text := func(rec arrow.RecordBatch) string {
		out, err := rec.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	check := func(what string, all []held, want int64) {
		t.Helper()
		n := int64(0)
		for i, h := range all {
			if got := text(h.rec); got != h.text {
				t.Errorf("%s: batch %d was %s and became %s", what, i, h.text, got)
			}
			n += h.rec.NumRows()
			h.rec.Release()
		}
		if n != want || len(all) < 2 {
			t.Errorf("%s: %d rows of %d in %d batches", what, n, want, len(all))
		}
	}
	ctx := t.Context()
	var log, table, looked []held
	hold := func(into *[]held, rec arrow.RecordBatch) {
		rec.Retain()
		*into = append(*into, held{rec, text(rec)})
	}
	for b, err := range w.client.Scan(ctx, client.ScanRequest{Table: "db.t", Bucket: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		hold(&log, b.Record)
	}
	for range 2 { // a table that is small comes in one batch
		for b, err := range w.client.ScanSnapshot(ctx, client.SnapshotRequest{Table: "db.t", Bucket: -1}) {
			if err != nil {
				t.Fatal(err)
			}
			hold(&table, b.Record)
		}
	}
	l, err := w.client.NewLookuper(ctx, "db.t", client.DefaultLookup())
	if err != nil {
		t.Fatal(err)
	}
	for id := range batches * rows {
		rec, err := l.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		hold(&looked, rec)
		rec.Release()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	check("the log", log, batches*rows)
	check("the rows", table, 2*batches*rows)
	check("lookups", looked, batches*rows)
}
