package foreign

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

func needSpark(t *testing.T) {
	t.Helper()
	if os.Getenv("MINK_TEST_ICEBERG_SPARK") == "" {
		t.Skip("MINK_TEST_ICEBERG_SPARK is not set: run make e2e-lake")
	}
}

// withoutTime is allTypes but for the type that Spark does not have.
func withoutTime(name string) *schema.Descriptor {
	d := allTypes(name)
	d.Schema.Columns = slices.DeleteFunc(d.Schema.Columns, func(c schema.Column) bool { return c.Name == "time" })
	return d
}

// sparkRow is full without that column.
func sparkRow(n int) object {
	r := full(n)
	delete(r, "time")
	return r
}

// Spark reads log tables of every column type but TIME and all shapes of partitions, and
// tables with a primary key and either kind of deletes, after each change of the schema.
func TestSpark(t *testing.T) {
	needSpark(t)
	latest := func(r object, changes int) object {
		for _, e := range evolution[:changes] {
			r = e.with(r)
		}
		return r
	}
	t.Run("log", func(t *testing.T) {
		b := newWorld(t).create(withoutTime("log"), nil)
		b.round(appends(sparkRow(1), object{"id": 2}, sparkRow(3))...)
		b.equal(sparkREST)
		for i, e := range evolution {
			b.alter(e.changes...)
			b.round(appends(latest(sparkRow(10+i), i+1), object{"id": 20 + i})...)
			b.equal(sparkREST)
		}
	})
	t.Run("partitions", func(t *testing.T) {
		for i, keys := range [][]string{{"s"}, {"n"}, {"d"}, {"b"}, {"s", "n", "d"}, nil} {
			d := descriptor(fmt.Sprintf("parts%d", i), "id", "BIGINT NOT NULL", "s", "STRING NOT NULL", "n", "INT NOT NULL", "d", "DATE NOT NULL", "b", "BOOLEAN NOT NULL")
			d.PartitionKeys, d.BucketKeys, d.BucketCount = keys, []string{"id"}, 1
			b := newWorld(t).create(d, nil)
			var rows []object
			for id := range 12 {
				rows = append(rows, object{"id": id, "s": []string{"a", "b/c=d", "ä"}[id%3], "n": id%2 - 1, "d": []string{"2024-01-01", "1969-12-31"}[id%2], "b": id%2 == 0})
			}
			b.round(appends(rows...)...)
			b.equal(sparkREST)
		}
	})
	for _, deletes := range []string{"equality", "position"} {
		t.Run("primary key, "+deletes, func(t *testing.T) {
			d := withoutTime("keyed")
			d.PrimaryKey = []string{"id"}
			b := newWorld(t).create(d, map[string]string{"lake_deletes": deletes})
			var first []change
			for i := range 10 {
				first = append(first, change{mink.ChangeInsert, sparkRow(i)})
			}
			b.round(first...)
			b.equal(sparkREST)
			changed := sparkRow(3)
			changed["str"] = "changed"
			b.round(change{mink.ChangeUpdateAfter, changed}, change{mink.ChangeDelete, sparkRow(4)}, change{mink.ChangeInsert, sparkRow(11)}, change{mink.ChangeDelete, sparkRow(11)})
			b.equal(sparkREST)
			for i, e := range evolution {
				b.alter(e.changes...)
				with := func(n int) object { return latest(sparkRow(n), i+1) }
				b.round(change{mink.ChangeUpdateAfter, with(5)}, change{mink.ChangeInsert, with(20 + i)}, change{mink.ChangeDelete, with(6 + i%3)})
				b.equal(sparkREST)
			}
		})
	}
	t.Run("TIME is refused", func(t *testing.T) {
		b := newWorld(t).create(allTypes("log"), nil)
		b.round(appends(full(1))...)
		if v := b.read(sparkREST); !strings.Contains(v.Error, "time") {
			t.Errorf("%+v: mend docs/lake.md", v)
		}
	})
}
