package hosttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mink-project/mink/core/builtin/sqlcatalog"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/plugin"
)

// catalogOf is a plugin of catalogs in SQLite, in the directory of its option.
func catalogOf(behaviour string) plugin.Plugin {
	return plugin.Catalog{
		Info: plugin.Info{Name: behaviour, Version: "1.0.0", Options: []plugin.Option{
			{Name: "dir", Doc: "Directory of the database."}, {Name: "token", Doc: "Not looked at.", Secret: true},
		}},
		Open: func(ctx context.Context, cfg plugin.Config) (catalog.Catalog, error) {
			dir := cfg.Options["dir"]
			if dir == "" {
				return nil, errors.Join(catalog.ErrInvalid, errors.New("the option dir is not set"))
			}
			c, err := sqlcatalog.Open(ctx, "sqlite:"+filepath.Join(dir, "catalog.db"), sqlcatalog.Default())
			if err != nil {
				return nil, err
			}
			_, err = os.Stat(filepath.Join(dir, "turned"))
			return &badCatalog{Catalog: c, behaviour: behaviour, turned: err == nil}, nil
		},
	}
}

// badCatalog swaps after all when it is good.
type badCatalog struct {
	*sqlcatalog.Catalog
	behaviour string
	turned    bool
}

func (c *badCatalog) Describe() catalog.Description {
	d := c.Catalog.Describe()
	if c.turned {
		d.Commit = catalog.CommitsUpdates
	}
	return d
}

func (c *badCatalog) SwapMetadata(ctx context.Context, req catalog.SwapMetadataRequest) (catalog.SwapMetadataResponse, error) {
	resp, err := c.Catalog.SwapMetadata(ctx, req)
	switch c.behaviour {
	case "panics":
		panic("the catalog's author did not think of this")
	case "stuck":
		select {}
	}
	return resp, err
}

// CommitTable is there for the turned one alone.
func (c *badCatalog) CommitTable(context.Context, catalog.CommitTableRequest) (catalog.LoadTableResponse, error) {
	return catalog.LoadTableResponse{}, catalog.ErrUnimplemented
}

// InstallCatalog is Install of a catalog plugin, whose option "dir" names where its
// database is. The behaviours:
//
//	sql       a catalog in SQLite; with a file "turned" in dir it commits in another way
//	panics    as sql, and panics in SwapMetadata when the pointer has moved
//	stuck     as sql, and never answers SwapMetadata
func InstallCatalog(t testing.TB, dir, behaviour string) string {
	t.Helper()
	return install(t, dir, catalogOf(behaviour).Manifest())
}
