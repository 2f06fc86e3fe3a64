package schema

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
)

// keyed is a table with the key k, the given columns ("name TYPE =function") and
// options.
func keyed(columns string, options ...string) *Descriptor {
	d := table("k INT")
	for c := range strings.SplitSeq(columns, ", ") {
		c, f, _ := strings.Cut(c, " =")
		c, auto := strings.CutSuffix(c, " AUTO")
		name, text, _ := strings.Cut(c, " ")
		d.Schema.Columns = append(d.Schema.Columns, Column{Name: name, Type: MustParseType(text), Aggregate: AggregateFunction(f), AutoIncrement: auto})
	}
	d.PrimaryKey, d.Options = []string{"k"}, map[string]string{}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		d.Options[name] = value
	}
	return d
}

func TestMergeOptions(t *testing.T) {
	for _, c := range []struct {
		options []string
		engine  MergeEngine
		version string
		deletes DeleteBehavior
		wal     bool
	}{
		{nil, LastWrite, "", DeleteAllow, false},
		{[]string{"merge_engine=last_write", "delete_behavior=disable", "changelog_image=wal"}, LastWrite, "", DeleteDisable, true},
		{[]string{"merge_engine=first_row"}, FirstRow, "", DeleteDisable, false},
		{[]string{"merge_engine=first_row", "delete_behavior=ignore"}, FirstRow, "", DeleteIgnore, false},
		{[]string{"merge_engine=versioned:a"}, Versioned, "a", DeleteDisable, false},
		{[]string{"merge_engine=versioned:a", "delete_behavior=disable"}, Versioned, "a", DeleteDisable, false},
		{[]string{"merge_engine=aggregation", "delete_behavior=ignore"}, Aggregation, "", DeleteIgnore, false},
	} {
		o, err := normalized(t, keyed("a INT", c.options...)).ParsedOptions()
		if err != nil || o.MergeEngine != c.engine || o.VersionColumn != c.version || o.DeleteBehavior != c.deletes || o.WALImage != c.wal {
			t.Errorf("%v: %+v, %v", c.options, o, err)
		}
	}
}

func TestMergeRules(t *testing.T) {
	aggregation := "merge_engine=aggregation"
	for _, c := range []struct {
		want    string // "": valid
		columns string
		options []string
	}{
		{`it must be last_write, first_row, versioned:<column> or aggregation, did you mean "first_row"?`, "a INT", []string{"merge_engine=firstrow"}},
		{`it must be last_write`, "a INT", []string{"merge_engine=versioned"}},
		{`the table has no column ""`, "a INT", []string{"merge_engine=versioned:"}},
		{`the table has no column "versin", did you mean "version"?`, "version INT", []string{"merge_engine=versioned:versin"}},
		{`column "k" is in the primary key: all rows of a key have the same version`, "a INT", []string{"merge_engine=versioned:k"}},
		{`column "a" is the auto-increment column`, "a INT AUTO", []string{"merge_engine=versioned:a"}},
		{`column "a" is BOOLEAN`, "a BOOLEAN", []string{"merge_engine=versioned:a"}},
		{`column "a" is ARRAY<INT>`, "a ARRAY<INT>", []string{"merge_engine=versioned:a"}},
		{"", "a:b TIMESTAMP_LTZ(3)", []string{"merge_engine=versioned:a:b"}},
		{"", "a DECIMAL(10,2) NOT NULL", []string{"merge_engine=versioned:a", "delete_behavior=ignore"}},
		{`merge_engine = versioned:a takes no deletes: leave it out, or set ignore or disable`, "a INT", []string{"merge_engine=versioned:a", "delete_behavior=allow"}},
		{`merge_engine = first_row takes no deletes`, "a INT", []string{"merge_engine=first_row", "delete_behavior=allow"}},
		{`it must be one of allow, ignore, disable`, "a INT", []string{"delete_behavior=refuse"}},
		{`it must be one of full, wal`, "a INT", []string{"changelog_image=none"}},
		{"", "a INT =sum, b BOOLEAN =bool_or, c ARRAY<INT> =last_value, d DATE =min, e STRING", []string{aggregation}},
		{`no aggregate function "summ", did you mean "sum"?; there are bool_and, bool_or, first_value`, "a INT =summ", []string{aggregation}},
		{`column "a": its aggregate function sum needs a primary-key table with merge_engine = aggregation`, "a INT =sum", nil},
		{`column "a": sum takes numbers, not STRING`, "a STRING =sum", []string{aggregation}},
		{`column "a": product takes numbers, not DATE`, "a DATE NOT NULL =product", []string{aggregation}},
		{`column "a": max takes numbers, texts, bytes, dates and times, not BOOLEAN; of BOOLEAN take bool_and or bool_or`, "a BOOLEAN =max", []string{aggregation}},
		{`column "a": min takes numbers, texts, bytes, dates and times, not ROW<b INT>`, "a ROW<b INT> =min", []string{aggregation}},
		{`column "a": bool_and takes BOOLEAN, not INT`, "a INT =bool_and", []string{aggregation}},
		{`the auto-increment column has no aggregate function`, "a INT AUTO =last_value", []string{aggregation}},
	} {
		n, err := keyed(c.columns, c.options...).Normalize()
		if err == nil {
			err = n.Validate()
		}
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %v: %v, want %q", c.columns, c.options, err, c.want)
		}
	}
	d := keyed("a INT", aggregation)
	d.Schema.Columns[0].Aggregate = AggregateSum
	if _, err := d.Normalize(); err != nil {
		t.Fatal(err)
	}
	n, _ := d.Normalize()
	if err := n.Validate(); err == nil || !strings.Contains(err.Error(), "a primary-key column has no aggregate function") {
		t.Error(err)
	}
	log := table("a INT")
	log.Schema.Columns[0].Aggregate = AggregateSum
	n, _ = log.Normalize()
	if err := n.Validate(); err == nil || !strings.Contains(err.Error(), "needs a primary-key table") {
		t.Error(err)
	}
}

func TestAggregateJSON(t *testing.T) {
	d := normalized(t, keyed("a INT =sum, b INT", "merge_engine=aggregation"))
	if text := string(d.Encode()); !strings.Contains(text, `{"id":2,"name":"a","type":"INT","aggregate":"sum"},{"id":3,"name":"b","type":"INT"}`) {
		t.Error(text)
	}
	again, err := DecodeDescriptor(d.Encode())
	if err != nil || again.Schema.Columns[1].Aggregate != AggregateSum || string(again.Encode()) != string(d.Encode()) {
		t.Errorf("%s, %v", again.Encode(), err)
	}
	if !slices.IsSorted(AggregateFunctions()) || len(AggregateFunctions()) != 10 {
		t.Error(AggregateFunctions())
	}
}

func TestAlterMerge(t *testing.T) {
	versioned := normalized(t, keyed("v INT, a STRING", "merge_engine=versioned:v"))
	n, err := versioned.Apply(changes(t, `[{"op":"rename_column","name":"v","to":"w"},{"op":"modify_column","name":"w","type":"BIGINT"},{"op":"rename_column","name":"a","to":"v"}]`))
	if err != nil || n.Options["merge_engine"] != "versioned:w" {
		t.Fatalf("%v, %v", n, err)
	}
	if o, err := n.ParsedOptions(); err != nil || o.VersionColumn != "w" {
		t.Errorf("%+v, %v", o, err)
	}
	if versioned.Options["merge_engine"] != "versioned:v" {
		t.Error("Apply changed its receiver")
	}
	sums := normalized(t, keyed("s INT =sum, a STRING", "merge_engine=aggregation"))
	n, err = sums.Apply(changes(t, `[{"op":"add_column","column":{"name":"m","type":"INT","aggregate":"max"}},{"op":"modify_column","name":"s","type":"BIGINT"},{"op":"set_options","options":{"delete_behavior":"ignore"}}]`))
	if err != nil || n.Schema.Columns[3].Aggregate != AggregateMax || n.Schema.Columns[1].Aggregate != AggregateSum || n.Options["delete_behavior"] != "ignore" || n.Schema.ID != 2 {
		t.Fatalf("%v, %v", n, err)
	}
	for _, c := range []struct {
		d          *Descriptor
		text, want string
	}{
		{versioned, `[{"op":"drop_column","name":"v"}]`, `column "v": it is the version column (merge_engine = versioned:v) and cannot be dropped`},
		{versioned, `[{"op":"set_options","options":{"merge_engine":"versioned:a"}}]`, `it is fixed when the table is created, here to "versioned:v"`},
		{versioned, `[{"op":"reset_options","names":["merge_engine"]}]`, `it is fixed`},
		{versioned, `[{"op":"set_options","options":{"delete_behavior":"allow"}}]`, `takes no deletes`},
		{versioned, `[{"op":"add_column","column":{"name":"m","type":"INT","aggregate":"max"}}]`, `needs a primary-key table with merge_engine = aggregation`},
		{sums, `[{"op":"set_options","options":{"changelog_image":"wal"}}]`, `it is fixed when the table is created, here to "full"`},
		{sums, `[{"op":"add_column","column":{"name":"m","type":"STRING","aggregate":"sum"}}]`, `sum takes numbers`},
		{sums, `[{"op":"modify_column","name":"s","type":"BIGINT","aggregate":"max"}]`, `unknown field "aggregate"`},
	} {
		list, err := DecodeChanges([]byte(c.text))
		if err == nil {
			_, err = c.d.Apply(list)
		}
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
