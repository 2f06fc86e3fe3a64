package flight

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the generated parts of docs/flight.md")

var page = filepath.Join("..", "..", "docs", "flight.md")

// TestReferencePage keeps the generated parts of docs/flight.md: the bodies from
// the Go types of sdk/api, actions and errors from this package's tables.
func TestReferencePage(t *testing.T) {
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := old
	for name, body := range map[string]string{"bodies": bodies(t), "actions": actionRows(), "errors": errorRows()} {
		text = replacePart(t, text, name, body)
	}
	if bytes.Equal(old, text) {
		return
	}
	if !*rewrite {
		t.Fatal("docs/flight.md is behind the code: go test ./core/flight -run TestReferencePage -rewrite")
	}
	if err := os.WriteFile(page, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// replacePart puts body between <!-- begin name --> and <!-- end name -->.
func replacePart(t *testing.T, text []byte, name, body string) []byte {
	t.Helper()
	begin, end := fmt.Sprintf("<!-- begin %s, generated -->\n", name), fmt.Sprintf("<!-- end %s -->", name)
	i, j := bytes.Index(text, []byte(begin)), bytes.Index(text, []byte(end))
	if i < 0 || j < i {
		t.Fatalf("docs/flight.md has no part %q", name)
	}
	return slices.Concat(text[:i+len(begin)], []byte(body), text[j:])
}

func actionRows() string {
	var b strings.Builder
	b.WriteString("| action | body -> answer |\n| --- | --- |\n")
	for _, a := range (&service{}).actionTable() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", a.name, a.doc)
	}
	return b.String()
}

func errorRows() string {
	var b strings.Builder
	b.WriteString("| reason | gRPC code | what to do |\n| --- | --- | --- |\n")
	seen := map[string]bool{}
	for _, c := range append([]class{classNotLeader, classFenced}, classes...) {
		if seen[c.reason] {
			continue
		}
		seen[c.reason] = true
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.reason, c.code, c.doc)
	}
	return b.String()
}

// bodies writes every struct type of sdk/api, in the order of the source.
func bodies(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	fset := token.NewFileSet()
	for _, name := range []string{"api.go", "kv.go", "actions.go"} {
		f, err := parser.ParseFile(fset, filepath.Join("..", "..", "sdk", "api", name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				ts := s.(*ast.TypeSpec)
				if st, ok := ts.Type.(*ast.StructType); ok {
					bodyOf(&b, ts.Name.Name, g.Doc.Text(), st)
				}
			}
		}
	}
	return b.String()
}

func bodyOf(b *strings.Builder, name, doc string, st *ast.StructType) {
	fmt.Fprintf(b, "### %s\n\n%s\n", name, strings.TrimSpace(doc))
	b.WriteString("\n| field | type | |\n| --- | --- | --- |\n")
	for _, f := range st.Fields.List {
		tag, options, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		note := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		if strings.Contains(options, "omitempty") {
			note = strings.TrimSpace("(optional) " + note)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", tag, typeText(f.Type), strings.ReplaceAll(note, "|", `\|`))
	}
	b.WriteString("\n")
}

// typeText is a Go type in JSON's words.
func typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		switch e.Name {
		case "string":
			return "string"
		case "bool":
			return "boolean"
		case "int", "int16", "int32", "int64", "uint64", "float64":
			return "number"
		}
		return fmt.Sprintf("[%s](#%s)", e.Name, strings.ToLower(e.Name))
	case *ast.StarExpr:
		return typeText(e.X)
	case *ast.ArrayType:
		if id, ok := e.Elt.(*ast.Ident); ok && id.Name == "byte" {
			return "string, base64"
		}
		return "array of " + typeText(e.Elt)
	case *ast.MapType:
		return "object of " + typeText(e.Value)
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "RawMessage":
			return "any JSON"
		case "BucketRef":
			return "[bucket](#bucket-references)"
		}
		return "number"
	}
	return "?"
}
