package flight_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/sdk/api"
	"github.com/mink-project/mink/sdk/client"
)

// everyType is a column of every type of the table language.
var everyType = []string{
	"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(20,4)", "CHAR(4)", "STRING", "BINARY(3)", "BYTES",
	"DATE", "TIME(0)", "TIME(3)", "TIME(6)", "TIME(9)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(3)",
	"ARRAY<INT>", "MAP<STRING, BIGINT>", "ROW<a INT, b ARRAY<ROW<c STRING, d DOUBLE>>>",
}

func everyColumn() string {
	cols := make([]string, len(everyType))
	for i, typ := range everyType {
		cols[i] = fmt.Sprintf(`{"name":"c%d","type":%q}`, i, typ)
	}
	return strings.Join(cols, ",")
}

// everyValue makes three rows: values, nulls, other values.
func everyValue(t *testing.T, s *arrow.Schema) arrow.RecordBatch {
	t.Helper()
	rows := `{"c0":true,"c1":-8,"c2":300,"c3":70000,"c4":-5000000000,"c5":1.5,"c6":-2.25,"c7":"123456.7890","c8":"äb","c9":"text \u0000 é","c10":"AQID","c11":"AP8=",
		"c12":"2024-02-29","c13":"07:05:01","c14":"07:05:01.123","c15":"07:05:01.123456","c16":"07:05:01.123456789",
		"c17":"2024-02-29T07:05:01","c18":"2024-02-29T07:05:01.123","c19":"2024-02-29T07:05:01.123456","c20":"2024-02-29T07:05:01.123456789","c21":"2024-02-29T07:05:01.123Z",
		"c22":[1,null,3],"c23":[{"key":"k","value":7}],"c24":{"a":1,"b":[{"c":"x","d":0.5},null]}}
		{}
		{"c0":false,"c1":127,"c4":0,"c9":"","c11":"","c22":[],"c23":[],"c24":{"a":null,"b":[]}}`
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(rows), array.WithMultipleDocs())
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestEveryType(t *testing.T) {
	w := newWorld(t)
	tab := w.table(everyColumn(), "")
	d, err := schema.DecodeDescriptor(tab.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	s := d.Schema.Arrow()
	rec := everyValue(t, s)
	defer rec.Release()
	rec.Retain()
	p := w.appendTo(1, 0, s)
	p.send(rec, nil)
	mustResult[api.AppendResult](p)
	p.finish()
	// Table-addressed, in the other order, so that it is decoded and encoded.
	fields, cols := slices.Clone(s.Fields()), slices.Clone(rec.Columns())
	slices.Reverse(fields)
	slices.Reverse(cols)
	turned := array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows())
	p = w.put(path("db", "t"), turned.Schema())
	p.send(turned, nil)
	mustResult[api.PutResult](p)
	p.finish()
	out := w.mustGet(api.Scan{Bucket: w.bucket(0)})
	if len(out) != 2 {
		t.Fatalf("%d batches", len(out))
	}
	for i, g := range out {
		if !array.RecordEqual(rec, g.rows) {
			t.Errorf("batch %d came back as %v, want %v", i, g.rows, rec)
		}
	}
	// A cut batch, decoded and encoded, is the same rows.
	out = w.mustGet(api.Scan{Bucket: w.bucket(0), From: 1, Limit: 2})
	want := rec.NewSlice(1, 3)
	defer want.Release()
	if len(out) != 1 || !array.RecordEqual(want, out[0].rows) {
		t.Errorf("rows 1 and 2 came back as %v", out)
	}
}

// TestPyarrow runs real pyarrow, which knows nothing of Mink.
func TestPyarrow(t *testing.T) {
	w := newWorld(t)
	w.table(`{"name":"id","type":"BIGINT NOT NULL"},{"name":"word","type":"STRING"},{"name":"at","type":"TIMESTAMP(6)"},{"name":"tags","type":"ARRAY<STRING>"}`,
		`"bucket_count":3,"bucket_keys":["id"]`)
	if _, err := w.client.CreateTable(t.Context(), json.RawMessage(`{"database":"db","table":"one","schema":{"columns":[`+idName+`]}}`), false); err != nil {
		t.Fatal(err)
	}
	python(t, filepath.Join("testdata", "roundtrip.py"), "grpc://"+w.address)
}

// shop makes the tables of docs/flight.md.
func (w *world) shop() {
	w.t.Helper()
	if err := w.client.CreateDatabase(w.t.Context(), "shop", false); err != nil {
		w.t.Fatal(err)
	}
	const orders = `"schema":{"columns":[{"name":"id","type":"BIGINT NOT NULL"},{"name":"item","type":"STRING"},{"name":"at","type":"TIMESTAMP(6)"}]}`
	for _, table := range []string{
		`"table":"orders","bucket_count":2,"bucket_keys":["id"],` + orders, `"table":"journal",` + orders,
		`"table":"stock","bucket_count":2,"primary_key":["shop","id"],"bucket_keys":["shop"],"schema":{"columns":[{"name":"shop","type":"STRING"},{"name":"id","type":"BIGINT"},
			{"name":"item","type":"STRING"},{"name":"price","type":"DECIMAL(10,2)"},{"name":"pieces","type":"INT"}]}`,
	} {
		if _, err := w.client.CreateTable(w.t.Context(), json.RawMessage(`{"database":"shop",`+table+`}`), false); err != nil {
			w.t.Fatal(err)
		}
	}
}

// blocks are the codes of one language in docs/flight.md.
func blocks(t *testing.T, language string) (out []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "flight.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(page), "```"+language+"\n")[1:] {
		code, _, ended := strings.Cut(part, "```")
		if !ended {
			t.Fatalf("docs/flight.md has a %s example without an end", language)
		}
		out = append(out, code)
	}
	if len(out) != 2 {
		t.Fatalf("docs/flight.md has %d %s examples, want 2", len(out), language)
	}
	return out
}

// The page's Python runs as it is printed, but for the address.
func TestDocsPython(t *testing.T) {
	w := newWorld(t)
	w.shop()
	for _, code := range blocks(t, "python") {
		if !strings.Contains(code, "grpc://127.0.0.1:9123") {
			t.Fatal("the example has another address")
		}
		file := filepath.Join(t.TempDir(), "example.py")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(code, "127.0.0.1:9123", w.address)), 0o600); err != nil {
			t.Fatal(err)
		}
		python(t, file)
	}
}

// The page's Go is in the bodies of the examples, which are compiled and run here.
func TestDocsGo(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	want := blocks(t, "go")
	for i, body := range strings.Split(string(source), "// docs: begin\n")[1:] {
		body, _, _ = strings.Cut(body, "\t// docs: end\n")
		body = strings.ReplaceAll(strings.TrimPrefix(body, "\t"), "\n\t", "\n")
		body = strings.Replace(body, "client.New(cfg)", "client.New(client.Default())", 1)
		if want[i] != body {
			t.Errorf("docs/flight.md has\n%s\nexample_test.go has\n%s", want[i], body)
		}
	}
	w := newWorld(t)
	w.shop()
	cfg := client.Default()
	cfg.Bootstrap = []string{w.address}
	if err := example(t.Context(), cfg); err != nil {
		t.Error(err)
	}
	if err := exampleOfRows(t.Context(), w.client); err != nil {
		t.Error(err)
	}
}

// python runs a script with pyarrow, or skips and says why.
func python(t *testing.T, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: pyarrow is left out")
	}
	python, err := exec.LookPath("python3")
	if err == nil {
		err = exec.CommandContext(t.Context(), python, "-c", "import pyarrow.flight").Run()
	}
	if err != nil {
		t.Skipf("python3 with pyarrow.flight is not installed: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), python, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
