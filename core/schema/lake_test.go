package schema_test

import (
	"cmp"
	"errors"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

func TestCheckLakeNamesTheColumnThatCannotBeKept(t *testing.T) {
	for _, c := range []struct {
		pairs      []string
		key        string
		partitions []string
		deletes    string
		database   string // "": d
		bad        string // the column that the error names; "": fine
	}{
		{pairs: []string{"a", "TIME(6)", "b", "TIMESTAMP(9)", "c", "DOUBLE"}},
		{pairs: []string{"a", "TIME(7)"}, bad: `"a"`},
		{pairs: []string{"a", "ARRAY<ROW<x TIME(9)>>"}, bad: `"a.element.x"`},
		{pairs: []string{"k", "INT", "b", "TIMESTAMP(7)"}, key: "k", deletes: "equality"},
		{pairs: []string{"k", "INT", "b", "TIMESTAMP(7)"}, key: "k", bad: `"b"`},
		{pairs: []string{"k", "INT", "b", "TIMESTAMP(7)"}, key: "k", deletes: "position", bad: `"b"`},
		{pairs: []string{"k", "INT", "b", "ROW<t TIMESTAMP_LTZ(7)>"}, key: "k", deletes: "position", bad: `"b.t"`},
		{pairs: []string{"k", "FLOAT"}, key: "k", deletes: "equality", bad: `"k"`},
		{pairs: []string{"k", "DOUBLE"}, key: "k", deletes: "equality", bad: `"k"`},
		{pairs: []string{"k", "DOUBLE"}, key: "k"},
		{pairs: []string{"p", "FLOAT"}, partitions: []string{"p"}, bad: `"p"`},
		{pairs: []string{"a.b", "INT", "a", "ROW<b INT>"}, bad: `"a.b"`},
		{pairs: []string{"k", "INT", "k_bucket", "INT"}, key: "k", bad: `"k_bucket"`},
		{pairs: []string{"k", "INT", "x_bucket", "INT"}, key: "k"},
		{pairs: []string{"k", "INT"}, database: "a..b", bad: "empty level"},
		{pairs: []string{"k", "INT"}, database: ".a", bad: "empty level"},
		{pairs: []string{"k", "INT"}, database: "a.b"},
	} {
		d := &schema.Descriptor{Database: cmp.Or(c.database, "d"), Table: "t", PartitionKeys: c.partitions, Options: map[string]string{}}
		for i := 0; i < len(c.pairs); i += 2 {
			typ, err := schema.ParseType(c.pairs[i+1])
			if err != nil {
				t.Fatal(err)
			}
			d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: c.pairs[i], Type: typ})
		}
		if c.key != "" {
			d.PrimaryKey, d.BucketKeys = []string{c.key}, []string{c.key}
		}
		if c.deletes != "" {
			d.Options["lake_deletes"] = c.deletes
		}
		err := d.CheckLake()
		if c.bad == "" && err != nil || c.bad != "" && (!errors.Is(err, mink.ErrUnsupported) || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%v key %q deletes %q: %v", c.pairs, c.key, c.deletes, err)
		}
	}
}
