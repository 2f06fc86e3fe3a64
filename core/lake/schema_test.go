package lake

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/bucketing"
	"github.com/mink-project/mink/sdk/mink"
)

// descriptor parses "name TYPE" pairs and gives field ids as a new table has them.
func descriptor(t testing.TB, pairs ...string) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "d", Table: "t"}
	for i := 0; i < len(pairs); i += 2 {
		typ, err := schema.ParseType(pairs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: pairs[i], Type: typ})
	}
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestIcebergSchemaHasEveryTypeWithItsFieldID(t *testing.T) {
	pairs := []string{
		"a", "BOOLEAN", "b", "TINYINT", "c", "SMALLINT", "d", "INT", "e", "BIGINT", "f", "FLOAT", "g", "DOUBLE", "h", "DECIMAL(38,10)",
		"i", "CHAR(3)", "j", "STRING", "k", "BINARY(7)", "l", "BYTES", "m", "DATE", "n", "TIME(0)", "o", "TIME(6)",
		"p", "TIMESTAMP(0)", "q", "TIMESTAMP(6)", "r", "TIMESTAMP_LTZ(3)", "s", "TIMESTAMP(7)", "t", "TIMESTAMP_LTZ(9)",
		"u", "ARRAY<INT NOT NULL>", "v", "MAP<STRING, ROW<x INT, y ARRAY<DATE>>>",
	}
	want := strings.Fields("boolean int int int long float double decimal(38,10) string string fixed[7] binary date time time " +
		"timestamp timestamp timestamptz timestamp_ns timestamptz_ns")
	d := descriptor(t, pairs...)
	got, err := IcebergSchema(&d.Schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range d.Schema.Columns {
		f := got.Field(i)
		if f.ID != int(c.ID) || f.Name != c.Name || f.Required {
			t.Errorf("column %s: %+v", c.Name, f)
		}
		if i < len(want) && strings.ReplaceAll(f.Type.String(), " ", "") != want[i] {
			t.Errorf("column %s %s is %s, want %s", c.Name, c.Type, f.Type, want[i])
		}
		for _, inner := range c.Type.Fields {
			g, ok := got.FindFieldByID(int(inner.ID))
			if !ok || g.Name != inner.Name || g.Required != inner.Type.NotNull {
				t.Errorf("column %s.%s: %+v, %t\n%s", c.Name, inner.Name, g, ok, text)
			}
		}
	}
	if got.HighestFieldID() != int(d.HighestFieldID) {
		t.Errorf("highest field id %d, want %d", got.HighestFieldID(), d.HighestFieldID)
	}
	d.Schema.Columns[13].Type.Precision = 7
	if _, err := IcebergSchema(&d.Schema, nil); !errors.Is(err, mink.ErrUnsupported) || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("TIME(7): %v", err)
	}
}

func TestPartitionSpecIsIdentityAndBucket(t *testing.T) {
	for _, c := range []struct {
		pairs      []string
		partitions []string
		buckets    []string
		count      int32
		want       string
	}{
		{[]string{"id", "BIGINT", "day", "DATE"}, []string{"day"}, []string{"id"}, 4, "day identity id_bucket bucket[4]"},
		{[]string{"id", "BIGINT", "id_bucket", "INT"}, nil, []string{"id"}, 4, "id_bucket_ bucket[4]"},
		{[]string{"id", "BIGINT"}, nil, []string{"id"}, 1, ""},
		{[]string{"id", "BIGINT", "x", "INT"}, nil, []string{"id", "x"}, 4, ""},
		{[]string{"id", "BIGINT"}, nil, nil, 4, ""},
		{[]string{"id", "BOOLEAN"}, nil, []string{"id"}, 4, ""},
		{[]string{"id", "DOUBLE"}, nil, []string{"id"}, 4, ""},
		{[]string{"id", "TIMESTAMP(3)", "p", "BYTES", "q", "TINYINT"}, []string{"p", "q"}, []string{"id"}, 3, "p identity q identity id_bucket bucket[3]"},
	} {
		d := descriptor(t, c.pairs...)
		ice, err := IcebergSchema(&d.Schema, nil)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := PartitionSpec(&d.Schema, ice, c.partitions, c.buckets, c.count)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range spec.Fields() {
			got = append(got, f.Name, f.Transform.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v by %v, %v: %q, want %q", c.pairs, c.partitions, c.buckets, got, c.want)
		}
	}
}

// TestBucketNumberIsIcebergs: the bucket number that a file gets as its partition
// value must be what Iceberg computes from the rows, or engines prune files that
// have the row.
func TestBucketNumberIsIcebergs(t *testing.T) {
	values := map[string][]struct {
		mink any
		ice  iceberg.Literal
	}{
		"INT":          {{int32(34), iceberg.NewLiteral(int32(34))}, {int32(-1), iceberg.NewLiteral(int32(-1))}},
		"TINYINT":      {{int8(-7), iceberg.NewLiteral(int32(-7))}},
		"BIGINT":       {{int64(1) << 40, iceberg.NewLiteral(int64(1) << 40)}},
		"STRING":       {{"iceberg", iceberg.NewLiteral("iceberg")}, {"", iceberg.NewLiteral("")}},
		"BYTES":        {{[]byte{0, 1, 2, 3}, iceberg.NewLiteral([]byte{0, 1, 2, 3})}},
		"DATE":         {{arrow.Date32(17486), iceberg.NewLiteral(iceberg.Date(17486))}},
		"TIME(3)":      {{arrow.Time32(81068000), iceberg.NewLiteral(iceberg.Time(81068000000))}},
		"TIMESTAMP(3)": {{arrow.Timestamp(1510871468001), iceberg.NewLiteral(iceberg.Timestamp(1510871468001000))}},
		"TIMESTAMP(6)": {{arrow.Timestamp(1510871468000001), iceberg.NewLiteral(iceberg.Timestamp(1510871468000001))}},
	}
	transform := iceberg.BucketTransform{NumBuckets: 1 << 20}
	for name, pairs := range values {
		typ, err := schema.ParseType(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range pairs {
			hash, err := bucketing.HashValue(typ, v.mink)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := transform.Apply(iceberg.Optional[iceberg.Literal]{Valid: true, Val: v.ice})
			if want := int32(hash&0x7fffffff) % int32(transform.NumBuckets); got.Val.Any() != want {
				t.Errorf("%s %v: Iceberg's bucket %v, Mink's %d", name, v.mink, got.Val, want)
			}
		}
	}
}

func TestEvolveSchemaRefusesWhatIcebergCannotFollow(t *testing.T) {
	have := []string{"id", "INT", "n", "INT", "f", "FLOAT", "d", "DECIMAL(5,2)", "b", "BINARY(3)", "ts", "TIMESTAMP(3)", "r", "ROW<x INT>", "t", "TINYINT"}
	for _, c := range []struct {
		column, to string
		ok         bool
	}{
		{"n", "BIGINT", true}, {"f", "DOUBLE", true}, {"d", "DECIMAL(9,2)", true}, {"ts", "TIMESTAMP(6)", true}, {"t", "SMALLINT", true}, {"t", "BIGINT", true},
		{"r", "ROW<x BIGINT>", true}, {"t", "INT", true},
		{"id", "BIGINT", false}, {"b", "BINARY(4)", false}, {"b", "BYTES", false}, {"ts", "TIMESTAMP(9)", false}, {"d", "DECIMAL(9,3)", false}, {"id", "", false},
	} {
		old := descriptor(t, have...)
		next := descriptor(t, have...)
		i := next.Schema.Index(c.column)
		if c.to == "" {
			next.Schema.Columns = append(next.Schema.Columns[:i:i], next.Schema.Columns[i+1:]...)
		} else {
			typ, err := schema.ParseType(c.to)
			if err != nil {
				t.Fatal(err)
			}
			for j := range typ.Fields {
				typ.Fields[j].ID = next.Schema.Columns[i].Type.Fields[j].ID
			}
			next.Schema.Columns[i].Type = typ
		}
		from, err := IcebergSchema(&old.Schema, nil)
		if err != nil {
			t.Fatal(err)
		}
		to, err := IcebergSchema(&next.Schema, nil)
		if err != nil {
			t.Fatal(err)
		}
		if early := schema.CheckLakeChange(&old.Schema, &next.Schema); c.column != "id" && c.column != "d" && (early == nil) != c.ok {
			t.Errorf("%s to %s: CheckLakeChange: %v", c.column, c.to, early) // Mink itself refuses changes of keys and scales
		}
		got, err := evolveSchema(from, to, []int{1})
		switch {
		case c.ok && err != nil:
			t.Errorf("%s to %s: %v", c.column, c.to, err)
		case !c.ok && !errors.Is(err, mink.ErrUnsupported):
			t.Errorf("%s to %s: %v, %v", c.column, c.to, got, err)
		}
	}
}
