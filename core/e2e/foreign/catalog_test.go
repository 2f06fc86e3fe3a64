package foreign

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/builtin/dirstore"
	"github.com/mink-project/mink/core/lake"
	"github.com/mink-project/mink/core/schema"
	"github.com/mink-project/mink/plugins/cloudtest"
	"github.com/mink-project/mink/sdk/host"
	"github.com/mink-project/mink/sdk/mink"
	"github.com/mink-project/mink/sdk/plugin"
)

// newReferenceWorld is a lake whose catalog is the reference server of Iceberg's REST
// protocol, behind the plugin as a node runs it.
func newReferenceWorld(t *testing.T) *world {
	t.Helper()
	if os.Getenv("MINK_TEST_LAKE_PYTHON") == "" {
		t.Skip("MINK_TEST_LAKE_PYTHON is not set: run make e2e-lake")
	}
	server := cloudtest.IcebergREST(t, t.TempDir())
	path := filepath.Join(t.TempDir(), "mink-plugin-catalog-rest")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/mink-project/mink/plugins/catalog-rest").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p, err := host.Launch(t.Context(), host.Config{Path: path, Kind: plugin.KindCatalog})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	c, err := p.OpenCatalog(t.Context(), map[string]string{"uri": server.URL})
	must(t, err)
	cfg := dirstore.Default()
	cfg.Dir = filepath.Join(t.TempDir(), "objects")
	store, err := dirstore.Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()); must(t, store.Close()) })
	w, err := lake.NewWarehouse(lake.WarehouseConfig{Store: store, Root: "file://" + filepath.ToSlash(cfg.Dir), Catalog: c})
	must(t, err)
	return &world{t: t, lake: w, sink: lake.NewSink(w, lake.SinkConfig{ScratchDir: t.TempDir()}), rest: server.URL}
}

// Other engines read, through a catalog that is not Mink's, what Mink wrote through the
// plugin; the catalog computed the metadata.
func TestTablesInAnotherCatalog(t *testing.T) {
	engines := []string{pyicebergREST, duckdbREST}
	t.Run("log", func(t *testing.T) {
		b := newReferenceWorld(t).create(allTypes("log"), nil)
		b.round(appends(full(1), object{"id": 2})...)
		b.equal(engines...)
		for i, step := range evolution {
			b.alter(step.changes...)
			row := full(10 + i)
			for _, s := range evolution[:i+1] {
				row = s.with(row)
			}
			b.round(appends(row)...)
		}
		b.equal(engines...)
	})
	t.Run("primary key", func(t *testing.T) {
		d := descriptor("keyed", "id", "BIGINT NOT NULL", "day", "STRING NOT NULL", "v", "STRING")
		d.PrimaryKey, d.PartitionKeys = []string{"id", "day"}, []string{"day"}
		b := newReferenceWorld(t).create(d, nil)
		row := func(id int, day, v string) object { return object{"id": id, "day": day, "v": v} }
		b.round(change{mink.ChangeInsert, row(1, "a", "x")}, change{mink.ChangeInsert, row(2, "a", "y")}, change{mink.ChangeInsert, row(1, "b", "z")})
		b.equal(engines...)
		b.round(change{mink.ChangeUpdateAfter, row(1, "a", "x2")}, change{mink.ChangeDelete, row(2, "a", "y")})
		b.alter(schema.Change{Op: schema.RenameColumn, Name: "v", To: "w"})
		b.round(change{mink.ChangeInsert, object{"id": 3, "day": "b", "w": "q"}})
		b.equal(engines...)
	})
}
