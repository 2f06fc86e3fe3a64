package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

// table makes a descriptor from "name TYPE" lines; not normalized.
func table(columns ...string) *Descriptor {
	d := &Descriptor{Database: "db", Table: "t"}
	for _, c := range columns {
		name, text, _ := strings.Cut(c, " ")
		d.Schema.Columns = append(d.Schema.Columns, Column{Name: name, Type: MustParseType(text)})
	}
	return d
}

func normalized(t testing.TB, d *Descriptor) *Descriptor {
	t.Helper()
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNormalize(t *testing.T) {
	d := table("region STRING", "id INT", "at TIMESTAMP(3)", "tags ARRAY<ROW<k STRING, v INT>>", "n BIGINT")
	d.PrimaryKey = []string{"region", "id", "at"}
	d.PartitionKeys = []string{"region"}
	d.Options = map[string]string{"retention.ms": "86400000", "retention.bytes": "-1"}
	before := d.Clone()
	n := normalized(t, d)
	if diff := cmp.Diff(before, d); diff != "" {
		t.Errorf("Normalize changed its receiver: %s", diff)
	}
	want := `{"database":"db","table":"t","schema":{"id":1,"columns":[` +
		`{"id":1,"name":"region","type":"STRING NOT NULL"},{"id":2,"name":"id","type":"INT NOT NULL"},{"id":3,"name":"at","type":"TIMESTAMP(3) NOT NULL"},` +
		`{"id":4,"name":"tags","type":"ARRAY<ROW<k STRING, v INT>>","nested_ids":[6,7,8]},{"id":5,"name":"n","type":"BIGINT"}]},` +
		`"primary_key":["region","id","at"],"partition_keys":["region"],"bucket_keys":["id","at"],"bucket_count":1,"bucket_function":"murmur3",` +
		`"options":{"log_max_bytes":"unlimited","log_ttl":"1d"},"highest_field_id":8}`
	if got := string(n.Encode()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	again, err := n.Normalize()
	if err != nil || cmp.Diff(n, again) != "" {
		t.Errorf("not idempotent: %v %s", err, cmp.Diff(n, again))
	}
	if f := normalized(t, table("a INT")).BucketFunction; f != BucketRoundRobin {
		t.Errorf("no keys: %s", f)
	}
	one := table("a INT", "b INT")
	one.BucketKeys = []string{"b"}
	if f := normalized(t, one).BucketFunction; f != BucketIceberg {
		t.Errorf("one key: %s", f)
	}
}

func TestNormalizeRunsOutOfFieldIDs(t *testing.T) {
	d := table("a INT", "b INT")
	d.HighestFieldID = 1<<31 - 2
	if _, err := d.Normalize(); !errors.Is(err, mink.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestValidateRules(t *testing.T) {
	pk := func(d *Descriptor, keys ...string) *Descriptor { d.PrimaryKey = keys; return d }
	for _, c := range []struct {
		want string
		d    *Descriptor
		set  func(d *Descriptor) // after Normalize
	}{
		{"at least one column", table(), nil},
		{`column "a": the name occurs twice`, table("a INT", "a INT"), nil},
		{"it has control characters", table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].Name = "a\nb" }},
		{`database name "a b": ' ' is not allowed`, table("a INT"), func(d *Descriptor) { d.Database = "a b" }},
		{"database name: it is empty", table("a INT"), func(d *Descriptor) { d.Database = "" }},
		{"table name \"__x\": names that start with __ are reserved", table("a INT"), func(d *Descriptor) { d.Table = "__x" }},
		{"201 bytes, at most 200", table("a INT"), func(d *Descriptor) { d.Table = strings.Repeat("x", 201) }},
		{`table name "..": choose another`, table("a INT"), func(d *Descriptor) { d.Table = ".." }},
		{`column "k": named by the primary key`, pk(table("a INT"), "k"), nil},
		{`did you mean "name"?`, pk(table("name INT"), "nmae"), nil},
		{`column "a": occurs twice in the primary key`, pk(table("a INT"), "a", "a"), nil},
		{`column "a": ARRAY<INT> NOT NULL cannot be in the primary key`, pk(table("a ARRAY<INT>"), "a"), nil},
		{`column "a": a primary-key column must be NOT NULL`, pk(table("a INT"), "a"), func(d *Descriptor) { d.Schema.Columns[0].Type.NotNull = false }},
		{`column "b": a partition key must be part of the primary key (a)`, pk(table("a INT", "b INT"), "a"), func(d *Descriptor) { d.PartitionKeys = []string{"b"} }},
		{`column "b": DECIMAL(10,0) cannot be a partition key`, table("a INT", "b DECIMAL"), func(d *Descriptor) { d.PartitionKeys = []string{"b"} }},
		{`column "b": MAP<INT, INT> cannot be in the partition keys`, table("a INT", "b MAP<INT,INT>"), func(d *Descriptor) { d.PartitionKeys = []string{"b"} }},
		{`column "b": a bucket key must be part of the primary key (a)`, pk(table("a INT", "b INT"), "a"), func(d *Descriptor) { d.BucketKeys = []string{"b"} }},
		{`column "a": a bucket key must not be a partition key`, table("a INT", "b INT"), func(d *Descriptor) { d.PartitionKeys, d.BucketKeys = []string{"a"}, []string{"a"} }},
		{`column "a": the primary key needs a column that is not a partition key`, pk(table("a INT"), "a"), func(d *Descriptor) { d.PartitionKeys, d.BucketKeys = []string{"a"}, nil }},
		{"bucket count 4097: it must be 1 to 4096", table("a INT"), func(d *Descriptor) { d.BucketCount = 4097 }},
		{"bucket count -1", table("a INT"), func(d *Descriptor) { d.BucketCount = -1 }},
		{`bucket function "iceberg": with 0 bucket keys it is "round_robin"`, table("a INT"), func(d *Descriptor) { d.BucketFunction = BucketIceberg }},
		{`column "c": a table has at most one auto-increment column, and "b" is one`, pk(table("a INT", "b INT", "c INT"), "a"), func(d *Descriptor) { d.Schema.Columns[1].AutoIncrement, d.Schema.Columns[2].AutoIncrement = true, true }},
		{`column "b": an auto-increment column must be INT or BIGINT, not SMALLINT`, pk(table("a INT", "b SMALLINT"), "a"), func(d *Descriptor) { d.Schema.Columns[1].AutoIncrement = true }},
		{`column "a": an auto-increment column must not be part of the primary key`, pk(table("a INT"), "a"), func(d *Descriptor) { d.Schema.Columns[0].AutoIncrement = true }},
		{`column "a": an auto-increment column needs a table with a primary key`, table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].AutoIncrement = true }},
		{`column "a": field id 0, want 1 or more`, table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].ID = 0 }},
		{`column "a": field id 9 is above highest_field_id 1`, table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].ID = 9 }},
		{`column "b.element": field id 1 occurs twice`, table("a INT", "b ARRAY<INT>"), func(d *Descriptor) { d.Schema.Columns[1].Type.Fields[0].ID = 1 }},
		{`column "a": it has no type`, table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].Type = Type{} }},
		{`column "a": precision of DECIMAL must be 1 to 38, not 39`, table("a DECIMAL"), func(d *Descriptor) { d.Schema.Columns[0].Type.Precision = 39 }},
		{`column "a": ROW has 0 fields, want 1`, table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].Type = Type{Kind: Row} }},
		{`column "a.key": a map's key must be NOT NULL`, table("a MAP<INT,INT>"), func(d *Descriptor) { d.Schema.Columns[0].Type.Fields[0].Type.NotNull = false }},
		{`column "a.x": the fields of ARRAY have fixed names`, table("a ARRAY<INT>"), func(d *Descriptor) { d.Schema.Columns[0].Type.Fields[0].Name = "x" }},
		{"comment: it is not UTF-8", table("a INT"), func(d *Descriptor) { d.Comment = "\xff" }},
		{`column "a": the comment is not UTF-8`, table("a INT"), func(d *Descriptor) { d.Schema.Columns[0].Comment = "\xff" }},
		{`property "p": 65537 bytes`, table("a INT"), func(d *Descriptor) { d.Properties = map[string]string{"p": strings.Repeat("x", 65536)} }},
		{`option colour`, table("a INT"), func(d *Descriptor) { d.Options = map[string]string{"colour": "red"} }},
	} {
		n, err := c.d.Normalize()
		if err != nil {
			t.Errorf("%s: %v", c.want, err)
			continue
		}
		if c.set != nil {
			if err := n.Validate(); err != nil {
				t.Errorf("%s: not valid before the change: %v", c.want, err)
			}
			c.set(n)
		}
		want := strings.ReplaceAll(c.want, "option colour", `option "colour": no table option has this name`)
		if err := n.Validate(); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestDescriptorJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z é<>&"\\]{0,6}`)
		d := &Descriptor{
			Database: "db", Table: "t", Schema: genSchema().Draw(t, "schema"),
			BucketCount: rapid.Int32Range(1, 9).Draw(t, "buckets"),
			Properties:  rapid.MapOfN(rapid.StringMatching(`[a-z<é]{1,4}`), text, 1, 3).Draw(t, "properties"),
			Comment:     text.Draw(t, "comment"),
		}
		n := normalized2(t, d)
		data := n.Encode()
		got, err := DecodeDescriptor(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(n, got); diff != "" {
			t.Fatal(diff)
		}
		if string(got.Encode()) != string(data) {
			t.Fatalf("not canonical: %s, %s", data, got.Encode())
		}
		s, err := DecodeSchema(n.Schema.Encode())
		if err != nil || cmp.Diff(&n.Schema, s) != "" {
			t.Fatal(err, cmp.Diff(&n.Schema, s))
		}
	})
}

func normalized2(t *rapid.T, d *Descriptor) *Descriptor {
	n, err := d.Normalize()
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDecodeDescriptorErrors(t *testing.T) {
	for in, want := range map[string]string{
		``:                             "invalid descriptor",
		`[]`:                           "want an object",
		`{"database":"d","tabel":"t"}`: `descriptor: unknown field "tabel", did you mean "table"?`,
		`{"Database":"d"}`:             `unknown field "Database", did you mean "database"?`,
		`{"schema":{"column":[]}}`:     `schema: unknown field "column", did you mean "columns"?`,
		`{"schema":{"columns":[{"name":"a","typ":"INT"}]}}`:                            `column: unknown field "typ", did you mean "type"?`,
		`{"schema":{"columns":[{"name":"a","type":"INTT"}]}}`:                          `column "a": invalid type "INTT": position 1: unknown type "INTT", did you mean "INT"?`,
		`{"schema":{"columns":[{"name":"a","type":7}]}}`:                               `column: field "type" cannot be a JSON number`,
		`{"schema":{"columns":[{"name":"a","type":"INT","nested_ids":[1]}]}}`:          `column "a": nested_ids must have one id for each field inside INT`,
		`{"schema":{"columns":[{"name":"a","type":"MAP<INT,INT>","nested_ids":[1]}]}}`: `nested_ids must have one id`,
		`{"bucket_count":99999999999}`:                                                 `field "bucket_count" cannot be a JSON number`,
		`{"options":{"log_ttl":7}}`:                                                    `field "options" cannot be a JSON number`,
		`{"database":"d"} x`:                                                           "byte 18",
		strings.Repeat("[", 20000):                                                     "invalid descriptor",
	} {
		_, err := DecodeDescriptor([]byte(in))
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s:\ngot  %v\nwant %s", in, err, want)
		}
	}
	if _, err := DecodeDescriptor(make([]byte, MaxDescriptorBytes+1)); !errors.Is(err, mink.ErrTooLarge) {
		t.Errorf("long: %v", err)
	}
}

func FuzzDecodeDescriptor(f *testing.F) {
	d := table("a INT", "b ARRAY<ROW<x INT, y MAP<STRING, DECIMAL(5,2)>>>")
	d.PartitionKeys = []string{"a"}
	d.Options = map[string]string{"log_ttl": "1h", "retention.bytes": "100"}
	n, err := d.Normalize()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(n.Encode())
	f.Add([]byte(`{"database":"db","table":"t","schema":{"columns":[{"name":"a","type":"int"}]}}`))
	f.Add([]byte(`{"schema":null,"options":null,"primary_key":[null]}`))
	f.Add([]byte(`{"schema":{"columns":[null]},"highest_field_id":2147483647}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := DecodeDescriptor(data)
		if err != nil {
			return
		}
		n, err := d.Normalize()
		if err != nil || n.Validate() != nil {
			return
		}
		again, err := DecodeDescriptor(n.Encode())
		if err != nil {
			t.Fatalf("valid, but does not read back: %v\n%s", err, n.Encode())
		}
		if string(again.Encode()) != string(n.Encode()) {
			t.Fatalf("not canonical:\n%s\n%s", n.Encode(), again.Encode())
		}
		if _, err := FromArrow(n.Schema.Arrow()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMaxFields(t *testing.T) {
	d := &Descriptor{Database: "db", Table: "t"}
	for i := range MaxFields + 1 {
		d.Schema.Columns = append(d.Schema.Columns, Column{Name: fmt.Sprint("c", i), Type: Type{Kind: Int}})
	}
	n, err := d.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Validate(); err == nil || !strings.Contains(err.Error(), "4097 columns and nested fields, at most 4096") {
		t.Fatal(err)
	}
}

// Names that differ in case only pass Validate, for tables that exist, and are
// refused in new ones.
func TestNamesThatDifferInCaseOnly(t *testing.T) {
	for _, c := range []struct {
		columns []string
		want    string // "": allowed
	}{
		{[]string{"id INT", "Name STRING", "r ROW<id INT, x ROW<ID INT>>"}, ""},
		{[]string{"id INT", "ID INT"}, `column "ID": it differs from "id" in case only`},
		{[]string{"größe INT", "GRÖSSE INT"}, ""},
		{[]string{"é INT", "É INT"}, `column "É"`},
		{[]string{"r ROW<a INT, A INT>"}, `column "r.A": it differs from "r.a"`},
		{[]string{"m MAP<STRING, ARRAY<ROW<a INT, A INT>>>"}, `element.A"`},
	} {
		d, err := table(c.columns...).Normalize()
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%v: Validate: %v", c.columns, err)
		}
		err = d.CheckCase()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.columns, err, c.want)
		}
	}
}
