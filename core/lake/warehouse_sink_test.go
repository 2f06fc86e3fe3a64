package lake

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/sdk/sink"
	"github.com/mink-project/mink/sdk/sink/sinktest"
)

// openWarehouse is one of a directory and a SQLite file.
func openWarehouse(t testing.TB, dir string) *Warehouse {
	t.Helper()
	cfg := dirstore.Default()
	cfg.Dir = filepath.Join(dir, "objects")
	store, err := dirstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cat, err := sqlcatalog.Open(t.Context(), "sqlite:"+filepath.Join(dir, "catalog.db"), sqlcatalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cat.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	w, err := NewWarehouse(WarehouseConfig{Store: store, Root: "file://" + filepath.ToSlash(filepath.Join(dir, "objects")), Catalog: cat})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestConformanceOnDisk is the kit on what `mink server` has by default; most of its
// time is the disk's.
func TestConformanceOnDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute of fsync")
	}
	sinktest.Run(t, func(t *testing.T) sinktest.Target {
		w := openWarehouse(t, t.TempDir())
		return sinktest.Target{Start: func(context.Context) (sink.Sink, func(), error) {
			return NewSink(w, SinkConfig{}), func() {}, nil
		}}
	})
}
