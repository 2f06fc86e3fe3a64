package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/mink-project/mink/core/schema"
)

// What read prints, write takes, and it says the same again: columns and
// fields in the table's order, decimals exact.
func TestJSONRoundTrip(t *testing.T) {
	decimal := &arrow.Decimal128Type{Precision: 10, Scale: 2}
	row := arrow.StructOf(arrow.Field{Name: "z", Type: decimal, Nullable: true}, arrow.Field{Name: "a", Type: arrow.BinaryTypes.String, Nullable: true})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: decimal, Nullable: true}, {Name: "b", Type: row, Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), Nullable: true},
		{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	}, nil)
	text := `{"n":"12.30","b":{"z":"1.00","a":"<é>"},"m":[{"key":"k","value":1}],"l":[1,null]}` + "\n" +
		`{"n":null,"b":null,"m":null,"l":[]}` + "\n"
	r := newJSONRows(strings.NewReader(text), s, 10)
	if !r.Next() {
		t.Fatal(r.Err())
	}
	defer r.Release()
	var out bytes.Buffer
	if err := (jsonPrinter{&out}).print(r.RecordBatch()); err != nil || out.String() != text {
		t.Errorf("%v\n%s\n%s", err, out.String(), text)
	}
}

// What a column cannot hold exactly is refused, whatever the format, and at any
// depth; nothing is rounded, cut or taken for something else.
func TestInexactValuesAreRefused(t *testing.T) {
	for _, c := range []struct{ typ, value, want string }{
		{"ROW<p DECIMAL(10,2)>", `{"p":"1.239"}`, `field "p": it has more than 2 digits after`},
		{"ARRAY<DECIMAL(10,2)>", `[1, 1.239]`, `element 2: it has more than 2 digits after`},
		{"MAP<STRING, DECIMAL(3,0)>", `[{"key":"a","value":1000}]`, `entry 1: field "value": it has more than 3 digits before`},
		{"ROW<x INT>", `{"x":1,"y":2}`, `there is no field "y"; it has x`},
		{"ROW<x INT NOT NULL>", `{}`, `field "x": it is NOT NULL`},
		{"ROW<x TINYINT>", `{"x":300}`, `field "x": want a whole number from -128 to 127`},
		{"MAP<STRING, INT>", `[{"value":1}]`, `entry 1: field "key": it is NOT NULL`},
		{"MAP<INT, INT>", `{"1":1}`, "want a list such as"},
		{"ARRAY<ROW<d DATE>>", `[{"d":20260131}]`, `element 1: field "d": want a date`},
		{"ARRAY<INT>", `3`, "want a JSON list"},
		{"DATE", `"20260131"`, "want a date such as"},
		{"TIMESTAMP(3)", `"1700000000000"`, "want a time such as"},
		{"TIMESTAMP(9)", `"3000-01-01T00:00:00"`, "want a time such as"},
		{"TIME(0)", `"700"`, "want a time such as"},
		{"BIGINT", `"9223372036854775808"`, "want a whole number"},
		{"BIGINT", `"9223372036854775807.5"`, "want a whole number"},
		{"INT", `"(null)"`, "want a whole number"},
		{"BOOLEAN", `"(null)"`, "want true or false"},
		{"DOUBLE", `"1e999"`, "want a number"},
		{"BINARY(3)", `"AA=="`, "base64 of exactly 3 bytes"},
		{"BYTES", `"(null)"`, "want base64"},
	} {
		s := schemaOf(t, "c "+c.typ)
		text := strings.Trim(c.value, `"`)
		for format, in := range map[string]string{"json": `{"c":` + c.value + `}`, "csv": "c\n\"" + strings.ReplaceAll(text, `"`, `""`) + "\"\n"} {
			if err := readAll(t, format, in, s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %s in %s: %v, want %s", c.typ, c.value, format, err, c.want)
			}
		}
	}
	for _, in := range []string{`{"c":20260131}`, `{"c":true}`} {
		if err := readAll(t, "json", in, schemaOf(t, "c DATE")); err == nil || !strings.Contains(err.Error(), "want a date") {
			t.Errorf("DATE of %s: %v", in, err)
		}
	}
	if err := readAll(t, "json", "{\"c\":\"\xff\"}", schemaOf(t, "c STRING")); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("text that is not UTF-8: %v", err)
	}
}

// What looks odd and is exact is taken as it is.
func TestExactValuesAreKept(t *testing.T) {
	for _, c := range []struct{ typ, json, csv, want string }{
		{"STRING", `"(null)"`, "(null)", `"(null)"`},
		{"BIGINT", `9007199254740993.0`, "9007199254740993.0", "9007199254740993"},
		{"INT", `1e3`, "1e3", "1000"},
		{"ROW<x BIGINT, d DECIMAL(20,2)>", `{"x":9007199254740993,"d":9007199254740993.01}`, `"{""x"":9007199254740993,""d"":9007199254740993.01}"`, `{"x":9007199254740993,"d":"9007199254740993.01"}`},
		{"MAP<STRING, ROW<a ARRAY<INT>>>", `[{"key":"k","value":{"a":[1,null]}},{"key":"l","value":null}]`, `"[{""key"":""k"",""value"":{""a"":[1,null]}},{""key"":""l""}]"`, `[{"key":"k","value":{"a":[1,null]}},{"key":"l","value":null}]`},
		{"MAP<STRING, INT>", `{"a":1,"b":null}`, `"{""a"":1,""b"":null}"`, `[{"key":"a","value":1},{"key":"b","value":null}]`},
		{"ROW<x INT>", `{}`, `{}`, `{"x":null}`},
	} {
		s := schemaOf(t, "c "+c.typ)
		for format, in := range map[string]string{"json": `{"c":` + c.json + `}`, "csv": "c\n" + c.csv + "\n"} {
			r, err := openRows(t.Context(), strings.NewReader(in), format, s, 2)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Next() {
				t.Errorf("%s %s in %s: %v", c.typ, in, format, r.Err())
				continue
			}
			var out bytes.Buffer
			if err := (jsonPrinter{&out}).print(r.RecordBatch()); err != nil || out.String() != `{"c":`+c.want+"}\n" {
				t.Errorf("%s %s in %s: %s, %v; want %s", c.typ, in, format, out.String(), err, c.want)
			}
			r.Release()
		}
	}
}

// Rows of JSON and CSV are read, or refused with an error that is not huge.
func FuzzRows(f *testing.F) {
	d := &schema.Schema{ID: 1, Columns: []schema.Column{
		{ID: 1, Name: "id", Type: schema.MustParseType("BIGINT NOT NULL")}, {ID: 2, Name: "s", Type: schema.MustParseType("STRING")},
		{ID: 3, Name: "d", Type: schema.MustParseType("DECIMAL(9,2)")}, {ID: 4, Name: "at", Type: schema.MustParseType("TIMESTAMP_LTZ(3)")},
		{ID: 5, Name: "m", Type: schema.MustParseType("MAP<STRING, ARRAY<ROW<x DOUBLE>>>")}, {ID: 6, Name: "b", Type: schema.MustParseType("BYTES")},
	}}
	for _, in := range []string{
		`{"id":1,"s":"a","d":"1.50","at":"2026-01-31T07:05:00Z","m":{"k":[{"x":1e3}]},"b":"AAEC"}` + "\n" + `{"id":2}`,
		"{\"id\":1}{\"id\":2}\n[1]", `{"id":null}`, "id,s,d,at,m,b\n1,a,1.50,2026-01-31T07:05:00Z,\"{\"\"k\"\":[]}\",AAEC\n", "\ufeffid,s\n1,\"x\ny\"\n", "id,id\n", "\"", "id\n1,2\n",
	} {
		f.Add(true, in)
		f.Add(false, in)
	}
	f.Fuzz(func(t *testing.T, asJSON bool, in string) {
		format := "csv"
		if asJSON {
			format = "json"
		}
		r, err := openRows(t.Context(), strings.NewReader(in), format, d.Arrow(), 2)
		if err == nil {
			defer r.Release()
			for r.Next() {
				if rec := r.RecordBatch(); rec.NumRows() == 0 || rec.NumRows() > 2 || rec.Column(0).NullN() != 0 {
					t.Errorf("%q: a batch of %d rows, %d without an id", in, rec.NumRows(), rec.Column(0).NullN())
				}
			}
			err = r.Err()
		}
		if err != nil && len(err.Error()) > 4096+len(in) {
			t.Errorf("%q: an error of %d bytes", in, len(err.Error()))
		}
	})
}
