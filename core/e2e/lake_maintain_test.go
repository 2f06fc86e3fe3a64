package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// lakeShape is what readers of a lake table pay for.
type lakeShape struct{ snapshots, data, deletes int }

func (l *lakeTable) shape() (s lakeShape) {
	l.n.t.Helper()
	it, ok, err := l.n.icebergTable(l.n.t.Context(), l.name)
	if err != nil || !ok {
		l.n.t.Fatalf("%s: in the catalog: %t, %v", l.name, ok, err)
	}
	m := it.Metadata
	for _, snapshot := range m.Snapshots {
		if snapshot.ID != m.Current {
			continue
		}
		for name, to := range map[string]*int{"total-data-files": &s.data, "total-delete-files": &s.deletes} {
			if *to, err = strconv.Atoi(snapshot.Summary[name]); err != nil {
				l.n.t.Fatalf("%s: %s of the current snapshot: %v", l.name, name, err)
			}
		}
	}
	s.snapshots = len(m.Snapshots)
	return s
}

// read answers the rows of a union read, or of the lake alone, sorted.
func (l *lakeTable) read(lakeOnly bool) (rows []string) {
	l.n.t.Helper()
	var names []string
	for _, f := range l.columns().Fields() {
		names = append(names, f.Name)
	}
	for b, err := range l.c.ScanUnion(l.n.t.Context(), client.UnionRequest{Table: l.name, Bucket: -1, LakeOnly: lakeOnly}) {
		if err != nil {
			l.n.t.Fatal(err)
		}
		for i := range int(b.Record.NumRows()) {
			rows = append(rows, textOfRow(b.Record, names, i))
		}
	}
	slices.Sort(rows)
	return rows
}

// maintain runs `mink table compact` or `mink table expire` to its end.
func (l *lakeTable) maintain(work string) api.MaintenanceStats {
	l.n.t.Helper()
	var r api.MaintenanceReport
	if err := json.Unmarshal(l.n.mink(nil, "table", work, l.name, "--wait", "--json"), &r); err != nil {
		l.n.t.Fatal(err)
	}
	if !r.Done || r.Work != work || r.Table != l.name {
		l.n.t.Fatalf("%+v", r)
	}
	return r.Did
}

// TestLakeMaintenance: `mink table compact` and `mink table expire` make few files and snapshots
// of many, and Mink and other engines read the same rows before and after: of a log table, and
// of tables with a primary key that have either kind of deletes.
func TestLakeMaintenance(t *testing.T) {
	lakePython(t)
	n := newNode(t, "--wal-upload-interval", "200ms", "--kv-snapshot-interval", "1s", "--read-grace", "1s")
	n.start()
	options := []string{"--option", "lake=true", "--option", "lake_freshness=1h", "--option", "lake_auto_compaction=false", "--option", "lake_snapshot_age=1s", "--option", "lake_orphan_age=1h"}
	n.createTable("shop.visits", columns("country STRING NOT NULL", "id BIGINT NOT NULL", "day DATE", "score FLOAT"),
		append(options, "--partition-by", "country", "--bucket-key", "id", "--bucket-count", "2")...)
	n.createTable("shop.stock", columns("id BIGINT NOT NULL", "qty INT", "price DECIMAL(9,2)", "place ROW<hall STRING, shelf INT>"),
		append(options, "--primary-key", "id", "--bucket-count", "2")...)
	n.createTable("shop.prices", columns("id BIGINT NOT NULL", "price DECIMAL(9,2)"),
		append(options, "--primary-key", "id", "--option", "lake_deletes=equality")...)
	c := n.client()
	of := func(name string) *lakeTable { return &lakeTable{n: n, c: c, name: name} }
	visits, stock, prices := of("shop.visits"), of("shop.stock"), of("shop.prices")
	equality := slices.DeleteFunc(slices.Clone(lakeEngines()), func(engine string) bool { return strings.HasPrefix(engine, "pyiceberg") }) // it reads no such deletes
	prices.engines = equality
	all := []*lakeTable{visits, stock, prices}

	turn := func(i int) {
		t.Helper()
		first := i * 20
		var add, put, price, gone []lakeRow
		for id := first; id < first+20; id++ {
			add = append(add, lakeRow{"country": []string{"de", "ä/b"}[id%2], "id": id, "day": "2024-02-29", "score": 0.5 * float64(id)})
			put = append(put, lakeRow{"id": id, "qty": i, "price": fmt.Sprintf("%d.05", id), "place": lakeRow{"hall": "a", "shelf": i}})
			price = append(price, lakeRow{"id": id, "price": fmt.Sprintf("%d.10", id)})
		}
		for id := max(0, first-40); id < first; id += 7 { // of earlier rounds: updated, and some deleted
			put = append(put, lakeRow{"id": id, "qty": -i})
			price = append(price, lakeRow{"id": id, "price": fmt.Sprintf("%d.99", i)})
		}
		for id := max(0, first-20); id < first; id += 6 {
			gone = append(gone, lakeRow{"id": id})
		}
		gone = append(gone, lakeRow{"id": first + 1})
		visits.append(add...)
		stock.change("id", put, gone)
		prices.change("id", price, gone)
		for _, l := range all {
			n.mink(nil, "table", "tier", l.name, "--wait")
		}
	}
	const rounds = 12
	for i := range rounds {
		turn(i)
	}
	before, rows := map[*lakeTable]lakeShape{}, map[*lakeTable][]string{}
	for _, l := range all {
		l.inLake()
		if before[l], rows[l] = l.shape(), l.read(false); len(rows[l]) != len(l.rows) || before[l].data < rounds || before[l].snapshots < rounds {
			t.Fatalf("%s: %d rows of %d, %+v", l.name, len(rows[l]), len(l.rows), before[l])
		}
	}
	readByOthers(t, "before maintenance", all...)

	same := func(when string) {
		t.Helper()
		for _, l := range all {
			for _, lakeOnly := range []bool{false, true} {
				if got := l.read(lakeOnly); !slices.Equal(got, rows[l]) {
					t.Errorf("%s: %s, of the lake alone: %t:\n%s\nwant\n%s", when, l.name, lakeOnly, strings.Join(got, "\n"), strings.Join(rows[l], "\n"))
				}
			}
		}
		readByOthers(t, when, all...)
	}
	for _, l := range all {
		did := l.maintain("compact")
		got := l.shape()
		t.Logf("%s: %+v, compacted %+v", l.name, before[l], got)
		if got.data >= before[l].data/2 || got.deletes > 0 || did.DataFiles == 0 || did.NewFiles == 0 || did.DeleteFiles != int64(before[l].deletes) {
			t.Errorf("%s had %+v, has %+v after %+v", l.name, before[l], got, did)
		}
		before[l] = got
		if again := l.maintain("compact"); again.DataFiles != 0 || again.DeleteFiles != 0 {
			t.Errorf("%s, again: %+v", l.name, again)
		}
	}
	prices.engines = nil // what deleted its rows is gone
	same("compacted")
	for _, l := range all {
		var gone int64
		eventually(t, "snapshots of "+l.name+" are old enough", func() bool { gone += l.maintain("expire").Snapshots; return gone > 0 })
		got := l.shape()
		t.Logf("%s: %+v, expired %+v", l.name, before[l], got)
		if int64(got.snapshots) != int64(before[l].snapshots)-gone || got.data != before[l].data {
			t.Errorf("%s had %+v, has %+v after %d snapshots were expired", l.name, before[l], got, gone)
		}
	}
	same("expired")

	prices.engines = equality
	turn(rounds) // rows of compacted files are updated and deleted
	for _, l := range all {
		l.inLake()
		rows[l] = l.read(false)
	}
	same("written on")
	n.kill()
	n.start()
	same("after kill -9")
	if out, errOut, err := n.tryMink(nil, "table", "compact", "shop.none", "--wait"); err == nil || !strings.Contains(string(errOut), "shop.none") {
		t.Errorf("of no table: %v, %s%s", err, out, errOut)
	}
	n.fsck()
	n.stop()
}
