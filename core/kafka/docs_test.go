package kafka

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var rewriteDocs = flag.Bool("rewrite", false, "write the generated part of docs/kafka.md")

// TestManualVersions keeps the version table of docs/kafka.md.
func TestManualVersions(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "kafka.md")
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := []byte("<!-- begin versions, generated -->\n"), []byte("<!-- end versions -->")
	i, j := bytes.Index(old, begin), bytes.Index(old, end)
	if i < 0 || j < i {
		t.Fatal("docs/kafka.md has no part for the versions")
	}
	var text bytes.Buffer
	text.Write(old[:i+len(begin)])
	if err := WriteVersions(&text); err != nil {
		t.Fatal(err)
	}
	text.Write(old[j:])
	if bytes.Equal(old, text.Bytes()) {
		return
	}
	if !*rewriteDocs {
		t.Fatal("docs/kafka.md is behind the code: go test ./core/kafka -run ManualVersions -rewrite")
	}
	if err := os.WriteFile(page, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
