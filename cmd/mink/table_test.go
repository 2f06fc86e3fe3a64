package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
)

// The flags of a primary-key table become its descriptor, and describe shows them.
func TestPrimaryKeyFlags(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out}
	f := tableFlags{
		columns: []string{"id BIGINT", "a=b INT", "seen TIMESTAMP(3)", "n INT"}, primaryKey: []string{"id"}, buckets: 1,
		aggregate: []string{"a=b=sum", "seen=max"}, autoIncrement: "n", options: []string{"merge_engine=aggregation"},
	}
	data, err := a.descriptor("shop.totals", f)
	if err != nil {
		t.Fatal(err)
	}
	d, err := schema.DecodeDescriptor(data)
	if err != nil {
		t.Fatal(err)
	}
	c := d.Schema.Columns
	if c[1].Aggregate != schema.AggregateSum || c[2].Aggregate != schema.AggregateMax || !c[3].AutoIncrement || c[0].Aggregate != "" {
		t.Errorf("%s", data)
	}
	if err := a.printDescription(api.Table{Name: "shop.totals", Descriptor: data}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"primary key, bucket", "sum", "max", "auto-increment", "merge_engine"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("describe lacks %q:\n%s", want, out.String())
		}
	}
	for want, args := range map[string]string{
		`--aggregate "sum": want COLUMN=FUNCTION`:                     "table create shop.t --aggregate sum",
		`--aggregate "b=sum": the command adds no column "b"`:         "table create shop.t --aggregate b=sum",
		`--auto-increment "b": no --column has this name`:             "table create shop.t --auto-increment b",
		`--aggregate "b=max": the command adds no column "b"`:         "table alter shop.t --drop b --aggregate b=max",
		"--descriptor has all of the table: --aggregate cannot stand": "table create shop.t --descriptor x --aggregate b=max",
	} {
		code, _, errOut := run(t, "", strings.Fields(args)...)
		if code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errOut)
		}
	}
	changes, err := alterations([]string{"m INT"}, nil, nil, nil, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := aggregates([]string{"m=min"}, func(name string) *schema.Column { return added(changes, name) }); err != nil || changes[0].Column.Aggregate != schema.AggregateMin {
		t.Errorf("%v, %+v", err, changes[0].Column)
	}
}

// What a stalled sink and a lake snapshot look like to a person.
func TestLakeTexts(t *testing.T) {
	stalled := api.StalledSink{Table: "db.t", Sink: "lake", StalledMs: 600_000, FreshnessMs: 180_000, LagOffsets: 12, InARow: 3, LastError: "the catalog is down"}
	nodes := []api.NodeAnswer{{Node: 1, Health: &api.Health{Ready: true, StalledSinks: []api.StalledSink{stalled}}}, {Node: 2, Error: "gone"}}
	got := warningsOf(nodes)
	if len(got) != 1 {
		t.Fatalf("%d warnings: %q", len(got), got)
	}
	for _, want := range []string{"db.t", "sink lake", "3m0s", "12 offsets", "10m0s", "never", "3 attempts failed in a row, the last: the catalog is down"} {
		if !strings.Contains(got[0], want) {
			t.Errorf("the warning lacks %q: %s", want, got[0])
		}
	}
	l := api.LakeSnapshot{Table: "db.t", Buckets: []api.LakeBucket{{End: 5, HighWatermark: 9, LagOffsets: 4, Values: []string{"de", "2026"}, Error: "no leader"}}}
	for _, c := range []struct {
		change func(*api.LakeSnapshot)
		want   []string
	}{
		{func(*api.LakeSnapshot) {}, []string{"has no round in the lake yet", "de/2026", "5", "9", "4", "no leader"}},
		{func(l *api.LakeSnapshot) {
			l.Snapshot, l.Round, l.Rounds, l.CatalogSnapshot, l.MetadataLocation = "77", "r", 3, "77", "file:///x.json"
		}, []string{"lake snapshot 77, round r (number 3)", "metadata: file:///x.json"}},
		{func(l *api.LakeSnapshot) { l.Snapshot, l.CatalogSnapshot = "77", "78" }, []string{"current snapshot is 78"}},
		{func(l *api.LakeSnapshot) { l.Snapshot, l.Expired = "77", true }, []string{"does not have this snapshot any more"}},
		{func(l *api.LakeSnapshot) { l.Snapshot, l.CatalogError = "77", "down" }, []string{"catalog: down"}},
	} {
		var out bytes.Buffer
		one := l
		c.change(&one)
		(&app{out: &out}).printLakeSnapshot(one)
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%+v: lacks %q:\n%s", one, want, out.String())
			}
		}
	}
}
