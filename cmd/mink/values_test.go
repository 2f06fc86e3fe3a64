package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
)

func TestDecimals(t *testing.T) {
	typ := &arrow.Decimal128Type{Precision: 38, Scale: 2}
	for in, want := range map[string]string{
		"0": "0.00", "-0.05": "-0.05", "12.3": "12.30", "1e3": "1000.00", "0.29": "0.29", "1.230": "1.23",
		"999999999999999999999999999999999999.99":  "999999999999999999999999999999999999.99",
		"-123456789012345678901234567890123456.78": "-123456789012345678901234567890123456.78",
	} {
		n, err := parseDecimal(in, typ)
		if got := decimalText(n, typ.Scale); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"1.239": "more than 2 digits after", "1e40": "more than 36 digits before", "1e99999": "exponent", "": "want a number",
		"1/3": "want a number", "x": "want a number", "0x10": "want a number", "NaN": "want a number",
	} {
		if _, err := parseDecimal(in, typ); err == nil || !strings.Contains(whyUnread(typ, err).Error(), want) {
			t.Errorf("%q: %v; want %q", in, err, want)
		}
	}
}

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
