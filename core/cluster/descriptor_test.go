package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// What a column says of itself survives creation, altering and a snapshot.
func TestColumnAttributesAreKept(t *testing.T) {
	d := descriptor("db", "t", 1, true, false)
	d.Options = map[string]string{"merge_engine": "aggregation"}
	d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: "s", Type: schema.MustParseType("BIGINT"), Aggregate: schema.AggregateSum, Comment: "of all"})
	d, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	made, err := newTable(d.Encode())
	if err != nil {
		t.Fatal(err)
	}
	altered, err := made.altered([]byte(`[{"op":"add_column","column":{"name":"m","type":"INT","aggregate":"max"}},{"op":"rename_column","name":"s","to":"total"}]`))
	if err != nil {
		t.Fatal(err)
	}
	restored, err := decodeTable(altered.descriptorJSON, altered.schemaJSON)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []*Table{altered, restored} {
		older, newer := table.Schemas[0].Columns, table.Schemas[1].Columns
		if !older[2].AutoIncrement || older[3].Aggregate != schema.AggregateSum || older[3].Comment != "of all" {
			t.Errorf("version 1: %+v", older)
		}
		if newer[3].Name != "total" || newer[3].Aggregate != schema.AggregateSum || newer[4].Aggregate != schema.AggregateMax || table.Descriptor.Schema.Columns[4].Aggregate != schema.AggregateMax {
			t.Errorf("version 2: %+v", newer)
		}
	}
}

// What may be altered is schema.Descriptor.Apply's to say; its words arrive.
func TestAlterSaysWhatTheSchemaSays(t *testing.T) {
	d, err := descriptor("db", "t", 1, true, true).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	made, err := newTable(d.Encode())
	if err != nil {
		t.Fatal(err)
	}
	_, err = made.altered([]byte(`[{"op":"rename_column","name":"` + d.PartitionKeys[0] + `","to":"other"}]`))
	if err == nil || !strings.Contains(err.Error(), "it is in the partition keys and cannot be renamed") || !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
}
