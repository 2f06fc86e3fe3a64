package flight_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/mink-project/mink/core/tablet"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/mink"
)

// Records of a typed topic are rows; those that are none are reported where they
// stand, between rows that keep their offsets, wherever a scan begins and ends.
func TestTypedTopicRows(t *testing.T) {
	w := newWorld(t)
	w.table(idName, `"options":{"kafka.value.format":"json","kafka.bad.records":"quarantine"}`)
	log := w.log(w.bucket(0))
	produce := func(values ...string) {
		t.Helper()
		var pairs []string
		for _, v := range values {
			pairs = append(pairs, "key", v)
		}
		p, err := log.AppendKafka(kafkaBatch(t, 0, pairs...), tablet.KafkaAppend{})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		if _, err := p.Result(); err != nil {
			t.Fatal(err)
		}
	}
	produce(`{"id":0,"name":"a"}`, `{"id":1}`)
	produce(`x`, `{"id":3}`, `{"id":4}`, `{"id":"no"}`, `{}`, `{"id":7}`, `{"id":8,"name":"z"}`, `[]`) // 2..9
	produce(`{"id":10}`)
	bad := []int64{2, 5, 6, 9}

	for from := range mink.Offset(11) {
		for until := from; until <= 11; until++ {
			for _, limit := range []int64{0, 1, 3} {
				scan := api.Scan{Bucket: w.bucket(0), From: from, Until: &until, Limit: limit}
				if limit == 3 {
					scan.Columns = []string{"name", "id"}
				}
				checkGaps(t, fmt.Sprintf("[%d,%d) limit %d", from, until, limit), w.mustGet(scan), scan, bad)
			}
		}
	}
	if st := log.Stats(); st.Quarantined != 3 {
		t.Errorf("%d ranges are quarantined, want 3", st.Quarantined)
	}
}

// checkGaps: every offset of the scan is a row with its offset as id, or bad and
// reported, in order, up to the limit.
func checkGaps(t *testing.T, what string, out []got, scan api.Scan, bad []int64) {
	t.Helper()
	next, rows := scan.From, int64(0)
	for _, g := range out {
		if g.meta.Base != next || g.meta.Next != g.meta.Last+1 {
			t.Fatalf("%s: %+v after %d", what, g.meta, next)
		}
		next = g.meta.Next
		isGap := g.meta.Quarantined != ""
		ids := g.rows.Column(g.rows.Schema().FieldIndices("id")[0]).(*array.Int64)
		if isGap == (ids.Len() > 0) || !isGap && ids.Len() != int(next-g.meta.Base) {
			t.Fatalf("%s: %+v with %d rows", what, g.meta, ids.Len())
		}
		for o := g.meta.Base; o < next; o++ {
			if slices.Contains(bad, int64(o)) != isGap || !isGap && ids.Value(int(o-g.meta.Base)) != int64(o) {
				t.Fatalf("%s: offset %d in %+v, rows %v", what, o, g.meta, ids)
			}
		}
		rows += int64(ids.Len())
	}
	want := int64(0)
	for o := scan.From; o < *scan.Until; o++ {
		if !slices.Contains(bad, int64(o)) {
			want++
		}
	}
	if scan.Limit > 0 {
		want = min(want, scan.Limit)
	}
	if rows != want || rows < scan.Limit && next != *scan.Until {
		t.Fatalf("%s: %d rows to %d, want %d", what, rows, next, want)
	}
}
