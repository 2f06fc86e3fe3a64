package schema

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewriteDocs = flag.Bool("rewrite", false, "write the generated parts of docs/tables.md")

// TestManual keeps the generated parts of docs/tables.md: types and options.
func TestManual(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "tables.md")
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := old
	for name, body := range map[string]string{"types": typeRows(), "options": optionRows(false), "kafka options": optionRows(true)} {
		begin, end := fmt.Sprintf("<!-- begin %s, generated -->\n", name), fmt.Sprintf("<!-- end %s -->", name)
		i, j := bytes.Index(text, []byte(begin)), bytes.Index(text, []byte(end))
		if i < 0 || j < i {
			t.Fatalf("docs/tables.md has no part %q", name)
		}
		text = slices.Concat(text[:i+len(begin)], []byte(body), text[j:])
	}
	if bytes.Equal(old, text) {
		return
	}
	if !*rewriteDocs {
		t.Fatal("docs/tables.md is behind the code: go test ./core/schema -run Manual -rewrite")
	}
	if err := os.WriteFile(page, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// typeRows shows each type's Arrow type as the code maps it.
func typeRows() string {
	var b strings.Builder
	b.WriteString("| type | Arrow | holds |\n| --- | --- | --- |\n")
	for _, r := range []struct{ shown, example, holds string }{
		{"BOOLEAN", "BOOLEAN", "true, false; also written BOOL"},
		{"TINYINT", "TINYINT", "-128..127"},
		{"SMALLINT", "SMALLINT", "16 bits"},
		{"INT", "INT", "32 bits; also written INTEGER"},
		{"BIGINT", "BIGINT", "64 bits"},
		{"FLOAT", "FLOAT", "32 bits"},
		{"DOUBLE", "DOUBLE", "64 bits"},
		{"DECIMAL(p,s)", "DECIMAL(10,2)", fmt.Sprintf("p 1..%d digits, s of them after the point; DECIMAL is DECIMAL(10,0)", MaxPrecision)},
		{"CHAR(n)", "CHAR(3)", fmt.Sprintf("at most n characters, n 1..%d; CHAR is CHAR(1)", MaxFixedLength)},
		{"STRING", "STRING", "UTF-8"},
		{"BINARY(n)", "BINARY(3)", fmt.Sprintf("exactly n bytes, n 1..%d; BINARY is BINARY(1)", MaxFixedLength)},
		{"BYTES", "BYTES", "any number of bytes"},
		{"DATE", "DATE", "days"},
		{"TIME(0)", "TIME(0)", "since midnight, seconds; TIME is TIME(0)"},
		{"TIME(1..3)", "TIME(3)", "milliseconds"},
		{"TIME(4..6)", "TIME(6)", "microseconds"},
		{"TIME(7..9)", "TIME(9)", "nanoseconds"},
		{"TIMESTAMP(p)", "TIMESTAMP(3)", "without a zone; units as TIME's; TIMESTAMP is TIMESTAMP(6)"},
		{"TIMESTAMP_LTZ(p)", "TIMESTAMP_LTZ(3)", "an instant; units as TIME's"},
		{"ARRAY<T>", "ARRAY<INT>", "elements of one type"},
		{"MAP<K, V>", "MAP<STRING, INT>", "keys are never null"},
		{"ROW<a T, ...>", "ROW<x INT, y STRING>", "named fields"},
	} {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", r.shown, MustParseType(r.example).Arrow(), r.holds)
	}
	return b.String()
}

func optionRows(kafka bool) string {
	var b strings.Builder
	b.WriteString("| option | type | default | |\n| --- | --- | --- | --- |\n")
	for _, s := range OptionSpecs() {
		if s.Kafka != kafka {
			continue
		}
		value := string(s.Type)
		if len(s.Choices) > 0 {
			value += " " + strings.Join(s.Choices, " \\| ")
		}
		if len(s.Special) > 0 {
			value += " or " + strings.Join(s.Special, ", ")
		}
		doc := s.Doc
		if s.Tables == PrimaryKeyTables {
			doc += " Primary-key tables."
		}
		if s.Fixed {
			doc += " Fixed when the table is created."
		}
		if s.Unbuilt {
			doc += " **Not built yet**: any value but the default is refused."
		}
		def := ""
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Name, value, def, doc)
	}
	return b.String()
}
