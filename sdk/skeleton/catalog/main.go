// Command mink-plugin-catalog-skeleton is a Mink plugin: a catalog of lake tables.
package main

import (
	"context"

	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/plugin"
)

const version = "0.1.0"

func main() {
	plugin.Serve(plugin.Catalog{
		Info: plugin.Info{
			Name: "skeleton", Version: version, Summary: "one line about it",
			Options: []plugin.Option{{Name: "dir", Doc: "Directory that holds the catalog."}},
		},
		Open: func(_ context.Context, cfg plugin.Config) (catalog.Catalog, error) { return open(cfg.Options["dir"]) },
	})
}
