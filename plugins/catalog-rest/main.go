// Command mink-plugin-catalog-rest is a Mink plugin: a lake catalog behind the Iceberg
// REST specification.
package main

import (
	"context"

	"github.com/mink-project/mink/plugins/internal/cloudstore"
	"github.com/mink-project/mink/sdk/catalog"
	"github.com/mink-project/mink/sdk/plugin"
)

func main() { plugin.Serve(self) }

var self = plugin.Catalog{
	Info: plugin.Info{
		Name: "rest", Version: cloudstore.Version, Options: options, Env: []string{"AWS_*"},
		Summary: "tables in a catalog that speaks the Iceberg REST protocol",
	},
	Open: func(ctx context.Context, cfg plugin.Config) (catalog.Catalog, error) { return open(ctx, cfg.Options) },
}
