package schema

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

func changes(t testing.TB, text string) []Change {
	t.Helper()
	c, err := DecodeChanges([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

func alterable(t testing.TB) *Descriptor {
	d := table("day STRING", "id INT", "n INT NOT NULL", "r ROW<a INT, b ARRAY<FLOAT> NOT NULL>", "m MAP<STRING, TINYINT>", "c CHAR(3)")
	d.PrimaryKey, d.PartitionKeys = []string{"day", "id"}, []string{"day"}
	d.Options = map[string]string{"log_ttl": "1d", "auto_partition.key": "day", "auto_partition.time_unit": "day"}
	return normalized(t, d)
}

func TestApply(t *testing.T) {
	d := alterable(t)
	before := string(d.Encode())
	n, err := d.Apply(changes(t, `[
		{"op":"rename_column","name":"id","to":"key"},
		{"op":"rename_column","name":"day","to":"day"},
		{"op":"add_column","column":{"name":"id","type":"ROW<x INT>","comment":"new"}},
		{"op":"drop_column","name":"c"},
		{"op":"add_column","column":{"name":"c","type":"BIGINT"}},
		{"op":"modify_column","name":"n","type":"BIGINT","comment":"count"},
		{"op":"modify_column","name":"r","type":"ROW<new DATE, b ARRAY<DOUBLE> NOT NULL, a BIGINT>"},
		{"op":"modify_column","name":"m","type":"MAP<STRING, INT>"},
		{"op":"modify_column","name":"key","type":"INT","comment":"key"},
		{"op":"set_options","options":{"retention.ms":"5000","max.message.bytes":"2MiB"}},
		{"op":"reset_options","names":["max.message.bytes"]},
		{"op":"set_properties","properties":{"owner":"ann","team":"x"}},
		{"op":"remove_properties","names":["team","absent"]},
		{"op":"set_comment","comment":"hello"}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"database":"db","table":"t","schema":{"id":2,"columns":[` +
		`{"id":1,"name":"day","type":"STRING NOT NULL"},` +
		`{"id":2,"name":"key","type":"INT NOT NULL","comment":"key"},` +
		`{"id":3,"name":"n","type":"BIGINT","comment":"count"},` +
		`{"id":4,"name":"r","type":"ROW<new DATE, b ARRAY<DOUBLE> NOT NULL, a BIGINT>","nested_ids":[15,8,9,7]},` +
		`{"id":5,"name":"m","type":"MAP<STRING, INT>","nested_ids":[10,11]},` +
		`{"id":12,"name":"id","type":"ROW<x INT>","nested_ids":[13],"comment":"new"},` +
		`{"id":14,"name":"c","type":"BIGINT"}]},` +
		`"primary_key":["day","key"],"partition_keys":["day"],"bucket_keys":["key"],"bucket_count":1,"bucket_function":"iceberg",` +
		`"options":{"auto_partition.key":"day","auto_partition.time_unit":"day","log_ttl":"5s"},"properties":{"owner":"ann"},"comment":"hello","highest_field_id":15}`
	if got := string(n.Encode()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if string(d.Encode()) != before {
		t.Errorf("Apply changed its receiver: %s", d.Encode())
	}
}

func TestApplySchemaVersion(t *testing.T) {
	d := alterable(t)
	for text, want := range map[string]mink.SchemaID{
		`[]`:                                   1,
		`[{"op":"set_comment","comment":"x"}]`: 1,
		`[{"op":"set_options","options":{"log_ttl":"2d"}}]`:                                        1,
		`[{"op":"modify_column","name":"n","type":"INT NOT NULL"}]`:                                1,
		`[{"op":"modify_column","name":"n","type":"INT"}]`:                                         2,
		`[{"op":"drop_column","name":"n"},{"op":"drop_column","name":"c"}]`:                        2,
		`[{"op":"rename_column","name":"n","to":"x"},{"op":"rename_column","name":"x","to":"n"}]`:  1,
		`[{"op":"drop_column","name":"n"},{"op":"add_column","column":{"name":"n","type":"INT"}}]`: 2,
	} {
		n, err := d.Apply(changes(t, text))
		if err != nil || n.Schema.ID != want {
			t.Errorf("%s: version %v, want %d, %v", text, n, want, err)
		}
	}
}

func TestFieldIDsAreNeverReused(t *testing.T) {
	d := normalized(t, table("a INT", "b INT"))
	n, err := d.Apply(changes(t, `[{"op":"add_column","column":{"name":"c","type":"ARRAY<INT>"}},{"op":"drop_column","name":"c"}]`))
	if err != nil || n.HighestFieldID != 4 || n.Schema.ID != 1 {
		t.Fatalf("%s, %v", n.Encode(), err)
	}
	n, err = n.Apply(changes(t, `[{"op":"drop_column","name":"b"},{"op":"add_column","column":{"name":"b","type":"INT"}}]`))
	if err != nil || n.Schema.Columns[1].ID != 5 {
		t.Fatalf("%s, %v", n.Encode(), err)
	}
}

func TestSetBucketCount(t *testing.T) {
	d := normalized(t, table("a INT", "b INT"))
	n, err := d.Apply(changes(t, `[{"op":"set_bucket_count","bucket_count":3},{"op":"set_bucket_count","bucket_count":4096}]`))
	if err != nil || n.BucketCount != MaxBuckets || n.Schema.ID != 1 || d.BucketCount != 1 {
		t.Fatalf("%s, %v", n.Encode(), err)
	}
	for text, want := range map[string]string{
		`[{"op":"set_bucket_count"}]`:                        `"bucket_count" is missing`,
		`[{"op":"set_bucket_count","bucket_count":-1}]`:      `the table has 1 buckets`,
		`[{"op":"set_bucket_count","bucket_count":1}]`:       `the table has 1 buckets`,
		`[{"op":"set_bucket_count","bucket_count":4097}]`:    `at most 4096`,
		`[{"op":"drop_column","name":"a","bucket_count":2}]`: `it has no "bucket_count"`,
	} {
		if _, err := d.Apply(changes(t, text)); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := alterable(t).Apply(changes(t, `[{"op":"set_bucket_count","bucket_count":2}]`)); err == nil || !strings.Contains(err.Error(), "bucket keys (id)") {
		t.Errorf("with bucket keys: %v", err)
	}
}

func TestApplyRefuses(t *testing.T) {
	d := alterable(t)
	for text, want := range map[string]string{
		`[{"op":"add_column","column":{"name":"n","type":"INT"}}]`:                                      `column "n": the table has a column of this name`,
		`[{"op":"add_column","column":{"name":"x","type":"INT NOT NULL"}}]`:                             `column "x": a new column must be nullable`,
		`[{"op":"add_column","column":{"name":"x","id":3,"type":"INT"}}]`:                               `gets its field ids from the table`,
		`[{"op":"add_column","column":{"name":"x","type":"ARRAY<INT>","nested_ids":[1]}}]`:              `gets its field ids from the table`,
		`[{"op":"add_column","column":{"name":"x","type":"INT","auto_increment":true}}]`:                `cannot be added`,
		`[{"op":"add_column","column":{"name":"__x","type":"INT"}}]`:                                    `reserved`,
		`[{"op":"drop_column","name":"id"}]`:                                                            `column "id": it is in the primary key and cannot be dropped`,
		`[{"op":"drop_column","name":"day"}]`:                                                           `column "day": it is in the primary key`,
		`[{"op":"drop_column","name":"idd"}]`:                                                           `no such column, did you mean "id"?`,
		`[{"op":"rename_column","name":"n","to":"c"}]`:                                                  `column "c": the table has a column of this name`,
		`[{"op":"rename_column","name":"day","to":"date"}]`:                                             `column "day": it is in the partition keys and cannot be renamed`,
		`[{"op":"rename_column","name":"n","to":"__n"}]`:                                                `reserved`,
		`[{"op":"modify_column","name":"id","type":"BIGINT"}]`:                                          `column "id": it is in the primary key: its type cannot change`,
		`[{"op":"modify_column","name":"n","type":"SMALLINT"}]`:                                         `column "n": INT cannot become SMALLINT; it may become BIGINT`,
		`[{"op":"modify_column","name":"c","type":"CHAR(2)"}]`:                                          `CHAR(3) cannot become CHAR(2); it may become a longer CHAR or STRING`,
		`[{"op":"modify_column","name":"c","type":"CHAR(4) NOT NULL"}]`:                                 `it is nullable and cannot become NOT NULL`,
		`[{"op":"modify_column","name":"r","type":"ROW<a INT>"}]`:                                       `column "r.b": a modification cannot drop a nested field`,
		`[{"op":"modify_column","name":"r","type":"ROW<a INT, b ARRAY<FLOAT>, c INT NOT NULL>"}]`:       `column "r.c": a new field must be nullable`,
		`[{"op":"modify_column","name":"r","type":"ROW<a STRING, b ARRAY<FLOAT>>"}]`:                    `column "r.a": INT cannot become STRING`,
		`[{"op":"modify_column","name":"r","type":"ROW<a INT, b ARRAY<INT>>"}]`:                         `column "r.b.element": FLOAT cannot become INT`,
		`[{"op":"modify_column","name":"r","type":"INT"}]`:                                              `cannot become INT; its kind cannot change`,
		`[{"op":"modify_column","name":"m","type":"MAP<CHAR(3), TINYINT>"}]`:                            `column "m.key": the key of a map cannot change`,
		`[{"op":"modify_column","name":"n"}]`:                                                           `give a type, a comment or both`,
		`[{"op":"modify_column","type":"INT"}]`:                                                         `"name" is missing`,
		`[{"op":"drop_column","name":"n","to":"x"}]`:                                                    `it has no "to"`,
		`[{"op":"drop_colum","name":"n"}]`:                                                              `unknown op "drop_colum", did you mean "drop_column"?`,
		`[{"op":"set_options","options":{"log_tl":"1d"}}]`:                                              `did you mean "log_ttl"?`,
		`[{"op":"set_options","options":{"log_ttl":"1x"}}]`:                                             `want a number and a unit`,
		`[{"op":"set_options","options":{"merge_engine":"first_row"}}]`:                                 `it is fixed when the table is created`,
		`[{"op":"reset_options","names":["log_tl"]}]`:                                                   `did you mean "log_ttl"?`,
		`[{"op":"reset_options","names":["auto_partition.time_unit"]}]`:                                 `set auto_partition.time_unit too`,
		`[{"op":"set_options","options":{"auto_partition.time_unit":"hour","auto_partition.key":"n"}}]`: `it is not a partition key`,
	} {
		_, err := d.Apply(changes(t, text))
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s", text, err, want)
		}
	}
	one := normalized(t, table("a INT"))
	if _, err := one.Apply(changes(t, `[{"op":"drop_column","name":"a"}]`)); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
	if _, err := one.Apply(make([]Change, MaxChanges+1)); !errors.Is(err, mink.ErrInvalid) {
		t.Error(err)
	}
}

func TestDecodeChangesErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                     "cannot unmarshal object",
		`[{"op":"x","nam":"y"}]`: `change: unknown field "nam", did you mean "name"?`,
		`[{"op":"modify_column","name":"a","type":"INTT"}]`: `did you mean "INT"?`,
		`[{"op":"modify_column","name":"a","type":3}]`:      `want its text`,
		`[` + strings.Repeat(`{},`, MaxChanges) + `{}]`:     "at most 1000",
	} {
		if _, err := DecodeChanges([]byte(text)); !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %s", text, err, want)
		}
	}
}

// Every pair of kinds: promotion is exactly the list of the design.
func TestPromotionMatrix(t *testing.T) {
	texts := []string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(6,2)", "DECIMAL(6,3)", "CHAR(2)", "CHAR(3)", "STRING",
		"BINARY(2)", "BINARY(3)", "BYTES", "DATE", "TIME(0)", "TIME(3)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)", "ARRAY<INT>", "MAP<INT, INT>", "ROW<a INT>"}
	allowed := map[string][]string{
		"TINYINT": {"SMALLINT", "INT", "BIGINT"}, "SMALLINT": {"INT", "BIGINT"}, "INT": {"BIGINT"}, "FLOAT": {"DOUBLE"},
		"DECIMAL(5,2)": {"DECIMAL(6,2)"}, "CHAR(2)": {"CHAR(3)", "STRING"}, "CHAR(3)": {"STRING"}, "BINARY(2)": {"BINARY(3)", "BYTES"}, "BINARY(3)": {"BYTES"},
		"TIME(0)": {"TIME(3)"}, "TIMESTAMP(3)": {"TIMESTAMP(6)"}, "TIMESTAMP_LTZ(3)": {"TIMESTAMP_LTZ(6)"},
	}
	for _, from := range texts {
		for _, to := range texts {
			want := from == to || slices.Contains(allowed[from], to)
			for _, wrap := range []string{"%", "ARRAY<%>", "MAP<INT, %>", "ROW<x ARRAY<%>>"} {
				f, g := MustParseType(strings.ReplaceAll(wrap, "%", from)), MustParseType(strings.ReplaceAll(wrap, "%", to))
				if err := Promotable(f, g, "c"); (err == nil) != want {
					t.Errorf("%s to %s: %v", f, g, err)
				}
			}
		}
	}
}

// Any sequence of alters keeps the descriptor valid, never gives an id twice, and
// survives its JSON.
func TestApplyKeepsDescriptorsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := normalized2(t, table("k INT", "a INT", "b ROW<x TINYINT>"))
		everUsed := map[mink.FieldID]string{}
		note := func(d *Descriptor) {
			for _, c := range d.Schema.Columns {
				if _, ok := everUsed[c.ID]; !ok {
					everUsed[c.ID] = "column"
				}
			}
		}
		note(d)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			names := d.Schema.names()
			name := rapid.SampledFrom(names).Draw(t, "name")
			var c Change
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				c = Change{Op: AddColumn, Column: &Column{Name: rapid.StringMatching(`[a-f]`).Draw(t, "new"), Type: genType(1).Draw(t, "type")}}
			case 1:
				c = Change{Op: DropColumn, Name: name}
			case 2:
				c = Change{Op: RenameColumn, Name: name, To: rapid.StringMatching(`[a-f]`).Draw(t, "to")}
			case 3:
				typ := genType(1).Draw(t, "type")
				c = Change{Op: ModifyColumn, Name: name, Type: &typ}
			}
			decoded, err := DecodeChanges(EncodeChanges([]Change{c}))
			if err != nil {
				t.Fatal(err)
			}
			n, err := d.Apply(decoded)
			if err != nil {
				if !errors.Is(err, mink.ErrInvalid) {
					t.Fatal(err)
				}
				continue
			}
			if err := n.Validate(); err != nil {
				t.Fatalf("%v\n%s", err, n.Encode())
			}
			old := map[mink.FieldID]bool{}
			for _, c := range d.Schema.Columns {
				old[c.ID] = true
			}
			for _, c := range n.Schema.Columns {
				if !old[c.ID] && everUsed[c.ID] != "" {
					t.Fatalf("field id %d came back", c.ID)
				}
			}
			note(n)
			again, err := DecodeDescriptor(n.Encode())
			if err != nil || cmp.Diff(n, again) != "" {
				t.Fatal(err, cmp.Diff(n, again))
			}
			d = n
		}
	})
}

func TestEncodeChanges(t *testing.T) {
	if got := string(EncodeChanges(nil)); got != "[]" {
		t.Error(got)
	}
	typ, comment := MustParseType("ARRAY<INT>"), ""
	c := []Change{{Op: ModifyColumn, Name: "a", Type: &typ, Comment: &comment}, {Op: SetOptions, Options: map[string]string{"b": "1", "a": "2"}}}
	want := `[{"op":"modify_column","name":"a","type":"ARRAY<INT>","comment":""},{"op":"set_options","options":{"a":"2","b":"1"}}]`
	if got := string(EncodeChanges(c)); got != want {
		t.Error(got)
	}
	again := changes(t, want)
	if cmp.Diff(c, again) != "" || !maps.Equal(again[1].Options, c[1].Options) {
		t.Error(cmp.Diff(c, again))
	}
}
