package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/mink-project/mink/core/builtin/memstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/core/icebergrest"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/catalog/catalogtest"
	"github.com/mink-project/mink/sdk/objstore"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

func TestMain(m *testing.M) { cloudtest.Main(m, self) }

func TestManual(t *testing.T) { cloudtest.CheckOptions(t, self.Info) }

// opener opens catalogs in this process or in a plugin's.
type opener func(ctx context.Context, options map[string]string) (catalog.Catalog, error)

func inPlugin(t *testing.T) opener {
	t.Helper()
	return cloudtest.Process(t, self).OpenCatalog
}

// node is the REST catalog of a Mink node over a store in memory.
func node(t *testing.T, store objstore.Store, token string) (url string) {
	t.Helper()
	c, err := sqlcatalog.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "catalog.db"), sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file:///w", Catalog: c})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/iceberg", icebergrest.New(w, icebergrest.Config{Token: token}, slog.New(slog.DiscardHandler))))
	t.Cleanup(s.Close)
	return s.URL + "/iceberg"
}

func conformance(t *testing.T, open opener) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Target {
		options := map[string]string{"uri": node(t, memstore.New(memstore.Default()), "let me in") + "/", "token": "let me in"}
		return catalogtest.Target{Start: func(ctx context.Context) (catalog.Catalog, error) { return open(ctx, options) }}
	})
}

func TestConformanceOnANode(t *testing.T)        { conformance(t, open) }
func TestProcessConformanceOnANode(t *testing.T) { conformance(t, inPlugin(t)) }

func onFixture(t *testing.T, open opener) {
	server := cloudtest.IcebergREST(t, t.TempDir())
	catalogtest.Run(t, func(*testing.T) catalogtest.Target {
		return catalogtest.Target{Shared: true, Start: func(ctx context.Context) (catalog.Catalog, error) {
			return open(ctx, map[string]string{"uri": server.URL})
		}}
	})
}

func TestConformanceOnTheReference(t *testing.T)        { onFixture(t, open) }
func TestProcessConformanceOnTheReference(t *testing.T) { onFixture(t, inPlugin(t)) }

// The lake's sink keeps its contract on a catalog that computes metadata: no row is lost or
// doubled, whoever is killed and whatever two workers do.
func TestTheLakesSinkOnACommitter(t *testing.T) {
	process := inPlugin(t)
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		store := memstore.New(memstore.Default())
		c, err := process(t.Context(), map[string]string{"uri": node(t, store, "")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file:///w", Catalog: c})
			if err != nil {
				return nil, nil, err
			}
			return lake.NewSink(w, lake.SinkConfig{}), func() {}, nil
		}}
	})
}

// Properties that a catalog forbids are left out, but for Mink's own, without which
// nothing could be tiered.
func TestForbiddenProperties(t *testing.T) {
	store := memstore.New(memstore.Default())
	warehouse := func(forbidden string) (*lake.Warehouse, error) {
		c, err := open(t.Context(), map[string]string{"uri": node(t, store, ""), "forbidden_properties": forbidden})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file:///w", Catalog: c})
	}
	w, err := warehouse("write.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.CreateNamespace(t.Context(), orders.Namespace, nil); err != nil {
		t.Fatal(err)
	}
	_, err = w.Create(t.Context(), lake.CreateTable{
		ID: orders, Schema: iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64}),
		Spec: *iceberg.UnpartitionedSpec, SortOrder: table.UnsortedSortOrder, Properties: iceberg.Properties{"write.format.default": "parquet", "kept": "yes"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.Load(t.Context(), orders)
	if err != nil || got.Properties()["kept"] != "yes" || got.Properties()["write.format.default"] != "" {
		t.Errorf("%v, %v", got.Properties(), err)
	}
	for _, forbidden := range []string{"mink.*", "mink.offsets", "*"} {
		if _, err := warehouse(forbidden); !errors.Is(err, catalog.ErrInvalid) || !strings.Contains(err.Error(), "forbidden_properties") {
			t.Errorf("%s: %v", forbidden, err)
		}
	}
}

// Names with all that a path or a query could take for something else.
func TestNamesInPaths(t *testing.T) {
	c, err := open(t.Context(), map[string]string{"uri": node(t, memstore.New(memstore.Default()), "")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for i, name := range []string{"a b", "a+b", "a?b=c", "a#b", "a&b", "ü", "a;b", "a:b", "a@b", "100%", "%41"} {
		namespace := []string{fmt.Sprintf("n%d", i), name}
		if _, err := c.CreateNamespace(t.Context(), catalog.CreateNamespaceRequest{Namespace: namespace}); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		id := catalog.Identifier{Namespace: namespace, Name: name}
		schema := []byte(`{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"c","required":false,"type":"long"}]}`)
		if _, err := c.CreateTable(t.Context(), catalog.CreateTableRequest{Table: id, Schema: schema}); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if _, err := c.LoadTable(t.Context(), catalog.LoadTableRequest{Table: id}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		got, err := c.ListTables(t.Context(), catalog.ListTablesRequest{Namespace: namespace})
		if err != nil || len(got.Names) != 1 || got.Names[0] != name {
			t.Errorf("%q: %q, %v", name, got.Names, err)
		}
	}
}
