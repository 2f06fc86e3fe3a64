package icebergrest_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/icebergrest"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/sdk/catalog"
)

// pythonEnv names a Python with pyiceberg; scripts/e2e-lake.sh makes one.
const pythonEnv = "MINK_TEST_LAKE_PYTHON"

// pyiceberg makes, fills, changes, races for, renames and drops tables through the REST
// catalog on a directory store, and reads them through the SQLite file.
func TestPyiceberg(t *testing.T) {
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Skipf("LEFT OUT: %s is not set; run make e2e-lake", pythonEnv)
	}
	dir := t.TempDir()
	cfg := dirstore.Default()
	cfg.Dir = filepath.Join(dir, "objects")
	store, err := dirstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	file := filepath.Join(dir, "catalog.db")
	c, err := sqlcatalog.Open(t.Context(), "sqlite:"+file, sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file://" + cfg.Dir, Catalog: c})
	if err != nil {
		t.Fatal(err)
	}
	events := catalog.Identifier{Namespace: []string{"mink"}, Name: "events"}
	if err := w.CreateNamespace(t.Context(), events.Namespace, nil); err != nil {
		t.Fatal(err)
	}
	_, err = w.Create(t.Context(), lake.CreateTable{
		ID: events, Location: w.Location(lake.TableDir("mink", "events", "7")), Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder,
		Schema:     iceberg.NewSchema(0, iceberg.NestedField{ID: 4, Name: "id", Type: iceberg.PrimitiveTypes.Int64}),
		Properties: iceberg.Properties{"mink.table-id": "7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const token = "let-me-in"
	server := httptest.NewServer(http.StripPrefix("/iceberg", icebergrest.New(&lake.Guard{Warehouse: w}, icebergrest.Config{Token: token}, slog.New(slog.DiscardHandler))))
	defer server.Close()
	out, err := exec.CommandContext(t.Context(), python, "testdata/pyiceberg_client.py", server.URL+"/iceberg", token, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
