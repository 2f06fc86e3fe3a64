package merge_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/mink-project/mink/core/record/merge"
	"github.com/mink-project/mink/core/record/merge/mergetest"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/mink"
)

// descriptor makes a table of "name TYPE" columns, the first of which is the primary
// key; AUTO after the type makes the auto-increment column, =f gives it a function.
func descriptor(t testing.TB, columns string, options ...string) *schema.Descriptor {
	t.Helper()
	d := &schema.Descriptor{Database: "db", Table: "t", Options: map[string]string{}}
	for c := range strings.SplitSeq(columns, ", ") {
		c, aggregate, _ := strings.Cut(c, " =")
		c, auto := strings.CutSuffix(c, " AUTO")
		name, typ, _ := strings.Cut(c, " ")
		d.Schema.Columns = append(d.Schema.Columns, schema.Column{Name: name, Type: schema.MustParseType(typ), AutoIncrement: auto, Aggregate: schema.AggregateFunction(aggregate)})
	}
	d.PrimaryKey = []string{d.Schema.Columns[0].Name}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		d.Options[name] = value
	}
	n, err := d.Normalize()
	if err == nil {
		err = n.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parse reads the text of a value: "-" is null, "" the empty text.
func parse(t testing.TB, typ schema.Type, text string) any {
	t.Helper()
	integer := func(bits int) int64 {
		v, err := strconv.ParseInt(text, 10, bits)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	float := func(bits int) float64 {
		v, err := strconv.ParseFloat(text, bits)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if text == "-" {
		return nil
	}
	switch typ.Kind {
	case schema.Boolean:
		return text == "true"
	case schema.TinyInt:
		return int8(integer(8))
	case schema.SmallInt:
		return int16(integer(16))
	case schema.Int:
		return int32(integer(32))
	case schema.BigInt:
		return integer(64)
	case schema.Float:
		return float32(float(32))
	case schema.Double:
		return float(64)
	case schema.Decimal:
		v, err := decimal128.FromString(text, int32(typ.Precision), int32(typ.Scale))
		if err != nil {
			t.Fatal(err)
		}
		return v
	case schema.String, schema.Char:
		return text
	case schema.Bytes, schema.Binary:
		return []byte(text)
	case schema.Date:
		return arrow.Date32(integer(32))
	case schema.Time:
		return arrow.Time32(integer(32))
	case schema.Timestamp, schema.TimestampLTZ:
		return arrow.Timestamp(integer(64))
	case schema.Array: // of one element
		return []any{parse(t, typ.Fields[0].Type, text)}
	}
	t.Fatalf("%s has no text here", typ)
	return nil
}

// show is the text of a value.
func show(typ schema.Type, v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case decimal128.Num:
		return v.ToString(int32(typ.Scale))
	case []byte:
		return string(v)
	case []any:
		return show(typ.Fields[0].Type, v[0])
	}
	return fmt.Sprint(v)
}

// write reads one write: "+" or "-", target columns in parentheses when not all,
// then the values of all columns, separated by "|".
func (tb *table) parseWrite(t testing.TB, text string) (columns []int, w mergetest.Write) {
	t.Helper()
	w.Delete = text[0] == '-'
	text = text[1:]
	if names, rest, ok := strings.Cut(text, ")"); ok {
		text = rest
		for name := range strings.SplitSeq(names[1:], ",") {
			columns = append(columns, tb.d.Schema.Index(name))
		}
	}
	values := strings.Split(strings.TrimPrefix(text, " "), "|")
	for i, c := range tb.d.Schema.Columns {
		w.Row = append(w.Row, parse(t, c.Type, values[i]))
	}
	w.Columns = columns
	return columns, w
}

func (tb *table) show(changes []mergetest.Change) string {
	var out []string
	for _, c := range changes {
		var values []string
		for i, v := range c.Row {
			values = append(values, show(tb.d.Schema.Columns[i].Type, v))
		}
		out = append(out, c.Kind.String()+" "+strings.Join(values, "|"))
	}
	return strings.Join(out, ", ")
}

// story is writes of one row each, and what each puts into the changelog; "!" and
// a part of the error when it is refused. Every story is told to the model too.
type story struct {
	name    string
	columns string
	options []string
	writes  [][2]string
}

const wal = "changelog_image=wal"

var stories = []story{
	{"insert, update and delete", "k INT, a INT, b STRING", nil, [][2]string{
		{"+ 1|2|x", "+I 1|2|x"},
		{"+ 1|3|y", "-U 1|2|x, +U 1|3|y"},
		{"+ 1|3|y", "-U 1|3|y, +U 1|3|y"},
		{"+ 1|-|", "-U 1|3|y, +U 1|-|"},
		{"- 1|9|z", "-D 1|-|"},
		{"- 1|9|z", ""},
		{"-(k) 1|-|-", ""},
	}},
	{"the same without images of old rows and without looking at them", "k INT, a INT, b STRING", []string{wal}, [][2]string{
		{"+ 1|2|x", "+U 1|2|x"},
		{"+ 1|3|y", "+U 1|3|y"},
		{"- 1|9|z", "-D 1|-|-"},
		{"- 1|9|z", "-D 1|-|-"},
	}},
	{"without images, looking", "k INT, a INT, b STRING, n INT AUTO", []string{wal}, [][2]string{
		{"+ 1|2|x|-", "+I 1|2|x|1"},
		{"+ 1|3|y|-", "+U 1|3|y|1"},
		{"- 1|9|z|-", "-D 1|-|-|-"},
		{"- 1|9|z|-", ""},
	}},
	{"some columns", "k INT, a INT, b STRING, c STRING NOT NULL", nil, [][2]string{
		{"+(k,a) 1|2|x|y", `!column "c" is NOT NULL and not among the target columns`},
		{"+(k,c) 1|2|x|y", "+I 1|-|-|y"},
		{"+(k,c,a) 1|2|x|z", "-U 1|-|-|y, +U 1|2|-|z"},
		{"+(k,c,a) 1|-|x|z", "-U 1|2|-|z, +U 1|-|-|z"},
		{"+(k,c) 1|-|-|-", `!column "c" is NOT NULL and got null`},
		{"+(a,c) 1|2|x|y", `!the primary-key column "k" is missing`},
		{"-(k,a,b) 1|-|-|-", "-U 1|-|-|z, +U 1|-|-|z"},
		{"-(k,c) 1|-|-|-", `!column "c" is NOT NULL and cannot be deleted alone`},
		{"-(k) 1|-|-|-", "-D 1|-|-|z"},
	}},
	{"only the key", "k INT, a INT, b STRING", nil, [][2]string{
		{"+(k) 1|5|x", "+I 1|-|-"},
		{"+ 1|5|x", "-U 1|-|-, +U 1|5|x"},
		{"+(k) 1|6|y", ""},
	}},
	{"a table of keys", "k INT", nil, [][2]string{
		{"+ 1", "+I 1"}, {"+ 1", ""}, {"- 1", "-D 1"}, {"- 1", ""},
	}},
	{"deletes of some columns", "k INT, a INT, b STRING", nil, [][2]string{
		{"-(k,a) 1|-|-", ""},
		{"+ 1|2|x", "+I 1|2|x"},
		{"-(k,a) 1|7|q", "-U 1|2|x, +U 1|-|x"},
		{"-(k,b) 1|-|-", "-D 1|-|x"},
		{"+ 1|2|x", "+I 1|2|x"},
		{"-(k,b,a) 1|-|-", "-D 1|2|x"},
	}},
	{"deletes of some columns, without images", "k INT, a INT, b STRING", []string{wal}, [][2]string{
		{"+ 1|2|x", "+U 1|2|x"},
		{"-(k,a) 1|7|q", "+U 1|-|x"},
		{"-(k,b) 1|-|-", "-D 1|-|-"},
		{"-(k,b) 1|-|-", ""},
		{"+(k,b) 1|-|z", "+I 1|-|z"},
	}},
	{"deletes are passed over", "k INT, a INT", []string{"delete_behavior=ignore"}, [][2]string{
		{"+ 1|2", "+I 1|2"}, {"- 1|2", ""}, {"-(k) 1|2", ""}, {"+ 1|3", "-U 1|2, +U 1|3"},
	}},
	{"deletes are refused", "k INT, a INT", []string{"delete_behavior=disable"}, [][2]string{
		{"+ 1|2", "+I 1|2"}, {"- 1|2", "!delete: the table has delete_behavior = disable"}, {"- 9|2", "!delete_behavior = disable"},
	}},
	{"deletes are passed over, without images", "k INT, a INT", []string{wal, "delete_behavior=ignore"}, [][2]string{{"+ 1|2", "+U 1|2"}, {"- 1|2", ""}}},
	{"first row", "k INT, a INT", []string{"merge_engine=first_row"}, [][2]string{
		{"+ 1|2", "+I 1|2"},
		{"+ 1|3", ""},
		{"+ 2|-", "+I 2|-"},
		{"+ 2|3", ""},
		{"+(k) 1|3", "!merge engine first_row takes whole rows"},
		{"- 1|2", "!the table's merge engine first_row takes no deletes"},
	}},
	{"first row, deletes passed over", "k INT, a INT", []string{"merge_engine=first_row", "delete_behavior=ignore", wal}, [][2]string{
		{"+ 1|2", "+I 1|2"}, {"- 1|2", ""}, {"+ 1|3", ""},
	}},
	{"versions", "k INT, v BIGINT, a STRING", []string{"merge_engine=versioned:v"}, [][2]string{
		{"+ 1|5|a", "+I 1|5|a"},
		{"+ 1|4|b", ""},
		{"+ 1|5|c", "-U 1|5|a, +U 1|5|c"},
		{"+ 1|-|d", ""},
		{"+ 1|6|e", "-U 1|5|c, +U 1|6|e"},
		{"+ 2|-|a", "+I 2|-|a"},
		{"+ 2|-|b", "-U 2|-|a, +U 2|-|b"},
		{"+ 2|-9|c", "-U 2|-|b, +U 2|-9|c"},
		{"+(k,v) 2|9|c", "!merge engine versioned takes whole rows"},
		{"- 2|9|c", "!merge engine versioned takes no deletes"},
	}},
	{"versions, without images", "k INT, v TIMESTAMP(3), a STRING", []string{"merge_engine=versioned:v", wal, "delete_behavior=ignore"}, [][2]string{
		{"+ 1|5|a", "+I 1|5|a"}, {"+ 1|4|b", ""}, {"+ 1|5|c", "+U 1|5|c"}, {"- 1|9|c", ""},
	}},
	{"float versions", "k INT, v DOUBLE, a STRING", []string{"merge_engine=versioned:v"}, [][2]string{
		{"+ 1|0|a", "+I 1|0|a"},
		{"+ 1|-0|b", "-U 1|0|a, +U 1|-0|b"},
		{"+ 1|0|c", "-U 1|-0|b, +U 1|0|c"},
		{"+ 1|-Inf|d", ""},
		{"+ 1|+Inf|e", "-U 1|0|c, +U 1|+Inf|e"},
		{"+ 1|NaN|f", "-U 1|+Inf|e, +U 1|NaN|f"},
		{"+ 1|+Inf|g", ""},
		{"+ 1|NaN|h", "-U 1|NaN|f, +U 1|NaN|h"},
	}},
	{"text versions", "k INT, v STRING", []string{"merge_engine=versioned:v"}, [][2]string{
		{"+ 1|", "+I 1|"}, {"+ 1|a", "-U 1|, +U 1|a"}, {"+ 1|", ""}, {"+ 1|Z", ""}, {"+ 1|ab", "-U 1|a, +U 1|ab"},
	}},
	{"aggregation", "k INT, s INT =sum, d STRING, f STRING =first_value", []string{"merge_engine=aggregation"}, [][2]string{
		{"+ 1|2|x|a", "+I 1|2|x|a"},
		{"+ 1|3|-|b", "-U 1|2|x|a, +U 1|5|x|a"},
		{"+(k,s) 1|4|y|c", "-U 1|5|x|a, +U 1|9|x|a"},
		{"+(k) 1|4|y|c", ""},
		{"+(k,d) 1|4|y|c", "-U 1|9|x|a, +U 1|9|y|a"},
		{"+ 1|2147483647|z|z", `!column "s": the sum of 9 and 2147483647 does not fit INT`},
		{"-(k,s) 1|-|-|-", "-U 1|9|y|a, +U 1|-|y|a"},
		{"+ 1|7|-|-", "-U 1|-|y|a, +U 1|7|y|a"},
		{"- 1|-|-|-", "-D 1|7|y|a"},
		{"+(k,s) 1|1|q|q", "+I 1|1|-|-"},
	}},
	{"aggregation, without images", "k INT, s INT =max", []string{"merge_engine=aggregation", wal}, [][2]string{
		{"+ 1|2", "+I 1|2"}, {"+ 1|1", "+U 1|2"}, {"- 1|1", "-D 1|-"}, {"- 1|1", ""},
	}},
	{"auto-increment", "k STRING, n BIGINT NOT NULL AUTO, a INT", nil, [][2]string{
		{"+ x|-|1", "+I x|1|1"},
		{"+(k,a) y|7|1", "+I y|2|1"},
		{"+ x|-|2", "-U x|1|1, +U x|1|2"},
		{"+(k,a) x|-|3", "-U x|1|2, +U x|1|3"},
		{"+ x|5|2", `!column "n" gets its numbers from the table: leave it out, or null; got 5`},
		{"+ z|5|2", `!column "n" gets its numbers`},
		{"-(k,a) x|-|-", "-D x|1|3"}, // all columns, as the numbered one may be left out
		{"-(k,n) x|-|-", `!the auto-increment column "n" cannot be deleted alone`},
		{"- y|5|-", "-D y|2|1"},
		{"+ x|-|1", "+I x|3|1"},
		{"-(k,a,n) x|-|-", "-D x|3|1"},
	}},
	{"a number is a value that is left", "k STRING, n INT AUTO, a INT, b INT", nil, [][2]string{
		{"+ x|-|1|2", "+I x|1|1|2"},
		{"-(k,a) x|-|-|-", "-U x|1|1|2, +U x|1|-|2"},
		{"-(k,b) x|-|-|-", "-U x|1|-|2, +U x|1|-|-"},
		{"-(k,b) x|-|-|-", "-U x|1|-|-, +U x|1|-|-"},
		{"+(k,n) y|-|-|-", "+I y|2|-|-"},
		{"+(k,n) y|-|-|-", ""},
	}},
	{"auto-increment in first rows", "k STRING, n INT AUTO", []string{"merge_engine=first_row"}, [][2]string{
		{"+ x|-", "+I x|1"}, {"+ x|-", ""}, {"+(k) y|-", "+I y|2"},
	}},
	{"auto-increment in versions", "k STRING, n INT AUTO, v INT", []string{"merge_engine=versioned:v"}, [][2]string{
		{"+ x|-|1", "+I x|1|1"}, {"+ x|-|2", "-U x|1|1, +U x|1|2"}, {"+(k,v) x|-|3", "-U x|1|2, +U x|1|3"},
	}},
	{"auto-increment in sums", "k STRING, n INT AUTO, v INT =sum", []string{"merge_engine=aggregation"}, [][2]string{
		{"+ x|-|1", "+I x|1|1"}, {"+ x|-|2", "-U x|1|1, +U x|1|3"},
	}},
}

func TestStories(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			d := descriptor(t, s.columns, s.options...)
			tb, model := newTable(t, d), mergetest.New(d)
			for i, step := range s.writes {
				columns, w := tb.parseWrite(t, step[0])
				changes, err := tb.put(t, columns, []mergetest.Write{w})
				if want, refused := strings.CutPrefix(step[1], "!"); refused != (err != nil) || refused && !strings.Contains(err.Error(), want) {
					t.Fatalf("%d: %s: %v, want %q", i, step[0], err, step[1])
				}
				if got := tb.show(changes); err == nil && got != step[1] {
					t.Fatalf("%d: %s: %q, want %q", i, step[0], got, step[1])
				}
				if strings.Contains(step[1], "primary-key column") {
					continue // the model takes no writes without a key
				}
				if told, err := model.Apply([]mergetest.Write{w}); tb.show(told) != tb.show(changes) {
					t.Fatalf("%d: %s: the model says %q, %v", i, step[0], tb.show(told), err)
				}
			}
		})
	}
}

// Each function: old value, new value, result ("!": refused).
func TestFunctions(t *testing.T) {
	big, low := "9223372036854775807", "-9223372036854775808"
	nines := strings.Repeat("9", 38)
	for _, c := range []struct{ typ, function, old, in, want string }{
		{"TINYINT", "sum", "100", "27", "127"}, {"TINYINT", "sum", "100", "28", "!100 and 28 does not fit TINYINT"}, {"TINYINT", "sum", "-100", "-28", "-128"}, {"TINYINT", "sum", "-100", "-29", "!"},
		{"SMALLINT", "sum", "32767", "1", "!"}, {"SMALLINT", "product", "-256", "128", "-32768"}, {"SMALLINT", "product", "256", "128", "!"},
		{"INT", "sum", "2147483647", "0", "2147483647"}, {"INT", "product", "65536", "32768", "!"}, {"INT", "product", "-65536", "32768", "-2147483648"},
		{"BIGINT", "sum", big, "1", "!the sum of " + big + " and 1 does not fit BIGINT"}, {"BIGINT", "sum", low, "-1", "!"}, {"BIGINT", "sum", low, big, "-1"},
		{"BIGINT", "product", "4611686018427387904", "2", "!"}, {"BIGINT", "product", "4611686018427387904", "-2", low}, {"BIGINT", "product", low, "-1", "!"}, {"BIGINT", "product", low, "1", low}, {"BIGINT", "product", big, "0", "0"},
		{"BIGINT", "sum", "-", "5", "5"}, {"BIGINT", "sum", "5", "-", "5"}, {"BIGINT", "sum", "-", "-", "-"}, {"BIGINT", "product", "-", "5", "5"}, {"BIGINT", "product", "5", "-", "5"},
		{"FLOAT", "sum", "3e38", "3e38", "+Inf"}, {"FLOAT", "product", "1e-30", "1e-30", "0"}, {"FLOAT", "sum", "0.1", "0.2", "0.3"}, {"DOUBLE", "sum", "0.1", "0.2", "0.30000000000000004"},
		{"DOUBLE", "sum", "+Inf", "-Inf", "NaN"}, {"DOUBLE", "sum", "NaN", "1", "NaN"}, {"DOUBLE", "sum", "-0", "-0", "-0"}, {"DOUBLE", "sum", "-0", "0", "0"}, {"DOUBLE", "product", "-0", "1", "-0"}, {"DOUBLE", "sum", "1e308", "1e308", "+Inf"},
		{"DECIMAL(5,2)", "sum", "999.99", "0.01", "!the sum of 999.99 and 0.01 does not fit DECIMAL(5,2)"}, {"DECIMAL(5,2)", "sum", "-999.99", "999.99", "0.00"}, {"DECIMAL(5,2)", "sum", "1.50", "-2.25", "-0.75"},
		{"DECIMAL(5,2)", "product", "1.50", "2.00", "3.00"}, {"DECIMAL(5,2)", "product", "0.05", "0.10", "0.01"}, {"DECIMAL(5,2)", "product", "0.05", "-0.10", "-0.01"}, {"DECIMAL(5,2)", "product", "0.01", "0.49", "0.00"}, {"DECIMAL(5,2)", "product", "-0.01", "0.49", "0.00"},
		{"DECIMAL(5,2)", "product", "100.00", "10.00", "!"}, {"DECIMAL(5,2)", "product", "100.00", "9.99", "999.00"},
		{"DECIMAL(38,0)", "sum", nines, "1", "!"}, {"DECIMAL(38,0)", "sum", nines, nines, "!"}, {"DECIMAL(38,0)", "sum", "-" + nines, "-" + nines, "!"}, {"DECIMAL(38,0)", "sum", nines, "-" + nines, "0"}, {"DECIMAL(38,0)", "product", nines, nines, "!"}, {"DECIMAL(38,0)", "product", nines, "-1", "-" + nines},
		{"DECIMAL(38,38)", "product", "0." + nines, "0." + nines, "0." + nines[:37] + "8"}, {"DECIMAL(38,20)", "product", "123456789012345678.00000000000000000001", "1.00000000000000000000", "123456789012345678.00000000000000000001"},
		{"INT", "max", "1", "2", "2"}, {"INT", "max", "2", "1", "2"}, {"INT", "max", "-", "-5", "-5"}, {"INT", "min", "-5", "-", "-5"}, {"INT", "min", "1", "-2", "-2"},
		{"DOUBLE", "max", "+Inf", "NaN", "NaN"}, {"DOUBLE", "max", "NaN", "1", "NaN"}, {"DOUBLE", "min", "NaN", "1", "1"}, {"DOUBLE", "min", "-Inf", "NaN", "-Inf"}, {"DOUBLE", "max", "-0", "0", "-0"}, {"DOUBLE", "min", "0", "-0", "0"}, {"FLOAT", "max", "1", "NaN", "NaN"},
		{"DECIMAL(38,0)", "max", "-" + nines, nines, nines}, {"DECIMAL(38,0)", "min", "18446744073709551616", "18446744073709551615", "18446744073709551615"},
		{"STRING", "max", "", "a", "a"}, {"STRING", "min", "", "a", ""}, {"STRING", "max", "Z", "a", "a"}, {"STRING", "min", "-", "", ""}, {"BYTES", "max", "a", "\xff", "\xff"}, {"CHAR(2)", "max", "ab", "a", "ab"},
		{"DATE", "min", "-1", "0", "-1"}, {"TIME(0)", "max", "1", "2", "2"}, {"TIMESTAMP(9)", "max", "1", "2", "2"}, {"TIMESTAMP_LTZ(3)", "min", "1", "-2", "-2"},
		{"STRING", "last_value", "a", "-", "-"}, {"STRING", "last_value", "a", "", ""}, {"STRING", "last_value_ignore_nulls", "a", "-", "a"}, {"STRING", "last_value_ignore_nulls", "a", "", ""}, {"STRING", "last_value_ignore_nulls", "-", "b", "b"},
		{"STRING", "first_value", "-", "b", "-"}, {"STRING", "first_value", "", "b", ""}, {"STRING", "first_value_ignore_nulls", "-", "b", "b"}, {"STRING", "first_value_ignore_nulls", "", "b", ""}, {"STRING", "first_value_ignore_nulls", "a", "-", "a"},
		{"ARRAY<INT>", "last_value", "1", "2", "2"}, {"ARRAY<INT>", "first_value", "1", "2", "1"}, {"ARRAY<INT>", "last_value_ignore_nulls", "1", "-", "1"}, {"ARRAY<INT>", "first_value_ignore_nulls", "-", "2", "2"}, {"ARRAY<INT>", "", "1", "2", "2"},
		{"BOOLEAN", "bool_and", "true", "false", "false"}, {"BOOLEAN", "bool_and", "false", "true", "false"}, {"BOOLEAN", "bool_and", "true", "true", "true"}, {"BOOLEAN", "bool_and", "-", "true", "true"}, {"BOOLEAN", "bool_and", "true", "-", "true"},
		{"BOOLEAN", "bool_or", "false", "true", "true"}, {"BOOLEAN", "bool_or", "true", "false", "true"}, {"BOOLEAN", "bool_or", "false", "false", "false"}, {"BOOLEAN", "bool_or", "-", "false", "false"}, {"BOOLEAN", "bool_or", "-", "-", "-"},
		{"INT", "", "1", "-", "1"}, {"INT", "", "1", "2", "2"},
	} {
		d := descriptor(t, "k INT, v "+c.typ+" ="+c.function, "merge_engine=aggregation")
		tb, model := newTable(t, d), mergetest.New(d)
		typ := d.Schema.Columns[1].Type
		var changes []mergetest.Change
		var err error
		for _, v := range []string{c.old, c.in} {
			w := mergetest.Write{Row: mergetest.Row{int32(1), parse(t, typ, v)}}
			changes, err = tb.put(t, nil, []mergetest.Write{w})
			told, modelErr := model.Apply([]mergetest.Write{w})
			if !mergetest.Equal(told, changes) || (err == nil) != (modelErr == nil) {
				t.Errorf("%v: %v, %v, the model says %v, %v", c, changes, err, told, modelErr)
			}
		}
		want, refused := strings.CutPrefix(c.want, "!")
		switch {
		case refused && (err == nil || !strings.Contains(err.Error(), want)), !refused && err != nil:
			t.Errorf("%v: %v", c, err)
		case err == nil:
			if got := show(typ, changes[1].Row[1]); got != want {
				t.Errorf("%v: %s", c, got)
			}
		}
	}
}

// A batch of writes is one: a later write sees the earlier ones, and an error of any
// undoes all.
func TestBatch(t *testing.T) {
	d := descriptor(t, "k INT, s TINYINT =sum", "merge_engine=aggregation")
	tb := newTable(t, d)
	one := mergetest.Write{Row: mergetest.Row{int32(1), int8(60)}}
	changes, err := tb.put(t, nil, []mergetest.Write{one, one})
	if got := tb.show(changes); err != nil || got != "+I 1|60, -U 1|60, +U 1|120" {
		t.Fatal(got, err)
	}
	other := mergetest.Write{Row: mergetest.Row{int32(2), int8(1)}}
	if _, err := tb.put(t, nil, []mergetest.Write{other, one}); err == nil {
		t.Fatal("taken")
	}
	if len(tb.rows) != 1 {
		t.Fatal("half of a refused batch stays")
	}
}

// A writer that knows an older schema version leaves alone what was added since, and
// what it sends of dropped columns is nothing.
func TestOlderWriter(t *testing.T) {
	for engine, want := range map[string][]string{
		"last_write":  {"+I 1|10|-", "-U 1|10|n, +U 1|20|n", "-D 1|20|n"},
		"versioned:v": {"+I 1|10|-", "-U 1|10|n, +U 1|20|n", "!no deletes"},
		"first_row":   {"+I 1|10|-", "", "!no deletes"},
		"aggregation": {"+I 1|10|-", "-U 1|10|n, +U 1|20|n", "-D 1|20|n"},
	} {
		older := descriptor(t, "k INT, v INT, gone STRING", "merge_engine="+engine)
		d, err := older.Apply([]schema.Change{{Op: schema.DropColumn, Name: "gone"}, {Op: schema.AddColumn, Column: &schema.Column{Name: "new", Type: schema.MustParseType("STRING")}}})
		if err != nil {
			t.Fatal(err)
		}
		tb := newTable(t, d)
		targets, err := tb.e.Targets(&older.Schema, nil)
		if err != nil {
			t.Fatal(err)
		}
		if targets.All() {
			t.Error("an older writer does not write all columns")
		}
		enc := tb.e.Codec().Encoder()
		rec := mergetest.Batch(&d.Schema, []mergetest.Row{{int32(1), int32(10), nil}, {int32(1), int32(20), nil}, {int32(1), int32(10), "n"}})
		if err := enc.Bind(rec.Columns()); err != nil {
			t.Fatal(err)
		}
		write := func(row int, targets *merge.Targets, del bool) string {
			changes, err := tb.write(t, targets, "1", enc.Append(nil, row), del)
			if err != nil {
				return "!" + err.Error()
			}
			return tb.show(tb.changelog(t, changes))
		}
		if got := write(0, targets, false); got != want[0] {
			t.Errorf("%s: %s", engine, got)
		}
		delete(tb.rows, "1")
		write(2, tb.e.All(), false) // one who knows the column
		if got := write(1, targets, false); got != want[1] {
			t.Errorf("%s: %s, want %s", engine, got, want[1])
		}
		if got := write(1, targets, true); got != want[2] && !(want[2][0] == '!' && strings.Contains(got, want[2][1:])) {
			t.Errorf("%s: %s, want %s", engine, got, want[2])
		}
	}
}

func TestTargetsRefused(t *testing.T) {
	d := descriptor(t, "k INT, a INT, n INT AUTO")
	e, err := merge.New(d, &d.Schema)
	if err != nil {
		t.Fatal(err)
	}
	for want, ids := range map[string][]mink.FieldID{
		"no column with the field id 9":           {1, 9},
		`column "a" occurs twice`:                 {1, 2, 2},
		`column "n" occurs twice`:                 {1, 3, 3},
		`the primary-key column "k" is missing`:   {2},
		`the primary-key column "k" is missing; `: {},
	} {
		if _, err := e.Targets(&d.Schema, ids); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(want, "; ")) {
			t.Errorf("%v: %v, want %q", ids, err, want)
		}
	}
	if t1, err := e.Targets(&d.Schema, []mink.FieldID{2, 1}); err != nil || !t1.All() {
		t.Errorf("all but the auto-increment column are all: %v", err)
	}
	if _, err := merge.New(&schema.Descriptor{Database: "d", Table: "t", Schema: d.Schema}, &d.Schema); err == nil {
		t.Error("a log table has an engine")
	}
	empty := e.Codec().Compose(nil)
	if err := e.Assign(empty.Done(), 1<<31); err == nil || !strings.Contains(err.Error(), "its numbers are used up") {
		t.Error(err)
	}
}

func TestNoAllocations(t *testing.T) {
	for _, c := range []struct{ columns, engine string }{
		{"k INT, a BIGINT, b STRING", "last_write"},
		{"k INT, a BIGINT, v DOUBLE", "versioned:v"},
		{"k INT, a BIGINT, v DOUBLE", "first_row"},
		{"k INT, a BIGINT =sum, b DECIMAL(38,20) =product, c DECIMAL(9,2) =sum, d DOUBLE =max, e BOOLEAN =bool_or, f SMALLINT =product, g STRING", "aggregation"},
	} {
		d := descriptor(t, c.columns, "merge_engine="+c.engine)
		tb := newTable(t, d)
		row := mergetest.Row{}
		for i, col := range d.Schema.Columns {
			text := "1"
			if i > 0 && col.Type.Kind == schema.Boolean {
				text = "true"
			}
			row = append(row, parse(t, col.Type, text))
		}
		enc := tb.e.Codec().Encoder()
		if err := enc.Bind(mergetest.Batch(&d.Schema, []mergetest.Row{row}).Columns()); err != nil {
			t.Fatal(err)
		}
		in := enc.Append(nil, 0)
		dst := make([]byte, 0, 256)
		some, err := tb.e.Targets(&d.Schema, []mink.FieldID{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		n := testing.AllocsPerRun(100, func() {
			if _, _, err := tb.e.Apply(dst, in, in, tb.e.All(), false); err != nil {
				t.Fatal(err)
			}
			if c.engine == "last_write" || c.engine == "aggregation" {
				if _, _, err := tb.e.Apply(dst, in, in, some, false); err != nil {
					t.Fatal(err)
				}
				if _, _, err := tb.e.Apply(dst, in, in, some, true); err != nil {
					t.Fatal(err)
				}
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", c.engine, n)
		}
	}
}
