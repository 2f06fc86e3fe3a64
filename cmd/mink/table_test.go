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
