package predicate_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/core/schema/partition"
	"github.com/mink-project/mink/core/schema/predicate"
	"github.com/mink-project/mink/sdk/mink"
)

func schemaOf(columns ...string) *schema.Schema {
	s := &schema.Schema{ID: 1}
	for i, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		s.Columns = append(s.Columns, schema.Column{ID: mink.FieldID(i + 1), Name: name, Type: schema.MustParseType(typ)})
	}
	return s
}

var allTypes = []string{
	"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,0)", "CHAR(3)", "STRING", "BINARY(2)", "BYTES", "DATE",
	"TIME(0)", "TIME(3)", "TIME(6)", "TIME(9)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(0)", "TIMESTAMP_LTZ(6)",
}

// text writes a value as a literal.
func text(t *rapid.T, typ schema.Type, v any) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	switch v := v.(type) {
	case bool:
		return fmt.Sprint(v)
	case []byte:
		return "x'" + hex.EncodeToString(v) + "'"
	case string:
		return quote(v)
	case decimal128.Num:
		return v.ToString(int32(typ.Scale))
	}
	s, err := partition.Format(typ, v)
	if err != nil {
		t.Fatal(err)
	}
	switch typ.Kind {
	case schema.Date:
		return "DATE " + quote(s)
	case schema.Time:
		return "time " + quote(s)
	case schema.Timestamp, schema.TimestampLTZ:
		return "TIMESTAMP " + quote(strings.Replace(s, "T", " ", 1))
	case schema.Float, schema.Double:
		return quote(s) // NaN, Infinity
	}
	return s
}

// truth is SQL's three values; nil is unknown.
type truth = *bool

func is(b bool) truth { return &b }

// draw makes a condition and what it means.
func draw(t *rapid.T, s *schema.Schema, depth int) (string, func(row mergetest.Row) truth) {
	kind := rapid.IntRange(0, 6).Draw(t, "kind")
	if depth == 0 {
		kind = min(kind, 3)
	}
	at := rapid.IntRange(0, len(s.Columns)-1).Draw(t, "column")
	c := s.Columns[at]
	name := `"` + c.Name + `"`
	literal := func() any { return mergetest.Value(t, c.Type.Required()) }
	switch kind {
	case 0:
		return name + " is NULL", func(r mergetest.Row) truth { return is(r[at] == nil) }
	case 1:
		op, v := rapid.SampledFrom([]string{"=", "<>", "!=", "<", "<=", ">", ">="}).Draw(t, "op"), literal()
		return name + op + text(t, c.Type, v), func(r mergetest.Row) truth {
			if r[at] == nil {
				return nil
			}
			d := compare(r[at], v)
			return is(map[string]bool{"=": d == 0, "<>": d != 0, "!=": d != 0, "<": d < 0, "<=": d <= 0, ">": d > 0, ">=": d >= 0}[op])
		}
	case 2:
		var values []any
		var texts []string
		for range rapid.IntRange(1, 4).Draw(t, "n") {
			v := literal()
			values, texts = append(values, v), append(texts, text(t, c.Type, v))
		}
		not := rapid.Bool().Draw(t, "not")
		return name + map[bool]string{true: " not in (", false: " IN ("}[not] + strings.Join(texts, ", ") + ")", func(r mergetest.Row) truth {
			if r[at] == nil {
				return nil
			}
			return is(slices.ContainsFunc(values, func(v any) bool { return compare(r[at], v) == 0 }) != not)
		}
	case 3:
		lo, hi := literal(), literal()
		return fmt.Sprintf("%s BETWEEN %s AND %s", name, text(t, c.Type, lo), text(t, c.Type, hi)), func(r mergetest.Row) truth {
			if r[at] == nil {
				return nil
			}
			return is(compare(r[at], lo) >= 0 && compare(r[at], hi) <= 0)
		}
	case 4:
		a, mean := draw(t, s, depth-1)
		return "NOT (" + a + ")", func(r mergetest.Row) truth {
			if v := mean(r); v != nil {
				return is(!*v)
			}
			return nil
		}
	}
	a, meanA := draw(t, s, depth-1)
	b, meanB := draw(t, s, depth-1)
	word, decides := " AND ", false
	if kind == 6 {
		word, decides = " OR ", true
	}
	return "(" + a + ")" + word + "(" + b + ")", func(r mergetest.Row) truth {
		x, y := meanA(r), meanB(r)
		switch {
		case x != nil && *x == decides || y != nil && *y == decides:
			return is(decides)
		case x == nil || y == nil:
			return nil
		}
		return is(!decides)
	}
}

func compare(a, b any) int {
	if x, ok := a.(bool); ok {
		y := b.(bool)
		switch {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	}
	return mergetest.Compare(a, b)
}

// Every type, operator and connective against the meaning row by row.
func TestAgreesWithItsMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var columns []string
		for i := range rapid.IntRange(1, 3).Draw(t, "columns") {
			columns = append(columns, fmt.Sprintf("c%d %s", i, rapid.SampledFrom(allTypes).Draw(t, "type")))
		}
		s := schemaOf(columns...)
		var rows []mergetest.Row
		for range rapid.IntRange(0, 9).Draw(t, "rows") {
			row := make(mergetest.Row, len(s.Columns))
			for i, c := range s.Columns {
				row[i] = mergetest.Value(t, c.Type)
			}
			rows = append(rows, row)
		}
		filter, mean := draw(t, s, 3)
		e, err := predicate.Parse(filter)
		if err != nil {
			t.Fatalf("%s: %v", filter, err)
		}
		p, err := e.Bind(s)
		if err != nil {
			t.Fatalf("%s: %v", filter, err)
		}
		rec := mergetest.Batch(s, rows)
		defer rec.Release()
		// A slice: offsets of arrays count.
		from := rapid.IntRange(0, len(rows)).Draw(t, "from")
		part := rec.NewSlice(int64(from), int64(len(rows)))
		defer part.Release()
		var want []mergetest.Row
		for _, r := range rows[from:] {
			if v := mean(r); v != nil && *v {
				want = append(want, r)
			}
		}
		kept, err := p.Filter(memory.DefaultAllocator, part)
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Release()
		if got := mergetest.Rows(kept); !mergetest.Equal(got, want) && len(got)+len(want) > 0 {
			t.Fatalf("%s\nrows %v\ngot  %v\nwant %v", filter, rows[from:], got, want)
		}
	})
}

func TestText(t *testing.T) {
	s := schemaOf("id BIGINT", "time TIMESTAMP(3)", "day DATE", "t TINYINT", "price DECIMAL(6,2)", "at TIMESTAMP_LTZ(6)", "f DOUBLE", "o'n STRING", "l ARRAY<INT>", "b BINARY(2)", "c TIME(3)")
	for _, ok := range []string{
		"id = 1", "id=-1 and NOT not id >= +5 OR (day < '2024-01-31')", "time > TIMESTAMP '2024-01-31 07:05:00.500'", "time > timestamp '2024-01-31T07:05:00.5000000'",
		"at = '2024-01-31T07:05:00Z'", "at = TIMESTAMP '2024-01-31 09:05:00+02:00'", "price <= 12.3", "price in (1, 2.50, 1e1)", `"o'n" = 'it''s'`, "l IS NOT NULL", "f > 1.5e300", "b = X'00ff'",
		"c < TIME '07:05:00'", "id NOT BETWEEN 1 AND 3 AND t = 1", "f = 'NaN'", "t is not null\n",
	} {
		e, err := predicate.Parse(ok)
		if err != nil {
			t.Errorf("%s: %v", ok, err)
			continue
		}
		if _, err := e.Bind(s); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for bad, say := range map[string]string{
		"":                                  "filter",
		"id":                                "filter at character",
		"id = ":                             "filter",
		"id = 1 AND":                        "filter",
		"id = 1 id = 2":                     "filter at character 8",
		"id = id":                           "filter",
		"idd = 1":                           `no column "idd"; did you mean "id"?`,
		"id = 1.5":                          "whole number of 64 bits",
		"t = 300":                           "whole number of 8 bits",
		"id = NULL":                         "IS NULL",
		"id = 'x'":                          `column "id" (BIGINT): "x": want a whole number`,
		"price = 1.234":                     "more than 2 digits after the point",
		"price = 123456":                    "more than 4 digits before the point",
		"price = 1e999999":                  "exponent",
		"time = '2024-01-31 00:00:00.0001'": "finer than TIMESTAMP(3)",
		"at = '2024-01-31 00:00:00'":        "needs its zone",
		"day = '2024-02-30'":                "date",
		"day = DATE '31.1.2024'":            "date",
		"day = TIME '07:00:00'":             "literal of TIME is no value",
		"day = 20240131":                    "write it as text",
		"l = 1":                             "nested types take IS NULL",
		"b = X'00'":                         "it has 1 bytes, the type 2",
		"id = X'00'":                        "bytes are no value",
		"t = TRUE":                          "TRUE is no value",
		"id IN ()":                          "filter",
		"id = FOO 'x'":                      "no type of a literal",
		"id = 'open":                        "filter",
		"id = 1; drop":                      "filter at character 7",
		strings.Repeat("(", 65) + "id=1":    "more than 64 deep",
		strings.Repeat("x", 65<<10):         "at most 65536",
	} {
		e, err := predicate.Parse(bad)
		if err == nil {
			_, err = e.Bind(s)
		}
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), say) {
			t.Errorf("%.40s: %v, want one with %q", bad, err, say)
		}
	}
	e, err := predicate.Parse(`id = 1 AND ("o'n" = 'x' OR id IS NULL)`)
	if err != nil || !slices.Equal(e.Columns(), []string{"id", "o'n"}) {
		t.Errorf("columns %v, %v", e.Columns(), err)
	}
}

// Deep and long, within the bounds: neither the stack nor time runs out.
func TestBounds(t *testing.T) {
	s := schemaOf("id INT")
	deep := strings.Repeat("NOT (", predicate.MaxDepth) + "id = 1" + strings.Repeat(")", predicate.MaxDepth)
	many := "id = 1" + strings.Repeat(" OR NOT NOT id=1", (predicate.MaxTextBytes-6)/16)
	for _, text := range []string{deep, many, "id IN (1" + strings.Repeat(",2", (predicate.MaxTextBytes-9)/2) + ")"} {
		e, err := predicate.Parse(text)
		if err != nil {
			t.Fatalf("%.30s: %v", text, err)
		}
		if _, err := e.Bind(s); err != nil {
			t.Fatalf("%.30s: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"id = 1 AND NOT (s IN ('a', 'b''c') OR d >= DATE '2024-01-31')", `"a ""b" <> X'00ff'`, "p BETWEEN -1.5 AND 1e3", "t < TIMESTAMP '2024-01-31 07:05:00.123+02:00'", "l IS NOT NULL", "b = TRUE", "((((", "'", "\xff",
	} {
		f.Add(seed)
	}
	var columns []string
	for i, typ := range allTypes {
		columns = append(columns, string(rune('a'+i))+" "+typ)
	}
	s := schemaOf(append(columns, "id INT", "s STRING", "l ARRAY<INT>")...)
	rec := mergetest.Batch(s, []mergetest.Row{make(mergetest.Row, len(s.Columns))})
	f.Fuzz(func(t *testing.T, text string) {
		e, err := predicate.Parse(text)
		if err == nil {
			var p *predicate.Predicate
			if p, err = e.Bind(s); err == nil {
				if _, err := p.Rows(rec); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		if !errors.Is(err, mink.ErrInvalid) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func BenchmarkRows(b *testing.B) {
	s := schemaOf("id BIGINT NOT NULL", "s STRING NOT NULL")
	rows := make([]mergetest.Row, 8192)
	for i := range rows {
		rows[i] = mergetest.Row{int64(i), fmt.Sprint(i)}
	}
	rec := mergetest.Batch(s, rows)
	e, err := predicate.Parse("id >= 100 AND s < '5' OR id IN (1, 2, 3)")
	if err != nil {
		b.Fatal(err)
	}
	p, err := e.Bind(s)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(8192)
	for b.Loop() {
		if _, err := p.Rows(rec); err != nil {
			b.Fatal(err)
		}
	}
}
