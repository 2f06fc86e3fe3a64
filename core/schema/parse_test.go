package schema

import (
	"errors"
	"strings"
	"testing"

	"github.com/mink-project/mink/sdk/mink"
	"pgregory.net/rapid"
)

func TestParseTypeCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"int", "INT"},
		{" BigInt\tnot  null ", "BIGINT NOT NULL"},
		{"integer null", "INT"},
		{"bool", "BOOLEAN"},
		{"decimal", "DECIMAL(10,0)"},
		{"decimal ( 10 , 2 ) NOT NULL", "DECIMAL(10,2) NOT NULL"},
		{"DECIMAL(38,38)", "DECIMAL(38,38)"},
		{"char", "CHAR(1)"},
		{"CHAR(65535)", "CHAR(65535)"},
		{"binary(16)", "BINARY(16)"},
		{"time", "TIME(0)"},
		{"timestamp", "TIMESTAMP(6)"},
		{"timestamp_ltz(3)", "TIMESTAMP_LTZ(3)"},
		{"timestamp_ltz", "TIMESTAMP_LTZ(6)"},
		{"array<int>", "ARRAY<INT>"},
		{"array<int not null>not null", "ARRAY<INT NOT NULL> NOT NULL"},
		{"MAP<string not null, BIGINT>", "MAP<STRING, BIGINT>"},
		{"map<string,array<map<int,bytes not null>>>", "MAP<STRING, ARRAY<MAP<INT, BYTES NOT NULL>>>"},
		{"ROW<a int,b String NOT NULL>", "ROW<a INT, b STRING NOT NULL>"},
		{"row<int int, `a b` date, `x``y` double>", "ROW<int INT, `a b` DATE, `x``y` DOUBLE>"},
		{"row<ROW row<a tinyint>>", "ROW<ROW ROW<a TINYINT>>"},
	} {
		got, err := ParseType(c.in)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if got.String() != c.want {
			t.Errorf("%q prints as %q, want %q", c.in, got, c.want)
		}
		again, err := ParseType(got.String())
		if err != nil || !again.Equal(got) {
			t.Errorf("%q does not read back: %v, %v", got, again, err)
		}
	}
}

func TestParseTypeErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "position 1: expected a type such as INT or STRING, found the end"},
		{"varchar(20)", `position 1: unknown type "varchar", here it is STRING`},
		{"ARRAY<int64>", `position 7: unknown type "int64", here it is BIGINT`},
		{"WORDS", `position 1: unknown type "WORDS"`},
		{"BIGNIT", `did you mean "BIGINT"?`},
		{"INT(3)", "position 4: INT takes no arguments"},
		{"DECIMAL(39)", "position 9: precision of DECIMAL must be 1 to 38"},
		{"DECIMAL(5,6)", "position 11: scale of DECIMAL must be 0 to 5"},
		{"DECIMAL(0)", "must be 1 to 38"},
		{"DECIMAL(99999999999999999999)", "must be 1 to 38"},
		{"DECIMAL(-1)", `expected a number, the precision of DECIMAL, found "-1"`},
		{"DECIMAL(5", "position 10: expected ')', found the end"},
		{"TIMESTAMP(10)", "precision of TIMESTAMP must be 0 to 9"},
		{"CHAR(0)", "length of CHAR must be 1 to 65535"},
		{"BINARY(65536)", "length of BINARY must be 1 to 65535"},
		{"INT NOT", "position 8: expected NULL after NOT, found the end"},
		{"INT NOT NULL x", `position 14: expected the end of the type, found "x"`},
		{"ARRAY", "expected '<' after ARRAY"},
		{"ARRAY<INT", "expected '>'"},
		{"ARRAY<>", "expected a type such as INT or STRING, found \">\""},
		{"MAP<INT>", "expected ',' between a map's key and value"},
		{"ROW<>", "expected a field name"},
		{"ROW<a>", "expected a type"},
		{"ROW<a INT, a INT>", `position 12: the name "a" occurs twice in one ROW`},
		{"ROW<`a INT>", "expected a closing backtick"},
		{"ROW<`` INT>", "it is empty"},
		{"ROW<__x INT>", "reserved"},
		{"INT €", "found \"€\""},
		{strings.Repeat("ARRAY<", 40) + "INT" + strings.Repeat(">", 40), "nested more than 32 deep"},
		{strings.Repeat(" ", MaxTypeLength+1), "at most 65536 are allowed"},
		{"ROW<" + strings.Repeat("x", 201) + " INT>", "at most 200 are allowed"},
	} {
		_, err := ParseType(c.in)
		if !errors.Is(err, mink.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: error %v, want %q", c.in, err, c.want)
		}
	}
}

func TestParseTypeBoundsFields(t *testing.T) {
	var b strings.Builder
	b.WriteString("ROW<a0 INT")
	for i := 1; i <= MaxFields; i++ {
		b.WriteString(",b" + strings.Repeat("x", i%3) + string(rune('a'+i%26)) + itoa(i) + " INT")
	}
	b.WriteString(">")
	if _, err := ParseType(b.String()); err == nil || !strings.Contains(err.Error(), "more than 4096 nested fields") {
		t.Fatalf("error %v", err)
	}
}

func itoa(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + itoa(i%10)
}

// genType draws any type, nested up to depth.
func genType(depth int) *rapid.Generator[Type] {
	return rapid.Custom(func(t *rapid.T) Type {
		high := Row
		if depth == 0 {
			high = TimestampLTZ
		}
		typ := Type{Kind: Kind(rapid.IntRange(int(Boolean), int(high)).Draw(t, "kind"))}
		switch typ.Kind {
		case Decimal:
			typ.Precision = rapid.IntRange(1, 38).Draw(t, "p")
			typ.Scale = rapid.IntRange(0, typ.Precision).Draw(t, "s")
		case Char, Binary:
			typ.Length = rapid.IntRange(1, 40).Draw(t, "n")
		case Time, Timestamp, TimestampLTZ:
			typ.Precision = rapid.IntRange(0, 9).Draw(t, "p")
		case Array:
			typ = ArrayOf(genType(depth-1).Draw(t, "element"))
		case Map:
			typ = MapOf(genType(depth-1).Draw(t, "key"), genType(depth-1).Draw(t, "value"))
		case Row:
			names := rapid.SliceOfNDistinct(genColumnName(), 1, 4, rapid.ID[string]).Draw(t, "names")
			for _, name := range names {
				typ.Fields = append(typ.Fields, Field{Name: name, Type: genType(depth-1).Draw(t, "field")})
			}
		}
		typ.NotNull = rapid.Bool().Draw(t, "not null")
		return typ
	})
}

func genColumnName() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z][a-zA-Z0-9_.-]{0,10}`),
		rapid.StringMatching("[a-z `\"<>,()\\\\é漢]{1,8}"),
		rapid.SampledFrom([]string{"int", "NOT", "NULL", "ROW", "a", "b", "c"}),
	)
}

func TestTypeTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		typ := genType(3).Draw(t, "type")
		got, err := ParseType(typ.String())
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		if !got.Equal(typ) {
			t.Fatalf("%s read as %s", typ, got)
		}
	})
}

func FuzzParseType(f *testing.F) {
	for _, s := range []string{"DECIMAL(10,2) NOT NULL", "MAP<STRING, ARRAY<ROW<`a b` INT, c TIMESTAMP_LTZ(3) NOT NULL>>>", "ROW<a", "CHAR(", "`", "NOT NULL", "array<array<"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		typ, err := ParseType(text)
		if err != nil {
			if !errors.Is(err, mink.ErrInvalid) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if err := checkType(typ, "c", 0); err != nil {
			t.Fatalf("%q parsed to a type that is not valid: %v", text, err)
		}
		again, err := ParseType(typ.String())
		if len(typ.String()) <= MaxTypeLength && (err != nil || !again.Equal(typ)) {
			t.Fatalf("%q prints as %q, which reads as %v, %v", text, typ, again, err)
		}
	})
}
