// Command mink-plugin-catalog-glue is a Mink plugin: a lake catalog in AWS Glue.
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
		Name: "glue", Version: cloudstore.Version, Options: options, Env: []string{"AWS_*"},
		Summary: "tables in the AWS Glue Data Catalog",
	},
	Open: func(ctx context.Context, cfg plugin.Config) (catalog.Catalog, error) { return open(ctx, cfg.Options) },
}
